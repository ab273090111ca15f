//! Kubeconfig files as webhooks use them: the cluster is the webhook, the user is this server.
//!
//! Left out: credential plugins, impersonation and proxies; each is an error that names the field.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderValue, Uri};
use rustls_pki_types::ServerName;
use serde::Deserialize;

use super::{Credentials, HttpClient, TlsOptions, TlsSetupError, Webhook};
use crate::config_file::{self, FileError};

/// What is wrong with a webhook's kubeconfig.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{path}: {field} is not set", path = path.display())]
    Missing { path: PathBuf, field: String },
    #[error("{path}: {field} is not supported for webhooks", path = path.display())]
    Unsupported { path: PathBuf, field: &'static str },
    #[error("{path}: {field}: invalid value", path = path.display())]
    Value { path: PathBuf, field: &'static str },
    #[error("{path}: {source}", path = path.display())]
    Tls { path: PathBuf, source: TlsSetupError },
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Kubeconfig {
    current_context: String,
    clusters: Vec<NamedCluster>,
    contexts: Vec<NamedContext>,
    users: Vec<NamedUser>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Cluster {
    server: String,
    tls_server_name: String,
    insecure_skip_tls_verify: bool,
    certificate_authority: String,
    certificate_authority_data: String,
    proxy_url: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Context {
    cluster: String,
    user: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedUser {
    name: String,
    user: User,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct User {
    client_certificate: String,
    client_certificate_data: String,
    client_key: String,
    client_key_data: String,
    token: String,
    #[serde(rename = "tokenFile")]
    token_file: String,
    r#as: String,
    username: String,
    password: String,
    exec: Option<serde_json::Value>,
}

/// A file that is being read; relative paths in it are taken from its folder.
struct Reader<'a> {
    path: &'a Path,
}

impl Webhook {
    /// Reads a kubeconfig. The current context may be left out where there is one cluster and at most one user.
    pub(crate) fn from_kubeconfig(path: &Path) -> Result<Webhook, KubeconfigError> {
        let bytes = config_file::read(path)?;
        let invalid = |e: &dyn ToString| KubeconfigError::File(FileError::invalid(path, e.to_string()));
        let (mut value, _) = orlop_api::schema::yaml_to_value(&bytes).map_err(|e| invalid(&e))?;
        drop_nulls(&mut value);
        let file: Kubeconfig = serde_json::from_value(value).map_err(|e| invalid(&e))?;
        Reader { path }.webhook(file)
    }
}

/// A field without a value is one that is not there.
fn drop_nulls(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(drop_nulls);
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

impl Reader<'_> {
    fn missing(&self, field: &str) -> KubeconfigError {
        KubeconfigError::Missing {
            path: self.path.to_path_buf(),
            field: field.to_string(),
        }
    }

    fn invalid(&self, field: &'static str) -> KubeconfigError {
        KubeconfigError::Value {
            path: self.path.to_path_buf(),
            field,
        }
    }

    fn unsupported(&self, field: &'static str) -> KubeconfigError {
        KubeconfigError::Unsupported {
            path: self.path.to_path_buf(),
            field,
        }
    }

    fn webhook(&self, file: Kubeconfig) -> Result<Webhook, KubeconfigError> {
        let context = match file.current_context.as_str() {
            "" if file.clusters.len() == 1 && file.users.len() <= 1 => Context {
                cluster: file.clusters[0].name.clone(),
                user: file.users.first().map(|user| user.name.clone()).unwrap_or_default(),
            },
            "" => return Err(self.missing("current-context")),
            name => {
                let found = file.contexts.into_iter().find(|context| context.name == name);
                found.ok_or_else(|| self.missing(&format!("contexts[{name}]")))?.context
            }
        };
        let cluster = file
            .clusters
            .into_iter()
            .find(|cluster| cluster.name == context.cluster);
        let cluster = cluster
            .ok_or_else(|| self.missing(&format!("clusters[{}]", context.cluster)))?
            .cluster;
        let user = file.users.into_iter().find(|user| user.name == context.user);
        let user = user.map(|named| named.user).unwrap_or_default();
        if !cluster.proxy_url.is_empty() {
            return Err(self.unsupported("proxy-url"));
        }
        if user.exec.is_some() {
            return Err(self.unsupported("exec"));
        }
        if !user.r#as.is_empty() {
            return Err(self.unsupported("as"));
        }
        let client = HttpClient::new(&self.tls(&cluster, &user)?).map_err(|source| KubeconfigError::Tls {
            path: self.path.to_path_buf(),
            source,
        })?;
        Ok(Webhook {
            url: self.url(&cluster.server)?,
            client,
            credentials: self.credentials(&user)?,
        })
    }

    fn url(&self, server: &str) -> Result<Uri, KubeconfigError> {
        if server.is_empty() {
            return Err(self.missing("server"));
        }
        let server = match server.contains("://") {
            true => server.to_string(),
            false => format!("https://{server}"),
        };
        let url: Uri = server.parse().map_err(|_| self.invalid("server"))?;
        match (url.scheme_str(), url.host()) {
            (Some("https" | "http"), Some(host)) if !host.is_empty() => Ok(url),
            _ => Err(self.invalid("server")),
        }
    }

    fn tls(&self, cluster: &Cluster, user: &User) -> Result<TlsOptions, KubeconfigError> {
        let authority = self.pem(&cluster.certificate_authority_data, &cluster.certificate_authority)?;
        let certificate = self.pem(&user.client_certificate_data, &user.client_certificate)?;
        let key = self.pem(&user.client_key_data, &user.client_key)?;
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (None, _) => return Err(self.missing("client-certificate")),
            (_, None) => return Err(self.missing("client-key")),
        };
        let server_name = match cluster.tls_server_name.as_str() {
            "" => None,
            name => Some(ServerName::try_from(name.to_string()).map_err(|_| self.invalid("tls-server-name"))?),
        };
        Ok(TlsOptions {
            authority,
            identity,
            server_name,
            skip_verify: cluster.insecure_skip_tls_verify,
        })
    }

    /// Data goes before a file.
    fn pem(&self, data: &str, file: &str) -> Result<Option<Vec<u8>>, KubeconfigError> {
        match (data, file) {
            ("", "") => Ok(None),
            ("", file) => Ok(Some(config_file::read(&self.resolved(file))?)),
            (data, _) => {
                let decoded = BASE64_STANDARD.decode(data.split_whitespace().collect::<String>());
                decoded.map(Some).map_err(|_| self.invalid("certificate data"))
            }
        }
    }

    fn resolved(&self, file: &str) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(file)
    }

    fn credentials(&self, user: &User) -> Result<Credentials, KubeconfigError> {
        let header = |text: String| {
            let mut value = HeaderValue::from_str(&text).map_err(|_| self.invalid("token"))?;
            value.set_sensitive(true);
            Ok(Credentials::Header(value))
        };
        if !user.token_file.is_empty() {
            return Ok(Credentials::TokenFile(self.resolved(&user.token_file)));
        }
        if !user.token.is_empty() {
            return header(format!("Bearer {}", user.token));
        }
        if !user.username.is_empty() {
            let pair = BASE64_STANDARD.encode(format!("{}:{}", user.username, user.password));
            return header(format!("Basic {pair}"));
        }
        Ok(Credentials::None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhooks_are_described_by_kubeconfigs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hook.yaml");
        std::fs::write(dir.path().join("token"), "from-a-file\n").unwrap();
        let load = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Webhook::from_kubeconfig(&path)
        };
        let config = |cluster: &str, user: &str| {
            format!(
                "{{kind: Config, clusters: [{{name: c, cluster: {{insecure-skip-tls-verify: true, {cluster}}}}}], \
                 users: [{{name: u, user: {{{user}}}}}], contexts: [{{name: x, context: {{cluster: c, user: u}}}}], \
                 current-context: x}}"
            )
        };
        for (user, wanted) in [
            ("", None),
            ("token: abc", Some("Bearer abc")),
            ("tokenFile: token", Some("Bearer from-a-file")),
            ("username: a, password: b", Some("Basic YTpi")),
        ] {
            let hook = load(&config("server: 'https://hook.example/path'", user)).unwrap();
            let header = hook.credentials.header().unwrap();
            assert_eq!(header.as_ref().map(|value| value.to_str().unwrap()), wanted, "{user}");
            assert_eq!(hook.url, "https://hook.example/path");
        }
        let unnamed = "{clusters: [{name: c, cluster: {server: 'http://h', insecure-skip-tls-verify: true}}]}";
        assert!(load(unnamed).is_ok());
        for (text, wanted) in [
            (config("server: null", ""), "server is not set"),
            (config("server: 'ftp://x'", ""), "server: invalid value"),
            (
                config("server: h, proxy-url: 'http://p'", ""),
                "proxy-url is not supported for webhooks",
            ),
            (
                config("server: h", "exec: {command: x}"),
                "exec is not supported for webhooks",
            ),
            (
                config("server: h", "client-key-data: YQ=="),
                "client-certificate is not set",
            ),
            (
                config("server: h, certificate-authority: nowhere", ""),
                "failed to read",
            ),
            ("{current-context: other}".to_string(), "contexts[other] is not set"),
            ("{}".to_string(), "current-context is not set"),
        ] {
            let error = load(&text).err().expect("refused").to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}

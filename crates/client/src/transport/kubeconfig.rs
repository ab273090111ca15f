//! Kubeconfig files: the cluster and the user of the current context.
//!
//! Left out: several files merged (`KUBECONFIG=a:b`), `auth-provider` (removed upstream in favour of `exec`) and
//! `proxy-url`; the last two are errors that name the field.
// Upstream: staging/src/k8s.io/client-go/tools/clientcmd (v1.36)

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::{HeaderName, HeaderValue, Uri};
use rustls_pki_types::ServerName;
use serde::Deserialize;
use serde_json::{Value, json};

use super::credentials::{CredentialError, CredentialSource};
use super::exec::{ExecPlugin, InteractiveMode};
use super::tls::{IdentitySource, PemData, PemSource, TlsError, TlsSource};
use super::{ClusterConfig, server_address};

/// Names the extension of a cluster whose value a credential plugin is told.
const EXEC_EXTENSION: &str = "client.authentication.k8s.io/exec";
const EXEC_VERSIONS: [&str; 2] = [
    "client.authentication.k8s.io/v1",
    "client.authentication.k8s.io/v1beta1",
];

/// What is wrong with a kubeconfig: the field, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    #[error("failed to read the file")]
    Read(#[source] io::Error),
    #[error("failed to parse the file")]
    Parse(#[source] Box<serde_saphyr::Error>),
    #[error("current-context is not set; choose one with `kubectl config use-context NAME`")]
    NoContext,
    #[error("{field}: there is no {kind} named {name:?}")]
    NotFound {
        field: String,
        kind: &'static str,
        name: String,
    },
    #[error("{field} is not set{hint}")]
    Missing { field: String, hint: &'static str },
    #[error("{field} is not supported; {instead}")]
    Unsupported { field: String, instead: &'static str },
    #[error("{field}: invalid value {value:?}: {expected}")]
    Invalid {
        field: String,
        value: String,
        expected: &'static str,
    },
    #[error("{field} is not valid base64")]
    Base64 { field: String, source: base64::DecodeError },
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Credentials(#[from] CredentialError),
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Kubeconfig {
    kind: Option<String>,
    current_context: Option<String>,
    clusters: Option<Vec<NamedCluster>>,
    contexts: Option<Vec<NamedContext>>,
    users: Option<Vec<NamedUser>>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Option<Cluster>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct Cluster {
    server: Option<String>,
    tls_server_name: Option<String>,
    insecure_skip_tls_verify: Option<bool>,
    certificate_authority: Option<String>,
    certificate_authority_data: Option<String>,
    proxy_url: Option<String>,
    disable_compression: Option<bool>,
    extensions: Option<Vec<NamedExtension>>,
}

#[derive(Deserialize)]
struct NamedExtension {
    name: String,
    #[serde(default)]
    extension: Value,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Option<Context>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Context {
    cluster: Option<String>,
    user: Option<String>,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: Option<User>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
struct User {
    client_certificate: Option<String>,
    client_certificate_data: Option<String>,
    client_key: Option<String>,
    client_key_data: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<String>,
    r#as: Option<String>,
    as_uid: Option<String>,
    as_groups: Option<Vec<String>>,
    as_user_extra: Option<BTreeMap<String, Vec<String>>>,
    username: Option<String>,
    password: Option<String>,
    auth_provider: Option<Value>,
    exec: Option<Exec>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Exec {
    api_version: Option<String>,
    command: Option<String>,
    args: Option<Vec<String>>,
    env: Option<Vec<ExecVariable>>,
    install_hint: Option<String>,
    provide_cluster_info: Option<bool>,
    interactive_mode: Option<String>,
}

#[derive(Deserialize)]
struct ExecVariable {
    name: String,
    #[serde(default)]
    value: String,
}

/// Reads the file. `master`, if given, takes the place of the server's address.
pub(super) fn read(path: &Path, master: Option<&Uri>) -> Result<ClusterConfig, KubeconfigError> {
    let text = std::fs::read_to_string(path).map_err(KubeconfigError::Read)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    parse(&text, folder, master)
}

/// Relative paths are taken from `folder`.
pub(super) fn parse(text: &str, folder: &Path, master: Option<&Uri>) -> Result<ClusterConfig, KubeconfigError> {
    // Lines of the file in an error would be secrets in a log.
    let options = serde_saphyr::options! { with_snippet: false };
    let text = text.trim_start_matches('\u{feff}');
    let file: Option<Kubeconfig> =
        serde_saphyr::from_str_with_options(text, options).map_err(|e| KubeconfigError::Parse(Box::new(e)))?;
    let file = file.unwrap_or_default();
    if let Some(kind) = filled(&file.kind).filter(|kind| *kind != "Config") {
        return Err(invalid("kind", kind, "a kubeconfig has kind Config"));
    }
    let context_name = filled(&file.current_context).ok_or(KubeconfigError::NoContext)?;
    let contexts = file.contexts.unwrap_or_default();
    let context = contexts.into_iter().find(|c| c.name == context_name);
    let context = context.ok_or_else(|| not_found("current-context", "context", context_name))?;
    let context = context.context.unwrap_or_default();

    let field = format!("contexts[{context_name}].context.cluster");
    let cluster_name = filled(&context.cluster).ok_or_else(|| missing(&field, ""))?;
    let clusters = file.clusters.unwrap_or_default();
    let cluster = clusters.into_iter().find(|c| c.name == cluster_name);
    let cluster = cluster.ok_or_else(|| not_found(&field, "cluster", cluster_name))?;
    let cluster = cluster.cluster.unwrap_or_default();

    let user_name = filled(&context.user).unwrap_or_default();
    let users = file.users.unwrap_or_default();
    let user = users.into_iter().find(|u| u.name == user_name);
    if user.is_none() && !user_name.is_empty() {
        // As client-go: whoever is not there is anonymous.
        let context = context_name;
        tracing::warn!(
            context,
            user = user_name,
            "user of the kubeconfig's context not found; using no credentials"
        );
    }
    let user = user.and_then(|u| u.user).unwrap_or_default();
    let reader = Reader {
        folder,
        cluster_field: format!("clusters[{cluster_name}].cluster"),
        user_field: format!("users[{user_name}].user"),
    };
    reader.config(&cluster, &user, master)
}

/// Knows where values are, for errors and relative paths.
struct Reader<'a> {
    folder: &'a Path,
    cluster_field: String,
    user_field: String,
}

impl Reader<'_> {
    fn config(&self, cluster: &Cluster, user: &User, master: Option<&Uri>) -> Result<ClusterConfig, KubeconfigError> {
        if filled(&cluster.proxy_url).is_some() {
            return Err(KubeconfigError::Unsupported {
                field: self.in_cluster("proxy-url"),
                instead: "remove it and use an address that can be reached directly",
            });
        }
        let tls = self.tls(cluster, user)?;
        let server = match master {
            Some(master) => master.clone(),
            None => {
                let field = self.in_cluster("server");
                let text = filled(&cluster.server).ok_or_else(|| missing(&field, ""))?;
                let is_tls = tls.authority.is_some() || tls.identity.is_some() || tls.skip_verify;
                let expected = "expected http://HOST[:PORT] or https://HOST[:PORT]";
                server_address(text, is_tls).ok_or_else(|| invalid(&field, text, expected))?
            }
        };
        Ok(ClusterConfig {
            server,
            credentials: self.credentials(cluster, user, &tls)?,
            impersonate: self.impersonation(user)?,
            tls,
        })
    }

    fn tls(&self, cluster: &Cluster, user: &User) -> Result<TlsSource, KubeconfigError> {
        let authority = self.pem(
            self.in_cluster("certificate-authority"),
            &cluster.certificate_authority_data,
            &cluster.certificate_authority,
        )?;
        let certificate_field = self.in_user("client-certificate");
        let certificate = self.pem(
            certificate_field.clone(),
            &user.client_certificate_data,
            &user.client_certificate,
        )?;
        let key_field = self.in_user("client-key");
        let key = self.pem(key_field.clone(), &user.client_key_data, &user.client_key)?;
        let identity = match (certificate, key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some(IdentitySource { certificate, key }),
            (Some(_), None) => return Err(missing(&key_field, "; client-certificate needs its key")),
            (None, Some(_)) => return Err(missing(&certificate_field, "; client-key needs its certificate")),
        };
        let server_name = filled(&cluster.tls_server_name).map(|name| {
            let field = self.in_cluster("tls-server-name");
            ServerName::try_from(name.to_string())
                .map_err(|_| invalid(&field, name, "expected a DNS name or an IP address"))
        });
        Ok(TlsSource {
            authority,
            identity,
            skip_verify: cluster.insecure_skip_tls_verify.unwrap_or(false),
            server_name: server_name.transpose()?,
        })
    }

    /// Data goes before a file.
    fn pem(
        &self,
        field: String,
        data: &Option<String>,
        file: &Option<String>,
    ) -> Result<Option<PemSource>, KubeconfigError> {
        if let Some(data) = filled(data) {
            let field = format!("{field}-data");
            return match BASE64_STANDARD.decode(data.trim()) {
                Ok(pem) => Ok(Some(PemSource {
                    field,
                    data: PemData::Inline(pem),
                })),
                Err(source) => Err(KubeconfigError::Base64 { field, source }),
            };
        }
        Ok(filled(file).map(|file| PemSource::file(&field, &self.folder.join(file))))
    }

    fn credentials(
        &self,
        cluster: &Cluster,
        user: &User,
        tls: &TlsSource,
    ) -> Result<CredentialSource, KubeconfigError> {
        if user.auth_provider.as_ref().is_some_and(|p| !p.is_null()) {
            return Err(KubeconfigError::Unsupported {
                field: self.in_user("auth-provider"),
                instead: "use a credential plugin (exec)",
            });
        }
        let (token, file) = (filled(&user.token), filled(&user.token_file));
        if let Some(name) = filled(&user.username) {
            let field = self.in_user("username");
            if token.or(file).is_some() {
                return Err(invalid(&field, name, "a user has either a username or a token"));
            }
            let password = user.password.as_deref().unwrap_or("");
            return Ok(CredentialSource::basic(&field, name, password)?);
        }
        if let Some(file) = file {
            let path = self.folder.join(file);
            return Ok(CredentialSource::token_file(&self.in_user("tokenFile"), path, token)?);
        }
        if let Some(token) = token {
            return Ok(CredentialSource::token(&self.in_user("token"), token)?);
        }
        match &user.exec {
            None => Ok(CredentialSource::None),
            Some(exec) => Ok(CredentialSource::Exec(Box::new(self.plugin(exec, cluster, tls)?))),
        }
    }

    fn plugin(&self, exec: &Exec, cluster: &Cluster, tls: &TlsSource) -> Result<ExecPlugin, KubeconfigError> {
        let field = self.in_user("exec");
        let version_field = format!("{field}.apiVersion");
        let version = filled(&exec.api_version).ok_or_else(|| missing(&version_field, ""))?;
        let expected = "expected client.authentication.k8s.io/v1 or v1beta1";
        let api_version = EXEC_VERSIONS.into_iter().find(|known| *known == version);
        let api_version = api_version.ok_or_else(|| invalid(&version_field, version, expected))?;
        let mode_field = format!("{field}.interactiveMode");
        let interactive_mode = match filled(&exec.interactive_mode) {
            Some("Never") => InteractiveMode::Never,
            Some("IfAvailable") => InteractiveMode::IfAvailable,
            Some("Always") => InteractiveMode::Always,
            Some(mode) => return Err(invalid(&mode_field, mode, "expected Never, IfAvailable or Always")),
            None if api_version == EXEC_VERSIONS[0] => {
                return Err(missing(&mode_field, "; v1 needs Never, IfAvailable or Always"));
            }
            None => InteractiveMode::IfAvailable,
        };
        let command = filled(&exec.command).ok_or_else(|| missing(&format!("{field}.command"), ""))?;
        let command = match command.contains('/') {
            true => self.folder.join(command),
            // One without a folder is looked for in PATH.
            false => PathBuf::from(command),
        };
        let env = exec.env.iter().flatten();
        let cluster = match exec.provide_cluster_info {
            Some(true) => Some(cluster_info(cluster, tls)?),
            _ => None,
        };
        Ok(ExecPlugin {
            field,
            api_version,
            command,
            args: exec.args.clone().unwrap_or_default(),
            env: env.map(|v| (v.name.clone(), v.value.clone())).collect(),
            install_hint: exec.install_hint.clone().unwrap_or_default(),
            interactive_mode,
            cluster,
        })
    }

    fn impersonation(&self, user: &User) -> Result<Vec<(HeaderName, HeaderValue)>, KubeconfigError> {
        let mut headers = vec![];
        let mut add = |field: &str, name: &str, value: &str| {
            let field = self.in_user(field);
            let name = HeaderName::from_bytes(name.as_bytes());
            let header = name.ok().zip(HeaderValue::from_str(value).ok());
            let expected = "it has characters that a header can't have";
            headers.push(header.ok_or_else(|| invalid(&field, value, expected))?);
            Ok::<_, KubeconfigError>(())
        };
        let name = filled(&user.r#as);
        if let Some(name) = name {
            add("as", "impersonate-user", name)?;
        }
        if let Some(uid) = filled(&user.as_uid) {
            add("as-uid", "impersonate-uid", uid)?;
        }
        for group in user.as_groups.iter().flatten() {
            add("as-groups", "impersonate-group", group)?;
        }
        for (key, values) in user.as_user_extra.iter().flatten() {
            let name = format!("impersonate-extra-{}", escaped(key));
            for value in values {
                add("as-user-extra", &name, value)?;
            }
        }
        if name.is_none() && !headers.is_empty() {
            let hint = "; as-uid, as-groups and as-user-extra need the user to impersonate";
            return Err(missing(&self.in_user("as"), hint));
        }
        Ok(headers)
    }

    fn in_cluster(&self, name: &str) -> String {
        format!("{}.{name}", self.cluster_field)
    }

    fn in_user(&self, name: &str) -> String {
        format!("{}.{name}", self.user_field)
    }
}

/// The cluster information that a plugin gets (KUBERNETES_EXEC_INFO).
fn cluster_info(cluster: &Cluster, tls: &TlsSource) -> Result<Value, KubeconfigError> {
    let mut info = json!({"server": filled(&cluster.server).unwrap_or_default()});
    if let Some(name) = filled(&cluster.tls_server_name) {
        info["tls-server-name"] = name.into();
    }
    if tls.skip_verify {
        info["insecure-skip-tls-verify"] = true.into();
    }
    if let Some(authority) = &tls.authority {
        info["certificate-authority-data"] = BASE64_STANDARD.encode(authority.read()?).into();
    }
    if cluster.disable_compression == Some(true) {
        info["disable-compression"] = true.into();
    }
    let extension = cluster.extensions.iter().flatten().find(|e| e.name == EXEC_EXTENSION);
    if let Some(extension) = extension {
        info["config"] = extension.extension.clone();
    }
    Ok(info)
}

/// A key as a part of a header's name: what can't be there is percent-encoded. Upstream: headerKeyEscape in client-go.
fn escaped(key: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte);
    let escape = |byte: u8| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    key.bytes().map(escape).collect()
}

/// An empty value is as good as none.
fn filled(value: &Option<String>) -> Option<&str> {
    value.as_deref().filter(|text| !text.is_empty())
}

fn missing(field: &str, hint: &'static str) -> KubeconfigError {
    KubeconfigError::Missing {
        field: field.to_string(),
        hint,
    }
}

fn not_found(field: &str, kind: &'static str, name: &str) -> KubeconfigError {
    KubeconfigError::NotFound {
        field: field.to_string(),
        kind,
        name: name.to_string(),
    }
}

fn invalid(field: &str, value: &str, expected: &'static str) -> KubeconfigError {
    KubeconfigError::Invalid {
        field: field.to_string(),
        value: value.to_string(),
        expected,
    }
}

#[cfg(test)]
mod tests;

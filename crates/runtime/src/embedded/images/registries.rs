//! `registries.yaml`: mirrors, credentials and certificates of registries, in k3s' format.
//!
//! ```yaml
//! mirrors:
//!   docker.io:
//!     endpoint: ["https://mirror.example:5000"]
//!     rewrite:
//!       "^library/(.*)": "dockerhub/$1"
//!   "*":
//!     endpoint: ["http://10.0.0.1:5000"]        # plain http by its scheme
//! configs:
//!   "mirror.example:5000":
//!     auth: { username: me, password: secret }  # or auth: base64, or identity_token
//!     tls:
//!       ca_file: /etc/ssl/mirror.pem            # beside the machine's own
//!       cert_file: /etc/ssl/me.pem
//!       key_file: /etc/ssl/me.key
//!       insecure_skip_verify: false
//! ```
//!
//! An image's own registry comes last, after its mirrors. Registries on this machine (`localhost`, 127.0.0.0/8, ::1) are
//! spoken to in plain http unless they have a `tls` section, as containerd does.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use http::Uri;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde::Deserialize;

use super::reference::Reference;
use super::registry::Credentials;
use super::rewrite::Rewrite;
use crate::cri::messages::AuthConfig;

/// Where docker.io's images really are.
const DOCKER_HOST: &str = "registry-1.docker.io";

/// How registries are reached; by default all over https, with no mirrors.
#[derive(Default, Debug)]
pub struct Registries {
    mirrors: BTreeMap<String, Mirror>,
    configs: BTreeMap<String, HostConfig>,
}

#[derive(Debug, Default)]
struct Mirror {
    endpoints: Vec<Uri>,
    rewrites: Vec<Rewrite>,
}

#[derive(Debug, Default)]
struct HostConfig {
    credentials: Option<Credentials>,
    tls: Option<TlsFiles>,
}

/// What was read of a `tls` section.
#[derive(Debug, Default)]
pub struct TlsFiles {
    pub roots: Vec<CertificateDer<'static>>,
    pub identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    pub skip_verify: bool,
}

/// A place to ask for an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Scheme, host and the path before the repository: `https://registry-1.docker.io/v2`.
    pub base: String,
    /// Host with port, which `configs` go by.
    pub host: String,
    /// The repository's name there.
    pub path: String,
    /// A mirror of several registries is told which one is meant.
    pub namespace: Option<String>,
    pub credentials: Option<Credentials>,
}

/// What is wrong with the file, all of it, by field.
#[derive(Debug, thiserror::Error)]
pub enum RegistriesError {
    #[error("failed to read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("invalid {path}: {message}")]
    Yaml { path: PathBuf, message: String },
    #[error("invalid {path}: {}", .problems.join("; "))]
    Fields { path: PathBuf, problems: Vec<String> },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RegistriesFile {
    #[serde(default)]
    mirrors: BTreeMap<String, MirrorSection>,
    #[serde(default)]
    configs: BTreeMap<String, ConfigSection>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MirrorSection {
    #[serde(default, alias = "endpoints")]
    endpoint: Vec<String>,
    #[serde(default)]
    rewrite: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigSection {
    auth: Option<AuthSection>,
    tls: Option<TlsSection>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct AuthSection {
    username: String,
    password: String,
    auth: String,
    identity_token: String,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct TlsSection {
    ca_file: Option<PathBuf>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    insecure_skip_verify: bool,
}

impl Registries {
    /// Reads the file; one that is not there says nothing.
    pub fn load(path: &Path) -> Result<Registries, RegistriesError> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Registries::default()),
            Err(source) => {
                return Err(RegistriesError::Read {
                    path: path.to_path_buf(),
                    source,
                });
            }
        };
        Registries::parse(&text, path)
    }

    pub fn parse(text: &str, path: &Path) -> Result<Registries, RegistriesError> {
        let path = path.to_path_buf();
        if text.trim().is_empty() {
            return Ok(Registries::default());
        }
        let file: RegistriesFile = match serde_saphyr::from_str(text) {
            Ok(file) => file,
            Err(e) => {
                let message = e.to_string();
                return Err(RegistriesError::Yaml { path, message });
            }
        };
        let mut problems = vec![];
        let mirrors = file.mirrors.into_iter();
        let mirrors = mirrors.map(|(name, section)| (name.clone(), read_mirror(&name, section, &mut problems)));
        let mirrors = mirrors.collect();
        let configs = file.configs.into_iter();
        let configs = configs.map(|(name, section)| (name.clone(), read_config(&name, section, &mut problems)));
        let configs = configs.collect();
        match problems.is_empty() {
            true => Ok(Registries { mirrors, configs }),
            false => Err(RegistriesError::Fields { path, problems }),
        }
    }

    /// Where to ask for an image, in order: its registry's mirrors, then the registry.
    ///
    /// Credentials of the pod go to the image's own registry, and to mirrors over https that have none of their own.
    pub fn endpoints(&self, reference: &Reference, auth: Option<&AuthConfig>) -> Vec<Endpoint> {
        let mirror = self.mirrors.get(reference.domain()).or_else(|| self.mirrors.get("*"));
        let mut endpoints: Vec<Endpoint> = mirror
            .iter()
            .flat_map(|m| self.mirror_endpoints(m, reference, auth))
            .collect();
        let own = self.own_endpoint(reference, auth);
        endpoints.retain(|e| e.base != own.base || e.path != own.path);
        endpoints.push(own);
        endpoints
    }

    fn mirror_endpoints(&self, mirror: &Mirror, reference: &Reference, auth: Option<&AuthConfig>) -> Vec<Endpoint> {
        let rewritten = mirror.rewrites.iter().find_map(|r| r.apply(reference.path()));
        let path = rewritten.unwrap_or_else(|| reference.path().to_string());
        let endpoints = mirror.endpoints.iter().map(|uri| {
            let host = uri.authority().map(|a| a.to_string()).unwrap_or_default();
            let scheme = uri.scheme_str().unwrap_or("https");
            let own = self.configs.get(&host).and_then(|c| c.credentials.clone());
            let of_pod = (scheme == "https").then(|| Credentials::of(auth?, &host)).flatten();
            let prefix = match uri.path().trim_end_matches('/') {
                "" => "/v2",
                // As k3s has it: who gives a path gives all of it.
                given => given,
            };
            Endpoint {
                base: format!("{scheme}://{host}{prefix}"),
                path: path.clone(),
                namespace: (host != reference.domain()).then(|| reference.domain().to_string()),
                credentials: own.or(of_pod),
                host,
            }
        });
        endpoints.collect()
    }

    fn own_endpoint(&self, reference: &Reference, auth: Option<&AuthConfig>) -> Endpoint {
        let domain = reference.domain();
        let host = match domain {
            "docker.io" => DOCKER_HOST,
            other => other,
        };
        let config = self.configs.get(domain).or_else(|| self.configs.get(host));
        let has_tls = config.is_some_and(|c| c.tls.is_some());
        let scheme = match is_this_machine(host) && !has_tls {
            true => "http",
            false => "https",
        };
        let of_pod = auth.and_then(|auth| Credentials::of(auth, domain));
        Endpoint {
            base: format!("{scheme}://{host}/v2"),
            host: host.to_string(),
            path: reference.path().to_string(),
            namespace: None,
            credentials: of_pod.or_else(|| config?.credentials.clone()),
        }
    }

    /// The `tls` section for a host with port.
    pub fn tls(&self, host: &str) -> Option<&TlsFiles> {
        let config = self.configs.get(host).or_else(|| match host {
            DOCKER_HOST => self.configs.get("docker.io"),
            _ => None,
        });
        config?.tls.as_ref()
    }
}

fn is_this_machine(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name == "localhost" || address.is_ok_and(|a| a.is_loopback())
}

fn read_mirror(name: &str, section: MirrorSection, problems: &mut Vec<String>) -> Mirror {
    let mut mirror = Mirror::default();
    for (number, text) in section.endpoint.iter().enumerate() {
        match read_endpoint(text) {
            Ok(uri) => mirror.endpoints.push(uri),
            Err(why) => problems.push(format!("mirrors.{name}.endpoint[{number}]: {text:?} {why}")),
        }
    }
    for (pattern, replacement) in &section.rewrite {
        match Rewrite::parse(pattern, replacement) {
            Ok(rewrite) => mirror.rewrites.push(rewrite),
            Err(why) => problems.push(format!("mirrors.{name}.rewrite[{pattern:?}]: {why}")),
        }
    }
    mirror
}

fn read_endpoint(text: &str) -> Result<Uri, &'static str> {
    // A host alone is meant as https, as k3s reads it.
    let whole = match text.contains("://") {
        true => text.to_string(),
        false => format!("https://{text}"),
    };
    let uri: Uri = whole.parse().map_err(|_| "is not a URL")?;
    match uri.scheme_str() {
        Some("http" | "https") => {}
        _ => return Err("must have scheme http or https"),
    }
    let authority = uri.authority().ok_or("has no host")?;
    match authority.as_str().contains('@') || uri.query().is_some() {
        true => Err("must have neither user nor query"),
        false => Ok(uri),
    }
}

fn read_config(name: &str, section: ConfigSection, problems: &mut Vec<String>) -> HostConfig {
    let credentials = section.auth.and_then(|auth| {
        let message = AuthConfig {
            username: auth.username,
            password: auth.password,
            auth: auth.auth,
            identity_token: auth.identity_token,
            ..AuthConfig::default()
        };
        let credentials = Credentials::of(&message, name);
        if credentials.is_none() {
            problems.push(format!(
                "configs.{name}.auth: needs username and password, auth (base64 of user:password), or identity_token"
            ));
        }
        credentials
    });
    let tls = section.tls.map(|tls| read_tls(name, tls, problems));
    HostConfig { credentials, tls }
}

fn read_tls(name: &str, section: TlsSection, problems: &mut Vec<String>) -> TlsFiles {
    let field = |field: &str| format!("configs.{name}.tls.{field}");
    let mut files = TlsFiles {
        skip_verify: section.insecure_skip_verify,
        ..TlsFiles::default()
    };
    if let Some(path) = &section.ca_file {
        match read_certificates(path) {
            Ok(roots) => files.roots = roots,
            Err(why) => problems.push(format!("{}: {why}", field("ca_file"))),
        }
    }
    match (&section.cert_file, &section.key_file) {
        (None, None) => {}
        (Some(cert), Some(key)) => {
            let cert = read_certificates(cert).map_err(|why| format!("{}: {why}", field("cert_file")));
            let key = PrivateKeyDer::from_pem_file(key)
                .map_err(|e| format!("{}: failed to read {}: {e}", field("key_file"), key.display()));
            match (cert, key) {
                (Ok(cert), Ok(key)) => files.identity = Some((cert, key)),
                (cert, key) => problems.extend(cert.err().into_iter().chain(key.err())),
            }
        }
        _ => problems.push(format!("configs.{name}.tls: cert_file and key_file are given together")),
    }
    files
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let failed = |e: &dyn std::fmt::Display| format!("failed to read {}: {e}", path.display());
    let found = CertificateDer::pem_file_iter(path).map_err(|e| failed(&e))?;
    let certificates: Vec<_> = found.collect::<Result<_, _>>().map_err(|e| failed(&e))?;
    match certificates.is_empty() {
        true => Err(format!("{} contains no certificate", path.display())),
        false => Ok(certificates),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Registries, String> {
        Registries::parse(text, Path::new("registries.yaml")).map_err(|e| e.to_string())
    }

    fn bases(registries: &Registries, image: &str) -> Vec<String> {
        let reference = Reference::parse(image).unwrap();
        let endpoints = registries.endpoints(&reference, None).into_iter();
        endpoints.map(|e| format!("{}/{}", e.base, e.path)).collect()
    }

    #[test]
    fn defaults() {
        let registries = Registries::default();
        for (image, base) in [
            ("busybox", "https://registry-1.docker.io/v2/library/busybox"),
            ("quay.io/a/b", "https://quay.io/v2/a/b"),
            ("localhost:5000/a", "http://localhost:5000/v2/a"),
            ("127.0.0.2:5000/a", "http://127.0.0.2:5000/v2/a"),
            ("[::1]:5000/a", "http://[::1]:5000/v2/a"),
            ("10.0.0.1:5000/a", "https://10.0.0.1:5000/v2/a"),
        ] {
            assert_eq!(bases(&registries, image), [base]);
        }
        assert!(bases(&parse("").unwrap(), "a").len() == 1);
    }

    #[test]
    fn mirrors_come_first() {
        let registries = parse(
            r#"
mirrors:
  docker.io:
    endpoint: ["http://10.0.0.1:5000", "mirror.example", "https://harbor.example/v2/proxy/"]
    rewrite:
      "^library/(.*)": "hub/$1"
  "*":
    endpoint: ["http://any:5000"]
  quay.io:
    endpoint: ["https://quay.io"]
configs:
  "10.0.0.1:5000": { auth: { username: u, password: p } }
  "localhost:5000": { tls: { insecure_skip_verify: true } }
"#,
        )
        .unwrap();
        assert_eq!(
            bases(&registries, "busybox"),
            [
                "http://10.0.0.1:5000/v2/hub/busybox",
                "https://mirror.example/v2/hub/busybox",
                "https://harbor.example/v2/proxy/hub/busybox",
                "https://registry-1.docker.io/v2/library/busybox",
            ]
        );
        assert_eq!(
            bases(&registries, "gcr.io/a"),
            ["http://any:5000/v2/a", "https://gcr.io/v2/a"]
        );
        // Not twice.
        assert_eq!(bases(&registries, "quay.io/a"), ["https://quay.io/v2/a"]);
        assert_eq!(bases(&registries, "localhost:5000/a")[1], "https://localhost:5000/v2/a");

        let auth = AuthConfig {
            username: "pod".to_string(),
            password: "x".to_string(),
            ..AuthConfig::default()
        };
        let endpoints = registries.endpoints(&Reference::parse("busybox").unwrap(), Some(&auth));
        let name = |e: &Endpoint| e.credentials.as_ref().map(|c| format!("{c:?}"));
        let of_pod = Credentials::of(&auth, "docker.io").map(|c| format!("{c:?}"));
        assert_eq!(
            endpoints.iter().map(name).collect::<Vec<_>>()[1..],
            [of_pod.clone(), of_pod.clone(), of_pod.clone()]
        );
        assert_ne!(name(&endpoints[0]), of_pod);
        assert_eq!(endpoints[0].namespace.as_deref(), Some("docker.io"));
        assert_eq!(endpoints[3].namespace, None);
        // In plain http a pod's secret goes nowhere it was not meant for.
        let endpoints = registries.endpoints(&Reference::parse("gcr.io/a").unwrap(), Some(&auth));
        assert_eq!(endpoints[0].credentials, None);
    }

    #[test]
    fn mistakes_are_named_by_field() {
        for (text, want) in [
            ("mirror: {}", "unknown field `mirror`"),
            ("mirrors: { a: { endpoint: 5 } }", "endpoint"),
            ("configs: { a: { tls: { ca: x } } }", "unknown field `ca`"),
            (
                "mirrors: { a: { endpoint: ['ftp://x'] } }",
                "mirrors.a.endpoint[0]: \"ftp://x\" must have scheme http or https",
            ),
            (
                "mirrors: { a: { endpoint: ['http://u:p@x'] } }",
                "must have neither user nor query",
            ),
            (
                "mirrors: { a: { rewrite: { '[a-z]+': x } } }",
                "mirrors.a.rewrite[\"[a-z]+\"]:",
            ),
            (
                "configs: { a: { auth: { username: x } } }",
                "configs.a.auth: needs username and password",
            ),
            (
                "configs: { a: { tls: { ca_file: /nowhere } } }",
                "configs.a.tls.ca_file: failed to read /nowhere",
            ),
            (
                "configs: { a: { tls: { key_file: /nowhere } } }",
                "configs.a.tls: cert_file and key_file are given together",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with("invalid registries.yaml: "), "{error}");
            assert!(error.contains(want), "{error} / {want}");
        }
        // All of them.
        let error = parse("mirrors: { a: { endpoint: ['ftp://x', 'ftp://y'] } }").unwrap_err();
        assert!(
            error.contains("endpoint[0]") && error.contains("endpoint[1]"),
            "{error}"
        );
    }
}

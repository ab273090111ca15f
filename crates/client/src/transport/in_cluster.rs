//! The API server as a pod sees it: its address in the environment, the service account's files in a folder.
// Upstream: staging/src/k8s.io/client-go/rest/config.go (InClusterConfig, v1.36)

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use http::Uri;

use super::ClusterConfig;
use super::credentials::{CredentialError, CredentialSource};
use super::tls::{PemSource, TlsSource};

const FOLDER: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const HOST: &str = "KUBERNETES_SERVICE_HOST";
const PORT: &str = "KUBERNETES_SERVICE_PORT";

/// Why this process has no service account to use.
#[derive(Debug, thiserror::Error)]
pub enum InClusterError {
    #[error("environment variable {0} is not set")]
    NotSet(&'static str),
    #[error(
        "environment variables KUBERNETES_SERVICE_HOST={host:?} and KUBERNETES_SERVICE_PORT={port:?} are no address"
    )]
    Address { host: String, port: String },
    #[error("failed to read {}", .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Token(#[from] CredentialError),
}

/// As this process's environment says.
pub(super) fn config() -> Result<ClusterConfig, InClusterError> {
    config_from(Path::new(FOLDER), |name| std::env::var(name).ok())
}

pub(super) fn config_from(
    folder: &Path,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<ClusterConfig, InClusterError> {
    let variable = |name| {
        variable(name)
            .filter(|v| !v.is_empty())
            .ok_or(InClusterError::NotSet(name))
    };
    let (host, port) = (variable(HOST)?, variable(PORT)?);
    let server = address(&host, &port).ok_or(InClusterError::Address { host, port })?;
    let authority = folder.join("ca.crt");
    if let Err(source) = std::fs::metadata(&authority) {
        let path = authority;
        return Err(InClusterError::File { path, source });
    }
    let token = folder.join("token");
    Ok(ClusterConfig {
        server,
        tls: TlsSource {
            authority: Some(PemSource::file(&authority.display().to_string(), &authority)),
            ..TlsSource::default()
        },
        credentials: CredentialSource::token_file(&token.display().to_string(), token.clone(), None)?,
        impersonate: vec![],
    })
}

fn address(host: &str, port: &str) -> Option<Uri> {
    let port: u16 = port.parse().ok()?;
    let text = match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => format!("https://[{address}]:{port}"),
        _ => format!("https://{host}:{port}"),
    };
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_their_brackets() {
        for (host, port, expected) in [
            ("10.0.0.1", "443", Some("https://10.0.0.1:443/")),
            ("fd00::1", "6443", Some("https://[fd00::1]:6443/")),
            (
                "kubernetes.default.svc",
                "443",
                Some("https://kubernetes.default.svc:443/"),
            ),
            ("10.0.0.1", "https", None),
            ("a b", "443", None),
        ] {
            assert_eq!(
                address(host, port).map(|uri| uri.to_string()).as_deref(),
                expected,
                "{host}"
            );
        }
    }

    #[test]
    fn what_a_pod_lacks_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let environment = |name: &str| match name {
            HOST => Some("fd00::1".to_string()),
            _ => Some("443".to_string()),
        };
        let error = |found: Result<ClusterConfig, InClusterError>| found.err().unwrap().to_string();
        let none = config_from(folder.path(), |_| None);
        assert_eq!(error(none), "environment variable KUBERNETES_SERVICE_HOST is not set");
        let missing = config_from(folder.path(), environment);
        let authority = folder.path().join("ca.crt");
        assert_eq!(error(missing), format!("failed to read {}", authority.display()));
        std::fs::write(authority, "").unwrap();
        let token = folder.path().join("token");
        let missing = error(config_from(folder.path(), environment));
        assert!(
            missing.ends_with(&format!("failed to read {}", token.display())),
            "{missing}"
        );
        std::fs::write(token, "t\n").unwrap();
        let config = config_from(folder.path(), environment).unwrap();
        assert_eq!(config.server, "https://[fd00::1]:443");
        let refused = config_from(folder.path(), |name| (name == HOST).then(|| "h".to_string()));
        assert_eq!(
            error(refused),
            "environment variable KUBERNETES_SERVICE_PORT is not set"
        );
        let refused = config_from(folder.path(), |_| Some("x".to_string()));
        assert!(error(refused).contains("KUBERNETES_SERVICE_PORT=\"x\""));
    }
}

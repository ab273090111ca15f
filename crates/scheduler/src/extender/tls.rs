//! The way to an extender: plain or TLS, as its URL says.

use std::sync::Arc;

use hyper_rustls::{ConfigBuilderExt, FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use orlop_serving::AnyCertificate;
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use crate::config::{Extender, Tls};

/// Why there is no way to an extender.
#[derive(Debug, thiserror::Error)]
pub(super) enum TlsError {
    #[error("failed to read {file} for {field}: {error}")]
    File {
        file: String,
        field: &'static str,
        error: std::io::Error,
    },
    #[error("failed to load the system's root certificates: {0}")]
    Roots(std::io::Error),
    #[error("tlsConfig: {0}")]
    Config(String),
    #[error(transparent)]
    Tls(#[from] rustls::Error),
}

fn invalid(reason: impl Into<String>) -> TlsError {
    TlsError::Config(reason.into())
}

pub(super) fn connector(config: &Extender, https: bool) -> Result<HttpsConnector<HttpConnector>, TlsError> {
    let none = Tls::default();
    let tls = config.tls.as_ref().unwrap_or(&none);
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    let mut builder = HttpsConnectorBuilder::new()
        .with_tls_config(client_config(config, tls, https)?)
        .https_or_http();
    if !tls.server_name.is_empty() {
        let name = ServerName::try_from(tls.server_name.clone());
        let name = name.map_err(|_| invalid(format!("invalid serverName {:?}", tls.server_name)))?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    Ok(builder.enable_http1().wrap_connector(http))
}

fn client_config(config: &Extender, tls: &Tls, https: bool) -> Result<ClientConfig, TlsError> {
    let authority = part("caData", &tls.ca_data, &tls.ca_file)?;
    if authority.is_some() && tls.insecure {
        return Err(invalid("a CA and insecure are mutually exclusive"));
    }
    // With enableHTTPS and no authority the extender is not verified. Upstream: makeTransport in extender.go.
    let trusting = tls.insecure || (config.enable_https && authority.is_none());
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = if trusting {
        builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
    } else if let (None, true) = (&authority, https) {
        builder.with_native_roots().map_err(TlsError::Roots)?
    } else {
        builder.with_root_certificates(roots(authority.as_deref())?)
    };
    let certificate = part("certData", &tls.cert_data, &tls.cert_file)?;
    let key = part("keyData", &tls.key_data, &tls.key_file)?;
    match (certificate, key) {
        (None, None) => Ok(builder.with_no_client_auth()),
        (Some(certificate), Some(key)) => {
            let key = PrivateKeyDer::from_pem_slice(&key).map_err(|_| invalid("the private key is not valid PEM"))?;
            let chain = certificates(&certificate, "certificate")?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|e| invalid(format!("invalid client certificate: {e}")))
        }
        _ => Err(invalid("certificate and private key must be set together")),
    }
}

/// Data goes before a file.
fn part(field: &'static str, data: &[u8], file: &str) -> Result<Option<Vec<u8>>, TlsError> {
    if !data.is_empty() {
        return Ok(Some(data.to_vec()));
    }
    if file.is_empty() {
        return Ok(None);
    }
    let read = std::fs::read(file).map_err(|error| TlsError::File {
        file: file.to_string(),
        field,
        error,
    });
    read.map(Some)
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(invalid(format!("the {what} is not valid PEM"))),
    }
}

fn roots(authority: Option<&[u8]>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in authority.map_or(Ok(vec![]), |pem| certificates(pem, "CA certificate"))? {
        roots
            .add(certificate)
            .map_err(|e| invalid(format!("invalid CA certificate: {e}")))?;
    }
    Ok(roots)
}

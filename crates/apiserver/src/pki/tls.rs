//! TLS of the API server, from its certificates.

use std::sync::Arc;

use orlop_x509::ClientAuthority;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::{Credential, PkiError};

pub(super) fn server_config(server: &Credential, clients: &ClientAuthority) -> Result<Arc<ServerConfig>, PkiError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let key = PrivateKeyDer::from_pem_slice(server.key.as_bytes())
        .map_err(|_| PkiError::Tls(rustls::Error::General("the server's key is not PEM".into())))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(PkiError::Tls)?
        .with_client_cert_verifier(clients.in_handshake())
        .with_single_cert(certificates(&server.certificate), key)
        .map_err(PkiError::Tls)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// All certificates of a PEM text; what is unreadable is left out, and the configuration above then fails for want of
/// a certificate.
fn certificates(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .filter_map(Result::ok)
        .collect()
}

//! Certificates of registries: the machine's authorities, those of `registries.yaml`, or none at all where asked for.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::super::registries::TlsFiles;
use super::RegistryError;

/// Settings for one host.
pub(crate) fn client_config(host: &str, files: Option<&TlsFiles>) -> Result<ClientConfig, RegistryError> {
    let invalid = |source| RegistryError::Tls {
        host: host.to_string(),
        source,
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let none = TlsFiles::default();
    let files = files.unwrap_or(&none);
    let verifier = verifier(files, provider.clone())?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(invalid)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    match &files.identity {
        None => Ok(builder.with_no_client_auth()),
        Some((chain, key)) => builder
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(invalid),
    }
}

fn verifier(files: &TlsFiles, provider: Arc<CryptoProvider>) -> Result<Verifier, RegistryError> {
    let chains = match files.skip_verify {
        true => None,
        false => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            roots.add_parsable_certificates(files.roots.iter().cloned());
            let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
            // Its only complaint here is that there are no roots at all.
            Some(builder.build().map_err(|_| RegistryError::NoRoots)?)
        }
    };
    Ok(Verifier {
        chains,
        own: files.roots.clone(),
        provider,
    })
}

/// Verifies chains, and accepts a certificate that the administrator named itself: what `openssl req -x509` makes is
/// an authority and a server at once, which strict verification refuses and everybody else accepts.
#[derive(Debug)]
struct Verifier {
    /// `None`: whatever the server shows.
    chains: Option<Arc<WebPkiServerVerifier>>,
    own: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(chains) = &self.chains else {
            return Ok(ServerCertVerified::assertion());
        };
        if self.own.iter().any(|own| own == end_entity) {
            let certificate = ParsedCertificate::try_from(end_entity)?;
            rustls::client::verify_server_name(&certificate, server_name)?;
            return Ok(ServerCertVerified::assertion());
        }
        chains.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

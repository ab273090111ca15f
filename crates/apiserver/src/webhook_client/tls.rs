//! Whose certificates webhooks may show.
//!
//! Differs from rustls where Go's client, for which people make their certificates, is laxer: a certificate that stands
//! in the bundle itself is trusted as it is, whether or not it is an authority's. Name and validity are checked of it too.

use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

/// What to check a server against, by a PEM bundle of authorities; without one by the machine's own.
pub(super) fn config(ca_bundle: &[u8]) -> Result<Arc<ClientConfig>, AuthoritiesError> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| AuthoritiesError(e.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(verifier(ca_bundle)?)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// A bundle of authorities that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct AuthoritiesError(String);

/// Believes a server whose certificate is by one of the bundle's authorities, or in the bundle itself.
pub(crate) fn verifier(ca_bundle: &[u8]) -> Result<Arc<dyn ServerCertVerifier>, AuthoritiesError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    let mut bundle = vec![];
    if ca_bundle.is_empty() {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    } else {
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(ca_bundle).collect();
        bundle = read.map_err(|_| AuthoritiesError(UNREADABLE.into()))?;
        if bundle.is_empty() {
            return Err(AuthoritiesError(UNREADABLE.into()));
        }
        roots.add_parsable_certificates(bundle.iter().cloned());
    }
    let chains = match roots.is_empty() {
        true => None,
        false => {
            let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
            Some(builder.build().map_err(|e| AuthoritiesError(e.to_string()))?)
        }
    };
    Ok(Arc::new(Verifier {
        chains,
        bundle,
        provider,
    }))
}

const UNREADABLE: &str = "unable to parse bytes as PEM block";

#[derive(Debug)]
struct Verifier {
    /// Absent where no authority is known: then nobody is trusted but by the bundle.
    chains: Option<Arc<WebPkiServerVerifier>>,
    bundle: Vec<CertificateDer<'static>>,
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
    ) -> Result<ServerCertVerified, Error> {
        if self.bundle.iter().any(|known| known.as_ref() == end_entity.as_ref()) {
            verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
            check_validity(end_entity, now)?;
            return Ok(ServerCertVerified::assertion());
        }
        match &self.chains {
            Some(chains) => chains.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now),
            None => Err(CertificateError::UnknownIssuer.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn check_validity(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
    let (_, certificate) = X509Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let (validity, now) = (certificate.validity(), now.as_secs() as i64);
    if now < validity.not_before.timestamp() {
        return Err(CertificateError::NotValidYet.into());
    }
    if now > validity.not_after.timestamp() {
        return Err(CertificateError::Expired.into());
    }
    Ok(())
}

/// A failed handshake in the words of Go's client, which is what people search for.
pub(super) fn error_text(error: &io::Error, host: &str) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match inner {
        Some(Error::InvalidCertificate(why)) => {
            format!(
                "tls: failed to verify certificate: x509: {}",
                certificate_error_text(why, host)
            )
        }
        Some(Error::InvalidMessage(_)) => "tls: first record does not look like a TLS handshake".into(),
        Some(other) => format!("tls: {other}"),
        None if error.kind() == io::ErrorKind::UnexpectedEof => "EOF".into(),
        None => error.to_string(),
    }
}

fn certificate_error_text(why: &CertificateError, host: &str) -> String {
    match why {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "certificate signed by unknown authority".into()
        }
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => "certificate has expired or is not yet valid".into(),
        CertificateError::NotValidForName => {
            format!("certificate is not valid for any names, but wanted to match {host}")
        }
        CertificateError::NotValidForNameContext { presented, .. } => match presented.as_slice() {
            [] => format!("certificate is not valid for any names, but wanted to match {host}"),
            names => {
                let names: Vec<&str> = names.iter().map(|name| bare(name)).collect();
                format!("certificate is valid for {}, not {host}", names.join(", "))
            }
        },
        other => format!("{other:?}"),
    }
}

/// The name in `DnsName("a.b")`, which is how rustls shows one.
fn bare(shown: &str) -> &str {
    shown.split('"').nth(1).unwrap_or(shown)
}

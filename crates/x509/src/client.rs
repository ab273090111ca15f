//! Client certificates. The handshake asks for one and checks that the client holds its key; whether the certificate is
//! any good is found out afterwards, so that a client with a bad certificate and a good token is still served.

use std::ops::RangeInclusive;
use std::sync::Arc;

use jiff::Timestamp;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName as Hint, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::name::{DistinguishedName, NameError};

/// Why certificates can't be a client CA.
#[derive(Debug, thiserror::Error)]
#[error("client CA has no usable certificate")]
pub struct AuthorityError(#[from] VerifierBuilderError);

/// Why a client certificate is refused. The words are Go's, which is what people search for.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum VerifyError {
    #[error("x509: no certificate")]
    NoCertificate,
    #[error("x509: certificate signed by unknown authority")]
    UnknownAuthority,
    #[error("x509: certificate has expired or is not yet valid")]
    Expired,
    #[error("x509: certificate specifies an incompatible key usage")]
    KeyUsage,
    #[error("x509: malformed certificate")]
    Malformed,
    #[error("x509: {0}")]
    Subject(NameError),
    /// Any other reason why the certificate is no good.
    #[error("x509: {0}")]
    Certificate(String),
    #[error("x509: {0}")]
    Other(rustls::Error),
}

/// The client CA: the certificates that vouch for clients. Clones are cheap.
#[derive(Clone, Debug)]
pub struct ClientAuthority {
    verifier: Arc<dyn ClientCertVerifier>,
    provider: Arc<CryptoProvider>,
}

/// A client certificate that was verified.
#[derive(Clone, Debug)]
pub struct ClientCertificate {
    pub subject: DistinguishedName,
    /// When it is valid, in seconds since the epoch: a connection may outlive it.
    pub valid: RangeInclusive<i64>,
}

impl ClientAuthority {
    /// From all certificates of a PEM text; what else is in it is skipped. An error if there is none.
    pub fn from_pem(pem: &str) -> Result<ClientAuthority, AuthorityError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok));
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build()?;
        Ok(ClientAuthority { verifier, provider })
    }

    /// What the handshake uses: takes every certificate whose key the client holds, and none at all.
    pub fn in_handshake(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::new(UncheckedCertificate {
            hints: self.verifier.root_hint_subjects().to_vec(),
            provider: self.provider.clone(),
        })
    }

    /// Verifies what a client showed, the leaf first: signed by one of us, valid now, meant for clients, with a subject
    /// that can be read.
    pub fn verify(&self, chain: &[CertificateDer<'_>], now: Timestamp) -> Result<ClientCertificate, VerifyError> {
        let (leaf, intermediates) = chain.split_first().ok_or(VerifyError::NoCertificate)?;
        let since_epoch = std::time::Duration::from_secs(u64::try_from(now.as_second()).unwrap_or(0));
        self.verifier
            .verify_client_cert(leaf, intermediates, UnixTime::since_unix_epoch(since_epoch))
            .map_err(reason)?;
        let (_, certificate) = X509Certificate::from_der(leaf).map_err(|_| VerifyError::Malformed)?;
        Ok(ClientCertificate {
            subject: DistinguishedName::read(certificate.subject()).map_err(VerifyError::Subject)?,
            valid: certificate.validity().not_before.timestamp()..=certificate.validity().not_after.timestamp(),
        })
    }
}

fn reason(error: rustls::Error) -> VerifyError {
    let rustls::Error::InvalidCertificate(reason) = &error else {
        return VerifyError::Other(error);
    };
    match reason {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => VerifyError::UnknownAuthority,
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => VerifyError::Expired,
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => VerifyError::KeyUsage,
        reason => VerifyError::Certificate(reason.to_string()),
    }
}

#[derive(Debug)]
struct UncheckedCertificate {
    hints: Vec<Hint>,
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for UncheckedCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[Hint] {
        &self.hints
    }

    /// Says nothing about the certificate: `ClientAuthority::verify` does.
    fn verify_client_cert(
        &self,
        _leaf: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use rcgen::{
        BasicConstraints, CertificateParams, DnType, DnValue, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
        KeyUsagePurpose,
    };
    use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
    use rustls_pki_types::{PrivateKeyDer, ServerName};

    use super::*;
    use crate::AnyCertificate;

    const NOW: &str = "2026-06-01T00:00:00Z";

    fn authority() -> (String, Issuer<'static, KeyPair>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = params.self_signed(&key).unwrap();
        (certificate.pem(), Issuer::new(params, key))
    }

    fn client() -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "admin");
        params
            .distinguished_name
            .push(DnType::OrganizationName, "system:masters");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(2027, 1, 1);
        params
    }

    #[test]
    fn only_good_certificates_say_who_somebody_is() {
        let (pem, issuer) = authority();
        let (_, stranger) = authority();
        let clients = ClientAuthority::from_pem(&pem).unwrap();
        let key = KeyPair::generate().unwrap();
        let at = |params: &CertificateParams, issuer: &Issuer<'_, KeyPair>, now: &str| {
            let certificate = params.signed_by(&key, issuer).unwrap();
            let verified = clients.verify(&[certificate.der().clone()], now.parse().unwrap());
            verified
                .map(|c| c.subject.common_name().to_string())
                .map_err(|e| e.to_string())
        };
        let good = client();
        assert_eq!(at(&good, &issuer, NOW).unwrap(), "admin");
        let unknown = "x509: certificate signed by unknown authority";
        assert_eq!(at(&good, &stranger, NOW).unwrap_err(), unknown);
        let own = good.self_signed(&key).unwrap();
        let forged = clients.verify(&[own.der().clone()], NOW.parse().unwrap());
        assert_eq!(forged.unwrap_err(), VerifyError::UnknownAuthority);
        for now in ["2025-12-31T00:00:00Z", "2027-01-02T00:00:00Z"] {
            assert_eq!(
                at(&good, &issuer, now).unwrap_err(),
                "x509: certificate has expired or is not yet valid"
            );
        }
        let mut server = client();
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        assert_eq!(
            at(&server, &issuer, NOW).unwrap_err(),
            "x509: certificate specifies an incompatible key usage"
        );
        let mut unreadable = client();
        let group = DnValue::BmpString("system:masters".try_into().unwrap());
        unreadable.distinguished_name.push(DnType::OrganizationName, group);
        let refused = at(&unreadable, &issuer, NOW).unwrap_err();
        assert!(
            refused.starts_with("x509: subject attribute 2.5.4.10 can't be read"),
            "{refused}"
        );
        assert!(clients.verify(&[], NOW.parse().unwrap()).is_err());
    }

    /// Runs a handshake in memory; the key the client signs with need not be that of its certificate.
    fn handshake(clients: &ClientAuthority, shown: CertificateDer<'static>, key: &KeyPair) -> Result<usize, String> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let server_key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["s".to_string()]).unwrap();
        let certificate = certificate.self_signed(&server_key).unwrap();
        let private = |key: &KeyPair| PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients.in_handshake())
            .with_single_cert(vec![certificate.der().clone()], private(&server_key))
            .unwrap();
        #[derive(Debug)]
        struct Always(Arc<rustls::sign::CertifiedKey>);
        impl rustls::client::ResolvesClientCert for Always {
            fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<rustls::sign::CertifiedKey>> {
                Some(self.0.clone())
            }
            fn has_certs(&self) -> bool {
                true
            }
        }
        let signing = aws_lc_rs::sign::any_supported_type(&private(key)).unwrap();
        let own = Arc::new(rustls::sign::CertifiedKey::new(vec![shown], signing));
        let client = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
            .with_client_cert_resolver(Arc::new(Always(own)));
        let mut server = ServerConnection::new(Arc::new(server)).unwrap();
        let mut client = ClientConnection::new(Arc::new(client), ServerName::try_from("s").unwrap()).unwrap();
        for _ in 0..10 {
            let mut bytes = vec![];
            while client.wants_write() {
                client.write_tls(&mut bytes).unwrap();
            }
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                server.read_tls(&mut rest).unwrap();
                server.process_new_packets().map_err(|e| e.to_string())?;
            }
            let mut bytes = vec![];
            while server.wants_write() {
                server.write_tls(&mut bytes).unwrap();
            }
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                client.read_tls(&mut rest).unwrap();
                client.process_new_packets().map_err(|e| e.to_string())?;
            }
        }
        client.writer().write_all(b"x").unwrap();
        let _ = server.reader().read(&mut [0; 1]);
        Ok(server.peer_certificates().map_or(0, <[_]>::len))
    }

    #[test]
    fn the_handshake_takes_any_certificate_whose_key_the_client_holds() {
        let (pem, issuer) = authority();
        let (_, stranger) = authority();
        let clients = ClientAuthority::from_pem(&pem).unwrap();
        let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let of = |issuer: &Issuer<'_, KeyPair>| client().signed_by(&key, issuer).unwrap().der().clone();
        assert_eq!(handshake(&clients, of(&issuer), &key), Ok(1));
        assert_eq!(handshake(&clients, of(&stranger), &key), Ok(1));
        // Somebody else's certificate, with which they log in, is of no use without its key.
        let stolen = handshake(&clients, of(&issuer), &other);
        assert!(stolen.is_err(), "{stolen:?}");
    }
}

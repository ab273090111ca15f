//! TLS of the API server, from its certificates.

use std::sync::Arc;

use orlop_x509::ClientAuthority;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, SupportedCipherSuite, version};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::{Credential, Pki, PkiError};

/// What clients must be able to speak.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// TLS 1.3 alone.
    pub only_1_3: bool,
    /// Of TLS 1.2, these suites alone; empty: all that are safe.
    pub cipher_suites: Vec<String>,
}

/// Names that upstream knows and that are not safe, or that rustls does not have: taken, and never used.
const UNUSED: &[&str] = &[
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

/// A suite's name as flags have it.
fn name(suite: &SupportedCipherSuite) -> String {
    let name = suite.suite().as_str().unwrap_or_default();
    name.replacen("TLS13_", "TLS_", 1)
}

fn is_named(suite: &SupportedCipherSuite, given: &str) -> bool {
    let name = name(suite);
    // Go has two names of some.
    name == given
        || name
            .strip_suffix("_SHA256")
            .is_some_and(|short| short.ends_with("POLY1305") && short == given)
}

impl TlsOptions {
    /// The first of the suites that nobody knows.
    pub fn unknown_suite(&self) -> Option<&str> {
        let suites = aws_lc_rs::default_provider().cipher_suites;
        let is_known = |given: &str| UNUSED.contains(&given) || suites.iter().any(|suite| is_named(suite, given));
        self.cipher_suites
            .iter()
            .map(String::as_str)
            .find(|given| !is_known(given))
    }

    /// Whether TLS 1.2 is spoken.
    pub fn has_1_2(&self) -> bool {
        let suites = self.provider().cipher_suites;
        !self.only_1_3 && suites.iter().any(|suite| suite.version() == &version::TLS12)
    }

    fn provider(&self) -> CryptoProvider {
        let mut provider = aws_lc_rs::default_provider();
        if !self.cipher_suites.is_empty() {
            // Those of TLS 1.3 are not for choice, as upstream.
            let is_chosen = |suite: &SupportedCipherSuite| {
                suite.version() == &version::TLS13 || self.cipher_suites.iter().any(|given| is_named(suite, given))
            };
            provider.cipher_suites.retain(is_chosen);
        }
        provider
    }
}

pub(super) fn server_config(
    pki: &Pki,
    options: &TlsOptions,
    clients: &ClientAuthority,
) -> Result<Arc<ServerConfig>, PkiError> {
    let provider = Arc::new(options.provider());
    let named = pki.named_serving.iter().map(|(credential, names)| {
        let certified = certified(credential, &provider)?;
        let names = match names.is_empty() {
            true => names_in(&certified),
            false => names.clone(),
        };
        Ok((names, certified))
    });
    let resolver = ByName {
        named: named.collect::<Result<_, PkiError>>()?,
        default: certified(&pki.apiserver, &provider)?,
    };
    let versions: &[_] = match options.has_1_2() {
        true => &[&version::TLS13, &version::TLS12],
        false => &[&version::TLS13],
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(PkiError::Tls)?
        .with_client_cert_verifier(clients.in_handshake())
        .with_cert_resolver(Arc::new(resolver));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn certified(credential: &Credential, provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, PkiError> {
    let key = PrivateKeyDer::from_pem_slice(credential.key.as_bytes())
        .map_err(|_| PkiError::Tls(rustls::Error::General("the server's key is not PEM".into())))?;
    // What is unreadable is left out, and what follows then fails for want of a certificate.
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(credential.certificate.as_bytes())
        .filter_map(Result::ok)
        .collect();
    let certified = CertifiedKey::from_der(chain, key, provider).map_err(PkiError::Tls)?;
    Ok(Arc::new(certified))
}

/// The names of hosts that a certificate is for.
fn names_in(certified: &CertifiedKey) -> Vec<String> {
    let Some((_, certificate)) = certified
        .cert
        .first()
        .and_then(|der| X509Certificate::from_der(der).ok())
    else {
        return vec![];
    };
    let names = certificate.subject_alternative_name().ok().flatten();
    let names: Vec<String> = names
        .iter()
        .flat_map(|extension| &extension.value.general_names)
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(name.to_lowercase()),
            _ => None,
        })
        .collect();
    if !names.is_empty() {
        return names;
    }
    let common = certificate.subject().iter_common_name().next();
    common
        .and_then(|name| name.as_str().ok())
        .map(str::to_lowercase)
        .into_iter()
        .collect()
}

/// The certificate for the name that a client asks for, or else the server's own.
#[derive(Debug)]
struct ByName {
    named: Vec<(Vec<String>, Arc<CertifiedKey>)>,
    default: Arc<CertifiedKey>,
}

impl ByName {
    fn find(&self, host: &str) -> &Arc<CertifiedKey> {
        let host = host.to_lowercase();
        // `*` stands for the first label.
        let any = host.split_once('.').map(|(_, domain)| format!("*.{domain}"));
        let of = |wanted: &str| {
            let mut named = self.named.iter();
            named.find(|(names, _)| names.iter().any(|name| name == wanted))
        };
        let found = of(&host).or_else(|| any.as_deref().and_then(of));
        found.map_or(&self.default, |(_, certified)| certified)
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let found = hello.server_name().map_or(&self.default, |host| self.find(host));
        Some(found.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(suites: &[&str]) -> TlsOptions {
        TlsOptions {
            only_1_3: false,
            cipher_suites: suites.iter().map(|suite| suite.to_string()).collect(),
        }
    }

    #[test]
    fn suites_are_chosen_by_their_names() {
        let all = options(&[]);
        assert!(all.has_1_2() && all.unknown_suite().is_none());
        let some = options(&[
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
            "TLS_AES_128_GCM_SHA256",
            "TLS_RSA_WITH_AES_128_CBC_SHA",
        ]);
        assert_eq!(some.unknown_suite(), None);
        let of_1_2: Vec<String> = some
            .provider()
            .cipher_suites
            .iter()
            .filter(|suite| suite.version() == &version::TLS12)
            .map(name)
            .collect();
        assert_eq!(of_1_2, ["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"]);
        assert!(!options(&["TLS_RSA_WITH_AES_128_CBC_SHA"]).has_1_2());
        assert_eq!(options(&["TLS_NONE"]).unknown_suite(), Some("TLS_NONE"));
    }
}

//! What a certificate says, read whole or not at all: for those who must know that it says what they think.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::name::{AlternativeNames, DistinguishedName, NameError};

/// Why a certificate can't be read whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContentError {
    #[error("{0}")]
    Pem(String),
    #[error("PEM block type must be CERTIFICATE, found {0:?}")]
    BlockType(String),
    #[error("{0}")]
    Der(String),
    #[error("x509: trailing data")]
    TrailingData,
    #[error(transparent)]
    Name(#[from] NameError),
    /// With dots.
    #[error("x509: extension {0} can't be read")]
    Extension(String),
    #[error("x509: extension {0} is there more than once")]
    RepeatedExtension(String),
}

/// All that a certificate says of its holder and what it may be used for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateContent {
    pub subject: DistinguishedName,
    pub alternative_names: AlternativeNames,
    /// SubjectPublicKeyInfo in DER.
    pub public_key: Vec<u8>,
    /// Seconds since the epoch.
    pub valid: RangeInclusive<i64>,
    /// The bits of the extension, in the standard's order from the lowest; none without it.
    pub key_usage: Option<u16>,
    /// Object identifiers with dots.
    pub extended_key_usages: BTreeSet<String>,
    pub is_authority: bool,
    /// Whether subject and issuer have the same name.
    pub is_self_issued: bool,
    /// Object identifiers with dots of all extensions that are there.
    pub extensions: BTreeSet<String>,
}

impl CertificateContent {
    /// Of the first certificate of a PEM text.
    pub fn from_pem(pem: &str) -> Result<CertificateContent, ContentError> {
        let (_, block) =
            x509_parser::pem::parse_x509_pem(pem.as_bytes()).map_err(|e| ContentError::Pem(e.to_string()))?;
        match block.label.as_str() {
            "CERTIFICATE" => CertificateContent::from_der(&block.contents),
            other => Err(ContentError::BlockType(other.to_string())),
        }
    }

    /// Of one certificate, with nothing after it.
    pub fn from_der(der: &[u8]) -> Result<CertificateContent, ContentError> {
        let (rest, certificate) = X509Certificate::from_der(der).map_err(|e| ContentError::Der(e.to_string()))?;
        if !rest.is_empty() {
            return Err(ContentError::TrailingData);
        }
        let mut content = CertificateContent {
            subject: DistinguishedName::read(certificate.subject())?,
            alternative_names: AlternativeNames::default(),
            public_key: certificate.public_key().raw.to_vec(),
            valid: certificate.validity().not_before.timestamp()..=certificate.validity().not_after.timestamp(),
            key_usage: None,
            extended_key_usages: BTreeSet::new(),
            is_authority: false,
            is_self_issued: certificate.subject().as_raw() == certificate.issuer().as_raw(),
            extensions: BTreeSet::new(),
        };
        for extension in certificate.extensions() {
            let oid = extension.oid.to_id_string();
            match extension.parsed_extension() {
                ParsedExtension::SubjectAlternativeName(names) => {
                    content.alternative_names = AlternativeNames::read(names)?;
                }
                ParsedExtension::KeyUsage(usage) => content.key_usage = Some(usage.flags),
                ParsedExtension::ExtendedKeyUsage(usage) => content.extended_key_usages = extended(usage),
                ParsedExtension::BasicConstraints(constraints) => content.is_authority = constraints.ca,
                ParsedExtension::ParseError { .. } => return Err(ContentError::Extension(oid)),
                _ => {}
            }
            if !content.extensions.insert(oid.clone()) {
                return Err(ContentError::RepeatedExtension(oid));
            }
        }
        Ok(content)
    }
}

fn extended(usage: &x509_parser::extensions::ExtendedKeyUsage<'_>) -> BTreeSet<String> {
    let named = [
        (usage.any, "2.5.29.37.0"),
        (usage.server_auth, "1.3.6.1.5.5.7.3.1"),
        (usage.client_auth, "1.3.6.1.5.5.7.3.2"),
        (usage.code_signing, "1.3.6.1.5.5.7.3.3"),
        (usage.email_protection, "1.3.6.1.5.5.7.3.4"),
        (usage.time_stamping, "1.3.6.1.5.5.7.3.8"),
        (usage.ocsp_signing, "1.3.6.1.5.5.7.3.9"),
    ];
    let named = named.into_iter().filter(|(is_set, _)| *is_set);
    let named = named.map(|(_, oid)| oid.to_string());
    named.chain(usage.other.iter().map(|oid| oid.to_id_string())).collect()
}

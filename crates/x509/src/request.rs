//! Requests for certificates (PKCS #10 in PEM): whom they are for.

use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::extensions::ParsedExtension;
use x509_parser::oid_registry::OID_X509_EXT_SUBJECT_ALT_NAME;
use x509_parser::prelude::FromDer;

use crate::name::{AlternativeNames, DistinguishedName, NameError};

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    BlockType,
    #[error("{0}")]
    Der(String),
    #[error("asn1: syntax error: trailing data")]
    TrailingData,
    #[error("unable to verify certificate request signature: {0}")]
    Signature(String),
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("the subjectAltNames can't be read")]
    AlternativeNames,
    #[error("subjectAltNames are there more than once")]
    RepeatedAlternativeNames,
}

/// What a request asks for, all of it: what can't be read makes the request an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateRequest {
    pub subject: DistinguishedName,
    pub alternative_names: AlternativeNames,
    /// SubjectPublicKeyInfo in DER.
    pub public_key: Vec<u8>,
}

impl CertificateRequest {
    /// Reads a request, whoever made it.
    pub fn from_pem(pem: &[u8]) -> Result<CertificateRequest, RequestError> {
        CertificateRequest::read(pem, false)
    }

    /// As `from_pem`, for a request whose signature shows that whoever made it holds the key.
    pub fn verified(pem: &[u8]) -> Result<CertificateRequest, RequestError> {
        CertificateRequest::read(pem, true)
    }

    fn read(pem: &[u8], verify: bool) -> Result<CertificateRequest, RequestError> {
        let block = x509_parser::pem::parse_x509_pem(pem)
            .ok()
            .map(|(_, block)| block)
            .filter(|block| block.label == "CERTIFICATE REQUEST")
            .ok_or(RequestError::BlockType)?;
        let parsed = X509CertificationRequest::from_der(&block.contents);
        let (rest, request) = parsed.map_err(|e| RequestError::Der(e.to_string()))?;
        if !rest.is_empty() {
            return Err(RequestError::TrailingData);
        }
        if verify {
            let verified = request.verify_signature();
            verified.map_err(|e| RequestError::Signature(e.to_string()))?;
        }
        let info = &request.certification_request_info;
        Ok(CertificateRequest {
            subject: DistinguishedName::read_known(&info.subject)?,
            alternative_names: alternative_names(&request)?,
            public_key: info.subject_pki.raw.to_vec(),
        })
    }
}

fn alternative_names(request: &X509CertificationRequest<'_>) -> Result<AlternativeNames, RequestError> {
    let mut found = None;
    let attributes = request.certification_request_info.iter_attributes();
    let asked = attributes.filter_map(|attribute| match attribute.parsed_attribute() {
        ParsedCriAttribute::ExtensionRequest(asked) => Some(&asked.extensions),
        _ => None,
    });
    for extension in asked.flatten().filter(|e| e.oid == OID_X509_EXT_SUBJECT_ALT_NAME) {
        let ParsedExtension::SubjectAlternativeName(names) = extension.parsed_extension() else {
            return Err(RequestError::AlternativeNames);
        };
        let names = AlternativeNames::read(names)?;
        if found.replace(names).is_some() {
            return Err(RequestError::RepeatedAlternativeNames);
        }
    }
    Ok(found.unwrap_or_default())
}

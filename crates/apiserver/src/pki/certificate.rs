//! Making X.509 certificates. Names, extensions and times are x509-cert's types; the outer structure is put together
//! here, because that crate's builder wants key types of its own and rcgen keeps only the last organisation of a
//! subject, which would lose groups.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use orlop_x509::{AlternativeNames, DistinguishedName};
use rcgen::{KeyPair, PublicKeyData, SigningKey};
use x509_cert::attr::AttributeTypeAndValue;
use x509_cert::der::asn1::{Any, Ia5String, ObjectIdentifier, OctetString, SetOfVec, Utf8StringRef};
use x509_cert::der::oid::AssociatedOid;
use x509_cert::der::oid::db::rfc4519::{COMMON_NAME, ORGANIZATION_NAME};
use x509_cert::der::oid::db::rfc5280::{ID_KP_CLIENT_AUTH, ID_KP_SERVER_AUTH};
use x509_cert::der::oid::db::rfc5912::{ECDSA_WITH_SHA_256, SHA_256_WITH_RSA_ENCRYPTION};
use x509_cert::der::pem::LineEnding;
use x509_cert::der::{DateTime, Encode, asn1::Null};
use x509_cert::ext::Extension;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{
    AuthorityKeyIdentifier, BasicConstraints, ExtendedKeyUsage, KeyUsage, KeyUsages, SubjectAltName,
    SubjectKeyIdentifier,
};
use x509_cert::serial_number::SerialNumber;
use x509_cert::spki::AlgorithmIdentifierOwned;
use x509_cert::time::{Time, Validity};

use super::PkiError;

/// Certificates are valid from a little earlier than now, for clients whose clocks run behind.
pub(super) const BACKDATED: Duration = Duration::from_secs(300);

/// What a certificate is for: decides its key usages and constraints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Authority,
    Server,
    Client,
}

impl Purpose {
    /// Object identifiers with dots.
    pub(super) fn extended_usages(self) -> BTreeSet<String> {
        match self {
            Purpose::Authority => BTreeSet::new(),
            Purpose::Server => [ID_KP_SERVER_AUTH.to_string()].into(),
            Purpose::Client => [ID_KP_CLIENT_AUTH.to_string()].into(),
        }
    }
}

/// The name of a certificate's holder. Organisations are groups in Kubernetes.
#[derive(Clone, Debug, Default)]
pub struct Subject<'a> {
    pub common_name: &'a str,
    pub organizations: &'a [&'a str],
}

/// A host name or an address that a server answers to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum San {
    Dns(String),
    Ip(IpAddr),
}

impl San {
    pub fn parse(text: &str) -> San {
        match text.parse() {
            Ok(ip) => San::Ip(ip),
            Err(_) => San::Dns(text.to_ascii_lowercase()),
        }
    }
}

/// Everything about a certificate but its issuer.
pub(super) struct Request<'a> {
    pub purpose: Purpose,
    pub subject: Subject<'a>,
    pub sans: &'a [San],
    /// SubjectPublicKeyInfo of the holder, in DER.
    pub public_key: Vec<u8>,
    pub validity: Duration,
}

/// Who signs: a key with the name and key identifier of its certificate.
pub(super) struct Issuer<'a> {
    pub key: &'a KeyPair,
    /// The issuer's subject, in DER.
    pub name: Vec<u8>,
    pub key_id: Vec<u8>,
}

pub(super) fn request_for<'a>(
    purpose: Purpose,
    subject: Subject<'a>,
    key: &KeyPair,
    validity: Duration,
) -> Request<'a> {
    Request {
        purpose,
        subject,
        sans: &[],
        public_key: key.subject_public_key_info(),
        validity,
    }
}

/// A certificate that vouches for itself, in PEM.
pub(super) fn self_signed(request: &Request<'_>, key: &KeyPair, now: Timestamp) -> Result<String, PkiError> {
    let issuer = Issuer {
        key,
        name: name_der(&request.subject)?,
        key_id: key_id(&request.public_key),
    };
    sign(request, &issuer, now)
}

/// A certificate signed by an authority, in PEM.
pub(super) fn sign(request: &Request<'_>, issuer: &Issuer<'_>, now: Timestamp) -> Result<String, PkiError> {
    let holder = Holder {
        subject: &name_der(&request.subject)?,
        public_key: &request.public_key,
    };
    sign_for(&holder, extensions(request, issuer)?, request.validity, issuer, now)
}

/// Whom a certificate is about, in DER.
pub(super) struct Holder<'a> {
    pub subject: &'a [u8],
    pub public_key: &'a [u8],
}

/// A certificate signed by an authority, in PEM, valid for so long from now on.
pub(super) fn sign_for(
    holder: &Holder<'_>,
    extensions: Vec<Extension>,
    valid: Duration,
    issuer: &Issuer<'_>,
    now: Timestamp,
) -> Result<String, PkiError> {
    let algorithm = signature_algorithm(issuer.key)?.to_der()?;
    let validity: Validity = Validity::new(time(now, Duration::ZERO, BACKDATED)?, time(now, valid, Duration::ZERO)?);
    let tbs = sequence(&[
        &[0xa0, 3, 2, 1, 2], // version 3
        &serial_number()?.to_der()?,
        &algorithm,
        &issuer.name,
        &validity.to_der()?,
        holder.subject,
        holder.public_key,
        &tlv(0xa3, &[&extensions.to_der()?]),
    ]);
    let signature = issuer.key.sign(&tbs).map_err(PkiError::Key)?;
    let certificate = sequence(&[&tbs, &algorithm, &tlv(0x03, &[&[0], &signature])]);
    Ok(
        x509_cert::der::pem::encode_string("CERTIFICATE", LineEnding::LF, &certificate)
            .expect("a certificate fits the limits of PEM"),
    )
}

fn extensions(request: &Request<'_>, issuer: &Issuer<'_>) -> Result<Vec<Extension>, PkiError> {
    let authority = request.purpose == Purpose::Authority;
    let usage = match request.purpose {
        Purpose::Authority => KeyUsages::DigitalSignature | KeyUsages::KeyEncipherment | KeyUsages::KeyCertSign,
        Purpose::Server | Purpose::Client => KeyUsages::DigitalSignature | KeyUsages::KeyEncipherment,
    };
    let mut list = vec![extension(true, &KeyUsage(usage))?];
    match request.purpose {
        Purpose::Authority => {}
        Purpose::Server => list.push(extension(false, &ExtendedKeyUsage(vec![ID_KP_SERVER_AUTH]))?),
        Purpose::Client => list.push(extension(false, &ExtendedKeyUsage(vec![ID_KP_CLIENT_AUTH]))?),
    }
    let constraints = BasicConstraints {
        ca: authority,
        path_len_constraint: None,
    };
    list.push(extension(true, &constraints)?);
    list.push(extension(
        false,
        &SubjectKeyIdentifier(OctetString::new(key_id(&request.public_key))?),
    )?);
    if !authority {
        list.push(issuer_key(issuer)?);
    }
    if !request.sans.is_empty() {
        let names = request.sans.iter().map(general_name).collect::<Result<_, PkiError>>()?;
        list.push(extension(false, &SubjectAltName(names))?);
    }
    Ok(list)
}

/// By which key the issuer is to be found.
pub(super) fn issuer_key(issuer: &Issuer<'_>) -> Result<Extension, PkiError> {
    let identifier = AuthorityKeyIdentifier {
        key_identifier: Some(OctetString::new(issuer.key_id.clone())?),
        ..Default::default()
    };
    extension(false, &identifier)
}

pub(super) fn extension<E: AssociatedOid + Encode>(critical: bool, extension: &E) -> Result<Extension, PkiError> {
    Ok(Extension {
        extn_id: E::OID,
        critical,
        extn_value: OctetString::new(extension.to_der()?)?,
    })
}

fn general_name(san: &San) -> Result<GeneralName, PkiError> {
    Ok(match san {
        San::Dns(name) => GeneralName::DnsName(Ia5String::new(name)?),
        San::Ip(ip) => GeneralName::from(*ip),
    })
}

/// Names beside the subject.
pub(super) fn alternative_names(critical: bool, names: &AlternativeNames) -> Result<Extension, PkiError> {
    let mut list = vec![];
    for name in &names.dns_names {
        list.push(GeneralName::DnsName(Ia5String::new(name)?));
    }
    for name in &names.emails {
        list.push(GeneralName::Rfc822Name(Ia5String::new(name)?));
    }
    list.extend(names.addresses.iter().map(|ip| GeneralName::from(*ip)));
    for name in &names.uris {
        list.push(GeneralName::UniformResourceIdentifier(Ia5String::new(name)?));
    }
    extension(critical, &SubjectAltName(list))
}

/// A name that was read elsewhere, written anew: each attribute in an RDN of its own, all of one type of string.
pub(super) fn distinguished_name(name: &DistinguishedName) -> Result<Vec<u8>, PkiError> {
    let rdns = name
        .attributes()
        .iter()
        .map(|attribute| {
            rdn(
                ObjectIdentifier::new(&attribute.oid).map_err(der_error)?,
                &attribute.value,
            )
        })
        .collect::<Result<Vec<_>, PkiError>>()?;
    Ok(rdns.to_der()?)
}

fn der_error(error: x509_cert::der::oid::Error) -> PkiError {
    PkiError::Encoding(error.into())
}

/// One RDN per organisation and one for the common name.
pub(super) fn name_der(subject: &Subject<'_>) -> Result<Vec<u8>, PkiError> {
    let organizations = subject.organizations.iter().map(|o| (ORGANIZATION_NAME, *o));
    let attributes = organizations.chain([(COMMON_NAME, subject.common_name)]);
    let rdns = attributes
        .map(|(oid, text)| rdn(oid, text))
        .collect::<Result<Vec<_>, PkiError>>()?;
    Ok(rdns.to_der()?)
}

fn rdn(oid: ObjectIdentifier, text: &str) -> Result<SetOfVec<AttributeTypeAndValue>, PkiError> {
    let value = Any::encode_from(&Utf8StringRef::new(text)?)?;
    let mut set = SetOfVec::new();
    set.insert(AttributeTypeAndValue { oid, value })?;
    Ok(set)
}

/// Key identifiers only need to tell keys apart: 20 bytes of the SHA-256 of the public key.
fn key_id(public_key: &[u8]) -> Vec<u8> {
    super::sha256(public_key)[..20].to_vec()
}

fn serial_number() -> Result<SerialNumber, PkiError> {
    let mut bytes = [0u8; 16];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| PkiError::Random)?;
    // Positive and of full length.
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    Ok(SerialNumber::new(&bytes)?)
}

fn time(now: Timestamp, after: Duration, before: Duration) -> Result<Time, PkiError> {
    let seconds = now
        .as_second()
        .saturating_add(after.as_secs() as i64)
        .saturating_sub(before.as_secs() as i64);
    let date = DateTime::from_unix_duration(Duration::from_secs(seconds.max(0) as u64))?;
    Ok(Time::from(date))
}

fn signature_algorithm(key: &KeyPair) -> Result<AlgorithmIdentifierOwned, PkiError> {
    let (oid, parameters) = if key.is_compatible(&rcgen::PKCS_ECDSA_P256_SHA256) {
        (ECDSA_WITH_SHA_256, None)
    } else if key.is_compatible(&rcgen::PKCS_RSA_SHA256) {
        (SHA_256_WITH_RSA_ENCRYPTION, Some(Any::from(Null)))
    } else {
        return Err(PkiError::UnsupportedKey);
    };
    Ok(AlgorithmIdentifierOwned { oid, parameters })
}

fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    tlv(0x30, parts)
}

/// Tag, length, value in DER.
pub(super) fn tlv(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|p| p.len()).sum();
    let mut out = vec![tag];
    match length {
        0..0x80 => out.push(length as u8),
        _ => {
            let bytes = length.to_be_bytes();
            let bytes = &bytes[bytes.iter().take_while(|b| **b == 0).count()..];
            out.push(0x80 | bytes.len() as u8);
            out.extend_from_slice(bytes);
        }
    }
    parts.iter().for_each(|p| out.extend_from_slice(p));
    out
}

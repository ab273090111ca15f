//! Making X.509 certificates. They are put together here from a few lines of DER (`der.rs`): rcgen, which has the keys,
//! keeps only the last organisation of a subject, which would lose groups.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use super::PkiError;
use super::der::{self, EncodingError};
use jiff::Timestamp;
use orlop_x509::{AlternativeNames, COMMON_NAME, DistinguishedName, ORGANIZATION};
use rcgen::{KeyPair, PublicKeyData, SigningKey};

/// Object identifiers of extensions, of what they say, and of signatures.
pub(super) const SUBJECT_KEY_IDENTIFIER: &str = "2.5.29.14";
pub(super) const KEY_USAGE: &str = "2.5.29.15";
pub(super) const SUBJECT_ALT_NAME: &str = "2.5.29.17";
pub(super) const BASIC_CONSTRAINTS: &str = "2.5.29.19";
pub(super) const AUTHORITY_KEY_IDENTIFIER: &str = "2.5.29.35";
pub(super) const EXTENDED_KEY_USAGE: &str = "2.5.29.37";
pub(super) const SERVER_AUTH: &str = "1.3.6.1.5.5.7.3.1";
pub(super) const CLIENT_AUTH: &str = "1.3.6.1.5.5.7.3.2";
const ECDSA_WITH_SHA256: &str = "1.2.840.10045.4.3.2";
const SHA256_WITH_RSA: &str = "1.2.840.113549.1.1.11";

/// Flags of the extension for key usages, in the standard's order from the lowest.
pub(super) const DIGITAL_SIGNATURE: u16 = 1;
pub(super) const NON_REPUDIATION: u16 = 1 << 1;
pub(super) const KEY_ENCIPHERMENT: u16 = 1 << 2;
pub(super) const DATA_ENCIPHERMENT: u16 = 1 << 3;
pub(super) const KEY_AGREEMENT: u16 = 1 << 4;
pub(super) const KEY_CERT_SIGN: u16 = 1 << 5;
pub(super) const CRL_SIGN: u16 = 1 << 6;
pub(super) const ENCIPHER_ONLY: u16 = 1 << 7;
pub(super) const DECIPHER_ONLY: u16 = 1 << 8;

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
            Purpose::Server => [SERVER_AUTH.to_string()].into(),
            Purpose::Client => [CLIENT_AUTH.to_string()].into(),
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
    sign_for(&holder, &extensions(request, issuer)?, request.validity, issuer, now)
}

/// Whom a certificate is about, in DER.
pub(super) struct Holder<'a> {
    pub subject: &'a [u8],
    pub public_key: &'a [u8],
}

/// A certificate signed by an authority, in PEM, valid for so long from now on. Extensions are in DER.
pub(super) fn sign_for(
    holder: &Holder<'_>,
    extensions: &[Vec<u8>],
    valid: Duration,
    issuer: &Issuer<'_>,
    now: Timestamp,
) -> Result<String, PkiError> {
    let algorithm = signature_algorithm(issuer.key)?;
    let (start, end) = (time(now, Duration::ZERO, BACKDATED)?, time(now, valid, Duration::ZERO)?);
    let tbs = der::sequence(&[
        &[0xa0, 3, 2, 1, 2], // version 3
        &serial_number()?,
        &algorithm,
        &issuer.name,
        &der::sequence(&[&start, &end]),
        holder.subject,
        holder.public_key,
        &der::tlv(0xa3, &[&list(extensions)]),
    ]);
    let signature = issuer.key.sign(&tbs).map_err(PkiError::Key)?;
    let certificate = der::sequence(&[&tbs, &algorithm, &der::bit_string(&signature)]);
    Ok(der::pem("CERTIFICATE", &certificate))
}

fn list(items: &[Vec<u8>]) -> Vec<u8> {
    let items: Vec<&[u8]> = items.iter().map(Vec::as_slice).collect();
    der::sequence(&items)
}

fn extensions(request: &Request<'_>, issuer: &Issuer<'_>) -> Result<Vec<Vec<u8>>, EncodingError> {
    let authority = request.purpose == Purpose::Authority;
    let usage = match request.purpose {
        Purpose::Authority => DIGITAL_SIGNATURE | KEY_ENCIPHERMENT | KEY_CERT_SIGN,
        Purpose::Server | Purpose::Client => DIGITAL_SIGNATURE | KEY_ENCIPHERMENT,
    };
    let mut list = vec![key_usage(usage)?];
    match request.purpose {
        Purpose::Authority => {}
        Purpose::Server => list.push(extended_key_usage([SERVER_AUTH])?),
        Purpose::Client => list.push(extended_key_usage([CLIENT_AUTH])?),
    }
    list.push(basic_constraints(authority)?);
    let key_id = der::octet_string(&key_id(&request.public_key));
    list.push(der::extension(SUBJECT_KEY_IDENTIFIER, false, &key_id)?);
    if !authority {
        list.push(issuer_key(issuer)?);
    }
    if !request.sans.is_empty() {
        let names: Result<Vec<_>, _> = request.sans.iter().map(general_name).collect();
        list.push(subject_alt_name(false, &names?)?);
    }
    Ok(list)
}

pub(super) fn key_usage(flags: u16) -> Result<Vec<u8>, EncodingError> {
    der::extension(KEY_USAGE, true, &der::named_bits(flags))
}

pub(super) fn extended_key_usage<'a>(usages: impl IntoIterator<Item = &'a str>) -> Result<Vec<u8>, EncodingError> {
    let usages: Result<Vec<_>, _> = usages.into_iter().map(der::object_identifier).collect();
    der::extension(EXTENDED_KEY_USAGE, false, &list(&usages?))
}

pub(super) fn basic_constraints(is_authority: bool) -> Result<Vec<u8>, EncodingError> {
    der::extension(BASIC_CONSTRAINTS, true, &der::basic_constraints(is_authority))
}

/// By which key the issuer is to be found.
pub(super) fn issuer_key(issuer: &Issuer<'_>) -> Result<Vec<u8>, EncodingError> {
    let identifier = der::sequence(&[&der::tlv(0x80, &[&issuer.key_id])]);
    der::extension(AUTHORITY_KEY_IDENTIFIER, false, &identifier)
}

fn subject_alt_name(critical: bool, names: &[Vec<u8>]) -> Result<Vec<u8>, EncodingError> {
    der::extension(SUBJECT_ALT_NAME, critical, &list(names))
}

fn general_name(san: &San) -> Result<Vec<u8>, EncodingError> {
    match san {
        San::Dns(name) => der::ia5_string(DNS_NAME, name),
        San::Ip(ip) => Ok(ip_address(*ip)),
    }
}

/// Tags of a GeneralName.
const RFC822_NAME: u8 = 0x81;
const DNS_NAME: u8 = 0x82;
const URI: u8 = 0x86;
const IP_ADDRESS: u8 = 0x87;

fn ip_address(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => der::tlv(IP_ADDRESS, &[&ip.octets()]),
        IpAddr::V6(ip) => der::tlv(IP_ADDRESS, &[&ip.octets()]),
    }
}

/// Names beside the subject.
pub(super) fn alternative_names(critical: bool, names: &AlternativeNames) -> Result<Vec<u8>, EncodingError> {
    let mut list = vec![];
    for name in &names.dns_names {
        list.push(der::ia5_string(DNS_NAME, name)?);
    }
    for name in &names.emails {
        list.push(der::ia5_string(RFC822_NAME, name)?);
    }
    list.extend(names.addresses.iter().copied().map(ip_address));
    for name in &names.uris {
        list.push(der::ia5_string(URI, name)?);
    }
    subject_alt_name(critical, &list)
}

/// A name that was read elsewhere, written anew: each attribute in an RDN of its own, all of one type of string.
pub(super) fn distinguished_name(name: &DistinguishedName) -> Result<Vec<u8>, EncodingError> {
    rdns(name.attributes().iter().map(|a| (a.oid.as_str(), a.value.as_str())))
}

/// One RDN per organisation and one for the common name.
pub(super) fn name_der(subject: &Subject<'_>) -> Result<Vec<u8>, EncodingError> {
    let organizations = subject.organizations.iter().map(|o| (ORGANIZATION, *o));
    rdns(organizations.chain([(COMMON_NAME, subject.common_name)]))
}

fn rdns<'a>(attributes: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Vec<u8>, EncodingError> {
    let rdns = attributes.map(|(oid, text)| {
        let attribute = der::sequence(&[&der::object_identifier(oid)?, &der::utf8_string(text)]);
        Ok(der::set_of_one(&attribute))
    });
    Ok(list(&rdns.collect::<Result<Vec<_>, EncodingError>>()?))
}

/// Key identifiers only need to tell keys apart: 20 bytes of the SHA-256 of the public key.
fn key_id(public_key: &[u8]) -> Vec<u8> {
    super::sha256(public_key)[..20].to_vec()
}

fn serial_number() -> Result<Vec<u8>, PkiError> {
    let mut bytes = [0u8; 16];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| PkiError::Random)?;
    // Positive and of full length.
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    Ok(der::positive_integer(&bytes))
}

fn time(now: Timestamp, after: Duration, before: Duration) -> Result<Vec<u8>, EncodingError> {
    let seconds = now
        .as_second()
        .saturating_add(after.as_secs() as i64)
        .saturating_sub(before.as_secs() as i64);
    der::time(seconds.max(0))
}

fn signature_algorithm(key: &KeyPair) -> Result<Vec<u8>, PkiError> {
    if key.is_compatible(&rcgen::PKCS_ECDSA_P256_SHA256) {
        Ok(der::sequence(&[&der::object_identifier(ECDSA_WITH_SHA256)?]))
    } else if key.is_compatible(&rcgen::PKCS_RSA_SHA256) {
        Ok(der::sequence(&[&der::object_identifier(SHA256_WITH_RSA)?, &[5, 0]]))
    } else {
        Err(PkiError::UnsupportedKey)
    }
}

//! Certificates that answer requests (PKCS #10 in PEM). A certificate has the request's subject, key and alternative
//! names, and nothing else of it: they are written anew from what was read, and the certificate is read again before it
//! is given away.
// Upstream: pkg/controller/certificates/authority (v1.36)

use std::collections::BTreeSet;
use std::time::Duration;

use super::Authority;
use super::certificate::{self, BACKDATED, Holder};
use super::der::EncodingError;
use jiff::Timestamp;
use orlop_x509::{CertificateContent, CertificateRequest, ContentError, RequestError};

/// Certificates of less than this are valid for the whole of what was asked; of others the time before now is taken off.
const SHORT: Duration = Duration::from_secs(8 * 3600);

/// Why a request is not signed.
#[derive(Debug, thiserror::Error)]
pub enum SignRequestError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("the request is not the one that was approved")]
    NotJudged,
    #[error("the signer has expired")]
    SignerExpired,
    #[error("unrecognized usage values: [{0:?}]")]
    Usage(String),
    #[error(transparent)]
    Pki(#[from] super::PkiError),
    /// What was signed can't be read back.
    #[error(transparent)]
    Content(#[from] ContentError),
    #[error("the certificate's {0} is not what was approved")]
    Differs(&'static str),
}

impl Authority {
    /// Signs what is asked for, for these usages (as the API names them), for so long or as long as this authority is
    /// good. `judged` is what the request was taken for when it was approved.
    pub fn sign_request(
        &self,
        pem: &str,
        judged: &CertificateRequest,
        usages: &[String],
        valid: Duration,
        now: Timestamp,
    ) -> Result<String, SignRequestError> {
        let request = CertificateRequest::verified(pem.as_bytes())?;
        if request != *judged {
            return Err(SignRequestError::NotJudged);
        }
        let left = u64::try_from(self.facts.not_after - now.as_second()).unwrap_or(0);
        if left == 0 {
            return Err(SignRequestError::SignerExpired);
        }
        let valid = if valid < SHORT {
            valid
        } else {
            valid.saturating_sub(BACKDATED)
        };
        let valid = valid.min(Duration::from_secs(left));
        let failed = |e: EncodingError| SignRequestError::from(super::PkiError::from(e));
        let holder = Holder {
            subject: &certificate::distinguished_name(&judged.subject).map_err(failed)?,
            public_key: &judged.public_key,
        };
        let issuer = self.issuer();
        let usages = Usages::parse(usages)?;
        let mut extensions = usages.extensions().map_err(failed)?;
        extensions.push(certificate::basic_constraints(false).map_err(failed)?);
        extensions.push(certificate::issuer_key(&issuer).map_err(failed)?);
        if !judged.alternative_names.is_empty() {
            // Who has no name but these is known by them alone.
            let critical = judged.subject.attributes().is_empty();
            extensions.push(certificate::alternative_names(critical, &judged.alternative_names).map_err(failed)?);
        }
        let signed = certificate::sign_for(&holder, &extensions, valid, &issuer, now)?;
        check(&signed, judged, &usages, self.facts.not_after)?;
        Ok(signed)
    }
}

/// Reads a certificate again before anybody else does: it must say what was judged, and no more.
fn check(
    signed: &str,
    judged: &CertificateRequest,
    usages: &Usages,
    not_after_max: i64,
) -> Result<(), SignRequestError> {
    let content = CertificateContent::from_pem(signed)?;
    let wanted: BTreeSet<String> = usages.extended.iter().map(|oid| oid.to_string()).collect();
    let known = [
        certificate::KEY_USAGE,
        certificate::EXTENDED_KEY_USAGE,
        certificate::BASIC_CONSTRAINTS,
        certificate::AUTHORITY_KEY_IDENTIFIER,
        certificate::SUBJECT_ALT_NAME,
    ];
    let differs = [
        ("subject", content.subject != judged.subject),
        ("subjectAltNames", content.alternative_names != judged.alternative_names),
        ("key", content.public_key != judged.public_key),
        ("key usage", content.key_usage != usages.plain),
        ("extended key usage", content.extended_key_usages != wanted),
        ("CA flag", content.is_authority),
        ("validity", *content.valid.end() > not_after_max),
        (
            "extensions",
            content.extensions.iter().any(|oid| !known.contains(&oid.as_str())),
        ),
    ];
    match differs.iter().find(|(_, differs)| *differs) {
        Some((what, _)) => Err(SignRequestError::Differs(what)),
        None => Ok(()),
    }
}

/// What a key may be used for.
struct Usages {
    /// Flags of the extension.
    plain: Option<u16>,
    /// Object identifiers with dots.
    extended: BTreeSet<&'static str>,
}

impl Usages {
    fn parse(usages: &[String]) -> Result<Usages, SignRequestError> {
        let mut parsed = Usages {
            plain: None,
            extended: BTreeSet::new(),
        };
        for usage in usages {
            if let Some(flag) = key_usage(usage) {
                parsed.plain = Some(parsed.plain.unwrap_or_default() | flag);
            } else if let Some(oid) = extended_usage(usage) {
                parsed.extended.insert(oid);
            } else {
                return Err(SignRequestError::Usage(usage.clone()));
            }
        }
        Ok(parsed)
    }

    fn extensions(&self) -> Result<Vec<Vec<u8>>, EncodingError> {
        let mut list = vec![];
        if let Some(plain) = self.plain {
            list.push(certificate::key_usage(plain)?);
        }
        if !self.extended.is_empty() {
            list.push(certificate::extended_key_usage(self.extended.iter().copied())?);
        }
        Ok(list)
    }
}

fn key_usage(name: &str) -> Option<u16> {
    Some(match name {
        "signing" | "digital signature" => certificate::DIGITAL_SIGNATURE,
        "content commitment" => certificate::NON_REPUDIATION,
        "key encipherment" => certificate::KEY_ENCIPHERMENT,
        "key agreement" => certificate::KEY_AGREEMENT,
        "data encipherment" => certificate::DATA_ENCIPHERMENT,
        "cert sign" => certificate::KEY_CERT_SIGN,
        "crl sign" => certificate::CRL_SIGN,
        "encipher only" => certificate::ENCIPHER_ONLY,
        "decipher only" => certificate::DECIPHER_ONLY,
        _ => return None,
    })
}

fn extended_usage(name: &str) -> Option<&'static str> {
    Some(match name {
        "any" => "2.5.29.37.0",
        "server auth" => certificate::SERVER_AUTH,
        "client auth" => certificate::CLIENT_AUTH,
        "code signing" => "1.3.6.1.5.5.7.3.3",
        "email protection" | "s/mime" => "1.3.6.1.5.5.7.3.4",
        "ipsec end system" => "1.3.6.1.5.5.7.3.5",
        "ipsec tunnel" => "1.3.6.1.5.5.7.3.6",
        "ipsec user" => "1.3.6.1.5.5.7.3.7",
        "timestamping" => "1.3.6.1.5.5.7.3.8",
        "ocsp signing" => "1.3.6.1.5.5.7.3.9",
        "microsoft sgc" => "1.3.6.1.4.1.311.10.3.3",
        "netscape sgc" => "2.16.840.1.113730.4.1",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, DnValue, KeyPair, PublicKeyData, SanType, SigningKey};
    use x509_parser::prelude::{FromDer, X509Certificate};

    use super::super::{AUTHORITY_VALIDITY, Purpose, Subject, der};
    use super::*;

    fn authority(now: Timestamp) -> Authority {
        let key = KeyPair::generate().unwrap();
        let subject = Subject {
            common_name: "ca",
            organizations: &[],
        };
        let request = certificate::request_for(Purpose::Authority, subject, &key, AUTHORITY_VALIDITY);
        let certificate = certificate::self_signed(&request, &key, now).unwrap();
        Authority::from_pem(&certificate, &key.serialize_pem()).unwrap()
    }

    fn request() -> String {
        let mut params = CertificateParams::new(vec!["node-a".to_string()]).unwrap();
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(DnType::CommonName, "system:node:a");
        params
            .subject_alt_names
            .push(SanType::IpAddress("10.0.0.1".parse().unwrap()));
        let key = KeyPair::generate().unwrap();
        params.serialize_request(&key).unwrap().pem().unwrap()
    }

    #[test]
    fn a_request_is_read_and_signed() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let (authority, request) = (authority(now), request());
        let asked = CertificateRequest::from_pem(request.as_bytes()).unwrap();
        assert_eq!(asked.subject.common_name(), "system:node:a");
        assert_eq!(asked.subject.organizations().collect::<Vec<_>>(), ["system:nodes"]);
        let names = &asked.alternative_names;
        assert_eq!(names.dns_names, ["node-a"]);
        assert_eq!(names.addresses, ["10.0.0.1".parse::<std::net::IpAddr>().unwrap()]);
        let usages = ["digital signature", "server auth"].map(str::to_string);
        let signed = authority
            .sign_request(&request, &asked, &usages, Duration::from_secs(3600), now)
            .unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(signed.as_bytes()).unwrap();
        let (_, certificate) = X509Certificate::from_der(&pem.contents).unwrap();
        let (_, ca) = x509_parser::pem::parse_x509_pem(authority.certificate.as_bytes()).unwrap();
        let (_, ca) = X509Certificate::from_der(&ca.contents).unwrap();
        certificate.verify_signature(Some(ca.public_key())).unwrap();
        let subject = certificate.subject().to_string();
        assert!(
            subject.contains("O=system:nodes") && subject.contains("CN=system:node:a"),
            "{subject}"
        );
        assert_eq!(certificate.validity().not_after.timestamp(), now.as_second() + 3600);
        assert_eq!(
            certificate
                .subject_alternative_name()
                .unwrap()
                .unwrap()
                .value
                .general_names
                .len(),
            2
        );
        let extended = certificate.extended_key_usage().unwrap().unwrap().value;
        assert!(extended.server_auth && !extended.client_auth && !certificate.is_ca());
    }

    #[test]
    fn what_is_not_right_is_not_signed() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let (authority, request) = (authority(now), request());
        let judged = CertificateRequest::from_pem(request.as_bytes()).unwrap();
        let sign = |pem: &str, usage: &str, at: Timestamp| {
            authority
                .sign_request(pem, &judged, &[usage.to_string()], Duration::from_secs(3600), at)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            sign(&request, "world domination", now),
            "unrecognized usage values: [\"world domination\"]"
        );
        assert_eq!(
            sign("nothing", "client auth", now),
            "PEM block type must be CERTIFICATE REQUEST"
        );
        let late: Timestamp = "2046-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(sign(&request, "client auth", late), "the signer has expired");
        // Somebody else's key in it.
        let (_, mut block) = x509_parser::pem::parse_x509_pem(request.as_bytes()).unwrap();
        let last = block.contents.len() - 1;
        block.contents[last] ^= 1;
        let forged = der::pem("CERTIFICATE REQUEST", &block.contents);
        assert!(sign(&forged, "client auth", now).starts_with("unable to verify certificate request signature"));
    }
    /// A request with exactly this subject, signed by its key.
    fn request_for(subject: &[u8]) -> String {
        let key = KeyPair::generate().unwrap();
        let tlv = der::tlv;
        let info = tlv(0x30, &[&[2, 1, 0], subject, &key.subject_public_key_info(), &[0xa0, 0]]);
        let algorithm = [0x30, 10, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
        let signature = tlv(3, &[&[0], &key.sign(&info).unwrap()]);
        let request = tlv(0x30, &[&info, &algorithm, &signature]);
        der::pem("CERTIFICATE REQUEST", &request)
    }

    fn attribute(last: u8, tag: u8, value: &[u8]) -> Vec<u8> {
        let tlv = der::tlv;
        tlv(0x30, &[&tlv(6, &[&[0x55, 4, last]]), &tlv(tag, &[value])])
    }

    #[test]
    fn hidden_groups_are_not_signed() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let authority = authority(now);
        let (nodes, node) = (attribute(10, 12, b"system:nodes"), attribute(3, 12, b"system:node:a"));
        let wide: Vec<u8> = "system:masters".encode_utf16().flat_map(u16::to_be_bytes).collect();
        let wider: Vec<u8> = "system:masters"
            .chars()
            .flat_map(|c| (c as u32).to_be_bytes())
            .collect();
        let set = |attributes: &[&[u8]]| der::tlv(0x31, attributes);
        let hidden = [
            (30, wide.as_slice()),
            (28, &wider),
            (20, b"system:masters"),
            (27, b"system:masters"),
            (4, b"system:masters"),
        ];
        for (tag, value) in hidden {
            let masters = attribute(10, tag, value);
            for subject in [
                [set(&[&nodes]), set(&[&masters]), set(&[&node])].concat(),
                [set(&[&nodes, &masters]), set(&[&node])].concat(),
            ] {
                let pem = request_for(&der::tlv(0x30, &[&subject]));
                let refused = CertificateRequest::from_pem(pem.as_bytes()).unwrap_err().to_string();
                assert!(
                    refused.starts_with("subject attribute 2.5.4.10 can't be read"),
                    "{refused}"
                );
                // Nor if somebody judged what a laxer reader would see.
                let seen = request_for(&der::tlv(0x30, &[&set(&[&nodes]), &set(&[&node])]));
                let seen = CertificateRequest::from_pem(seen.as_bytes()).unwrap();
                let usages = ["client auth".to_string()];
                assert!(
                    authority
                        .sign_request(&pem, &seen, &usages, Duration::from_secs(3600), now)
                        .is_err()
                );
            }
        }
        let mut params = CertificateParams::default();
        let group = DnValue::BmpString("system:masters".try_into().unwrap());
        params.distinguished_name.push(DnType::OrganizationName, group);
        let key = KeyPair::generate().unwrap();
        let pem = params.serialize_request(&key).unwrap().pem().unwrap();
        assert!(CertificateRequest::from_pem(pem.as_bytes()).is_err());
    }

    #[test]
    fn a_certificate_that_says_more_than_was_judged_is_not_given_away() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let authority = authority(now);
        let pem = request();
        let judged = CertificateRequest::from_pem(pem.as_bytes()).unwrap();
        let usages = ["client auth", "digital signature"].map(str::to_string);
        let signed = authority
            .sign_request(&pem, &judged, &usages, Duration::from_secs(3600), now)
            .unwrap();
        let usages = |list: &[&str]| Usages::parse(&list.iter().map(|u| u.to_string()).collect::<Vec<_>>()).unwrap();
        let right = usages(&["client auth", "digital signature"]);
        check(&signed, &judged, &right, i64::MAX).unwrap();
        let other = CertificateRequest::from_pem(request().as_bytes()).unwrap();
        let nameless = CertificateRequest {
            alternative_names: Default::default(),
            ..judged.clone()
        };
        let mut renamed = CertificateRequest::from_pem(
            request_for(&der::tlv(0x30, &[&der::tlv(0x31, &[&attribute(3, 12, b"a")])])).as_bytes(),
        )
        .unwrap();
        renamed.public_key = judged.public_key.clone();
        for (judged, usages, not_after, what) in [
            (&renamed, &right, i64::MAX, "subject"),
            (&nameless, &right, i64::MAX, "subjectAltNames"),
            (&other, &right, i64::MAX, "key"),
            (&judged, &usages(&["client auth"]), i64::MAX, "key usage"),
            (&judged, &usages(&["digital signature"]), i64::MAX, "extended key usage"),
            (&judged, &right, now.as_second(), "validity"),
        ] {
            let refused = check(&signed, judged, usages, not_after).unwrap_err().to_string();
            assert_eq!(refused, format!("the certificate's {what} is not what was approved"));
        }
        let authority = authority.certificate.clone();
        let refused = check(&authority, &judged, &right, i64::MAX).unwrap_err().to_string();
        assert!(refused.ends_with("is not what was approved"), "{refused}");
    }
}

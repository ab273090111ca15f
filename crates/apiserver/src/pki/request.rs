//! Certificates that answer requests (PKCS #10 in PEM). A certificate has the request's subject, key and alternative
//! names, and nothing else of it: they are written anew from what was read, and the certificate is read again before it
//! is given away.
// Upstream: pkg/controller/certificates/authority (v1.36)

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use orlop_x509::{CertificateContent, CertificateRequest};
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::der::flagset::FlagSet;
use x509_cert::der::oid::AssociatedOid;
use x509_cert::der::oid::db::rfc5280;
use x509_cert::ext::Extension;
use x509_cert::ext::pkix::{
    AuthorityKeyIdentifier, BasicConstraints, ExtendedKeyUsage, KeyUsage, KeyUsages, SubjectAltName,
};

use super::Authority;
use super::certificate::{self, BACKDATED, Holder};

/// Certificates of less than this are valid for the whole of what was asked; of others the time before now is taken off.
const SHORT: Duration = Duration::from_secs(8 * 3600);

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
    ) -> Result<String, String> {
        let request = CertificateRequest::verified(pem.as_bytes()).map_err(|e| e.to_string())?;
        if request != *judged {
            return Err("the request is not the one that was judged".to_string());
        }
        let left = u64::try_from(self.facts.not_after - now.as_second()).unwrap_or(0);
        if left == 0 {
            return Err("the signer has expired".to_string());
        }
        let valid = if valid < SHORT {
            valid
        } else {
            valid.saturating_sub(BACKDATED)
        };
        let valid = valid.min(Duration::from_secs(left));
        let failed = |e: super::PkiError| e.to_string();
        let holder = Holder {
            subject: &certificate::distinguished_name(&judged.subject).map_err(failed)?,
            public_key: &judged.public_key,
        };
        let issuer = self.issuer();
        let usages = Usages::parse(usages)?;
        let mut extensions = usages.extensions().map_err(failed)?;
        let constraints = BasicConstraints {
            ca: false,
            path_len_constraint: None,
        };
        extensions.push(certificate::extension(true, &constraints).map_err(failed)?);
        extensions.push(certificate::issuer_key(&issuer).map_err(failed)?);
        if !judged.alternative_names.is_empty() {
            // Who has no name but these is known by them alone.
            let critical = judged.subject.attributes().is_empty();
            extensions.push(certificate::alternative_names(critical, &judged.alternative_names).map_err(failed)?);
        }
        let signed = certificate::sign_for(&holder, extensions, valid, &issuer, now).map_err(failed)?;
        check(&signed, judged, &usages, self.facts.not_after)?;
        Ok(signed)
    }
}

/// Reads a certificate again before anybody else does: it must say what was judged, and no more.
fn check(signed: &str, judged: &CertificateRequest, usages: &Usages, not_after_max: i64) -> Result<(), String> {
    let content = CertificateContent::from_pem(signed).map_err(|e| e.to_string())?;
    let wanted: BTreeSet<String> = usages.extended.iter().map(|oid| oid.to_string()).collect();
    let known = [
        KeyUsage::OID,
        ExtendedKeyUsage::OID,
        BasicConstraints::OID,
        AuthorityKeyIdentifier::OID,
        SubjectAltName::OID,
    ]
    .map(|oid| oid.to_string());
    let differs = [
        ("subject", content.subject != judged.subject),
        ("subjectAltNames", content.alternative_names != judged.alternative_names),
        ("key", content.public_key != judged.public_key),
        ("key usage", content.key_usage != usages.plain.map(|plain| plain.bits())),
        ("extended key usage", content.extended_key_usages != wanted),
        ("CA flag", content.is_authority),
        ("validity", *content.valid.end() > not_after_max),
        ("extensions", content.extensions.iter().any(|oid| !known.contains(oid))),
    ];
    match differs.iter().find(|(_, differs)| *differs) {
        Some((what, _)) => Err(format!("the certificate's {what} is not what was judged")),
        None => Ok(()),
    }
}

/// What a key may be used for.
struct Usages {
    plain: Option<FlagSet<KeyUsages>>,
    extended: BTreeSet<ObjectIdentifier>,
}

impl Usages {
    fn parse(usages: &[String]) -> Result<Usages, String> {
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
                return Err(format!("unrecognized usage values: [{usage:?}]"));
            }
        }
        Ok(parsed)
    }

    fn extensions(&self) -> Result<Vec<Extension>, super::PkiError> {
        let mut list = vec![];
        if let Some(plain) = self.plain {
            list.push(certificate::extension(true, &KeyUsage(plain))?);
        }
        if !self.extended.is_empty() {
            let extended = self.extended.iter().copied().collect();
            list.push(certificate::extension(false, &ExtendedKeyUsage(extended))?);
        }
        Ok(list)
    }
}

fn key_usage(name: &str) -> Option<KeyUsages> {
    Some(match name {
        "signing" | "digital signature" => KeyUsages::DigitalSignature,
        "content commitment" => KeyUsages::NonRepudiation,
        "key encipherment" => KeyUsages::KeyEncipherment,
        "key agreement" => KeyUsages::KeyAgreement,
        "data encipherment" => KeyUsages::DataEncipherment,
        "cert sign" => KeyUsages::KeyCertSign,
        "crl sign" => KeyUsages::CRLSign,
        "encipher only" => KeyUsages::EncipherOnly,
        "decipher only" => KeyUsages::DecipherOnly,
        _ => return None,
    })
}

fn extended_usage(name: &str) -> Option<ObjectIdentifier> {
    Some(match name {
        "any" => rfc5280::ANY_EXTENDED_KEY_USAGE,
        "server auth" => rfc5280::ID_KP_SERVER_AUTH,
        "client auth" => rfc5280::ID_KP_CLIENT_AUTH,
        "code signing" => rfc5280::ID_KP_CODE_SIGNING,
        "email protection" | "s/mime" => rfc5280::ID_KP_EMAIL_PROTECTION,
        "ipsec end system" => ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.5"),
        "ipsec tunnel" => ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.6"),
        "ipsec user" => ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.7"),
        "timestamping" => rfc5280::ID_KP_TIME_STAMPING,
        "ocsp signing" => rfc5280::ID_KP_OCSP_SIGNING,
        "microsoft sgc" => ObjectIdentifier::new_unwrap("1.3.6.1.4.1.311.10.3.3"),
        "netscape sgc" => ObjectIdentifier::new_unwrap("2.16.840.1.113730.4.1"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, DnValue, KeyPair, PublicKeyData, SanType, SigningKey};
    use x509_parser::prelude::{FromDer, X509Certificate};

    use super::super::{AUTHORITY_VALIDITY, Purpose, Subject};
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
        let forged = x509_cert::der::pem::encode_string(
            "CERTIFICATE REQUEST",
            x509_cert::der::pem::LineEnding::LF,
            &block.contents,
        )
        .unwrap();
        assert!(sign(&forged, "client auth", now).starts_with("unable to verify certificate request signature"));
    }
    /// A request with exactly this subject, signed by its key.
    fn request_for(subject: &[u8]) -> String {
        let key = KeyPair::generate().unwrap();
        let tlv = certificate::tlv;
        let info = tlv(0x30, &[&[2, 1, 0], subject, &key.subject_public_key_info(), &[0xa0, 0]]);
        let algorithm = [0x30, 10, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
        let signature = tlv(3, &[&[0], &key.sign(&info).unwrap()]);
        let der = tlv(0x30, &[&info, &algorithm, &signature]);
        x509_cert::der::pem::encode_string("CERTIFICATE REQUEST", x509_cert::der::pem::LineEnding::LF, &der).unwrap()
    }

    fn attribute(last: u8, tag: u8, value: &[u8]) -> Vec<u8> {
        let tlv = certificate::tlv;
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
        let set = |attributes: &[&[u8]]| certificate::tlv(0x31, attributes);
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
                let pem = request_for(&certificate::tlv(0x30, &[&subject]));
                let refused = CertificateRequest::from_pem(pem.as_bytes()).unwrap_err().to_string();
                assert!(
                    refused.starts_with("subject attribute 2.5.4.10 can't be read"),
                    "{refused}"
                );
                // Nor if somebody judged what a laxer reader would see.
                let seen = request_for(&certificate::tlv(0x30, &[&set(&[&nodes]), &set(&[&node])]));
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
        assert_eq!(check(&signed, &judged, &right, i64::MAX), Ok(()));
        let other = CertificateRequest::from_pem(request().as_bytes()).unwrap();
        let nameless = CertificateRequest {
            alternative_names: Default::default(),
            ..judged.clone()
        };
        let mut renamed = CertificateRequest::from_pem(
            request_for(&certificate::tlv(
                0x30,
                &[&certificate::tlv(0x31, &[&attribute(3, 12, b"a")])],
            ))
            .as_bytes(),
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
            let refused = check(&signed, judged, usages, not_after).unwrap_err();
            assert_eq!(refused, format!("the certificate's {what} is not what was judged"));
        }
        let authority = authority.certificate.clone();
        let refused = check(&authority, &judged, &right, i64::MAX).unwrap_err();
        assert!(refused.ends_with("is not what was judged"), "{refused}");
    }
}

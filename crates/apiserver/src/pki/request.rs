//! Requests for certificates (PKCS #10 in PEM): what they ask for, and the certificates that answer them. A certificate
//! has the request's subject, key and alternative names, and nothing else of it.
// Upstream: pkg/controller/certificates/authority (v1.36)

use std::time::Duration;

use jiff::Timestamp;
use x509_cert::der::asn1::{ObjectIdentifier, OctetString};
use x509_cert::der::flagset::FlagSet;
use x509_cert::der::oid::AssociatedOid;
use x509_cert::der::oid::db::rfc5280;
use x509_cert::ext::Extension;
use x509_cert::ext::pkix::{BasicConstraints, ExtendedKeyUsage, KeyUsage, KeyUsages, SubjectAltName};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer;

use super::certificate::{self, BACKDATED, Holder};
use super::{Authority, San};

/// Certificates of less than this are valid for the whole of what was asked; of others the time before now is taken off.
const SHORT: Duration = Duration::from_secs(8 * 3600);

/// Whom a certificate is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    pub common_name: String,
    pub organizations: Vec<String>,
    pub dns_names: Vec<String>,
    pub emails: Vec<String>,
    pub addresses: Vec<String>,
    pub uris: Vec<String>,
}

pub fn read_request(pem: &str) -> Result<Asked, String> {
    let block = block(pem)?;
    let request = parse(&block)?;
    let subject = &request.certification_request_info.subject;
    let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| attribute.as_str().ok().map(str::to_string);
    let mut asked = Asked {
        // Of several common names the last counts, as everywhere.
        common_name: subject.iter_common_name().filter_map(text).last().unwrap_or_default(),
        organizations: subject.iter_organization().filter_map(text).collect(),
        ..Asked::default()
    };
    for extension in request.requested_extensions().into_iter().flatten() {
        let ParsedExtension::SubjectAlternativeName(names) = extension else {
            continue;
        };
        for name in &names.general_names {
            match name {
                GeneralName::DNSName(name) => asked.dns_names.push(name.to_string()),
                GeneralName::RFC822Name(name) => asked.emails.push(name.to_string()),
                GeneralName::URI(name) => asked.uris.push(name.to_string()),
                GeneralName::IPAddress(_) => match super::san(name) {
                    Some(San::Ip(ip)) => asked.addresses.push(ip.to_string()),
                    _ => return Err("an address that is none".to_string()),
                },
                _ => return Err("an alternative name of an unknown kind".to_string()),
            }
        }
    }
    Ok(asked)
}

fn block(pem: &str) -> Result<Pem, String> {
    let block = x509_parser::pem::parse_x509_pem(pem.as_bytes())
        .ok()
        .map(|(_, block)| block);
    let request = block.filter(|block| block.label == "CERTIFICATE REQUEST");
    request.ok_or_else(|| "PEM block type must be CERTIFICATE REQUEST".to_string())
}

fn parse(block: &Pem) -> Result<X509CertificationRequest<'_>, String> {
    let request = X509CertificationRequest::from_der(&block.contents);
    request.map(|(_, request)| request).map_err(|e| e.to_string())
}

impl Authority {
    /// Signs what is asked for, for these usages (as the API names them), for so long or as long as this authority is good.
    pub fn sign_request(
        &self,
        pem: &str,
        usages: &[String],
        valid: Duration,
        now: Timestamp,
    ) -> Result<String, String> {
        // Names that can't be read are not vouched for.
        read_request(pem)?;
        let block = block(pem)?;
        let request = parse(&block)?;
        let verified = request.verify_signature();
        verified.map_err(|e| format!("unable to verify certificate request signature: {e}"))?;
        let left = u64::try_from(self.facts.not_after - now.as_second()).unwrap_or(0);
        if left == 0 {
            return Err("the signer has expired".to_string());
        }
        let valid = if valid < SHORT {
            valid
        } else {
            valid.saturating_sub(BACKDATED)
        };
        let info = &request.certification_request_info;
        let holder = Holder {
            subject: info.subject.as_raw(),
            public_key: info.subject_pki.raw,
        };
        let failed = |e: super::PkiError| e.to_string();
        let issuer = self.issuer();
        let mut extensions = usage_extensions(usages)?;
        let constraints = BasicConstraints {
            ca: false,
            path_len_constraint: None,
        };
        extensions.push(certificate::extension(true, &constraints).map_err(failed)?);
        extensions.push(certificate::issuer_key(&issuer).map_err(failed)?);
        extensions.extend(alternative_names(&request)?);
        let valid = valid.min(Duration::from_secs(left));
        certificate::sign_for(&holder, extensions, valid, &issuer, now).map_err(failed)
    }
}

/// As they are in the request.
fn alternative_names(request: &X509CertificationRequest<'_>) -> Result<Option<Extension>, String> {
    let wanted = x509_parser::oid_registry::OID_X509_EXT_SUBJECT_ALT_NAME;
    for attribute in request.certification_request_info.iter_attributes() {
        let x509_parser::cri_attributes::ParsedCriAttribute::ExtensionRequest(asked) = attribute.parsed_attribute()
        else {
            continue;
        };
        if let Some(names) = asked.extensions.iter().find(|extension| extension.oid == wanted) {
            return Ok(Some(Extension {
                extn_id: SubjectAltName::OID,
                // Who has no name but these is known by them alone.
                critical: request.certification_request_info.subject.iter().next().is_none(),
                extn_value: OctetString::new(names.value).map_err(|e| e.to_string())?,
            }));
        }
    }
    Ok(None)
}

fn usage_extensions(usages: &[String]) -> Result<Vec<Extension>, String> {
    let (mut plain, mut extended) = (None::<FlagSet<KeyUsages>>, vec![]);
    for usage in usages {
        if let Some(flag) = key_usage(usage) {
            plain = Some(plain.unwrap_or_default() | flag);
        } else if let Some(oid) = extended_usage(usage) {
            if !extended.contains(&oid) {
                extended.push(oid);
            }
        } else {
            return Err(format!("unrecognized usage values: [{usage:?}]"));
        }
    }
    extended.sort();
    let mut list = vec![];
    let failed = |e: super::PkiError| e.to_string();
    if let Some(plain) = plain {
        list.push(certificate::extension(true, &KeyUsage(plain)).map_err(failed)?);
    }
    if !extended.is_empty() {
        list.push(certificate::extension(false, &ExtendedKeyUsage(extended)).map_err(failed)?);
    }
    Ok(list)
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
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};
    use x509_parser::prelude::X509Certificate;

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
        let asked = read_request(&request).unwrap();
        assert_eq!(
            (asked.common_name.as_str(), asked.organizations.as_slice()),
            ("system:node:a", &["system:nodes".to_string()][..])
        );
        assert_eq!(
            (asked.dns_names.as_slice(), asked.addresses.as_slice()),
            (&["node-a".to_string()][..], &["10.0.0.1".to_string()][..])
        );
        let usages = ["digital signature", "server auth"].map(str::to_string);
        let signed = authority
            .sign_request(&request, &usages, Duration::from_secs(3600), now)
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
        let sign = |pem: &str, usage: &str, at: Timestamp| {
            authority
                .sign_request(pem, &[usage.to_string()], Duration::from_secs(3600), at)
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
}

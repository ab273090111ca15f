//! Client certificates: the common name is the user, every organisation a group. TLS has verified the chain; this
//! reads the identity out of the leaf, once per connection.

use std::sync::Arc;

use jiff::Timestamp;
use x509_parser::der_parser::asn1_rs::oid;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

use super::{AUTHENTICATED, AuthnError, CREDENTIAL_ID, UserInfo};

/// Who a verified client certificate speaks for.
#[derive(Clone, Debug)]
pub struct CertIdentity {
    /// None if the certificate has no common name: it then identifies nobody.
    user: Option<Arc<UserInfo>>,
    not_before: i64,
    not_after: i64,
}

impl CertIdentity {
    /// Reads the leaf of a chain that TLS has verified against our authority.
    pub fn from_der(der: &[u8]) -> Result<CertIdentity, AuthnError> {
        let (_, certificate) = X509Certificate::from_der(der).map_err(|_| AuthnError::Certificate("unreadable"))?;
        if !for_clients(&certificate) {
            return Err(AuthnError::Certificate("not for client authentication"));
        }
        Ok(CertIdentity {
            user: user(der, certificate.subject())?.map(Arc::new),
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
        })
    }

    /// The user, as long as the certificate is valid: a connection may outlive it.
    pub fn user(&self, now: Timestamp) -> Result<Option<Arc<UserInfo>>, AuthnError> {
        if (self.not_before..=self.not_after).contains(&now.as_second()) {
            Ok(self.user.clone())
        } else {
            Err(AuthnError::Certificate("expired or not yet valid"))
        }
    }
}

/// A certificate without extended key usages is good for everything.
fn for_clients(certificate: &X509Certificate<'_>) -> bool {
    certificate
        .extensions()
        .iter()
        .all(|extension| match extension.parsed_extension() {
            ParsedExtension::ExtendedKeyUsage(usage) => usage.client_auth || usage.any,
            _ => true,
        })
}

fn user(der: &[u8], subject: &X509Name<'_>) -> Result<Option<UserInfo>, AuthnError> {
    // With several common names the last one counts, as in Go.
    let Some(name) = subject.iter_common_name().last().map(text).filter(|n| !n.is_empty()) else {
        return Ok(None);
    };
    let fingerprint: String = crate::pki::sha256(der)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let mut user = UserInfo {
        name,
        uid: uid(subject)?,
        groups: subject.iter_organization().map(text).collect(),
        extra: [(CREDENTIAL_ID.to_string(), vec![format!("X509SHA256={fingerprint}")])].into(),
    };
    user.ensure_group(AUTHENTICATED);
    Ok(Some(user))
}

/// Kubernetes' own attribute for a user's UID; at most one.
fn uid(subject: &X509Name<'_>) -> Result<String, AuthnError> {
    let oid = oid!(1.3.6.1.4.1.57683.2);
    let mut uids = subject.iter_by_oid(&oid).map(text);
    match (uids.next(), uids.next()) {
        (None, _) => Ok(String::new()),
        (Some(uid), None) if !uid.is_empty() => Ok(uid),
        _ => Err(AuthnError::Certificate("ambiguous user UID")),
    }
}

fn text(attribute: &AttributeTypeAndValue<'_>) -> String {
    attribute.as_str().unwrap_or("").to_string()
}

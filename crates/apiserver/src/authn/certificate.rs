//! Client certificates: the common name is the user, every organisation a group. The handshake has shown that the client
//! holds the key; whether the certificate is any good is found out here, once per connection.

use std::ops::RangeInclusive;
use std::sync::Arc;

use jiff::Timestamp;
use orlop_x509::{ClientAuthority, DistinguishedName};
use rustls_pki_types::CertificateDer;

use super::{AUTHENTICATED, AuthnError, CREDENTIAL_ID, UserInfo};

/// What a connection's client certificate says.
#[derive(Clone, Debug)]
pub struct CertIdentity {
    verified: Result<Verified, AuthnError>,
    /// What was shown, for other authorities to look at.
    chain: Arc<[CertificateDer<'static>]>,
}

#[derive(Clone, Debug)]
struct Verified {
    /// None if the certificate has no common name: it then identifies nobody.
    user: Option<Arc<UserInfo>>,
    /// Seconds since the epoch.
    valid: RangeInclusive<i64>,
}

impl CertIdentity {
    /// Verifies what a client showed, the leaf first.
    pub fn new(clients: &ClientAuthority, chain: &[CertificateDer<'_>], now: Timestamp) -> CertIdentity {
        let verified = clients.verify(chain, now);
        let verified = verified.map_err(|e| AuthnError::Certificate(e.to_string()));
        CertIdentity {
            verified: verified.and_then(|certificate| {
                Ok(Verified {
                    user: user(&chain[0], &certificate.subject)?.map(Arc::new),
                    valid: certificate.valid,
                })
            }),
            chain: chain
                .iter()
                .map(|certificate| certificate.clone().into_owned())
                .collect(),
        }
    }

    /// What the client showed, the leaf first.
    pub(super) fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// The user, as long as the certificate is valid: a connection may outlive it.
    pub fn user(&self, now: Timestamp) -> Result<Option<Arc<UserInfo>>, AuthnError> {
        let verified = self.verified.as_ref().map_err(Clone::clone)?;
        match verified.valid.contains(&now.as_second()) {
            true => Ok(verified.user.clone()),
            false => {
                let why = "x509: certificate has expired or is not yet valid";
                Err(AuthnError::Certificate(why.to_string()))
            }
        }
    }
}

fn user(der: &[u8], subject: &DistinguishedName) -> Result<Option<UserInfo>, AuthnError> {
    if subject.common_name().is_empty() {
        return Ok(None);
    }
    let fingerprint: String = crate::pki::sha256(der)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let uid = match subject.user_uid() {
        Some("") => return Err(AuthnError::Certificate("empty user UID".to_string())),
        uid => uid.unwrap_or_default(),
    };
    let mut user = UserInfo {
        name: subject.common_name().to_string(),
        uid: uid.to_string(),
        groups: subject.organizations().map(str::to_string).collect(),
        extra: [(CREDENTIAL_ID.to_string(), vec![format!("X509SHA256={fingerprint}")])].into(),
    };
    user.ensure_group(AUTHENTICATED);
    Ok(Some(user))
}

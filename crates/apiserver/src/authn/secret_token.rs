//! Signs tokens that live in secrets, for whoever fills those, with a key that need not be this server's own kind: clusters
//! that others set up mostly have RSA keys.

use jsonwebtoken::{Algorithm, EncodingKey, Header};

use super::service_account::{Claims, IssueError, ServiceAccountRef};

pub struct SecretTokens {
    key: EncodingKey,
    algorithm: Algorithm,
}

impl SecretTokens {
    /// A private key in PEM: ECDSA P-256 or RSA.
    pub fn from_pem(pem: &str) -> Option<SecretTokens> {
        let elliptic = EncodingKey::from_ec_pem(pem.as_bytes()).map(|key| (key, Algorithm::ES256));
        let either = elliptic.or_else(|_| EncodingKey::from_rsa_pem(pem.as_bytes()).map(|key| (key, Algorithm::RS256)));
        let (key, algorithm) = either.ok()?;
        Some(SecretTokens { key, algorithm })
    }

    /// Good as long as the secret has it.
    pub fn issue(&self, account: ServiceAccountRef<'_>, secret: &str) -> Result<String, IssueError> {
        let mut header = Header::new(self.algorithm);
        header.typ = None;
        jsonwebtoken::encode(&header, &Claims::for_secret(account, secret), &self.key).map_err(IssueError)
    }
}

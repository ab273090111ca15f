//! What the controllers need keys for: tokens that live in secrets, and certificates that are asked for.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use orlop_apiserver::authn::{SecretTokens, ServiceAccountRef};
use orlop_apiserver::pki::{Authority, COMMON_NAME, CertificateRequest, ORGANIZATION, Pki};
use orlop_controllers::Settings;
use orlop_controllers::settings::{Certificates, MalformedRequest, RequestedIdentity, SigningError, TokenSigner};

struct Tokens(SecretTokens);

impl TokenSigner for Tokens {
    fn token(&self, namespace: &str, account: &str, account_uid: &str, secret: &str) -> Result<String, SigningError> {
        let account = ServiceAccountRef {
            namespace,
            name: account,
            uid: account_uid,
        };
        let issued = self.0.issue(account, secret);
        issued.map_err(|e| SigningError::Failed(e.to_string()))
    }
}

/// Reads requests; signs them if it has an authority.
struct Requests(Option<Authority>);

impl Certificates for Requests {
    fn read(&self, request: &str) -> Result<RequestedIdentity, MalformedRequest> {
        Ok(requested_identity(&parse_request(request)?))
    }

    fn can_sign(&self) -> bool {
        self.0.is_some()
    }

    fn sign(
        &self,
        request: &str,
        validated: &RequestedIdentity,
        usages: &[String],
        valid: Duration,
        now: Timestamp,
    ) -> Result<String, SigningError> {
        let authority = self.0.as_ref().ok_or(SigningError::NoKey)?;
        let read = parse_request(request)?;
        if requested_identity(&read) != *validated {
            return Err(SigningError::RequestChanged);
        }
        let signed = authority.sign_request(request, &read, usages, valid, now);
        signed.map_err(|e| SigningError::Failed(e.to_string()))
    }
}

fn parse_request(pem: &str) -> Result<CertificateRequest, MalformedRequest> {
    CertificateRequest::from_pem(pem.as_bytes()).map_err(|e| MalformedRequest(e.to_string()))
}

fn requested_identity(request: &CertificateRequest) -> RequestedIdentity {
    let (subject, names) = (&request.subject, &request.alternative_names);
    let is_other = |a: &&orlop_apiserver::pki::Attribute| a.oid != COMMON_NAME && a.oid != ORGANIZATION;
    let others = subject.attributes().iter().filter(is_other);
    RequestedIdentity {
        common_name: subject.common_name().to_string(),
        organizations: subject.organizations().map(str::to_string).collect(),
        other_attributes: others.map(|a| (a.oid.clone(), a.value.clone())).collect(),
        dns_names: names.dns_names.clone(),
        emails: names.emails.clone(),
        addresses: names.addresses.iter().map(|ip| ip.to_string()).collect(),
        uris: names.uris.clone(),
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens")
    }
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Requests")
    }
}

/// With the keys of a cluster in this process.
pub(crate) fn with_keys_of(pki: &Pki, settings: Settings) -> Settings {
    let authority = Authority::from_pem(&pki.ca.certificate, &pki.ca.key_pem());
    let tokens = SecretTokens::from_pem(&pki.service_account_key);
    Settings {
        root_ca: settings.root_ca.or_else(|| Some(pki.ca.certificate.clone())),
        token_signer: tokens.map(|tokens| Arc::new(Tokens(tokens)) as Arc<dyn TokenSigner>),
        certificates: Some(Arc::new(Requests(authority))),
        ..settings
    }
}

/// Where the keys of a cluster are, under kube-controller-manager's flag names.
#[derive(clap::Args)]
pub(crate) struct KeyFiles {
    /// Private key that signs service account tokens [default: token Secrets are not filled]
    #[arg(long, value_name = "FILE")]
    service_account_private_key_file: Option<PathBuf>,
    /// CA certificate of the cluster signers [default: no CertificateSigningRequest is signed]
    #[arg(long, value_name = "FILE", requires = "cluster_signing_key_file")]
    cluster_signing_cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "cluster_signing_cert_file")]
    cluster_signing_key_file: Option<PathBuf>,
}

impl KeyFiles {
    pub(crate) fn read(&self, settings: Settings) -> anyhow::Result<Settings> {
        let token_signer = match &self.service_account_private_key_file {
            None => None,
            Some(file) => match SecretTokens::from_pem(&text(file)?) {
                Some(tokens) => Some(Arc::new(Tokens(tokens)) as Arc<dyn TokenSigner>),
                None => bail!("{} has no PEM-encoded private key", file.display()),
            },
        };
        let authority = match (&self.cluster_signing_cert_file, &self.cluster_signing_key_file) {
            (Some(certificate), Some(key)) => match Authority::from_pem(&text(certificate)?, &text(key)?) {
                Some(authority) => Some(authority),
                None => bail!(
                    "{} and {} are not the certificate and key of an authority",
                    certificate.display(),
                    key.display()
                ),
            },
            _ => None,
        };
        Ok(Settings {
            token_signer,
            certificates: Some(Arc::new(Requests(authority))),
            ..settings
        })
    }
}

fn text(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("failed to read {}", file.display()))
}

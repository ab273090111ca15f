//! Keys and certificates that a user brings, in the files that kube-apiserver's flags name, in place of those that the
//! data directory has.

use std::path::{Path, PathBuf};

use crate::authn::{KeyError, TokenIssuer};
use crate::config::Config;
use crate::pki::{Credential, Pki};

/// Where they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyFiles {
    /// Certificate, with those that vouch for it behind it, and key to serve with.
    pub serving: Option<(PathBuf, PathBuf)>,
    /// Authorities whose client certificates are good, beside the cluster's own.
    pub client_authority: Option<PathBuf>,
    /// Certificates and keys beside the first, each for clients that ask for one of these names, or for those that the
    /// certificate is for.
    pub named_serving: Vec<NamedCertificate>,
    /// Certificate and key that are shown to extension API servers.
    pub front_proxy: Option<(PathBuf, PathBuf)>,
    /// Certificate and key that are shown to kubelets.
    pub kubelet_client: Option<(PathBuf, PathBuf)>,
    /// Authorities of one of which every kubelet must have its certificate.
    pub kubelet_authority: Option<PathBuf>,
    /// What signs service account tokens.
    pub token_signing: Option<PathBuf>,
    /// What verifies them.
    pub token_verifying: Vec<PathBuf>,
}

/// A certificate for some names of the server, and its key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedCertificate {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Names of hosts, or `*.DOMAIN`; empty: those in the certificate.
    pub names: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    #[error("failed to read {}", .path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} has no certificates", .0.display())]
    NoCertificate(PathBuf),
    #[error("failed to use the service account key in {}", .path.display())]
    Tokens { path: PathBuf, source: KeyError },
    #[error("failed to load the service account key")]
    OwnTokens(#[source] KeyError),
}

fn read(path: &Path) -> Result<String, KeyFileError> {
    std::fs::read_to_string(path).map_err(|source| KeyFileError::Read {
        path: path.into(),
        source,
    })
}

fn certificates(path: &Path) -> Result<String, KeyFileError> {
    let text = read(path)?;
    match text.contains("-----BEGIN CERTIFICATE-----") {
        true => Ok(text),
        false => Err(KeyFileError::NoCertificate(path.into())),
    }
}

fn credential(certificate: &Path, key: &Path) -> Result<Credential, KeyFileError> {
    Ok(Credential {
        certificate: certificates(certificate)?,
        key: read(key)?,
    })
}

impl KeyFiles {
    /// Puts the files' certificates in the place of those of the data directory.
    pub(crate) fn replace_in(&self, pki: &mut Pki) -> Result<(), KeyFileError> {
        if let Some((certificate, key)) = &self.serving {
            let certificate = certificates(certificate)?;
            // Whoever is given our kubeconfig shall trust what is shown here.
            pki.server_authorities = format!("{}\n{certificate}", pki.ca.certificate);
            pki.apiserver = Credential {
                certificate,
                key: read(key)?,
            };
        }
        if let Some(path) = &self.client_authority {
            pki.client_authorities = format!("{}\n{}", pki.ca.certificate, certificates(path)?);
        }
        for given in &self.named_serving {
            let credential = credential(&given.certificate, &given.key)?;
            pki.named_serving.push((credential, given.names.clone()));
        }
        if let Some((certificate, key)) = &self.front_proxy {
            pki.front_proxy_client = credential(certificate, key)?;
        }
        if let Some((certificate, key)) = &self.kubelet_client {
            pki.kubelet_client = credential(certificate, key)?;
        }
        if let Some(path) = &self.kubelet_authority {
            pki.kubelet_authorities = Some(certificates(path)?);
        }
        Ok(())
    }
}

/// Who issues and verifies service account tokens.
pub(crate) fn token_issuer(config: &Config, pki: &Pki) -> Result<TokenIssuer, KeyFileError> {
    let files = &config.keys;
    let issuer = match &files.token_signing {
        None => TokenIssuer::new(&config.issuer, &pki.service_account_key).map_err(KeyFileError::OwnTokens)?,
        Some(path) => TokenIssuer::new(&config.issuer, &read(path)?).map_err(|source| KeyFileError::Tokens {
            path: path.clone(),
            source,
        })?,
    };
    let mut texts = Vec::new();
    for path in &files.token_verifying {
        texts.push(read(path)?);
    }
    // What this server signs with its own key, nobody could verify otherwise.
    if !texts.is_empty() && files.token_signing.is_none() {
        texts.push(pki.service_account_public_key.clone());
    }
    let issuer = issuer
        .with_verifying_keys(&texts)
        .map_err(|source| KeyFileError::Tokens {
            path: files.token_verifying.first().cloned().unwrap_or_default(),
            source,
        })?;
    Ok(issuer
        .with_api_audiences(config.api_audiences.clone())
        .with_other_issuers(config.other_issuers.clone())
        .with_jwks_uri(config.jwks_uri.clone())
        .with_max_expiration(config.max_token_expiration))
}

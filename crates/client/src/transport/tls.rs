//! TLS to an API server: whom to trust and which client certificate to show.
//!
//! Certificates and keys that are files are read again as they change (see `Client`), so that a rotated client
//! certificate or authority is used without a restart.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper_rustls::ConfigBuilderExt;
use orlop_x509::AnyCertificate;
use rustls::crypto::aws_lc_rs;
use rustls::{CertificateError, ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

/// Why there is no TLS configuration. `field` is the kubeconfig's field, or what stands for it in a pod.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{field}: failed to read {}", .path.display())]
    File {
        field: String,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{field}: no PEM certificate (-----BEGIN CERTIFICATE-----) found")]
    NoCertificate { field: String },
    #[error("{field}: no usable certificate authority among its certificates")]
    Authority { field: String },
    #[error("{field}: no PEM private key (PKCS #8, PKCS #1 or SEC1) found")]
    NoKey { field: String },
    #[error("{certificate} and {key} can't be used together")]
    Identity {
        certificate: String,
        key: String,
        source: rustls::Error,
    },
    #[error("failed to load the system's root certificates; set certificate-authority")]
    SystemRoots(#[source] io::Error),
    #[error("failed to set up TLS")]
    Setup(#[source] rustls::Error),
}

/// PEM, in the configuration itself or in a file.
#[derive(Clone)]
pub(super) struct PemSource {
    pub(super) field: String,
    pub(super) data: PemData,
}

#[derive(Clone)]
pub(super) enum PemData {
    Inline(Vec<u8>),
    File(PathBuf),
}

impl PemSource {
    pub(super) fn file(field: &str, path: &Path) -> PemSource {
        PemSource {
            field: field.to_string(),
            data: PemData::File(path.to_path_buf()),
        }
    }

    pub(super) fn read(&self) -> Result<Vec<u8>, TlsError> {
        match &self.data {
            PemData::Inline(pem) => Ok(pem.clone()),
            PemData::File(path) => std::fs::read(path).map_err(|source| TlsError::File {
                field: self.field.clone(),
                path: path.clone(),
                source,
            }),
        }
    }

    fn is_file(&self) -> bool {
        matches!(self.data, PemData::File(_))
    }
}

/// What TLS is made of.
#[derive(Clone, Default)]
pub(super) struct TlsSource {
    /// None: the system's root certificates.
    pub(super) authority: Option<PemSource>,
    pub(super) identity: Option<IdentitySource>,
    pub(super) skip_verify: bool,
    /// The name to ask for and verify instead of the host of the address.
    pub(super) server_name: Option<ServerName<'static>>,
}

#[derive(Clone)]
pub(super) struct IdentitySource {
    pub(super) certificate: PemSource,
    pub(super) key: PemSource,
}

/// A client certificate with its key, both in PEM.
#[derive(Clone, PartialEq)]
pub(super) struct Identity {
    pub(super) certificate: Vec<u8>,
    pub(super) key: Vec<u8>,
}

/// The contents of a `TlsSource` at some moment.
#[derive(Clone, Default, PartialEq)]
pub(super) struct TlsMaterial {
    authority: Option<Vec<u8>>,
    identity: Option<Identity>,
}

impl TlsSource {
    /// Whether there is anything that could have changed since it was read.
    pub(super) fn has_files(&self) -> bool {
        let identity = self.identity.iter().flat_map(|i| [&i.certificate, &i.key]);
        self.authority.iter().chain(identity).any(PemSource::is_file)
    }

    /// Reads all files. A credential plugin's certificate goes before the configured one.
    pub(super) fn read(&self, from_plugin: Option<&Identity>) -> Result<TlsMaterial, TlsError> {
        let identity = match (from_plugin, &self.identity) {
            (Some(identity), _) => Some(identity.clone()),
            (None, None) => None,
            (None, Some(source)) => Some(Identity {
                certificate: source.certificate.read()?,
                key: source.key.read()?,
            }),
        };
        Ok(TlsMaterial {
            authority: self.authority.as_ref().map(PemSource::read).transpose()?,
            identity,
        })
    }

    pub(super) fn client_config(&self, material: &TlsMaterial) -> Result<ClientConfig, TlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Setup)?;
        let builder = match &material.authority {
            _ if self.skip_verify => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider))),
            Some(pem) => builder.with_root_certificates(self.roots(pem)?),
            None => builder.with_native_roots().map_err(TlsError::SystemRoots)?,
        };
        let Some(identity) = &material.identity else {
            return Ok(builder.with_no_client_auth());
        };
        let (certificate, key) = self.identity_fields();
        let chain = certificates(&identity.certificate, &certificate)?;
        let private = PrivateKeyDer::from_pem_slice(&identity.key);
        let private = private.map_err(|_| TlsError::NoKey { field: key.clone() })?;
        builder
            .with_client_auth_cert(chain, private)
            .map_err(|source| TlsError::Identity {
                certificate,
                key,
                source,
            })
    }

    fn roots(&self, pem: &[u8]) -> Result<RootCertStore, TlsError> {
        let field = self.authority.as_ref().map_or("", |a| &a.field);
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(certificates(pem, field)?);
        if added == 0 {
            return Err(TlsError::Authority {
                field: field.to_string(),
            });
        }
        Ok(roots)
    }

    fn identity_fields(&self) -> (String, String) {
        match &self.identity {
            Some(source) => (source.certificate.field.clone(), source.key.field.clone()),
            None => (
                "the credential plugin's clientCertificateData".to_string(),
                "clientKeyData".to_string(),
            ),
        }
    }

    /// What to do about a server whose certificate was refused.
    pub(super) fn advice(&self, error: &CertificateError) -> String {
        match (error, &self.authority) {
            (CertificateError::UnknownIssuer | CertificateError::BadSignature, Some(authority)) => {
                format!("certificate signed by unknown authority; check {}", authority.field)
            }
            (CertificateError::UnknownIssuer | CertificateError::BadSignature, None) => {
                "certificate signed by unknown authority; set certificate-authority of the cluster".to_string()
            }
            (CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }, _) => {
                format!("{error}; check the server's address or set tls-server-name")
            }
            _ => error.to_string(),
        }
    }
}

fn certificates(pem: &[u8], field: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.unwrap_or_default();
    match found.is_empty() {
        false => Ok(found),
        true => Err(TlsError::NoCertificate {
            field: field.to_string(),
        }),
    }
}

/// The reason why a peer's certificate was refused, if that is what an error is about.
pub(super) fn refused_certificate<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a CertificateError> {
    if let Some(rustls::Error::InvalidCertificate(reason)) = error.downcast_ref::<rustls::Error>() {
        return Some(reason);
    }
    // The source of an `io::Error` is that of what it holds: what it holds has to be asked for.
    let held = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    match held {
        Some(held) => refused_certificate(held),
        None => refused_certificate(error.source()?),
    }
}

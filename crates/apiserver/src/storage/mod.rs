//! The store's place: files of this server alone, or an etcd that it shares with others.

mod codec;
mod definitions;
pub(crate) mod servers;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use orlop_store::etcd::EtcdOptions;
use orlop_store::{EmbeddedLog, OpenError, Options, Store};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::{Config, EtcdConfig};
use crate::encryption::Encryption;
use crate::object::Object;
use codec::EtcdCodec;

/// Why etcd's certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EtcdTlsError {
    #[error("failed to read {}", .path.display())]
    Read {
        path: PathBuf,
        source: rustls_pki_types::pem::Error,
    },
    #[error("{} has no certificate that can be used", .0.display())]
    NoAuthority(PathBuf),
    #[error("the certificate and key for etcd can't be used")]
    Pair(#[source] rustls::Error),
    #[error("a certificate for etcd needs a key, and a key a certificate")]
    Half,
}

/// Opens it. Records may be decrypted with the help of others, who are waited for: not on a thread that serves.
pub(crate) async fn open(
    config: &Config,
    mut options: Options,
    encryption: Option<Arc<Encryption>>,
) -> Result<Store<Object>, crate::StartError> {
    let aside = |open: Box<dyn FnOnce() -> Result<Store<Object>, OpenError> + Send>| async move {
        let opening = tokio::task::spawn_blocking(open).await;
        opening.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
    };
    let Some(etcd) = &config.etcd else {
        let log = EmbeddedLog::open(config.data_dir.join("store"), Default::default())?;
        let Some(encryption) = encryption else {
            return Ok(Store::open(Box::new(log), options)?);
        };
        options.transformer = Some(encryption);
        return Ok(aside(Box::new(move || Store::open(Box::new(log), options))).await?);
    };
    let codec = Arc::new(EtcdCodec::new(&etcd.prefix, config.event_ttl));
    if let Some(encryption) = encryption {
        let codec = codec.clone();
        encryption.set_place(Box::new(move |key| codec.path(key)));
        options.transformer = Some(encryption);
    }
    let etcd = EtcdOptions {
        tls: tls(etcd)?.map(Arc::new),
        compaction_interval: etcd.compaction_interval,
        ..EtcdOptions::new(etcd.servers.clone(), codec)
    };
    Ok(aside(Box::new(move || Store::connect(etcd, options))).await?)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, EtcdTlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    read.map_err(|source| EtcdTlsError::Read {
        path: path.into(),
        source,
    })
}

/// For members at https: who vouches for them (the file, or whom this machine trusts), and who we are.
fn tls(etcd: &EtcdConfig) -> Result<Option<ClientConfig>, EtcdTlsError> {
    if !etcd.servers.iter().any(|server| server.starts_with("https:")) {
        return Ok(None);
    }
    let mut roots = RootCertStore::empty();
    match &etcd.authority {
        Some(path) => {
            roots.add_parsable_certificates(certificates(path)?);
            if roots.is_empty() {
                return Err(EtcdTlsError::NoAuthority(path.clone()));
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(EtcdTlsError::Pair)?
        .with_root_certificates(roots);
    let config = match (&etcd.certificate, &etcd.key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(certificate), Some(key)) => {
            let read = |source| EtcdTlsError::Read {
                path: key.clone(),
                source,
            };
            let key = PrivateKeyDer::from_pem_file(key).map_err(read)?;
            let with_key = builder.with_client_auth_cert(certificates(certificate)?, key);
            with_key.map_err(EtcdTlsError::Pair)?
        }
        _ => return Err(EtcdTlsError::Half),
    };
    Ok(Some(config))
}

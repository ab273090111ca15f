//! The certificate to serve with: given, kept in a directory, or made for this run.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use orlop_x509::{CertificateContent, ClientAuthority};
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// Why there is no certificate to serve with.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("failed to read {}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("failed to write {}", .path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("serving certificate has no PEM certificate (-----BEGIN CERTIFICATE-----)")]
    NoCertificate,
    #[error("key of the serving certificate is no PEM private key")]
    NoKey,
    #[error("serving certificate and key can't be used together")]
    Pair(#[source] rustls::Error),
    #[error("failed to set up TLS")]
    Tls(#[source] rustls::Error),
    #[error("failed to make a self-signed certificate")]
    SelfSigned(#[from] rcgen::Error),
}

/// Upstream: a certificate that signs itself is good for these names where nobody says better ones.
pub const LOCAL_NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

/// Certificates of ours that end sooner than this are made anew.
const RENEW_BEFORE_SECONDS: i64 = 30 * 24 * 3600;

/// Where the certificate comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Certificate {
    Files {
        certificate: PathBuf,
        key: PathBuf,
    },
    /// As PEM.
    Given {
        certificate: String,
        key: String,
    },
    /// Taken from here (by the component's name, `.crt` and `.key`). If there is none, one that signs itself is made for
    /// these names and addresses, and left here.
    Directory {
        directory: PathBuf,
        names: Vec<String>,
    },
    /// Made now, gone with the process.
    Temporary,
}

/// TLS 1.2 or later, and these protocols above it; client certificates are asked for if there is an
/// authority for them, and not required. Whether one is good is for `reviews::CertificateIdentity` to find out.
pub fn server_config(
    certificate: &Certificate,
    name: &str,
    clients: Option<&ClientAuthority>,
    protocols: &[&str],
    now: Timestamp,
) -> Result<ServerConfig, CertificateError> {
    let (pem, key) = pair(certificate, name, now)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let chain = chain
        .ok()
        .filter(|c| !c.is_empty())
        .ok_or(CertificateError::NoCertificate)?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| CertificateError::NoKey)?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(CertificateError::Tls)?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(clients) => builder.with_client_cert_verifier(clients.in_handshake()),
    };
    let config = builder.with_single_cert(chain, key);
    let mut config = config.map_err(CertificateError::Pair)?;
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    Ok(config)
}

/// Certificate and key, as PEM.
fn pair(certificate: &Certificate, name: &str, now: Timestamp) -> Result<(String, String), CertificateError> {
    match certificate {
        Certificate::Files { certificate, key } => Ok((read(certificate)?, read(key)?)),
        Certificate::Given { certificate, key } => Ok((certificate.clone(), key.clone())),
        Certificate::Temporary => self_signed(&LOCAL_NAMES.map(str::to_string), now),
        Certificate::Directory { directory, names } => {
            let (certificate, key) = (
                directory.join(format!("{name}.crt")),
                directory.join(format!("{name}.key")),
            );
            if certificate.exists() && key.exists() {
                let found = (read(&certificate)?, read(&key)?);
                if !is_stale(&found, names, now) {
                    return Ok(found);
                }
                tracing::info!(path = %certificate.display(), "replacing the self-signed serving certificate");
            }
            let made = self_signed(names, now)?;
            std::fs::create_dir_all(directory).map_err(|source| CertificateError::Write {
                path: directory.clone(),
                source,
            })?;
            write(&key, &made.1, 0o600)?;
            write(&certificate, &made.0, 0o644)?;
            Ok(made)
        }
    }
}

/// Whether a certificate is one that we made and that no longer does: for other names, without its key, not valid now or
/// soon no longer. What others put there is theirs to renew.
fn is_stale((pem, key): &(String, String), names: &[String], now: Timestamp) -> bool {
    let Ok(content) = CertificateContent::from_pem(pem) else {
        return false;
    };
    let name = content.subject.common_name();
    let is_ours = name
        .rsplit_once('@')
        .is_some_and(|(_, made)| made.parse::<i64>().is_ok());
    if !(is_ours && content.is_self_issued) {
        return false;
    }
    let Ok(key) = KeyPair::from_pem(key) else {
        return true;
    };
    let (addresses, hosts): (Vec<_>, Vec<_>) = names.iter().partition(|name| name.parse::<IpAddr>().is_ok());
    let addresses: BTreeSet<IpAddr> = addresses.iter().filter_map(|ip| ip.parse().ok()).collect();
    let has = &content.alternative_names;
    let wanted: BTreeSet<&str> = hosts.iter().map(|host| host.as_str()).collect();
    wanted != has.dns_names.iter().map(String::as_str).collect()
        || addresses != has.addresses.iter().copied().collect()
        || content.public_key != rcgen::PublicKeyData::subject_public_key_info(&key)
        || !content.valid.contains(&now.as_second())
        || *content.valid.end() < now.as_second().saturating_add(RENEW_BEFORE_SECONDS)
}

fn read(path: &Path) -> Result<String, CertificateError> {
    std::fs::read_to_string(path).map_err(|source| CertificateError::Read {
        path: path.to_path_buf(),
        source,
    })
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), CertificateError> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|source| CertificateError::Write {
        path: path.to_path_buf(),
        source,
    })
}

fn self_signed(names: &[String], now: Timestamp) -> Result<(String, String), CertificateError> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(names.to_vec())?;
    let mut name = DistinguishedName::new();
    let host = names.first().map_or(LOCAL_NAMES[0], String::as_str);
    name.push(DnType::CommonName, format!("{host}@{}", now.as_second()));
    params.distinguished_name = name;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let today = now.to_zoned(TimeZone::UTC);
    let day = |years: i16, back: u8| {
        // Every month has these days.
        let day = (today.day() as u8).min(28).saturating_sub(back).max(1);
        rcgen::date_time_ymd(i32::from(today.year() + years), today.month() as u8, day)
    };
    params.not_before = day(0, 1);
    params.not_after = day(1, 0);
    let certificate = params.self_signed(&key)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_keeps_what_was_made() {
        let now: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        let directory = std::env::temp_dir().join(format!("orlop-serving-{}", std::process::id()));
        let at = Certificate::Directory {
            directory: directory.clone(),
            names: vec!["n1".to_string(), "10.0.0.1".to_string()],
        };
        let first = pair(&at, "it", now).unwrap();
        assert_eq!(pair(&at, "it", now).unwrap(), first);
        let config = |certificate: &Certificate, clients| server_config(certificate, "it", clients, &["h2"], now);
        let clients = ClientAuthority::from_pem(&first.0).unwrap();
        assert!(config(&at, Some(&clients)).is_ok());
        // Made anew where it no longer does: other names, a clock that was ahead, about to end, another key.
        let renamed = Certificate::Directory {
            directory: directory.clone(),
            names: vec!["n2".to_string()],
        };
        let second = pair(&renamed, "it", now).unwrap();
        assert_ne!(second, first);
        let day = |text: &str| text.parse::<Timestamp>().unwrap();
        let third = pair(&renamed, "it", day("2026-10-15T12:00:00Z")).unwrap();
        assert_ne!(third, second);
        assert_eq!(pair(&renamed, "it", day("2026-10-16T12:00:00Z")).unwrap(), third);
        let fourth = pair(&renamed, "it", day("2027-10-01T12:00:00Z")).unwrap();
        assert_ne!(fourth, third);
        std::fs::write(directory.join("it.key"), &first.1).unwrap();
        let fifth = pair(&renamed, "it", day("2027-10-01T12:00:00Z")).unwrap();
        assert!(fifth.1 != first.1 && fifth.0 != fourth.0);
        // What others put there stays.
        let own = rcgen::generate_simple_self_signed(vec!["x".to_string()]).unwrap();
        std::fs::write(directory.join("it.crt"), own.cert.pem()).unwrap();
        std::fs::write(directory.join("it.key"), own.signing_key.serialize_pem()).unwrap();
        assert_eq!(pair(&renamed, "it", now).unwrap().0, own.cert.pem());
        std::fs::remove_dir_all(&directory).unwrap();
        assert_ne!(pair(&Certificate::Temporary, "it", now).unwrap(), first);
        let given = Certificate::Given {
            certificate: first.0.clone(),
            key: "x".into(),
        };
        assert_eq!(
            config(&given, None).unwrap_err().to_string(),
            "key of the serving certificate is no PEM private key"
        );
        let missing = Certificate::Files {
            certificate: directory.join("a"),
            key: directory.join("b"),
        };
        let error = config(&missing, None).unwrap_err().to_string();
        assert_eq!(error, format!("failed to read {}", directory.join("a").display()));
    }
}

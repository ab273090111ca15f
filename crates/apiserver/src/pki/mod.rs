//! The cluster's keys and certificates: an authority of its own, the server's certificate, the key that signs service
//! account tokens, and the administrator's credentials. Files carry the names kubeadm gives them, so that existing
//! tools find them. All keys are ECDSA P-256: made in about a millisecond, hence before anyone notices.
//!
//! Leaf certificates are renewed when the server starts, if they run out within 30 days or no longer fit.

mod certificate;
mod der;
mod files;
mod request;
mod tls;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use orlop_x509::{AuthorityError, CertificateContent, ClientAuthority};
use rcgen::KeyPair;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate};

pub use certificate::{Purpose, San, Subject};
pub use der::EncodingError;
use files::Directory;
pub use orlop_x509::{Attribute, COMMON_NAME, CertificateRequest, ORGANIZATION};
pub use request::SignRequestError;
pub use tls::TlsOptions;

const AUTHORITY_VALIDITY: Duration = Duration::from_secs(3650 * 24 * 3600);
const LEAF_VALIDITY: Duration = Duration::from_secs(365 * 24 * 3600);
const RENEW_BEFORE: Duration = Duration::from_secs(30 * 24 * 3600);

/// The user that the API server is to kubelets.
pub const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";

/// Names the API server answers to in any cluster.
const SERVER_NAMES: &[&str] = &[
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "localhost",
    "127.0.0.1",
    "::1",
];

#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("cannot access {path}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{0} is not a readable certificate or key; restore it, or remove the pki directory to start afresh")]
    Unreadable(PathBuf),
    #[error("{missing} is missing although {present} exists; restore it, or remove both to start afresh")]
    Incomplete { missing: PathBuf, present: PathBuf },
    #[error("the authority in {0} has expired; remove the pki directory to make a new one")]
    Expired(PathBuf),
    #[error(
        "the authority in {0} is not valid yet; check the clock of this machine, or remove the pki directory to make a new one"
    )]
    NotYetValid(PathBuf),
    #[error("the certificate in {0} is not that of the key beside it, or not that of an authority")]
    KeyMismatch(PathBuf),
    #[error("keys other than ECDSA P-256 and RSA are not supported for signing certificates")]
    UnsupportedKey,
    #[error("the signing key of service accounts must be ECDSA P-256")]
    ServiceAccountKey,
    #[error("cannot encode a certificate")]
    Encoding(#[from] EncodingError),
    #[error("cannot use a key")]
    Key(#[source] rcgen::Error),
    #[error("cannot set up TLS")]
    Tls(#[source] rustls::Error),
    #[error("cannot set up the verification of client certificates")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
    #[error(transparent)]
    Clients(#[from] AuthorityError),
    #[error("failed to get random numbers from the operating system")]
    Random,
}

impl PkiError {
    fn io(path: &Path, source: std::io::Error) -> PkiError {
        PkiError::Io {
            path: path.into(),
            source,
        }
    }
}

/// A certificate and its private key, both in PEM.
#[derive(Clone)]
pub struct Credential {
    pub certificate: String,
    pub key: String,
}

/// A certificate authority.
pub struct Authority {
    /// In PEM.
    pub certificate: String,
    key: KeyPair,
    facts: Facts,
}

pub struct Pki {
    pub ca: Authority,
    /// In PEM: who vouches for clients, and for the serving certificate. The cluster's authority is among them.
    pub client_authorities: String,
    pub server_authorities: String,
    /// Signs the certificate with which the API server presents itself to extension API servers.
    pub front_proxy_ca: Authority,
    pub front_proxy_client: Credential,
    pub apiserver: Credential,
    /// Further certificates to serve with, each with the names for which it is taken (none: its own).
    pub named_serving: Vec<(Credential, Vec<String>)>,
    /// In PEM: of whom kubelets must have their certificates. None: see `connect::transport`.
    pub kubelet_authorities: Option<String>,
    /// With which the API server presents itself to kubelets.
    pub kubelet_client: Credential,
    pub admin: Credential,
    /// Signs service account tokens; PKCS#8 in PEM.
    pub service_account_key: String,
    /// SubjectPublicKeyInfo in PEM.
    pub service_account_public_key: String,
}

impl Pki {
    /// Reads what the directory has and makes what it lacks. `sans` are the names and addresses of this server beyond
    /// those every API server has: first service address, bind address, host name.
    pub fn load_or_create(dir: &Path, sans: &[String], now: Timestamp) -> Result<Pki, PkiError> {
        let dir = Directory::open(dir)?;
        let ca = Authority::load_or_create(&dir, "ca", "kubernetes", now)?;
        let front_proxy_ca = Authority::load_or_create(&dir, "front-proxy-ca", "front-proxy-ca", now)?;

        let names: BTreeSet<San> = SERVER_NAMES
            .iter()
            .copied()
            .chain(sans.iter().map(String::as_str))
            .map(San::parse)
            .collect();
        let names: Vec<San> = names.into_iter().collect();
        let server = Leaf {
            name: "apiserver",
            purpose: Purpose::Server,
            subject: Subject {
                common_name: "kube-apiserver",
                organizations: &[],
            },
            sans: &names,
        };
        let admin = Leaf::client("admin", "kubernetes-admin", &["system:masters"]);
        // What it may do there stands in the default policy: system:kubelet-api-admin.
        let kubelet_client = Leaf::client("apiserver-kubelet-client", KUBELET_CLIENT, &[]);
        let front_proxy = Leaf::client("front-proxy-client", "front-proxy-client", &[]);

        let (service_account_key, service_account_public_key) = service_account_key(&dir)?;
        let pki = Pki {
            apiserver: server.load_or_issue(&dir, &ca, now)?,
            kubelet_client: kubelet_client.load_or_issue(&dir, &ca, now)?,
            admin: admin.load_or_issue(&dir, &ca, now)?,
            front_proxy_client: front_proxy.load_or_issue(&dir, &front_proxy_ca, now)?,
            named_serving: vec![],
            kubelet_authorities: None,
            client_authorities: ca.certificate.clone(),
            server_authorities: ca.certificate.clone(),
            ca,
            front_proxy_ca,
            service_account_key,
            service_account_public_key,
        };
        dir.sync()?;
        Ok(pki)
    }

    /// A client certificate that makes its holder `user` in `groups`.
    pub fn issue_client(
        &self,
        user: &str,
        groups: &[&str],
        validity: Duration,
        now: Timestamp,
    ) -> Result<Credential, PkiError> {
        let subject = Subject {
            common_name: user,
            organizations: groups,
        };
        self.ca.issue(Purpose::Client, subject, &[], validity, now)
    }

    /// A serving certificate, as kubelets need one.
    pub fn issue_server(
        &self,
        subject: Subject<'_>,
        sans: &[San],
        validity: Duration,
        now: Timestamp,
    ) -> Result<Credential, PkiError> {
        self.ca.issue(Purpose::Server, subject, sans, validity, now)
    }

    /// The administrator's kubeconfig, complete in itself.
    pub fn kubeconfig(&self, server_url: &str, cluster_name: &str) -> String {
        self.kubeconfig_for(server_url, cluster_name, "kubernetes-admin", &self.admin)
    }

    /// A kubeconfig for any client that holds a certificate.
    pub fn kubeconfig_for(&self, server_url: &str, cluster_name: &str, user: &str, credential: &Credential) -> String {
        // JSON strings are YAML strings; whatever is in the names stays inside the quotes.
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let encoded = |pem: &str| BASE64_STANDARD.encode(pem);
        let (cluster, context) = (quoted(cluster_name), quoted(&format!("{user}@{cluster_name}")));
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: {cluster}\n  cluster:\n    \
             certificate-authority-data: {ca}\n    server: {server}\ncontexts:\n- name: {context}\n  context:\n    \
             cluster: {cluster}\n    user: {user}\ncurrent-context: {context}\npreferences: {{}}\nusers:\n\
             - name: {user}\n  user:\n    client-certificate-data: {certificate}\n    client-key-data: {key}\n",
            ca = encoded(&self.server_authorities),
            server = quoted(server_url),
            user = quoted(user),
            certificate = encoded(&credential.certificate),
            key = encoded(&credential.key),
        )
    }

    /// Who vouches for clients that show a certificate.
    pub fn client_authority(&self) -> Result<ClientAuthority, PkiError> {
        Ok(ClientAuthority::from_pem(&self.client_authorities)?)
    }

    /// How the server speaks TLS: 1.2 or later, HTTP/2 preferred, client certificates asked for but not required. The
    /// handshake takes any; the authenticator looks at them.
    pub fn server_tls_config(
        &self,
        options: &TlsOptions,
        clients: &ClientAuthority,
    ) -> Result<Arc<rustls::ServerConfig>, PkiError> {
        tls::server_config(self, options, clients)
    }
}

impl Authority {
    /// One whose files are kept by others.
    pub fn from_pem(certificate: &str, key: &str) -> Option<Authority> {
        let authority = Authority {
            certificate: certificate.to_string(),
            key: KeyPair::from_pem(key).ok()?,
            facts: Facts::of(certificate)?,
        };
        authority.is_whole().then_some(authority)
    }

    /// The private key, in PEM.
    pub fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }

    /// Whether the key is that of the certificate, and the certificate that of an authority.
    fn is_whole(&self) -> bool {
        self.facts.is_authority && self.facts.public_key_bits == rcgen::PublicKeyData::der_bytes(&self.key)
    }

    fn issuer(&self) -> certificate::Issuer<'_> {
        certificate::Issuer {
            key: &self.key,
            name: self.facts.subject.clone(),
            key_id: self.facts.key_id.clone(),
        }
    }

    fn load_or_create(dir: &Directory, name: &str, common_name: &str, now: Timestamp) -> Result<Authority, PkiError> {
        let (crt, key) = (format!("{name}.crt"), format!("{name}.key"));
        match (dir.read(&crt)?, dir.read(&key)?) {
            (Some(certificate), Some(pem)) => {
                let path = dir.path_of(&crt);
                let facts = Facts::of(&certificate).ok_or_else(|| PkiError::Unreadable(path.clone()))?;
                if facts.not_after <= now.as_second() {
                    return Err(PkiError::Expired(path));
                }
                if facts.not_before > now.as_second() {
                    return Err(PkiError::NotYetValid(path));
                }
                let key = KeyPair::from_pem(&pem).map_err(|_| PkiError::Unreadable(dir.path_of(&key)))?;
                let authority = Authority {
                    certificate,
                    key,
                    facts,
                };
                match authority.is_whole() {
                    true => Ok(authority),
                    false => Err(PkiError::KeyMismatch(path)),
                }
            }
            (Some(_), None) => Err(PkiError::Incomplete {
                missing: dir.path_of(&key),
                present: dir.path_of(&crt),
            }),
            // The key is written first, so it may be there alone after a crash: then it has signed nothing yet.
            (None, existing) => {
                let pair = match existing {
                    Some(pem) => KeyPair::from_pem(&pem).map_err(|_| PkiError::Unreadable(dir.path_of(&key)))?,
                    None => new_key(dir, &key)?,
                };
                let subject = Subject {
                    common_name,
                    organizations: &[],
                };
                let request = certificate::request_for(Purpose::Authority, subject, &pair, AUTHORITY_VALIDITY);
                let certificate = certificate::self_signed(&request, &pair, now)?;
                dir.write(&crt, &certificate)?;
                let facts = Facts::of(&certificate).expect("a certificate just made can be read");
                Ok(Authority {
                    certificate,
                    key: pair,
                    facts,
                })
            }
        }
    }

    fn issue(
        &self,
        purpose: Purpose,
        subject: Subject<'_>,
        sans: &[San],
        validity: Duration,
        now: Timestamp,
    ) -> Result<Credential, PkiError> {
        let pair = KeyPair::generate().map_err(PkiError::Key)?;
        // Nothing outlives the authority that vouches for it.
        let left = Duration::from_secs((self.facts.not_after - now.as_second()).max(0) as u64);
        let mut request = certificate::request_for(purpose, subject, &pair, validity.min(left));
        request.sans = sans;
        Ok(Credential {
            certificate: certificate::sign(&request, &self.issuer(), now)?,
            key: pair.serialize_pem(),
        })
    }
}

fn new_key(dir: &Directory, file: &str) -> Result<KeyPair, PkiError> {
    let pair = KeyPair::generate().map_err(PkiError::Key)?;
    dir.write(file, &pair.serialize_pem())?;
    Ok(pair)
}

/// A certificate that is kept in a file and renewed as needed.
struct Leaf<'a> {
    name: &'a str,
    purpose: Purpose,
    subject: Subject<'a>,
    sans: &'a [San],
}

impl<'a> Leaf<'a> {
    fn client(name: &'a str, common_name: &'a str, organizations: &'a [&'a str]) -> Leaf<'a> {
        Leaf {
            name,
            purpose: Purpose::Client,
            subject: Subject {
                common_name,
                organizations,
            },
            sans: &[],
        }
    }

    fn load_or_issue(&self, dir: &Directory, authority: &Authority, now: Timestamp) -> Result<Credential, PkiError> {
        let (crt, key) = (format!("{}.crt", self.name), format!("{}.key", self.name));
        if let (Some(certificate), Some(pem)) = (dir.read(&crt)?, dir.read(&key)?) {
            let credential = Credential { certificate, key: pem };
            if self.fits(&credential, authority, now) {
                return Ok(credential);
            }
        }
        let credential = authority.issue(self.purpose, self.subject.clone(), self.sans, LEAF_VALIDITY, now)?;
        dir.write(&key, &credential.key)?;
        dir.write(&crt, &credential.certificate)?;
        Ok(credential)
    }

    /// Whether a certificate found on disk can stay: signed by our authority, for this holder, key, purpose and these
    /// names, valid now and not about to run out.
    fn fits(&self, credential: &Credential, authority: &Authority, now: Timestamp) -> bool {
        let (Some(facts), Ok(pair)) = (Facts::of(&credential.certificate), KeyPair::from_pem(&credential.key)) else {
            return false;
        };
        let wanted = certificate::name_der(&self.subject).ok();
        facts.authority_key_id == authority.facts.key_id
            && is_signed_by(&credential.certificate, authority)
            && Some(&facts.subject) == wanted.as_ref()
            && !facts.is_authority
            && facts.purposes == self.purpose.extended_usages()
            && facts.not_before <= now.as_second()
            && facts.sans.iter().eq(self.sans.iter())
            && facts.not_after > now.as_second() + RENEW_BEFORE.as_secs() as i64
            && facts.public_key == rcgen::PublicKeyData::subject_public_key_info(&pair)
    }
}

/// Reads or makes the key that signs service account tokens: private and public half, in PEM.
fn service_account_key(dir: &Directory) -> Result<(String, String), PkiError> {
    let pair = match dir.read("sa.key")? {
        Some(pem) => KeyPair::from_pem(&pem).map_err(|_| PkiError::Unreadable(dir.path_of("sa.key")))?,
        None => new_key(dir, "sa.key")?,
    };
    if !pair.is_compatible(&rcgen::PKCS_ECDSA_P256_SHA256) {
        return Err(PkiError::ServiceAccountKey);
    }
    let public = pair.public_key_pem();
    if dir.read("sa.pub")?.as_deref() != Some(public.as_str()) {
        dir.write("sa.pub", &public)?;
    }
    Ok((pair.serialize_pem(), public))
}

/// What we want to know of a certificate on disk.
struct Facts {
    /// In DER, as a name to put into the certificates it signs.
    subject: Vec<u8>,
    public_key: Vec<u8>,
    /// Without its algorithm, for which there is more than one way to write it.
    public_key_bits: Vec<u8>,
    key_id: Vec<u8>,
    authority_key_id: Vec<u8>,
    /// Sorted.
    sans: BTreeSet<San>,
    is_authority: bool,
    /// Extended key usages, with dots.
    purposes: BTreeSet<String>,
    /// Seconds since the epoch.
    not_before: i64,
    not_after: i64,
}

/// Whether the authority's key signed it: a key identifier is only a claim.
fn is_signed_by(pem: &str, authority: &Authority) -> bool {
    let block = |pem: &str| x509_parser::pem::parse_x509_pem(pem.as_bytes()).map(|(_, block)| block);
    let (Ok(own), Ok(theirs)) = (block(pem), block(&authority.certificate)) else {
        return false;
    };
    let (Ok((_, own)), Ok((_, theirs))) = (
        X509Certificate::from_der(&own.contents),
        X509Certificate::from_der(&theirs.contents),
    ) else {
        return false;
    };
    own.verify_signature(Some(theirs.public_key())).is_ok()
}

impl Facts {
    fn of(pem: &str) -> Option<Facts> {
        let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
        let (_, certificate) = X509Certificate::from_der(&pem.contents).ok()?;
        let mut facts = Facts {
            subject: certificate.subject().as_raw().to_vec(),
            public_key: certificate.public_key().raw.to_vec(),
            public_key_bits: certificate.public_key().subject_public_key.data.to_vec(),
            key_id: Vec::new(),
            authority_key_id: Vec::new(),
            sans: BTreeSet::new(),
            is_authority: certificate.is_ca(),
            purposes: CertificateContent::from_der(&pem.contents)
                .map(|content| content.extended_key_usages)
                .unwrap_or_default(),
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
        };
        for extension in certificate.extensions() {
            match extension.parsed_extension() {
                ParsedExtension::SubjectKeyIdentifier(id) => facts.key_id = id.0.to_vec(),
                ParsedExtension::AuthorityKeyIdentifier(id) => {
                    facts.authority_key_id = id.key_identifier.as_ref().map(|i| i.0.to_vec()).unwrap_or_default()
                }
                ParsedExtension::SubjectAlternativeName(names) => {
                    facts.sans = names.general_names.iter().filter_map(san).collect()
                }
                _ => {}
            }
        }
        Some(facts)
    }
}

fn san(name: &GeneralName<'_>) -> Option<San> {
    match name {
        GeneralName::DNSName(name) => Some(San::Dns(name.to_string())),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => Some(San::Ip(IpAddr::from(<[u8; 4]>::try_from(*bytes).ok()?))),
            16 => Some(San::Ip(IpAddr::from(<[u8; 16]>::try_from(*bytes).ok()?))),
            _ => None,
        },
        _ => None,
    }
}

pub(crate) fn sha256(data: &[u8]) -> [u8; 32] {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, data);
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests;

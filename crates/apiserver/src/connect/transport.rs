//! Connections to kubelets and to what is behind the proxies.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use orlop_api::Status;
use orlop_streaming::Pipe;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::extension::BackendError;
use super::target::{ConnectTarget, is_proxyable};
use crate::aggregator::service::Trusted;
use crate::pki::{Pki, PkiError};

/// Why a proxy does not go to an address.
pub(super) const NOT_ALLOWED: &str = "address not allowed";
const CONNECT_WAIT: Duration = Duration::from_secs(10);
const HANDSHAKE_WAIT: Duration = Duration::from_secs(10);
/// Connections that have left HTTP and are passed through.
const UPGRADED_MAX: usize = 10_000;

/// Whom a connection trusts, and to whom it shows our certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// A kubelet: a certificate of the cluster's authority must be right; others are taken, as Kubernetes does when
    /// it is given no authority for kubelets, since they make their own by default. If it is, all must have one of that.
    Kubelet,
    /// A kubelet whose certificate the client said not to look at.
    Anyone,
    /// What runs in a pod, or beside the kubelet: it does not learn who we are.
    Proxied,
}

/// Nodes whose kubelets are in this process and have no port: simulated ones.
pub trait NodesInside: Send + Sync {
    /// A connection to the node's kubelet, if it is one of these. It speaks plain HTTP and takes us for what we are.
    fn dial(&self, node: &str) -> Option<Box<dyn Pipe>>;
}

/// The way to the nodes.
pub struct Nodes {
    inside: OnceLock<Arc<dyn NodesInside>>,
    kubelet: Arc<ClientConfig>,
    anyone: Arc<ClientConfig>,
    proxied: Arc<ClientConfig>,
    upgraded: Arc<Semaphore>,
}

/// Why a backend was not reached, in the words Kubernetes' users know.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unreached(pub String);

impl From<hyper::Error> for Unreached {
    fn from(error: hyper::Error) -> Self {
        if error.is_incomplete_message() {
            Unreached("EOF".into())
        } else {
            Unreached(error.to_string())
        }
    }
}

impl Nodes {
    pub fn new(pki: &Pki) -> Result<Nodes, PkiError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let authority = CertificateDer::from_pem_slice(pki.ca.certificate.as_bytes()).map_err(pem_error)?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone()).map_err(PkiError::Tls)?;
        let strict = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let strict = strict.build().map_err(PkiError::Verifier)?;
        let verifier =
            |own: Option<(CertificateDer<'static>, Arc<WebPkiServerVerifier>)>| -> Arc<dyn ServerCertVerifier> {
                Arc::new(Verifier {
                    own,
                    provider: provider.clone(),
                })
            };
        let kubelets: Arc<dyn ServerCertVerifier> = match &pki.kubelet_authorities {
            None => verifier(Some((authority, strict))),
            // Kubelets of this process's own have certificates of the cluster's authority.
            Some(given) => {
                let mut roots = RootCertStore::empty();
                roots.add(authority).map_err(PkiError::Tls)?;
                for certificate in CertificateDer::pem_slice_iter(given.as_bytes()) {
                    roots.add(certificate.map_err(pem_error)?).map_err(PkiError::Tls)?;
                }
                let strict = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone());
                strict.build().map_err(PkiError::Verifier)?
            }
        };
        let builder = |verifier: Arc<dyn ServerCertVerifier>| {
            let builder = ClientConfig::builder_with_provider(provider.clone());
            let builder = builder.with_safe_default_protocol_versions().map_err(PkiError::Tls)?;
            Ok::<_, PkiError>(builder.dangerous().with_custom_certificate_verifier(verifier))
        };
        let with_certificate = |verifier| {
            let credential = &pki.kubelet_client;
            let chain = CertificateDer::pem_slice_iter(credential.certificate.as_bytes());
            let chain: Vec<_> = chain.collect::<Result<_, _>>().map_err(pem_error)?;
            let key = PrivateKeyDer::from_pem_slice(credential.key.as_bytes()).map_err(pem_error)?;
            let config = builder(verifier)?
                .with_client_auth_cert(chain, key)
                .map_err(PkiError::Tls)?;
            Ok::<_, PkiError>(Arc::new(config))
        };
        Ok(Nodes {
            inside: OnceLock::new(),
            kubelet: with_certificate(kubelets)?,
            anyone: with_certificate(verifier(None))?,
            proxied: Arc::new(builder(verifier(None))?.with_no_client_auth()),
            upgraded: Arc::new(Semaphore::new(UPGRADED_MAX)),
        })
    }

    /// Says which nodes are in this process; once.
    pub fn set_inside(&self, nodes: Arc<dyn NodesInside>) {
        let _ = self.inside.set(nodes);
    }

    /// A place among the connections that are passed through.
    pub(super) fn permit(&self) -> Result<OwnedSemaphorePermit, Status> {
        let permit = self.upgraded.clone().try_acquire_owned();
        permit.map_err(|_| Status::too_many_requests("Too many requests, please try again later.", 1))
    }

    pub(super) async fn dial(&self, place: &ConnectTarget, trust: Trust) -> Result<Box<dyn Pipe>, Unreached> {
        if let (Some(node), Some(nodes)) = (&place.node, self.inside.get())
            && let Some(io) = nodes.dial(node)
        {
            return Ok(io);
        }
        let (host, stream) = connect(place).await?;
        let _ = stream.set_nodelay(true);
        if !place.https {
            return Ok(Box::new(stream));
        }
        let config = match trust {
            Trust::Kubelet => &self.kubelet,
            Trust::Anyone => &self.anyone,
            Trust::Proxied => &self.proxied,
        };
        let name = ServerName::try_from(host.clone()).map_err(|error| Unreached(error.to_string()))?;
        Ok(Box::new(handshake(config.clone(), name, stream).await?))
    }
}

pub(super) async fn handshake(
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>, Unreached> {
    let handshake = TlsConnector::from(config).connect(name, stream);
    match tokio::time::timeout(HANDSHAKE_WAIT, handshake).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(Unreached(tls_words(&error))),
        Err(_) => Err(Unreached("net/http: TLS handshake timeout".into())),
    }
}

/// The configuration of a client with a certificate.
pub(super) fn client_config(
    verifier: Arc<dyn ServerCertVerifier>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ClientConfig, rustls::Error> {
    ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_auth_cert(chain, key)
}

/// Who may answer for a service: whoever has a certificate of one of the authorities, or anybody.
pub(super) fn extension_verifier(trust: &Trusted) -> Result<Arc<dyn ServerCertVerifier>, BackendError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    if trust.insecure {
        return Ok(Arc::new(Verifier { own: None, provider }));
    }
    let mut roots = RootCertStore::empty();
    let certificates: Vec<CertificateDer<'static>> = match trust.ca_bundle.is_empty() {
        true => rustls_native_certs::load_native_certs().certs,
        false => CertificateDer::pem_slice_iter(&trust.ca_bundle)
            .filter_map(Result::ok)
            .collect(),
    };
    roots.add_parsable_certificates(certificates.iter().cloned());
    if roots.is_empty() {
        return Err(BackendError::CaBundle);
    }
    let strict = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
    let strict = strict.build().map_err(|error| BackendError::Tls(error.to_string()))?;
    Ok(strict)
}

pub(super) fn pem_error(error: rustls_pki_types::pem::Error) -> PkiError {
    PkiError::Tls(rustls::Error::General(error.to_string()))
}

/// Connects to the first host that can be resolved, at exactly the addresses that were looked at.
pub(super) async fn connect(place: &ConnectTarget) -> Result<(String, TcpStream), Unreached> {
    let mut unknown = None;
    for host in &place.hosts {
        let addresses: Vec<SocketAddr> = match tokio::net::lookup_host((host.as_str(), place.port)).await {
            Ok(addresses) => addresses.collect(),
            Err(_) => vec![],
        };
        let Some(first) = addresses.first() else {
            unknown.get_or_insert_with(|| Unreached(format!("dial tcp: lookup {host}: no such host")));
            continue;
        };
        if place.only_proxyable && !addresses.iter().all(|address| is_proxyable(address.ip())) {
            return Err(Unreached(NOT_ALLOWED.into()));
        }
        let connecting = TcpStream::connect(addresses.as_slice());
        return match tokio::time::timeout(CONNECT_WAIT, connecting).await {
            Ok(Ok(stream)) => Ok((host.clone(), stream)),
            Ok(Err(error)) => Err(Unreached(format!("dial tcp {first}: {}", connect_error_text(&error)))),
            Err(_) => Err(Unreached(format!("dial tcp {first}: i/o timeout"))),
        };
    }
    Err(unknown.unwrap_or_else(|| Unreached("dial tcp: no address".into())))
}

/// A failed connection as Go puts it, which is what people search for.
pub(crate) fn connect_error_text(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connect: connection refused".into(),
        io::ErrorKind::ConnectionReset => "connect: connection reset by peer".into(),
        io::ErrorKind::HostUnreachable => "connect: no route to host".into(),
        io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".into(),
        io::ErrorKind::TimedOut => "connect: connection timed out".into(),
        _ => format!("connect: {error}"),
    }
}

fn tls_words(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidCertificate(why)) => {
            format!("tls: failed to verify certificate: x509: {}", certificate_words(why))
        }
        Some(other) => format!("tls: {other}"),
        None => error.to_string(),
    }
}

fn certificate_words(why: &CertificateError) -> String {
    match why {
        CertificateError::UnknownIssuer => "certificate signed by unknown authority".into(),
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => "certificate has expired or is not yet valid".into(),
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names: Vec<&str> = presented
                .iter()
                .map(|name| name.split('"').nth(1).unwrap_or(name))
                .collect();
            format!(
                "certificate is valid for {}, not {}",
                names.join(", "),
                expected.to_str()
            )
        }
        other => format!("{other:?}"),
    }
}

/// Checks certificates of one authority, if there is one, and lets others pass.
#[derive(Debug)]
struct Verifier {
    own: Option<(CertificateDer<'static>, Arc<WebPkiServerVerifier>)>,
    provider: Arc<CryptoProvider>,
}

/// Whether a certificate says that it is the authority's. If it is not true, verification finds out.
fn claims_issuer(certificate: &[u8], authority: &[u8]) -> bool {
    let (Ok((_, certificate)), Ok((_, authority))) = (
        X509Certificate::from_der(certificate),
        X509Certificate::from_der(authority),
    ) else {
        return false;
    };
    certificate.issuer().as_raw() == authority.subject().as_raw()
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match &self.own {
            Some((authority, strict)) if claims_issuer(end_entity, authority) => {
                strict.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
            }
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            certificate,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            certificate,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

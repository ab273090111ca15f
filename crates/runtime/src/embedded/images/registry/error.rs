use http::{Method, StatusCode};

use super::super::digest::Digest;
use super::super::unpack::UnpackError;

/// Why a registry did not give what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("failed to do request: {method} {url:?}")]
    Request {
        method: Method,
        url: String,
        #[source]
        source: hyper_util::client::legacy::Error,
    },
    #[error("failed to do request: {method} {url:?}: i/o timeout after {seconds} s")]
    Timeout { method: Method, url: String, seconds: f32 },
    #[error("unexpected status from {method} request to {url}: {status}{}", server_message(.detail))]
    Status {
        method: Method,
        url: String,
        status: StatusCode,
        detail: Option<String>,
        /// `Retry-After`, in seconds.
        retry_after: Option<u64>,
    },
    #[error("{0}: not found")]
    NotFound(String),
    #[error(
        "pull access denied, repository does not exist or may require authorization: {status}{}",
        server_message(.detail)
    )]
    Denied { status: StatusCode, detail: Option<String> },
    #[error("failed to authorize: failed to fetch token")]
    Token(#[source] Box<RegistryError>),
    #[error("failed to authorize: {0}")]
    Challenge(String),
    #[error("failed to do request: {method} {url:?}: stopped after {limit} redirects")]
    Redirects { method: Method, url: String, limit: usize },
    #[error("failed to do request: {method} {url:?}: invalid redirect to {location:?}")]
    Location {
        method: Method,
        url: String,
        location: String,
    },
    #[error("{what} from {url} exceeds {limit} bytes")]
    TooLarge {
        what: &'static str,
        url: String,
        limit: u64,
    },
    #[error("invalid response from {url}: {reason}")]
    Invalid { url: String, reason: String },
    #[error("{url}: connection closed after {read} of {size} bytes")]
    CutOff { url: String, read: u64, size: u64 },
    #[error("unexpected commit digest {actual}, expected {expected}: failed precondition")]
    Digest { actual: Digest, expected: Digest },
    #[error("unexpected size of {digest}: more than {size} bytes")]
    Size { digest: Digest, size: u64 },
    #[error("invalid TLS settings for {host}")]
    Tls {
        host: String,
        #[source]
        source: rustls::Error,
    },
    #[error("no CA certificates found on this machine: install ca-certificates, or name a ca_file in registries.yaml")]
    NoRoots,
    #[error("failed to store content")]
    Store(#[source] std::io::Error),
    #[error(transparent)]
    Space(UnpackError),
}

fn server_message(detail: &Option<String>) -> String {
    match detail {
        Some(detail) => format!(": server message: {detail}"),
        None => String::new(),
    }
}

impl RegistryError {
    /// Whether the same may work in a moment. Servers that are not there are left to the kubelet's back-off.
    pub fn is_transient(&self) -> bool {
        match self {
            RegistryError::Status { status, .. } => {
                status.is_server_error()
                    || *status == StatusCode::TOO_MANY_REQUESTS
                    || *status == StatusCode::REQUEST_TIMEOUT
            }
            RegistryError::CutOff { .. } | RegistryError::Timeout { .. } => true,
            RegistryError::Request { source, .. } => !source.is_connect(),
            RegistryError::Token(source) => source.is_transient(),
            _ => false,
        }
    }

    pub fn is_not_found(&self) -> bool {
        matches!(self, RegistryError::NotFound(_))
    }

    pub fn retry_after(&self) -> Option<u64> {
        match self {
            RegistryError::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

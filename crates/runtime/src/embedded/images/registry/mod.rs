//! The client of registries: the pulling half of the OCI distribution specification.
//!
//! Ours because `oci-client` brings reqwest, chrono, regex and the derive macros of oci-spec into a tree that has hyper
//! and rustls already, and knows neither mirrors nor resuming a download nor limits on what a server may send.
//!
//! A [`Session`] is one endpoint during one pull: it follows redirects, authenticates when asked to, and retries what may
//! pass. Everything that a server says is bounded: the size of each document, how long it may keep silent, how often it
//! may redirect.

mod auth;
mod download;
mod error;
mod http;
mod proxy;
mod session;
mod tls;

pub(crate) use auth::Credentials;
pub(crate) use download::{BlobSink, Download};
pub(crate) use error::RegistryError;
pub(crate) use http::Http;
pub use http::Timeouts;
pub use proxy::Proxies;
pub(crate) use session::{Resolved, Session};

//! Registries behind a proxy: `HTTPS_PROXY` and `NO_PROXY`, as containerd and curl heed them.
//!
//! Only connections over TLS go through it, in a tunnel; plain http is for registries nearby, and this machine itself is
//! never asked for through a proxy.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::Service;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Which connections go through a proxy.
#[derive(Clone)]
pub struct Proxies(Arc<Matcher>);

impl Proxies {
    /// As the environment says.
    pub fn from_env() -> Proxies {
        Proxies(Arc::new(Matcher::from_env()))
    }

    /// One for all, by its URL.
    #[cfg(test)]
    pub(crate) fn all(url: &str) -> Proxies {
        Proxies(Arc::new(Matcher::builder().https(url.to_string()).build()))
    }
}

impl Default for Proxies {
    fn default() -> Proxies {
        Proxies::from_env()
    }
}

/// Connects, through a proxy where one is to be used.
#[derive(Clone)]
pub(super) struct ProxyConnector {
    pub(super) proxies: Proxies,
    pub(super) direct: HttpConnector,
    /// For the tunnel as a whole; the connector has one for connecting.
    pub(super) timeout: Duration,
}

impl Service<Uri> for ProxyConnector {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.direct.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let proxy = match to.scheme_str() == Some("https") && !is_this_machine(&to) {
            true => self.proxies.0.intercept(&to),
            false => None,
        };
        let Some(proxy) = proxy else {
            let connecting = self.direct.call(to);
            return Box::pin(async move { connecting.await.map_err(Into::into) });
        };
        let mut tunnel = Tunnel::new(proxy.uri().clone(), self.direct.clone());
        if let Some(authorization) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(authorization.clone());
        }
        let connecting = tunnel.call(to);
        let timeout = self.timeout;
        Box::pin(async move {
            match tokio::time::timeout(timeout, connecting).await {
                Ok(connected) => connected.map_err(|e| format!("proxy {}: {e}", proxy.uri()).into()),
                Err(_) => Err(format!("proxy {}: i/o timeout", proxy.uri()).into()),
            }
        })
    }
}

fn is_this_machine(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|a| a.is_loopback())
}

//! URLs to listen on.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use anyhow::{Context, bail};

/// `http://HOST:PORT` or `https://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    pub(super) is_https: bool,
    host: String,
    port: u16,
}

impl FromStr for Url {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Url> {
        let uri: http::Uri = text.parse().context("must be a URL such as http://localhost:2379")?;
        let is_https = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            Some("unix" | "unixs") => bail!("unix sockets can't be listened on; use http://localhost:2379"),
            _ => bail!("must be a URL such as http://localhost:2379"),
        };
        if !matches!(uri.path(), "" | "/") {
            bail!("must have no path");
        }
        Ok(Url {
            is_https,
            host: uri.host().unwrap_or_default().trim_matches(['[', ']']).to_string(),
            port: uri.port_u16().context("must name a port")?,
        })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_https { "https" } else { "http" };
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.host, self.port),
            false => write!(f, "{scheme}://{}:{}", self.host, self.port),
        }
    }
}

impl Url {
    /// Where to listen. Upstream: host names other than localhost are refused, since they may mean anything.
    pub(super) async fn addresses(&self) -> anyhow::Result<Vec<SocketAddr>> {
        if self.host != "localhost" {
            let ip = self.host.parse();
            let ip = ip.with_context(|| format!("expected IP in URL for binding ({self})"))?;
            return Ok(vec![SocketAddr::new(ip, self.port)]);
        }
        let looked_up = tokio::net::lookup_host(("localhost", self.port)).await;
        let mut addresses: Vec<_> = looked_up
            .with_context(|| format!("failed to look up {self}"))?
            .collect();
        // A port that is chosen now is another one on each.
        if self.port == 0 {
            addresses.truncate(1);
        }
        addresses.dedup();
        Ok(addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn urls_say_where_to_listen() {
        for (text, addresses) in [
            ("http://127.0.0.1:2379", Some("127.0.0.1:2379")),
            ("https://[::1]:2379", Some("[::1]:2379")),
            ("http://0.0.0.0:0/", Some("0.0.0.0:0")),
            ("http://example.org:1", None),
        ] {
            let url: Url = text.parse().unwrap();
            let found = url.addresses().await.ok().map(|list| list[0].to_string());
            assert_eq!(found.as_deref(), addresses, "{text}");
        }
        for wrong in ["127.0.0.1:2379", "http://127.0.0.1", "unix:///x:1", "http://a:1/path"] {
            assert!(wrong.parse::<Url>().is_err(), "{wrong}");
        }
    }
}

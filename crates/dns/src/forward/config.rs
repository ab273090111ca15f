//! Whom to ask for names outside the cluster: the host's resolvers, stub domains, other name servers (pure).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use hickory_proto::rr::Name;
use serde::de::DeserializeOwned;

const PORT: u16 = 53;
/// More than this many are not taken. Upstream: CoreDNS, plugin/forward.
const SERVERS_MAX: usize = 15;

/// The `kube-dns` ConfigMap of kube-system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stubs {
    /// Servers of single domains.
    pub domains: Vec<(Name, Vec<SocketAddr>)>,
    /// In place of the host's resolvers; none if empty.
    pub upstream: Vec<SocketAddr>,
}

/// The name servers of a resolv.conf(5). `interface` tells the index of a network interface, for addresses such as
/// `fe80::1%eth0`.
pub fn read_resolv_conf(text: &str, interface: impl Fn(&str) -> Option<u32>) -> Vec<SocketAddr> {
    let words = text.lines().map(|line| {
        let mut words = line.split_whitespace();
        (words.next(), words.next())
    });
    let servers = words.filter_map(|words| match words {
        (Some("nameserver"), Some(server)) => server_with_zone(server, &interface),
        _ => None,
    });
    servers.take(SERVERS_MAX).collect()
}

fn server_with_zone(text: &str, interface: impl Fn(&str) -> Option<u32>) -> Option<SocketAddr> {
    let Some((address, zone)) = text.split_once('%') else {
        return server(text);
    };
    let index = zone.parse().ok().or_else(|| interface(zone))?;
    Some(SocketAddrV6::new(address.parse().ok()?, PORT, 0, index).into())
}

/// An address, with or without a port.
fn server(text: &str) -> Option<SocketAddr> {
    let alone: Result<IpAddr, _> = text.trim_matches(['[', ']']).parse();
    match alone {
        Ok(address) => Some(SocketAddr::new(address, PORT)),
        Err(_) => text.parse().ok(),
    }
}

/// What is wrong with a key of the ConfigMap.
#[derive(Debug, thiserror::Error)]
pub enum StubsError {
    #[error("{key}: invalid JSON: {error}")]
    Json {
        key: &'static str,
        error: serde_json::Error,
    },
    #[error("{key}: invalid domain name {domain:?}: {reason}")]
    Domain {
        key: &'static str,
        domain: String,
        reason: String,
    },
    #[error("{path}: invalid address {address:?}")]
    Address { path: String, address: String },
}

const STUB_DOMAINS: &str = "stubDomains";
const UPSTREAM: &str = "upstreamNameservers";

/// Reads the resolvers of the ConfigMap `kube-dns`; a key that is not there, or empty, gives none.
pub fn read_stubs(data: &BTreeMap<String, String>) -> Result<Stubs, StubsError> {
    let text = |key: &str| data.get(key).map(|text| text.trim()).filter(|text| !text.is_empty());
    let mut stubs = Stubs::default();
    if let Some(text) = text(STUB_DOMAINS) {
        let domains: BTreeMap<String, Vec<String>> = parse(STUB_DOMAINS, text)?;
        for (domain, addresses) in domains {
            let mut name = Name::from_ascii(domain.to_ascii_lowercase()).map_err(|e| StubsError::Domain {
                key: STUB_DOMAINS,
                domain: domain.clone(),
                reason: e.to_string(),
            })?;
            name.set_fqdn(true);
            let addresses = servers(&addresses, || format!("{STUB_DOMAINS}: {domain}"))?;
            stubs.domains.push((name, addresses));
        }
    }
    if let Some(text) = text(UPSTREAM) {
        let addresses: Vec<String> = parse(UPSTREAM, text)?;
        stubs.upstream = servers(&addresses, || UPSTREAM.to_string())?;
    }
    Ok(stubs)
}

fn parse<T: DeserializeOwned>(key: &'static str, text: &str) -> Result<T, StubsError> {
    serde_json::from_str(text).map_err(|error| StubsError::Json { key, error })
}

fn servers(texts: &[String], path: impl Fn() -> String) -> Result<Vec<SocketAddr>, StubsError> {
    let read = |text: &String| {
        server(text).ok_or_else(|| StubsError::Address {
            path: path(),
            address: text.clone(),
        })
    };
    texts.iter().take(SERVERS_MAX).map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf() {
        let text = "# comment\nsearch a.b\nnameserver 10.0.0.1 # x\n nameserver\t2001:db8::1\nnameserver fe80::1%eth0\n\
                    nameserver fe80::1%none\nnameserver\nnameserver bad\noptions ndots:5\n;nameserver 9.9.9.9\n";
        let servers = read_resolv_conf(text, |name| (name == "eth0").then_some(2));
        let texts: Vec<_> = servers.iter().map(|s| s.to_string()).collect();
        assert_eq!(texts, ["10.0.0.1:53", "[2001:db8::1]:53", "[fe80::1%2]:53"]);
    }

    #[test]
    fn stubs() {
        let data = |domains: &str, upstream: &str| {
            let pairs = [("stubDomains", domains), ("upstreamNameservers", upstream)];
            pairs.map(|(key, value)| (key.to_string(), value.to_string())).into()
        };
        let read = read_stubs(&data(r#"{"Acme.local": ["1.2.3.4", "[::1]:54"]}"#, r#"["8.8.8.8:53"]"#)).unwrap();
        assert_eq!(read.domains[0].0.to_string(), "acme.local.");
        assert_eq!(
            read.domains[0].1,
            ["1.2.3.4:53".parse().unwrap(), "[::1]:54".parse::<SocketAddr>().unwrap()]
        );
        assert_eq!(read.upstream, ["8.8.8.8:53".parse().unwrap()]);
        assert_eq!(read_stubs(&BTreeMap::new()).unwrap(), Stubs::default());
        let wrong = read_stubs(&data(r#"{"a": ["b"]}"#, "")).unwrap_err();
        assert_eq!(wrong.to_string(), "stubDomains: a: invalid address \"b\"");
        assert!(read_stubs(&data("", "{")).is_err());
    }
}

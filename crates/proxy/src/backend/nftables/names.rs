//! The names of a service port's chains and sets, as people know them from kube-proxy.
//!
//! Upstream: pkg/proxy/nftables (v1.36).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use aws_lc_rs::digest;

use crate::plan::{Key, Protocol};

pub(super) const TABLE: &str = "kube-proxy";

/// The kernel allows names of 255 bytes; 16 are left for prefixes such as `external-`.
const LENGTH: usize = 240;

/// What the names of a service port are made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names {
    /// `namespace/name/protocol/port`
    path: String,
    /// The same behind its hash: `ULMVA6XW-ns1/svc1/tcp/p80`.
    pub base: Arc<str>,
}

impl Names {
    pub(super) fn new(key: &Key, protocol: Protocol) -> Names {
        let path = format!("{}/{}/{}/{}", key.namespace, key.name, protocol.as_str(), key.port);
        Names {
            base: hashed(&path).into(),
            path,
        }
    }

    /// Where packets go under policy Cluster.
    pub(super) fn service(&self) -> Arc<str> {
        self.with("service")
    }

    /// Where packets go under policy Local.
    pub(super) fn local(&self) -> Arc<str> {
        self.with("local")
    }

    /// Where packets from outside the cluster come in.
    pub(super) fn external(&self) -> Arc<str> {
        self.with("external")
    }

    pub(super) fn firewall(&self) -> Arc<str> {
        self.with("firewall")
    }

    fn with(&self, prefix: &str) -> Arc<str> {
        format!("{prefix}-{}", self.base).into()
    }

    /// The chain of an endpoint and the set of clients that stay with it.
    pub(super) fn endpoint(&self, address: SocketAddr) -> (Arc<str>, Arc<str>) {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_string(),
            // Colons are not allowed in names.
            IpAddr::V6(ip) => ip.to_string().replace(':', "."),
        };
        let base = hashed(&format!("{}__{ip}/{}", self.path, address.port()));
        (format!("endpoint-{base}").into(), format!("affinity-{base}").into())
    }
}

fn hashed(path: &str) -> String {
    const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let digest = digest::digest(&digest::SHA256, path.as_bytes());
    let bits = digest.as_ref()[..5]
        .iter()
        .fold(0u64, |bits, byte| bits << 8 | u64::from(*byte));
    let mut name = String::with_capacity(9 + path.len());
    name.extend((0..8).map(|i| char::from(LETTERS[(bits >> (35 - 5 * i) & 31) as usize])));
    name.push('-');
    name.push_str(path);
    if name.len() > LENGTH {
        // Names of namespaces, services and ports are plain ASCII.
        let end = (0..=LENGTH - 3)
            .rev()
            .find(|at| name.is_char_boundary(*at))
            .unwrap_or(0);
        name.truncate(end);
        name.push_str("...");
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Family;

    fn names(namespace: &str, name: &str, port: &str) -> Names {
        let key = Key {
            family: Family::V4,
            namespace: namespace.into(),
            name: name.into(),
            port: port.into(),
        };
        Names::new(&key, Protocol::Tcp)
    }

    #[test]
    fn names_are_those_of_kube_proxy() {
        let svc1 = names("ns1", "svc1", "p80");
        assert_eq!(&*svc1.service(), "service-ULMVA6XW-ns1/svc1/tcp/p80");
        assert_eq!(
            &*names("ns2", "svc2", "p80").external(),
            "external-42NFTM6N-ns2/svc2/tcp/p80"
        );
        let svc5 = names("ns5", "svc5", "p80");
        assert_eq!(&*svc5.firewall(), "firewall-HVFWP5L3-ns5/svc5/tcp/p80");
        let (chain, set) = svc5.endpoint("10.180.0.3:80".parse().unwrap());
        assert_eq!(&*chain, "endpoint-GTK6MW7G-ns5/svc5/tcp/p80__10.180.0.3/80");
        assert_eq!(&*set, "affinity-GTK6MW7G-ns5/svc5/tcp/p80__10.180.0.3/80");
    }

    #[test]
    fn names_have_no_colons_and_are_not_too_long() {
        let long = "x".repeat(63);
        let names = names(&long, &long, &long);
        let (chain, _) = names.endpoint("[1111:2222:3333:4444:5555:6666:7777:8888]:65535".parse().unwrap());
        assert!(chain.len() <= 255 && chain.ends_with("..."), "{chain}");
        let short = super::hashed("a/b/tcp/c__fd00..1/80");
        assert!(!short.contains(':'));
    }
}

//! Names of chains, as kube-proxy has them: other programs and people look for them.
//!
//! Upstream: pkg/proxy/iptables/proxier.go (v1.36).

use std::net::SocketAddr;

use aws_lc_rs::digest::{SHA256, digest};

use crate::plan::{Key, Protocol};

pub(super) const SERVICES: &str = "KUBE-SERVICES";
pub(super) const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
pub(super) const NODE_PORTS: &str = "KUBE-NODEPORTS";
pub(super) const POSTROUTING: &str = "KUBE-POSTROUTING";
pub(super) const MARK_MASQ: &str = "KUBE-MARK-MASQ";
pub(super) const FORWARD: &str = "KUBE-FORWARD";
pub(super) const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";
pub(super) const CANARY: &str = "KUBE-PROXY-CANARY";
/// The kubelet's, which makes the same rule there.
pub(super) const KUBELET_FIREWALL: &str = "KUBE-FIREWALL";

/// Begin the names of chains that belong to one service port.
const OF_SERVICES: [&str; 5] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-FW-", "KUBE-EXT-", "KUBE-SEP-"];

pub(super) fn is_of_service(chain: &str) -> bool {
    OF_SERVICES.iter().any(|prefix| chain.starts_with(prefix))
}

/// The chains of one service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names {
    /// `namespace/name:port`, as comments have it.
    pub text: String,
    protocol: Protocol,
    hash: String,
}

impl Names {
    pub(super) fn new(key: &Key, protocol: Protocol) -> Names {
        let text = key.to_string();
        let hash = hash(&format!("{text}{}", protocol.as_str()));
        Names { text, protocol, hash }
    }

    /// Splits packets over the endpoints of policy Cluster.
    pub(super) fn cluster(&self) -> String {
        format!("KUBE-SVC-{}", self.hash)
    }

    /// Splits packets over the endpoints of policy Local.
    pub(super) fn local(&self) -> String {
        format!("KUBE-SVL-{}", self.hash)
    }

    /// Takes packets to addresses that are known outside the cluster.
    pub(super) fn external(&self) -> String {
        format!("KUBE-EXT-{}", self.hash)
    }

    /// Lets through those who may come by a load balancer's address.
    pub(super) fn firewall(&self) -> String {
        format!("KUBE-FW-{}", self.hash)
    }

    pub(super) fn endpoint(&self, address: SocketAddr) -> String {
        let hash = hash(&format!("{}{}{address}", self.text, self.protocol.as_str()));
        format!("KUBE-SEP-{hash}")
    }
}

/// The first 16 characters of the SHA-256 sum in base 32: a chain's name has at most 28.
fn hash(text: &str) -> String {
    const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let sum = digest(&SHA256, text.as_bytes());
    let (first, _) = sum.as_ref().split_first_chunk::<10>().expect("a sum has 32 bytes");
    let bits = first.iter().fold(0u128, |bits, byte| bits << 8 | u128::from(*byte));
    let digit = |place: u32| char::from(ALPHABET[(bits >> (75 - 5 * place)) as usize & 31]);
    (0..16).map(digit).collect()
}

#[cfg(test)]
mod tests {
    use crate::plan::Family;

    use super::*;

    #[test]
    fn hashes_are_those_of_kube_proxy() {
        let key = Key {
            family: Family::V4,
            namespace: "ns1".into(),
            name: "svc1".into(),
            port: "p80".into(),
        };
        let names = Names::new(&key, Protocol::Tcp);
        assert_eq!(names.cluster(), "KUBE-SVC-XPGD46QRK7WJZT7O");
        assert_eq!(
            names.endpoint("10.180.0.1:80".parse().unwrap()),
            "KUBE-SEP-SXIVWICOYRO3J4NJ"
        );
        let key = Key {
            namespace: "default".into(),
            name: "kubernetes".into(),
            port: "https".into(),
            ..key
        };
        assert_eq!(Names::new(&key, Protocol::Tcp).cluster(), "KUBE-SVC-NPX46M4PTMTKRN6Y");
        let key = Key {
            namespace: "kube-system".into(),
            name: "kube-dns".into(),
            port: "dns".into(),
            ..key
        };
        assert_eq!(Names::new(&key, Protocol::Udp).cluster(), "KUBE-SVC-TCOU7JCQXEZGVUNU");
    }
}

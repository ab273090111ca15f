//! What the network's links and tables are called. Names carry the cluster and the node, so that clusters on one machine
//! and nodes in one namespace never take each other's.

use orlop_netlink::route::Mac;

/// Names of links have 15 bytes at most.
const PREFIX_LENGTH: usize = 8;
const LINK_LENGTH: usize = 15;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names {
    /// What all of this network's links begin with.
    pub prefix: String,
    pub vxlan: String,
    /// The group that links are put into to be deleted together.
    pub group: u32,
    pub table: String,
}

impl Names {
    pub(super) fn new(cluster: &str, node: &str) -> Names {
        let number = hash(&[cluster, node]) & 0xf_ffff;
        let prefix = format!("orl{number:05x}");
        Names {
            vxlan: format!("{prefix}-vx"),
            table: identifier(&format!("orlop-{cluster}-{node}")),
            group: 0x4f00_0000 | number as u32,
            prefix,
        }
    }

    /// The host's end of a pod's veth pair. `attempt` counts the names that other sandboxes have already.
    pub(super) fn veth(&self, sandbox: &str, attempt: u32) -> String {
        let number = hash(&[sandbox, &attempt.to_string()]) & 0xfff_ffff;
        format!("{}{number:07x}", self.prefix)
    }

    pub(super) fn is_veth(&self, link: &str) -> bool {
        let rest = link.strip_prefix(&self.prefix);
        rest.is_some_and(|rest| {
            rest.len() == LINK_LENGTH - PREFIX_LENGTH && rest.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
    }
}

/// What a node's tables of network policies are called.
pub fn policy_table(cluster: &str, node: &str) -> String {
    identifier(&format!("orlop-policy-{cluster}-{node}"))
}

/// What the links to the nodes of a machine that are network namespaces begin with, and the namespaces' names.
pub fn nodes_prefix(cluster: &str) -> String {
    format!("orl{:05x}", hash(&[cluster, "nodes"]) & 0xf_ffff)
}

/// What the table of rules about such nodes is called.
pub fn nodes_table(cluster: &str) -> String {
    identifier(&format!("orlop-nodes-{cluster}"))
}

/// The address of a node's VXLAN device: everybody can tell it from the node's name, so nobody has to publish it.
pub(super) fn vxlan_mac(cluster: &str, node: &str) -> Mac {
    let [_, _, a, b, c, d, e, f] = hash(&[cluster, node, "vxlan"]).to_be_bytes();
    // Of one station, and not of a manufacturer.
    Mac([a & 0xfc | 0x02, b, c, d, e, f])
}

/// What tells a cluster's VXLAN packets from those of others: 24 bits, and not 0.
pub(super) fn vxlan_id(cluster: &str) -> u32 {
    (hash(&[cluster, "vxlan"]) & 0xff_ffff).max(1) as u32
}

/// As nft takes it without quotes.
fn identifier(text: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let text: String = text.chars().map(|c| if allowed(c) { c } else { '_' }).collect();
    // The kernel's limit is 255; a name that is cut ends in what tells it from others.
    match text.len() {
        0..=200 => text,
        _ => format!("{}-{:016x}", &text[..180], hash(&[&text])),
    }
}

/// FNV-1a: the same in every build, since names must be found again.
fn hash(parts: &[&str]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_fit_and_are_told_apart() {
        let names = Names::new("default", "node-1");
        let veth = names.veth(&"a".repeat(64), 0);
        assert_eq!(veth.len(), LINK_LENGTH);
        assert!(names.is_veth(&veth));
        assert!(names.vxlan.len() <= LINK_LENGTH && !names.is_veth(&names.vxlan));
        assert_ne!(veth, names.veth(&"a".repeat(64), 1));
        assert!(!Names::new("other", "node-1").is_veth(&veth));
        assert!(!Names::new("default", "node-2").is_veth(&veth));
        assert_eq!(names.table, "orlop-default-node-1");
        assert_eq!(Names::new("/var/lib/x", "n").table, "orlop-_var_lib_x-n");
        assert!(Names::new(&"x".repeat(300), "n").table.len() < 255);
    }

    #[test]
    fn hardware_addresses_are_of_one_station() {
        let mac = vxlan_mac("default", "node-1");
        assert_eq!(mac.0[0] & 3, 2);
        assert_ne!(mac, vxlan_mac("default", "node-2"));
        assert_ne!(vxlan_id("default"), vxlan_id("other"));
        assert!((1..1 << 24).contains(&vxlan_id("default")));
    }
}

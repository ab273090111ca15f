//! What a node's pod network has to know of the other nodes: their addresses and the ranges of their pods.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use orlop_base::Shutdown;
use orlop_client::{Api, Delta, Inbox, Selection, informer, path};
use orlop_runtime::embedded::network::{PeerNode, PodNetwork};
use serde::Deserialize;
use tokio::sync::{mpsc, watch};

/// Changes that may wait.
const QUEUE: usize = 256;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Node {
    metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    addresses: Vec<Address>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Address {
    r#type: String,
    address: String,
}

/// What does not parse is not to be reached.
fn peer(node: &Node) -> PeerNode {
    let internal = node
        .status
        .addresses
        .iter()
        .filter(|address| address.r#type == "InternalIP");
    PeerNode {
        name: node.metadata.name.clone(),
        addresses: internal
            .filter_map(|address| address.address.parse::<IpAddr>().ok())
            .collect(),
        pod_ranges: node
            .spec
            .pod_cidrs
            .iter()
            .filter_map(|range| range.parse::<IpNet>().ok())
            .collect(),
    }
}

/// Keeps the pod network's view of the nodes up to date until the shutdown.
pub(crate) async fn follow_nodes(
    mut opened: watch::Receiver<Option<PodNetwork>>,
    own: String,
    api: Api,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let network = tokio::select! {
        _ = shutdown.wait() => return Ok(()),
        // Without a kubelet there are no pods, and so no network.
        network = opened.wait_for(Option::is_some) => network?.clone(),
    };
    let Some(network) = network else { return Ok(()) };
    let (messages, mut deltas) = mpsc::channel::<Vec<Delta<Node>>>(QUEUE);
    let all = Selection::all(path::collection("v1", None, "nodes"));
    informer::start(&api, all, Inbox::new(&messages, |deltas| deltas), &shutdown);
    let mut peers = BTreeMap::new();
    let mut applied = None;
    loop {
        let first = tokio::select! {
            _ = shutdown.wait() => return Ok(()),
            first = deltas.recv() => first,
        };
        let Some(first) = first else { return Ok(()) };
        first.into_iter().for_each(|delta| observe(&mut peers, delta));
        while let Ok(more) = deltas.try_recv() {
            more.into_iter().for_each(|delta| observe(&mut peers, delta));
        }
        // Heartbeats change nothing here.
        if applied.as_ref() == Some(&peers) {
            continue;
        }
        if let Some(own) = peers.get(&own).filter(|own| !own.pod_ranges.is_empty()) {
            // The kubelet says so, too, perhaps later.
            network.set_ranges(own.pod_ranges.clone()).await?;
        }
        network.set_nodes(peers.values().cloned().collect()).await?;
        applied = Some(peers.clone());
    }
}

fn observe(peers: &mut BTreeMap<String, PeerNode>, delta: Delta<Node>) {
    match delta {
        Delta::Bookmark(_) => {}
        Delta::Reset(nodes) => {
            *peers = nodes
                .iter()
                .map(|node| (node.metadata.name.clone(), peer(node)))
                .collect();
        }
        Delta::Applied(node) => drop(peers.insert(node.metadata.name.clone(), peer(&node))),
        Delta::Deleted(node) => drop(peers.remove(&node.metadata.name)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, address: &str, range: &str) -> Node {
        serde_json::from_value(
            json!({"metadata": {"name": name}, "spec": {"podCIDRs": [range]}, "status": {"addresses": [
            {"type": "Hostname", "address": name}, {"type": "InternalIP", "address": address}]}}),
        )
        .unwrap()
    }

    #[test]
    fn nodes_come_change_and_go() {
        let mut peers = BTreeMap::new();
        let known = |peers: &BTreeMap<String, PeerNode>| -> Vec<String> {
            let shown = |peer: &PeerNode| format!("{} {:?} {:?}", peer.name, peer.addresses, peer.pod_ranges);
            peers.values().map(shown).collect()
        };
        observe(
            &mut peers,
            Delta::Reset(vec![node("a", "192.0.2.1", "10.244.1.0/24"), node("b", "?", "?")]),
        );
        assert_eq!(known(&peers), ["a [192.0.2.1] [10.244.1.0/24]", "b [] []"]);
        observe(&mut peers, Delta::Applied(node("b", "192.0.2.2", "fd00::/64")));
        observe(&mut peers, Delta::Deleted(node("a", "", "")));
        observe(&mut peers, Delta::Bookmark(9));
        assert_eq!(known(&peers), ["b [192.0.2.2] [fd00::/64]"]);
        observe(&mut peers, Delta::Reset(vec![]));
        assert!(peers.is_empty());
    }
}

//! Several nodes: their pods reach each other by plain routes, and through VXLAN.

use orlop_netlink::Namespace;
use orlop_netlink::route::{Route, RouteEntry};
use tempfile::TempDir;

use super::super::*;
use super::bed::*;

struct Node {
    namespace: Namespace,
    network: PodNetwork,
    pod: Pod,
    _state: TempDir,
}

fn peers() -> Vec<PeerNode> {
    let node = |n: u8| PeerNode {
        name: format!("node-{n}"),
        addresses: vec![ip(&format!("192.0.2.{n}")), ip(&format!("2001:db8::{n}"))],
        pod_ranges: vec![net(&format!("10.244.{n}.0/24")), net(&format!("fd00:244:{n}::/64"))],
    };
    vec![node(1), node(2)]
}

async fn node(n: u8, namespace: Namespace, transport: Transport) -> Node {
    let state = tempfile::tempdir().unwrap();
    let name = format!("node-{n}");
    let network = PodNetwork::open(options(&namespace, &state, &name, transport)).unwrap();
    let own = &peers()[usize::from(n) - 1];
    network.set_ranges(own.pod_ranges.clone()).await.unwrap();
    network.set_nodes(peers()).await.unwrap();
    network.set_nodes(peers()).await.unwrap();
    let pod = Namespace::create().unwrap();
    let addresses = network.attach("pod", &path(&pod), &[]).await.unwrap();
    let pod = Pod {
        namespace: pod,
        addresses,
    };
    Node {
        namespace,
        network,
        pod,
        _state: state,
    }
}

async fn check(transport: Transport) {
    let (left, right) = (namespace(), namespace());
    let addresses = |n: usize| peers()[n].addresses.clone();
    cable((&left, "uplink", &addresses(0)), (&right, "uplink", &addresses(1)));
    let one = node(1, left, transport).await;
    let two = node(2, right, transport).await;
    for (a, b, any) in [
        (one.pod.v4(), two.pod.v4(), "0.0.0.0:80"),
        (one.pod.v6(), two.pod.v6(), "[::]:80"),
    ] {
        let _server = serve(&two.pod.namespace, any);
        assert_eq!(ask(&one.pod.namespace, b, 80), Some(a), "pods keep their addresses");
        assert!(ask(&one.namespace, b, 80).is_some(), "nodes reach pods of other nodes");
    }
    let _server = serve(&two.pod.namespace, "0.0.0.0:80");
    let mtu = format!("mtu {} ", 1500 - transport.overhead(None));
    let shown = shell(&one.pod.namespace, "ip -o link show eth0");
    assert!(shown.contains(&mtu), "{shown}");
    // A node that went is forgotten, and comes back.
    one.network.set_nodes(peers()[..1].to_vec()).await.unwrap();
    assert!(is_out_of_reach(&one.pod.namespace, two.pod.v4(), 80));
    one.network.set_nodes(peers()).await.unwrap();
    assert_eq!(ask(&one.pod.namespace, two.pod.v4(), 80), Some(one.pod.v4()));
    one.network.remove_all().await.unwrap();
    let left = shell(&one.namespace, "ip -o link; ip route; ip -6 route; nft list tables");
    assert!(!left.contains("orl") && !left.contains("244"), "{left}");
}

#[tokio::test]
async fn plain_routes() {
    check(Transport::Routes).await;
}

#[tokio::test]
async fn vxlan() {
    check(Transport::Vxlan { id: 7, port: 4789 }).await;
}

/// Routes of the same kind that are none of this cluster's stay.
#[tokio::test]
async fn routes_of_others_stay() {
    let (left, right) = (namespace(), namespace());
    let addresses = |n: usize| peers()[n].addresses.clone();
    cable((&left, "uplink", &addresses(0)), (&right, "uplink", &addresses(1)));
    let foreign = RouteEntry::by_gateway(net("10.99.0.0/24"), ip("192.0.2.2"));
    left.run(|| Route::open().unwrap().replace_route(&foreign).unwrap())
        .unwrap();
    let one = node(1, left, Transport::Routes).await;
    one.network.set_nodes(vec![]).await.unwrap();
    one.network.remove_all().await.unwrap();
    let shown = shell(&one.namespace, "ip route");
    assert!(shown.contains("10.99.0.0/24 via 192.0.2.2"), "{shown}");
}

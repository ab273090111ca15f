use std::io::ErrorKind;
use std::net::UdpSocket;

use super::super::*;
use super::bed::*;
use crate::cri::messages::Protocol;

fn port(protocol: Protocol, host_ip: &str, host_port: i32, container_port: i32) -> PortMapping {
    PortMapping {
        protocol: protocol.into(),
        container_port,
        host_port,
        host_ip: host_ip.to_string(),
    }
}

#[tokio::test]
async fn pods_reach_each_other_the_node_and_outside() {
    let bed = Bed::new(&[V4, V6]).await;
    let one = bed.pod("one", &[]).await;
    let two = bed.pod("two", &[]).await;
    assert_eq!(one.addresses, [ip("10.244.1.2"), ip("fd00:244:1::2")]);
    for (a, b, node, outside) in [
        (one.v4(), two.v4(), NODE, OUTSIDE),
        (one.v6(), two.v6(), NODE6, OUTSIDE6),
    ] {
        let any = if a.is_ipv4() { "0.0.0.0" } else { "[::]" };
        let gateway = if a.is_ipv4() { "10.244.1.1" } else { "fd00:244:1::1" };
        let listen = |on: &orlop_netlink::Namespace| serve(on, &format!("{any}:80"));
        let _servers = [&one.namespace, &two.namespace, &bed.node, &bed.outside].map(listen);
        assert_eq!(ask(&one.namespace, b, 80), Some(a), "pods see each other's addresses");
        assert_eq!(ask(&one.namespace, a, 80), Some(a), "a pod reaches itself");
        assert_eq!(ask(&bed.node, b, 80), Some(ip(gateway)), "the node reaches pods");
        assert_eq!(ask(&one.namespace, ip(node), 80), Some(a), "pods reach the node");
        assert_eq!(ask(&one.namespace, ip(gateway), 80), Some(a));
        assert_eq!(ask(&one.namespace, ip(outside), 80), Some(ip(node)), "masqueraded");
    }
    // Attached again, all stays.
    let again = bed.network.attach("one", &path(&one.namespace), &[]).await.unwrap();
    assert_eq!(again, one.addresses);
    let _server = serve(&two.namespace, "0.0.0.0:80");
    assert_eq!(ask(&one.namespace, two.v4(), 80), Some(one.v4()));
    let inside = shell(&one.namespace, "ip -o addr; ip route");
    assert!(
        inside.contains("10.244.1.2/32") && inside.contains("default via 10.244.1.1 dev eth0"),
        "{inside}"
    );
    bed.network.remove_all().await.unwrap();
    assert_eq!(bed.leftovers(), "");
    assert!(!bed.state.path().join("network").exists());
}

#[tokio::test]
async fn a_pod_that_went_is_told_of_at_once() {
    let bed = Bed::new(&[V4]).await;
    let one = bed.pod("one", &[]).await;
    for from in [&one.namespace, &bed.node] {
        assert_eq!(refusal(from, ip("10.244.1.77"), 80), Some(ErrorKind::HostUnreachable));
    }
}

#[tokio::test]
async fn nobody_sends_from_the_address_of_another() {
    let bed = Bed::new(&[V4, V6]).await;
    let one = bed.pod("one", &[]).await;
    let two = bed.pod("two", &[]).await;
    for (own, other) in [(one.v4(), two.v4()), (one.v6(), two.v6())] {
        let at = if own.is_ipv4() { ip(NODE) } else { ip(NODE6) };
        let socket = bed.node.run(|| UdpSocket::bind((at, 5000)).unwrap()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut buffer = [0; 8];
        // In this order: once the second is there, the first would be too.
        assert!(send_from(&one.namespace, other, (at, 5000)));
        assert!(send_from(&one.namespace, own, (at, 5000)));
        assert_eq!(socket.recv_from(&mut buffer).unwrap().1.ip(), own);
        socket.set_nonblocking(true).unwrap();
        assert!(socket.recv_from(&mut buffer).is_err(), "{other} is not the pod's");
    }
}

#[tokio::test]
async fn host_ports_lead_to_their_pods() {
    let bed = Bed::new(&[V4, V6]).await;
    let ports = [
        port(Protocol::Tcp, "", 8080, 80),
        port(Protocol::Tcp, "127.0.0.1", 8081, 80),
        port(Protocol::Udp, "", 5353, 53),
        port(Protocol::Sctp, "", 8080, 80),
        port(Protocol::Tcp, "", 0, 443),
    ];
    let one = bed.pod("one", &ports).await;
    let two = bed.pod("two", &[]).await;
    let servers = [serve(&one.namespace, "0.0.0.0:80")];
    assert_eq!(
        ask(&bed.outside, ip(NODE), 8080),
        Some(ip(OUTSIDE)),
        "from outside, unchanged"
    );
    assert_eq!(ask(&two.namespace, ip(NODE), 8080), Some(two.v4()), "from another pod");
    let gateway = ip("10.244.1.1");
    assert_eq!(
        ask(&one.namespace, ip(NODE), 8080),
        Some(gateway),
        "from the pod itself"
    );
    assert_eq!(ask(&bed.node, ip(NODE), 8080), Some(ip(NODE)), "from the node");
    assert_eq!(
        ask(&bed.node, ip("127.0.0.1"), 8080),
        Some(gateway),
        "from the node's loopback"
    );
    assert_eq!(
        ask(&bed.node, ip("127.0.0.1"), 8081),
        Some(gateway),
        "a port of one address"
    );
    assert!(is_out_of_reach(&bed.outside, ip(NODE), 8081), "and only of that");
    assert_eq!(
        ask_udp(&bed.outside, (ip(NODE), 5353), &one.namespace, (one.v4(), 53)),
        Some(ip(OUTSIDE))
    );
    drop(servers);
    let servers = [serve(&one.namespace, "[::]:80")];
    assert_eq!(ask(&bed.outside, ip(NODE6), 8080), Some(ip(OUTSIDE6)));
    assert_eq!(ask(&one.namespace, ip(NODE6), 8080), Some(ip("fd00:244:1::1")));
    assert_eq!(ask(&bed.node, ip(NODE6), 8080), Some(ip(NODE6)));
    drop(servers);
    // Another pod takes the port over before the first has gone.
    let three = bed.pod("three", &ports[..1]).await;
    let _servers = [serve(&three.namespace, "0.0.0.0:80")];
    assert_eq!(ask(&bed.outside, ip(NODE), 8080), Some(ip(OUTSIDE)));
    bed.network.detach("one").await.unwrap();
    assert_eq!(
        ask(&bed.outside, ip(NODE), 8080),
        Some(ip(OUTSIDE)),
        "it is the second's now"
    );
    bed.network.detach("three").await.unwrap();
    assert!(is_out_of_reach(&bed.outside, ip(NODE), 8080));
    bed.network.detach("two").await.unwrap();
    assert!(!bed.leftovers().contains("orl0"), "{}", bed.leftovers());
}

/// A client that goes on sending from the same socket meets the pod that has the port now.
#[tokio::test]
async fn udp_clients_follow_a_host_port() {
    let bed = Bed::new(&[V4]).await;
    let ports = [port(Protocol::Udp, "", 5353, 53)];
    let client = bed.outside.run(|| UdpSocket::bind("0.0.0.0:4000").unwrap()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut buffer = [0; 8];
    for id in ["one", "two", "three"] {
        let pod = bed.pod(id, &ports).await;
        let server = pod.namespace.run(|| UdpSocket::bind("0.0.0.0:53").unwrap()).unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        client.send_to(b"ask", (ip(NODE), 5353)).unwrap();
        server
            .recv_from(&mut buffer)
            .unwrap_or_else(|e| panic!("{id} is asked: {e}"));
        if id == "one" {
            // Gone before the next one comes; the second goes after the third has come.
            bed.network.detach(id).await.unwrap();
        }
    }
}

/// CVE-2020-8558: loopback addresses are routed on links of pods with host ports, for the node alone.
#[tokio::test]
async fn pods_do_not_reach_the_nodes_loopback() {
    let bed = Bed::new(&[V4]).await;
    let one = bed.pod("one", &[port(Protocol::Tcp, "", 8080, 80)]).await;
    let _server = serve(&bed.node, "127.0.0.1:6443");
    shell(
        &one.namespace,
        "echo 1 > /proc/sys/net/ipv4/conf/eth0/route_localnet; ip addr del 127.0.0.1/8 dev lo;
         ip route del local 127.0.0.0/8 table local; ip route add 127.0.0.1/32 via 10.244.1.1 src 10.244.1.2",
    );
    let route = shell(&one.namespace, "ip route get 127.0.0.1");
    assert!(route.contains("via 10.244.1.1"), "{route}");
    assert!(is_out_of_reach(&one.namespace, ip("127.0.0.1"), 6443));
    let dropped = shell(&bed.node, "nft list chain ip orlop-test-node-1 loopback");
    assert!(dropped.contains("127.0.0.0/8"), "{dropped}");
}

#[tokio::test]
async fn a_full_range_is_said_to_be_full_and_frees_what_goes() {
    let bed = Bed::new(&["10.244.1.0/29", V6]).await;
    let mut pods = vec![];
    for n in 0..5 {
        pods.push(bed.pod(&format!("pod{n}"), &[]).await);
    }
    let namespace = orlop_netlink::Namespace::create().unwrap();
    let refused = bed
        .network
        .attach("one-more", &path(&namespace), &[])
        .await
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "no IP addresses available in range set: 10.244.1.1-10.244.1.6"
    );
    bed.network.detach("pod2").await.unwrap();
    let addresses = bed.network.attach("one-more", &path(&namespace), &[]).await.unwrap();
    assert_eq!(
        addresses,
        [pods[2].v4(), ip("fd00:244:1::7")],
        "IPv6 was given back too"
    );
}

#[tokio::test]
async fn calls_before_the_ranges_and_wrong_ones_are_refused() {
    let bed = Bed::new(&[]).await;
    assert!(!bed.network.is_ready().await);
    let namespace = orlop_netlink::Namespace::create().unwrap();
    let refused = bed.network.attach("a", &path(&namespace), &[]).await.unwrap_err();
    assert!(matches!(refused, PodNetworkError::NotReady));
    let two = bed
        .network
        .set_ranges(vec![net("10.1.0.0/24"), net("10.2.0.0/24")])
        .await;
    assert!(matches!(two, Err(PodNetworkError::InvalidRange { .. })));
    bed.network.set_ranges(vec![net(V4)]).await.unwrap();
    let refused = bed.network.attach("../a", &path(&namespace), &[]).await.unwrap_err();
    assert!(matches!(refused, PodNetworkError::InvalidSandbox(_)));
    let refused = bed.network.attach("a", &path(&bed.node), &[]).await.unwrap_err();
    assert!(matches!(refused, PodNetworkError::NodeNamespace(_)));
    let refused = bed.network.attach("a", Path::new("/nowhere"), &[]).await.unwrap_err();
    assert!(refused.into_runtime().message.contains("/nowhere: No such file"));
    bed.network.detach("a").await.unwrap();
}

#[tokio::test]
async fn two_clusters_on_one_node_keep_apart() {
    let bed = Bed::new(&[V4]).await;
    let other_state = tempfile::tempdir().unwrap();
    let other = Options {
        cluster: "other".to_string(),
        cluster_ranges: vec![net("10.99.0.0/16")],
        ..options(&bed.node, &other_state, "node-1", Transport::Routes)
    };
    let other = PodNetwork::open(other).unwrap();
    other.set_ranges(vec![net("10.99.0.0/24")]).await.unwrap();
    let one = bed.pod("same-id", &[]).await;
    let namespace = orlop_netlink::Namespace::create().unwrap();
    let addresses = other.attach("same-id", &path(&namespace), &[]).await.unwrap();
    assert_eq!(addresses, [ip("10.99.0.2")]);
    let _server = serve(&one.namespace, "0.0.0.0:80");
    assert!(ask(&namespace, one.v4(), 80).is_some());
    assert_eq!(
        bed.network.retain(&["same-id".to_string()]).await.unwrap(),
        Freed::default()
    );
    other.remove_all().await.unwrap();
    assert!(ask(&bed.node, one.v4(), 80).is_some(), "the first is untouched");
    let left = bed.leftovers();
    assert!(!left.contains("other") && !left.contains("10.99."), "{left}");
}

//! The server over real sockets.

use std::process::Command;

use hickory_proto::op::Message;
use hickory_proto::rr::RecordType;
use proptest::prelude::*;
use serde_json::json;
use tokio::net::TcpStream;

use super::*;
use crate::forward::Stubs;
use crate::health::Health;
use crate::testing::{Manner, Resolver, addresses, ask_tcp, ask_udp, exchange_udp, query};
use crate::zone::Directory;

struct Started {
    address: SocketAddr,
    resolver: Resolver,
    handler: Arc<Handler>,
    shutdown: Shutdown,
}

fn handler(resolver: Option<&Resolver>) -> Arc<Handler> {
    let zone = Arc::new(Zone::new("cluster.local", vec!["10.96.0.0/12".parse().unwrap()]).unwrap());
    let mut directory = Directory::new(zone.clone());
    let service = |name: &str, spec| {
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec})).unwrap()
    };
    let web = json!({"clusterIP": "10.96.0.7", "ports": [{"name": "http", "port": 80}]});
    directory.apply_service(service("web", web));
    directory.apply_service(service("many", json!({"clusterIP": "None"})));
    let out = json!({"type": "ExternalName", "externalName": "www.example.com"});
    directory.apply_service(service("out", out));
    let endpoints: Vec<_> = (0..200)
        .map(|n| json!({"addresses": [format!("10.244.0.{n}")]}))
        .collect();
    let slice = json!({"metadata": {"name": "many", "namespace": "default",
        "labels": {"kubernetes.io/service-name": "many"}}, "addressType": "IPv4", "endpoints": endpoints});
    directory.apply_slice(serde_json::from_value(slice).unwrap());
    zone.set_synced();
    let metrics = Arc::new(Metrics::default());
    let forward = Forward::new(metrics.clone());
    let resolvers: Vec<_> = resolver.iter().map(|r| r.address).collect();
    forward.configure(&resolvers, &Stubs::default(), &[]);
    Arc::new(Handler::new(zone, forward, metrics))
}

async fn start(manner: Manner) -> Started {
    let resolver = Resolver::start(manner).await;
    let handler = handler(Some(&resolver));
    let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let (address, shutdown) = (listener.address, Shutdown::default());
    serve(&handler, listener, &Arc::default(), &shutdown);
    Started {
        address,
        resolver,
        handler,
        shutdown,
    }
}

const WEB: &str = "wEb.default.svc.cluster.local.";
const MANY: &str = "many.default.svc.cluster.local.";

#[tokio::test]
async fn udp_and_tcp() {
    let server = start(Manner::Well).await;
    let answer = ask_udp(server.address, &query(WEB, RecordType::A)).await;
    assert_eq!(addresses(&answer), ["10.96.0.7"]);
    assert_eq!(answer.queries[0].name().to_string(), WEB);
    assert!(answer.metadata.authoritative && answer.metadata.recursion_available);

    let mut stream = TcpStream::connect(server.address).await.unwrap();
    // What UDP has no room for.
    let short = ask_udp(server.address, &query(MANY, RecordType::A)).await;
    assert!(short.metadata.truncation);
    let whole = ask_tcp(&mut stream, &query(MANY, RecordType::A)).await;
    assert!(!whole.metadata.truncation);
    assert_eq!(whole.answers.len(), 200);
    // Another order each time, on the same connection.
    let again = ask_tcp(&mut stream, &query(MANY, RecordType::A)).await;
    assert_ne!(addresses(&whole), addresses(&again));

    let nothing = ask_udp(server.address, &query("no.default.svc.cluster.local.", RecordType::A)).await;
    assert_eq!(nothing.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(nothing.authorities.len(), 1);
    server.shutdown.trigger();
}

#[tokio::test]
async fn names_elsewhere() {
    let server = start(Manner::Well).await;
    let out = ask_udp(server.address, &query("out.default.svc.cluster.local.", RecordType::A)).await;
    assert_eq!(addresses(&out), ["www.example.com.", "192.0.2.1"]);
    let direct = ask_udp(server.address, &query("www.Example.com.", RecordType::A)).await;
    assert_eq!(addresses(&direct), ["192.0.2.1"]);
    assert!(!direct.metadata.authoritative);
    assert!(direct.answers[0].ttl <= 30);
    assert_eq!(server.resolver.seen().len(), 1, "the second came from the cache");

    server.resolver.set(Manner::Denying);
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let denied = ask_tcp(&mut stream, &query("no.example.com.", RecordType::A)).await;
    assert_eq!(denied.metadata.response_code, ResponseCode::NXDomain);
    server.resolver.set(Manner::Unable);
    let unable = ask_udp(server.address, &query("bad.example.com.", RecordType::A)).await;
    assert_eq!(unable.metadata.response_code, ResponseCode::ServFail);
    // Everything is asked of nobody.
    let before = server.resolver.seen().len();
    let any = ask_udp(server.address, &query("big.example.com.", RecordType::ANY)).await;
    assert_eq!(any.answers[0].record_type(), RecordType::HINFO);
    assert_eq!(server.resolver.seen().len(), before);
    let text = server.handler.metrics.render();
    let hits = r#"coredns_cache_hits_total{server="dns://:53",zones=".",view="",type="success"} 1"#;
    assert!(text.contains(hits), "{text}");
}

#[tokio::test]
async fn what_is_refused() {
    let server = start(Manner::Well).await;
    let mut chaos = query("version.bind.", RecordType::TXT);
    chaos.queries[0].set_query_class(DNSClass::CH);
    let transfer = query("cluster.local.", RecordType::AXFR);
    let mut update = query(WEB, RecordType::A);
    update.metadata.op_code = hickory_proto::op::OpCode::Update;
    let mut two = query(WEB, RecordType::A);
    two.queries.push(two.queries[0].clone());
    let mut newer = query(WEB, RecordType::A);
    let mut edns = hickory_proto::op::Edns::new();
    edns.set_version(1);
    newer.set_edns(edns);
    for (message, expected) in [
        (chaos, ResponseCode::Refused),
        (transfer, ResponseCode::Refused),
        (update, ResponseCode::NotImp),
        (two, ResponseCode::FormErr),
        (newer, ResponseCode::BADVERS),
    ] {
        let answer = ask_udp(server.address, &message).await;
        let code = answer.metadata.response_code;
        assert_eq!(u16::from(code), u16::from(expected), "{message}");
        assert_eq!(answer.metadata.id, message.metadata.id);
    }
    // An answer is not answered; the question after it is.
    let mut echo = query(WEB, RecordType::A);
    echo.metadata.message_type = hickory_proto::op::MessageType::Response;
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let real = query(WEB, RecordType::A);
    for packet in [echo.to_vec().unwrap(), b"short".to_vec(), real.to_vec().unwrap()] {
        socket.send_to(&packet, server.address).await.unwrap();
    }
    let mut buffer = [0; 512];
    let len = socket.recv(&mut buffer).await.unwrap();
    assert_eq!(Message::from_vec(&buffer[..len]).unwrap().metadata.id, real.metadata.id);
    // Noise that has the shape of a header.
    let answer = exchange_udp(server.address, &[7; 100][..]).await;
    assert_eq!(answer.len(), 12);
}

#[tokio::test]
async fn health_knows_which_listeners_are_served() {
    let (handler, health) = (handler(None), Arc::new(Health::default()));
    let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let (address, shutdown) = (listener.address, Shutdown::default());
    serve(&handler, listener, &health, &shutdown);
    assert_eq!(
        addresses(&ask_udp(address, &query(WEB, RecordType::A)).await),
        ["10.96.0.7"]
    );
    assert_eq!(health.check(), Ok(()));
    shutdown.trigger();
    let is_free = || std::net::UdpSocket::bind(address).is_ok() && std::net::TcpListener::bind(address).is_ok();
    while health.check_listeners().is_ok() || !is_free() {
        tokio::task::yield_now().await;
    }
    let again = listen(address).await.unwrap();
    serve(&handler, again, &health, &Shutdown::default());
    assert_eq!(health.check(), Ok(()));
    assert_eq!(
        addresses(&ask_udp(address, &query(WEB, RecordType::A)).await),
        ["10.96.0.7"]
    );
}

#[tokio::test]
async fn too_many_waiting_clients_are_refused() {
    let server = start(Manner::Silent).await;
    let all = server
        .handler
        .room
        .clone()
        .acquire_many_owned(CONCURRENT_MAX as u32)
        .await;
    let answer = ask_udp(server.address, &query("example.com.", RecordType::A)).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::Refused);
    let cluster = ask_udp(server.address, &query(WEB, RecordType::A)).await;
    assert_eq!(addresses(&cluster), ["10.96.0.7"]);
    drop(all);
}

#[tokio::test]
async fn dig_understands() {
    let server = start(Manner::Well).await;
    let dig = async |arguments: &[&str]| {
        let mut command = Command::new("dig");
        let port = server.address.port().to_string();
        command.args(["@127.0.0.1", "-p", &port, "+tries=1", "+timeout=20"]);
        command.args(arguments);
        let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap();
        String::from_utf8(output.expect("dig is installed").stdout).unwrap()
    };
    let web = "web.default.svc.cluster.local";
    assert_eq!(dig(&["+short", web]).await, "10.96.0.7\n");
    assert_eq!(dig(&["+short", "+tcp", "+noedns", web]).await, "10.96.0.7\n");
    let whole = dig(&[MANY]).await;
    assert!(whole.contains("Truncated, retrying in TCP mode"), "{whole}");
    assert!(whole.contains("ANSWER: 200,"), "{whole}");
    let srv = dig(&["SRV", &format!("_http._tcp.{web}")]).await;
    assert!(srv.contains("SRV 0 100 80 web.default.svc.cluster.local."), "{srv}");
    assert!(
        srv.contains("ADDITIONAL SECTION:\nweb.default.svc.cluster.local. 30"),
        "{srv}"
    );
    let none = dig(&["none.default.svc.cluster.local"]).await;
    assert!(
        none.contains("status: NXDOMAIN") && none.contains("AUTHORITY SECTION:"),
        "{none}"
    );
    assert_eq!(dig(&["+short", "-x", "10.96.0.7"]).await, format!("{web}.\n"));
    let any = dig(&["ANY", web]).await;
    assert!(any.contains("\"RFC8482\" \"\""), "{any}");
    let odd = dig(&["+opcode=status", web]).await;
    assert!(odd.contains("status: NOTIMP"), "{odd}");
}

proptest! {
    #[test]
    fn any_packet_is_survived(packet in prop::collection::vec(any::<u8>(), 0..600), with_header in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _inside = runtime.enter();
        let handler = handler(None);
        let mut packet = packet;
        if with_header && packet.len() > 12 {
            packet[2..12].copy_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        }
        let mut out = vec![];
        let peer = "127.0.0.1:1".parse().unwrap();
        match handler.begin(&packet, Transport::Udp, peer, &mut Random::seeded(1), &mut out) {
            Step::Done => {
                prop_assert!(out.len() <= 1232 && out.len() >= 12);
                prop_assert_eq!(&out[..2], &packet[..2]);
                prop_assert!(out[2] & 0x80 != 0);
            }
            Step::Silence => prop_assert!(packet.len() < 12 || packet[2] & 0x80 != 0),
            Step::Wait(_) => {}
        }
    }
}

#[tokio::test]
async fn only_clients_of_ours_are_answered() {
    let mut packet = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    packet.extend_from_slice(b"\x03web\x07default\x03svc\x07cluster\x05local\x00\x00\x01\x00\x01");
    let handler = Arc::into_inner(handler(None)).unwrap();
    let handler = handler.for_clients(vec!["10.244.0.0/24".parse().unwrap()]);
    for (peer, answered) in [("10.244.0.9:999", true), ("198.51.100.1:999", false)] {
        let (mut random, mut out) = (Random::seeded(1), vec![]);
        let step = handler.begin(&packet, Transport::Udp, peer.parse().unwrap(), &mut random, &mut out);
        assert_eq!(matches!(step, Step::Done), answered, "{peer}");
        assert_eq!(out.is_empty(), !answered);
    }
}

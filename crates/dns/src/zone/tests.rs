//! The specification's records by table, and that changes one by one end where building anew does.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RecordType};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::objects::{EndpointSlice, Namespace, Service};

fn zone() -> Arc<Zone> {
    let ranges = ["10.96.0.0/12", "10.244.0.0/16", "2001:db8::/108"];
    let ranges = ranges.iter().map(|r| r.parse().unwrap()).collect();
    let zone = Arc::new(Zone::new("Cluster.local", ranges).unwrap());
    zone.set_serial(1_700_000_000);
    zone.set_synced();
    zone
}

fn namespace(name: &str) -> Namespace {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

fn service(name: &str, spec: serde_json::Value) -> Service {
    serde_json::from_value(json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec})).unwrap()
}

fn slice(name: &str, service: &str, rest: serde_json::Value) -> EndpointSlice {
    let mut value = json!({"metadata": {
        "name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": service}}});
    value.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    serde_json::from_value(value).unwrap()
}

/// A question, and the answer as text: the code if it is not NOERROR, then a line for each record, with its section if
/// that is not the answer's.
fn ask(zone: &Zone, question: &str) -> String {
    let (name, kind) = question.split_once(' ').unwrap();
    let name = Name::from_ascii(name).unwrap();
    let found = match zone.answer(&name, RecordType::from_str(kind).unwrap()) {
        ZoneAnswer::Elsewhere => return "elsewhere".into(),
        ZoneAnswer::NotYet => return "not yet".into(),
        ZoneAnswer::Found(found) => found,
    };
    let mut lines = vec![];
    if found.code != ResponseCode::NoError {
        lines.push(format!("{:?}", found.code));
    }
    lines.extend(found.answers.iter().map(|r| r.to_string()));
    lines.extend(found.goes_on.map(|name| format!("goes on: {name}")));
    lines.extend(found.authorities.iter().map(|r| format!("authority: {r}")));
    lines.extend(found.additionals.iter().map(|r| format!("additional: {r}")));
    lines.join("\n")
}

fn cluster() -> (Arc<Zone>, Directory) {
    let zone = zone();
    let mut directory = Directory::new(zone.clone());
    for name in ["default", "kube-system", "empty"] {
        directory.apply_namespace(namespace(name));
    }
    let https =
        json!([{"name": "https", "port": 443, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}]);
    for (name, spec) in [
        ("kubernetes", json!({"clusterIP": "10.96.0.1", "ports": https})),
        (
            "dual",
            json!({"clusterIP": "10.96.0.2", "clusterIPs": ["10.96.0.2", "2001:db8::2"],
                "ports": [{"name": "http", "port": 80}]}),
        ),
        (
            "web",
            json!({"clusterIP": "None", "ports": [{"name": "http", "port": 80}]}),
        ),
        ("empty", json!({"clusterIP": "None", "ports": [{"port": 80}]})),
        ("portless", json!({"clusterIP": "None"})),
        (
            "out",
            json!({"type": "ExternalName", "externalName": "www.Example.com"}),
        ),
        (
            "alias",
            json!({"type": "ExternalName", "externalName": "kubernetes.default.svc.cluster.local"}),
        ),
        (
            "alias2",
            json!({"type": "ExternalName", "externalName": "alias.default.svc.cluster.local."}),
        ),
        (
            "nowhere",
            json!({"type": "ExternalName", "externalName": "none.default.svc.cluster.local"}),
        ),
        (
            "loop-a",
            json!({"type": "ExternalName", "externalName": "loop-b.default.svc.cluster.local"}),
        ),
        (
            "loop-b",
            json!({"type": "ExternalName", "externalName": "loop-a.default.svc.cluster.local"}),
        ),
        (
            "self",
            json!({"type": "ExternalName", "externalName": "self.default.svc.cluster.local"}),
        ),
        ("address", json!({"type": "ExternalName", "externalName": "1.2.3.4"})),
    ] {
        directory.apply_service(service(name, spec));
    }
    let http = json!([{"name": "http", "port": 8080, "protocol": "TCP"}]);
    directory.apply_slice(slice(
        "web-1",
        "web",
        json!({"addressType": "IPv4", "ports": http, "endpoints": [
            {"addresses": ["10.244.0.5"], "hostname": "web-0", "conditions": {"ready": true}},
            {"addresses": ["10.244.0.6"], "hostname": "web-1", "conditions": {"ready": false}},
            {"addresses": ["10.244.0.7"]}]}),
    ));
    directory.apply_slice(slice(
        "web-2",
        "web",
        json!({"addressType": "IPv6", "ports": http, "endpoints": [{"addresses": ["fd00::"]}]}),
    ));
    directory.apply_slice(slice(
        "kubernetes",
        "kubernetes",
        json!({"addressType": "IPv4", "ports": [{"name": "https", "port": 6443}], "endpoints": [
            {"addresses": ["192.168.1.10"]}]}),
    ));
    directory.apply_slice(slice(
        "portless",
        "portless",
        json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.244.0.9"]}]}),
    ));
    (zone, directory)
}

const SOA: &str =
    "authority: cluster.local. 30 IN SOA ns.dns.cluster.local. hostmaster.cluster.local. 1700000000 7200 1800 86400 30";

fn check(zone: &Zone, cases: &[(&str, &str)]) {
    let nothing = format!("NXDomain\n{SOA}");
    for (question, expected) in cases {
        let expected = match *expected {
            "" => SOA,
            "nothing" => nothing.as_str(),
            text => text,
        };
        assert_eq!(ask(zone, question), expected, "{question}");
    }
}

#[test]
fn services_with_addresses() {
    let (zone, _directory) = cluster();
    check(
        &zone,
        &[
            (
                "kubernetes.default.svc.cluster.local. A",
                "kubernetes.default.svc.cluster.local. 30 IN A 10.96.0.1",
            ),
            (
                "KUBERNETES.default.SVC.cluster.LOCAL. A",
                "KUBERNETES.default.SVC.cluster.LOCAL. 30 IN A 10.96.0.1",
            ),
            ("kubernetes.default.svc.cluster.local. AAAA", ""),
            ("kubernetes.default.svc.cluster.local. TXT", ""),
            ("kubernetes.default.svc.cluster.local. CNAME", ""),
            ("kubernetes.default.svc.cluster.local. SOA", ""),
            (
                "kubernetes.default.svc.cluster.local. ANY",
                "kubernetes.default.svc.cluster.local. 30 IN HINFO RFC8482 ",
            ),
            (
                "dual.default.svc.cluster.local. A",
                "dual.default.svc.cluster.local. 30 IN A 10.96.0.2",
            ),
            (
                "dual.default.svc.cluster.local. AAAA",
                "dual.default.svc.cluster.local. 30 IN AAAA 2001:db8::2",
            ),
            ("none.default.svc.cluster.local. A", "nothing"),
            ("none.default.svc.cluster.local. ANY", "nothing"),
            ("kubernetes.empty.svc.cluster.local. A", "nothing"),
            ("*.default.svc.cluster.local. A", "nothing"),
            (
                "_https._tcp.kubernetes.default.svc.cluster.local. SRV",
                "_https._tcp.kubernetes.default.svc.cluster.local. 30 IN SRV 0 100 443 kubernetes.default.svc.cluster.local.\n\
              additional: kubernetes.default.svc.cluster.local. 30 IN A 10.96.0.1",
            ),
            (
                "_http._TCP.dual.default.svc.cluster.local. SRV",
                "_http._TCP.dual.default.svc.cluster.local. 30 IN SRV 0 50 80 dual.default.svc.cluster.local.\n\
              additional: dual.default.svc.cluster.local. 30 IN A 10.96.0.2\n\
              additional: dual.default.svc.cluster.local. 30 IN AAAA 2001:db8::2",
            ),
            (
                "kubernetes.default.svc.cluster.local. SRV",
                "kubernetes.default.svc.cluster.local. 30 IN SRV 0 50 443 kubernetes.default.svc.cluster.local.\n\
              kubernetes.default.svc.cluster.local. 30 IN SRV 0 50 53 kubernetes.default.svc.cluster.local.\n\
              additional: kubernetes.default.svc.cluster.local. 30 IN A 10.96.0.1",
            ),
            ("_https._udp.kubernetes.default.svc.cluster.local. SRV", "nothing"),
            ("_._tcp.kubernetes.default.svc.cluster.local. SRV", "nothing"),
            ("https.tcp.kubernetes.default.svc.cluster.local. SRV", "nothing"),
            (
                "_https._tcp.kubernetes.default.svc.cluster.local. A",
                "_https._tcp.kubernetes.default.svc.cluster.local. 30 IN A 10.96.0.1",
            ),
            ("a._https._tcp.kubernetes.default.svc.cluster.local. SRV", "nothing"),
            // Endpoints have names below services of any type.
            (
                "192-168-1-10.kubernetes.default.svc.cluster.local. A",
                "192-168-1-10.kubernetes.default.svc.cluster.local. 30 IN A 192.168.1.10",
            ),
        ],
    );
}

#[test]
fn headless_services_and_pods_with_names() {
    let (zone, _directory) = cluster();
    check(
        &zone,
        &[
            (
                "web.default.svc.cluster.local. A",
                "web.default.svc.cluster.local. 30 IN A 10.244.0.5\nweb.default.svc.cluster.local. 30 IN A 10.244.0.7",
            ),
            (
                "web.default.svc.cluster.local. AAAA",
                "web.default.svc.cluster.local. 30 IN AAAA fd00::",
            ),
            (
                "web-0.web.default.svc.cluster.local. A",
                "web-0.web.default.svc.cluster.local. 30 IN A 10.244.0.5",
            ),
            ("web-0.web.default.svc.cluster.local. AAAA", ""),
            ("web-1.web.default.svc.cluster.local. A", "nothing"),
            (
                "10-244-0-7.web.default.svc.cluster.local. A",
                "10-244-0-7.web.default.svc.cluster.local. 30 IN A 10.244.0.7",
            ),
            ("10-244-0-5.web.default.svc.cluster.local. A", "nothing"),
            (
                "fd00--0.web.default.svc.cluster.local. AAAA",
                "fd00--0.web.default.svc.cluster.local. 30 IN AAAA fd00::",
            ),
            (
                "_http._tcp.web.default.svc.cluster.local. SRV",
                "_http._tcp.web.default.svc.cluster.local. 30 IN SRV 0 33 8080 10-244-0-7.web.default.svc.cluster.local.\n\
              _http._tcp.web.default.svc.cluster.local. 30 IN SRV 0 33 8080 fd00--0.web.default.svc.cluster.local.\n\
              _http._tcp.web.default.svc.cluster.local. 30 IN SRV 0 33 8080 web-0.web.default.svc.cluster.local.\n\
              additional: 10-244-0-7.web.default.svc.cluster.local. 30 IN A 10.244.0.7\n\
              additional: fd00--0.web.default.svc.cluster.local. 30 IN AAAA fd00::\n\
              additional: web-0.web.default.svc.cluster.local. 30 IN A 10.244.0.5",
            ),
            (
                "_http._tcp.web.default.svc.cluster.local. A",
                "_http._tcp.web.default.svc.cluster.local. 30 IN A 10.244.0.5\n\
              _http._tcp.web.default.svc.cluster.local. 30 IN A 10.244.0.7",
            ),
            // The specification: without ready endpoints there is no such name.
            ("empty.default.svc.cluster.local. A", "nothing"),
            (
                "portless.default.svc.cluster.local. A",
                "portless.default.svc.cluster.local. 30 IN A 10.244.0.9",
            ),
            ("portless.default.svc.cluster.local. SRV", ""),
            (
                "1-2-3-4.default.pod.cluster.local. A",
                "1-2-3-4.default.pod.cluster.local. 30 IN A 1.2.3.4",
            ),
            ("1-2-3-4.default.pod.cluster.local. AAAA", ""),
            (
                "fd00--7.default.pod.cluster.local. AAAA",
                "fd00--7.default.pod.cluster.local. 30 IN AAAA fd00::7",
            ),
            ("1-2-3-400.default.pod.cluster.local. A", "nothing"),
            ("web-0.default.pod.cluster.local. A", "nothing"),
            ("1-2-3-4.none.pod.cluster.local. A", "nothing"),
            ("x.1-2-3-4.default.pod.cluster.local. A", "nothing"),
        ],
    );
}

#[test]
fn external_names() {
    let (zone, _directory) = cluster();
    let kubernetes = "kubernetes.default.svc.cluster.local. 30 IN A 10.96.0.1";
    let alias = "alias.default.svc.cluster.local. 30 IN CNAME kubernetes.default.svc.cluster.local.";
    let out = "out.default.svc.cluster.local. 30 IN CNAME www.Example.com.";
    check(
        &zone,
        &[
            (
                "out.default.svc.cluster.local. A",
                &format!("{out}\ngoes on: www.Example.com."),
            ),
            (
                "out.default.svc.cluster.local. TXT",
                &format!("{out}\ngoes on: www.Example.com."),
            ),
            ("out.default.svc.cluster.local. CNAME", out),
            ("alias.default.svc.cluster.local. A", &format!("{alias}\n{kubernetes}")),
            ("alias.default.svc.cluster.local. AAAA", &format!("{alias}\n{SOA}")),
            (
                "alias2.default.svc.cluster.local. A",
                &format!(
                    "alias2.default.svc.cluster.local. 30 IN CNAME alias.default.svc.cluster.local.\n{alias}\n{kubernetes}"
                ),
            ),
            (
                "nowhere.default.svc.cluster.local. A",
                &format!(
                    "NXDomain\nnowhere.default.svc.cluster.local. 30 IN CNAME none.default.svc.cluster.local.\n{SOA}"
                ),
            ),
            (
                "loop-a.default.svc.cluster.local. A",
                "loop-a.default.svc.cluster.local. 30 IN CNAME loop-b.default.svc.cluster.local.\n\
                 loop-b.default.svc.cluster.local. 30 IN CNAME loop-a.default.svc.cluster.local.",
            ),
            (
                "self.default.svc.cluster.local. A",
                "self.default.svc.cluster.local. 30 IN CNAME self.default.svc.cluster.local.",
            ),
            ("x.out.default.svc.cluster.local. A", "nothing"),
            ("_http._tcp.out.default.svc.cluster.local. SRV", "nothing"),
            ("address.default.svc.cluster.local. A", "nothing"),
        ],
    );
}

#[test]
fn the_zone_itself_and_names_between() {
    let (zone, mut directory) = cluster();
    let soa = SOA.strip_prefix("authority: ").unwrap();
    check(
        &zone,
        &[
            ("cluster.local. A", ""),
            ("cluster.local. SOA", soa),
            ("cluster.local. NS", "cluster.local. 30 IN NS ns.dns.cluster.local."),
            (
                "dns-version.cluster.local. TXT",
                "dns-version.cluster.local. 28800 IN TXT 1.1.0",
            ),
            ("dns-version.cluster.local. A", ""),
            ("svc.cluster.local. A", ""),
            ("pod.cluster.local. A", ""),
            ("dns.cluster.local. A", ""),
            ("default.svc.cluster.local. A", ""),
            ("empty.svc.cluster.local. A", ""),
            ("empty.pod.cluster.local. A", ""),
            ("none.svc.cluster.local. A", "nothing"),
            ("foo.cluster.local. NS", "nothing"),
            ("local. A", "elsewhere"),
            ("xcluster.local. A", "elsewhere"),
            ("www.example.com. A", "elsewhere"),
            (". NS", "elsewhere"),
        ],
    );
    let mut dns = service("kube-dns", json!({"clusterIP": "10.96.0.10", "ports": [{"port": 53}]}));
    dns.metadata.namespace = "kube-system".into();
    directory.apply_service(dns);
    check(
        &zone,
        &[
            (
                "cluster.local. NS",
                "cluster.local. 30 IN NS kube-dns.kube-system.svc.cluster.local.\n\
                 additional: kube-dns.kube-system.svc.cluster.local. 30 IN A 10.96.0.10",
            ),
            ("ns.dns.cluster.local. A", "ns.dns.cluster.local. 30 IN A 10.96.0.10"),
        ],
    );
}

#[test]
fn addresses_point_back() {
    let (zone, mut directory) = cluster();
    let soa = |apex: &str| SOA.replace("authority: cluster.local.", &format!("authority: {apex}"));
    let nothing = |apex: &str| format!("NXDomain\n{}", soa(apex));
    let six = format!("2.{}8.b.d.0.1.0.0.2.ip6.arpa.", "0.".repeat(23));
    check(
        &zone,
        &[
            (
                "1.0.96.10.in-addr.arpa. PTR",
                "1.0.96.10.in-addr.arpa. 30 IN PTR kubernetes.default.svc.cluster.local.",
            ),
            (
                "5.0.244.10.in-addr.arpa. PTR",
                "5.0.244.10.in-addr.arpa. 30 IN PTR web-0.web.default.svc.cluster.local.",
            ),
            (
                "7.0.244.10.in-addr.arpa. PTR",
                "7.0.244.10.in-addr.arpa. 30 IN PTR 10-244-0-7.web.default.svc.cluster.local.",
            ),
            // Not ready.
            ("6.0.244.10.in-addr.arpa. PTR", &nothing("244.10.in-addr.arpa.")),
            (
                "10.1.168.192.in-addr.arpa. PTR",
                "10.1.168.192.in-addr.arpa. 30 IN PTR 192-168-1-10.kubernetes.default.svc.cluster.local.",
            ),
            ("11.1.168.192.in-addr.arpa. PTR", "elsewhere"),
            ("1.0.96.10.in-addr.arpa. A", &soa("96.10.in-addr.arpa.")),
            ("9.9.97.10.in-addr.arpa. PTR", &nothing("97.10.in-addr.arpa.")),
            ("9.97.10.in-addr.arpa. PTR", &soa("97.10.in-addr.arpa.")),
            (
                "97.10.in-addr.arpa. SOA",
                soa("97.10.in-addr.arpa.").strip_prefix("authority: ").unwrap(),
            ),
            ("10.in-addr.arpa. PTR", "elsewhere"),
            ("x.1.0.96.10.in-addr.arpa. PTR", &nothing("96.10.in-addr.arpa.")),
            (
                &format!("{six} PTR"),
                &format!("{six} 30 IN PTR dual.default.svc.cluster.local."),
            ),
        ],
    );
    // Two services with one pod: a name for each.
    directory.apply_service(service(
        "also",
        json!({"clusterIP": "10.96.0.9", "ports": [{"port": 80}]}),
    ));
    let endpoints = json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.244.0.5"]}]});
    directory.apply_slice(slice("also", "also", endpoints));
    let both = ask(&zone, "5.0.244.10.in-addr.arpa. PTR");
    assert_eq!(both.lines().count(), 2, "{both}");
    directory.remove_service("default", "web");
    check(
        &zone,
        &[(
            "5.0.244.10.in-addr.arpa. PTR",
            "5.0.244.10.in-addr.arpa. 30 IN PTR 10-244-0-5.also.default.svc.cluster.local.",
        )],
    );
}

#[test]
fn before_the_state_is_known_nothing_is_denied() {
    let zone = Zone::new("cluster.local", vec!["10.96.0.0/12".parse().unwrap()]).unwrap();
    for (question, expected) in [
        ("a.b.svc.cluster.local. A", "not yet"),
        ("1.0.96.10.in-addr.arpa. PTR", "not yet"),
        ("1.1.1.1.in-addr.arpa. PTR", "elsewhere"),
        ("example.com. A", "elsewhere"),
    ] {
        assert_eq!(ask(&zone, question), expected);
    }
    for wrong in ["", ".", "a..b", &"a".repeat(64)] {
        assert!(Zone::new(wrong, vec![]).is_err(), "{wrong:?}");
    }
}

/// All that a zone holds, in order.
fn contents(zone: &Zone) -> BTreeMap<String, String> {
    let tables = zone.tables.read();
    let mut all = BTreeMap::new();
    for (namespace, table) in &tables.namespaces {
        all.insert(format!("{namespace}"), format!("{}", table.declared));
        for (name, entry) in &table.services {
            all.insert(format!("{namespace}/{name}"), format!("{entry:?}"));
        }
    }
    for (address, pointers) in &tables.reverse {
        all.insert(format!("{address}"), format!("{pointers:?}"));
    }
    all
}

#[derive(Clone, Debug)]
enum Change {
    Service(Box<Service>),
    NoService(String),
    Slice(Box<EndpointSlice>),
    NoSlice(String),
    Namespace(bool),
    Services(Vec<Service>),
    Slices(Vec<EndpointSlice>),
}

fn any_service() -> impl Strategy<Value = Service> {
    let specs = prop_oneof![
        (1u8..5).prop_map(|n| json!({"clusterIP": format!("10.96.0.{n}"), "ports": [{"name": "p", "port": 80}]})),
        Just(json!({"clusterIP": "None", "ports": [{"name": "p", "port": 80}]})),
        Just(json!({"type": "ExternalName", "externalName": "example.com"})),
        Just(json!({"type": "ExternalName", "externalName": "1.1.1.1"})),
    ];
    ("[abc]", specs).prop_map(|(name, spec)| service(&name, spec))
}

fn any_slice() -> impl Strategy<Value = EndpointSlice> {
    let endpoint = (1u8..6, any::<bool>(), any::<bool>()).prop_map(|(n, ready, named)| {
        let hostname = if named { format!("h{}", n % 3) } else { String::new() };
        json!({"addresses": [format!("10.96.0.{n}")], "conditions": {"ready": ready}, "hostname": hostname})
    });
    let endpoints = prop::collection::vec(endpoint, 0..4);
    ("[xyz]", "[abc]", endpoints).prop_map(|(name, of, endpoints)| {
        let rest = json!({"addressType": "IPv4", "ports": [{"name": "p", "port": 80}], "endpoints": endpoints});
        slice(&name, &of, rest)
    })
}

fn any_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => any_service().prop_map(|s| Change::Service(Box::new(s))),
        2 => "[abc]".prop_map(Change::NoService),
        6 => any_slice().prop_map(|s| Change::Slice(Box::new(s))),
        2 => "[xyz]".prop_map(Change::NoSlice),
        1 => any::<bool>().prop_map(Change::Namespace),
        1 => prop::collection::vec(any_service(), 0..3).prop_map(Change::Services),
        1 => prop::collection::vec(any_slice(), 0..3).prop_map(Change::Slices),
    ]
}

/// The objects that are left in the end.
#[derive(Default)]
struct Left {
    namespace: bool,
    services: BTreeMap<String, Service>,
    slices: BTreeMap<String, EndpointSlice>,
}

impl Left {
    fn take(&mut self, change: Change) {
        match change {
            Change::Service(s) => drop(self.services.insert(s.metadata.name.clone(), *s)),
            Change::NoService(name) => drop(self.services.remove(&name)),
            Change::Slice(s) => drop(self.slices.insert(s.metadata.name.clone(), *s)),
            Change::NoSlice(name) => drop(self.slices.remove(&name)),
            Change::Namespace(is_there) => self.namespace = is_there,
            Change::Services(all) => self.services = all.into_iter().map(|s| (s.metadata.name.clone(), s)).collect(),
            Change::Slices(all) => self.slices = all.into_iter().map(|s| (s.metadata.name.clone(), s)).collect(),
        }
    }
}

fn apply(directory: &mut Directory, change: Change) {
    match change {
        Change::Service(s) => directory.apply_service(*s),
        Change::NoService(name) => directory.remove_service("default", &name),
        Change::Slice(s) => directory.apply_slice(*s),
        Change::NoSlice(name) => directory.remove_slice("default", &name),
        Change::Namespace(true) => directory.apply_namespace(namespace("default")),
        Change::Namespace(false) => directory.remove_namespace("default"),
        Change::Services(all) => directory.reset_services(all),
        Change::Slices(all) => directory.reset_slices(all),
    }
}

proptest! {
    #[test]
    fn changes_one_by_one_end_where_building_anew_does(changes in prop::collection::vec(any_change(), 0..40)) {
        let (followed, mut left) = (zone(), Left::default());
        let mut directory = Directory::new(followed.clone());
        for change in changes {
            apply(&mut directory, change.clone());
            left.take(change);
        }
        let anew = zone();
        let mut directory = Directory::new(anew.clone());
        let namespaces = if left.namespace { vec![namespace("default")] } else { vec![] };
        directory.reset_namespaces(namespaces);
        directory.reset_slices(left.slices.into_values().collect());
        directory.reset_services(left.services.into_values().collect());
        prop_assert_eq!(contents(&followed), contents(&anew));
    }

    #[test]
    fn any_name_has_an_answer(labels in prop::collection::vec("[a-z0-9_*-]{1,8}", 0..7), kind in 0u16..300) {
        let (zone, _directory) = cluster();
        let name = Name::from_ascii(format!("{}.svc.cluster.local.", labels.join("."))).unwrap_or_default();
        let _ = zone.answer(&name, RecordType::from(kind));
    }
}

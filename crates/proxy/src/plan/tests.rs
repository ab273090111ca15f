use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::objects;

fn service(name: &str, spec: Value) -> objects::Service {
    let mut all = json!({"type": "ClusterIP", "ports": [{"name": "http", "protocol": "TCP", "port": 80}]});
    all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let object = json!({
        "metadata": {"name": name, "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": all, "status": spec.get("status").cloned().unwrap_or(json!({})),
    });
    serde_json::from_value(object).unwrap()
}

/// `endpoints` is a list of "address@node flags": r ready, s serving, t terminating, z=…, n=… hints.
fn slice(name: &str, of: &str, endpoints: &[&str]) -> objects::EndpointSlice {
    let endpoints: Vec<Value> = endpoints.iter().map(|text| endpoint(text)).collect();
    let family = match endpoints
        .first()
        .is_some_and(|e| e["addresses"][0].to_string().contains("::"))
    {
        true => "IPv6",
        false => "IPv4",
    };
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": of}},
        "addressType": family, "endpoints": endpoints,
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    }))
    .unwrap()
}

fn endpoint(text: &str) -> Value {
    let mut words = text.split(' ');
    let (address, node) = words.next().unwrap().split_once('@').unwrap();
    let flags = words.next().unwrap_or("rs");
    let mut hints = json!({});
    for word in words {
        let (kind, name) = word.split_once('=').unwrap();
        hints[if kind == "z" { "forZones" } else { "forNodes" }] = json!([{"name": name}]);
    }
    json!({
        "addresses": [address], "nodeName": node, "hints": hints,
        "conditions": {
            "ready": flags.contains('r'), "serving": flags.contains('s'), "terminating": flags.contains('t'),
        },
    })
}

fn here() -> Node {
    Node {
        name: "a".into(),
        addresses: vec!["192.168.0.1".parse().unwrap()],
        zone: Some("z1".into()),
        pod_ranges: vec![],
    }
}

fn planner(services: &[objects::Service], slices: &[objects::EndpointSlice]) -> Planner {
    let mut planner = Planner::new(here());
    planner.replace_services(services);
    planner.replace_slices(slices);
    planner.take_changes();
    planner
}

fn shown(endpoints: &[Endpoint]) -> String {
    let one = |e: &Endpoint| format!("{}{}", e.address.ip(), if e.is_local { "!" } else { "" });
    endpoints.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn only(planner: &Planner) -> &ServicePort {
    assert_eq!(planner.plan().ports.len(), 1);
    planner.plan().ports.values().next().unwrap()
}

#[test]
fn endpoints_by_readiness_policy_and_hints() {
    let local = json!({"clusterIP": "10.0.0.1", "internalTrafficPolicy": "Local"});
    let plain = json!({"clusterIP": "10.0.0.1"});
    let outer = json!({
        "clusterIP": "10.0.0.1", "type": "NodePort", "externalTrafficPolicy": "Local",
        "ports": [{"name": "http", "port": 80, "nodePort": 30080}],
    });
    // (spec, endpoints, under Cluster, under Local, any at all)
    let cases: &[(&Value, &[&str], &str, &str, bool)] = &[
        (&plain, &["1.0.0.2@b", "1.0.0.1@a"], "1.0.0.1! 1.0.0.2", "", true),
        (&plain, &["1.0.0.1@a s", "1.0.0.2@b"], "1.0.0.2", "", true),
        (&plain, &["1.0.0.1@a s"], "", "", false),
        (&plain, &["1.0.0.1@a st", "1.0.0.2@b"], "1.0.0.2", "", true),
        (&plain, &["1.0.0.1@a st", "1.0.0.2@b t"], "1.0.0.1!", "", true),
        (&plain, &[], "", "", false),
        (&local, &["1.0.0.1@a", "1.0.0.2@b"], "", "1.0.0.1!", true),
        (&local, &["1.0.0.2@b"], "", "", true),
        (&local, &["1.0.0.1@a st", "1.0.0.2@b"], "", "1.0.0.1!", true),
        (&plain, &["1.0.0.1@b rs z=z1", "1.0.0.2@c rs z=z2"], "1.0.0.1", "", true),
        (
            &plain,
            &["1.0.0.1@b rs z=z1", "1.0.0.2@c rs"],
            "1.0.0.1 1.0.0.2",
            "",
            true,
        ),
        (&plain, &["1.0.0.1@b rs z=z3"], "1.0.0.1", "", true),
        (
            &plain,
            &["1.0.0.1@b rs z=z1 n=b", "1.0.0.2@a rs z=z1 n=a"],
            "1.0.0.2!",
            "",
            true,
        ),
        (
            &plain,
            &["1.0.0.1@b rs z=z1 n=b", "1.0.0.2@c rs z=z2 n=c"],
            "1.0.0.1",
            "",
            true,
        ),
        (
            &outer,
            &["1.0.0.1@a", "1.0.0.2@b"],
            "1.0.0.1! 1.0.0.2",
            "1.0.0.1!",
            true,
        ),
    ];
    for (spec, endpoints, cluster, local, any) in cases {
        let planner = planner(&[service("x", (*spec).clone())], &[slice("x-1", "x", endpoints)]);
        let port = only(&planner);
        let found = (shown(&port.cluster), shown(&port.local), port.has_endpoints);
        assert_eq!(
            found,
            (cluster.to_string(), local.to_string(), *any),
            "{spec} {endpoints:?}"
        );
    }
}

#[test]
fn an_address_that_moves_between_slices_counts_where_it_stays() {
    let slices = [slice("x-1", "x", &["1.0.0.1@a st"]), slice("x-2", "x", &["1.0.0.1@a"])];
    for order in [[0, 1], [1, 0]] {
        let slices: Vec<_> = order.iter().map(|i| slices[*i].clone()).collect();
        let planner = planner(&[service("x", json!({"clusterIP": "10.0.0.1"}))], &slices);
        assert_eq!(shown(&only(&planner).cluster), "1.0.0.1!");
    }
}

#[test]
fn services_that_are_not_for_us_are_left_out() {
    let mut elsewhere = service("d", json!({"clusterIP": "10.0.0.4"}));
    elsewhere
        .metadata
        .labels
        .insert(facts::PROXY_NAME.into(), "other".into());
    let services = [
        service("a", json!({"clusterIP": "None"})),
        service("b", json!({"clusterIP": ""})),
        service("c", json!({"clusterIP": "10.0.0.3", "type": "ExternalName"})),
        elsewhere,
    ];
    assert!(planner(&services, &[]).plan().ports.is_empty());
}

#[test]
fn a_dual_stack_service_is_planned_once_for_each_family() {
    let spec = json!({
        "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"], "type": "LoadBalancer",
        "externalIPs": ["5.5.5.5", "fd05::5"], "loadBalancerSourceRanges": [" 9.0.0.0/8", "fd09::/16"],
        "ports": [{"name": "http", "protocol": "TCP", "port": 80, "nodePort": 30080}],
        "status": {"loadBalancer": {"ingress": [{"ip": "6.6.6.6"}, {"ip": "7.7.7.7", "ipMode": "Proxy"}]}},
        "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 7}},
        "externalTrafficPolicy": "Local", "healthCheckNodePort": 31000,
    });
    let slices = [slice("x-4", "x", &["1.0.0.1@a"]), slice("x-6", "x", &["fd01::1@b"])];
    let planner = planner(&[service("x", spec)], &slices);
    let ports: Vec<_> = planner.plan().ports.values().collect();
    assert_eq!(ports.len(), 2);
    assert_eq!(ports[0].external_ips, ["5.5.5.5".parse::<IpAddr>().unwrap()]);
    assert_eq!(ports[0].load_balancer_ips, ["6.6.6.6".parse::<IpAddr>().unwrap()]);
    assert_eq!(ports[0].source_ranges, ["9.0.0.0/8".parse().unwrap()]);
    assert_eq!((ports[0].affinity, ports[0].node_port), (Some(7), Some(30080)));
    assert_eq!(shown(&ports[0].local), "1.0.0.1!");
    assert_eq!(ports[0].external_refusal(), None);
    assert_eq!(shown(&ports[1].cluster), "fd01::1");
    assert_eq!(ports[1].external_refusal(), Some(Refusal::Drop));
    let health: Vec<_> = planner.health_checks().values().collect();
    let want = HealthCheck {
        port: 31000,
        local_endpoints: 1,
    };
    assert_eq!(health, [&want]);
}

#[test]
fn what_two_services_claim_the_older_one_has() {
    let at = |name: &str, ip: &str, created: &str, outer: &str| {
        let mut service = service(name, json!({"clusterIP": ip, "externalIPs": [outer]}));
        service.metadata.creation_timestamp = Some(created.parse().unwrap());
        service
    };
    let old = at("z", "10.0.0.1", "2026-01-01T00:00:00Z", "5.5.5.5");
    let new = at("a", "10.0.0.2", "2026-02-01T00:00:00Z", "5.5.5.5");
    // External addresses never win over a cluster address.
    let thief = at("b", "10.0.0.3", "2025-01-01T00:00:00Z", "10.0.0.1");
    let mut planner = planner(&[new.clone(), thief], &[]);
    let holders = |planner: &Planner| {
        let ports = planner.plan().ports.values();
        let holders = ports.filter(|p| !p.external_ips.is_empty());
        holders.map(|p| p.key.name.to_string()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(holders(&planner), "a b");
    planner.apply_service(&old);
    let Change::Keys(keys) = planner.take_changes().change else {
        panic!()
    };
    let names: Vec<_> = keys.iter().map(|key| key.to_string()).collect();
    assert_eq!(names, ["default/a:http", "default/b:http", "default/z:http"]);
    assert_eq!(holders(&planner), "z");
    planner.forget_service("default", "z");
    planner.take_changes();
    assert_eq!(holders(&planner), "a b");
    assert!(planner.is_settled());
}

#[test]
fn a_change_tells_only_what_it_changes() {
    let services = [
        service("x", json!({"clusterIP": "10.0.0.1"})),
        service("y", json!({"clusterIP": "10.0.0.2"})),
    ];
    let mut planner = planner(&services, &[slice("x-1", "x", &["1.0.0.1@a"])]);
    planner.apply_slice(&slice("x-1", "x", &["1.0.0.1@a"]));
    assert_eq!(planner.take_changes().change, Change::Keys(vec![]));
    planner.apply_slice(&slice("x-1", "x", &["1.0.0.1@a", "1.0.0.2@a s"]));
    assert_eq!(
        planner.take_changes().change,
        Change::Keys(vec![]),
        "an endpoint that isn't ready is of no interest"
    );
    planner.apply_slice(&slice("x-1", "x", &["1.0.0.2@a"]));
    let Change::Keys(keys) = planner.take_changes().change else {
        panic!()
    };
    assert_eq!(keys.len(), 1);
    // A slice that speaks for another service from now on.
    planner.apply_slice(&slice("x-1", "y", &["1.0.0.2@a"]));
    let Change::Keys(keys) = planner.take_changes().change else {
        panic!()
    };
    assert_eq!(keys.len(), 2);
    planner.set_node(Node {
        name: "b".into(),
        ..here()
    });
    assert_eq!(planner.take_changes().change, Change::All);
}

#[test]
fn slices_that_name_nothing_change_nothing() {
    let mut planner = planner(&[service("x", json!({"clusterIP": "10.0.0.1"}))], &[]);
    for (field, value) in [
        ("metadata", json!({"name": "s", "namespace": "default"})),
        ("addressType", json!("FQDN")),
        (
            "ports",
            json!([{"name": null, "port": 1}, {"name": "http"}, {"name": "http", "port": 0}]),
        ),
        ("ports", Value::Null),
        (
            "endpoints",
            json!([{"addresses": []}, {"addresses": ["nonsense"]}, {"addresses": ["fd00::1"]}]),
        ),
        ("endpoints", Value::Null),
    ] {
        let mut object = json!({
            "metadata": {"name": "s", "namespace": "default", "labels": {"kubernetes.io/service-name": "x"}},
            "addressType": "IPv4", "endpoints": [{"addresses": ["1.0.0.1"]}],
            "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        });
        object[field] = value;
        planner.apply_slice(&serde_json::from_value(object).unwrap());
        planner.take_changes();
        assert!(only(&planner).cluster.is_empty(), "{field}");
        planner.forget_slice("default", "s");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Service(u8, u8, bool),
    ForgetService(u8),
    Slice(u8, u8, Vec<(u8, u8)>),
    ForgetSlice(u8),
    Take,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..4u8, 0..3u8, any::<bool>()).prop_map(|(n, ip, local)| Step::Service(n, ip, local)),
        (0..4u8).prop_map(Step::ForgetService),
        (0..4u8, 0..4u8, prop::collection::vec((0..4u8, 0..3u8), 0..4)).prop_map(|(n, of, e)| Step::Slice(n, of, e)),
        (0..4u8).prop_map(Step::ForgetSlice),
        Just(Step::Take),
    ];
    prop::collection::vec(step, 0..40)
}

proptest! {
    /// Whatever happens in whatever order: the plan is that of the last state, and every difference was told.
    #[test]
    fn steps_lead_where_the_whole_state_leads(steps in steps()) {
        let mut planner = Planner::new(here());
        planner.take_changes();
        let (mut services, mut slices) = (BTreeMap::new(), BTreeMap::new());
        let mut told = planner.plan().clone();
        for step in steps.into_iter().chain([Step::Take]) {
            match step {
                Step::Service(n, ip, local) => {
                    let policy = if local { "Local" } else { "Cluster" };
                    let object = service(&format!("s{n}"), json!({
                        "clusterIP": format!("10.0.0.{n}"), "externalIPs": [format!("5.5.5.{ip}")],
                        "externalTrafficPolicy": policy,
                    }));
                    planner.apply_service(&object);
                    services.insert(n, object);
                }
                Step::ForgetService(n) => {
                    planner.forget_service("default", &format!("s{n}"));
                    services.remove(&n);
                }
                Step::Slice(n, of, endpoints) => {
                    let flags = ["rs", "st", "t"];
                    let one = |(ip, state): &(u8, u8)| format!("1.0.0.{ip}@a {}", flags[*state as usize]);
                    let endpoints: Vec<String> = endpoints.iter().map(one).collect();
                    let endpoints: Vec<&str> = endpoints.iter().map(|e| &**e).collect();
                    let object = slice(&format!("e{n}"), &format!("s{of}"), &endpoints);
                    planner.apply_slice(&object);
                    slices.insert(n, object);
                }
                Step::ForgetSlice(n) => {
                    planner.forget_slice("default", &format!("e{n}"));
                    slices.remove(&n);
                }
                Step::Take => {
                    let Change::Keys(keys) = planner.take_changes().change else { panic!("the node is the same") };
                    for key in keys {
                        match planner.plan().ports.get(&key) {
                            Some(port) => told.ports.insert(key, port.clone()),
                            None => told.ports.remove(&key),
                        };
                    }
                    prop_assert_eq!(&told, planner.plan());
                    let services: Vec<_> = services.values().cloned().collect();
                    let slices: Vec<_> = slices.values().cloned().collect();
                    let fresh = super::tests::planner(&services, &slices);
                    prop_assert_eq!(fresh.plan(), planner.plan());
                }
            }
        }
    }
}

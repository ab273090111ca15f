use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::hints::{ZoneShares, zone_shares};
use super::plan::{Plan, Remark, ServiceSnapshot, plan};
use crate::objects::endpoint_slice::{EndpointPort, HEADLESS, MANAGED_BY, SERVICE_NAME};
use crate::objects::{EndpointSlice, Node, Pod, Service};

fn object<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A service at port 80 → `web`, its pods, and the slices as the plans so far have made them.
struct World {
    service: Service,
    pods: BTreeMap<String, Value>,
    slices: BTreeMap<String, EndpointSlice>,
    zones: Option<ZoneShares>,
    max: usize,
    made: usize,
    was_spread: bool,
}

impl World {
    fn new(max: usize) -> World {
        let service = json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "s1", "labels": {"team": "red"}},
            "spec": {"clusterIP": "10.96.0.9", "ipFamilies": ["IPv4"], "selector": {"app": "web"},
                     "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": "web"}]},
        });
        World {
            service: object(service),
            pods: BTreeMap::new(),
            slices: BTreeMap::new(),
            zones: None,
            max,
            made: 0,
            was_spread: false,
        }
    }

    /// Pod `n` listens at 8080 on node `n % 4`.
    fn pod(&mut self, n: usize, ready: bool) {
        let ip = format!("10.0.{}.{}", n / 256, n % 256);
        let status = if ready { "True" } else { "False" };
        let pod = json!({
            "metadata": {"name": format!("p{n}"), "namespace": "ns", "uid": format!("u{n}")},
            "spec": {"nodeName": format!("n{}", n % 4),
                     "containers": [{"ports": [{"name": "web", "containerPort": 8080, "protocol": "TCP"}]}]},
            "status": {"podIP": ip, "podIPs": [{"ip": ip}, {"ip": format!("fd00::{n:x}")}],
                       "conditions": [{"type": "Ready", "status": status}]},
        });
        self.pods.insert(format!("p{n}"), pod);
    }

    fn change(&mut self, n: usize, change: impl FnOnce(&mut Value)) {
        if let Some(pod) = self.pods.get_mut(&format!("p{n}")) {
            change(pod);
        }
    }

    fn plan(&self) -> Plan {
        let pods: Vec<Arc<Pod>> = self.pods.values().map(|pod| Arc::new(object(pod.clone()))).collect();
        let slices: Vec<Arc<EndpointSlice>> = self.slices.values().map(|s| Arc::new(s.clone())).collect();
        plan(&ServiceSnapshot {
            service: &self.service,
            pods: &pods,
            node: &|name| Some(Arc::new(node(name.strip_prefix('n')?.parse().ok()?))),
            slices: &slices,
            zones: self.zones.as_ref(),
            was_spread: self.was_spread,
            max: self.max,
        })
    }

    /// Writes: made, changed, deleted.
    fn reconcile(&mut self) -> (usize, usize, usize) {
        let plan = self.plan();
        let writes = (plan.create.len(), plan.update.len(), plan.delete.len());
        self.was_spread = plan.is_spread;
        for mut slice in plan.create {
            assert_eq!(slice.metadata.generate_name, "web-");
            // Names in no order, as the server makes them.
            slice.metadata.name = format!("web-{:x}-{}", (self.made * 7919) % 251, self.made);
            self.made += 1;
            assert!(self.slices.insert(slice.metadata.name.clone(), slice).is_none());
        }
        for slice in plan.update {
            assert!(self.slices.insert(slice.metadata.name.clone(), slice).is_some());
        }
        for slice in plan.delete {
            assert!(self.slices.remove(&slice.metadata.name).is_some());
        }
        writes
    }

    fn sizes(&self) -> Vec<usize> {
        let mut sizes: Vec<usize> = self.slices.values().map(|s| s.endpoints.len()).collect();
        sizes.sort_unstable();
        sizes
    }

    fn hints(&self) -> BTreeMap<String, usize> {
        let mut hints = BTreeMap::new();
        for hint in self
            .slices
            .values()
            .flat_map(|s| &s.endpoints)
            .filter_map(|e| e.hints.as_ref())
        {
            for name in hint.for_zones.iter().chain(&hint.for_nodes) {
                *hints.entry(name.name.clone()).or_default() += 1;
            }
        }
        hints
    }
}

/// Nodes 0 and 1 in zone a, node 2 in b, node 3 in c.
fn node(n: usize) -> Node {
    let zone = ["a", "a", "b", "c"][n];
    object(json!({
        "metadata": {"name": format!("n{n}"), "labels": {"topology.kubernetes.io/zone": zone}},
        "status": {"allocatable": {"cpu": "2"}, "conditions": [{"type": "Ready", "status": "True"}]},
    }))
}

fn nodes(which: &[usize]) -> Vec<Arc<Node>> {
    which.iter().map(|n| Arc::new(node(*n))).collect()
}

#[test]
fn an_endpoint_says_all_about_its_pod() {
    let mut world = World::new(100);
    world.pod(1, true);
    world.change(1, |pod| {
        pod["spec"]["hostname"] = json!("one");
        pod["spec"]["subdomain"] = json!("web");
    });
    world.reconcile();
    let slice = world.slices.into_values().next().unwrap();
    let sent = crate::objects::with_type_meta(&slice);
    assert_eq!(
        sent["endpoints"],
        json!([{
            "addresses": ["10.0.0.1"], "conditions": {"ready": true, "serving": true, "terminating": false},
            "hostname": "one", "nodeName": "n1", "zone": "a",
            "targetRef": {"kind": "Pod", "namespace": "ns", "name": "p1", "uid": "u1"},
        }])
    );
    let ports = json!([{"name": "http", "protocol": "TCP", "port": 8080}]);
    assert_eq!((&sent["ports"], &sent["addressType"]), (&ports, &json!("IPv4")));
    assert_eq!(
        (&sent["apiVersion"], &sent["kind"]),
        (&json!("discovery.k8s.io/v1"), &json!("EndpointSlice"))
    );
    assert_eq!(
        sent["metadata"]["labels"],
        json!({"team": "red", SERVICE_NAME: "web", MANAGED_BY: "endpointslice-controller.k8s.io"})
    );
    let owner = json!([{"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "s1",
                        "controller": true, "blockOwnerDeletion": true}]);
    assert_eq!(sent["metadata"]["ownerReferences"], owner);
}

#[test]
fn conditions_follow_the_pod() {
    for (ready, deleted, publish, wanted) in [
        (true, false, false, [true, true, false]),
        (false, false, false, [false, false, false]),
        (true, true, false, [false, true, true]),
        (false, true, false, [false, false, true]),
        (false, false, true, [true, false, false]),
        (true, true, true, [true, true, true]),
    ] {
        let mut world = World::new(100);
        world.service.spec.publish_not_ready_addresses = publish;
        world.pod(1, ready);
        if deleted {
            world.change(1, |pod| {
                pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")
            });
        }
        world.reconcile();
        let conditions = world.slices.values().next().unwrap().endpoints[0].conditions.clone();
        let got = [conditions.ready, conditions.serving, conditions.terminating];
        assert_eq!(
            got,
            wanted.map(Some),
            "ready {ready}, deleted {deleted}, publish {publish}"
        );
    }
}

#[test]
fn slices_are_filled_with_few_writes() {
    let mut world = World::new(3);
    assert_eq!(world.reconcile(), (1, 0, 0), "no pods: one slice that says so");
    assert_eq!(world.slices.values().next().unwrap().ports, []);
    assert_eq!(world.reconcile(), (0, 0, 0));
    (0..7).for_each(|n| world.pod(n, true));
    assert_eq!(world.reconcile(), (2, 1, 0), "the empty slice is used");
    assert_eq!(world.sizes(), [1, 3, 3]);
    world.pod(7, true);
    assert_eq!(world.reconcile(), (0, 1, 0), "the slice with room");
    assert_eq!(world.sizes(), [2, 3, 3]);
    world.pods.remove("p0");
    world.pod(8, true);
    assert_eq!(world.reconcile(), (0, 1, 0), "the slice that changes anyway");
    assert_eq!(world.sizes(), [2, 3, 3]);
    world.pods.clear();
    assert_eq!(world.reconcile(), (0, 1, 2));
    assert_eq!(world.sizes(), [0]);
    assert_eq!(world.reconcile(), (0, 0, 0));
}

#[test]
fn pods_with_other_ports_have_slices_of_their_own() {
    let mut world = World::new(100);
    (0..4).for_each(|n| world.pod(n, true));
    world.change(1, |pod| {
        pod["spec"]["containers"][0]["ports"][0]["containerPort"] = json!(9090)
    });
    world.change(2, |pod| {
        pod["spec"]["containers"][0]["ports"][0]["name"] = json!("other")
    });
    world.reconcile();
    let found: BTreeSet<(Option<u16>, usize)> = world
        .slices
        .values()
        .map(|s| (s.ports.first().and_then(|p| p.port), s.endpoints.len()))
        .collect();
    assert_eq!(found, [(None, 1), (Some(8080), 2), (Some(9090), 1)].into());
}

#[test]
fn labels_families_and_owners_are_kept_right() {
    let mut world = World::new(100);
    world.pod(1, true);
    world.reconcile();
    world.service.metadata.labels = object(json!({"team": "blue", MANAGED_BY: "me"}));
    world.service.spec.cluster_ip = "None".to_string();
    assert_eq!(world.reconcile(), (0, 1, 0));
    let labels = &world.slices.values().next().unwrap().metadata.labels;
    assert_eq!((labels["team"].as_str(), labels[HEADLESS].as_str()), ("blue", ""));
    assert_eq!(labels[MANAGED_BY], "endpointslice-controller.k8s.io");
    world.service.spec.ip_families = vec!["IPv6".to_string(), "IPv4".to_string()];
    assert_eq!(world.reconcile(), (1, 0, 0));
    world.service.spec.ip_families.pop();
    assert_eq!(world.reconcile(), (0, 0, 1));
    assert_eq!(
        world.slices.values().next().unwrap().endpoints[0].addresses,
        ["fd00::1"]
    );
    world.service.metadata.uid = "s2".to_string();
    assert_eq!(world.reconcile(), (1, 0, 1), "another service of the same name");
    world.service.metadata.deletion_timestamp = Some(jiff::Timestamp::UNIX_EPOCH);
    world.service.metadata.uid = "s3".to_string();
    assert_eq!(world.reconcile(), (0, 0, 1), "one that goes gets nothing new");
}

#[test]
fn pods_of_unknown_nodes_wait() {
    let mut world = World::new(100);
    world.pod(1, true);
    world.change(1, |pod| pod["spec"]["nodeName"] = json!("gone"));
    world.reconcile();
    assert_eq!(world.sizes(), [0]);
    world.service.spec.publish_not_ready_addresses = true;
    world.reconcile();
    assert_eq!(world.sizes(), [1]);
}

#[test]
fn traffic_stays_close_if_wanted() {
    for (distribution, hints) in [
        (None, json!({})),
        (Some("PreferClose"), json!({"a": 2, "b": 1})),
        (Some("PreferSameZone"), json!({"a": 2, "b": 1})),
        (
            Some("PreferSameNode"),
            json!({"a": 2, "b": 1, "n0": 1, "n1": 1, "n2": 1}),
        ),
        (Some("Whatever"), json!({})),
    ] {
        let mut world = World::new(100);
        (0..4).for_each(|n| world.pod(n, n != 3));
        world.service.spec.traffic_distribution = distribution.map(str::to_string);
        world.reconcile();
        assert_eq!(json!(world.hints()), hints, "{distribution:?}");
        assert_eq!(world.reconcile(), (0, 0, 0));
        world.service.spec.traffic_distribution = None;
        assert_eq!(world.reconcile().1, usize::from(hints != json!({})));
        assert_eq!(json!(world.hints()), json!({}));
    }
}

#[test]
fn auto_spreads_over_the_zones_by_cpu() {
    let cases: [(&str, &[usize], usize, Value, &str); 5] = [
        (
            "half, a quarter, a quarter",
            &[0, 1, 2, 3],
            12,
            json!({"a": 6, "b": 3, "c": 3}),
            "Topology Aware Hints has been enabled, addressType: IPv4",
        ),
        (
            "zone c has pods, but no node that counts",
            &[0, 2],
            12,
            json!({"a": 6, "b": 3, "c": 3}),
            "Topology Aware Hints has been enabled, addressType: IPv4",
        ),
        (
            "one zone",
            &[0, 1],
            12,
            json!({}),
            "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes, addressType: IPv4",
        ),
        (
            "too few endpoints",
            &[0, 2, 3],
            2,
            json!({}),
            "Insufficient number of endpoints (2 endpoints, 3 zones), addressType: IPv4",
        ),
        (
            "too uneven",
            &[0, 2, 3],
            4,
            json!({}),
            "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold \
             (4 endpoints, 3 zones), addressType: IPv4",
        ),
    ];
    for (name, of_nodes, pods, hints, message) in cases {
        let mut world = World::new(100);
        world.service.metadata.annotations = object(json!({"service.kubernetes.io/topology-mode": "Auto"}));
        world.zones = zone_shares(&nodes(of_nodes));
        (0..pods).for_each(|n| world.pod(n, true));
        let remarks = world.plan().remarks;
        assert_eq!(remarks.len(), 1, "{name}");
        assert_eq!(remarks[0].message, message, "{name}");
        world.reconcile();
        assert_eq!(json!(world.hints()), hints, "{name}");
        assert_eq!(world.reconcile(), (0, 0, 0), "{name}");
    }
}

#[test]
fn auto_moves_hints_when_zones_change() {
    let mut world = World::new(5);
    world.service.metadata.annotations = object(json!({"service.kubernetes.io/topology-mode": "auto"}));
    world.zones = Some([("a".to_string(), 0.5), ("b".to_string(), 0.5)].into());
    // All in zone a.
    (0..10).map(|n| n * 4).for_each(|n| world.pod(n, true));
    world.reconcile();
    assert_eq!(json!(world.hints()), json!({"a": 5, "b": 5}));
    assert_eq!((world.reconcile(), world.plan().remarks), ((0, 0, 0), vec![]));
    world.service.metadata.annotations.clear();
    let disabled = Remark {
        is_warning: true,
        reason: "TopologyAwareHintsDisabled",
        message: "Topology Aware Hints has been disabled, addressType: IPv4".to_string(),
    };
    assert_eq!(world.plan().remarks, [disabled]);
    world.reconcile();
    assert_eq!(json!(world.hints()), json!({}));
}

#[derive(Clone, Debug)]
enum Step {
    Put(usize, bool),
    Gone(usize),
    Terminating(usize),
    Port(usize, u16),
    NoAddress(usize),
    Reconcile,
}

fn step() -> impl Strategy<Value = Step> {
    let n = 0..40usize;
    prop_oneof![
        6 => (n.clone(), any::<bool>()).prop_map(|(n, ready)| Step::Put(n, ready)),
        3 => n.clone().prop_map(Step::Gone),
        1 => n.clone().prop_map(Step::Terminating),
        2 => (n.clone(), prop_oneof![Just(8080), Just(9090)]).prop_map(|(n, port)| Step::Port(n, port)),
        1 => n.prop_map(Step::NoAddress),
        2 => Just(Step::Reconcile),
    ]
}

fn take(world: &mut World, step: Step) {
    match step {
        Step::Put(n, ready) => world.pod(n, ready),
        Step::Gone(n) => {
            world.pods.remove(&format!("p{n}"));
        }
        Step::Terminating(n) => {
            world.change(n, |pod| {
                pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z")
            });
        }
        Step::Port(n, port) => world.change(n, |pod| {
            pod["spec"]["containers"][0]["ports"][0]["containerPort"] = json!(port);
        }),
        Step::NoAddress(n) => world.change(n, |pod| pod["status"]["podIPs"] = json!([])),
        Step::Reconcile => {
            world.reconcile();
        }
    }
}

/// Every address in the slice of its ports, once.
fn check(world: &World) -> Result<(), TestCaseError> {
    let mut found: BTreeMap<String, Vec<EndpointPort>> = BTreeMap::new();
    for slice in world.slices.values() {
        prop_assert!(slice.endpoints.len() <= world.max);
        for endpoint in &slice.endpoints {
            let twice = found.insert(endpoint.addresses[0].clone(), slice.ports.clone());
            prop_assert!(twice.is_none(), "{} twice", endpoint.addresses[0]);
        }
    }
    prop_assert!(!world.slices.is_empty());
    let empty = world.slices.values().filter(|s| s.endpoints.is_empty()).count();
    prop_assert!(empty == usize::from(found.is_empty()), "empty slices beside full ones");
    let families = world.service.spec.ip_families.len();
    for pod in world.pods.values() {
        for ip in pod["status"]["podIPs"].as_array().unwrap().iter().take(families) {
            let ports = found.remove(ip["ip"].as_str().unwrap());
            let port = ports.and_then(|ports| ports[0].port).map(i64::from);
            prop_assert_eq!(port, pod["spec"]["containers"][0]["ports"][0]["containerPort"].as_i64());
        }
    }
    prop_assert!(found.is_empty(), "{:?} of no pod", found);
    Ok(())
}

proptest! {
    #[test]
    fn after_any_changes_each_address_is_in_one_slice(
        steps in prop::collection::vec(step(), 0..120),
        max in 1..7usize,
        distribution in prop_oneof![Just(None), Just(Some("PreferSameZone")), Just(Some("PreferSameNode"))],
    ) {
        let mut world = World::new(max);
        world.service.spec.traffic_distribution = distribution.map(str::to_string);
        for step in steps {
            take(&mut world, step);
        }
        world.reconcile();
        check(&world)?;
        prop_assert_eq!(world.reconcile(), (0, 0, 0));
        // A smaller limit is kept too.
        world.max = 1.max(max / 2);
        world.reconcile();
        check(&world)?;
        prop_assert_eq!(world.reconcile(), (0, 0, 0));
    }

    #[test]
    fn spreading_comes_to_rest(steps in prop::collection::vec(step(), 0..120), shares in prop::collection::vec(1..9u32, 2..4)) {
        let mut world = World::new(5);
        world.service.metadata.annotations = object(json!({"service.kubernetes.io/topology-mode": "Auto"}));
        let all: u32 = shares.iter().sum();
        let zones = ["a", "b", "c"].iter().zip(&shares);
        world.zones = Some(zones.map(|(zone, n)| (zone.to_string(), f64::from(*n) / f64::from(all))).collect());
        for step in steps {
            take(&mut world, step);
        }
        world.reconcile();
        // New slices have got names by now, hence another order.
        world.reconcile();
        prop_assert_eq!(world.reconcile(), (0, 0, 0));
        check(&world)?;
    }
}

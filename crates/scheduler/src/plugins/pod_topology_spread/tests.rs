use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::cluster::topology::testing::World;
use crate::framework::event::{Actions, Object, Resource};
use crate::framework::points::Score;
use crate::model::Labels;

const OK: &str = "ok";
const UNEVEN: &str = "U: node(s) didn't match pod topology spread constraints";
const NO_LABEL: &str = "UU: node(s) didn't match pod topology spread constraints (missing required label)";

fn spread(key: &str, skew: i32, action: &str, more: Value) -> Value {
    let mut constraint = json!({"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": action,
        "labelSelector": {"matchLabels": {"app": "x"}}});
    constraint
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    constraint
}

fn hard(skew: i32, more: Value) -> Value {
    json!([spread("zone", skew, "DoNotSchedule", more)])
}

fn soft(key: &str, skew: i32) -> Value {
    spread(key, skew, "ScheduleAnyway", json!({}))
}

/// z1: a with 2 pods, b with 1; z2: c with 1; d is in no zone and has none.
fn world(zone: &str) -> World {
    let mut world = World::default();
    for (node, value, rack) in [("a", "z1", "r1"), ("b", "z1", "r2"), ("c", "z2", "")] {
        let mut labels = json!({zone: value});
        if !rack.is_empty() {
            labels["rack"] = json!(rack);
        }
        world.node(node, labels);
    }
    world.node("d", json!({"rack": "r3"}));
    for (node, version) in [("a", "1"), ("a", "2"), ("b", "2"), ("c", "1")] {
        world.place(node, json!({"app": "x", "v": version}), json!({}));
    }
    world.place("d", json!({"app": "other"}), json!({}));
    world
}

#[test]
fn required_constraints() {
    let with = |constraints: Value| json!({"topologySpreadConstraints": constraints});
    let both = |mut spec: Value, more: Value| {
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let z2 = json!({"nodeSelector": {"zone": "z2"}});
    let two = json!([
        spread("zone", 1, "DoNotSchedule", json!({})),
        spread("rack", 2, "DoNotSchedule", json!({}))
    ]);
    let mut host = hard(1, json!({}));
    host[0]["topologyKey"] = json!("kubernetes.io/hostname");
    let cases: Vec<(&str, &str, Value, [&str; 4])> = vec![
        // z1 holds 3, z2 holds 1: 3+1-1 and 1+1-1.
        (
            "too many in z1",
            "x",
            with(hard(1, json!({}))),
            [UNEVEN, UNEVEN, OK, NO_LABEL],
        ),
        ("just few enough", "x", with(hard(3, json!({}))), [OK, OK, OK, NO_LABEL]),
        (
            "one more than allowed",
            "x",
            with(hard(2, json!({}))),
            [UNEVEN, UNEVEN, OK, NO_LABEL],
        ),
        (
            "the pod itself does not count",
            "y",
            with(hard(2, json!({}))),
            [OK, OK, OK, NO_LABEL],
        ),
        ("per node: 2, 1, 1, 0", "x", with(host), [UNEVEN, UNEVEN, UNEVEN, OK]),
        (
            "too few domains: the least is 0",
            "x",
            with(hard(3, json!({"minDomains": 3}))),
            [UNEVEN, UNEVEN, OK, NO_LABEL],
        ),
        (
            "enough domains",
            "x",
            with(hard(3, json!({"minDomains": 2}))),
            [OK, OK, OK, NO_LABEL],
        ),
        (
            "no selector matches nothing",
            "x",
            with(hard(1, json!({"labelSelector": null}))),
            [OK, OK, OK, NO_LABEL],
        ),
        (
            "an empty selector counts nothing",
            "x",
            with(hard(1, json!({"labelSelector": {}}))),
            [OK, OK, OK, NO_LABEL],
        ),
        (
            "nodes that the pod cannot go to do not count",
            "x",
            both(with(hard(1, json!({}))), z2.clone()),
            [OK, OK, OK, NO_LABEL],
        ),
        (
            "unless told so",
            "x",
            both(with(hard(1, json!({"nodeAffinityPolicy": "Ignore"}))), z2),
            [UNEVEN, UNEVEN, OK, NO_LABEL],
        ),
        // v=1: one in each zone.
        (
            "only pods with the same label",
            "x",
            with(hard(1, json!({"matchLabelKeys": ["v"]}))),
            [OK, OK, OK, NO_LABEL],
        ),
        (
            "labels that the pod lacks are not looked at",
            "x",
            with(hard(1, json!({"matchLabelKeys": ["w"]}))),
            [UNEVEN, UNEVEN, OK, NO_LABEL],
        ),
        // Only a and b have both keys: z1 is the only zone (3+1-3), the racks hold 2 and 1.
        ("all keys must be there", "x", with(two), [OK, OK, NO_LABEL, NO_LABEL]),
    ];
    let mut world = world("zone");
    let plugin = PodTopologySpread::new(Defaults::System);
    for (case, app, spec, want) in cases {
        let pod = world.pod(json!({"app": app, "v": "1"}), spec);
        assert_eq!(world.filter(&plugin, &pod).unwrap(), want, "{case}");
    }
}

#[test]
fn pods_that_are_not_counted() {
    let mut world = world("zone");
    let plugin = PodTopologySpread::new(Defaults::System);
    for n in 0..3 {
        world.cluster.remove_pod(&format!("pod{}", n + 1));
    }
    let count = |world: &mut World| {
        let pod = world.pod(
            json!({"app": "x"}),
            json!({"topologySpreadConstraints": hard(1, json!({}))}),
        );
        world.filter(&plugin, &pod).unwrap()
    };
    assert_eq!(count(&mut world), [OK, OK, UNEVEN, NO_LABEL]);
    let going = json!({"metadata": {"labels": {"app": "x"}, "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "a"}});
    let foreign = json!({"metadata": {"labels": {"app": "x"}, "namespace": "else"}, "spec": {"nodeName": "b"}});
    for pod in [going, foreign] {
        let pod = world.pod_as_is(pod);
        world.cluster.add_pod(pod);
        assert_eq!(count(&mut world), [OK, OK, UNEVEN, NO_LABEL]);
    }
    world.place("b", json!({"app": "x"}), json!({}));
    // One in each zone now.
    assert_eq!(count(&mut world), [OK, OK, OK, NO_LABEL]);
}

#[test]
fn taints_count_if_told_so() {
    let mut world = world("zone");
    let plugin = PodTopologySpread::new(Defaults::System);
    let taint = |effect: &str| json!([{"key": "k", "value": "v", "effect": effect}]);
    let labels = json!({"zone": "z2", "kubernetes.io/hostname": "c"});
    let policy = |policy: &str| json!({"topologySpreadConstraints": hard(1, json!({"nodeTaintsPolicy": policy}))});
    let tolerating = |toleration: Value| {
        let mut spec = policy("Honor");
        spec["tolerations"] = json!([toleration]);
        spec
    };
    // If c does not count then z1 is the only zone, and may have one more.
    let (counts, does_not) = ([UNEVEN, UNEVEN, OK, NO_LABEL], [OK, OK, OK, NO_LABEL]);
    let cases = [
        ("NoSchedule", policy("Ignore"), counts),
        ("NoSchedule", policy("Honor"), does_not),
        ("NoExecute", policy("Honor"), does_not),
        ("PreferNoSchedule", policy("Honor"), counts),
        ("NoSchedule", tolerating(json!({"operator": "Exists"})), counts),
        ("NoSchedule", tolerating(json!({"key": "k", "value": "v"})), counts),
        ("NoSchedule", tolerating(json!({"key": "k", "value": "w"})), does_not),
        (
            "NoSchedule",
            tolerating(json!({"key": "k", "operator": "Exists", "effect": "NoExecute"})),
            does_not,
        ),
    ];
    for (effect, spec, want) in cases {
        world.node_as_is(json!({"metadata": {"name": "c", "labels": labels}, "spec": {"taints": taint(effect)}}));
        let pod = world.pod(json!({"app": "x"}), spec.clone());
        assert_eq!(world.filter(&plugin, &pod).unwrap(), want, "{effect} {spec}");
    }
}

#[test]
fn preferred_constraints() {
    let mut world = world("zone");
    let plugin = PodTopologySpread::new(Defaults::System);
    let with = |constraints: Value| json!({"topologySpreadConstraints": constraints});
    let cases: Vec<(&str, Value, [i64; 4], [i64; 4])> = vec![
        // ln 4 · 3 = 4.16, ln 4 · 1 = 1.39; d is out of it.
        ("zones", json!([soft("zone", 1)]), [4, 4, 1, 0], [25, 25, 100, 0]),
        // ln 6 · (2, 1, 1, 0) = 3.58, 1.79, 1.79, 0.
        (
            "nodes",
            json!([soft("kubernetes.io/hostname", 1)]),
            [4, 2, 2, 0],
            [0, 50, 50, 100],
        ),
        // 4.16 + 4, 1.39 + 4
        (
            "more skew waters it down",
            json!([soft("zone", 5)]),
            [8, 8, 5, 0],
            [62, 62, 100, 0],
        ),
        // zone: ln 4 · (3, 3, 1); node: ln 5 · (2, 1, 1), as d is out of it: 7.38, 5.77, 3.00.
        (
            "both",
            json!([soft("zone", 1), soft("kubernetes.io/hostname", 1)]),
            [7, 6, 3, 0],
            [42, 57, 100, 0],
        ),
        (
            "nothing to count",
            json!([spread("zone", 1, "ScheduleAnyway", json!({"labelSelector": null}))]),
            [0; 4],
            [100, 100, 100, 0],
        ),
    ];
    for (case, constraints, raw, normal) in cases {
        let pod = world.pod(json!({"app": "x"}), with(constraints));
        assert_eq!(world.score(&plugin, &pod), Some((raw.into(), normal.into())), "{case}");
        assert!(!Score::is_idle(&plugin, &pod, &world.cluster));
    }
}

#[test]
fn default_constraints_select_by_services_and_owners() {
    let mut world = world(ZONE);
    let plugin = PodTopologySpread::new(Defaults::System);
    let pod = world.pod(json!({"app": "x"}), json!({}));
    assert_eq!(world.score(&plugin, &pod), None);
    assert!(Score::is_idle(&plugin, &pod, &world.cluster));
    let labels = Labels::from([("app".to_string(), "x".to_string())]);
    world.cluster.owners.observe_service("ns", "s", Some(labels.clone()));
    // Nodes: ln 6 · (2, 1, 1, 0) + 2; zones, "none" being one: ln 5 · (3, 3, 1) + 4.
    // 14.41, 12.62, 9.40, 2.00
    let want = (vec![14, 13, 9, 2], vec![14, 21, 50, 100]);
    assert_eq!(world.score(&plugin, &pod), Some(want));
    assert_eq!(world.filter(&plugin, &pod), None);
    world.cluster.remove_node("d");
    // ln 5 · (2, 1, 1) + 2 + ln 4 · (3, 3, 1) + 4 = 13.38, 11.77, 9.00
    assert_eq!(world.score(&plugin, &pod), Some((vec![13, 12, 9], vec![69, 76, 100])));

    let list = PodTopologySpread::new(Defaults::List(
        serde_json::from_value(json!([
            {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"},
            {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "ScheduleAnyway"},
        ]))
        .unwrap(),
    ));
    assert_eq!(world.filter(&list, &pod).unwrap(), [UNEVEN, UNEVEN, OK]);
    assert_eq!(world.score(&list, &pod), Some((vec![4, 4, 1], vec![25, 25, 100])));
    let own = json!({"topologySpreadConstraints": [soft(ZONE, 1)]});
    let pod = world.pod(json!({"app": "x"}), own);
    assert_eq!(
        world.filter(&list, &pod),
        None,
        "pods with constraints of their own get no others"
    );
    world.cluster.owners.observe_service("ns", "s", None);
    let pod = world.pod(json!({"app": "x"}), json!({}));
    assert_eq!(world.filter(&list, &pod), None);
    assert_eq!(world.score(&list, &pod), None);
}

#[test]
fn events_that_help() {
    let mut world = World::default();
    let plugin = PodTopologySpread::new(Defaults::System);
    let spec = |policy: &str| json!({"topologySpreadConstraints": hard(1, json!({"nodeTaintsPolicy": policy}))});
    let pod = world.pod(json!({"app": "x"}), spec("Ignore"));
    let honors = world.pod(json!({"app": "x"}), spec("Honor"));
    let [match_, other] = ["x", "y"].map(|app| Object::Pod(world.pod(json!({"app": app}), json!({}))));
    let foreign = json!({"metadata": {"namespace": "else", "labels": {"app": "x"}}});
    let foreign = Object::Pod(world.pod_as_is(foreign));
    let own = |world: &mut World, pod: &PodInfo, app: &str, tolerations: Value, policy: &str| {
        let mut spec = spec(policy);
        spec["tolerations"] = tolerations;
        let meta = json!({"uid": &*pod.uid, "name": "own", "labels": {"app": app}});
        Object::Pod(world.pod_as_is(json!({"metadata": meta, "spec": spec})))
    };
    let mut node = |labels: Value, taints: Value| {
        let id = world.node_as_is(json!({"metadata": {"name": "n", "labels": labels}, "spec": {"taints": taints}}));
        Object::Node(Arc::new(world.cluster.node(id).unwrap().clone()))
    };
    let taints = json!([{"key": "k", "effect": "NoSchedule"}]);
    let [z1, z1_tainted, z2, none] = [
        node(json!({"zone": "z1"}), json!([])),
        node(json!({"zone": "z1"}), taints.clone()),
        node(json!({"zone": "z2", "x": "y"}), json!([])),
        node(json!({"x": "y"}), taints),
    ];
    let anything = json!([{"operator": "Exists"}]);
    let plain = own(&mut world, &honors, "x", json!([]), "Honor");
    let tolerant = own(&mut world, &honors, "x", anything.clone(), "Honor");
    let relabelled = own(&mut world, &honors, "y", json!([]), "Honor");
    let ignoring = [json!([]), anything].map(|t| own(&mut world, &pod, "x", t, "Ignore"));
    let [no, yes] = ignoring;
    let gone = || Object::None;
    let (pods, own, nodes) = (Resource::AssignedPod, Resource::OwnPod, Resource::Node);
    let cases = [
        ("a pod that counts comes", &pod, pods, gone(), match_.clone(), true),
        ("another comes", &pod, pods, gone(), other.clone(), false),
        (
            "one of another namespace comes",
            &pod,
            pods,
            gone(),
            foreign.clone(),
            false,
        ),
        ("a pod that counts goes", &pod, pods, match_.clone(), gone(), true),
        ("another goes", &pod, pods, other.clone(), gone(), false),
        ("a pod stops counting", &pod, pods, match_.clone(), other.clone(), true),
        ("a pod still counts", &pod, pods, match_.clone(), match_, false),
        ("it tolerates more", &honors, own, plain.clone(), tolerant, true),
        ("it tolerates more, and does not care", &pod, own, no, yes, false),
        ("its own labels change", &honors, own, plain, relabelled, true),
        ("a node comes", &pod, nodes, gone(), z1.clone(), true),
        ("a node without the key comes", &pod, nodes, gone(), none.clone(), false),
        ("a node goes", &pod, nodes, z1.clone(), gone(), true),
        ("a node without the key goes", &pod, nodes, none.clone(), gone(), false),
        ("a node moves", &pod, nodes, z1.clone(), z2, true),
        ("a node gets the key", &pod, nodes, none.clone(), z1.clone(), true),
        ("a node loses the key", &pod, nodes, z1.clone(), none.clone(), true),
        ("taints change", &pod, nodes, z1.clone(), z1_tainted, true),
        ("nothing changes", &pod, nodes, z1.clone(), z1, false),
        (
            "nothing changes without the key",
            &pod,
            nodes,
            none.clone(),
            none,
            false,
        ),
    ];
    for (case, pod, resource, old, new, helps) in cases {
        let event = Event {
            resource,
            actions: Actions::UPDATE,
            old,
            new,
        };
        let hint = plugin.hint(pod, &event, &world.cluster);
        assert_eq!(hint == Hint::Queue, helps, "{case}");
    }
    assert_eq!(plugin.events().len(), 3);
}

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::cluster::topology::testing::{World, verdict};
use crate::framework::event::{Actions, Object, Resource};
use crate::framework::points::{Filter, Score};
use crate::framework::verdict::PreFilter;
use crate::model::Labels;

const OK: &str = "ok";
const NEAR: &str = "UU: node(s) didn't match pod affinity rules";
const APART: &str = "U: node(s) didn't match pod anti-affinity rules";
const EXISTING: &str = "U: node(s) didn't satisfy existing pods anti-affinity rules";

const HOST: &str = "kubernetes.io/hostname";

/// z1: a, b; z2: c; d is in no zone.
fn world() -> World {
    let mut world = World::default();
    for (node, zone) in [("a", "z1"), ("b", "z1"), ("c", "z2")] {
        world.node(node, json!({"zone": zone}));
    }
    world.node("d", json!({}));
    world
}

fn term(key: &str, app: &str) -> Value {
    json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}})
}

fn near(terms: &[Value]) -> Value {
    json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}})
}

fn apart(terms: &[Value]) -> Value {
    json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}})
}

fn prefers(kind: &str, terms: &[(i32, Value)]) -> Value {
    let terms: Vec<Value> = (terms.iter())
        .map(|(weight, term)| json!({"weight": weight, "podAffinityTerm": term}))
        .collect();
    json!({"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution": terms}}})
}

#[test]
fn required_terms() {
    let mut world = world();
    world.place("a", json!({"app": "x", "tier": "1"}), json!({}));
    world.place("c", json!({"app": "y"}), json!({}));
    world.place("d", json!({"app": "z"}), json!({}));
    let tier = json!({"topologyKey": HOST, "labelSelector": {"matchLabels": {"tier": "1"}}});
    let elsewhere = json!({"topologyKey": "zone", "labelSelector": {}, "namespaces": ["else"]});
    let unselected = json!({"topologyKey": "zone"});
    let both = |near: Value, apart: Value| {
        let (affinity, anti) = (&near["affinity"]["podAffinity"], &apart["affinity"]["podAntiAffinity"]);
        json!({"affinity": {"podAffinity": affinity, "podAntiAffinity": anti}})
    };
    let cases: Vec<(&str, &str, Value, [&str; 4])> = vec![
        ("in the zone", "p", near(&[term("zone", "x")]), [OK, OK, NEAR, NEAR]),
        ("on the node", "p", near(&[term(HOST, "x")]), [OK, NEAR, NEAR, NEAR]),
        (
            "one pod must match all",
            "p",
            near(&[term("zone", "x"), tier.clone()]),
            [OK, NEAR, NEAR, NEAR],
        ),
        ("no pod matches all", "p", near(&[term("zone", "y"), tier]), [NEAR; 4]),
        ("nobody there", "p", near(&[term("zone", "q")]), [NEAR; 4]),
        (
            "the first of its kind",
            "q",
            near(&[term("zone", "q")]),
            [OK, OK, OK, NEAR],
        ),
        (
            "the only one is in no zone",
            "z",
            near(&[term("zone", "z")]),
            [OK, OK, OK, NEAR],
        ),
        (
            "another namespace",
            "p",
            near(std::slice::from_ref(&elsewhere)),
            [NEAR; 4],
        ),
        ("no selector", "p", near(&[unselected]), [NEAR; 4]),
        (
            "not in the zone",
            "p",
            apart(&[term("zone", "x")]),
            [APART, APART, OK, OK],
        ),
        ("not on the node", "p", apart(&[term(HOST, "x")]), [APART, OK, OK, OK]),
        (
            "neither",
            "p",
            apart(&[term(HOST, "x"), term("zone", "y")]),
            [APART, OK, APART, OK],
        ),
        ("nobody to mind", "p", apart(&[term(HOST, "q"), elsewhere]), [OK; 4]),
        (
            "affinity is told first",
            "p",
            both(near(&[term("zone", "x")]), apart(&[term(HOST, "x")])),
            [APART, OK, NEAR, NEAR],
        ),
    ];
    let plugin = InterPodAffinity::new(1, false);
    for (case, app, spec, want) in cases {
        let pod = world.pod(json!({"app": app}), spec);
        assert_eq!(world.filter(&plugin, &pod).unwrap(), want, "{case}");
    }
    let plain = world.pod(json!({"app": "p"}), json!({}));
    assert_eq!(world.filter(&plugin, &plain), None);
}

#[test]
fn anti_affinity_of_pods_that_are_there() {
    let mut world = world();
    let plugin = InterPodAffinity::new(1, false);
    let first = world.place("a", json!({"app": "x"}), apart(&[term("zone", "p")]));
    world.place("c", json!({}), apart(&[term(HOST, "p"), term(HOST, "q")]));
    world.place("d", json!({}), apart(&[term("zone", "p")]));
    let ask = |world: &mut World, app: &str| {
        let pod = world.pod(json!({"app": app}), json!({}));
        world.filter(&plugin, &pod)
    };
    assert_eq!(ask(&mut world, "p").unwrap(), [EXISTING, EXISTING, EXISTING, OK]);
    assert_eq!(ask(&mut world, "q").unwrap(), [OK, OK, EXISTING, OK]);
    assert_eq!(ask(&mut world, "r"), None);
    world.cluster.remove_pod(&first.uid);
    assert_eq!(ask(&mut world, "p").unwrap(), [OK, OK, EXISTING, OK]);
    world.node("c", json!({"zone": "z1"}));
    assert_eq!(ask(&mut world, "p").unwrap(), [OK, OK, EXISTING, OK]);
    let pod = world.pod(json!({"app": "p"}), apart(&[term(HOST, "r")]));
    world.place("c", json!({"app": "r"}), json!({}));
    assert_eq!(
        world.filter(&plugin, &pod).unwrap(),
        [OK, OK, APART, OK],
        "its own terms are told first"
    );
}

#[test]
fn namespaces_by_label() {
    let mut world = world();
    let plugin = InterPodAffinity::new(1, false);
    let place = |world: &mut World, node: &str, namespace: &str, spec: Value| {
        let mut spec = spec;
        spec["nodeName"] = json!(node);
        let pod = world.pod_as_is(json!({"metadata": {"namespace": namespace, "labels": {"app": "x"}}, "spec": spec}));
        world.cluster.add_pod(pod);
    };
    place(&mut world, "a", "one", json!({}));
    place(&mut world, "c", "two", json!({}));
    let by =
        |selector: Value| apart(&[json!({"topologyKey": HOST, "labelSelector": {}, "namespaceSelector": selector})]);
    let red = json!({"matchLabels": {"team": "red"}});
    let not_red = json!({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["red"]}]});
    let labels = |team: &str| Some(Labels::from([("team".to_string(), team.to_string())]));
    let ask = |world: &mut World, selector: &Value| {
        let pod = world.pod(json!({}), by(selector.clone()));
        world.filter(&plugin, &pod).unwrap()
    };
    assert_eq!(ask(&mut world, &red), [OK; 4]);
    world.cluster.observe_namespace("one", labels("red"));
    assert_eq!(ask(&mut world, &red), [APART, OK, OK, OK]);
    assert_eq!(ask(&mut world, &json!({})), [APART, OK, APART, OK]);
    world.cluster.observe_namespace("two", labels("red"));
    assert_eq!(ask(&mut world, &red), [APART, OK, APART, OK]);
    // A selector that a namespace without labels matches: as in Kubernetes, of a newcomer it means all namespaces.
    assert_eq!(ask(&mut world, &not_red), [APART, OK, APART, OK]);
    world.cluster.observe_namespace("one", labels("blue"));
    assert_eq!(ask(&mut world, &red), [OK, OK, APART, OK]);

    // The other way round: a pod that is there minds pods of red namespaces.
    place(&mut world, "b", "one", by(red));
    place(&mut world, "d", "one", by(not_red));
    let newcomer = world.pod_as_is(json!({"metadata": {"namespace": "two"}}));
    assert_eq!(world.filter(&plugin, &newcomer).unwrap(), [OK, EXISTING, OK, OK]);
    world.cluster.observe_namespace("two", None);
    assert_eq!(world.filter(&plugin, &newcomer).unwrap(), [OK, OK, OK, EXISTING]);
}

#[test]
fn preferences() {
    // (case, pods that are there, the newcomer, hard weight, raw and normalised scores)
    type Case = (
        &'static str,
        Vec<(&'static str, &'static str, Value)>,
        Value,
        i64,
        Option<([i64; 4], [i64; 4])>,
    );
    let like = |weight, term| prefers("podAffinity", &[(weight, term)]);
    let dislike = |weight, term| prefers("podAntiAffinity", &[(weight, term)]);
    let mut own = like(10, term("zone", "x"));
    own["affinity"]["podAntiAffinity"] = dislike(4, term(HOST, "y"))["affinity"]["podAntiAffinity"].clone();
    let none = || json!({});
    let cases: Vec<Case> = vec![
        (
            "its own: z1 10, z2 20, b -4",
            vec![
                ("a", "x", none()),
                ("c", "x", none()),
                ("c", "x", none()),
                ("b", "y", none()),
            ],
            own.clone(),
            1,
            Some(([10, 6, 20, 0], [50, 30, 100, 0])),
        ),
        ("nobody there", vec![("a", "q", none())], own, 1, None),
        (
            "those of others: z1 -3, c 5",
            vec![
                ("c", "q", like(5, term(HOST, "p"))),
                ("a", "q", dislike(3, term("zone", "p"))),
            ],
            none(),
            1,
            Some(([-3, -3, 5, 0], [0, 0, 100, 37])),
        ),
        (
            "of others, about others",
            vec![("c", "q", like(5, term(HOST, "x")))],
            none(),
            1,
            None,
        ),
        (
            "required affinity of others: z1 twice",
            vec![
                ("a", "q", near(&[term("zone", "p")])),
                ("b", "q", near(&[term("zone", "p")])),
            ],
            none(),
            7,
            Some(([14, 14, 0, 0], [100, 100, 0, 0])),
        ),
        (
            "which may count for nothing",
            vec![("a", "q", near(&[term("zone", "p")]))],
            none(),
            0,
            None,
        ),
        (
            "required anti-affinity is no matter of taste",
            vec![("a", "q", apart(&[term("zone", "p")]))],
            none(),
            1,
            None,
        ),
        (
            "all together: z1 10 + 2, a 3, c -6",
            vec![
                ("a", "x", near(&[term("zone", "p")])),
                ("a", "q", like(3, term(HOST, "p"))),
                ("c", "q", dislike(6, term(HOST, "p"))),
            ],
            like(10, term("zone", "x")),
            2,
            Some(([15, 12, -6, 0], [100, 85, 0, 28])),
        ),
    ];
    for (case, pods, spec, weight, want) in cases {
        let mut world = world();
        for (node, app, spec) in pods {
            world.place(node, json!({"app": app}), spec);
        }
        let pod = world.pod(json!({"app": "p"}), spec.clone());
        let plugin = InterPodAffinity::new(weight, false);
        let want = want.map(|(raw, normal)| (raw.to_vec(), normal.to_vec()));
        assert_eq!(world.score(&plugin, &pod), want, "{case}");
        let own = spec != json!({});
        assert_eq!(
            Score::is_idle(&plugin, &pod, &world.cluster),
            want.is_none() && !own,
            "{case}"
        );
        let plugin = InterPodAffinity::new(weight, true);
        assert_eq!(
            world.score(&plugin, &pod),
            want.filter(|_| own),
            "{case}, if others' are ignored"
        );
    }
}

#[test]
fn what_if() {
    let mut world = world();
    let plugin = InterPodAffinity::new(1, false);
    let companion = world.place("a", json!({"app": "x"}), json!({}));
    let pod = world.pod(json!({"app": "p"}), near(&[term(HOST, "x")]));
    let node = |name: &str| world.cluster.node_named(name).unwrap();
    let PreFilter::Run(state) = Filter::pre_filter(&plugin, &pod, &world.cluster) else {
        panic!("it has terms")
    };
    let ask = |state: &_, name: &str| verdict(&Filter::filter(&plugin, state, &pod, node(name)));
    let mut without = state.clone();
    Filter::remove_pod(&plugin, &mut without, &pod, &companion, node("a"));
    assert_eq!((ask(&state, "a").as_str(), ask(&without, "a").as_str()), (OK, NEAR));
    Filter::add_pod(&plugin, &mut without, &pod, &companion, node("b"));
    assert_eq!((ask(&without, "a").as_str(), ask(&without, "b").as_str()), (NEAR, OK));

    // A pod with anti-affinity by a key that nobody has used so far.
    let mut world = self::world();
    let loner = world.pod(json!({}), apart(&[term("zone", "p")]));
    let pod = world.pod(json!({"app": "p"}), apart(&[term(HOST, "x")]));
    let node = |name: &str| world.cluster.node_named(name).unwrap();
    let PreFilter::Run(mut state) = Filter::pre_filter(&plugin, &pod, &world.cluster) else {
        panic!("it has terms")
    };
    Filter::add_pod(&plugin, &mut state, &pod, &loner, node("a"));
    let ask = |state: &_, name: &str| verdict(&Filter::filter(&plugin, state, &pod, node(name)));
    let all = |state: &_| ["a", "b", "c", "d"].map(|n| ask(state, n));
    assert_eq!(all(&state), [EXISTING, EXISTING, OK, OK]);
    Filter::remove_pod(&plugin, &mut state, &pod, &loner, node("a"));
    assert_eq!(all(&state), [OK; 4]);
}

#[test]
fn events_that_help() {
    let mut world = World::default();
    let plugin = InterPodAffinity::new(1, false);
    let pod = |world: &mut World, app: &str, spec: Value| world.pod(json!({"app": app}), spec);
    let wants = pod(&mut world, "p", near(&[term("zone", "x"), term("zone", "x")]));
    let minds = pod(&mut world, "p", apart(&[term("zone", "x"), term("zone", "y")]));
    let plain = pod(&mut world, "p", json!({}));
    let [x, y, q] = ["x", "y", "q"].map(|app| Object::Pod(pod(&mut world, app, json!({}))));
    let loner = Object::Pod(pod(&mut world, "q", apart(&[term("zone", "p"), term("zone", "r")])));
    let mut node = |labels: Value| {
        let id = world.node_as_is(json!({"metadata": {"name": "n", "labels": labels}}));
        Object::Node(Arc::new(world.cluster.node(id).unwrap().clone()))
    };
    let [z1, z2, none] = [json!({"zone": "z1"}), json!({"zone": "z2"}), json!({})].map(&mut node);
    let gone = || Object::None;
    let own = Object::Pod(plain.clone());
    let (pods, nodes) = (Resource::AssignedPod, Resource::Node);
    let cases = [
        ("company comes", &wants, pods, gone(), x.clone(), true),
        ("somebody else comes", &wants, pods, gone(), y.clone(), false),
        ("somebody becomes company", &wants, pods, y.clone(), x.clone(), true),
        ("company goes", &wants, pods, x.clone(), gone(), false),
        ("somebody it minds goes", &minds, pods, y.clone(), gone(), true),
        ("somebody it minds comes", &minds, pods, gone(), x.clone(), false),
        ("somebody it minds changes", &minds, pods, x.clone(), q.clone(), true),
        (
            "it minds the same one for another reason",
            &minds,
            pods,
            x.clone(),
            y,
            true,
        ),
        ("somebody changes who stays the same", &minds, pods, x.clone(), x, false),
        ("somebody else goes", &minds, pods, q.clone(), gone(), false),
        ("somebody who minds it goes", &plain, pods, loner.clone(), gone(), true),
        ("somebody who minds others goes", &plain, pods, q, gone(), false),
        (
            "its own labels change",
            &plain,
            Resource::OwnPod,
            own.clone(),
            own,
            true,
        ),
        ("a node comes", &wants, nodes, gone(), z1.clone(), true),
        (
            "a node without the key comes",
            &wants,
            nodes,
            gone(),
            none.clone(),
            false,
        ),
        (
            "a node without the key comes",
            &minds,
            nodes,
            gone(),
            none.clone(),
            true,
        ),
        ("a node gets the key", &wants, nodes, none.clone(), z1.clone(), true),
        ("a node gets the key", &minds, nodes, none.clone(), z1.clone(), false),
        ("a node loses the key", &wants, nodes, z1.clone(), none.clone(), false),
        ("a node loses the key", &minds, nodes, z1.clone(), none, true),
        ("a node moves", &wants, nodes, z1.clone(), z2.clone(), true),
        ("a node moves", &minds, nodes, z1.clone(), z2, true),
        ("a node comes", &plain, nodes, gone(), z1, true),
    ];
    for (case, pod, resource, old, new, helps) in cases {
        let event = Event {
            resource,
            actions: Actions::UPDATE,
            old,
            new,
        };
        assert_eq!(plugin.hint(pod, &event, &world.cluster) == Hint::Queue, helps, "{case}");
    }
    assert_eq!(plugin.events().len(), 3);
}

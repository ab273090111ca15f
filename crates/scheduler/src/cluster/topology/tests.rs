//! Whatever happens in a cluster, in whatever order: the plugins answer as if they had counted everything just now.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::testing::{World, verdict};
use crate::cluster::node::NodeInfo;
use crate::cluster::pod::PodInfo;
use crate::framework::points::{Filter, Plugin, Score};
use crate::framework::verdict::PreFilter;
use crate::model::{Labels, PodAffinityTerm, TopologySpreadConstraint};
use crate::plugins::inter_pod_affinity::InterPodAffinity;
use crate::plugins::pod_topology_spread::{Defaults, PodTopologySpread};

#[derive(Clone, Debug)]
enum Op {
    Node {
        n: usize,
        zone: usize,
        rack: usize,
        host: bool,
        taint: bool,
    },
    RemoveNode(usize),
    Pod {
        id: usize,
        node: usize,
        who: Who,
        terminating: bool,
    },
    RemovePod(usize),
    Namespace {
        ns: usize,
        team: usize,
    },
    Service {
        ns: usize,
        app: usize,
    },
}

/// What kind of pod: namespace, labels, what it wants.
#[derive(Clone, Copy, Debug)]
struct Who {
    ns: usize,
    app: usize,
    version: usize,
    wants: usize,
}

fn who() -> impl Strategy<Value = Who> {
    (0..3usize, 0..3usize, 0..2usize, 0..wishes().len()).prop_map(|(ns, app, version, wants)| Who {
        ns,
        app,
        version,
        wants,
    })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0..6usize, 0..4usize, 0..3usize, prop::bool::weighted(0.9), any::<bool>())
            .prop_map(|(n, zone, rack, host, taint)| Op::Node { n, zone, rack, host, taint }),
        1 => (0..6usize).prop_map(Op::RemoveNode),
        8 => (0..24usize, 0..6usize, who(), prop::bool::weighted(0.2))
            .prop_map(|(id, node, who, terminating)| Op::Pod { id, node, who, terminating }),
        2 => (0..24usize).prop_map(Op::RemovePod),
        1 => (0..3usize, 0..3usize).prop_map(|(ns, team)| Op::Namespace { ns, team }),
        1 => (0..3usize, 0..4usize).prop_map(|(ns, app)| Op::Service { ns, app }),
    ]
}

fn app(app: usize) -> Value {
    json!({"matchLabels": {"app": format!("a{app}")}})
}

/// Specs that ask for something.
fn wishes() -> Vec<Value> {
    let (zone, host) = ("zone", "kubernetes.io/hostname");
    let term = |key: &str, n| json!({"topologyKey": key, "labelSelector": app(n)});
    let team = |operator: &str| {
        json!({"topologyKey": "zone", "labelSelector": app(0), "namespaceSelector": {"matchExpressions": [
            {"key": "team", "operator": operator, "values": ["t1"]}]}})
    };
    let required = |terms: &[Value]| json!({"requiredDuringSchedulingIgnoredDuringExecution": terms});
    let preferred = |terms: &[(i32, Value)]| {
        let terms: Vec<Value> = (terms.iter())
            .map(|(weight, term)| json!({"weight": weight, "podAffinityTerm": term}))
            .collect();
        json!({"preferredDuringSchedulingIgnoredDuringExecution": terms})
    };
    let spread = |key: &str, skew: i32, hard: bool, more: Value| {
        let mut constraint = json!({"maxSkew": skew, "topologyKey": key, "labelSelector": app(0),
            "whenUnsatisfiable": if hard { "DoNotSchedule" } else { "ScheduleAnyway" }});
        constraint
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        constraint
    };
    let none = || json!({});
    vec![
        none(),
        json!({"affinity": {"podAntiAffinity": required(&[term(host, 0)])}}),
        json!({"affinity": {"podAntiAffinity": required(&[term(zone, 1), term(host, 0)])}}),
        json!({"affinity": {"podAffinity": required(&[term(zone, 0)])}}),
        json!({"affinity": {"podAffinity": required(&[term(zone, 0), json!({"topologyKey": "rack",
            "labelSelector": {"matchExpressions": [{"key": "v", "operator": "NotIn", "values": ["v1"]}]}})])}}),
        json!({"affinity": {"podAntiAffinity": required(&[team("In")]), "podAffinity": required(&[team("NotIn")])}}),
        json!({"affinity": {"podAffinity": preferred(&[(7, term(zone, 0)), (3, team("In"))]),
            "podAntiAffinity": preferred(&[(20, term(host, 1)), (5, team("NotIn"))])}}),
        json!({"affinity": {"podAntiAffinity": required(&[json!({"topologyKey": "rack", "labelSelector": {},
            "namespaces": ["n1"], "namespaceSelector": {"matchLabels": {"team": "t2"}}})])}}),
        json!({"affinity": {"podAffinity": required(&[json!({"topologyKey": zone, "namespaces": ["n0", "n2"]})])}}),
        json!({"topologySpreadConstraints": [spread(zone, 1, true, none())]}),
        json!({"topologySpreadConstraints": [spread(zone, 1, true, json!({"minDomains": 3})),
            spread(host, 2, true, json!({"nodeTaintsPolicy": "Honor"}))]}),
        json!({"topologySpreadConstraints": [spread(zone, 1, true, json!({"matchLabelKeys": ["v"]})),
            spread("rack", 3, false, none())], "nodeSelector": {"zone": "z1"}}),
        json!({"topologySpreadConstraints": [spread(host, 2, false, none()), spread(zone, 1, false, none()),
            spread("rack", 4, false, json!({"nodeAffinityPolicy": "Ignore"}))], "nodeSelector": {"zone": "z2"}}),
        json!({"topologySpreadConstraints": [spread(zone, 2, false, json!({"matchLabelKeys": ["v", "w"],
            "nodeTaintsPolicy": "Honor"}))], "tolerations": [{"key": "bad", "operator": "Exists"}]}),
    ]
}

fn defaults() -> Vec<TopologySpreadConstraint> {
    let all = json!([{"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"},
        {"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}]);
    serde_json::from_value(all).unwrap()
}

fn make(who: Who, id: &str, node: &str, terminating: bool) -> Value {
    let mut spec = wishes()[who.wants].clone();
    spec["nodeName"] = json!(node);
    let mut pod = json!({"spec": spec, "metadata": {"uid": id, "name": id, "namespace": format!("n{}", who.ns),
        "labels": {"app": format!("a{}", who.app), "v": format!("v{}", who.version)}}});
    if terminating {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    pod
}

fn perform(world: &mut World, op: &Op) {
    match *op {
        Op::Node {
            n,
            zone,
            rack,
            host,
            taint,
        } => {
            let mut labels = json!({});
            for (key, value) in [("zone", zone), ("rack", rack)] {
                if value > 0 {
                    labels[key] = json!(format!("{}{value}", &key[..1]));
                }
            }
            if host {
                labels["kubernetes.io/hostname"] = json!(format!("node{n}"));
            }
            let taints = if taint {
                json!([{"key": "bad", "effect": "NoSchedule"}])
            } else {
                json!([])
            };
            let node = json!({"metadata": {"name": format!("node{n}"), "labels": labels}, "spec": {"taints": taints}});
            world.node_as_is(node);
        }
        Op::RemoveNode(n) => world.cluster.remove_node(&format!("node{n}")),
        Op::Pod {
            id,
            node,
            who,
            terminating,
        } => {
            let pod = world.pod_as_is(make(who, &format!("p{id}"), &format!("node{node}"), terminating));
            world.cluster.add_pod(pod);
        }
        Op::RemovePod(id) => {
            world.cluster.remove_pod(&format!("p{id}"));
        }
        Op::Namespace { ns, team } => {
            let labels = Labels::from([("team".to_string(), format!("t{team}"))]);
            world
                .cluster
                .observe_namespace(&format!("n{ns}"), (team > 0).then_some(labels));
        }
        Op::Service { ns, app } => {
            let labels = Labels::from([("app".to_string(), format!("a{app}"))]);
            let owners = &mut world.cluster.owners;
            owners.observe_service(&format!("n{ns}"), "service", (app < 3).then_some(labels));
        }
    }
}

// ---- the obvious way ----

/// Looks at every pod on every node.
struct Naive<'a> {
    world: &'a World,
    pod: &'a PodInfo,
    /// Uids of pods that are to be thought away.
    without: HashSet<Arc<str>>,
}

impl Naive<'_> {
    fn nodes(&self) -> Vec<&NodeInfo> {
        let nodes = self.world.ids();
        nodes
            .into_iter()
            .map(|id| self.world.cluster.node(id).unwrap())
            .collect()
    }

    fn pods(&self) -> Vec<(&PodInfo, &NodeInfo)> {
        let all = self
            .nodes()
            .into_iter()
            .flat_map(|n| n.pods.iter().map(move |p| (&**p, n)));
        all.filter(|(p, _)| !self.without.contains(&p.uid)).collect()
    }

    /// `newcomer`: whether the term is of the pod that is to be placed.
    fn term_matches(&self, term: &PodAffinityTerm, of: &PodInfo, other: &PodInfo, newcomer: bool) -> bool {
        let none = Labels::new();
        let by_name = if term.namespaces.is_empty() && term.namespace_selector.is_none() {
            other.namespace() == of.namespace()
        } else {
            term.namespaces.iter().any(|n| **n == **other.namespace())
        };
        let labels = self.world.cluster.namespaces.get(&**other.namespace()).unwrap_or(&none);
        let by_label = term
            .namespace_selector
            .as_ref()
            .is_some_and(|s| s.matches(labels) || newcomer && s.matches(&none));
        (by_name || by_label)
            && term
                .label_selector
                .as_ref()
                .is_some_and(|s| s.matches(other.label_set()))
    }

    fn affinity_filter(&self, node: &NodeInfo) -> &'static str {
        let (with, without) = (
            &self.pod.class.spec.affinity.pod_affinity.required,
            &self.pod.class.spec.affinity.pod_anti_affinity.required,
        );
        let same = |key: &str, other: &NodeInfo| {
            node.labels.contains_key(key) && node.labels.get(key) == other.labels.get(key)
        };
        let near = |other: &PodInfo| with.iter().all(|t| self.term_matches(t, self.pod, other, true));
        let company = |t: &PodAffinityTerm| self.pods().iter().any(|(p, n)| near(p) && same(&t.topology_key, n));
        let lonely =
            (self.pods().iter()).all(|(p, n)| !near(p) || with.iter().all(|t| !n.labels.contains_key(&t.topology_key)));
        let all_keys = with.iter().all(|t| node.labels.contains_key(&t.topology_key));
        if !(all_keys && (with.iter().all(company) || lonely && near(self.pod))) {
            return "UU: node(s) didn't match pod affinity rules";
        }
        for (other, place) in self.pods() {
            let hates =
                |t: &&PodAffinityTerm| self.term_matches(t, self.pod, other, true) && same(&t.topology_key, place);
            if without.iter().any(|t| hates(&t)) {
                return "U: node(s) didn't match pod anti-affinity rules";
            }
        }
        for (other, place) in self.pods() {
            let mut terms = other.class.spec.affinity.pod_anti_affinity.required.iter();
            if terms.any(|t| self.term_matches(t, other, self.pod, false) && same(&t.topology_key, place)) {
                return "U: node(s) didn't satisfy existing pods anti-affinity rules";
            }
        }
        "ok"
    }

    fn affinity_scores(&self, hard_weight: i64) -> (Vec<i64>, Vec<i64>) {
        let raw: Vec<i64> = self
            .nodes()
            .into_iter()
            .map(|n| self.affinity_score(n, hard_weight))
            .collect();
        let (least, most) = (*raw.iter().min().unwrap(), *raw.iter().max().unwrap());
        let scale = |s: &i64| {
            if most == least {
                0
            } else {
                (100.0 * ((s - least) as f64 / (most - least) as f64)) as i64
            }
        };
        (raw.clone(), raw.iter().map(scale).collect())
    }

    fn affinity_score(&self, node: &NodeInfo, hard_weight: i64) -> i64 {
        let mut score = 0;
        for (other, place) in self.pods() {
            let same = |key: &str| node.labels.contains_key(key) && node.labels.get(key) == place.labels.get(key);
            let pairs = [(self.pod, other, true), (other, self.pod, false)];
            for (of, to, newcomer) in pairs {
                let affinity = &of.class.spec.affinity;
                let (likes, dislikes) = (&affinity.pod_affinity.preferred, &affinity.pod_anti_affinity.preferred);
                for (term, sign) in likes.iter().map(|t| (t, 1)).chain(dislikes.iter().map(|t| (t, -1))) {
                    let t = &term.pod_affinity_term;
                    if self.term_matches(t, of, to, newcomer) && same(&t.topology_key) {
                        score += sign * i64::from(term.weight);
                    }
                }
                for t in &affinity.pod_affinity.required {
                    if !newcomer && self.term_matches(t, of, to, false) && same(&t.topology_key) {
                        score += hard_weight;
                    }
                }
            }
        }
        score
    }

    /// The pod's own, or the default ones if a service selects it.
    fn constraints(&self, action: &str) -> Vec<TopologySpreadConstraint> {
        let mut all = self.pod.class.spec.topology_spread_constraints.clone();
        if all.is_empty() {
            let selector = self.world.cluster.owners.selector_for(self.pod);
            all.extend(defaults().into_iter().filter(|_| !selector.is_empty()));
            for constraint in &mut all {
                constraint.label_selector = Some(selector.clone());
            }
        }
        all.retain(|c| c.when_unsatisfiable == action);
        all
    }

    fn selected(&self, c: &TopologySpreadConstraint, labels: &Labels) -> bool {
        let own = self.pod.label_set();
        let same = c
            .match_label_keys
            .iter()
            .all(|k| own.get(k).is_none_or(|v| labels.get(k) == Some(v)));
        same && c.label_selector.as_ref().is_some_and(|s| s.matches(labels))
    }

    fn counts(&self, c: &TopologySpreadConstraint, node: &NodeInfo) -> bool {
        let spec = &self.pod.class.spec;
        let affine = c.node_affinity_policy.as_deref() == Some("Ignore")
            || spec.node_selector.iter().all(|(k, v)| node.labels.get(k) == Some(v));
        let tolerated =
            c.node_taints_policy.as_deref() != Some("Honor") || node.taints.is_empty() || !spec.tolerations.is_empty();
        affine && tolerated
    }

    /// Pods by value of the key, on nodes that count.
    fn by_value(&self, c: &TopologySpreadConstraint, all: &[TopologySpreadConstraint]) -> BTreeMap<&str, i64> {
        let mut values = BTreeMap::new();
        for node in self.nodes() {
            let has_keys = all.iter().all(|c| node.labels.contains_key(&c.topology_key));
            if has_keys && self.counts(c, node) {
                let count = values.entry(node.labels[&c.topology_key].as_str()).or_insert(0);
                *count += self.on(c, node);
            }
        }
        values
    }

    fn on(&self, c: &TopologySpreadConstraint, node: &NodeInfo) -> i64 {
        let pods = node.pods.iter().filter(|p| !self.without.contains(&p.uid));
        let counted = pods.filter(|p| {
            p.namespace() == self.pod.namespace() && !p.is_terminating() && self.selected(c, p.label_set())
        });
        counted.count() as i64
    }

    fn spread_filter(&self, node: &NodeInfo) -> &'static str {
        let all = self.constraints("DoNotSchedule");
        for c in &all {
            let Some(value) = node.labels.get(&c.topology_key) else {
                return "UU: node(s) didn't match pod topology spread constraints (missing required label)";
            };
            let values = self.by_value(c, &all);
            let enough = values.len() >= c.min_domains.unwrap_or(1) as usize;
            let least = if enough { *values.values().min().unwrap() } else { 0 };
            let own = i64::from(self.selected(c, self.pod.label_set()));
            if values.get(value.as_str()).unwrap_or(&0) + own - least > i64::from(c.max_skew) {
                return "U: node(s) didn't match pod topology spread constraints";
            }
        }
        "ok"
    }

    fn spread_scores(&self) -> (Vec<i64>, Vec<i64>) {
        let all = self.constraints("ScheduleAnyway");
        let nodes = self.nodes();
        let scored = |n: &NodeInfo| all.iter().all(|c| n.labels.contains_key(&c.topology_key));
        let weight = |c: &TopologySpreadConstraint| {
            let values: HashSet<&String> = nodes
                .iter()
                .filter(|n| scored(n))
                .map(|n| &n.labels[&c.topology_key])
                .collect();
            ((values.len() + 2) as f64).ln()
        };
        let raw = |node: &NodeInfo| {
            let sum = all.iter().map(|c| {
                let count = if c.topology_key == "kubernetes.io/hostname" {
                    self.on(c, node)
                } else {
                    let value = &node.labels[&c.topology_key];
                    self.by_value(c, &all).get(value.as_str()).copied().unwrap_or(0)
                };
                count as f64 * weight(c) + f64::from(c.max_skew - 1)
            });
            sum.sum::<f64>().round() as i64
        };
        let raw: Vec<Option<i64>> = nodes.iter().map(|n| scored(n).then(|| raw(n))).collect();
        let most = raw.iter().flatten().copied().max().unwrap_or(0);
        let least = raw.iter().flatten().copied().min().unwrap_or(0);
        let scale = |s: &Option<i64>| match s {
            None => 0,
            Some(_) if most == 0 => 100,
            Some(s) => 100 * (most + least - s) / most,
        };
        (
            raw.iter().map(|s| s.unwrap_or(0)).collect(),
            raw.iter().map(scale).collect(),
        )
    }
}

// ---- comparing ----

fn check(world: &mut World, plugins: &(InterPodAffinity, PodTopologySpread), who: Who) {
    let mut pod = make(who, "newcomer", "", false);
    pod["spec"].as_object_mut().unwrap().remove("nodeName");
    let pod = world.pod_as_is(pod);
    if world.cluster.is_empty() {
        return;
    }
    let naive = Naive {
        world,
        pod: &pod,
        without: HashSet::new(),
    };
    let nodes = naive.nodes();
    let fits = |answer: fn(&Naive, &NodeInfo) -> &'static str| -> Vec<&str> {
        nodes.iter().map(|n| answer(&naive, n)).collect()
    };
    let all_ok = vec!["ok".to_string(); nodes.len()];
    let want = fits(|n, node| n.affinity_filter(node));
    assert_eq!(
        world.filter(&plugins.0, &pod).unwrap_or(all_ok.clone()),
        want,
        "affinity {who:?}"
    );
    let want = fits(|n, node| n.spread_filter(node));
    assert_eq!(world.filter(&plugins.1, &pod).unwrap_or(all_ok), want, "spread {who:?}");

    let zero = || (vec![0; nodes.len()], vec![0; nodes.len()]);
    let idle = Score::is_idle(&plugins.0, &pod, &world.cluster);
    let scores = world.score(&plugins.0, &pod);
    assert!(!idle || scores.is_none(), "affinity {who:?}");
    assert_eq!(
        scores.unwrap_or_else(zero),
        naive.affinity_scores(2),
        "affinity {who:?}"
    );
    if !naive.constraints("ScheduleAnyway").is_empty() {
        let scores = world.score(&plugins.1, &pod).expect("it has preferences");
        assert_eq!(scores, naive.spread_scores(), "spread {who:?}");
    } else {
        assert_eq!(world.score(&plugins.1, &pod), None, "spread {who:?}");
    }
    what_if(&plugins.0, &naive, |n, node| n.affinity_filter(node));
    what_if(&plugins.1, &naive, |n, node| n.spread_filter(node));
}

/// Takes every other pod off a node, and puts them back.
fn what_if<P: Filter>(plugin: &P, naive: &Naive, answer: fn(&Naive, &NodeInfo) -> &'static str) {
    let PreFilter::Run(state) = plugin.pre_filter(naive.pod, &naive.world.cluster) else {
        return;
    };
    for node in naive.nodes() {
        let alive = node.pods.iter().filter(|p| !p.is_terminating());
        let removed: Vec<&Arc<PodInfo>> = alive.step_by(2).collect();
        let mut changed = state.clone();
        for pod in &removed {
            plugin.remove_pod(&mut changed, naive.pod, pod, node);
        }
        let without = Naive {
            without: removed.iter().map(|p| p.uid.clone()).collect(),
            ..*naive
        };
        assert_eq!(
            verdict(&plugin.filter(&changed, naive.pod, node)),
            answer(&without, node),
            "without some"
        );
        for pod in &removed {
            plugin.add_pod(&mut changed, naive.pod, pod, node);
        }
        assert_eq!(
            verdict(&plugin.filter(&changed, naive.pod, node)),
            answer(naive, node),
            "with them again"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn answers_are_as_if_counted_just_now(
        steps in prop::collection::vec((op(), who()), 1..80),
        start in prop::collection::vec((op(), who()), 12),
    ) {
        let mut world = World::default();
        let plugins = (InterPodAffinity::new(2, false), PodTopologySpread::new(Defaults::List(defaults())));
        for (op, _) in &start {
            perform(&mut world, op);
        }
        for (op, asked) in &steps {
            perform(&mut world, op);
            check(&mut world, &plugins, *asked);
        }
    }
}

#[test]
fn what_nobody_asks_for_is_forgotten() {
    let mut world = World::default();
    for n in 0..4 {
        world.node(&format!("n{n}"), json!({"zone": format!("z{}", n % 2)}));
    }
    let plugin = InterPodAffinity::new(1, false);
    let wish = |n: usize| {
        let term = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": format!("a{n}")}}});
        json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}})
    };
    for n in 0..2000 {
        let labels = json!({"app": format!("a{n}")});
        world.place(&format!("n{}", n % 4), labels.clone(), wish(n));
        let pod = world.pod(labels, wish(n));
        let taken = |node: usize| {
            if node % 2 == n % 2 {
                "U: node(s) didn't match pod anti-affinity rules"
            } else {
                "ok"
            }
        };
        let want: Vec<&str> = (0..4).map(taken).collect();
        assert_eq!(world.filter(&plugin, &pod).unwrap(), want);
    }
    let topology = world.cluster.topology.borrow();
    assert!(topology.counters.len() <= super::COUNTERS);
    drop(topology);
    for pod in world.cluster.pods().map(|p| p.uid.clone()).collect::<Vec<_>>() {
        world.cluster.remove_pod(&pod);
    }
    assert!(world.cluster.topology.borrow().carries_nothing());
    assert_eq!(plugin.name(), "InterPodAffinity");
}

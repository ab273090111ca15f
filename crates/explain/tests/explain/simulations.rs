//! Drains, new nodes, scaling, new workloads, repacking: what is reported, and that it could be.

use orlop_base::Random;
use orlop_explain::World;
use orlop_explain::simulate::{SimulationReport, Step, Workloads, objects, simulate, world_of};
use orlop_scheduler::config::Config;
use orlop_scheduler::model::Taint;
use serde_json::{Value, json};

use crate::fixture::case;

fn lines(report: &SimulationReport) -> Vec<String> {
    let from = |node: &Option<String>| node.clone().unwrap_or_else(|| "-".into());
    let moves = report
        .moves
        .iter()
        .map(|m| format!("{} {}>{}: {}", m.pod, from(&m.from), m.to, m.because));
    let pending = report
        .pending
        .iter()
        .map(|p| format!("pending {}: {}", p.pod, p.reason));
    let lost = report.lost.iter().map(|pod| format!("lost {pod}"));
    let budgets = report
        .budgets
        .iter()
        .map(|b| format!("budget {}: {} {}", b.budget, b.evictions, b.effect));
    let notes = report.notes.iter().map(|note| format!("note {note}"));
    moves.chain(pending).chain(lost).chain(budgets).chain(notes).collect()
}

fn run(text: &str, workloads: &[Value], steps: &[Step]) -> (World, SimulationReport) {
    let mut world = case(text).world;
    let mut all = Workloads::default();
    for workload in workloads {
        assert!(all.add(workload));
    }
    let report = simulate(&mut world, &mut all, steps).unwrap_or_else(|e| panic!("{e}"));
    check(&world);
    assert_eq!(
        report.fits,
        report.pending.iter().all(|p| p.was_pending),
        "{:?}",
        lines(&report)
    );
    (world, report)
}

/// No node holds more than it can.
fn check(world: &World) {
    for node in world.cluster.nodes() {
        let (used, have) = (&node.requested, &node.allocatable);
        assert!(
            used.milli_cpu <= have.milli_cpu && used.memory <= have.memory,
            "{}",
            node.name
        );
        assert!(node.pods.len() as i64 <= node.allowed_pods, "{}", node.name);
    }
}

fn node(name: &str) -> String {
    name.to_string()
}

#[test]
fn drains() {
    let cluster = "node n1 {}\nnode n2 {}\n\
        object {kind: PodDisruptionBudget, apiVersion: policy/v1, metadata: {namespace: default, name: web}, spec: {selector: {matchLabels: {app: web}}}, status: {disruptionsAllowed: 1}}\n\
        pod a {on: n1, cpu: 1, owner: ReplicaSet/web, labels: {app: web}}\n\
        pod b {on: n1, cpu: 3, owner: ReplicaSet/web, labels: {app: web}}\n\
        pod agent {on: n1, owner: DaemonSet/agent}\n\
        pod alone {on: n1}\n\
        pod c {on: n2, cpu: 500m, owner: ReplicaSet/web, labels: {app: web}}\n";
    let (_, report) = run(cluster, &[], &[Step::Drain(node("n1"))]);
    assert!(report.fits == report.pending.is_empty() && !report.fits);
    assert_eq!(
        lines(&report),
        [
            "default/web-new-1 n1>n2: drained (a)",
            "pending default/web-new-2: 0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable.",
            "lost default/alone",
            "budget default/web: 2 slows down: 1 at a time, the next when replacements are ready",
        ]
    );
    assert!(
        report
            .nodes
            .iter()
            .any(|n| n.name == "n1" && n.after.as_ref().is_some_and(|a| a.pods == 1 && !a.schedulable))
    );
    // One more node takes what is left.
    let steps = [
        Step::AddNodes {
            count: 1,
            like: node("n1"),
        },
        Step::Drain(node("n1")),
    ];
    let (_, report) = run(cluster, &[], &steps);
    assert!(report.fits, "{:?}", lines(&report));
    assert_eq!((report.before.nodes, report.after.nodes), (2, 3));
    // A node that is removed takes the DaemonSet's pod with it.
    let (world, report) = run(cluster, &[], &[Step::RemoveNode(node("n1"))]);
    assert_eq!((report.after.nodes, world.cluster.pods().count()), (1, 2));
}

#[test]
fn taints_cordons_and_evictions() {
    let cluster = "node n1 {}\nnode n2 {}\npod a {on: n1, cpu: 1, owner: ReplicaSet/a}\n\
        pod b {on: n1, cpu: 1, owner: ReplicaSet/b, tolerations: [{key: k, operator: Exists}]}\n";
    let taint = |effect: &str| Step::Taint {
        node: node("n1"),
        taint: Taint {
            key: "k".into(),
            effect: effect.into(),
            ..Taint::default()
        },
    };
    let (_, report) = run(cluster, &[], &[taint("NoSchedule")]);
    assert_eq!(lines(&report), Vec::<String>::new());
    let (_, report) = run(cluster, &[], &[taint("NoExecute")]);
    assert_eq!(
        lines(&report),
        ["default/a-new-1 n1>n2: does not tolerate the new taint (a)"]
    );
    let evict = Step::Evict {
        namespace: "default".into(),
        name: "a".into(),
    };
    let (_, report) = run(cluster, &[], &[Step::Cordon(node("n2")), evict.clone()]);
    assert_eq!(lines(&report), ["default/a-new-1 n1>n1: evicted (a)"]);
    let mut world = case(cluster).world;
    let wrong = [
        (Step::Drain(node("n9")), "there is no node \"n9\"; nodes are: n1, n2"),
        (
            Step::Evict {
                namespace: "default".into(),
                name: "z".into(),
            },
            "there is no pod default/z with a node",
        ),
        (
            Step::Scale {
                kind: "Deployment".into(),
                namespace: "default".into(),
                name: "z".into(),
                replicas: 1,
            },
            "there is no Deployment default/z, or it may not be read",
        ),
    ];
    for (step, expected) in wrong {
        let error = simulate(&mut world, &mut Workloads::default(), &[step]).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

fn set(kind: &str, name: &str, replicas: u64, cpu: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"namespace": "default", "name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": {
            "metadata": {"labels": {"app": name}}, "spec": {"containers": [
                {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]}}}})
}

#[test]
fn scaling() {
    let cluster =
        "node n1 {}\npod a {on: n1, cpu: 1, owner: ReplicaSet/web}\npod b {on: n1, cpu: 1, owner: ReplicaSet/web}\n";
    let scale = |replicas| Step::Scale {
        kind: "ReplicaSet".into(),
        namespace: "default".into(),
        name: "web".into(),
        replicas,
    };
    let workloads = [set("ReplicaSet", "web", 2, "1")];
    let (_, report) = run(cluster, &workloads, &[scale(4)]);
    assert!(report.fits && report.moves.len() == 2, "{:?}", lines(&report));
    let (_, report) = run(cluster, &workloads, &[scale(6)]);
    assert_eq!((report.fits, report.pending.len()), (false, 2), "{:?}", lines(&report));
    let (world, report) = run(cluster, &workloads, &[scale(1)]);
    assert_eq!((report.after.pods, world.cluster.pods().count()), (1, 1));
    // There and back: what was pending goes first.
    let (_, report) = run(cluster, &workloads, &[scale(6), scale(3)]);
    assert!(report.fits && report.after.pods == 3, "{:?}", lines(&report));
}

#[test]
fn new_workloads() {
    let cluster = "node n1 {}\npod a {on: n1, cpu: 3, owner: ReplicaSet/web}\n";
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 100});
    let mut urgent = set("Deployment", "urgent", 1, "2");
    urgent["spec"]["template"]["spec"]["priorityClassName"] = "high".into();
    let text = [class, urgent]
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n---\n");
    let (_, report) = run(cluster, &[], &[Step::Apply(objects(&text).unwrap())]);
    assert_eq!(
        lines(&report),
        [
            "default/urgent-new-new-1 ->n1: Deployment urgent is applied",
            "pending default/web-new-2: 0/1 nodes are available: 1 Insufficient cpu.",
        ]
    );
    // A StatefulSet's pods bring their claims.
    let mut db = set("StatefulSet", "db", 2, "100m");
    db["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"}, "spec": {"storageClassName": "later"}}]);
    let storage = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "later"},
        "provisioner": "disks", "volumeBindingMode": "WaitForFirstConsumer"});
    let text = format!("{db}\n---\n{storage}");
    let (_, report) = run(cluster, &[], &[Step::Apply(objects(&text).unwrap())]);
    assert_eq!(
        lines(&report),
        [
            "default/db-0 ->n1: StatefulSet db is applied",
            "default/db-1 ->n1: StatefulSet db is applied"
        ]
    );
    // A folder is a cluster of its own.
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: node}\nstatus: {allocatable: {cpu: '1', memory: 1Gi, pods: '5'}}\n---\n";
    let folder = format!("{node}{}", set("Deployment", "web", 3, "500m"));
    let (mut world, mut workloads, steps) = world_of(objects(&folder).unwrap(), &Config::default()).unwrap();
    let report = simulate(&mut world, &mut workloads, &steps).unwrap();
    assert_eq!(
        (report.moves.len(), report.pending.len(), report.fits),
        (2, 1, false),
        "{:?}",
        lines(&report)
    );
}

#[test]
fn repacking_empties_nodes_and_keeps_rules() {
    let cluster = "node n1 {}\nnode n2 {}\nnode n3 {}\npod a {on: n1, cpu: 1, owner: ReplicaSet/a}\n\
        pod b {on: n2, cpu: 1, owner: ReplicaSet/b}\npod c {on: n3, cpu: 2, owner: ReplicaSet/c}\n";
    let (world, report) = run(cluster, &[], &[Step::Repack]);
    assert!(report.fits, "{:?}", lines(&report));
    let used = world.cluster.nodes().filter(|n| !n.pods.is_empty()).count();
    assert_eq!(used, 1, "{:?}", lines(&report));
    // A budget that allows nothing, and a pod that nobody would make anew, stay.
    let kept = format!(
        "{cluster}pod lonely {{on: n2}}\nobject {{kind: PodDisruptionBudget, apiVersion: policy/v1, metadata: {{namespace: default, name: k}}, \
         spec: {{selector: {{matchLabels: {{app: k}}}}}}, status: {{disruptionsAllowed: 0}}}}\n\
         pod d {{on: n1, labels: {{app: k}}, owner: ReplicaSet/d}}\n"
    );
    let (world, report) = run(&kept, &[], &[Step::Repack]);
    let on = |name: &str| world.cluster.node_named(name).map_or(0, |n| n.pods.len());
    assert!(
        on("n1") >= 2 && on("n2") >= 2 && report.lost.is_empty(),
        "{:?}",
        lines(&report)
    );
}

/// Whatever is drained: no pod gets lost or doubled, none that waits would fit, and the same question has the same answer.
#[test]
fn random_drains_are_sound() {
    for seed in 0..60 {
        let mut random = Random::seeded(seed);
        let mut pick = |bound: u64| random.below(bound);
        let nodes = 2 + pick(5);
        let mut text = String::new();
        for n in 0..nodes {
            text += &format!("node n{n} {{cpu: {}, labels: {{zone: z{}}}}}\n", 2 + pick(4), pick(2));
        }
        let mut room: Vec<u64> = vec![2; nodes as usize];
        for p in 0..8 {
            let n = pick(nodes) as usize;
            if room[n] > 0 {
                room[n] -= 1;
                let apart = if pick(4) == 0 {
                    ", affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: x}}}]}}"
                } else {
                    ""
                };
                text += &format!("pod q{p} {{on: n{n}, cpu: 1, owner: ReplicaSet/r, labels: {{app: x}}{apart}}}\n");
            }
        }
        let steps = [
            Step::Drain(format!("n{}", pick(nodes))),
            Step::RemoveNode(format!("n{}", pick(nodes))),
        ];
        let before = case(&text).world.cluster.pods().count();
        let (world, report) = run(&text, &[], &steps);
        assert_eq!(
            world.cluster.pods().count() + report.pending.len(),
            before,
            "seed {seed}"
        );
        assert!(report.lost.is_empty());
        let (_, again) = run(&text, &[], &steps);
        assert_eq!(lines(&report), lines(&again), "seed {seed}");
    }
}

//! Every default plugin by itself, three cases or more each: which nodes do, with what score, and why the others do not.

use std::sync::Arc;

use jiff::Timestamp;
use orlop_scheduler::cluster::pod::PodInfo;
use orlop_scheduler::config::DEFAULT_PLUGINS;
use orlop_scheduler::framework::event::{Event, Hint};
use orlop_scheduler::framework::verdict::Rejection;
use orlop_scheduler::queue::{Advice, QueueConfig, SchedulingQueue};

use crate::fixture::{Fixture, check};

/// What it shows, the cluster, the answer.
type Case = (&'static str, &'static str, &'static str);

/// Plugins that decide nothing which could be written down here, and the tests of what they do.
const ELSEWHERE: &[(&str, &str)] = &[("DefaultBinder", "src/shell/tests/bindings.rs")];

const CASES: &[(&str, &[Case])] = &[
    (
        "SchedulingGates",
        &[
            ("no gate", "node a\npod p", "ok"),
            (
                "one gate",
                r#"pod p {"schedulingGates": [{"name": "x"}]}"#,
                "waiting for scheduling gates: [x]",
            ),
            (
                "two gates",
                r#"pod p {"schedulingGates": [{"name": "y"}, {"name": "x"}]}"#,
                "waiting for scheduling gates: [y x]",
            ),
        ],
    ),
    (
        "PrioritySort",
        &[
            ("first come, first served", "pod b\npod a\npod c", "b a c"),
            (
                "the more important first",
                "pod a prio=1\npod b prio=7\npod c prio=-3",
                "b a c",
            ),
            (
                "none is 0",
                "pod a prio=-1\npod b\npod c prio=1\npod d prio=0",
                "c b d a",
            ),
        ],
    ),
    (
        "NodeUnschedulable",
        &[
            (
                "cordoned",
                "node a cordoned\nnode b\npod p",
                "a: node(s) were unschedulable; b",
            ),
            (
                "tolerated",
                "node a cordoned\npod p tolerate=node.kubernetes.io/unschedulable:NoSchedule",
                "a",
            ),
            (
                "another taint tolerated",
                "node a cordoned\npod p tolerate=node.kubernetes.io/not-ready:NoSchedule",
                "a: node(s) were unschedulable",
            ),
        ],
    ),
    (
        "NodeName",
        &[
            ("no name", "node a\nnode b\npod p", "a; b"),
            (
                "that node and no other",
                "node a\nnode b\npod p node=a",
                "a; b: node(s) didn't match the requested node name",
            ),
            (
                "a node that is not there",
                "node a\npod p node=z",
                "a: node(s) didn't match the requested node name",
            ),
            (
                "the whole name counts",
                "node a\nnode a1\nnode A\npod p node=a",
                "A: node(s) didn't match the requested node name; a; a1: node(s) didn't match the requested node name",
            ),
            // Whether it can go there is for others to say.
            (
                "cordoned and full",
                "node a cordoned pods=0 taint=k=v:NoSchedule\npod p node=a",
                "a",
            ),
        ],
    ),
    (
        "TaintToleration",
        &[
            (
                "hard",
                "node a taint=k=v:NoSchedule\nnode b\npod p",
                "a: node(s) had untolerated taint(s); b 0/100",
            ),
            // Most is 2: 100 − 100·2/2, 100 − 100·1/2, 100.
            (
                "soft",
                "node a taint=k=1:PreferNoSchedule taint=l=1:PreferNoSchedule\nnode b taint=k=1:PreferNoSchedule\n\
                 node c\npod p",
                "a 2/0; b 1/50; c 0/100",
            ),
            (
                "tolerated",
                "node a taint=k=v:NoExecute\npod p tolerate=k=v:NoExecute",
                "a 0/100",
            ),
        ],
    ),
    (
        "NodeAffinity",
        &[
            (
                "a selector",
                "node a label=disk=ssd\nnode b\npod p selector=disk=ssd",
                "a; b: node(s) didn't match Pod's node affinity/selector",
            ),
            (
                "Gt compares numbers",
                r#"node a label=rank=10
                node b label=rank=9
                pod p {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchExpressions": [{"key": "rank", "operator": "Gt", "values": ["9"]}]}]}}}}"#,
                "a; b: node(s) didn't match Pod's node affinity/selector",
            ),
            // 10 + 20, 10, 0; the most is 30: 100, 33, 0.
            (
                "preferences add up",
                r#"node a label=disk=ssd zone=z1
                node b label=disk=ssd
                node c
                pod p {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 10, "preference": {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}},
                {"weight": 20, "preference": {"matchExpressions": [
                {"key": "topology.kubernetes.io/zone", "operator": "Exists"}]}}]}}}"#,
                "a 30/100; b 10/33; c 0/0",
            ),
        ],
    ),
    (
        "NodePorts",
        &[
            (
                "taken",
                "node a\nnode b\npod q node=a port=80\npod p port=80",
                "a: node(s) didn't have free ports for the requested pod ports; b",
            ),
            (
                "another protocol",
                "node a\npod q node=a port=80/UDP\npod p port=80",
                "a",
            ),
            (
                "another address",
                "node a\npod q node=a port=10.0.0.1:80\npod p port=10.0.0.2:80",
                "a",
            ),
            (
                "every address",
                "node a\npod q node=a port=10.0.0.1:80\npod p port=80",
                "a: node(s) didn't have free ports for the requested pod ports",
            ),
        ],
    ),
    (
        "NodeResourcesFit",
        &[
            // b: cpu (4 − 2)/4 = 50, memory (8 − 4)/8 = 50.
            (
                "room",
                "node a cpu=1\nnode b cpu=4 mem=8Gi\npod p cpu=2 mem=4Gi",
                "a: Insufficient cpu; b 50/50",
            ),
            // cpu (4 − 2)/4 = 50, memory (8 − 2)/8 = 75: 125/2 = 62.
            (
                "what is there counts",
                "node a\npod q node=a cpu=1 mem=1Gi\npod p cpu=1 mem=1Gi",
                "a 62/62",
            ),
            (
                "too many pods",
                "node a pods=1\npod q node=a\npod p",
                "a: Too many pods",
            ),
        ],
    ),
    (
        "VolumeRestrictions",
        &[
            (
                "a disk is for one",
                r#"node a
                node b
                pod q node=a {"volumes": [{"name": "v", "gcePersistentDisk": {"pdName": "d"}}]}
                pod p {"volumes": [{"name": "v", "gcePersistentDisk": {"pdName": "d"}}]}"#,
                "a: node(s) had no available disk; b",
            ),
            (
                "unless all only read",
                r#"node a
                pod q node=a {"volumes": [{"name": "v", "gcePersistentDisk": {"pdName": "d", "readOnly": true}}]}
                pod p {"volumes": [{"name": "v", "gcePersistentDisk": {"pdName": "d", "readOnly": true}}]}"#,
                "a",
            ),
            // Wherever the other is.
            (
                "a claim for one pod",
                r#"node a
                node b
                claim c {"spec": {"accessModes": ["ReadWriteOncePod"]}}
                pod q node=a {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}
                pod p {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}"#,
                "a: node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by \
                 another pod; b: node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode \
                 already in-use by another pod",
            ),
        ],
    ),
    (
        "NodeVolumeLimits",
        &[
            (
                "one is all",
                r#"node a
                node b
                csinode a {"spec": {"drivers": [{"name": "d", "allocatable": {"count": 1}}]}}
                volume v {"spec": {"csi": {"driver": "d", "volumeHandle": "v"}}}
                volume w {"spec": {"csi": {"driver": "d", "volumeHandle": "w"}}}
                claim v {"spec": {"volumeName": "v"}}
                claim w {"spec": {"volumeName": "w"}}
                pod q node=a {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}]}
                pod p {"volumes": [{"name": "w", "persistentVolumeClaim": {"claimName": "w"}}]}"#,
                "a: node(s) exceed max volume count; b",
            ),
            (
                "the same volume counts once",
                r#"node a
                csinode a {"spec": {"drivers": [{"name": "d", "allocatable": {"count": 1}}]}}
                volume v {"spec": {"csi": {"driver": "d", "volumeHandle": "v"}}}
                claim v {"spec": {"volumeName": "v"}}
                pod q node=a {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}]}
                pod p {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}]}"#,
                "a",
            ),
            (
                "none at all",
                r#"node a
                csinode a {"spec": {"drivers": [{"name": "d", "allocatable": {"count": 0}}]}}
                volume v {"spec": {"csi": {"driver": "d", "volumeHandle": "v"}}}
                claim v {"spec": {"volumeName": "v"}}
                pod p {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "v"}}]}"#,
                "a: node(s) exceed max volume count",
            ),
        ],
    ),
    (
        "VolumeBinding",
        &[
            (
                "no such claim",
                r#"node a
                pod p {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}"#,
                "none: persistentvolumeclaim \"c\" not found",
            ),
            (
                "a bound volume is where it is",
                r#"node a
                node b
                volume v {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}]}]}}}}
                claim c {"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": {"volumeName": "v"}}
                pod p {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}"#,
                "a: node(s) didn't match PersistentVolume's node affinity; b",
            ),
            (
                "a free volume must be large enough",
                r#"node a
                node b
                class local {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
                volume v {"spec": {"storageClassName": "local", "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"], "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["a"]}]}]}}}, "status": {"phase": "Available"}}
                volume w {"spec": {"storageClassName": "local", "capacity": {"storage": "9Gi"}, "accessModes": ["ReadWriteOnce"], "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}]}]}}}, "status": {"phase": "Available"}}
                claim c {"spec": {"storageClassName": "local", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}}}
                pod p {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}"#,
                "a; b: node(s) didn't find available persistent volumes to bind",
            ),
        ],
    ),
    (
        "VolumeZone",
        &[
            (
                "another zone",
                r#"node a zone=z1
                node b zone=z2
                volume v {"metadata": {"labels": {"topology.kubernetes.io/zone": "z1"}}}
                claim c {"spec": {"volumeName": "v"}}
                pod p {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}"#,
                "a; b: node(s) had no available volume zone",
            ),
            (
                "any of several zones",
                r#"node a zone=z1
                node b zone=z2
                node c zone=z3
                volume v {"metadata": {"labels": {"topology.kubernetes.io/zone": "z1__z3"}}}
                claim c {"spec": {"volumeName": "v"}}
                pod p {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}"#,
                "a; b: node(s) had no available volume zone; c",
            ),
            (
                "a node without zones is no matter",
                r#"node a
                volume v {"metadata": {"labels": {"topology.kubernetes.io/zone": "z1"}}}
                claim c {"spec": {"volumeName": "v"}}
                pod p {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}"#,
                "a",
            ),
        ],
    ),
    (
        "PodTopologySpread",
        &[
            // z1 would have 2, z2 has 0: 2 more than the least.
            (
                "a skew of one",
                r#"node a zone=z1
                node b zone=z2
                pod q node=a label=app=x
                pod p label=app=x {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "x"}}}]}"#,
                "a: node(s) didn't match pod topology spread constraints; b",
            ),
            (
                "a skew of two",
                r#"node a zone=z1
                node b zone=z2
                pod q node=a label=app=x
                pod p label=app=x {"topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "x"}}}]}"#,
                "a; b",
            ),
            (
                "a node of no zone",
                r#"node a
                node b zone=z2
                pod p label=app=x {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "x"}}}]}"#,
                "a: node(s) didn't match pod topology spread constraints (missing required label); b",
            ),
        ],
    ),
    (
        "InterPodAffinity",
        &[
            (
                "away from its like",
                r#"node a
                node b
                pod q node=a label=app=x
                pod p {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "kubernetes.io/hostname"}]}}}"#,
                "a: node(s) didn't match pod anti-affinity rules; b",
            ),
            (
                "in the same zone",
                r#"node a zone=z1
                node b zone=z1
                node c zone=z2
                pod q node=a label=app=x
                pod p {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "topology.kubernetes.io/zone"}]}}}"#,
                "a; b; c: node(s) didn't match pod affinity rules",
            ),
            (
                "who is there may object",
                r#"node a
                node b
                pod q node=a {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {"matchLabels": {"app": "y"}}, "topologyKey": "kubernetes.io/hostname"}]}}}
                pod p label=app=y"#,
                "a: node(s) didn't satisfy existing pods anti-affinity rules; b",
            ),
            // 3 for each of the two, 3, 0; from 0 to 6: 100, 50, 0.
            (
                "preferences add up",
                r#"node a
                node b
                node c
                pod q node=a label=app=x
                pod r node=a label=app=x
                pod s node=b label=app=x
                pod p {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 3, "podAffinityTerm": {"labelSelector": {"matchLabels": {"app": "x"}}, "topologyKey": "kubernetes.io/hostname"}}]}}}"#,
                "a 6/100; b 3/50; c 0/0",
            ),
        ],
    ),
    (
        "DynamicResources",
        &[
            ("no claims", "node a\npod p", "a"),
            (
                "a claim",
                "node a\npod p {\"resourceClaims\": [{\"name\": \"x\"}]}",
                "none: pods with resource claims can't be scheduled: dynamic resource allocation is not supported",
            ),
            (
                "two claims",
                "node a\nnode b\npod p {\"resourceClaims\": [{\"name\": \"x\"}, {\"name\": \"y\"}]}",
                "none: pods with resource claims can't be scheduled: dynamic resource allocation is not supported",
            ),
        ],
    ),
    (
        "DefaultPreemption",
        &[
            (
                "a lesser pod goes",
                "node a cpu=2\npod q node=a cpu=2 prio=1\npod p cpu=1 prio=5",
                "a: q (0) → a",
            ),
            (
                "where the least important is enough",
                "node a cpu=2\nnode b cpu=2\npod q node=a cpu=2 prio=3\npod r node=b cpu=2 prio=1\npod p cpu=1 prio=5",
                "a: q (0); b: r (0) → b",
            ),
            (
                "its equals stay",
                "node a cpu=2\npod q node=a cpu=2 prio=5\npod p cpu=1 prio=5",
                "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.",
            ),
        ],
    ),
    (
        "NodeResourcesBalancedAllocation",
        &[
            // With it 1/2 and 1/2: 100. Before 0 and 0: 100. 50 + (50 + 100 − 100)/2.
            ("even", "node a cpu=4 mem=8Gi\npod p cpu=2 mem=4Gi", "a 75/75"),
            // With it 1/2 and 0, apart by 1/4: 75. 50 + (50 + 75 − 100)/2 = 50 + 12.
            ("uneven", "node a cpu=4 mem=8Gi\npod p cpu=2", "a 62/62"),
            // Before 1/2 and 0: 75. With it 1/2 and 1/2: 100. 50 + (50 + 100 − 75)/2 = 50 + 37.
            (
                "made even",
                "node a cpu=4 mem=8Gi\npod q node=a cpu=2\npod p mem=4Gi",
                "a 87/87",
            ),
        ],
    ),
    (
        "ImageLocality",
        &[
            // 300 Mi on half of the nodes count 150 Mi: 100·(150 − 23)/(1000 − 23) = 12.
            (
                "on one of two",
                "node a image=app:1=300Mi\nnode b\npod p image=app:1",
                "a 12/12; b 0/0",
            ),
            // 100·(300 − 23)/977 = 28.
            (
                "everywhere",
                "node a image=app:1=300Mi\nnode b image=app:1=300Mi\npod p image=app:1",
                "a 28/28; b 28/28",
            ),
            (
                "too small to matter",
                "node a image=app:1=20Mi\npod p image=app:1",
                "a 0/0",
            ),
        ],
    ),
    (
        "NodeDeclaredFeatures",
        &[
            (
                "none needed",
                "node a\nnode b feature=Other\npod p {\"hostNetwork\": true}",
                "a; b",
            ),
            (
                "users of their own in the node's network",
                r#"node a feature=UserNamespacesHostNetworkSupport
                node b feature=Other
                node c
                pod p {"hostNetwork": true, "hostUsers": false}"#,
                "a; b: node(s) didn't match Pod's required features; c: node(s) didn't match Pod's required features",
            ),
            (
                "restarting all containers",
                r#"node a feature=RestartAllContainersOnContainerExits
                node b feature=UserNamespacesHostNetworkSupport
                pod p {"containers": [{"name": "c", "restartPolicyRules": [{"action": "RestartAllContainers"}]}]}"#,
                "a; b: node(s) didn't match Pod's required features",
            ),
            (
                "both at once",
                r#"node a feature=RestartAllContainersOnContainerExits
                node b feature=UserNamespacesHostNetworkSupport feature=RestartAllContainersOnContainerExits
                pod p {"hostNetwork": true, "hostUsers": false, "initContainers": [{"name": "i", "restartPolicyRules": [{"action": "RestartAllContainers"}]}]}"#,
                "a: node(s) didn't match Pod's required features; b",
            ),
        ],
    ),
];

struct Open;

impl Advice for Open {
    fn pre_enqueue(&self, _: &PodInfo) -> Result<(), (&'static str, Rejection)> {
        Ok(())
    }

    fn hint(&self, _: &'static str, _: &PodInfo, _: &Event) -> Hint {
        Hint::Queue
    }
}

/// The names of the pods in the order they are tried; each line comes a second later than the one before.
fn order(text: &str) -> String {
    let fixture = Fixture::new(text);
    let mut queue = SchedulingQueue::new(QueueConfig::default(), vec![]);
    for (second, line) in text.lines().enumerate() {
        let name = line.split_whitespace().nth(1).expect("a name");
        let now = Timestamp::from_second(second as i64).expect("a time");
        queue.add(fixture.pod(name), now, &Open);
    }
    let tried = std::iter::from_fn(|| queue.pop()).map(|queued| queued.pod.key.name.to_string());
    tried.collect::<Vec<_>>().join(" ")
}

fn gate(text: &str) -> String {
    let fixture = Fixture::only_named("SchedulingGates", text);
    let pod: Arc<PodInfo> = fixture.pod("p");
    let plugin = &fixture.core.profiles[0].plugins[0];
    let verdict = plugin.pre_enqueue().expect("it has gates").pre_enqueue(&pod);
    verdict.map_or_else(|rejection| rejection.message(), |()| "ok".to_string())
}

fn answer(plugin: &str, text: &str) -> String {
    match plugin {
        "SchedulingGates" => gate(text),
        "PrioritySort" => order(text),
        "DefaultPreemption" => Fixture::new(text).victims("p"),
        _ => Fixture::only_named(plugin, text).account("p"),
    }
}

#[test]
fn every_case_holds() {
    for (plugin, cases) in CASES {
        // Objects may go over several lines: those that begin with a brace or bracket belong to the line before.
        check(cases, |text| answer(plugin, &joined(text)));
    }
}

fn joined(text: &str) -> String {
    let mut lines: Vec<String> = vec![];
    for line in text.lines().map(str::trim) {
        match lines.last_mut() {
            Some(last) if line.starts_with(['{', '[']) => last.push_str(line),
            _ => lines.push(line.to_string()),
        }
    }
    lines.join("\n")
}

#[test]
fn every_default_plugin_has_three_cases() {
    let count = |name: &str| {
        CASES
            .iter()
            .filter(|(n, _)| *n == name)
            .map(|(_, cases)| cases.len())
            .sum::<usize>()
    };
    let elsewhere = |name: &str| {
        let found = ELSEWHERE.iter().find(|(n, _)| *n == name);
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        found.is_some_and(|(_, file)| root.join(file).is_file())
    };
    let names = DEFAULT_PLUGINS.iter().map(|row| row.name);
    let short: Vec<&str> = names.filter(|name| count(name) < 3 && !elsewhere(name)).collect();
    assert!(short.is_empty(), "fewer than three golden cases: {short:?}");
    let unknown: Vec<&str> = (CASES.iter().map(|(name, _)| *name))
        .filter(|name| DEFAULT_PLUGINS.iter().all(|row| row.name != *name))
        .collect();
    assert!(unknown.is_empty(), "no such plugins: {unknown:?}");
}

//! Filters: who rejects which node, why, and whether eviction could help.

use orlop_scheduler::plugins::node_affinity::NodeAffinity;
use orlop_scheduler::plugins::node_resources_fit::{NodeResourcesFit, Strategy};

use crate::fixture::{Fixture, check};

fn rejections(cluster: &str) -> String {
    Fixture::new(cluster).rejections("p")
}

#[test]
fn node_unschedulable() {
    let cordoned = "a: NodeUnschedulable!: node(s) were unschedulable";
    check(
        &[
            ("cordoned", "node a cordoned\npod p", cordoned),
            (
                "tolerated",
                "node a cordoned\npod p tolerate=node.kubernetes.io/unschedulable:NoSchedule",
                "fits",
            ),
            (
                "tolerated with any effect",
                "node a cordoned\npod p tolerate=node.kubernetes.io/unschedulable",
                "fits",
            ),
            (
                "tolerated with another effect",
                "node a cordoned\npod p tolerate=node.kubernetes.io/unschedulable:NoExecute",
                cordoned,
            ),
            ("another is free", "node a cordoned\nnode b\npod p", "fits"),
        ],
        rejections,
    );
}

#[test]
fn taints() {
    let tainted = "a: TaintToleration!: node(s) had untolerated taint(s)";
    check(
        &[
            ("NoSchedule", "node a taint=k=v:NoSchedule\npod p", tainted),
            ("NoExecute", "node a taint=k=v:NoExecute\npod p", tainted),
            ("PreferNoSchedule", "node a taint=k=v:PreferNoSchedule\npod p", "fits"),
            (
                "equal",
                "node a taint=k=v:NoSchedule\npod p tolerate=k=v:NoSchedule",
                "fits",
            ),
            (
                "another value",
                "node a taint=k=v:NoSchedule\npod p tolerate=k=w:NoSchedule",
                tainted,
            ),
            ("exists", "node a taint=k=v:NoSchedule\npod p tolerate=k", "fits"),
            (
                "everything",
                "node a taint=k=v:NoSchedule\npod p {\"tolerations\": [{\"operator\": \"Exists\"}]}",
                "fits",
            ),
            (
                "one of two",
                "node a taint=k=v:NoSchedule taint=l=v:NoExecute\npod p tolerate=k",
                tainted,
            ),
        ],
        rejections,
    );
}

fn required(terms: &str) -> String {
    format!(
        "node a label=disk=ssd label=rank=3\nnode b label=disk=hdd\npod p {{\"affinity\": {{\"nodeAffinity\": \
         {{\"requiredDuringSchedulingIgnoredDuringExecution\": {{\"nodeSelectorTerms\": [{terms}]}}}}}}}}"
    )
}

/// Required in both ways.
fn required_twice(ignored: &str, during_execution: &str) -> String {
    let terms = |terms: &str| format!("{{\"nodeSelectorTerms\": [{terms}]}}");
    format!(
        "node a label=disk=ssd label=rank=3\nnode b label=disk=hdd\npod p {{\"affinity\": {{\"nodeAffinity\": \
         {{\"requiredDuringSchedulingIgnoredDuringExecution\": {}, \
         \"requiredDuringSchedulingRequiredDuringExecution\": {}}}}}}}",
        terms(ignored),
        terms(during_execution)
    )
}

fn named(name: &str) -> String {
    format!(r#"{{"matchFields": [{{"key": "metadata.name", "operator": "In", "values": ["{name}"]}}]}}"#)
}

fn expression(key: &str, operator: &str, values: &str) -> String {
    format!(r#"{{"matchExpressions": [{{"key": "{key}", "operator": "{operator}", "values": [{values}]}}]}}"#)
}

#[test]
fn node_affinity() {
    let no = "NodeAffinity!: node(s) didn't match Pod's node affinity/selector";
    let neither = format!("a: {no}; b: {no}");
    check(
        &[
            (
                "a selector",
                "node a label=disk=hdd\npod p selector=disk=ssd",
                &format!("a: {no}"),
            ),
            ("no label", "node a\npod p selector=disk=ssd", &format!("a: {no}")),
            (
                "the selector matches",
                "node a label=disk=ssd\npod p selector=disk=ssd",
                "fits",
            ),
            ("In", &required(&expression("disk", "In", r#""nvme""#)), &neither),
            (
                "NotIn",
                &required(&expression("disk", "NotIn", r#""ssd", "hdd""#)),
                &neither,
            ),
            (
                "NotIn, absent",
                &required(&expression("rack", "NotIn", r#""1""#)),
                "fits",
            ),
            ("Exists", &required(&expression("rack", "Exists", "")), &neither),
            (
                "DoesNotExist",
                &required(&expression("disk", "DoesNotExist", "")),
                &neither,
            ),
            ("Gt", &required(&expression("rank", "Gt", r#""3""#)), &neither),
            ("Gt matches", &required(&expression("rank", "Gt", r#""2""#)), "fits"),
            ("Lt", &required(&expression("rank", "Lt", r#""3""#)), &neither),
            ("not a number", &required(&expression("disk", "Lt", r#""3""#)), &neither),
            (
                "required during execution",
                &required(&expression("disk", "In", r#""nvme""#)).replace("IgnoredDuring", "RequiredDuring"),
                &neither,
            ),
            (
                "both must hold",
                &required_twice(&expression("disk", "Exists", ""), &expression("rank", "Gt", r#""3""#)),
                &neither,
            ),
            (
                "and then the node fits",
                &required_twice(&expression("disk", "Exists", ""), &expression("rank", "Gt", r#""2""#)),
                "fits",
            ),
            ("an empty term", &required("{}"), &neither),
            ("no terms", &required(""), &neither),
            (
                "one of two terms",
                &required(&format!(
                    "{}, {}",
                    expression("rack", "Exists", ""),
                    expression("disk", "Exists", "")
                )),
                "fits",
            ),
        ],
        rejections,
    );
}

#[test]
fn node_affinity_by_name() {
    let name = |operator: &str, value: &str| {
        format!(r#"{{"key": "metadata.name", "operator": "{operator}", "values": ["{value}"]}}"#)
    };
    let fields = |list: &str| required(&format!(r#"{{"matchFields": [{list}]}}"#));
    let message = |cluster: &str| Fixture::new(cluster).message("p");
    let useless =
        "no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.";
    check(
        &[
            ("a node that is there", &fields(&name("In", "b")), "fits"),
            (
                "one names a node",
                &required_twice(&expression("disk", "Exists", ""), &named("a")),
                "fits",
            ),
            (
                "a node that is not there",
                &fields(&name("In", "z")),
                &format!("0/2 nodes are available: 2 node(s) didn't satisfy plugin(s) [NodeAffinity]. {useless}"),
            ),
            (
                "two names at once",
                &fields(&format!("{}, {}", name("In", "a"), name("In", "b"))),
                // A plugin that comes before DynamicResources: that one knows nothing of the pod then.
                "0/2 nodes are available: pod affinity terms conflict. not found",
            ),
            ("not that one", &fields(&name("NotIn", "a")), "fits"),
            (
                "neither of them",
                &fields(&format!("{}, {}", name("NotIn", "a"), name("NotIn", "b"))),
                &format!("0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector. {useless}"),
            ),
            (
                "one name, which is full",
                &format!("{}\nnode b pods=0", fields(&name("In", "b"))),
                "0/2 nodes are available: 1 Too many pods, 1 node(s) didn't satisfy plugin(s) [NodeAffinity]. \
                 no new claims to deallocate, preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, \
                 1 Preemption is not helpful for scheduling.",
            ),
        ],
        message,
    );
}

#[test]
fn added_affinity() {
    let added = || {
        let json = serde_json::json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]}});
        NodeAffinity::new(serde_json::from_value(json).unwrap())
    };
    check(
        &[
            ("matches", "node a label=disk=ssd\npod p", "fits"),
            (
                "does not",
                "node a\npod p",
                "a: NodeAffinity!: node(s) didn't match scheduler-enforced node affinity",
            ),
            (
                "comes before the pod's own",
                "node a label=disk=hdd\nnode b label=disk=ssd\npod p selector=rank=1",
                "a: NodeAffinity!: node(s) didn't match scheduler-enforced node affinity; \
                 b: NodeAffinity!: node(s) didn't match Pod's node affinity/selector",
            ),
        ],
        |cluster| Fixture::only(added(), cluster).rejections("p"),
    );
}

#[test]
fn node_ports() {
    let taken = "a: NodePorts: node(s) didn't have free ports for the requested pod ports";
    let case = |there: &str, wanted: &str| format!("node a\npod x node=a {there}\npod p {wanted}");
    check(
        &[
            ("the same", &case("port=80", "port=80"), taken),
            ("another port", &case("port=80", "port=81"), "fits"),
            ("another protocol", &case("port=80", "port=80/UDP"), "fits"),
            ("TCP is the default", &case("port=80/TCP", "port=80"), taken),
            ("another address", &case("port=10.0.0.1:80", "port=10.0.0.2:80"), "fits"),
            ("the same address", &case("port=10.0.0.1:80", "port=10.0.0.1:80"), taken),
            ("every address", &case("port=10.0.0.1:80", "port=80"), taken),
            (
                "every address, spelt out",
                &case("port=0.0.0.0:80", "port=10.0.0.1:80"),
                taken,
            ),
            (
                "a sidecar's",
                &case(
                    "port=80",
                    r#"{"initContainers": [{"name": "i", "restartPolicy": "Always", "ports": [{"hostPort": 80}]}]}"#,
                ),
                taken,
            ),
            (
                "an init container's is free again by then",
                &case(
                    "port=80",
                    r#"{"initContainers": [{"name": "i", "ports": [{"hostPort": 80}]}]}"#,
                ),
                "fits",
            ),
        ],
        rejections,
    );
}

#[test]
fn resources() {
    check(
        &[
            ("exactly all of it", "node a cpu=1 mem=1Gi\npod p cpu=1 mem=1Gi", "fits"),
            (
                "more than is left",
                "node a cpu=1\npod x node=a cpu=600m\npod p cpu=500m",
                "a: NodeResourcesFit: Insufficient cpu",
            ),
            (
                "more than there is",
                "node a cpu=1\npod p cpu=1001m",
                "a: NodeResourcesFit!: Insufficient cpu",
            ),
            (
                "one hopeless shortage is enough",
                "node a cpu=1 mem=1Gi\npod x node=a cpu=600m\npod p cpu=500m mem=2Gi",
                "a: NodeResourcesFit!: Insufficient cpu, Insufficient memory",
            ),
            (
                "pods",
                "node a pods=1\npod x node=a\npod p",
                "a: NodeResourcesFit: Too many pods",
            ),
            (
                "everything",
                "node a pods=0 cpu=1 mem=1Gi\npod p cpu=2 mem=2Gi amount=ephemeral-storage=1 amount=example.com/gpu=1 amount=hugepages-2Mi=2Mi",
                "a: NodeResourcesFit!: Too many pods, Insufficient cpu, Insufficient memory, \
                 Insufficient ephemeral-storage, Insufficient example.com/gpu, Insufficient hugepages-2Mi",
            ),
            (
                "nothing asked for on a node that is overfull",
                "node a cpu=1\npod x node=a cpu=5\npod p",
                "fits",
            ),
            ("defaults do not count here", "node a cpu=50m mem=1Mi\npod p", "fits"),
            (
                "an extended resource is used up",
                "node a amount=example.com/gpu=1\npod x node=a amount=example.com/gpu=1\npod p amount=example.com/gpu=1",
                "a: NodeResourcesFit: Insufficient example.com/gpu",
            ),
            (
                "asking for none of it",
                "node a\npod p amount=example.com/gpu=0",
                "fits",
            ),
        ],
        rejections,
    );
}

#[test]
fn ignored_resources() {
    let plugin = || {
        let ignored = vec!["example.com/gpu".to_string()];
        NodeResourcesFit::new(Strategy::LeastAllocated, vec![], ignored, vec!["corp.io".to_string()])
    };
    check(
        &[
            ("by name", "node a\npod p amount=example.com/gpu=1", "fits"),
            ("by group", "node a\npod p amount=corp.io/fpga=1", "fits"),
            (
                "others are not",
                "node a\npod p amount=example.com/gpu=1 amount=example.com/tpu=1",
                "a: NodeResourcesFit!: Insufficient example.com/tpu",
            ),
        ],
        |cluster| Fixture::only(plugin(), cluster).rejections("p"),
    );
}

#[test]
fn scheduling_gates() {
    let mut f = Fixture::new("node a\npod p\npod q {\"schedulingGates\": [{\"name\": \"x\"}, {\"name\": \"y\"}]}");
    let answer = |f: &mut Fixture, pod: &str| {
        let pod = f.pod(pod);
        let plugin = f.core.profiles[0].plugin("SchedulingGates").unwrap();
        let verdict = plugin.pre_enqueue().unwrap().pre_enqueue(&pod);
        verdict.map_err(|r| (r.message(), r.unresolvable))
    };
    assert_eq!(answer(&mut f, "p"), Ok(()));
    let waiting = "waiting for scheduling gates: [x y]".to_string();
    assert_eq!(answer(&mut f, "q"), Err((waiting, true)));
}

#[test]
fn filters_stop_at_the_first_that_rejects() {
    check(
        &[
            (
                "in the order of the profile",
                "node a cordoned taint=k=v:NoSchedule pods=0\nnode b taint=k=v:NoSchedule pods=0\nnode c pods=0 label=disk=ssd\nnode d pods=0\npod p selector=disk=ssd",
                "a: NodeUnschedulable!: node(s) were unschedulable; \
                 b: TaintToleration!: node(s) had untolerated taint(s); \
                 c: NodeResourcesFit: Too many pods; \
                 d: NodeAffinity!: node(s) didn't match Pod's node affinity/selector",
            ),
            (
                "those who were promised the node count first",
                "node a cpu=2\npod x node=a cpu=1500m\npod n nominated=a prio=10 port=80\npod p cpu=1 port=80",
                "a: NodePorts: node(s) didn't have free ports for the requested pod ports",
            ),
            (
                "unless their priority is lower",
                "node a cpu=2\npod x node=a cpu=1500m\npod n nominated=a port=80\npod p cpu=1 port=80 prio=1",
                "a: NodeResourcesFit: Insufficient cpu",
            ),
            (
                "room that was promised is taken",
                "node a cpu=2\npod n nominated=a cpu=1500m\npod p cpu=1",
                "a: NodeResourcesFit: Insufficient cpu",
            ),
        ],
        rejections,
    );
}

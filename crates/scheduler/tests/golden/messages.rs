//! What users read when a pod fits nowhere.

use crate::fixture::{Fixture, check};

#[test]
fn fit_error() {
    check(
        &[
            ("no nodes", "pod p", "no nodes available to schedule pods"),
            (
                "reasons are counted and sorted",
                "node a cpu=1\nnode b taint=k=v:NoSchedule\nnode c taint=k=v:NoSchedule\npod p cpu=2",
                "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s). \
                 no new claims to deallocate, preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
            ),
            (
                "every reason of a node counts",
                "node a cpu=1 mem=1Gi\nnode b cpu=1\npod p cpu=2 mem=2Gi",
                "0/2 nodes are available: 1 Insufficient memory, 2 Insufficient cpu. \
                 no new claims to deallocate, preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.",
            ),
            (
                "claims of devices",
                r#"node a
                pod p {"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}"#,
                "0/1 nodes are available: pods with resource claims can't be scheduled: dynamic resource allocation is not \
                 supported. still not schedulable, preemption: 0/1 nodes are available: \
                 1 Preemption is not helpful for scheduling.",
            ),
            (
                "sorted as text",
                &format!(
                    "{}pod p cpu=9",
                    (0..12)
                        .map(|i| format!("node n{i} {}\n", if i < 10 { "" } else { "cordoned" }))
                        .collect::<String>()
                ),
                "0/12 nodes are available: 10 Insufficient cpu, 2 node(s) were unschedulable. \
                 no new claims to deallocate, preemption: 0/12 nodes are available: 12 Preemption is not helpful for scheduling.",
            ),
        ],
        |cluster| Fixture::new(cluster).message("p"),
    );
}

#[test]
fn preemption() {
    check(
        &[
            (
                "nobody to evict",
                "node a cpu=1\npod x node=a cpu=1\npod p cpu=1",
                "0/1 nodes are available: 1 Insufficient cpu. \
                 no new claims to deallocate, preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.",
            ),
            (
                "evicting is not enough",
                "node a cpu=1\npod x node=a cpu=900m\npod y node=a cpu=50m prio=-1\npod p cpu=500m",
                "0/1 nodes are available: 1 Insufficient cpu. \
                 no new claims to deallocate, preemption: 0/1 nodes are available: 1 Insufficient cpu.",
            ),
            (
                "a mixture",
                "node a cpu=1\nnode b cordoned\nnode c cpu=1\npod x node=a cpu=1\npod y node=c cpu=900m\npod z node=c prio=-1\npod p cpu=1",
                "0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient cpu. \
                 no new claims to deallocate, preemption: 0/3 nodes are available: 1 Insufficient cpu, 1 No preemption victims found for incoming pod, \
                 1 Preemption is not helpful for scheduling.",
            ),
            (
                "never",
                r#"node a cpu=1
                pod x node=a cpu=1
                pod p cpu=1 prio=5 {"preemptionPolicy": "Never"}"#,
                "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: not eligible due to preemptionPolicy=Never.",
            ),
            (
                "victims are still leaving",
                "node a cpu=1\npod x node=a cpu=1 leaving\npod p cpu=1 prio=5 nominated=a",
                "0/1 nodes are available: 1 Insufficient cpu. \
                 no new claims to deallocate, preemption: not eligible due to a terminating pod on the nominated node.",
            ),
            (
                "somebody can go: nothing to add",
                "node a cpu=1\npod x node=a cpu=1\npod p cpu=1 prio=5",
                "0/1 nodes are available: 1 Insufficient cpu.",
            ),
        ],
        |cluster| Fixture::new(cluster).message("p"),
    );
}

//! Whom preemption picks. Answers are `node: victims (violated budgets); … → chosen node`.

use crate::fixture::{Fixture, check};

fn victims(cluster: &str) -> String {
    Fixture::new(cluster).victims("p")
}

#[test]
fn reprieve() {
    check(
        &[
            // All go in thought; x comes back first (500m left of 1), then y no longer fits.
            (
                "the more important stays",
                "node a cpu=1\npod x node=a cpu=500m prio=2\npod y node=a cpu=500m prio=1\npod p cpu=500m prio=5",
                "a: y (0) → a",
            ),
            (
                "of equals the one that started first stays",
                "node a cpu=1\npod x node=a cpu=500m start=20\npod y node=a cpu=500m start=10\npod p cpu=500m prio=5",
                "a: x (0) → a",
            ),
            (
                "one that has not started is the youngest",
                "node a cpu=1\npod x node=a cpu=500m\npod y node=a cpu=500m start=10\npod p cpu=500m prio=5",
                "a: x (0) → a",
            ),
            // b (600m) can't come back beside p (500m), c (400m) can.
            (
                "a less important one stays where a more important one is too large",
                "node a cpu=1\npod b node=a cpu=600m prio=3\npod c node=a cpu=400m prio=1\npod p cpu=500m prio=5",
                "a: b (0) → a",
            ),
            (
                "equal priority is no victim",
                "node a cpu=1\nnode b cpu=1\npod x node=a cpu=1 prio=5\npod y node=b cpu=1 prio=4\npod p cpu=1 prio=5",
                "b: y (0) → b",
            ),
            (
                "a port",
                "node a\npod x node=a port=80\npod y node=a\npod p port=80 prio=1",
                "a: x (0) → a",
            ),
            (
                "several victims, most important first",
                "node a cpu=1\npod x node=a cpu=500m prio=1\npod y node=a cpu=500m prio=2\npod p cpu=1 prio=5",
                "a: y x (0) → a",
            ),
            // n was promised 500m of 1, so both must go for another 500m.
            (
                "room that was promised to another is not free",
                "node a cpu=1\npod x node=a cpu=500m\npod y node=a cpu=500m\npod n nominated=a cpu=500m prio=9\npod p cpu=500m prio=5",
                "a: x y (0) → a",
            ),
        ],
        victims,
    );
}

#[test]
fn budgets() {
    let pods =
        "node a cpu=1\npod x node=a cpu=500m prio=2\npod y node=a cpu=500m prio=1 label=app=y\npod p cpu=500m prio=5\n";
    check(
        &[
            // y may not go, so it comes back first, and x has to leave though it is more important.
            (
                "the protected come back first",
                &format!("{pods}budget b app=y allowed=0"),
                "a: x (0) → a",
            ),
            (
                "a budget with room",
                &format!("{pods}budget b app=y allowed=1"),
                "a: y (0) → a",
            ),
            (
                "evicted already",
                &format!("{pods}budget b app=y allowed=0 disrupted=y"),
                "a: y (0) → a",
            ),
            (
                "a budget of nobody",
                &format!("{pods}budget b allowed=0"),
                "a: y (0) → a",
            ),
            // Both are in one budget with one disruption: x (more important) uses it, y would break it.
            (
                "room for one",
                "node a cpu=1
                 pod x node=a cpu=500m prio=2 label=app=z
                 pod y node=a cpu=500m prio=1 label=app=z
                 pod p cpu=1 prio=5
                 budget b app=z allowed=1",
                "a: x y (1) → a",
            ),
        ],
        victims,
    );
}

#[test]
fn the_node_where_least_harm_is_done() {
    let pod = "\npod p cpu=1 prio=50\n";
    check(
        &[
            (
                "fewest broken budgets, before all else",
                &format!(
                    "node a cpu=1\nnode b cpu=1\npod x node=a cpu=1 prio=1 label=app=x\npod y node=b cpu=1 prio=40{pod}budget b app=x allowed=0"
                ),
                "a: x (1); b: y (0) → b",
            ),
            (
                "then the lowest highest priority",
                &format!(
                    "node a cpu=1\nnode b cpu=1\npod x node=a cpu=1 prio=9\npod y node=b cpu=500m prio=8\npod z node=b cpu=500m prio=8{pod}"
                ),
                "a: x (0); b: y z (0) → b",
            ),
            // Sums of priority + 2³¹: two victims weigh more than one, whatever their priorities.
            (
                "then the smallest sum",
                &format!(
                    "node a cpu=1\nnode b cpu=1\npod x node=a cpu=500m prio=8\npod v node=a cpu=500m prio=-5\npod y node=b cpu=1 prio=8{pod}"
                ),
                "a: x v (0); b: y (0) → b",
            ),
            (
                "as many, lower in sum",
                &format!(
                    "node a cpu=1\nnode b cpu=1\npod v node=a cpu=500m prio=8\npod w node=a cpu=500m prio=3\npod y node=b cpu=500m prio=8\npod z node=b cpu=500m prio=2{pod}"
                ),
                "a: v w (0); b: y z (0) → b",
            ),
            // Earliest start of the most important victims: 10 on a, 20 on b; the later one goes.
            (
                "then the latest start",
                &format!("node a cpu=1\nnode b cpu=1\npod x node=a cpu=1 start=10\npod y node=b cpu=1 start=20{pod}"),
                "a: x (0); b: y (0) → b",
            ),
            (
                "of the most important ones only",
                &format!(
                    "node a cpu=1\nnode b cpu=1\npod v node=a cpu=500m prio=2 start=10\npod w node=a cpu=500m prio=1 start=90\npod y node=b cpu=500m prio=2 start=20\npod z node=b cpu=500m prio=1 start=5{pod}"
                ),
                "a: v w (0); b: y z (0) → b",
            ),
        ],
        victims,
    );
}

#[test]
fn nodes_that_eviction_cannot_help_are_left_out() {
    check(
        &[
            (
                "too small anyway",
                "node a cpu=1\nnode b cpu=2\npod x node=a cpu=1\npod y node=b cpu=2\npod p cpu=2 prio=1",
                "b: y (0) → b",
            ),
            (
                "tainted",
                "node a cpu=1 taint=k=v:NoSchedule\nnode b cpu=1\npod x node=a cpu=1\npod y node=b cpu=1\npod p cpu=1 prio=1",
                "b: y (0) → b",
            ),
            (
                "cordoned",
                "node a cpu=1 cordoned\nnode b cpu=1\npod x node=a cpu=1\npod y node=b cpu=1\npod p cpu=1 prio=1",
                "b: y (0) → b",
            ),
        ],
        victims,
    );
}

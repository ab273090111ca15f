//! Score formulas.

use orlop_scheduler::plugins::node_resources_balanced_allocation::NodeResourcesBalancedAllocation;
use orlop_scheduler::plugins::node_resources_fit::{NodeResourcesFit, Strategy};

use crate::fixture::{Fixture, check};

fn score(plugin: &'static str) -> impl Fn(&str) -> String {
    move |cluster| Fixture::new(cluster).scores(plugin, "p")
}

#[test]
fn least_allocated() {
    check(
        &[
            // (4000 − 1000)·100/4000 = 75 and (8 − 2)·100/8 = 75.
            ("an empty node", "node a cpu=4 mem=8Gi\npod p cpu=1 mem=2Gi", "a=75/75"),
            // cpu 500 + 1000 of 2000 leaves 25 %, memory 1 + 2 of 4 Gi leaves 25 %.
            (
                "what is there counts",
                "node a cpu=2 mem=4Gi\npod x node=a cpu=500m mem=1Gi\npod p cpu=1 mem=2Gi",
                "a=25/25",
            ),
            // Counted as 100m and 200Mi: 90 and (1024 − 200)·100/1024 = 80; (90 + 80)/2 = 85.
            ("no requests", "node a cpu=1 mem=1Gi\npod p", "a=85/85"),
            // Three such pods: 70 and (1024 − 600)·100/1024 = 41; 111/2 = 55.
            (
                "nothing there asks either",
                "node a cpu=1 mem=1Gi\npod x node=a\npod y node=a\npod p",
                "a=55/55",
            ),
            // Memory 600Mi of 512Mi is 0, cpu is 70; 70/2 = 35.
            (
                "more than there is",
                "node a cpu=1 mem=512Mi\npod x node=a\npod y node=a\npod p",
                "a=35/35",
            ),
            // Only cpu counts where the node has no memory: (4000 − 1000)·100/4000.
            ("a node without memory", "node a cpu=4 mem=0\npod p cpu=1", "a=75/75"),
            // cpu (1 + 1) of 4 is 50, memory 7·100/8 = 87; 137/2 = 68.
            (
                "overhead",
                r#"node a
                pod p cpu=1 mem=1Gi {"overhead": {"cpu": "1"}}"#,
                "a=68/68",
            ),
            // The pod's own figure is not used here: 100m of 4 is 97, 200Mi of 8192Mi is 97.
            (
                "pod-level requests",
                r#"node a
                pod p {"resources": {"requests": {"cpu": "2", "memory": "4Gi"}}}"#,
                "a=97/97",
            ),
            // An existing pod's does count: cpu 2000 + 1000 of 4 → 25; memory 4Gi + 2Gi of 8 → 25.
            (
                "pod-level requests of a pod that is there",
                r#"node a
                pod x node=a {"resources": {"requests": {"cpu": "2", "memory": "4Gi"}}}
                pod p cpu=1 mem=2Gi"#,
                "a=25/25",
            ),
            // Pod-level cpu only: memory still counts as 200Mi. cpu 2000 + 1000 → 25; (8192 − 400)·100/8192 = 95; 60.
            (
                "pod-level cpu only",
                r#"node a
                pod x node=a {"resources": {"requests": {"cpu": "2"}}}
                pod p cpu=1 mem=200Mi"#,
                "a=60/60",
            ),
        ],
        score("NodeResourcesFit"),
    );
}

fn weights(list: &[(&str, i64)]) -> Vec<(String, i64)> {
    list.iter().map(|(n, w)| (n.to_string(), *w)).collect()
}

fn fit(strategy: Strategy, resources: &'static [(&'static str, i64)]) -> impl Fn(&str) -> String {
    move |cluster| {
        let plugin = NodeResourcesFit::new(strategy.clone(), weights(resources), vec![], vec![]);
        Fixture::only(plugin, cluster).scores("NodeResourcesFit", "p")
    }
}

const BOTH: &[(&str, i64)] = &[("cpu", 1), ("memory", 1)];

#[test]
fn most_allocated() {
    check(
        &[
            ("a quarter of each", "node a\npod p cpu=1 mem=2Gi", "a=25/25"),
            // (25 + 50)/2 = 37.
            ("the mean, cut", "node a\npod p cpu=1 mem=4Gi", "a=37/37"),
            // Memory 600Mi of 512Mi counts as all of it: (30 + 100)/2.
            (
                "no more than all",
                "node a cpu=1 mem=512Mi\npod x node=a\npod y node=a\npod p",
                "a=65/65",
            ),
        ],
        fit(Strategy::MostAllocated, BOTH),
    );
    check(
        // (3·25 + 1·50)/4 = 31.
        &[("weights", "node a\npod p cpu=1 mem=4Gi", "a=31/31")],
        fit(Strategy::MostAllocated, &[("cpu", 3), ("memory", 1)]),
    );
    check(
        &[
            // (25 + 2·50)/3 = 41.
            (
                "an extended resource",
                "node a amount=example.com/gpu=2\npod p cpu=1 amount=example.com/gpu=1",
                "a=41/41",
            ),
            (
                "one that is not asked for does not count",
                "node a amount=example.com/gpu=2\npod p cpu=1",
                "a=25/25",
            ),
        ],
        fit(Strategy::MostAllocated, &[("cpu", 1), ("example.com/gpu", 2)]),
    );
}

#[test]
fn requested_to_capacity_ratio() {
    let rising = || Strategy::RequestedToCapacityRatio(vec![(0, 0), (100, 100)]);
    check(
        &[
            ("a straight line", "node a\npod p cpu=1 mem=2Gi", "a=25/25"),
            // 25 and 50: 37.5, rounded away from zero.
            ("rounded", "node a\npod p cpu=1 mem=4Gi", "a=38/38"),
            // 40Mi of 8Gi is 0 %, and a zero is left out: 25/1.
            ("zeros do not count", "node a\npod p cpu=1 mem=40Mi", "a=25/25"),
            // cpu 300 of 1000 is 30; memory over capacity is 100: 65.
            (
                "over capacity",
                "node a cpu=1 mem=512Mi\npod x node=a\npod y node=a\npod p",
                "a=65/65",
            ),
        ],
        fit(rising(), BOTH),
    );
    check(
        &[
            // cpu 25 %: 100 + (40 − 100)·25/50 = 70; memory 75 %: 40 + (0 − 40)·25/50 = 20; 45.
            ("a broken line", "node a\npod p cpu=1 mem=6Gi", "a=45/45"),
            // 50 % of both: at the bend.
            ("at the bend", "node a\npod p cpu=2 mem=4Gi", "a=40/40"),
            // 10 %: 100 − 60·10/50 = 88; 90 % of memory (7373Mi of 8192Mi = 90): 40 − 40·40/50 = 8; 48.
            ("near both ends", "node a\npod p cpu=400m mem=7373Mi", "a=48/48"),
        ],
        fit(
            Strategy::RequestedToCapacityRatio(vec![(0, 100), (50, 40), (100, 0)]),
            BOTH,
        ),
    );
    check(
        &[
            // Level before the first point and after the last.
            ("below", "node a\npod p cpu=400m mem=800Mi", "a=20/20"),
            ("above", "node a\npod p cpu=3900m mem=8000Mi", "a=80/80"),
        ],
        fit(Strategy::RequestedToCapacityRatio(vec![(30, 20), (70, 80)]), BOTH),
    );
}

#[test]
fn balanced_allocation() {
    check(
        &[
            // Even before and after: 50 + (50 + 100 − 100)/2.
            ("as balanced as before", "node a\npod p cpu=2 mem=4Gi", "a=75/75"),
            // Shares ½ and ¼: deviation ⅛, 87 of 100; 50 + (50 + 87 − 100)/2 = 50 + 18.
            ("less balanced", "node a\npod p cpu=2 mem=2Gi", "a=68/68"),
            // Before: ½ and 0, deviation ¼, 75. After: even. 50 + (50 + 25)/2 = 50 + 37.
            ("more balanced", "node a\npod x node=a cpu=2\npod p mem=4Gi", "a=87/87"),
            // Shares stop at 1. Before: 1 and 0, 50; after: 1 and 1. 50 + (50 + 50)/2.
            (
                "overcommitted",
                "node a cpu=2 mem=4Gi\npod x node=a cpu=4\npod p mem=4Gi",
                "a=100/100",
            ),
            // Nothing is assumed of pods that ask for nothing: before and after alike, ¼ and 0 → ½ and 0: 87, 75.
            (
                "no defaults here",
                "node a\npod x node=a cpu=1\npod y node=a\npod p cpu=1",
                "a=69/69",
            ),
            ("no requests: no say", "node a\npod p", ""),
        ],
        score("NodeResourcesBalancedAllocation"),
    );
    // Shares ¼, ½, ½: mean 5/12, variance (1/36 + 2/144)/3 = 1/72, deviation 0.1179: 88. 50 + (50 + 88 − 100)/2 = 69.
    let three = |cluster: &str| {
        let names = ["cpu", "memory", "example.com/gpu"].map(String::from).to_vec();
        Fixture::only(NodeResourcesBalancedAllocation::new(names), cluster)
            .scores("NodeResourcesBalancedAllocation", "p")
    };
    let cluster = "node a amount=example.com/gpu=2\npod p cpu=1 mem=4Gi amount=example.com/gpu=1";
    check(&[("three resources", cluster, "a=69/69")], three);
}

#[test]
fn image_locality() {
    check(
        &[
            // 300Mi on one of two nodes count 150: 100·(150 − 23)/(1000 − 23) = 12.
            (
                "on one of two",
                "node a image=app:1=300Mi\nnode b\npod p image=app:1",
                "a=12/12 b=0/0",
            ),
            // 100·277/977 = 28.
            (
                "on both",
                "node a image=app:1=300Mi\nnode b image=app:1=300Mi\npod p image=app:1",
                "a=28/28 b=28/28",
            ),
            (
                "too small to matter",
                "node a image=app:1=20Mi\npod p image=app:1",
                "a=0/0",
            ),
            (
                "large enough for all",
                "node a image=app:1=4000Mi\npod p image=app:1",
                "a=100/100",
            ),
            (
                "no tag is latest",
                "node a image=db:latest=523Mi\npod p image=db",
                "a=51/51",
            ),
            (
                "a port is no tag",
                "node a image=reg:5000/db:latest=523Mi\npod p image=reg:5000/db",
                "a=51/51",
            ),
            // Two containers of one image: 300 + 300 of at most 2000; 100·577/1977 = 29.
            (
                "every container counts",
                r#"node a image=app:1=300Mi
                pod p image=app:1 {"initContainers": [{"name": "i", "image": "app:1"}]}"#,
                "a=29/29",
            ),
            // A volume's image counts, but does not raise the most that there can be: 100·577/977 = 59.
            (
                "an image volume",
                r#"node a image=app:1=300Mi
                pod p image=app:1 {"volumes": [{"name": "v", "image": {"reference": "app:1"}}]}"#,
                "a=59/59",
            ),
        ],
        score("ImageLocality"),
    );
}

#[test]
fn taint_toleration() {
    let soft = "node a\nnode b taint=x=1:PreferNoSchedule\n";
    check(
        &[
            // Most is 2: 100 − 0, 100 − 50, 100 − 100.
            (
                "a share of the most",
                &format!("{soft}node c taint=x=1:PreferNoSchedule taint=y=1:PreferNoSchedule\npod p"),
                "a=0/100 b=1/50 c=2/0",
            ),
            // Most is 3: 100·1/3 = 33.
            (
                "cut",
                &format!(
                    "{soft}node c taint=x=1:PreferNoSchedule taint=y=1:PreferNoSchedule taint=z=1:PreferNoSchedule\npod p"
                ),
                "a=0/100 b=1/67 c=3/0",
            ),
            (
                "tolerated",
                &format!("{soft}pod p tolerate=x=1:PreferNoSchedule"),
                "a=0/100 b=0/100",
            ),
            (
                "tolerated with any effect",
                &format!("{soft}pod p tolerate=x"),
                "a=0/100 b=0/100",
            ),
            (
                "tolerated with another effect",
                &format!("{soft}pod p tolerate=x=1:NoSchedule"),
                "a=0/100 b=1/0",
            ),
            (
                "another value",
                &format!("{soft}pod p tolerate=x=2:PreferNoSchedule"),
                "a=0/100 b=1/0",
            ),
        ],
        score("TaintToleration"),
    );
}

#[test]
fn node_affinity() {
    let nodes = "node a label=disk=ssd\nnode b label=rank=5\nnode c label=disk=ssd label=rank=5\nnode d\n";
    let pod = |terms: &str| {
        format!(
            "{nodes}pod p {{\"affinity\": {{\"nodeAffinity\": {{\"preferredDuringSchedulingIgnoredDuringExecution\": [{terms}]}}}}}}"
        )
    };
    let ssd =
        r#"{"weight": 10, "preference": {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}}"#;
    let above =
        r#"{"weight": 30, "preference": {"matchExpressions": [{"key": "rank", "operator": "Gt", "values": ["4"]}]}}"#;
    let below =
        r#"{"weight": 30, "preference": {"matchExpressions": [{"key": "rank", "operator": "Lt", "values": ["5"]}]}}"#;
    let nothing = r#"{"weight": 50, "preference": {}}"#;
    let named = r#"{"weight": 7, "preference": {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["d"]}]}}"#;
    check(
        &[
            // Most is 40: 100·10/40, 100·30/40.
            (
                "weights add up",
                &pod(&format!("{ssd},{above}")),
                "a=10/25 b=30/75 c=40/100 d=0/0",
            ),
            ("none matches", &pod(below), "a=0/0 b=0/0 c=0/0 d=0/0"),
            (
                "an empty term is ignored",
                &pod(&format!("{ssd},{nothing}")),
                "a=10/100 b=0/0 c=10/100 d=0/0",
            ),
            // 7 of 10 is 70.
            (
                "by name",
                &pod(&format!("{ssd},{named}")),
                "a=10/100 b=0/0 c=10/100 d=7/70",
            ),
            ("no terms: no say", &pod(""), ""),
        ],
        score("NodeAffinity"),
    );
}

#[test]
fn totals_are_weighted_sums() {
    // a: TaintToleration 3·100, Fit 75, Balanced 75, ImageLocality 12 = 462.
    // b: TaintToleration 3·0, Fit 75, Balanced 75, ImageLocality 0 = 150.
    let mut f = Fixture::new(
        "node a image=app:1=300Mi
         node b taint=x=1:PreferNoSchedule
         pod p cpu=1 mem=2Gi image=app:1",
    );
    let pod = f.pod("p");
    let account = f.core.explain(0, &f.cluster, &pod).unwrap();
    let totals: Vec<_> = account
        .nodes
        .iter()
        .map(|n| (n.name.as_str(), n.total, n.rank))
        .collect();
    assert_eq!(totals, [("a", Some(462), Some(1)), ("b", Some(150), Some(2))]);
}

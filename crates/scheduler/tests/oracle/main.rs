//! The core against an oracle: every plugin written once more, the obvious way, over plain objects and without keeping
//! anything. Random clusters live through random events; now and then a pod is scheduled, and both must agree on every
//! node's verdict with its reasons, on every plugin's score, on the choice, and on whom preemption would evict.
//!
//! `ORLOP_ORACLE_CASES=100000 cargo test --release -p orlop-scheduler --test oracle` for a long run;
//! `ORLOP_ORACLE_SEED=…` for one case, with its events told.

mod affinity;
mod filters;
mod generate;
mod life;
mod preemption;
mod scores;
mod spread;
mod world;

/// Cases that once went wrong.
const FOUND: &[u64] = &[];

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn core_and_oracle_agree() {
    if let Some(seed) = number("ORLOP_ORACLE_SEED") {
        println!("{:?}", life::live(seed, true));
        return;
    }
    let cases = number("ORLOP_ORACLE_CASES").unwrap_or(if cfg!(debug_assertions) { 300 } else { 3000 });
    let first = number("ORLOP_ORACLE_FIRST").unwrap_or(1_000_000);
    let mut sum = life::Tally::default();
    let mut failed = vec![];
    for seed in FOUND.iter().copied().chain(first..first + cases) {
        match std::panic::catch_unwind(|| life::live(seed, false)) {
            Ok(tally) => sum.add(&tally),
            Err(_) => failed.push(seed),
        }
        assert!(failed.len() < 10, "too much goes wrong: {failed:?}");
    }
    assert!(failed.is_empty(), "see above: seeds {failed:?}");
    println!("{cases} clusters: {sum:?}");
    // Agreement on nothing would mean nothing.
    let each = [
        sum.placed,
        sum.unfit,
        sum.preempting,
        sum.hopeless,
        sum.compared_scores,
        sum.promised,
    ];
    let rejecting: Vec<&str> = sum.rejected.keys().copied().collect();
    assert!(each.iter().all(|n| *n > 0), "something never happens: {sum:?}");
    assert_eq!(
        rejecting,
        [
            "InterPodAffinity",
            "NodeAffinity",
            "NodeDeclaredFeatures",
            "NodePorts",
            "NodeResourcesFit",
            "NodeUnschedulable",
            "PodTopologySpread",
            "TaintToleration",
        ]
    );
    let scoring: Vec<&str> = sum.told_apart.keys().copied().collect();
    assert_eq!(
        scoring,
        [
            "ImageLocality",
            "InterPodAffinity",
            "NodeAffinity",
            "NodeResourcesBalancedAllocation",
            "NodeResourcesFit",
            "PodTopologySpread",
            "TaintToleration",
        ]
    );
}

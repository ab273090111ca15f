//! Whatever happens on the way, the desired state is reached: Deployments and ReplicaSets under random schedules.
//!
//! A schedule is made from a seed: somebody creates, scales, changes, pauses and deletes; pods start, end and die; nodes are
//! cut off; writes fail, or are done without an answer; caches lag; controllers are killed between two writes. Most schedules
//! drive the pure plans over a small model of a cluster (`model`), which is quick; some run the controllers themselves on the
//! API server in memory (`shell`), which shows that they are woken when they must be.
//!
//! Checked at every step: nobody deletes what it does not own; and, as long as only the controllers take pods away, there are
//! never more pods than wanted and the surge, and no controller takes an available pod that must not be missing. Checked when
//! nothing changes any more: the desired state is there, and nothing else.
//!
//! `ORLOP_SCHEDULES` says how many (default 10,000, one in fifty of them in the shell). A failure names its seed; run it
//! alone with `ORLOP_SEED`.

mod invariants;
mod model;
mod schedule;
mod shell;

use std::sync::atomic::{AtomicU64, Ordering};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn schedules() -> u64 {
    number("ORLOP_SCHEDULES").unwrap_or(10_000)
}

/// Each seed once, on as many threads as there are cores.
fn for_each_seed(count: u64, run: impl Fn(u64) + Sync) {
    if let Some(seed) = number("ORLOP_SEED") {
        return run(seed);
    }
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= count {
                        return;
                    }
                    run(seed);
                }
            });
        }
    });
}

#[test]
fn plans_converge() {
    for_each_seed(schedules(), schedule::run);
}

#[test]
fn controllers_converge() {
    for_each_seed(schedules() / 50, shell::run);
}

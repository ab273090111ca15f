//! What one pod costs between decoding and the store: defaults, validation, warnings, resource sums, a row of a table.
//!
//! Each figure is the best of many short batches, so that it stays the same on a machine that is busy with other things.

use std::hint::black_box;

use jiff::Timestamp;
use orlop_api::core::pod;
use orlop_api::resources::{self, PodResourceOptions};
use orlop_api::{Cursor, Problems, Value};
use orlop_base::clock::monotonic;

/// A pod as a client sends it, with a bit of everything: 3.6 KB.
const POD: &str = include_str!("pod.json");

fn measure(what: &str, mut run: impl FnMut()) {
    const BATCH: u32 = 10;
    let batch = |run: &mut dyn FnMut()| {
        let start = monotonic();
        (0..BATCH).for_each(|_| run());
        start.elapsed().checked_div(BATCH).unwrap_or_default()
    };
    let best = (0..3000).map(|_| batch(&mut run)).min().unwrap_or_default();
    println!("{what:<24}{:>8.2} µs", best.as_nanos() as f64 / 1000.0);
}

fn main() {
    let sent: Value = serde_json::from_str(POD).expect("pod.json is JSON");
    let mut filled = sent.clone();
    (pod::DEF.default)(&mut filled);
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");

    measure("clone", || {
        black_box(sent.clone());
    });
    measure("clone and default", || {
        let mut pod = sent.clone();
        (pod::DEF.default)(&mut pod);
        black_box(pod);
    });
    measure("validate", || {
        let mut problems = Problems::default();
        (pod::DEF.validate)(&Cursor::root(&filled), &mut problems);
        assert!(problems.is_empty(), "{problems:?}");
    });
    measure("warnings", || {
        black_box((pod::DEF.warnings)(&Cursor::root(&filled), None));
    });
    measure("requests", || {
        black_box(resources::pod_requests(&filled, PodResourceOptions::default()));
    });
    measure("QoS class", || {
        black_box(pod::qos_class(&filled));
    });
    measure("row", || {
        black_box((pod::DEF.cells)(&filled, now));
    });
}

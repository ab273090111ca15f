//! The correlator over random histories, and upstream's numbers.

use std::collections::HashMap;

use proptest::prelude::*;

use super::correlator::{CACHE_MAX, Correlator, MESSAGES_MAX};
use super::tests::{about, seconds};
use super::*;

const COMBINED: &str = "(combined from similar events): ";

struct Harness {
    correlator: Correlator,
    names: EventNames,
    source: Arc<Source>,
}

impl Harness {
    fn new() -> Harness {
        Harness {
            correlator: Correlator::default(),
            names: EventNames::default(),
            source: Arc::new(Source::core_v1("kubelet", "n")),
        }
    }

    fn observe(&mut self, event: Event, at: i64) -> Option<Report> {
        self.correlator
            .correlate(self.source.clone(), event, seconds(at), &mut self.names)
    }

    /// "message ×count", "-" if nothing is to be written.
    fn says(&mut self, event: Event, at: i64) -> String {
        let report = self.observe(event, at);
        report.map_or("-".into(), |r| format!("{} ×{}", r.event.note, r.count))
    }
}

fn said(pod: &str, note: &str) -> Event {
    Event {
        note: note.into(),
        ..about(pod)
    }
}

#[test]
fn equal_events_count_and_others_do_not() {
    let mut harness = Harness::new();
    assert_eq!(harness.says(said("a", "x"), 0), "x ×1");
    let mut seen_later = said("a", "x");
    seen_later.regarding.resource_version = "99".into();
    assert_eq!(harness.says(seen_later, 1), "x ×2", "the version does not matter");
    let others: [fn(&mut Event); 7] = [
        |e| e.note = "y".into(),
        |e| e.reason = "Other".into(),
        |e| e.kind = EventType::Normal,
        |e| e.regarding.field_path = "spec.containers{c}".into(),
        |e| e.regarding.uid = "another".into(),
        |e| e.regarding.namespace = "another".into(),
        |e| e.regarding.kind = "Node".into(),
    ];
    for change in others {
        let mut other = said("a", "x");
        change(&mut other);
        assert_eq!(harness.observe(other.clone(), 2).unwrap().count, 1, "{other:?}");
    }
    // An hour later it is still the same event.
    assert_eq!(harness.says(said("a", "x"), 3600), "x ×3");
}

#[test]
fn similar_events_are_combined_from_the_tenth_on() {
    let mut harness = Harness::new();
    for i in 0..MESSAGES_MAX {
        assert_eq!(harness.says(said("a", &format!("m{i}")), i as i64), format!("m{i} ×1"));
    }
    assert_eq!(harness.says(said("a", "m10"), 20), format!("{COMBINED}m10 ×1"));
    assert_eq!(harness.says(said("a", "m11"), 21), format!("{COMBINED}m11 ×2"));
    assert_eq!(harness.says(said("a", "m3"), 22), "m3 ×2", "known ones count on");
    assert_eq!(harness.says(said("b", "m12"), 23), "m12 ×1", "another object");
    // Ten minutes of quiet, and the group starts over.
    assert_eq!(harness.says(said("a", "m13"), 22 + 601), "m13 ×1");
    assert_eq!(harness.says(said("a", "m14"), 22 + 602), "m14 ×1");
}

#[test]
fn an_object_has_a_budget_of_writes() {
    let mut harness = Harness::new();
    let written = (0..100)
        .filter(|_| harness.observe(said("a", "x"), 0).is_some())
        .count();
    assert_eq!(written, 25);
    assert_eq!(harness.says(said("b", "x"), 0), "x ×1", "another object has its own");
    let normal = Event {
        kind: EventType::Normal,
        ..said("a", "x")
    };
    assert_eq!(harness.says(normal, 0), "x ×1", "and so has another type");
    assert_eq!(harness.says(said("a", "x"), 299), "-");
    assert_eq!(
        harness.says(said("a", "x"), 300),
        "x ×102",
        "what was not written was counted"
    );
    assert_eq!(harness.says(said("a", "x"), 301), "-");
    // A clock that goes back gives nothing for the way there and back.
    assert_eq!(harness.says(said("a", "x"), -1000), "-");
    assert_eq!(harness.says(said("a", "x"), -800), "-");
}

#[test]
fn memory_is_bounded() {
    let mut harness = Harness::new();
    for i in 0..3 * CACHE_MAX {
        harness.observe(said(&format!("p{i}"), "x"), 0);
    }
    assert_eq!(harness.correlator.cache_sizes(), [CACHE_MAX; 3]);
    let last = 3 * CACHE_MAX - 1;
    assert_eq!(harness.says(said(&format!("p{last}"), "x"), 1), "x ×2");
    assert_eq!(harness.says(said("p0", "x"), 1), "x ×1", "forgotten");
}

fn history() -> impl Strategy<Value = Vec<(Event, i64)>> {
    // Seldom much time between two events, often none.
    let gap = prop_oneof![8 => Just(0i64), 4 => 0..30i64, 1 => 0..2000i64];
    let one = (0..3u8, 0..14u8, 0..2u8, 0..2u8, any::<bool>(), gap);
    proptest::collection::vec(one, 1..300).prop_map(|steps| {
        let mut at = 0;
        let steps = steps.into_iter().map(|(pod, note, reason, place, warning, gap)| {
            at += gap;
            let mut event = said(&format!("p{pod}"), &format!("m{note}"));
            event.reason = format!("R{reason}").into();
            event.regarding.field_path = format!("spec.containers{{c{place}}}");
            event.regarding.resource_version = at.to_string();
            event.kind = if warning { EventType::Warning } else { EventType::Normal };
            (event, at)
        });
        steps.collect()
    })
}

proptest! {
    #[test]
    fn counts_are_not_lost_and_messages_not_mixed(history in history()) {
        let mut harness = Harness::new();
        let mut written: HashMap<Box<str>, (u32, Event)> = HashMap::new();
        let mut writes: HashMap<(String, EventType), (i64, f64)> = HashMap::new();
        for (i, (event, at)) in history.into_iter().enumerate() {
            let object = (event.regarding.name.clone(), event.kind);
            let (plain, combined) = (event.note.clone(), format!("{COMBINED}{}", event.note));
            let report = harness.observe(event, at);
            prop_assert_eq!(harness.correlator.total_count(), i as u64 + 1, "each is counted once");
            let Some(report) = report else { continue };
            // Never more than the budget allows.
            let (first, so_far) = writes.entry(object).or_insert((at, 0.0));
            *so_far += 1.0;
            prop_assert!(*so_far <= 25.0 + (at - *first) as f64 / 300.0 + 1e-9);
            let now = report.event;
            prop_assert!(now.note == plain || now.note == combined);
            if let Some((count, before)) = written.get(&report.name) {
                prop_assert!(report.count > *count, "counts only grow");
                prop_assert_eq!(&before.reason, &now.reason);
                prop_assert_eq!(before.kind, now.kind);
                prop_assert_eq!(&before.regarding.name, &now.regarding.name);
                match before.note.starts_with(COMBINED) {
                    true => prop_assert!(now.note.starts_with(COMBINED)),
                    false => {
                        prop_assert_eq!(&before.note, &now.note);
                        prop_assert_eq!(&before.regarding.field_path, &now.regarding.field_path);
                    }
                }
            }
            written.insert(report.name, (report.count, now));
        }
    }

    /// Nine messages at most stand for themselves, however they come.
    #[test]
    fn few_messages_of_a_group_stand_alone(notes in proptest::collection::vec(0..40u8, 1..200)) {
        let mut harness = Harness::new();
        let mut alone = std::collections::BTreeSet::new();
        for note in notes {
            let event = said("a", &format!("m{note}"));
            if let Some(report) = harness.observe(event, 0) && !report.event.note.starts_with(COMBINED) {
                alone.insert(report.event.note);
            }
        }
        prop_assert!(alone.len() <= MESSAGES_MAX);
    }
}

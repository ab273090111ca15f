//! What becomes of an event of the `core/v1` API, in three steps that only look at what was seen before:
//!
//! 1. Similar events, which differ in their message alone, are combined from the tenth message in ten minutes on.
//! 2. Equal events are one object with a count.
//! 3. About one object no more is written than a budget allows. What is not written is counted all the same, and the
//!    next event that is written tells the count.
//!
//! Upstream: client-go tools/record EventCorrelator. Differs in that the nine messages that are not combined stay the
//! first nine (upstream forgets any one of ten).

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::lru::Lru;
use super::{Event, Names, ObjectReference, Report, Source};

/// Groups, events and objects remembered, each.
pub(super) const REMEMBERED_MAX: usize = 4096;
/// So many messages of a group stand for themselves.
pub(super) const SIMILAR_MAX: usize = 9;
/// A group that is quiet for longer starts over.
const SIMILAR_WITHIN: SignedDuration = SignedDuration::from_secs(600);
/// Writes about one object, and how long until one more is allowed.
const BURST: f64 = 25.0;
const REFILL_SECONDS: f64 = 300.0;
const COMBINED: &str = "(combined from similar events): ";

/// Events that differ in their message only.
struct Group {
    /// Hashes of the messages that are not combined.
    messages: Vec<u64>,
    last: Timestamp,
}

/// The object that equal events are.
struct Counted {
    name: Box<str>,
    first: Timestamp,
    count: u32,
}

struct Budget {
    left: f64,
    at: Timestamp,
}

/// What one source has reported.
pub(super) struct Correlator {
    groups: Lru<Group>,
    counted: Lru<Counted>,
    budgets: Lru<Budget>,
    hasher: RandomState,
}

impl Default for Correlator {
    fn default() -> Correlator {
        Correlator {
            groups: Lru::new(REMEMBERED_MAX),
            counted: Lru::new(REMEMBERED_MAX),
            budgets: Lru::new(REMEMBERED_MAX),
            hasher: RandomState::new(),
        }
    }
}

impl Correlator {
    /// What to write, if anything.
    pub fn observe(
        &mut self,
        source: Arc<Source>,
        mut event: Event,
        at: Timestamp,
        names: &mut Names,
    ) -> Option<Report> {
        let key = match self.stands_alone(&event, at) {
            true => self.equal_key(&event),
            false => {
                event.note.insert_str(0, COMBINED);
                self.similar_key(&event)
            }
        };
        let new = || Counted {
            name: names.next(&event.regarding.name, at),
            first: at,
            count: 0,
        };
        let counted = self.counted.entry(key, new);
        counted.count = counted.count.saturating_add(1);
        let report = Report {
            source,
            name: counted.name.clone(),
            first: counted.first,
            last: at,
            count: counted.count,
            event,
        };
        self.may_write(&report.event, at).then_some(report)
    }

    /// False if there were so many similar events lately that this one is combined with others.
    fn stands_alone(&mut self, event: &Event, at: Timestamp) -> bool {
        let message = self.hasher.hash_one(&event.note);
        let key = self.similar_key(event);
        let new = || Group {
            messages: vec![],
            last: at,
        };
        let group = self.groups.entry(key, new);
        if at.duration_since(group.last) > SIMILAR_WITHIN {
            group.messages.clear();
        }
        group.last = at;
        let known = group.messages.contains(&message);
        let room = group.messages.len() < SIMILAR_MAX;
        if !known && room {
            group.messages.push(message);
        }
        known || room
    }

    fn may_write(&mut self, event: &Event, at: Timestamp) -> bool {
        let key = self.hasher.hash_one(("object", about(&event.regarding), event.kind));
        let budget = self.budgets.entry(key, || Budget { left: BURST, at });
        // A clock that was put back gives nothing and takes nothing.
        let passed = at.duration_since(budget.at).as_secs_f64().max(0.0);
        budget.left = (budget.left + passed / REFILL_SECONDS).min(BURST);
        budget.at = at;
        let enough = budget.left >= 1.0;
        if enough {
            budget.left -= 1.0;
        }
        enough
    }

    /// All of an event but its message, and the place in the object that it is about.
    fn similar_key(&self, event: &Event) -> u64 {
        let Event { kind, reason, .. } = event;
        self.hasher.hash_one(("similar", about(&event.regarding), kind, reason))
    }

    fn equal_key(&self, event: &Event) -> u64 {
        let Event { kind, reason, note, .. } = event;
        let place = &event.regarding.field_path;
        self.hasher
            .hash_one(("equal", about(&event.regarding), place, kind, reason, note))
    }

    #[cfg(test)]
    pub fn remembered(&self) -> [usize; 3] {
        [
            self.groups.values().count(),
            self.counted.values().count(),
            self.budgets.values().count(),
        ]
    }

    #[cfg(test)]
    pub fn total(&self) -> u64 {
        self.counted.values().map(|counted| u64::from(counted.count)).sum()
    }
}

/// The object itself, whichever version of it somebody saw.
fn about(object: &ObjectReference) -> [&str; 5] {
    let ObjectReference {
        api_version,
        kind,
        namespace,
        name,
        uid,
        ..
    } = object;
    [kind, namespace, name, uid, api_version]
}

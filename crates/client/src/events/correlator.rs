//! Correlates `core/v1` events before they are written, from what was observed before:
//!
//! 1. Aggregation: events that differ in their message alone become one "(combined from similar events): …" from the
//!    tenth message in ten minutes on.
//! 2. Counting: equal events are one object with a count.
//! 3. Spam filter: a token bucket for each object. What is not written is counted all the same; the next write has the
//!    count.
//!
//! Upstream: client-go tools/record EventCorrelator. Differs in that the nine messages of a group that are not aggregated
//! stay the first nine (upstream forgets a random one of ten).

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::lru::Lru;
use super::{Event, EventNames, ObjectReference, Report, Source};

/// Entries of each cache.
pub(super) const CACHE_MAX: usize = 4096;
/// So many messages of a group are not aggregated.
pub(super) const MESSAGES_MAX: usize = 9;
/// A group without events for longer than this starts over.
const AGGREGATE_INTERVAL: SignedDuration = SignedDuration::from_secs(600);
const SPAM_BURST: f64 = 25.0;
/// Seconds until an object may have one more event.
const SPAM_REFILL_SECONDS: f64 = 300.0;
const COMBINED: &str = "(combined from similar events): ";

/// Events that differ in their message only.
struct AggregateRecord {
    /// Hashes of the messages that are not aggregated.
    messages: Vec<u64>,
    last: Timestamp,
}

/// The Event object that equal events share.
struct EventLog {
    name: Box<str>,
    first: Timestamp,
    count: u32,
}

struct TokenBucket {
    tokens: f64,
    at: Timestamp,
}

/// The state for one source. Caches are keyed by hashes: counts are for people, and a collision of two of a few
/// thousand 64-bit hashes does not happen.
pub(super) struct Correlator {
    aggregates: Lru<AggregateRecord>,
    logs: Lru<EventLog>,
    buckets: Lru<TokenBucket>,
    hasher: RandomState,
}

impl Default for Correlator {
    fn default() -> Correlator {
        Correlator {
            aggregates: Lru::new(CACHE_MAX),
            logs: Lru::new(CACHE_MAX),
            buckets: Lru::new(CACHE_MAX),
            hasher: RandomState::new(),
        }
    }
}

impl Correlator {
    /// What to write, if anything.
    pub(super) fn correlate(
        &mut self,
        source: Arc<Source>,
        mut event: Event,
        at: Timestamp,
        names: &mut EventNames,
    ) -> Option<Report> {
        let key = match self.must_aggregate(&event, at) {
            false => self.event_key(&event),
            true => {
                event.note.insert_str(0, COMBINED);
                self.aggregate_key(&event)
            }
        };
        let new_log = || EventLog {
            name: names.next(&event.regarding.name, at),
            first: at,
            count: 0,
        };
        let log = self.logs.entry(key, new_log);
        log.count = log.count.saturating_add(1);
        let report = Report {
            source,
            name: log.name.clone(),
            first: log.first,
            last: at,
            count: log.count,
            event,
        };
        self.passes_spam_filter(&report.event, at).then_some(report)
    }

    /// Whether there were too many events lately that differ from this one in their message only.
    fn must_aggregate(&mut self, event: &Event, at: Timestamp) -> bool {
        let message = self.hasher.hash_one(&event.note);
        let key = self.aggregate_key(event);
        let new_record = || AggregateRecord {
            messages: vec![],
            last: at,
        };
        let record = self.aggregates.entry(key, new_record);
        if at.duration_since(record.last) > AGGREGATE_INTERVAL {
            record.messages.clear();
        }
        record.last = at;
        if record.messages.contains(&message) {
            return false;
        }
        let full = record.messages.len() >= MESSAGES_MAX;
        if !full {
            record.messages.push(message);
        }
        full
    }

    fn passes_spam_filter(&mut self, event: &Event, at: Timestamp) -> bool {
        let key = self.hasher.hash_one(("spam", object_key(&event.regarding), event.kind));
        let new_bucket = || TokenBucket { tokens: SPAM_BURST, at };
        let bucket = self.buckets.entry(key, new_bucket);
        // A clock that was set back refills nothing.
        let passed = at.duration_since(bucket.at).as_secs_f64().max(0.0);
        bucket.tokens = (bucket.tokens + passed / SPAM_REFILL_SECONDS).min(SPAM_BURST);
        bucket.at = at;
        let passes = bucket.tokens >= 1.0;
        if passes {
            bucket.tokens -= 1.0;
        }
        passes
    }

    fn aggregate_key(&self, event: &Event) -> u64 {
        let Event { kind, reason, .. } = event;
        self.hasher
            .hash_one(("aggregate", object_key(&event.regarding), kind, reason))
    }

    fn event_key(&self, event: &Event) -> u64 {
        let Event { kind, reason, note, .. } = event;
        let field_path = &event.regarding.field_path;
        self.hasher
            .hash_one(("event", object_key(&event.regarding), field_path, kind, reason, note))
    }

    #[cfg(test)]
    pub(super) fn cache_sizes(&self) -> [usize; 3] {
        [
            self.aggregates.values().count(),
            self.logs.values().count(),
            self.buckets.values().count(),
        ]
    }

    #[cfg(test)]
    pub(super) fn total_count(&self) -> u64 {
        self.logs.values().map(|log| u64::from(log.count)).sum()
    }
}

/// Identifies an object whatever its resourceVersion.
fn object_key(object: &ObjectReference) -> [&str; 5] {
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

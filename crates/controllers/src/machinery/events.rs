//! What controllers tell people about an object.
//!
//! A controller may have thousands of similar things to say of one object. As in Kubernetes each object has a budget; what
//! goes beyond it is not written.
// Upstream: client-go tools/record EventSourceObjectSpamFilter

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use orlop_client::{Event, EventType, ObjectReference};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use crate::objects::Kind;

const BURST: f64 = 25.0;
const REFILL: Duration = Duration::from_secs(300);
/// Objects whose budgets are remembered; when there are more, the fullest budgets are forgotten.
const OBJECTS_MAX: usize = 4096;

#[derive(Clone)]
pub struct Recorder {
    inner: orlop_client::Recorder,
    budgets: Arc<Mutex<FxHashMap<String, (f64, Instant)>>>,
}

impl Recorder {
    pub fn new(inner: orlop_client::Recorder) -> Recorder {
        Recorder {
            inner,
            budgets: Arc::default(),
        }
    }

    /// `reason` in one word for programs, `note` for people.
    pub fn normal<T: Kind>(&self, object: &T, reason: impl Into<Cow<'static, str>>, note: impl Into<String>) {
        self.record(reference(object), EventType::Normal, reason.into(), note.into());
    }

    pub fn warning<T: Kind>(&self, object: &T, reason: impl Into<Cow<'static, str>>, note: impl Into<String>) {
        self.record(reference(object), EventType::Warning, reason.into(), note.into());
    }

    pub fn record(&self, regarding: ObjectReference, kind: EventType, reason: Cow<'static, str>, note: String) {
        if !self.may_speak_of(&regarding) {
            return;
        }
        let action = reason.clone();
        self.inner.record(Event {
            regarding,
            related: None,
            kind,
            reason,
            action,
            note,
        });
    }

    fn may_speak_of(&self, object: &ObjectReference) -> bool {
        let now = Instant::now();
        let mut budgets = self.budgets.lock();
        if budgets.len() >= OBJECTS_MAX && !budgets.contains_key(&object.uid) {
            let full = |(left, since): &(f64, Instant)| refilled(*left, *since, now) >= BURST - 1.0;
            budgets.retain(|_, budget| !full(budget));
            if budgets.len() >= OBJECTS_MAX {
                budgets.clear();
            }
        }
        let budget = budgets.entry(object.uid.clone()).or_insert((BURST, now));
        let left = refilled(budget.0, budget.1, now);
        let allowed = left >= 1.0;
        *budget = (if allowed { left - 1.0 } else { left }, now);
        allowed
    }
}

fn refilled(left: f64, since: Instant, now: Instant) -> f64 {
    (left + now.duration_since(since).as_secs_f64() / REFILL.as_secs_f64()).min(BURST)
}

pub fn reference<T: Kind>(object: &T) -> ObjectReference {
    let meta = object.meta();
    ObjectReference {
        api_version: T::API_VERSION.into(),
        kind: T::KIND.into(),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        ..ObjectReference::default()
    }
}

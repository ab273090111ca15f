//! What the pods of this node are allocated, and which resizes are pending.
//!
//! Whether something fits is decided elsewhere; callers hold the admission lock.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use orlop_api::types::core::Pod;
use parking_lot::Mutex;

use crate::pod::resize;
use crate::sources::admission::Rejection;

/// The reason of a resize that is infeasible; any other reason means that it is deferred.
pub(super) const INFEASIBLE: &str = "Infeasible";

#[derive(Default)]
pub(super) struct Ledger {
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    /// By uid: admitted pods that are not removed, with what they were allocated.
    allocated: BTreeMap<String, Arc<Pod>>,
    waiting: BTreeMap<String, Waiting>,
}

/// A resize that was not granted yet.
#[derive(Clone)]
pub(super) struct Waiting {
    /// The pod with its desired resources.
    pub pod: Arc<Pod>,
    pub since: Timestamp,
    /// Why it was not; none before it was tried.
    pub refused: Option<Rejection>,
}

impl Waiting {
    pub(super) fn is_hopeless(&self) -> bool {
        self.refused.as_ref().is_some_and(|r| r.reason == INFEASIBLE)
    }
}

impl Ledger {
    /// This is what the pod has from now on. It waits no more.
    pub(super) fn allocate(&self, uid: &str, pod: Arc<Pod>) {
        let mut book = self.book.lock();
        book.waiting.remove(uid);
        book.allocated.insert(uid.to_string(), pod);
    }

    /// A resize is granted. False if the pod has gone meanwhile: it must not come back.
    pub(super) fn resize(&self, uid: &str, pod: Arc<Pod>) -> bool {
        let mut book = self.book.lock();
        book.waiting.remove(uid);
        match book.allocated.get_mut(uid) {
            Some(allocated) => *allocated = pod,
            None => return false,
        }
        true
    }

    /// True if the pod was in it.
    pub(super) fn remove(&self, uid: &str) -> bool {
        let mut book = self.book.lock();
        book.waiting.remove(uid);
        book.allocated.remove(uid).is_some()
    }

    /// The pod with what it was allocated, if it was admitted and not removed.
    pub(super) fn allocated(&self, uid: &str) -> Option<Arc<Pod>> {
        self.book.lock().allocated.get(uid).cloned()
    }

    /// All pods but this one.
    pub(super) fn others(&self, uid: &str) -> Vec<Arc<Pod>> {
        let book = self.book.lock();
        let others = book.allocated.iter().filter(|(other, _)| *other != uid);
        others.map(|(_, pod)| pod.clone()).collect()
    }

    /// Records a requested resize. False if the same was infeasible before.
    pub(super) fn request_resize(&self, uid: &str, pod: &Arc<Pod>, now: Timestamp) -> bool {
        let mut book = self.book.lock();
        let known = book.waiting.get(uid).filter(|w| !resize::differs(pod, &w.pod)).cloned();
        let waiting = Waiting {
            pod: pod.clone(),
            since: known.as_ref().map_or(now, |w| w.since),
            refused: known.and_then(|w| w.refused),
        };
        let has_hope = !waiting.is_hopeless();
        book.waiting.insert(uid.to_string(), waiting);
        has_hope
    }

    /// It is allocated what it requests.
    pub(super) fn is_content(&self, uid: &str) {
        self.book.lock().waiting.remove(uid);
    }

    pub(super) fn reject_resize(&self, uid: &str, why: Rejection) {
        if let Some(waiting) = self.book.lock().waiting.get_mut(uid) {
            waiting.refused = Some(why);
        }
    }

    pub(super) fn waiting(&self, uid: &str) -> Option<Waiting> {
        self.book.lock().waiting.get(uid).cloned()
    }

    /// Resizes to try, the first first, each with what the pod has now.
    pub(super) fn pending_resizes(&self) -> Vec<(String, Waiting, Arc<Pod>)> {
        let book = self.book.lock();
        let hopeful = book.waiting.iter().filter(|(_, waiting)| !waiting.is_hopeless());
        let mut all: Vec<_> = hopeful
            .filter_map(|(uid, waiting)| Some((uid.clone(), waiting.clone(), book.allocated.get(uid)?.clone())))
            .collect();
        all.sort_by_cached_key(|(_, waiting, allocated)| resize::order(&waiting.pod, allocated, waiting.since));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::testing::{epoch, pod};

    #[test]
    fn who_waits_and_for_how_long() {
        let ledger = Ledger::default();
        let asking = |cpu: u32| Arc::new(pod(&format!("containers=a a.requests=cpu:{cpu}")));
        let later = epoch() + std::time::Duration::from_secs(5);
        ledger.allocate("a", asking(1));
        ledger.allocate("b", asking(1));
        assert_eq!(ledger.others("a").len(), 1);
        assert!(ledger.request_resize("a", &asking(3), epoch()));
        assert!(ledger.request_resize("b", &asking(2), epoch()));
        assert!(ledger.request_resize("b", &asking(2), later));
        assert_eq!(ledger.waiting("b").unwrap().since, epoch());
        assert!(
            ledger.request_resize("a", &asking(4), later),
            "another wish is another wait"
        );
        assert!(ledger.resize("a", asking(1)) && ledger.waiting("a").is_none());
        assert!(!ledger.resize("gone", asking(1)) && ledger.allocated("gone").is_none());
        assert!(ledger.request_resize("a", &asking(4), later));
        let order = |ledger: &Ledger| ledger.pending_resizes().into_iter().map(|w| w.0).collect::<Vec<_>>();
        assert_eq!(order(&ledger), ["b", "a"]);
        let never = Rejection {
            reason: INFEASIBLE.into(),
            message: String::new(),
        };
        ledger.reject_resize("b", never);
        assert_eq!(order(&ledger), ["a"]);
        assert!(!ledger.request_resize("b", &asking(2), later));
        assert!(ledger.request_resize("b", &asking(5), later));
        ledger.allocate("a", asking(4));
        assert!(ledger.waiting("a").is_none());
        assert!(ledger.remove("a") && !ledger.remove("a"));
    }
}

//! What the pods of this node have been allocated, and whether there is room for more.
//!
//! The scheduler has looked before, but others may have bound pods too, and resizes are decided here alone.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;

use crate::pod::tools::Room;

#[derive(Default)]
pub(super) struct Ledger {
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    /// Cpu in thousandths and memory in bytes, by uid.
    taken: BTreeMap<String, (i64, i64)>,
    waiting: BTreeSet<String>,
}

/// What a pod takes: cpu in thousandths, memory in bytes.
pub(super) fn requests(pod: &Pod) -> (i64, i64) {
    let spec = Pod {
        spec: pod.spec.clone(),
        ..Default::default()
    };
    let value = crate::json::to_value(&spec).unwrap_or_default();
    let total = orlop_api::resources::pod_requests(&value, Default::default());
    let cpu = total.get("cpu").map_or(0, |q| q.milli_value());
    (cpu, total.get("memory").map_or(0, |q| q.value()))
}

/// A resource there is too little of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lack {
    /// `OutOfcpu`
    pub reason: &'static str,
    pub message: String,
}

impl Ledger {
    /// Takes what a pod needs if it is there, in place of what the pod had before.
    pub fn take(&self, uid: &str, (cpu, memory): (i64, i64), room: Option<Room>) -> Result<(), Lack> {
        let mut book = self.book.lock();
        if let Some(room) = room {
            let others = || {
                book.taken
                    .iter()
                    .filter(|(other, _)| *other != uid)
                    .map(|(_, taken)| taken)
            };
            let used = others().fold((0, 0), |(c, m), (cpu, memory)| (c + cpu, m + memory));
            let pods = others().count() as i64;
            let lack = None
                .or_else(|| lack("OutOfpods", "pods", 1, pods, room.pods))
                .or_else(|| lack("OutOfcpu", "cpu", cpu, used.0, room.cpu_milli))
                .or_else(|| lack("OutOfmemory", "memory", memory, used.1, room.memory));
            if let Some(lack) = lack {
                book.waiting.insert(uid.to_string());
                return Err(lack);
            }
        }
        book.waiting.remove(uid);
        book.taken.insert(uid.to_string(), (cpu, memory));
        Ok(())
    }

    /// Takes it whether it is there or not: the pod runs already.
    pub fn adopt(&self, uid: &str, requests: (i64, i64)) {
        self.book.lock().taken.insert(uid.to_string(), requests);
    }

    pub fn remove(&self, uid: &str) {
        let mut book = self.book.lock();
        book.taken.remove(uid);
        book.waiting.remove(uid);
    }

    /// Whether the pod was let in and has not gone.
    pub fn has(&self, uid: &str) -> bool {
        self.book.lock().taken.contains_key(uid)
    }

    pub fn is_waiting(&self, uid: &str) -> bool {
        self.book.lock().waiting.contains(uid)
    }
}

fn lack(reason: &'static str, name: &str, requested: i64, used: i64, capacity: i64) -> Option<Lack> {
    (requested > 0 && requested > capacity - used).then(|| Lack {
        reason,
        message: format!(
            "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, capacity: {capacity}"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_not_there_for_others() {
        let ledger = Ledger::default();
        let room = Some(Room {
            cpu_milli: 4000,
            memory: 1000,
            pods: 2,
        });
        assert_eq!(ledger.take("a", (3000, 10), room), Ok(()));
        let lack = ledger.take("b", (2000, 10), room).unwrap_err();
        assert_eq!(lack.reason, "OutOfcpu");
        let message = "Node didn't have enough resource: cpu, requested: 2000, used: 3000, capacity: 4000";
        assert_eq!(lack.message, message);
        assert!(ledger.is_waiting("b"));
        // Its own share is not in its way.
        assert_eq!(ledger.take("a", (4000, 10), room), Ok(()));
        assert_eq!(ledger.take("b", (0, 0), room), Ok(()));
        assert_eq!(ledger.take("c", (0, 0), room).unwrap_err().reason, "OutOfpods");
        ledger.remove("b");
        assert_eq!(ledger.take("c", (0, 2000), room).unwrap_err().reason, "OutOfmemory");
        assert_eq!(ledger.take("c", (0, 2000), None), Ok(()));
    }
}

//! The pods written last, as values: what is created is bound and reported on moments later, and need not be parsed for
//! it from the bytes that were just made of it.

use std::collections::VecDeque;
use std::sync::Arc;

use orlop_api::Value;
use orlop_store::{Item, Revision};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::object::Object;

/// So many are kept; parsed, a pod takes some ten times its JSON.
const ROOM: usize = 128;

#[derive(Default)]
pub(super) struct Fresh {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    values: FxHashMap<Arc<str>, (Revision, Value)>,
    /// In the order in which they came; some may have been taken already.
    order: VecDeque<(Arc<str>, Revision)>,
}

impl Fresh {
    /// Remembers what was stored under the key at this revision, whole.
    pub(super) fn put(&self, key: &Arc<str>, revision: Revision, mut value: Value) {
        value["metadata"]["resourceVersion"] = revision.to_string().into();
        let mut inner = self.inner.lock();
        let mut out = inner.values.insert(key.clone(), (revision, value));
        inner.order.push_back((key.clone(), revision));
        while inner.order.len() > ROOM {
            let (key, revision) = inner.order.pop_front().expect("it is longer than nothing");
            if inner.values.get(&key).is_some_and(|(at, _)| *at == revision) {
                out = inner.values.remove(&key);
            }
        }
        // Dropping a large value takes a while: not under the lock.
        drop(inner);
        drop(out);
    }

    /// The value of exactly this item, if it is still here. It is the caller's then.
    pub(super) fn take(&self, item: &Item<Object>) -> Option<Value> {
        let taken = self.inner.lock().values.remove(&item.key);
        taken
            .filter(|(revision, _)| *revision == item.mod_revision)
            .map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use orlop_api::KindDef;
    use serde_json::json;

    use super::*;

    fn item(key: &str, revision: Revision) -> Item<Object> {
        let value = json!({"metadata": {"name": "a", "uid": "u"}});
        Item {
            key: key.into(),
            record: Arc::new(Object::encode(&value, &KindDef::BASE)),
            create_revision: 1,
            mod_revision: revision,
        }
    }

    #[test]
    fn only_what_is_stored_now_is_given_out_and_only_once() {
        let fresh = Fresh::default();
        let pod = json!({"metadata": {"name": "a"}});
        fresh.put(&"a".into(), 7, pod.clone());
        assert_eq!(fresh.take(&item("b", 7)), None);
        let expected = json!({"metadata": {"name": "a", "resourceVersion": "7"}});
        assert_eq!(fresh.take(&item("a", 7)), Some(expected));
        assert_eq!(fresh.take(&item("a", 7)), None);
        fresh.put(&"a".into(), 7, pod);
        assert_eq!(fresh.take(&item("a", 8)), None, "it was changed since");
    }

    #[test]
    fn the_oldest_make_room() {
        let fresh = Fresh::default();
        for n in 0..ROOM as u64 * 3 {
            fresh.put(&format!("{}", n % (ROOM as u64 * 2)).into(), n, json!({"metadata": {}}));
        }
        let inner = fresh.inner.lock();
        assert_eq!((inner.values.len(), inner.order.len()), (ROOM, ROOM));
        assert!(inner.values.values().all(|(at, _)| *at >= ROOM as u64 * 2));
    }
}

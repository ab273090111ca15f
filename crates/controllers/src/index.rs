//! Objects by what they refer to: the pods that use a claim, the claims that wait for a class.
//!
//! A cache finds objects by name, owner, and one index of its kind. What a single controller looks up otherwise, it keeps here.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::RwLock;
use rustc_hash::FxHashMap;

use crate::objects::{Kind, Pod};
use crate::runtime::{Cache, Key};

/// Follows a cache. Clones share the index.
pub(crate) struct Index<T> {
    cache: Cache<T>,
    names: Arc<RwLock<Names>>,
}

#[derive(Default)]
struct Names {
    /// name → the objects that refer to it
    referrers: FxHashMap<String, BTreeSet<Key>>,
    /// object → the names it refers to
    references: FxHashMap<Key, Vec<String>>,
}

impl<T: Kind> Clone for Index<T> {
    fn clone(&self) -> Index<T> {
        let (cache, names) = (self.cache.clone(), self.names.clone());
        Index { cache, names }
    }
}

impl<T: Kind> Index<T> {
    /// Must be made before handlers are registered that look things up in it: they are called in that order.
    pub(crate) fn new(cache: &Cache<T>, names_in: impl Fn(&T) -> Vec<String> + Send + Sync + 'static) -> Index<T> {
        let names = Arc::new(RwLock::new(Names::default()));
        let kept = names.clone();
        cache.on_change(move |old, new| {
            let Some(object) = new.or(old) else { return };
            let now = new.map_or_else(Vec::new, |object| names_in(object));
            kept.write().set_references(Key::from_object(&**object), now);
        });
        let cache = cache.clone();
        Index { cache, names }
    }

    pub(crate) fn keys(&self, name: &str) -> Vec<Key> {
        let names = self.names.read();
        names
            .referrers
            .get(name)
            .map_or_else(Vec::new, |keys| keys.iter().cloned().collect())
    }

    /// In the order of their keys.
    pub(crate) fn objects(&self, name: &str) -> Vec<Arc<T>> {
        self.keys(name).iter().filter_map(|key| self.cache.at(key)).collect()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.read().referrers.contains_key(name)
    }
}

impl Names {
    fn set_references(&mut self, key: Key, now: Vec<String>) {
        let before = self.references.remove(&key).unwrap_or_default();
        for name in before.iter().filter(|name| !now.contains(name)) {
            if let Some(keys) = self.referrers.get_mut(name) {
                keys.remove(&key);
                if keys.is_empty() {
                    self.referrers.remove(name);
                }
            }
        }
        if now.is_empty() {
            return;
        }
        for name in &now {
            self.referrers.entry(name.clone()).or_default().insert(key.clone());
        }
        self.references.insert(key, now);
    }
}

/// The pods that use a claim, by the claim's `namespace/name`.
pub(crate) fn pods_by_claim(pods: &Cache<Pod>) -> Index<Pod> {
    Index::new(pods, |pod| {
        let claims = claims_of(pod);
        claims.iter().map(Key::to_string).collect()
    })
}

/// The claims that a pod uses, be they its own or made for it.
pub(crate) fn claims_of(pod: &Pod) -> Vec<Key> {
    let names = pod.spec.volumes.iter().filter_map(|volume| {
        let own = || format!("{}-{}", pod.metadata.name, volume.name);
        match &volume.persistent_volume_claim {
            Some(claim) => Some(claim.claim_name.clone()),
            None => volume.ephemeral.as_ref().map(|_| own()),
        }
    });
    names.map(|name| Key::new(&*pod.metadata.namespace, name)).collect()
}

#[cfg(test)]
mod tests {
    use orlop_client::Delta;
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, volumes: Value) -> Pod {
        let pod = json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"volumes": volumes}});
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn what_uses_a_claim_is_found_until_it_does_no_more() {
        let cache = Cache::<Pod>::default();
        cache.observe(Delta::Applied(pod("a", json!([{"name": "v", "ephemeral": {}}]))));
        let index = pods_by_claim(&cache);
        let claim = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
        cache.observe(Delta::Applied(pod("b", claim.clone())));
        cache.observe(Delta::Applied(pod("a-", claim)));
        cache.observe(Delta::Applied(pod("d", json!([{"name": "v", "emptyDir": {}}]))));
        assert_eq!(index.keys("ns/a-v"), [Key::new("ns", "a")]);
        assert_eq!(index.keys("ns/c"), [Key::new("ns", "a-"), Key::new("ns", "b")]);
        cache.observe(Delta::Applied(pod("b", json!([]))));
        cache.observe(Delta::Deleted(pod("a", json!([]))));
        assert_eq!(index.objects("ns/c").len(), 1);
        assert!(!index.has("ns/a-v") && index.has("ns/c"));
    }
}

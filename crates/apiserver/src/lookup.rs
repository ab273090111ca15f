//! How authentication, authorisation and admission look at other objects, without knowing the store. Answers come from
//! memory and are as fresh as the store itself.

use std::sync::Arc;

use serde_json::Value;

/// Resources are named as in messages: `pods`, `clusterroles.rbac.authorization.k8s.io`. Cluster-scoped objects have
/// the empty namespace.
pub trait ObjectLookup: Send + Sync {
    fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>>;

    /// One label of an object, for which the object need not be parsed.
    fn label(&self, resource: &str, namespace: &str, name: &str, label: &str) -> Option<String> {
        let object = self.get(resource, namespace, name)?;
        Some(object["metadata"]["labels"].get(label)?.as_str()?.to_string())
    }

    /// All objects of a resource, of one namespace if one is given.
    fn list(&self, resource: &str, namespace: Option<&str>) -> Vec<Arc<Value>>;

    /// Changes whenever any object of the resource was added, changed or removed.
    fn generation(&self, resource: &str) -> u64;
}

/// The string at a path of member names, empty where there is none.
pub(crate) fn text<'a>(object: &'a Value, path: &[&str]) -> &'a str {
    let mut at = object;
    for name in path {
        match at.get(name) {
            Some(inner) => at = inner,
            None => return "",
        }
    }
    at.as_str().unwrap_or("")
}

/// The items of a list at a path of member names; none where there is no list.
pub(crate) fn items<'a>(object: &'a Value, path: &[&str]) -> &'a [Value] {
    let mut at = object;
    for name in path {
        match at.get(name) {
            Some(inner) => at = inner,
            None => return &[],
        }
    }
    at.as_array().map_or(&[], Vec::as_slice)
}

/// The strings of a list of strings; anything else is left out.
pub(crate) fn strings(list: Option<&Value>) -> Vec<String> {
    list.and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|item| item.as_str().map(str::to_string))
        .collect()
}

#[cfg(test)]
pub(crate) mod fixture {
    //! An in-memory cluster for tests of what reads it.

    use std::collections::BTreeMap;

    use parking_lot::Mutex;

    use super::*;

    type Key = (String, String, String);

    #[derive(Default)]
    pub(crate) struct Objects {
        objects: Mutex<BTreeMap<Key, Arc<Value>>>,
        generations: Mutex<BTreeMap<String, u64>>,
    }

    impl Objects {
        /// Adds or replaces; name and namespace come from the metadata.
        pub(crate) fn put(&self, resource: &str, object: Value) {
            let key = (
                resource.to_string(),
                text(&object, &["metadata", "namespace"]).to_string(),
                text(&object, &["metadata", "name"]).to_string(),
            );
            self.objects.lock().insert(key, Arc::new(object));
            *self.generations.lock().entry(resource.to_string()).or_default() += 1;
        }

        pub(crate) fn with(self, resource: &str, object: Value) -> Objects {
            self.put(resource, object);
            self
        }

        pub(crate) fn remove(&self, resource: &str, namespace: &str, name: &str) {
            self.objects
                .lock()
                .remove(&(resource.into(), namespace.into(), name.into()));
            *self.generations.lock().entry(resource.to_string()).or_default() += 1;
        }
    }

    impl ObjectLookup for Objects {
        fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
            let key = (resource.to_string(), namespace.to_string(), name.to_string());
            self.objects.lock().get(&key).cloned()
        }

        fn list(&self, resource: &str, namespace: Option<&str>) -> Vec<Arc<Value>> {
            let objects = self.objects.lock();
            let wanted = |key: &Key| key.0 == resource && namespace.is_none_or(|n| n == key.1);
            objects
                .iter()
                .filter(|(key, _)| wanted(key))
                .map(|(_, o)| o.clone())
                .collect()
        }

        fn generation(&self, resource: &str) -> u64 {
            self.generations.lock().get(resource).copied().unwrap_or(0)
        }
    }
}

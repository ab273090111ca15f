//! How a controller may change objects.
//!
//! A patch says all in one request. But Kubernetes' policy lets many of its controllers only update: those read the object,
//! change it, and write it back whole. Which of the two it is, is found out once.

use std::collections::HashSet;

use orlop_client::{Api, Error, ListQuery, Result};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::Value;

#[derive(Default)]
pub struct Permissions {
    /// Resources, with their subresource, that may be updated but not patched.
    update_only: Mutex<HashSet<String>>,
}

impl Permissions {
    /// Does what a JSON merge patch says, `part` being empty or a subresource (`/status`). A `metadata.resourceVersion`
    /// or `metadata.uid` in it must be that of the object.
    pub async fn patch_or_update<T: DeserializeOwned>(
        &self,
        api: &Api,
        path: &str,
        part: &str,
        patch: &Value,
    ) -> Result<T> {
        let target = format!("{path}{part}");
        let what = resource(path, part);
        if self.update_only.lock().contains(&what) {
            return update(api, path, &target, patch).await;
        }
        match api.patch_merge(&target, patch).await {
            Err(Error::Forbidden(refusal)) => match update(api, path, &target, patch).await {
                Ok(made) => {
                    self.update_only.lock().insert(what);
                    Ok(made)
                }
                Err(Error::Forbidden(_)) => Err(Error::Forbidden(refusal)),
                Err(error) => Err(error),
            },
            answer => answer,
        }
    }
}

async fn update<T: DeserializeOwned>(api: &Api, path: &str, target: &str, patch: &Value) -> Result<T> {
    let mut object = read(api, path).await?;
    // What was seen goes along with the patch: the server refuses if it is out of date.
    orlop_api::patch::merge::apply(&mut object, patch.clone());
    api.replace(target, &object).await
}

/// Some controllers may only list what they update (resource quotas).
async fn read(api: &Api, path: &str) -> Result<Value> {
    let (refusal, (collection, name)) = match (api.get(path).await, path.rsplit_once('/')) {
        (Err(Error::Forbidden(refusal)), Some(words)) => (refusal, words),
        (answer, _) => return answer,
    };
    let query = ListQuery {
        field_selector: format!("metadata.name={name}"),
        ..ListQuery::default()
    };
    let found = api.list::<Value>(collection, &query).await?.items.pop();
    found.ok_or(Error::Forbidden(refusal))
}

/// The path without what names a single object.
fn resource(path: &str, part: &str) -> String {
    let collection = path.rsplit_once('/').map_or(path, |(collection, _)| collection);
    let plural = collection.rsplit_once('/').map_or(collection, |(_, plural)| plural);
    let group: Vec<&str> = path.split('/').take(3).collect();
    format!("{}/{plural}{part}", group.join("/"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::objects::{Kind, Pod};
    use crate::testing::{Cluster, Refusal};

    #[tokio::test(start_paused = true)]
    async fn who_may_not_patch_updates() {
        let cluster = Cluster::new();
        cluster.put(
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "ns", "name": "p"},
                           "spec": {"a": 1, "b": 2}, "status": {"phase": "Pending"}}),
        );
        cluster.hook(|call, _| {
            let refused = call.method == "PATCH";
            refused.then(|| Err(Refusal::new(403, "Forbidden", "patching is not for you")))
        });
        let (api, permissions) = (cluster.api(), Permissions::default());
        let path = "/api/v1/namespaces/ns/pods/p";
        let patch = json!({"spec": {"a": null, "b": 3}});
        let changed: Value = permissions.patch_or_update(&api, path, "", &patch).await.unwrap();
        assert_eq!(
            (&changed["spec"]["a"], &changed["spec"]["b"]),
            (&Value::Null, &json!(3))
        );
        let patch = json!({"status": {"phase": "Running"}, "metadata": {"resourceVersion": "1"}});
        let stale: Result<Value> = permissions.patch_or_update(&api, path, "/status", &patch).await;
        assert!(matches!(stale, Err(Error::Conflict(_))));
        let patch = json!({"status": {"phase": "Running"}});
        let pod: Pod = permissions
            .patch_or_update(&api, path, "/status", &patch)
            .await
            .unwrap();
        assert_eq!((pod.status.phase.as_str(), pod.meta().name.as_str()), ("Running", "p"));
        permissions
            .patch_or_update::<Value>(&api, path, "/status", &patch)
            .await
            .unwrap();
        let patches = cluster.calls().iter().filter(|call| call.method == "PATCH").count();
        // One for the object, two for its status: what fails otherwise proves nothing.
        assert_eq!(patches, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn who_may_not_get_lists() {
        let cluster = Cluster::new();
        cluster.put(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "ns", "name": "p"}}));
        cluster.hook(|call, _| {
            let is_list = call.path.ends_with("/pods") || call.method == "PUT";
            (!is_list).then(|| Err(Refusal::new(403, "Forbidden", "not for you")))
        });
        let (api, permissions) = (cluster.api(), Permissions::default());
        let patch = json!({"status": {"phase": "Running"}});
        let path = "/api/v1/namespaces/ns/pods/p";
        let pod: Pod = permissions
            .patch_or_update(&api, path, "/status", &patch)
            .await
            .unwrap();
        assert_eq!(pod.status.phase, "Running");
    }

    #[test]
    fn what_a_path_is_of() {
        let cases = [
            ("/api/v1/namespaces/a/pods/p", "/api/v1/pods/status"),
            ("/api/v1/nodes/n", "/api/v1/nodes/status"),
            (
                "/apis/apps/v1/namespaces/a/replicasets/r",
                "/apis/apps/replicasets/status",
            ),
        ];
        for (path, expected) in cases {
            assert_eq!(resource(path, "/status"), expected);
        }
    }
}

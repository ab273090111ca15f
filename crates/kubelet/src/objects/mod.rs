//! API objects that pods of this node refer to: config maps, secrets, claims, volumes, tokens.
//!
//! Config maps and secrets are cached for a short while, so that a hundred pods that mount the same one cost one request. A
//! new pod never gets what was fetched before it was added: whoever changes a config map and then creates a pod can count on
//! the pod having the change. When the server is unreachable, cached objects stay in use.

mod cache;
#[cfg(test)]
pub mod fake;
mod references;
mod tokens;

use std::sync::Arc;

use orlop_api::types::authentication::TokenRequestSpec;
use orlop_api::types::core::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use orlop_base::Clock;
use orlop_client::{Api, path};
use serde::de::DeserializeOwned;

use cache::Cache;
use references::{Kind, References};
pub use tokens::Token;
use tokens::Tokens;

/// Why an object could not be fetched, worded as in Kubernetes' events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// The server says that there is none of that name.
    #[error("{0}")]
    NotFound(String),
    /// The server can't be asked, or refuses.
    #[error("{0}")]
    Failed(String),
}

pub type Result<T> = std::result::Result<T, ObjectError>;

/// Cheap to clone; clones share what is known.
#[derive(Clone)]
pub struct Objects {
    shared: Arc<Shared>,
}

struct Shared {
    api: Option<Api>,
    clock: Clock,
    config_maps: Cache<ConfigMap>,
    secrets: Cache<Secret>,
    references: References,
    tokens: Tokens,
}

impl Objects {
    /// Without an API (static pods only) every answer is an error.
    pub fn new(api: Option<Api>, clock: Clock) -> Objects {
        Objects {
            shared: Arc::new(Shared {
                api,
                clock,
                config_maps: Cache::default(),
                secrets: Cache::default(),
                references: References::default(),
                tokens: Tokens::default(),
            }),
        }
    }

    pub fn has_api(&self) -> bool {
        self.shared.api.is_some()
    }

    pub fn api(&self) -> Option<&Api> {
        self.shared.api.as_ref()
    }

    pub async fn config_map(&self, namespace: &str, name: &str) -> Result<Arc<ConfigMap>> {
        let fetch = || self.fetch("v1", Some(namespace), "configmaps", "configmap", name);
        let shared = &self.shared;
        shared.config_maps.get(namespace, name, &shared.clock, fetch).await
    }

    pub async fn secret(&self, namespace: &str, name: &str) -> Result<Arc<Secret>> {
        let fetch = || self.fetch("v1", Some(namespace), "secrets", "secret", name);
        let shared = &self.shared;
        shared.secrets.get(namespace, name, &shared.clock, fetch).await
    }

    /// Never cached: whether a claim is bound must be current.
    pub async fn persistent_volume_claim(&self, namespace: &str, name: &str) -> Result<Arc<PersistentVolumeClaim>> {
        let resource = "persistentvolumeclaims";
        let claim = self.fetch("v1", Some(namespace), resource, resource, name).await?;
        Ok(Arc::new(claim))
    }

    /// Never cached.
    pub async fn persistent_volume(&self, name: &str) -> Result<Arc<PersistentVolume>> {
        let resource = "persistentvolumes";
        Ok(Arc::new(self.fetch("v1", None, resource, resource, name).await?))
    }

    /// A token of the service account, bound to the pod. The same one until 80 % of its life or a day has gone by.
    pub async fn service_account_token(
        &self,
        namespace: &str,
        service_account: &str,
        spec: &TokenRequestSpec,
        pod: &Pod,
    ) -> Result<Arc<Token>> {
        let shared = &self.shared;
        let Some(api) = &shared.api else {
            let message = "cannot use TokenManager when kubelet is in standalone mode";
            return Err(ObjectError::Failed(format!("failed to fetch token: {message}")));
        };
        let request = tokens::Request::new(namespace, service_account, spec, pod);
        shared.tokens.get(api, request, &shared.clock).await
    }

    /// A pod was added to this node: what it refers to is fetched again at the next use. Idempotent.
    pub fn pod_added(&self, pod: &Pod) {
        for (kind, namespace, name) in self.shared.references.add(pod) {
            match kind {
                Kind::ConfigMap => self.shared.config_maps.outdate(&namespace, &name),
                Kind::Secret => self.shared.secrets.outdate(&namespace, &name),
            }
        }
    }

    /// A pod left this node: what nobody else refers to is forgotten.
    pub fn pod_gone(&self, uid: &str) {
        self.shared.tokens.forget(uid);
        for (kind, namespace, name) in self.shared.references.remove(uid) {
            match kind {
                Kind::ConfigMap => self.shared.config_maps.forget(&namespace, &name),
                Kind::Secret => self.shared.secrets.forget(&namespace, &name),
            }
        }
    }

    /// Any other object, not kept. `said` is what messages call it: `configmap "x" not found`.
    pub async fn fetch<T: DeserializeOwned>(
        &self,
        api_version: &str,
        namespace: Option<&str>,
        resource: &str,
        said: &str,
        name: &str,
    ) -> Result<T> {
        let Some(api) = &self.shared.api else {
            let message = format!("cannot get {said} {name:?}: kube client is not configured");
            return Err(ObjectError::Failed(message));
        };
        let path = path::object(api_version, namespace, resource, name);
        api.get(&path).await.map_err(|error| match error {
            orlop_client::Error::NotFound(_) => ObjectError::NotFound(format!("{said} {name:?} not found")),
            error => ObjectError::Failed(error.chain()),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::fake::FakeCluster;
    use super::*;

    const CONFIG: &str = "/api/v1/namespaces/a/configmaps/c";

    fn objects(cluster: &FakeCluster) -> (Objects, Clock) {
        let clock = Clock::manual("2026-01-02T03:04:05Z".parse().unwrap());
        (Objects::new(Some(cluster.api()), clock.clone()), clock)
    }

    fn pod(uid: &str) -> Pod {
        orlop_api::types::from_value(json!({
            "metadata": {"name": uid, "namespace": "a", "uid": uid},
            "spec": {"containers": [], "volumes": [{"name": "v", "configMap": {"name": "c"}}]},
        }))
        .unwrap()
    }

    async fn value(objects: &Objects) -> String {
        match objects.config_map("a", "c").await {
            Ok(found) => found.data.as_ref().unwrap()["k"].clone(),
            Err(error) => format!("{error:?}"),
        }
    }

    #[tokio::test]
    async fn kept_for_a_while_but_never_across_a_new_pod() {
        let cluster = FakeCluster::default();
        let (objects, clock) = objects(&cluster);
        assert_eq!(value(&objects).await, "NotFound(\"configmap \\\"c\\\" not found\")");
        cluster.put(CONFIG, json!({"data": {"k": "1"}}));
        clock.advance(Duration::from_secs(2));
        assert_eq!(value(&objects).await, "1");

        cluster.put(CONFIG, json!({"data": {"k": "2"}}));
        assert_eq!(value(&objects).await, "1");
        objects.pod_added(&pod("p"));
        assert_eq!(value(&objects).await, "2");

        cluster.put(CONFIG, json!({"data": {"k": "3"}}));
        objects.pod_added(&pod("p"));
        assert_eq!(value(&objects).await, "2", "a pod is new only once");
        clock.advance(Duration::from_secs(60));
        assert_eq!(value(&objects).await, "3");

        cluster.put(CONFIG, json!({"data": {"k": "4"}}));
        objects.pod_gone("p");
        assert_eq!(value(&objects).await, "4", "nothing is kept for nobody");
    }

    #[tokio::test]
    async fn what_was_known_goes_on_being_used_while_the_server_is_away() {
        let cluster = FakeCluster::default();
        let (objects, clock) = objects(&cluster);
        cluster.put(CONFIG, json!({"data": {"k": "1"}}));
        assert_eq!(value(&objects).await, "1");
        cluster.set_down(true);
        clock.advance(Duration::from_secs(3600));
        assert_eq!(value(&objects).await, "1");
        cluster.set_down(false);
        cluster.remove(CONFIG);
        clock.advance(Duration::from_secs(60));
        assert_eq!(value(&objects).await, "NotFound(\"configmap \\\"c\\\" not found\")");
    }

    #[tokio::test]
    async fn many_at_once_ask_once() {
        let cluster = FakeCluster::default();
        let (objects, _) = objects(&cluster);
        cluster.put(CONFIG, json!({"data": {"k": "1"}}));
        let all = orlop_base::join_all((0..100).map(|_| value(&objects))).await;
        assert!(all.iter().all(|v| v == "1"));
        assert_eq!(cluster.requests().len(), 1);
    }

    #[tokio::test]
    async fn without_a_server_everything_fails_with_a_reason() {
        let objects = Objects::new(None, Clock::System);
        let error = objects.secret("a", "s").await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot get secret \"s\": kube client is not configured"
        );
        let spec = TokenRequestSpec::default();
        let error = objects
            .service_account_token("a", "s", &spec, &pod("p"))
            .await
            .unwrap_err();
        assert!(error.to_string().starts_with("failed to fetch token: "), "{error}");
    }
}

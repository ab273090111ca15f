//! What a run asks of the API: a few connections shared by many workers, and the calls it makes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::template::{Body, Manifest};
use crate::bench::client::{Http2, Target};

const CONNECTIONS: usize = 4;

/// How many requests of one operation are under way at once, as in scheduler_perf.
pub(super) const WORKERS: usize = 30;

/// How often a server that says "too many requests" or the like is asked again.
const RETRIES: u32 = 20;

pub(super) struct Cluster {
    connections: Vec<Http2>,
    next: AtomicUsize,
}

/// Where objects of a kind are found.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Resource {
    base: String,
    plural: String,
    pub namespaced: bool,
}

impl Resource {
    pub(super) fn path(&self, namespace: &str) -> String {
        match self.namespaced {
            true => format!("{}/namespaces/{namespace}/{}", self.base, self.plural),
            false => format!("{}/{}", self.base, self.plural),
        }
    }
}

impl Cluster {
    pub(super) async fn connect(target: &Target) -> anyhow::Result<Cluster> {
        let mut connections = vec![];
        for _ in 0..CONNECTIONS {
            connections.push(target.connect_http2().await?);
        }
        Ok(Cluster {
            connections,
            next: AtomicUsize::new(0),
        })
    }

    fn connection(&self) -> &Http2 {
        &self.connections[self.next.fetch_add(1, Ordering::Relaxed) % self.connections.len()]
    }

    pub(super) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let answer = self.ask(Method::GET, path, Bytes::new(), &[]).await?;
        serde_json::from_slice(&answer).with_context(|| format!("GET {path}: no JSON"))
    }

    /// Success, or one of the `also` codes. Asks again when the server is too busy.
    pub(super) async fn ask(&self, method: Method, path: &str, body: Bytes, also: &[u16]) -> anyhow::Result<Bytes> {
        for attempt in 1.. {
            let (code, answer) = self.connection().call(method.clone(), path, body.clone()).await?;
            let again = attempt < RETRIES && matches!(code, 429 | 500 | 503 | 504);
            // A create that was answered with a timeout may have been done.
            let done_before = attempt > 1 && method == Method::POST && code == 409;
            if (200..300).contains(&code) || also.contains(&code) || done_before {
                return Ok(answer);
            }
            if !again {
                bail!("{method} {path}: {code}: {}", message(&answer));
            }
            tokio::time::sleep(Duration::from_millis(50 * u64::from(attempt))).await;
        }
        unreachable!("the loop ends by returning")
    }

    pub(super) async fn create(&self, path: &str, body: Bytes) -> anyhow::Result<Bytes> {
        self.ask(Method::POST, path, body, &[]).await
    }

    pub(super) async fn delete(&self, path: &str) -> anyhow::Result<()> {
        self.ask(Method::DELETE, path, Bytes::new(), &[404]).await.map(|_| ())
    }

    /// The namespace and its default service account, which a cluster without controllers doesn't make.
    pub(super) async fn create_namespace(&self, name: &str, labels: &BTreeMap<String, String>) -> anyhow::Result<()> {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}).to_string();
        self.create("/api/v1/namespaces", Bytes::from(namespace)).await?;
        let account =
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}).to_string();
        let path = format!("/api/v1/namespaces/{name}/serviceaccounts");
        self.ask(Method::POST, &path, Bytes::from(account), &[409]).await?;
        Ok(())
    }

    /// A node that can take pods at once. Servers keep the status of a new node and may taint it; what differs
    /// in the response is patched.
    pub(super) async fn create_node(&self, manifest: &Manifest, body: &Body, name: &str) -> anyhow::Result<()> {
        let answer = self.create("/api/v1/nodes", body.named(name)).await?;
        let node: Value = serde_json::from_slice(&answer)?;
        let path = format!("/api/v1/nodes/{name}");
        let none = |value: &Value| value.as_array().is_none_or(Vec::is_empty);
        let (wanted, given) = (manifest.taints(), &node["spec"]["taints"]);
        if wanted != given && !(none(wanted) && none(given)) {
            let patch = json!({"spec": {"taints": wanted}}).to_string();
            self.ask(Method::PATCH, &path, Bytes::from(patch), &[]).await?;
        }
        if node["status"]["allocatable"] != manifest.status()["allocatable"] {
            let patch = json!({"status": manifest.status()}).to_string();
            self.ask(Method::PATCH, &format!("{path}/status"), Bytes::from(patch), &[])
                .await?;
        }
        Ok(())
    }

    /// Looks a kind up in the server's discovery.
    pub(super) async fn resource(&self, api_version: &str, kind: &str) -> anyhow::Result<Resource> {
        let base = match api_version.contains('/') {
            true => format!("/apis/{api_version}"),
            false => format!("/api/{api_version}"),
        };
        let answer = self.ask(Method::GET, &base, Bytes::new(), &[]).await?;
        find_kind(&base, &answer, kind)?.with_context(|| format!("the server has no kind {kind} in {api_version}"))
    }

    /// All pods of a namespace, at once. A server may give up before a great many are gone.
    pub(super) async fn delete_pods(&self, namespace: &str) -> anyhow::Result<()> {
        let path = format!("/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0");
        self.delete(&path).await
    }
}

fn find_kind(base: &str, discovery: &[u8], kind: &str) -> anyhow::Result<Option<Resource>> {
    #[derive(Deserialize)]
    struct List {
        resources: Vec<Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        name: String,
        kind: String,
        namespaced: bool,
    }
    let list: List = serde_json::from_slice(discovery)?;
    let entry = list
        .resources
        .into_iter()
        .find(|r| r.kind == kind && !r.name.contains('/'));
    Ok(entry.map(|r| Resource {
        base: base.to_string(),
        plural: r.name,
        namespaced: r.namespaced,
    }))
}

/// What a Status says, or whatever else came.
fn message(answer: &[u8]) -> String {
    let status: Option<Value> = serde_json::from_slice(answer).ok();
    match status.as_ref().and_then(|s| s["message"].as_str()) {
        Some(message) => message.to_string(),
        None => String::from_utf8_lossy(answer).into_owned(),
    }
}

/// `operation(0)` to `operation(count - 1)`, a few at once. The first error ends it.
pub(super) async fn in_parallel<F, Fut>(count: usize, operation: F) -> anyhow::Result<()>
where
    F: Fn(usize) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = anyhow::Result<()>> + Send,
{
    let (next, operation) = (Arc::new(AtomicUsize::new(0)), Arc::new(operation));
    // Dropping the set, as happens on an error, ends the other workers.
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..WORKERS.min(count) {
        let (next, operation) = (next.clone(), operation.clone());
        workers.spawn(async move {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= count {
                    return anyhow::Ok(());
                }
                operation(i).await?;
            }
        });
    }
    while let Some(ended) = workers.join_next().await {
        ended.context("a worker ended early")??;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_found_in_discovery() {
        let text = br#"{"resources": [
            {"name": "pods/log", "kind": "Pod", "namespaced": true}, {"name": "pods", "kind": "Pod", "namespaced": true},
            {"name": "nodes", "kind": "Node", "namespaced": false}]}"#;
        let path = |kind| find_kind("/api/v1", text, kind).unwrap().map(|r| r.path("a"));
        assert_eq!(path("Pod").as_deref(), Some("/api/v1/namespaces/a/pods"));
        assert_eq!(path("Node").as_deref(), Some("/api/v1/nodes"));
        assert_eq!(path("Unicorn"), None);
    }

    #[tokio::test]
    async fn work_is_done_once_each_and_errors_end_it() {
        let done: Arc<Vec<AtomicUsize>> = Arc::new((0..100).map(|_| AtomicUsize::new(0)).collect());
        let counted = done.clone();
        in_parallel(100, move |i| {
            counted[i].fetch_add(1, Ordering::Relaxed);
            std::future::ready(Ok(()))
        })
        .await
        .unwrap();
        assert!(done.iter().all(|n| n.load(Ordering::Relaxed) == 1));
        let failing = in_parallel(100, |i| async move { if i == 50 { bail!("no") } else { Ok(()) } });
        assert!(failing.await.is_err());
    }
}

//! What is measured: each workload drives the API as clients do and checks every answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use orlop_base::clock::monotonic;
use serde_json::{Value, json};

use super::client::{Connection, Target};
use super::measure::{Figures, timed};

/// Everything happens in a namespace of its own, removed at the end.
pub(crate) const NAMESPACE: &str = "orlop-bench";

/// A pod as people write them, about three kilobytes, five once stored. Its text is made once: the load generator should
/// not take the time it measures.
struct PodTemplate {
    before_name: String,
    after_name: String,
}

impl PodTemplate {
    fn new() -> PodTemplate {
        let env: Vec<Value> = (0..12)
            .map(
                |i| json!({"name": format!("SETTING_{i}"), "value": format!("a value of ordinary length, number {i}")}),
            )
            .collect();
        let container = json!({
            "name": "main", "image": "registry.example/team/service:1.2.3", "env": env,
            "ports": [{"name": "http", "containerPort": 8080}],
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "500m", "memory": "256Mi"}},
            "livenessProbe": {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 10},
        });
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "<name>", "namespace": NAMESPACE,
                "labels": {"app": "bench", "tier": "backend", "version": "1.2.3"},
                "annotations": {"example.com/owner": "bench", "example.com/purpose": "measuring the API server"},
            },
            "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
        });
        let text = pod.to_string();
        let (before_name, after_name) = text.split_once("<name>").expect("the name is in the template");
        PodTemplate {
            before_name: before_name.to_string(),
            after_name: after_name.to_string(),
        }
    }

    fn named(&self, name: &str) -> Bytes {
        Bytes::from([&self.before_name, name, &self.after_name].concat())
    }
}

fn pods_path() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods")
}

/// Waits until pods can be made in a fresh namespace (its default service account is there).
pub(crate) async fn prepare(target: &Target) -> anyhow::Result<()> {
    let mut connection = target.connect().await?;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    let (code, answer) = connection
        .call(Method::POST, "/api/v1/namespaces", Bytes::from(namespace.to_string()))
        .await?;
    if code != 201 && code != 409 {
        bail!(
            "failed to create namespace {NAMESPACE}: {}",
            String::from_utf8_lossy(&answer)
        );
    }
    // A server without controllers does not make it.
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts");
    let (code, answer) = connection
        .call(Method::POST, &path, Bytes::from(account.to_string()))
        .await?;
    if code != 201 && code != 409 {
        bail!(
            "failed to create the service account of {NAMESPACE}: {}",
            String::from_utf8_lossy(&answer)
        );
    }
    Ok(())
}

pub(crate) async fn clean_up(target: &Target) -> anyhow::Result<()> {
    let mut connection = target.connect().await?;
    connection
        .expect(
            Method::DELETE,
            &format!("{}?gracePeriodSeconds=0", pods_path()),
            Bytes::new(),
        )
        .await?;
    connection
        .expect(Method::DELETE, &format!("/api/v1/namespaces/{NAMESPACE}"), Bytes::new())
        .await?;
    Ok(())
}

/// `count` operations shared by `clients` connections. `operation(connection, i)`.
async fn spread<F, Fut>(
    target: &Target,
    name: String,
    clients: usize,
    count: usize,
    operation: F,
) -> anyhow::Result<Figures>
where
    F: Fn(Connection, usize) -> Fut + Send + Sync + Clone + 'static,
    Fut: Future<Output = anyhow::Result<Connection>> + Send,
{
    let mut connections = vec![];
    for _ in 0..clients {
        connections.push(target.connect().await?);
    }
    let next = Arc::new(AtomicUsize::new(0));
    let start = monotonic();
    let tasks: Vec<_> = connections
        .into_iter()
        .map(|mut connection| {
            let (next, operation) = (next.clone(), operation.clone());
            tokio::spawn(async move {
                let mut latencies = vec![];
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= count {
                        return anyhow::Ok(latencies);
                    }
                    connection = timed(&mut latencies, operation(connection, i)).await?;
                }
            })
        })
        .collect();
    let mut latencies = vec![];
    for task in tasks {
        latencies.extend(task.await.context("a client ended early")??);
    }
    Ok(Figures::new(name, start.elapsed(), latencies))
}

pub(crate) async fn creates(
    target: &Target,
    clients: usize,
    count: usize,
    prefix: &'static str,
) -> anyhow::Result<Figures> {
    let name = format!("create pods, {clients} client{}", if clients == 1 { "" } else { "s" });
    let template = Arc::new(PodTemplate::new());
    spread(target, name, clients, count, move |mut connection, i| {
        let body = template.named(&format!("{prefix}-{i}"));
        async move {
            connection.expect(Method::POST, &pods_path(), body).await?;
            Ok(connection)
        }
    })
    .await
}

pub(crate) async fn gets(
    target: &Target,
    clients: usize,
    count: usize,
    prefix: &'static str,
    of: usize,
) -> anyhow::Result<Figures> {
    spread(
        target,
        format!("get a pod, {clients} clients"),
        clients,
        count,
        move |mut connection, i| async move {
            let path = format!("{}/{prefix}-{}", pods_path(), i % of);
            connection.expect(Method::GET, &path, Bytes::new()).await?;
            Ok(connection)
        },
    )
    .await
}

pub(crate) async fn lists(target: &Target, times: usize) -> anyhow::Result<Figures> {
    let mut connection = target.connect().await?;
    let (mut latencies, mut bytes) = (vec![], 0);
    let start = monotonic();
    for _ in 0..times {
        let answer = timed(
            &mut latencies,
            connection.expect(Method::GET, &pods_path(), Bytes::new()),
        )
        .await?;
        bytes = answer.len();
    }
    let mut figures = Figures::new("list all pods", start.elapsed(), latencies);
    figures.bytes = bytes as u64;
    figures.note = format!("{:.1} MB each", bytes as f64 / 1e6);
    Ok(figures)
}

/// `watchers` watch the namespace while `count` config maps are made; the latency is from sending the create until
/// the last watcher has its event.
pub(crate) async fn fan_out(target: &Target, watchers: usize, count: usize) -> anyhow::Result<Figures> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/configmaps");
    let mut writer = target.connect().await?;
    let list: Value = serde_json::from_slice(&writer.expect(Method::GET, &path, Bytes::new()).await?)?;
    let revision = list["metadata"]["resourceVersion"].as_str().unwrap_or("0").to_string();
    let seen = Arc::new(AtomicUsize::new(0));
    let notify = Arc::new(tokio::sync::Notify::new());
    let mut tasks = vec![];
    for _ in 0..watchers {
        let mut connection = target.connect().await?;
        let watch = format!("{path}?watch=true&resourceVersion={revision}");
        let (code, mut body) = connection.send(Method::GET, &watch, Bytes::new()).await?;
        if code != 200 {
            bail!("a watch was refused: {code}");
        }
        let (seen, notify) = (seen.clone(), notify.clone());
        tasks.push(tokio::spawn(async move {
            let _connection = connection;
            while let Some(Ok(frame)) = body.frame().await {
                let events = frame
                    .data_ref()
                    .map_or(0, |d| d.iter().filter(|b| **b == b'\n').count());
                seen.fetch_add(events, Ordering::Relaxed);
                notify.notify_one();
            }
        }));
    }
    let mut latencies = vec![];
    let start = monotonic();
    for i in 0..count {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("fan-{i}")}, "data": {"k": "v"}});
        let sent = monotonic();
        writer.expect(Method::POST, &path, Bytes::from(map.to_string())).await?;
        while seen.load(Ordering::Relaxed) < (i + 1) * watchers {
            tokio::time::timeout(Duration::from_secs(30), notify.notified())
                .await
                .context("events did not arrive")?;
        }
        latencies.push(sent.elapsed());
    }
    let elapsed = start.elapsed();
    tasks.iter().for_each(|t| t.abort());
    let mut figures = Figures::new(format!("create seen by {watchers} watchers"), elapsed, latencies);
    figures.note = format!(
        "{:.0} events/s delivered",
        (count * watchers) as f64 / elapsed.as_secs_f64()
    );
    Ok(figures)
}

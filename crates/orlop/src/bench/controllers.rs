//! `orlop bench controllers`: how fast workloads become pods that are ready, and go again, on simulated nodes; and how many
//! writes that takes.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::bail;
use bytes::Bytes;
use http::Method;
use orlop_base::clock::monotonic;
use serde_json::{Value, json};

use super::client::{Connection, Http2, Target};
use super::process;

/// Between two looks at how far things are.
const LOOK: Duration = Duration::from_millis(20);
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
/// What a step may take before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) struct Sizes {
    /// Pods of the one large Deployment.
    pub pods: u64,
    /// Small Deployments of ten pods each.
    pub deployments: u64,
    /// Pods of the Deployment that is rolled over.
    pub rolled: u64,
}

/// One step, measured.
pub(crate) struct Step {
    name: String,
    pods: u64,
    took: Duration,
    cpu: Duration,
    /// By resource and verb.
    writes: BTreeMap<String, u64>,
}

pub(crate) struct Bench {
    connection: Connection,
    many: Http2,
    pid: u32,
    pub steps: Vec<Step>,
}

impl Bench {
    pub(crate) async fn connect(target: &Target, pid: u32) -> anyhow::Result<Bench> {
        Ok(Bench {
            connection: target.connect().await?,
            many: target.connect_http2().await?,
            pid,
            steps: vec![],
        })
    }

    pub(crate) async fn run(&mut self, sizes: &Sizes, nodes: usize) -> anyhow::Result<()> {
        self.nodes_are_ready(nodes).await?;
        let large = sizes.pods;
        self.create(&deployment("large", 0)).await?;
        self.step(&format!("0 → {large} ready"), large, async |b| {
            b.scale("large", large).await?;
            b.until_ready("large", large).await
        })
        .await?;
        self.idle(&format!("idle with {large} pods")).await?;
        self.step(&format!("{large} → 0"), large, async |b| {
            b.scale("large", 0).await?;
            b.until_gone().await
        })
        .await?;
        let (count, each) = (sizes.deployments, 10);
        self.step(&format!("{count} Deployments × {each}"), count * each, async |b| {
            let made = (0..count).map(|i| b.many_create(deployment(&format!("small-{i}"), each)));
            futures_ordered(made.collect()).await?;
            b.until_all_ready(count, each).await
        })
        .await?;
        self.step("their end", count * each, async |b| {
            let path = format!("{DEPLOYMENTS}?labelSelector=bench");
            b.connection.expect(Method::DELETE, &path, Bytes::new()).await?;
            b.until_gone().await
        })
        .await?;
        let rolled = sizes.rolled;
        self.create(&deployment("rolled", rolled)).await?;
        self.until_ready("rolled", rolled).await?;
        self.step(&format!("rolling update of {rolled}"), rolled, async |b| {
            let change = json!({"spec": {"template": {"metadata": {"annotations": {"version": "2"}}}}});
            b.patch("rolled", &change).await?;
            b.until_rolled("rolled", rolled).await
        })
        .await
    }

    async fn nodes_are_ready(&mut self, count: usize) -> anyhow::Result<()> {
        let ready = |node: &Value| {
            let conditions = node["status"]["conditions"].as_array();
            let ready = conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"));
            ready && node["spec"]["taints"].as_array().is_none_or(Vec::is_empty)
        };
        self.until("nodes", async |b| {
            let nodes = b.get("/api/v1/nodes").await?;
            let items = nodes["items"]
                .as_array()
                .map_or(0, |items| items.iter().filter(|n| ready(n)).count());
            Ok(items >= count)
        })
        .await
    }

    /// Measures what the processes do meanwhile.
    async fn step(
        &mut self,
        name: &str,
        pods: u64,
        work: impl AsyncFnOnce(&mut Bench) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        eprintln!("· {name}");
        let (before, cpu, started) = (self.writes().await?, self.cpu(), monotonic());
        work(self).await?;
        let took = started.elapsed();
        let cpu = self.cpu().saturating_sub(cpu);
        // Events may still be on their way: they are part of the cost.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let mut writes = self.writes().await?;
        for (what, count) in &mut writes {
            *count -= before.get(what).copied().unwrap_or(0).min(*count);
        }
        writes.retain(|_, count| *count > 0);
        let name = name.to_string();
        self.steps.push(Step {
            name,
            pods,
            took,
            cpu,
            writes,
        });
        Ok(())
    }

    async fn idle(&mut self, name: &str) -> anyhow::Result<()> {
        // Whatever still follows from the step before is not idleness.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let seconds = Duration::from_secs(10);
        self.step(name, 0, async |_| {
            tokio::time::sleep(seconds).await;
            Ok(())
        })
        .await
    }

    fn cpu(&self) -> Duration {
        process::usage(self.pid).map_or(Duration::ZERO, |usage| usage.cpu)
    }

    /// Writes so far, leases (heartbeats) left out.
    async fn writes(&mut self) -> anyhow::Result<BTreeMap<String, u64>> {
        let text = self.connection.expect(Method::GET, "/metrics", Bytes::new()).await?;
        let mut writes = BTreeMap::new();
        for line in String::from_utf8_lossy(&text).lines() {
            let Some(labels) = line.strip_prefix("apiserver_request_total{") else {
                continue;
            };
            let Some((labels, count)) = labels.split_once("} ") else {
                continue;
            };
            let label = |name: &str| {
                let start = labels.find(&format!("{name}=\""))? + name.len() + 2;
                labels[start..].split('"').next()
            };
            let verb = label("verb").unwrap_or("");
            let resource = label("resource").unwrap_or("");
            if !matches!(verb, "POST" | "PUT" | "PATCH" | "APPLY" | "DELETE" | "DELETECOLLECTION")
                || resource == "leases"
            {
                continue;
            }
            let part = label("subresource")
                .filter(|p| !p.is_empty())
                .map_or(String::new(), |p| format!("/{p}"));
            *writes.entry(format!("{verb} {resource}{part}")).or_default() +=
                count.parse::<f64>().unwrap_or(0.0) as u64;
        }
        Ok(writes)
    }

    async fn get(&mut self, path: &str) -> anyhow::Result<Value> {
        Ok(serde_json::from_slice(
            &self.connection.expect(Method::GET, path, Bytes::new()).await?,
        )?)
    }

    async fn create(&mut self, object: &Value) -> anyhow::Result<()> {
        self.connection
            .expect(Method::POST, DEPLOYMENTS, object.to_string().into())
            .await?;
        Ok(())
    }

    fn many_create(&self, object: Value) -> impl Future<Output = anyhow::Result<()>> + use<> {
        let many = self.many.clone();
        async move {
            match many.call(Method::POST, DEPLOYMENTS, object.to_string().into()).await? {
                (201, _) => Ok(()),
                (code, body) => bail!("POST {DEPLOYMENTS}: {code}: {}", String::from_utf8_lossy(&body)),
            }
        }
    }

    async fn patch(&mut self, name: &str, patch: &Value) -> anyhow::Result<()> {
        let (code, body) = self
            .many
            .call(
                Method::PATCH,
                &format!("{DEPLOYMENTS}/{name}"),
                patch.to_string().into(),
            )
            .await?;
        match code {
            200 => Ok(()),
            _ => bail!("PATCH {name}: {code}: {}", String::from_utf8_lossy(&body)),
        }
    }

    async fn scale(&mut self, name: &str, replicas: u64) -> anyhow::Result<()> {
        self.patch(name, &json!({"spec": {"replicas": replicas}})).await
    }

    async fn until(
        &mut self,
        what: &str,
        mut done: impl AsyncFnMut(&mut Bench) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let started = monotonic();
        while !done(self).await? {
            if started.elapsed() > PATIENCE {
                bail!("{what}: not done after {PATIENCE:?}");
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    async fn until_ready(&mut self, name: &str, replicas: u64) -> anyhow::Result<()> {
        self.until(name, async |b| {
            let found = b.get(&format!("{DEPLOYMENTS}/{name}")).await?;
            Ok(is_ready(&found, replicas))
        })
        .await
    }

    async fn until_rolled(&mut self, name: &str, replicas: u64) -> anyhow::Result<()> {
        self.until(name, async |b| {
            let found = b.get(&format!("{DEPLOYMENTS}/{name}")).await?;
            let status = &found["status"];
            Ok(is_ready(&found, replicas)
                && status["updatedReplicas"] == replicas
                && status["replicas"] == replicas
                && status["observedGeneration"] == found["metadata"]["generation"])
        })
        .await
    }

    async fn until_all_ready(&mut self, count: u64, each: u64) -> anyhow::Result<()> {
        self.until("small Deployments", async |b| {
            let found = b.get(&format!("{DEPLOYMENTS}?labelSelector=bench")).await?;
            let ready = found["items"]
                .as_array()
                .map_or(0, |i| i.iter().filter(|d| is_ready(d, each)).count());
            Ok(ready as u64 == count)
        })
        .await
    }

    async fn until_gone(&mut self) -> anyhow::Result<()> {
        self.until("pods to go", async |b| {
            let found = b.get("/api/v1/namespaces/default/pods?limit=1").await?;
            Ok(found["items"].as_array().is_none_or(Vec::is_empty))
        })
        .await
    }
}

async fn futures_ordered<F: Future<Output = anyhow::Result<()>>>(all: Vec<F>) -> anyhow::Result<()> {
    orlop_base::join_all(all).await.into_iter().collect()
}

fn is_ready(deployment: &Value, replicas: u64) -> bool {
    deployment["status"]["availableReplicas"].as_u64().unwrap_or(0) == replicas
}

fn deployment(name: &str, replicas: u64) -> Value {
    let labels = json!({"app": name});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": {"bench": name}},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [
                {"name": "c", "image": "nginx", "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}},
            ]}},
        },
    })
}

/// A table, and what each step wrote.
pub(crate) fn print(steps: &[Step], details: bool) {
    println!(
        "{:<28} {:>9} {:>9} {:>9} {:>11}",
        "", "seconds", "pods/s", "cpu s", "writes/pod"
    );
    for step in steps {
        let (seconds, writes) = (step.took.as_secs_f64(), step.writes.values().sum::<u64>());
        let per = |n: f64| {
            if step.pods == 0 {
                "–".to_string()
            } else {
                format!("{n:.1}")
            }
        };
        println!(
            "{:<28} {seconds:>9.2} {:>9} {:>9.2} {:>11}",
            step.name,
            per(step.pods as f64 / seconds),
            step.cpu.as_secs_f64(),
            per(writes as f64 / step.pods as f64)
        );
        if details {
            step.writes
                .iter()
                .for_each(|(what, count)| println!("    {count:>7} {what}"));
        }
    }
}

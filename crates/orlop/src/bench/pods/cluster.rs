//! A cluster of the bench's own with one real node, and its pods.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use orlop_base::clock::monotonic;
use serde_json::{Value, json};

use super::{COMMAND, Setting};
use crate::bench::client::{Http2, Target};
use crate::bench::own_server::{OwnServer, Part};
use crate::bench::process::{self, Usage};

const NODE: &str = "bench";
const PODS: &str = "/api/v1/namespaces/default/pods";
/// Pods of the node beside those that are measured: the control plane is shown as some.
const OTHER_PODS: usize = 20;
const PATIENCE: Duration = Duration::from_secs(300);

/// `orlop up` with one node. When the value goes, so does all that it made on the machine.
pub(super) struct Cluster {
    server: OwnServer,
    /// Its control groups, if the node does not choose its own.
    group: String,
}

impl Cluster {
    /// `number` tells clusters apart that run at the same time.
    pub(super) fn start(runtime: &str, number: usize, setting: &Setting, files: &Path) -> anyhow::Result<Cluster> {
        let group = format!("orlop-bench-{number}");
        // No port is a fixed one, and nothing is shared with a cluster that runs here already: it would take what it finds
        // for remains, and end it.
        let config = json!({"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "failSwapOn": false, "healthzPort": 0, "maxPods": setting.pods + OTHER_PODS,
            "cgroupRoot": format!("/{group}"), "podLogsDir": files.join(format!("pod-logs-{number}")),
            "clusterDomain": "cluster.local", "clusterDNS": ["10.96.0.10"]});
        let file = files.join(format!("kubelet-{number}.yaml"));
        std::fs::write(&file, config.to_string())?;
        let server = OwnServer::start(Part::Node(vec![
            format!("--node-name={NODE}"),
            format!("--runtime={runtime}"),
            format!("--kubelet-config={}", file.display()),
            format!("--cni-conf-dir={}", setting.cni_conf_dir.display()),
            format!("--pod-cidr=10.244.{number}.0/24"),
        ]))?;
        Ok(Cluster { server, group })
    }

    pub(super) fn data_dir(&self) -> &Path {
        self.server.dir()
    }

    pub(super) async fn connect(&self, image: &str) -> anyhow::Result<Pods> {
        let api = Target::from_kubeconfig(&self.server.kubeconfig())?
            .connect_http2()
            .await?;
        let pods = Pods {
            api,
            pid: self.server.pid(),
            image: image.to_string(),
        };
        let ready = pods.node_is_ready().await;
        ready.with_context(|| format!("the end of its log:\n{}", self.server.log_tail()))?;
        Ok(pods)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let Ok(orlop) = std::env::current_exe() else { return };
        let purged = Command::new(orlop)
            .args(["down", "--purge", "--force", "--grace-period=1", "--data-dir"])
            .arg(self.server.dir())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if !purged.is_ok_and(|status| status.success()) {
            eprintln!(
                "· something of the cluster in {} may be left",
                self.server.dir().display()
            );
        }
        remove_groups(&self.group);
    }
}

/// Takes away the node's control groups, on cgroup v1 and v2. What is in use stays.
fn remove_groups(group: &str) {
    let trees = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
    let trees = trees.map(|tree| tree.path()).chain([PathBuf::from("/sys/fs/cgroup")]);
    for tree in trees {
        for below in ["kubepods/burstable", "kubepods/besteffort", "kubepods", ""] {
            let _ = std::fs::remove_dir(tree.join(group).join(below));
        }
    }
}

/// The pods of a cluster, through its API.
pub(super) struct Pods {
    api: Http2,
    /// Of the whole cluster: API server, controllers and node agent are one process.
    pid: u32,
    image: String,
}

impl Pods {
    pub(super) async fn create(&self, name: &str) -> anyhow::Result<()> {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            // Where it runs is clear: the scheduler's time is not measured here. With a time to end in, a pod is there
            // until the agent has cleaned up after it.
            "nodeName": NODE, "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": self.image, "imagePullPolicy": "IfNotPresent",
                "command": COMMAND}],
        }});
        self.call(Method::POST, PODS, pod.to_string().into()).await.map(drop)
    }

    async fn call(&self, method: Method, path: &str, body: Bytes) -> anyhow::Result<Value> {
        let (code, answer) = self.api.call(method, path, body).await?;
        if code >= 300 {
            bail!("{path}: {code}: {}", String::from_utf8_lossy(&answer));
        }
        Ok(serde_json::from_slice(&answer)?)
    }

    async fn count(&self) -> anyhow::Result<usize> {
        let found = self.call(Method::GET, PODS, Bytes::new()).await?;
        Ok(found["items"].as_array().map_or(0, Vec::len))
    }

    /// A watch of the pods that run: asking again and again would be a load of its own.
    pub(super) async fn running(&self) -> anyhow::Result<Incoming> {
        let path = format!("{PODS}?watch=true&fieldSelector=status.phase=Running");
        let (code, body) = self.api.send(Method::GET, &path, Bytes::new()).await?;
        if code != 200 {
            bail!("the watch of pods was refused: {code}");
        }
        Ok(body)
    }

    pub(super) async fn until_running(&self, mut running: Incoming, count: usize) -> anyhow::Result<()> {
        let (started, mut seen, mut rest) = (monotonic(), 0, Vec::new());
        while seen < count {
            let left = PATIENCE.saturating_sub(started.elapsed());
            let frame = tokio::time::timeout(left, running.frame()).await;
            let frame = frame.with_context(|| format!("waited {} s for pods to run", PATIENCE.as_secs()))?;
            let frame = frame.context("the watch of pods ended")??;
            rest.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                seen += usize::from(line.starts_with(br#"{"type":"ADDED""#));
            }
        }
        Ok(())
    }

    pub(super) async fn delete_all(&self) -> anyhow::Result<()> {
        self.call(Method::DELETE, PODS, Bytes::new()).await?;
        let look = Duration::from_millis(20);
        until("pods to go", look, async || Ok(self.count().await? == 0)).await
    }

    async fn node_is_ready(&self) -> anyhow::Result<()> {
        let path = format!("/api/v1/nodes/{NODE}");
        until("the node to be ready", Duration::from_millis(50), async || {
            let (code, body) = self.api.call(Method::GET, &path, Bytes::new()).await?;
            let node: Value = serde_json::from_slice(&body)?;
            let conditions = node["status"]["conditions"].as_array();
            let is_ready = |c: &Value| c["type"] == "Ready" && c["status"] == "True";
            Ok(code == 200 && conditions.is_some_and(|all| all.iter().any(is_ready)))
        })
        .await
    }

    /// What the cluster takes now.
    pub(super) fn usage(&self) -> anyhow::Result<Usage> {
        process::usage(self.pid).context("the cluster ended by itself")
    }
}

async fn until(what: &str, look: Duration, mut done: impl AsyncFnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let started = monotonic();
    while !done().await? {
        if started.elapsed() > PATIENCE {
            bail!("waited {} s for {what}", PATIENCE.as_secs());
        }
        tokio::time::sleep(look).await;
    }
    Ok(())
}

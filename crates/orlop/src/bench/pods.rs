//! `orlop bench pods`: what the node agent adds to the time its container runtime takes. A control plane and an agent of
//! the bench's own start pods on a real runtime, alone and many at once, after the same calls were made without them.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use orlop_base::clock::monotonic;
use orlop_runtime::Runtime;
use orlop_runtime::cri::CriRuntime;
use orlop_runtime::cri::messages::*;
use serde_json::{Value, json};

use super::client::{Http2, Target};
use super::process;

const NODE: &str = "bench";
/// Where the agent has its control groups: in those of a node that runs here already it would take what it finds for
/// remains, and end it.
const GROUP: &str = "orlop-bench";
const PODS: &str = "/api/v1/namespaces/default/pods";
const COMMAND: [&str; 2] = ["sleep", "1000000"];
/// Pods that are started one after the other, of which the middle one is told.
const ALONE: usize = 11;
/// The kernel takes network namespaces apart after they are gone for everybody else, and holds up new ones meanwhile.
const SETTLE: Duration = Duration::from_secs(1);
/// How long the agent is looked at while it has nothing to do.
const IDLE: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(300);

/// What a bench of pods is made with.
pub(crate) struct Setting<'a> {
    pub endpoint: &'a str,
    /// Where the runtime looks for the configuration of pod networks.
    pub cni_conf_dir: &'a Path,
    pub image: &'a str,
    pub pods: usize,
}

/// The same thing by the bare calls and by the agent.
pub(crate) struct Pair {
    what: String,
    bare: Duration,
    agent: Duration,
}

/// What the agent takes while all pods run and nothing happens.
pub(crate) struct Idle {
    resident: u64,
    core: f64,
}

pub(crate) struct Bench<'a> {
    setting: Setting<'a>,
    /// What bare containers have mounted, and their logs.
    files: PathBuf,
    runtime: CriRuntime,
    api: Http2,
    agent: Agent,
}

impl<'a> Bench<'a> {
    pub(crate) async fn prepare(setting: Setting<'a>, kubeconfig: &Path, root: &Path) -> anyhow::Result<Bench<'a>> {
        let runtime = CriRuntime::connect(setting.endpoint)?;
        let image = ImageSpec {
            image: setting.image.to_string(),
            ..ImageSpec::default()
        };
        if runtime.image_status(&image).await?.is_none() {
            bail!(
                "the runtime has no image {}: pull or import it first, or name another one with --image",
                setting.image
            );
        }
        let api = Target::from_kubeconfig(kubeconfig)?.connect_http2().await?;
        let agent = Agent::start(&setting, kubeconfig, root)?;
        let files = root.join("bare");
        std::fs::create_dir_all(files.join("token"))?;
        for name in ["hosts", "termination-log"] {
            std::fs::write(files.join(name), "")?;
        }
        let mut bench = Bench {
            setting,
            files,
            runtime,
            api,
            agent,
        };
        bench.node_is_ready().await?;
        Ok(bench)
    }

    pub(crate) async fn run(&mut self) -> anyhow::Result<(Vec<Pair>, Idle)> {
        let alone = self.one_after_the_other().await?;
        let together = self.all_at_once().await?;
        eprintln!("· idle with {} pods", self.setting.pods);
        let idle = self.idle().await?;
        self.delete_all().await?;
        Ok((vec![alone, together], idle))
    }

    /// In turns, so that both meet the same machine.
    async fn one_after_the_other(&mut self) -> anyhow::Result<Pair> {
        eprintln!("· {ALONE} pods one after the other");
        let (mut bare, mut agent) = (vec![], vec![]);
        for number in 0..ALONE {
            tokio::time::sleep(SETTLE).await;
            let started = monotonic();
            let sandbox = self.start_bare(&format!("bare-{number}")).await?;
            bare.push(started.elapsed());
            self.remove_bare(&sandbox).await?;
            let running = self.running().await?;
            tokio::time::sleep(SETTLE).await;
            let started = monotonic();
            self.create(&format!("pod-{number}")).await?;
            self.until_running(running, 1).await?;
            agent.push(started.elapsed());
            self.delete_all().await?;
        }
        Ok(Pair {
            what: "one pod (the middle one)".into(),
            bare: middle(bare),
            agent: middle(agent),
        })
    }

    async fn all_at_once(&mut self) -> anyhow::Result<Pair> {
        let count = self.setting.pods;
        eprintln!("· {count} pods at once, by the bare calls");
        let started = monotonic();
        let names: Vec<String> = (0..count).map(|number| format!("bare-{number}")).collect();
        let made = orlop_base::join_all(names.iter().map(|name| self.start_bare(name))).await;
        let bare = started.elapsed();
        let (sandboxes, failed): (Vec<_>, Vec<_>) = made.into_iter().partition(Result::is_ok);
        let sandboxes: Vec<String> = sandboxes.into_iter().flatten().collect();
        let gone = orlop_base::join_all(sandboxes.iter().map(|id| self.remove_bare(id))).await;
        failed
            .into_iter()
            .map(|f| f.map(drop))
            .chain(gone)
            .collect::<anyhow::Result<()>>()?;
        eprintln!("· {count} pods at once, by the agent");
        let running = self.running().await?;
        let started = monotonic();
        let names: Vec<String> = (0..count).map(|number| format!("many-{number}")).collect();
        let made = orlop_base::join_all(names.iter().map(|name| self.create(name))).await;
        made.into_iter().collect::<anyhow::Result<()>>()?;
        self.until_running(running, count).await?;
        Ok(Pair {
            what: format!("{count} pods at once, all running"),
            bare,
            agent: started.elapsed(),
        })
    }

    /// What the agent asks of the runtime to start a pod, and nothing else.
    async fn start_bare(&self, name: &str) -> anyhow::Result<String> {
        let (config, container) = bare(name, self.setting.image, &self.files);
        std::fs::create_dir_all(&config.log_directory)?;
        let sandbox = self.runtime.run_pod_sandbox(config.clone(), "").await?;
        let id = self.runtime.create_container(&sandbox, container, config).await?;
        self.runtime.start_container(&id).await?;
        Ok(sandbox)
    }

    async fn remove_bare(&self, sandbox: &str) -> anyhow::Result<()> {
        self.runtime.stop_pod_sandbox(sandbox).await?;
        Ok(self.runtime.remove_pod_sandbox(sandbox).await?)
    }

    async fn create(&self, name: &str) -> anyhow::Result<()> {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            // Where it runs is clear: the scheduler's time is not measured here. With a time to end in, a pod is there
            // until the agent has cleaned up after it.
            "nodeName": NODE, "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": self.setting.image, "imagePullPolicy": "IfNotPresent",
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

    async fn count(&self, query: &str) -> anyhow::Result<usize> {
        let found = self.call(Method::GET, &format!("{PODS}{query}"), Bytes::new()).await?;
        Ok(found["items"].as_array().map_or(0, Vec::len))
    }

    /// A watch of the pods that run: asking again and again would be a load of its own.
    async fn running(&self) -> anyhow::Result<Incoming> {
        let path = format!("{PODS}?watch=true&fieldSelector=status.phase=Running");
        let (code, body) = self.api.send(Method::GET, &path, Bytes::new()).await?;
        if code != 200 {
            bail!("the watch of pods was refused: {code}");
        }
        Ok(body)
    }

    async fn until_running(&mut self, mut running: Incoming, count: usize) -> anyhow::Result<()> {
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

    async fn delete_all(&mut self) -> anyhow::Result<()> {
        self.call(Method::DELETE, PODS, Bytes::new()).await?;
        self.until("pods to go", Duration::from_millis(20), async |b| {
            Ok(b.count("").await? == 0)
        })
        .await
    }

    async fn node_is_ready(&mut self) -> anyhow::Result<()> {
        let path = format!("/api/v1/nodes/{NODE}");
        self.until("the node to be ready", Duration::from_millis(50), async |b| {
            let (code, body) = b.api.call(Method::GET, &path, Bytes::new()).await?;
            let node: Value = serde_json::from_slice(&body)?;
            let conditions = node["status"]["conditions"].as_array();
            let is_ready = |c: &Value| c["type"] == "Ready" && c["status"] == "True";
            Ok(code == 200 && conditions.is_some_and(|all| all.iter().any(is_ready)))
        })
        .await
    }

    async fn until(
        &mut self,
        what: &str,
        look: Duration,
        mut done: impl AsyncFnMut(&mut Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let started = monotonic();
        while !done(self).await? {
            if let Some(status) = self.agent.child.try_wait()? {
                bail!("the agent ended by itself: {status}");
            }
            if started.elapsed() > PATIENCE {
                bail!("waited {} s for {what}", PATIENCE.as_secs());
            }
            tokio::time::sleep(look).await;
        }
        Ok(())
    }

    async fn idle(&self) -> anyhow::Result<Idle> {
        // What follows from the start of so many is not idleness.
        tokio::time::sleep(Duration::from_secs(5)).await;
        let usage = || process::usage(self.agent.child.id()).context("the agent ended");
        let before = usage()?;
        tokio::time::sleep(IDLE).await;
        let after = usage()?;
        Ok(Idle {
            resident: after.resident,
            core: after.cpu.saturating_sub(before.cpu).as_secs_f64() / IDLE.as_secs_f64(),
        })
    }
}

/// What a pod is to the runtime: logs, name servers and mounts as the agent asks for them. The files are the same for all
/// pods.
fn bare(name: &str, image: &str, files: &Path) -> (PodSandboxConfig, ContainerConfig) {
    let host = |file: &str| files.join(file).display().to_string();
    let mount = |path: &str, file: &str, readonly| Mount {
        container_path: path.to_string(),
        host_path: host(file),
        readonly,
        ..Mount::default()
    };
    let sandbox = PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: name.to_string(),
            uid: format!("{name}-{}", std::process::id()),
            namespace: "orlop-bench".into(),
            attempt: 0,
        }),
        hostname: name.to_string(),
        log_directory: host(name),
        dns_config: Some(DNSConfig {
            servers: vec!["10.96.0.10".into()],
            searches: vec!["default.svc.cluster.local".into()],
            options: vec!["ndots:5".into()],
        }),
        linux: Some(LinuxPodSandboxConfig {
            security_context: Some(LinuxSandboxSecurityContext {
                // The runtime's default: its filter takes time to make.
                seccomp: Some(SecurityProfile::default()),
                ..LinuxSandboxSecurityContext::default()
            }),
            ..LinuxPodSandboxConfig::default()
        }),
        ..PodSandboxConfig::default()
    };
    let container = ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: "main".into(),
            attempt: 0,
        }),
        image: Some(ImageSpec {
            image: image.to_string(),
            ..ImageSpec::default()
        }),
        command: COMMAND.map(str::to_string).to_vec(),
        log_path: "main.log".into(),
        mounts: vec![
            mount("/var/run/secrets/kubernetes.io/serviceaccount", "token", true),
            mount("/etc/hosts", "hosts", false),
            mount("/dev/termination-log", "termination-log", false),
        ],
        linux: Some(LinuxContainerConfig {
            resources: Some(LinuxContainerResources {
                cpu_shares: 2,
                oom_score_adj: 1000,
                ..LinuxContainerResources::default()
            }),
            ..LinuxContainerConfig::default()
        }),
        ..ContainerConfig::default()
    };
    (sandbox, container)
}

/// The agent under way; it goes with the value.
struct Agent {
    child: Child,
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        remove_groups();
    }
}

/// Takes away the agent's control groups, on cgroup v1 and v2. What is in use stays.
fn remove_groups() {
    let trees = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
    let trees = trees.map(|tree| tree.path()).chain([PathBuf::from("/sys/fs/cgroup")]);
    for tree in trees {
        for group in ["kubepods/burstable", "kubepods/besteffort", "kubepods", ""] {
            let _ = std::fs::remove_dir(tree.join(GROUP).join(group));
        }
    }
}

impl Agent {
    fn start(setting: &Setting, kubeconfig: &Path, root: &Path) -> anyhow::Result<Agent> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let config = root.join("kubelet.yaml");
        let text = json!({"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "failSwapOn": false, "port": port, "healthzPort": 0, "maxPods": setting.pods,
            "cgroupRoot": format!("/{GROUP}"), "podLogsDir": root.join("pod-logs"),
            "containerRuntimeEndpoint": setting.endpoint});
        std::fs::write(&config, text.to_string())?;
        let log = std::fs::File::create(root.join("kubelet.log"))?;
        let child = Command::new(std::env::current_exe()?)
            .arg("kubelet")
            .arg(format!("--config={}", config.display()))
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--root-dir={}", root.join("kubelet").display()))
            .arg(format!("--cni-conf-dir={}", setting.cni_conf_dir.display()))
            .args([format!("--hostname-override={NODE}"), "--pod-cidr=10.244.0.0/24".into()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("failed to start the kubelet")?;
        Ok(Agent { child })
    }
}

fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

pub(crate) fn print(pairs: &[Pair], idle: &Idle) {
    println!("{:<32} {:>12} {:>12} {:>8}", "", "bare calls", "agent", "ratio");
    for pair in pairs {
        let (bare, agent) = (pair.bare.as_secs_f64() * 1e3, pair.agent.as_secs_f64() * 1e3);
        println!("{:<32} {bare:>9.0} ms {agent:>9.0} ms {:>8.2}", pair.what, agent / bare);
    }
    println!(
        "\nthe agent, idle: {:.1} MB resident, {:.1} % of a core",
        idle.resident as f64 / 1e6,
        idle.core * 100.0
    );
}

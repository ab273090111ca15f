//! A cluster of our own to measure, in a temporary directory.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use http::Method;
use orlop_base::clock::monotonic;

use super::client::Target;
use super::process;

/// Gone, with its directory, when this value goes.
pub(crate) struct OwnServer {
    child: Child,
    dir: PathBuf,
    /// From the start of the process to a ready API.
    pub ready: Duration,
    pub idle_mb: f64,
}

/// What of a cluster is started.
pub(crate) enum Part {
    /// `orlop up` for nodes that are objects only: nobody minds that they give no sign of life.
    Scheduling,
    /// `orlop up` with this machine as a node, and these flags for it. There are no services, whose rules are the
    /// machine's.
    Node(Vec<String>),
    /// `orlop up` with this many simulated nodes.
    Simulated(usize),
    /// `orlop apiserver`: nobody acts on what is created.
    ApiServer,
}

impl Part {
    fn arguments(self) -> Vec<String> {
        let any = ["up", "--port=0", "--no-kubeconfig"].map(str::to_string).into_iter();
        let up = any.clone().chain(["--bind=127.0.0.1", "--nodes=0"].map(str::to_string));
        match self {
            Part::Scheduling => up
                .chain(["--controllers=*,-node-lifecycle-controller".to_string()])
                .collect(),
            Part::Node(flags) => {
                let own = ["--nodes=1", "--no-proxy", "--no-dns", "--kubelet-port=0"].map(str::to_string);
                let ports = ["--scheduler-port=0", "--controller-manager-port=0"].map(str::to_string);
                any.chain(own).chain(ports).chain(flags).collect()
            }
            Part::Simulated(nodes) => up.chain([format!("--simulate={nodes}")]).collect(),
            Part::ApiServer => ["apiserver", "--secure-port=0", "--bind-address=127.0.0.1"]
                .map(str::to_string)
                .to_vec(),
        }
    }
}

impl OwnServer {
    pub(crate) fn start(part: Part) -> anyhow::Result<OwnServer> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("orlop-bench-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let log = std::fs::File::create(dir.join("orlop.log"))?;
        let started = monotonic();
        let child = Command::new(std::env::current_exe()?)
            .args(part.arguments())
            .arg("--data-dir")
            .arg(&dir)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("failed to start orlop")?;
        let mut server = OwnServer {
            child,
            dir,
            ready: Duration::ZERO,
            idle_mb: 0.0,
        };
        server.wait_until_ready(started)?;
        std::thread::sleep(Duration::from_millis(500));
        server.idle_mb = server.resident_mb();
        Ok(server)
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    /// Where a bench may leave files that go with the server.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn resident_mb(&self) -> f64 {
        process::usage(self.pid()).map_or(0.0, |usage| usage.resident as f64 / 1e6)
    }

    /// The end of what the server logged, for people who must find out what went wrong.
    pub(crate) fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.dir.join("orlop.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }

    fn wait_until_ready(&mut self, started: Instant) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        while started.elapsed() < Duration::from_secs(30) {
            if let Some(status) = self.child.try_wait()? {
                bail!("orlop ended early: {status}\n{}", self.log_tail());
            }
            let ready = async {
                let mut connection = Target::from_kubeconfig(&self.kubeconfig())?.connect().await?;
                connection.expect(Method::GET, "/readyz", Bytes::new()).await
            };
            if self.kubeconfig().exists() && runtime.block_on(ready).is_ok() {
                self.ready = started.elapsed();
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        bail!("orlop up was not ready within 30 seconds\n{}", self.log_tail())
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(self.child.id() as i32),
            nix::sys::signal::Signal::SIGTERM,
        );
        let asked = monotonic();
        while matches!(self.child.try_wait(), Ok(None)) {
            if asked.elapsed() > Duration::from_secs(10) {
                let _ = self.child.kill();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

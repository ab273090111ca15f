//! `orlop bench`: measure an API server, a running one or one started for the purpose.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use http::Method;

use crate::bench::client::Target;
use crate::bench::{measure, workloads};

#[derive(clap::Args)]
pub struct Args {
    /// Measure the server of this kubeconfig; without it, one is started in a temporary directory
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// How many pods to create
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// How many watchers to serve at once
    #[arg(long, default_value_t = 1_000)]
    watchers: usize,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let own = match &args.kubeconfig {
        Some(_) => None,
        None => Some(OwnServer::start()?),
    };
    let kubeconfig = args
        .kubeconfig
        .clone()
        .unwrap_or_else(|| own.as_ref().expect("started above").kubeconfig());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let figures = runtime.block_on(measure_all(&args, &kubeconfig, own.as_ref()))?;
    if args.json {
        println!("{:#}", measure::to_json(&figures));
    } else {
        measure::print_table(&figures);
        if let Some(own) = &own {
            println!(
                "\nexec to /readyz: {} ms; resident: {:.1} MB idle, {:.1} MB at the end",
                own.ready.as_millis(),
                own.idle_mb,
                own.resident_mb()
            );
        }
    }
    Ok(())
}

async fn measure_all(args: &Args, kubeconfig: &Path, own: Option<&OwnServer>) -> anyhow::Result<Vec<measure::Figures>> {
    let target = Target::from_kubeconfig(kubeconfig)?;
    let say = |what: &str| eprintln!("· {what}");
    workloads::prepare(&target).await?;
    let mut figures = vec![];
    let alone = (args.pods / 10).max(1);
    say("creates, one client");
    figures.push(workloads::creates(&target, 1, alone, "one").await?);
    say("creates, 64 clients");
    figures.push(workloads::creates(&target, 64, args.pods - alone.min(args.pods), "many").await?);
    if let Some(own) = own {
        eprintln!("· resident with {} pods: {:.1} MB", args.pods, own.resident_mb());
    }
    say("gets");
    figures.push(workloads::gets(&target, 1, 5_000, "one", alone).await?);
    figures.push(workloads::gets(&target, 64, 50_000, "one", alone).await?);
    say("lists");
    figures.push(workloads::lists(&target, 10).await?);
    say("watch fan-out");
    figures.push(workloads::fan_out(&target, args.watchers, 50).await?);
    say("cleaning up");
    workloads::clean_up(&target).await?;
    Ok(figures)
}

/// A server of our own, gone with this value.
struct OwnServer {
    child: Child,
    dir: PathBuf,
    ready: Duration,
    idle_mb: f64,
}

impl OwnServer {
    fn start() -> anyhow::Result<OwnServer> {
        let dir = std::env::temp_dir().join(format!("orlop-bench-{}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let started = Instant::now();
        let child = Command::new(std::env::current_exe()?)
            .args(["up", "--port", "0", "--data-dir"])
            .arg(&dir)
            .stdout(std::process::Stdio::null())
            .spawn()
            .context("orlop can't be started")?;
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

    fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    fn wait_until_ready(&mut self, started: Instant) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        while started.elapsed() < Duration::from_secs(30) {
            if let Some(status) = self.child.try_wait()? {
                bail!("orlop up ended early: {status}");
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
        bail!("orlop up was not ready within 30 seconds")
    }

    fn resident_mb(&self) -> f64 {
        let path = format!("/proc/{}/statm", self.child.id());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let pages: f64 = text
            .split_whitespace()
            .nth(1)
            .and_then(|p| p.parse().ok())
            .unwrap_or(0.0);
        pages * 4096.0 / 1e6
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(self.child.id() as i32),
            nix::sys::signal::Signal::SIGTERM,
        );
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

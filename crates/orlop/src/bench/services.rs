//! `orlop bench services`: what a proxy takes to bring many services about, and one endpoint that changes; ours, and
//! kube-proxy where it is in PATH, one after the other in a network namespace of the bench's own.
//!
//! Both say themselves how long their syncs took (`kubeproxy_sync_proxy_rules_duration_seconds`): how long they wait before
//! one is not counted.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use http::Method;
use nix::sched::{CloneFlags, unshare};
use orlop_base::clock::monotonic;
use serde_json::json;

use super::client::{Http2, Target};
use super::process;

const METRICS: &str = "127.0.0.1:10249";
const ENDPOINTS: u32 = 5;
/// Addresses that a service's last endpoint may have.
const SPARE: u32 = 12;
/// Requests under way at the same time while services are made.
const AT_ONCE: usize = 64;
/// Changes of one endpoint, of which the middle one is told.
const CHANGES: u32 = 7;
/// kube-proxy waits a second after a sync; the next change must not fall into that.
const APART: Duration = Duration::from_millis(1500);
const PATIENCE: Duration = Duration::from_secs(600);

/// What is measured of one program in one mode.
pub(crate) struct Row {
    pub program: &'static str,
    pub mode: String,
    pub outcome: anyhow::Result<Figures>,
}

pub(crate) struct Figures {
    pub first: Duration,
    pub change: Duration,
    pub resident: u64,
}

/// A network of our own. To be called before there are other threads.
pub(crate) fn enter_private_network() -> anyhow::Result<()> {
    unshare(CloneFlags::CLONE_NEWNET).context("a network namespace needs root")?;
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
    let up = up.context("failed to run ip")?;
    if !up.success() {
        bail!("failed to bring up the loopback interface");
    }
    Ok(())
}

pub(crate) struct Bench<'a> {
    kubeconfig: &'a Path,
    api: Http2,
    services: u32,
    /// Changes so far: what is written must differ from what an earlier proxy has left.
    changes: Cell<u32>,
}

impl Bench<'_> {
    /// Makes the services, without a proxy yet.
    pub(crate) async fn prepare(kubeconfig: &Path, services: u32) -> anyhow::Result<Bench<'_>> {
        let api = Target::from_kubeconfig(kubeconfig)?.connect_http2().await?;
        let bench = Bench {
            kubeconfig,
            api,
            services,
            changes: Cell::new(0),
        };
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "bench"},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.168.0.1"}]}});
        bench.write(Method::POST, "/api/v1/nodes", &node).await?;
        stream::iter(0..services)
            .map(Ok)
            .try_for_each_concurrent(AT_ONCE, |number| bench.make(number))
            .await?;
        Ok(bench)
    }

    async fn make(&self, number: u32) -> anyhow::Result<()> {
        let name = format!("service-{number}");
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
            "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}]}});
        self.write(Method::POST, "/api/v1/namespaces/default/services", &service)
            .await?;
        let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
        self.write(Method::POST, path, &slice(number, 0)).await
    }

    async fn write(&self, method: Method, path: &str, object: &serde_json::Value) -> anyhow::Result<()> {
        let (code, body) = self.api.call(method, path, Bytes::from(object.to_string())).await?;
        if code >= 300 {
            bail!("{path}: {code}: {}", String::from_utf8_lossy(&body));
        }
        Ok(())
    }

    pub(crate) async fn measure(&self, program: &'static str, mode: &str) -> Row {
        let outcome = self.measured(program, mode).await;
        let mode = mode.to_string();
        clean_up();
        Row { program, mode, outcome }
    }

    async fn measured(&self, program: &str, mode: &str) -> anyhow::Result<Figures> {
        let proxy = Proxy::start(program, mode, self.kubeconfig)?;
        let first = proxy.until_synced(1).await?;
        // Whatever else it does at the start is over when it has nothing to do for a while.
        let mut before = proxy.settled().await?;
        let mut changes = vec![];
        for change in 0..CHANGES {
            let number = (u64::from(change) * 7919 % u64::from(self.services)) as u32;
            let path = format!("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/service-{number}");
            self.changes.set(self.changes.get() + 1);
            self.write(Method::PUT, &path, &slice(number, self.changes.get()))
                .await?;
            let after = proxy.until_synced(before.count + 1).await?;
            changes.push(after.took.saturating_sub(before.took));
            before = proxy.settled().await?;
        }
        changes.sort();
        Ok(Figures {
            first: first.took,
            change: changes[changes.len() / 2],
            resident: process::usage(proxy.child.id()).map_or(0, |usage| usage.resident),
        })
    }
}

/// The endpoints of the n-th service; each generation has another last one.
fn slice(number: u32, generation: u32) -> serde_json::Value {
    let endpoint = |place: u32| {
        let place = if place == ENDPOINTS - 1 {
            place + generation % SPARE
        } else {
            place
        };
        let ip = std::net::Ipv4Addr::from(0x0a80_0001 + number * 16 + place);
        json!({"addresses": [ip.to_string()], "conditions": {"ready": true}, "nodeName": "elsewhere"})
    };
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": format!("service-{number}"),
            "labels": {"kubernetes.io/service-name": format!("service-{number}")}},
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": (0..ENDPOINTS).map(endpoint).collect::<Vec<_>>()})
}

/// A proxy under way; it goes with the value.
struct Proxy {
    child: Child,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Syncs so far, and how long they took together.
#[derive(Clone, Copy, Debug)]
struct Syncs {
    count: u64,
    took: Duration,
}

impl Proxy {
    fn start(program: &str, mode: &str, kubeconfig: &Path) -> anyhow::Result<Proxy> {
        let mut command = match program {
            "orlop" => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("proxy");
                command
            }
            other => Command::new(other),
        };
        let child = command
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--proxy-mode={mode}"))
            .args([
                "--hostname-override=bench",
                "--bind-address=192.168.0.1",
                "--conntrack-max-per-core=0",
            ])
            .args(["--iptables-sync-period=15m", "--healthz-bind-address=127.0.0.1:10256"])
            .arg(format!("--metrics-bind-address={METRICS}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("failed to start {program}"))?;
        Ok(Proxy { child })
    }

    async fn until_synced(&self, count: u64) -> anyhow::Result<Syncs> {
        let begun = monotonic();
        while begun.elapsed() < PATIENCE {
            if let Some(syncs) = syncs().filter(|syncs| syncs.count >= count) {
                return Ok(syncs);
            }
            if process::usage(self.child.id()).is_none_or(|usage| usage.resident == 0) {
                bail!("it ended by itself");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        bail!("nothing was synced within {} s", PATIENCE.as_secs())
    }

    /// No sync for a while.
    async fn settled(&self) -> anyhow::Result<Syncs> {
        let mut before = self.until_synced(1).await?;
        loop {
            tokio::time::sleep(APART).await;
            let now = self.until_synced(1).await?;
            if now.count == before.count {
                return Ok(now);
            }
            before = now;
        }
    }
}

/// What the proxy's metrics say of IPv4.
fn syncs() -> Option<Syncs> {
    let mut stream = TcpStream::connect(METRICS).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    stream
        .write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
        .ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let value = |name: &str| -> Option<f64> {
        let name = format!("kubeproxy_sync_proxy_rules_duration_seconds_{name}{{ip_family=\"IPv4\"}} ");
        text.lines()
            .find_map(|line| line.strip_prefix(&name))?
            .trim()
            .parse()
            .ok()
    };
    Some(Syncs {
        count: value("count")? as u64,
        took: Duration::from_secs_f64(value("sum")?),
    })
}

fn clean_up() {
    if let Ok(own) = std::env::current_exe() {
        let _ = Command::new(own)
            .args(["proxy", "--cleanup"])
            .stderr(Stdio::null())
            .status();
    }
}

/// kube-proxy is measured where it is.
pub(crate) fn is_in_path(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|directory| directory.join(program).is_file())
}

pub(crate) fn print(services: u32, rows: &[Row]) {
    println!("{services} services of {ENDPOINTS} endpoints");
    println!(
        "{:<12} {:<10} {:>12} {:>14} {:>10}",
        "proxy", "mode", "first sync", "one endpoint", "resident"
    );
    for row in rows {
        match &row.outcome {
            Err(why) => println!("{:<12} {:<10} not measured: {why:#}", row.program, row.mode),
            Ok(figures) => println!(
                "{:<12} {:<10} {:>9.0} ms {:>11.2} ms {:>7.1} MB",
                row.program,
                row.mode,
                figures.first.as_secs_f64() * 1e3,
                figures.change.as_secs_f64() * 1e3,
                figures.resident as f64 / 1e6
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_differ_in_one_endpoint() {
        let addresses = |generation| {
            let slice = slice(3, generation);
            let endpoints = slice["endpoints"].as_array().unwrap().clone();
            endpoints
                .into_iter()
                .map(|e| e["addresses"][0].to_string())
                .collect::<Vec<_>>()
        };
        let (before, after) = (addresses(0), addresses(1));
        assert_eq!(before.len(), ENDPOINTS as usize);
        assert_eq!(before.iter().filter(|a| !after.contains(a)).count(), 1);
    }
}

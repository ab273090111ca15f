//! What a service manager (systemd, `Type=notify`) is told: that the cluster serves, how it is, that it still lives, and that it
//! stops. Upstream: sd_notify(3).

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use orlop_apiserver::health;

use crate::output::counted;
use crate::status::{Report, Source};

/// How often the status line is looked at.
const LOOK: Duration = Duration::from_secs(2);

/// Where a service manager listens.
pub(crate) struct ServiceManager {
    socket: UnixDatagram,
    address: SocketAddr,
    /// How often it wants to hear that the process lives.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// The one that started this process, if it wants to be told anything.
    pub(crate) fn of_environment() -> Option<ServiceManager> {
        let path = std::env::var("NOTIFY_SOCKET").ok().filter(|path| !path.is_empty())?;
        let pid = std::env::var("WATCHDOG_PID").ok();
        let is_ours = pid.is_none_or(|pid| pid == std::process::id().to_string());
        let micros = std::env::var("WATCHDOG_USEC").ok().filter(|_| is_ours);
        let micros = micros.and_then(|text| text.parse().ok()).filter(|micros| *micros > 0);
        let found = address(&path).and_then(|address| {
            Ok(ServiceManager {
                socket: UnixDatagram::unbound()?,
                address,
                // Half of it, as sd_watchdog_enabled(3) advises.
                watchdog: micros.map(|micros: u64| Duration::from_micros(micros / 2)),
            })
        });
        found
            .inspect_err(|err| tracing::warn!(path, %err, "failed to reach the service manager"))
            .ok()
    }

    fn tell(&self, state: &str) {
        if let Err(err) = self.socket.send_to_addr(state.as_bytes(), &self.address) {
            tracing::debug!(%err, "failed to notify the service manager");
        }
    }

    /// Tells what there is to tell until the cluster has been asked to stop.
    pub(crate) async fn follow(self, source: Source) {
        let stop = source.stop.shutdown().clone();
        tokio::select! {
            () = stop.wait() => {}
            () = self.report(&source) => {}
            () = self.keep_alive(&source) => {}
        }
        self.tell("STOPPING=1\nSTATUS=Stopping");
    }

    async fn report(&self, source: &Source) {
        let (mut is_ready, mut told) = (false, String::new());
        loop {
            let report = source.report().await;
            let status = format!("STATUS={}", status_line(&report));
            // Not its nodes: one that never becomes Ready is no reason to start all anew.
            let serves = report.failed_checks.is_empty() && report.error.is_none();
            if serves && !is_ready {
                is_ready = true;
                self.tell(&format!("READY=1\n{status}"));
            } else if status != told {
                self.tell(&status);
            }
            told = status;
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Silent while `/livez` fails, so that the service manager starts the process anew.
    async fn keep_alive(&self, source: &Source) {
        let Some(every) = self.watchdog else {
            return std::future::pending().await;
        };
        loop {
            if health::is_live(&source.server) {
                self.tell("WATCHDOG=1");
            }
            tokio::time::sleep(every).await;
        }
    }
}

/// `@name` is an abstract address, anything else a path.
fn address(path: &str) -> io::Result<SocketAddr> {
    match path.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(path),
    }
}

/// What `systemctl status` shows.
fn status_line(report: &Report) -> String {
    let running: usize = report.nodes.iter().map(|node| node.running_pods).sum();
    let serving = format!("Kubernetes {} on {}", report.kubernetes_version, report.url);
    match report.missing() {
        Some(missing) => format!("{serving}; waiting until {missing}"),
        None => {
            let (nodes, pods) = (counted(report.nodes.len(), "node"), counted(running, "pod"));
            format!("{serving}; {nodes}, {pods} running")
        }
    }
    .replace('\n', " ")
}

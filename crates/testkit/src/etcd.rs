//! A cluster of etcd (Debian's etcd-server), and API servers that share it.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::server::{Launch, Server};
use crate::shell;

/// Members on ports of this machine. They go away with the value.
#[derive(Debug)]
pub struct Members {
    dir: TempDir,
    /// Of clients and of peers.
    ports: Vec<(u16, u16)>,
    running: Vec<Option<Child>>,
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("this machine has free ports");
    listener.local_addr().expect("it is bound").port()
}

impl Members {
    pub fn start(count: usize) -> Members {
        shell::require("etcd");
        let mut members = Members {
            dir: tempfile::Builder::new()
                .prefix("orlop-test-etcd-")
                .tempdir()
                .expect("a temporary directory"),
            ports: (0..count).map(|_| (free_port(), free_port())).collect(),
            running: (0..count).map(|_| None).collect(),
        };
        (0..count).for_each(|n| members.run(n));
        members
    }

    /// Starts a member, or starts it again on its data.
    pub fn run(&mut self, n: usize) {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let cluster: Vec<String> = self
            .ports
            .iter()
            .enumerate()
            .map(|(n, (_, peers))| format!("m{n}={}", url(*peers)))
            .collect();
        let (clients, peers) = (url(self.ports[n].0), url(self.ports[n].1));
        let child = Command::new("etcd")
            .arg("--data-dir")
            .arg(self.dir.path().join(n.to_string()))
            .args(["--name", &format!("m{n}"), "--initial-cluster", &cluster.join(",")])
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd was found a moment ago");
        self.running[n] = Some(child);
    }

    /// `kill -9`.
    pub fn kill(&mut self, n: usize) {
        if let Some(mut child) = self.running[n].take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub fn urls(&self) -> String {
        let urls: Vec<String> = self
            .ports
            .iter()
            .map(|(port, _)| format!("http://127.0.0.1:{port}"))
            .collect();
        urls.join(",")
    }

    /// API servers with the same keys, each under an address of its own, and at the same port again after a restart.
    pub fn servers(&self, count: usize) -> Vec<Server> {
        let launch = |n: usize| {
            Launch::apiserver()
                .arg(format!("--secure-port={}", free_port()))
                // In our words, and in kube-apiserver's.
                .arg(match n {
                    0 => format!("--store=etcd:{}", self.urls()),
                    _ => format!("--etcd-servers={}", self.urls()),
                })
                .arg(format!("--advertise-address=192.0.2.{}", 11 + n))
                .arg("--service-node-port-range=30000-30199")
        };
        let first = launch(0).start();
        let others = (1..count).map(|n| {
            let data_dir = self.dir.path().join(format!("server-{n}"));
            share_keys(first.data_dir(), &data_dir);
            launch(n).data_dir(&data_dir).start()
        });
        let others: Vec<Server> = others.collect();
        std::iter::once(first).chain(others).collect()
    }
}

/// What servers of one cluster must have in common.
fn share_keys(from: &Path, to: &Path) {
    let (from, to): (PathBuf, PathBuf) = (from.join("pki"), to.join("pki"));
    fs::create_dir_all(&to).expect("our own directory");
    for file in [
        "ca.crt",
        "ca.key",
        "front-proxy-ca.crt",
        "front-proxy-ca.key",
        "sa.key",
        "sa.pub",
    ] {
        fs::copy(from.join(file), to.join(file)).expect("the first server made it");
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        (0..self.ports.len()).for_each(|n| self.kill(n));
    }
}

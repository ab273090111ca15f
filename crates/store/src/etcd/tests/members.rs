//! Real members of etcd (Debian's etcd-server), and a way to them that can be cut.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tempfile::TempDir;

use super::super::{EtcdOptions, StorageCodec};
use crate::tests::TestStore;
use crate::{Options, RecordError, Store};

pub(crate) struct Members {
    dir: TempDir,
    ports: Vec<(u16, u16)>,
    flags: Vec<String>,
    running: Mutex<Vec<Option<Child>>>,
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

impl Members {
    pub(crate) fn start(count: usize) -> Members {
        Members::with(count, &[])
    }

    pub(crate) fn with(count: usize, flags: &[&str]) -> Members {
        let members = Members {
            dir: tempfile::tempdir().unwrap(),
            ports: (0..count).map(|_| (free_port(), free_port())).collect(),
            flags: flags.iter().map(|flag| flag.to_string()).collect(),
            running: Mutex::new((0..count).map(|_| None).collect()),
        };
        (0..count).for_each(|n| members.run(n));
        members
    }

    /// Starts one, or starts it again.
    pub(crate) fn run(&self, n: usize) {
        let peer = |n: usize| format!("http://127.0.0.1:{}", self.ports[n].1);
        let cluster: Vec<String> = (0..self.ports.len()).map(|n| format!("m{n}={}", peer(n))).collect();
        let child = Command::new("etcd")
            .arg("--name")
            .arg(format!("m{n}"))
            .arg("--data-dir")
            .arg(self.dir.path().join(n.to_string()))
            .args([
                "--listen-client-urls",
                &self.url(n),
                "--advertise-client-urls",
                &self.url(n),
            ])
            .args([
                "--listen-peer-urls",
                &peer(n),
                "--initial-advertise-peer-urls",
                &peer(n),
            ])
            .args(["--initial-cluster", &cluster.join(",")])
            .args([
                "--heartbeat-interval",
                "20",
                "--election-timeout",
                "200",
                "--log-level",
                "error",
            ])
            .args(&self.flags)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd can be started: apt-get install etcd-server, or tools/install-test-tools");
        self.running.lock()[n] = Some(child);
    }

    pub(crate) fn kill(&self, n: usize) {
        if let Some(mut child) = self.running.lock()[n].take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub(crate) fn url(&self, n: usize) -> String {
        format!("http://127.0.0.1:{}", self.ports[n].0)
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        (0..self.ports.len()).map(|n| self.url(n)).collect()
    }

    /// Requests give up soon.
    pub(crate) fn options(&self) -> EtcdOptions {
        EtcdOptions {
            compaction_interval: Duration::ZERO,
            ..EtcdOptions::new(self.urls(), Arc::new(Below::new("")))
        }
    }

    pub(crate) fn store(&self) -> TestStore {
        Store::connect(self.options(), Options::default()).unwrap()
    }

    pub(crate) fn store_below(&self, prefix: &str, options: Options) -> TestStore {
        let etcd = EtcdOptions {
            codec: Arc::new(Below::new(prefix)),
            ..self.options()
        };
        Store::connect(etcd, options).unwrap()
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        (0..self.ports.len()).for_each(|n| self.kill(n));
    }
}

/// Keys below a prefix; those with `/leases/` in them live for an hour.
pub(crate) struct Below {
    prefix: String,
    all: String,
}

impl Below {
    pub(crate) fn new(prefix: &str) -> Below {
        Below {
            prefix: prefix.to_string(),
            all: format!("{prefix}/"),
        }
    }
}

impl StorageCodec for Below {
    fn prefix(&self) -> &[u8] {
        self.all.as_bytes()
    }

    fn etcd_key(&self, key: &str) -> Bytes {
        format!("{}{key}", self.prefix).into()
    }

    fn key(&self, etcd_key: &[u8]) -> Option<String> {
        let key = std::str::from_utf8(etcd_key).ok()?.strip_prefix(&self.prefix)?;
        key.starts_with('/').then(|| key.to_string())
    }

    fn encode(&self, _key: &str, record: &Bytes) -> Result<Bytes, RecordError> {
        Ok(record.clone())
    }

    fn decode(&self, key: &str, value: Bytes) -> Result<Bytes, RecordError> {
        match &value[..] {
            b"unreadable" => Err(RecordError(format!("{key} is unreadable"))),
            _ => Ok(value),
        }
    }

    fn ttl(&self, key: &str) -> Option<Duration> {
        key.contains("/leases/").then_some(Duration::from_secs(3600))
    }
}

/// A way to a member that can be cut: what is cut neither answers nor ends.
pub(crate) struct Link {
    pub(crate) url: String,
    state: tokio::sync::watch::Sender<bool>,
}

impl Link {
    pub(crate) async fn to(url: &str) -> Link {
        let target = url.trim_start_matches("http://").to_string();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (state, _) = tokio::sync::watch::channel(true);
        let whole = state.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (target, whole) = (target.clone(), whole.clone());
                tokio::spawn(async move {
                    let server = tokio::net::TcpStream::connect(target).await?;
                    let (from_client, to_client) = client.into_split();
                    let (from_server, to_server) = server.into_split();
                    let there = pass(from_client, to_server, whole.subscribe());
                    let back = pass(from_server, to_client, whole.subscribe());
                    tokio::try_join!(there, back).map(drop)
                });
            }
        });
        Link { url, state }
    }

    pub(crate) fn cut(&self) {
        self.state.send_replace(false);
    }

    pub(crate) fn heal(&self) {
        self.state.send_replace(true);
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut whole: tokio::sync::watch::Receiver<bool>,
) -> std::io::Result<()> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        let _ = whole.wait_for(|whole| *whole).await;
        to.write_all(&buffer[..read]).await?;
    }
}

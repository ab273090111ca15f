//! A kube-apiserver to compare with, where one is in PATH: on an etcd of Orlop's, with keys of Orlop's making.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::Method;
use orlop_apiserver::pki::Pki;
use orlop_base::Clock;
use orlop_base::clock::monotonic;

use super::client::Target;

pub(crate) const PROGRAM: &str = "kube-apiserver";
const PATIENCE: Duration = Duration::from_secs(120);

/// Gone, with its etcd and its directory, when this value goes.
pub(crate) struct KubeApiServer {
    server: Child,
    etcd: Child,
    dir: PathBuf,
}

/// A port that was free a moment ago.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn log(dir: &Path, name: &str) -> std::io::Result<Stdio> {
    Ok(std::fs::File::create(dir.join(name))?.into())
}

impl KubeApiServer {
    pub(crate) fn start() -> anyhow::Result<KubeApiServer> {
        let dir = std::env::temp_dir().join(format!("orlop-bench-{}-reference", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let pki = Pki::load_or_create(&dir.join("pki"), &[], Clock::System.now())?;
        let (etcd_port, port) = (free_port()?, free_port()?);
        let url = format!("http://127.0.0.1:{etcd_port}");
        let kubeconfig = pki.kubeconfig(&format!("https://127.0.0.1:{port}"), "reference");
        std::fs::write(dir.join("kubeconfig"), kubeconfig)?;
        let mut etcd = Command::new(std::env::current_exe()?)
            .args(["etcd", "--data-dir"])
            .arg(dir.join("etcd"))
            .arg(format!("--listen-client-urls={url}"))
            .arg(format!("--advertise-client-urls={url}"))
            .stdout(Stdio::null())
            .stderr(log(&dir, "etcd.log")?)
            .spawn()
            .context("failed to start orlop etcd")?;
        let file = |name: &str| dir.join("pki").join(name).display().to_string();
        let started = Command::new(PROGRAM)
            .arg(format!("--etcd-servers={url}"))
            .arg(format!("--secure-port={port}"))
            .args(["--bind-address=127.0.0.1", "--authorization-mode=Node,RBAC"])
            .args([
                "--service-account-issuer=https://kubernetes.default.svc",
                "--service-cluster-ip-range=10.96.0.0/16",
            ])
            .args([
                format!("--tls-cert-file={}", file("apiserver.crt")),
                format!("--client-ca-file={}", file("ca.crt")),
            ])
            .arg(format!("--tls-private-key-file={}", file("apiserver.key")))
            .arg(format!("--service-account-key-file={}", file("sa.pub")))
            .arg(format!("--service-account-signing-key-file={}", file("sa.key")))
            .stdout(Stdio::null())
            .stderr(log(&dir, "kube-apiserver.log")?)
            .spawn();
        let server = match started {
            Ok(server) => server,
            Err(error) => {
                // Nobody else would end it.
                let _ = etcd.kill();
                let _ = etcd.wait();
                return Err(error).context("failed to start kube-apiserver");
            }
        };
        let mut reference = KubeApiServer { server, etcd, dir };
        reference.wait_until_ready()?;
        Ok(reference)
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.server.id()
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let began = monotonic();
        while began.elapsed() < PATIENCE {
            if let Some(status) = self.server.try_wait()? {
                let log = std::fs::read_to_string(self.dir.join("kube-apiserver.log")).unwrap_or_default();
                bail!(
                    "kube-apiserver ended early: {status}\n{}",
                    log.lines().last().unwrap_or("")
                );
            }
            let ready = async {
                let mut connection = Target::from_kubeconfig(&self.kubeconfig())?.connect().await?;
                connection.expect(Method::GET, "/readyz", Bytes::new()).await
            };
            if runtime.block_on(ready).is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("kube-apiserver was not ready within {PATIENCE:?}")
    }
}

impl Drop for KubeApiServer {
    fn drop(&mut self) {
        for child in [&mut self.server, &mut self.etcd] {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

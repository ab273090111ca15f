//! `--etcd-servers`: the API server keeps its state itself. Where the URL is that of an `orlop etcd` on this machine, it does
//! so in that one's data directory, so that what is started with an etcd lives as long as its data (Go projects' envtest
//! does so); any other etcd is refused.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Where an `orlop etcd` says which directory is its own.
const PAGE: &str = orlop_etcd::DATA_DIR_PAGE;
/// Of the answer.
const MOST_BYTES: u64 = 64 * 1024;
/// How long one that is just starting is waited for. Upstream: kube-apiserver tries for twenty seconds, too.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(20);
/// Beside etcd's own files.
const SUBDIRECTORY: &str = "kube-apiserver";

const ADVICE: &str = "the API server keeps its state itself; leave the flag out (--data-dir says where), or give the URL of an \
                      `orlop etcd` on this machine";

#[derive(clap::Args)]
pub(in super::super) struct EtcdArgs {
    /// The etcd to live beside, http://ADDRESS:PORT of an `orlop etcd` on this machine: the state is kept in its data directory
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    etcd_servers: Vec<String>,
}

impl EtcdArgs {
    /// The data directory that they lead to, if any are given.
    pub(in super::super) fn data_dir(&self) -> anyhow::Result<Option<PathBuf>> {
        let [server] = &self.etcd_servers[..] else {
            return match self.etcd_servers.is_empty() {
                true => Ok(None),
                false => bail!("--etcd-servers: more than one server; {ADVICE}"),
            };
        };
        let address = address(server)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let asked = runtime.block_on(async { tokio::time::timeout(PATIENCE, ask_until_up(address)).await });
        let directory = match asked {
            Ok(answer) => answer.with_context(|| format!("--etcd-servers: failed to ask {server}"))?,
            Err(_) => bail!("--etcd-servers: nobody listens on {server}"),
        };
        let Some(directory) = directory else {
            bail!("--etcd-servers: {server} is no `orlop etcd`; {ADVICE}");
        };
        if !directory.is_dir() {
            bail!(
                "--etcd-servers: {server} has its data in {}, which is not on this machine",
                directory.display()
            );
        }
        let directory = directory.join(SUBDIRECTORY);
        tracing::warn!(directory = %directory.display(), "keeping the state beside etcd's, not in it");
        Ok(Some(directory))
    }
}

fn address(server: &str) -> anyhow::Result<SocketAddr> {
    let uri: http::Uri = server
        .parse()
        .with_context(|| format!("--etcd-servers: {server:?} is no URL"))?;
    match uri.scheme_str() {
        Some("http") | None => {}
        _ => bail!("--etcd-servers: {server}: an `orlop etcd` is asked over http only; {ADVICE}"),
    }
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let ip = match host {
        "localhost" => std::net::Ipv4Addr::LOCALHOST.into(),
        host => host
            .parse()
            .ok()
            .with_context(|| format!("--etcd-servers: {server}: not an address; {ADVICE}"))?,
    };
    Ok(SocketAddr::new(ip, uri.port_u16().unwrap_or(2379)))
}

async fn ask_until_up(address: SocketAddr) -> std::io::Result<Option<PathBuf>> {
    loop {
        match ask(address).await {
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => tokio::time::sleep(PAUSE).await,
            answer => return answer,
        }
    }
}

/// The directory that whoever listens there says is its own.
async fn ask(address: SocketAddr) -> std::io::Result<Option<PathBuf>> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {PAGE} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.take(MOST_BYTES).read_to_string(&mut answer).await?;
    Ok(directory_in(&answer))
}

fn directory_in(answer: &str) -> Option<PathBuf> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let is_good = head.split(' ').nth(1) == Some("200");
    let path = PathBuf::from(body.trim_end_matches('\n'));
    (is_good && path.is_absolute()).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_of_ours_will_do() {
        for (servers, message) in [
            (&["https://127.0.0.1:2379"][..], "is asked over http only"),
            (
                &["http://10.0.0.1:2379", "http://10.0.0.2:2379"],
                "more than one server",
            ),
            (&["http://etcd.example:2379"], "not an address"),
        ] {
            let args = EtcdArgs {
                etcd_servers: servers.iter().map(|server| server.to_string()).collect(),
            };
            let error = args.data_dir().unwrap_err().to_string();
            assert!(
                error.contains(message) && error.contains("keeps its state itself"),
                "{error}"
            );
        }
        assert_eq!(EtcdArgs { etcd_servers: vec![] }.data_dir().unwrap(), None);
    }

    #[test]
    fn answers() {
        for (answer, directory) in [
            (
                "HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\n/tmp/etcd\n",
                Some("/tmp/etcd"),
            ),
            ("HTTP/1.1 404 Not Found\r\n\r\n/tmp/etcd", None),
            ("HTTP/1.0 200 OK\r\n\r\nrelative", None),
            ("nonsense", None),
        ] {
            assert_eq!(directory_in(answer), directory.map(PathBuf::from), "{answer:?}");
        }
    }
}

//! `--etcd-servers` and the flags beside it: where the API server keeps its state. That of an `orlop etcd` on this machine
//! is kept beside it, in its data directory, so that what is started with an etcd lives as long as its data and costs no
//! more than a file (Go projects' envtest does so); in any other etcd it is kept as kube-apiserver does.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use orlop_apiserver::EtcdConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::super::parse_duration;

/// Where an `orlop etcd` says which directory is its own.
const PAGE: &str = orlop_etcd::DATA_DIR_PAGE;
/// Of the answer.
const MOST_BYTES: u64 = 64 * 1024;
/// How long one that is just starting is waited for. Upstream: kube-apiserver tries for twenty seconds, too.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(20);
/// Beside etcd's own files.
const SUBDIRECTORY: &str = "kube-apiserver";

/// What `--store` begins with for an etcd.
const ETCD: &str = "etcd:";

#[derive(clap::Args)]
pub(in super::super) struct EtcdArgs {
    /// Where the state is: "embedded" (in the data directory), or etcd:URL,URL for an etcd
    #[arg(long, value_name = "STORE", conflicts_with = "etcd_servers")]
    store: Option<String>,
    /// Members of the etcd that holds the state, http(s)://ADDRESS:PORT,…; that of an `orlop etcd` on this machine is kept in its
    /// data directory
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    etcd_servers: Vec<String>,
    /// Authorities of the members' certificates [default: the system's]
    #[arg(long, value_name = "FILE")]
    etcd_cafile: Option<PathBuf>,
    /// Client certificate for etcd
    #[arg(long, value_name = "FILE", requires = "etcd_keyfile")]
    etcd_certfile: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "etcd_certfile")]
    etcd_keyfile: Option<PathBuf>,
    /// What all keys in etcd begin with
    #[arg(long, value_name = "PREFIX", default_value = "/registry")]
    etcd_prefix: String,
    /// How often the history of etcd is compacted, by one of the servers that share it (0: never)
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    etcd_compaction_interval: Duration,
}

/// Where the flags lead.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) enum StatePlace {
    DataDir,
    /// In this directory: that of an `orlop etcd`.
    Beside(PathBuf),
    Etcd(EtcdConfig),
}

impl EtcdArgs {
    pub(in super::super) fn place(&self) -> anyhow::Result<StatePlace> {
        let servers = match self.store.as_deref() {
            None if self.etcd_servers.is_empty() => return Ok(StatePlace::DataDir),
            Some("embedded") => return Ok(StatePlace::DataDir),
            None => self.etcd_servers.clone(),
            Some(store) => {
                let Some(urls) = store.strip_prefix(ETCD).filter(|urls| !urls.is_empty()) else {
                    bail!("--store: {store:?} is neither \"embedded\" nor \"etcd:URL,…\"");
                };
                urls.split(',').map(str::to_string).collect()
            }
        };
        if let ([server], None) = (&servers[..], &self.store)
            && let Some(address) = local_address(server)
        {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let asked = runtime.block_on(async { tokio::time::timeout(PATIENCE, ask_until_up(address)).await });
            let answer = match asked {
                Ok(answer) => answer.with_context(|| format!("--etcd-servers: failed to ask {server}"))?,
                Err(_) => bail!("--etcd-servers: nobody listens on {server}"),
            };
            if let Some(directory) = answer.filter(|directory| directory.is_dir()) {
                let directory = directory.join(SUBDIRECTORY);
                tracing::warn!(directory = %directory.display(), "keeping the state beside etcd's, not in it");
                return Ok(StatePlace::Beside(directory));
            }
        }
        Ok(StatePlace::Etcd(EtcdConfig {
            prefix: self.etcd_prefix.clone(),
            authority: self.etcd_cafile.clone(),
            certificate: self.etcd_certfile.clone(),
            key: self.etcd_keyfile.clone(),
            compaction_interval: self.etcd_compaction_interval,
            ..EtcdConfig::new(servers)
        }))
    }
}

/// Where an `orlop etcd` may listen: on this machine, without TLS.
fn local_address(server: &str) -> Option<SocketAddr> {
    let uri: http::Uri = server.parse().ok()?;
    if uri.scheme_str().is_some_and(|scheme| scheme != "http") {
        return None;
    }
    let ip = match uri.host()?.trim_matches(['[', ']']) {
        "localhost" => std::net::Ipv4Addr::LOCALHOST.into(),
        host => host.parse().ok()?,
    };
    Some(SocketAddr::new(ip, uri.port_u16().unwrap_or(2379)))
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

    fn args(line: &str) -> EtcdArgs {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: EtcdArgs,
        }
        let words = std::iter::once("kube-apiserver").chain(line.split_whitespace());
        <Line as clap::Parser>::try_parse_from(words)
            .map(|line| line.args)
            .unwrap()
    }

    #[test]
    fn places_of_the_state() {
        let etcd = |servers: &[&str]| EtcdConfig::new(servers.iter().map(|server| server.to_string()).collect());
        for (line, wanted) in [
            ("", StatePlace::DataDir),
            ("--store embedded", StatePlace::DataDir),
            (
                "--store etcd:http://127.0.0.1:2379,https://b",
                StatePlace::Etcd(etcd(&["http://127.0.0.1:2379", "https://b"])),
            ),
            (
                "--store etcd:http://127.0.0.1:2379",
                StatePlace::Etcd(etcd(&["http://127.0.0.1:2379"])),
            ),
            (
                "--etcd-servers=https://127.0.0.1:2379 --etcd-cafile=/ca --etcd-certfile=/c --etcd-keyfile=/k \
                 --etcd-prefix=/other --etcd-compaction-interval=0",
                StatePlace::Etcd(EtcdConfig {
                    prefix: "/other".to_string(),
                    authority: Some("/ca".into()),
                    certificate: Some("/c".into()),
                    key: Some("/k".into()),
                    compaction_interval: Duration::ZERO,
                    ..etcd(&["https://127.0.0.1:2379"])
                }),
            ),
        ] {
            assert_eq!(args(line).place().unwrap(), wanted, "{line}");
        }
        for bad in ["--store=etcd:", "--store=files"] {
            let error = args(bad).place().unwrap_err().to_string();
            assert!(error.starts_with("--store: "), "{error}");
        }
    }

    #[test]
    fn only_what_listens_here_without_tls_may_be_one_of_ours() {
        let address = |text: &str| Some(text.parse().unwrap());
        for (server, wanted) in [
            ("http://127.0.0.1:2379", address("127.0.0.1:2379")),
            ("http://[::1]:1", address("[::1]:1")),
            ("http://localhost", address("127.0.0.1:2379")),
            ("https://127.0.0.1:2379", None),
            ("http://etcd.example:2379", None),
        ] {
            assert_eq!(local_address(server), wanted, "{server}");
        }
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

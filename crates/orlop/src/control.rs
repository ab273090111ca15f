//! How `orlop component`, `status` and `down` talk to a running `orlop up`: a socket in the data directory for its owner only.
//! One line each way: `VERB [NAME] [ARGUMENT]`, and `ok` or `error: …`; after `ok` comes what was asked for.

use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use orlop_base::supervisor::{Fault, Record};
use orlop_base::{Clock, Shutdown, Supervisor};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::nodes::Workers;
use crate::status;
use crate::stop::StopRequest;

const SOCKET: &str = "control.sock";
/// A request that is longer is none.
const REQUEST_MAX: u64 = 256;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Stopping a component may take its time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(90);
const CONNECTIONS_MAX: usize = 8;

pub(crate) fn socket(data_dir: &Path) -> PathBuf {
    data_dir.join(SOCKET)
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    List,
    /// All that is known, as JSON.
    Status,
    /// Stop the whole cluster; pods get at most this many seconds.
    Down(Option<i64>),
    Stop(String),
    Start(String),
    Inject(String, Fault),
    Node(NodeRequest),
}

/// What is asked of the nodes of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeRequest {
    List,
    Add(Option<String>),
    Stop(String),
    Start(String),
    Cut(String),
    Heal(String),
    Remove(String),
}

impl NodeRequest {
    fn parse(words: &[&str]) -> Option<NodeRequest> {
        let one = |name: &&str| name.to_string();
        Some(match words {
            ["ls"] => NodeRequest::List,
            ["add"] => NodeRequest::Add(None),
            ["add", name] => NodeRequest::Add(Some(one(name))),
            ["stop", name] => NodeRequest::Stop(one(name)),
            ["start", name] => NodeRequest::Start(one(name)),
            ["cut", name] => NodeRequest::Cut(one(name)),
            ["heal", name] => NodeRequest::Heal(one(name)),
            ["rm", name] => NodeRequest::Remove(one(name)),
            _ => return None,
        })
    }

    async fn carry_out(self, workers: &Workers) -> anyhow::Result<String> {
        match self {
            NodeRequest::List => workers.table().await,
            NodeRequest::Add(name) => workers.add(name.as_deref()).await,
            NodeRequest::Stop(name) => workers.stop(&name).await,
            NodeRequest::Start(name) => workers.start_again(&name).await,
            NodeRequest::Cut(name) => workers.set_cut(&name, true).await,
            NodeRequest::Heal(name) => workers.set_cut(&name, false).await,
            NodeRequest::Remove(name) => workers.remove(&name).await,
        }
    }
}

impl Request {
    fn parse(line: &str) -> anyhow::Result<Request> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["ls"] => Ok(Request::List),
            ["status"] => Ok(Request::Status),
            ["down"] => Ok(Request::Down(None)),
            ["down", seconds] => Ok(Request::Down(Some(parse_seconds(seconds)?))),
            ["stop", name] => Ok(Request::Stop(name.to_string())),
            ["start", name] => Ok(Request::Start(name.to_string())),
            ["panic", name] => Ok(Request::Inject(name.to_string(), Fault::Panic)),
            ["end", name] => Ok(Request::Inject(name.to_string(), Fault::End)),
            ["stall", name, seconds] => {
                let fault = Fault::Stall(Duration::from_secs(parse_seconds(seconds)?));
                Ok(Request::Inject(name.to_string(), fault))
            }
            ["node", rest @ ..] => match NodeRequest::parse(rest) {
                Some(request) => Ok(Request::Node(request)),
                None => anyhow::bail!("unknown request: {line:?}"),
            },
            _ => anyhow::bail!("unknown request: {line:?}"),
        }
    }
}

fn parse_seconds<T: std::str::FromStr>(text: &str) -> anyhow::Result<T> {
    text.parse()
        .map_err(|_| anyhow::anyhow!("invalid number of seconds: {text:?}"))
}

/// What can be asked about, and stopped.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub supervisor: Supervisor,
    /// None in tests of components alone.
    pub status: Option<Arc<status::Source>>,
    pub stop: StopRequest,
    /// None: there can't be any.
    pub workers: Option<Workers>,
}

/// Serves until the shutdown. Whoever calls has the data directory to themselves, so a socket that is there is a crash's.
pub(crate) fn start(data_dir: &Path, cluster: Cluster, shutdown: Shutdown) -> io::Result<JoinHandle<()>> {
    let path = socket(data_dir);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    Ok(tokio::spawn(async move {
        tokio::select! {
            _ = accept(listener, cluster) => {}
            _ = shutdown.wait() => {}
        }
        let _ = std::fs::remove_file(path);
    }))
}

async fn accept(listener: UnixListener, cluster: Cluster) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let permit = room
            .clone()
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        match listener.accept().await {
            Ok((stream, _)) => {
                let cluster = cluster.clone();
                tokio::spawn(async move {
                    if let Err(error) = serve(stream, &cluster).await {
                        tracing::debug!(err = %error, "control connection ended");
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(err = %error, "failed to accept a control connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve(mut stream: UnixStream, cluster: &Cluster) -> io::Result<()> {
    // The socket was open to others for the moment before its mode was set.
    let peer = stream.peer_cred()?.uid();
    if peer != 0 && peer != nix::unistd::geteuid().as_raw() {
        return stream.write_all(b"error: permission denied\n").await;
    }
    let mut line = String::new();
    let mut request = (&mut stream).take(REQUEST_MAX);
    tokio::time::timeout(REQUEST_TIMEOUT, request.read_to_string(&mut line)).await??;
    let answer = match Request::parse(line.trim()) {
        Ok(request) => carry_out(request, cluster).await,
        Err(error) => Err(error),
    };
    let text = match answer {
        Ok(text) => format!("ok\n{text}"),
        Err(error) => format!("error: {error}\n"),
    };
    tokio::time::timeout(REQUEST_TIMEOUT, stream.write_all(text.as_bytes())).await?
}

async fn carry_out(request: Request, cluster: &Cluster) -> anyhow::Result<String> {
    let supervisor = &cluster.supervisor;
    match request {
        Request::List => return Ok(table(&supervisor.all(), Clock::System.now())),
        Request::Status => {
            let Some(source) = &cluster.status else {
                anyhow::bail!("there is no status to report");
            };
            return Ok(serde_json::to_string(&source.report().await)?);
        }
        Request::Down(grace) => cluster.stop.request(grace),
        Request::Node(request) => {
            let Some(workers) = &cluster.workers else {
                anyhow::bail!(
                    "worker nodes need a node with the embedded runtime: run `orlop up` as root, without --nodes 0"
                );
            };
            // Whoever asks may go away: what was begun is done.
            let workers = workers.clone();
            return tokio::spawn(async move { request.carry_out(&workers).await }).await?;
        }
        Request::Stop(name) => supervisor.set_wanted(&name, false).await?,
        Request::Start(name) => supervisor.set_wanted(&name, true).await?,
        Request::Inject(name, fault) => {
            tracing::warn!(component = name, ?fault, "injecting fault");
            supervisor.inject(&name, fault)?;
        }
    }
    Ok(String::new())
}

fn table(components: &[(&'static str, Record)], now: Timestamp) -> String {
    let mut text = format!(
        "{:<20} {:<8} {:<9} {:<8} {}\n",
        "NAME", "STATE", "RESTARTS", "AGE", "LAST ERROR"
    );
    for (name, record) in components {
        let age = age(now.duration_since(record.since));
        let line = format!(
            "{name:<20} {:<8} {:<9} {age:<8} {}",
            record.state, record.restarts, record.error
        );
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

pub(crate) fn age(age: SignedDuration) -> String {
    match age.as_secs().max(0) {
        s @ 0..120 => format!("{s}s"),
        s @ 120..7200 => format!("{}m", s / 60),
        s @ 7200..172_800 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86_400),
    }
}

/// Asks the `orlop up` that has this data directory. An error is its answer, or says that there is none.
pub(crate) fn ask(data_dir: &Path, request: &str) -> anyhow::Result<String> {
    ask_within(data_dir, request, ANSWER_TIMEOUT)
}

pub(crate) fn ask_within(data_dir: &Path, request: &str, timeout: Duration) -> anyhow::Result<String> {
    let path = socket(data_dir);
    let answer = exchange(&path, request, timeout).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => anyhow::anyhow!(
            "no `orlop up` is running with the data directory {}; choose another with --data-dir",
            data_dir.display()
        ),
        _ => anyhow::Error::new(error).context(format!("failed to use {}", path.display())),
    })?;
    match answer.split_once('\n') {
        Some(("ok", text)) => Ok(text.to_string()),
        _ => anyhow::bail!("{}", answer.trim_end().trim_start_matches("error: ")),
    }
}

fn exchange(path: &Path, request: &str, timeout: Duration) -> io::Result<String> {
    let mut stream = BlockingStream::connect(path)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.write_all(request.as_bytes())?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use orlop_base::supervisor::Start;

    use super::*;

    #[test]
    fn requests() {
        let parsed = |line: &str| Request::parse(line).unwrap();
        assert_eq!(parsed("ls"), Request::List);
        assert_eq!(parsed("stop dns"), Request::Stop("dns".into()));
        let stall = Request::Inject("dns".into(), Fault::Stall(Duration::from_secs(3)));
        assert_eq!(parsed("stall dns 3"), stall);
        assert_eq!(
            [parsed("down"), parsed("down 5")],
            [Request::Down(None), Request::Down(Some(5))]
        );
        assert_eq!(parsed("node ls"), Request::Node(NodeRequest::List));
        assert_eq!(parsed("node add"), Request::Node(NodeRequest::Add(None)));
        assert_eq!(parsed("node rm a"), Request::Node(NodeRequest::Remove("a".into())));
        for line in [
            "node",
            "node rm",
            "node cut a b",
            "",
            "down x",
            "ls dns",
            "stop",
            "stop a b",
            "stall dns -1",
            "kill dns",
        ] {
            assert!(Request::parse(line).is_err(), "{line:?}");
        }
    }

    #[test]
    fn ages() {
        let shown = |s: i64| age(SignedDuration::from_secs(s));
        let all = [-5, 0, 119, 120, 7199, 7200, 172_800].map(shown);
        assert_eq!(all, ["0s", "0s", "119s", "2m", "119m", "2h", "2d"]);
    }

    #[tokio::test]
    async fn a_component_over_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let (supervisor, shutdown) = (Supervisor::default(), Shutdown::default());
        let run: Start = Box::new(|shutdown| {
            Box::pin(async move {
                shutdown.wait().await;
                Ok(())
            })
        });
        let component = supervisor.add("it", true, shutdown.clone(), Clock::System, run);
        // A crash leaves one behind.
        drop(std::os::unix::net::UnixListener::bind(socket(dir.path())).unwrap());
        let cluster = Cluster {
            supervisor: supervisor.clone(),
            status: None,
            stop: StopRequest::default(),
            workers: None,
        };
        let server = start(dir.path(), cluster.clone(), shutdown.clone()).unwrap();
        let mode = std::fs::metadata(socket(dir.path())).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let ask = async |request: &'static str| {
            let dir = dir.path().to_path_buf();
            tokio::task::spawn_blocking(move || ask(&dir, request).map_err(|e| e.to_string()))
                .await
                .unwrap()
        };
        let row = |text: &str| {
            text.lines()
                .nth(1)
                .unwrap()
                .split_whitespace()
                .take(3)
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(row(&ask("ls").await.unwrap()), "it running 0");
        assert_eq!(ask("stop it").await, Ok(String::new()));
        assert_eq!(row(&ask("ls").await.unwrap()), "it stopped 0");
        assert!(ask("panic it").await.unwrap_err().contains("not running"));
        assert_eq!(ask("start it").await, Ok(String::new()));
        assert_eq!(ask("down 3").await, Ok(String::new()));
        assert!(cluster.stop.shutdown().is_triggered());
        assert!(ask("stop other").await.unwrap_err().contains("there are: it"));
        shutdown.trigger();
        component.await.unwrap();
        server.await.unwrap();
        assert!(ask("ls").await.unwrap_err().contains("no `orlop up` is running"));
    }
}

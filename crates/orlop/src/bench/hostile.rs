//! Honest clients beside hostile ones: what do the honest ones feel?
//!
//! Eight honest clients make, read, change and list small objects, first alone and then beside hostile clients of one
//! kind after another. The hostile ones run on threads of their own with the lowest priority: an attacker has processors
//! of its own, and here must not take those of the server.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::Method;
use orlop_base::clock::monotonic;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::client::{Connection, Target};
use super::measure::{Figures, shown};
use super::process;

const NAMESPACE: &str = "orlop-bench-hostile";
/// Where the honest ones work, and nobody else.
const HONEST_NAMESPACE: &str = "orlop-bench-honest";
const HONEST: usize = 8;
/// Silent connections of each client: as many as use up the files of a careless server.
const SILENT_EACH: usize = 20;
const HALVES_EACH: usize = 4;
const LARGE: usize = 3 * 1024 * 1024 - 1024;
const OVERSIZED: usize = 8 * 1024 * 1024;
/// What lists are long by.
const LISTED: usize = 200;
const LISTED_BYTES: usize = 20_000;
/// An honest request that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between the start of an attack and the first measured request.
const WARM_UP: Duration = Duration::from_secs(1);

pub(crate) struct Settings {
    pub clients: usize,
    /// For each kind.
    pub time: Duration,
    pub kinds: Vec<Kind>,
    /// The server's, if it is ours.
    pub pid: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Silent,
    HalfBodies,
    Reviews,
    Patches,
    Oversized,
    SlowReaders,
}

const KINDS: [(&str, Kind, &str); 6] = [
    ("silent", Kind::Silent, "TLS connections that say nothing"),
    ("half-bodies", Kind::HalfBodies, "bodies that stop half-way"),
    ("reviews", Kind::Reviews, "reviews of 3 MB"),
    ("patches", Kind::Patches, "patches of thousands of steps, deep values"),
    ("oversized", Kind::Oversized, "bodies of 8 MB"),
    ("slow-readers", Kind::SlowReaders, "lists read drop by drop"),
];

impl Kind {
    /// All of them if none is named.
    pub(crate) fn parse_all(names: &[String]) -> anyhow::Result<Vec<Kind>> {
        if names.is_empty() {
            return Ok(KINDS.iter().map(|(_, kind, _)| *kind).collect());
        }
        let parse = |name: &String| match KINDS.iter().find(|(known, ..)| known == name) {
            Some((_, kind, _)) => Ok(*kind),
            None => {
                let known: Vec<&str> = KINDS.iter().map(|(name, ..)| *name).collect();
                bail!("unknown {name:?}: must be one of {}", known.join(", "))
            }
        };
        names.iter().map(parse).collect()
    }

    fn description(self) -> &'static str {
        KINDS
            .iter()
            .find(|(_, kind, _)| *kind == self)
            .map_or("", |(.., text)| text)
    }
}

/// What honest clients saw.
struct HonestFigures {
    figures: Figures,
    refused: usize,
    first_refusal: Option<String>,
}

pub(crate) fn run(kubeconfig: &Path, settings: &Settings) -> anyhow::Result<()> {
    let target = Target::from_kubeconfig(kubeconfig)?;
    let honest = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let hostile = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .on_thread_start(yield_to_others)
        .build()?;
    let people = honest.block_on(prepare(&target))?;
    eprintln!("· alone");
    let idle = honest.block_on(measure(&people, "alone".to_string(), settings.time));
    let mut rows = vec![];
    for kind in &settings.kinds {
        eprintln!("· {}", kind.description());
        let attack = Attack {
            kind: *kind,
            stranger: target.bearer(None),
            nobody: target.bearer(Some(people.nobody.clone())),
            editor: target.bearer(Some(people.editor.clone())),
            done: Arc::default(),
            payload: payload(*kind),
        };
        let tasks: Vec<_> = (0..settings.clients)
            .map(|i| hostile.spawn(attack.clone().client(i)))
            .collect();
        let seen = honest.block_on(async {
            sleep(WARM_UP).await;
            measure(&people, kind.description().to_string(), settings.time).await
        });
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        let resident = settings
            .pid
            .and_then(process::usage)
            .map(|usage| usage.resident as f64 / 1e6);
        rows.push((seen, attack.done.load(Ordering::Relaxed), resident));
        honest.block_on(async { sleep(WARM_UP).await });
    }
    hostile.shutdown_timeout(Duration::from_secs(2));
    print(&idle, &rows, settings.clients);
    if let Err(error) = honest.block_on(clean_up(&target)) {
        eprintln!("not everything could be deleted: {error:#}");
    }
    Ok(())
}

/// Puts the calling thread behind all others. Where that can't be done the figures are worse than they should be.
fn yield_to_others() {
    let thread = nix::unistd::gettid().to_string();
    let _ = std::process::Command::new("renice")
        .args(["-n", "19", "-p", &thread])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status();
}

fn print(idle: &HonestFigures, rows: &[(HonestFigures, usize, Option<f64>)], clients: usize) {
    println!(
        "{HONEST} honest clients beside {clients} hostile ones\n{:<44} {:>8} {:>10} {:>10} {:>10} {:>8} {:>8} {:>9} {:>8}",
        "", "honest", "p50", "p99", "max", "p99/idle", "refused", "attacks", "MB"
    );
    let idle_p99 = idle.figures.percentile(0.99).as_secs_f64().max(1e-9);
    let line = |seen: &HonestFigures, attacks: String, resident: String| {
        let figures = &seen.figures;
        println!(
            "{:<44} {:>8} {:>10} {:>10} {:>10} {:>8.1} {:>8} {:>9} {:>8}",
            figures.name,
            figures.operations,
            shown(figures.percentile(0.5)),
            shown(figures.percentile(0.99)),
            shown(figures.percentile(1.0)),
            figures.percentile(0.99).as_secs_f64() / idle_p99,
            seen.refused,
            attacks,
            resident,
        );
    };
    line(idle, String::new(), String::new());
    for (seen, attacks, resident) in rows {
        let resident = resident.map_or(String::new(), |mb| format!("{mb:.0}"));
        line(seen, attacks.to_string(), resident);
        if let Some(refusal) = &seen.first_refusal {
            println!("    first refusal: {refusal}");
        }
    }
}

// ---- The honest.

struct People {
    /// As administrators, and as users with rights in their namespace.
    honest: Vec<Target>,
    /// Somebody with a token and no rights.
    nobody: String,
    /// Somebody who may read and change config maps.
    editor: String,
}

async fn prepare(target: &Target) -> anyhow::Result<People> {
    let mut admin = target.connect().await?;
    for namespace in [NAMESPACE, HONEST_NAMESPACE] {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        make(&mut admin, "/api/v1/namespaces", &body).await?;
    }
    let nobody = account(&mut admin, NAMESPACE, "nobody", &[]).await?;
    let editor = account(&mut admin, NAMESPACE, "editor", &["get", "list", "create", "patch"]).await?;
    let verbs = ["get", "list", "create", "update", "delete"];
    let user = account(&mut admin, HONEST_NAMESPACE, "honest", &verbs).await?;
    let text = "x".repeat(LISTED_BYTES);
    for i in 0..LISTED {
        let body = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("listed-{i}")}, "data": {"text": text},
        });
        make(&mut admin, &maps(NAMESPACE), &body).await?;
    }
    let honest = (0..HONEST).map(|i| match i % 2 {
        0 => target.clone(),
        _ => target.bearer(Some(user.clone())),
    });
    Ok(People {
        honest: honest.collect(),
        nobody,
        editor,
    })
}

fn maps(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

/// Creates what is not there yet.
async fn make(admin: &mut Connection, path: &str, body: &Value) -> anyhow::Result<()> {
    let (code, answer) = admin.call(Method::POST, path, body.to_string().into()).await?;
    match code {
        200..=299 | 409 => Ok(()),
        _ => bail!("POST {path}: {code}: {}", String::from_utf8_lossy(&answer)),
    }
}

/// The token of a service account that may do this with config maps of its namespace.
async fn account(admin: &mut Connection, namespace: &str, name: &str, verbs: &[&str]) -> anyhow::Result<String> {
    let metadata = json!({"name": name, "namespace": namespace});
    let accounts = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
    let body = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata});
    make(admin, &accounts, &body).await?;
    if !verbs.is_empty() {
        let api = "rbac.authorization.k8s.io/v1";
        let group = format!("/apis/{api}/namespaces/{namespace}");
        let role = json!({
            "apiVersion": api, "kind": "Role", "metadata": metadata,
            "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs}],
        });
        make(admin, &format!("{group}/roles"), &role).await?;
        let binding = json!({
            "apiVersion": api, "kind": "RoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        });
        make(admin, &format!("{group}/rolebindings"), &binding).await?;
    }
    let request =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}});
    let answer = admin
        .expect(
            Method::POST,
            &format!("{accounts}/{name}/token"),
            request.to_string().into(),
        )
        .await?;
    let answer: Value = serde_json::from_slice(&answer)?;
    let token = answer["status"]["token"].as_str();
    Ok(token.context("the answer has no token")?.to_string())
}

async fn clean_up(target: &Target) -> anyhow::Result<()> {
    let mut admin = target.connect().await?;
    for namespace in [NAMESPACE, HONEST_NAMESPACE] {
        admin
            .expect(Method::DELETE, &format!("/api/v1/namespaces/{namespace}"), Bytes::new())
            .await?;
    }
    Ok(())
}

async fn measure(people: &People, name: String, time: Duration) -> HonestFigures {
    let began = monotonic();
    let clients: Vec<_> = people
        .honest
        .iter()
        .enumerate()
        .map(|(i, target)| tokio::spawn(honest(target.clone(), i, time)))
        .collect();
    let (mut latencies, mut refusals) = (vec![], vec![]);
    for client in clients {
        if let Ok((took, refused)) = client.await {
            latencies.extend(took);
            refusals.extend(refused);
        }
    }
    HonestFigures {
        figures: Figures::new(name, began.elapsed(), latencies),
        refused: refusals.len(),
        first_refusal: refusals.into_iter().next(),
    }
}

/// One honest client, until the time is over: how long each request took, and what was refused.
async fn honest(target: Target, number: usize, time: Duration) -> (Vec<Duration>, Vec<String>) {
    let (mut latencies, mut refusals) = (vec![], vec![]);
    let mut connection: Option<Connection> = None;
    let mut turn = 0;
    let start = monotonic();
    while start.elapsed() < time {
        let began = monotonic();
        let outcome = timeout(PATIENCE, async {
            if connection.is_none() {
                connection = Some(target.connect().await?);
            }
            let connection = connection.as_mut().expect("connected above");
            step(connection, number, turn).await
        });
        let outcome = outcome
            .await
            .unwrap_or_else(|_| Err(anyhow::anyhow!("no answer in time")));
        latencies.push(began.elapsed());
        if let Err(error) = outcome {
            refusals.push(format!("{error:#}"));
            connection = None;
            sleep(Duration::from_millis(50)).await;
        }
        turn += 1;
        // People think between two requests.
        sleep(Duration::from_millis(2)).await;
    }
    (latencies, refusals)
}

/// create, get, update, list, delete, in turn.
async fn step(connection: &mut Connection, number: usize, turn: usize) -> anyhow::Result<()> {
    let collection = maps(HONEST_NAMESPACE);
    let name = format!("honest-{number}-{}", turn / 5);
    let one = format!("{collection}/{name}");
    let object = |value: &str| {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"key": value},
        });
        Bytes::from(object.to_string())
    };
    let (method, path, body) = match turn % 5 {
        0 => (Method::POST, collection, object("one")),
        1 => (Method::GET, one, Bytes::new()),
        2 => (Method::PUT, one, object("two")),
        3 => (Method::GET, format!("{collection}?limit=20"), Bytes::new()),
        _ => (Method::DELETE, one, Bytes::new()),
    };
    let is_get = method == Method::GET;
    let (code, answer) = connection.call(method, &path, body).await?;
    // What a lost answer left behind is no refusal of the next one.
    match code {
        200..=299 | 409 => Ok(()),
        404 if !is_get => Ok(()),
        _ => bail!("{path}: {code}: {}", String::from_utf8_lossy(&answer)),
    }
}

// ---- The hostile.

#[derive(Clone)]
struct Attack {
    kind: Kind,
    stranger: Target,
    nobody: Target,
    editor: Target,
    /// Attacks carried out by all clients.
    done: Arc<AtomicUsize>,
    payload: Bytes,
}

fn payload(kind: Kind) -> Bytes {
    match kind {
        Kind::Reviews => review(),
        Kind::Patches => patch(),
        Kind::Oversized => vec![b' '; OVERSIZED].into(),
        Kind::Silent | Kind::HalfBodies | Kind::SlowReaders => Bytes::new(),
    }
}

/// A review with as many faults as fit.
fn review() -> Bytes {
    let head = r#"{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"verb":"get","resource":"pods","fieldSelector":{"requirements":["#;
    let fault = r#"{"key":"","operator":"?","values":["a","b"]}"#;
    let count = (LARGE - head.len() - 8) / (fault.len() + 1);
    let faults = vec![fault; count].join(",");
    Bytes::from(format!("{head}{faults}]}}}}}}}}"))
}

/// Steps that make an object as deep as it may be, again and again.
fn patch() -> Bytes {
    let deep = format!("{}1{}", r#"{"a":"#.repeat(60), "}".repeat(60));
    let deep: Value = serde_json::from_str(&deep).expect("braces in pairs");
    let steps: Vec<Value> = (0..2_000)
        .flat_map(|i| {
            let path = format!("/metadata/annotations/k{i}");
            [
                json!({"op": "add", "path": path, "value": deep}),
                json!({"op": "copy", "from": path, "path": format!("/data/k{i}")}),
            ]
        })
        .collect();
    Bytes::from(Value::from(steps).to_string())
}

impl Attack {
    /// One client; it goes on until it is aborted.
    async fn client(self, number: usize) {
        // Not all at the same moment.
        sleep(Duration::from_millis(number as u64 * 5)).await;
        loop {
            let attacked = match self.kind {
                Kind::Silent => self.silent().await,
                Kind::HalfBodies => self.half_bodies().await,
                Kind::Reviews => {
                    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
                    self.send("POST", path, "application/json", &self.nobody).await
                }
                Kind::Patches => {
                    let path = format!("{}/listed-{}?dryRun=All", maps(NAMESPACE), number % LISTED);
                    self.send("PATCH", &path, "application/json-patch+json", &self.editor)
                        .await
                }
                Kind::Oversized => {
                    self.send("POST", &maps(NAMESPACE), "application/json", &self.editor)
                        .await
                }
                Kind::SlowReaders => self.slow_reader(number).await,
            };
            if attacked.is_err() {
                sleep(Duration::from_millis(20)).await;
            }
        }
    }

    fn count(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    async fn silent(&self) -> anyhow::Result<()> {
        let mut held = vec![];
        for _ in 0..SILENT_EACH {
            held.push(self.stranger.raw().await?);
            self.count();
        }
        sleep(Duration::from_secs(2)).await;
        Ok(())
    }

    async fn half_bodies(&self) -> anyhow::Result<()> {
        let mut held = vec![];
        for _ in 0..HALVES_EACH {
            let mut stream = self.nobody.raw().await?;
            let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
            let headers = "content-type: application/json\r\ncontent-length: 1000\r\n";
            let head = self.nobody.head("POST", path, headers);
            stream.write_all(format!("{head}\r\n{{\"kind\":").as_bytes()).await?;
            stream.flush().await?;
            held.push(stream);
            self.count();
        }
        sleep(Duration::from_secs(10)).await;
        Ok(())
    }

    /// Sends the payload and waits for some answer.
    async fn send(&self, method: &str, path: &str, media_type: &str, as_whom: &Target) -> anyhow::Result<()> {
        let mut stream = as_whom.raw().await?;
        let headers = format!(
            "content-type: {media_type}\r\ncontent-length: {}\r\nconnection: close\r\n",
            self.payload.len()
        );
        let head = as_whom.head(method, path, &headers);
        stream.write_all(format!("{head}\r\n").as_bytes()).await?;
        // The server may answer, or hang up, before it has all.
        let _ = stream.write_all(&self.payload).await;
        let _ = stream.flush().await;
        let mut answer = vec![0; 4096];
        let _ = stream.read(&mut answer).await;
        self.count();
        Ok(())
    }

    async fn slow_reader(&self, number: usize) -> anyhow::Result<()> {
        let formats = [
            "application/json",
            "application/vnd.kubernetes.protobuf",
            "application/yaml",
        ];
        let mut stream = self.editor.raw().await?;
        let headers = format!("accept: {}\r\n", formats[number % formats.len()]);
        let head = self.editor.head("GET", &maps(NAMESPACE), &headers);
        stream.write_all(format!("{head}\r\n").as_bytes()).await?;
        stream.flush().await?;
        self.count();
        let mut drop_by_drop = [0; 1024];
        for _ in 0..50 {
            if stream.read(&mut drop_by_drop).await? == 0 {
                break;
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_what_they_are_said_to_be() {
        let review: Value = serde_json::from_slice(&review()).unwrap();
        let requirements = &review["spec"]["resourceAttributes"]["fieldSelector"]["requirements"];
        assert!(requirements.as_array().unwrap().len() > 50_000);
        assert!(payload(Kind::Reviews).len() <= LARGE);
        let patch: Value = serde_json::from_slice(&patch()).unwrap();
        assert_eq!(patch.as_array().unwrap().len(), 4_000);
        assert_eq!(Kind::parse_all(&[]).unwrap().len(), KINDS.len());
        assert_eq!(Kind::parse_all(&["reviews".into()]).unwrap(), [Kind::Reviews]);
        assert!(Kind::parse_all(&["nice".into()]).is_err());
    }
}

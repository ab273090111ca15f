//! Crashes, stops and full disks: what was acknowledged stays, once, and revisions never go back.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use nix::sys::signal::Signal;
use orlop_base::Random;
use orlop_base::clock::monotonic;
use orlop_testkit::{Http, HttpResponse, Launch, Server, eventually};
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WRITERS: usize = 32;
const KILLS: usize = 30;

/// What one attempted create has come to. Writers are the only ones to touch their own objects, so the last answer
/// counts, and beside it only the one request that was under way when the server died.
#[derive(Clone, Debug, PartialEq)]
enum ObjectState {
    /// Never there, or deleted.
    Absent,
    /// There, with this in it.
    Present(u64),
}

#[derive(Clone, Debug)]
struct Written {
    name: Option<String>,
    uid: Option<String>,
    acknowledged: ObjectState,
    /// Sent, but not answered.
    under_way: Option<ObjectState>,
}

/// What all writers of all rounds know, by the token that each create carries as a label.
#[derive(Default)]
struct Ledger {
    objects: Mutex<BTreeMap<String, Written>>,
    revisions: Mutex<BTreeSet<u64>>,
    answers: AtomicU64,
}

impl Ledger {
    fn sent(&self, token: &str, state: ObjectState) {
        let mut objects = self.objects.lock().unwrap();
        let fresh = Written {
            name: None,
            uid: None,
            acknowledged: ObjectState::Absent,
            under_way: None,
        };
        objects.entry(token.to_string()).or_insert(fresh).under_way = Some(state);
    }

    /// An answer came: what was under way is settled.
    fn answered(&self, token: &str, answer: &HttpResponse) {
        let body = answer.json();
        let mut objects = self.objects.lock().unwrap();
        let written = objects.get_mut(token).expect("sent before it was answered");
        let state = written.under_way.take().expect("one request at a time");
        assert!(answer.status.is_success(), "writers do nothing wrong: {body}");
        if let Some(uid) = body["metadata"]["uid"].as_str() {
            written.uid = Some(uid.to_string());
            written.name = body["metadata"]["name"].as_str().map(str::to_string);
            let revision = body["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
            assert!(
                self.revisions.lock().unwrap().insert(revision),
                "revision {revision} was given to two writes"
            );
        }
        written.acknowledged = state;
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    fn last_revision(&self) -> u64 {
        self.revisions.lock().unwrap().last().copied().unwrap_or(0)
    }
}

/// Creates, changes and deletes until the server is gone.
async fn write(http: Http, ledger: Arc<Ledger>, writer: usize, round: usize) {
    let mut random = Random::seeded((round * WRITERS + writer) as u64);
    for n in 0.. {
        let token = format!("r{round}-w{writer}-{n}");
        let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"labels": {"token": token}}, "data": {"value": "0"}});
        // Named by us, or by the server: with a made-up name a create done twice would go unnoticed but for the token.
        match n % 3 {
            0 => object["metadata"]["generateName"] = json!("made-"),
            _ => object["metadata"]["name"] = json!(token),
        }
        ledger.sent(&token, ObjectState::Present(0));
        let Ok(answer) = http.ask(Method::POST, MAPS, &[], object.to_string()).await else {
            return;
        };
        ledger.answered(&token, &answer);
        let mut object = answer.json();
        let path = format!("{MAPS}/{}", object["metadata"]["name"].as_str().unwrap());
        for value in 1..=random.below(3) {
            object["data"]["value"] = json!(value.to_string());
            ledger.sent(&token, ObjectState::Present(value));
            let Ok(answer) = http.ask(Method::PUT, &path, &[], object.to_string()).await else {
                return;
            };
            ledger.answered(&token, &answer);
            object = answer.json();
        }
        if random.below(3) == 0 {
            ledger.sent(&token, ObjectState::Absent);
            let Ok(answer) = http.ask(Method::DELETE, &path, &[], "").await else {
                return;
            };
            ledger.answered(&token, &answer);
        }
    }
}

/// Reads along, and remembers the last revision seen: readers too must not see what a crash can take back.
async fn read_along(http: Http, seen: Arc<AtomicU64>) {
    let path = format!("{MAPS}?watch=true&resourceVersion=0");
    let Ok(response) = http.send(Method::GET, &path, &[], Default::default()).await else {
        return;
    };
    let mut body = response.into_body();
    let mut line = Vec::new();
    use http_body_util::BodyExt;
    while let Some(Ok(frame)) = body.frame().await {
        for byte in frame.into_data().unwrap_or_default() {
            line.push(byte);
            if byte == b'\n' {
                let event: Value = serde_json::from_slice(&line).expect("whole lines");
                let revision = event["object"]["metadata"]["resourceVersion"]
                    .as_str()
                    .unwrap()
                    .parse()
                    .unwrap();
                seen.fetch_max(revision, Ordering::Relaxed);
                line.clear();
            }
        }
    }
}

/// Compares what is there with what is known, and settles what was under way.
async fn check(http: &Http, ledger: &Ledger, seen: u64, round: usize) {
    let list = http.get(&format!("{MAPS}?labelSelector=token")).await.expect(200);
    let revision: u64 = list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    assert!(
        revision >= ledger.last_revision(),
        "round {round}: acknowledged {}, now at {revision}",
        ledger.last_revision()
    );
    assert!(
        revision >= seen,
        "round {round}: a reader saw {seen}, now at {revision}"
    );
    let mut found: BTreeMap<&str, &Value> = BTreeMap::new();
    for item in list["items"].as_array().unwrap() {
        let token = item["metadata"]["labels"]["token"].as_str().unwrap();
        assert!(
            found.insert(token, item).is_none(),
            "round {round}: {token} is there twice"
        );
    }
    let mut objects = ledger.objects.lock().unwrap();
    for (token, written) in objects.iter_mut() {
        let item = found.remove(token.as_str());
        let now = item.map_or(ObjectState::Absent, |i| {
            ObjectState::Present(i["data"]["value"].as_str().unwrap().parse().unwrap())
        });
        let possible = now == written.acknowledged || written.under_way.as_ref() == Some(&now);
        assert!(possible, "round {round}: {token} is {now:?}, known is {written:?}");
        if let (Some(item), Some(uid)) = (item, &written.uid) {
            assert_eq!(
                item["metadata"]["uid"],
                uid.as_str(),
                "round {round}: {token} is another object"
            );
        }
        written.acknowledged = now;
        written.under_way = None;
    }
    assert!(found.is_empty(), "round {round}: nobody wrote {:?}", found.keys());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_kills_under_32_writers_lose_nothing() {
    let mut server = Server::start();
    let ledger = Arc::new(Ledger::default());
    let seen = Arc::new(AtomicU64::new(0));
    let mut random = Random::seeded(30);
    for round in 0..KILLS {
        let target = ledger.answers.load(Ordering::Relaxed) + 50 + random.below(250);
        let mut tasks = vec![];
        // Eight writers to a connection.
        for connection in 0..WRITERS / 8 {
            let http = server.http().await;
            tasks.push(tokio::spawn(read_along(http.clone(), seen.clone())));
            tasks.extend((0..8).map(|w| tokio::spawn(write(http.clone(), ledger.clone(), connection * 8 + w, round))));
        }
        let enough = || ledger.answers.load(Ordering::Relaxed) >= target;
        tokio::task::block_in_place(|| eventually("writes are answered", || enough().then_some(())));
        server.kill();
        for task in tasks {
            task.await.expect("no writer was refused anything");
        }
        // Every third time it dies once more on the way up, at some moment.
        if round % 3 == 0 {
            let mut child = Launch::up()
                .command(server.data_dir())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            // This is the fault, not a wait: somewhere in the first 64 ms of its life.
            std::thread::sleep(Duration::from_millis(random.below(64)));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        server.start_again();
        check(&server.http().await, &ledger, seen.load(Ordering::Relaxed), round).await;
    }
    let objects = ledger.objects.lock().unwrap();
    let present = objects
        .values()
        .filter(|w| w.acknowledged != ObjectState::Absent)
        .count();
    println!(
        "{} creates, {} answers, {present} objects at the end, {KILLS} kills",
        objects.len(),
        ledger.answers.load(Ordering::Relaxed)
    );
    assert!(present > 0 && present < objects.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_is_clean_even_under_load() {
    let mut server = Server::start();
    let ledger = Arc::new(Ledger::default());
    let stopping = Arc::new(AtomicBool::new(false));
    let http = server.http().await;
    let mut watch = http.stream(&format!("{MAPS}?watch=true"), &[]).await;
    let writers: Vec<_> = (0..8)
        .map(|w| {
            let (http, ledger, stopping) = (http.clone(), ledger.clone(), stopping.clone());
            tokio::spawn(async move {
                for n in 0.. {
                    let token = format!("s-w{w}-{n}");
                    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": token, "labels": {"token": token}}, "data": {"value": "0"}});
                    ledger.sent(&token, ObjectState::Present(0));
                    match http.ask(Method::POST, MAPS, &[], object.to_string()).await {
                        Ok(answer) if answer.status == 201 => ledger.answered(&token, &answer),
                        other => {
                            assert!(stopping.load(Ordering::SeqCst), "refused before anyone stopped the server: {other:?}");
                            return;
                        }
                    }
                }
            })
        })
        .collect();
    tokio::task::block_in_place(|| {
        eventually("writes are answered", || {
            (ledger.answers.load(Ordering::Relaxed) > 100).then_some(())
        })
    });
    stopping.store(true, Ordering::SeqCst);
    let status = tokio::task::block_in_place(|| server.stop(Signal::SIGINT));
    assert_eq!(status.code(), Some(0), "{}", server.log());
    for writer in writers {
        writer.await.unwrap();
    }
    // The watch ends, it does not break.
    while watch.line().await.is_some() {}
    server.start_again();
    check(&server.http().await, &ledger, 0, 0).await;
    assert_eq!(server.stop(Signal::SIGTERM).code(), Some(0));
}

#[test]
fn a_restart_keeps_everything() {
    let mut server = Server::start();
    server.run("kubectl create namespace kept && kubectl create configmap -n kept c --from-literal=a=1 && kubectl create serviceaccount -n kept robot");
    server.run("kubectl create service clusterip -n kept s --tcp=80 && kubectl create clusterrolebinding robot --clusterrole=view --serviceaccount=kept:robot");
    let user = server.user("ann", &["system:masters"]);
    let token = server.run("kubectl create token -n kept robot");
    let before = (
        server.get("configmap -n kept c"),
        server.get("svc -n kept s"),
        server.get("ns"),
    );
    let port = server.url().rsplit(':').next().unwrap().to_string();
    assert_eq!(server.stop(Signal::SIGINT).code(), Some(0));
    assert!(server.fails("kubectl get ns").contains("refused"));
    // On the same port again, for the user's kubeconfig; ports are not reused so soon by anyone else.
    let mut server = server.relaunch(Launch::up().arg(format!("--port={port}")));
    assert_eq!(
        (
            server.get("configmap -n kept c"),
            server.get("svc -n kept s"),
            server.get("ns")
        ),
        before
    );
    // Keys are kept too: certificates and tokens of before are good.
    server.run_as(&user, "kubectl get nodes");
    let robot = server.bearer("robot", token.trim());
    server.run_as(&robot, "kubectl get pods -A");
    // Without the data they are not.
    server.kill();
    std::fs::remove_dir_all(server.data_dir()).unwrap();
    let server = server.relaunch(Launch::up().arg(format!("--port={port}")));
    assert!(server.sh_as(&user, "kubectl get nodes").code != Some(0));
    assert_eq!(server.run("kubectl get ns -o name | wc -l").trim(), "4");
}

/// Runs a start that must not succeed: its exit code and what it said.
fn failing(mut command: std::process::Command) -> (Option<i32>, String) {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let output = child.wait_with_output().unwrap();
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[test]
fn starts_that_cannot_succeed_say_why() {
    let server = Server::start();
    let (code, said) = failing(Launch::up().command(server.data_dir()));
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.starts_with("error: ")
            && said.contains("another")
            && said.contains(&server.data_dir().display().to_string()),
        "{said}"
    );
    // The one that runs is none the worse for it.
    server.run("kubectl create configmap still-here");

    let other = tempfile::tempdir().unwrap();
    let port = server.url().rsplit(':').next().unwrap().to_string();
    let (code, said) = failing(Launch::up().arg(format!("--port={port}")).command(other.path()));
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains(&format!("can't listen on 127.0.0.1:{port}")) && said.contains("--port"),
        "{said}"
    );

    let (code, said) = failing(Launch::up().command(Path::new("/proc/nowhere")));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("/proc/nowhere"), "{said}");

    for wrong in ["--port=99999", "--no-such-flag", "--service-cidr=nonsense"] {
        let (code, said) = failing(Launch::up().arg(wrong).command(other.path()));
        assert_eq!(code, Some(2), "{wrong}: {said}");
        assert!(said.contains(wrong.split('=').next().unwrap()), "{wrong}: {said}");
    }
    let mut bare = std::process::Command::new(orlop_testkit::orlop());
    bare.arg("nonsense");
    assert_eq!(failing(bare).0, Some(2));
}

/// A file system of its own, as small as a test wants it.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(path: PathBuf, megabytes: u32) -> SmallDisk {
        assert!(
            nix::unistd::geteuid().is_root(),
            "mounting a small disk needs root: run make test as root"
        );
        std::fs::create_dir_all(&path).unwrap();
        let options = format!("size={megabytes}m");
        let mount = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(&path)
            .status();
        assert!(
            mount.is_ok_and(|s| s.success()),
            "a tmpfs can't be mounted at {}: are we in a container without CAP_SYS_ADMIN?",
            path.display()
        );
        SmallDisk(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_full_disk_stops_writes_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let disk = SmallDisk::new(directory.path().join("disk"), 24);
    let filler = disk.0.join("filler");
    let mut server = Launch::up().data_dir(&disk.0.join("data")).start();
    std::fs::write(&filler, vec![0; 8 << 20]).unwrap();
    let http = server.http().await;
    let mut written = vec![];
    let map = |i: usize| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("big-{i}")}, "data": {"a": "x".repeat(200 << 10)}});
    let refused = loop {
        let answer = http.post(MAPS, &map(written.len())).await;
        if answer.status != 201 {
            break answer;
        }
        written.push(format!("big-{}", written.len()));
        assert!(written.len() < 200, "40 MB on a disk of 24");
    };
    assert!(refused.status.is_server_error(), "{refused:?}");
    let status = refused.json();
    assert_eq!(status["kind"], "Status");
    assert!(written.len() > 5, "{written:?}: {status:#}");

    // Not even a small write finds room now: else the server would find by itself that its disk works.
    let rest = disk.0.join("rest");
    assert!(std::fs::write(&rest, vec![0; 24 << 20]).is_err());
    assert!(http.post(MAPS, &map(999)).await.status.is_server_error());

    // Nothing of the refused write is there, everything before it is, and reads and watches go on.
    let names = async |http: &Http| -> BTreeSet<String> {
        let list = http.get(MAPS).await.expect(200);
        let names = list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|i| i["metadata"]["name"].as_str().unwrap().to_string());
        names.filter(|n| n.starts_with("big-")).collect()
    };
    let expected: BTreeSet<String> = written.iter().cloned().collect();
    assert_eq!(names(&http).await, expected);
    let mut watch = http
        .stream(&format!("{MAPS}?watch=true&fieldSelector=metadata.name%3Dafter"), &[])
        .await;
    assert_eq!(http.get("/livez").await.status, 200);
    let readyz = http.get("/readyz").await;
    assert_eq!(readyz.status, 500);
    for failing in ["log", "etcd-readiness"] {
        let line = format!("[-]{failing} failed");
        assert!(readyz.text().contains(&line), "{}", readyz.text());
        assert_eq!(http.get(&format!("/readyz/{failing}")).await.status, 500);
    }
    for passing in ["/readyz/etcd", "/livez/log", "/healthz/log", "/livez/etcd"] {
        assert_eq!(http.get(passing).await.status, 200, "{passing}");
    }
    let statuses = server.run("kubectl get componentstatuses etcd-0 --no-headers 2>/dev/null");
    assert!(statuses.contains("Unhealthy"), "{statuses}");
    for _ in 0..3 {
        assert!(http.post(MAPS, &map(999)).await.status.is_server_error());
    }

    // Space again: writes again, with no restart.
    std::fs::remove_file(&filler).unwrap();
    std::fs::remove_file(&rest).unwrap();
    eventually("the server finds by itself that its disk works", || {
        server.sh("kubectl get --raw /readyz").succeeded().then_some(())
    });
    let after = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "after"}});
    let deadline = monotonic() + orlop_testkit::PATIENCE;
    while http.post(MAPS, &after).await.status != 201 {
        assert!(
            monotonic() < deadline,
            "still no writes after space was freed:\n{}",
            server.log()
        );
    }
    assert_eq!(watch.line().await.unwrap()["type"], "ADDED");

    // And all of it is still there after a crash.
    drop((http, watch));
    server.kill();
    server.start_again();
    let http = server.http().await;
    assert_eq!(names(&http).await, expected);
    http.get(&format!("{MAPS}/after")).await.expect(200);
    drop(server);
}

/// `orlop component`, for this server.
fn component(server: &Server, arguments: &str) -> String {
    let program = orlop_testkit::orlop();
    server.run(&format!(
        "{} component {arguments} --data-dir {}",
        program.display(),
        server.data_dir().display()
    ))
}

/// The state of a component as `orlop component ls` has it.
fn state_of(server: &Server, name: &str) -> String {
    let table = component(server, "ls");
    let row = table.lines().find(|line| line.split_whitespace().next() == Some(name));
    let row = row.unwrap_or_else(|| panic!("{name} is not listed:\n{table}"));
    row.split_whitespace().nth(1).unwrap().to_string()
}

/// Waits for a deployment's pods to be up, which takes controllers, scheduler and node.
fn deploys(server: &Server, name: &str) {
    server.run(&format!("kubectl create deployment {name} --image=nginx --replicas=2"));
    eventually("new pods run", || {
        let ready = server.run(&format!(
            "kubectl get deployment {name} -o jsonpath={{.status.readyReplicas}}"
        ));
        (ready == "2").then_some(())
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn components_that_panic_or_end_come_back_and_nothing_is_lost() {
    let launch = Launch::up()
        .arg("--nodes=1")
        .arg("--runtime=simulated")
        .arg("--simulate=2");
    let mut server = launch.start();
    server.expect_panics();
    deploys(&server, "before");
    let pods = "kubectl get pods -l app=before --sort-by=.metadata.uid \
                -o jsonpath='{range .items[*]}{.metadata.uid} {.status.containerStatuses[0].restartCount}{\"\\n\"}{end}'";
    let before = server.run(pods);
    let http = server.http().await;
    let all = [
        "scheduler",
        "controller-manager",
        "kubelet",
        "simulated-nodes",
        "housekeeping",
        "serving",
    ];
    for fault in ["panic", "end"] {
        all.iter()
            .for_each(|name| drop(component(&server, &format!("{fault} {name}"))));
        // Each is down for a second at least, and all that time it is seen.
        let mut seen = BTreeSet::new();
        let deadline = monotonic() + Duration::from_secs(30);
        loop {
            let readyz = http.get("/readyz").await;
            let failed = |name: &&&str| readyz.text().contains(&format!("[-]{name} failed"));
            seen.extend(all.iter().filter(failed).copied());
            if readyz.status == 200 && seen.len() == all.len() {
                break;
            }
            assert!(monotonic() < deadline, "{fault}: seen {seen:?}; {}", readyz.text());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let metrics = http.get("/metrics").await.text();
    for name in all {
        for line in [
            format!("orlop_component_restarts_total{{component=\"{name}\"}} 2\n"),
            format!("orlop_component_panics_total{{component=\"{name}\"}} 1\n"),
            format!("kubernetes_healthcheck{{name=\"{name}\",type=\"readyz\"}} 1\n"),
        ] {
            assert!(metrics.contains(&line), "{line}");
        }
    }
    deploys(&server, "after");
    assert_eq!(
        server.run(pods),
        before,
        "the pods of before are the same, and were not restarted"
    );
    let log = server.log();
    assert!(
        !log.contains("all nodes are NotReady") && !log.contains("made to leave"),
        "{log}"
    );
}

/// What a suspended laptop does. The lease is short, so that the stall can be, too.
#[test]
fn a_stall_of_the_process_costs_the_scheduler_its_lease_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("scheduler.yaml");
    let config = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n\
                  leaderElection: {leaderElect: true, leaseDuration: 2s, renewDeadline: 1s, retryPeriod: 500ms}\n";
    std::fs::write(&file, config).unwrap();
    let server = Launch::up()
        .arg("--simulate=1")
        .arg(format!("--scheduler-config={}", file.display()))
        .start();
    deploys(&server, "before");
    nix::sys::signal::kill(server.pid(), Signal::SIGSTOP).unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    nix::sys::signal::kill(server.pid(), Signal::SIGCONT).unwrap();
    let continued = monotonic();
    deploys(&server, "after");
    assert!(
        continued.elapsed() < Duration::from_secs(30),
        "{:?}",
        continued.elapsed()
    );
    eventually("the server is ready again", || {
        server.sh("kubectl get --raw /readyz").succeeded().then_some(())
    });
}

#[test]
fn components_are_left_out_stopped_and_started() {
    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = |listener: &std::net::TcpListener| listener.local_addr().unwrap().port();
    // One of the ports is taken by somebody else.
    let (scheduler, taken, healthz) = (free(), free(), free());
    let ports = [port(&scheduler), port(&taken), port(&healthz)];
    drop((scheduler, healthz));
    let server = Launch::up()
        .arg("--nodes=1")
        .arg("--runtime=simulated")
        .arg("--no-scheduler")
        .arg(format!("--scheduler-port={}", ports[0]))
        .arg(format!("--controller-manager-port={}", ports[1]))
        .arg(format!("--kubelet-healthz-port={}", ports[2]))
        .start();
    assert_eq!(state_of(&server, "scheduler"), "stopped");
    assert_eq!(state_of(&server, "controller-manager"), "running");
    assert_eq!(
        server.run("kubectl get --raw /readyz"),
        "ok",
        "nothing is wrong with what nobody wants"
    );
    let status = |name: &str| server.run(&format!("kubectl get cs {name} --no-headers 2>/dev/null"));
    assert!(
        status("scheduler").contains("connection refused"),
        "{}",
        status("scheduler")
    );
    assert!(status("controller-manager").contains("Healthy"));
    eventually("the taken port is reported", || {
        server
            .log()
            .contains("failed to serve health and metrics of a component")
            .then_some(())
    });
    eventually("the node agent says that it is healthy", || {
        let asked = server.sh(&format!("curl -sf http://127.0.0.1:{}/healthz", ports[2]));
        asked.succeeded().then_some(())
    });

    eventually("the account of pods", || {
        server.sh("kubectl get sa default").succeeded().then_some(())
    });
    server.run("kubectl run p --image=nginx");
    component(&server, "start scheduler");
    server.run("kubectl wait --for=condition=Ready pod/p --timeout=60s");
    assert_eq!(
        status("scheduler").split_whitespace().collect::<Vec<_>>(),
        ["scheduler", "Healthy", "ok"]
    );
    // Its metrics are for those whom the cluster lets see them.
    let identity = server.identity();
    let (certificate, key) = identity.certificate.unwrap();
    for (name, pem) in [
        ("ca.crt", &identity.ca),
        ("admin.crt", &certificate),
        ("admin.key", &key),
    ] {
        std::fs::write(server.home().join(name), pem).unwrap();
    }
    let at = format!("--cacert ca.crt https://127.0.0.1:{}", ports[0]);
    let metrics = eventually("the scheduler serves", || {
        let asked = server.sh(&format!("curl -sf --cert admin.crt --key admin.key {at}/metrics"));
        asked.succeeded().then(|| asked.ok())
    });
    assert!(metrics.contains("scheduler_schedule_attempts_total"), "{metrics}");
    assert_eq!(server.run(&format!("curl -s {at}/healthz")), "ok");
    assert_eq!(
        server.run(&format!("curl -s -o /dev/null -w '%{{http_code}}' {at}/metrics")),
        "403"
    );

    component(&server, "stop scheduler");
    assert_eq!(state_of(&server, "scheduler"), "stopped");
    server.fails(&format!("curl -s {at}/healthz"));
    server.run("kubectl run q --image=nginx");
    component(&server, "stop kubelet");
    component(&server, "start scheduler");
    component(&server, "start kubelet");
    server.run("kubectl wait --for=condition=Ready pod/p pod/q --timeout=60s");
    let program = orlop_testkit::orlop();
    let refused = server.fails(&format!(
        "{} component stop etcd --data-dir {}",
        program.display(),
        server.data_dir().display()
    ));
    assert!(
        refused.contains("there are: ") && refused.contains("scheduler"),
        "{refused}"
    );
}

//! The scheduler extended without rebuilding it: extenders behind HTTP, and further schedulers beside the first (S13, S15).

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use orlop_testkit::{Http, Launch, Server, add_node, eventually, orlop};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// What the extender does with pods.
const OPEN: u8 = 0;
/// No node will do.
const CLOSED: u8 = 1;
/// Answers with an error.
const BROKEN: u8 = 2;

/// Keeps pods off n1, likes n3 best, and binds by itself.
struct Extender {
    mode: AtomicU8,
    /// Verb and arguments of each call.
    calls: Mutex<Vec<(String, Value)>>,
    api: Http,
}

impl Extender {
    /// Serves on a free port of this machine until the test ends.
    async fn start(api: Http, port: TcpListener) -> Arc<Extender> {
        let extender = Arc::new(Extender {
            mode: AtomicU8::new(OPEN),
            calls: Mutex::default(),
            api,
        });
        let serving = extender.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = port.accept().await {
                let extender = serving.clone();
                let answer = service_fn(move |request| answer(extender.clone(), request));
                tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        extender
    }

    fn set(&self, mode: u8) {
        self.mode.store(mode, Ordering::SeqCst);
    }

    fn calls(&self, verb: &str, pod: &str) -> Vec<Value> {
        let about = |args: &Value| args["Pod"]["metadata"]["name"] == pod || args["PodName"] == pod;
        let calls = self.calls.lock().unwrap();
        (calls.iter())
            .filter(|(v, args)| v == verb && about(args))
            .map(|(_, args)| args.clone())
            .collect()
    }

    async fn reply(&self, verb: &str, args: &Value) -> Value {
        match verb {
            "filter" => {
                let closed = self.mode.load(Ordering::SeqCst) == CLOSED;
                let names: Vec<String> = names(args);
                let (kept, failed): (Vec<String>, Vec<String>) =
                    names.into_iter().partition(|name| !closed && name != "n1");
                let reasons: Value = failed
                    .into_iter()
                    .map(|name| (name, json!("node(s) are closed today")))
                    .collect();
                match args["NodeNames"].is_null() {
                    false => json!({"NodeNames": kept, "FailedNodes": reasons}),
                    true => {
                        let all = args["Nodes"]["items"].as_array().unwrap();
                        let is_kept = |n: &&Value| kept.iter().any(|k| n["metadata"]["name"] == **k);
                        let nodes: Vec<&Value> = all.iter().filter(is_kept).collect();
                        json!({"Nodes": {"items": nodes}, "FailedNodes": reasons})
                    }
                }
            }
            "prioritize" => {
                let score = |name: &String| json!({"Host": name, "Score": if name == "n3" { 10 } else { 0 }});
                names(args).iter().map(score).collect()
            }
            "bind" => {
                let text = |key: &str| args[key].as_str().unwrap();
                let (namespace, name) = (text("PodNamespace"), text("PodName"));
                let binding = json!({"apiVersion": "v1", "kind": "Binding",
                    "metadata": {"name": name, "namespace": namespace, "uid": text("PodUID")},
                    "target": {"apiVersion": "v1", "kind": "Node", "name": text("Node")}});
                let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/binding");
                self.api.post(&path, &binding).await.expect(201);
                json!({"Error": ""})
            }
            other => panic!("nobody said that it serves {other:?}"),
        }
    }
}

/// The nodes in question, by name or whole.
fn names(args: &Value) -> Vec<String> {
    let text = |name: &Value| name.as_str().unwrap().to_string();
    match args["NodeNames"].as_array() {
        Some(names) => names.iter().map(text).collect(),
        None => {
            let nodes = args["Nodes"]["items"].as_array().unwrap();
            nodes.iter().map(|n| text(&n["metadata"]["name"])).collect()
        }
    }
}

async fn answer(extender: Arc<Extender>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let verb = request.uri().path().trim_start_matches("/scheduler/").to_string();
    let body = request.into_body().collect().await?.to_bytes();
    let args: Value = serde_json::from_slice(&body).expect("the scheduler sends JSON");
    extender.calls.lock().unwrap().push((verb.clone(), args.clone()));
    if extender.mode.load(Ordering::SeqCst) == BROKEN {
        let response = Response::builder().status(500).body(Full::new("out of order".into()));
        return Ok(response.unwrap());
    }
    let answer = extender.reply(&verb, &args).await;
    Ok(Response::new(Full::new(answer.to_string().into())))
}

/// `orlop up` with an extender that this describes beside its address, on three nodes.
async fn extended(more: &str) -> (Server, Arc<Extender>, tempfile::TempDir) {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = port.local_addr().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("scheduler.yaml");
    let text = format!(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nextenders:\n\
         - urlPrefix: http://{address}/scheduler\n{more}"
    );
    std::fs::write(&file, text).unwrap();
    let server = Launch::up()
        .arg(format!("--scheduler-config={}", file.display()))
        .start();
    await_account(&server);
    let http = server.http().await;
    for name in ["n1", "n2", "n3"] {
        add_node(&http, name, "4", "8Gi", &[]).await;
    }
    let extender = Extender::start(server.http().await, port).await;
    (server, extender, directory)
}

fn await_account(server: &Server) {
    eventually("the default account is there", || {
        (server.sh("kubectl get sa default").code == Some(0)).then_some(())
    });
}

fn apply(server: &Server, name: &str, spec: &Value) {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "nginx"}]}});
    for (key, value) in spec.as_object().into_iter().flatten() {
        pod["spec"][key] = value.clone();
    }
    server.run_with("kubectl apply -f -", &pod.to_string());
}

fn node_of(server: &Server, pod: &str) -> String {
    eventually(&format!("{pod} has a node"), || {
        let name = server.run(&format!("kubectl get pod {pod} -o jsonpath={{.spec.nodeName}}"));
        (!name.is_empty()).then_some(name)
    })
}

/// The condition PodScheduled once it is False: reason and message.
fn why_not(server: &Server, pod: &str) -> (String, String) {
    eventually(&format!("{pod} says why it waits"), || {
        let pod = server.get(&format!("pod {pod}"));
        let conditions = pod["status"]["conditions"].as_array()?.clone();
        let scheduled = conditions
            .into_iter()
            .find(|c| c["type"] == "PodScheduled" && c["status"] == "False")?;
        let text = |key: &str| scheduled[key].as_str().map(str::to_string);
        Some((text("reason")?, text("message")?))
    })
}

/// S15: an extender filters, scores and binds; when it fails, and may, the scheduler goes on without it.
#[tokio::test(flavor = "multi_thread")]
async fn an_extender_has_its_say() {
    let (server, extender, _directory) = extended(
        "  filterVerb: filter\n  prioritizeVerb: prioritize\n  bindVerb: bind\n  weight: 5\n  nodeCacheCapable: true\n  \
         ignorable: true\n",
    )
    .await;
    apply(&server, "first", &json!({}));
    assert_eq!(node_of(&server, "first"), "n3", "by score");
    let filter = extender.calls("filter", "first").remove(0);
    let mut asked = names(&filter);
    asked.sort();
    assert_eq!(
        (asked, &filter["Nodes"]),
        (vec!["n1".into(), "n2".into(), "n3".into()], &Value::Null)
    );
    assert_eq!(
        filter["Pod"]["spec"]["containers"][0]["image"], "nginx",
        "whole pods are sent"
    );
    let mut scored = names(&extender.calls("prioritize", "first").remove(0));
    scored.sort();
    assert_eq!(scored, ["n2", "n3"], "those that passed the filter");
    let bound = extender.calls("bind", "first");
    assert_eq!((bound.len(), &bound[0]["Node"]), (1, &json!("n3")));
    let event = eventually("an event tells", || {
        let line = "kubectl get events --field-selector reason=Scheduled,involvedObject.name=first \
                    -o jsonpath='{.items[0].message}'";
        Some(server.sh(line))
            .filter(|ran| ran.code == Some(0))
            .map(|ran| ran.stdout)
            .filter(|m| !m.is_empty())
    });
    assert_eq!(event, "Successfully assigned default/first to n3");

    extender.set(CLOSED);
    apply(&server, "late", &json!({}));
    let (reason, message) = why_not(&server, "late");
    assert_eq!(reason, "Unschedulable");
    assert!(
        message.starts_with("0/3 nodes are available: 3 node(s) are closed today."),
        "{message}"
    );
    extender.set(OPEN);
    server.run("kubectl label node n2 opened=yes");
    assert_eq!(node_of(&server, "late"), "n3");

    extender.set(BROKEN);
    apply(
        &server,
        "anyway",
        &json!({"nodeSelector": {"kubernetes.io/hostname": "n1"}}),
    );
    assert_eq!(node_of(&server, "anyway"), "n1", "nobody keeps it off now");
    assert_eq!(extender.calls("bind", "anyway").len(), 1, "it was asked, and failed");
}

/// One that must not fail, that wants whole nodes, and that cares for some pods only.
#[tokio::test(flavor = "multi_thread")]
async fn an_extender_of_some_pods_that_must_not_fail() {
    let (server, extender, _directory) = extended(
        "  filterVerb: filter\n  nodeCacheCapable: false\n  managedResources: [{name: example.com/gpu, \
         ignoredByScheduler: true}]\n",
    )
    .await;
    let gpu = json!({"containers": [{"name": "c", "image": "nginx", "resources": {
        "limits": {"example.com/gpu": "1"}}}]});
    apply(
        &server,
        "plain",
        &json!({"nodeSelector": {"kubernetes.io/hostname": "n1"}}),
    );
    assert_eq!(node_of(&server, "plain"), "n1");
    assert!(extender.calls("filter", "plain").is_empty(), "not its business");
    apply(&server, "gpu", &gpu);
    assert_ne!(node_of(&server, "gpu"), "n1");
    let call = extender.calls("filter", "gpu").remove(0);
    assert_eq!(call["NodeNames"], Value::Null);
    let nodes = call["Nodes"]["items"].as_array().unwrap();
    assert!(
        nodes.iter().all(|n| n["status"]["allocatable"]["cpu"] == "4"),
        "whole nodes are sent"
    );

    extender.set(BROKEN);
    apply(&server, "stuck", &gpu);
    let (reason, message) = why_not(&server, "stuck");
    assert_eq!(reason, "SchedulerError");
    assert!(
        message.contains("failed filter with extender at URL") && message.ends_with("code 500"),
        "{message}"
    );
    extender.set(OPEN);
    assert_ne!(node_of(&server, "stuck"), "n1", "it is tried again by itself");
}

/// A scheduler of its own process, killed with the value.
struct Process(Child);

impl Process {
    fn scheduler(server: &Server, config: &PathBuf, log: &str) -> Process {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(server.home().join(log))
            .unwrap();
        let child = Command::new(orlop())
            .args(["scheduler", "--secure-port=0", "--kubeconfig"])
            .arg(server.kubeconfig())
            .arg("--config")
            .arg(config)
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Process(child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// S13: a second scheduler as a process, with its own configuration, beside the one of `orlop up`.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_scheduler_beside_the_first() {
    let server = Server::at_work();
    let http = server.http().await;
    for name in ["n1", "n2"] {
        add_node(&http, name, "4", "8Gi", &[]).await;
    }
    let config = server.home().join("my-scheduler.yaml");
    std::fs::write(
        &config,
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n\
         leaderElection: {leaderElect: true, resourceNamespace: kube-system, resourceName: my-scheduler}\nprofiles:\n\
         - schedulerName: my-scheduler\n  plugins: {score: {disabled: [{name: '*'}], enabled: [{name: NodeResourcesFit}]}}\n  \
         pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated, \
         resources: [{name: cpu, weight: 1}]}}}]\n",
    )
    .unwrap();
    let asks = |by: &str| {
        json!({"schedulerName": by, "containers": [{"name": "c", "image": "nginx",
            "resources": {"requests": {"cpu": "500m"}}}]})
    };
    let (mine, theirs) = (asks("my-scheduler"), asks("default-scheduler"));
    // Nobody is there for it yet; the first scheduler leaves it alone.
    apply(&server, "mine-0", &mine);
    apply(&server, "theirs-0", &theirs);
    let first = node_of(&server, "theirs-0");
    assert_eq!(server.get("pod mine-0")["spec"]["nodeName"], Value::Null);

    let second = Process::scheduler(&server, &config, "second.log");
    assert_eq!(
        node_of(&server, "mine-0"),
        first,
        "it packs, and counts the other's pods"
    );
    for i in 1..4 {
        apply(&server, &format!("mine-{i}"), &mine);
        assert_eq!(node_of(&server, &format!("mine-{i}")), first);
    }
    apply(&server, "theirs-1", &theirs);
    assert_ne!(
        node_of(&server, "theirs-1"),
        first,
        "the other spreads, and counts these"
    );
    let events = eventually("events name the scheduler", || {
        let text = server.run("kubectl get events -o wide --no-headers --field-selector reason=Scheduled");
        (text.lines().count() >= 6).then_some(text)
    });
    for line in events.lines() {
        let by = if line.contains("pod/mine-") {
            "my-scheduler"
        } else {
            "default-scheduler"
        };
        assert!(line.contains(by), "{line}");
    }
    let leases = server.run("kubectl get leases -n kube-system -o name");
    assert!(leases.contains("lease.coordination.k8s.io/my-scheduler"), "{leases}");

    // Without it its pods wait, the others don't; a new one goes on where it was.
    drop(second);
    apply(&server, "mine-4", &mine);
    apply(&server, "theirs-2", &theirs);
    node_of(&server, "theirs-2");
    assert_eq!(server.get("pod mine-4")["spec"]["nodeName"], Value::Null);
    let _third = Process::scheduler(&server, &config, "second.log");
    node_of(&server, "mine-4");
    let log = std::fs::read_to_string(server.home().join("second.log")).unwrap();
    assert!(!log.contains("panicked"), "{log}");
}

/// A plugin that is not built in is refused by name at the start, as kube-scheduler does.
#[test]
fn a_plugin_that_is_not_there_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("scheduler.yaml");
    std::fs::write(
        &file,
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n\
         - schedulerName: my-scheduler-2\n  plugins: {score: {enabled: [{name: MyCustomPluginA}]}}\n",
    )
    .unwrap();
    let (data, written) = (directory.path().join("data"), directory.path().join("out.yaml"));
    let commands = [
        ("scheduler", "--config", "--write-config-to", written),
        ("up", "--scheduler-config", "--data-dir", data),
    ];
    let how_to = "docs/how-to/add-a-scheduler-plugin.md";
    for (command, flag, other, path) in commands {
        let mut refused = Command::new(orlop());
        let output = refused.args([command, flag]).arg(&file).arg(other).arg(path).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("MyCustomPluginA"), "{said}");
        assert!(said.contains(how_to), "{said}");
    }
    assert!(orlop_testkit::workspace_root().join(how_to).is_file());
}

/// The binary under the name of one of Kubernetes' is that component.
#[test]
fn a_link_with_a_name_of_kubernetes_is_that_command() {
    let directory = tempfile::tempdir().unwrap();
    let names = [
        "kube-apiserver",
        "kube-scheduler",
        "kube-controller-manager",
        "kubelet",
        "kube-proxy",
    ];
    for name in names {
        let link = directory.path().join(name);
        std::os::unix::fs::symlink(orlop(), &link).unwrap();
        let said = |argument: &str| {
            let output = Command::new(&link).arg(argument).output().unwrap();
            assert!(output.status.success(), "{name} {argument}");
            String::from_utf8(output.stdout).unwrap()
        };
        assert!(
            said("--help").contains(&format!("Usage: {name} [OPTIONS]")),
            "{}",
            said("--help")
        );
        assert!(
            said("--version").starts_with("Kubernetes v1.36."),
            "{}",
            said("--version")
        );
    }
    // And does what it says: the scheduler writes its configuration.
    let written = directory.path().join("scheduler.yaml");
    let status = Command::new(directory.path().join("kube-scheduler"))
        .arg("--write-config-to")
        .arg(&written)
        .status()
        .unwrap();
    assert!(status.success());
    let text = std::fs::read_to_string(written).unwrap();
    assert!(text.contains("kind: KubeSchedulerConfiguration"), "{text}");
}

/// A port that hangs up on whoever comes. Gives its kubeconfig and how many have come.
fn dead_server(directory: &std::path::Path, name: &str) -> (PathBuf, Arc<AtomicUsize>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = tries.clone();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            drop(connection);
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let kubeconfig = directory.join(format!("{name}.kubeconfig"));
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    });
    std::fs::write(&kubeconfig, text.to_string()).unwrap();
    (kubeconfig, tries)
}

/// Components whose API server is away say so, once each, while they go on trying.
#[test]
fn a_component_without_its_server_says_so_once() {
    let directory = tempfile::tempdir().unwrap();
    let all = ["scheduler", "controller-manager"].map(|command| {
        let (kubeconfig, tries) = dead_server(directory.path(), command);
        let log = directory.path().join(command);
        let file = std::fs::File::create(&log).unwrap();
        let child = Command::new(orlop())
            .args([command, "--secure-port=0", "--kubeconfig"])
            .arg(&kubeconfig)
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        (Process(child), tries, log)
    });
    for (_process, tries, log) in &all {
        // An election alone tries every few seconds; a scheduler's informers make that many tries in the first second.
        let wanted = if log.ends_with("scheduler") { 50 } else { 2 };
        eventually("it goes on trying", || {
            (tries.load(Ordering::Relaxed) >= wanted).then_some(())
        });
        let text = std::fs::read_to_string(log).unwrap();
        let loud: Vec<&str> = (text.lines())
            .filter(|l| l.contains("WARN") || l.contains("ERROR"))
            .collect();
        assert_eq!(loud.len(), 1, "{text}");
        assert!(loud[0].contains("failed to reach the API server; retrying"), "{text}");
    }
}

/// Whoever reads what a command prints may stop at any time.
#[test]
fn commands_end_quietly_when_nobody_reads() {
    let orlop = orlop();
    let line = format!(
        "exec 3> >(exec true); wait $!; {} bench scheduling --list >&3",
        orlop.display()
    );
    let output = Command::new("bash").args(["-ceu", &line]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), said.as_str()), (Some(0), ""));
}

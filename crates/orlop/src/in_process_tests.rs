//! Components of one process reach the API server without a socket, and meet the same chain as anybody.

use orlop_apiserver::{Config, Running, in_process};
use orlop_base::{Clock, Shutdown};
use orlop_client::{
    Api, Delta, Error, EventType, ListQuery, ObjectReference, Recorder, Selection, elect, leader, path, transport,
    watch,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

#[derive(Debug, Deserialize)]
struct Named {
    metadata: Meta,
}

#[derive(Debug, Deserialize)]
struct Meta {
    name: String,
}

async fn start(directory: &tempfile::TempDir) -> Running {
    let mut config = Config::new(directory.path().join("data"));
    config.port = 0;
    orlop_apiserver::start(config, Clock::System).await.unwrap()
}

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "v"}})
}

async fn next(deltas: &mut mpsc::Receiver<Delta<Named>>) -> String {
    loop {
        match deltas.recv().await.unwrap() {
            Delta::Reset(items) => {
                let names: Vec<String> = items.into_iter().map(|item| item.metadata.name).collect();
                return format!("={}", names.join(","));
            }
            Delta::Applied(item) => return format!("+{}", item.metadata.name),
            Delta::Deleted(item) => return format!("-{}", item.metadata.name),
            Delta::Bookmark(_) => {}
        }
    }
}

/// Creates, lists, watches, changes and deletes.
async fn walk_through(api: Api) {
    let path = path::collection("v1", Some("default"), "configmaps");
    let made: Value = api.create(&path, &config_map("a")).await.unwrap();
    assert_eq!(made["data"]["k"], "v");
    let again = api.create::<Value>(&path, &config_map("a")).await.unwrap_err();
    assert!(matches!(again, Error::AlreadyExists(_)), "{again:?}");

    let (sender, mut deltas) = mpsc::channel(4);
    let shutdown = Shutdown::default();
    let selection = Selection::all(path.clone()).with_fields("metadata.name!=kube-root-ca.crt");
    let watching = tokio::spawn(watch::<Named>(api.clone(), selection, sender, shutdown.clone()));
    assert_eq!(next(&mut deltas).await, "=a");
    for name in ["b", "c"] {
        api.create::<Value>(&path, &config_map(name)).await.unwrap();
        assert_eq!(next(&mut deltas).await, format!("+{name}"));
    }
    let one_by_one = ListQuery {
        limit: Some(1),
        field_selector: "metadata.name!=kube-root-ca.crt".into(),
        ..ListQuery::default()
    };
    let list = api.list::<Named>(&path, &one_by_one).await.unwrap();
    let names: Vec<String> = list.items.into_iter().map(|item| item.metadata.name).collect();
    assert_eq!(names, ["a", "b", "c"]);

    let object = path::object("v1", Some("default"), "configmaps", "b");
    let patched: Value = api.patch_merge(&object, &json!({"data": {"k": "w"}})).await.unwrap();
    assert_eq!(patched["data"]["k"], "w");
    assert_eq!(patched["metadata"]["managedFields"][0]["manager"], "test");
    assert_eq!(next(&mut deltas).await, "+b");
    let stale = api.replace::<Value>(&object, &made).await.unwrap_err();
    assert!(matches!(stale, Error::Invalid(_)), "another name: {stale:?}");
    for name in ["a", "b", "c"] {
        let object = path::object("v1", Some("default"), "configmaps", name);
        api.delete(&object, &Default::default()).await.unwrap();
        assert_eq!(next(&mut deltas).await, format!("-{name}"));
        let gone = api.get::<Value>(&object).await.unwrap_err();
        assert!(matches!(gone, Error::NotFound(_)), "{gone:?}");
    }
    shutdown.trigger();
    watching.await.unwrap();
}

#[tokio::test]
async fn components_of_one_process_reach_the_server_without_a_socket() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(&directory).await;
    walk_through(Api::in_process(admin(&running), "test/1")).await;

    // The scheduler may do what schedulers do, and no more.
    let scheduler = in_process::service(running.server.clone(), "system:kube-scheduler", &[]);
    let api = Api::in_process(scheduler, "scheduler");
    api.list::<Named>("/api/v1/nodes", &ListQuery::default()).await.unwrap();
    let refused = api.list::<Named>("/api/v1/secrets", &ListQuery::default()).await;
    assert_eq!(
        refused.unwrap_err().to_string(),
        "secrets is forbidden: User \"system:kube-scheduler\" cannot list resource \"secrets\" in API group \"\" at the cluster scope"
    );
    reports_and_leads(api, Api::in_process(admin(&running), "test")).await;
    over_tls(&running, directory.path()).await;
    running.stop().await;
}

fn admin(running: &Running) -> in_process::InProcess {
    in_process::service(running.server.clone(), "admin", &["system:masters"])
}

#[derive(Debug, Deserialize)]
struct Event {
    note: String,
    series: Option<Series>,
}

#[derive(Debug, Deserialize)]
struct Series {
    count: u32,
}

/// What the scheduler may write: events, repeated ones as a series, and its lease.
async fn reports_and_leads(scheduler: Api, admin: Api) {
    let shutdown = Shutdown::default();
    let (recorder, writing) = Recorder::start(scheduler.clone(), "default-scheduler", Clock::System, shutdown.clone());
    let event = |pod: &str, note: &str| orlop_client::Event {
        regarding: ObjectReference {
            api_version: "v1".into(),
            kind: "Pod".into(),
            namespace: "default".into(),
            name: pod.into(),
            ..ObjectReference::default()
        },
        related: None,
        kind: EventType::Normal,
        reason: "Scheduled".into(),
        action: "Binding".into(),
        note: note.into(),
    };
    for pod in ["a", "b"] {
        recorder.record(event(pod, &format!("assigned default/{pod}")));
    }
    recorder.record(event("a", "again"));
    shutdown.trigger();
    writing.await.unwrap();
    let path = path::collection("events.k8s.io/v1", Some("default"), "events");
    let events = admin.list::<Event>(&path, &ListQuery::default()).await.unwrap().items;
    let mut shown: Vec<String> = events
        .into_iter()
        .map(|event| format!("{} ×{}", event.note, event.series.map_or(1, |s| s.count)))
        .collect();
    shown.sort();
    // The series may have been there before the first event was: then it is written whole, in its own words.
    shown
        .iter_mut()
        .for_each(|line| *line = line.replace("again", "assigned default/a"));
    assert_eq!(shown, ["assigned default/a ×2", "assigned default/b ×1"]);

    let shutdown = Shutdown::default();
    let config = leader::Config {
        release_on_shutdown: true,
        ..leader::Config::new("kube-system", "kube-scheduler")
    };
    let identity = config.identity.clone();
    let mut election = elect(scheduler, config, shutdown.clone());
    assert!(election.acquired().await);
    let path = path::object(
        "coordination.k8s.io/v1",
        Some("kube-system"),
        "leases",
        "kube-scheduler",
    );
    let lease: Value = admin.get(&path).await.unwrap();
    assert_eq!(lease["spec"]["holderIdentity"], identity);
    shutdown.trigger();
    election.stopped().await;
    let lease: Value = admin.get(&path).await.unwrap();
    assert_eq!(lease["spec"]["holderIdentity"], "");
}

/// The same walk with a kubeconfig, through a socket.
async fn over_tls(running: &Running, directory: &std::path::Path) {
    let kubeconfig = running.pki.kubeconfig("https://nowhere.invalid:1", "test");
    let file = directory.join("kubeconfig");
    std::fs::write(&file, kubeconfig).unwrap();
    let master = format!("https://{}", running.address);
    let client = transport::from_kubeconfig(Some(&file), Some(&master), "test/1").await;
    walk_through(Api::new(client.unwrap(), "test")).await;
}

/// A node is marked as the control plane's when it appears, and again when another of its name takes its place.
#[tokio::test(flavor = "multi_thread")]
async fn the_control_planes_node_is_marked() {
    let directory = tempfile::tempdir().unwrap();
    let running = start(&directory).await;
    let admin = in_process::service(running.server.clone(), "admin", &["system:masters"]);
    let api = Api::in_process(admin, "test");
    let shutdown = Shutdown::default();
    let node = crate::cluster::ControlPlaneNode {
        name: "n1".into(),
        further_nodes: 2,
    };
    let marking = tokio::spawn(crate::cluster::mark(api.clone(), node, shutdown.clone()));
    let path = path::object("v1", None, "nodes", "n1");
    for _ in 0..2 {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
        let nodes = path::collection("v1", None, "nodes");
        api.create::<Value>(&nodes, &node).await.unwrap();
        let marked = loop {
            let node: Value = api.get(&path).await.unwrap();
            let labels = &node["metadata"]["labels"];
            if labels["node-role.kubernetes.io/control-plane"] == "" {
                break node;
            }
            tokio::task::yield_now().await;
        };
        let taints = marked["spec"]["taints"].as_array().unwrap();
        let ours = json!({"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"});
        assert!(taints.contains(&ours), "{taints:?}");
        api.delete(&path, &Default::default()).await.unwrap();
    }
    shutdown.trigger();
    marking.await.unwrap();
    running.stop().await;
}

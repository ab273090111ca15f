//! The whole agent with a simulated runtime, alone.

mod fake_logind;

use std::collections::BTreeMap;
use std::time::Duration;

use orlop_runtime::simulated::{self, Simulated};
use serde_json::{Value, json};

use super::*;
use crate::testing::until;
use fake_logind::FakeLogind;

struct Case {
    directory: tempfile::TempDir,
    runtime: Simulated,
    logind: Logind,
    pod_stop: PodStop,
    flags: Vec<(&'static str, Value)>,
}

impl Case {
    fn new() -> Case {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("manifests")).unwrap();
        let runtime = Simulated::new(simulated::Options {
            logs: true,
            ..simulated::Options::default()
        });
        // A bus that is not there.
        let logind = Logind {
            bus: Some(format!("unix:path={}/bus", directory.path().display())),
            settings: directory.path().join("logind.conf.d"),
        };
        Case {
            directory,
            runtime,
            logind,
            pod_stop: PodStop::default(),
            flags: Vec::new(),
        }
    }

    fn write(&self, file: &str, image: &str) {
        self.write_restarting(file, image, "Always");
    }

    fn write_restarting(&self, file: &str, image: &str, policy: &str) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": file.trim_end_matches(".json")},
            "spec": {
                "restartPolicy": policy, "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "c", "image": image}],
            },
        });
        std::fs::write(self.directory.path().join("manifests").join(file), pod.to_string()).unwrap();
    }

    async fn start(&self) -> Agent {
        let path = |name: &str| self.directory.path().join(name);
        let mut flags: Vec<(&'static str, Value)> = vec![
            ("staticPodPath", json!(path("manifests"))),
            ("podLogsDir", json!(path("logs"))),
            ("healthzPort", json!(0)),
            ("address", json!("127.0.0.1")),
        ];
        flags.extend(self.flags.iter().cloned());
        let options = Options {
            config: crate::config::parse(None, &flags).unwrap(),
            api: None,
            runtime: Arc::new(self.runtime.clone()),
            identity: Identity {
                name: "n1".into(),
                hostname: "n1".into(),
                addresses: vec!["127.0.0.1".parse().unwrap()],
                labels: BTreeMap::new(),
                port: 0,
            },
            root_dir: path("kubelet"),
            certificate: Certificate::Directory {
                directory: path("pki"),
                names: vec!["localhost".into()],
            },
            client_authority: None,
            pod_cidr: Some("10.244.0.0/24".into()),
            network: NetworkConfiguration::Foreign,
            effective_config: Some(path("kubelet/config.yaml")),
            control_groups: false,
            credential_providers: None,
            hosted: HostedPods::none(),
            logind: self.logind.clone(),
            pod_stop: Some(self.pod_stop.clone()),
            clock: Clock::System,
            shutdown: Shutdown::default(),
        };
        start(options).await.unwrap()
    }
}

/// Images and phases of all pods.
fn shown(agent: &Agent) -> String {
    let pods = agent.workers().pods();
    let words = pods.iter().map(|pod| {
        let image = pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap();
        let status = pod.status.clone().unwrap_or_default();
        let reason = status.reason.map(|reason| format!("/{reason}")).unwrap_or_default();
        format!("{image} {}{reason}", status.phase.unwrap_or_default())
    });
    let mut words: Vec<String> = words.collect();
    words.sort();
    words.join(", ")
}

async fn until_shown(agent: &Agent, expected: &str) {
    until("pods", || shown(agent), expected.to_string()).await;
}

#[tokio::test]
async fn a_static_pod_lives_through_a_restart_of_the_agent() {
    let case = Case::new();
    case.write("web.json", "one");
    let agent = case.start().await;
    let port = agent.address().unwrap().port();
    let shown_config = std::fs::read_to_string(case.directory.path().join("kubelet/config.yaml")).unwrap();
    assert!(
        port > 0 && shown_config.contains(&format!("\nport: {port}\n")),
        "{shown_config}"
    );
    until_shown(&agent, "one Running").await;
    let id = case.runtime.container_id("default/web-n1/c").unwrap();
    agent.shutdown.trigger();
    agent.wait().await;
    // Another kubelet process finds what runs and leaves it alone.
    let agent = case.start().await;
    until_shown(&agent, "one Running").await;
    assert_eq!(case.runtime.container_id("default/web-n1/c").unwrap(), id);
    // A broken file changes nothing, also once another, written after it, has been read.
    std::fs::write(case.directory.path().join("manifests/web.json"), "{\"apiVersion\":").unwrap();
    case.write("zoo.json", "other");
    until_shown(&agent, "one Running, other Running").await;
    case.write("web.json", "two");
    until_shown(&agent, "other Running, two Running").await;
    for file in ["web.json", "zoo.json"] {
        std::fs::remove_file(case.directory.path().join("manifests").join(file)).unwrap();
    }
    until_shown(&agent, "").await;
    agent.shutdown.trigger();
    agent.wait().await;
}

#[tokio::test]
async fn pods_end_before_the_machine_does() {
    let mut case = Case::new();
    let bus = FakeLogind::start(case.directory.path(), &case.logind.settings).await;
    case.logind.bus = Some(bus.daemon.address.clone());
    case.flags.push(("shutdownGracePeriod", json!("90s")));
    case.flags.push(("shutdownGracePeriodCriticalPods", json!("30s")));
    case.write("web.json", "one");
    let agent = case.start().await;
    until_shown(&agent, "one Running").await;
    // Logind waited too short: it was told, and then the lock taken.
    bus.until_held(true).await;
    assert_eq!(bus.delay(), Duration::from_secs(90));
    bus.signal(true).await;
    bus.until_held(false).await;
    // All had ended by then.
    assert_eq!(shown(&agent), "one Failed/Terminated");
    assert!(agent.keeper().is_shutting_down());
    case.write("late.json", "two");
    until_shown(&agent, "one Failed/Terminated, two Failed/NodeShutdown").await;
    // Called off: the node takes pods again, and holds up the machine again.
    bus.signal(false).await;
    bus.until_held(true).await;
    assert!(!agent.keeper().is_shutting_down());
    case.write("again.json", "three");
    until_shown(&agent, "one Failed/Terminated, three Running, two Failed/NodeShutdown").await;
    agent.shutdown.trigger();
    agent.wait().await;
    assert!(!bus.is_held());
}

#[tokio::test]
async fn pods_are_stopped_before_the_process_and_go_on_after_it() {
    let mut case = Case::new();
    case.write("web.json", "one");
    case.write_restarting("job.json", "two", "OnFailure");
    let agent = case.start().await;
    until_shown(&agent, "one Running, two Running").await;
    let id = case.runtime.container_id("default/web-n1/c").unwrap();
    case.pod_stop.request(None);
    // The kubelet counts its pods before anything is over.
    until("pods that are left", || case.pod_stop.remaining(), 0).await;
    case.pod_stop.finished().await;
    assert!(
        !agent
            .workers()
            .views()
            .iter()
            .any(|view| view.observed.running().next().is_some())
    );
    assert_eq!(shown(&agent), "one Running, two Failed/Terminated");
    // Nothing is started any more.
    case.write("late.json", "three");
    until_shown(&agent, "one Running, three Pending, two Failed/Terminated").await;
    agent.shutdown.trigger();
    agent.wait().await;
    case.pod_stop = PodStop::default();
    let agent = case.start().await;
    let runs = || {
        case.runtime
            .container_id("default/web-n1/c")
            .is_some_and(|now| now != id)
    };
    until("a new container", runs, true).await;
    // Without an API server nobody remembers what became of the other.
    until_shown(&agent, "one Running, three Running, two Running").await;
    agent.shutdown.trigger();
    agent.wait().await;
}

#[tokio::test]
async fn a_machine_without_a_bus_has_pods_too() {
    let mut case = Case::new();
    case.flags.push(("shutdownGracePeriod", json!("90s")));
    case.write("web.json", "one");
    let agent = case.start().await;
    until_shown(&agent, "one Running").await;
    let error = logind::Logind::connect(&case.logind).await.err().unwrap();
    assert!(
        error.to_string().starts_with("failed to connect to systemd-logind: "),
        "{error}"
    );
    agent.shutdown.trigger();
    agent.wait().await;
}

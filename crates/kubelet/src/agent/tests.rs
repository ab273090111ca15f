//! The whole agent with a simulated runtime, alone.

use std::collections::BTreeMap;
use std::time::Duration;

use orlop_runtime::simulated::{self, Simulated};
use serde_json::{Value, json};

use super::*;

struct Case {
    directory: tempfile::TempDir,
    runtime: Simulated,
}

impl Case {
    fn new() -> Case {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("manifests")).unwrap();
        let runtime = Simulated::new(simulated::Options {
            logs: true,
            ..simulated::Options::default()
        });
        Case { directory, runtime }
    }

    fn write(&self, file: &str, image: &str) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": file.trim_end_matches(".json")},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": image}]},
        });
        std::fs::write(self.directory.path().join("manifests").join(file), pod.to_string()).unwrap();
    }

    async fn start(&self) -> Agent {
        let path = |name: &str| self.directory.path().join(name);
        let flags: Vec<(&'static str, Value)> = vec![
            ("staticPodPath", json!(path("manifests"))),
            ("podLogsDir", json!(path("logs"))),
            ("healthzPort", json!(0)),
            ("address", json!("127.0.0.1")),
        ];
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
            certificate: Certificate::Directory(path("pki"), vec!["localhost".into()]),
            client_authority: None,
            pod_cidr: Some("10.244.0.0/24".into()),
            network_directory: None,
            control_groups: false,
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
        let phase = pod.status.as_ref().and_then(|s| s.phase.clone()).unwrap_or_default();
        format!("{image} {phase}")
    });
    let mut words: Vec<String> = words.collect();
    words.sort();
    words.join(", ")
}

async fn until(agent: &Agent, wanted: &str) {
    let waited = tokio::time::timeout(Duration::from_secs(60), async {
        while shown(agent) != wanted {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(waited.await.is_ok(), "{wanted:?} wanted, this is {:?}", shown(agent));
}

#[tokio::test]
async fn a_static_pod_lives_through_a_restart_of_the_agent() {
    let case = Case::new();
    case.write("web.json", "one");
    let agent = case.start().await;
    assert!(agent.address().unwrap().port() > 0);
    until(&agent, "one Running").await;
    let id = case.runtime.container_id("default/web-n1/c").unwrap();
    agent.shutdown.trigger();
    agent.wait().await;
    // Another agent finds what runs and leaves it alone.
    let agent = case.start().await;
    until(&agent, "one Running").await;
    assert_eq!(case.runtime.container_id("default/web-n1/c").unwrap(), id);
    // A broken file changes nothing, also once another, written after it, has been read.
    std::fs::write(case.directory.path().join("manifests/web.json"), "{\"apiVersion\":").unwrap();
    case.write("zoo.json", "other");
    until(&agent, "one Running, other Running").await;
    case.write("web.json", "two");
    until(&agent, "other Running, two Running").await;
    for file in ["web.json", "zoo.json"] {
        std::fs::remove_file(case.directory.path().join("manifests").join(file)).unwrap();
    }
    until(&agent, "").await;
    agent.shutdown.trigger();
    agent.wait().await;
}

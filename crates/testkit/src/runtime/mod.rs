//! What runs the containers of a test's node: the embedded runtime, or a containerd of the test's own. Tests of nodes have
//! one body for both.

mod embedded;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use orlop_runtime::Runtime;
use orlop_runtime::cri::CriRuntime;
use serde_json::{Value, json};

use crate::containerd::Containerd;
use crate::{AgentHome, Launch, Leftovers, network};
use embedded::EmbeddedRuntime;

/// Chooses the runtime that tests use which are about none in particular.
const VARIABLE: &str = "ORLOP_TEST_RUNTIME";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestRuntime {
    Embedded,
    Containerd,
}

impl TestRuntime {
    /// The one for tests that are about none in particular: embedded, as users have it, or what `ORLOP_TEST_RUNTIME` says.
    pub fn of_suite() -> TestRuntime {
        match std::env::var(VARIABLE).as_deref() {
            Err(_) | Ok("" | "embedded") => TestRuntime::Embedded,
            Ok("containerd") => TestRuntime::Containerd,
            Ok(other) => panic!("{VARIABLE} is embedded or containerd, not {other:?}"),
        }
    }
}

/// A runtime with images and a pod network, and the files and cgroups of the agent that is to use it. Dropping it ends and
/// takes away what is left of its containers, also after a failed test.
pub struct NodeRuntime {
    inner: Inner,
    // Last: the cgroups are empty when the containers are gone.
    home: AgentHome,
}

enum Inner {
    Embedded(EmbeddedRuntime),
    Containerd(Box<Containerd>),
}

impl NodeRuntime {
    /// In a network of the calling thread's own, which it enters. Servers and clients are to be started from the same
    /// thread.
    pub fn start(kind: TestRuntime) -> NodeRuntime {
        let runtime = NodeRuntime::start_without_network(kind);
        if let Inner::Containerd(containerd) = &runtime.inner {
            containerd.write_network();
        }
        runtime
    }

    /// The same, for an agent that makes the pod network itself. (The embedded runtime always has its own.)
    pub fn start_without_network(kind: TestRuntime) -> NodeRuntime {
        network::enter_private_network();
        let home = AgentHome::new();
        let inner = match kind {
            TestRuntime::Embedded => Inner::Embedded(EmbeddedRuntime::new(home.cgroup())),
            TestRuntime::Containerd => Inner::Containerd(Box::new(Containerd::start())),
        };
        NodeRuntime { inner, home }
    }

    pub fn kind(&self) -> TestRuntime {
        match &self.inner {
            Inner::Embedded(_) => TestRuntime::Embedded,
            Inner::Containerd(_) => TestRuntime::Containerd,
        }
    }

    /// What it calls itself, as in the ids of containers in statuses: `NAME://…`
    pub fn name(&self) -> &'static str {
        match &self.inner {
            Inner::Embedded(_) => "orlop",
            Inner::Containerd(_) => "containerd",
        }
    }

    pub fn home(&self) -> &AgentHome {
        &self.home
    }

    /// For what only containerd has.
    pub fn containerd(&self) -> Option<&Containerd> {
        match &self.inner {
            Inner::Embedded(_) => None,
            Inner::Containerd(containerd) => Some(containerd),
        }
    }

    pub fn containerd_mut(&mut self) -> Option<&mut Containerd> {
        match &mut self.inner {
            Inner::Embedded(_) => None,
            Inner::Containerd(containerd) => Some(containerd),
        }
    }

    /// The range of its pods.
    pub fn pod_range(&self) -> String {
        match &self.inner {
            Inner::Embedded(_) => embedded::POD_RANGE.to_string(),
            Inner::Containerd(containerd) => containerd.pod_range(),
        }
    }

    /// `orlop up` with a node `real` that runs its containers with this, and with these fields in the agent's
    /// configuration.
    pub fn launch(&self, config: Value) -> Launch {
        let launch = Launch::up()
            .arg("--nodes=1")
            .arg("--node-name=real")
            .arg(format!("--pod-cidr={}", self.pod_range()))
            .arg(format!("--kubelet-config={}", self.write_config(config).display()));
        match &self.inner {
            Inner::Embedded(embedded) => launch.arg("--runtime=embedded").data_dir(&embedded.data_dir()),
            Inner::Containerd(containerd) => launch.arg(format!("--runtime=cri:{}", containerd.endpoint())),
        }
    }

    /// Clusters of several tests share this machine: cgroups and logs of their own keep them apart.
    fn write_config(&self, more: Value) -> PathBuf {
        let mut config = json!({"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "cgroupRoot": format!("/{}", self.home.cgroup()), "podLogsDir": self.home.path().join("logs"),
            "healthzPort": 0, "failSwapOn": false, "clusterDomain": "cluster.local",
            // Whatever else fills this machine's disk.
            "evictionHard": {"memory.available": "10Mi"}, "imageGCHighThresholdPercent": 100});
        for (key, value) in more.as_object().into_iter().flatten() {
            config[key] = value.clone();
        }
        let file = self.home.path().join("kubelet.yaml");
        std::fs::write(&file, config.to_string()).expect("a writable directory");
        file
    }

    /// The runtime itself, for tests without a server.
    pub async fn connect(&self) -> Arc<dyn Runtime> {
        match &self.inner {
            Inner::Embedded(embedded) => embedded.open().await,
            Inner::Containerd(containerd) => {
                Arc::new(CriRuntime::connect(&containerd.endpoint()).expect("a path of ours"))
            }
        }
    }

    /// What there is of sandboxes and containers and of what they were made of.
    pub fn leftovers(&self) -> Leftovers {
        match &self.inner {
            Inner::Embedded(embedded) => embedded.leftovers(),
            Inner::Containerd(containerd) => containerd.leftovers(),
        }
    }

    /// Whether a purge has left of a data directory only the images that a test put there.
    pub fn is_purged(&self, data_dir: &Path) -> bool {
        let left = std::fs::read_dir(data_dir).into_iter().flatten().flatten();
        left.into_iter().all(|entry| entry.file_name() == "images")
    }

    /// Ids of sandboxes and containers that have processes.
    pub fn running(&self) -> Vec<String> {
        match &self.inner {
            Inner::Embedded(embedded) => embedded.running(),
            Inner::Containerd(containerd) => containerd.running(),
        }
    }

    /// Where the address of a pod is noted as long as the pod has it.
    pub fn lease(&self, address: &str) -> PathBuf {
        match &self.inner {
            Inner::Embedded(embedded) => embedded.data_dir().join("network/addresses").join(address),
            Inner::Containerd(_) => Path::new("/var/lib/cni/networks/orlop").join(address),
        }
    }
}

//! Hosted pods: parts of the process that the kubelet itself is a part of, shown as static pods.
//!
//! The process runs them and says how they are; the kubelet gives them mirror pods, reports their status and serves their
//! logs. They have no worker and no container: nothing is admitted, started, probed, measured or evicted.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use orlop_api::types::core::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus, HostIP,
    Pod, PodCondition, PodIP, PodStatus,
};
use orlop_api::types::meta::Time;
use orlop_base::clock::rfc3339;
use serde_json::Value;
use tokio::sync::watch;

use crate::logs::Source;
use crate::pod::policy;
use crate::pod::status::whole_seconds;
use crate::pod::writer::Writer;
use crate::sources::Origin;
use crate::sources::manifest::{self, ManifestSource, SourceError};
use crate::stats::host::ProcessUsage;
use crate::stats::summary::{ContainerStats, Cpu, Memory, PodRef, PodStats};

/// A part of this process as a pod with one container.
#[derive(Clone, Debug, PartialEq)]
pub struct HostedPod {
    /// As [`static_pod`] makes it; the same for as long as the process runs.
    pub pod: Arc<Pod>,
    /// When the process started it first.
    pub created: Timestamp,
    pub state: HostedState,
    /// Since when it is in this state.
    pub since: Timestamp,
    /// `runtime://id`
    pub container_id: String,
    pub restarts: u64,
    pub last_end: Option<HostedEnd>,
    /// What the process as a whole uses is reported as this one's: its parts can't be told apart.
    pub stands_for_process: bool,
    /// Where it logs to, in the CRI's format, and where it did before it was started again.
    pub log: PathBuf,
    pub previous_log: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostedState {
    Running {
        started: Timestamp,
        is_ready: bool,
    },
    /// It ended, and will be started again.
    BackOff {
        message: String,
    },
}

impl HostedState {
    pub fn is_running(&self) -> bool {
        matches!(self, HostedState::Running { .. })
    }
}

/// How a part of the process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostedEnd {
    pub started: Timestamp,
    pub ended: Timestamp,
    pub exit_code: i32,
    pub message: String,
    pub container_id: String,
}

/// The hosted pods as they are now. Cheap to clone.
#[derive(Clone)]
pub struct HostedPods(watch::Receiver<Vec<HostedPod>>);

impl HostedPods {
    /// Whoever has the sender says what there is.
    pub fn channel() -> (watch::Sender<Vec<HostedPod>>, HostedPods) {
        let (sender, receiver) = watch::channel(Vec::new());
        (sender, HostedPods(receiver))
    }

    /// Where nothing is hosted.
    pub fn none() -> HostedPods {
        HostedPods::channel().1
    }

    pub fn all(&self) -> Vec<HostedPod> {
        self.0.borrow().clone()
    }

    pub(crate) fn static_pods(&self) -> Vec<Arc<Pod>> {
        self.0.borrow().iter().map(|hosted| hosted.pod.clone()).collect()
    }

    pub fn find(&self, namespace: &str, name: &str) -> Option<HostedPod> {
        let all = self.0.borrow();
        let is_it =
            |hosted: &&HostedPod| (policy::namespace(&hosted.pod), policy::name(&hosted.pod)) == (namespace, name);
        all.iter().find(is_it).cloned()
    }

    /// Waits for a change; without end if there is none to come.
    pub(crate) async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Whether a followed log may grow.
pub(crate) struct HostedLogSource {
    pub pods: HostedPods,
    pub namespace: String,
    pub name: String,
}

#[async_trait]
impl Source for HostedLogSource {
    async fn is_running(&self) -> bool {
        let hosted = self.pods.find(&self.namespace, &self.name);
        hosted.is_some_and(|hosted| hosted.state.is_running())
    }
}

/// A manifest as a static pod of this node, named and marked like those of files.
pub fn static_pod(manifest: &Value, node: &str, now: Timestamp) -> Result<Pod, SourceError> {
    let source = ManifestSource {
        origin: Origin::Process,
        name: "",
        node,
    };
    manifest::pod(manifest.to_string().as_bytes(), &source, now)
}

impl HostedPod {
    /// What the API says of it, on a node with these addresses.
    pub fn status(&self, addresses: &[IpAddr]) -> PodStatus {
        let ips: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let is_ready = matches!(self.state, HostedState::Running { is_ready: true, .. });
        PodStatus {
            phase: Some("Running".into()),
            conditions: Some(self.conditions(is_ready)),
            host_ip: ips.first().cloned(),
            host_ips: Some(ips.iter().map(|ip| HostIP { ip: ip.clone() }).collect()),
            pod_ip: ips.first().cloned(),
            pod_ips: Some(ips.into_iter().map(|ip| PodIP { ip }).collect()),
            start_time: Some(time(self.created)),
            qos_class: Some("BestEffort".into()),
            container_statuses: Some(self.container_status(is_ready).into_iter().collect()),
            ..PodStatus::default()
        }
    }

    /// The pod with its status.
    pub fn with_status(&self, addresses: &[IpAddr]) -> Pod {
        let mut pod = Pod::clone(&self.pod);
        pod.status = Some(self.status(addresses));
        pod
    }

    /// What it uses; none if that is not known of it alone.
    pub(crate) fn usage(&self, process: &ProcessUsage, now: Timestamp) -> Option<PodStats> {
        let HostedState::Running { started, .. } = self.state else {
            return None;
        };
        let time = rfc3339(now);
        let cpu = Cpu {
            time: time.clone(),
            usage_core_nano_seconds: Some(process.cpu_nanoseconds),
            ..Cpu::default()
        };
        let memory = Memory {
            time,
            usage_bytes: Some(process.resident_bytes),
            working_set_bytes: Some(process.resident_bytes),
            rss_bytes: Some(process.resident_bytes),
            ..Memory::default()
        };
        let container = ContainerStats {
            name: self.container_name().to_string(),
            start_time: rfc3339(started),
            cpu: Some(cpu.clone()),
            memory: Some(memory.clone()),
            id: self.container_id.clone(),
            ..ContainerStats::default()
        };
        self.stands_for_process.then(|| PodStats {
            pod_ref: PodRef {
                name: policy::name(&self.pod).to_string(),
                namespace: policy::namespace(&self.pod).to_string(),
                uid: policy::uid(&self.pod).to_string(),
            },
            start_time: rfc3339(self.created),
            containers: vec![container],
            cpu: Some(cpu),
            memory: Some(memory),
            ..PodStats::default()
        })
    }

    fn conditions(&self, is_ready: bool) -> Vec<PodCondition> {
        let condition = |type_: &str, yes: bool, since: Timestamp| PodCondition {
            type_: type_.into(),
            status: if yes { "True" } else { "False" }.into(),
            last_transition_time: Some(time(since)),
            ..PodCondition::default()
        };
        let readiness = |type_: &str| PodCondition {
            reason: (!is_ready).then(|| "ContainersNotReady".into()),
            message: (!is_ready).then(|| format!("containers with unready status: [{}]", self.container_name())),
            ..condition(type_, is_ready, self.since)
        };
        vec![
            condition("PodReadyToStartContainers", true, self.created),
            condition("Initialized", true, self.created),
            readiness("Ready"),
            readiness("ContainersReady"),
            condition("PodScheduled", true, self.created),
        ]
    }

    fn container_name(&self) -> &str {
        let first = policy::spec(&self.pod).containers.first();
        first.map_or("", |container| container.name.as_str())
    }

    fn container_status(&self, is_ready: bool) -> Option<ContainerStatus> {
        let container = policy::spec(&self.pod).containers.first()?;
        let state = match &self.state {
            HostedState::Running { started, .. } => ContainerState {
                running: Some(ContainerStateRunning {
                    started_at: Some(time(*started)),
                }),
                ..ContainerState::default()
            },
            HostedState::BackOff { message } => ContainerState {
                waiting: Some(ContainerStateWaiting {
                    reason: Some("CrashLoopBackOff".into()),
                    message: Some(message.clone()),
                }),
                ..ContainerState::default()
            },
        };
        let ended = self.last_end.as_ref().map(|end| ContainerState {
            terminated: Some(ContainerStateTerminated {
                exit_code: end.exit_code,
                reason: Some("Error".into()),
                message: Some(end.message.clone()),
                started_at: Some(time(end.started)),
                finished_at: Some(time(end.ended)),
                container_id: Some(end.container_id.clone()),
                ..ContainerStateTerminated::default()
            }),
            ..ContainerState::default()
        });
        Some(ContainerStatus {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            container_id: Some(self.container_id.clone()),
            ready: is_ready,
            started: Some(self.state.is_running()),
            restart_count: i32::try_from(self.restarts).unwrap_or(i32::MAX),
            state: Some(state),
            last_state: Some(ended.unwrap_or_default()),
            ..ContainerStatus::default()
        })
    }
}

fn time(at: Timestamp) -> Time {
    Time(whole_seconds(at))
}

/// Reports the status of hosted pods whenever it changes.
pub(crate) async fn report(mut pods: HostedPods, addresses: Vec<IpAddr>, writer: Writer) {
    let mut known: Vec<Arc<Pod>> = Vec::new();
    loop {
        let all = pods.all();
        for hosted in &all {
            writer.set(&hosted.pod, &hosted.status(&addresses), false);
        }
        let is_gone = |pod: &&Arc<Pod>| !all.iter().any(|hosted| policy::uid(&hosted.pod) == policy::uid(pod));
        known
            .iter()
            .filter(is_gone)
            .for_each(|pod| writer.forget(policy::uid(pod)));
        known = all.into_iter().map(|hosted| hosted.pod).collect();
        pods.changed().await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn hosted(state: HostedState) -> HostedPod {
        let manifest = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "kube-scheduler", "namespace": "kube-system"},
            "spec": {"hostNetwork": true, "containers": [{"name": "kube-scheduler", "image": "i"}]},
        });
        HostedPod {
            pod: Arc::new(static_pod(&manifest, "n1", at(1)).unwrap()),
            created: at(1),
            state,
            since: at(5),
            container_id: "orlop://x".into(),
            restarts: 2,
            last_end: Some(HostedEnd {
                started: at(1),
                ended: at(4),
                exit_code: 2,
                message: "panicked: x".into(),
                container_id: "orlop://w".into(),
            }),
            stands_for_process: true,
            log: "/l".into(),
            previous_log: "/p".into(),
        }
    }

    #[test]
    fn they_are_static_pods_of_the_node() {
        let pod = hosted(HostedState::BackOff { message: "m".into() }).pod;
        assert_eq!(policy::name(&pod), "kube-scheduler-n1");
        assert!(policy::is_static(&pod));
        let value = orlop_api::types::to_value(&*pod);
        assert_eq!(value["spec"]["nodeName"], "n1");
        assert_eq!(
            value["spec"]["tolerations"],
            json!([{"operator": "Exists", "effect": "NoExecute"}])
        );
        // The same at every start, or mirror pods would be replaced.
        let other = hosted(HostedState::BackOff { message: "o".into() }).pod;
        assert_eq!(policy::uid(&pod), policy::uid(&other));
    }

    #[test]
    fn one_of_them_has_what_the_process_uses() {
        let process = ProcessUsage::read().unwrap();
        assert!(process.cpu_nanoseconds > 0 && process.resident_bytes > 0);
        let mut pod = hosted(HostedState::Running {
            started: at(5),
            is_ready: true,
        });
        let usage = pod.usage(&process, at(9)).unwrap();
        assert_eq!(
            (usage.pod_ref.name.as_str(), usage.containers.len()),
            ("kube-scheduler-n1", 1)
        );
        let memory = usage.containers[0].memory.clone().unwrap();
        assert_eq!(memory.working_set_bytes, Some(process.resident_bytes));
        pod.stands_for_process = false;
        assert_eq!(pod.usage(&process, at(9)), None);
    }

    #[test]
    fn statuses_say_what_the_process_says() {
        let running = |is_ready| HostedState::Running {
            started: at(5),
            is_ready,
        };
        let failed = HostedState::BackOff {
            message: "back-off".into(),
        };
        // state, ready, field of the container's state
        let cases = [
            (
                running(true),
                "True",
                "/running/startedAt",
                json!("1970-01-01T00:00:05Z"),
            ),
            (
                running(false),
                "False",
                "/running/startedAt",
                json!("1970-01-01T00:00:05Z"),
            ),
            (failed, "False", "/waiting/reason", json!("CrashLoopBackOff")),
        ];
        for (state, ready, field, expected) in cases {
            let status = hosted(state).status(&["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()]);
            let status = orlop_api::types::to_value(&status);
            assert_eq!(status["phase"], "Running");
            assert_eq!(
                (&status["podIP"], &status["hostIP"]),
                (&json!("10.0.0.1"), &json!("10.0.0.1"))
            );
            assert_eq!(status["podIPs"][1]["ip"], "fd00::1");
            let conditions = status["conditions"].as_array().unwrap();
            let condition = conditions.iter().find(|c| c["type"] == "Ready").unwrap();
            assert_eq!(condition["status"], ready);
            assert_eq!(condition["lastTransitionTime"], "1970-01-01T00:00:05Z");
            let container = &status["containerStatuses"][0];
            assert_eq!(container["state"].pointer(field), Some(&expected), "{container:#}");
            assert_eq!(container["restartCount"], 2);
            assert_eq!(container["lastState"]["terminated"]["exitCode"], 2);
        }
    }
}

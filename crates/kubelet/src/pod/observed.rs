//! What the runtime shows of one pod: its sandboxes and containers, newest first.
//!
//! The kubelet's labels and annotations on them say whose they are (`io.kubernetes.pod.uid`, `io.kubernetes.container.name`),
//! how often the container was restarted, and how it is to be stopped should its pod be unknown. So a new kubelet process
//! adopts what runs.

use std::collections::BTreeMap;

use jiff::Timestamp;
use orlop_api::types::core::LifecycleHandler;
use orlop_runtime::Runtime;
use orlop_runtime::cri::messages as cri;

use super::termination_message;
use crate::spec::labels::ContainerNotes;
pub use crate::spec::labels::{CONTAINER_NAME, POD_NAME, POD_NAMESPACE, POD_UID};

/// All that the runtime has of one pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedPod {
    /// Newest first.
    pub sandboxes: Vec<ObservedSandbox>,
    /// Newest first; several of one name if it was started again.
    pub containers: Vec<ObservedContainer>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedSandbox {
    pub id: String,
    pub attempt: u32,
    pub ready: bool,
    pub created_at: Timestamp,
    pub host_network: bool,
    /// Whether the runtime reports a network at all.
    pub has_network: bool,
    pub ips: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ObservedState {
    Created,
    Running,
    Exited,
    #[default]
    Unknown,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedContainer {
    pub id: String,
    pub sandbox: String,
    pub name: String,
    pub state: ObservedState,
    pub restart_count: u32,
    pub hash: String,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub exit_code: i32,
    pub reason: String,
    /// The runtime's words, then the container's own last ones.
    pub message: String,
    pub image: String,
    pub image_ref: String,
    pub log_path: String,
    pub user: Option<cri::LinuxContainerUser>,
    pub resources: Option<cri::LinuxContainerResources>,
    /// For pods that are known no more.
    pub pre_stop: Option<Box<LifecycleHandler>>,
    pub grace_seconds: Option<i64>,
}

impl ObservedPod {
    /// The newest container of that name.
    pub fn latest(&self, name: &str) -> Option<&ObservedContainer> {
        self.containers.iter().find(|c| c.name == name)
    }

    pub fn running(&self) -> impl Iterator<Item = &ObservedContainer> {
        self.containers.iter().filter(|c| c.state == ObservedState::Running)
    }

    /// Addresses of the newest sandbox while it is ready.
    pub fn ips(&self) -> &[String] {
        match self.sandboxes.first() {
            Some(sandbox) if sandbox.ready => &sandbox.ips,
            _ => &[],
        }
    }

    /// Whether a container that might have run is in the sandbox which is ready now.
    pub fn in_active_sandbox(&self, container: &ObservedContainer) -> bool {
        let active = self.sandboxes.first().filter(|s| s.ready);
        active.is_some_and(|s| s.id == container.sandbox)
    }

    pub fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }

    /// Puts what was read in order.
    pub fn assemble(mut sandboxes: Vec<ObservedSandbox>, mut containers: Vec<ObservedContainer>) -> ObservedPod {
        sandboxes.sort_by(|a, b| b.created_at.cmp(&a.created_at).then_with(|| b.attempt.cmp(&a.attempt)));
        containers.sort_by(|a, b| {
            let by_age = b.created_at.cmp(&a.created_at);
            by_age
                .then_with(|| b.restart_count.cmp(&a.restart_count))
                .then_with(|| a.id.cmp(&b.id))
        });
        ObservedPod { sandboxes, containers }
    }
}

/// Nanoseconds since the epoch, as the runtime counts; zero is "not yet".
fn instant(nanoseconds: i64) -> Option<Timestamp> {
    match nanoseconds {
        0 => None,
        n => Timestamp::from_nanosecond(i128::from(n)).ok(),
    }
}

impl ObservedSandbox {
    pub fn of(status: &cri::PodSandboxStatus) -> ObservedSandbox {
        let network = status.network.as_ref();
        let primary = network.map(|n| n.ip.as_str()).filter(|ip| !ip.is_empty());
        let more = network
            .into_iter()
            .flat_map(|n| n.additional_ips.iter().map(|ip| ip.ip.as_str()));
        let options = status
            .linux
            .as_ref()
            .and_then(|l| l.namespaces.as_ref())
            .and_then(|n| n.options.as_ref());
        ObservedSandbox {
            id: status.id.clone(),
            attempt: status.metadata.as_ref().map_or(0, |m| m.attempt),
            ready: status.state == cri::PodSandboxState::Ready as i32,
            created_at: instant(status.created_at).unwrap_or_default(),
            host_network: options.is_some_and(|o| o.network == cri::NamespaceMode::Node as i32),
            has_network: network.is_some(),
            ips: primary
                .into_iter()
                .chain(more)
                .filter(|ip| is_address(ip))
                .map(String::from)
                .collect(),
        }
    }
}

fn is_address(text: &str) -> bool {
    text.parse::<std::net::IpAddr>().is_ok()
}

impl ObservedContainer {
    /// Without the container's own last words, which are in a file.
    pub fn of(status: &cri::ContainerStatus, sandbox: &str) -> ObservedContainer {
        let state = match cri::ContainerState::try_from(status.state) {
            Ok(cri::ContainerState::Created) => ObservedState::Created,
            Ok(cri::ContainerState::Running) => ObservedState::Running,
            Ok(cri::ContainerState::Exited) => ObservedState::Exited,
            _ => ObservedState::Unknown,
        };
        let exited = state == ObservedState::Exited;
        let notes = ContainerNotes::read(&status.annotations);
        let label = status.labels.get(CONTAINER_NAME).cloned();
        ObservedContainer {
            id: status.id.clone(),
            sandbox: sandbox.to_string(),
            name: label.unwrap_or_else(|| status.metadata.as_ref().map_or_else(String::new, |m| m.name.clone())),
            state,
            restart_count: notes.restart_count,
            hash: format!("{:x}", notes.hash),
            created_at: instant(status.created_at).unwrap_or_default(),
            started_at: instant(status.started_at).filter(|_| state != ObservedState::Created),
            finished_at: instant(status.finished_at).filter(|_| exited),
            exit_code: if exited { status.exit_code } else { 0 },
            reason: if exited { status.reason.clone() } else { String::new() },
            message: if exited { status.message.clone() } else { String::new() },
            image: status
                .image
                .as_ref()
                .map_or_else(String::new, |image| image.image.clone()),
            image_ref: status.image_ref.clone(),
            log_path: status.log_path.clone(),
            user: status.user.as_ref().and_then(|user| user.linux.clone()),
            resources: status.resources.as_ref().and_then(|r| r.linux.clone()),
            pre_stop: notes.pre_stop.map(Box::new),
            grace_seconds: notes.deletion_grace_period.or(notes.termination_grace_period),
        }
    }

    /// What it left as its last words, if it ended.
    async fn with_last_words(mut self, status: &cri::ContainerStatus) -> ObservedContainer {
        if self.state == ObservedState::Exited {
            let words = termination_message::read(status).await;
            if !words.is_empty() && !self.message.is_empty() {
                self.message.push_str(": ");
            }
            self.message.push_str(&words);
        }
        self
    }
}

fn of_pod(uid: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(POD_UID.to_string(), uid.to_string())])
}

/// Looks at one pod. What can't have changed since `before` is not asked for again: a container that had ended, a
/// container that still runs, a sandbox that is still ready and has its addresses.
pub async fn look(runtime: &dyn Runtime, uid: &str, before: &ObservedPod) -> orlop_runtime::Result<ObservedPod> {
    let sandboxes = runtime.list_pod_sandboxes(cri::PodSandboxFilter {
        label_selector: of_pod(uid),
        ..Default::default()
    });
    let containers = runtime.list_containers(cri::ContainerFilter {
        label_selector: of_pod(uid),
        ..Default::default()
    });
    let (sandboxes, containers) = futures::try_join!(sandboxes, containers)?;
    let mut seen = ObservedPod::default();
    for listed in &sandboxes {
        let ready = listed.state == cri::PodSandboxState::Ready as i32;
        let known = before.sandboxes.iter().find(|s| s.id == listed.id && s.ready == ready);
        match known.filter(|s| !s.ready || s.host_network || !s.ips.is_empty()) {
            Some(known) => seen.sandboxes.push(known.clone()),
            None => match runtime.pod_sandbox_status(&listed.id).await {
                Ok(status) => seen.sandboxes.push(ObservedSandbox::of(&status)),
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            },
        }
    }
    for listed in &containers {
        let known = before
            .containers
            .iter()
            .find(|c| c.id == listed.id && same_state(c.state, listed.state));
        match known {
            Some(known) => seen.containers.push(known.clone()),
            None => match runtime.container_status(&listed.id).await {
                Ok(status) => {
                    let container = ObservedContainer::of(&status, &listed.pod_sandbox_id);
                    seen.containers.push(container.with_last_words(&status).await);
                }
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            },
        }
    }
    Ok(ObservedPod::assemble(seen.sandboxes, seen.containers))
}

fn same_state(known: ObservedState, listed: i32) -> bool {
    match known {
        ObservedState::Running => listed == cri::ContainerState::Running as i32,
        ObservedState::Exited => listed == cri::ContainerState::Exited as i32,
        ObservedState::Created | ObservedState::Unknown => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::labels::{HASH, PRE_STOP, RESTART_COUNT, TERMINATION_GRACE_PERIOD};

    fn status(state: cri::ContainerState) -> cri::ContainerStatus {
        let pairs = |list: &[(&str, &str)]| list.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        cri::ContainerStatus {
            id: "c1".into(),
            state: state as i32,
            created_at: 1_000_000_000,
            started_at: 2_000_000_000,
            finished_at: 3_000_000_000,
            exit_code: 137,
            reason: "OOMKilled".into(),
            labels: pairs(&[(CONTAINER_NAME, "a"), (POD_UID, "u")]),
            annotations: pairs(&[
                (RESTART_COUNT, "3"),
                (HASH, "abc"),
                (TERMINATION_GRACE_PERIOD, "30"),
                (PRE_STOP, r#"{"exec":{"command":["x"]}}"#),
            ]),
            ..Default::default()
        }
    }

    #[test]
    fn a_container_is_known_by_labels_and_annotations() {
        let dead = ObservedContainer::of(&status(cri::ContainerState::Exited), "s1");
        assert_eq!(
            (dead.name.as_str(), dead.restart_count, dead.hash.as_str()),
            ("a", 3, "abc")
        );
        assert_eq!((dead.exit_code, dead.reason.as_str()), (137, "OOMKilled"));
        assert_eq!(dead.finished_at.unwrap().as_second(), 3);
        assert_eq!(dead.grace_seconds, Some(30));
        assert_eq!(dead.pre_stop.unwrap().exec.unwrap().command.unwrap(), ["x"]);
        let running = ObservedContainer::of(&status(cri::ContainerState::Running), "s1");
        assert_eq!(
            (running.exit_code, running.finished_at, running.reason.as_str()),
            (0, None, "")
        );
        assert_eq!(running.started_at.unwrap().as_second(), 2);
        let created = ObservedContainer::of(&status(cri::ContainerState::Created), "s1");
        assert_eq!(created.started_at, None);
    }

    #[test]
    fn the_newest_comes_first_and_gives_the_addresses() {
        let sandbox = |id: &str, at: i64, ready: bool| {
            ObservedSandbox::of(&cri::PodSandboxStatus {
                id: id.into(),
                created_at: at,
                state: !ready as i32,
                network: Some(cri::PodSandboxNetworkStatus {
                    ip: format!("10.0.0.{at}"),
                    additional_ips: vec![cri::PodIP { ip: "fd00::1".into() }, cri::PodIP { ip: "junk".into() }],
                }),
                ..Default::default()
            })
        };
        let pod = ObservedPod::assemble(vec![sandbox("old", 1, true), sandbox("new", 2, true)], vec![]);
        assert_eq!(pod.sandboxes[0].id, "new");
        assert_eq!(pod.ips(), ["10.0.0.2", "fd00::1"]);
        let pod = ObservedPod::assemble(vec![sandbox("old", 1, true), sandbox("new", 2, false)], vec![]);
        assert!(pod.ips().is_empty());
    }
}

//! What a simulated node "runs": sandboxes, containers, images. Pure: time comes in as `now` (nanoseconds since the
//! epoch), and what happened goes out as events.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use orlop_base::Random;

use super::addresses::Pool;
use super::behaviour::{Behaviour, INIT, asked_to_fail};
use crate::cri::messages::*;
use crate::{Code, Error, Event, Result};

pub(super) struct Sandbox {
    pub config: PodSandboxConfig,
    pub handler: String,
    pub created_at: i64,
    pub ready: bool,
    pub addresses: Vec<IpAddr>,
}

pub(super) struct SimulatedContainer {
    pub sandbox: String,
    /// Without environment, commands, devices and security context: nobody asks a simulated container for them, and thousands of
    /// containers stay small.
    pub config: ContainerConfig,
    pub behaviour: Behaviour,
    pub state: ContainerState,
    pub created_at: i64,
    pub started_at: i64,
    pub finished_at: i64,
    pub exit_code: i32,
    pub reason: &'static str,
    /// When and how it ends if nothing else happens.
    pub ending: Option<Ending>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ending {
    pub at: i64,
    pub exit_code: i32,
    pub reason: &'static str,
}

pub(super) struct SimulatedState {
    pub sandboxes: BTreeMap<String, Sandbox>,
    pub containers: BTreeMap<String, SimulatedContainer>,
    /// By id.
    pub images: BTreeMap<String, Image>,
    pub pools: Vec<Pool>,
    pub random: Random,
}

fn not_found(what: &str, id: &str) -> Error {
    let message = format!("an error occurred when try to find {what} {id:?}: not found");
    Error::new(Code::NotFound, message)
}

fn refused(message: impl Into<String>) -> Error {
    Error::new(Code::Other, message)
}

pub(super) fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

impl SimulatedState {
    fn new_id(&mut self) -> String {
        let random = &mut self.random;
        (0..4).map(|_| format!("{:016x}", random.next_u64())).collect()
    }

    pub(super) fn sandbox(&self, id: &str) -> Result<&Sandbox> {
        self.sandboxes.get(id).ok_or_else(|| not_found("sandbox", id))
    }

    pub(super) fn container(&self, id: &str) -> Result<&SimulatedContainer> {
        self.containers.get(id).ok_or_else(|| not_found("container", id))
    }

    fn container_mut(&mut self, id: &str) -> Result<&mut SimulatedContainer> {
        self.containers.get_mut(id).ok_or_else(|| not_found("container", id))
    }

    /// `namespace/pod`; the id itself if there is no such sandbox.
    pub(super) fn sandbox_name(&self, id: &str) -> String {
        self.sandboxes.get(id).map_or(id.to_string(), |s| pod_name(&s.config))
    }

    /// `namespace/pod/container`; the id itself if there is no such container.
    pub(super) fn container_name(&self, id: &str) -> String {
        match self.containers.get(id) {
            Some(found) => format!("{}/{}", self.sandbox_name(&found.sandbox), found.name()),
            None => id.to_string(),
        }
    }

    pub(super) fn event(&self, container: &str) -> Event {
        let sandbox = self.containers.get(container).map(|c| c.sandbox.clone());
        Event {
            sandbox,
            container: container.to_string(),
        }
    }

    pub(super) fn run_sandbox(&mut self, mut config: PodSandboxConfig, handler: &str, now: i64) -> Result<String> {
        if let Some(message) = asked_to_fail(&config.annotations, "sandbox") {
            return Err(refused(message));
        }
        if let Some((id, _)) = self
            .sandboxes
            .iter()
            .find(|(_, s)| s.config.metadata == config.metadata)
        {
            let name = pod_name(&config);
            let message = format!("failed to reserve sandbox name {name:?}: name {name:?} is reserved for {id:?}");
            return Err(refused(message));
        }
        let addresses = if on_host_network(&config) {
            vec![]
        } else {
            self.take_addresses()?
        };
        config.dns_config = None;
        config.port_mappings = vec![];
        let id = self.new_id();
        let handler = handler.to_string();
        let sandbox = Sandbox {
            config,
            handler,
            created_at: now,
            ready: true,
            addresses,
        };
        self.sandboxes.insert(id.clone(), sandbox);
        Ok(id)
    }

    fn take_addresses(&mut self) -> Result<Vec<IpAddr>> {
        let taken: Vec<Option<IpAddr>> = self.pools.iter_mut().map(Pool::take).collect();
        if taken.iter().all(Option::is_some) {
            return Ok(taken.into_iter().flatten().collect());
        }
        taken.into_iter().flatten().for_each(|a| self.give_back(a));
        Err(refused(
            "failed to setup network for sandbox: no IP addresses available in the node's range",
        ))
    }

    fn give_back(&mut self, address: IpAddr) {
        self.pools.iter_mut().for_each(|pool| pool.give_back(address));
    }

    pub(super) fn stop_sandbox(&mut self, id: &str, now: i64) -> Vec<Event> {
        let Some(sandbox) = self.sandboxes.get_mut(id) else {
            return vec![];
        };
        let was_ready = std::mem::replace(&mut sandbox.ready, false);
        let addresses = std::mem::take(&mut sandbox.addresses);
        addresses.into_iter().for_each(|a| self.give_back(a));
        let mut events = vec![];
        for (container, found) in self.containers.iter_mut().filter(|(_, c)| c.sandbox == id) {
            if found.end(Ending {
                at: now,
                exit_code: 137,
                reason: "Error",
            }) {
                events.push(Event {
                    sandbox: Some(id.to_string()),
                    container: container.clone(),
                });
            }
        }
        if was_ready {
            events.push(Event {
                sandbox: Some(id.to_string()),
                container: id.to_string(),
            });
        }
        events
    }

    pub(super) fn remove_sandbox(&mut self, id: &str, now: i64) -> Vec<Event> {
        let events = self.stop_sandbox(id, now);
        self.containers.retain(|_, c| c.sandbox != id);
        self.sandboxes.remove(id);
        events
    }

    pub(super) fn create_container(
        &mut self,
        sandbox_id: &str,
        mut config: ContainerConfig,
        now: i64,
    ) -> Result<String> {
        let sandbox = self.sandbox(sandbox_id)?;
        if !sandbox.ready {
            return Err(refused(format!("sandbox container {sandbox_id:?} is not running")));
        }
        let metadata = config.metadata.clone().unwrap_or_default();
        let init = config.annotations.get(INIT).is_some_and(|v| v == "true");
        let behaviour = Behaviour::read(&sandbox.config.annotations, &metadata.name, init)
            .map_err(|error| refused(error.to_string()))?;
        if let Some(message) = &behaviour.fail_create {
            return Err(refused(message));
        }
        let taken = |c: &SimulatedContainer| c.sandbox == sandbox_id && c.config.metadata == config.metadata;
        if let Some((id, _)) = self.containers.iter().find(|(_, c)| taken(c)) {
            let name = format!("{}_{}", metadata.name, metadata.attempt);
            let message = format!("failed to reserve container name {name:?}: name {name:?} is reserved for {id:?}");
            return Err(refused(message));
        }
        config.envs = vec![];
        config.command = vec![];
        config.args = vec![];
        config.devices = vec![];
        if let Some(linux) = &mut config.linux {
            linux.security_context = None;
        }
        let id = self.new_id();
        let container = SimulatedContainer {
            sandbox: sandbox_id.to_string(),
            config,
            behaviour,
            state: ContainerState::Created,
            created_at: now,
            started_at: 0,
            finished_at: 0,
            exit_code: 0,
            reason: "",
            ending: None,
        };
        self.containers.insert(id.clone(), container);
        Ok(id)
    }

    pub(super) fn start_container(&mut self, id: &str, now: i64) -> Result<()> {
        let container = self.container_mut(id)?;
        if container.state != ContainerState::Created {
            return Err(refused(format!(
                "container {id:?} is in {} state",
                state_name(container.state)
            )));
        }
        if let Some(message) = container.behaviour.fail_start.clone() {
            // As containerd does: a container that can't be started has ended, with code 128 and the reason.
            container.finished_at = now;
            container.state = ContainerState::Exited;
            container.exit_code = 128;
            container.reason = "StartError";
            return Err(refused(message));
        }
        container.state = ContainerState::Running;
        container.started_at = now;
        let limit = container.memory_limit();
        container.ending = if limit > 0 && container.behaviour.memory_bytes > limit {
            Some(Ending {
                at: now,
                exit_code: 137,
                reason: "OOMKilled",
            })
        } else {
            container
                .behaviour
                .run_for
                .map(|run_for| Ending::by_itself(container, now, run_for))
        };
        Ok(())
    }

    /// From now on it is about to end: by itself as it was asked to, or killed when the grace period is over.
    pub(super) fn ask_to_stop(&mut self, id: &str, grace: Duration, now: i64) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        if container.state == ContainerState::Created {
            container.end(Ending {
                at: now,
                exit_code: 0,
                reason: "Completed",
            });
            return;
        }
        let delay = container.behaviour.stop_delay;
        let stopped = if delay <= grace {
            let exit_code = container.behaviour.stop_exit_code;
            Ending {
                at: now.saturating_add(nanos(delay)),
                exit_code,
                reason: reason_of(exit_code),
            }
        } else {
            Ending {
                at: now.saturating_add(nanos(grace)),
                exit_code: 137,
                reason: "Error",
            }
        };
        if container.ending.is_none_or(|planned| stopped.at < planned.at) {
            container.ending = Some(stopped);
        }
    }

    /// Ends what was to end by now.
    pub(super) fn settle(&mut self, now: i64) -> Vec<Event> {
        let mut events = vec![];
        for (id, container) in &mut self.containers {
            if let Some(ending) = container.ending
                && ending.at <= now
                && container.end(ending)
            {
                events.push(Event {
                    sandbox: Some(container.sandbox.clone()),
                    container: id.clone(),
                });
            }
        }
        events
    }

    /// When the next container ends by itself.
    pub(super) fn next_ending(&self) -> Option<i64> {
        let running = self.containers.values().filter(|c| c.state == ContainerState::Running);
        running.filter_map(|c| c.ending).map(|e| e.at).min()
    }

    pub(super) fn pull(&mut self, spec: &ImageSpec) -> String {
        let name = full_image_name(&spec.image);
        if let Some(image) = self.find_image(&name) {
            return image.id.clone();
        }
        let mut random = Random::seeded(
            name.bytes()
                .fold(0, |h: u64, b| h.wrapping_mul(31).wrapping_add(b.into())),
        );
        let digest: String = (0..4).map(|_| format!("{:016x}", random.next_u64())).collect();
        let repository = name.split('@').next().unwrap_or(&name);
        let tag_at = repository.rfind(':').filter(|at| !repository[*at..].contains('/'));
        let by_digest = name.contains('@');
        let image = Image {
            id: format!("sha256:{digest}"),
            repo_tags: if by_digest { vec![] } else { vec![name.clone()] },
            repo_digests: vec![if by_digest {
                name.clone()
            } else {
                format!("{}@sha256:{digest}", &repository[..tag_at.unwrap_or(repository.len())])
            }],
            size: (1 << 20) + random.below(200 << 20),
            ..Image::default()
        };
        let id = image.id.clone();
        self.images.insert(id.clone(), image);
        id
    }

    pub(super) fn find_image(&self, name: &str) -> Option<&Image> {
        let full = full_image_name(name);
        let known = |i: &&Image| i.repo_tags.contains(&full) || i.repo_digests.contains(&full);
        self.images.get(name).or_else(|| self.images.values().find(known))
    }
}

impl Ending {
    fn by_itself(container: &SimulatedContainer, now: i64, run_for: Duration) -> Ending {
        let exit_code = container.behaviour.exit_code;
        Ending {
            at: now.saturating_add(nanos(run_for)),
            exit_code,
            reason: reason_of(exit_code),
        }
    }
}

pub(super) fn reason_of(exit_code: i32) -> &'static str {
    if exit_code == 0 { "Completed" } else { "Error" }
}

impl SimulatedContainer {
    pub(super) fn name(&self) -> &str {
        self.config.metadata.as_ref().map_or("", |m| m.name.as_str())
    }

    pub(super) fn resources(&self) -> Option<&LinuxContainerResources> {
        self.config.linux.as_ref()?.resources.as_ref()
    }

    fn memory_limit(&self) -> u64 {
        let limit = self.resources().map_or(0, |r| r.memory_limit_in_bytes);
        u64::try_from(limit).unwrap_or(0)
    }

    /// Whether it had not ended before.
    pub(super) fn end(&mut self, ending: Ending) -> bool {
        self.ending = None;
        if self.state == ContainerState::Exited {
            return false;
        }
        self.state = ContainerState::Exited;
        self.finished_at = ending.at;
        self.exit_code = ending.exit_code;
        self.reason = ending.reason;
        true
    }
}

pub(super) fn pod_name(config: &PodSandboxConfig) -> String {
    let metadata = config.metadata.clone().unwrap_or_default();
    format!("{}/{}", metadata.namespace, metadata.name)
}

fn on_host_network(config: &PodSandboxConfig) -> bool {
    let security = config.linux.as_ref().and_then(|l| l.security_context.as_ref());
    let namespaces = security.and_then(|s| s.namespace_options.as_ref());
    namespaces.is_some_and(|n| n.network() == NamespaceMode::Node)
}

pub(super) fn state_name(state: ContainerState) -> &'static str {
    match state {
        ContainerState::Created => "CONTAINER_CREATED",
        ContainerState::Running => "CONTAINER_RUNNING",
        ContainerState::Exited => "CONTAINER_EXITED",
        ContainerState::Unknown => "CONTAINER_UNKNOWN",
    }
}

/// `busybox` is short for `docker.io/library/busybox:latest`.
fn full_image_name(name: &str) -> String {
    let (host, path) = match name.split_once('/') {
        Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => (host, path.to_string()),
        Some(_) => ("docker.io", name.to_string()),
        None => ("docker.io", format!("library/{name}")),
    };
    let tagged = path.contains('@') || path.contains(':');
    format!("{host}/{path}{}", if tagged { "" } else { ":latest" })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Run(u8),
        Create(usize, u8),
        Start(usize),
        AskToStop(usize),
        StopSandbox(usize),
        RemoveSandbox(usize),
        Wait(i64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..6u8).prop_map(Step::Run),
            (any::<usize>(), 0..3u8).prop_map(|(s, c)| Step::Create(s, c)),
            any::<usize>().prop_map(Step::Start),
            any::<usize>().prop_map(Step::AskToStop),
            any::<usize>().prop_map(Step::StopSandbox),
            any::<usize>().prop_map(Step::RemoveSandbox),
            (0..40i64).prop_map(Step::Wait),
        ]
    }

    fn pick(ids: Vec<String>, index: usize) -> Option<String> {
        (!ids.is_empty()).then(|| ids[index % ids.len()].clone())
    }

    fn take(state: &mut SimulatedState, step: Step, now: &mut i64) {
        let sandbox =
            |state: &SimulatedState, i| pick(state.sandboxes.keys().cloned().collect(), i).unwrap_or_default();
        let container =
            |state: &SimulatedState, i| pick(state.containers.keys().cloned().collect(), i).unwrap_or_default();
        match step {
            Step::Run(pod) => {
                let name = format!("p{pod}");
                let metadata = Some(PodSandboxMetadata {
                    name,
                    ..Default::default()
                });
                let annotations = BTreeMap::from([("orlop.io/run-for.c0".to_string(), "20ns".to_string())]);
                drop(state.run_sandbox(
                    PodSandboxConfig {
                        metadata,
                        annotations,
                        ..Default::default()
                    },
                    "",
                    *now,
                ));
            }
            Step::Create(i, name) => {
                let metadata = Some(ContainerMetadata {
                    name: format!("c{name}"),
                    attempt: 0,
                });
                let config = ContainerConfig {
                    metadata,
                    ..Default::default()
                };
                let sandbox = sandbox(state, i);
                drop(state.create_container(&sandbox, config, *now));
            }
            Step::Start(i) => drop(state.start_container(&container(state, i), *now)),
            Step::AskToStop(i) => state.ask_to_stop(&container(state, i), Duration::from_nanos(7), *now),
            Step::StopSandbox(i) => drop(state.stop_sandbox(&sandbox(state, i), *now)),
            Step::RemoveSandbox(i) => drop(state.remove_sandbox(&sandbox(state, i), *now)),
            Step::Wait(nanos) => *now += nanos,
        }
        state.settle(*now);
    }

    proptest! {
        #[test]
        fn nothing_runs_without_a_sandbox_and_no_address_is_used_twice(steps in prop::collection::vec(step(), 0..60)) {
            let mut state = SimulatedState {
                sandboxes: BTreeMap::new(),
                containers: BTreeMap::new(),
                images: BTreeMap::new(),
                pools: vec![Pool::parse("10.0.0.0/29").unwrap()],
                random: Random::seeded(1),
            };
            let mut now = 0;
            for step in steps {
                take(&mut state, step, &mut now);
                let ready: Vec<&Sandbox> = state.sandboxes.values().filter(|s| s.ready).collect();
                let addresses: BTreeSet<IpAddr> = ready.iter().flat_map(|s| s.addresses.clone()).collect();
                prop_assert_eq!(addresses.len(), ready.len());
                for container in state.containers.values() {
                    let sandbox = state.sandboxes.get(&container.sandbox);
                    prop_assert!(sandbox.is_some());
                    let running = container.state == ContainerState::Running;
                    prop_assert!(!running || sandbox.is_some_and(|s| s.ready));
                    prop_assert!(!running || container.ending.is_none_or(|e| e.at > now));
                    prop_assert!(container.finished_at <= now);
                }
            }
            let all: Vec<String> = state.sandboxes.keys().cloned().collect();
            all.iter().for_each(|id| drop(state.remove_sandbox(id, now)));
            prop_assert!(state.containers.is_empty());
            let free = std::iter::from_fn(|| state.pools[0].take()).count();
            prop_assert_eq!(free, 5, "every address is given back");
        }
    }

    #[test]
    fn image_names_in_full() {
        for (short, full) in [
            ("busybox", "docker.io/library/busybox:latest"),
            ("busybox:1.36", "docker.io/library/busybox:1.36"),
            ("me/app", "docker.io/me/app:latest"),
            ("localhost/app", "localhost/app:latest"),
            ("quay.io:443/a/b:2", "quay.io:443/a/b:2"),
            ("quay.io/a@sha256:00", "quay.io/a@sha256:00"),
        ] {
            assert_eq!(full_image_name(short), full);
        }
    }
}

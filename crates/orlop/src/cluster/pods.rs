//! Components as pods of kube-system: what the supervisor says of them, in the words of a pod's status.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use jiff::Timestamp;
use orlop_api::types::core::Pod;
use orlop_base::supervisor::{ComponentState, Record};
use orlop_base::{Shutdown, Supervisor};
use orlop_kubelet::hosted::{HostedEnd, HostedPod, HostedPods, HostedState, static_pod};
use tokio::sync::watch;

use super::log_files::LogPaths;
use super::manifests::{CommandLines, manifest};
use super::shown::{SHOWN, ShownComponent};

/// A panicking Rust program ends with this; anything else that goes wrong is 1.
const PANICKED: i32 = 101;

/// Pods for all components that may be shown.
pub(crate) struct ComponentPods {
    templates: Vec<PodTemplate>,
    sender: watch::Sender<Vec<HostedPod>>,
}

struct PodTemplate {
    shown: &'static ShownComponent,
    pod: Arc<Pod>,
    created: Timestamp,
    logs: LogPaths,
}

impl ComponentPods {
    pub(crate) fn new(
        node: &str,
        lines: &CommandLines,
        logs: &Path,
        now: Timestamp,
    ) -> anyhow::Result<(ComponentPods, HostedPods)> {
        let template = |shown: &'static ShownComponent| {
            let pod = static_pod(&manifest(shown, lines), node, now);
            let pod = pod.with_context(|| format!("failed to make the pod of {}", shown.name))?;
            anyhow::Ok(PodTemplate {
                shown,
                pod: Arc::new(pod),
                created: now,
                logs: LogPaths::new(logs, shown.name),
            })
        };
        let templates = SHOWN.iter().map(template).collect::<anyhow::Result<_>>()?;
        let (sender, pods) = HostedPods::channel();
        Ok((ComponentPods { templates, sender }, pods))
    }

    /// Shows the components until the shutdown. Components that stop with the process stay as they were: they come back
    /// with it.
    pub(crate) async fn follow(self, supervisor: Supervisor, shutdown: Shutdown) {
        let mut changes = supervisor.changes();
        loop {
            changes.borrow_and_update();
            let pods = plan(&self.templates, &supervisor.all());
            if shutdown.is_triggered() {
                return;
            }
            self.sender.send_if_modified(|shown| {
                let is_new = *shown != pods;
                *shown = pods;
                is_new
            });
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = shutdown.wait() => return,
            }
        }
    }
}

/// The pods of components that run or are to run again.
fn plan(templates: &[PodTemplate], components: &[(&'static str, Record)]) -> Vec<HostedPod> {
    let pod = |template: &PodTemplate| {
        let is_its = |name: &&'static str| template.shown.components.contains(name);
        let records: Vec<&Record> = components
            .iter()
            .filter(|(name, _)| is_its(name))
            .map(|(_, r)| r)
            .collect();
        let state = state_of(&records)?;
        let restarts: u64 = records.iter().map(|record| record.restarts).sum();
        let name = template.shown.name;
        let failures = records.iter().filter_map(|record| record.last_failure.as_ref());
        let last_end = failures.max_by_key(|failure| failure.ended).map(|failure| HostedEnd {
            started: failure.started,
            ended: failure.ended,
            exit_code: if failure.panicked { PANICKED } else { 1 },
            message: failure.error.clone(),
            container_id: container_id(name, restarts.saturating_sub(u64::from(state.is_running()))),
        });
        Some(HostedPod {
            pod: template.pod.clone(),
            created: template.created,
            since: records.iter().map(|record| record.since).max()?,
            container_id: container_id(name, restarts),
            state,
            restarts,
            last_end,
            stands_for_process: template.shown.name == "kube-apiserver",
            log: template.logs.current.clone(),
            previous_log: template.logs.previous.clone(),
        })
    };
    templates.iter().filter_map(pod).collect()
}

fn container_id(name: &str, restarts: u64) -> String {
    format!("orlop://{name}-{restarts}")
}

/// None: not wanted, or not there. What is in several parts runs as long as the process does, and is ready if all of its
/// parts run.
fn state_of(records: &[&Record]) -> Option<HostedState> {
    let started = records.iter().map(|record| record.started).max()?;
    let is_ready = records.iter().all(|record| record.state == ComponentState::Running);
    let running = HostedState::Running { started, is_ready };
    match records {
        [one] => match one.state {
            ComponentState::Stopped => None,
            ComponentState::BackOff => Some(HostedState::BackOff {
                message: format!("back-off restarting failed component: {}", one.error),
            }),
            ComponentState::Running | ComponentState::Stalled => Some(running),
        },
        _ => Some(running),
    }
}

#[cfg(test)]
mod tests {
    use orlop_base::supervisor::FailedAttempt;

    use super::*;
    use crate::components::{PROXY, SCHEDULER};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn record(state: ComponentState, restarts: u64) -> Record {
        let failure = FailedAttempt {
            started: at(1),
            ended: at(2),
            panicked: true,
            error: "panicked: x".into(),
        };
        let mut record = Record::new(at(3));
        record.last_failure = (restarts > 0 || state == ComponentState::BackOff).then_some(failure);
        (record.state, record.restarts, record.error) = (state, restarts, "panicked: x".into());
        record
    }

    /// `NAME STATE READY RESTARTS EXIT-CODE` of each pod.
    fn shown(components: &[(&'static str, Record)]) -> Vec<String> {
        let lines = CommandLines::default();
        let (pods, _) = ComponentPods::new("n1", &lines, Path::new("/logs"), at(0)).unwrap();
        let describe = |pod: HostedPod| {
            let name = pod.pod.metadata.name.clone().unwrap();
            let (state, ready) = match pod.state {
                HostedState::Running { is_ready, .. } => ("running", is_ready),
                HostedState::BackOff { .. } => ("back-off", false),
            };
            let exit_code = pod.last_end.map_or(0, |end| end.exit_code);
            format!("{name} {state} {ready} {} {exit_code}", pod.restarts)
        };
        plan(&pods.templates, components).into_iter().map(describe).collect()
    }

    #[test]
    fn pods_follow_the_states_of_components() {
        use ComponentState::{BackOff, Running, Stalled, Stopped};
        let server = || [("housekeeping", record(Running, 0)), ("serving", record(Running, 0))];
        let with = |name, record| -> Vec<_> { server().into_iter().chain([(name, record)]).collect() };
        let apiserver = "kube-apiserver-n1 running true 0 0";
        let cases = [
            (
                with(SCHEDULER, record(Running, 0)),
                vec![apiserver, "kube-scheduler-n1 running true 0 0"],
            ),
            (
                with(SCHEDULER, record(Running, 2)),
                vec![apiserver, "kube-scheduler-n1 running true 2 101"],
            ),
            (
                with(SCHEDULER, record(Stalled, 0)),
                vec![apiserver, "kube-scheduler-n1 running false 0 0"],
            ),
            (
                with(SCHEDULER, record(BackOff, 0)),
                vec![apiserver, "kube-scheduler-n1 back-off false 0 101"],
            ),
            (with(SCHEDULER, record(Stopped, 1)), vec![apiserver]),
            (
                with(PROXY, record(Running, 0)),
                vec![apiserver, "kube-proxy-n1 running true 0 0"],
            ),
            (with("kubelet", record(Running, 0)), vec![apiserver]),
            (
                vec![("housekeeping", record(Stopped, 0)), ("serving", record(Running, 1))],
                vec!["kube-apiserver-n1 running false 1 101"],
            ),
        ];
        for (components, expected) in cases {
            assert_eq!(shown(&components), expected);
        }
    }

    #[tokio::test]
    async fn pods_outlive_the_components_of_a_process_that_ends() {
        let (pods, shown) = ComponentPods::new("n1", &CommandLines::default(), Path::new("/logs"), at(0)).unwrap();
        let (supervisor, shutdown) = (Supervisor::default(), Shutdown::default());
        let start = |stop: Shutdown| -> orlop_base::BoxFuture<'static, Result<(), _>> {
            Box::pin(async move {
                stop.wait().await;
                Ok(())
            })
        };
        let component = supervisor.add(
            SCHEDULER,
            true,
            shutdown.clone(),
            orlop_base::Clock::System,
            Box::new(start),
        );
        let following = tokio::spawn(pods.follow(supervisor.clone(), shutdown.clone()));
        while shown.all().is_empty() {
            tokio::task::yield_now().await;
        }
        shutdown.trigger();
        component.await.unwrap();
        following.await.unwrap();
        assert_eq!(shown.all().len(), 1);
    }
}

//! The columns of `kubectl get pods`.
//!
//! Upstream: pkg/printers/internalversion (v1.36).

use jiff::Timestamp;
use serde_json::Value;

use super::{pod_ip, text};
use crate::printing;
use crate::resources::{find, is_sidecar};

pub(super) fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let row = Summary::of(pod);
    let restarts = match row.last_restart {
        Some(then) if row.restarts != 0 => {
            let ago = printing::human_duration(now.as_second() - then.as_second());
            format!("{} ({ago} ago)", row.restarts)
        }
        _ => row.restarts.to_string(),
    };
    let or_none = |text: &str| Value::from(if text.is_empty() { "<none>" } else { text });
    vec![
        format!("{}/{}", row.ready, row.containers).into(),
        row.reason.into(),
        restarts.into(),
        printing::age(pod, now),
        or_none(pod_ip(pod)),
        or_none(text(pod, "/spec/nodeName")),
        or_none(text(pod, "/status/nominatedNodeName")),
        readiness_gates(pod).into(),
    ]
}

struct Summary {
    ready: usize,
    containers: usize,
    reason: String,
    restarts: i64,
    last_restart: Option<Timestamp>,
}

/// A container status, read.
struct Status<'a>(&'a Value);

impl<'a> Status<'a> {
    fn state(&self, name: &str) -> Option<&'a Value> {
        self.0.get("state")?.get(name).filter(|s| !s.is_null())
    }
    fn is(&self, name: &str) -> bool {
        self.0.get(name) == Some(&Value::Bool(true))
    }
    fn restarts(&self) -> i64 {
        int(self.0, "/restartCount")
    }
    fn last_finish(&self) -> Option<Timestamp> {
        text(self.0, "/lastState/terminated/finishedAt").parse().ok()
    }
    /// Why it waits; PodInitializing says no more than that the pod is initialising.
    fn waiting_reason(&self) -> &'a str {
        self.state("waiting").map_or("", |w| text(w, "/reason"))
    }
}

fn int(object: &Value, pointer: &str) -> i64 {
    find(object, pointer).and_then(Value::as_i64).unwrap_or(0)
}

/// "Error", or what is known if no reason is given.
fn termination(terminated: &Value) -> String {
    let (reason, signal) = (text(terminated, "/reason"), int(terminated, "/signal"));
    if !reason.is_empty() {
        reason.to_string()
    } else if signal != 0 {
        format!("Signal:{signal}")
    } else {
        format!("ExitCode:{}", int(terminated, "/exitCode"))
    }
}

fn list<'a>(pod: &'a Value, pointer: &str) -> &'a [Value] {
    find(pod, pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn condition<'a>(pod: &'a Value, kind: &str) -> Option<&'a Value> {
    list(pod, "/status/conditions")
        .iter()
        .find(|c| text(c, "/type") == kind)
}

fn is_true(pod: &Value, kind: &str) -> bool {
    condition(pod, kind).is_some_and(|c| text(c, "/status") == "True")
}

impl Summary {
    fn of(pod: &Value) -> Summary {
        let phase = text(pod, "/status/phase");
        let mut row = Summary {
            ready: 0,
            containers: list(pod, "/spec/containers").len(),
            reason: match text(pod, "/status/reason") {
                "" => phase.to_string(),
                reason => reason.to_string(),
            },
            restarts: 0,
            last_restart: None,
        };
        let gated = |c: &Value| text(c, "/type") == "PodScheduled" && text(c, "/reason") == "SchedulingGated";
        if list(pod, "/status/conditions").iter().any(gated) {
            row.reason = "SchedulingGated".to_string();
        }
        let sidecars = row.init_containers(pod);
        if let Some((restarts, last)) = sidecars {
            row.restarts = restarts;
            row.last_restart = last;
            row.regular_containers(pod);
        }
        if !text(pod, "/metadata/deletionTimestamp").is_empty() {
            if text(pod, "/status/reason") == "NodeLost" {
                row.reason = "Unknown".to_string();
            } else if !matches!(phase, "Succeeded" | "Failed") {
                row.reason = "Terminating".to_string();
            }
        }
        row
    }

    /// Goes through the init containers. If they are done, the restarts of the sidecars among them are handed on.
    fn init_containers(&mut self, pod: &Value) -> Option<(i64, Option<Timestamp>)> {
        let specs = list(pod, "/spec/initContainers");
        self.containers += specs.iter().filter(|c| is_sidecar(c)).count();
        let (mut restarts, mut last) = (0, None);
        let mut initializing = false;
        for (i, value) in list(pod, "/status/initContainerStatuses").iter().enumerate() {
            let status = Status(value);
            self.restarts += status.restarts();
            self.last_restart = self.last_restart.max(status.last_finish());
            let sidecar = specs
                .iter()
                .rev()
                .find(|c| c.get("name") == value.get("name"))
                .is_some_and(is_sidecar);
            if sidecar {
                restarts += status.restarts();
                last = last.max(status.last_finish());
            }
            let terminated = status.state("terminated");
            if terminated.is_some_and(|t| int(t, "/exitCode") == 0) {
                continue;
            }
            if sidecar && status.is("started") {
                self.ready += usize::from(status.is("ready"));
                continue;
            }
            self.reason = match (terminated, status.waiting_reason()) {
                (Some(terminated), _) => format!("Init:{}", termination(terminated)),
                (None, "" | "PodInitializing") => format!("Init:{i}/{}", specs.len()),
                (None, reason) => format!("Init:{reason}"),
            };
            initializing = true;
            break;
        }
        (!initializing || is_true(pod, "Initialized")).then_some((restarts, last))
    }

    fn regular_containers(&mut self, pod: &Value) {
        let (mut has_running, mut error) = (false, None);
        for value in list(pod, "/status/containerStatuses").iter().rev() {
            let status = Status(value);
            self.restarts += status.restarts();
            self.last_restart = self.last_restart.max(status.last_finish());
            if !status.waiting_reason().is_empty() {
                self.reason = status.waiting_reason().to_string();
            } else if let Some(terminated) = status.state("terminated") {
                self.reason = termination(terminated);
                if int(terminated, "/exitCode") != 0 {
                    error = Some(self.reason.clone());
                }
            } else if status.is("ready") && status.state("running").is_some() {
                has_running = true;
                self.ready += 1;
            }
        }
        // One container has ended well, but the pod as a whole goes on or has failed.
        if self.reason == "Completed" {
            if has_running && is_true_anywhere(pod, "Ready") {
                self.reason = "Running".to_string();
            } else if let Some(error) = error {
                self.reason = error;
            } else if has_running {
                self.reason = "NotReady".to_string();
            }
        }
    }
}

fn is_true_anywhere(pod: &Value, kind: &str) -> bool {
    let conditions = list(pod, "/status/conditions").iter();
    conditions
        .filter(|c| text(c, "/type") == kind)
        .any(|c| text(c, "/status") == "True")
}

fn readiness_gates(pod: &Value) -> String {
    let gates = list(pod, "/spec/readinessGates");
    if gates.is_empty() {
        return "<none>".to_string();
    }
    let open = gates.iter().filter(|g| is_true(pod, text(g, "/conditionType"))).count();
    format!("{open}/{}", gates.len())
}

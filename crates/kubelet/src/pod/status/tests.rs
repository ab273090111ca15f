//! Golden cases: pod, what the runtime shows, what is remembered; and the status in short.

use orlop_api::types::core::{ContainerState, ContainerStatus, PodCondition};

use super::*;
use crate::pod::testing::{at, epoch, memory, observed, pod};
use crate::pod::worker_state::Eviction;

fn host() -> Host {
    Host {
        ips: vec!["192.168.0.1".into()],
        runtime_name: "sim".into(),
        recursive_read_only: false,
    }
}

fn shown_state(state: Option<&ContainerState>) -> String {
    let Some(state) = state else { return "-".into() };
    if let Some(waiting) = &state.waiting {
        return format!("waiting({})", waiting.reason.as_deref().unwrap_or_default());
    }
    if state.running.is_some() {
        return "running".into();
    }
    state.terminated.as_ref().map_or("-".into(), |t| {
        format!("ended({} {})", t.exit_code, t.reason.as_deref().unwrap_or_default())
    })
}

fn shown_container(status: &ContainerStatus) -> String {
    let mut text = format!("{}={}", status.name, shown_state(status.state.as_ref()));
    if let Some(last) = &status.last_state {
        text.push_str(&format!(" after {}", shown_state(Some(last))));
    }
    if status.restart_count > 0 {
        text.push_str(&format!(" #{}", status.restart_count));
    }
    match (status.started == Some(true), status.ready) {
        (true, true) => text.push_str(" ready"),
        (true, false) => text.push_str(" started"),
        (false, true) => text.push_str(" done"),
        (false, false) => {}
    }
    text
}

fn shown(status: &PodStatus) -> String {
    let mut words = vec![status.phase.clone().unwrap_or_default()];
    words.extend(status.reason.clone());
    let lists = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    words.extend(lists.into_iter().flatten().flatten().map(shown_container));
    words.join("; ")
}

fn condition<'a>(status: &'a PodStatus, type_: &str) -> Option<&'a PodCondition> {
    status.conditions.iter().flatten().find(|c| c.type_ == type_)
}

fn shown_condition(status: &PodStatus, type_: &str) -> String {
    let Some(c) = condition(status, type_) else {
        return format!("no {type_}");
    };
    let text = |t: &Option<String>| t.as_ref().map_or(String::new(), |t| format!(" {t}"));
    format!("{}{}{}", c.status, text(&c.reason), text(&c.message))
}

fn made(spec: &str, seen: &str, remembered: &str) -> PodStatus {
    let pod = pod(spec);
    let (memory, now) = memory(&pod, remembered);
    pod_status(&pod, &observed(&pod, seen), &memory, &host(), now)
}

#[track_caller]
fn check(cases: &[(&str, &str, &str, &str)]) {
    let mut wrong = Vec::new();
    for (spec, seen, remembered, expected) in cases {
        let got = shown(&made(spec, seen, remembered));
        if got != *expected {
            wrong.push(format!(
                "{spec} | {seen} | {remembered}\n   wanted {expected}\n   got    {got}"
            ));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn phases_and_states() {
    check(&[
        ("containers=a", "", "", "Pending; a=waiting(ContainerCreating)"),
        (
            "init=i containers=a",
            "",
            "",
            "Pending; i=waiting(PodInitializing); a=waiting(PodInitializing)",
        ),
        (
            "containers=b,a",
            "sandbox=ready b=running",
            "",
            "Pending; a=waiting(ContainerCreating); b=running ready",
        ),
        (
            "containers=a",
            "sandbox=ready a=running",
            "",
            "Running; a=running ready",
        ),
        ("containers=a", "sandbox=ready a=created", "", "Pending; a=waiting()"),
        (
            "init=i containers=a",
            "sandbox=ready i=running",
            "",
            "Pending; i=running started; a=waiting(PodInitializing)",
        ),
        (
            "init=i containers=a",
            "sandbox=ready i=exited:0",
            "",
            "Pending; i=ended(0 Completed) done; a=waiting(PodInitializing)",
        ),
        (
            "init=i containers=a",
            "sandbox=ready a=running i=exited:0",
            "",
            "Running; i=ended(0 Completed) done; a=running ready",
        ),
        // The runtime has forgotten the init container; it must have run.
        (
            "init=i containers=a",
            "sandbox=ready a=running",
            "",
            "Running; i=ended(0 Completed) done; a=running ready",
        ),
        (
            "init=i containers=a",
            "sandbox=ready i=exited:1",
            "",
            "Pending; i=ended(1 Error); a=waiting(PodInitializing)",
        ),
        (
            "init=s* containers=a",
            "sandbox=ready s=running",
            "",
            "Pending; s=running ready; a=waiting(PodInitializing)",
        ),
        (
            "init=s* containers=a s.startup",
            "sandbox=ready s=running",
            "",
            "Pending; s=running; a=waiting(PodInitializing)",
        ),
        (
            "init=s* containers=a",
            "sandbox=ready a=running s=exited:1",
            "",
            "Running; s=ended(1 Error); a=running ready",
        ),
        (
            "containers=a",
            "sandbox=ready a=exited:1@1-90",
            "",
            "Running; a=ended(1 Error)",
        ),
        (
            "restartPolicy=Never containers=a,b",
            "sandbox=ready a=exited:0 b=running",
            "",
            "Running; a=ended(0 Completed); b=running ready",
        ),
        (
            "containers=a ephemeral=e",
            "sandbox=ready e=running a=running",
            "",
            "Running; a=running ready; e=running",
        ),
        // Restarted: what was before shows.
        (
            "containers=a",
            "sandbox=ready a=running#1 a=exited:2",
            "",
            "Running; a=running after ended(2 Error) #1 ready",
        ),
    ]);
}

#[test]
fn the_end_is_told_when_nothing_runs_any_more() {
    let once = "restartPolicy=Never containers=a,b";
    check(&[
        (
            once,
            "sandbox=ready a=exited:0 b=exited:0",
            "phase=Running",
            "Running; a=ended(0 Completed); b=ended(0 Completed)",
        ),
        (
            once,
            "sandbox=ready a=exited:0 b=exited:0",
            "phase=Running ending=30@130 stopped=s0",
            "Succeeded; a=ended(0 Completed); b=ended(0 Completed)",
        ),
        (
            once,
            "sandbox=dead a=exited:0 b=exited:3",
            "phase=Running ending=30@130",
            "Failed; a=ended(0 Completed); b=ended(3 Error)",
        ),
        (
            "deleted=30 containers=a",
            "sandbox=ready a=running",
            "phase=Running ending=30@130",
            "Running; a=running ready",
        ),
        (
            "deleted=30 containers=a",
            "sandbox=dead a=exited:0",
            "phase=Running ending=30@130",
            "Succeeded; a=ended(0 Completed)",
        ),
        (
            "deleted=30 containers=a",
            "sandbox=dead a=exited:137",
            "phase=Running ending=30@130",
            "Failed; a=ended(137 Error)",
        ),
        // A phase that is final stays.
        (
            once,
            "sandbox=dead a=exited:0 b=running",
            "phase=Failed",
            "Failed; a=ended(0 Completed); b=running ready",
        ),
        // It never came to run anything.
        (
            "deleted=30 containers=a",
            "",
            "phase=Pending ending=30@130",
            "Pending; a=waiting(ContainerCreating)",
        ),
        (
            "deleted=30 containers=a",
            "",
            "phase=Pending ending=30@130 freed",
            "Failed; a=ended(137 ContainerStatusUnknown)",
        ),
        (
            "deleted=30 init=i,j containers=a",
            "",
            "phase=Pending ending=30@130 freed",
            "Failed; i=ended(137 ContainerStatusUnknown); j=waiting(PodInitializing); a=waiting(PodInitializing)",
        ),
        (
            "static containers=a",
            "sandbox=dead a=exited:0",
            "phase=Running ending=30@130",
            "Running; a=ended(0 Completed)",
        ),
    ]);
}

#[test]
fn waiting_has_a_reason() {
    check(&[
        (
            "containers=a",
            "sandbox=ready",
            "failed.a=110",
            "Pending; a=waiting(ErrImagePull)",
        ),
        (
            "containers=a",
            "sandbox=ready a=exited:1@91-95#1",
            "backoff.a=10@91",
            "Running; a=ended(1 Error) #1",
        ),
        (
            "containers=a",
            "sandbox=ready a=exited:1@91-95#1",
            "backoff.a=10@91 told.a=105",
            "Running; a=waiting(CrashLoopBackOff) after ended(1 Error) #1",
        ),
        (
            "containers=a",
            "sandbox=ready a=exited:1@91-95#1 a=exited:7",
            "backoff.a=10@91 told.a=105",
            "Running; a=waiting(CrashLoopBackOff) after ended(1 Error) #1",
        ),
        (
            "init=i containers=a",
            "sandbox=ready i=exited:1@91-95#1",
            "backoff.i=10@91 told.i=105",
            "Pending; i=waiting(CrashLoopBackOff) after ended(1 Error) #1; a=waiting(PodInitializing)",
        ),
        (
            "restartPolicy=Never init=i containers=a",
            "sandbox=ready i=exited:1",
            "",
            "Pending; i=ended(1 Error); a=waiting(PodInitializing)",
        ),
        (
            "restartPolicy=Never containers=a,b",
            "sandbox=ready b=running a=exited:1@91-95",
            "backoff.a=10@91",
            "Running; a=ended(1 Error); b=running ready",
        ),
        (
            "deleted=30 containers=a",
            "sandbox=ready a=exited:1@91-95#1",
            "backoff.a=10@91",
            "Running; a=ended(1 Error) #1",
        ),
    ]);
    let status = made(
        "containers=a",
        "sandbox=ready a=exited:1@91-95#1",
        "backoff.a=80@91 told.a=175",
    );
    let state = status.container_statuses.as_ref().unwrap()[0].state.as_ref().unwrap();
    let message = state.waiting.as_ref().unwrap().message.as_deref();
    assert_eq!(
        message,
        Some("back-off 1m20s restarting failed container=a pod=p_ns(uid)")
    );
}

#[test]
fn probes_decide_started_and_ready() {
    check(&[
        (
            "containers=a a.readiness",
            "sandbox=ready a=running",
            "",
            "Running; a=running started",
        ),
        (
            "containers=a a.readiness",
            "sandbox=ready a=running",
            "a.ready=yes",
            "Running; a=running ready",
        ),
        (
            "containers=a a.readiness",
            "sandbox=ready a=running",
            "a.ready=no",
            "Running; a=running started",
        ),
        (
            "containers=a a.startup a.readiness",
            "sandbox=ready a=running",
            "a.ready=yes",
            "Running; a=running",
        ),
        (
            "containers=a a.startup",
            "sandbox=ready a=running",
            "a.start=yes",
            "Running; a=running ready",
        ),
        (
            "containers=a a.readiness",
            "sandbox=ready a=running#1",
            "a.ready=yes",
            "Running; a=running #1 started",
        ),
    ]);
}

#[test]
fn conditions_and_their_reasons() {
    let cases: &[(&str, &str, &str, &str, &str)] = &[
        (
            "containers=a,b",
            "",
            "",
            "Ready",
            "False ContainersNotReady containers with unready status: [a b]",
        ),
        (
            "containers=a,b",
            "",
            "",
            "ContainersReady",
            "False ContainersNotReady containers with unready status: [a b]",
        ),
        ("containers=a", "", "", "Initialized", "True"),
        ("containers=a", "", "", "PodScheduled", "True"),
        ("containers=a", "", "", "PodReadyToStartContainers", "False"),
        ("containers=a", "sandbox=ready", "", "PodReadyToStartContainers", "True"),
        (
            "init=i,j containers=a",
            "sandbox=ready i=exited:0",
            "",
            "Initialized",
            "False ContainersNotInitialized containers with incomplete status: [j]",
        ),
        (
            "init=i containers=a",
            "sandbox=ready a=running i=exited:0",
            "",
            "Initialized",
            "True",
        ),
        (
            "init=s* containers=a",
            "sandbox=ready a=running s=exited:1",
            "",
            "Ready",
            "False ContainersNotReady containers with unready status: [s]",
        ),
        ("containers=a", "sandbox=ready a=running", "", "Ready", "True"),
        (
            "containers=a gate=x/y",
            "sandbox=ready a=running",
            "",
            "Ready",
            "False ReadinessGatesNotReady corresponding condition of pod readiness gate \"x/y\" does not exist.",
        ),
        (
            "containers=a gate=x/y",
            "sandbox=ready a=running",
            "",
            "ContainersReady",
            "True",
        ),
        (
            "restartPolicy=Never containers=a",
            "sandbox=dead a=exited:0",
            "ending=30@130",
            "Ready",
            "False PodCompleted",
        ),
        (
            "restartPolicy=Never containers=a",
            "sandbox=dead a=exited:0",
            "ending=30@130",
            "Initialized",
            "True PodCompleted",
        ),
        (
            "restartPolicy=Never containers=a",
            "sandbox=dead a=exited:1",
            "ending=30@130",
            "Ready",
            "False PodFailed",
        ),
        (
            "containers=a",
            "sandbox=ready a=running",
            "",
            "AllContainersRestarting",
            "no AllContainersRestarting",
        ),
        (
            "containers=a,b a.restartPolicy=Never a.rule=In:42:RestartAllContainers",
            "sandbox=ready a=exited:42 b=running",
            "",
            "AllContainersRestarting",
            "True RestartAllContainersStarted container exited with restart policy rule",
        ),
    ];
    for (spec, seen, remembered, type_, expected) in cases {
        let status = made(spec, seen, remembered);
        assert_eq!(shown_condition(&status, type_), *expected, "{spec} | {seen} | {type_}");
        assert!(
            status
                .conditions
                .iter()
                .flatten()
                .all(|c| c.observed_generation == Some(1))
        );
    }
}

#[test]
fn gates_and_conditions_of_others_are_kept() {
    let mut pod = pod("containers=a gate=x/y");
    let foreign = |status: &str| PodCondition {
        type_: "x/y".into(),
        status: status.into(),
        ..Default::default()
    };
    let seen = observed(&pod, "sandbox=ready a=running");
    let mut of = |status: &str| {
        let claims = serde_json::json!({"conditions": [{"type": "Ready", "status": "Unknown"}],
            "resourceClaimStatuses": [{"name": "gpu"}]});
        let mut api: PodStatus = orlop_api::types::from_value(claims).unwrap();
        api.conditions.as_mut().unwrap().push(foreign(status));
        pod.status = Some(api);
        pod_status(&pod, &seen, &memory(&pod, "").0, &host(), at(100))
    };
    let unmet = "False ReadinessGatesNotReady the status of pod readiness gate \"x/y\" is not \"True\", but False";
    assert_eq!(shown_condition(&of("False"), "Ready"), unmet);
    let status = of("True");
    assert_eq!(shown_condition(&status, "Ready"), "True");
    assert_eq!(
        status
            .conditions
            .iter()
            .flatten()
            .filter(|c| c.type_ == "Ready")
            .count(),
        1
    );
    assert_eq!(status.resource_claim_statuses.unwrap()[0]["name"], "gpu");
}

#[test]
fn times_stay_until_something_changes() {
    let pod = pod("containers=a");
    let (mut memory, _) = memory(&pod, "");
    memory.status = pod_status(&pod, &observed(&pod, ""), &memory, &host(), at(10));
    let running = pod_status(
        &pod,
        &observed(&pod, "sandbox=ready a=running"),
        &memory,
        &host(),
        at(20),
    );
    let time = |status: &PodStatus, type_: &str| {
        let time = condition(status, type_)
            .unwrap()
            .last_transition_time
            .as_ref()
            .unwrap()
            .0;
        time.as_second() - epoch().as_second()
    };
    assert_eq!(running.start_time.as_ref().unwrap().0, at(10));
    assert_eq!((time(&running, "Ready"), time(&running, "Initialized")), (20, 10));
    memory.status = running.clone();
    let again = pod_status(
        &pod,
        &observed(&pod, "sandbox=ready a=running"),
        &memory,
        &host(),
        at(30),
    );
    assert_eq!(again, running);
}

#[test]
fn what_never_started_did_so_in_1970() {
    let pod = pod("containers=a");
    let (memory, now) = memory(&pod, "");
    let mut observed = observed(&pod, "sandbox=ready a=exited:128");
    observed.containers[0].started_at = None;
    let status = pod_status(&pod, &observed, &memory, &host(), now);
    let container = &status.container_statuses.unwrap()[0];
    let end = [&container.state, &container.last_state];
    let end = end.into_iter().flatten().find_map(|state| state.terminated.clone());
    let started = serde_json::to_value(end.unwrap()).unwrap()["startedAt"].clone();
    assert_eq!(started, "1970-01-01T00:00:00Z");
}

#[test]
fn what_the_runtime_lost_is_told_from_the_status_before() {
    let pod = pod("containers=a");
    let (mut memory, now) = memory(&pod, "");
    memory.status = pod_status(
        &pod,
        &observed(&pod, "sandbox=ready a=running#2"),
        &memory,
        &host(),
        now,
    );
    let lost = pod_status(&pod, &observed(&pod, "sandbox=ready"), &memory, &host(), now);
    let expected = "Running; a=waiting(ContainerCreating) after ended(137 ContainerStatusUnknown) #3";
    assert_eq!(shown(&lost), expected);
    let unknown = pod_status(
        &pod,
        &observed(&pod, "sandbox=ready a=unknown#2"),
        &memory,
        &host(),
        now,
    );
    assert_eq!(shown(&unknown), "Running; a=ended(137 ContainerStatusUnknown) #3");
    memory.status = pod_status(
        &pod,
        &observed(&pod, "sandbox=ready a=exited:5#2"),
        &memory,
        &host(),
        now,
    );
    let gone = pod_status(&pod, &observed(&pod, "sandbox=ready"), &memory, &host(), now);
    assert_eq!(shown(&gone), "Running; a=ended(5 Error) #2");
}

#[test]
fn a_new_agent_keeps_readiness_until_its_probes_speak() {
    let pod = pod("containers=a a.readiness a.startup");
    let (mut memory, now) = memory(&pod, "a.ready=yes a.start=yes");
    let seen = observed(&pod, "sandbox=ready a=running@5");
    memory.status = pod_status(&pod, &seen, &memory, &host(), now);
    memory.probes.clear();
    memory.agent_started = at(50);
    assert_eq!(
        shown(&pod_status(&pod, &seen, &memory, &host(), now)),
        "Running; a=running ready"
    );
    memory.agent_started = at(1);
    assert_eq!(
        shown(&pod_status(&pod, &seen, &memory, &host(), now)),
        "Running; a=running started"
    );
}

#[test]
fn evictions_and_deadlines_give_the_reason() {
    let pod = pod("containers=a");
    let (mut memory, now) = memory(&pod, "phase=Running ending=5@105");
    let condition = PodCondition {
        type_: "DisruptionTarget".into(),
        status: "True".into(),
        ..Default::default()
    };
    memory.ending.as_mut().unwrap().failed = Some(("Evicted".into(), "low on memory".into()));
    memory.requests.evict = Some(Eviction {
        reason: "Evicted".into(),
        message: "low on memory".into(),
        grace_seconds: None,
        condition: Some(condition),
    });
    let before = pod_status(&pod, &observed(&pod, "sandbox=ready a=running"), &memory, &host(), now);
    assert_eq!(
        (
            shown(&before).as_str(),
            shown_condition(&before, "DisruptionTarget").as_str()
        ),
        ("Running; a=running ready", "no DisruptionTarget")
    );
    let after = pod_status(&pod, &observed(&pod, "sandbox=dead a=exited:0"), &memory, &host(), now);
    assert_eq!(shown(&after), "Failed; Evicted; a=ended(0 Completed)");
    assert_eq!(
        (
            after.message.as_deref(),
            shown_condition(&after, "DisruptionTarget").as_str()
        ),
        (Some("low on memory"), "True")
    );
}

#[test]
fn addresses_resources_and_ids() {
    let status = made(
        "containers=a a.requests=cpu:2,memory:1Gi a.limits=memory:1Gi",
        "sandbox=ready a=running@5",
        "applied.a=cpu:1,memory:1Gi",
    );
    assert_eq!(
        (status.pod_ip.as_deref(), status.host_ip.as_deref()),
        (Some("10.0.0.1"), Some("192.168.0.1"))
    );
    assert_eq!(status.qos_class.as_deref(), Some("Burstable"));
    assert_eq!(status.allocated_resources.as_ref().unwrap()["cpu"].0, "2");
    let container = &status.container_statuses.as_ref().unwrap()[0];
    assert_eq!(container.container_id.as_deref(), Some("sim://a0"));
    assert_eq!(
        (container.image.as_str(), container.image_id.as_str()),
        ("image", "image@sha256:1")
    );
    let requests = container.resources.as_ref().unwrap().requests.as_ref().unwrap();
    assert_eq!(
        (requests["cpu"].0.as_str(), requests["memory"].0.as_str()),
        ("1", "1Gi")
    );
    assert_eq!(container.allocated_resources.as_ref().unwrap()["cpu"].0, "2");
    let host_network = made("hostNetwork containers=a", "sandbox=ready a=running", "");
    assert_eq!(host_network.pod_ip.as_deref(), Some("192.168.0.1"));
}

#[test]
fn resize_conditions() {
    let pod = pod("containers=a");
    let (mut memory, now) = memory(&pod, "");
    let message = "Node didn't have enough resource: cpu, requested: 5000, used: 0, capacity: 4000";
    memory.resize_pending = Some(crate::pod::resize::Pending {
        reason: "Deferred".into(),
        message: message.into(),
        generation: 2,
    });
    memory.resize_in_progress = Some(Default::default());
    let status = pod_status(&pod, &observed(&pod, "sandbox=ready a=running"), &memory, &host(), now);
    assert_eq!(
        shown_condition(&status, "PodResizePending"),
        format!("True Deferred {message}")
    );
    assert_eq!(shown_condition(&status, "PodResizeInProgress"), "True");
}

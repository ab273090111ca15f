use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use super::behaviour::{Behaviour, Rules, restart_delay};
use super::life::{self, Deleting, PodView, RestartPolicy, Stage};
use super::report::{self, Facts};
use super::{Options, nodes};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).unwrap()
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// The stages of a pod with the seconds at which they begin.
fn story(behaviour: &Behaviour, policy: RestartPolicy, most: usize) -> Vec<(String, i64)> {
    let (mut stage, mut since, mut restarts) = (Stage::Waiting, at(0), 0);
    let mut told = vec![];
    while let Some(next) = life::next(stage, since, behaviour, policy, restarts)
        && told.len() < most
    {
        restarts += u32::from(stage == Stage::BackOff);
        if !matches!((stage, next.stage), (Stage::Running { .. }, Stage::Running { .. })) {
            since = next.at;
        }
        stage = next.stage;
        told.push((format!("{stage:?}"), next.at.as_second() - 1_000_000));
    }
    told
}

#[test]
fn pods_live_as_they_are_told() {
    let expect = |behaviour: Behaviour, policy, expected: &[(&str, i64)]| {
        let told = story(&behaviour, policy, 5);
        let told: Vec<(&str, i64)> = told.iter().map(|(s, t)| (s.as_str(), *t)).collect();
        assert_eq!(told, expected, "{behaviour:?} {policy:?}");
    };
    let plain = Behaviour::default();
    expect(plain.clone(), RestartPolicy::Always, &[("Running { ready: true }", 0)]);
    let slow = Behaviour {
        start_delay: seconds(3),
        ready_delay: seconds(4),
        ..plain.clone()
    };
    expect(
        slow,
        RestartPolicy::Always,
        &[("Running { ready: false }", 3), ("Running { ready: true }", 7)],
    );
    let short = Behaviour {
        run_for: Some(seconds(2)),
        ..plain.clone()
    };
    let done = [("Running { ready: true }", 0), ("Finished { failed: false }", 2)];
    expect(short.clone(), RestartPolicy::Never, &done);
    expect(short, RestartPolicy::OnFailure, &done);
    let failing = Behaviour {
        run_for: Some(seconds(2)),
        ready_delay: seconds(9),
        exit_code: 1,
        ..plain
    };
    expect(
        failing.clone(),
        RestartPolicy::Never,
        &[("Running { ready: false }", 0), ("Finished { failed: true }", 2)],
    );
    expect(
        failing,
        RestartPolicy::OnFailure,
        &[
            ("Running { ready: false }", 0),
            ("BackOff", 2),
            ("Running { ready: false }", 12),
            ("BackOff", 14),
            ("Running { ready: false }", 34),
        ],
    );
    assert_eq!(restart_delay(9), seconds(300));
    assert_eq!(restart_delay(40), seconds(300));
}

#[test]
fn what_is_there_already_is_taken_over() {
    let pod = |phase: &str, deleting: bool| PodView {
        phase: phase.to_string(),
        deleting: deleting.then_some(Deleting),
        ..PodView::default()
    };
    assert_eq!(life::first(&pod("Pending", false)), Stage::Waiting);
    assert_eq!(life::first(&pod("Running", false)), Stage::Running { ready: true });
    assert_eq!(life::first(&pod("Failed", false)), Stage::Finished { failed: true });
    assert_eq!(life::first(&pod("Running", true)), Stage::Leaving);
}

#[test]
fn annotations_go_before_rules_and_rules_before_habit() {
    let rules = Rules::parse(
        "pods:\n- labels: {app: db}\n  startDelay: 5s\n- owner: Job\n  runFor: 1m30s\n  exitCode: 3\n- namespace: slow\n  readyDelay: 500ms\n",
    )
    .unwrap();
    let mut pod = PodView {
        namespace: "default".into(),
        ..PodView::default()
    };
    assert_eq!(rules.of(&pod), Behaviour::default());
    pod.namespace = "slow".into();
    assert_eq!(rules.of(&pod).ready_delay, Duration::from_millis(500));
    pod.owner = Some("Job".into());
    assert_eq!(Rules::default().of(&pod).run_for, Some(seconds(1)));
    let ruled = rules.of(&pod);
    assert_eq!((ruled.run_for, ruled.exit_code), (Some(seconds(90)), 3));
    pod.annotations.insert("orlop.io/run-for".into(), "7s".into());
    pod.annotations.insert("orlop.io/exit-code".into(), "0".into());
    pod.annotations.insert("orlop.io/start-delay".into(), "nonsense".into());
    let annotated = rules.of(&pod);
    assert_eq!((annotated.run_for, annotated.exit_code), (Some(seconds(7)), 0));
    assert_eq!(annotated.start_delay, Duration::ZERO);
    for bad in [
        "pods:\n- startDelay: soon\n",
        "pods:\n- startdelay: 1s\n",
        "nodes: []\n",
    ] {
        assert!(Rules::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn names_belong_to_one_node_each() {
    let options = Options {
        count: 12,
        ..Options::default()
    };
    for (name, number) in [
        ("sim-0", Some(0)),
        ("sim-11", Some(11)),
        ("sim-12", None),
        ("sim-01", None),
        ("sim-", None),
        ("sim--1", None),
        ("sim-+1", None),
        ("other-1", None),
        ("", None),
    ] {
        assert_eq!(options.number(name), number, "{name}");
    }
    assert_eq!(nodes::pod_net(5000), [100, 83, 136]);
}

#[test]
fn statuses_say_what_kubectl_shows() {
    let containers = [("web".to_string(), "nginx".to_string())];
    let facts = |restarts, exit_code| Facts {
        uid: "u",
        ip: "100.64.0.2".into(),
        host_ip: "198.18.0.0".into(),
        init_containers: &[],
        containers: &containers,
        restarts,
        exit_code,
        started: at(0),
        run_began: at(0),
        now: at(5),
    };
    let running = report::status(Stage::Running { ready: true }, &facts(0, 0));
    assert_eq!(running["status"]["phase"], "Running");
    assert_eq!(running["status"]["containerStatuses"][0]["ready"], true);
    assert_eq!(running["metadata"]["uid"], "u");
    let ready = |status: &serde_json::Value| status["status"]["conditions"][2].clone();
    assert_eq!(ready(&running)["status"], "True");
    let back_off = report::status(Stage::BackOff, &facts(2, 1));
    let container = &back_off["status"]["containerStatuses"][0];
    assert_eq!(container["state"], json!({"waiting": {"reason": "CrashLoopBackOff"}}));
    assert_eq!(container["lastState"]["terminated"]["exitCode"], 1);
    assert_eq!(ready(&back_off)["message"], "containers with unready status: [web]");
    let done = report::status(Stage::Finished { failed: false }, &facts(0, 0));
    assert_eq!(done["status"]["phase"], "Succeeded");
    assert_eq!(ready(&done)["reason"], "PodCompleted");
}

#[test]
fn containers_use_what_they_are_told_to() {
    let rules = Rules::parse("pods:\n- labels: {app: db}\n  cpu: 250m\n  memory: 64Mi\n").unwrap();
    let mut pod = PodView::default();
    let used = |pod: &PodView, container: &str| {
        let usage = rules.usage(pod, container);
        (usage.cpu_nano_cores / 1_000_000, usage.memory_bytes >> 20)
    };
    assert_eq!(used(&pod, "web"), (1, 1));
    pod.labels.insert("app".into(), "db".into());
    assert_eq!(used(&pod, "web"), (250, 64));
    pod.annotations.insert("orlop.io/cpu".into(), "2".into());
    pod.annotations.insert("orlop.io/cpu.side".into(), "3".into());
    pod.annotations.insert("orlop.io/memory".into(), "-1Mi".into());
    assert_eq!(used(&pod, "web"), (2000, 64), "nonsense is left out");
    assert_eq!(used(&pod, "side"), (3000, 64));
    for bad in ["pods:\n- cpu: much\n", "pods:\n- memory: -1Mi\n"] {
        assert!(Rules::parse(bad).is_err(), "{bad}");
    }
}

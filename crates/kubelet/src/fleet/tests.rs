use std::time::Duration;

use jiff::Timestamp;
use orlop_base::clock::Shift;
use serde_json::json;

use super::behaviour::{Behaviour, Rules};
use super::conditions::{ReportedCondition, Standing};
use super::life::{self, Deleting, Life, PodView, RestartPolicy, Stage};
use super::nodes::pod_net;
use super::pods::Shape;
use super::report::{self, Facts};
use super::{Group, Groups};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).unwrap()
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn life(stage: Stage) -> Life {
    Life {
        stage,
        since: at(0),
        started: at(0),
        restarts: 0,
        in_row: 0,
    }
}

/// The stages of a pod with the seconds at which they begin.
fn story(behaviour: &Behaviour, policy: RestartPolicy, most: usize) -> Vec<(String, i64)> {
    let mut life = life(Stage::Waiting);
    let mut told = vec![];
    while let Some(next) = life.next(behaviour, policy)
        && told.len() < most
    {
        life.enter(next.stage, next.at);
        told.push((format!("{:?}", next.stage), next.at.as_second() - 1_000_000));
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
            ("Running { ready: false }", 2),
            ("BackOff", 4),
            ("Running { ready: false }", 14),
        ],
    );
}

/// How long a pod waits each time that it has ended, having run so long.
fn waits(runs: &[u64]) -> Vec<u64> {
    let mut life = life(Stage::Running { ready: true });
    let wait = |ran: &u64| {
        life.enter(Stage::BackOff, life.since.later(seconds(*ran)));
        let wait = life.back_off();
        life.enter(Stage::Running { ready: true }, life.since.later(wait));
        wait.as_secs()
    };
    runs.iter().map(wait).collect()
}

#[test]
fn back_off_doubles_and_is_forgotten_after_a_long_run() {
    assert_eq!(waits(&[1; 9]), [0, 10, 20, 40, 80, 160, 300, 300, 300]);
    assert_eq!(waits(&[1; 400])[399], 300);
    // As long as twice the longest wait is not longer.
    assert_eq!(waits(&[1, 1, 600, 601, 1, 1]), [0, 10, 20, 0, 10, 20]);
}

#[test]
fn what_is_there_already_is_taken_over() {
    let pod = |phase: &str, runs: bool, ready: &str| PodView {
        phase: phase.to_string(),
        runs,
        run_began: runs.then(|| at(-7)),
        started: Some(at(-9)),
        restarts: 3,
        conditions: vec![ReportedCondition {
            kind: "ContainersReady".into(),
            status: ready.into(),
        }],
        ..PodView::default()
    };
    let stage = |pod: &PodView| life::first(pod, at(0)).stage;
    assert_eq!(stage(&pod("Pending", false, "False")), Stage::Waiting);
    assert_eq!(stage(&pod("Running", true, "True")), Stage::Running { ready: true });
    assert_eq!(stage(&pod("Running", true, "False")), Stage::Running { ready: false });
    assert_eq!(stage(&pod("Running", false, "False")), Stage::BackOff);
    assert_eq!(stage(&pod("Failed", false, "False")), Stage::Finished { failed: true });
    let leaving = PodView {
        deleting: Some(Deleting),
        ..pod("Running", true, "True")
    };
    assert_eq!(stage(&leaving), Stage::Leaving);
    let found = life::first(&pod("Running", true, "True"), at(0));
    assert_eq!((found.since, found.started, found.restarts), (at(-7), at(-9), 3));
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
    let nodes = Groups::new(vec![Group::default_nodes(12)]).unwrap();
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
        assert_eq!(nodes.number(name), number, "{name}");
    }
    assert_eq!(pod_net(5000), [100, 83, 136]);
}

fn status(life: &Life, exit_code: i32) -> serde_json::Value {
    let behaviour = Behaviour {
        exit_code,
        ..Behaviour::default()
    };
    let shape = Shape {
        containers: vec![("web".to_string(), "nginx".to_string())],
        behaviour,
        ..Shape::default()
    };
    report::status(&Facts {
        uid: "u",
        namespace: "d",
        name: "p",
        ip: "100.64.0.2".into(),
        host_ip: "198.18.0.0".into(),
        shape: &shape,
        life,
        unmet: None,
        ended: None,
        told: Standing::default(),
        now: at(5),
    })
}

#[test]
fn statuses_say_what_kubectl_shows() {
    let running = status(&life(Stage::Running { ready: true }), 0);
    assert_eq!(running["status"]["phase"], "Running");
    assert_eq!(running["status"]["containerStatuses"][0]["ready"], true);
    assert_eq!(running["metadata"]["uid"], "u");
    let ready = |status: &serde_json::Value| status["status"]["conditions"][2].clone();
    assert_eq!(ready(&running)["status"], "True");
    let done = status(&life(Stage::Finished { failed: false }), 0);
    assert_eq!(done["status"]["phase"], "Succeeded");
    assert_eq!(ready(&done)["reason"], "PodCompleted");
}

#[test]
fn crash_loops_are_told_once_there_is_a_wait() {
    let told = |in_row| {
        let life = Life {
            restarts: 7,
            in_row,
            ..life(Stage::BackOff)
        };
        let status = status(&life, 1);
        let ready = status["status"]["conditions"][2]["message"].clone();
        assert_eq!(ready, "containers with unready status: [web]");
        status["status"]["containerStatuses"][0].clone()
    };
    assert_eq!(told(0)["state"]["terminated"]["reason"], "Error");
    for (in_row, delay) in [(1, "10s"), (4, "1m20s"), (9, "5m0s")] {
        let message = format!("back-off {delay} restarting failed container=web pod=p_d(u)");
        let waiting = json!({"reason": "CrashLoopBackOff", "message": message});
        assert_eq!(told(in_row)["state"], json!({"waiting": waiting}));
        assert_eq!(told(in_row)["lastState"]["terminated"]["exitCode"], 1);
    }
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

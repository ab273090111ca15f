use super::*;
use crate::events::testing::Said;
use std::collections::VecDeque;

const START: &str = "2026-01-02T03:04:05Z";

/// Answers by script, the last one for ever; counts what it was asked.
#[derive(Clone, Default)]
struct Script {
    answers: Arc<Mutex<BTreeMap<(String, Kind), VecDeque<ProbeResult>>>>,
    asked: Arc<Mutex<Vec<(Instant, String, Kind)>>>,
}

impl Script {
    fn say(&self, container: &str, kind: Kind, answers: &[ProbeResult]) {
        let key = (container.to_string(), kind);
        self.answers.lock().insert(key, answers.iter().cloned().collect());
    }

    fn asked(&self, kind: Kind) -> usize {
        self.asked.lock().iter().filter(|(_, _, k)| *k == kind).count()
    }

    fn prober(&self) -> Prober {
        let script = self.clone();
        Arc::new(move |attempt: Attempt| {
            let (name, kind) = (attempt.question.container.name.clone(), attempt.question.kind);
            script.asked.lock().push((Instant::now(), name.clone(), kind));
            let mut answers = script.answers.lock();
            let queue = answers.get_mut(&(name, kind));
            let outcome = match queue {
                Some(queue) if queue.len() > 1 => queue.pop_front().unwrap(),
                Some(queue) => queue.front().cloned().unwrap(),
                None => ProbeResult::Success,
            };
            Box::pin(async move { outcome })
        })
    }
}

struct World {
    probes: Probes,
    script: Script,
    said: Said,
    clock: Clock,
}

fn world() -> World {
    let (script, said) = (Script::default(), Said::default());
    let clock = Clock::manual(START.parse().unwrap());
    let random = Random::seeded(7);
    let probes = Probes::with_prober(
        script.prober(),
        said.events(),
        clock.clone(),
        random,
        Shutdown::default(),
    );
    World {
        probes,
        script,
        said,
        clock,
    }
}

fn pod(probes: &str) -> Pod {
    let text = format!(
        r#"{{"metadata": {{"name": "p", "namespace": "n", "uid": "u"}},
             "spec": {{"containers": [{{"name": "c", {probes}}}]}}}}"#
    );
    serde_json::from_str(&text).unwrap()
}

fn target(name: &str, id: &str, clock: &Clock) -> ProbeTarget {
    ProbeTarget {
        name: name.to_string(),
        container_id: format!("containerd://{id}"),
        started_at: clock.now(),
    }
}

const EXEC: &str = r#""exec": {"command": ["true"]}, "periodSeconds": 10"#;

#[tokio::test(start_paused = true)]
async fn ready_at_once_and_unready_after_three_failures() {
    let World {
        probes,
        script,
        said,
        clock,
    } = world();
    let mut changes = probes.changes();
    let pod = pod(&format!(r#""readinessProbe": {{{EXEC}}}"#));
    let failure = ProbeResult::Failure("bad".to_string());
    script.say(
        "c",
        Kind::Readiness,
        &[ProbeResult::Success, failure.clone(), failure.clone(), failure],
    );
    let began = Instant::now();
    probes.update(&pod, &[target("c", "1", &clock)], Some("10.0.0.1"));
    assert_eq!(probes.results("u").readiness("c", "1"), Some(false));
    assert_eq!(changes.recv().await.as_deref(), Some("u"));
    assert_eq!(probes.results("u").readiness("c", "containerd://1"), Some(true));
    assert!(began.elapsed() < Duration::from_secs(1));
    assert_eq!(changes.recv().await.as_deref(), Some("u"));
    assert_eq!(probes.results("u").readiness("c", "1"), Some(false));
    assert_eq!(began.elapsed().as_secs(), 30);
    let line = "Warning Unhealthy spec.containers{c}: Readiness probe failed: bad";
    assert_eq!(said.take(), [line, line, line]);

    // Another container: nothing is known of it yet, and of the old one nothing any more.
    script.say("c", Kind::Readiness, &[ProbeResult::Success]);
    probes.update(&pod, &[target("c", "2", &clock)], Some("10.0.0.1"));
    assert_eq!(probes.results("u").readiness("c", "1"), None);
    assert_eq!(probes.results("u").readiness("c", "2"), Some(false));
    changes.recv().await.unwrap();
    assert_eq!(probes.results("u").readiness("c", "2"), Some(true));

    let metrics = probes.metrics();
    let labels = r#"container="c",namespace="n",pod="p",probe_type="Readiness""#;
    for line in [
        format!(r#"prober_probe_total{{{labels},pod_uid="u",result="failed"}} 3"#),
        format!(r#"prober_probe_total{{{labels},pod_uid="u",result="successful"}} 2"#),
        format!(r#"prober_probe_duration_seconds_bucket{{{labels},le="0.005"}} 2"#),
        format!(r#"prober_probe_duration_seconds_bucket{{{labels},le="+Inf"}} 2"#),
    ] {
        assert!(metrics.contains(&line), "{line} not in\n{metrics}");
    }
    probes.forget("u");
    assert_eq!(probes.results("u"), ProbeResults::default());
    let asked = script.asked(Kind::Readiness);
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(script.asked(Kind::Readiness), asked);
}

#[tokio::test(start_paused = true)]
async fn liveness_holds_until_the_container_is_replaced() {
    let World {
        probes, script, clock, ..
    } = world();
    let mut changes = probes.changes();
    let pod = pod(&format!(r#""livenessProbe": {{{EXEC}}}, "startupProbe": {{{EXEC}}}"#));
    let failure = ProbeResult::Failure("bad".to_string());
    script.say("c", Kind::Liveness, std::slice::from_ref(&failure));
    script.say(
        "c",
        Kind::Startup,
        &[failure, ProbeResult::unknown("?"), ProbeResult::Success],
    );
    probes.update(&pod, &[target("c", "1", &clock)], None);
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(script.asked(Kind::Liveness), 0, "not before startup");
    assert_eq!(probes.results("u").startup("c", "1"), None);
    changes.recv().await.unwrap();
    assert_eq!(probes.results("u").startup("c", "1"), Some(true));
    assert_eq!(probes.results("u").liveness("c", "1"), Some(true));
    changes.recv().await.unwrap();
    assert_eq!(probes.results("u").liveness("c", "1"), Some(false));
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!((script.asked(Kind::Liveness), script.asked(Kind::Startup)), (3, 3));
    probes.update(&pod, &[], None);
    probes.update(&pod, &[target("c", "2", &clock)], None);
    assert_eq!(probes.results("u").liveness("c", "2"), Some(true));
    changes.recv().await.unwrap();
    assert_eq!(probes.results("u").startup("c", "2"), Some(true));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_is_asked_for_readiness_only() {
    let World {
        probes, script, clock, ..
    } = world();
    let mut pod = pod(&format!(r#""livenessProbe": {{{EXEC}}}, "readinessProbe": {{{EXEC}}}"#));
    probes.update(&pod, &[target("c", "1", &clock)], None);
    tokio::time::sleep(Duration::from_secs(25)).await;
    let before = (script.asked(Kind::Liveness), script.asked(Kind::Readiness));
    pod.metadata.deletion_timestamp = Some(orlop_api::types::meta::Time(clock.now()));
    probes.update(&pod, &[target("c", "1", &clock)], None);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(script.asked(Kind::Liveness), before.0);
    assert_eq!(script.asked(Kind::Readiness), before.1 + 3);
}

#[tokio::test(start_paused = true)]
async fn what_ran_before_the_agent_stays_ready() {
    let World {
        probes, script, clock, ..
    } = world();
    let mut pod = pod(&format!(r#""readinessProbe": {{{EXEC}}}, "startupProbe": {{{EXEC}}}"#));
    let status = r#"{"containerStatuses": [{"name": "c", "containerID": "containerd://1", "started": true, "ready": true,
        "image": "i", "imageID": "", "restartCount": 0}]}"#;
    pod.status = Some(serde_json::from_str(status).unwrap());
    let old = |id: &str| ProbeTarget {
        started_at: clock.now() - Duration::from_secs(3600),
        ..target("c", id, &clock)
    };
    probes.update(&pod, &[old("1")], None);
    assert_eq!(probes.results("u").readiness("c", "1"), Some(true));
    assert_eq!(probes.results("u").startup("c", "1"), Some(true));
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!((script.asked(Kind::Readiness), script.asked(Kind::Startup)), (2, 0));
    // The status is about another container.
    probes.update(&pod, &[old("2")], None);
    assert_eq!(probes.results("u").readiness("c", "2"), Some(false));
}

#[tokio::test(start_paused = true)]
async fn many_pods_spread_out() {
    let World {
        probes, script, clock, ..
    } = world();
    let mut changes = probes.changes();
    let template = pod(&format!(r#""livenessProbe": {{{EXEC}}}"#));
    for i in 0..110 {
        let mut pod = template.clone();
        pod.metadata.uid = Some(format!("u{i}"));
        probes.update(&pod, &[target("c", &i.to_string(), &clock)], None);
    }
    let began = Instant::now();
    tokio::time::sleep(Duration::from_secs(100)).await;
    let asked = script.asked.lock();
    assert_eq!(asked.len(), 1100);
    let in_second = |s: u64| asked.iter().filter(|(at, ..)| (*at - began).as_secs() == s).count();
    assert!((50..60).all(|s| in_second(s) < 40), "at most a few at once");
    assert!(changes.try_recv().is_err(), "nothing changed");
    assert!(probes.shared.state.lock().times.len() <= 110, "the heap does not grow");
}

#[tokio::test(start_paused = true)]
async fn changes_nobody_hears_are_told_later() {
    let World { probes, clock, .. } = world();
    let mut changes = probes.changes();
    let template = pod(&format!(r#""readinessProbe": {{{EXEC}}}"#));
    for i in 0..MOST_CHANGES + 50 {
        let mut pod = template.clone();
        pod.metadata.uid = Some(format!("u{i}"));
        probes.update(&pod, &[target("c", &i.to_string(), &clock)], None);
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let mut heard = BTreeSet::new();
    while heard.len() < MOST_CHANGES + 50 {
        heard.insert(changes.recv().await.unwrap());
    }
}

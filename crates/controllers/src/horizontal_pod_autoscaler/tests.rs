//! Sizes from tables of measurements, rates from tables of behaviours, and an autoscaler on an API server in memory.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::DEF;
use super::limits::{ScalingHistory, Sizes, limit, note_change};
use super::usage::{Question, Sample, Target, Tolerances, Warmup};
use crate::objects::horizontal_pod_autoscaler::Behavior;
use crate::objects::{Deployment, HorizontalPodAutoscaler, Pod, condition};
use crate::testing::{Cluster, Refusal};

const NOW: i64 = 1_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A pod that started an hour ago and asks for a CPU.
fn pod(name: &str, phase: &str, ready: bool, deleted: bool) -> Arc<Pod> {
    let state = if ready { "True" } else { "False" };
    let started = at(NOW - 3600);
    let pod = json!({
        "metadata": {"name": name, "deletionTimestamp": deleted.then_some(at(NOW))},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]},
        "status": {"phase": phase, "startTime": started,
                   "conditions": [{"type": "Ready", "status": state, "lastTransitionTime": started}]},
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn question<'a>(pods: &'a [Arc<Pod>], used: &[Option<i64>], target: Target) -> Question<'a> {
    let sample = |value: i64| Sample {
        value,
        at: at(NOW),
        window: Duration::from_secs(60),
    };
    let named = pods.iter().zip(used);
    Question {
        current: pods.len() as i64,
        pods,
        samples: named
            .filter_map(|(p, used)| Some((p.metadata.name.clone(), sample((*used)?))))
            .collect(),
        resource: "cpu",
        container: "",
        target,
        tolerances: Tolerances { down: 0.1, up: 0.1 },
        warmup: Warmup {
            cpu_initialization: Duration::from_secs(300),
            initial_readiness: Duration::from_secs(30),
        },
        now: at(NOW),
    }
}

#[test]
fn sizes_by_usage() {
    // Pods: r ready, u unready since the start, p pending, f failed, d deleted.
    for (pods, used, target, wanted, why) in [
        (
            "rrr",
            vec![Some(300), Some(500), Some(700)],
            30,
            5,
            "more is used than wanted",
        ),
        ("rrr", vec![Some(300), Some(500), Some(700)], 50, 3, "as wanted"),
        (
            "rrr",
            vec![Some(500), Some(540), Some(560)],
            50,
            3,
            "within the tolerance",
        ),
        (
            "rrrrr",
            vec![Some(100), Some(300), Some(500), Some(250), Some(250)],
            50,
            3,
            "less is used",
        ),
        ("rrr", vec![Some(0), Some(0), Some(0)], 50, 0, "nothing is used"),
        // Who is not ready counts as idle when scaling up, and not at all when scaling down.
        (
            "uurr",
            vec![Some(100), Some(300), Some(500), Some(700)],
            30,
            4,
            "unready pods keep it where it is",
        ),
        ("urr", vec![Some(400), Some(500), Some(700)], 30, 4, "and slow it down"),
        (
            "pprr",
            vec![None, None, Some(500), Some(700)],
            30,
            4,
            "as pending ones do",
        ),
        (
            "urrrr",
            vec![Some(100), Some(300), Some(500), Some(250), Some(250)],
            50,
            3,
            "not when scaling down",
        ),
        // Who was not measured counts as idle when scaling up, as fully used when scaling down.
        (
            "rrrr",
            vec![Some(100), Some(300), None, None],
            50,
            4,
            "missing: not down",
        ),
        (
            "rrrr",
            vec![None, Some(500), Some(700), Some(600)],
            30,
            6,
            "missing: up, but slower",
        ),
        ("rrr", vec![Some(800), Some(700), None], 60, 3, "missing: not up at all"),
        // Who has failed or is leaving does not count.
        (
            "rrff",
            vec![Some(500), Some(700), None, None],
            50,
            3,
            "failed pods are left out",
        ),
        (
            "rrdd",
            vec![Some(500), Some(700), Some(900), Some(900)],
            50,
            3,
            "deleted ones too",
        ),
    ] {
        let all: Vec<Arc<Pod>> = pods
            .chars()
            .enumerate()
            .map(|(n, kind)| {
                let phase = match kind {
                    'p' => "Pending",
                    'f' => "Failed",
                    _ => "Running",
                };
                pod(&format!("p{n}"), phase, kind != 'u', kind == 'd')
            })
            .collect();
        let found = question(&all, &used, Target::Utilization(target)).answer().unwrap();
        assert_eq!(found.replicas, wanted, "{why}: {pods} {used:?} {target}% {found:?}");
    }
}

#[test]
fn averages_and_errors() {
    let pods: Vec<Arc<Pod>> = (0..3).map(|n| pod(&format!("p{n}"), "Running", true, false)).collect();
    let used = [Some(300), Some(500), Some(700)];
    let found = question(&pods, &used, Target::Average(250)).answer().unwrap();
    assert_eq!((found.replicas, found.utilization, found.average), (6, None, 500));
    let found = question(&pods, &used, Target::Utilization(100)).answer().unwrap();
    assert_eq!((found.replicas, found.utilization, found.average), (2, Some(50), 500));
    let wide = Question {
        tolerances: Tolerances { down: 0.6, up: 0.1 },
        ..question(&pods, &used, Target::Utilization(100))
    };
    assert_eq!(wide.answer().unwrap().replicas, 3);
    let error = |question: Question<'_>| question.answer().unwrap_err().to_string();
    let target = Target::Utilization(50);
    assert_eq!(
        error(question(&[], &[], target)),
        "no pods returned by selector while calculating replica count"
    );
    assert_eq!(
        error(question(&pods, &[None, None, None], target)),
        "did not receive metrics for targeted pods (pods might be unready)"
    );
    let disk = Question {
        resource: "disk",
        ..question(&pods, &used, target)
    };
    assert_eq!(error(disk), "missing request for disk in container c of Pod p0");
    let other = Question {
        container: "x",
        ..question(&pods, &used, target)
    };
    assert_eq!(error(other), "container x not found in Pod p0");
}

#[test]
fn a_starting_pod_says_little() {
    // Seconds since the start, since the last change of readiness, ready, of another resource; then: does it count?
    for (started, changed, ready, resource, counts) in [
        (3600, 3600, false, "cpu", false),
        (3600, 3600, false, "memory", true),
        (3600, 60, false, "cpu", true),
        (100, 90, true, "cpu", true),
        (100, 50, true, "cpu", false),
        (100, 90, false, "cpu", false),
    ] {
        let mut one = (*pod("p", "Running", ready, false)).clone();
        one.status.start_time = Some(at(NOW - started));
        one.status.conditions[0].last_transition_time = Some(at(NOW - changed));
        let pods = [Arc::new(one)];
        let asked = Question {
            resource,
            ..question(&pods, &[Some(2000)], Target::Average(1000))
        };
        assert_eq!(asked.answer().is_ok(), counts, "{started} {changed} {ready} {resource}");
    }
}

fn later(seconds: i64) -> Timestamp {
    at(NOW).checked_add(SignedDuration::from_secs(seconds)).unwrap()
}

const WINDOW: Duration = Duration::from_secs(300);

fn sizes(current: i64, desired: i64) -> Sizes {
    Sizes {
        current,
        desired,
        min: 1,
        max: 100,
    }
}

#[test]
fn without_a_behaviour() {
    let mut memory = ScalingHistory::default();
    for (current, desired, time, wanted, stabilized, why) in [
        (1, 10, 0, 4, false, "ScaleUpLimit"),
        (4, 10, 15, 8, false, "ScaleUpLimit"),
        (8, 10, 30, 10, false, "DesiredWithinRange"),
        (10, 500, 45, 20, false, "ScaleUpLimit"),
        (60, 500, 60, 100, false, "TooManyReplicas"),
    ] {
        let found = limit(sizes(current, desired), None, WINDOW, &mut memory, later(time));
        let shown = (found.replicas, found.stabilized.is_some(), found.why.0);
        assert_eq!(shown, (wanted, stabilized, why), "{current} → {desired}");
        assert_eq!(found.is_limited, why != "DesiredWithinRange");
    }
    // Fewer only when fewer were wanted for five minutes.
    let mut memory = ScalingHistory::default();
    for (desired, time, wanted) in [(9, 0, 9), (3, 15, 9), (2, 200, 9), (2, 301, 3), (2, 316, 2)] {
        let found = limit(sizes(9, desired), None, WINDOW, &mut memory, later(time));
        assert_eq!(found.replicas, wanted, "at {time}");
        assert_eq!(
            found.stabilized.map(|why| why.0),
            (wanted != desired).then_some("ScaleDownStabilized")
        );
    }
    assert!(memory.recommendations.len() <= 4, "what is too old is forgotten");
}

fn behavior(value: Value) -> Behavior {
    serde_json::from_value(value).unwrap()
}

#[test]
fn windows_of_a_behaviour() {
    let windows = behavior(
        json!({"scaleUp": {"stabilizationWindowSeconds": 60}, "scaleDown": {"stabilizationWindowSeconds": 120}}),
    );
    let mut memory = ScalingHistory::default();
    for (desired, time, wanted, why) in [
        (10, 0, 10, None),
        (12, 30, 10, Some("ScaleUpStabilized")),
        (12, 61, 12, None),
        (5, 90, 10, Some("ScaleDownStabilized")),
        (5, 240, 5, None),
    ] {
        let found = limit(sizes(10, desired), Some(&windows), WINDOW, &mut memory, later(time));
        assert_eq!(
            (found.replicas, found.stabilized.map(|why| why.0)),
            (wanted, why),
            "at {time}"
        );
    }
}

#[test]
fn rates_of_a_behaviour() {
    let no_windows = |rules: Value, up: bool| {
        let (mut this, other) = (rules, json!({"stabilizationWindowSeconds": 0}));
        this["stabilizationWindowSeconds"] = json!(0);
        match up {
            true => behavior(json!({"scaleUp": this, "scaleDown": other})),
            false => behavior(json!({"scaleUp": other, "scaleDown": this})),
        }
    };
    let pods = |value: i64| json!({"type": "Pods", "value": value, "periodSeconds": 60});
    let percent = |value: i64| json!({"type": "Percent", "value": value, "periodSeconds": 60});
    for (rules, current, desired, wanted, why) in [
        (json!({}), 10, 50, 20, "ScaleUpLimit"),
        (json!({}), 1, 50, 5, "ScaleUpLimit"),
        (json!({"policies": [pods(3)]}), 10, 50, 13, "ScaleUpLimit"),
        (json!({"policies": [percent(15)]}), 10, 50, 12, "ScaleUpLimit"),
        (json!({"policies": [pods(3), percent(50)]}), 10, 50, 15, "ScaleUpLimit"),
        (
            json!({"policies": [pods(3), percent(50)], "selectPolicy": "Min"}),
            10,
            50,
            13,
            "ScaleUpLimit",
        ),
        (json!({"selectPolicy": "Disabled"}), 10, 50, 10, "ScaleUpLimit"),
        (json!({"policies": [percent(900)]}), 20, 150, 100, "TooManyReplicas"),
        (json!({}), 10, 0, 1, "TooFewReplicas"),
        (json!({"policies": [pods(3)]}), 10, 2, 7, "ScaleDownLimit"),
        (json!({"policies": [percent(15)]}), 10, 2, 8, "ScaleDownLimit"),
        (json!({"policies": [pods(3), percent(50)]}), 10, 2, 5, "ScaleDownLimit"),
        (
            json!({"policies": [pods(3), percent(50)], "selectPolicy": "Min"}),
            10,
            2,
            7,
            "ScaleDownLimit",
        ),
        (json!({"selectPolicy": "Disabled"}), 10, 2, 10, "ScaleDownLimit"),
    ] {
        let rules = no_windows(rules, desired > current);
        let found = limit(
            sizes(current, desired),
            Some(&rules),
            WINDOW,
            &mut ScalingHistory::default(),
            at(NOW),
        );
        assert_eq!(
            (found.replicas, found.why.0),
            (wanted, why),
            "{current} → {desired} {rules:?}"
        );
    }
    // What was added within the period counts against it.
    let rules = no_windows(json!({"policies": [pods(3)]}), true);
    let mut memory = ScalingHistory::default();
    note_change(&mut memory, Some(&rules), 10, 13, at(NOW));
    for (time, wanted) in [(30, 13), (60, 16)] {
        let found = limit(sizes(13, 50), Some(&rules), WINDOW, &mut memory, later(time));
        assert_eq!(found.replicas, wanted, "after {time} s");
    }
}

proptest! {
    /// Never out of bounds, never the other way, and what is remembered stays small.
    #[test]
    fn limits_keep_within_bounds(
        steps in prop::collection::vec((0i64..60, 0i64..400), 1..60),
        with_behavior in any::<bool>(), value in 1i64..10, window in 0i64..200,
    ) {
        let rules = json!({"stabilizationWindowSeconds": window,
                           "policies": [{"type": "Pods", "value": value, "periodSeconds": 60}]});
        let rules = behavior(json!({"scaleUp": rules, "scaleDown": rules}));
        let rules = with_behavior.then_some(&rules);
        let (mut memory, mut current, mut time) = (ScalingHistory::default(), 5, 0);
        for (wait, desired) in steps {
            time += wait;
            let asked = Sizes { current, desired, min: 2, max: 50 };
            let found = limit(asked, rules, WINDOW, &mut memory, later(time));
            prop_assert!((2..=50).contains(&found.replicas));
            if desired <= current {
                // Without a behaviour an old, higher wish may still be met.
                prop_assert!(found.replicas <= current || rules.is_none());
            } else {
                prop_assert!(found.replicas >= current);
            }
            note_change(&mut memory, rules, current, found.replicas, later(time));
            current = found.replicas;
        }
        prop_assert!(memory.recommendations.len() <= 60);
    }
}

fn cluster(replicas: i64, spec: Value) -> Cluster {
    let cluster = Cluster::new();
    cluster.put(json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "ns"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}}, "status": {"replicas": replicas},
    }));
    for n in 0..replicas {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("web-{n}"), "namespace": "ns", "labels": {"app": "web"}},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
        });
        pod["status"] = json!({"phase": "Running", "startTime": "2025-12-31T00:00:00Z",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2025-12-31T00:00:00Z"}]});
        cluster.put(pod);
    }
    let mut whole = json!({
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "minReplicas": 2, "maxReplicas": 10,
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}],
    });
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    cluster.put(json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "web", "namespace": "ns"},
        // As Go's clients write what has no status yet.
        "spec": whole, "status": {"currentMetrics": null, "desiredReplicas": 0},
    }));
    cluster
}

/// `metrics.k8s.io` says that each pod of the namespace uses this.
fn serve_metrics(cluster: &Cluster, pods: usize) -> Arc<Mutex<&'static str>> {
    let used = Arc::new(Mutex::new("1"));
    let shown = used.clone();
    cluster.hook(move |call, _| {
        if !call.path.contains("/apis/metrics.k8s.io/") {
            return None;
        }
        let item = |n: usize| {
            json!({"metadata": {"name": format!("web-{n}"), "namespace": "ns"}, "timestamp": "2026-01-01T00:00:00Z",
                   "window": "30s", "containers": [{"name": "c", "usage": {"cpu": *shown.lock()}}]})
        };
        let items: Vec<Value> = (0..pods).map(item).collect();
        Some(Ok(
            json!({"kind": "PodMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {}, "items": items}),
        ))
    });
    used
}

fn replicas(cluster: &Cluster) -> i64 {
    cluster.value::<Deployment>("ns", "web").unwrap()["spec"]["replicas"]
        .as_i64()
        .unwrap()
}

fn conditions(cluster: &Cluster) -> Vec<String> {
    let hpa: HorizontalPodAutoscaler = cluster.get("ns", "web").unwrap();
    let shown = hpa.status.conditions.iter();
    shown
        .map(|c| format!("{} {} {}: {}", c.r#type, c.status, c.reason, c.message))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn scales_up_and_down() {
    let cluster = cluster(3, json!({}));
    let used = serve_metrics(&cluster, 3);
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    assert_eq!(replicas(&cluster), 6);
    let hpa: HorizontalPodAutoscaler = cluster.get("ns", "web").unwrap();
    assert_eq!((hpa.status.current_replicas, hpa.status.desired_replicas), (3, 6));
    assert!(hpa.status.last_scale_time.is_some());
    let current = json!({"averageUtilization": 100, "averageValue": "1"});
    assert_eq!(
        hpa.status.current_metrics,
        [json!({"type": "Resource", "resource": {"name": "cpu", "current": current}})]
    );
    assert_eq!(
        conditions(&cluster),
        [
            "AbleToScale True SucceededRescale: the HPA controller was able to update the target scale to 6",
            "ScalingActive True ValidMetricFound: the HPA was able to successfully calculate a replica count from cpu \
             resource utilization (percentage of request)",
            "ScalingLimited False DesiredWithinRange: the desired count is within the acceptable range",
        ]
    );
    assert_eq!(
        cluster.events(),
        ["Normal SuccessfulRescale New size: 6; reason: cpu resource utilization (percentage of request) above target"]
    );
    *used.lock() = "100m";
    cluster.advance(Duration::from_secs(60)).await;
    assert!(conditions(&cluster)[0].starts_with("AbleToScale True ScaleDownStabilized"));
    assert_eq!(replicas(&cluster), 6);
    cluster.advance(Duration::from_secs(300)).await;
    assert_eq!(replicas(&cluster), 2);
    assert!(conditions(&cluster)[2].starts_with("ScalingLimited True TooFewReplicas"));
}

#[tokio::test(start_paused = true)]
async fn without_metrics_it_says_so() {
    let cluster = cluster(3, json!({}));
    cluster.hook(|call, _| {
        let asked = call.path.contains("/apis/metrics.k8s.io/");
        asked.then(|| {
            Err(Refusal::new(
                404,
                "NotFound",
                "the server could not find the requested resource",
            ))
        })
    });
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    assert_eq!(replicas(&cluster), 3);
    let error = "failed to get cpu utilization: unable to get metrics for resource cpu: unable to fetch metrics from \
                 resource metrics API: the server could not find the requested resource (get pods.metrics.k8s.io)";
    assert_eq!(
        conditions(&cluster)[1],
        format!(
            "ScalingActive False FailedGetResourceMetric: the HPA was unable to compute the replica count: {error}"
        )
    );
    // Of the same moment: in any order.
    let mut events = cluster.events();
    events.sort_by_key(|event| event.contains("Compute"));
    assert_eq!(
        events,
        [
            format!("Warning FailedGetResourceMetric {error}"),
            format!(
                "Warning FailedComputeMetricsReplicas invalid metrics (1 invalid out of 1), first error is: failed to get \
                 cpu resource metric value: {error}"
            ),
        ]
    );
    let writes = cluster.writes().len();
    cluster.advance(Duration::from_secs(60)).await;
    assert_eq!(cluster.writes().len(), writes, "nothing new, nothing written");
}

#[tokio::test(start_paused = true)]
async fn bounds_hold_without_metrics() {
    for (size, wanted, said) in [
        (12, 10, "Current number of replicas above Spec.MaxReplicas"),
        (1, 2, "Current number of replicas below Spec.MinReplicas"),
        (0, 0, ""),
    ] {
        let cluster = cluster(size, json!({}));
        cluster.run(&[&DEF]);
        cluster.wait_until_idle().await;
        assert_eq!(replicas(&cluster), wanted);
        match said {
            "" => assert!(conditions(&cluster)[1].starts_with("ScalingActive False ScalingDisabled")),
            _ => assert!(cluster.events()[0].ends_with(said), "{:?}", cluster.events()),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn targets_that_are_not_there_and_rivals() {
    let cluster = cluster(3, json!({}));
    serve_metrics(&cluster, 3);
    let missing =
        json!({"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "other"}, "maxReplicas": 3});
    cluster.put(
        json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
                       "metadata": {"name": "lost", "namespace": "ns"}, "spec": missing}),
    );
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    let lost: HorizontalPodAutoscaler = cluster.get("ns", "lost").unwrap();
    let able = condition::find(&lost.status.conditions, "AbleToScale").unwrap();
    assert_eq!((&*able.status, &*able.reason), ("False", "FailedGetScale"));
    // Now it has the same pods as the first.
    cluster.edit::<HorizontalPodAutoscaler>("ns", "lost", |hpa| {
        hpa["spec"]["scaleTargetRef"]["name"] = json!("web");
        hpa["spec"]["maxReplicas"] = json!(8);
    });
    cluster.wait_until_idle().await;
    let lost: HorizontalPodAutoscaler = cluster.get("ns", "lost").unwrap();
    let active = condition::find(&lost.status.conditions, "ScalingActive").unwrap();
    assert_eq!(active.reason, "AmbiguousSelector");
    assert_eq!(
        active.message,
        "pods by selector app=web are controlled by multiple HPAs: [{lost ns} {web ns}]"
    );
}

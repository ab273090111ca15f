use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;

/// A summary as kubelets write it, with the given containers (name, nano cores, bytes) of one pod.
fn summary(containers: &[(&str, Option<u64>, Option<u64>)]) -> Value {
    let time = "2026-01-01T00:00:00Z";
    let part = |(name, cpu, memory): &(&str, Option<u64>, Option<u64>)| {
        json!({"name": name, "startTime": time, "cpu": {"time": time, "usageNanoCores": cpu, "usageCoreNanoSeconds": 9},
            "memory": {"time": time, "usageBytes": 9, "workingSetBytes": memory}, "rootfs": {"time": time}})
    };
    let containers: Vec<Value> = containers.iter().map(part).collect();
    json!({
        "node": {"nodeName": "n", "startTime": time, "cpu": {"time": time, "usageNanoCores": 1_500_000_000},
            "memory": {"time": time, "workingSetBytes": 1 << 30}},
        "pods": [{"podRef": {"name": "p", "namespace": "d", "uid": "u"}, "startTime": time, "containers": containers}],
    })
}

fn usage(value: &Value) -> NodeUsage {
    summary::read(value.to_string().as_bytes()).unwrap()
}

fn pod_seen(running: &[&str]) -> PodSeen {
    let status = |name: &&str| json!({"name": name, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}});
    let statuses: Vec<Value> = running.iter().map(status).collect();
    let pod = json!({"metadata": {"name": "p", "namespace": "d", "labels": {"app": "x"}, "uid": "u"},
        "spec": {"nodeName": "n", "containers": []}, "status": {"phase": "Running", "containerStatuses": statuses}});
    serde_json::from_value(pod).unwrap()
}

#[test]
fn a_node_as_metrics_server_shows_it() {
    let seen: NodeSeen = serde_json::from_value(json!({"metadata": {"name": "n", "labels": {"a": "b"}}})).unwrap();
    let shown = view::node(&seen, &usage(&summary(&[])), Timestamp::UNIX_EPOCH).unwrap();
    let wanted = json!({
        "metadata": {"name": "n", "creationTimestamp": "1970-01-01T00:00:00Z", "labels": {"a": "b"}},
        "timestamp": "2026-01-01T00:00:00Z", "window": "10s", "usage": {"cpu": "1500m", "memory": "1Gi"},
    });
    assert_eq!(shown, wanted);
    let young = json!({"node": {"cpu": {"time": "2026-01-01T00:00:00Z", "usageCoreNanoSeconds": 1}}, "pods": null});
    assert!(view::node(&seen, &usage(&young), Timestamp::UNIX_EPOCH).is_none());
}

#[test]
fn nodes_that_were_lost_are_not_asked() {
    let seen = |ready: &str| -> NodeSeen {
        let conditions = json!([{"type": "MemoryPressure", "status": "Unknown"}, {"type": "Ready", "status": ready}]);
        serde_json::from_value(json!({"metadata": {"name": "n"}, "status": {"conditions": conditions}})).unwrap()
    };
    assert!(seen("True").is_heard_of() && seen("False").is_heard_of() && !seen("Unknown").is_heard_of());
}

#[test]
fn a_pod_is_shown_when_all_that_runs_is_known() {
    let shown = |containers: &[(&str, Option<u64>, Option<u64>)], running: &[&str]| {
        let value = view::pod(&pod_seen(running), &usage(&summary(containers)), Timestamp::UNIX_EPOCH)?;
        Some(value["containers"].to_string())
    };
    let (a, b) = (("a", Some(5_000_000), Some(4096)), ("b", Some(0), Some(0)));
    let both = r#"[{"name":"a","usage":{"cpu":"5m","memory":"4Ki"}},{"name":"b","usage":{"cpu":"0","memory":"0"}}]"#;
    assert_eq!(shown(&[a, b], &["a", "b"]).as_deref(), Some(both));
    // One that has ended meanwhile does no harm; one that has begun, or has only half a figure, does.
    assert_eq!(shown(&[a, b], &["a"]).as_deref(), Some(both));
    assert_eq!(shown(&[a], &["a", "b"]), None);
    assert_eq!(shown(&[a, ("b", None, Some(1))], &["a", "b"]), None);
    assert_eq!(shown(&[a, ("b", Some(1), None)], &["a", "b"]), None);
    assert_eq!(shown(&[], &[]), None);
}

#[test]
fn nonsense_is_an_error() {
    for bad in ["", "[]", "{}", r#"{"node": 1}"#, r#"{"node": {}, "pods": [{}]}"#] {
        assert!(summary::read(bad.as_bytes()).is_err(), "{bad}");
    }
}

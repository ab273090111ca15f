//! Jobs on an API server in memory that fails, lags and sees the controller killed.

use std::collections::BTreeSet;
use std::time::Duration;

use orlop_base::clock::rfc3339;
use serde_json::{Value, json};

use super::DEF;
use super::view::FINALIZER;
use crate::objects::{Job, Pod};
use crate::testing::{Cluster, Faults, Nodes};

fn job(spec: Value) -> Value {
    let mut whole = json!({
        "parallelism": 3, "completions": 6, "backoffLimit": 100, "completionMode": "NonIndexed", "suspend": false,
        "selector": {"matchLabels": {"job": "j"}},
        "template": {"metadata": {"labels": {"job": "j"}},
                     "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}},
    });
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "namespace": "ns"}, "spec": whole})
}

/// The pod ends, as a kubelet would tell.
fn end(cluster: &Cluster, pod: &Pod, code: i32) -> bool {
    let finished = rfc3339(cluster.clock.now());
    cluster.edit_status::<Pod>("ns", &pod.metadata.name, |pod| {
        pod["status"]["phase"] = json!(if code == 0 { "Succeeded" } else { "Failed" });
        pod["status"]["containerStatuses"] =
            json!([{"name": "c", "state": {"terminated": {"exitCode": code, "finishedAt": finished}}}]);
    })
}

fn active(cluster: &Cluster) -> Vec<Pod> {
    let mut pods = cluster.list::<Pod>("ns");
    pods.retain(Pod::is_active);
    pods
}

fn held(cluster: &Cluster) -> usize {
    cluster
        .list::<Pod>("ns")
        .iter()
        .filter(|pod| pod.metadata.has_finalizer(FINALIZER))
        .count()
}

#[tokio::test(start_paused = true)]
async fn a_job_from_beginning_to_end() {
    let cluster = Cluster::new();
    cluster.nodes(Nodes::new(2));
    cluster.put(job(json!({})));
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    let made: Job = cluster.get("ns", "j").unwrap();
    assert_eq!((made.status.active, made.status.ready), (3, Some(3)));
    let before = cluster.writes().len();
    for _ in 0..2 {
        for pod in active(&cluster) {
            end(&cluster, &pod, 0);
        }
        cluster.wait_until_idle().await;
    }
    let done: Job = cluster.get("ns", "j").unwrap();
    assert!(done.is_complete() && done.status.succeeded == 6 && done.status.completion_time.is_some());
    assert_eq!(held(&cluster), 0);
    // 3 pods made and 6 counted, and little more.
    let writes = cluster.writes().len() - before;
    assert!(writes <= 14, "{writes}: {:#?}", &cluster.writes()[before..]);
    let events = cluster.events();
    assert_eq!(
        events
            .iter()
            .filter(|e| e.starts_with("Normal SuccessfulCreate Created pod: j-"))
            .count(),
        6
    );
    assert_eq!(events.last().unwrap(), "Normal Completed Job completed");
}

#[tokio::test(start_paused = true)]
async fn with_faults_and_restarts_each_pod_is_counted_once() {
    for seed in 0..10u64 {
        let cluster = Cluster::seeded(seed);
        cluster.nodes(Nodes::new(2));
        let mode = if seed % 2 == 1 { "Indexed" } else { "NonIndexed" };
        cluster.put(job(json!({"completionMode": mode})));
        cluster.run(&[&DEF]);
        let mut failed = BTreeSet::new();
        for round in 0..60u64 {
            let faults = Faults {
                one_in: 5,
                lag_max: Duration::from_millis(200),
                break_one_in: 20,
            };
            cluster.faults(if round < 20 { faults } else { Faults::default() });
            cluster.kill_after_writes(((seed * 7 + round * 3) % 11) as u32);
            cluster.wait_until_idle().await;
            for (n, pod) in active(&cluster).iter().enumerate() {
                let code = i32::from(round < 4 && (seed + round + n as u64).is_multiple_of(3));
                if end(&cluster, pod, code) && code == 1 {
                    failed.insert(pod.metadata.uid.clone());
                }
            }
            if cluster.get::<Job>("ns", "j").unwrap().is_finished() {
                break;
            }
            cluster.advance(Duration::from_secs(10)).await;
        }
        cluster.calm().await;
        let job: Job = cluster.get("ns", "j").unwrap();
        assert!(job.is_complete(), "seed {seed}: {:?}", job.status);
        assert_eq!(
            (job.status.succeeded, job.status.failed),
            (6, failed.len() as i64),
            "seed {seed}"
        );
        assert_eq!(
            (held(&cluster), job.status.uncounted_terminated_pods.is_empty()),
            (0, true),
            "seed {seed}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn pods_that_lost_their_job_lose_the_finalizer() {
    let cluster = Cluster::new();
    cluster.put(job(json!({})));
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    assert_eq!(held(&cluster), 3);
    // A pod of somebody else keeps what it has.
    let other = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true});
    cluster.put(
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other", "namespace": "ns",
        "finalizers": [FINALIZER], "ownerReferences": [other]}}),
    );
    cluster.remove::<Job>("ns", "j");
    cluster.wait_until_idle().await;
    assert_eq!(held(&cluster), 1);
}

#[tokio::test(start_paused = true)]
async fn pods_are_adopted_with_the_finalizer() {
    let cluster = Cluster::new();
    let lone = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ns", "labels": {"job": "j"}},
               "status": {"phase": "Running"}})
    };
    cluster.put(lone("a"));
    cluster.put(job(json!({"parallelism": 2, "completions": 2})));
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    let pods = cluster.list::<Pod>("ns");
    assert_eq!((pods.len(), held(&cluster)), (2, 2));
    for pod in &pods {
        end(&cluster, pod, 0);
    }
    cluster.wait_until_idle().await;
    let job: Job = cluster.get("ns", "j").unwrap();
    assert_eq!((job.is_complete(), job.status.succeeded), (true, 2));
}

#[tokio::test(start_paused = true)]
async fn what_others_manage_is_left_alone() {
    let cluster = Cluster::new();
    cluster.put(job(json!({"managedBy": "example.com/other"})));
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    assert_eq!((cluster.list::<Pod>("ns").len(), cluster.writes().len()), (0, 0));
}

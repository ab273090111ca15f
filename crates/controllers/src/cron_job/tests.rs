//! CronJobs planned from tables, and run on an API server in memory.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::DEF;
use super::plan::{self, Plan};
use crate::objects::{CronJob, Job, Kind};
use crate::runtime::Next;
use crate::testing::Cluster;

const NOW: &str = "2026-03-01T10:00:07Z";
const ON_TIME: &str = "2026-03-01T10:00:00Z";

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// A CronJob of every hour, made an hour ago.
fn hourly(spec: Value, status: Value) -> CronJob {
    let mut whole = json!({"schedule": "0 * * * *", "concurrencyPolicy": "Allow"});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let meta = json!({"name": "tick", "namespace": "ns", "uid": "cron", "creationTimestamp": "2026-03-01T09:00:00Z"});
    serde_json::from_value(json!({"metadata": meta, "spec": whole, "status": status})).unwrap()
}

fn job(name: &str, condition: &str, time: &str) -> Arc<Job> {
    let conditions = match condition {
        "" => json!([]),
        _ => json!([{"type": condition, "status": "True"}]),
    };
    let completed = (condition == "Complete").then_some(time);
    let job = json!({"metadata": {"name": name, "namespace": "ns", "uid": name},
                     "status": {"conditions": conditions, "startTime": time, "completionTime": completed}});
    Arc::new(serde_json::from_value(job).unwrap())
}

fn active(names: &[&str]) -> Value {
    let refs: Vec<Value> = names
        .iter()
        .map(|n| json!({"name": n, "namespace": "ns", "uid": n}))
        .collect();
    json!({"active": refs})
}

fn planned(cron: &CronJob, jobs: &[Arc<Job>]) -> Plan {
    plan::plan(cron, jobs, &HashSet::new(), &TimeZone::UTC, at(NOW))
}

fn notes(plan: &Plan) -> String {
    let lines: Vec<String> = plan.notes.iter().map(|n| format!("{}: {}", n.reason, n.text)).collect();
    lines.join("\n")
}

#[test]
fn when_to_start() {
    let forbidden =
        "JobAlreadyActive: Not starting job because prior execution is running and concurrency policy is Forbid";
    let many = "TooManyMissedTimes: too many missed start times. Set or decrease .spec.startingDeadlineSeconds or \
                check clock skew";
    let started = Some((ON_TIME, 0));
    for (spec, status, wanted, said) in [
        (json!({}), json!({}), started, ""),
        (json!({"suspend": true}), json!({}), None, ""),
        (
            json!({"schedule": "30 * * * *"}),
            json!({"lastScheduleTime": "2026-03-01T09:30:00Z"}),
            None,
            "",
        ),
        (json!({}), json!({"lastScheduleTime": ON_TIME}), None, ""),
        (
            json!({}),
            json!({"lastScheduleTime": "2026-03-01T03:00:00Z"}),
            started,
            "",
        ),
        (
            json!({}),
            json!({"lastScheduleTime": "2026-02-01T03:00:00Z"}),
            started,
            many,
        ),
        (json!({"startingDeadlineSeconds": 7}), json!({}), None, ""),
        (json!({"startingDeadlineSeconds": 8}), json!({}), started, ""),
        (json!({}), active(&["tick-29539320"]), None, "of this very time"),
        (json!({}), active(&["a", "b"]), started, ""),
        (json!({"concurrencyPolicy": "Forbid"}), active(&["a"]), None, forbidden),
        (
            json!({"concurrencyPolicy": "Replace"}),
            active(&["a", "b"]),
            Some((ON_TIME, 2)),
            "",
        ),
        (
            json!({"timeZone": "Asia/Kathmandu"}),
            json!({}),
            Some(("2026-03-01T09:15:00Z", 0)),
            "",
        ),
        (
            json!({"timeZone": "Mars/Base"}),
            json!({}),
            None,
            "UnknownTimeZone: invalid timeZone: \"Mars/Base\": unknown time zone Mars/Base",
        ),
        (
            json!({"schedule": "* * *"}),
            json!({}),
            None,
            "UnparseableSchedule: unparseable schedule: \"* * *\" : expected exactly 5 fields, found 3: [* * *]",
        ),
        (
            json!({"schedule": "0 0 30 2 *"}),
            json!({}),
            None,
            "InvalidSchedule: invalid schedule: 0 0 30 2 * : time difference between two schedules is less than 1 second",
        ),
    ] {
        let cron = hourly(spec, status);
        let names: Vec<String> = cron.status.active.iter().map(|a| a.name.clone()).collect();
        let jobs: Vec<Arc<Job>> = names.iter().map(|name| job(name, "", NOW)).collect();
        let plan = planned(&cron, &jobs);
        let start = plan.start.as_ref().map(|start| (start.at, start.replaced.len()));
        assert_eq!(start, wanted.map(|(time, n)| (at(time), n)), "{cron:?}");
        assert!(said == "of this very time" || notes(&plan) == said, "{}", notes(&plan));
    }
    let unsupported = planned(
        &hourly(json!({"schedule": "TZ=Asia/Kathmandu 0 * * * *"}), json!({})),
        &[],
    );
    assert!(unsupported.start.is_some() && notes(&unsupported).starts_with("UnsupportedSchedule: CRON_TZ or TZ used"));
}

#[test]
fn when_to_look_again() {
    let next = |schedule: &str| {
        planned(
            &hourly(json!({"schedule": schedule}), json!({"lastScheduleTime": ON_TIME})),
            &[],
        )
        .next
    };
    assert_eq!(next("* * * * *"), Next::After(Duration::from_millis(53_100)));
    // The wall clock may jump.
    assert_eq!(next("0 0 1 1 *"), Next::After(Duration::from_secs(60)));
    assert_eq!(next("@every 20s"), Next::After(Duration::from_millis(13_100)));
    assert_eq!(next("x"), Next::Done);
}

#[test]
fn what_the_jobs_tell() {
    let status = active(&["done", "failed", "running", "gone"]);
    let cron = hourly(json!({"suspend": true}), status);
    let jobs = [
        job("done", "Complete", "2026-03-01T09:40:00Z"),
        job("older", "Complete", "2026-03-01T09:20:00Z"),
        job("failed", "Failed", "2026-03-01T09:50:00Z"),
        job("running", "", NOW),
        job("foreign", "", NOW),
    ];
    let unseen: Vec<&str> = plan::unseen(&cron, &jobs).iter().map(|a| &*a.name).collect();
    assert_eq!(unseen, ["gone"]);
    let gone = HashSet::from(["gone".to_string()]);
    let plan = plan::plan(&cron, &jobs, &gone, &TimeZone::UTC, at(NOW));
    let left: Vec<&str> = plan.status.active.iter().map(|a| &*a.name).collect();
    assert_eq!(left, ["running"]);
    assert_eq!(plan.status.last_successful_time, Some(at("2026-03-01T09:40:00Z")));
    assert_eq!(
        notes(&plan),
        "SawCompletedJob: Saw completed job: done, condition: Complete\n\
         SawCompletedJob: Saw completed job: failed, condition: Failed\n\
         UnexpectedJob: Saw a job that the controller did not create or forgot: foreign\n\
         MissingJob: Active job went missing: gone"
    );
}

#[test]
fn old_jobs_are_forgotten() {
    let jobs = [
        job("a", "Complete", "2026-03-01T03:00:00Z"),
        job("b", "Complete", "2026-03-01T01:00:00Z"),
        job("c", "Complete", "2026-03-01T02:00:00Z"),
        job("d", "Failed", "2026-03-01T01:00:00Z"),
        job("e", "Failed", "2026-03-01T02:00:00Z"),
        job("f", "", "2026-03-01T00:00:00Z"),
    ];
    for (limits, wanted) in [
        (
            json!({"successfulJobsHistoryLimit": 3, "failedJobsHistoryLimit": 1}),
            vec!["d"],
        ),
        (
            json!({"successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 0}),
            vec!["b", "c", "d", "e"],
        ),
        (json!({}), vec![]),
    ] {
        let plan = planned(&hourly(limits, json!({})), &jobs);
        let names: Vec<&str> = plan.forget.iter().map(|job| &*job.metadata.name).collect();
        assert_eq!(names, wanted);
    }
}

#[test]
fn the_job_of_a_start() {
    let template = json!({"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}, "spec": {"parallelism": 2}});
    let cron = hourly(
        json!({"jobTemplate": template, "timeZone": "Asia/Kathmandu"}),
        json!({}),
    );
    let job = plan::job(&cron, at(ON_TIME));
    assert_eq!(job["metadata"]["name"], "tick-29539320");
    assert_eq!(job["metadata"]["labels"], json!({"a": "b"}));
    let annotations = json!({"c": "d", "batch.kubernetes.io/cronjob-scheduled-timestamp": "2026-03-01T15:45:00+05:45"});
    assert_eq!(job["metadata"]["annotations"], annotations);
    assert_eq!(job["metadata"]["ownerReferences"][0]["kind"], CronJob::KIND);
    assert_eq!(job["spec"], json!({"parallelism": 2}));
    let plain = plan::job(&hourly(json!({}), json!({})), at(ON_TIME));
    let shown = &plain["metadata"]["annotations"]["batch.kubernetes.io/cronjob-scheduled-timestamp"];
    assert_eq!(shown, ON_TIME);
}

fn every_minute(spec: Value) -> Value {
    let mut whole = json!({"schedule": "* * * * *", "timeZone": "UTC", "concurrencyPolicy": "Allow", "jobTemplate": {"spec": {}},
                           "successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 1});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "tick", "namespace": "ns"}, "spec": whole})
}

fn finish(cluster: &Cluster, name: &str) {
    let now = orlop_base::clock::rfc3339(cluster.clock.now());
    cluster.edit_status::<Job>("ns", name, |job| {
        job["status"] = json!({"conditions": [{"type": "Complete", "status": "True"}], "completionTime": now,
                               "startTime": now});
    });
}

fn names(cluster: &Cluster) -> Vec<String> {
    cluster
        .list::<Job>("ns")
        .into_iter()
        .map(|job| job.metadata.name)
        .collect()
}

/// 2026-01-01T00:00:00Z in minutes.
const START: i64 = 29_453_760;

#[tokio::test(start_paused = true)]
async fn a_job_each_minute() {
    let cluster = Cluster::new();
    cluster.put(every_minute(json!({})));
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    assert!(names(&cluster).is_empty());
    cluster.advance(Duration::from_secs(61)).await;
    let first = format!("tick-{}", START + 1);
    assert_eq!(names(&cluster), std::slice::from_ref(&first));
    let cron: CronJob = cluster.get("ns", "tick").unwrap();
    assert_eq!(cron.status.active[0].name, first);
    assert_eq!(cron.status.last_schedule_time, Some(at("2026-01-01T00:01:00Z")));
    finish(&cluster, &first);
    cluster.advance(Duration::from_secs(60)).await;
    let second = format!("tick-{}", START + 2);
    assert_eq!(names(&cluster), [first.clone(), second.clone()]);
    finish(&cluster, &second);
    cluster.wait_until_idle().await;
    assert_eq!(names(&cluster), std::slice::from_ref(&second), "the history is short");
    let cron: CronJob = cluster.get("ns", "tick").unwrap();
    assert!(cron.status.active.is_empty() && cron.status.last_successful_time.is_some());
    assert_eq!(
        cluster.events(),
        [
            format!("Normal SuccessfulCreate Created job {first}"),
            format!("Normal SawCompletedJob Saw completed job: {first}, condition: Complete"),
            format!("Normal SuccessfulCreate Created job {second}"),
            format!("Normal SuccessfulDelete Deleted job {first}"),
            format!("Normal SawCompletedJob Saw completed job: {second}, condition: Complete"),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn forbidden_or_replaced() {
    let cluster = Cluster::new();
    cluster.put(every_minute(json!({"concurrencyPolicy": "Forbid"})));
    cluster.run(&[&DEF]);
    cluster.advance(Duration::from_secs(190)).await;
    let first = format!("tick-{}", START + 1);
    assert_eq!(names(&cluster), std::slice::from_ref(&first));
    let told = cluster
        .events()
        .iter()
        .filter(|e| e.contains("JobAlreadyActive"))
        .count();
    assert_eq!(told, 1, "equal events are one: {:?}", cluster.events());
    // When there is room again, the time that was missed last is made up for.
    finish(&cluster, &first);
    cluster.wait_until_idle().await;
    assert_eq!(names(&cluster), [first.clone(), format!("tick-{}", START + 3)]);
    cluster.edit::<CronJob>("ns", "tick", |cron| {
        cron["spec"]["concurrencyPolicy"] = json!("Replace")
    });
    cluster.advance(Duration::from_secs(60)).await;
    assert_eq!(names(&cluster), [first, format!("tick-{}", START + 4)]);
    let cron: CronJob = cluster.get("ns", "tick").unwrap();
    assert_eq!(cron.status.active.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn killed_between_the_job_and_the_status_it_starts_once() {
    let cluster = Cluster::new();
    cluster.put(every_minute(json!({"concurrencyPolicy": "Forbid"})));
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    cluster.kill_after_writes(1);
    cluster.advance(Duration::from_secs(70)).await;
    assert_eq!(names(&cluster), [format!("tick-{}", START + 1)]);
    let cron: CronJob = cluster.get("ns", "tick").unwrap();
    assert_eq!(
        (cron.status.active.len(), cron.status.last_schedule_time),
        (1, Some(at("2026-01-01T00:01:00Z")))
    );
}

#[tokio::test(start_paused = true)]
async fn the_clock_jumps() {
    let cluster = Cluster::new();
    cluster.put(every_minute(json!({"schedule": "0 12 * * *"})));
    cluster.run(&[&DEF]);
    cluster.wait_until_idle().await;
    // Somebody sets the clock: it is noticed within a minute, and the start of noon made up for.
    cluster.clock.advance(Duration::from_secs(13 * 3600));
    cluster.advance(Duration::from_secs(61)).await;
    assert_eq!(names(&cluster), [format!("tick-{}", START + 12 * 60)]);
}

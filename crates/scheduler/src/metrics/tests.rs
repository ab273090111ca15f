use super::*;

/// The lines of one metric.
fn lines(text: &str, name: &str) -> Vec<String> {
    let of = |line: &&str| {
        let line = line.trim_start_matches("# HELP ").trim_start_matches("# TYPE ");
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(['{', ' ', '_']))
    };
    text.lines().filter(of).map(str::to_string).collect()
}

#[test]
fn counters_and_gauges() {
    let metrics = Metrics::for_lease("mine");
    metrics.set_leading(true);
    metrics.observe_cache(3, 20, 1);
    let counts = Counts {
        active: 1,
        backoff: 2,
        unschedulable: 3,
        gated: 4,
        in_flight: 5,
    };
    metrics.observe_queue(counts, &Incoming::default());
    metrics.attempt("unschedulable", "default-scheduler", Duration::from_millis(3));
    metrics.attempt("error", "default-scheduler", Duration::from_millis(3));
    metrics.attempt("unschedulable", "default-scheduler", Duration::from_millis(3));
    metrics.preemption_attempt();
    let name = "default-scheduler";
    metrics.observe_rejected([("NodePorts", name, 1), ("NodeAffinity", name, 2)].into_iter());
    metrics.observe_rejected([("NodeAffinity", name, 1)].into_iter());
    let text = metrics.render();
    let golden = "\
leader_election_master_status{name=\"mine\"} 1
scheduler_cache_size{type=\"assumed_pods\"} 1
scheduler_cache_size{type=\"nodes\"} 3
scheduler_cache_size{type=\"pods\"} 20
scheduler_inflight_events{event=\"PodPopped\"} 5
scheduler_pending_pods{queue=\"active\"} 1
scheduler_pending_pods{queue=\"backoff\"} 2
scheduler_pending_pods{queue=\"gated\"} 4
scheduler_pending_pods{queue=\"unschedulable\"} 3
scheduler_unschedulable_pods{plugin=\"NodeAffinity\",profile=\"default-scheduler\"} 1
scheduler_unschedulable_pods{plugin=\"NodePorts\",profile=\"default-scheduler\"} 1
scheduler_schedule_attempts_total{profile=\"default-scheduler\",result=\"error\"} 1
scheduler_schedule_attempts_total{profile=\"default-scheduler\",result=\"unschedulable\"} 2
scheduler_pod_scheduled_after_flush_total 0
scheduler_preemption_attempts_total 1";
    let shown: Vec<&str> = text
        .lines()
        .filter(|l| !l.starts_with('#') && !l.starts_with("process_"))
        .filter(|l| !["_bucket", "_sum", "_count"].iter().any(|part| l.contains(part)))
        .collect();
    assert_eq!(shown.join("\n"), golden);
}

#[test]
fn histograms() {
    let metrics = Metrics::default();
    metrics.algorithm(Duration::from_millis(3));
    metrics.algorithm(Duration::from_secs(60));
    metrics.preemption_victims(2);
    metrics.plugin("NodePorts", "Filter", "Success", Duration::from_micros(12));
    metrics.extension_point("Filter", "Unschedulable", "p", Duration::from_micros(150));
    metrics.permit_wait("Success", Duration::from_secs(3));
    let text = metrics.render();
    let name = "scheduler_scheduling_algorithm_duration_seconds";
    let expected = "\
# HELP scheduler_scheduling_algorithm_duration_seconds Scheduling algorithm latency in seconds.
# TYPE scheduler_scheduling_algorithm_duration_seconds histogram
scheduler_scheduling_algorithm_duration_seconds_bucket{le=\"0.001\"} 0
scheduler_scheduling_algorithm_duration_seconds_bucket{le=\"0.002\"} 0
scheduler_scheduling_algorithm_duration_seconds_bucket{le=\"0.004\"} 1
scheduler_scheduling_algorithm_duration_seconds_bucket{le=\"0.008\"} 1
scheduler_scheduling_algorithm_duration_seconds_bucket{le=\"0.016\"} 1
scheduler_scheduling_algorithm_duration_seconds_bucket{le=\"0.032\"} 1
scheduler_scheduling_algorithm_duration_seconds_bucket{le=\"0.064\"} 1
scheduler_scheduling_algorithm_duration_seconds_bucket{le=\"0.128\"} 1
scheduler_scheduling_algorithm_duration_seconds_bucket{le=\"0.256\"} 1
scheduler_scheduling_algorithm_duration_seconds_bucket{le=\"0.512\"} 1
scheduler_scheduling_algorithm_duration_seconds_bucket{le=\"1.024\"} 1
scheduler_scheduling_algorithm_duration_seconds_bucket{le=\"2.048\"} 1
scheduler_scheduling_algorithm_duration_seconds_bucket{le=\"4.096\"} 1
scheduler_scheduling_algorithm_duration_seconds_bucket{le=\"8.192\"} 1
scheduler_scheduling_algorithm_duration_seconds_bucket{le=\"16.384\"} 1
scheduler_scheduling_algorithm_duration_seconds_bucket{le=\"+Inf\"} 2
scheduler_scheduling_algorithm_duration_seconds_sum 60.003
scheduler_scheduling_algorithm_duration_seconds_count 2";
    assert_eq!(lines(&text, name).join("\n"), expected);
    let plugin = lines(&text, "scheduler_plugin_execution_duration_seconds");
    let labels = "extension_point=\"Filter\",plugin=\"NodePorts\",status=\"Success\"";
    let at =
        |le: &str, n: u64| format!("scheduler_plugin_execution_duration_seconds_bucket{{{labels},le=\"{le}\"}} {n}");
    assert_eq!(plugin[2], at("1e-05", 0));
    assert_eq!(plugin[3], at("1.5000000000000002e-05", 1));
    assert_eq!(plugin.len(), 2 + 20 + 3);
    let point = lines(&text, "scheduler_framework_extension_point_duration_seconds");
    assert!(point[2].contains("{extension_point=\"Filter\",profile=\"p\",status=\"Unschedulable\",le=\"0.0001\"} 0"));
    assert_eq!(lines(&text, "scheduler_preemption_victims").len(), 2 + 7 + 3);
    assert!(text.contains("scheduler_permit_wait_duration_seconds_bucket{result=\"Success\",le=\"4.096\"} 1\n"));
    assert!(text.contains("scheduler_preemption_victims_bucket{le=\"64\"} 1\n"));
}

#[test]
fn every_metric_is_described() {
    let text = Metrics::default().render();
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let base = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|s| name.strip_suffix(s))
            .unwrap_or(name);
        for what in ["HELP", "TYPE"] {
            let described = |n: &str| text.contains(&format!("# {what} {n} "));
            assert!(described(base) || described(name), "{what} {line}");
        }
    }
}

struct Open;

impl crate::queue::Advice for Open {
    fn pre_enqueue(
        &self,
        _: &crate::cluster::pod::PodInfo,
    ) -> Result<(), (&'static str, crate::framework::verdict::Rejection)> {
        Ok(())
    }

    fn hint(
        &self,
        _: &'static str,
        _: &crate::cluster::pod::PodInfo,
        _: &crate::framework::event::Event,
    ) -> crate::framework::event::Hint {
        crate::framework::event::Hint::Queue
    }
}

#[test]
fn a_pod_through_the_queue() {
    let now: Timestamp = "2026-11-16T00:00:00Z".parse().unwrap();
    let mut cluster = crate::cluster::Cluster::default();
    let pod = serde_json::from_value(serde_json::json!({"metadata": {"name": "p", "uid": "u"}})).unwrap();
    let mut queue = crate::queue::SchedulingQueue::new(crate::queue::QueueConfig::default(), vec![]);
    queue.add(cluster.decode(pod), now, &Open);
    let mut queued = queue.pop().unwrap();
    let metrics = Metrics::default();
    let later = now.saturating_add(Duration::from_millis(40)).unwrap();
    metrics.scheduled("mine", Duration::from_millis(5), &queued, later);
    queued.attempts = 40;
    metrics.scheduled("mine", Duration::from_millis(5), &queued, later);
    for _ in 0..2 {
        metrics.observe_queue(queue.counts(), queue.incoming());
    }
    let text = metrics.render();
    for line in [
        "scheduler_schedule_attempts_total{profile=\"mine\",result=\"scheduled\"} 2",
        "scheduler_scheduling_attempt_duration_seconds_sum{profile=\"mine\",result=\"scheduled\"} 0.01",
        "scheduler_pod_scheduling_sli_duration_seconds_bucket{attempts=\"1\",le=\"0.02\"} 0",
        "scheduler_pod_scheduling_sli_duration_seconds_bucket{attempts=\"1\",le=\"0.04\"} 1",
        "scheduler_pod_scheduling_sli_duration_seconds_count{attempts=\"15+\"} 1",
        "scheduler_pod_scheduling_attempts_sum 41",
        "scheduler_inflight_events{event=\"PodPopped\"} 1",
        "scheduler_queue_incoming_pods_total{event=\"UnschedulablePodAdd\",queue=\"active\"} 1",
    ] {
        assert!(text.contains(&format!("{line}\n")), "{line}\n{text}");
    }
}

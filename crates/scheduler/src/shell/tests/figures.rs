//! The metrics that the engine feeds.

use serde_json::json;

use super::World;

fn point(name: &str, status: &str) -> String {
    format!(
        "scheduler_framework_extension_point_duration_seconds_count\
         {{extension_point={name:?},profile=\"default-scheduler\",status={status:?}}}"
    )
}

fn plugin(name: &str, point: &str, status: &str) -> String {
    format!(
        "scheduler_plugin_execution_duration_seconds_count\
         {{extension_point={point:?},plugin={name:?},status={status:?}}}"
    )
}

#[tokio::test(start_paused = true)]
async fn every_point_is_timed_once_a_cycle() {
    let world = World::with_nodes(&["a", "b"]);
    let scheduler = world.schedule();
    let names: Vec<String> = (0..20).map(|i| format!("p{i:02}")).collect();
    for name in &names {
        world.server.add_pod(name, "100m");
    }
    for name in &names {
        world.until_bound(name).await;
    }
    let done = "scheduler_schedule_attempts_total{profile=\"default-scheduler\",result=\"scheduled\"}";
    world.until("all are told", || scheduler.figure(done) == 20.0).await;
    for name in [
        "PreEnqueue",
        "PreFilter",
        "Filter",
        "Score",
        "Reserve",
        "Permit",
        "PreBind",
        "Bind",
        "PostBind",
    ] {
        assert_eq!(scheduler.figure(&point(name, "Success")), 20.0, "{name}");
    }
    assert_eq!(scheduler.figure(&point("Unreserve", "Success")), 0.0);
    // One cycle of ten is looked at closely.
    for (name, at, status) in [
        ("NodeResourcesFit", "PreFilter", "Success"),
        ("NodeResourcesFit", "Filter", "Success"),
        ("NodeResourcesFit", "Score", "Success"),
        ("NodePorts", "PreFilter", "Skip"),
        ("DefaultBinder", "Bind", "Success"),
    ] {
        assert_eq!(scheduler.figure(&plugin(name, at, status)), 2.0, "{name} {at}");
    }
}

#[tokio::test(start_paused = true)]
async fn rejected_pods_count_for_who_rejected_them() {
    let world = World::with_nodes(&["a"]);
    let scheduler = world.schedule();
    let held = |plugin: &str| {
        let labels = format!("{{plugin={plugin:?},profile=\"default-scheduler\"}}");
        scheduler.figure(&format!("scheduler_unschedulable_pods{labels}"))
    };
    world.server.add_pod("large", "9");
    world.server.add_pod("larger", "10");
    world.server.put_pod(
        "picky",
        json!({"nodeSelector": {"disk": "ssd"}, "containers": [{"name": "c"}]}),
    );
    world.server.put_pod(
        "gated",
        json!({"schedulingGates": [{"name": "g"}], "containers": [{"name": "c"}]}),
    );
    let counts = || (held("NodeResourcesFit"), held("NodeAffinity"), held("SchedulingGates"));
    world.until("all wait", || counts() == (2.0, 1.0, 1.0)).await;
    assert_eq!(scheduler.figure(&point("PostFilter", "Unschedulable")), 3.0);
    world.server.delete_pod("larger");
    world.until("one is gone", || counts() == (1.0, 1.0, 1.0)).await;
    world
        .server
        .put_node(json!({"metadata": {"name": "b", "labels": {"disk": "ssd"}},
        "status": {"allocatable": {"cpu": "16", "pods": "110"}}}));
    world.until_bound("large").await;
    world.until_bound("picky").await;
    world
        .until("only the gated one is left", || counts() == (0.0, 0.0, 1.0))
        .await;
}

//! Objects that make little sense.

use std::time::Duration;

use serde_json::json;

use super::World;

/// No validation is perfect, and other servers have other ideas: whatever comes, the scheduler goes on.
#[tokio::test(start_paused = true)]
async fn impossible_quantities_stop_nothing() {
    let world = World::new();
    let scheduler = world.schedule();
    let amounts = [
        "",
        "-1",
        "banana",
        "1e999",
        "-9223372036854775808",
        "9223372036854775807",
        "99999999999999999999",
        "1Ei",
        "9e18Ei",
        "0.0000000000001",
        "NaN",
        "١",
        "1 Gi",
        "0x10",
    ];
    for (i, amount) in amounts.iter().enumerate() {
        let list = json!({"cpu": amount, "memory": amount, "pods": amount, "ephemeral-storage": amount,
            "example.com/gpu": amount, "hugepages-2Mi": amount, "": amount});
        world.server.put_node(json!({"metadata": {"name": format!("odd-{i}")},
            "status": {"allocatable": list, "capacity": list, "images": [{"names": [""], "sizeBytes": -1}]}}));
        let resources = json!({"requests": list, "limits": list});
        world.server.put_pod(
            &format!("odd-{i}"),
            json!({"containers": [{"name": "c", "resources": resources, "ports": [{"hostPort": -1}]}],
                "initContainers": [{"name": "i", "resources": resources, "restartPolicy": "Always"}],
                "overhead": list, "resources": resources, "priority": i32::MIN}),
        );
        // Such a pod may be on a node already.
        world.server.put_pod(
            &format!("there-{i}"),
            json!({"nodeName": format!("odd-{}", i % 3), "containers": [{"name": "c", "resources": resources}]}),
        );
    }
    // Not of the shape of a pod or node at all: left out, with a word in the log.
    world
        .server
        .put_node(json!({"metadata": {"name": "wrong"}, "status": {"allocatable": {"cpu": {"a": 1}}}}));
    world
        .server
        .put_pod("wrong", json!({"containers": "none", "priority": "high"}));
    world.pass(Duration::from_secs(30)).await;
    // It is alive and sound.
    world
        .server
        .put_node(json!({"metadata": {"name": "good", "labels": {"good": "yes"}},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}}}));
    world.server.put_pod(
        "good",
        json!({"nodeSelector": {"good": "yes"}, "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}),
    );
    world.until_bound("good").await;
    assert_eq!(world.server.node_of("good").as_deref(), Some("good"));
    assert!(scheduler.figure("scheduler_cache_size{type=\"nodes\"}") >= amounts.len() as f64);
}

#[tokio::test(start_paused = true)]
async fn pods_of_other_schedulers_are_left_alone() {
    let world = World::with_nodes(&["a"]);
    let scheduler = world.schedule();
    for (name, by) in [
        ("theirs", "somebody-else"),
        ("empty", ""),
        ("near", "default-scheduler "),
    ] {
        world
            .server
            .put_pod(name, json!({"schedulerName": by, "containers": [{"name": "c"}]}));
    }
    world.server.add_pod("ours", "1");
    world.until_bound("ours").await;
    world.pass(Duration::from_secs(600)).await;
    world.assert_bound_once(&["ours"]);
    assert_eq!(
        world.server.events(),
        ["Scheduled: Successfully assigned default/ours to a"]
    );
    assert_eq!(scheduler.figure("scheduler_pending_pods{queue=\"active\"}"), 0.0);
    // Once they have a node they count, whoever put them there.
    assert_eq!(world.server.bind("theirs", "a"), 201);
    world
        .until("it counts", || {
            scheduler.figure("scheduler_cache_size{type=\"pods\"}") == 2.0
        })
        .await;
}

/// Selectors that match nothing leave the pod waiting, and nothing else.
#[tokio::test(start_paused = true)]
async fn selectors_that_match_nothing() {
    let world = World::with_nodes(&["a"]);
    world.schedule();
    let term = json!({"labelSelector": {"matchExpressions": [{"key": "k", "operator": "Sideways", "values": ["v"]}]},
        "topologyKey": "", "namespaceSelector": {"matchLabels": {"no": "such"}}});
    let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
    world.server.put_pod(
        "none",
        json!({"nodeSelector": {"no": "such"}, "containers": [{"name": "c"}]}),
    );
    world.server.put_pod(
        "odd",
        json!({"affinity": {"podAffinity": required, "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "Gt", "values": ["x"]}]}]}}},
            "containers": [{"name": "c"}]}),
    );
    world.server.add_pod("good", "1");
    world.until_bound("good").await;
    world
        .until("each says why", || {
            ["none", "odd"].iter().all(|p| !world.server.conditions(p).is_empty())
        })
        .await;
    world.assert_bound_once(&["good"]);
}

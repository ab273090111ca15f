//! Watches that break, fall behind, or lose their server.

use std::time::Duration;

use serde_json::json;

use super::World;

#[tokio::test(start_paused = true)]
async fn nothing_is_missed_while_a_watch_is_broken() {
    for round in 0..3 {
        let world = World::with_nodes(&["a", "b"]);
        let scheduler = world.schedule();
        world.server.add_pod("before", "3");
        world.until_bound("before").await;
        match round {
            0 => world.server.break_watches(),
            1 => world.server.compact(),
            _ => world.server.go_away(),
        }
        // Comes, goes and changes while nobody looks.
        // Pods and nodes are watched apart, so that one may be seen long before the other.
        let picky = json!({"nodeSelector": {"new": "yes"}, "containers": [{"name": "c"}]});
        world.server.put_pod("between", picky.clone());
        world.server.delete_pod("before");
        world
            .server
            .put_node(json!({"metadata": {"name": "c", "labels": {"new": "yes"}},
            "status": {"allocatable": {"cpu": "4", "pods": "110"}}}));
        world.server.delete_node("a");
        world.server.delete_node("b");
        if round == 2 {
            world.pass(Duration::from_secs(90)).await;
            assert_eq!(world.server.bound().len(), 1);
            world.server.come_back();
        }
        world.server.put_pod("after", picky);
        world.until_bound("between").await;
        world.until_bound("after").await;
        world.assert_bound_once(&["after", "before", "between"]);
        assert_eq!(world.server.node_of("between").as_deref(), Some("c"));
        assert_eq!(world.server.node_of("after").as_deref(), Some("c"));
        let counts = || {
            let size = |of: &str| scheduler.figure(&format!("scheduler_cache_size{{type={of:?}}}"));
            (size("nodes"), size("pods"), size("assumed_pods"))
        };
        world
            .until(&format!("the cluster state is right ({round})"), || {
                counts() == (1.0, 2.0, 0.0)
            })
            .await;
    }
}

/// The pod is bound and deleted while the watch is broken: what was assumed of it must not stay for good.
#[tokio::test(start_paused = true)]
async fn an_assumed_pod_that_a_new_list_does_not_show_is_gone() {
    let world = World::with_nodes(&["a"]);
    let scheduler = world.schedule();
    let release = world.server.hold_binding();
    world.server.add_pod("p", "3");
    world
        .until("it is being bound", || world.server.asked().len() == 1)
        .await;
    world.server.hide();
    drop(release);
    world.until_bound("p").await;
    world.pass(Duration::from_secs(1)).await;
    world.server.delete_pod("p");
    world.server.compact();
    world.server.show();
    world.server.add_pod("q", "3");
    world.until_bound("q").await;
    world.assert_bound_once(&["p", "q"]);
    world
        .until("only one is there", || {
            scheduler.figure("scheduler_cache_size{type=\"pods\"}") == 1.0
        })
        .await;
}

/// The server goes away with a binding under way, and with a pod in every state.
#[tokio::test(start_paused = true)]
async fn a_server_that_goes_away_and_comes_back() {
    let world = World::with_nodes(&["a"]);
    let scheduler = world.schedule();
    world.server.add_pod("bound", "1");
    world.until_bound("bound").await;
    world.server.add_pod("large", "4");
    world
        .until("it fits nowhere", || !world.server.conditions("large").is_empty())
        .await;
    let release = world.server.hold_binding();
    world.server.add_pod("under-way", "1");
    world
        .until("it is being bound", || world.server.asked().len() == 2)
        .await;
    world.server.go_away();
    drop(release);
    world.pass(Duration::from_secs(20)).await;
    assert_eq!(world.server.node_of("under-way"), None);
    world.server.come_back();
    world.until_bound("under-way").await;
    world.server.delete_pod("bound");
    world.server.delete_pod("under-way");
    world.until_bound("large").await;
    world.assert_bound_once(&["bound", "large", "under-way"]);
    world.until("nothing is assumed", || scheduler.assumed() == 0.0).await;
}

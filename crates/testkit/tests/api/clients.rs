//! Client libraries other than kubectl's: kube-rs and the official Python client.

use std::collections::BTreeMap;
use std::pin::pin;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::watcher;
use orlop_testkit::{Launch, PATIENCE, Server, python, script};
use serde_json::json;

fn config_map(name: &str) -> ConfigMap {
    let labels = BTreeMap::from([("set".to_string(), "rust".to_string())]);
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_string()),
            labels: Some(labels),
            ..Default::default()
        },
        ..Default::default()
    }
}

/// Keeps so little history that a test can outrun it.
fn forgetful() -> Server {
    Launch::apiserver().arg("--store-history-events=50").start()
}

#[track_caller]
fn code(result: Result<impl std::fmt::Debug, kube::Error>) -> (u16, String) {
    match result {
        Err(kube::Error::Api(status)) => (status.code, status.reason.clone()),
        other => panic!("a refusal was expected: {other:?}"),
    }
}

#[tokio::test]
async fn kube_rs_creates_reads_changes_and_deletes() {
    let server = Server::start();
    let client = server.client().await;
    let api: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let post = PostParams::default();
    let mut made = api.create(&post, &config_map("one")).await.unwrap();
    assert_eq!(
        code(api.create(&post, &config_map("one")).await),
        (409, "AlreadyExists".into())
    );
    made.data = Some(BTreeMap::from([("a".into(), "1".into())]));
    let replaced = api.replace("one", &post, &made).await.unwrap();
    assert_ne!(replaced.metadata.resource_version, made.metadata.resource_version);
    assert_eq!(code(api.replace("one", &post, &made).await), (409, "Conflict".into()));
    let patch = Patch::Merge(json!({"data": {"b": "2"}}));
    let patched = api.patch("one", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(patched.data.unwrap().len(), 2);
    let apply = Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "9"}}));
    assert_eq!(
        code(api.patch("one", &PatchParams::apply("other"), &apply).await),
        (409, "Conflict".into())
    );
    let forced = api
        .patch("one", &PatchParams::apply("other").force(), &apply)
        .await
        .unwrap();
    assert_eq!(forced.data.unwrap()["a"], "9");
    assert_eq!(api.get_metadata("one").await.unwrap().metadata.uid, made.metadata.uid);
    api.delete("one", &DeleteParams::default()).await.unwrap();
    assert_eq!(code(api.get("one").await), (404, "NotFound".into()));
    let namespaces: Api<Namespace> = Api::all(client);
    assert_eq!(namespaces.list(&ListParams::default()).await.unwrap().items.len(), 4);
}

#[tokio::test]
async fn kube_rs_lists_in_pages_of_one_moment() {
    let server = Server::start();
    let api: Api<ConfigMap> = Api::default_namespaced(server.client().await);
    for i in 0..25 {
        api.create(&PostParams::default(), &config_map(&format!("page-{i:02}")))
            .await
            .unwrap();
    }
    let mut params = ListParams::default().labels("set=rust").limit(10);
    let (mut names, mut sizes, mut revisions) = (vec![], vec![], vec![]);
    loop {
        let page = api.list(&params).await.unwrap();
        sizes.push(page.items.len());
        revisions.push(page.metadata.resource_version.clone());
        names.extend(page.items.iter().map(|c| c.metadata.name.clone().unwrap()));
        let Some(token) = page.metadata.continue_.filter(|t| !t.is_empty()) else {
            break;
        };
        params = params.continue_token(&token);
        // Written and deleted while the pages are read: none of it belongs to a list that began before.
        api.create(
            &PostParams::default(),
            &config_map(&format!("page-{:02}-later", sizes.len() * 10)),
        )
        .await
        .unwrap();
        api.delete(&format!("page-{:02}", 20 + sizes.len()), &DeleteParams::default())
            .await
            .unwrap();
    }
    assert_eq!(sizes, [10, 10, 5]);
    assert_eq!(names, (0..25).map(|i| format!("page-{i:02}")).collect::<Vec<_>>());
    assert!(revisions.iter().all(|r| *r == revisions[0]), "{revisions:?}");
}

#[tokio::test]
async fn kube_rs_watches_with_bookmarks() {
    let server = Server::start();
    let api: Api<ConfigMap> = Api::default_namespaced(server.client().await);
    let start = api
        .list(&ListParams::default())
        .await
        .unwrap()
        .metadata
        .resource_version
        .unwrap();
    api.create(&PostParams::default(), &config_map("w")).await.unwrap();
    api.patch("w", &PatchParams::default(), &Patch::Merge(json!({"data": {"a": "1"}})))
        .await
        .unwrap();
    api.delete("w", &DeleteParams::default()).await.unwrap();
    let params = WatchParams::default().labels("set=rust").timeout(1);
    let events: Vec<_> = api.watch(&params, &start).await.unwrap().try_collect().await.unwrap();
    let words: Vec<&str> = events
        .iter()
        .map(|e| match e {
            WatchEvent::Added(_) => "added",
            WatchEvent::Modified(_) => "modified",
            WatchEvent::Deleted(_) => "deleted",
            WatchEvent::Bookmark(_) => "bookmark",
            WatchEvent::Error(_) => "error",
        })
        .collect();
    assert_eq!(words, ["added", "modified", "deleted", "bookmark"]);
    let WatchEvent::Bookmark(bookmark) = &events[3] else {
        unreachable!()
    };
    // From there, nothing of the above comes again.
    let params = WatchParams::default().timeout(1);
    let later: Vec<_> = api
        .watch(&params, &bookmark.metadata.resource_version)
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    assert!(later.iter().all(|e| matches!(e, WatchEvent::Bookmark(_))), "{later:?}");
}

/// kube-rs's reflector machinery, the old way (list, then watch) and the new (one watch that begins with the state).
#[tokio::test]
async fn kube_rs_watchers_follow() {
    for streaming in [false, true] {
        let server = Server::start();
        let api: Api<ConfigMap> = Api::default_namespaced(server.client().await);
        for name in ["a", "b"] {
            api.create(&PostParams::default(), &config_map(name)).await.unwrap();
        }
        let config = watcher::Config::default().labels("set=rust");
        let config = if streaming { config.streaming_lists() } else { config };
        let mut events = pin!(watcher(api.clone(), config));
        let mut next = async || {
            tokio::time::timeout(PATIENCE, events.next())
                .await
                .unwrap()
                .unwrap()
                .unwrap()
        };
        let mut initial = vec![];
        loop {
            match next().await {
                watcher::Event::Init => {}
                watcher::Event::InitApply(c) => initial.push(c.metadata.name.unwrap()),
                watcher::Event::InitDone => break,
                other => panic!("streaming {streaming}: {other:?}"),
            }
        }
        assert_eq!(initial, ["a", "b"], "streaming {streaming}");
        api.create(&PostParams::default(), &config_map("c")).await.unwrap();
        let watcher::Event::Apply(c) = next().await else {
            panic!("no Apply")
        };
        assert_eq!(c.metadata.name.as_deref(), Some("c"));
        api.delete("a", &DeleteParams::default()).await.unwrap();
        let watcher::Event::Delete(a) = next().await else {
            panic!("no Delete")
        };
        assert_eq!(a.metadata.name.as_deref(), Some("a"));
    }
}

#[tokio::test]
async fn kube_rs_is_told_to_start_over_after_compaction() {
    let server = forgetful();
    let api: Api<ConfigMap> = Api::default_namespaced(server.client().await);
    for i in 0..5 {
        api.create(&PostParams::default(), &config_map(&format!("c{i}")))
            .await
            .unwrap();
    }
    let params = ListParams::default().limit(2);
    let first = api.list(&params).await.unwrap();
    let old = first.metadata.resource_version.unwrap();
    let token = first.metadata.continue_.unwrap();
    for i in 0..120 {
        api.patch(
            "c0",
            &PatchParams::default(),
            &Patch::Merge(json!({"data": {"n": i.to_string()}})),
        )
        .await
        .unwrap();
    }
    let events: Vec<_> = api
        .watch(&WatchParams::default(), &old)
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    let [WatchEvent::Error(status)] = &events[..] else {
        panic!("an error event was expected: {events:?}")
    };
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"), "{status:?}");
    assert_eq!(
        code(api.list(&params.clone().continue_token(&token)).await),
        (410, "Expired".into())
    );
    let at = ListParams::default().at(&old).matching(kube::api::VersionMatch::Exact);
    assert_eq!(code(api.list(&at).await), (410, "Expired".into()));
    // Lists of now, and of anything not older, do not need the past.
    api.list(
        &ListParams::default()
            .at(&old)
            .matching(kube::api::VersionMatch::NotOlderThan),
    )
    .await
    .unwrap();
    assert_eq!(
        api.list(&ListParams::default())
            .await
            .unwrap()
            .items
            .iter()
            .filter(|c| c.metadata.labels.is_some())
            .count(),
        5
    );
    // A watcher that lives through it all recovers by itself.
    let mut events = pin!(watcher(api.clone(), watcher::Config::default().labels("set=rust")));
    let first = tokio::time::timeout(PATIENCE, events.next()).await.unwrap().unwrap();
    assert!(matches!(first, Ok(watcher::Event::Init)), "{first:?}");
}

#[test]
fn the_python_client_does_the_same() {
    let server = forgetful();
    let line = format!(
        "{} {} {}",
        python().display(),
        script("client.py").display(),
        server.kubeconfig().display()
    );
    let said = server.run(&line);
    assert_eq!(said.lines().count(), 4, "{said}");
    assert!(said.ends_with("told to start over after compaction\n"), "{said}");
}

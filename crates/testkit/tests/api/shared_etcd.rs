//! Several API servers on one cluster of etcd.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use http::Method;
use http_body_util::BodyExt;
use nix::sys::signal::Signal;
use orlop_testkit::{Http, Identity, Members, Server, eventually};
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str, data: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": data}})
}

async fn clients(servers: &[Server]) -> Vec<Http> {
    join_all(servers.iter().map(Server::http)).await
}

/// The addresses behind the service `kubernetes`.
fn endpoints(server: &Server) -> Vec<String> {
    let slice = server.get("endpointslice kubernetes");
    let of = |endpoint: &Value| endpoint["addresses"][0].as_str().map(str::to_string);
    slice["endpoints"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(of)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_servers_are_one() {
    let etcd = Members::start(1);
    let mut servers = etcd.servers(3);
    let clients = clients(&servers).await;
    let at = |n: usize| &clients[n % 3];

    // What one has acknowledged, the others know: at once, and without a conflict.
    for round in 0..20 {
        let name = format!("m{round}");
        let path = format!("{MAPS}/{name}");
        at(round).post(MAPS, &map(&name, "1")).await.expect(201);
        at(round + 2)
            .post(MAPS, &map(&name, "2"))
            .await
            .refused(409, "AlreadyExists");
        let mut stored = at(round + 1).get(&path).await.expect(200);
        stored["data"]["k"] = "2".into();
        let updated = at(round + 2).put(&path, &stored).await.expect(200);
        at(round).put(&path, &stored).await.refused(409, "Conflict");
        let again = at(round).put(&path, &updated).await.expect(200);
        assert_eq!(again["metadata"]["uid"], stored["metadata"]["uid"]);
        let page = at(round + 1).get(&format!("{MAPS}?limit=1")).await.expect(200);
        let token = page["metadata"]["continue"].as_str().unwrap_or_default();
        let rest = at(round + 2).get(&format!("{MAPS}?continue={token}")).await.expect(200);
        assert_eq!(rest["metadata"]["resourceVersion"], page["metadata"]["resourceVersion"]);
        at(round + 1).delete(&path).await.expect(200);
        at(round + 2).get(&path).await.refused(404, "NotFound");
        at(round).post(MAPS, &map(&name, "3")).await.expect(201);
    }

    // Exactly as many as the quota has, through whichever server.
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
        "spec": {"hard": {"count/configmaps": "30", "services.nodeports": "24"}},
    });
    at(0)
        .post("/api/v1/namespaces/default/resourcequotas", &quota)
        .await
        .expect(201);
    eventually("the quota is counted", || {
        let used = servers[0].get("quota q")["status"]["used"]["count/configmaps"].clone();
        (used == "21").then_some(())
    });
    let creates = (0..24).map(|n| {
        let client = at(n);
        async move { client.post(MAPS, &map(&format!("q{n}"), "")).await.status.as_u16() }
    });
    let mut codes: Vec<u16> = join_all(creates).await;
    codes.sort_unstable();
    assert_eq!(codes, [vec![201; 9], vec![403; 15]].concat());

    // No two services with the same address or port.
    let creates = (0..24).map(|n| {
        let client = at(n);
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("s{n}")},
            "spec": {"type": "NodePort", "ports": [{"port": 80}]},
        });
        async move {
            client
                .post("/api/v1/namespaces/default/services", &service)
                .await
                .expect(201)
        }
    });
    let services: Vec<Value> = join_all(creates).await;
    let distinct = |pointer: &str| {
        let values = services.iter().filter_map(|s| s.pointer(pointer).map(Value::to_string));
        values.collect::<BTreeSet<String>>().len()
    };
    assert_eq!(
        (distinct("/spec/clusterIP"), distinct("/spec/ports/0/nodePort")),
        (24, 24)
    );

    // Who serves is known, and who has gone as well.
    let addresses = |last: &[&str]| last.iter().map(|n| format!("192.0.2.{n}")).collect::<Vec<_>>();
    eventually("all servers are endpoints", || {
        (endpoints(&servers[1]) == addresses(&["11", "12", "13"])).then_some(())
    });
    assert!(servers[1].stop(Signal::SIGTERM).success());
    assert_eq!(endpoints(&servers[0]), addresses(&["11", "13"]));
    servers[1].start_again();
    eventually("it is back", || {
        (endpoints(&servers[2]) == addresses(&["11", "12", "13"])).then_some(())
    });
}

/// One client that writes through any server that serves, and knows what was acknowledged.
async fn write(writer: usize, identities: Vec<Identity>, stop: Arc<AtomicBool>, done: Arc<AtomicUsize>) -> Vec<String> {
    let (mut acknowledged, mut count, mut turn) = (Vec::new(), 0, writer);
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        let Ok(client) = Http::connect(&identities[turn % identities.len()]).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        while !stop.load(Ordering::Relaxed) {
            count += 1;
            let name = format!("w{writer}-{count}");
            let headers = [("content-type", "application/json")];
            let body = map(&name, &name).to_string();
            let asked = client.ask(Method::POST, MAPS, &headers, body);
            match tokio::time::timeout(Duration::from_secs(15), asked).await {
                Ok(Ok(answer)) if answer.status == 201 => {
                    acknowledged.push(name);
                    done.fetch_add(1, Ordering::Relaxed);
                }
                // Refused, or nobody knows: neither is acknowledged. Client errors are wrong.
                Ok(Ok(answer)) => {
                    assert!(answer.status.is_server_error(), "{}", answer.text());
                    break;
                }
                _ => break,
            }
        }
    }
    acknowledged
}

/// One watch over all servers: where one breaks off, the next one goes on from the last revision. Ends when it has seen as
/// many objects as there are at last.
async fn watch(first: usize, identities: Vec<Identity>, from: u64, last: Arc<AtomicUsize>) -> BTreeSet<String> {
    let (mut seen, mut revision, mut turn) = (BTreeSet::new(), from, first);
    while seen.len() < last.load(Ordering::Relaxed) {
        turn += 1;
        let path = format!("{MAPS}?watch=true&resourceVersion={revision}&timeoutSeconds=1");
        let opened = async {
            let client = Http::connect(&identities[turn % identities.len()]).await?;
            client.send(Method::GET, &path, &[], Bytes::new()).await
        };
        let Ok(answer) = opened.await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        if !answer.status().is_success() {
            assert!(answer.status().is_server_error(), "{}", answer.status());
            continue;
        }
        let (mut body, mut buffer) = (answer.into_body(), Vec::new());
        while let Ok(Some(Ok(frame))) = tokio::time::timeout(Duration::from_secs(5), body.frame()).await {
            buffer.extend_from_slice(&frame.into_data().unwrap_or_default());
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                let event: Value = serde_json::from_slice(&line).unwrap();
                assert_eq!(event["type"], "ADDED", "{event}");
                let metadata = &event["object"]["metadata"];
                let next: u64 = metadata["resourceVersion"].as_str().unwrap().parse().unwrap();
                assert!(next > revision, "neither a repeat nor a way back");
                revision = next;
                assert!(seen.insert(metadata["name"].as_str().unwrap().to_string()));
            }
        }
    }
    seen
}

/// Three members, three servers, one of each killed in turn under load: what was acknowledged is there, and watches that
/// go on at other servers miss nothing and see nothing twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_and_servers_may_be_killed() {
    const WRITERS: usize = 6;
    let mut etcd = Members::start(3);
    let mut servers = etcd.servers(3);
    let identities: Vec<Identity> = servers.iter().map(Server::identity).collect();
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let last = Arc::new(AtomicUsize::new(usize::MAX));
    let begin = servers[0].http().await.get(MAPS).await.expect(200);
    let before: BTreeSet<String> = names(&begin);
    let from = begin["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    let watchers: Vec<_> = (0..3)
        .map(|n| tokio::spawn(watch(n, identities.clone(), from, last.clone())))
        .collect();
    let writers: Vec<_> = (0..WRITERS)
        .map(|n| tokio::spawn(write(n, identities.clone(), stop.clone(), done.clone())))
        .collect();
    for round in 0..3 {
        let goes_on = |what: &str| {
            let so_far = done.load(Ordering::Relaxed);
            eventually(what, || (done.load(Ordering::Relaxed) > so_far + 30).then_some(()));
        };
        tokio::task::block_in_place(|| {
            goes_on("writes are acknowledged");
            etcd.kill(round);
            goes_on("two members are enough");
            servers[(round + 1) % 3].kill();
            goes_on("two servers are enough");
            etcd.run(round);
            servers[(round + 1) % 3].start_again();
        });
    }
    stop.store(true, Ordering::Relaxed);
    let acknowledged: BTreeSet<String> = join_all(writers).await.into_iter().flat_map(Result::unwrap).collect();
    let mut lists = Vec::new();
    for client in clients(&servers).await {
        lists.push(client.get(MAPS).await.expect(200));
    }
    let there: BTreeSet<String> = names(&lists[0]).difference(&before).cloned().collect();
    assert!(
        lists.iter().all(|list| list["items"] == lists[0]["items"]),
        "all servers agree"
    );
    let lost: Vec<&String> = acknowledged.difference(&there).collect();
    assert!(lost.is_empty(), "acknowledged and gone: {lost:?}");
    for item in lists[0]["items"].as_array().unwrap() {
        let name = &item["metadata"]["name"];
        assert!(before.contains(name.as_str().unwrap()) || item["data"]["k"] == *name);
    }
    last.store(there.len(), Ordering::Relaxed);
    for watcher in watchers {
        assert_eq!(watcher.await.unwrap(), there, "no gap");
    }
}

fn names(list: &Value) -> BTreeSet<String> {
    let items = list["items"].as_array().into_iter().flatten();
    items
        .filter_map(|item| item["metadata"]["name"].as_str().map(str::to_string))
        .collect()
}

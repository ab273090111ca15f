//! What asks for too much: values without bottom, objects without bound, times beyond all time.

use http::Method;
use orlop_testkit::HttpResponse;
use serde_json::{Value, json};

use super::{APPLY_PATCH, JSON_PATCH, MAPS, MERGE_PATCH, STRATEGIC_PATCH, at_rest, judge, revision};

/// 175 KB of pairs of operations, each of which puts the object another hundred levels deeper into itself.
fn bottomless() -> String {
    let wrapper = "[".repeat(100) + &"]".repeat(100);
    let inside = "/0".repeat(99) + "/-";
    let mut steps = vec![r#"{"op":"add","path":"/a","value":[]}"#.to_string()];
    let mut bytes = 0;
    for (from, to) in [("/a", "/b"), ("/b", "/a")].into_iter().cycle() {
        steps.push(format!(r#"{{"op":"add","path":"{to}","value":{wrapper}}}"#));
        steps.push(format!(r#"{{"op":"move","from":"{from}","path":"{to}{inside}"}}"#));
        bytes += steps[steps.len() - 1].len() + steps[steps.len() - 2].len();
        if bytes > 175_000 {
            break;
        }
    }
    format!("[{}]", steps.join(","))
}

/// Whoever may patch anything could end the process with a value that overflows the stack.
#[tokio::test]
async fn no_patch_nests_without_bound() {
    let server = at_rest();
    server.run(
        "kubectl create role r --verb=patch --resource=configmaps && kubectl create rolebinding r --role=r --user=eve",
    );
    let http = server.http().await;
    let before = revision(&http).await;
    let patch = bottomless();
    for query in ["", "?dryRun=All"] {
        let headers = [("content-type", JSON_PATCH), ("impersonate-user", "eve")];
        let answer = http
            .ask(Method::PATCH, &format!("{MAPS}/a{query}"), &headers, patch.clone())
            .await
            .expect("the server lives on");
        let problem = judge(&answer, 422, "Invalid", "exceeded max depth of 120");
        assert_eq!(problem, None);
    }
    assert_eq!(revision(&http).await, before, "nothing was written");
}

fn many_labels(from: usize, count: usize) -> Value {
    let labels = (from..from + count).map(|i| (format!("label-of-some-length-that-says-nothing-{i}"), json!("x")));
    Value::Object(labels.collect())
}

/// No object grows beyond what etcd would take, by any way of writing it.
#[tokio::test]
async fn objects_have_a_largest_size() {
    const MOST: usize = 1536 * 1024;
    let too_large = |answer: &HttpResponse| {
        let body = answer.expect(500);
        assert_eq!(body["message"], "etcdserver: request is too large");
        assert_eq!(body.get("reason"), None);
    };
    let server = at_rest();
    let http = server.http().await;
    let of = |name: &str, labels: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}});
    too_large(&http.post(MAPS, &of("huge", many_labels(0, 40_000))).await);
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "huge", "labels": many_labels(0, 40_000)}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    too_large(&http.post(leases, &lease).await);

    // Patch by patch, until there is no room: first the record of who owns what goes, then no more is taken.
    let path = format!("{MAPS}/a");
    let patch = async |media: &str, body: &Value| {
        let target = match media {
            APPLY_PATCH => format!("{path}?fieldManager=m&force=true"),
            _ => path.clone(),
        };
        let headers = [("content-type", media)];
        http.ask(Method::PATCH, &target, &headers, body.to_string())
            .await
            .unwrap()
    };
    let mut taken = 0;
    loop {
        let more = json!({"metadata": {"labels": many_labels(taken * 10_000, 10_000)}});
        let answer = patch(MERGE_PATCH, &more).await;
        if answer.status != 200 {
            too_large(&answer);
            break;
        }
        assert!(answer.body.len() < MOST + 200, "{} bytes", answer.body.len());
        taken += 1;
        assert!(taken < 12, "it grows for ever");
    }
    assert!(taken > 1, "some of it fits");
    let all = many_labels(0, 40_000);
    too_large(&patch(STRATEGIC_PATCH, &json!({"metadata": {"labels": all}})).await);
    too_large(&patch(APPLY_PATCH, &of("a", all.clone())).await);
    too_large(
        &patch(
            JSON_PATCH,
            &json!([{"op": "replace", "path": "/metadata/labels", "value": all}]),
        )
        .await,
    );
    too_large(&http.put(&path, &of("a", all)).await);
    // Smaller it may become, and it may go.
    let fewer = json!([{"op": "replace", "path": "/metadata/labels", "value": {"few": "labels"}}]);
    assert_eq!(patch(JSON_PATCH, &fewer).await.status, 200);
    http.delete(&path).await.expect(200);
}

/// Lengths of time as long as a number can be: they end at the end of time, and nothing falls over.
#[tokio::test]
async fn times_beyond_all_time() {
    let server = at_rest();
    let http = server.http().await;
    let pods = "/api/v1/namespaces/default/pods";
    let most = i64::MAX;
    let pod = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "nodeName": "nowhere", "terminationGracePeriodSeconds": most,
            "tolerations": [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": most}],
            "containers": [{"name": "c", "image": "i"}]}})
    };
    for (name, query) in [("a", String::new()), ("b", format!("?gracePeriodSeconds={most}"))] {
        http.post(pods, &pod(name)).await.expect(201);
        let marked = http.delete(&format!("{pods}/{name}{query}")).await.expect(200);
        assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], most);
        let end = marked["metadata"]["deletionTimestamp"].as_str().unwrap();
        assert!(end.starts_with("9999-"), "{end}");
        // Made shorter it counts from now, since when it began can't be told any more.
        let shorter = http
            .delete(&format!("{pods}/{name}?gracePeriodSeconds=600"))
            .await
            .expect(200);
        let now = orlop_base::Clock::System.now();
        let mut end = now;
        end = shorter["metadata"]["deletionTimestamp"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap_or(end);
        let left = end.duration_since(now).as_secs();
        assert!((500..=600).contains(&left), "{left}");
        http.delete(&format!("{pods}/{name}?gracePeriodSeconds=0"))
            .await
            .expect(200);
    }
    let path = format!("{MAPS}?watch=true&timeoutSeconds={most}&resourceVersion=0");
    let mut watch = http.stream(&path, &[]).await;
    assert_eq!(watch.line().await.unwrap()["type"], "ADDED");
    http.get(&format!("{MAPS}?timeoutSeconds={most}")).await.expect(200);
    let token =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": most}});
    http.post("/api/v1/namespaces/default/serviceaccounts/default/token", &token)
        .await
        .refused(422, "Invalid");
}

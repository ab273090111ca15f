//! What Go programs on client-go send and read: bodies in `application/vnd.kubernetes.protobuf`, and watches that begin
//! with the state (`sendInitialEvents`).

use http::Method;
use orlop_api::protobuf::{CONTENT_TYPE, MAGIC, decode, encode};
use orlop_api::schema::schema;
use orlop_testkit::{Http, HttpResponse, Server};
use serde_json::{Value, json};

/// client-go's own two: protobuf, and JSON for what has none.
const ACCEPT: (&str, &str) = ("accept", "application/vnd.kubernetes.protobuf,application/json");
const BODY: (&str, &str) = ("content-type", CONTENT_TYPE);

fn bytes(object: &Value) -> Vec<u8> {
    let word = |name: &str| object[name].as_str().unwrap();
    let (version, kind) = (word("apiVersion"), word("kind"));
    let ty = schema()
        .kind(version, kind)
        .unwrap_or_else(|| panic!("no type {version} {kind}"));
    encode(object, version, kind, ty)
}

async fn send(http: &Http, method: Method, path: &str, object: &Value) -> HttpResponse {
    http.ask(method, path, &[ACCEPT, BODY], bytes(object)).await.unwrap()
}

#[track_caller]
fn read(answer: &HttpResponse, code: u16) -> Value {
    assert_eq!(answer.status, code, "{}", answer.text());
    assert_eq!(answer.headers["content-type"], CONTENT_TYPE);
    let (version, kind, object) = decode(&answer.body).unwrap();
    assert_eq!(
        (object["apiVersion"].as_str(), object["kind"].as_str()),
        (Some(version.as_str()), Some(kind.as_str()))
    );
    object
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "x"}, "annotations": {"note": "grüße ✓"}},
        "spec": {
            "containers": [{
                "name": "c", "image": "i",
                "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
                "env": [{"name": "A", "value": "b"}],
                "livenessProbe": {"httpGet": {"path": "/", "port": "http", "scheme": "HTTP"}},
            }],
            "nodeSelector": {"size": "Large"},
            "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}],
        },
    })
}

fn config_map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}, "data": {"a": value}})
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn objects_are_written_and_read_in_protobuf() {
    let server = Server::with_accounts();
    server.run("kubectl wait --for=create sa/default --timeout=60s");
    let http = server.http().await;
    let pods = "/api/v1/namespaces/default/pods";

    let made = read(&send(&http, Method::POST, pods, &pod("p")).await, 201);
    assert_eq!(made["spec"]["containers"][0]["resources"]["limits"]["memory"], "128Mi");
    assert_eq!(
        made["spec"]["containers"][0]["livenessProbe"]["httpGet"]["port"],
        "http"
    );
    assert_eq!(made["spec"]["tolerations"][0]["tolerationSeconds"], 0);
    assert_eq!(made["metadata"]["annotations"]["note"], "grüße ✓");
    // The same object, whichever way it is read.
    let as_json = http.get(&format!("{pods}/p")).await.expect(200);
    let as_protobuf = read(
        &http
            .ask(Method::GET, &format!("{pods}/p"), &[ACCEPT], "")
            .await
            .unwrap(),
        200,
    );
    assert_eq!(as_protobuf, as_json);
    assert_eq!(made, as_json);

    let mut changed = as_json.clone();
    changed["metadata"]["labels"]["app"] = json!("y");
    let updated = read(&send(&http, Method::PUT, &format!("{pods}/p"), &changed).await, 200);
    assert_eq!(updated["metadata"]["labels"]["app"], "y");
    let stale = send(&http, Method::PUT, &format!("{pods}/p"), &changed).await;
    let status = read(&stale, 409);
    assert_eq!(
        (&status["kind"], &status["reason"]),
        (&json!("Status"), &json!("Conflict"))
    );
    let mut status = as_json.clone();
    status["status"]["phase"] = json!("Running");
    status["metadata"]["resourceVersion"] = updated["metadata"]["resourceVersion"].clone();
    let running = read(
        &send(&http, Method::PUT, &format!("{pods}/p/status"), &status).await,
        200,
    );
    assert_eq!(running["status"]["phase"], "Running");

    // Bindings, reviews, tokens and evictions come in protobuf too.
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    let bound = read(
        &send(&http, Method::POST, &format!("{pods}/p/binding"), &binding).await,
        201,
    );
    assert_eq!(bound["status"], "Success");
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "default"}},
    });
    let answer = read(
        &send(
            &http,
            Method::POST,
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            &review,
        )
        .await,
        201,
    );
    assert_eq!(answer["status"]["allowed"], true);
    let token = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": [], "expirationSeconds": 3600}});
    let answer = read(
        &send(
            &http,
            Method::POST,
            "/api/v1/namespaces/default/serviceaccounts/default/token",
            &token,
        )
        .await,
        201,
    );
    assert_eq!(answer["status"]["token"].as_str().unwrap().split('.').count(), 3);

    // Delete options: a stale precondition, then a grace period.
    let options = |more: Value| {
        let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
        options
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        options
    };
    let wrong = options(json!({"preconditions": {"uid": "no-such-uid"}}));
    let refused = read(&send(&http, Method::DELETE, &format!("{pods}/p"), &wrong).await, 409);
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains("the UID in the precondition (no-such-uid) does not match the UID in record"),
        "{refused}"
    );
    let graceful = options(json!({"gracePeriodSeconds": 7}));
    let going = read(&send(&http, Method::DELETE, &format!("{pods}/p"), &graceful).await, 200);
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 7);
    let now = options(json!({"gracePeriodSeconds": 0, "propagationPolicy": "Background"}));
    read(&send(&http, Method::DELETE, &format!("{pods}/p"), &now).await, 200);
    let gone = read(
        &http
            .ask(Method::GET, &format!("{pods}/p"), &[ACCEPT], "")
            .await
            .unwrap(),
        404,
    );
    assert_eq!(gone["details"]["name"], "p");
}

#[tokio::test]
async fn every_built_in_kind_is_read_in_protobuf() {
    let server = Server::with_accounts();
    let http = server.http().await;
    let mut tried = 0;
    for kind in orlop_api::kinds::all().filter(|k| k.is_stored()) {
        let group = if kind.group.is_empty() {
            "/api".to_string()
        } else {
            format!("/apis/{}", kind.group)
        };
        let path = format!("{group}/{}/{}", kind.version, kind.plural);
        let list = read(&http.ask(Method::GET, &path, &[ACCEPT], "").await.unwrap(), 200);
        assert_eq!(list["kind"], format!("{}List", kind.kind), "{path}");
        let as_json = http.get(&path).await.expect(200);
        // Items of a list carry no kind of their own in either. Protobuf can't say that a list is empty, only leave it out.
        let items = list["items"].as_array().cloned().unwrap_or_default();
        assert_eq!(items, *as_json["items"].as_array().unwrap(), "{path}");
        tried += 1;
    }
    assert!(tried > 50, "only {tried} kinds");
}

#[tokio::test]
async fn broken_protobuf_is_refused() {
    let server = Server::with_accounts();
    let http = server.http().await;
    let whole = bytes(&config_map("broken", "1"));
    let mut bodies: Vec<Vec<u8>> = vec![
        b"k8s".to_vec(),
        MAGIC.to_vec(),
        b"{}".to_vec(),
        [MAGIC.as_slice(), &[0xff; 40]].concat(),
    ];
    // Cut anywhere. Where a field happens to end an object may be whole but poorer: never a crash, never half a name.
    bodies.extend((4..whole.len()).map(|n| whole[..n].to_vec()));
    for body in bodies {
        let answer = http
            .ask(Method::POST, &format!("{MAPS}?dryRun=All"), &[BODY], body.clone())
            .await
            .unwrap();
        assert!(
            matches!(answer.status.as_u16(), 201 | 400 | 422),
            "{} for {body:?}: {}",
            answer.status,
            answer.text()
        );
        if answer.status != 201 {
            assert_eq!(answer.json()["kind"], "Status");
        }
    }
    let wrong = config_map("wrong", "1");
    let answer = send(&http, Method::POST, "/api/v1/namespaces/default/secrets", &wrong).await;
    assert_eq!(read(&answer, 400)["reason"], "BadRequest");
    let list = http.get(MAPS).await.expect(200);
    assert!(
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .all(|c| c["metadata"]["name"] == "kube-root-ca.crt"),
        "{list}"
    );
}

/// The fields of a protobuf message of strings and messages: number and bytes.
fn fields(mut rest: &[u8]) -> Vec<(u64, &[u8])> {
    fn varint(rest: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let (byte, tail) = rest.split_first().expect("a whole message");
            *rest = tail;
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return value;
            }
        }
    }
    let mut found = vec![];
    while !rest.is_empty() {
        let tag = varint(&mut rest);
        assert_eq!(tag & 7, 2, "only strings and messages in a watch event");
        let length = varint(&mut rest) as usize;
        found.push((tag >> 3, &rest[..length]));
        rest = &rest[length..];
    }
    found
}

/// A frame of a watch: meta/v1 WatchEvent with the object, in its envelope, as raw extension.
fn event(frame: &[u8]) -> (String, Value) {
    let of = |fields: &[(u64, &[u8])], n: u64| {
        fields
            .iter()
            .find(|(k, _)| *k == n)
            .map(|(_, b)| b.to_vec())
            .expect("the field")
    };
    let outer = fields(frame);
    let word = String::from_utf8(of(&outer, 1)).unwrap();
    let extension = of(&outer, 2);
    let (_, _, object) = decode(&of(&fields(&extension), 1)).unwrap();
    (word, object)
}

#[tokio::test]
async fn watches_are_read_in_protobuf() {
    let server = Server::with_accounts();
    server.run("kubectl wait --for=create configmap/kube-root-ca.crt --timeout=60s");
    let http = server.http().await;
    for name in ["a", "b"] {
        read(&send(&http, Method::POST, MAPS, &config_map(name, "1")).await, 201);
    }
    // As client-go 1.36 starts an informer.
    let accept = (
        "accept",
        "application/vnd.kubernetes.protobuf;stream=watch,application/json",
    );
    let path = format!(
        "{MAPS}?allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&sendInitialEvents=true&watch=true&timeoutSeconds=500"
    );
    let mut stream = http.stream(&path, &[accept]).await;
    assert_eq!(stream.status, 200);
    assert_eq!(
        stream.headers["content-type"],
        "application/vnd.kubernetes.protobuf;stream=watch"
    );
    let mut names = vec![];
    let bookmark = loop {
        let (word, object) = event(&stream.frame().await.unwrap());
        assert_eq!(
            (&object["kind"], &object["apiVersion"]),
            (&json!("ConfigMap"), &json!("v1"))
        );
        match word.as_str() {
            "ADDED" => names.push(object["metadata"]["name"].as_str().unwrap().to_string()),
            "BOOKMARK" => break object,
            other => panic!("{other} {object}"),
        }
    };
    assert_eq!(names, ["a", "b", "kube-root-ca.crt"]);
    assert_eq!(
        bookmark["metadata"]["annotations"],
        json!({"k8s.io/initial-events-end": "true"})
    );
    let list = http.get(MAPS).await.expect(200);
    assert_eq!(
        bookmark["metadata"]["resourceVersion"],
        list["metadata"]["resourceVersion"]
    );

    // And on with what happens.
    let made = read(&send(&http, Method::POST, MAPS, &config_map("c", "1")).await, 201);
    let (word, object) = event(&stream.frame().await.unwrap());
    assert_eq!((word.as_str(), &object), ("ADDED", &made));
    let mut changed = made.clone();
    changed["data"]["a"] = json!("2");
    let updated = read(&send(&http, Method::PUT, &format!("{MAPS}/c"), &changed).await, 200);
    assert_eq!(event(&stream.frame().await.unwrap()), ("MODIFIED".to_string(), updated));
    http.delete(&format!("{MAPS}/c")).await.expect(200);
    let (word, object) = event(&stream.frame().await.unwrap());
    assert_eq!((word.as_str(), &object["data"]), ("DELETED", &json!({"a": "2"})));
}

/// The same in JSON, and with the state left out.
#[tokio::test]
async fn streaming_lists_in_json() {
    let server = Server::with_accounts();
    let http = server.http().await;
    server.run("kubectl create configmap a");
    let base = format!(
        "{MAPS}?watch=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&fieldSelector=metadata.name%3Da"
    );
    for (more, events) in [
        ("&sendInitialEvents=true&resourceVersion=", 2),
        ("&sendInitialEvents=true&resourceVersion=0", 2),
        ("&sendInitialEvents=false&resourceVersion=0&timeoutSeconds=1", 1),
    ] {
        let mut stream = http.stream(&format!("{base}{more}"), &[]).await;
        assert_eq!(stream.status, 200, "{more}");
        let mut words = vec![];
        let mut last = Value::Null;
        for _ in 0..events {
            last = stream.line().await.unwrap();
            words.push(last["type"].as_str().unwrap().to_string());
        }
        match events {
            2 => {
                assert_eq!(words, ["ADDED", "BOOKMARK"], "{more}");
                assert_eq!(
                    last["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
                    "true"
                );
            }
            _ => assert_eq!(words, ["BOOKMARK"], "{more}"),
        }
    }
    // Without what it needs it is refused.
    for wrong in [
        "sendInitialEvents=true",
        "sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=1",
        "resourceVersionMatch=NotOlderThan",
    ] {
        let status = http
            .get(&format!("{MAPS}?watch=true&{wrong}"))
            .await
            .refused(422, "Invalid");
        assert!(
            status["message"].as_str().unwrap().contains("resourceVersionMatch"),
            "{status:#}"
        );
    }
}

//! Admission webhooks: a webhook server of the test's own, and everything it may do right and wrong.

use std::net::{IpAddr, UdpSocket};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use orlop_testkit::{Http, Server, eventually, pod_manifest};
use serde_json::{Value, json};

use crate::webhook_server::WebhookServer;

/// A webhook server. The path says what it does.
pub(crate) struct Hooks {
    server: WebhookServer,
    /// Path and AdmissionReview of each call.
    calls: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Hooks {
    /// Serves until the test ends.
    pub(crate) async fn start() -> Hooks {
        let calls: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let heard = calls.clone();
        let server = WebhookServer::start(&["hooks.default.svc"], move |request| answer(heard.clone(), request)).await;
        Hooks { server, calls }
    }

    fn client(&self, path: &str) -> Value {
        self.server.client(path)
    }

    /// A webhook that does what the path says, to ConfigMaps unless the rest says otherwise.
    pub(crate) fn hook(&self, path: &str, rest: Value) -> Value {
        let mut hook = json!({
            "name": format!("{}.example.com", path.replace('/', ".")), "clientConfig": self.client(path), "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "timeoutSeconds": 10,
            "rules": [rule(&["*"], "", "v1", "configmaps")],
            // The cluster's own objects are left alone.
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
        });
        for (name, value) in rest.as_object().unwrap() {
            hook[name] = value.clone();
        }
        hook
    }

    pub(crate) fn called(&self, path: &str) -> Vec<Value> {
        let calls = self.calls.lock().unwrap();
        let of_path = calls.iter().filter(|(called, _)| called == path);
        of_path.map(|(_, review)| review["request"].clone()).collect()
    }

    fn paths(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock().unwrap())
            .into_iter()
            .map(|(path, _)| path)
            .collect()
    }
}

pub(crate) fn rule(operations: &[&str], group: &str, version: &str, resource: &str) -> Value {
    json!({"operations": operations, "apiGroups": [group], "apiVersions": [version], "resources": [resource]})
}

async fn answer(
    calls: Arc<Mutex<Vec<(String, Value)>>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let path = request.uri().path().trim_start_matches('/').to_string();
    let body = request.into_body().collect().await?.to_bytes();
    let review: Value = serde_json::from_slice(&body).unwrap();
    let request = review["request"].clone();
    calls.lock().unwrap().push((path.clone(), review));
    let patched = |operations: Value| json!({"allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(operations.to_string())});
    let set = |path: &str, value: Value| patched(json!([{"op": "add", "path": path, "value": value}]));
    let mut response = match path.as_str() {
        "allow" => json!({"allowed": true, "warnings": ["mind the gap"], "auditAnnotations": {"key": "value"}}),
        "deny" => json!({"allowed": false, "status": {"message": "not today", "code": 418, "reason": "Teapot"}}),
        "silent" => json!({"allowed": false}),
        "hang" => return std::future::pending().await,
        "redirect" => {
            let response = Response::builder().status(302).header("location", "/allow");
            return Ok(response.body(Full::default()).unwrap());
        }
        "broken" => {
            let response = Response::builder().status(500);
            return Ok(response.body(Full::from("out of order")).unwrap());
        }
        "garbage" => return Ok(Response::new(Full::from("<html>"))),
        "huge" => return Ok(Response::new(Full::from(vec![b' '; 9 << 20]))),
        "absent" => Value::Null,
        "uid" => json!({"allowed": true, "uid": "another"}),
        "a" => set("/data/a", "1".into()),
        // What b does depends on what others did before.
        "b" => set("/data/b", json!(format!("saw {}", keys(&request["object"]["data"])))),
        "rename" => set("/metadata/name", "other".into()),
        "move" => set("/metadata/namespace", "kube-system".into()),
        "nameless" => patched(json!([{"op": "remove", "path": "/metadata/name"}])),
        "uid-change" => set("/metadata/uid", "other".into()),
        "retype" => set("/kind", "Secret".into()),
        "untype" => set("/data", "text".into()),
        "nowhere" => patched(json!([{"op": "remove", "path": "/no/such"}])),
        "owners" => set(
            "/metadata/managedFields",
            json!([{"manager": "m", "fieldsType": "nonsense"}]),
        ),
        "deep" => {
            let nested = json!([{"op": "add", "path": "/metadata/annotations", "value": {}},
                {"op": "add", "path": "/metadata/labels", "value": deep(110)}]);
            patched(nested)
        }
        "domain" => set("/spec/failureDomain", "f1".into()),
        "image" => set("/spec/containers/0/image", "changed:latest".into()),
        "no-patch" => json!({"allowed": true, "patch": STANDARD.encode("nonsense"), "patchType": "JSONPatch"}),
        other => panic!("nobody said what {other:?} does"),
    };
    if response.is_object() && response.get("uid").is_none() {
        response["uid"] = request["uid"].clone();
    }
    let review = json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response});
    Ok(Response::new(Full::from(review.to_string())))
}

fn keys(object: &Value) -> String {
    let keys: Vec<&str> = object
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, _)| key.as_str())
        .collect();
    keys.join(",")
}

fn deep(levels: usize) -> Value {
    (0..levels).fold(json!("x"), |inner, _| json!({"a": inner}))
}

pub(crate) const MUTATING: &str = "Mutating";
pub(crate) const VALIDATING: &str = "Validating";

pub(crate) async fn configure(http: &Http, sort: &str, name: &str, hooks: Vec<Value>) {
    let path = path_of(sort);
    let object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": format!("{sort}WebhookConfiguration"),
        "metadata": {"name": name}, "webhooks": hooks});
    http.post(&path, &object).await.expect(201);
}

fn path_of(sort: &str) -> String {
    let plural = format!("{}webhookconfigurations", sort.to_lowercase());
    format!("/apis/admissionregistration.k8s.io/v1/{plural}")
}

pub(crate) async fn remove(http: &Http, sort: &str, name: &str) {
    http.delete(&format!("{}/{name}", path_of(sort))).await.expect(200);
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "v"}})
}

pub(crate) fn message(status: &Value) -> &str {
    status["message"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_allow_and_deny() {
    let server = Server::with_accounts();
    let (http, hooks) = (server.http().await, Hooks::start().await);
    configure(&http, VALIDATING, "v", vec![hooks.hook("allow", json!({}))]).await;
    let made = http.post(MAPS, &config_map("m")).await;
    assert_eq!(made.warnings(), [r#"299 - "mind the gap""#]);
    let made = made.expect(201);
    let request = &hooks.called("allow")[0];
    let kind = json!({"group": "", "version": "v1", "kind": "ConfigMap"});
    let resource = json!({"group": "", "version": "v1", "resource": "configmaps"});
    for (member, expected) in [
        ("kind", &kind),
        ("requestKind", &kind),
        ("resource", &resource),
        ("requestResource", &resource),
        ("operation", &json!("CREATE")),
        ("name", &json!("m")),
        ("namespace", &json!("default")),
        ("dryRun", &json!(false)),
        ("oldObject", &Value::Null),
    ] {
        assert_eq!(&request[member], expected, "{member}");
    }
    assert_eq!(
        request["object"]["metadata"]["uid"], made["metadata"]["uid"],
        "the object as it will be stored"
    );
    assert_eq!(request["options"]["kind"], "CreateOptions");
    assert!(request["userInfo"]["groups"].to_string().contains("system:masters"));

    // Update, patch, delete and deletecollection.
    let mut changed = made.clone();
    changed["data"]["k"] = "w".into();
    http.put(&format!("{MAPS}/m"), &changed).await.expect(200);
    let request = hooks.called("allow").pop().unwrap();
    assert_eq!(
        (
            &request["operation"],
            &request["object"]["data"]["k"],
            &request["oldObject"]["data"]["k"]
        ),
        (&json!("UPDATE"), &json!("w"), &json!("v"))
    );
    server.run("kubectl delete configmap m --grace-period=3");
    let request = hooks.called("allow").pop().unwrap();
    assert_eq!(
        (
            &request["operation"],
            &request["object"],
            &request["oldObject"]["data"]["k"]
        ),
        (&json!("DELETE"), &Value::Null, &json!("w"))
    );
    assert_eq!(request["options"]["gracePeriodSeconds"], 3);
    http.post(MAPS, &config_map("n1")).await.expect(201);
    http.post(MAPS, &config_map("n2")).await.expect(201);
    hooks.paths();
    http.delete(&format!("{MAPS}?fieldSelector=metadata.name!=kube-root-ca.crt"))
        .await
        .expect(200);
    let mut deleted: Vec<Value> = hooks
        .called("allow")
        .iter()
        .map(|r| r["oldObject"]["metadata"]["name"].clone())
        .collect();
    deleted.sort_by_key(Value::to_string);
    assert_eq!(deleted, ["n1", "n2"]);

    remove(&http, VALIDATING, "v").await;
    configure(&http, VALIDATING, "v", vec![hooks.hook("deny", json!({}))]).await;
    let status = http.post(MAPS, &config_map("m")).await.refused(418, "Teapot");
    assert_eq!(
        message(&status),
        "admission webhook \"deny.example.com\" denied the request: not today"
    );
    let told = server.fails("kubectl create configmap m");
    assert!(
        told.contains("admission webhook \"deny.example.com\" denied the request: not today"),
        "{told}"
    );
    http.post("/api/v1/namespaces/kube-system/configmaps", &config_map("m"))
        .await
        .expect(201);
    remove(&http, VALIDATING, "v").await;
    configure(&http, VALIDATING, "v", vec![hooks.hook("silent", json!({}))]).await;
    let status = http.post(MAPS, &config_map("m")).await.expect(400);
    assert_eq!(
        message(&status),
        "admission webhook \"silent.example.com\" denied the request without explanation"
    );

    let metrics = http.get("/metrics").await.text();
    for sample in [
        r#"apiserver_admission_webhook_request_total{code="418",name="deny.example.com",operation="CREATE",rejected="true",type="validating"} 2"#,
        r#"apiserver_admission_webhook_rejection_count{error_type="no_error",name="deny.example.com",operation="CREATE",rejection_code="418",type="validating"} 2"#,
        r#"apiserver_admission_webhook_admission_duration_seconds_count{name="deny.example.com",operation="CREATE",rejected="true",type="validating"} 2"#,
    ] {
        assert!(metrics.contains(sample), "{sample}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mutating_webhooks_follow_one_another() {
    let server = Server::with_accounts();
    let (http, hooks) = (server.http().await, Hooks::start().await);
    // By name of the configuration, not by age; and b once more, because z changed something after it.
    configure(&http, MUTATING, "z", vec![hooks.hook("a", json!({}))]).await;
    configure(
        &http,
        MUTATING,
        "y",
        vec![hooks.hook("b", json!({"reinvocationPolicy": "IfNeeded"}))],
    )
    .await;
    let made = http.post(MAPS, &config_map("m")).await.expect(201);
    assert_eq!(made["data"], json!({"a": "1", "b": "saw a,b,k", "k": "v"}));
    assert_eq!(hooks.paths(), ["b", "a", "b"]);
    // Nothing changes any more, so nobody is asked twice.
    server.run("kubectl annotate configmap m x=y");
    assert_eq!(hooks.paths(), ["b", "a"]);

    // A pod is completed again after a webhook.
    remove(&http, MUTATING, "z").await;
    remove(&http, MUTATING, "y").await;
    let rules = json!([rule(&["CREATE"], "", "v1", "pods")]);
    configure(&http, MUTATING, "p", vec![hooks.hook("image", json!({"rules": rules}))]).await;
    server.run_with("kubectl apply -f -", &pod_manifest("p"));
    let pod = server.get("pod p");
    assert_eq!(pod["spec"]["containers"][0]["image"], "changed:latest");

    // Scale is shown as such.
    server.run("kubectl create deployment d --image=i --replicas=0");
    let rules = json!([rule(&["UPDATE"], "apps", "v1", "deployments/scale")]);
    configure(
        &http,
        VALIDATING,
        "s",
        vec![hooks.hook("allow", json!({"rules": rules}))],
    )
    .await;
    server.run("kubectl scale deployment d --replicas=2");
    let request = &hooks.called("allow")[0];
    assert_eq!(
        (
            &request["kind"]["kind"],
            &request["subResource"],
            &request["object"]["spec"]["replicas"]
        ),
        (&json!("Scale"), &json!("scale"), &json!(2))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_as_the_policy_says() {
    let server = Server::with_accounts();
    let (http, hooks) = (server.http().await, Hooks::start().await);
    let calls = "failed to call webhook: ";
    for (path, sort, told) in [
        ("hang", VALIDATING, "context deadline exceeded"),
        ("redirect", VALIDATING, "the server responded with the status code 302"),
        (
            "broken",
            VALIDATING,
            r#"an error on the server ("out of order") has prevented the request from succeeding"#,
        ),
        ("garbage", MUTATING, "json parse error: invalid character '<'"),
        ("huge", MUTATING, "http: response body too large"),
        (
            "absent",
            VALIDATING,
            "received invalid webhook response: webhook response was absent",
        ),
        (
            "uid",
            MUTATING,
            "received invalid webhook response: expected response.uid=",
        ),
        (
            "a",
            VALIDATING,
            "received invalid webhook response: validating webhook may not return response.patch",
        ),
        ("no-patch", MUTATING, "received undecodable patch in webhook response"),
    ] {
        for policy in ["Fail", "Ignore"] {
            let hook = hooks.hook(path, json!({"failurePolicy": policy, "timeoutSeconds": 1}));
            configure(&http, sort, "c", vec![hook]).await;
            let answer = http
                .post(MAPS, &config_map(&format!("{path}-{}", policy.to_lowercase())))
                .await;
            if policy == "Ignore" {
                answer.expect(201);
            } else {
                let status = answer.refused(500, "InternalError");
                let start = format!("Internal error occurred: failed calling webhook \"{path}.example.com\": ");
                let why = message(&status)
                    .strip_prefix(&start)
                    .unwrap_or_else(|| panic!("{status}"));
                assert!(
                    why.contains(told) && (why.starts_with(calls) || why.starts_with("received ")),
                    "{why}"
                );
            }
            remove(&http, sort, "c").await;
        }
    }
    // Nobody listens there.
    let mut hook = hooks.hook("allow", json!({}));
    hook["clientConfig"]["url"] = "https://127.0.0.1:1/x".into();
    configure(&http, VALIDATING, "c", vec![hook]).await;
    let status = http.post(MAPS, &config_map("m")).await.refused(500, "InternalError");
    assert_eq!(
        message(&status),
        "Internal error occurred: failed calling webhook \"allow.example.com\": failed to call webhook: Post \"https://127.0.0.1:1/x?timeout=10s\": dial tcp 127.0.0.1:1: connect: connection refused"
    );
    // Whatever a webhook forbids, it does not forbid to remove it, nor to look.
    let everything = json!({"rules": [rule(&["*"], "*", "*", "*/*")], "namespaceSelector": {}});
    configure(&http, VALIDATING, "all", vec![hooks.hook("deny", everything)]).await;
    http.get(MAPS).await.expect(200);
    http.post("/api/v1/namespaces/kube-system/configmaps", &config_map("x"))
        .await
        .refused(418, "Teapot");
    http.get("/readyz").await;
    remove(&http, VALIDATING, "all").await;
    remove(&http, VALIDATING, "c").await;
    http.post(MAPS, &config_map("m")).await.expect(201);
    let metrics = http.get("/metrics").await.text();
    assert!(
        metrics.contains(r#"apiserver_admission_webhook_fail_open_count{name="hang.example.com",type="validating"} 1"#),
        "{metrics}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_webhooks_may_not_change() {
    let server = Server::with_accounts();
    let (http, hooks) = (server.http().await, Hooks::start().await);
    http.post(MAPS, &config_map("old")).await.expect(201);
    let patch = json!({"data": {"x": "y"}});
    for (path, create, update) in [
        (
            "rename",
            (201, ""),
            (422, "metadata.name: Invalid value: \"other\": field is immutable"),
        ),
        (
            "move",
            (
                400,
                "the namespace of the provided object does not match the namespace sent on the request",
            ),
            (422, "metadata.namespace"),
        ),
        (
            "nameless",
            (422, "metadata.name: Required value: name or generateName is required"),
            (422, "metadata.name"),
        ),
        ("uid-change", (201, ""), (200, "")),
        (
            "retype",
            (500, "the object's kind is not ConfigMap any more"),
            (500, "kind"),
        ),
        (
            "untype",
            (500, "cannot unmarshal string"),
            (500, "cannot unmarshal string"),
        ),
        (
            "nowhere",
            (500, "Internal error occurred"),
            (500, "Internal error occurred"),
        ),
        (
            "deep",
            (500, "Internal error occurred"),
            (500, "Internal error occurred"),
        ),
    ] {
        configure(&http, MUTATING, "m", vec![hooks.hook(path, json!({}))]).await;
        let check = |answer: Value, told: &str| {
            let text = answer.to_string();
            assert!(text.contains(&told.replace('"', "\\\"")), "{path}: {text}");
            answer
        };
        let created = check(
            http.post(MAPS, &config_map(&format!("new-{path}")))
                .await
                .expect(create.0),
            create.1,
        );
        assert_ne!(created["metadata"]["uid"], "other");
        let merge = [("content-type", "application/merge-patch+json")];
        let path = format!("{MAPS}/old");
        let answer = http.ask(http::Method::PATCH, &path, &merge, patch.to_string());
        check(answer.await.unwrap().expect(update.0), update.1);
        remove(&http, MUTATING, "m").await;
    }
    // Who owns which fields is put back, and the client told.
    configure(&http, MUTATING, "m", vec![hooks.hook("owners", json!({}))]).await;
    let created = http.post(MAPS, &config_map("owned")).await;
    assert!(created.warnings()[0].contains(".metadata.managedFields was in an invalid state after admission"));
    assert!(created.expect(201)["metadata"]["managedFields"][0]["fieldsV1"].is_object());
    remove(&http, MUTATING, "m").await;
    // An object that is deleted can't be changed.
    let rules = json!({"rules": [rule(&["DELETE"], "", "v1", "configmaps")]});
    configure(&http, MUTATING, "m", vec![hooks.hook("a", rules)]).await;
    let status = http.delete(&format!("{MAPS}/old")).await.refused(500, "InternalError");
    assert!(message(&status).contains(
        "admission webhook \"a.example.com\" attempted to modify the object, which is not supported for this operation"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn dry_runs_need_webhooks_without_side_effects() {
    let server = Server::with_accounts();
    let (http, hooks) = (server.http().await, Hooks::start().await);
    let dry = format!("{MAPS}?dryRun=All");
    configure(&http, VALIDATING, "v", vec![hooks.hook("allow", json!({}))]).await;
    http.post(&dry, &config_map("m")).await.expect(201);
    assert_eq!(hooks.called("allow")[0]["dryRun"], true);
    // What is not declared cannot be configured any more; so its absence is not tried.
    http.get(&format!("{MAPS}/m")).await.refused(404, "NotFound");
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_in_pods_are_reviewed() {
    let server = Server::with_accounts();
    let (http, hooks) = (server.http().await, Hooks::start().await);
    server.run_with("kubectl apply -f -", &pod_manifest("p"));
    let rules =
        json!({"rules": [rule(&["CONNECT"], "", "v1", "pods/exec"), rule(&["CONNECT"], "", "v1", "pods/proxy")]});
    configure(&http, VALIDATING, "v", vec![hooks.hook("deny", rules)]).await;
    let refused = server.fails("kubectl exec p -- ls -l");
    assert!(refused.contains("denied the request: not today"), "{refused}");
    let request = &hooks.called("deny")[0];
    assert_eq!(
        (
            &request["operation"],
            &request["kind"]["kind"],
            &request["subResource"],
            &request["name"]
        ),
        (&json!("CONNECT"), &json!("PodExecOptions"), &json!("exec"), &json!("p"))
    );
    assert_eq!(request["object"]["command"], json!(["ls", "-l"]));
    assert_eq!(request["object"]["stdout"], true);
    let proxied = http.get("/api/v1/namespaces/default/pods/p/proxy/some/where").await;
    proxied.refused(418, "Teapot");
    assert_eq!(hooks.called("deny").pop().unwrap()["object"]["path"], "/some/where");
    // Others are not concerned: the pod has no node yet.
    let refused = server.fails("kubectl attach p");
    assert!(!refused.contains("not today"), "{refused}");
}

/// The address by which this machine reaches others, and by which a service's endpoints may be on it.
fn own_address() -> IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("192.0.2.1:9").expect("a route, though nothing is sent");
    socket.local_addr().unwrap().ip()
}

#[tokio::test(flavor = "multi_thread")]
async fn services_are_reached_through_their_endpoints() {
    let server = Server::with_accounts();
    let (http, hooks) = (server.http().await, Hooks::start().await);
    let client = json!({"service": {"namespace": "default", "name": "hooks", "path": "/deny", "port": 8443},
        "caBundle": STANDARD.encode(&hooks.server.ca)});
    configure(
        &http,
        VALIDATING,
        "v",
        vec![hooks.hook("deny", json!({"clientConfig": client}))],
    )
    .await;
    let refused = http.post(MAPS, &config_map("m")).await.refused(500, "InternalError");
    let start = "Internal error occurred: failed calling webhook \"deny.example.com\": failed to call webhook: Post \"https://hooks.default.svc:8443/deny?timeout=10s\": ";
    assert_eq!(message(&refused), format!("{start}service \"hooks\" not found"));
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hooks"},
        "spec": {"ports": [{"port": 8443, "targetPort": hooks.server.port}]}});
    http.post("/api/v1/namespaces/default/services", &service)
        .await
        .expect(201);
    let refused = http.post(MAPS, &config_map("m")).await.refused(500, "InternalError");
    assert_eq!(
        message(&refused),
        format!("{start}no endpoints available for service \"hooks\"")
    );
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "hooks-1", "labels": {"kubernetes.io/service-name": "hooks"}},
        "endpoints": [{"addresses": [own_address().to_string()], "conditions": {"ready": true}}],
        "ports": [{"port": hooks.server.port, "name": ""}]});
    http.post("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", &slice)
        .await
        .expect(201);
    http.post(MAPS, &config_map("m")).await.refused(418, "Teapot");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_versions_are_converted() {
    let server = Server::with_accounts();
    let (http, hooks) = (server.http().await, Hooks::start().await);
    let rules = json!({"rules": [rule(&["*"], "autoscaling", "v1", "horizontalpodautoscalers")]});
    configure(&http, VALIDATING, "v", vec![hooks.hook("deny", rules.clone())]).await;
    let scaler = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
        "spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}});
    let path = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    http.post(path, &scaler).await.refused(418, "Teapot");
    let request = &hooks.called("deny")[0];
    assert_eq!(
        (
            &request["kind"]["version"],
            &request["requestKind"]["version"],
            &request["object"]["apiVersion"]
        ),
        (&json!("v1"), &json!("v2"), &json!("autoscaling/v1"))
    );
    remove(&http, VALIDATING, "v").await;
    let mut hook = hooks.hook("deny", rules);
    hook["matchPolicy"] = "Exact".into();
    configure(&http, VALIDATING, "v", vec![hook]).await;
    http.post(path, &scaler).await.expect(201);
}

/// Writes that wait for a webhook keep nobody else from writing: not small ones, not large ones, not in a namespace with a
/// quota.
#[tokio::test(flavor = "multi_thread")]
async fn hanging_webhooks_hold_up_nobody_else() {
    let server = Server::with_accounts();
    let (http, hooks) = (server.http().await, Hooks::start().await);
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
        "spec": {"hard": {"count/configmaps": "100"}}});
    http.post("/api/v1/namespaces/default/resourcequotas", &quota)
        .await
        .expect(201);
    let hook = hooks.hook(
        "hang",
        json!({"timeoutSeconds": 30, "failurePolicy": "Ignore", "objectSelector": {"matchLabels": {"hang": "yes"}}}),
    );
    configure(&http, VALIDATING, "v", vec![hook]).await;
    let large = |name: &str, labels: Value| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels},
            "data": {"k": "x".repeat(500_000)}})
    };
    let identity = server.identity();
    let waiting: Vec<_> = (0..8)
        .map(|n| {
            let (identity, object) = (identity.clone(), large(&format!("hangs-{n}"), json!({"hang": "yes"})));
            tokio::spawn(async move {
                let http = Http::connect(&identity).await.unwrap();
                http.post(MAPS, &object).await
            })
        })
        .collect();
    eventually("all of them wait", || (hooks.called("hang").len() == 8).then_some(()));
    http.post(MAPS, &large("goes-on", json!({}))).await.expect(201);
    http.post(MAPS, &config_map("goes-on-too")).await.expect(201);
    assert!(waiting.iter().all(|write| !write.is_finished()), "they still wait");
    waiting.iter().for_each(|write| write.abort());
}

const POLICY: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: replicas}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [apps], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [deployments]}
  paramKind: {apiVersion: v1, kind: ConfigMap}
  variables:
  - {name: most, expression: "int(params.data.replicas)"}
  validations:
  - expression: object.spec.replicas <= variables.most
    messageExpression: "'at most ' + string(variables.most) + ' replicas'"
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: replicas}
spec:
  policyName: replicas
  validationActions: [Deny]
  paramRef: {name: limits, namespace: default, parameterNotFoundAction: Deny}
"#;

const MUTATING_POLICY: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: team}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}
  reinvocationPolicy: Never
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: "Object{metadata: Object.metadata{labels: {'team': request.namespace}}}"
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: team}
spec: {policyName: team}
"#;

#[test]
fn policies_refuse_and_change() {
    let server = Server::with_accounts();
    server.run_with("kubectl apply -f -", POLICY);
    let create = "kubectl create deployment d --image=i --replicas=";
    let refused = server.fails(&format!("{create}1"));
    assert!(
        refused.contains(
            "deployments.apps \"d\" is forbidden: ValidatingAdmissionPolicy 'replicas' with binding 'replicas' denied request: \
             failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
        ),
        "{refused}"
    );
    server.run("kubectl create configmap limits --from-literal=replicas=3");
    let refused = server.fails(&format!("{create}4"));
    assert!(refused.contains("denied request: at most 3 replicas"), "{refused}");
    server.run(&format!("{create}3"));
    let refused = server.fails("kubectl patch deployment d -p '{\"spec\":{\"replicas\":5}}'");
    assert!(refused.contains("denied request: at most 3 replicas"), "{refused}");
    // Only warned of.
    server.run("kubectl patch validatingadmissionpolicybinding replicas --type=merge -p '{\"spec\":{\"validationActions\":[\"Warn\"]}}'");
    let patched = server
        .sh("kubectl patch deployment d -p '{\"spec\":{\"replicas\":5}}' 2>&1")
        .ok();
    assert!(
        patched.contains("Warning: Validation failed for ValidatingAdmissionPolicy 'replicas' with binding 'replicas': at most 3 replicas"),
        "{patched}"
    );
    // One that does not compile is not taken.
    let broken = POLICY.replace("object.spec.replicas <=", "objet.spec.replicas <=");
    let refused = server.fails_with("kubectl apply -f -", &broken);
    assert!(
        refused.contains("spec.validations[0].expression: Invalid value")
            && refused.contains("undeclared reference to 'objet'"),
        "{refused}"
    );
    server.run("kubectl delete validatingadmissionpolicy replicas");
    server.run("kubectl delete deployment d");
    server.run(&format!("{create}9"));

    server.run_with("kubectl apply -f -", MUTATING_POLICY);
    server.run("kubectl create configmap m");
    assert_eq!(
        server.get("configmap m")["metadata"]["labels"],
        json!({"team": "default"})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn match_conditions_spare_webhooks() {
    let server = Server::with_accounts();
    let (http, hooks) = (server.http().await, Hooks::start().await);
    let conditions =
        json!({"matchConditions": [{"name": "named", "expression": "object.metadata.name.startsWith('x')"}]});
    configure(&http, VALIDATING, "v", vec![hooks.hook("deny", conditions)]).await;
    http.post(MAPS, &config_map("m")).await.expect(201);
    http.post(MAPS, &config_map("x")).await.refused(418, "Teapot");
    assert_eq!(hooks.paths(), ["deny"]);
    let broken = json!({"matchConditions": [{"name": "broken", "expression": "object.data.gone == 'x'"}]});
    configure(&http, VALIDATING, "w", vec![hooks.hook("allow", broken)]).await;
    let status = http.post(MAPS, &config_map("n")).await.refused(403, "Forbidden");
    assert_eq!(
        message(&status),
        "configmaps \"n\" is forbidden: expression 'object.data.gone == 'x'' resulted in error: no such key: gone"
    );
    let object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "z"},
        "webhooks": [hooks.hook("allow", json!({"matchConditions": [{"name": "c", "expression": "1 + 1"}]}))]});
    let status = http.post(&path_of(VALIDATING), &object).await.refused(422, "Invalid");
    assert!(
        message(&status).contains("must evaluate to bool but got int"),
        "{status}"
    );
}

#[test]
fn policies_are_checked_by_the_kinds_they_are_for() {
    let server = Server::with_accounts();
    let mistaken = POLICY.replace("object.spec.replicas <=", "object.spec.replica <=");
    server.run_with("kubectl apply -f -", &mistaken);
    let warning = eventually("the status tells the mistake", || {
        let policy = server.get("validatingadmissionpolicy replicas");
        let warnings = policy.pointer("/status/typeChecking/expressionWarnings")?;
        Some(warnings[0].clone())
    });
    assert_eq!(warning["fieldRef"], "spec.validations[0].expression");
    let text = warning["warning"].as_str().unwrap();
    assert!(
        text.starts_with(
            "apps/v1, Kind=Deployment: compilation failed: ERROR: <input>:1:12: undefined field 'replica'"
        ),
        "{text}"
    );
    server.run_with("kubectl apply -f -", POLICY);
    eventually("the status has no warnings any more", || {
        let policy = server.get("validatingadmissionpolicy replicas");
        (policy["status"] == json!({"observedGeneration": 2, "typeChecking": {}})).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_kinds_are_reviewed_like_others() {
    let server = Server::with_accounts();
    let (http, hooks) = (server.http().await, Hooks::start().await);
    let version = |name: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object",
            "properties": {"data": {"type": "object", "properties": {"k": {"type": "string"}, "a": {"type": "string"},
                "filled": {"type": "string", "default": "yes"}}}}}}})
    };
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [version("v1", true), version("v2", false)]}});
    http.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition)
        .await
        .expect(201);
    let path = "/apis/example.com/v2/namespaces/default/things";
    let thing = |name: &str, data: Value| json!({"apiVersion": "example.com/v2", "kind": "Thing", "metadata": {"name": name}, "data": data});
    server.run("kubectl wait --for=condition=Established crd/things.example.com");
    let rules = json!({"rules": [rule(&["*"], "example.com", "v1", "things")]});
    configure(&http, MUTATING, "m", vec![hooks.hook("a", rules)]).await;
    let made = http.post(path, &thing("t", json!({"k": "v"}))).await.expect(201);
    assert_eq!(made["data"], json!({"a": "1", "filled": "yes", "k": "v"}));
    let request = &hooks.called("a")[0];
    assert_eq!(
        (
            &request["object"]["apiVersion"],
            &request["requestKind"]["version"],
            &request["kind"]["version"]
        ),
        (&json!("example.com/v1"), &json!("v2"), &json!("v1"))
    );
    // What a webhook sets must fit the schema.
    remove(&http, MUTATING, "m").await;
    let rules = json!({"rules": [rule(&["*"], "example.com", "*", "things")]});
    configure(&http, MUTATING, "m", vec![hooks.hook("untype", rules)]).await;
    let refused = http.post(path, &thing("u", json!({}))).await.expect(422);
    assert!(
        message(&refused).contains("data in body must be of type object"),
        "{refused}"
    );
    remove(&http, MUTATING, "m").await;
    // A policy about them, with one of them as its parameter.
    let policy = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: things}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [example.com], apiVersions: [v1], operations: [CREATE], resources: [things]}
  paramKind: {apiVersion: example.com/v1, kind: Thing}
  validations:
  - expression: object.data.k == params.data.k
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: things}
spec:
  policyName: things
  validationActions: [Deny]
  paramRef: {name: t, namespace: default, parameterNotFoundAction: Deny}
"#;
    server.run_with("kubectl apply -f -", policy);
    http.post(path, &thing("same", json!({"k": "v"}))).await.expect(201);
    let refused = http
        .post(path, &thing("other", json!({"k": "w"})))
        .await
        .refused(422, "Invalid");
    assert!(
        message(&refused).contains("failed expression: object.data.k == params.data.k"),
        "{refused}"
    );
}

/// A webhook that is away, and wants to be asked about everything, keeps nobody from starting the server and removing it.
#[test]
fn a_server_starts_without_its_webhooks() {
    let mut server = Server::with_accounts();
    let manifest = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: away}
webhooks:
- name: away.example.com
  clientConfig: {url: "https://127.0.0.1:1/"}
  rules: [{apiGroups: ["*"], apiVersions: ["*"], operations: ["*"], resources: ["*/*"]}]
  admissionReviewVersions: [v1]
  sideEffects: None
"#;
    server.run_with("kubectl apply -f -", manifest);
    server.kill();
    server.start_again();
    let refused = server.fails("kubectl create configmap m");
    assert!(
        refused.contains("failed calling webhook \"away.example.com\""),
        "{refused}"
    );
    server.run("kubectl get --raw /readyz");
    server.run("kubectl delete validatingwebhookconfiguration away");
    server.run("kubectl create configmap m");
}

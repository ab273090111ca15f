//! Requests that were right before something happened to them: thousands, from a seed. Whatever they ask for, the server
//! answers in kind and lives on.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use orlop_base::Random;
use orlop_testkit::{Http, HttpResponse, Server};
use serde_json::{Value, json};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const JSON_PATCH: &str = "application/json-patch+json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
const APPLY_PATCH: &str = "application/apply-patch+yaml";

/// Valid requests to start from.
fn seeds() -> Vec<(Method, String, &'static str, String)> {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "f", "labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": []}, "data": {"k": "v"}, "immutable": false});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "d"}, "matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}, "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%"}},
            "template": {"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80, "name": "http"}], "resources": {"limits": {"cpu": "1.5", "memory": "1Gi"}}, "livenessProbe": {"httpGet": {"port": "http"}}, "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}], "volumes": [{"name": "v", "projected": {"sources": [{"configMap": {"name": "x"}}]}}], "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]}}}, "tolerations": [{"key": "k", "operator": "Exists", "tolerationSeconds": 3}]}}},
    });
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "p-"}, "spec": deployment["spec"]["template"]["spec"]});
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"generateName": "s-"}, "spec": {"type": "NodePort", "ports": [{"port": 80, "targetPort": "http", "nodePort": 30123}], "selector": {"a": "b"}, "ipFamilyPolicy": "PreferDualStack", "externalIPs": ["192.0.2.1"]}});
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "r"}, "rules": [{"apiGroups": ["*"], "resources": ["pods/status"], "verbs": ["get"], "resourceNames": ["x"]}], "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}});
    let cron = json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "c"}, "spec": {"schedule": "*/5 0-4,7 * JAN MON", "timeZone": "Europe/Berlin", "jobTemplate": {"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}}}});
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "100k", "requests.cpu": "10", "count/configmaps": "1e3"}, "scopes": ["NotTerminating"]}});
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": {"holderIdentity": "x", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}});
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {"user": "u", "groups": ["g"], "resourceAttributes": {"verb": "get", "resource": "pods", "labelSelector": {"requirements": [{"key": "a", "operator": "In", "values": ["b"]}]}}}});
    let delete = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "propagationPolicy": "Background", "preconditions": {"resourceVersion": "1"}});
    let ns = "/api/v1/namespaces/default";
    let managed = json!({"metadata": {"managedFields": [{"manager": "m", "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {".": {}, "f:k": {}}}}]}});
    let mut seeds = vec![];
    let mut add = |method: Method, path: String, media: &'static str, body: &Value| {
        seeds.push((method, path, media, body.to_string()))
    };
    add(
        Method::POST,
        format!("{ns}/configmaps?fieldValidation=Strict"),
        JSON,
        &map,
    );
    add(
        Method::PUT,
        format!("{ns}/configmaps/f?dryRun=All&fieldManager=m"),
        JSON,
        &map,
    );
    add(Method::POST, DEPLOYMENTS.to_string(), JSON, &deployment);
    add(Method::PUT, format!("{DEPLOYMENTS}/d"), YAML, &deployment);
    add(Method::PUT, format!("{DEPLOYMENTS}/d/status"), JSON, &deployment);
    add(
        Method::PUT,
        format!("{DEPLOYMENTS}/d/scale"),
        JSON,
        &json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d"}, "spec": {"replicas": 2}}),
    );
    add(Method::POST, format!("{ns}/pods"), JSON, &pod);
    add(Method::POST, format!("{ns}/services"), JSON, &service);
    add(
        Method::POST,
        "/apis/rbac.authorization.k8s.io/v1/clusterroles".into(),
        JSON,
        &role,
    );
    add(
        Method::POST,
        "/apis/batch/v1/namespaces/default/cronjobs".into(),
        JSON,
        &cron,
    );
    add(Method::POST, format!("{ns}/resourcequotas"), JSON, &quota);
    add(
        Method::POST,
        "/apis/coordination.k8s.io/v1/namespaces/default/leases".into(),
        JSON,
        &lease,
    );
    add(
        Method::POST,
        "/apis/authorization.k8s.io/v1/subjectaccessreviews".into(),
        JSON,
        &review,
    );
    add(
        Method::DELETE,
        format!("{ns}/configmaps/f?gracePeriodSeconds=0"),
        JSON,
        &delete,
    );
    add(
        Method::DELETE,
        format!("{ns}/pods?labelSelector=a%3Db&fieldSelector=status.phase%3DPending&limit=3"),
        JSON,
        &delete,
    );
    add(
        Method::PATCH,
        format!("{ns}/configmaps/f"),
        MERGE_PATCH,
        &json!({"data": {"k": null, "n": "x"}, "metadata": {"labels": {"x": "y"}}}),
    );
    add(Method::PATCH, format!("{ns}/configmaps/f"), MERGE_PATCH, &managed);
    add(
        Method::PATCH,
        format!("{ns}/configmaps/f"),
        JSON_PATCH,
        &json!([{"op": "add", "path": "/data/a~1b", "value": "c"}, {"op": "move", "from": "/data/k", "path": "/data/l"}, {"op": "copy", "from": "/data", "path": "/metadata/annotations"}, {"op": "test", "path": "/metadata/name", "value": "f"}]),
    );
    add(
        Method::PATCH,
        format!("{DEPLOYMENTS}/d"),
        STRATEGIC_PATCH,
        &json!({"spec": {"template": {"spec": {"$setElementOrder/containers": [{"name": "x"}, {"name": "c"}], "containers": [{"name": "x", "image": "i", "$retainKeys": ["name", "image"]}, {"name": "c", "$patch": "delete"}], "$deleteFromPrimitiveList/x": [1]}}}}),
    );
    add(
        Method::PATCH,
        format!("{DEPLOYMENTS}/d?fieldManager=m&force=true"),
        APPLY_PATCH,
        &deployment,
    );
    add(
        Method::GET,
        format!(
            "{ns}/configmaps?labelSelector=a%20in%20%28b%2Cc%29%2C%21d%2Ce%3E5&fieldSelector=metadata.name%21%3Dx&limit=5&continue=abc"
        ),
        JSON,
        &Value::Null,
    );
    add(
        Method::GET,
        format!(
            "{ns}/pods?watch=1&timeoutSeconds=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=3"
        ),
        JSON,
        &Value::Null,
    );
    add(
        Method::GET,
        format!("{ns}/pods?resourceVersion=1&resourceVersionMatch=Exact&pretty=true&limit=1"),
        JSON,
        &Value::Null,
    );
    add(
        Method::GET,
        "/readyz/ping?verbose&exclude=etcd".into(),
        JSON,
        &Value::Null,
    );
    seeds
}

/// Words that parsers treat as special, to be put where they were not expected.
const SPICE: &[&str] = &[
    "null",
    "true",
    "-1",
    "0",
    "1e400",
    "9223372036854775808",
    "-9223372036854775809",
    "1.5",
    "\"\"",
    "[]",
    "{}",
    "{\"\":{}}",
    "[[[[]]]]",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "\"$patch\"",
    "\"replace\"",
    "..",
    "/",
    "~1",
    "~",
    "%",
    ",",
    ":",
    "\"",
    "{",
    "}",
    "[",
    "]",
    "'",
    "\\",
    "\n",
    "\t",
    "*",
    "&a",
    "!!binary",
    "0x1F",
    ".inf",
    "---",
    "é",
    "💥",
    "1Ei",
    "1e-9",
    "999999999999999999999999n",
];

fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..=random.below(3) {
        let at = |random: &mut Random, n: usize| random.below(n as u64 + 1) as usize;
        let spice = SPICE[random.below(SPICE.len() as u64) as usize].as_bytes();
        match random.below(6) {
            // A byte changed, something put in, a piece cut out, a piece doubled.
            0 if !bytes.is_empty() => {
                let i = at(random, bytes.len() - 1);
                bytes[i] = random.below(256) as u8;
            }
            1 => {
                let i = at(random, bytes.len());
                bytes.splice(i..i, spice.iter().copied());
            }
            2 => {
                let (a, b) = (at(random, bytes.len()), at(random, bytes.len()));
                bytes.drain(a.min(b)..a.max(b).min(a.min(b) + 20));
            }
            3 => {
                let (a, b) = (at(random, bytes.len()), at(random, bytes.len()));
                let piece = bytes[a.min(b)..a.max(b)].to_vec();
                bytes.splice(a..a, piece);
            }
            // A JSON value exchanged for another: the case that gets furthest.
            _ => {
                let colons: Vec<usize> = bytes
                    .iter()
                    .enumerate()
                    .filter(|(_, b)| **b == b':')
                    .map(|(i, _)| i + 1)
                    .collect();
                if !colons.is_empty() {
                    let start = colons[random.below(colons.len() as u64) as usize];
                    let end = bytes[start..]
                        .iter()
                        .position(|b| b",}]".contains(b))
                        .map_or(bytes.len(), |n| start + n);
                    bytes.splice(start..end, spice.iter().copied());
                }
            }
        }
    }
}

/// A query that may hold anything, still a valid URI.
fn mutate_path(random: &mut Random, path: &str) -> String {
    let (head, query) = path.split_once('?').unwrap_or((path, ""));
    if random.below(4) > 0 || query.is_empty() {
        return path.to_string();
    }
    let mut bytes = query.as_bytes().to_vec();
    mutate(random, &mut bytes);
    let encoded: String = bytes
        .iter()
        .map(|b| match b {
            b if b.is_ascii_alphanumeric() || b"&=%.-_!*".contains(b) => char::from(*b).to_string(),
            b => format!("%{b:02X}"),
        })
        .collect();
    format!("{head}?{encoded}")
}

/// Like `Http::ask`, but for a watch that has begun: it may go on for as long as it likes.
async fn ask(http: &Http, method: &Method, path: &str, media: &str, body: &[u8]) -> anyhow::Result<HttpResponse> {
    let headers = [("content-type", media)];
    let (head, mut stream) = http
        .send(method.clone(), path, &headers, Bytes::copy_from_slice(body))
        .await?
        .into_parts();
    let is_watch = path.contains("watch=") && head.status.is_success();
    let body = if is_watch {
        Bytes::new()
    } else {
        (&mut stream).collect().await?.to_bytes()
    };
    Ok(HttpResponse {
        status: head.status,
        headers: head.headers,
        body,
    })
}

/// Some thousand requests, each a valid one with something wrong with it. Same seed, same requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mutated_requests_never_break_the_server() {
    const REQUESTS: usize = 4000;
    let server = Server::with_accounts();
    let http = server.http().await;
    let seeds = seeds();
    let mut random = Random::seeded(1);
    let mut requests: Vec<(Method, String, &str, Vec<u8>)> = vec![];
    for i in 0..REQUESTS {
        let (method, path, media, body) = &seeds[i % seeds.len()];
        let mut bytes = body.clone().into_bytes();
        if i >= seeds.len() {
            mutate(&mut random, &mut bytes);
        }
        requests.push((method.clone(), mutate_path(&mut random, path), media, bytes));
    }
    let mut codes = std::collections::BTreeMap::<u16, usize>::new();
    for batch in requests.chunks(16) {
        let answers = batch.iter().map(|(method, path, media, body)| {
            let http = http.clone();
            async move {
                let asked = ask(&http, method, path, media, body);
                tokio::time::timeout(Duration::from_secs(30), asked).await
            }
        });
        for (answer, (method, path, media, body)) in futures::future::join_all(answers).await.into_iter().zip(batch) {
            let what = || format!("{method} {path} ({media})\n{}", String::from_utf8_lossy(body));
            let answer = answer
                .unwrap_or_else(|_| panic!("no answer: {}", what()))
                .unwrap_or_else(|e| panic!("{e}: {}", what()));
            let code = answer.status.as_u16();
            *codes.entry(code).or_default() += 1;
            // Kubernetes answers some wrong patches with a bare 500. What it never sends is an InternalError.
            assert!(
                code < 500 || answer.json().get("reason").is_none(),
                "{}\n{}",
                what(),
                answer.text()
            );
            if code >= 400 && !path.starts_with("/readyz") {
                let status = answer.json();
                assert!(
                    status["kind"] == "Status" && status["code"] == code && status["message"] != "",
                    "{}\n{status}",
                    what()
                );
            }
        }
    }
    println!("{codes:?}");
    assert!(
        codes.contains_key(&201) && codes.contains_key(&400) && codes.contains_key(&422),
        "{codes:?}"
    );
    // Whatever got in can be read, as JSON, as a table and in protobuf.
    for kind in [
        "configmaps",
        "pods",
        "services",
        "deployments.apps",
        "cronjobs.batch",
        "clusterroles",
        "leases.coordination.k8s.io",
        "resourcequotas",
    ] {
        server.run(&format!(
            "kubectl get {kind} -A > /dev/null && kubectl get {kind} -A -o yaml > /dev/null"
        ));
    }
    assert_eq!(http.get("/readyz").await.text(), "ok");
}

//! Kinds as well-known projects define them: their schemas, rules and versions, and objects that fit them or don't.
//!
//! Each file of `public_kinds` begins with definitions; then come objects, whose first line says what becomes of them:
//! `# accepted`, with JSONPaths and what they then show, or `# refused`, with a part of the refusal.

use std::path::Path;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use orlop_testkit::{Server, eventually};
use serde_json::{Map, Value, json};

use crate::webhook_server::WebhookServer;

/// What the first line of a document says, and the document.
fn documents(text: &str) -> Vec<(&str, &str)> {
    let parts = text.split("\n---\n").map(|part| {
        let (head, rest) = part.split_once('\n').expect("a document has lines");
        (head.strip_prefix("# ").expect("the first line says what it is"), rest)
    });
    parts.collect()
}

fn check(server: &Server, file: &Path) {
    let text = std::fs::read_to_string(file).expect("a file of ours");
    for (head, document) in documents(&text) {
        let (kind, rest) = head.split_once(": ").unwrap_or((head, ""));
        let place = format!("{}: {head}", file.display());
        match kind {
            "definition" => {
                server.run_with("kubectl apply -f -", document);
                server.run("kubectl wait --for=condition=Established crd --all");
            }
            "accepted" => {
                let (paths, shown) = rest.split_once(" = ").expect("what it shows");
                let line = format!("kubectl apply -f - -o jsonpath='{paths}'");
                assert_eq!(server.run_with(&line, document), shown, "{place}");
            }
            "refused" => {
                let refused = server.fails_with("kubectl apply -f -", document);
                assert!(refused.contains(rest), "{place}\n{refused}");
            }
            other => panic!("{place}: nobody knows what {other:?} is"),
        }
    }
}

#[test]
fn definitions_of_well_known_projects_behave() {
    let server = Server::start();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/api/public_kinds");
    let mut files: Vec<_> = std::fs::read_dir(directory)
        .expect("a directory of ours")
        .map(|entry| entry.expect("it can be read").path())
        .collect();
    files.sort();
    assert_eq!(files.len(), 5);
    for file in files {
        check(&server, &file);
    }
    // What a default has put in the place of the status is there when the object is read.
    assert_eq!(server.get("crt web")["status"]["conditions"][0]["status"], "Unknown");
    // Shown in columns that look into lists.
    let ready = r#"kubectl patch crt web --subresource=status --type=merge -p '{"status":{"conditions":[{"type":"Issuing","status":"False"},{"type":"Ready","status":"True"}]}}'"#;
    server.run(ready);
    let row = server.run("kubectl get crt web --no-headers");
    assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["web", "True", "web-tls"]);
    // Deprecated versions say so.
    let deprecated = server.run("kubectl get virtualservices.v1alpha3.mesh.example.net 2>&1");
    assert!(deprecated.contains("Warning: use mesh.example.net/v1"), "{deprecated}");
    server.run("kubectl scale so queue --replicas=4");
    assert_eq!(server.get("so queue")["spec"]["replicas"], 4);
}

/// A definition whose versions say the same in different ways, as those of the Cluster API: durations and numbers of
/// seconds, references with an apiVersion or a group, and a field that only one of them has.
pub(crate) fn machines(hooks: &WebhookServer, storage: &str) -> Value {
    let text = json!({"type": "string"});
    let spec = |name: &str| match name {
        "v1beta1" => json!({
            "clusterName": {"type": "string", "minLength": 1}, "failureDomain": text,
            "nodeDrainTimeout": {"type": "string", "pattern": "^[0-9]+s$"},
            "infrastructureRef": {"type": "object", "properties": {"apiVersion": text, "kind": text, "name": text}},
        }),
        _ => json!({
            "clusterName": {"type": "string", "minLength": 1}, "failureDomain": text,
            "deletion": {"type": "object", "properties": {
                "nodeDrainTimeoutSeconds": {"type": "integer", "format": "int32", "minimum": 0},
            }},
            "readinessGates": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["conditionType"],
                "items": {"type": "object", "required": ["conditionType"], "properties": {"conditionType": text}}},
            "infrastructureRef": {"type": "object", "required": ["apiGroup"],
                "properties": {"apiGroup": text, "kind": text, "name": text}},
        }),
    };
    let version = |name: &str| {
        json!({
            "name": name, "served": true, "storage": name == storage, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "required": ["spec"], "properties": {
                "spec": {"type": "object", "required": ["clusterName"], "properties": spec(name)},
                "status": {"type": "object", "properties": {"phase": text}},
            }}},
        })
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "machines.cluster.example.net"},
        "spec": {
            "group": "cluster.example.net", "scope": "Namespaced", "names": {"plural": "machines", "kind": "Machine"},
            "versions": [version("v1beta1"), version("v1beta2")],
            "conversion": {"strategy": "Webhook", "webhook": {
                "conversionReviewVersions": ["v1"], "clientConfig": hooks.client("convert"),
            }},
        },
    })
}

/// What the older version has no place for is kept in this annotation.
const KEPT: &str = "cluster.example.net/conversion-data";

fn to_newer(spec: &mut Map<String, Value>, annotations: &mut Map<String, Value>) {
    if let Some(timeout) = spec.remove("nodeDrainTimeout") {
        let seconds: i64 = timeout.as_str().unwrap().trim_end_matches('s').parse().unwrap();
        spec.insert("deletion".into(), json!({"nodeDrainTimeoutSeconds": seconds}));
    }
    if let Some(reference) = spec.get_mut("infrastructureRef").and_then(Value::as_object_mut) {
        let version = reference.remove("apiVersion").unwrap_or_default();
        let group = version
            .as_str()
            .and_then(|v| v.split_once('/'))
            .map_or("", |(group, _)| group);
        reference.insert("apiGroup".into(), group.into());
    }
    if let Some(kept) = annotations.remove(KEPT) {
        let kept: Value = serde_json::from_str(kept.as_str().unwrap()).unwrap();
        spec.insert("readinessGates".into(), kept);
    }
}

fn to_older(spec: &mut Map<String, Value>, annotations: &mut Map<String, Value>) {
    if let Some(deletion) = spec.remove("deletion") {
        spec.insert(
            "nodeDrainTimeout".into(),
            format!("{}s", deletion["nodeDrainTimeoutSeconds"]).into(),
        );
    }
    if let Some(reference) = spec.get_mut("infrastructureRef").and_then(Value::as_object_mut) {
        let group = reference.remove("apiGroup").unwrap_or_default();
        reference.insert(
            "apiVersion".into(),
            format!("{}/v1", group.as_str().unwrap_or("")).into(),
        );
    }
    if let Some(gates) = spec.remove("readinessGates") {
        annotations.insert(KEPT.into(), gates.to_string().into());
    }
}

pub(crate) async fn convert(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    let review: Value = serde_json::from_slice(&body).unwrap();
    let wanted = review["request"]["desiredAPIVersion"].as_str().unwrap();
    let convert = |object: &Value| {
        let mut object = object.clone();
        object["apiVersion"] = wanted.into();
        let mut annotations = match object["metadata"]["annotations"].take() {
            Value::Object(annotations) => annotations,
            _ => Map::new(),
        };
        let spec = object["spec"].as_object_mut().unwrap();
        match wanted.ends_with("v1beta2") {
            true => to_newer(spec, &mut annotations),
            false => to_older(spec, &mut annotations),
        }
        object["metadata"]["annotations"] = Value::Object(annotations);
        object
    };
    let converted: Vec<Value> = review["request"]["objects"]
        .as_array()
        .unwrap()
        .iter()
        .map(convert)
        .collect();
    let answer = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "response": {"uid": review["request"]["uid"], "result": {"status": "Success"}, "convertedObjects": converted},
    });
    Ok(Response::new(Full::from(answer.to_string())))
}

const OLD: &str = "machines.v1beta1.cluster.example.net";
const NEW: &str = "machines.v1beta2.cluster.example.net";

pub(crate) fn machine(version: &str, name: &str, spec: Value) -> String {
    json!({"apiVersion": format!("cluster.example.net/{version}"), "kind": "Machine", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

/// From the first version to the second, with objects of both, as a project goes that way.
#[test]
fn versions_are_migrated_by_a_webhook() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = Server::start();
    let hooks = runtime.block_on(WebhookServer::start(&[], convert));
    let define = |storage: &str| {
        server.run_with("kubectl apply -f -", &machines(&hooks, storage).to_string());
        server.run("kubectl wait --for=condition=Established crd/machines.cluster.example.net");
    };
    define("v1beta1");
    let reference = json!({"apiVersion": "infra.example.net/v1", "kind": "Disk", "name": "d"});
    let old = json!({"clusterName": "c", "nodeDrainTimeout": "30s", "infrastructureRef": reference});
    server.run_with("kubectl create -f -", &machine("v1beta1", "a", old.clone()));
    let reference = json!({"apiGroup": "infra.example.net", "kind": "Disk", "name": "d"});
    let new = json!({"clusterName": "c", "deletion": {"nodeDrainTimeoutSeconds": 30}, "infrastructureRef": reference});
    assert_eq!(server.get(&format!("{NEW} a"))["spec"], new);

    // What the stored version has no place for survives in an annotation.
    let mut gated = new.clone();
    gated["readinessGates"] = json!([{"conditionType": "One"}]);
    server.run_with("kubectl create -f -", &machine("v1beta2", "b", gated.clone()));
    assert_eq!(server.get(&format!("{NEW} b"))["spec"], gated);
    let stored = server.get(&format!("{OLD} b"));
    assert_eq!(stored["metadata"]["annotations"][KEPT], r#"[{"conditionType":"One"}]"#);
    assert_eq!(stored["spec"], old);

    // Each version is validated by its own schema.
    let mut bad = old.clone();
    bad["nodeDrainTimeout"] = "30m".into();
    let refused = server.fails_with("kubectl create -f -", &machine("v1beta1", "x", bad));
    assert!(
        refused.contains("spec.nodeDrainTimeout in body should match '^[0-9]+s$'"),
        "{refused}"
    );
    let mut bad = new.clone();
    bad["deletion"]["nodeDrainTimeoutSeconds"] = (-1).into();
    let refused = server.fails_with("kubectl create -f -", &machine("v1beta2", "x", bad));
    assert!(
        refused.contains("spec.deletion.nodeDrainTimeoutSeconds in body should be greater than or equal to 0"),
        "{refused}"
    );

    // Two managers apply, each in its version; each keeps what is its own.
    let apply = |manager: &str, version: &str, spec: Value| {
        let line = format!("kubectl apply --server-side --field-manager={manager} -f -");
        server.run_with(&line, &machine(version, "s", spec));
    };
    apply(
        "older",
        "v1beta1",
        json!({"clusterName": "c", "nodeDrainTimeout": "5s"}),
    );
    apply(
        "newer",
        "v1beta2",
        json!({"clusterName": "c", "readinessGates": [{"conditionType": "Two"}]}),
    );
    apply(
        "newer",
        "v1beta2",
        json!({"clusterName": "c", "failureDomain": "f", "readinessGates": [{"conditionType": "Two"}]}),
    );
    let applied = json!({"clusterName": "c", "failureDomain": "f", "deletion": {"nodeDrainTimeoutSeconds": 5},
        "readinessGates": [{"conditionType": "Two"}]});
    assert_eq!(server.get(&format!("{NEW} s"))["spec"], applied);
    server.run(&format!(
        r#"kubectl patch {OLD} s --subresource=status --type=merge -p '{{"status":{{"phase":"Up"}}}}'"#
    ));
    assert_eq!(server.get(&format!("{NEW} s"))["status"], json!({"phase": "Up"}));
    assert_eq!(server.get(&format!("{NEW} s"))["spec"], applied);

    // The storage version moves on; objects are rewritten; the older version ends.
    define("v1beta2");
    let all = |resource: &str| {
        server.run(&format!(
            "kubectl get {resource} -o jsonpath='{{.items[*].metadata.name}}'"
        ))
    };
    assert_eq!((all(OLD).as_str(), all(NEW).as_str()), ("a b s", "a b s"));
    let definition = "crd machines.cluster.example.net";
    assert_eq!(
        server.get(definition)["status"]["storedVersions"],
        json!(["v1beta1", "v1beta2"])
    );
    server.run(&format!("kubectl get {NEW} -o json | kubectl replace -f -"));
    server.run(&format!(r#"kubectl patch {definition} --subresource=status --type=merge -p '{{"status":{{"storedVersions":["v1beta2"]}}}}'"#));
    let mut last = machines(&hooks, "v1beta2");
    last["spec"]["versions"].as_array_mut().unwrap().remove(0);
    last["spec"]["conversion"] = json!({"strategy": "None"});
    server.run_with("kubectl replace -f -", &{
        last["metadata"]["resourceVersion"] = server.get(definition)["metadata"]["resourceVersion"].clone();
        last.to_string()
    });
    eventually("the older version is gone", || {
        (!server.sh(&format!("kubectl get {OLD}")).succeeded()).then_some(())
    });
    let machine = |name: &str| server.get(&format!("machines {name}"))["spec"].clone();
    assert_eq!((machine("a"), machine("b"), machine("s")), (new, gated, applied));
}

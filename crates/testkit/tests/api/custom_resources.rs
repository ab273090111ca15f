//! Custom kinds: from a definition to objects that kubectl treats like any other.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use orlop_testkit::{Http, Server, eventually, until};
use serde_json::{Value, json};

use crate::webhook_server::WebhookServer;

/// The definition that Kubernetes' documentation begins with, and what else a version can say.
const CRON_TABS: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: crontabs.stable.example.com}
spec:
  group: stable.example.com
  scope: Namespaced
  names: {plural: crontabs, singular: crontab, kind: CronTab, shortNames: [ct], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: .status.selector}
    additionalPrinterColumns:
    - {name: Spec, type: string, description: The cron spec, jsonPath: .spec.cronSpec}
    - {name: Replicas, type: integer, jsonPath: .spec.replicas}
    - {name: Age, type: date, jsonPath: .metadata.creationTimestamp}
    selectableFields: [{jsonPath: .spec.image}]
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          spec:
            type: object
            description: What runs, and when.
            required: [cronSpec]
            properties:
              cronSpec: {type: string, pattern: '^(\d+|\*)(/\d+)?(\s+(\d+|\*)(/\d+)?){4}$', description: When it runs.}
              image: {type: string}
              replicas: {type: integer, minimum: 1, maximum: 10, default: 1}
              ports:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items:
                  type: object
                  required: [name]
                  properties: {name: {type: string}, port: {x-kubernetes-int-or-string: true}}
              any: {type: object, x-kubernetes-preserve-unknown-fields: true}
          status:
            type: object
            properties: {replicas: {type: integer}, selector: {type: string}}
"#;

fn cron_tab(name: &str, spec: Value) -> String {
    json!({
        "apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": {"name": name}, "spec": spec,
    })
    .to_string()
}

fn define(server: &Server, definition: &str) {
    server.run_with("kubectl apply -f -", definition);
    server.run("kubectl wait --for=condition=Established --all crd");
}

#[test]
fn a_definition_makes_a_kind_like_any_other() {
    let server = Server::at_work();
    define(&server, CRON_TABS);
    // Found by all its names, and explained.
    let resources = server.run("kubectl api-resources --api-group=stable.example.com");
    assert!(
        resources.lines().any(|l| l.split_whitespace().eq([
            "crontabs",
            "ct",
            "stable.example.com/v1",
            "true",
            "CronTab"
        ])),
        "{resources}"
    );
    let explained = server.run("kubectl explain ct.spec");
    assert!(
        explained.contains("What runs, and when.") && explained.contains("cronSpec\t<string> -required-"),
        "{explained}"
    );

    // Created with defaults, shown in its columns.
    let spec = json!({"cronSpec": "* * * * */5", "image": "a", "unknown": 1, "any": {"kept": [1, "x"]}});
    let strict = server.fails_with("kubectl create -f -", &cron_tab("a", spec.clone()));
    assert!(
        strict.contains("strict decoding error: unknown field \"spec.unknown\""),
        "{strict}"
    );
    server.run_with("kubectl create --validate=false -f -", &cron_tab("a", spec));
    let object = server.get("crontab a");
    assert_eq!(
        object["spec"],
        json!({"cronSpec": "* * * * */5", "image": "a", "replicas": 1, "any": {"kept": [1, "x"]}})
    );
    assert_eq!(object["metadata"]["generation"], 1);
    let table = server.run("kubectl get ct");
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|l| l.split("   ").map(str::trim).filter(|c| !c.is_empty()).collect())
        .collect();
    assert_eq!(rows[0], ["NAME", "SPEC", "REPLICAS", "AGE"]);
    assert_eq!(rows[1][..3], ["a", "* * * * */5", "1"]);
    assert!(server.run("kubectl get all").contains("crontab.stable.example.com/a"));

    // Refused in Kubernetes' words.
    for (spec, why) in [
        (json!({}), "spec.cronSpec: Required value"),
        (
            json!({"cronSpec": "never"}),
            r#"spec.cronSpec: Invalid value: "never": spec.cronSpec in body should match '^(\d+|\*)(/\d+)?(\s+(\d+|\*)(/\d+)?){4}$'"#,
        ),
        (
            json!({"cronSpec": "* * * * *", "replicas": 11}),
            "spec.replicas: Invalid value: 11: spec.replicas in body should be less than or equal to 10",
        ),
        (
            json!({"cronSpec": "* * * * *", "ports": [{"name": "a"}, {"name": "a"}]}),
            r#"spec.ports[1]: Duplicate value: {"name":"a"}"#,
        ),
    ] {
        let refused = server.fails_with("kubectl create --validate=false -f -", &cron_tab("bad", spec));
        assert!(
            refused.contains("The CronTab \"bad\" is invalid") && refused.contains(why),
            "{refused}"
        );
    }

    // Selected by label, field and name; patched in three ways, not in the fourth.
    server.run_with(
        "kubectl create -f -",
        &cron_tab("b", json!({"cronSpec": "1 * * * *", "image": "b"})),
    );
    server.run("kubectl label ct b tier=one");
    assert_eq!(
        server.run("kubectl get ct -l tier=one -o name"),
        "crontab.stable.example.com/b\n"
    );
    assert_eq!(
        server.run("kubectl get ct --field-selector spec.image=a -o name"),
        "crontab.stable.example.com/a\n"
    );
    server.run(r#"kubectl patch ct a --type=merge -p '{"spec":{"image":"c"}}'"#);
    server.run(r#"kubectl patch ct a --type=json -p '[{"op":"replace","path":"/spec/replicas","value":3}]'"#);
    let strategic = server.fails(r#"kubectl patch ct a --type=strategic -p '{"spec":{"image":"d"}}'"#);
    assert!(strategic.contains("application/apply-patch+yaml"), "{strategic}");
    let object = server.get("ct a");
    assert_eq!(
        (&object["spec"]["image"], &object["metadata"]["generation"]),
        (&json!("c"), &json!(3))
    );

    // Server-side apply merges lists by their keys.
    let ports = |manager: &str, name: &str, port: Value| {
        let spec = json!({"cronSpec": "* * * * *", "ports": [{"name": name, "port": port}]});
        let line = format!("kubectl apply --server-side --force-conflicts --field-manager={manager} -f -");
        server.run_with(&line, &cron_tab("c", spec));
    };
    ports("one", "http", json!(80));
    ports("two", "web", json!("web"));
    assert_eq!(
        server.get("ct c")["spec"]["ports"],
        json!([{"name": "http", "port": 80}, {"name": "web", "port": "web"}])
    );

    // Status and scale are apart.
    server.run(r#"kubectl patch ct a --subresource=status --type=merge -p '{"spec":{"image":"no"},"status":{"replicas":2,"selector":"x=y"}}'"#);
    let object = server.get("ct a");
    assert_eq!(
        (&object["spec"]["image"], &object["status"]["replicas"]),
        (&json!("c"), &json!(2))
    );
    assert_eq!(object["metadata"]["generation"], 3);
    server.run("kubectl scale ct a --replicas=5");
    let scale: Value = serde_json::from_str(
        &server.run("kubectl get --raw /apis/stable.example.com/v1/namespaces/default/crontabs/a/scale"),
    )
    .unwrap();
    assert_eq!(
        (&scale["spec"]["replicas"], &scale["status"]),
        (&json!(5), &json!({"replicas": 2, "selector": "x=y"}))
    );
    let refused = server.fails("kubectl scale ct a --replicas=50");
    assert!(refused.contains("should be less than or equal to 10"), "{refused}");

    // Rights, quotas and owners know it.
    server.run("kubectl create quota q --hard=count/crontabs.stable.example.com=3");
    let full = server.fails_with("kubectl create -f -", &cron_tab("d", json!({"cronSpec": "1 * * * *"})));
    assert!(full.contains("exceeded quota: q, requested: count/crontabs.stable.example.com=1, used: count/crontabs.stable.example.com=3"), "{full}");
    assert_eq!(
        server
            .run("kubectl auth can-i get crontabs --as=somebody || true")
            .trim(),
        "no"
    );
    let uid = server.get("ct a")["metadata"]["uid"].clone();
    let owned = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "owned", "ownerReferences": [{
            "apiVersion": "stable.example.com/v1", "kind": "CronTab", "name": "a", "uid": uid,
        }]},
    });
    server.run_with("kubectl create -f -", &owned.to_string());
    server.run("kubectl delete ct a");
    eventually("what it owned goes with it", || {
        (!server.sh("kubectl get cm owned").succeeded()).then_some(())
    });
}

#[test]
fn objects_go_with_their_definition_and_stay_through_a_restart() {
    let mut server = Server::start();
    define(&server, CRON_TABS);
    server.run_with("kubectl create -f -", &cron_tab("a", json!({"cronSpec": "* * * * *"})));
    server.kill();
    server.start_again();
    assert_eq!(server.get("ct a")["spec"]["replicas"], 1);

    // A default that comes later is filled in when the object is read.
    server.run(
        r#"kubectl patch crd crontabs.stable.example.com --type=json -p '[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/image/default","value":"late"}]'"#,
    );
    eventually("the new default", || {
        (server.get("ct a")["spec"]["image"] == "late").then_some(())
    });
    server.kill();
    server.start_again();
    assert_eq!(server.get("ct a")["spec"]["image"], "late");

    // What has a finalizer holds the definition back, and nothing new comes.
    server.run(r#"kubectl patch ct a --type=merge -p '{"metadata":{"finalizers":["example.com/hold"]}}'"#);
    server.run("kubectl delete crd crontabs.stable.example.com --wait=false");
    let refused = eventually("it is being deleted", || {
        let tried = server.sh_with("kubectl create -f -", &cron_tab("b", json!({"cronSpec": "* * * * *"})));
        (!tried.succeeded()).then(|| tried.fails())
    });
    assert!(
        refused.contains("create not allowed while custom resource definition is terminating"),
        "{refused}"
    );
    server.run(r#"kubectl patch ct a --type=merge -p '{"metadata":{"finalizers":null}}'"#);
    server.run("kubectl wait --for=delete crd/crontabs.stable.example.com");
    let gone = server.fails("kubectl get --raw /apis/stable.example.com/v1/crontabs");
    assert!(gone.contains("could not find the requested resource"), "{gone}");

    // Made again, it knows nothing of before.
    define(&server, CRON_TABS);
    assert_eq!(server.run("kubectl get ct -o name"), "");
}

#[test]
fn versions_without_a_webhook_differ_in_their_name_and_schema() {
    let server = Server::start();
    let two = CRON_TABS.replace(
        "  versions:\n",
        "  versions:\n  - name: v2\n    served: true\n    storage: false\n    selectableFields: [{jsonPath: .spec.zone}]\n    schema:\n      openAPIV3Schema: {type: object, properties: \
         {spec: {type: object, properties: {cronSpec: {type: string}, zone: {type: string, default: utc}}}}}\n",
    );
    define(&server, &two);
    server.run_with("kubectl create -f -", &cron_tab("a", json!({"cronSpec": "* * * * *"})));
    let get = |version: &str| -> Value {
        let path = format!("/apis/stable.example.com/{version}/namespaces/default/crontabs/a");
        serde_json::from_str(&server.run(&format!("kubectl get --raw {path}"))).unwrap()
    };
    let (v1, v2) = (get("v1"), get("v2"));
    assert_eq!(v1["apiVersion"], "stable.example.com/v1");
    assert_eq!(v2["apiVersion"], "stable.example.com/v2");
    assert_eq!(v1["metadata"]["uid"], v2["metadata"]["uid"]);
    // The other version's defaults, and not its unknown fields.
    assert_eq!(v2["spec"], json!({"cronSpec": "* * * * *", "zone": "utc"}));
    // Selectors look at the version that is asked for.
    let selected = |zone: &str| {
        server.run(&format!(
            "kubectl get crontabs.v2.stable.example.com --field-selector spec.zone={zone} -o name"
        ))
    };
    assert_eq!(selected("utc"), "crontab.stable.example.com/a\n");
    assert_eq!(selected("cet"), "");
    // The newest version is preferred.
    assert!(
        server
            .run("kubectl get ct -o jsonpath={.items[0].apiVersion}")
            .ends_with("/v2")
    );
    // Stored in the other version, objects are still there.
    let swapped = two.replacen("storage: false", "storage: true", 1).replacen(
        "- name: v1\n    served: true\n    storage: true",
        "- name: v1\n    served: true\n    storage: false",
        1,
    );
    define(&server, &swapped);
    assert_eq!(
        server.get("crd crontabs.stable.example.com")["status"]["storedVersions"],
        json!(["v1", "v2"])
    );
    server.run("kubectl annotate ct a touched=yes");
    assert_eq!(get("v1")["metadata"]["annotations"]["touched"], "yes");
    assert_eq!(get("v1")["spec"]["cronSpec"], "* * * * *");
}

#[test]
fn definitions_are_refused_with_all_that_is_wrong() {
    let server = Server::start();
    for (from, to, why) in [
        (
            "name: crontabs.stable",
            "name: tabs.stable",
            "metadata.name: Invalid value: \"tabs.stable.example.com\": must be spec.names.plural+\".\"+spec.group",
        ),
        (
            "type: object\n        required: [spec]",
            "required: [spec]",
            "openAPIV3Schema.type: Required value: must not be empty at the root",
        ),
        ("default: 1", "default: 11", "should be less than or equal to 10"),
        (
            "x-kubernetes-list-map-keys: [name]",
            "x-kubernetes-list-map-keys: [nobody]",
            "x-kubernetes-list-map-keys",
        ),
        (
            "jsonPath: .spec.cronSpec",
            "jsonPath: spec.cronSpec",
            "additionalPrinterColumns[0].JSONPath",
        ),
        (
            "storage: true",
            "storage: false",
            "must have exactly one version marked as storage version",
        ),
        (
            "specReplicasPath: .spec",
            "specReplicasPath: .status",
            "should be a json path under .spec",
        ),
    ] {
        let changed = CRON_TABS.replacen(from, to, 1);
        assert_ne!(changed, CRON_TABS, "{from}");
        let refused = server.fails_with("kubectl create -f -", &changed);
        assert!(refused.contains(why), "{to}: {refused}");
    }
}

#[test]
fn watchers_see_custom_objects_in_their_version() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = Server::start();
    define(&server, CRON_TABS);
    runtime.block_on(async {
        let http = server.http().await;
        let path = "/apis/stable.example.com/v1/namespaces/default/crontabs";
        let mut watch = http
            .stream(
                &format!(
                    "{path}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
                ),
                &[],
            )
            .await;
        let first = watch.line().await.unwrap();
        assert_eq!(first["type"], "BOOKMARK");
        let object: Value = serde_json::from_str(&cron_tab("a", json!({"cronSpec": "* * * * *"}))).unwrap();
        let created = http.post(path, &object).await.expect(201);
        let added = watch.line().await.unwrap();
        assert_eq!((&added["type"], &added["object"]), (&json!("ADDED"), &created));
        http.delete(&format!("{path}/a")).await.expect(200);
        let deleted = watch.line().await.unwrap();
        assert_eq!(
            (&deleted["type"], &deleted["object"]["kind"]),
            (&json!("DELETED"), &json!("CronTab"))
        );
    });
}

/// Between `hostPort: a:1` (v1) and `host: a, port: "1"` (v2). The path says which lies it tells.
async fn convert(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let path = request.uri().path().to_string();
    let review: Value = serde_json::from_slice(&request.into_body().collect().await?.to_bytes()).unwrap();
    let (request, wanted) = (
        &review["request"],
        review["request"]["desiredAPIVersion"].as_str().unwrap(),
    );
    let objects = request["objects"].as_array().unwrap().iter().map(|object| {
        let mut object = object.clone();
        object["apiVersion"] = wanted.into();
        let members = object.as_object_mut().unwrap();
        match members.remove("hostPort") {
            Some(text) => {
                let (host, port) = text.as_str().unwrap().split_once(':').unwrap();
                members.insert("host".into(), host.into());
                members.insert("port".into(), port.into());
            }
            None => {
                let part = |v: Option<Value>| v.and_then(|v| v.as_str().map(String::from)).unwrap_or_default();
                let (host, port) = (part(members.remove("host")), part(members.remove("port")));
                members.insert("hostPort".into(), format!("{host}:{port}").into());
            }
        }
        if path == "/renames" {
            object["metadata"]["name"] = "other".into();
        }
        object
    });
    let mut response = json!({
        "uid": request["uid"], "result": {"status": "Success"}, "convertedObjects": objects.collect::<Vec<Value>>(),
    });
    match path.as_str() {
        "/forgets" => response["convertedObjects"] = json!([]),
        "/refuses" => response["result"] = json!({"status": "Failure", "message": "not today"}),
        _ => {}
    }
    let review = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response});
    Ok(Response::new(Full::from(review.to_string())))
}

#[test]
fn webhooks_convert_between_versions() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = Server::start();
    let hooks = runtime.block_on(WebhookServer::start(&[], convert));
    let version = |name: &str, storage: bool, fields: &[&str]| {
        let text = |field: &&str| (field.to_string(), json!({"type": "string"}));
        let properties: Value = fields.iter().map(text).collect();
        let selectable: Vec<Value> = fields.iter().map(|f| json!({"jsonPath": format!(".{f}")})).collect();
        json!({
            "name": name, "served": true, "storage": storage, "selectableFields": selectable,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
        })
    };
    let define = |path: &str| {
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "hosts.stable.example.com"},
            "spec": {
                "group": "stable.example.com", "scope": "Namespaced", "names": {"plural": "hosts", "kind": "Host"},
                "versions": [version("v1", true, &["hostPort"]), version("v2", false, &["host", "port"])],
                "conversion": {"strategy": "Webhook", "webhook": {
                    "conversionReviewVersions": ["v1"], "clientConfig": hooks.client(path),
                }},
            },
        });
        server.run_with("kubectl apply -f -", &definition.to_string());
        server.run("kubectl wait --for=condition=Established crd/hosts.stable.example.com");
    };
    define("right");
    let host = |version: &str, name: &str, rest: Value| {
        let mut object = json!({
            "apiVersion": format!("stable.example.com/{version}"), "kind": "Host", "metadata": {"name": name},
        });
        object
            .as_object_mut()
            .unwrap()
            .extend(rest.as_object().unwrap().clone());
        object.to_string()
    };
    server.run_with("kubectl create -f -", &host("v1", "a", json!({"hostPort": "one:80"})));
    server.run_with(
        "kubectl create -f -",
        &host("v2", "b", json!({"host": "two", "port": "81"})),
    );
    let list = |version: &str| -> Value {
        let path = format!("/apis/stable.example.com/{version}/namespaces/default/hosts");
        serde_json::from_str(&server.run(&format!("kubectl get --raw {path}"))).unwrap()
    };
    let shown = |version: &str, field: &str| -> Vec<Value> {
        let list = list(version);
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item[field].clone())
            .collect()
    };
    assert_eq!(shown("v1", "hostPort"), ["one:80", "two:81"]);
    assert_eq!(shown("v2", "host"), ["one", "two"]);
    assert_eq!(shown("v2", "hostPort"), [Value::Null, Value::Null]);
    // Selectors see what clients see.
    let selected = server.run("kubectl get hosts.v2.stable.example.com --field-selector port=80 -o name");
    assert_eq!(selected, "host.stable.example.com/a\n");
    server.run(r#"kubectl patch hosts.v2.stable.example.com a --type=merge -p '{"port":"90"}'"#);
    assert_eq!(shown("v1", "hostPort"), ["one:90", "two:81"]);

    // Webhooks that lie change nothing, and what needs no conversion goes on.
    for (path, why) in [
        ("renames", "must have the same name: a != other"),
        ("forgets", "returned 0 objects, expected 2"),
        ("refuses", "failed: not today"),
    ] {
        define(path);
        let refused = eventually("the webhook has changed", || {
            let tried = server.sh("kubectl get --raw /apis/stable.example.com/v2/namespaces/default/hosts");
            (!tried.succeeded()).then(|| tried.fails())
        });
        assert!(refused.contains(why), "{refused}");
        assert_eq!(shown("v1", "hostPort"), ["one:90", "two:81"]);
    }
    define("right");
    eventually("it converts again", || {
        let tried = server.sh("kubectl get --raw /apis/stable.example.com/v2/namespaces/default/hosts");
        tried.succeeded().then_some(())
    });
    assert_eq!(shown("v2", "port"), ["90", "81"]);
}

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const GADGETS: &str = "/apis/busy.example.com/v1/namespaces/default/gadgets";

/// A definition whose objects have as many fields, each with a default.
fn gadgets(versions: &[String], fields: usize) -> Value {
    let field = |i: usize| {
        (
            format!("field{i}"),
            json!({"type": "string", "default": format!("default {i}")}),
        )
    };
    let fields: Value = (0..fields).map(field).collect();
    let version = |(i, name): (usize, &String)| {
        json!({
            "name": name, "served": true, "storage": i == 0,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {
                "type": "object", "properties": fields, "default": {},
            }}}},
        })
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.busy.example.com"},
        "spec": {
            "group": "busy.example.com", "scope": "Namespaced", "names": {"plural": "gadgets", "kind": "Gadget"},
            "versions": versions.iter().enumerate().map(version).collect::<Vec<_>>(),
        },
    })
}

async fn define_gadgets(http: &Http, versions: &[String], fields: usize) {
    http.post(DEFINITIONS, &gadgets(versions, fields)).await.expect(201);
    until("the kind is served", async || {
        (http.get(GADGETS).await.status == 200).then_some(())
    })
    .await;
}

async fn redefine_gadgets(http: &Http, versions: &[String], fields: usize) {
    let path = format!("{DEFINITIONS}/gadgets.busy.example.com");
    // Its conditions may be written meanwhile.
    until("the definition is changed", async || {
        let mut definition = gadgets(versions, fields);
        definition["metadata"]["resourceVersion"] =
            http.get(&path).await.expect(200)["metadata"]["resourceVersion"].clone();
        let answer = http.put(&path, &definition).await;
        assert!([200, 409].contains(&answer.status.as_u16()), "{}", answer.text());
        (answer.status == 200).then_some(())
    })
    .await;
}

async fn undefine_gadgets(http: &Http) {
    let path = format!("{DEFINITIONS}/gadgets.busy.example.com");
    http.delete(&path).await.expect(200);
    until("the definition is gone", async || {
        (http.get(&path).await.status == 404).then_some(())
    })
    .await;
}

/// Creates, reads, changes and deletes objects until told to stop; collects answers that make no sense.
async fn use_gadgets(http: Http, number: usize, stop: Arc<AtomicBool>) -> (usize, BTreeSet<String>) {
    let (mut done, mut odd) = (0, BTreeSet::new());
    let merge = [("content-type", "application/merge-patch+json")];
    while !stop.load(Ordering::Relaxed) {
        let name = format!("g{number}-{done}");
        let object = json!({"apiVersion": "busy.example.com/v1", "kind": "Gadget", "metadata": {"name": name}, "spec": {"field0": "own"}});
        let path = format!("{GADGETS}/{name}");
        for answer in [
            http.post(GADGETS, &object).await,
            http.get(&path).await,
            http.ask(Method::PATCH, &path, &merge, r#"{"spec":{"field1":"changed"}}"#)
                .await
                .unwrap(),
            http.get(&format!("{GADGETS}?limit=10")).await,
            http.delete(&path).await,
        ] {
            // While the definition is being deleted nothing is created; without it there is no such path.
            if ![200, 201, 404, 405, 409].contains(&answer.status.as_u16()) {
                odd.insert(answer.text());
            }
        }
        done += 1;
    }
    (done, odd)
}

/// A definition that changes, goes and comes back while its objects are used: nothing fails but what must.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn definitions_change_under_load() {
    let server = Server::with_accounts();
    let http = server.http().await;
    let v1 = ["v1".to_string()];
    define_gadgets(&http, &v1, 2).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut users = vec![];
    for number in 0..3 {
        users.push(tokio::spawn(use_gadgets(server.http().await, number, stop.clone())));
    }
    for fields in 3..60 {
        redefine_gadgets(&http, &v1, fields).await;
    }
    for fields in 1..15 {
        undefine_gadgets(&http).await;
        define_gadgets(&http, &v1, fields).await;
    }
    stop.store(true, Ordering::Relaxed);
    for user in users {
        let (done, odd) = user.await.unwrap();
        assert!(done > 10 && odd.is_empty(), "{done} {odd:?}");
    }
    // What is served is what was defined last.
    undefine_gadgets(&http).await;
    define_gadgets(&http, &v1, 2).await;
    assert_eq!(http.get(GADGETS).await.expect(200)["items"], json!([]));
    let object = json!({"apiVersion": "busy.example.com/v1", "kind": "Gadget", "metadata": {"name": "last"}, "spec": {"field14": "x"}});
    let made = http.post(GADGETS, &object).await.expect(201);
    assert_eq!(made["spec"], json!({"field0": "default 0", "field1": "default 1"}));
}

/// A thousand versions of one kind at the same time, and a thousand definitions of it one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_versions_do_no_harm() {
    let server = Server::with_accounts();
    let http = server.http().await;
    let names: Vec<String> = (1..=1000).map(|n| format!("v{n}")).collect();
    define_gadgets(&http, &names, 2).await;
    let object = json!({"apiVersion": "busy.example.com/v777", "kind": "Gadget", "metadata": {"name": "g"}});
    http.post(&GADGETS.replace("v1", "v777"), &object).await.expect(201);
    let seen = http
        .get(&format!("{}/g", GADGETS.replace("v1", "v1000")))
        .await
        .expect(200);
    assert_eq!(
        (&seen["apiVersion"], &seen["spec"]["field1"]),
        (&json!("busy.example.com/v1000"), &json!("default 1"))
    );
    let group = http.get("/apis/busy.example.com").await.expect(200);
    assert_eq!(group["versions"].as_array().unwrap().len(), 1000);
    http.get("/openapi/v3/apis/busy.example.com/v500").await.expect(200);
    undefine_gadgets(&http).await;
    until("the group is gone", async || {
        (http.get("/apis/busy.example.com").await.status == 404).then_some(())
    })
    .await;

    define_gadgets(&http, &names[..1], 1).await;
    for n in 0..1000 {
        redefine_gadgets(&http, &names[..1], 1 + n % 7).await;
    }
    http.post(
        GADGETS,
        &json!({"apiVersion": "busy.example.com/v1", "kind": "Gadget", "metadata": {"name": "g"}}),
    )
    .await
    .expect(201);
    // The last schema, 999 % 7 + 1 fields.
    until("the last schema is served", async || {
        let seen = http.get(&format!("{GADGETS}/g")).await.expect(200);
        (seen["spec"].as_object().unwrap().len() == 6).then_some(())
    })
    .await;
}

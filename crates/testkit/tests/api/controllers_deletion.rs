//! Deleting as kubectl does it, with the controllers at work: owners and what they own, and whole namespaces.

use std::fmt::Write;

use orlop_testkit::{DEPLOYMENT, Launch, Server, eventually};
use serde_json::{Value, json};

/// A cluster whose pods seem to run.
fn cluster() -> Server {
    Launch::up().arg("--simulate=3").start()
}

fn count(server: &Server, what: &str) -> usize {
    server.run(&format!("kubectl get {what} -o name")).lines().count()
}

/// A deployment whose pods run.
fn deploy(server: &Server) {
    server.run_with("kubectl apply -f -", DEPLOYMENT);
    server.run("kubectl rollout status deployment/web --timeout=60s");
    assert_eq!((count(server, "rs"), count(server, "pods -l app=web")), (1, 2));
}

fn owners(server: &Server, what: &str) -> Vec<Value> {
    let list = server.get(what);
    let items = list["items"].as_array().expect("a list").iter();
    items.map(|item| item["metadata"]["ownerReferences"].clone()).collect()
}

#[test]
fn in_the_background() {
    let server = cluster();
    deploy(&server);
    let said = server.run("kubectl delete deployment web --cascade=background");
    assert!(said.starts_with("deployment.apps \"web\" deleted"), "{said}");
    eventually("its set and its pods go, too", || {
        (count(&server, "rs,pods") == 0).then_some(())
    });
}

#[test]
fn in_the_foreground() {
    let server = cluster();
    deploy(&server);
    // kubectl waits for the deployment, and the deployment for what it owns.
    server.run("kubectl delete deployment web --cascade=foreground --timeout=60s");
    assert_eq!(count(&server, "deployments,rs"), 0);
    assert_eq!(count(&server, "pods"), 0);
}

#[test]
fn orphans() {
    let server = cluster();
    deploy(&server);
    let pods = pod_uids(&server);
    server.run("kubectl delete deployment web --cascade=orphan");
    assert_eq!((count(&server, "deployments"), count(&server, "rs")), (0, 1));
    assert_eq!(owners(&server, "rs"), [Value::Null]);
    server.run("kubectl delete rs -l app=web --cascade=orphan");
    assert_eq!(
        (count(&server, "rs"), owners(&server, "pods")),
        (0, vec![Value::Null, Value::Null])
    );
    assert_eq!(pod_uids(&server), pods);
    // A deployment like the first takes in what is left.
    deploy(&server);
    assert_eq!(pod_uids(&server), pods);
}

fn pod_uids(server: &Server) -> Vec<String> {
    let text = server.run("kubectl get pods -l app=web -o jsonpath='{.items[*].metadata.uid}'");
    let mut uids: Vec<String> = text.split_whitespace().map(String::from).collect();
    uids.sort();
    uids
}

fn config_map(name: &str, namespace: &str, owner: Option<(&str, &str)>) -> Value {
    let owner = owner.map(|(name, uid)| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid}));
    let owners: Vec<Value> = owner.into_iter().collect();
    json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "ownerReferences": owners}})
}

fn uid(server: &Server, what: &str) -> String {
    server.run(&format!("kubectl get {what} -o jsonpath={{.metadata.uid}}"))
}

#[test]
fn owners_that_are_not_there() {
    let server = cluster();
    let create = |object: &Value| server.run_with("kubectl create -f -", &object.to_string());
    server.run("kubectl create namespace other");
    create(&config_map("owner", "default", None));
    let owner = uid(&server, "configmap owner");
    create(&config_map("right", "default", Some(("owner", &owner))));
    create(&config_map(
        "nobody",
        "default",
        Some(("gone", "4d2c1f9e-0000-4000-8000-000000000000")),
    ));
    create(&config_map("elsewhere", "other", Some(("owner", &owner))));
    eventually("what has no owner goes", || {
        let gone = |name: &str| server.sh(&format!("kubectl get configmap {name}")).code != Some(0);
        (gone("nobody") && gone("-n other elsewhere")).then_some(())
    });
    let told = eventually("an event says why", || {
        let line = "kubectl get events -n other --field-selector reason=OwnerRefInvalidNamespace -o jsonpath='{.items[0].message}'";
        Some(server.sh(line).stdout).filter(|text| !text.is_empty())
    });
    assert_eq!(
        told,
        format!(
            "ownerRef [v1/ConfigMap, namespace: other, name: owner, uid: {owner}] does not exist in namespace \"other\""
        )
    );
    server.run("kubectl get configmap right");
    // Two that own one another: neither is ever without an owner, until one is deleted.
    create(&config_map("hen", "default", None));
    let hen = uid(&server, "configmap hen");
    create(&config_map("egg", "default", Some(("hen", &hen))));
    let patch = json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "egg",
        "uid": uid(&server, "configmap egg"), "blockOwnerDeletion": true}]}});
    server.run(&format!("kubectl patch configmap hen --type=merge -p '{patch}'"));
    server.run("kubectl delete configmap hen --cascade=foreground --timeout=60s");
    eventually("the other goes, too", || {
        server
            .sh("kubectl get configmap egg")
            .stderr
            .contains("NotFound")
            .then_some(())
    });
}

/// About a thousand objects of many kinds, pods that run among them.
fn thousand_objects(namespace: &str) -> String {
    let mut text = String::new();
    let mut add = |kind: &str, name: String, rest: &str| {
        let version = if kind == "Deployment" { "apps/v1" } else { "v1" };
        writeln!(
            text,
            "---\napiVersion: {version}\nkind: {kind}\nmetadata: {{name: {name}, namespace: {namespace}}}\n{rest}"
        )
        .expect("a string takes all that is written to it");
    };
    for n in 0..300 {
        add("ConfigMap", format!("config-{n}"), "data: {a: b}");
        add("Secret", format!("secret-{n}"), "stringData: {a: b}");
    }
    for n in 0..80 {
        add("ServiceAccount", format!("account-{n}"), "");
        add(
            "Service",
            format!("service-{n}"),
            "spec: {ports: [{port: 80}], selector: {app: web-1}}",
        );
    }
    for n in 0..4 {
        let pod = "containers: [{name: c, image: nginx}]";
        let spec = format!(
            "spec: {{replicas: 40, selector: {{matchLabels: {{app: web-{n}}}}}, template: {{metadata: {{labels: {{app: web-{n}}}}}, spec: {{{pod}}}}}}}"
        );
        add("Deployment", format!("web-{n}"), &spec);
    }
    text
}

#[test]
fn a_namespace_with_a_thousand_objects() {
    let server = cluster();
    server.run("kubectl create namespace big");
    server.run_with("kubectl create -f -", &thousand_objects("big"));
    for n in 0..4 {
        server.run(&format!(
            "kubectl rollout status -n big deployment/web-{n} --timeout=90s"
        ));
    }
    let all = "-n big configmaps,secrets,serviceaccounts,services,endpointslices,deployments,rs,pods";
    assert!(count(&server, all) >= 1_000);
    server.run("kubectl delete namespace big --timeout=60s");
    assert!(server.fails("kubectl get namespace big").contains("NotFound"));
    let every_kind = "kubectl get -A -o jsonpath='{.items[*].metadata.namespace}' \
        $(kubectl api-resources --namespaced --verbs=list,delete -o name | paste -sd,)";
    let namespaces = server.run(every_kind);
    assert!(!namespaces.split_whitespace().any(|namespace| namespace == "big"));
    // Nothing of it comes back with the name.
    server.run("kubectl create namespace big");
    assert_eq!(count(&server, "-n big secrets,services,deployments,rs,pods"), 0);
}

#[test]
fn a_namespace_that_somebody_holds() {
    let server = cluster();
    server.run("kubectl create namespace held");
    let mut held = config_map("held", "held", None);
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    server.run_with("kubectl create -f -", &held.to_string());
    server.run("kubectl delete namespace held --wait=false");
    let told = eventually("its conditions say who", || {
        let namespace = server.get("namespace held");
        let conditions = namespace["status"]["conditions"].as_array()?.clone();
        let remains = conditions.iter().filter(|c| c["status"] == "True");
        let lines: Vec<String> = remains.map(|c| format!("{}: {}", c["reason"], c["message"])).collect();
        (lines.len() == 2).then_some(lines)
    });
    assert_eq!(
        told,
        [
            r#""SomeResourcesRemain": "Some resources are remaining: configmaps. has 1 resource instances""#,
            r#""SomeFinalizersRemain": "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances""#,
        ]
    );
    let refused = server.fails("kubectl create configmap new -n held");
    assert!(refused.contains("because it is being terminated"), "{refused}");
    server.run("kubectl patch configmap held -n held --type=merge -p '{\"metadata\":{\"finalizers\":null}}'");
    eventually("it is let go", || {
        server
            .sh("kubectl get namespace held")
            .stderr
            .contains("NotFound")
            .then_some(())
    });
}

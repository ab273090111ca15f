//! kubectl's ways to change what is there: apply (both sides), edit, patch, replace, diff, dry runs.

use orlop_testkit::{DEPLOYMENT, Server, config_map_manifest as config_map, pod_manifest as pod};
use serde_json::{Value, json};

#[test]
fn apply_on_the_client_side() {
    let server = Server::with_accounts();
    assert_eq!(
        server.run_with("kubectl apply -f -", DEPLOYMENT),
        "deployment.apps/web created\n"
    );
    assert_eq!(
        server.run_with("kubectl apply -f -", DEPLOYMENT),
        "deployment.apps/web unchanged\n"
    );
    let before = server.get("deploy web");
    let changed = DEPLOYMENT
        .replace("nginx:1.27", "nginx:1.28")
        .replace("replicas: 2", "replicas: 5");
    assert_eq!(
        server.run_with("kubectl apply -f -", &changed),
        "deployment.apps/web configured\n"
    );
    let after = server.get("deploy web");
    assert_eq!(
        after["spec"]["template"]["spec"]["containers"][0]["image"],
        "nginx:1.28"
    );
    assert_eq!(after["metadata"]["generation"], 2);
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);

    // What others added stays, what was applied before and is gone now goes.
    server.run("kubectl annotate deploy web note=mine && kubectl set env deploy/web EXTRA=1");
    let without_label = changed.replace("\n  labels: {app: web}\nspec:", "\nspec:");
    assert_ne!(without_label, changed);
    server.run_with("kubectl apply -f -", &without_label);
    let last = server.get("deploy web");
    assert_eq!(last["metadata"]["annotations"]["note"], "mine");
    assert_eq!(last["metadata"]["labels"], Value::Null);
    assert_eq!(
        last["spec"]["template"]["spec"]["containers"][0]["env"],
        json!([{"name": "EXTRA", "value": "1"}])
    );
    let fixed = server.fails_with("kubectl apply -f -", &changed.replace("app: web}", "app: other}"));
    assert!(
        fixed.contains("spec.selector: Invalid value:") && fixed.contains("field is immutable"),
        "{fixed}"
    );

    // Only what is still listed stays.
    let two = format!(
        "{}---\n{}",
        config_map("one", "{a: '1'}").replace("{name: one}", "{name: one, labels: {set: s}}"),
        config_map("two", "{}").replace("{name: two}", "{name: two, labels: {set: s}}")
    );
    assert_eq!(
        server.run_with("kubectl apply -f -", &two),
        "configmap/one created\nconfigmap/two created\n"
    );
    let pruned = server.run_with(
        "kubectl apply --prune -l set=s --prune-allowlist=core/v1/ConfigMap -f -",
        two.split("---\n").next().unwrap(),
    );
    assert!(pruned.contains("configmap/two pruned"), "{pruned}");
    let seen = server.run("kubectl apply view-last-applied configmap/one");
    assert!(seen.contains("set: s"), "{seen}");
}

#[test]
fn apply_on_the_server_side() {
    let server = Server::with_accounts();
    assert_eq!(
        server.run_with("kubectl apply --server-side -f -", DEPLOYMENT),
        "deployment.apps/web serverside-applied\n"
    );
    let managers = |object: &Value| -> Vec<(String, String)> {
        let entries = object["metadata"]["managedFields"].as_array().expect("managers").iter();
        entries
            .map(|e| {
                (
                    e["manager"].as_str().unwrap().to_string(),
                    e["operation"].as_str().unwrap().to_string(),
                )
            })
            .collect()
    };
    let object = server.get("deploy web --show-managed-fields");
    assert_eq!(managers(&object), [("kubectl".to_string(), "Apply".to_string())]);
    // The same again is no change at all.
    let revision = object["metadata"]["resourceVersion"].clone();
    server.run_with("kubectl apply --server-side -f -", DEPLOYMENT);
    assert_eq!(server.get("deploy web")["metadata"]["resourceVersion"], revision);

    // Someone else wants other values for fields that the first one owns.
    let other = "---\n{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: 7}}";
    let conflict = server.fails_with("kubectl apply --server-side --field-manager=scaler -f -", other);
    assert!(
        conflict.contains(r#"Apply failed with 1 conflict: conflict with "kubectl": .spec.replicas"#),
        "{conflict}"
    );
    assert!(conflict.contains("--force-conflicts"), "{conflict}");
    assert_eq!(server.get("deploy web")["spec"]["replicas"], 2);
    server.run_with(
        "kubectl apply --server-side --field-manager=scaler --force-conflicts -f -",
        other,
    );
    let forced = server.get("deploy web --show-managed-fields");
    assert_eq!(forced["spec"]["replicas"], 7);
    let owners = forced["metadata"]["managedFields"].as_array().unwrap();
    let of = |name: &str| {
        owners
            .iter()
            .find(|e| e["manager"] == name)
            .expect("still a manager")
            .clone()
    };
    assert_eq!(of("scaler")["fieldsV1"], json!({"f:spec": {"f:replicas": {}}}));
    assert_eq!(of("kubectl")["fieldsV1"].pointer("/f:spec/f:replicas"), None);

    // Two may share what they agree on; what only one owned goes when that one lets go.
    server.run_with(
        "kubectl apply --server-side --field-manager=labeller -f -",
        "---\n{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, labels: {app: web, extra: 'yes'}}}",
    );
    assert_eq!(
        server.get("deploy web")["metadata"]["labels"],
        json!({"app": "web", "extra": "yes"})
    );
    server.run_with(
        "kubectl apply --server-side --field-manager=labeller -f -",
        "---\n{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}}",
    );
    assert_eq!(server.get("deploy web")["metadata"]["labels"], json!({"app": "web"}));

    // Lists with keys merge by key.
    server.run_with(
        "kubectl apply --server-side --field-manager=sidecar -f -",
        "---\n{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {template: {spec: {containers: [{name: side, image: busybox}]}}}}",
    );
    let names = server.run("kubectl get deploy web -o jsonpath='{.spec.template.spec.containers[*].name}'");
    assert_eq!(names, "web side");

    // From client side to server side: the last-applied configuration moves over without a conflict.
    server.run_with("kubectl apply -f -", &config_map("moved", "{a: '1', b: '2'}"));
    server.run_with("kubectl apply --server-side -f -", &config_map("moved", "{a: '1'}"));
    assert_eq!(server.get("configmap moved")["data"], json!({"a": "1"}));
}

#[test]
fn edit() {
    let server = Server::with_accounts();
    server.run_with("kubectl apply -f -", &config_map("c", "{colour: red}"));
    let edited = server.run("EDITOR='sed -i s/red/green/' kubectl edit configmap c");
    assert_eq!(edited, "configmap/c edited\n");
    assert_eq!(server.get("configmap c")["data"]["colour"], "green");
    assert!(server.run("EDITOR=true kubectl edit configmap c").is_empty());

    // An invalid edit comes back to the editor with the reason, and is kept in a file when that is given up.
    server.run_with("kubectl create -f -", &pod("p"));
    let refused =
        server.fails("EDITOR='sed -i s/c$/d/' KUBE_EDITOR=\"sed -i 's/name: c$/name: d/'\" kubectl edit pod p");
    assert!(refused.contains("pods \"p\" is invalid"), "{refused}");
    assert_eq!(server.get("pod p")["spec"]["containers"][0]["name"], "c");
    // By subresource.
    server.run("KUBE_EDITOR=\"sed -i 's/phase: Pending/phase: Running/'\" kubectl edit pod p --subresource=status");
    assert_eq!(server.get("pod p")["status"]["phase"], "Running");
}

#[test]
fn patch() {
    let server = Server::with_accounts();
    server.run_with("kubectl create -f -", DEPLOYMENT);
    // Strategic (the default): containers are merged by name.
    let strategic = r#"{"spec":{"template":{"spec":{"containers":[{"name":"log","image":"busybox"}]}}}}"#;
    assert_eq!(
        server.run(&format!("kubectl patch deploy web -p '{strategic}'")),
        "deployment.apps/web patched\n"
    );
    let names = |s: &Server| s.run("kubectl get deploy web -o jsonpath='{.spec.template.spec.containers[*].name}'");
    assert_eq!(names(&server), "log web");
    let delete = r#"{"spec":{"template":{"spec":{"containers":[{"name":"log","$patch":"delete"}]}}}}"#;
    server.run(&format!("kubectl patch deploy web -p '{delete}'"));
    assert_eq!(names(&server), "web");
    assert_eq!(
        server.run(&format!("kubectl patch deploy web -p '{delete}'")),
        "deployment.apps/web patched (no change)\n"
    );

    // Merge: lists are replaced, null removes.
    let merge = r#"{"metadata":{"labels":{"app":null,"tier":"front"}},"spec":{"template":{"spec":{"containers":[{"name":"only","image":"nginx"}]}}}}"#;
    server.run(&format!("kubectl patch deploy web --type=merge -p '{merge}'"));
    assert_eq!(names(&server), "only");
    assert_eq!(server.get("deploy web")["metadata"]["labels"], json!({"tier": "front"}));

    // JSON: steps in order, with tests.
    let steps = r#"[{"op":"test","path":"/spec/replicas","value":2},{"op":"replace","path":"/spec/replicas","value":4},{"op":"add","path":"/metadata/labels/a~1b","value":"c"}]"#;
    server.run(&format!("kubectl patch deploy web --type=json -p '{steps}'"));
    let object = server.get("deploy web");
    assert_eq!(
        (&object["spec"]["replicas"], &object["metadata"]["labels"]["a/b"]),
        (&json!(4), &json!("c"))
    );
    let wrong = server.fails(&format!("kubectl patch deploy web --type=json -p '{steps}'"));
    assert!(wrong.contains("The request is invalid"), "{wrong}");

    // Apply through patch.
    let body = r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"paused":true}}"#;
    let answer = server.run(&format!(
        "{} -X PATCH -H 'Content-Type: application/apply-patch+yaml' --data '{body}' '{}/apis/apps/v1/namespaces/default/deployments/web?fieldManager=me'",
        server.curl(), server.url()
    ));
    assert!(answer.contains("\"paused\": true"), "{answer}");

    // Subresources have their own side.
    server.run(r#"kubectl patch deploy web --subresource=status --type=merge -p '{"status":{"replicas":4},"spec":{"replicas":99}}'"#);
    let object = server.get("deploy web");
    assert_eq!(
        (&object["spec"]["replicas"], &object["status"]["replicas"]),
        (&json!(4), &json!(4))
    );
    let generation = object["metadata"]["generation"].clone();
    server.run(r#"kubectl patch deploy web --subresource=scale --type=merge -p '{"spec":{"replicas":1}}'"#);
    let object = server.get("deploy web");
    assert_eq!(object["spec"]["replicas"], 1);
    assert_eq!(object["metadata"]["generation"], generation.as_i64().unwrap() + 1);
    let broken = server.fails("kubectl patch deploy web --type=merge -p '{\"spec\":{\"replicas\":\"many\"}}'");
    assert!(
        broken.contains("spec.replicas") || broken.contains("cannot unmarshal"),
        "{broken}"
    );
}

#[test]
fn replace() {
    let server = Server::with_accounts();
    server.run_with("kubectl create -f -", &config_map("c", "{a: '1', b: '2'}"));
    assert_eq!(
        server.run_with("kubectl replace -f -", &config_map("c", "{a: '3'}")),
        "configmap/c replaced\n"
    );
    assert_eq!(server.get("configmap c")["data"], json!({"a": "3"}));

    // With a revision that is no longer the current one.
    let old = server.run("kubectl get configmap c -o yaml");
    server.run("kubectl label configmap c x=y");
    let conflict = server.fails_with("kubectl replace -f -", &old);
    assert!(conflict.contains("Error from server (Conflict)"), "{conflict}");
    assert!(
        conflict
            .contains("the object has been modified; please apply your changes to the latest version and try again"),
        "{conflict}"
    );

    // What can't be changed needs --force: gone, and made anew.
    server.run_with("kubectl create -f -", &pod("p"));
    let before = server.get("pod p");
    let other = pod("p").replace("name: c, image: busybox", "name: d, image: busybox");
    let refused = server.fails_with("kubectl replace -f -", &other);
    assert!(
        refused.contains("Forbidden: pod updates may not change fields other than `spec.containers[*].image`"),
        "{refused}"
    );
    let forced = server.run_with("kubectl replace --force -f -", &other);
    assert!(
        forced.contains("pod \"p\" deleted") && forced.ends_with("pod/p replaced\n"),
        "{forced}"
    );
    let after = server.get("pod p");
    assert_eq!(after["spec"]["containers"][0]["name"], "d");
    assert_ne!(after["metadata"]["uid"], before["metadata"]["uid"]);
    let missing = server.fails_with("kubectl replace -f -", &config_map("missing", "{}"));
    assert!(missing.contains(r#"configmaps "missing" not found"#), "{missing}");
}

#[test]
fn dry_run_changes_nothing() {
    let server = Server::with_accounts();
    let text = server.run("kubectl create deployment d --image=nginx --dry-run=server -o json");
    let object: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(object["spec"]["revisionHistoryLimit"], 10, "defaults are filled in");
    assert!(object["metadata"]["uid"].is_string());
    assert!(
        server
            .fails("kubectl get deploy d")
            .contains(r#"deployments.apps "d" not found"#)
    );

    server.run("kubectl create configmap c --from-literal=a=1");
    let before = server.get("configmap c");
    assert_eq!(
        server.run("kubectl label configmap c x=y --dry-run=server"),
        "configmap/c labeled (server dry run)\n"
    );
    assert!(
        server
            .run("kubectl patch configmap c -p '{\"data\":{\"a\":\"2\"}}' --dry-run=server")
            .starts_with("configmap/c patched")
    );
    assert_eq!(
        server.run("kubectl delete configmap c --dry-run=server"),
        "configmap \"c\" deleted (server dry run)\n"
    );
    assert_eq!(
        server.run_with("kubectl apply --dry-run=server -f -", &config_map("d", "{a: '1'}")),
        "configmap/d created (server dry run)\n"
    );
    assert_eq!(
        server.run_with("kubectl replace --dry-run=server -f -", &config_map("c", "{a: '3'}")),
        "configmap/c replaced (server dry run)\n"
    );
    assert_eq!(server.get("configmap c"), before);
}

#[test]
fn diff() {
    let server = Server::with_accounts();
    server.run_with("kubectl apply -f -", DEPLOYMENT);
    assert_eq!(server.run_with("kubectl diff -f -", DEPLOYMENT), "");
    let changed = server.sh_with("kubectl diff -f -", &DEPLOYMENT.replace("replicas: 2", "replicas: 9"));
    assert_eq!(changed.code, Some(1), "{changed}");
    assert!(changed.stdout.contains("-  replicas: 2\n+  replicas: 9"), "{changed}");
    let on_server = server.sh_with(
        "kubectl diff --server-side --force-conflicts -f -",
        &DEPLOYMENT.replace("replicas: 2", "replicas: 9"),
    );
    assert_eq!(on_server.code, Some(1), "{on_server}");
    assert_eq!(server.get("deploy web")["spec"]["replicas"], 2);
}

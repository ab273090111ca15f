//! Operators as people write them, unchanged: one with kube-rs' controller runtime, one with Python's kopf.

use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::runtime::controller::{Action, Controller};
use kube::runtime::finalizer::{self, Event, finalizer};
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt};
use orlop_testkit::{Server, eventually, python, script};
use serde_json::{Value, json};

const WEBSITES: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: websites.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: websites, singular: website, kind: Website}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          spec:
            type: object
            required: [title]
            properties:
              title: {type: string, maxLength: 40}
              replicas: {type: integer, minimum: 0, default: 1}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
"#;

fn website(title: &str, replicas: u32) -> String {
    json!({
        "apiVersion": "example.com/v1", "kind": "Website", "metadata": {"name": "w"},
        "spec": {"title": title, "replicas": replicas},
    })
    .to_string()
}

fn define(server: &Server) {
    server.run_with("kubectl apply -f -", WEBSITES);
    server.run("kubectl wait --for=condition=Established crd/websites.example.com");
}

/// `kubectl get`, or nothing if it is not there.
fn find(server: &Server, what: &str) -> Option<Value> {
    let text = server.run(&format!("kubectl get {what} -o json --ignore-not-found"));
    serde_json::from_str(&text).ok()
}

fn resource() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Website"))
}

/// What the operator with kube-rs wants of a Website: a Deployment that it owns.
fn deployment(site: &DynamicObject) -> Value {
    let labels = json!({"website": site.name_any()});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": site.name_any(), "ownerReferences": [site.controller_owner_ref(&resource())]},
        "spec": {
            "replicas": site.data["spec"]["replicas"], "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels, "annotations": {"title": site.data["spec"]["title"]}},
                "spec": {"containers": [{"name": "web", "image": "web"}]},
            },
        },
    })
}

async fn apply(site: Arc<DynamicObject>, client: Client) -> kube::Result<Action> {
    let params = PatchParams::apply("website-operator").force();
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    let applied = deployments
        .patch(&site.name_any(), &params, &Patch::Apply(deployment(&site)))
        .await?;
    let ready = applied.status.and_then(|status| status.ready_replicas).unwrap_or(0);
    let status = json!({
        "apiVersion": "example.com/v1", "kind": "Website",
        "status": {"ready": ready, "observedGeneration": site.metadata.generation},
    });
    let sites: Api<DynamicObject> = Api::default_namespaced_with(client, &resource());
    sites
        .patch_status(&site.name_any(), &params, &Patch::Apply(status))
        .await?;
    Ok(Action::await_change())
}

/// Leaves something behind, so that the test sees that the object waited for it.
async fn clean_up(site: Arc<DynamicObject>, client: Client) -> kube::Result<Action> {
    let mut farewell = ConfigMap::default();
    farewell.meta_mut().name = Some(format!("{}-farewell", site.name_any()));
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    maps.create(&PostParams::default(), &farewell).await?;
    Ok(Action::await_change())
}

async fn reconcile(site: Arc<DynamicObject>, client: Arc<Client>) -> Result<Action, finalizer::Error<kube::Error>> {
    let sites: Api<DynamicObject> = Api::default_namespaced_with((*client).clone(), &resource());
    finalizer(&sites, "example.com/cleanup", site, |event| async {
        match event {
            Event::Apply(site) => apply(site, (*client).clone()).await,
            Event::Cleanup(site) => clean_up(site, (*client).clone()).await,
        }
    })
    .await
}

async fn operate(client: Client) {
    let sites: Api<DynamicObject> = Api::default_namespaced_with(client.clone(), &resource());
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    Controller::new_with(sites, watcher::Config::default(), resource())
        .owns(deployments, watcher::Config::default())
        .run(
            reconcile,
            |_, error, _| {
                eprintln!("reconcile failed: {error}");
                Action::requeue(Duration::from_millis(100))
            },
            Arc::new(client),
        )
        .for_each(|_| async {})
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_with_kube_rs() {
    let server = orlop_testkit::Launch::up().arg("--simulate=1").start();
    define(&server);
    let operator = tokio::spawn(operate(server.client().await));
    server.run_with("kubectl apply -f -", &website("One", 2));
    eventually("its pods run and its status says so", || {
        let site = find(&server, "website w")?;
        (site["status"] == json!({"ready": 2, "observedGeneration": 1})).then_some(())
    });
    server.run_with("kubectl apply -f -", &website("Two", 1));
    eventually("the change is rolled out", || {
        let site = find(&server, "website w")?;
        let child = find(&server, "deployment w")?;
        let title = &child["spec"]["template"]["metadata"]["annotations"]["title"];
        (title == "Two" && site["status"] == json!({"ready": 1, "observedGeneration": 2})).then_some(())
    });
    let before = server.get("deployment w")["metadata"]["uid"].clone();
    server.run("kubectl delete deployment w");
    eventually("what it owns comes back", || {
        let child = find(&server, "deployment w")?;
        (child["metadata"]["uid"] != before).then_some(())
    });
    server.run("kubectl delete website w");
    assert!(
        find(&server, "configmap w-farewell").is_some(),
        "it went before its finalizer"
    );
    eventually("what it owned goes with it", || {
        find(&server, "deployment w").is_none().then_some(())
    });
    operator.abort();
}

/// Ends with the test.
struct Operator(Child);

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_operator_with_kopf() {
    let server = Server::at_work();
    define(&server);
    let start = || {
        let line = format!(
            "exec {} -m kopf run --standalone --namespace default {}",
            python().display(),
            script("website_operator.py").display()
        );
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(server.home().join("kopf.log"));
        let log = log.expect("our own directory");
        let mut command = server.command(&line);
        command
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a file can be shared"))
            .stdout(log);
        Operator(command.spawn().expect("bash is there"))
    };
    let log = || std::fs::read_to_string(server.home().join("kopf.log")).unwrap_or_default();
    let operator = start();
    server.run_with("kubectl apply -f -", &website("One", 3));
    eventually("the page is there, and the status says so", || {
        let site = find(&server, "website w")?;
        let page = find(&server, "configmap w-page")?;
        let owner = &page["metadata"]["ownerReferences"][0];
        (owner["uid"] == site["metadata"]["uid"]
            && site["metadata"]["finalizers"] == json!(["websites.example.com/kopf"])
            && site["status"]["created"] == json!({"title": "One", "replicas": 3})
            && site["status"]["beats"].as_u64() > Some(2))
        .then_some(())
    });
    eventually("its event is there", || {
        let events = server.run("kubectl get events -o jsonpath='{.items[*].reason}'");
        events.contains("Published").then_some(())
    });
    // What happens while it is away it finds out when it is back.
    drop(operator);
    server.run_with("kubectl apply -f -", &website("Two", 3));
    let _operator = start();
    eventually("the change arrives", || {
        let page = find(&server, "configmap w-page")?;
        let site = find(&server, "website w")?;
        (page["data"]["index.html"] == "<h1>Two</h1>" && site["status"]["renamed"] == "One -> Two").then_some(())
    });
    server.run("kubectl delete website w --timeout=30s");
    assert!(find(&server, "configmap w-farewell").is_some(), "{}", log());
    eventually("the page goes with it", || {
        find(&server, "configmap w-page").is_none().then_some(())
    });
    assert!(!log().contains("Traceback"), "{}", log());
}

//! `orlop explain` and `orlop simulate` against a live cluster: as a user types them, also through kubectl, and what the
//! cluster then does.

use std::collections::BTreeMap;

use orlop_testkit::{Launch, Server, add_node, eventually, orlop};
use serde_json::{Value, json};

fn own(server: &Server, line: &str) -> String {
    server.run(&format!("{} {line}", orlop().display()))
}

fn as_json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn apply_pod(server: &Server, name: &str, spec: &Value) {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    server.run_with("kubectl apply -f -", &pod.to_string());
}

fn is_unschedulable(server: &Server, pod: &str) {
    eventually("the scheduler has tried it", || {
        let pod = server.get(&format!("pod {pod}"));
        let conditions = pod["status"]["conditions"].as_array()?.clone();
        conditions.iter().any(|c| c["reason"] == "Unschedulable").then_some(())
    });
}

/// A pod that fits nowhere is explained, also as kubectl's plugin; what --fix says is done, and the pod gets its node.
#[tokio::test]
async fn a_fix_that_is_told_works() {
    let server = Server::at_work();
    let http = server.http().await;
    for name in ["n1", "n2"] {
        add_node(&http, name, "4", "8Gi", &[]).await;
    }
    server.run("kubectl taint node n1 team=red:NoSchedule && kubectl label node n1 disk=ssd");
    let spec = json!({"nodeSelector": {"disk": "ssd"}, "containers": [{"name": "c", "image": "x",
        "resources": {"requests": {"cpu": "2"}}}]});
    apply_pod(&server, "p", &spec);
    is_unschedulable(&server, "p");

    std::os::unix::fs::symlink(orlop(), server.home().join("kubectl-why")).unwrap();
    let text = server.run("PATH=$PWD:$PATH kubectl why pod p --fix");
    assert!(text.starts_with("default/p fits none of 2 nodes: "), "{text}");
    for part in [
        "team=red:NoSchedule",
        "no label disk",
        "NodeAffinity",
        "kubectl taint node n1 team:NoSchedule-",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains('\x1b'), "colours are for terminals: {text}");

    let answer = as_json(&own(&server, "explain pod/p --fix -o json"));
    assert_eq!(
        (&answer["apiVersion"], &answer["kind"]),
        (&json!("why.orlop.io/v1"), &json!("PodExplanation"))
    );
    assert_eq!(
        (&answer["state"], &answer["nodes"]),
        (&json!("Unschedulable"), &json!({"total": 2, "feasible": 0}))
    );
    assert_eq!(answer["queue"]["state"], "Unschedulable");
    let scheduler = answer["schedulerMessage"].as_str().unwrap();
    assert!(
        scheduler.starts_with("0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector"),
        "{scheduler}"
    );
    assert!(own(&server, "explain pod p -o yaml").starts_with("apiVersion: why.orlop.io/v1\n"));

    // The first fix of the cluster, by its own command.
    let fixes = answer["fixes"]["fixes"].as_array().unwrap();
    let fix = fixes
        .iter()
        .find(|fix| fix["target"] == "Cluster")
        .expect("a fix on the cluster");
    for change in fix["changes"].as_array().unwrap() {
        server.run(change["command"].as_str().unwrap());
    }
    let node = eventually("the pod gets its node", || {
        let node = server.run("kubectl get pod p -o jsonpath={.spec.nodeName}");
        (!node.is_empty()).then_some(node)
    });
    assert_eq!(fix["node"], node.as_str());
    let placed = as_json(&own(&server, "explain pod p -o json"));
    assert_eq!((&placed["state"], &placed["node"]), (&json!("Scheduled"), &json!(node)));
    assert_eq!(placed["reconstructed"], true);

    let error = server.fails(&format!("{} explain pod nobody", orlop().display()));
    assert!(
        error.contains("there is no Pod \"nobody\" in namespace \"default\""),
        "{error}"
    );
    let error = server.fails(&format!("{} explain configmap c", orlop().display()));
    assert!(error.contains("can't explain \"configmap\""), "{error}");
}

/// Quotas refuse pods before there are any; and who may read little is told so.
#[tokio::test]
async fn quotas_and_few_rights() {
    let server = Server::at_work();
    let http = server.http().await;
    add_node(&http, "n1", "4", "8Gi", &[]).await;
    server.run("kubectl create quota small --hard=pods=1 && kubectl create deployment web --image=x --replicas=3");
    let text = eventually("the quota is told", || {
        let text = own(&server, "explain deployment web");
        text.contains("exceeded quota: small").then_some(text)
    });
    assert!(
        text.contains("2 pods not created") && text.contains("Quotas that are used up"),
        "{text}"
    );
    let answer = as_json(&own(&server, "explain deploy/web -o json"));
    assert_eq!((&answer["desired"], &answer["current"]), (&json!(3), &json!(1)));
    assert_eq!(
        answer["quotas"][0],
        json!({"quota": "small", "resource": "pods", "used": "1", "hard": "1"})
    );

    let spec = json!({"containers": [{"name": "c", "image": "x", "resources": {"requests": {"cpu": "9"}}}]});
    server.run("kubectl delete quota small && kubectl delete deployment web");
    apply_pod(&server, "p", &spec);
    is_unschedulable(&server, "p");
    let ann = server.user("ann", &[]);
    server.run(
        "kubectl create role reader --verb=get,list --resource=pods,events && \
         kubectl create rolebinding ann --role=reader --user=ann",
    );
    let text = own(
        &server,
        &format!("explain pod p --kubeconfig {}", ann.kubeconfig.display()),
    );
    assert!(
        text.starts_with("default/p can't be judged: you may not list pods"),
        "{text}"
    );
    assert!(text.contains("0/1 nodes are available: 1 Insufficient cpu"), "{text}");
    let error = server.fails(&format!(
        "{} simulate --drain n1 --kubeconfig {}",
        orlop().display(),
        ann.kubeconfig.display()
    ));
    assert!(error.contains("can't simulate without pods"), "{error}");
}

/// How many of its pods are on each node.
fn pods_by_node(server: &Server, label: &str) -> BTreeMap<String, usize> {
    let pods = server.get(&format!("pods -l {label}"));
    let mut counts = BTreeMap::new();
    for pod in pods["items"].as_array().into_iter().flatten() {
        if pod["metadata"]["deletionTimestamp"].is_null()
            && let Some(node) = pod["spec"]["nodeName"].as_str()
        {
            *counts.entry(node.to_string()).or_default() += 1;
        }
    }
    counts
}

/// What is simulated is what the cluster then does: a scale-up, and a drain.
#[test]
fn a_simulation_comes_true() {
    let server = Launch::up()
        .arg("--simulate=1")
        .arg("--simulate-shape=fast=1:cpu=8,memory=32Gi,label=disk=ssd")
        .start();
    server.run("kubectl wait --for=condition=Ready node/sim-0 node/fast-0 --timeout=60s");
    // The preference is stronger than all else, so that no two nodes are equally good.
    let prefers = json!([{"weight": 100, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}]);
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
        "replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}}, "spec": {
            "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": prefers}},
            "containers": [{"name": "c", "image": "x", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]}}}});
    server.run_with("kubectl apply -f -", &deployment.to_string());
    let settled = |count: usize| {
        eventually(&format!("{count} pods run"), || {
            let ready = server.get("deployment web")["status"]["readyReplicas"].as_u64();
            let updated = server.get("deployment web")["status"]["updatedReplicas"].as_u64();
            let total: usize = pods_by_node(&server, "app=web").values().sum();
            (ready == Some(count as u64) && updated == ready && total == count).then_some(())
        });
    };
    settled(2);
    let before = pods_by_node(&server, "app=web");

    let report = as_json(&own(&server, "simulate --scale deployment/web=15 -o json"));
    assert_eq!(report["fits"], true, "{report}");
    let mut expected = before;
    for step in report["moves"].as_array().unwrap() {
        *expected.entry(step["to"].as_str().unwrap().to_string()).or_default() += 1;
    }
    assert_eq!(
        server.get("deployment web")["spec"]["replicas"],
        2,
        "nothing is written"
    );
    server.run("kubectl scale deployment web --replicas=15");
    settled(15);
    assert_eq!(pods_by_node(&server, "app=web"), expected);

    // The small node's pods fit on the large one, and not the other way round; the exit code says so.
    let (small, large) = ("fast-0", "sim-0");
    let ran = server.sh(&format!("{} simulate --drain {large}", orlop().display()));
    assert!(
        ran.code == Some(1) && ran.stdout.starts_with("Not everything fits: "),
        "{ran}"
    );
    let report = as_json(&own(&server, &format!("simulate --drain {small} -o json")));
    let mut expected = pods_by_node(&server, "app=web");
    expected.remove(small);
    for step in report["moves"].as_array().unwrap() {
        assert_eq!(step["from"], small);
        *expected.entry(step["to"].as_str().unwrap().to_string()).or_default() += 1;
    }
    server.run(&format!(
        "kubectl drain {small} --ignore-daemonsets --force --disable-eviction"
    ));
    settled(15);
    assert_eq!(pods_by_node(&server, "app=web"), expected);

    let text = own(
        &server,
        &format!("simulate --uncordon {small} --add-nodes 2 --like {small} --scale deploy/web=30"),
    );
    assert!(
        text.contains("new-node-1") && text.contains("Utilisation") && text.contains("Who goes where"),
        "{text}"
    );
    let manifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: [{name: c}]}\n---\nkind: [\n";
    let error = server.fails_with(&format!("{} simulate --apply -", orlop().display()), manifest);
    assert!(error.contains("document 2, which begins on line 6"), "{error}");
}

//! What nodes and pods use, as `kubectl top` shows it and autoscalers act on it. Nodes are simulated and told what their pods
//! use; `node_agent.rs` has a pod that really burns CPU.

use orlop_testkit::{Launch, Server, eventually};
use serde_json::{Value, json};

fn cluster(nodes: usize) -> Server {
    let server = Launch::up().arg(format!("--simulate={nodes}")).start();
    eventually("the nodes are there and pods may be made", || {
        let ready = server.sh("kubectl get nodes -o name").stdout.lines().count() == nodes;
        (ready && server.sh("kubectl get sa default -o name").code == Some(0)).then_some(())
    });
    server
}

/// A pod of one container for each name.
fn pod(name: &str, node: &str, containers: &[&str], annotations: Value) -> Value {
    let container = |name: &&str| json!({"name": name, "image": "nginx"});
    let containers: Vec<Value> = containers.iter().map(container).collect();
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}, "annotations": annotations},
        "spec": {"nodeName": node, "containers": containers}})
}

fn apply(server: &Server, object: &Value) {
    server.run_with("kubectl apply -f -", &object.to_string());
}

/// The lines of a table, each with single spaces between its words.
fn lines(text: &str) -> Vec<String> {
    let squeeze = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    text.lines().map(squeeze).collect()
}

fn table(server: &Server, command: &str) -> Vec<String> {
    lines(&server.run(command))
}

#[test]
fn nodes_and_pods_show_what_they_use() {
    let server = cluster(3);
    // Before anything runs.
    let none = server.sh("kubectl top pod");
    assert_eq!(none.stderr.trim(), "No resources found in default namespace.");
    let web = json!({"orlop.io/cpu": "250m", "orlop.io/memory": "64Mi", "orlop.io/cpu.side": "1500m"});
    apply(&server, &pod("web", "sim-0", &["main", "side"], web));
    apply(&server, &pod("idle", "sim-1", &["main"], json!({})));
    server.run("kubectl wait --for=condition=Ready pod/web pod/idle --timeout=60s");

    let pods = ["NAME CPU(cores) MEMORY(bytes)", "idle 1m 1Mi", "web 1750m 128Mi"];
    assert_eq!(table(&server, "kubectl top pod"), pods);
    assert_eq!(
        table(&server, "kubectl top pod --sort-by=cpu"),
        [pods[0], pods[2], pods[1]]
    );
    assert_eq!(table(&server, "kubectl top pod -l app=web"), [pods[0], pods[2]]);
    assert_eq!(
        table(&server, "kubectl top pod --field-selector=spec.nodeName=sim-1"),
        [pods[0], pods[1]]
    );
    assert_eq!(table(&server, "kubectl top pod web --no-headers"), [pods[2]]);
    assert_eq!(
        table(&server, "kubectl top pod web --containers"),
        [
            "POD NAME CPU(cores) MEMORY(bytes)",
            "web main 250m 64Mi",
            "web side 1500m 64Mi"
        ]
    );
    let sum = table(&server, "kubectl top pod -A --sum");
    assert_eq!(
        (sum[1].as_str(), sum[2].as_str()),
        ("default idle 1m 1Mi", "default web 1750m 128Mi")
    );
    assert_eq!(sum.last().unwrap(), "1751m 129Mi");

    // 100m and 512Mi are a node's own, of 32 CPUs and 256 GiB.
    let nodes = [
        "NAME CPU(cores) CPU(%) MEMORY(bytes) MEMORY(%)",
        "sim-0 1850m 5% 640Mi 0%",
        "sim-1 101m 0% 513Mi 0%",
        "sim-2 100m 0% 512Mi 0%",
    ];
    assert_eq!(table(&server, "kubectl top node"), nodes);
    assert_eq!(table(&server, "kubectl top node sim-1"), [nodes[0], nodes[2]]);
    assert_eq!(
        table(&server, "kubectl get nodes.metrics.k8s.io"),
        [
            "NAME CPU MEMORY WINDOW",
            "sim-0 1850m 640Mi 10s",
            "sim-1 101m 513Mi 10s",
            "sim-2 100m 512Mi 10s"
        ]
    );
    let raw: Value = serde_json::from_str(
        &server.run("kubectl get --raw '/apis/metrics.k8s.io/v1beta1/namespaces/default/pods?labelSelector=app%3Dweb'"),
    )
    .unwrap();
    assert_eq!(
        (&raw["kind"], &raw["items"][0]["metadata"]["labels"]["app"]),
        (&json!("PodMetricsList"), &json!("web"))
    );
    assert_eq!(
        raw["items"][0]["containers"][1],
        json!({"name": "side", "usage": {"cpu": "1500m", "memory": "64Mi"}})
    );
    assert_eq!(
        table(&server, "kubectl get apiservice v1beta1.metrics.k8s.io --no-headers")[0]
            .rsplit_once(' ')
            .unwrap()
            .0,
        "v1beta1.metrics.k8s.io Local True"
    );

    // A pod that is told otherwise, and a node that says nothing.
    server.run("kubectl annotate pod web orlop.io/cpu.side=2 --overwrite");
    server.run("kubectl annotate node sim-1 orlop.io/fault=silent");
    eventually("the new figures", || {
        let left = table(&server, "kubectl top pod");
        (left == [pods[0], "web 2250m 128Mi"]).then_some(())
    });
}

#[test]
fn what_is_not_there_and_what_is_not_allowed() {
    let server = cluster(1);
    apply(
        &server,
        &pod("never", "sim-0", &["main"], json!({"orlop.io/start-delay": "1h"})),
    );
    apply(&server, &pod("runs", "sim-0", &["main"], json!({})));
    server.run("kubectl wait --for=condition=Ready pod/runs --timeout=60s");
    let refused = |command: &str, message: &str| {
        let ran = server.sh(command);
        assert_eq!((ran.code, ran.stderr.trim()), (Some(1), message), "{command}");
    };
    let missing = "Error from server (NotFound):";
    refused(
        "kubectl top pod nosuch",
        &format!("{missing} pods \"nosuch\" not found"),
    );
    refused(
        "kubectl top node nosuch",
        &format!("{missing} nodes \"nosuch\" not found"),
    );
    let unknown = format!("{missing} podmetrics.metrics.k8s.io \"default/never\" not found");
    refused("kubectl top pod never", &unknown);
    let fields = server.sh("kubectl top pod --field-selector=spec.nosuch=1");
    assert!(
        fields.stderr.contains("field label not supported: spec.nosuch"),
        "{}",
        fields.stderr
    );
    for (verb, path, code) in [
        ("DELETE", "namespaces/default/pods/never", 405),
        ("GET", "pods?watch=1", 405),
        ("GET", "namespaces/default/nodes", 404),
        ("GET", "nosuch", 404),
    ] {
        let asked = format!("-o /dev/null -w '%{{http_code}}' -X {verb} {}", server.url());
        let got = server.run(&format!("{} {asked}/apis/metrics.k8s.io/v1beta1/{path}", server.curl()));
        assert_eq!(got, code.to_string(), "{verb} {path}");
    }

    let jane = server.user("jane", &[]);
    let as_jane = |command: &str| server.sh(&format!("kubectl --kubeconfig={} {command}", jane.kubeconfig.display()));
    let denied = as_jane("top pod").stderr;
    assert!(
        denied.contains("pods.metrics.k8s.io is forbidden: User \"jane\" cannot list"),
        "{denied}"
    );
    server.run("kubectl create rolebinding jane --clusterrole=view --user=jane");
    eventually("view has the right to look", || {
        let ran = as_jane("top pod");
        (ran.code == Some(0)).then_some(())
    });
    assert!(as_jane("top node").stderr.contains("nodes.metrics.k8s.io is forbidden"));
}

#[test]
fn simulated_pods_answer_what_can_be_answered() {
    let server = cluster(1);
    let annotations = json!({"orlop.io/log": "one\ntwo", "orlop.io/log.side": "three"});
    apply(&server, &pod("web", "sim-0", &["main", "side"], annotations));
    apply(&server, &pod("mute", "sim-0", &["main"], json!({})));
    apply(
        &server,
        &pod("never", "sim-0", &["main"], json!({"orlop.io/start-delay": "1h"})),
    );
    server.run("kubectl wait --for=condition=Ready pod/web pod/mute --timeout=60s");
    assert_eq!(server.run("kubectl logs web -c main"), "one\ntwo\n");
    assert_eq!(server.run("kubectl logs -f web --tail=1 -c main"), "two\n");
    assert_eq!(server.run("kubectl logs web -c side"), "three\n");
    assert_eq!(server.run("kubectl logs mute"), "");
    let early = server.sh("kubectl logs never").stderr;
    assert!(early.contains("container \"main\" in pod \"never\" is"), "{early}");
    let refused = server.sh("kubectl exec mute -- date").stderr;
    assert!(refused.contains("sim-0 is a simulated node"), "{refused}");
    let page = server.run("kubectl get --raw /api/v1/nodes/sim-0/proxy/metrics/resource");
    assert!(page.contains("node_memory_working_set_bytes "), "{page}");
}

#[test]
fn an_autoscaler_follows_the_load() {
    let server = cluster(3);
    let labels = json!({"app": "web"});
    let container = json!({"name": "main", "image": "nginx", "resources": {"requests": {"cpu": "100m"}}});
    apply(
        &server,
        &json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
            "replicas": 1, "selector": {"matchLabels": labels}, "template": {
                "metadata": {"labels": labels, "annotations": {"orlop.io/cpu": "200m"}}, "spec": {"containers": [container]}}}}),
    );
    apply(
        &server,
        &json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "web"}, "spec": {
            "minReplicas": 1, "maxReplicas": 4, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}}}),
    );
    let replicas = |wanted: u64| {
        eventually(&format!("{wanted} replicas"), || {
            let deployment = server.get("deployment web");
            (deployment["status"]["readyReplicas"] == wanted).then_some(())
        });
    };
    // Each uses twice what it asks for, and is to use half of it.
    replicas(4);
    let shown = table(&server, "kubectl get hpa web --no-headers").remove(0);
    assert!(shown.starts_with("web Deployment/web cpu: 200%/50% 1 4 "), "{shown}");
    // A quarter of what is wanted is used now: one pod is enough.
    server.run("kubectl annotate pod -l app=web orlop.io/cpu=12m --overwrite");
    replicas(1);
}

//! Scheduling as kubectl shows it: where pods go, why they don't, in Kubernetes' words. Nodes are objects only.

use orlop_testkit::{Http, Launch, Server, add_node, eventually, fixture};
use serde_json::{Value, json};

fn apply(server: &Server, object: &Value) {
    server.run_with("kubectl apply -f -", &object.to_string());
}

fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "nginx"}]}});
    for (key, value) in spec.as_object().into_iter().flatten() {
        pod["spec"][key] = value.clone();
    }
    pod
}

/// A pod that asks for this much.
fn asks(name: &str, cpu: &str, more: Value) -> Value {
    let mut spec = json!({"containers": [{"name": "c", "image": "nginx",
        "resources": {"requests": {"cpu": cpu}}}]});
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    pod(name, spec)
}

fn node_of(server: &Server, pod: &str) -> String {
    eventually(&format!("{pod} has a node"), || {
        let name = server.run(&format!("kubectl get pod {pod} -o jsonpath={{.spec.nodeName}}"));
        (!name.is_empty()).then_some(name)
    })
}

/// The message of the pod's condition, once it says that the pod can't be placed and contains this.
fn why_not(server: &Server, pod: &str, contains: &str) -> String {
    eventually(&format!("{pod} says why it waits: {contains}"), || {
        let pod = server.get(&format!("pod {pod}"));
        let conditions = pod["status"]["conditions"].as_array()?.clone();
        let scheduled = conditions.iter().find(|c| c["type"] == "PodScheduled")?.clone();
        assert_eq!(pod["spec"]["nodeName"], Value::Null, "{pod}");
        let message = scheduled["message"].as_str()?.to_string();
        (scheduled["status"] == "False" && scheduled["reason"] == "Unschedulable" && message.contains(contains))
            .then_some(message)
    })
}

async fn three_nodes(server: &Server) -> Http {
    let http = server.http().await;
    for (name, zone) in [("n1", "a"), ("n2", "b"), ("n3", "c")] {
        add_node(&http, name, "4", "8Gi", &[("topology.kubernetes.io/zone", zone)]).await;
    }
    http
}

/// S1, S2, S12: a pod gets a node, a node gets full, and each step says so.
#[tokio::test]
async fn pods_get_nodes_and_reasons() {
    let server = Server::at_work();
    apply(&server, &pod("first", json!({})));
    assert_eq!(
        why_not(&server, "first", "nodes"),
        "no nodes available to schedule pods"
    );
    let http = three_nodes(&server).await;
    let node = node_of(&server, "first");
    let event = eventually("an event tells", || {
        let text = server.run("kubectl get events --field-selector reason=Scheduled -o jsonpath='{.items[0].message} {.items[0].type} {.items[0].reportingComponent}'");
        (!text.trim().is_empty()).then_some(text)
    });
    assert_eq!(
        event,
        format!("Successfully assigned default/first to {node} Normal default-scheduler")
    );
    let described = server.run("kubectl describe pod first");
    assert!(
        described.contains("PodScheduled") && described.contains("Successfully assigned"),
        "{described}"
    );

    // The least used node is taken: three pods, three nodes.
    for name in ["a", "b", "c"] {
        apply(&server, &asks(name, "2", json!({})));
    }
    let mut nodes: Vec<String> = ["a", "b", "c"].iter().map(|p| node_of(&server, p)).collect();
    nodes.sort();
    assert_eq!(nodes, ["n1", "n2", "n3"]);

    server.run("kubectl taint node n1 n2 team=red:NoSchedule");
    apply(&server, &asks("large", "3", json!({})));
    let why = why_not(&server, "large", "cpu");
    assert_eq!(
        why,
        "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s). no new claims to \
         deallocate, preemption: 0/3 nodes are available: 1 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling."
    );
    let event = eventually("a warning tells", || {
        let text = server.run("kubectl get events --field-selector reason=FailedScheduling,involvedObject.name=large -o jsonpath='{.items[0].message}'");
        (!text.is_empty()).then_some(text)
    });
    assert_eq!(event, why);
    // Room is made: it goes there by itself.
    let freed = ["a", "b", "c"]
        .into_iter()
        .find(|p| node_of(&server, p) == "n3")
        .unwrap();
    server.run(&format!("kubectl delete pod {freed} --grace-period=0 --force"));
    assert_eq!(node_of(&server, "large"), "n3");
    drop(http);
}

/// S7, S8, S9, S11: taints, selectors and affinity, together and apart, with the manifests of the notes.
#[tokio::test]
async fn taints_selectors_and_affinity() {
    let server = Server::at_work();
    three_nodes(&server).await;
    server.run("kubectl label node n2 size=Large && kubectl taint node n1 app=blue:NoSchedule");
    apply(&server, &pod("picky", json!({"nodeSelector": {"size": "Large"}})));
    assert_eq!(node_of(&server, "picky"), "n2");
    let affinity = |operator: &str, values: Value| {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "size", "operator": operator, "values": values}]}]}}}})
    };
    apply(&server, &pod("in", affinity("In", json!(["Large", "Medium"]))));
    assert_eq!(node_of(&server, "in"), "n2");
    apply(&server, &pod("not-in", affinity("NotIn", json!(["Large"]))));
    assert_eq!(node_of(&server, "not-in"), "n3");
    apply(&server, &pod("none", affinity("In", json!(["Huge"]))));
    let why = why_not(&server, "none", "affinity");
    assert_eq!(
        why.split(" preemption:").next().unwrap(),
        "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 node(s) didn't match Pod's node affinity/selector. no new claims to deallocate,"
    );
    // A label makes it fit, with nothing done to the pod.
    server.run("kubectl label node n3 size=Huge");
    assert_eq!(node_of(&server, "none"), "n3");

    let tolerant = json!({"tolerations": [{"key": "app", "operator": "Equal", "value": "blue", "effect": "NoSchedule"}],
        "nodeSelector": {"kubernetes.io/hostname": "n1"}});
    apply(&server, &pod("tolerant", tolerant));
    assert_eq!(node_of(&server, "tolerant"), "n1");
    server.run("kubectl cordon n1 n2 n3");
    apply(&server, &pod("late", json!({})));
    why_not(&server, "late", "node(s) were unschedulable");
    server.run("kubectl uncordon n2");
    assert_eq!(node_of(&server, "late"), "n2");
}

/// S2: pods that want to be together, apart, or spread out.
#[tokio::test]
async fn pods_mind_each_other() {
    let server = Server::at_work();
    three_nodes(&server).await;
    let labelled = |name: &str, app: &str, spec: Value| {
        let mut pod = pod(name, spec);
        pod["metadata"]["labels"] = json!({"app": app});
        pod
    };
    let term = |app: &str, key: &str| {
        json!({"requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key}]})
    };
    let apart = json!({"affinity": {"podAntiAffinity": term("web", "kubernetes.io/hostname")}});
    for name in ["w1", "w2", "w3", "w4"] {
        apply(&server, &labelled(name, "web", apart.clone()));
    }
    let why = eventually("one of four waits", || {
        let waiting = server.run("kubectl get pods -l app=web --field-selector spec.nodeName= -o name");
        let names: Vec<&str> = waiting.lines().collect();
        (names.len() == 1).then(|| why_not(&server, names[0].trim_start_matches("pod/"), "anti-affinity"))
    });
    assert!(
        why.starts_with("0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules."),
        "{why}"
    );
    let near = json!({"affinity": {"podAffinity": term("db", "topology.kubernetes.io/zone")}});
    apply(
        &server,
        &labelled("db", "db", json!({"nodeSelector": {"kubernetes.io/hostname": "n2"}})),
    );
    assert_eq!(node_of(&server, "db"), "n2");
    apply(&server, &labelled("near", "client", near));
    assert_eq!(node_of(&server, "near"), "n2");

    let spread = json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "s"}}}]});
    let names: Vec<String> = (0..6).map(|i| format!("s{i}")).collect();
    for name in &names {
        apply(&server, &labelled(name, "s", spread.clone()));
    }
    let mut nodes: Vec<String> = names.iter().map(|n| node_of(&server, n)).collect();
    nodes.sort();
    assert_eq!(nodes, ["n1", "n1", "n2", "n2", "n3", "n3"]);
}

/// S17: a more important pod takes the place of lesser ones, and a disruption budget is heeded.
#[tokio::test]
async fn important_pods_preempt() {
    let server = Server::at_work();
    let http = server.http().await;
    add_node(&http, "n1", "2", "8Gi", &[]).await;
    add_node(&http, "n2", "2", "8Gi", &[]).await;
    server.run("kubectl create priorityclass high --value=1000 && kubectl create priorityclass never --value=1000 --preemption-policy=Never");
    let on = |name: &str, node: &str, app: &str| {
        let mut pod = asks(name, "2", json!({"nodeSelector": {"kubernetes.io/hostname": node}}));
        pod["metadata"]["labels"] = json!({"app": app});
        pod
    };
    apply(&server, &on("kept", "n1", "kept"));
    apply(&server, &on("victim", "n2", "other"));
    node_of(&server, "kept");
    node_of(&server, "victim");
    // Nobody updates the budget's status here, so that it allows nothing.
    server.run("kubectl create pdb kept --selector=app=kept --min-available=1");
    apply(&server, &asks("patient", "2", json!({"priorityClassName": "never"})));
    let why = why_not(&server, "patient", "preemption");
    assert_eq!(
        why,
        "0/2 nodes are available: 2 Insufficient cpu. no new claims to deallocate, preemption: not eligible due to \
         preemptionPolicy=Never."
    );
    server.run("kubectl delete pod patient --grace-period=0 --force");
    apply(&server, &asks("urgent", "2", json!({"priorityClassName": "high"})));
    // With no kubelet nobody confirms the end of the victim: it is asked to go, and says why.
    let victim = eventually("the victim is told to go", || {
        let victim = server.get("pod victim");
        victim["metadata"]["deletionTimestamp"].is_string().then_some(victim)
    });
    let target = victim["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .find(|c| c["type"] == "DisruptionTarget");
    assert_eq!(target.unwrap()["reason"], "PreemptionByScheduler");
    assert_eq!(
        target.unwrap()["message"],
        "default-scheduler: preempting to accommodate a higher priority pod"
    );
    eventually("the node is promised", || {
        (server.get("pod urgent")["status"]["nominatedNodeName"] == "n2").then_some(())
    });
    server.run("kubectl delete pod victim --grace-period=0 --force");
    assert_eq!(node_of(&server, "urgent"), "n2");
    assert_eq!(server.get("pod kept")["metadata"]["deletionTimestamp"], Value::Null);
    let event = server.run("kubectl get events --field-selector reason=Preempted -o jsonpath='{.items[0].message}'");
    let uid = server.run("kubectl get pod urgent -o jsonpath={.metadata.uid}");
    assert_eq!(event, format!("Preempted by pod {uid} on node n2"));
    assert_eq!(server.get("pod urgent")["status"]["nominatedNodeName"], Value::Null);
}

/// Gates hold a pod back; taking them off lets it go. Pods of other schedulers are left alone.
#[tokio::test]
async fn gates_and_other_schedulers() {
    let server = Server::at_work();
    let http = server.http().await;
    apply(
        &server,
        &pod("gated", json!({"schedulingGates": [{"name": "example.com/wait"}]})),
    );
    apply(&server, &pod("elsewhere", json!({"schedulerName": "somebody-else"})));
    add_node(&http, "n1", "4", "8Gi", &[]).await;
    apply(&server, &pod("free", json!({})));
    assert_eq!(node_of(&server, "free"), "n1");
    let gated = server.get("pod gated");
    assert_eq!(gated["spec"]["nodeName"], Value::Null);
    let condition = &gated["status"]["conditions"][0];
    assert_eq!(
        (&condition["reason"], &condition["status"]),
        (&json!("SchedulingGated"), &json!("False"))
    );
    server.run("kubectl patch pod gated --type=json -p '[{\"op\":\"remove\",\"path\":\"/spec/schedulingGates\"}]'");
    assert_eq!(node_of(&server, "gated"), "n1");
    assert_eq!(server.get("pod elsewhere")["spec"]["nodeName"], Value::Null);
}

/// S13, S14: several profiles in one process, from a configuration file; events name the scheduler.
#[tokio::test]
async fn profiles_from_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("scheduler.yaml");
    std::fs::write(
        &file,
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n\
         - schedulerName: default-scheduler\n\
         - schedulerName: packer\n  plugins: {score: {disabled: [{name: '*'}], enabled: [{name: NodeResourcesFit, weight: 1}]}}\n  \
         pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}}}]\n\
         - schedulerName: careless\n  plugins: {filter: {disabled: [{name: TaintToleration}]}}\n",
    )
    .unwrap();
    let server = Launch::up()
        .arg("--scheduler-config")
        .arg(file.to_str().unwrap())
        .start();
    let http = server.http().await;
    eventually("the default account is there", || {
        (server.sh("kubectl get sa default").code == Some(0)).then_some(())
    });
    for name in ["n1", "n2"] {
        add_node(&http, name, "4", "8Gi", &[]).await;
    }
    apply(&server, &asks("seed", "1", json!({})));
    let node = node_of(&server, "seed");
    for i in 0..3 {
        let name = format!("packed-{i}");
        apply(&server, &asks(&name, "1", json!({"schedulerName": "packer"})));
        assert_eq!(node_of(&server, &name), node, "a packed node is filled up");
    }
    server.run("kubectl taint node n1 n2 k=v:NoSchedule");
    apply(&server, &asks("careless", "100m", json!({"schedulerName": "careless"})));
    node_of(&server, "careless");
    let by = server.run("kubectl get events --field-selector reason=Scheduled,involvedObject.name=packed-0 -o jsonpath='{.items[0].reportingComponent}'");
    assert_eq!(by, "packer");
}

/// A configuration that can't be meant is refused at the start, with every problem named.
#[test]
fn bad_configurations_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("scheduler.yaml");
    std::fs::write(
        &file,
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nparallelism: 0\nprofiles:\n\
         - plugins: {score: {enabled: [{name: NoSuchPlugin}]}}\n",
    )
    .unwrap();
    let mut command = Launch::up()
        .arg("--scheduler-config")
        .arg(file.to_str().unwrap())
        .command(&directory.path().join("data"));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("parallelism") && said.contains("NoSuchPlugin"), "{said}");
}

/// S4, faults: thousands of pods, a server killed in the middle, and a scheduler that starts anew. All get a node, once.
#[tokio::test]
async fn a_crash_in_the_middle_loses_no_pod() {
    let mut server = Server::at_work();
    let http = server.http().await;
    for i in 0..20 {
        add_node(&http, &format!("n{i}"), "64", "256Gi", &[]).await;
    }
    let body = asks("p", "100m", json!({}));
    let create = |i: usize| {
        let mut body = body.clone();
        body["metadata"]["name"] = format!("p{i}").into();
        body
    };
    for i in 0..400 {
        http.post("/api/v1/namespaces/default/pods", &create(i))
            .await
            .expect(201);
    }
    server.kill();
    server.start_again();
    eventually("every pod has a node", || {
        let waiting = server.run("kubectl get pods --field-selector spec.nodeName= -o name");
        waiting.is_empty().then_some(())
    });
    assert_eq!(server.run("kubectl get pods -o name | wc -l").trim(), "400");
}

/// The pods of the notes find their places.
#[tokio::test]
async fn the_notes_pods_are_placed() {
    let server = Server::at_work();
    let http = server.http().await;
    add_node(&http, "worker-1", "8", "16Gi", &[("size", "Large"), ("color", "blue")]).await;
    for name in ["pod-tolerations", "pod-requests", "pod-limits"] {
        server.run(&format!(
            "kubectl create -f {}",
            fixture(&format!("notes/{name}.yaml")).display()
        ));
    }
    eventually("all are placed", || {
        let waiting = server.run("kubectl get pods --field-selector spec.nodeName= -o name");
        waiting.is_empty().then_some(())
    });
}

/// S16: two schedulers, one lease. The leader is killed under load; the other goes on, and every pod has one node.
#[tokio::test]
async fn the_second_scheduler_takes_over() {
    let server = Server::with_accounts();
    let http = server.http().await;
    for i in 0..5 {
        add_node(&http, &format!("n{i}"), "64", "256Gi", &[]).await;
    }
    let scheduler = |name: &str| {
        let log = std::fs::File::create(server.home().join(name)).unwrap();
        std::process::Command::new(orlop_testkit::orlop())
            .args(["scheduler", "--secure-port=0", "--leader-elect-lease-duration=3s"])
            .args(["--leader-elect-renew-deadline=2s", "--leader-elect-retry-period=500ms"])
            .arg("--kubeconfig")
            .arg(server.kubeconfig())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap()
    };
    let holder = || {
        server.run(
            "kubectl get lease -n kube-system kube-scheduler -o jsonpath={.spec.holderIdentity} --ignore-not-found",
        )
    };
    let mut first = scheduler("first.log");
    let leader = eventually("the first leads", || Some(holder()).filter(|h| !h.is_empty()));
    let mut second = scheduler("second.log");
    let create = async |i: usize| {
        let body = asks(&format!("p{i}"), "100m", json!({}));
        http.post("/api/v1/namespaces/default/pods", &body).await.expect(201);
    };
    for i in 0..150 {
        create(i).await;
    }
    first.kill().unwrap();
    first.wait().unwrap();
    for i in 150..300 {
        create(i).await;
    }
    eventually("every pod has a node", || {
        let waiting = server.run("kubectl get pods --field-selector spec.nodeName= -o name");
        waiting.is_empty().then_some(())
    });
    assert_ne!(holder(), leader);
    // Nothing was bound twice: a second binding would have been refused, and told as a failure.
    assert_eq!(server.run("kubectl get pods -o name | wc -l").trim(), "300");
    let failures = server.run("kubectl get events --field-selector reason=FailedScheduling -o name");
    assert_eq!(failures, "");
    second.kill().unwrap();
    second.wait().unwrap();
}

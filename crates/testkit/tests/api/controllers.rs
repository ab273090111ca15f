//! From a Deployment to pods that heal, as kubectl shows it. Nodes are simulated: they say that pods run.

use orlop_testkit::{Launch, Server, eventually};
use serde_json::{Value, json};

fn cluster(nodes: u32) -> Server {
    let server = Launch::up().arg(format!("--simulate={nodes}")).start();
    eventually("the nodes are ready", || {
        let lines = server.run("kubectl get nodes --no-headers");
        (lines.lines().filter(|l| l.contains(" Ready ")).count() == nodes as usize).then_some(())
    });
    server
}

fn apply(server: &Server, object: &Value) {
    server.run_with("kubectl apply -f -", &object.to_string());
}

fn workload(kind: &str, name: &str, more: Value) -> Value {
    let labels = json!({"app": name});
    let mut object = json!({
        "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "nginx:1"}]}},
        },
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    object
}

/// Names of the pods with this label that are not on their way out.
fn pods(server: &Server, label: &str) -> Vec<String> {
    let found = server.get(&format!("pods -l {label}"));
    let items = found["items"].as_array().cloned().unwrap_or_default();
    let alive = items.iter().filter(|p| p["metadata"]["deletionTimestamp"].is_null());
    alive
        .map(|p| p["metadata"]["name"].as_str().unwrap().to_string())
        .collect()
}

fn images(server: &Server, label: &str) -> Vec<String> {
    let found = server.get(&format!("pods -l {label}"));
    let items = found["items"].as_array().cloned().unwrap_or_default();
    items
        .iter()
        .map(|p| p["spec"]["containers"][0]["image"].as_str().unwrap().to_string())
        .collect()
}

/// C2: too few are made more, too many fewer; a pod that nobody owns is taken, one that no longer matches let go.
#[test]
fn replica_sets_heal() {
    let server = cluster(3);
    apply(&server, &workload("ReplicaSet", "web", json!({"replicas": 3})));
    server.run("kubectl wait --for=jsonpath={.status.readyReplicas}=3 rs/web --timeout=60s");
    let before = pods(&server, "app=web");
    assert_eq!(before.len(), 3);
    server.run(&format!("kubectl delete pod {}", before[0]));
    eventually("another pod is there", || {
        let now = pods(&server, "app=web");
        (now.len() == 3 && !now.contains(&before[0])).then_some(())
    });
    // A fourth that matches is one too many: adopted, and then it or another goes.
    server.run("kubectl run extra --image=nginx -l app=web");
    eventually("three again", || (pods(&server, "app=web").len() == 3).then_some(()));
    // One that is labelled away is let go and replaced.
    let free = pods(&server, "app=web")[0].clone();
    server.run(&format!("kubectl label pod {free} app=other --overwrite"));
    eventually("it is let go", || {
        let pod = server.get(&format!("pod {free}"));
        (pod["metadata"]["ownerReferences"].is_null() && pods(&server, "app=web").len() == 3).then_some(())
    });
    let described = server.run("kubectl describe rs web");
    assert!(
        described.contains("SuccessfulCreate") && described.contains("3 current / 3 desired"),
        "{described}"
    );
    server.run("kubectl scale rs web --replicas=1");
    eventually("one is left", || (pods(&server, "app=web").len() == 1).then_some(()));
    server.run("kubectl delete rs web");
    eventually("its pod goes with it", || {
        pods(&server, "app=web").is_empty().then_some(())
    });
    assert_eq!(pods(&server, "app=other"), [free]);
}

/// C1: apply, scale, update, undo, pause, restart.
#[test]
fn deployments_roll_out_and_back() {
    let server = cluster(3);
    apply(&server, &workload("Deployment", "web", json!({"replicas": 4})));
    let said = server.run("kubectl rollout status deployment/web --timeout=60s");
    assert!(said.contains("deployment \"web\" successfully rolled out"), "{said}");
    server.run("kubectl set image deployment/web c=nginx:2");
    server.run("kubectl rollout status deployment/web --timeout=60s");
    eventually("only new pods are left", || {
        (images(&server, "app=web") == ["nginx:2"; 4]).then_some(())
    });
    let history = server.run("kubectl rollout history deployment/web");
    assert_eq!(
        history.lines().filter(|l| l.starts_with(['1', '2'])).count(),
        2,
        "{history}"
    );
    server.run("kubectl rollout undo deployment/web");
    server.run("kubectl rollout status deployment/web --timeout=60s");
    eventually("the old ones are back", || {
        (images(&server, "app=web") == ["nginx:1"; 4]).then_some(())
    });
    let history = server.run("kubectl rollout history deployment/web");
    assert!(history.contains("\n3 ") && !history.contains("\n1 "), "{history}");
    server.run("kubectl rollout pause deployment/web");
    server.run("kubectl set image deployment/web c=nginx:3");
    server.run("kubectl scale deployment/web --replicas=5");
    eventually("a paused one still scales", || {
        (images(&server, "app=web") == ["nginx:1"; 5]).then_some(())
    });
    server.run("kubectl rollout resume deployment/web");
    server.run("kubectl rollout status deployment/web --timeout=60s");
    eventually("and goes on when it may", || {
        (images(&server, "app=web") == ["nginx:3"; 5]).then_some(())
    });
    let before = pods(&server, "app=web");
    server.run("kubectl rollout restart deployment/web");
    server.run("kubectl rollout status deployment/web --timeout=60s");
    eventually("all pods are new", || {
        let now = pods(&server, "app=web");
        (now.len() == 5 && now.iter().all(|name| !before.contains(name))).then_some(())
    });
    let deployment = server.get("deployment web");
    assert_eq!(deployment["status"]["availableReplicas"], 5);
    server.run("kubectl wait --for=condition=Available deployment/web --timeout=10s");
    server.run("kubectl delete deployment web");
    eventually("nothing is left", || {
        server.run("kubectl get rs,pods -o name").is_empty().then_some(())
    });
}

/// C1: one that can't make progress says so.
#[test]
fn a_rollout_that_sticks_says_so() {
    let server = cluster(1);
    let stuck = json!({"replicas": 1, "progressDeadlineSeconds": 1});
    let mut object = workload("Deployment", "stuck", stuck);
    object["spec"]["template"]["spec"]["nodeSelector"] = json!({"no": "where"});
    apply(&server, &object);
    let said = server.fails("kubectl rollout status deployment/stuck --timeout=60s");
    assert!(said.contains("exceeded its progress deadline"), "{said}");
    object["spec"]["template"]["spec"]["nodeSelector"] = Value::Null;
    apply(&server, &object);
    server.run("kubectl rollout status deployment/stuck --timeout=60s");
}

/// C4: one on every node, also on new ones, and on those only that are meant.
#[test]
fn daemon_sets_follow_nodes() {
    let server = cluster(3);
    apply(&server, &workload("DaemonSet", "agent", json!({})));
    let said = server.run("kubectl rollout status daemonset/agent --timeout=60s");
    assert!(said.contains("successfully rolled out"), "{said}");
    let on = || {
        let found = server.get("pods -l app=agent");
        let items = found["items"].as_array().cloned().unwrap_or_default();
        let alive = items.iter().filter(|p| p["metadata"]["deletionTimestamp"].is_null());
        let mut nodes: Vec<String> = alive
            .map(|p| p["spec"]["nodeName"].as_str().unwrap_or("").to_string())
            .collect();
        nodes.sort();
        nodes
    };
    assert_eq!(on(), ["sim-0", "sim-1", "sim-2"]);
    server.run("kubectl set image daemonset/agent c=nginx:2");
    server.run("kubectl rollout status daemonset/agent --timeout=60s");
    assert_eq!(images(&server, "app=agent"), ["nginx:2"; 3]);
    server.run("kubectl rollout undo daemonset/agent");
    server.run("kubectl rollout status daemonset/agent --timeout=60s");
    eventually("the old image is back", || {
        (images(&server, "app=agent") == ["nginx:1"; 3]).then_some(())
    });
    server.run(
        "kubectl patch daemonset agent -p '{\"spec\":{\"template\":{\"spec\":{\"nodeSelector\":{\"a\":\"b\"}}}}}'",
    );
    eventually("no node is meant", || on().is_empty().then_some(()));
    server.run("kubectl label node sim-1 a=b");
    eventually("one is", || (on() == ["sim-1"]).then_some(()));
}

/// C7: names and order.
#[test]
fn stateful_sets_keep_names_and_order() {
    let server = cluster(3);
    let mut object = workload("StatefulSet", "db", json!({"replicas": 3, "serviceName": "db"}));
    apply(&server, &object);
    let said = server.run("kubectl rollout status statefulset/db --timeout=60s");
    assert!(said.contains("partitioned roll out complete: 3 new pods"), "{said}");
    assert_eq!(pods(&server, "app=db"), ["db-0", "db-1", "db-2"]);
    let uid = server.get("pod db-1")["metadata"]["uid"].clone();
    server.run("kubectl delete pod db-1 --wait=false");
    eventually("a new one of the same name", || {
        let pod = server.sh("kubectl get pod db-1 -o json");
        let pod: Value = serde_json::from_str(&pod.stdout).ok()?;
        (pod["metadata"]["uid"] != uid && pod["status"]["phase"] == "Running").then_some(())
    });
    object["spec"]["updateStrategy"] = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 2}});
    object["spec"]["template"]["spec"]["containers"][0]["image"] = json!("nginx:2");
    apply(&server, &object);
    eventually("only the last is updated", || {
        (images(&server, "app=db") == ["nginx:1", "nginx:1", "nginx:2"]).then_some(())
    });
    object["spec"]["updateStrategy"]["rollingUpdate"]["partition"] = json!(0);
    apply(&server, &object);
    server.run("kubectl rollout status statefulset/db --timeout=60s");
    server.run("kubectl rollout undo statefulset/db");
    server.run("kubectl rollout status statefulset/db --timeout=60s");
    eventually("the first image is back", || {
        (images(&server, "app=db") == ["nginx:1"; 3]).then_some(())
    });
    server.run("kubectl scale statefulset/db --replicas=1");
    eventually("the last go first", || {
        (pods(&server, "app=db") == ["db-0"]).then_some(())
    });
}

/// C7: work that ends.
#[test]
fn jobs_end_and_are_cleared_away() {
    let server = cluster(2);
    let job = |name: &str, spec: Value, annotations: Value| {
        let mut job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {
            "template": {"metadata": {"annotations": annotations}, "spec": {"restartPolicy": "Never",
                "containers": [{"name": "c", "image": "busybox"}]}}}});
        for (key, value) in spec.as_object().into_iter().flatten() {
            job["spec"][key] = value.clone();
        }
        job
    };
    let quick = json!({"orlop.io/run-for": "1ms"});
    let indexed = json!({"completions": 4, "parallelism": 2, "completionMode": "Indexed"});
    apply(&server, &job("good", indexed, quick.clone()));
    server.run("kubectl wait --for=condition=Complete job/good --timeout=60s");
    let status = server.get("job good")["status"].clone();
    assert_eq!(
        (&status["succeeded"], &status["completedIndexes"]),
        (&json!(4), &json!("0-3")),
        "{status}"
    );
    let bad = json!({"orlop.io/run-for": "1ms", "orlop.io/exit-code": "3"});
    apply(&server, &job("bad", json!({"backoffLimit": 0}), bad));
    server.run("kubectl wait --for=condition=Failed job/bad --timeout=60s");
    let conditions = server.get("job bad")["status"]["conditions"].to_string();
    assert!(conditions.contains("BackoffLimitExceeded"), "{conditions}");
    apply(&server, &job("brief", json!({"ttlSecondsAfterFinished": 0}), quick));
    eventually("it is gone, with its pods", || {
        server
            .run("kubectl get job,pods -l job-name=brief -o name")
            .is_empty()
            .then_some(())
    });
    server.run("kubectl create cronjob tick --image=busybox --schedule='* * * * *'");
    server.run("kubectl create job by-hand --from=cronjob/tick");
    server.run("kubectl wait --for=condition=Complete job/by-hand --timeout=60s");
}

/// C5: services lead to pods that are ready, and to no others.
#[test]
fn endpoints_follow_ready_pods() {
    let server = cluster(2);
    server.run("kubectl create deployment web --image=nginx --replicas=2 --port=80");
    server.run("kubectl expose deployment web");
    let addresses = || {
        let slices = server.get("endpointslices -l kubernetes.io/service-name=web");
        let endpoints = slices["items"].as_array().into_iter().flatten();
        let all: Vec<Value> = endpoints
            .flat_map(|s| s["endpoints"].as_array().cloned().unwrap_or_default())
            .collect();
        all.iter().filter(|e| e["conditions"]["ready"] == true).count()
    };
    eventually("two addresses", || (addresses() == 2).then_some(()));
    server.run("kubectl scale deployment web --replicas=5");
    eventually("five", || (addresses() == 5).then_some(()));
    let endpoints = server.run("kubectl get endpoints web -o jsonpath='{.subsets[0].addresses[*].ip}' 2>/dev/null");
    assert_eq!(endpoints.split_whitespace().count(), 5, "{endpoints}");
    server.run("kubectl scale deployment web --replicas=0");
    eventually("none", || (addresses() == 0).then_some(()));
    server.run("kubectl delete service web");
    eventually("no slices", || {
        let left = server.run("kubectl get endpointslices -l kubernetes.io/service-name=web -o name");
        left.is_empty().then_some(())
    });
}

/// C3: a node fails, its pods leave, others take their place. The tolerations' time is short here.
#[test]
fn pods_leave_failed_nodes() {
    let server = cluster(3);
    let mut object = workload("Deployment", "web", json!({"replicas": 3}));
    let toleration = |key: &str| json!({"key": format!("node.kubernetes.io/{key}"), "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1});
    object["spec"]["template"]["spec"]["tolerations"] = json!([toleration("not-ready"), toleration("unreachable")]);
    apply(&server, &object);
    server.run("kubectl rollout status deployment/web --timeout=60s");
    let node = server.run("kubectl get pods -l app=web -o jsonpath='{.items[0].spec.nodeName}'");
    server.run(&format!("kubectl annotate node {node} orlop.io/fault=not-ready"));
    eventually("the node is tainted", || {
        let taints = server.get(&format!("node {node}"))["spec"]["taints"].to_string();
        (taints.contains("NoExecute") && taints.contains("NoSchedule")).then_some(())
    });
    eventually("three run elsewhere", || {
        let found = server.get("pods -l app=web");
        let ready = |p: &&Value| {
            let conditions = p["status"]["conditions"].as_array();
            let ready = conditions.is_some_and(|c| c.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"));
            ready && p["spec"]["nodeName"] != node.as_str() && p["metadata"]["deletionTimestamp"].is_null()
        };
        (found["items"].as_array()?.iter().filter(ready).count() == 3).then_some(())
    });
    server.run(&format!("kubectl annotate node {node} orlop.io/fault-"));
    eventually("the taints go", || {
        server.get(&format!("node {node}"))["spec"]["taints"]
            .is_null()
            .then_some(())
    });
}

/// S17, C7: `kubectl drain` respects a disruption budget.
#[test]
fn drains_respect_budgets() {
    let server = cluster(2);
    server.run("kubectl create deployment web --image=nginx --replicas=2");
    server.run("kubectl rollout status deployment/web --timeout=60s");
    server.run("kubectl create pdb web --selector=app=web --min-available=2");
    eventually("the budget is counted", || {
        let status = server.get("pdb web")["status"].clone();
        (status["currentHealthy"] == 2 && status["disruptionsAllowed"] == 0).then_some(())
    });
    let node = server.run("kubectl get pods -l app=web -o jsonpath='{.items[0].spec.nodeName}'");
    let refused = server.fails(&format!("kubectl drain {node} --ignore-daemonsets --timeout=3s"));
    assert!(
        refused.contains("Cannot evict pod as it would violate the pod's disruption budget."),
        "{refused}"
    );
    server.run("kubectl patch pdb web -p '{\"spec\":{\"minAvailable\":1}}'");
    let drained = server.run(&format!("kubectl drain {node} --ignore-daemonsets --timeout=60s"));
    assert!(drained.contains(&format!("node/{node} drained")), "{drained}");
    server.run("kubectl rollout status deployment/web --timeout=60s");
    let nodes = server.run("kubectl get pods -l app=web -o jsonpath='{.items[*].spec.nodeName}'");
    assert!(!nodes.split_whitespace().any(|n| n == node), "{nodes}");
}

/// S10: a pod leaves its node when the labels it requires there are gone; the field comes back as it was written.
#[test]
fn required_during_execution() {
    let server = cluster(2);
    server.run("kubectl label nodes sim-0 sim-1 disk=fast");
    let mut object = workload("Deployment", "web", json!({"replicas": 1}));
    let terms =
        json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["fast"]}]}]});
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingRequiredDuringExecution": terms}});
    object["spec"]["template"]["spec"]["affinity"] = affinity.clone();
    apply(&server, &object);
    server.run("kubectl rollout status deployment/web --timeout=60s");
    let pod = server.get("pods -l app=web")["items"][0].clone();
    assert_eq!(pod["spec"]["affinity"], affinity);
    let (name, node) = (
        pod["metadata"]["name"].as_str().unwrap(),
        pod["spec"]["nodeName"].as_str().unwrap(),
    );
    server.run(&format!("kubectl label node {node} disk=slow --overwrite"));
    eventually("its successor runs elsewhere", || {
        let found = server.get("pods -l app=web");
        let items = found["items"].as_array()?;
        let elsewhere = |p: &&Value| p["spec"]["nodeName"] != node && p["status"]["phase"] == "Running";
        (items.len() == 1 && items.iter().filter(elsewhere).count() == 1).then_some(())
    });
    eventually("an event says why", || {
        let events = server.run(&format!(
            "kubectl get events --field-selector involvedObject.name={name} -o name"
        ));
        let told = server.run("kubectl get events --field-selector reason=NodeAffinityViolated -o name");
        (!events.is_empty() && !told.is_empty()).then_some(())
    });
}

/// A claim just works: the default class makes a volume where the pod goes.
#[test]
fn claims_get_volumes() {
    let server = cluster(2);
    eventually("there is a default class", || {
        server
            .run("kubectl get sc")
            .contains("local-path (default)")
            .then_some(())
    });
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    apply(&server, &claim);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "user"}, "spec": {
        "containers": [{"name": "c", "image": "nginx", "volumeMounts": [{"name": "v", "mountPath": "/data"}]}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}});
    apply(&server, &pod);
    server.run("kubectl wait --for=condition=Ready pod/user --timeout=60s");
    let claim = server.get("pvc data");
    assert_eq!(claim["status"]["phase"], "Bound", "{claim}");
    // In use: its end waits for the pod's.
    server.run("kubectl delete pvc data --wait=false");
    assert!(server.run("kubectl get pvc data").contains("Terminating"));
    server.run("kubectl delete pod user");
    eventually("then it is gone", || {
        server.run("kubectl get pvc -o name").is_empty().then_some(())
    });
}

/// `orlop up` with a node agent whose containers are simulated.
fn with_agent(more: &[&str]) -> Server {
    let launch = Launch::up()
        .arg("--nodes=1")
        .arg("--runtime=simulated")
        .arg("--node-name=n1");
    let server = more.iter().fold(launch, |launch, arg| launch.arg(*arg)).start();
    server.run("kubectl wait --for=create sa/default node/n1 --timeout=60s");
    server.run("kubectl wait --for=condition=Ready node/n1 --timeout=60s");
    server
}

/// Type, reason, how often, source and message of each event that `kubectl describe` shows.
fn described(server: &Server, what: &str) -> Vec<[String; 5]> {
    let text = server.run(&format!("kubectl describe {what}"));
    let (_, events) = text.split_once("Events:").unwrap_or_default();
    let line = |line: &str| {
        let cells: Vec<&str> = line
            .split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .collect();
        let [kind, reason, age, from, message] = cells[..] else {
            return None;
        };
        let times = age.split_once("(x").and_then(|(_, rest)| rest.split_once(' '));
        let times = times.map_or("1", |(times, _)| times);
        // Newer versions of kubectl say where in the object it was.
        let message = match message.split_once("}: ") {
            Some((place, message)) if place.starts_with("spec.") => message,
            _ => message,
        };
        Some([kind, reason, times, from, message].map(str::to_string))
    };
    events.lines().skip(3).filter_map(line).collect()
}

/// Item by item as Kubernetes shows them: other messages are other lines, the same one has a count.
#[test]
fn events_of_a_pod_are_told_apart_and_counted() {
    let server = with_agent(&[]);
    let probe = |path: &str| json!({"httpGet": {"host": "127.0.0.1", "port": 1, "path": path}, "periodSeconds": 1, "failureThreshold": 99});
    apply(
        &server,
        &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "sick"}, "spec": {"containers": [
            {"name": "c", "image": "nginx", "livenessProbe": probe("/live"), "readinessProbe": probe("/ready")}]}}),
    );
    apply(
        &server,
        &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "lost", "annotations": {"orlop.io/fail-pull": "no such image"}},
            "spec": {"containers": [{"name": "c", "image": "nowhere/none:1"}]}}),
    );
    let unhealthy = |path: &str, kind: &str| {
        let why = format!("{kind} probe failed: Get \"http://127.0.0.1:1{path}\"");
        eventually("a failed probe is told and counted", || {
            let events = described(&server, "pod sick");
            let found: Vec<_> = events.iter().filter(|e| e[4].starts_with(&why)).collect();
            assert!(found.len() <= 1, "{events:?}");
            let [_, reason, times, from, _] = found.first()?;
            assert_eq!((reason.as_str(), from.as_str()), ("Unhealthy", "kubelet"));
            (times != "1").then_some(())
        });
    };
    unhealthy("/live", "Liveness");
    unhealthy("/ready", "Readiness");

    let events = eventually("the pod waits for its image", || {
        let events = described(&server, "pod lost");
        let waits = events.iter().any(|e| e[4] == "Error: ImagePullBackOff");
        waits.then_some(events)
    });
    let shown: Vec<String> = events.iter().map(|e| format!("{} {}: {}", e[0], e[1], e[4])).collect();
    for line in [
        "Normal Pulling: Pulling image \"nowhere/none:1\"",
        "Warning Failed: Failed to pull image \"nowhere/none:1\": no such image",
        "Warning Failed: Error: ErrImagePull",
        "Normal BackOff: Back-off pulling image \"nowhere/none:1\"",
        "Warning Failed: Error: ImagePullBackOff",
    ] {
        assert_eq!(shown.iter().filter(|l| *l == line).count(), 1, "{line} in {shown:#?}");
    }
    let wide = server.run("kubectl get events -o wide --field-selector reason=Unhealthy --no-headers");
    assert!(
        wide.contains("spec.containers{c}") && wide.contains("kubelet, n1"),
        "{wide}"
    );
}

/// Simulated nodes have the sizes, labels, taints and roles that they are told, refuse what a kubelet would refuse, and
/// share their zones with a node that is not simulated.
#[test]
fn simulated_nodes_are_as_told() {
    let shape = "--simulate-shape=big=2:cpu=16,memory=64Gi,label=size=Large,taint=dedicated=db:NoSchedule,role=worker,image=nginx:1=180Mi";
    let server = with_agent(&["--simulate=3", shape]);
    server.run("kubectl wait --for=condition=Ready node/big-1 node/sim-2 --timeout=60s");
    let row = server.run("kubectl get nodes -l size=Large --no-headers");
    let roles: Vec<&str> = row.lines().filter_map(|l| l.split_whitespace().nth(2)).collect();
    assert_eq!(roles, ["worker", "worker"], "{row}");
    let node = server.get("node big-0");
    assert_eq!(node["status"]["allocatable"]["cpu"], "16");
    assert_eq!(node["status"]["allocatable"]["memory"], "64Gi");
    assert_eq!(node["status"]["images"][0]["names"], json!(["nginx:1"]));
    eventually("the node is ready, and so has its own taint only", || {
        let taints = server.get("node big-0")["spec"]["taints"].clone();
        (taints == json!([{"key": "dedicated", "value": "db", "effect": "NoSchedule"}])).then_some(())
    });

    // Past the scheduler, as by hand.
    let resources = json!({"requests": {"cpu": "20"}});
    apply(
        &server,
        &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "large"}, "spec": {"nodeName": "big-0",
            "containers": [{"name": "c", "image": "nginx:1", "resources": resources}]}}),
    );
    server.run("kubectl wait --for=jsonpath={.status.phase}=Failed pod/large --timeout=60s");
    let status = server.get("pod large")["status"].clone();
    let why = "Node didn't have enough resource: cpu, requested: 20000, used: 0, capacity: 16000";
    assert_eq!(status["reason"], "OutOfcpu");
    assert_eq!(status["message"], format!("Pod was rejected: {why}"));
    eventually("the node says so", || {
        let events = described(&server, "pod large");
        let line = events.iter().find(|e| e[1] == "OutOfcpu")?;
        assert_eq!(
            (line[0].as_str(), line[3].as_str(), line[4].as_str()),
            ("Warning", "kubelet", why)
        );
        Some(())
    });

    // Five simulated nodes in three zones, two in the first and in the second: the other one is in the third.
    let labels = server.get("node n1")["metadata"]["labels"].clone();
    assert_eq!(labels["topology.kubernetes.io/zone"], "sim-zone-2");
    assert_eq!(labels["topology.kubernetes.io/region"], "sim");
    let spread = json!([{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "spread"}}}]);
    apply(
        &server,
        &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "spread", "labels": {"app": "spread"}}, "spec": {
            "nodeSelector": {"kubernetes.io/hostname": "n1"}, "topologySpreadConstraints": spread,
            "containers": [{"name": "c", "image": "nginx:1"}]}}),
    );
    server.run("kubectl wait --for=condition=Ready pod/spread --timeout=60s");
    let orlop = orlop_testkit::orlop();
    let refused = server.fails(&format!("{} up --simulate-shape big=2:cpu=much", orlop.display()));
    for part in ["--simulate-shape", "big=2:cpu=much: cpu: invalid quantity \"much\""] {
        assert!(refused.contains(part), "{refused}");
    }
}

/// While somebody holds the controllers' lease, the server leaves root certificates to them.
#[test]
fn another_controller_manager_publishes_the_authorities() {
    let server = Server::with_accounts();
    let now = orlop_base::clock::rfc3339_micro(orlop_base::Clock::System.now());
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "kube-controller-manager", "namespace": "kube-system"},
        "spec": {"holderIdentity": "somebody", "leaseDurationSeconds": 3600, "acquireTime": now, "renewTime": now},
    });
    server.run_with("kubectl create -f -", &lease.to_string());
    // Namespaces are furnished one after the other: once the second has its account, nothing more comes for the first.
    for namespace in ["first", "second"] {
        server.run(&format!("kubectl create namespace {namespace}"));
        server.run(&format!(
            "kubectl wait -n {namespace} --for=create sa/default --timeout=60s"
        ));
    }
    let missing = server.fails("kubectl get configmap -n first kube-root-ca.crt");
    assert!(missing.contains("NotFound"), "{missing}");
    server.run("kubectl delete lease -n kube-system kube-controller-manager");
    server.run("kubectl create namespace third");
    server.run("kubectl wait -n third --for=create configmap/kube-root-ca.crt --timeout=60s");
}

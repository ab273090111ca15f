//! The manifests people learn Kubernetes with (`fixtures/notes`): accepted as they stand, or refused for Kubernetes'
//! reason. One by one, so that each can be tried by hand as well: `kubectl create -f FILE`.

use orlop_testkit::{Server, fixture};
use serde_json::{Value, json};

fn create(server: &Server, name: &str) -> String {
    server.run(&format!(
        "kubectl create -f {}",
        fixture(&format!("notes/{name}")).display()
    ))
}

fn refused(server: &Server, name: &str) -> String {
    server.fails(&format!(
        "kubectl create -f {}",
        fixture(&format!("notes/{name}")).display()
    ))
}

/// Every fixture is either named here or tried by one of the other tests of this file.
const ACCEPTED: &[(&str, &str)] = &[
    ("node.yaml", "node/worker-2"),
    ("priority-class.yaml", "priorityclass.scheduling.k8s.io/high-priority"),
    ("pod-placed-by-hand.yaml", "pod/placed"),
    ("replicaset.yaml", "replicaset.apps/shop"),
    ("service.yaml", "service/shop"),
    ("pod-tolerations.yaml", "pod/tolerant"),
    ("pod-node-selector.yaml", "pod/selective"),
    ("pod-node-affinity.yaml", "pod/attracted"),
    ("pod-planned-affinity.yaml", "pod/planned"),
    ("pod-dedicated.yaml", "pod/blue"),
    ("pod-requests.yaml", "pod/hungry"),
    ("pod-limits.yaml", "pod/bounded"),
    ("daemonset.yaml", "daemonset.apps/watcher"),
    ("deployment.yaml", "deployment.apps/shop"),
    ("scheduler-pod.yaml", "pod/second-scheduler"),
    ("scheduler-config-map.yaml", "configmap/second-scheduler"),
    ("pod-other-scheduler.yaml", "pod/elsewhere"),
    ("pod-priority.yaml", "pod/urgent"),
    ("disruption-budget.yaml", "poddisruptionbudget.policy/shop"),
    ("mirror-pod.yaml", "pod/static-web-worker-2"),
    ("proxy-config-map.yaml", "configmap/kube-proxy"),
    ("pod-busy-shell.yaml", "pod/shell"),
    ("pod-running.json", "pod/running"),
    ("limit-range-cpu.yaml", "limitrange/cpu-bounds"),
    ("limit-range-memory.yaml", "limitrange/memory-bounds"),
    ("resource-quota.yaml", "resourcequota/team-quota"),
];

const ELSEWHERE: &[&str] = &[
    "binding.yaml",
    "pod-waiting.yaml",
    "replicaset-of-the-wrong-group.yaml",
    "replicaset-number-in-annotation.yaml",
];

#[test]
fn valid_manifests_are_accepted() {
    let server = Server::with_accounts();
    // One kubectl for all: in order, and an error stops none of the others.
    let files: String = ACCEPTED
        .iter()
        .map(|(name, _)| format!(" -f {}", fixture(&format!("notes/{name}")).display()))
        .collect();
    let said = server.run(&format!("kubectl create {files}"));
    for (name, what) in ACCEPTED {
        assert!(said.contains(&format!("{what} created\n")), "{name}: {said}");
    }
    // What is accepted can be applied over itself, and is listed.
    server.run(&format!("kubectl apply --server-side --force-conflicts {files}"));
    let pods = server.run("kubectl get pods -A --no-headers | wc -l");
    let expected = ACCEPTED.iter().filter(|(_, what)| what.starts_with("pod/")).count();
    assert_eq!(pods.trim(), expected.to_string());

    for entry in std::fs::read_dir(fixture("notes")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let known = ACCEPTED.iter().any(|(n, _)| *n == name) || ELSEWHERE.contains(&name.as_str());
        assert!(known, "fixtures/notes/{name} is tried by no test: name it in ACCEPTED");
    }

    check_filled_in(&server);
}

fn check_filled_in(server: &Server) {
    let tolerant = server.get("pod tolerant");
    let tolerations = tolerant["spec"]["tolerations"].as_array().unwrap();
    // The four of the manifest, and two that keep a pod for five minutes on a node that is away.
    assert_eq!(tolerations.len(), 6, "{tolerations:?}");
    assert!(tolerations.contains(&json!({"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})));
    assert_eq!(server.get("pod elsewhere")["spec"]["schedulerName"], "second-scheduler");
    assert_eq!(tolerant["spec"]["schedulerName"], "default-scheduler");
    let urgent = server.get("pod urgent");
    assert_eq!(
        (&urgent["spec"]["priority"], &urgent["spec"]["preemptionPolicy"]),
        (&json!(1000000), &json!("PreemptLowerPriority"))
    );
    assert_eq!(server.get("pod static-web-worker-2")["spec"]["priority"], 2000001000);
    let bounded = server.get("pod bounded");
    assert_eq!(bounded["status"]["qosClass"], "Burstable");
    assert_eq!(bounded["spec"]["containers"][0]["resources"]["limits"]["cpu"], "2");
    // A new pod's status is for the cluster to say, a new node's is its agent's.
    let running = server.get("pod running");
    assert_eq!(running["status"]["phase"], "Pending");
    let node = server.get("node worker-2");
    assert_eq!(
        node["status"]["allocatable"],
        json!({"cpu": "3800m", "memory": "7680Mi", "pods": "110"})
    );
    let shown = server.run("kubectl get node worker-2 --no-headers");
    assert_eq!(shown.split_whitespace().nth(1), Some("Ready"), "{shown}");
    let service = server.get("svc shop");
    assert_eq!(
        service["spec"]["ports"][0],
        json!({"port": 80, "protocol": "TCP", "targetPort": 9376})
    );
    assert!(
        service["spec"]["clusterIP"].as_str().unwrap().starts_with("10."),
        "{service:#}"
    );
    assert_eq!(server.get("pdb shop")["spec"]["minAvailable"], 2);

    server.run(r#"kubectl patch configmap -n kube-system kube-proxy --patch '{"data":{"config.conf":"mode: ipvs"}}'"#);
    assert_eq!(
        server.get("configmap -n kube-system kube-proxy")["data"]["config.conf"],
        "mode: ipvs"
    );
}

#[test]
fn invalid_manifests_are_refused_as_kubernetes_refuses_them() {
    let server = Server::with_accounts();
    let wrong_group = refused(&server, "replicaset-of-the-wrong-group.yaml");
    assert!(
        wrong_group.contains(r#"no matches for kind "ReplicaSet" in version "v1""#),
        "{wrong_group}"
    );
    // The same sent past kubectl's own knowledge of kinds.
    let text = std::fs::read_to_string(fixture("notes/replicaset-of-the-wrong-group.yaml")).unwrap();
    let object: Value = serde_saphyr::from_str(&text).unwrap();
    std::fs::write(server.home().join("rs.json"), object.to_string()).unwrap();
    let answer = server.run(&format!(
        "{} -H 'Content-Type: application/json' --data @rs.json {}/apis/apps/v1/namespaces/default/replicasets",
        server.curl(),
        server.url()
    ));
    let status: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(
        (&status["code"], &status["reason"]),
        (&json!(400), &json!("BadRequest")),
        "{status:#}"
    );

    let number = refused(&server, "replicaset-number-in-annotation.yaml");
    assert!(
        number.contains("cannot unmarshal number into Go struct field ObjectMeta.metadata.annotations of type string"),
        "{number}"
    );
}

/// "No scheduler": a Binding posted with curl does what a scheduler would, once.
#[test]
fn a_pod_is_bound_with_curl() {
    let server = Server::with_accounts();
    create(&server, "node.yaml");
    create(&server, "pod-waiting.yaml");
    let text = std::fs::read_to_string(fixture("notes/binding.yaml")).unwrap();
    let binding: Value = serde_saphyr::from_str(&text).unwrap();
    let post = |body: &Value| {
        std::fs::write(server.home().join("binding.json"), body.to_string()).unwrap();
        let answer = server.run(&format!(
            "{} --header 'Content-Type:application/json' --request POST --data @binding.json {}/api/v1/namespaces/default/pods/waiting/binding/",
            server.curl(),
            server.url()
        ));
        serde_json::from_str::<Value>(&answer).unwrap()
    };
    let nobody = post(
        &json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "waiting"}, "target": {"kind": "Node"}}),
    );
    assert_eq!(nobody["message"], "target.name: Required value", "{nobody:#}");
    let other = post(
        &json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "other"}, "target": {"kind": "Node", "name": "worker-2"}}),
    );
    assert_eq!(other["code"], 400, "{other:#}");

    let done = post(&binding);
    assert_eq!(
        (&done["status"], &done["code"]),
        (&json!("Success"), &json!(201)),
        "{done:#}"
    );
    let pod = server.get("pod waiting");
    assert_eq!(pod["spec"]["nodeName"], "worker-2");
    let conditions = pod["status"]["conditions"].as_array().unwrap();
    assert!(
        conditions
            .iter()
            .any(|c| c["type"] == "PodScheduled" && c["status"] == "True"),
        "{pod:#}"
    );
    assert_eq!(
        server.run("kubectl get pods --field-selector spec.nodeName=worker-2 -o name"),
        "pod/waiting\n"
    );

    let again = post(&binding);
    assert_eq!(
        (&again["code"], &again["reason"]),
        (&json!(409), &json!("Conflict")),
        "{again:#}"
    );
    assert!(
        again["message"]
            .as_str()
            .unwrap()
            .contains(r#"pod waiting is already assigned to node "worker-2""#),
        "{again:#}"
    );

    // And it stays there.
    for patch in [r#"{"spec":{"nodeName":"worker-1"}}"#, r#"{"spec":{"nodeName":null}}"#] {
        let refused = server.fails(&format!("kubectl patch pod waiting --type=merge -p '{patch}'"));
        assert!(
            refused.contains("Forbidden: pod updates may not change fields other than"),
            "{refused}"
        );
    }
    assert_eq!(server.get("pod waiting")["spec"]["nodeName"], "worker-2");
}

/// Labels, selectors and the other commands of the exercises.
#[test]
fn the_commands_of_the_exercises_work() {
    let server = Server::with_accounts();
    for (name, labels) in [
        ("a", "env=dev,bu=finance,tier=frontend"),
        ("b", "env=prod,bu=finance,tier=frontend"),
        ("c", "env=prod,bu=it,tier=db"),
    ] {
        server.run(&format!("kubectl run {name} --image=nginx --labels={labels}"));
    }
    assert_eq!(
        server
            .run("kubectl get pods --selector env=dev --no-headers | wc -l")
            .trim(),
        "1"
    );
    assert_eq!(
        server.run("kubectl get all --selector env=prod,bu=finance,tier=frontend -o name"),
        "pod/b\n"
    );
    create(&server, "node.yaml");
    assert_eq!(
        server.run("kubectl label node worker-2 colour=blue"),
        "node/worker-2 labeled\n"
    );
    assert!(
        server
            .run("kubectl get node worker-2 --show-labels")
            .contains("colour=blue")
    );
    server.run("kubectl taint node worker-2 node-role.kubernetes.io/control-plane:NoSchedule");
    assert!(
        server
            .run("kubectl describe node worker-2 | grep Taint")
            .contains("node-role.kubernetes.io/control-plane:NoSchedule")
    );
    server.run("kubectl taint node worker-2 node-role.kubernetes.io/control-plane:NoSchedule-");
    server
        .run("kubectl taint node worker-2 app=blue:PreferNoSchedule && kubectl taint node worker-2 app=blue:NoExecute");
    let invalid = server.fails("kubectl taint node worker-2 app=blue:Sometimes");
    assert!(invalid.contains("invalid taint effect: Sometimes"), "{invalid}");

    let manifest =
        server.run("kubectl create deployment logger -n kube-system --image=logger --dry-run=client -o yaml");
    let daemon_set = manifest
        .replace("kind: Deployment", "kind: DaemonSet")
        .replace("  replicas: 1\n", "")
        .replace("  strategy: {}\n", "");
    server.run_with("kubectl create -f -", &daemon_set);
    let shown = server.run("kubectl get daemonsets -n kube-system --no-headers");
    assert_eq!(
        shown.split_whitespace().collect::<Vec<_>>()[..7],
        ["logger", "0", "0", "0", "0", "0", "<none>"],
        "{shown}"
    );
    assert!(
        server
            .run("kubectl describe daemonset -n kube-system logger")
            .contains("Selector:       app=logger")
    );
    assert!(
        server
            .run("kubectl run s --image=nginx --dry-run=client -o yaml")
            .contains("restartPolicy: Always")
    );
    assert!(
        server
            .sh("kubectl get events -o wide")
            .stderr
            .contains("No resources found in default namespace.")
    );
}

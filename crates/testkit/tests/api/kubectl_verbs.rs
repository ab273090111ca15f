//! kubectl's other verbs as people use them, with what Kubernetes would answer. See kubectl_changes.rs for apply and
//! its kin.

use orlop_testkit::{DEPLOYMENT, Server, eventually, pod_manifest as pod};
use serde_json::{Value, json};

#[test]
fn create() {
    let server = Server::with_accounts();
    assert_eq!(
        server.run_with("kubectl create -f -", DEPLOYMENT),
        "deployment.apps/web created\n"
    );
    let again = server.fails_with("kubectl create -f -", DEPLOYMENT);
    assert!(
        again.contains(
            r#"Error from server (AlreadyExists): error when creating "STDIN": deployments.apps "web" already exists"#
        ),
        "{again}"
    );

    let made = server.get("deploy web");
    assert_eq!(made["metadata"]["generation"], 1);
    assert_eq!(
        made["spec"]["strategy"],
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}})
    );
    assert_eq!(
        made["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"],
        "IfNotPresent"
    );
    assert_eq!(made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"], 30);
    assert_eq!(made["spec"]["progressDeadlineSeconds"], 600);
    assert_eq!(made["status"], json!({}));

    for (line, said) in [
        (
            "configmap settings --from-literal=a=1 --from-literal=b=2",
            "configmap/settings created",
        ),
        (
            "secret generic password --from-literal=p=secret",
            "secret/password created",
        ),
        ("serviceaccount robot", "serviceaccount/robot created"),
        ("namespace other", "namespace/other created"),
        (
            "deployment two --image=nginx --replicas=2 --port=80",
            "deployment.apps/two created",
        ),
        ("service clusterip two --tcp=80:8080", "service/two created"),
        ("service nodeport out --tcp=80 --node-port=30080", "service/out created"),
        (
            "service externalname away --external-name=example.org",
            "service/away created",
        ),
        ("job once --image=busybox -- true", "job.batch/once created"),
        (
            "cronjob often --image=busybox --schedule='*/5 * * * *' -- true",
            "cronjob.batch/often created",
        ),
        (
            "role reader --verb=get,list --resource=pods",
            "role.rbac.authorization.k8s.io/reader created",
        ),
        (
            "rolebinding reads --role=reader --user=ann",
            "rolebinding.rbac.authorization.k8s.io/reads created",
        ),
        (
            "clusterrole nodes --verb=get --resource=nodes",
            "clusterrole.rbac.authorization.k8s.io/nodes created",
        ),
        (
            "clusterrolebinding nodes --clusterrole=nodes --group=staff",
            "clusterrolebinding.rbac.authorization.k8s.io/nodes created",
        ),
        (
            "quota small -n other --hard=pods=3,services=2",
            "resourcequota/small created",
        ),
        (
            "priorityclass high --value=1000",
            "priorityclass.scheduling.k8s.io/high created",
        ),
        (
            "poddisruptionbudget keep --selector=app=web --min-available=1",
            "poddisruptionbudget.policy/keep created",
        ),
        (
            "ingress front --rule=example.org/=two:80",
            "ingress.networking.k8s.io/front created",
        ),
    ] {
        assert_eq!(server.run(&format!("kubectl create {line}")), format!("{said}\n"));
    }
    assert_eq!(
        server.run("kubectl run p --image=busybox -- sleep 60"),
        "pod/p created\n"
    );
    assert_eq!(
        server.run("kubectl expose deployment web --port=80"),
        "service/web exposed\n"
    );
    assert_eq!(server.get("svc out")["spec"]["ports"][0]["nodePort"], 30080);
    let taken = server.fails("kubectl create service nodeport more --tcp=80 --node-port=30080");
    assert!(
        taken.contains("spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated"),
        "{taken}"
    );

    // Names made up by the server.
    let generated = "---\n{apiVersion: v1, kind: ConfigMap, metadata: {generateName: some-}}";
    let names: Vec<String> = (0..3)
        .map(|_| server.run_with("kubectl create -o name -f -", generated))
        .collect();
    for name in &names {
        assert_eq!(name.trim().len(), "configmap/some-".len() + 5, "{name}");
    }
    assert!(names[0] != names[1] && names[1] != names[2], "{names:?}");

    // All problems of an object at once, with their paths.
    let broken = DEPLOYMENT
        .replace("matchLabels: {app: web}", "matchLabels: {app: api}")
        .replace("containerPort: 80", "containerPort: 70000");
    let refused = server.fails_with(
        "kubectl create -f -",
        &broken.replace("name: web\n  labels", "name: Broken_\n  labels"),
    );
    for part in [
        r#"The Deployment "Broken_" is invalid:"#,
        r#"metadata.name: Invalid value: "Broken_": a lowercase RFC 1123 subdomain must consist of"#,
        r#"spec.template.metadata.labels: Invalid value:"#,
        "`selector` does not match template `labels`",
        "spec.template.spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
    ] {
        assert!(refused.contains(part), "no {part:?} in:\n{refused}");
    }
    let nowhere = server.fails_with("kubectl create -n nowhere -f -", &pod("p"));
    assert!(nowhere.contains(r#"namespaces "nowhere" not found"#), "{nowhere}");
}

#[test]
fn label_annotate_and_taint() {
    let server = Server::with_accounts();
    server.run("kubectl create configmap a && kubectl create configmap b");
    assert_eq!(
        server.run("kubectl label configmap a env=dev tier=front"),
        "configmap/a labeled\n"
    );
    assert_eq!(
        server.run("kubectl label configmap b env=prod"),
        "configmap/b labeled\n"
    );
    let refused = server.fails("kubectl label configmap a env=prod");
    assert!(
        refused.contains("'env' already has a value (dev), and --overwrite is false"),
        "{refused}"
    );
    server.run("kubectl label --overwrite configmap a env=test && kubectl label configmap a tier-");
    assert_eq!(server.get("configmap a")["metadata"]["labels"], json!({"env": "test"}));
    let invalid = server.fails("kubectl label configmap a 'bad label=x'");
    assert!(
        invalid.contains("name part must consist of alphanumeric characters"),
        "{invalid}"
    );
    for (selector, names) in [
        ("env", "a b"),
        ("env=prod", "b"),
        ("'env!=prod,env'", "a"),
        ("'env in (test,prod)'", "a b"),
        ("'env notin (test),env'", "b"),
        ("'!env'", "kube-root-ca.crt"),
    ] {
        assert_eq!(
            server.run(&format!(
                "kubectl get cm -l {selector} -o jsonpath='{{.items[*].metadata.name}}'"
            )),
            names,
            "{selector}"
        );
    }
    let columns = server.run("kubectl get cm a -L env --no-headers");
    assert_eq!(columns.split_whitespace().last(), Some("test"), "{columns}");
    assert!(server.run("kubectl get cm a --show-labels").contains("env=test"));

    assert_eq!(
        server.run("kubectl annotate configmap a note='some text'"),
        "configmap/a annotated\n"
    );
    assert_eq!(
        server.get("configmap a")["metadata"]["annotations"],
        json!({"note": "some text"})
    );
    server.run("kubectl annotate configmap a note-");
    assert_eq!(server.get("configmap a")["metadata"]["annotations"], Value::Null);

    server.run_with(
        "kubectl create -f -",
        "---\n{apiVersion: v1, kind: Node, metadata: {name: n1}}",
    );
    // A node is not ready until its agent says so, and Kubernetes keeps pods off it.
    assert_eq!(
        server.get("node n1")["spec"]["taints"],
        json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}])
    );
    assert_eq!(
        server.run("kubectl taint node n1 app=blue:NoSchedule"),
        "node/n1 tainted\n"
    );
    let twice = server.fails("kubectl taint node n1 app=red:NoSchedule");
    assert!(
        twice.contains("already has app taint(s) with same effect(s) and --overwrite is false"),
        "{twice}"
    );
    server.run("kubectl taint node n1 app=red:NoSchedule --overwrite && kubectl taint node n1 app=red:NoExecute");
    assert!(server.run("kubectl describe node n1").contains("app=red:NoExecute"));
    assert_eq!(
        server.run("kubectl taint node n1 app:NoExecute-"),
        "node/n1 untainted\n"
    );
    let taint = server.run("kubectl get node n1 -o jsonpath='{.spec.taints[?(@.key==\"app\")]}'");
    assert_eq!(taint, r#"{"effect":"NoSchedule","key":"app","value":"red"}"#);
    server.run("kubectl cordon n1");
    assert_eq!(server.get("node n1")["spec"]["unschedulable"], true);
    let shown = server.run("kubectl get node n1 --no-headers");
    assert_eq!(
        shown.split_whitespace().nth(1),
        Some("Unknown,SchedulingDisabled"),
        "{shown}"
    );
    server.run("kubectl uncordon n1");
    assert_eq!(server.get("node n1")["spec"]["unschedulable"], Value::Null);
}

#[test]
fn scale() {
    let server = Server::with_accounts();
    server.run_with("kubectl create -f -", DEPLOYMENT);
    assert_eq!(
        server.run("kubectl scale deploy web --replicas=4"),
        "deployment.apps/web scaled\n"
    );
    let object = server.get("deploy web");
    assert_eq!(
        (&object["spec"]["replicas"], &object["metadata"]["generation"]),
        (&json!(4), &json!(2))
    );
    let precondition = server.fails("kubectl scale deploy web --current-replicas=9 --replicas=1");
    assert!(
        precondition.contains("Expected replicas to be 9, was 4"),
        "{precondition}"
    );
    let scale: Value =
        serde_json::from_str(&server.run("kubectl get --raw /apis/apps/v1/namespaces/default/deployments/web/scale"))
            .unwrap();
    assert_eq!(scale["kind"], "Scale");
    assert_eq!(
        (&scale["spec"]["replicas"], &scale["status"]["selector"]),
        (&json!(4), &json!("app=web"))
    );
    for (kind, name) in [
        ("replicaset", "rs"),
        ("statefulset", "ss"),
        ("replicationcontroller", "rc"),
    ] {
        let version = if kind == "replicationcontroller" {
            "v1"
        } else {
            "apps/v1"
        };
        let real = match kind {
            "replicaset" => "ReplicaSet",
            "statefulset" => "StatefulSet",
            _ => "ReplicationController",
        };
        let selector = if version == "v1" {
            "{app: x}"
        } else {
            "{matchLabels: {app: x}}"
        };
        server.run_with("kubectl create -f -", &format!(
            "---\n{{apiVersion: {version}, kind: {real}, metadata: {{name: {name}}}, spec: {{selector: {selector}, template: {{metadata: {{labels: {{app: x}}}}, spec: {{containers: [{{name: c, image: i}}]}}}}}}}}"
        ));
        server.run(&format!("kubectl scale {kind} {name} --replicas=3"));
        assert_eq!(server.get(&format!("{kind} {name}"))["spec"]["replicas"], 3);
    }
    let negative =
        server.fails(r#"kubectl patch deploy web --subresource=scale --type=merge -p '{"spec":{"replicas":-1}}'"#);
    assert!(
        negative.contains("spec.replicas: Invalid value: -1: must be greater than or equal to 0"),
        "{negative}"
    );
}

#[test]
fn delete() {
    let server = Server::with_accounts();
    // Nothing runs a pod without a node, so it goes at once.
    server.run_with("kubectl create -f -", &pod("p"));
    assert_eq!(server.run("kubectl delete pod p"), "pod \"p\" deleted\n".to_string());
    assert!(server.fails("kubectl delete pod p").contains(r#"pods "p" not found"#));
    assert_eq!(server.run("kubectl delete pod p --ignore-not-found"), "");

    // On a node it waits for the agent: a grace period, which may be shortened, then forced.
    server.run_with(
        "kubectl create -f -",
        "---\n{apiVersion: v1, kind: Node, metadata: {name: n1}}",
    );
    server.run_with(
        "kubectl create -f -",
        &pod("q").replace("spec:\n", "spec:\n  nodeName: n1\n"),
    );
    server.run("kubectl delete pod q --wait=false");
    let going = server.get("pod q");
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 30);
    assert!(going["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(going["metadata"]["generation"], 2);
    let shown = server.run("kubectl get pod q --no-headers");
    assert_eq!(shown.split_whitespace().nth(2), Some("Terminating"), "{shown}");
    server.run("kubectl delete pod q --grace-period=10 --wait=false");
    assert_eq!(server.get("pod q")["metadata"]["deletionGracePeriodSeconds"], 10);
    server.run("kubectl delete pod q --grace-period=0 --force");
    assert!(server.fails("kubectl get pod q").contains("NotFound"));
    server.run_with(
        "kubectl create -f -",
        &pod("r").replace("spec:\n", "spec:\n  nodeName: n1\n"),
    );
    server.run("kubectl delete pod r --now --wait=false");
    assert_eq!(server.get("pod r")["metadata"]["deletionGracePeriodSeconds"], 1);

    // Finalizers hold an object until they are gone.
    server.run_with(
        "kubectl create -f -",
        "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: held, finalizers: [example.org/hold]}}",
    );
    server.run("kubectl delete configmap held --wait=false");
    let held = server.get("configmap held");
    assert!(held["metadata"]["deletionTimestamp"].is_string());
    let more = server.fails(r#"kubectl patch configmap held --type=merge -p '{"metadata":{"finalizers":["example.org/hold","example.org/more"]}}'"#);
    assert!(
        more.contains("no new finalizers can be added if the object is being deleted"),
        "{more}"
    );
    server.run(r#"kubectl patch configmap held --type=merge -p '{"metadata":{"finalizers":null}}'"#);
    assert!(server.fails("kubectl get configmap held").contains("NotFound"));

    // How dependents are treated is written down for the garbage collector.
    for (flag, finalizer) in [("foreground", "foregroundDeletion"), ("orphan", "orphan")] {
        server.run_with("kubectl create -f -", DEPLOYMENT);
        server.run(&format!("kubectl delete deploy web --cascade={flag} --wait=false"));
        assert_eq!(server.get("deploy web")["metadata"]["finalizers"], json!([finalizer]));
        server.run(r#"kubectl patch deploy web --type=merge -p '{"metadata":{"finalizers":null}}'"#);
    }
    server.run_with("kubectl create -f -", DEPLOYMENT);
    server.run("kubectl delete deploy web --cascade=background");
    assert!(server.fails("kubectl get deploy web").contains("NotFound"));

    // Many at once, by label and all.
    server
        .run("for i in 1 2 3; do kubectl create configmap many-$i; done; kubectl label configmap many-1 many-2 kind=x");
    server.run("kubectl delete configmap -l kind=x");
    assert_eq!(
        server.run("kubectl get cm -o jsonpath='{.items[*].metadata.name}'"),
        "kube-root-ca.crt many-3"
    );

    // A namespace on its way out takes nothing new, and goes when whoever empties it says that it is empty.
    server.run("kubectl create namespace gone && kubectl delete namespace gone --wait=false");
    assert_eq!(server.get("namespace gone")["status"]["phase"], "Terminating");
    let late = server.fails("kubectl create -n gone configmap c");
    assert!(
        late.contains("unable to create new content in namespace gone because it is being terminated"),
        "{late}"
    );
    let emptied =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gone"}, "spec": {"finalizers": []}});
    server.run_with(
        "kubectl replace --raw /api/v1/namespaces/gone/finalize -f -",
        &emptied.to_string(),
    );
    assert!(server.fails("kubectl get namespace gone").contains("NotFound"));
    assert!(
        server
            .fails("kubectl create -n gone configmap c")
            .contains(r#"namespaces "gone" not found"#)
    );
    let kept = server.fails("kubectl delete namespace default");
    assert!(kept.contains("this namespace may not be deleted"), "{kept}");
}

#[test]
fn get_in_every_format() {
    let server = Server::with_accounts();
    server.run_with("kubectl create -f -", DEPLOYMENT);
    server.run_with("kubectl create -f -", &pod("p"));
    let yaml = server.run("kubectl get deploy web -o yaml");
    assert!(
        yaml.starts_with("apiVersion: apps/v1\nkind: Deployment\nmetadata:\n"),
        "{yaml}"
    );
    assert_eq!(server.get("deploy")["kind"], "List");
    assert_eq!(
        server.run("kubectl get deploy web -o jsonpath='{.spec.replicas}{\"\\n\"}'"),
        "2\n"
    );
    assert_eq!(server.run("kubectl get deploy -o name"), "deployment.apps/web\n");
    assert_eq!(
        server.run("kubectl get deploy web -o go-template='{{.metadata.name}}'"),
        "web"
    );
    let columns = server.run("kubectl get deploy -o custom-columns=N:.metadata.name,R:.spec.replicas");
    assert_eq!(columns, "N     R\nweb   2\n");
    let plain = server.run("kubectl get pod p");
    let rows: Vec<Vec<&str>> = plain.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]);
    assert_eq!(rows[1][..4], ["p", "0/1", "Pending", "0"]);
    let wide = server.run("kubectl get pod p -o wide");
    let rows: Vec<Vec<&str>> = wide.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(
        rows[0],
        [
            "NAME",
            "READY",
            "STATUS",
            "RESTARTS",
            "AGE",
            "IP",
            "NODE",
            "NOMINATED",
            "NODE",
            "READINESS",
            "GATES"
        ]
    );
    assert_eq!(rows[1][5..], ["<none>", "<none>", "<none>", "<none>"]);
    assert_eq!(
        server.run("kubectl get pods --field-selector status.phase=Pending -o name"),
        "pod/p\n"
    );
    assert_eq!(
        server.run("kubectl get pods --field-selector spec.nodeName=n1 -o name"),
        ""
    );
    assert_eq!(
        server
            .run("kubectl get pods --sort-by=.metadata.name --no-headers | wc -l")
            .trim(),
        "1"
    );
    let unknown = server.fails("kubectl get pods --field-selector spec.colour=red");
    assert!(unknown.contains("field label not supported: spec.colour"), "{unknown}");
    assert!(
        server
            .fails("kubectl get nonesuch")
            .contains("the server doesn't have a resource type \"nonesuch\"")
    );
    assert!(
        server
            .sh("kubectl get pods -n empty")
            .stderr
            .contains("No resources found in empty namespace.")
    );
    for kind in ["po", "pod", "pods", "Pod", "pods.v1."] {
        assert_eq!(server.run(&format!("kubectl get {kind} p -o name")), "pod/p\n");
    }
    // Lists in small pages are the same lists.
    server.run("for i in $(seq 9); do echo ---; echo \"{apiVersion: v1, kind: ConfigMap, metadata: {name: page-$i}}\"; done | kubectl create -f -");
    let all = server.run("kubectl get cm -o name");
    assert_eq!(server.run("kubectl get cm --chunk-size=2 -o name"), all);
    assert_eq!(all.lines().count(), 10);
    let described = server.run("kubectl describe pod p && kubectl describe deploy web && kubectl describe ns default");
    for part in [
        "QoS Class:                   BestEffort",
        "StrategyType:           RollingUpdate",
        "No resource quota.",
    ] {
        assert!(described.contains(part), "no {part:?} in:\n{described}");
    }
}

#[test]
fn watch_and_wait() {
    let server = Server::with_accounts();
    let watch = server.command("exec kubectl get cm -w --output-watch-events -o jsonpath='{.type} {.object.metadata.name}{\"\\n\"}' -l watched=yes > seen");
    let mut watch = {
        let mut watch = watch;
        watch.spawn().unwrap()
    };
    let seen = || std::fs::read_to_string(server.home().join("seen")).unwrap_or_default();
    let wanted = |line: &str| {
        eventually(&format!("kubectl get -w prints {line:?}"), || {
            seen().lines().any(|l| l == line).then_some(())
        })
    };
    server.run_with(
        "kubectl create -f -",
        "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: one, labels: {watched: 'yes'}}}",
    );
    wanted("ADDED one");
    server.run("kubectl annotate cm one a=b");
    wanted("MODIFIED one");
    // To a watcher with a selector, what no longer matches is gone.
    server.run("kubectl label cm one watched=no --overwrite");
    wanted("DELETED one");
    server.run("kubectl label cm one watched=yes --overwrite && kubectl delete cm one");
    eventually("the second deletion is seen", || {
        (seen().matches("DELETED one").count() == 2).then_some(())
    });
    assert_eq!(seen(), "ADDED one\nMODIFIED one\nDELETED one\nADDED one\nDELETED one\n");
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(watch.id() as i32),
        nix::sys::signal::Signal::SIGTERM,
    )
    .unwrap();
    watch.wait().unwrap();

    server.run_with("kubectl create -f -", &pod("p"));
    let mut waiting = server
        .command("kubectl wait pod/p --for=condition=Ready --timeout=60s")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    server.run(r#"kubectl patch pod p --subresource=status --type=merge -p '{"status":{"conditions":[{"type":"Ready","status":"True"}]}}'"#);
    assert!(waiting.wait().unwrap().success());
    let late = server.fails("kubectl wait pod/p --for=condition=Other --timeout=1s");
    assert!(late.contains("timed out waiting for the condition"), "{late}");
    server.run("kubectl wait pod/p --for=jsonpath='{.status.phase}'=Pending --timeout=60s");
    let mut waiting = server
        .command("kubectl wait pod/p --for=delete --timeout=60s")
        .spawn()
        .unwrap();
    server.run("kubectl delete pod p");
    assert!(waiting.wait().unwrap().success());
}

#[test]
fn auth_and_tokens() {
    let server = Server::with_accounts();
    assert_eq!(server.run("kubectl auth can-i '*' '*' --all-namespaces"), "yes\n");
    let asked = server.sh("kubectl auth can-i create pods --as=ann");
    assert_eq!((asked.stdout.as_str(), asked.code), ("no\n", Some(1)), "{asked}");
    server
        .run("kubectl create role r --verb=create --resource=pods && kubectl create rolebinding r --role=r --user=ann");
    assert_eq!(server.run("kubectl auth can-i create pods --as=ann"), "yes\n");
    assert_eq!(
        server
            .sh("kubectl auth can-i create pods --as=ann -n kube-system")
            .stdout,
        "no\n"
    );
    let list = server.run("kubectl auth can-i --list --as=ann");
    assert!(
        list.contains("selfsubjectrulesreviews.authorization.k8s.io") && list.contains("[create]"),
        "{list}"
    );
    let me = server.run("kubectl auth whoami -o jsonpath='{.status.userInfo.groups}'");
    assert!(
        me.contains("system:masters") && me.contains("system:authenticated"),
        "{me}"
    );

    let token = server.run("kubectl create token default --duration=1h --audience=me --audience=you");
    let review = format!(
        r#"{{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{{"token":"{}","audiences":["you"]}}}}"#,
        token.trim()
    );
    let answer: Value = serde_json::from_str(&server.run_with(
        "kubectl create --raw /apis/authentication.k8s.io/v1/tokenreviews -f -",
        &review,
    ))
    .unwrap();
    assert_eq!(answer["status"]["authenticated"], true, "{answer:#}");
    assert_eq!(answer["status"]["audiences"], json!(["you"]));
    assert_eq!(
        answer["status"]["user"]["username"],
        "system:serviceaccount:default:default"
    );
    let short = server.fails("kubectl create token default --duration=1s");
    assert!(
        short.contains("may not specify a duration less than 10 minutes"),
        "{short}"
    );
    assert!(
        server
            .fails("kubectl create token nobody")
            .contains(r#"serviceaccounts "nobody" not found"#)
    );
    // Bound to a secret: worth nothing once that is gone.
    server.run("kubectl create secret generic key");
    let bound = server.run("kubectl create token default --bound-object-kind=Secret --bound-object-name=key");
    let bearer = server.bearer("bound", bound.trim());
    assert!(server.fails_as(&bearer, "kubectl get pods").contains("Forbidden"));
    server.run("kubectl delete secret key");
    assert!(server.fails_as(&bearer, "kubectl get pods").contains("Unauthorized"));
}

#[test]
fn rollouts_and_other_helpers() {
    let server = Server::with_accounts();
    server.run_with("kubectl create -f -", DEPLOYMENT);
    assert_eq!(
        server.run("kubectl set image deploy/web web=nginx:1.29"),
        "deployment.apps/web image updated\n"
    );
    assert_eq!(
        server.run("kubectl set resources deploy/web --limits=cpu=200m"),
        "deployment.apps/web resource requirements updated\n"
    );
    server.run("kubectl rollout pause deploy/web");
    assert_eq!(server.get("deploy web")["spec"]["paused"], true);
    server.run("kubectl rollout resume deploy/web && kubectl rollout restart deploy/web");
    let annotations = &server.get("deploy web")["spec"]["template"]["metadata"]["annotations"];
    assert!(annotations["kubectl.kubernetes.io/restartedAt"].is_string());
    server.run("kubectl autoscale deploy web --min=1 --max=3 --cpu-percent=50");
    let autoscaler = server.get("hpa web");
    assert_eq!(autoscaler["apiVersion"], "autoscaling/v2");
    assert_eq!(
        autoscaler["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"],
        50
    );
    let old: Value =
        serde_json::from_str(&server.run("kubectl get horizontalpodautoscalers.v1.autoscaling web -o json")).unwrap();
    assert_eq!(old["spec"]["targetCPUUtilizationPercentage"], 50);
    server.run_with("kubectl create -f -", "---\n{apiVersion: v1, kind: Event, metadata: {name: e.1}, involvedObject: {kind: Deployment, name: web, namespace: default, apiVersion: apps/v1}, reason: Scaled, message: up, type: Normal, reportingComponent: c, reportingInstance: i, firstTimestamp: '2026-01-01T00:00:00Z', lastTimestamp: '2026-01-01T00:00:00Z', count: 1}");
    assert!(server.run("kubectl events --for deployment/web").contains("Scaled"));
    assert!(
        server
            .run("kubectl get events.events.k8s.io e.1 -o name")
            .contains("events.k8s.io/e.1")
    );
    assert!(server.run("kubectl cluster-info").contains("control plane"));
    assert!(
        server
            .run("kubectl get componentstatuses --no-headers 2>/dev/null")
            .contains("Healthy")
    );
}

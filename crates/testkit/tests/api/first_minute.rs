//! What someone sees in the first minute: health, the objects a fresh cluster has, discovery, and every command of the
//! README.

use nix::sys::signal::Signal;
use orlop_testkit::{Launch, NodeRuntime, Server, TestRuntime, workspace_root};
use serde_json::json;

#[test]
fn health_endpoints_answer_as_kubernetes_does() {
    let mut server = Server::start();
    for endpoint in ["healthz", "livez", "readyz"] {
        assert_eq!(server.run(&format!("kubectl get --raw /{endpoint}")), "ok");
        let verbose = server.run(&format!("kubectl get --raw '/{endpoint}?verbose'"));
        assert!(verbose.contains("[+]ping ok\n"), "{verbose}");
        assert!(verbose.contains("[+]etcd ok\n"), "{verbose}");
        assert!(verbose.ends_with(&format!("{endpoint} check passed\n")), "{verbose}");
        assert_eq!(server.run(&format!("kubectl get --raw /{endpoint}/ping")), "ok");
        assert_eq!(
            server.run(&format!(
                "kubectl get --raw /{endpoint}/poststarthook/rbac/bootstrap-roles"
            )),
            "ok"
        );
    }
    let excluded = server.run("kubectl get --raw '/readyz?verbose&exclude=etcd'");
    assert!(excluded.contains("[+]etcd excluded: ok"), "{excluded}");
    assert_eq!(server.run("kubectl get --raw /readyz/shutdown"), "ok");
    assert!(server.fails("kubectl get --raw /readyz/nonesuch").contains("NotFound"));
    assert!(server.run("kubectl get --raw /version").contains("\"minor\": \"36\""));
    assert!(server.run("kubectl version").contains("Server Version: v1.36"));
    server.stop(Signal::SIGTERM);
    let log = server.log();
    assert!(
        log.contains(" INFO ") && !log.contains('\u{1b}'),
        "no colours in files: {log}"
    );
}

#[test]
fn a_fresh_cluster_has_what_kubernetes_has() {
    let server = Server::start();
    let namespaces = server.run("kubectl get namespaces -o name");
    let expected = ["default", "kube-node-lease", "kube-public", "kube-system"].map(|n| format!("namespace/{n}\n"));
    assert_eq!(namespaces, expected.concat());

    // Accounts and the CA's config map appear shortly after a namespace does.
    server.run("kubectl create namespace extra");
    for namespace in ["default", "kube-system", "extra"] {
        server.run(&format!(
            "kubectl wait -n {namespace} --for=create sa/default configmap/kube-root-ca.crt --timeout=60s"
        ));
        let ca = server.run(&format!(
            "kubectl get -n {namespace} configmap kube-root-ca.crt -o jsonpath='{{.data.ca\\.crt}}'"
        ));
        let on_disk = std::fs::read_to_string(server.data_dir().join("pki/ca.crt")).unwrap();
        assert_eq!(ca.trim(), on_disk.trim());
    }

    let all = server.run("kubectl get ns,svc,sa -A");
    assert!(all.contains("namespace/kube-node-lease"), "{all}");
    assert!(
        all.contains("default           serviceaccount/default") || all.contains("serviceaccount/default"),
        "{all}"
    );
    let service = server.run("kubectl get svc kubernetes --no-headers");
    let cells: Vec<&str> = service.split_whitespace().collect();
    assert_eq!(
        cells[..5],
        ["kubernetes", "ClusterIP", "10.96.0.1", "<none>", "443/TCP"],
        "{service}"
    );

    let everything = server.run("kubectl get all -A -o wide");
    let lines: Vec<Vec<&str>> = everything.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(
        lines[0],
        [
            "NAMESPACE",
            "NAME",
            "TYPE",
            "CLUSTER-IP",
            "EXTERNAL-IP",
            "PORT(S)",
            "AGE",
            "SELECTOR"
        ],
        "{everything}"
    );
    assert_eq!(
        lines[1][..5],
        ["default", "service/kubernetes", "ClusterIP", "10.96.0.1", "<none>"],
        "{everything}"
    );
}

#[test]
fn api_resources_are_those_of_kubernetes() {
    let server = Server::start();
    let text = server.run("kubectl api-resources --no-headers");
    let rows: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
    // Name, short names, version, scope, kind. A sample of every group; the shortest that would notice a slip.
    for expected in [
        "bindings v1 true Binding",
        "configmaps cm v1 true ConfigMap",
        "events ev v1 true Event",
        "limitranges limits v1 true LimitRange",
        "namespaces ns v1 false Namespace",
        "nodes no v1 false Node",
        "persistentvolumeclaims pvc v1 true PersistentVolumeClaim",
        "persistentvolumes pv v1 false PersistentVolume",
        "pods po v1 true Pod",
        "podtemplates v1 true PodTemplate",
        "replicationcontrollers rc v1 true ReplicationController",
        "resourcequotas quota v1 true ResourceQuota",
        "secrets v1 true Secret",
        "serviceaccounts sa v1 true ServiceAccount",
        "services svc v1 true Service",
        "mutatingwebhookconfigurations admissionregistration.k8s.io/v1 false MutatingWebhookConfiguration",
        "apiservices apiregistration.k8s.io/v1 false APIService",
        "controllerrevisions apps/v1 true ControllerRevision",
        "daemonsets ds apps/v1 true DaemonSet",
        "deployments deploy apps/v1 true Deployment",
        "replicasets rs apps/v1 true ReplicaSet",
        "statefulsets sts apps/v1 true StatefulSet",
        "selfsubjectreviews authentication.k8s.io/v1 false SelfSubjectReview",
        "tokenreviews authentication.k8s.io/v1 false TokenReview",
        "localsubjectaccessreviews authorization.k8s.io/v1 true LocalSubjectAccessReview",
        "horizontalpodautoscalers hpa autoscaling/v2 true HorizontalPodAutoscaler",
        "cronjobs cj batch/v1 true CronJob",
        "jobs batch/v1 true Job",
        "certificatesigningrequests csr certificates.k8s.io/v1 false CertificateSigningRequest",
        "leases coordination.k8s.io/v1 true Lease",
        "endpointslices discovery.k8s.io/v1 true EndpointSlice",
        "events ev events.k8s.io/v1 true Event",
        "flowschemas flowcontrol.apiserver.k8s.io/v1 false FlowSchema",
        "ingresses ing networking.k8s.io/v1 true Ingress",
        "ipaddresses ip networking.k8s.io/v1 false IPAddress",
        "networkpolicies netpol networking.k8s.io/v1 true NetworkPolicy",
        "runtimeclasses node.k8s.io/v1 false RuntimeClass",
        "poddisruptionbudgets pdb policy/v1 true PodDisruptionBudget",
        "clusterroles rbac.authorization.k8s.io/v1 false ClusterRole",
        "roles rbac.authorization.k8s.io/v1 true Role",
        "deviceclasses resource.k8s.io/v1 false DeviceClass",
        "resourceclaims resource.k8s.io/v1 true ResourceClaim",
        "priorityclasses pc scheduling.k8s.io/v1 false PriorityClass",
        "csidrivers storage.k8s.io/v1 false CSIDriver",
        "storageclasses sc storage.k8s.io/v1 false StorageClass",
        "volumeattachments storage.k8s.io/v1 false VolumeAttachment",
    ] {
        let cells: Vec<&str> = expected.split(' ').collect();
        assert!(rows.contains(&cells), "no row {expected:?} in:\n{text}");
    }
    // The same again from the old lists that aggregated discovery replaces.
    let groups = server.run("kubectl get --raw /apis");
    assert!(
        groups.contains("\"name\":\"apps\"") || groups.contains("\"name\": \"apps\""),
        "{groups}"
    );
    let versions = server.run("kubectl api-versions");
    for version in [
        "v1",
        "apps/v1",
        "autoscaling/v1",
        "autoscaling/v2",
        "rbac.authorization.k8s.io/v1",
    ] {
        assert!(versions.lines().any(|l| l == version), "no {version} in:\n{versions}");
    }
    let all: Vec<String> = server
        .run("kubectl api-resources --categories=all -o name")
        .lines()
        .map(str::to_string)
        .collect();
    for name in [
        "pods",
        "services",
        "deployments.apps",
        "jobs.batch",
        "horizontalpodautoscalers.autoscaling",
    ] {
        assert!(all.contains(&name.to_string()), "{name} not in category all: {all:?}");
    }
}

#[test]
fn kubectl_explains_fields() {
    let server = Server::start();
    let affinity = server.run("kubectl explain pod.spec.affinity");
    for word in [
        "KIND:",
        "Pod",
        "nodeAffinity",
        "podAffinity",
        "podAntiAffinity",
        "<NodeAffinity>",
    ] {
        assert!(affinity.contains(word), "no {word} in:\n{affinity}");
    }
    let strategy = server.run("kubectl explain deployment.spec.strategy");
    assert!(
        strategy.contains("GROUP:") && strategy.contains("rollingUpdate"),
        "{strategy}"
    );
    let recursive = server.run("kubectl explain --recursive service.spec.ports");
    assert!(
        recursive.contains("targetPort") && recursive.contains("<IntOrString>"),
        "{recursive}"
    );
    let hpa = server.run("kubectl explain hpa.spec.metrics --api-version=autoscaling/v2");
    assert!(hpa.contains("containerResource"), "{hpa}");
    assert!(
        server
            .fails("kubectl explain pod.spec.nonesuch")
            .contains("does not exist")
    );
}

/// The commands of "A first minute" in the README are run as they stand, one after the other.
#[test]
fn the_readme_is_true() {
    let readme = std::fs::read_to_string(workspace_root().join("README.md")).unwrap();
    let (_, section) = readme
        .split_once("## A first minute")
        .expect("the README has a first minute");
    let section = section.split("\n## ").next().unwrap();
    let script: Vec<&str> = section.lines().filter_map(|l| l.strip_prefix("    ")).collect();
    let script: Vec<&str> = script
        .into_iter()
        .filter(|l| !l.starts_with("export KUBECONFIG="))
        .collect();
    assert!(
        script.len() > 8,
        "few commands in the README's first minute: {script:?}"
    );

    // A machine without container software.
    let runtime = NodeRuntime::start(TestRuntime::Embedded);
    let server = runtime
        .launch(json!({"clusterDNS": ["10.96.0.10"]}))
        .arg("--port=6443")
        .arg("--proxy-mode=nftables")
        .start();
    server.run("kubectl wait --for=create sa/default node/real --timeout=60s");
    server.run("kubectl wait --for=condition=Ready node/real --timeout=60s");
    // `can-i` says no with its exit code; as in a terminal, that stops nothing.
    let lines: Vec<String> = script
        .iter()
        .map(|l| {
            if l.contains("auth can-i") {
                format!("{l} || true")
            } else {
                l.to_string()
            }
        })
        .collect();
    let output = server.run(&lines.join("\n"));
    assert!(output.contains("readyz check passed"), "{output}");
    assert!(output.contains("deployment.apps/hello created"), "{output}");
    assert!(output.lines().any(|l| l == "no"), "{output}");
    // From one of the pods, by the name of their service.
    assert!(output.contains("Hostname: hello-"), "{output}");
    // Of nodes, and of pods.
    assert_eq!(output.matches("CPU(cores)").count(), 2, "{output}");
}

/// The commands in the README's table exist, with the flags named there.
#[test]
fn the_readme_names_real_commands() {
    let readme = std::fs::read_to_string(workspace_root().join("README.md")).unwrap();
    let orlop = orlop_testkit::orlop();
    let server = Launch::apiserver().start();
    let rows: Vec<&str> = readme.lines().filter(|l| l.starts_with("| `orlop ")).collect();
    assert!(rows.len() >= 3, "the README has a table of commands");
    for row in rows {
        let mut quoted = row.split('`').skip(1).step_by(2);
        let command = quoted.next().unwrap().strip_prefix("orlop ").unwrap();
        let help = server.run(&format!("{} {command} --help", orlop.display()));
        for flag in quoted.filter(|w| w.starts_with("--")) {
            assert!(help.contains(flag), "orlop {command} has no {flag}:\n{help}");
        }
    }
    assert!(
        server
            .run(&format!("{} version", orlop.display()))
            .contains("Kubernetes v1.36")
    );
}

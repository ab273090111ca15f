//! How pods are listed, selected and commented on.

use super::*;

#[test]
fn rows_read_as_in_kubectl() {
    let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
    let init = json!([{"name": "i"}, {"name": "j"}]);
    let sidecar = json!([{"name": "s", "restartPolicy": "Always"}]);
    let done = json!({"terminated": {"exitCode": 0, "reason": "Completed"}});
    let finished = json!({"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T11:55:00Z"}});
    let two = json!([{"name": "c"}, {"name": "d"}]);
    let running = json!({"name": "c", "ready": true, "restartCount": 0, "state": {"running": {}}});
    for (spec, status, want) in [
        (json!({}), json!({"phase": "Pending"}), "0/1 Pending 0"),
        (
            json!({}),
            json!({"phase": "Running", "containerStatuses": [running]}),
            "1/1 Running 0",
        ),
        (
            json!({}),
            json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]}),
            "0/1 SchedulingGated 0",
        ),
        (
            json!({}),
            json!({"phase": "Running", "containerStatuses": [
                {"restartCount": 3, "state": waiting("CrashLoopBackOff"), "lastState": finished}]}),
            "0/1 CrashLoopBackOff 3 (5m ago)",
        ),
        (
            json!({"initContainers": init}),
            json!({"phase": "Pending", "initContainerStatuses": [
                {"name": "i", "state": done, "restartCount": 1}, {"name": "j", "state": {"running": {}}}]}),
            "0/1 Init:1/2 1",
        ),
        (
            json!({"initContainers": init}),
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": waiting("ImagePullBackOff")}]}),
            "0/1 Init:ImagePullBackOff 0",
        ),
        (
            json!({"initContainers": init}),
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"terminated": {"exitCode": 2}}}]}),
            "0/1 Init:ExitCode:2 0",
        ),
        (
            json!({"initContainers": init}),
            json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"terminated": {"exitCode": 2, "signal": 9}}}]}),
            "0/1 Init:Signal:9 0",
        ),
        (
            json!({"initContainers": sidecar}),
            json!({"phase": "Running", "containerStatuses": [running], "initContainerStatuses": [
                {"name": "s", "started": true, "ready": true, "restartCount": 2, "state": {"running": {}}}]}),
            "2/2 Running 2",
        ),
        (
            json!({}),
            json!({"phase": "Succeeded", "containerStatuses": [{"state": done}]}),
            "0/1 Completed 0",
        ),
        (
            json!({"containers": two}),
            json!({"phase": "Running", "containerStatuses": [running, {"name": "d", "state": done}],
                   "conditions": [{"type": "Ready", "status": "True"}]}),
            "1/2 Running 0",
        ),
        (
            json!({"containers": two}),
            json!({"phase": "Running", "containerStatuses": [running, {"name": "d", "state": done}]}),
            "1/2 NotReady 0",
        ),
        (
            json!({"containers": two}),
            json!({"phase": "Failed", "containerStatuses": [
                {"name": "c", "state": done}, {"name": "d", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]}),
            "0/2 Error 0",
        ),
        (
            json!({}),
            json!({"phase": "Failed", "reason": "Evicted"}),
            "0/1 Evicted 0",
        ),
    ] {
        let pod = json!({"spec": {"containers": [{"name": "c"}]}, "status": status});
        let mut pod = pod;
        for (k, v) in spec.as_object().unwrap() {
            pod["spec"][k] = v.clone();
        }
        let cells: Vec<String> = (DEF.cells)(&pod, now())
            .iter()
            .map(|c| c.as_str().unwrap_or("?").to_string())
            .collect();
        assert_eq!(cells[..3].join(" "), want, "{pod}");
        assert_eq!(cells.len(), DEF.columns.len());
    }
    let mut leaving = created(json!({
        "metadata": {"deletionTimestamp": "2026-01-01T11:59:00Z"},
        "spec": {"nodeName": "n", "readinessGates": [{"conditionType": "a"}, {"conditionType": "b"}]},
    }));
    leaving["status"]["conditions"] = json!([{"type": "a", "status": "True"}]);
    leaving["status"]["podIPs"] = json!([{"ip": "10.0.0.1"}]);
    let row = |pod: &Value| Value::from((DEF.cells)(pod, now()));
    assert_eq!(
        row(&leaving),
        json!(["0/1", "Terminating", "0", "60m", "10.0.0.1", "n", "<none>", "1/2"])
    );
    leaving["status"]["reason"] = "NodeLost".into();
    assert_eq!(row(&leaving)[1], "Unknown");
}

#[test]
fn selectors_see_the_pod() {
    let pod = created(json!({"spec": {"nodeName": "n"}}));
    let value = |name: &str| DEF.fields.iter().find(|f| f.name == name).unwrap().value(&pod);
    for (field, want) in [
        ("spec.nodeName", "n"),
        ("spec.host", "n"),
        ("spec.hostNetwork", "false"),
        ("spec.restartPolicy", "Always"),
        ("spec.schedulerName", "default-scheduler"),
        ("spec.serviceAccountName", "default"),
        ("status.phase", "Pending"),
        ("status.podIP", ""),
        ("status.nominatedNodeName", ""),
    ] {
        assert_eq!(value(field), want, "{field}");
    }
}

/// Each snippet with the advice wanted, one to a line.
#[test]
fn warnings_on_new_pods() {
    for (snippet, want) in [
        (json!({}), ""),
        (
            json!({"metadata": {"name": "a.b"}}),
            "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [must not contain dots]",
        ),
        (
            json!({"spec": {"nodeSelector": {"beta.kubernetes.io/os": "linux"}}}),
            "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead",
        ),
        (
            json!({"spec": {"topologySpreadConstraints": [{"topologyKey": "failure-domain.beta.kubernetes.io/zone"}]}}),
            "spec.topologySpreadConstraints[0].topologyKey: failure-domain.beta.kubernetes.io/zone is deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead\n\
             spec.topologySpreadConstraints[0].labelSelector: a null labelSelector results in matching no pod",
        ),
        (
            json!({"metadata": {"annotations": {"scheduler.alpha.kubernetes.io/critical-pod": ""}}}),
            "metadata.annotations[scheduler.alpha.kubernetes.io/critical-pod]: non-functional in v1.16+; use the \"priorityClassName\" field instead",
        ),
        (
            json!({"spec": {"volumes": [{"name": "v", "glusterfs": {}}]}}),
            "spec.volumes[0].glusterfs: deprecated in v1.25, non-functional in v1.26+",
        ),
        (
            json!({"spec": {"volumes": [{"name": "v", "configMap": {"name": "c", "items": [
                {"key": "a", "path": "x"}, {"key": "b", "path": "x/y"}]}}]}}),
            "volume \"v\" (ConfigMap \"c\"): overlapping paths: \"x/y\" with \"x\"",
        ),
        (
            json!({"spec": {"volumes": [{"name": "v", "projected": {"sources": [
                {"serviceAccountToken": {"path": "t"}}, {"secret": {"name": "s", "items": [{"key": "k", "path": "t"}]}}]}}]}}),
            "volume \"v\" (Projected): overlapping paths: \"t\" (Secret \"s\") with \"t\" (ServiceAccountToken)",
        ),
        (
            json!({"spec": {"imagePullSecrets": [{"name": "a"}, {"name": "a"}]}}),
            "spec.imagePullSecrets[1].name: duplicate name \"a\"",
        ),
        (
            json!({"spec": {"containers": [{"resources": {"limits": {"memory": "1500m"}, "requests": {"memory": "1"}}}]}}),
            "spec.containers[0].resources.limits[memory]: fractional byte value \"1500m\" is invalid, must be an integer",
        ),
        (
            json!({"spec": {"containers": [{"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "$(A)2"}, {"name": "A", "value": "3"}]}]}}),
            "spec.containers[0].env[2]: hides previous definition of \"A\", which may be dropped when using apply",
        ),
        (
            json!({"spec": {"containers": [{"ports": [{"containerPort": 80, "name": "a"}, {"containerPort": 80, "hostPort": 8, "name": "a"}]}]}}),
            "spec.containers[0].ports[1]: overlapping port definition with spec.containers[0].ports[0]\n\
             spec.containers[0].ports[1]: duplicate port name \"a\" with spec.containers[0].ports[0], services and probes that select ports by name will use spec.containers[0].ports[0]",
        ),
        (
            json!({"spec": {"containers": [{"ports": [{"containerPort": 80, "hostIP": "1.1.1.1"}]}]}}),
            "spec.containers[0].ports[0]: hostIP set without hostPort: {Name: HostPort:0 ContainerPort:80 Protocol:TCP HostIP:1.1.1.1}",
        ),
        (
            json!({"spec": {"hostAliases": [{"ip": "FE80::1"}]}}),
            "spec.hostAliases[0].ip: IPv6 address \"FE80::1\" should be in RFC 5952 canonical format (\"fe80::1\")",
        ),
        (
            json!({"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/c": "unconfined"}}}),
            "metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]: deprecated since v1.30; use the \"appArmorProfile\" field instead",
        ),
    ] {
        let pod = created(snippet.clone());
        let root = Cursor::root(&pod);
        assert_eq!((DEF.warnings)(&root, None).join("\n"), want, "{snippet}");
        assert!((DEF.warnings)(&root, Some(&root)).is_empty(), "updates get no advice");
    }
}

/// As in Kubernetes' own discovery document.
#[test]
fn subresources_are_those_of_kubernetes() {
    let shown: Vec<String> = DEF
        .subresources
        .iter()
        .map(|s| format!("{} {}/{}.{} {}", s.name, s.group, s.version, s.kind, s.verbs.join(",")))
        .collect();
    assert_eq!(
        shown,
        [
            "attach /v1.PodAttachOptions create,get",
            "binding /v1.Binding create",
            "ephemeralcontainers /. get,patch,update",
            "eviction policy/v1.Eviction create",
            "exec /v1.PodExecOptions create,get",
            "log /. get",
            "portforward /v1.PodPortForwardOptions create,get",
            "proxy /v1.PodProxyOptions create,delete,get,patch,update",
            "resize /. get,patch,update",
            "status /. get,patch,update",
        ]
    );
}

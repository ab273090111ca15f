//! What may change in a pod, through which endpoint.

use super::*;

/// (the pod as it is, what is merged into it, the first line of each problem)
fn check_update(cases: &[(Value, Value, &str)]) {
    for (old, change, want) in cases {
        let old = pod(json!({"spec": old}));
        let mut new = old.clone();
        merge(&mut new, change);
        (DEF.default)(&mut new);
        let got = change_problems(DEF.validate_update, &new, &old);
        let shown: Vec<&str> = got
            .lines()
            .filter(|l| l.contains(": ") && !l.starts_with([' ', '+', '-']))
            .collect();
        let only = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
        assert_eq!(shown.join("\n").replace(only, "ONLY"), *want, "{change}");
    }
}

#[test]
fn little_of_a_pod_may_change() {
    let spec = |v: Value| json!({"spec": v});
    let tolerations = json!([{"key": "a", "operator": "Exists", "effect": "NoExecute"}]);
    check_update(&[
        (json!({}), json!({"metadata": {"labels": {"a": "b"}}}), ""),
        (json!({}), spec(json!({"containers": [{"image": "other"}]})), ""),
        (
            json!({}),
            spec(json!({"containers": [{"name": "d"}]})),
            "spec: Forbidden: ONLY",
        ),
        (json!({}), spec(json!({"nodeName": "n"})), "spec: Forbidden: ONLY"),
        (
            json!({}),
            spec(json!({"containers": [{}, {"name": "d", "image": "x"}]})),
            "spec.containers: Forbidden: pod updates may not add or remove containers",
        ),
        (json!({}), spec(json!({"activeDeadlineSeconds": 5})), ""),
        (
            json!({"activeDeadlineSeconds": 5}),
            spec(json!({"activeDeadlineSeconds": 4})),
            "",
        ),
        (
            json!({"activeDeadlineSeconds": 5}),
            spec(json!({"activeDeadlineSeconds": 6})),
            "spec.activeDeadlineSeconds: Invalid value: 6: must be less than or equal to previous value",
        ),
        (
            json!({"activeDeadlineSeconds": 5}),
            spec(json!({"activeDeadlineSeconds": null})),
            "spec.activeDeadlineSeconds: Invalid value: null: must not update from a positive integer to nil value",
        ),
        (
            json!({"tolerations": tolerations}),
            spec(json!({"tolerations": [{"tolerationSeconds": 5}, {"key": "b", "operator": "Exists"}]})),
            "",
        ),
        (
            json!({"tolerations": tolerations}),
            spec(json!({"tolerations": [{"key": "b"}]})),
            "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds",
        ),
        (
            json!({"schedulingGates": [{"name": "a"}]}),
            spec(json!({"schedulingGates": null})),
            "",
        ),
        (
            json!({}),
            spec(json!({"schedulingGates": [{"name": "a"}]})),
            "spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'a'",
        ),
        (
            json!({}),
            json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}),
            "metadata.annotations[kubernetes.io/config.mirror]: Forbidden: may not add mirror pod annotation",
        ),
        (
            json!({"containers": [{"resources": {"requests": {"cpu": "1"}}}]}),
            spec(json!({"containers": [{"resources": {"requests": {"cpu": "1000m"}}}]})),
            "",
        ),
    ]);
}

/// Such pods can no longer be made, but may have been stored.
#[test]
fn a_negative_grace_period_may_become_one() {
    let mut old = pod(json!({}));
    old["spec"]["terminationGracePeriodSeconds"] = json!(-1);
    for (seconds, fine) in [(1, true), (2, false)] {
        let mut new = old.clone();
        new["spec"]["terminationGracePeriodSeconds"] = seconds.into();
        assert_eq!(
            change_problems(DEF.validate_update, &new, &old).is_empty(),
            fine,
            "{seconds}"
        );
    }
}

#[test]
fn gated_pods_may_be_narrowed_down() {
    let gated = |v: Value| {
        let mut spec = json!({"schedulingGates": [{"name": "a"}]});
        merge(&mut spec, &v);
        spec
    };
    let nodes = |terms: Value| {
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        json!({"affinity": {"nodeAffinity": {required: {"nodeSelectorTerms": terms}}}})
    };
    let one = json!([{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]);
    let two = json!([{"matchExpressions": [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}]}]);
    let other = json!([{"matchExpressions": [{"key": "c", "operator": "Exists"}]}]);
    let more = json!([one[0], other[0]]);
    let prefix = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let shown = |v: &Value| v.to_string();
    check_update(&[
        (gated(json!({})), json!({"spec": {"nodeSelector": {"a": "b"}}}), ""),
        (
            json!({}),
            json!({"spec": {"nodeSelector": {"a": "b"}}}),
            "spec: Forbidden: ONLY",
        ),
        (
            gated(json!({"nodeSelector": {"a": "b"}})),
            json!({"spec": {"nodeSelector": {"a": "c"}}}),
            "spec.nodeSelector: Invalid value: {\"a\":\"c\"}: only additions to spec.nodeSelector are allowed (no mutations or deletions)",
        ),
        (gated(json!({})), json!({"spec": nodes(one.clone())}), ""),
        (gated(nodes(one.clone())), json!({"spec": nodes(two.clone())}), ""),
        (
            gated(nodes(one.clone())),
            json!({"spec": nodes(other.clone())}),
            &format!(
                "{prefix}[0]: Invalid value: {}: only additions are allowed (no mutations or deletions)",
                shown(&other[0])
            ),
        ),
        (
            gated(nodes(one.clone())),
            json!({"spec": nodes(more.clone())}),
            &format!(
                "{prefix}: Invalid value: {}: no additions/deletions to non-empty NodeSelectorTerms list are allowed",
                shown(&more)
            ),
        ),
        (
            gated(json!({"affinity": {"podAffinity": {}}})),
            json!({"spec": {"affinity": {"nodeAffinity": nodes(one.clone())["affinity"]["nodeAffinity"]}}}),
            "",
        ),
        (
            gated(json!({})),
            json!({"spec": {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}}}),
            "spec: Forbidden: ONLY",
        ),
    ]);
}

#[test]
fn a_refused_update_shows_the_difference() {
    let old = pod(json!({}));
    let mut new = old.clone();
    new["spec"]["schedulerName"] = "mine".into();
    let got = change_problems(DEF.validate_update, &new, &old);
    assert!(got.contains("\n@@ -"), "{got}");
    assert!(
        got.contains("\n- \"schedulerName\": \"default-scheduler\",\n+ \"schedulerName\": \"mine\",\n"),
        "{got}"
    );
}

#[test]
fn the_status_endpoint_keeps_the_spec() {
    let old = pod(json!({
        "metadata": {"deletionTimestamp": "2026-01-01T11:30:00Z", "ownerReferences": [{"name": "rs"}]},
        "status": {"qosClass": "Burstable", "observedGeneration": 3,
                   "conditions": [{"type": "Ready", "observedGeneration": 2}]},
    }));
    let mut new = pod(json!({
        "metadata": {"labels": {"a": "b"}},
        "spec": {"nodeName": "elsewhere"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}, {"type": "x/y"}]},
    }));
    (DEF.prepare_status)(&mut new, &old);
    assert_eq!(new["spec"], old["spec"]);
    assert_eq!(
        new["metadata"]["deletionTimestamp"],
        old["metadata"]["deletionTimestamp"]
    );
    assert_eq!(new["metadata"]["ownerReferences"], old["metadata"]["ownerReferences"]);
    assert_eq!(new["metadata"]["labels"], json!({"a": "b"}));
    assert_eq!(
        new["status"],
        json!({"phase": "Running", "qosClass": "Burstable", "observedGeneration": 3, "conditions": [
            {"type": "Ready", "status": "True", "observedGeneration": 2}, {"type": "x/y"}]})
    );
    assert_eq!(change_problems(DEF.validate_status, &new, &old), "");
}

#[test]
fn statuses_are_checked() {
    let ended = |code: i64| json!({"containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": code}}}]});
    let running = json!({"containerStatuses": [{"name": "c", "state": {"running": {}}}]});
    let never = json!({"restartPolicy": "Never"});
    let on_failure = json!({"restartPolicy": "OnFailure"});
    let back = "status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state";
    for (spec, old, new, want) in [
        (json!({}), ended(0), running.clone(), ""),
        (never, ended(1), running.clone(), back),
        (on_failure.clone(), ended(1), running.clone(), ""),
        (on_failure, ended(0), running, back),
        (
            json!({}),
            json!({"qosClass": "BestEffort"}),
            json!({"qosClass": "Guaranteed"}),
            "status.qosClass: Invalid value: \"Guaranteed\": field is immutable",
        ),
        (
            json!({"nodeName": "n"}),
            json!({}),
            json!({"nominatedNodeName": "m"}),
            "status.nominatedNodeName: Forbidden: may not be set on pods that are already bound to a node",
        ),
        (json!({}), json!({}), json!({"nominatedNodeName": "m"}), ""),
        (
            json!({}),
            json!({}),
            json!({"podIPs": [{"ip": "1.1.1.1"}, {"ip": "2.2.2.2"}]}),
            "status.podIPs: Invalid value: [{\"ip\":\"1.1.1.1\"},{\"ip\":\"2.2.2.2\"}]: may specify no more than one IP for each IP family",
        ),
        (
            json!({}),
            json!({}),
            json!({"podIPs": [{"ip": "1.1.1.1"}, {"ip": "::1"}]}),
            "",
        ),
        (
            json!({}),
            json!({}),
            json!({"hostIPs": [{"ip": "x"}]}),
            "status.hostIPs[0].ip: Invalid value: \"x\": must be equal to `hostIP`\n\
             status.hostIPs[0]: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        ),
        (
            json!({}),
            json!({}),
            json!({"conditions": [{"type": "a b", "observedGeneration": -1}]}),
            "status.conditions[0].observedGeneration: Invalid value: -1: must be a non-negative integer\n\
             status.conditions[0].Type: Invalid value: \"a b\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
        ),
        (
            json!({}),
            json!({}),
            json!({"resourceClaimStatuses": [{"name": "x"}]}),
            "status.resourceClaimStatuses[0].name: Invalid value: \"x\": must match the name of an entry in `spec.resourceClaims`",
        ),
        (
            json!({}),
            json!({}),
            json!({"containerStatuses": [{"name": "c", "user": {"linux": {"uid": -1, "gid": 0}}}]}),
            "status.containerStatuses[0].user.linux.uid: Invalid value: -1: must be between 0 and 2147483647, inclusive",
        ),
        (
            json!({"containers": [{"resources": {"limits": {"example.com/gpu": "1"}}}]}),
            json!({}),
            json!({"containerStatuses": [{"name": "c", "allocatedResourcesStatus": [
                {"name": "example.com/gpu", "resources": [{"resourceID": "0", "health": "Healthy"}, {"resourceID": "0", "health": "Odd"}]},
                {"name": "claim:x"}]}]}),
            "status.containerStatuses[0].allocatedResourcesStatus[0].resources[1].health: Unsupported value: \"Odd\": supported values: \"Healthy\", \"Unhealthy\", \"Unknown\"\n\
             status.containerStatuses[0].allocatedResourcesStatus[0].resources[1].resourceID: Duplicate value: \"0\"\n\
             status.containerStatuses[0].allocatedResourcesStatus[1].name: Invalid value: \"claim:x\": must match one of the container's resource claims in a format 'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty",
        ),
    ] {
        let old = pod(json!({"spec": spec, "status": old}));
        let mut changed = old.clone();
        changed["status"] = new.clone();
        (DEF.default)(&mut changed);
        (DEF.prepare_status)(&mut changed, &old);
        assert_eq!(
            short(&change_problems(DEF.validate_status, &changed, &old)),
            short(want),
            "{new}"
        );
    }
}

#[test]
fn ephemeral_containers_are_only_added() {
    let old = created(json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "x"}]}}));
    let list = |containers: Value| {
        let mut new = old.clone();
        new["spec"]["ephemeralContainers"] = containers;
        new["spec"]["nodeName"] = "ignored".into();
        new["metadata"]["labels"] = json!({"ignored": "too"});
        (DEF.default)(&mut new);
        prepare_ephemeral(&mut new, &old);
        new
    };
    let new = list(json!([{"name": "f", "image": "y"}, {"name": "e", "image": "x"}]));
    assert_eq!(new["spec"].get("nodeName"), None);
    assert_eq!(new["metadata"], old["metadata"]);
    for (containers, want) in [
        (json!([{"name": "f", "image": "y"}, {"name": "e", "image": "x"}]), ""),
        (
            json!([]),
            "spec.ephemeralContainers: Forbidden: existing ephemeral containers \"e\" may not be removed",
        ),
        (
            json!([{"name": "e", "image": "y"}]),
            "spec.ephemeralContainers: Forbidden: existing ephemeral containers \"e\" may not be changed",
        ),
        (
            json!([{"name": "e", "image": "x"}, {"name": "c", "image": "y"}]),
            "spec.ephemeralContainers[1].name: Duplicate value: \"c\"",
        ),
    ] {
        let got = change_problems(validate_ephemeral_containers_update, &list(containers.clone()), &old);
        assert_eq!(got.lines().next().unwrap_or(""), want, "{containers}");
    }
    let mut mirror = old.clone();
    mirror["metadata"]["annotations"] = json!({MIRROR: "x"});
    let got = change_problems(validate_ephemeral_containers_update, &mirror, &mirror);
    assert_eq!(got, "[]: Forbidden: static pods do not support ephemeral containers");
}

const MIRROR: &str = "kubernetes.io/config.mirror";

#[test]
fn resizing_changes_cpu_and_memory_only() {
    let resources = |r: Value| json!({"containers": [{"resources": r}]});
    let base = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}});
    let old = created(json!({"spec": {
        "containers": [{"resources": base}],
        "initContainers": [{"name": "i", "image": "x", "resources": base}],
    }}));
    let only = "spec: Forbidden: only cpu and memory resources are mutable";
    for (change, want) in [
        (json!({}), ""),
        (
            resources(json!({"requests": {"cpu": "1500m"}, "limits": {"memory": "2Gi"}})),
            "",
        ),
        (
            json!({"initContainers": [{"resources": {"requests": {"cpu": "500m"}}}]}),
            "",
        ),
        (
            json!({"containers": [{"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]}]}),
            only,
        ),
        (resources(json!({"requests": {"ephemeral-storage": "1Gi"}})), only),
        (
            resources(json!({"limits": {"memory": null}})),
            "spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed",
        ),
        (
            json!({"containers": [{"resources": null}], "initContainers": [{"resources": null}]}),
            "spec: Invalid value: \"Burstable\": Pod QOS Class may not change as a result of resizing",
        ),
        (json!({"nodeName": "ignored"}), ""),
        (
            json!({"containers": [{"name": "d"}]}),
            "spec.containers[0].name: Forbidden: containers may not be renamed or reordered on resize",
        ),
        (
            json!({"containers": [{}, {"name": "d", "image": "x"}]}),
            "spec.containers: Forbidden: containers may not be added or removed on resize",
        ),
        (json!({"resources": {"requests": {"cpu": "4"}}}), ""),
    ] {
        let mut new = old.clone();
        merge(&mut new["spec"], &change);
        (DEF.default)(&mut new);
        prepare_resize(&mut new, &old);
        let got = change_problems(validate_resize, &new, &old);
        assert_eq!(got.lines().next().unwrap_or(""), want, "{change}");
    }
    let mut running = old.clone();
    running["status"]["containerStatuses"] = json!([{"name": "c", "state": {"running": {}}}]);
    let got = change_problems(validate_resize, &running, &running);
    assert_eq!(got, "spec: Forbidden: Pod running on node without support for resize");
    running["spec"]["os"] = json!({"name": "windows"});
    let got = change_problems(validate_resize, &running, &running);
    assert_eq!(got, "[]: Forbidden: windows pods cannot be resized");
}

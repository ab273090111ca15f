//! Where a pod may run and how it is reached.

use super::*;

#[test]
fn what_is_required_during_execution_is_checked_alike() {
    let field = "requiredDuringSchedulingRequiredDuringExecution";
    let nodes = |terms: Value| json!({"affinity": {"nodeAffinity": {field: {"nodeSelectorTerms": terms}}}});
    let at = |rest: &str| format!("spec.affinity.nodeAffinity.{field}.nodeSelectorTerms{rest}");
    let expression = |e: Value| nodes(json!([{"matchExpressions": [e]}]));
    check(&[
        (expression(json!({"key": "a", "operator": "In", "values": ["b"]})), ""),
        (
            nodes(json!([])),
            &at(": Required value: must have at least one node selector term"),
        ),
        (
            expression(json!({"key": "a", "operator": "Like"})),
            &at("[0].matchExpressions[0].operator: Invalid value: \"Like\": not a valid selector operator"),
        ),
    ]);
}

#[test]
fn affinity_terms_are_checked() {
    let node = |v: Value| json!({"affinity": {"nodeAffinity": v}});
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let expression = |e: Value| node(json!({required: {"nodeSelectorTerms": [{"matchExpressions": [e]}]}}));
    let prefix = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let at = |rest: &str| format!("{prefix}{rest}");
    check(&[
        (expression(json!({"key": "a", "operator": "In", "values": ["b"]})), ""),
        (expression(json!({"key": "a", "operator": "Gt", "values": ["5"]})), ""),
        (
            expression(json!({"key": "a", "operator": "Gt", "values": ["5", "6"]})),
            &at("[0].matchExpressions[0].values: Required value: must be specified single value when `operator` is 'Lt' or 'Gt'"),
        ),
        (
            expression(json!({"key": "a", "operator": "Exists", "values": ["5"]})),
            &at("[0].matchExpressions[0].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"),
        ),
        (
            expression(json!({"key": "a", "operator": "Like"})),
            &at("[0].matchExpressions[0].operator: Invalid value: \"Like\": not a valid selector operator"),
        ),
        (
            node(json!({required: {"nodeSelectorTerms": []}})),
            &at(": Required value: must have at least one node selector term"),
        ),
        (
            node(json!({required: {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.uid", "operator": "In", "values": ["a", "b"]}]}]}})),
            &[
                at("[0].matchFields[0].values: Required value: must be only one value when `operator` is 'In' or 'NotIn' for node field selector"),
                at("[0].matchFields[0].key: Invalid value: \"metadata.uid\": not a valid field selector key"),
            ].join("\n"),
        ),
        (
            node(json!({preferred: [{"weight": 101, "preference": {}}, {"weight": 1, "preference": {"matchExpressions": [
                {"key": "a", "operator": "In", "values": ["not a label"]}]}}]})),
            "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: 101: must be in the range 1-100",
        ),
    ]);
    let term = |t: Value| json!({"affinity": {"podAntiAffinity": {required: [t]}}});
    let prefix = "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]";
    let at = |rest: &str| format!("{prefix}{rest}");
    let selector = json!({"matchLabels": {"a": "b"}});
    check(&[
        (
            term(json!({"topologyKey": "zone", "labelSelector": selector, "namespaces": ["x"]})),
            "",
        ),
        (
            term(json!({"topologyKey": "zone", "labelSelector": selector, "matchLabelKeys": ["k"]})),
            "",
        ),
        (
            term(json!({"topologyKey": "zone", "labelSelector": selector, "namespaces": ["X_"]})),
            &at(
                ".namespace: Invalid value: \"X_\": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
            ),
        ),
        (
            term(json!({"topologyKey": "zone", "matchLabelKeys": ["k"]})),
            &at(".matchLabelKeys: Forbidden: must not be specified when labelSelector is not set"),
        ),
        (
            term(
                json!({"topologyKey": "zone", "labelSelector": selector, "matchLabelKeys": ["k"], "mismatchLabelKeys": ["k"]}),
            ),
            &at(".matchLabelKeys[0]: Invalid value: \"k\": exists in both matchLabelKeys and mismatchLabelKeys"),
        ),
        (
            term(json!({"topologyKey": "zone", "matchLabelKeys": ["a"],
                        "labelSelector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}})),
            &at("[0]: Invalid value: \"a\": exists in both matchLabelKeys and labelSelector"),
        ),
    ]);
    let got = problems(&pod(&term(json!({"labelSelector": selector}))));
    assert!(
        got[0].ends_with(".topologyKey: Required value: can not be empty"),
        "{got:?}"
    );
}

#[test]
fn tolerations_spreading_and_gates() {
    let toleration = |t: Value| json!({"tolerations": [t]});
    let spread = |c: Value| json!({"topologySpreadConstraints": c});
    check(&[
        (toleration(json!({"operator": "Exists"})), ""),
        (
            toleration(json!({"key": "a", "value": "b", "effect": "NoExecute", "tolerationSeconds": 5})),
            "",
        ),
        (
            toleration(json!({"value": "b"})),
            "spec.tolerations[0].operator: Invalid value: \"\": operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
        ),
        (
            toleration(json!({"key": "a", "operator": "Exists", "value": "b"})),
            "spec.tolerations[0].operator: Invalid value: \"b\": value must be empty when `operator` is 'Exists'",
        ),
        (
            toleration(json!({"key": "a", "effect": "NoSchedule", "tolerationSeconds": 5})),
            "spec.tolerations[0].effect: Invalid value: \"NoSchedule\": effect must be 'NoExecute' when `tolerationSeconds` is set",
        ),
        (
            toleration(json!({"key": "a", "operator": "Like", "effect": "Never"})),
            "spec.tolerations[0].operator: Unsupported value: \"Like\": supported values: \"Equal\", \"Exists\"\n\
             spec.tolerations[0].effect: Unsupported value: \"Never\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"",
        ),
        (
            toleration(json!({"key": "a", "operator": "Lt", "value": "1"})),
            "spec.tolerations[0].operator: Unsupported value: \"Lt\": supported values: \"Equal\", \"Exists\", \"Lt\", \"Gt\"",
        ),
        (
            spread(json!([{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2}])),
            "",
        ),
        (
            spread(json!([{"maxSkew": 0, "whenUnsatisfiable": "Try", "nodeTaintsPolicy": "x"}])),
            "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero\n\
             spec.topologySpreadConstraints[0].topologyKey: Required value: can not be empty\n\
             spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: \"Try\": supported values: \"DoNotSchedule\", \"ScheduleAnyway\"\n\
             spec.topologySpreadConstraints[0].nodeTaintsPolicy: Unsupported value: \"x\": supported values: \"Honor\", \"Ignore\"",
        ),
        (
            spread(
                json!([{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "ScheduleAnyway", "minDomains": 1},
                          {"maxSkew": 2, "topologyKey": "z", "whenUnsatisfiable": "ScheduleAnyway"}]),
            ),
            "spec.topologySpreadConstraints[0].{topologyKey, whenUnsatisfiable}: Duplicate value: \"{z, ScheduleAnyway}\"\n\
             spec.topologySpreadConstraints[0].minDomains: Invalid value: 1: can only use minDomains if whenUnsatisfiable=DoNotSchedule, not ScheduleAnyway",
        ),
        (
            json!({"schedulingGates": [{"name": "a.b/c"}], "readinessGates": [{"conditionType": "x/y"}]}),
            "",
        ),
        (
            json!({"schedulingGates": [{"name": "a"}, {"name": "a"}]}),
            "spec.schedulingGates[1]: Duplicate value: \"a\"",
        ),
    ]);
}

#[test]
fn network_settings() {
    check(&[
        (
            json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1"], "searches": [".", "_a.b_c.d."]}}),
            "",
        ),
        (
            json!({"dnsPolicy": "None"}),
            "spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None",
        ),
        (
            json!({"dnsPolicy": "None", "dnsConfig": {"searches": ["a"]}}),
            "spec.dnsConfig.nameservers: Required value: must provide at least one DNS nameserver when `dnsPolicy` is None",
        ),
        (
            json!({"dnsConfig": {"nameservers": ["1.1.1.1", "x", "01.1.1.1", "::ffff:1.2.3.4"], "options": [{}]}}),
            "spec.dnsConfig.nameservers: Invalid value: [\"1.1.1.1\",\"x\",\"01.1.1.1\",\"::ffff:1.2.3.4\"]: must not have more than 3 nameservers\n\
             spec.dnsConfig.nameservers[1]: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)\n\
             spec.dnsConfig.nameservers[2]: Invalid value: \"01.1.1.1\": must not have leading 0s\n\
             spec.dnsConfig.nameservers[3]: Invalid value: \"::ffff:1.2.3.4\": must not be an IPv4-mapped IPv6 address\n\
             spec.dnsConfig.options[0]: Required value: must not be empty",
        ),
        (json!({"hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a.b"]}]}), ""),
        (
            json!({"hostnameOverride": "a.b", "setHostnameAsFQDN": true, "hostNetwork": true}),
            "spec.hostnameOverride: Forbidden: may not be specified when setHostnameAsFQDN is true\n\
             spec.hostnameOverride: Forbidden: may not be specified when hostNetwork is true",
        ),
        (
            json!({"activeDeadlineSeconds": 0, "preemptionPolicy": "x"}),
            "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive\n\
             spec.preemptionPolicy: Unsupported value: \"x\": supported values: \"PreemptLowerPriority\", \"Never\"",
        ),
        (
            json!({"hostname": "a", "subdomain": "b", "nodeName": "n.x", "priorityClassName": "system-node-critical"}),
            "",
        ),
        (
            json!({"hostname": "a.b"}),
            "spec.hostname: Invalid value: \"a.b\": must not contain dots",
        ),
    ]);
}

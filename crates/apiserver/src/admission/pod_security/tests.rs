use serde_json::json;

use super::policy::Version;
use super::*;
use crate::admission::fixture::{Desk, told, with};
use crate::lookup::ObjectLookup;

/// A pod that meets every standard.
fn good() -> Value {
    json!({
        "metadata": {"name": "p", "namespace": "ns"},
        "spec": {
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container("c"), container("d")],
        },
    })
}

fn container(name: &str) -> Value {
    json!({"name": name, "image": "i", "securityContext":
        {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}})
}

/// The good pod with changes to itself and to its first container.
fn changed(pod: Value, first: Value) -> Value {
    let mut object = with(good(), pod);
    object["spec"]["containers"][0] = with(object["spec"]["containers"][0].clone(), first);
    object
}

fn wrong(level: Level, version: Version, pod: &Value) -> String {
    checks::told(&violations(Standard { level, version }, &whole(pod)))
}

fn in_latest(level: Level, pod: &Value) -> String {
    wrong(level, Version::Latest, pod)
}

#[test]
fn baseline_closes_known_ways_out() {
    let security = |context: Value| changed(json!({}), json!({"securityContext": context}));
    let of_pod = |context: Value| changed(json!({"spec": {"securityContext": context}}), json!({}));
    let cases = [
        (good(), ""),
        (
            changed(
                json!({"spec": {"hostNetwork": true, "hostPID": true, "hostIPC": true}}),
                json!({}),
            ),
            "host namespaces (hostNetwork=true, hostPID=true, hostIPC=true)",
        ),
        (
            security(json!({"privileged": true})),
            "privileged (container \"c\" must not set securityContext.privileged=true)",
        ),
        (
            security(json!({"capabilities": {"add": ["CHOWN", "NET_BIND_SERVICE"]}})),
            "",
        ),
        (
            security(json!({"capabilities": {"add": ["SYS_ADMIN", "CHOWN", "NET_RAW"]}})),
            "non-default capabilities (container \"c\" must not include \"NET_RAW\", \"SYS_ADMIN\" in securityContext.capabilities.add)",
        ),
        (
            changed(
                json!({"spec": {"volumes": [{"name": "v", "hostPath": {}}, {"name": "w", "hostPath": {}}, {"name": "x", "nfs": {}}]}}),
                json!({}),
            ),
            "hostPath volumes (volumes \"v\", \"w\")",
        ),
        (
            changed(
                json!({}),
                json!({"ports": [{"hostPort": 80}, {"hostPort": 0}, {"containerPort": 5}, {"hostPort": 443}]}),
            ),
            "hostPort (container \"c\" uses hostPorts 443, 80)",
        ),
        (
            changed(
                json!({}),
                json!({"livenessProbe": {"httpGet": {"host": "h"}}, "lifecycle": {"preStop": {"tcpSocket": {"host": "g"}}}}),
            ),
            "probe or lifecycle host (container \"c\" uses probe or lifecycle hosts \"g\", \"h\")",
        ),
        (
            changed(json!({}), json!({"readinessProbe": {"httpGet": {"port": 80}}})),
            "",
        ),
        (security(json!({"procMount": "Default"})), ""),
        (
            security(json!({"procMount": "Unmasked"})),
            "procMount (container \"c\" must not set securityContext.procMount to \"Unmasked\")",
        ),
        (
            of_pod(json!({"seLinuxOptions": {"type": "container_engine_t", "level": "s0"}})),
            "",
        ),
        (
            changed(
                json!({"spec": {"securityContext": {"seLinuxOptions": {"type": "a"}}}}),
                json!({"securityContext": {"seLinuxOptions": {"user": "u", "role": "r", "type": "b"}}}),
            ),
            "seLinuxOptions (pod and container \"c\" set forbidden securityContext.seLinuxOptions: types \"a\", \"b\"; user may not be set; role may not be set)",
        ),
        (
            of_pod(json!({"seccompProfile": {"type": "Unconfined"}})),
            "seccompProfile (pod must not set securityContext.seccompProfile.type to \"Unconfined\")",
        ),
        (
            of_pod(json!({"sysctls": [{"name": "net.ipv4.tcp_rmem"}, {"name": "kernel.msgmax"}, {"name": "a.b"}]})),
            "forbidden sysctls (kernel.msgmax, a.b)",
        ),
        (
            changed(
                json!({"spec": {"securityContext": {"windowsOptions": {"hostProcess": true}}}}),
                json!({"securityContext": {"windowsOptions": {"hostProcess": true}}}),
            ),
            "hostProcess (pod and container \"c\" must not set securityContext.windowsOptions.hostProcess=true)",
        ),
        (
            security(json!({"appArmorProfile": {"type": "Unconfined"}})),
            "forbidden AppArmor profile (container \"c\" must not set AppArmor profile type to \"Unconfined\")",
        ),
        (
            changed(
                json!({"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/c": "unconfined",
                    "container.apparmor.security.beta.kubernetes.io/d": "localhost/x"}}}),
                json!({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}),
            ),
            "forbidden AppArmor profiles (container \"c\" and annotation must not set AppArmor profile type to \"Unconfined\", \"container.apparmor.security.beta.kubernetes.io/c=\"unconfined\"\")",
        ),
    ];
    for (pod, expected) in cases {
        assert_eq!(in_latest(Level::Baseline, &pod), expected, "{pod}");
        assert_eq!(in_latest(Level::Privileged, &pod), "");
        let strict = in_latest(Level::Restricted, &pod);
        assert_eq!(
            strict.is_empty(),
            pod == good()
                || pod["spec"]["volumes"].is_null()
                    && expected.is_empty()
                    && pod["spec"]["containers"][0]["securityContext"]["capabilities"]["add"].is_null(),
            "{pod}: {strict}"
        );
    }
}

#[test]
fn restricted_asks_for_the_least() {
    let security = |context: Value| changed(json!({}), json!({"securityContext": context}));
    let bare = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}, {"name": "d"}]}});
    let cases = [
        (
            bare,
            "allowPrivilegeEscalation != false (containers \"c\", \"d\" must set securityContext.allowPrivilegeEscalation=false), \
             unrestricted capabilities (containers \"c\", \"d\" must set securityContext.capabilities.drop=[\"ALL\"]), \
             runAsNonRoot != true (pod or containers \"c\", \"d\" must set securityContext.runAsNonRoot=true), \
             seccompProfile (pod or containers \"c\", \"d\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")",
        ),
        (
            security(json!({"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}})),
            "",
        ),
        (
            security(json!({"capabilities": {"drop": ["KILL"], "add": ["CHOWN"]}})),
            "unrestricted capabilities (container \"c\" must set securityContext.capabilities.drop=[\"ALL\"]; container \"c\" must not include \"CHOWN\" in securityContext.capabilities.add)",
        ),
        (
            changed(
                json!({"spec": {"volumes": [{"name": "v", "hostPath": {}}, {"name": "w", "nfs": {}}, {"name": "x", "emptyDir": {}},
                    {"name": "y", "image": {}}, {"name": "z", "csi": {}}]}}),
                json!({}),
            ),
            "restricted volume types (volumes \"v\", \"w\" use restricted volume types \"hostPath\", \"nfs\")",
        ),
        (
            changed(
                json!({"spec": {"securityContext": {"runAsNonRoot": false}}}),
                json!({"securityContext": {"runAsNonRoot": false}}),
            ),
            "runAsNonRoot != true (pod and container \"c\" must not set securityContext.runAsNonRoot=false)",
        ),
        (
            changed(
                json!({"spec": {"securityContext": {"runAsNonRoot": null}}}),
                json!({"securityContext": {"runAsNonRoot": true}}),
            ),
            "runAsNonRoot != true (pod or container \"d\" must set securityContext.runAsNonRoot=true)",
        ),
        (
            changed(
                json!({"spec": {"securityContext": {"runAsUser": 0}}}),
                json!({"securityContext": {"runAsUser": 1}}),
            ),
            "runAsUser=0 (pod must not set runAsUser=0)",
        ),
        (
            security(json!({"procMount": "Unmasked"})),
            "procMount (container \"c\" must not set securityContext.procMount to \"Unmasked\")",
        ),
        (
            changed(
                json!({"spec": {"securityContext": {"seccompProfile": null}}}),
                json!({"securityContext": {"seccompProfile": {"type": "Localhost"}}}),
            ),
            "seccompProfile (pod or container \"d\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")",
        ),
        (
            security(json!({"seccompProfile": {"type": "Unconfined"}})),
            "seccompProfile (container \"c\" must not set securityContext.seccompProfile.type to \"Unconfined\")",
        ),
    ];
    for (pod, expected) in cases {
        assert_eq!(in_latest(Level::Restricted, &pod), expected, "{pod}");
    }
    let order = with(
        good(),
        json!({"spec": {"ephemeralContainers": [{"name": "e"}], "initContainers": [{"name": "i"}]}}),
    );
    assert_eq!(
        wrong(Level::Restricted, Version::Minor(8), &order),
        "allowPrivilegeEscalation != false (containers \"i\", \"e\" must set securityContext.allowPrivilegeEscalation=false)"
    );
}

#[test]
fn rules_depend_on_the_version() {
    let windows = json!({"spec": {"os": {"name": "windows"}, "securityContext": {"runAsNonRoot": true},
        "containers": [{"name": "c"}]}});
    let own_users = changed(
        json!({"spec": {"hostUsers": false, "securityContext": {"runAsNonRoot": null, "runAsUser": 0}}}),
        json!({"securityContext": {"procMount": "Unmasked"}}),
    );
    let annotated = with(
        good(),
        json!({"metadata": {"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "unconfined",
            "container.seccomp.security.alpha.kubernetes.io/c": "x", "container.seccomp.security.alpha.kubernetes.io/z": "x"}},
            "spec": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}}),
    );
    let sysctl = |name: &str| {
        with(
            good(),
            json!({"spec": {"securityContext": {"sysctls": [{"name": name}]}}}),
        )
    };
    let engine = with(
        good(),
        json!({"spec": {"securityContext": {"seLinuxOptions": {"type": "container_engine_t"}}}}),
    );
    let probe = changed(json!({}), json!({"startupProbe": {"tcpSocket": {"host": "h"}}}));
    // (pod, level, the last minor version with other rules, whether it passes then, whether it passes after)
    let cases = [
        (&windows, Level::Restricted, 24, false, true),
        (&own_users, Level::Baseline, 34, false, true),
        (
            &sysctl("net.ipv4.ip_local_reserved_ports"),
            Level::Baseline,
            26,
            false,
            true,
        ),
        (&sysctl("net.ipv4.tcp_fin_timeout"), Level::Baseline, 28, false, true),
        (&sysctl("net.ipv4.tcp_wmem"), Level::Baseline, 31, false, true),
        (&sysctl("kernel.shm_rmid_forced"), Level::Baseline, 0, true, true),
        (&engine, Level::Baseline, 30, false, true),
        (&probe, Level::Baseline, 33, true, false),
    ];
    for (pod, level, last, before, after) in cases {
        assert_eq!(
            wrong(level, Version::Minor(last), pod).is_empty(),
            before,
            "{pod} v1.{last}"
        );
        assert_eq!(
            wrong(level, Version::Minor(last + 1), pod).is_empty(),
            after,
            "{pod} after v1.{last}"
        );
        assert_eq!(wrong(level, Version::Minor(99), pod).is_empty(), after, "{pod}");
    }
    assert_eq!(
        in_latest(Level::Restricted, &own_users),
        "procMount (container \"c\" must not set securityContext.procMount to \"Unmasked\")"
    );
    assert_eq!(
        wrong(Level::Restricted, Version::Minor(34), &own_users),
        "procMount (container \"c\" must not set securityContext.procMount to \"Unmasked\"), \
         runAsNonRoot != true (pod or containers \"c\", \"d\" must set securityContext.runAsNonRoot=true), \
         runAsUser=0 (pod must not set runAsUser=0)"
    );
    assert_eq!(
        wrong(Level::Baseline, Version::Minor(18), &annotated),
        "seccompProfile (forbidden annotations container.seccomp.security.alpha.kubernetes.io/c=\"x\", \
         seccomp.security.alpha.kubernetes.io/pod=\"unconfined\")"
    );
    assert_eq!(
        wrong(Level::Baseline, Version::Minor(19), &annotated),
        "seccompProfile (pod must not set securityContext.seccompProfile.type to \"Unconfined\")"
    );
    let adding = changed(
        json!({}),
        json!({"securityContext": {"capabilities": {"add": ["SYS_TIME"]}}}),
    );
    assert!(wrong(Level::Restricted, Version::Minor(21), &adding).starts_with("non-default capabilities"));
    assert!(wrong(Level::Restricted, Version::Minor(22), &adding).starts_with("unrestricted capabilities"));
}

fn labelled(labels: Value) -> Desk {
    Desk::new().with("namespaces", json!({"metadata": {"name": "ns", "labels": labels}}))
}

const BARE_VIOLATIONS: &str = "allowPrivilegeEscalation != false (container \"c\" must set securityContext.allowPrivilegeEscalation=false), \
    unrestricted capabilities (container \"c\" must set securityContext.capabilities.drop=[\"ALL\"]), \
    runAsNonRoot != true (pod or container \"c\" must set securityContext.runAsNonRoot=true), \
    seccompProfile (pod or container \"c\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")";

fn bare(image: &str) -> Value {
    json!({"metadata": {"name": "x", "namespace": "ns"}, "spec": {"containers": [{"name": "c", "image": image}]}})
}

#[test]
fn pods_are_refused_and_warned_about() {
    let desk = labelled(json!({"pod-security.kubernetes.io/enforce": "restricted"}));
    let refused = format!("pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\": {BARE_VIOLATIONS}");
    assert_eq!(told(desk.create(&PLUGIN, "pods", bare("a"))), refused);
    assert_eq!(told(desk.create(&PLUGIN, "pods", good())), "ok");
    assert!(desk.warnings().is_empty());

    // An update counts if it brings another image or another container.
    let debugged = with(
        bare("a"),
        json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "b"}]}}),
    );
    let relabelled = with(
        bare("a"),
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"activeDeadlineSeconds": 1}}),
    );
    let cases = [
        ("pods", relabelled, bare("a"), true),
        ("pods", bare("b"), bare("a"), false),
        ("pods/status", bare("b"), bare("a"), true),
        ("pods/binding", bare("b"), bare("a"), true),
        ("pods/resize", bare("a"), bare("a"), true),
        ("pods/ephemeralcontainers", debugged.clone(), bare("a"), false),
        ("pods/ephemeralcontainers", debugged.clone(), debugged, true),
    ];
    for (what, new, old, passes) in cases {
        let result = desk.update(&PLUGIN, what, new.clone(), old);
        assert_eq!(told(result) == "ok", passes, "{what} {new}");
    }
    assert_eq!(told(desk.delete(&PLUGIN, "pods", bare("a"))), "ok");

    let desk = labelled(json!({"pod-security.kubernetes.io/enforce": "baseline",
        "pod-security.kubernetes.io/warn": "restricted", "pod-security.kubernetes.io/warn-version": "v1.30"}));
    assert_eq!(told(desk.create(&PLUGIN, "pods", bare("a"))), "ok");
    let warning = format!("would violate PodSecurity \"restricted:v1.30\": {BARE_VIOLATIONS}");
    assert_eq!(desk.warnings(), [warning]);

    let misspelled = labelled(json!({"pod-security.kubernetes.io/enforce": "restrict"}));
    assert_eq!(told(misspelled.create(&PLUGIN, "pods", bare("a"))), refused);
    assert_eq!(told(Desk::new().create(&PLUGIN, "pods", bare("a"))), "ok");
    let elsewhere = with(bare("a"), json!({"metadata": {"namespace": "gone"}}));
    assert_eq!(
        told(Desk::new().create(&PLUGIN, "pods", elsewhere)),
        "Internal error occurred: failed to lookup namespace \"gone\""
    );
}

#[test]
fn workloads_are_only_warned_about() {
    let desk = labelled(json!({"pod-security.kubernetes.io/enforce": "restricted"}));
    let template = json!({"metadata": {}, "spec": bare("a")["spec"]});
    let by_template = json!({"metadata": {"name": "w"}, "spec": {"template": template}});
    let warning = format!("would violate PodSecurity \"restricted:latest\": {BARE_VIOLATIONS}");
    let cases = [
        ("deployments.apps", by_template.clone()),
        ("replicasets.apps", by_template.clone()),
        ("statefulsets.apps", by_template.clone()),
        ("daemonsets.apps", by_template.clone()),
        ("jobs.batch", by_template.clone()),
        ("replicationcontrollers", by_template.clone()),
        ("podtemplates", json!({"metadata": {"name": "w"}, "template": template})),
        (
            "cronjobs.batch",
            json!({"metadata": {"name": "w"}, "spec": {"jobTemplate": {"spec": {"template": template}}}}),
        ),
    ];
    for (what, object) in cases {
        assert_eq!(told(desk.create(&PLUGIN, what, object)), "ok");
        assert_eq!(desk.warnings(), [warning.as_str()], "{what}");
    }
    let updated = desk.update(
        &PLUGIN,
        "deployments.apps/status",
        by_template.clone(),
        by_template.clone(),
    );
    assert_eq!(told(updated), "ok");
    let quiet = labelled(
        json!({"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "privileged"}),
    );
    assert_eq!(told(quiet.create(&PLUGIN, "deployments.apps", by_template)), "ok");
    let other = quiet.create(&PLUGIN, "configmaps", json!({"metadata": {"name": "m"}}));
    assert_eq!(told(other), "ok");
    assert!(desk.warnings().is_empty() && quiet.warnings().is_empty());
}

#[test]
fn namespaces_are_labelled_sensibly() {
    let namespace = |labels: Value| json!({"metadata": {"name": "ns", "labels": labels}});
    let bad = namespace(json!({"pod-security.kubernetes.io/enforce": "none", "a": "b"}));
    let refused = "Namespace \"ns\" is invalid: metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"none\": must be one of privileged, baseline, restricted";
    let desk = Desk::new();
    assert_eq!(told(desk.create(&PLUGIN, "namespaces", bad.clone())), refused);
    assert_eq!(
        told(desk.update(&PLUGIN, "namespaces", bad.clone(), namespace(json!({})))),
        refused
    );
    let touched = with(bad.clone(), json!({"metadata": {"labels": {"a": "c"}}}));
    assert_eq!(told(desk.update(&PLUGIN, "namespaces", touched, bad)), "ok");
    let good = namespace(
        json!({"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/audit-version": "v1.0"}),
    );
    assert_eq!(told(desk.create(&PLUGIN, "namespaces", good)), "ok");
}

#[test]
fn a_stricter_namespace_tells_which_pods_break_its_rules() {
    let named = |name: &str, changes: Value| with(with(bare("a"), json!({"metadata": {"name": name}})), changes);
    let owned = json!({"metadata": {"ownerReferences": [{"uid": "u", "controller": true}]}});
    let mut desk = Desk::new();
    for (name, changes) in [
        ("b", json!({"spec": {"hostNetwork": true}})),
        ("a", json!({"spec": {"hostNetwork": true}})),
        ("c", json!({"spec": {"hostPID": true, "hostNetwork": true}})),
        (
            "d",
            with(
                owned.clone(),
                json!({"spec": {"volumes": [{"name": "v", "hostPath": {}}]}}),
            ),
        ),
        ("e", owned),
        ("f", json!({})),
    ] {
        desk = desk.with("pods", named(name, changes));
    }
    let namespace =
        |level: &str| json!({"metadata": {"name": "ns", "labels": {"pod-security.kubernetes.io/enforce": level}}});
    let warned = |new: &str, old: &str| {
        assert_eq!(
            told(desk.update(&PLUGIN, "namespaces", namespace(new), namespace(old))),
            "ok"
        );
        desk.warnings()
    };
    assert_eq!(
        warned("baseline", "privileged"),
        [
            "existing pods in namespace \"ns\" violate the new PodSecurity enforce level \"baseline:latest\"",
            "a (and 2 other pods): host namespaces",
            "d: hostPath volumes",
        ]
    );
    assert!(warned("baseline", "restricted").is_empty());
    assert!(warned("baseline", "baseline").is_empty());
    assert!(warned("privileged", "baseline").is_empty());
    assert_eq!(warned("restricted", "baseline").len(), 4);

    let order: Vec<String> = one_of_each_first(desk.objects.list("pods", Some("ns")))
        .iter()
        .map(|p| text(p, &["metadata", "name"]).to_string())
        .collect();
    assert_eq!(order, ["a", "b", "c", "d", "f", "e"]);
}

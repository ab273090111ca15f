//! Pods as a kind: what is set when they are made, what may change later, how they are listed.

mod changes;
mod shown;

use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::core::pod_spec::tests::{merge, mutated, short};
use crate::field::Problem;

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

/// A minimal pod with a snippet merged in, as the API server would hold it before it is stored.
fn pod(snippet: Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": "p", "namespace": "default", "creationTimestamp": "2026-01-01T11:00:00Z"},
        "spec": {"containers": [{"name": "c", "image": "nginx:1"}], "serviceAccountName": "default"},
    });
    merge(&mut pod, &snippet);
    (DEF.default)(&mut pod);
    pod
}

fn created(snippet: Value) -> Value {
    let mut pod = pod(snippet);
    (DEF.prepare_create)(&mut pod);
    pod
}

fn listed(p: Problems) -> String {
    p.0.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}

fn problems(check: fn(&Cursor<'_>, &mut Problems), pod: &Value) -> String {
    let mut p = Problems::default();
    check(&Cursor::root(pod), &mut p);
    listed(p)
}

fn change_problems(check: fn(&Cursor<'_>, &Cursor<'_>, &mut Problems), new: &Value, old: &Value) -> String {
    let mut p = Problems::default();
    check(&Cursor::root(new), &Cursor::root(old), &mut p);
    listed(p)
}

#[test]
fn a_new_pod_is_pending() {
    let got = created(json!({"status": {"phase": "Running", "podIP": "1.2.3.4"}}));
    assert_eq!(got["status"], json!({"phase": "Pending", "qosClass": "BestEffort"}));
    let got = created(json!({"spec": {"schedulingGates": [{"name": "a"}]}}));
    let condition = json!({
        "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
        "lastTransitionTime": "2026-01-01T11:00:00Z",
    });
    assert_eq!(got["status"]["conditions"], json!([condition]));
}

#[test]
fn label_keys_become_requirements() {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let term =
        json!({"topologyKey": "z", "labelSelector": {}, "matchLabelKeys": ["a", "gone"], "mismatchLabelKeys": ["b"]});
    let got = created(json!({
        "metadata": {"labels": {"a": "1", "b": "2"}},
        "spec": {
            "affinity": {"podAffinity": {required: [term]},
                         "podAntiAffinity": {preferred: [{"weight": 1, "podAffinityTerm": term}]}},
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule",
                 "labelSelector": {"matchLabels": {"x": "y"}}, "matchLabelKeys": ["a"]},
            ],
        },
    }));
    let both =
        json!([{"key": "a", "operator": "In", "values": ["1"]}, {"key": "b", "operator": "NotIn", "values": ["2"]}]);
    let affinity = &got["spec"]["affinity"];
    assert_eq!(
        affinity["podAffinity"][required][0]["labelSelector"]["matchExpressions"],
        both
    );
    let weighted = &affinity["podAntiAffinity"][preferred][0]["podAffinityTerm"];
    assert_eq!(weighted["labelSelector"]["matchExpressions"], both);
    let spread = &got["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchExpressions"];
    assert_eq!(*spread, json!([{"key": "a", "operator": "In", "values": ["1"]}]));
    assert_eq!(problems(DEF.validate, &got), "");
}

#[test]
fn app_armor_annotations_become_fields() {
    let key = "container.apparmor.security.beta.kubernetes.io/c";
    let profile = |pod: &Value| {
        pod.pointer("/spec/containers/0/securityContext/appArmorProfile")
            .cloned()
    };
    for (annotation, spec, want) in [
        ("runtime/default", json!({}), Some(json!({"type": "RuntimeDefault"}))),
        (
            "localhost/x",
            json!({}),
            Some(json!({"type": "Localhost", "localhostProfile": "x"})),
        ),
        ("odd", json!({}), None),
        (
            "unconfined",
            json!({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}),
            None,
        ),
        ("unconfined", json!({"os": {"name": "windows"}}), None),
        (
            "unconfined",
            json!({"containers": [{"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}}]}),
            Some(json!({"type": "RuntimeDefault"})),
        ),
    ] {
        let got = created(json!({"metadata": {"annotations": {key: annotation}}, "spec": spec}));
        assert_eq!(profile(&got), want, "{annotation} {spec}");
    }
}

#[test]
fn addresses_old_and_new_agree() {
    for (status, want) in [
        (
            json!({"podIP": "1.1.1.1"}),
            json!({"podIP": "1.1.1.1", "podIPs": [{"ip": "1.1.1.1"}]}),
        ),
        (
            json!({"podIPs": [{"ip": "1.1.1.1"}]}),
            json!({"podIP": "1.1.1.1", "podIPs": [{"ip": "1.1.1.1"}]}),
        ),
        (
            json!({"podIP": "2.2.2.2", "podIPs": [{"ip": "1.1.1.1"}, {"ip": "::1"}]}),
            json!({"podIP": "2.2.2.2", "podIPs": [{"ip": "2.2.2.2"}]}),
        ),
        (
            json!({"podIP": "1.1.1.1", "podIPs": [{"ip": "1.1.1.1"}, {"ip": "::1"}]}),
            json!({"podIP": "1.1.1.1", "podIPs": [{"ip": "1.1.1.1"}, {"ip": "::1"}]}),
        ),
    ] {
        assert_eq!(pod(json!({"status": status}))["status"], want, "{status}");
    }
}

#[test]
fn only_pods_are_judged_so() {
    for (snippet, want) in [
        (json!({}), ""),
        (
            json!({"spec": {"containers": [{"image": " nginx"}]}}),
            "spec.containers[0].image: Invalid value: \" nginx\": must not have leading or trailing whitespace",
        ),
        (
            json!({"spec": {"serviceAccountName": null,
                            "volumes": [{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "x"}}]}}]}}),
            "spec.volumes[0].projected.sources[0].serviceAccountToken: Forbidden: must not be specified when serviceAccountName is not set",
        ),
        (
            json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": ""}}, "spec": {"nodeName": "n",
                   "resourceClaims": [{"name": "a", "resourceClaimName": "b"}]}}),
            "[]: Forbidden: static pods do not support resource claims",
        ),
    ] {
        assert_eq!(problems(DEF.validate, &pod(snippet.clone())), want, "{snippet}");
    }
    for (snippet, want) in [
        (json!({}), ""),
        (
            json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "x"}]}}),
            "spec.ephemeralContainers: Forbidden: cannot be set on create",
        ),
        (
            json!({"spec": {"nodeName": "n", "schedulingGates": [{"name": "a"}]}}),
            "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared",
        ),
    ] {
        assert_eq!(problems(validate_create, &pod(snippet.clone())), want, "{snippet}");
    }
}

#[test]
fn templates_are_judged_too() {
    let mut template = json!({"template": {
        "metadata": {"labels": {"a b": "c"}, "annotations": {"pod.beta.kubernetes.io/init-containers": "[]"}},
        "spec": {"containers": [{"name": "c", "image": " "}], "ephemeralContainers": [{"name": "e", "image": "x"}],
                 "nodeSelector": {"beta.kubernetes.io/arch": "x"}, "terminationGracePeriodSeconds": -1},
    }});
    let def = pod_template::DEF;
    (def.default)(&mut template);
    assert_eq!(template["template"]["metadata"]["annotations"], json!({}));
    let got = problems(def.validate, &template);
    let lines: Vec<&str> = got.lines().collect();
    assert!(
        lines[0].starts_with("template.labels: Invalid value: \"a b\": name part must consist of"),
        "{got}"
    );
    assert_eq!(
        lines[1..],
        ["template.spec.ephemeralContainers: Forbidden: ephemeral containers not allowed in pod template"]
    );
    assert_eq!(
        (def.warnings)(&Cursor::root(&template), None),
        [
            "template.spec.nodeSelector[beta.kubernetes.io/arch]: deprecated since v1.14; use \"kubernetes.io/arch\" instead",
            "template.spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1",
        ]
    );
    assert_eq!((def.cells)(&template, now()), [json!("c"), json!(" "), json!("a b=c")]);
}

proptest! {
    #[test]
    fn nothing_panics_and_defaults_settle(a in mutated(), b in mutated()) {
        let (mut new, mut old) = (a, b);
        for pod in [&mut new, &mut old] {
            (DEF.default)(pod);
            let again = {
                let mut again = pod.clone();
                (DEF.default)(&mut again);
                again
            };
            prop_assert_eq!(&again, &*pod);
            (DEF.prepare_create)(pod);
            (DEF.cells)(pod, now());
        }
        let prepares: [fn(&mut Value, &Value); 4] =
            [DEF.prepare_update, DEF.prepare_status, prepare_ephemeral, prepare_resize];
        for prepare in prepares {
            let mut new = new.clone();
            prepare(&mut new, &old);
            let (new, old) = (Cursor::root(&new), Cursor::root(&old));
            let mut p = Problems::default();
            (DEF.validate)(&new, &mut p);
            validate_create(&new, &mut p);
            (DEF.validate_update)(&new, &old, &mut p);
            (DEF.validate_status)(&new, &old, &mut p);
            validate_ephemeral_containers_update(&new, &old, &mut p);
            validate_resize(&new, &old, &mut p);
            (DEF.warnings)(&new, None);
        }
    }
}

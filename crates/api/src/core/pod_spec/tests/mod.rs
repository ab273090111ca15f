//! Rules of the pod spec, each with something it accepts and something it refuses: small pods made by merging a snippet
//! into a minimal one.

mod containers;
mod defaults;
mod placing;
mod security;
mod volumes;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::field::Problem;

/// JSON merge, but a list of objects is merged into the list there, element by element.
pub(crate) fn merge(into: &mut Value, snippet: &Value) {
    match (into, snippet) {
        (Value::Object(a), Value::Object(b)) => {
            for (k, v) in b {
                if v.is_null() {
                    a.remove(k);
                } else {
                    merge(a.entry(k.clone()).or_insert(Value::Null), v);
                }
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            for (i, v) in b.iter().enumerate() {
                match a.get_mut(i) {
                    Some(there) => merge(there, v),
                    None => a.push(v.clone()),
                }
            }
        }
        (a, b) => *a = b.clone(),
    }
}

fn pod(spec: &Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "nginx"}], "serviceAccountName": "default"},
    });
    merge(&mut pod["spec"], spec);
    default_pod_only(&mut pod);
    default(&mut pod["spec"]);
    pod
}

/// Without the examples and patterns that follow what is wrong with a name.
pub(crate) fn short(text: &str) -> String {
    let lines = text.lines().map(|line| line.split(" (e.g. '").next().unwrap_or(""));
    lines.collect::<Vec<_>>().join("\n")
}

fn problems(pod: &Value) -> Vec<String> {
    let mut p = Problems::default();
    let root = Cursor::root(pod);
    validate_in_pod(&root.at("spec"), &root.at("metadata"), &mut p);
    p.0.iter().map(Problem::to_string).collect()
}

/// Each snippet with the problems wanted, one to a line; none: it is fine.
fn check(cases: &[(Value, &str)]) {
    for (spec, want) in cases {
        let got = problems(&pod(spec)).join("\n");
        let got = got
            .replace("spec.containers[0]", "C")
            .replace("spec.initContainers[0]", "I");
        assert_eq!(short(&got), short(want), "{spec}");
    }
}

/// A snippet for the one container there is.
fn in_container(cases: &[(Value, &str)]) {
    let cases: Vec<(Value, &str)> = cases
        .iter()
        .map(|(c, want)| (json!({"containers": [c]}), *want))
        .collect();
    check(&cases);
}

#[test]
fn the_minimal_pod_is_fine_and_the_empty_one_is_not() {
    check(&[(json!({}), "")]);
    let mut p = Problems::default();
    validate(&Cursor::root(&json!({})), &mut p);
    let got: Vec<String> = p.0.iter().map(Problem::to_string).collect();
    assert_eq!(
        got,
        [
            "terminationGracePeriodSeconds: Required value",
            "containers: Required value",
            "restartPolicy: Required value",
            "dnsPolicy: Required value",
        ]
    );
}

/// A pod that uses a bit of everything.
pub(crate) fn rich() -> Value {
    serde_json::from_str(include_str!("../../../../benches/pod.json")).unwrap()
}

#[test]
fn the_rich_pod_is_fine() {
    let mut pod = rich();
    default_pod_only(&mut pod);
    default(&mut pod["spec"]);
    assert_eq!(problems(&pod), Vec::<String>::new());
}

/// Places in a value, as JSON pointers.
fn pointers(value: &Value, prefix: &str, out: &mut Vec<String>) {
    out.push(prefix.to_string());
    match value {
        Value::Object(map) => {
            for (k, v) in map {
                pointers(v, &format!("{prefix}/{}", k.replace('~', "~0").replace('/', "~1")), out);
            }
        }
        Value::Array(list) => {
            for (i, v) in list.iter().enumerate() {
                pointers(v, &format!("{prefix}/{i}"), out);
            }
        }
        _ => {}
    }
}

/// What may be put in place of something: also of the wrong type, which a decoder would have refused.
fn odd_values() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        Just(json!("")),
        Just(json!("ä/../'[\\")),
        Just(json!(0)),
        Just(json!(-1)),
        Just(json!(i64::MAX)),
        Just(json!(1.5)),
        Just(json!(true)),
        Just(json!({})),
        Just(json!([])),
        Just(json!([{}, {}])),
        Just(json!({"requests": {"hugepages-": "1", "hugepages-0": "1", "a/b/c": "x"}})),
        "[a-zA-Z0-9/.:@'\\[\\]-]{0,12}".prop_map(Value::from),
    ]
}

/// The rich pod with some places overwritten.
pub(crate) fn mutated() -> impl Strategy<Value = Value> {
    let mut places = vec![];
    pointers(&rich()["spec"], "/spec", &mut places);
    pointers(&rich()["metadata"], "/metadata", &mut places);
    proptest::collection::vec((proptest::sample::select(places), odd_values()), 0..6).prop_map(|changes| {
        let mut pod = rich();
        for (place, value) in changes {
            if let Some(there) = pod.pointer_mut(&place) {
                *there = value;
            }
        }
        pod
    })
}

proptest! {
    #[test]
    fn defaults_are_idempotent(pod in mutated()) {
        let mut once = pod;
        default_pod_only(&mut once);
        if let Some(spec) = once.get_mut("spec") {
            default(spec);
        }
        let mut twice = once.clone();
        default_pod_only(&mut twice);
        if let Some(spec) = twice.get_mut("spec") {
            default(spec);
        }
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn validation_never_panics(pod in mutated(), filled in any::<bool>()) {
        let mut pod = pod;
        if filled {
            default_pod_only(&mut pod);
            if let Some(spec) = pod.get_mut("spec") {
                default(spec);
            }
        }
        problems(&pod);
    }
}

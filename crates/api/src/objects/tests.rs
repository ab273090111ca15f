use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::*;
use crate::selector::Op;

fn labels(text: &str) -> Labels {
    let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap());
    pairs.map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

/// `key operator value …`, one a line.
fn requirements(text: &str) -> Value {
    let requirement = |line: &str| {
        let mut words = line.split_whitespace();
        json!({"key": words.next().unwrap(), "operator": words.next().unwrap(), "values": words.collect::<Vec<_>>()})
    };
    text.lines().map(requirement).collect()
}

#[test]
fn nulls_are_nothing() {
    let slice: EndpointSlice<IgnoredAny> = serde_json::from_str(
        r#"{"metadata":{"name":"a","labels":{"kubernetes.io/service-name":"s","x":"y"}},"addressType":"IPv4",
            "endpoints":null,"ports":null}"#,
    )
    .unwrap();
    assert_eq!(slice.service(), Some("s"));
    let slice: EndpointSlice<IgnoredAny> = serde_json::from_str(
        r#"{"endpoints":[{"addresses":["10.0.0.1"],"hostname":null,"conditions":{"ready":false},
            "targetRef":{"kind":"Pod","name":"p"}}], "ports":[{"name":null,"port":null}]}"#,
    )
    .unwrap();
    assert_eq!(slice.endpoints[0].conditions.ready, Some(false));
    assert_eq!(slice.ports[0], endpoint_slice::EndpointPort::default());
    let volume: PersistentVolume = serde_json::from_str(r#"{"spec":{"capacity":null}}"#).unwrap();
    assert_eq!(volume.spec.capacity, StorageAmounts::default());
}

#[test]
fn operators_of_label_selectors() {
    for (written, yes, no) in [
        ("a In x y", "a=x", "a=z"),
        ("a In x", "a=x b=y", ""),
        ("a NotIn x", "a=y", "a=x"),
        ("a NotIn x", "", "a=x"),
        ("a Exists", "a=", ""),
        ("a DoesNotExist", "b=x", "a=x"),
    ] {
        let selector = json!({"matchExpressions": requirements(written)});
        let selector: LabelSelector = serde_json::from_value(selector).unwrap();
        assert!(selector.matches(&labels(yes)), "{written}: {yes}");
        assert!(!selector.matches(&labels(no)), "{written}: {no}");
    }
    // Those of nodes are none of theirs.
    for unknown in ["a Gt 1", "a Is x"] {
        let selector = json!({"matchLabels": null, "matchExpressions": requirements(unknown)});
        let selector: LabelSelector = serde_json::from_value(selector).unwrap();
        assert_eq!(selector.match_expressions[0].op, Op::Unknown);
        assert!(!selector.matches(&labels("a=2")) && !selector.matches(&labels("")));
    }
    assert!(LabelSelector::default().matches(&labels("")));
}

#[test]
fn terms_of_node_selectors() {
    let term = |expressions: &str, fields: &str| -> NodeSelectorTerm {
        let term = json!({"matchExpressions": requirements(expressions), "matchFields": requirements(fields)});
        serde_json::from_str(&term.to_string()).unwrap()
    };
    for (expressions, fields, node, matches) in [
        ("", "", "a=x", false),
        ("a Gt 1", "", "a=2", true),
        ("a Gt 2", "", "a=2", false),
        ("a Gt x", "", "a=2", false),
        ("a Gt 1 2", "", "a=3", false),
        ("a Lt 3", "", "a=2", true),
        ("a Lt 3", "", "", false),
        ("a Exists\nb In x", "", "a=1 b=x", true),
        ("a Exists\nb In x", "", "a=1", false),
        ("", "metadata.name In n m", "", true),
        ("", "metadata.name NotIn n", "", false),
        ("", "metadata.name Exists", "", false),
        ("", "metadata.uid In n", "", false),
        ("a In x", "metadata.name In m", "a=x", false),
    ] {
        let found = term(expressions, fields).matches("n", &labels(node));
        assert_eq!(found, matches, "{expressions:?} {fields:?} {node:?}");
    }
    let selector = NodeSelector {
        node_selector_terms: vec![term("a In x", ""), term("b In x", "")],
    };
    assert!(selector.matches("n", &labels("b=x")) && !selector.matches("n", &labels("b=y")));
}

#[test]
fn storage_is_read_once() {
    let claim = json!({"spec": {"resources": {"requests": {"storage": "1Gi", "other": "2"}}}});
    let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
    assert_eq!(claim.requested().value(), 1 << 30);
    assert_eq!(claim.spec.resources.requests.listed().len(), 2);
    let volume: PersistentVolume = serde_json::from_value(json!({"spec": {"capacity": {"storage": "much"}}})).unwrap();
    assert_eq!((volume.size().value(), volume.spec.capacity.nanos()), (0, 0));
}

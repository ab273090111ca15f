use serde_json::json;

use super::*;

fn ty(name: &str) -> TypeRef {
    schema().get(name).unwrap()
}

fn decode(name: &str, value: Value) -> Result<Decoded, DecodeError> {
    let from_text = decode_json(value.to_string().as_bytes(), ty(name));
    assert_eq!(from_text, from_value(value, ty(name)), "text and value decode alike");
    from_text
}

#[test]
fn zero_values_come_out_as_go_writes_them() {
    for (name, given, want) in [
        (
            "core/v1.Pod",
            json!({}),
            json!({"metadata": {}, "spec": {"containers": null}, "status": {}}),
        ),
        (
            "core/v1.Pod",
            json!({"kind": "Pod", "metadata": {"name": "a", "labels": {}, "creationTimestamp": null, "annotations": null},
                   "spec": {"containers": [{"name": "c", "env": [], "args": ["", null], "stdin": false}],
                            "hostNetwork": false, "priority": 0, "nodeName": "", "enableServiceLinks": false},
                   "status": null}),
            json!({"kind": "Pod", "metadata": {"name": "a"},
                   "spec": {"containers": [{"name": "c", "args": ["", ""], "resources": {}}],
                            "priority": 0, "enableServiceLinks": false},
                   "status": {}}),
        ),
        (
            "apps/v1.Deployment",
            json!({"spec": {"template": {}}}),
            json!({"metadata": {}, "spec": {"selector": null, "strategy": {},
                   "template": {"metadata": {}, "spec": {"containers": null}}}, "status": {}}),
        ),
        (
            "core/v1.PodStatus",
            json!({"conditions": [{"type": "Ready", "status": "True"}]}),
            json!({"conditions": [{"type": "Ready", "status": "True", "lastProbeTime": null, "lastTransitionTime": null}]}),
        ),
        (
            "core/v1.ResourceFieldSelector",
            json!({"resource": "limits.cpu"}),
            json!({"resource": "limits.cpu", "divisor": "0"}),
        ),
        (
            "core/v1.ServicePort",
            json!({"port": 80}),
            json!({"port": 80, "targetPort": 0}),
        ),
        (
            "rbac/v1.Role",
            json!({"rules": []}),
            json!({"metadata": {}, "rules": null}),
        ),
        ("rbac/v1.Role", json!({}), json!({"metadata": {}, "rules": null})),
    ] {
        let got = decode(name, given).unwrap();
        assert_eq!((got.value, got.problems), (want, vec![]), "{name}");
    }
}

#[test]
fn special_types_are_put_in_their_normal_form() {
    let given = json!({
        "metadata": {"creationTimestamp": "2024-01-01T01:00:00+01:00", "managedFields": [{"fieldsV1": {"f:a": {}}}]},
        "spec": {"containers": [{
            "name": "c",
            "resources": {"limits": {"cpu": 0.5, "memory": "1024Ki", "pods": 2, "x": null}},
            "livenessProbe": {"httpGet": {"port": "http"}},
            "readinessProbe": {"httpGet": {"port": 80}},
        }]},
    });
    let got = decode("core/v1.Pod", given).unwrap().value;
    assert_eq!(got["metadata"]["creationTimestamp"], "2024-01-01T00:00:00Z");
    assert_eq!(got["metadata"]["managedFields"][0]["fieldsV1"], json!({"f:a": {}}));
    let c = &got["spec"]["containers"][0];
    assert_eq!(
        c["resources"]["limits"],
        json!({"cpu": "500m", "memory": "1Mi", "pods": "2", "x": "0"})
    );
    assert_eq!(
        (
            &c["livenessProbe"]["httpGet"]["port"],
            &c["readinessProbe"]["httpGet"]["port"]
        ),
        (&json!("http"), &json!(80))
    );

    let secret = decode("core/v1.Secret", json!({"data": {"a": "YQ\n==", "b": null, "c": ""}}))
        .unwrap()
        .value;
    assert_eq!(secret["data"], json!({"a": "YQ==", "b": null, "c": ""}));

    let lease = decode(
        "coordination/v1.Lease",
        json!({"spec": {"renewTime": "2024-01-01T00:00:00.120000+00:00"}}),
    );
    assert_eq!(lease.unwrap().value["spec"]["renewTime"], "2024-01-01T00:00:00.120000Z");
}

#[test]
fn json_schemas_have_their_unions() {
    let given = json!({
        "additionalProperties": false, "default": {"a": [1, 1.5, null]}, "maximum": 5.0, "minimum": 0.5,
        "items": {"type": "string", "odd": 1}, "not": {"additionalProperties": {"type": "object"}},
        "dependencies": {"a": ["b"], "c": {"type": "string"}, "d": []}, "$ref": "x", "bogus": 1,
    });
    let got = decode("apiextensions/v1.JSONSchemaProps", given).unwrap();
    assert_eq!(
        got.value,
        json!({
            "additionalProperties": false, "default": {"a": [1, 1.5, null]}, "maximum": 5, "minimum": 0.5,
            "items": {"type": "string"}, "not": {"additionalProperties": {"type": "object"}},
            "dependencies": {"a": ["b"], "c": {"type": "string"}, "d": null}, "$ref": "x",
        })
    );
    assert_eq!(
        got.problems,
        ["unknown field \"bogus\""],
        "those inside a union are not reported"
    );
}

#[test]
fn unknown_and_double_fields_are_reported_and_dropped() {
    let text = br#"{"spec": {"containers": [{"name": "a", "name": "b", "foo": {"x": [1]}}], "Containers": [],
                    "nodeSelector": {"a": "1", "a": "2"}, "priority": 1, "priority": null},
                    "metadata": {"labels": {"x": "y"}, "bar": 1, "bar": 2}}"#;
    let got = decode_json(text, ty("core/v1.Pod")).unwrap();
    assert_eq!(
        got.problems,
        [
            "duplicate field \"spec.containers[0].name\"",
            "unknown field \"spec.containers[0].foo\"",
            "unknown field \"spec.Containers\"",
            "duplicate field \"spec.nodeSelector.a\"",
            "duplicate field \"spec.priority\"",
            "unknown field \"metadata.bar\"",
        ]
    );
    assert_eq!(
        got.value["spec"],
        json!({"containers": [{"name": "b", "resources": {}}], "nodeSelector": {"a": "2"}})
    );
    let many: serde_json::Map<_, _> = (0..200).map(|i| (format!("f{i}"), json!(1))).collect();
    assert_eq!(decode("core/v1.Pod", Value::Object(many)).unwrap().problems.len(), 100);
}

#[test]
fn wrong_types_are_refused_in_gos_words() {
    for (name, given, want) in [
        (
            "apps/v1.Deployment",
            json!({"spec": {"replicas": "3"}}),
            "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            "apps/v1.Deployment",
            json!({"spec": {"replicas": 3_000_000_000u32}}),
            "json: cannot unmarshal number 3000000000 into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            "apps/v1.Deployment",
            json!({"spec": {"replicas": 1.5}}),
            "json: cannot unmarshal number 1.5 into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            "core/v1.Pod",
            json!({"spec": {"containers": {"name": "a"}}}),
            "json: cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container",
        ),
        (
            "core/v1.Pod",
            json!({"spec": {"containers": [{"name": 1}]}}),
            "json: cannot unmarshal number into Go struct field Container.spec.containers.name of type string",
        ),
        (
            "core/v1.Pod",
            json!({"metadata": {"labels": {"a": true}}}),
            "json: cannot unmarshal bool into Go struct field ObjectMeta.metadata.labels of type string",
        ),
        (
            "core/v1.Pod",
            json!([]),
            "json: cannot unmarshal array into Go value of type v1.Pod",
        ),
        (
            "core/v1.Pod",
            json!(null),
            "json: cannot unmarshal null into Go value of type v1.Pod",
        ),
        (
            "core/v1.ResourceRequirements",
            json!({"limits": {"cpu": "lots"}}),
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (
            "core/v1.Secret",
            json!({"data": {"a": "$$"}}),
            "illegal base64 data at input byte 0",
        ),
        (
            "apiextensions/v1.JSONSchemaProps",
            json!({"additionalProperties": "x"}),
            "boolean or JSON schema expected",
        ),
    ] {
        assert_eq!(decode(name, given).unwrap_err().to_string(), want);
    }
}

#[test]
fn broken_text_is_refused() {
    for text in [
        "",
        "  ",
        "{",
        "{\"a\":}",
        "{} x",
        "{}{}",
        "{\"kind\": \"\u{1}\"}",
        "nul",
        "{\"kind\": \"a\"",
    ] {
        assert!(decode_json(text.as_bytes(), ty("core/v1.Pod")).is_err(), "{text}");
    }
    assert_eq!(
        decode_json(b"", ty("core/v1.Pod")).unwrap_err().0,
        "unexpected end of JSON input"
    );
    // As in Go, bytes that are no text are replaced, not refused.
    let decoded = decode_json(b"{\"kind\": \"\xff\"}", ty("core/v1.Pod")).unwrap();
    assert_eq!(decoded.value["kind"], "\u{fffd}");
}

#[test]
fn nesting_is_bounded() {
    let nested = |n: usize| {
        let mut text = "{\"fieldsV1\":".to_string();
        text.push_str(&"[".repeat(n));
        text.push_str(&"]".repeat(n));
        text.push('}');
        decode_json(text.as_bytes(), ty("meta/v1.ManagedFieldsEntry"))
    };
    assert!(nested(119).is_ok());
    assert_eq!(nested(120).unwrap_err().0, "exceeded max depth of 120");
    assert!(nested(1_000_000).is_err());
    let unknown = format!("{{\"x\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    // What is dropped is skipped without recursion.
    assert_eq!(
        decode_json(unknown.as_bytes(), ty("core/v1.Pod")).unwrap().problems,
        ["unknown field \"x\""]
    );
    let mut deep = json!({});
    for _ in 0..300 {
        deep = json!({"not": deep});
    }
    assert!(from_value(deep, ty("apiextensions/v1.JSONSchemaProps")).is_err());
}

#[test]
fn a_body_says_what_it_is() {
    let meta = peek_type(br#"{"spec": {"kind": "x"}, "kind": "Pod", "apiVersion": "v1"}"#).unwrap();
    assert_eq!((meta.api_version.as_str(), meta.kind.as_str()), ("v1", "Pod"));
    assert_eq!(peek_type(b"{}").unwrap(), TypeMeta::default());
    assert_eq!(peek_type(br#"{"kind": null}"#).unwrap(), TypeMeta::default());
    for bad in ["", "[]", "{\"kind\": 1}", "{} {}"] {
        assert!(peek_type(bad.as_bytes()).is_err(), "{bad}");
    }
}

mod properties {
    use super::*;
    use proptest::prelude::*;

    fn any_json() -> impl Strategy<Value = Value> {
        let names = prop::sample::select(vec![
            "metadata",
            "spec",
            "status",
            "containers",
            "name",
            "labels",
            "env",
            "resources",
            "limits",
            "ports",
            "kind",
            "volumes",
            "odd",
            "template",
            "command",
            "priority",
            "data",
            "annotations",
        ]);
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<i32>().prop_map(|n| Value::from(f64::from(n) / 4.0)),
            "[a-z0-9]{0,5}".prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 40, 5, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(names.clone().prop_map(String::from), inner, 0..6)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// Decoding what was decoded changes nothing, and text and value decode alike.
        #[test]
        fn decoding_is_idempotent(value in any_json()) {
            for name in ["core/v1.Pod", "apps/v1.Deployment", "core/v1.ConfigMap", "core/v1.PersistentVolume"] {
                if let Ok(once) = decode(name, value.clone()) {
                    let twice = decode(name, once.value.clone()).unwrap();
                    prop_assert_eq!(&once.value, &twice.value);
                    prop_assert!(twice.problems.is_empty());
                }
            }
        }
    }
}

/// The path to a problem is written for each: below a huge key that would be a gigabyte soon.
#[test]
fn huge_names_are_cut_where_they_are_told() {
    let key = "k".repeat(500_000);
    let unknown = (0..20_000).map(|i| (format!("x{i}"), json!(1)));
    let props = Value::Object(unknown.collect());
    let body =
        json!({"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": {"properties": {key: props}}}}]}});
    let got = decode("apiextensions/v1.CustomResourceDefinition", body).unwrap();
    assert_eq!(got.problems.len(), 100);
    assert!(got.problems.iter().all(|text| text.len() < 40_000));
}

//! Whatever clients send, decoding, patching and selecting answer with a value or an error, and never panic. A few hundred
//! cases in every test run; for a long one: `PROPTEST_CASES=200000 cargo test --release -p orlop-api --test fuzz`.

use orlop_api::patch::{apply, json, merge, strategic};
use orlop_api::schema::{self, TypeRef};
use orlop_api::selector::{FieldSelector, LabelSelector};
use orlop_api::{Cursor, Problems, Value, kinds, protobuf};
use proptest::prelude::*;
use serde_json::json;

fn pod_type() -> TypeRef {
    schema::schema().get("core/v1.Pod").expect("pods are in the table")
}

fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "d", "labels": {"a": "b"}},
        "spec": {
            "containers": [{
                "name": "c", "image": "i:1", "ports": [{"containerPort": 80}], "env": [{"name": "A", "value": "1"}],
                "resources": {"requests": {"cpu": "100m"}},
            }],
            "tolerations": [{"key": "k", "operator": "Exists"}],
        },
    })
}

/// JSON of any shape, with the words of a pod among its keys, so that it gets past the first look.
fn any_json() -> impl Strategy<Value = Value> {
    let words = prop::sample::select(vec![
        "metadata",
        "spec",
        "status",
        "containers",
        "name",
        "labels",
        "ports",
        "env",
        "resources",
        "requests",
        "cpu",
        "volumes",
        "affinity",
        "tolerations",
        "key",
        "operator",
        "apiVersion",
        "kind",
        "$patch",
        "$retainKeys",
        "$setElementOrder/containers",
        "finalizers",
        "replicas",
        "creationTimestamp",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|f| json!(f)),
        "[a-zA-Z0-9:./%-]{0,12}".prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
        Just(json!("delete")),
        Just(json!("100m")),
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        let key = prop_oneof![words.clone().prop_map(str::to_string), ".{0,6}"];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..6).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

/// A pod with one place overwritten.
fn damaged_pod() -> impl Strategy<Value = Value> {
    let places = prop::sample::select(vec![
        "/metadata",
        "/metadata/labels",
        "/spec",
        "/spec/containers",
        "/spec/containers/0",
        "/spec/containers/0/ports",
        "/spec/containers/0/ports/0",
        "/spec/containers/0/env/0",
        "/spec/containers/0/resources/requests",
        "/spec/tolerations",
        "/spec/tolerations/0",
        "/metadata/name",
    ]);
    (places, any_json()).prop_map(|(place, value)| {
        let mut pod = pod();
        *pod.pointer_mut(place).expect("a place in the pod") = value;
        pod
    })
}

/// What decodes is stored: it can be defaulted, validated, shown, written as protobuf, and read back the same.
fn survives(value: Value) {
    let Ok(decoded) = schema::from_value(value, pod_type()) else {
        return;
    };
    let mut object = decoded.value;
    let kind = kinds::all().find(|k| k.kind == "Pod").expect("pods are a kind");
    (kind.default)(&mut object);
    (kind.validate)(&Cursor::root(&object), &mut Problems::default());
    (kind.cells)(&object, jiff::Timestamp::UNIX_EPOCH);
    let again = schema::from_value(object.clone(), pod_type()).expect("what was decoded decodes");
    assert_eq!(again.value, object, "decoding is idempotent");
    let bytes = protobuf::encode_message(&object, pod_type());
    protobuf::decode_message(&bytes, pod_type()).expect("what was written can be read");
}

proptest! {
    #[test]
    fn json_bodies(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = schema::decode_json(&bytes, pod_type());
        let _ = schema::decode_yaml(&bytes, pod_type());
        let _ = protobuf::decode(&bytes);
        let _ = protobuf::decode_message(&bytes, pod_type());
    }

    #[test]
    fn yaml_bodies(text in "([a-z]{1,6}: |- |  |\n|[a-z0-9]{1,5}|\\[|\\]|\\{|\\}|\"|'|&a|\\*a|!|#|: ){0,40}") {
        let _ = schema::decode_yaml(text.as_bytes(), pod_type());
        let _ = schema::yaml_to_value(text.as_bytes());
    }

    #[test]
    fn objects_of_any_shape(value in any_json()) {
        survives(value);
    }

    #[test]
    fn damaged_objects(pod in damaged_pod()) {
        let bytes = pod.to_string();
        let as_bytes = schema::decode_json(bytes.as_bytes(), pod_type()).map(|d| d.value).ok();
        let as_value = schema::from_value(pod.clone(), pod_type()).map(|d| d.value).ok();
        prop_assert_eq!(as_bytes, as_value, "both ways in agree");
        survives(pod);
    }

    #[test]
    fn damaged_protobuf(at in 0usize..400, byte in any::<u8>()) {
        let object = schema::from_value(pod(), pod_type()).expect("a good pod").value;
        let mut bytes = protobuf::encode(&object, "v1", "Pod", pod_type());
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok((_, _, value)) = protobuf::decode(&bytes) {
            survives(value);
        }
    }

    #[test]
    fn patches(patch in any_json(), bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let mut target = pod();
        let _ = json::apply(&mut target, patch.to_string().as_bytes());
        let _ = json::apply(&mut target, &bytes);
        let mut target = pod();
        merge::apply(&mut target, patch.clone());
        let mut target = pod();
        let _ = strategic::apply(&mut target, patch, pod_type());
    }

    #[test]
    fn applies(applied in damaged_pod()) {
        let options = apply::ApplyOptions {
            manager: "m", force: true, now: jiff::Timestamp::UNIX_EPOCH, api_version: "v1", subresource: "", reset: &[],
        };
        let _ = apply::apply(Some(&pod()), &applied, Some(pod_type()), &options);
        let _ = apply::apply(None, &applied, Some(pod_type()), &options);
    }

    #[test]
    fn selectors(text in "([a-z./-]{0,4}|=|==|!=|!|,| in | notin |\\(|\\)|<|>|[0-9]{1,3}|\\\\){0,12}", any in ".{0,40}") {
        for text in [&text, &any] {
            if let Ok(selector) = LabelSelector::parse(text) {
                selector.matches(|key| (key.len() % 2 == 0).then_some("v"));
            }
            if let Ok(selector) = FieldSelector::parse(text) {
                selector.matches(|_| "v");
            }
        }
    }
}

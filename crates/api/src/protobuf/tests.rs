use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::schema::{decode_json, from_value};

/// A type and an object with something of every wire form.
fn samples() -> Vec<(&'static str, Value)> {
    vec![
        (
            "core/v1.Pod",
            json!({"metadata": {"name": "a", "labels": {"x": "y", "b": ""}, "generation": -1,
                    "creationTimestamp": "2024-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0,
                    "managedFields": [{"fieldsV1": {"f:spec": {"f:a": {}}}}]},
                   "spec": {"containers": [{"name": "c", "command": ["sh", ""], "tty": true,
                       "ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": "0.5", "memory": "1Gi"}},
                       "livenessProbe": {"httpGet": {"port": "http"}, "periodSeconds": 3},
                       "env": [{"name": "e", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}]}],
                     "volumes": [{"name": "v", "hostPath": {"path": "/"}}, {"name": "w", "emptyDir": {}}],
                     "securityContext": {"supplementalGroups": [1, 2, 3], "runAsUser": 0}, "priority": 0},
                   "status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
        ),
        (
            "core/v1.Secret",
            json!({"data": {"a": "YQ==", "empty": ""}, "immutable": false, "type": "Opaque"}),
        ),
        (
            "apiextensions/v1.JSONSchemaProps",
            json!({"additionalProperties": {"type": "string"}, "default": [1, null],
                   "items": [{"type": "string"}, {"not": {}}], "enum": ["a", 1], "dependencies": {"a": ["b"], "c": {}},
                   "properties": {"x": {"additionalProperties": false, "items": {"type": "integer"}}}}),
        ),
        (
            "coordination/v1.Lease",
            json!({"spec": {"renewTime": "1969-12-31T23:59:59.000001Z", "leaseDurationSeconds": -1}}),
        ),
        (
            "authentication/v1.TokenReview",
            json!({"status": {"user": {"username": "u", "extra": {"k": ["a", "b"]}}}}),
        ),
        (
            "core/v1.Service",
            json!({"spec": {"ports": [{"port": 1, "targetPort": "x"}, {"port": 2, "targetPort": -5}]}}),
        ),
        (
            "meta/v1.APIResourceList",
            json!({"resources": [{"name": "pods", "namespaced": true, "verbs": ["get"]}]}),
        ),
        (
            "admissionregistration/v1.ValidatingAdmissionPolicy",
            json!({"spec": {"matchConstraints": {"resourceRules": [{"resourceNames": ["n"], "apiGroups": [""]}]}}}),
        ),
        (
            "core/v1.Node",
            json!({"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}}}}),
        ),
    ]
}

fn canonical(name: &str, value: &Value) -> (TypeRef, Value) {
    let ty = schema().get(name).unwrap();
    let decoded = decode_json(value.to_string().as_bytes(), ty).unwrap();
    assert!(decoded.problems.is_empty(), "{:?}", decoded.problems);
    (ty, decoded.value)
}

#[test]
fn objects_survive_the_wire() {
    for (name, value) in samples() {
        let (ty, value) = canonical(name, &value);
        let wire = encode_message(&value, ty);
        assert_eq!(decode_message(&wire, ty).unwrap(), value, "{name}");
    }
}

#[test]
fn the_bytes_are_those_of_kubernetes() {
    let (ty, value) = canonical("core/v1.Namespace", &json!({"metadata": {"name": "n"}}));
    // Strings are written though empty; pointers and lists are not.
    let meta = [
        &[0x0a, 1, b'n'][..],
        &[0x12, 0, 0x1a, 0, 0x22, 0, 0x2a, 0, 0x32, 0],
        &[0x38, 0, 0x42, 0],
    ]
    .concat();
    let mut want = vec![0x0a, meta.len() as u8];
    want.extend_from_slice(&meta);
    want.extend_from_slice(&[0x12, 0, 0x1a, 2, 0x0a, 0]);
    assert_eq!(encode_message(&value, ty), want);

    let whole = encode(&value, "v1", "Namespace", ty);
    let mut envelope = b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09Namespace\x12".to_vec();
    envelope.push(want.len() as u8);
    envelope.extend_from_slice(&want);
    envelope.extend_from_slice(&[0x1a, 0, 0x22, 0]);
    assert_eq!(whole, envelope);

    let (api_version, kind, back) = decode(&whole).unwrap();
    assert_eq!((api_version.as_str(), kind.as_str()), ("v1", "Namespace"));
    assert_eq!(
        back,
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}, "spec": {}, "status": {}})
    );
    assert_eq!(decode_as(&whole, ty).unwrap().1, back);
}

#[test]
fn fields_of_our_own_have_numbers_out_of_the_way() {
    let selector = json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]});
    let (ty, value) = canonical(
        "core/v1.NodeAffinity",
        &json!({"requiredDuringSchedulingRequiredDuringExecution": selector}),
    );
    let encoded = encode_message(&value, ty);
    // 1001 << 3 | 2
    assert_eq!(encoded[..2], [0xca, 0x3e]);
    assert_eq!(decode_message(&encoded, ty).unwrap(), value);
}

#[test]
fn long_messages_get_long_lengths() {
    for size in [0, 1, 126, 127, 128, 129, 16_383, 16_384, 3_000_000] {
        let (ty, value) = canonical("core/v1.ConfigMap", &json!({"data": {"k": "x".repeat(size)}}));
        assert_eq!(
            decode_message(&encode_message(&value, ty), ty).unwrap(),
            value,
            "{size}"
        );
    }
}

#[test]
fn floats_are_eight_bytes() {
    let (ty, value) = canonical(
        "apiextensions/v1.JSONSchemaProps",
        &json!({"maximum": 1.5, "minimum": -3}),
    );
    assert_eq!(decode_message(&encode_message(&value, ty), ty).unwrap(), value);
}

#[test]
fn watch_events_hold_enveloped_objects() {
    let (ty, pod) = canonical("core/v1.Pod", &json!({"metadata": {"name": "a"}}));
    let event = encode_watch_event("ADDED", &encode(&pod, "v1", "Pod", ty));
    let got = decode_message(&event, schema().get("meta/v1.WatchEvent").unwrap()).unwrap();
    assert_eq!(got["type"], "ADDED");
    assert_eq!(
        (&got["object"]["kind"], &got["object"]["metadata"]["name"]),
        (&json!("Pod"), &json!("a"))
    );
}

#[test]
fn unknown_numbers_are_skipped_and_packed_numbers_read() {
    let ty = schema().get("core/v1.PodSecurityContext").unwrap();
    // 4: supplementalGroups, packed; 99: a varint, a fixed64, bytes, a fixed32.
    let wire = b"\x22\x03\x01\x02\x03\x98\x06\x01\x99\x06\0\0\0\0\0\0\0\0\x9a\x06\x01x\x9d\x06\0\0\0\0";
    assert_eq!(
        decode_message(wire, ty).unwrap(),
        json!({"supplementalGroups": [1, 2, 3]})
    );
}

#[test]
fn broken_bytes_are_refused() {
    let pod = schema().get("core/v1.Pod").unwrap();
    for (bytes, want) in [
        (&b"\x0a"[..], "proto: unexpected EOF"),
        (b"\x0a\x05ab", "proto: unexpected EOF"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "proto: unexpected EOF"),
        (
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            "proto: integer overflow",
        ),
        (b"\x00\x00", "proto: illegal tag 0"),
        (b"\x0b", "proto: illegal wireType 3"),
        (b"\x08\x01", "proto: Pod: wrong wireType for field metadata"),
        (
            b"\x0a\x03\x0a\x01\xff",
            "proto: ObjectMeta: string is not UTF-8 for field name",
        ),
    ] {
        assert_eq!(decode_message(bytes, pod).unwrap_err().to_string(), want);
    }
    for bytes in [
        &b""[..],
        b"k8s",
        b"{}",
        b"k8s\0\x0a",
        b"k8s\0",
        b"k8s\0\x0a\x06\x0a\x01x\x12\x01y",
    ] {
        assert!(decode(bytes).is_err(), "{bytes:?}");
    }
}

#[test]
fn nesting_is_bounded() {
    let ty = schema().get("apiextensions/v1.JSONSchemaProps").unwrap();
    // `not` is number 28: each level is the next one's content.
    let nested = |levels: usize| {
        let mut wire = vec![];
        for _ in 0..levels {
            let mut outer = vec![0xe2, 0x01];
            let mut n = wire.len();
            while n >= 0x80 {
                outer.push(n as u8 | 0x80);
                n >>= 7;
            }
            outer.push(n as u8);
            outer.extend_from_slice(&wire);
            wire = outer;
        }
        decode_message(&wire, ty)
    };
    assert!(nested(119).is_ok());
    assert!(nested(120).unwrap_err().0.contains("exceeded max depth of 120"));
    assert!(nested(5_000).is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
        let _ = decode(&bytes);
        for name in ["core/v1.Pod", "apiextensions/v1.CustomResourceDefinition", "meta/v1.WatchEvent"] {
            let _ = decode_message(&bytes, schema().get(name).unwrap());
        }
    }

    /// Whatever is still read after damage is a sound object.
    #[test]
    fn damaged_objects_are_refused_or_sound(which in 0usize..9, at: prop::sample::Index, byte: u8, cut: bool) {
        let (name, value) = samples().swap_remove(which);
        let (ty, value) = canonical(name, &value);
        let mut wire = encode_message(&value, ty);
        let at = at.index(wire.len());
        if cut {
            wire.truncate(at);
        } else {
            wire[at] = byte;
        }
        if let Ok(read) = decode_message(&wire, ty) {
            let again = from_value(read.clone(), ty).unwrap();
            prop_assert_eq!(&again.value, &read);
            prop_assert_eq!(decode_message(&encode_message(&read, ty), ty).unwrap(), read);
        }
    }
}

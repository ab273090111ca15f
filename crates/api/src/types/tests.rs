use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::authentication::TokenRequest;
use super::coordination::Lease;
use super::core::{ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount};
use super::meta::{ByteString, IntOrString, MicroTime, Quantity, Time};
use super::storage::{CSIDriver, CSINode, VolumeAttachment};
use crate::schema::{Ty, TypeRef, schema};

/// An object with every field of its type, whatever they would mean together.
fn complete(ty: TypeRef) -> Value {
    let fields = schema().ty(ty).fields.iter();
    Value::Object(
        fields
            .map(|field| (field.name.to_string(), sample(&field.ty)))
            .collect(),
    )
}

fn sample(ty: &Ty) -> Value {
    match ty {
        Ty::String => json!("text"),
        Ty::Bytes => json!("Ynl0ZXM="),
        Ty::Bool => json!(true),
        Ty::Int32 | Ty::Int64 => json!(7),
        Ty::Float64 => json!(0.5),
        Ty::Quantity => json!("100m"),
        Ty::IntOrString => json!("http"),
        Ty::Time => json!("2026-01-02T03:04:05Z"),
        Ty::MicroTime => json!("2026-01-02T03:04:05.000006Z"),
        Ty::Duration => json!("1m0s"),
        Ty::Any | Ty::SchemaOrBool(_) | Ty::SchemaOrArray(_) | Ty::SchemaOrStrings(_) => json!({"any": 1}),
        Ty::Struct(ty) => complete(*ty),
        Ty::List(item) | Ty::Items(item) => json!([sample(item)]),
        Ty::Map(item) => json!({"key": sample(item)}),
    }
}

fn object(api_version: &str, kind: &str) -> Value {
    let mut object = complete(schema().kind(api_version, kind).expect("a known kind"));
    object["apiVersion"] = json!(api_version);
    object["kind"] = json!(kind);
    object
}

fn decode<T: DeserializeOwned>(json: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(json)
}

fn decoded<T: DeserializeOwned>(value: &Value) -> T {
    decode(value.to_string().as_bytes()).unwrap_or_else(|e| panic!("{e}: {value}"))
}

fn encoded(object: &impl Serialize) -> Value {
    serde_json::from_slice(&serde_json::to_vec(object).unwrap()).unwrap()
}

/// Where two values differ.
fn differences(path: &str, a: &Value, b: &Value, found: &mut Vec<String>) {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
                let of = |map: &Map<String, Value>| map.get(key).cloned().unwrap_or_default();
                differences(&format!("{path}.{key}"), &of(a), &of(b), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                differences(&format!("{path}[{i}]"), a, b, found);
            }
        }
        _ if a == b => {}
        _ => found.push(format!("{path}: {a} became {b}")),
    }
}

#[track_caller]
fn keeps_everything<T: Serialize + DeserializeOwned>(api_version: &str, kind: &str) {
    let object = object(api_version, kind);
    let mut found = Vec::new();
    differences(kind, &object, &encoded(&decoded::<T>(&object)), &mut found);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Kinds that are read, changed and written again lose nothing on the way.
#[test]
fn kinds_that_are_written_have_every_field() {
    keeps_everything::<Pod>("v1", "Pod");
    keeps_everything::<Node>("v1", "Node");
    keeps_everything::<Lease>("coordination.k8s.io/v1", "Lease");
    keeps_everything::<CSINode>("storage.k8s.io/v1", "CSINode");
    keeps_everything::<TokenRequest>("authentication.k8s.io/v1", "TokenRequest");
}

#[track_caller]
fn finds_its_fields<T: Debug + DeserializeOwned>(api_version: &str, kind: &str) {
    let text = format!("{:?}", decoded::<T>(&object(api_version, kind)));
    assert!(
        !text.contains("None") && !text.contains("\"\""),
        "{kind} misses a field: {text}"
    );
}

/// Each field of a kind that is only read has the name that the schema has.
#[test]
fn kinds_that_are_read_find_all_their_fields() {
    finds_its_fields::<Service>("v1", "Service");
    finds_its_fields::<Secret>("v1", "Secret");
    finds_its_fields::<ConfigMap>("v1", "ConfigMap");
    finds_its_fields::<ServiceAccount>("v1", "ServiceAccount");
    finds_its_fields::<PersistentVolume>("v1", "PersistentVolume");
    finds_its_fields::<PersistentVolumeClaim>("v1", "PersistentVolumeClaim");
    finds_its_fields::<CSIDriver>("storage.k8s.io/v1", "CSIDriver");
    finds_its_fields::<VolumeAttachment>("storage.k8s.io/v1", "VolumeAttachment");
}

/// A pod as people write them, with what the node agent looks at.
#[test]
fn a_pod_is_encoded_as_it_was_decoded() {
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "web", "namespace": "default", "uid": "u", "resourceVersion": "7", "generation": 2,
            "creationTimestamp": "2026-01-02T03:04:05Z", "labels": {"app": "web"}, "annotations": {"a": ""},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "o",
                                 "controller": true, "blockOwnerDeletion": true}],
            "managedFields": [{"manager": "m", "operation": "Update", "fieldsV1": {"f:metadata": {}}}],
        },
        "spec": {
            "initContainers": [{"name": "i", "image": "busybox", "restartPolicy": "Always", "command": ["sh"]}],
            "containers": [{
                "name": "c",
                "image": "nginx:1",
                "args": [],
                "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                "envFrom": [{"prefix": "P", "configMapRef": {"name": "m", "optional": true}}],
                "ports": [{"name": "http", "containerPort": 80, "protocol": "TCP"}],
                "resources": {"requests": {"cpu": "100m"}, "limits": {"memory": "1Gi"}},
                "livenessProbe": {"httpGet": {"path": "/", "port": "http", "scheme": "HTTP"}, "periodSeconds": 10},
                "readinessProbe": {"tcpSocket": {"port": 80}},
                "startupProbe": {"grpc": {"port": 9, "service": ""}},
                "lifecycle": {"preStop": {"sleep": {"seconds": 3}}, "postStart": {"exec": {"command": ["true"]}}},
                "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": true, "subPath": "s"}],
                "securityContext": {"runAsUser": 1, "capabilities": {"add": ["NET_ADMIN"]},
                                    "windowsOptions": {"hostProcess": false}},
            }],
            "volumes": [
                {"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
                {"name": "e", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}},
                {"name": "p", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
                {"name": "r", "rbd": {"monitors": ["m"], "image": "i"}},
            ],
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "h"}]}},
            "tolerations": [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}],
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}],
            "nodeName": "n", "hostPID": true, "setHostnameAsFQDN": false,
        },
        "status": {
            "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}], "hostIPs": [{"ip": "1.2.3.4"}],
            "startTime": "2026-01-02T03:04:05Z", "qosClass": "Burstable",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}],
            "containerStatuses": [{
                "name": "c", "image": "nginx:1", "imageID": "sha256:1", "containerID": "containerd://1", "ready": true,
                "restartCount": 0, "started": true, "state": {"running": {"startedAt": "2026-01-02T03:04:05Z"}},
                "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
            }],
        },
    });
    assert_eq!(encoded(&decoded::<Pod>(&pod)), pod);
}

#[test]
fn null_is_as_good_as_absent_and_unknown_fields_are_ignored() {
    let pod: Pod = decoded(&json!({
        "metadata": null,
        "spec": {"containers": null, "volumes": null, "nodeSelector": null, "nodeName": null, "later": {"a": [1]}},
        "status": null,
        "more": 1,
    }));
    let expected: Pod = decoded(&json!({"spec": {}}));
    assert_eq!(pod, expected);
    assert_eq!(
        encoded(&pod),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {"containers": []}})
    );
    let container: super::core::Container = decoded(&json!({"name": null, "ports": [{"containerPort": 1}]}));
    assert_eq!(
        encoded(&container),
        json!({"name": "", "ports": [{"containerPort": 1}]})
    );
    let node: CSINode = decoded(&json!({"spec": {"drivers": null}}));
    assert!(node.spec.drivers.is_empty());
    let secret: Secret = decoded(&json!({"data": {"a": null, "b": "MQ=="}}));
    assert_eq!(
        secret.data.unwrap().into_values().collect::<Vec<_>>(),
        [ByteString(vec![]), ByteString(b"1".into())]
    );
}

#[test]
fn values_with_forms_of_their_own() {
    let time = |text: &str| encoded(&decoded::<Time>(&json!(text)));
    assert_eq!(time("2026-01-02T03:04:05.9Z"), json!("2026-01-02T03:04:05Z"));
    assert_eq!(time("2026-01-02T03:04:05+01:00"), json!("2026-01-02T02:04:05Z"));
    let micro = encoded(&decoded::<MicroTime>(&json!("2026-01-02T03:04:05.5Z")));
    assert_eq!(micro, json!("2026-01-02T03:04:05.500000Z"));
    assert_eq!(decoded::<IntOrString>(&json!(80)), IntOrString::Int(80));
    assert_eq!(
        decoded::<IntOrString>(&json!("http")),
        IntOrString::String("http".to_string())
    );
    for wrong in ["2147483648", "1.5", "null", "[]", "true"] {
        assert!(decode::<IntOrString>(wrong.as_bytes()).is_err(), "{wrong}");
    }
    assert_eq!(decoded::<Quantity>(&json!("1.5Gi")), Quantity("1.5Gi".to_string()));
    assert!(decode::<Quantity>(b"1").is_err());
    assert!(decode::<Time>(b"\"yesterday\"").is_err());
    assert!(decode::<ByteString>(b"\"!\"").is_err());
}

#[test]
fn a_decode_error_says_where() {
    let wrong = json!({"spec": {"containers": [{"name": "c"}, {"name": "d", "ports": [{"containerPort": "x"}]}]}});
    let error = super::from_value::<Pod>(wrong).unwrap_err();
    assert_eq!(
        error.to_string(),
        "spec.containers[1].ports[0].containerPort: expected a 32-bit integer"
    );
    let error = super::from_value::<Pod>(json!([])).unwrap_err();
    assert_eq!(error.to_string(), "expected an object");
}

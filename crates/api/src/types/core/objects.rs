//! What a pod refers to: Services, Secrets, ConfigMaps, ServiceAccounts.

use std::collections::BTreeMap;

use crate::types::json::{object, partial};
use crate::types::meta::{ByteString, ObjectMeta};

partial! {
    pub struct Service {
        metadata: ObjectMeta = "metadata",
        spec: Option<ServiceSpec> = "spec",
    }
}

partial! {
    pub struct Secret {
        data: Option<BTreeMap<String, ByteString>> = "data",
        metadata: ObjectMeta = "metadata",
        type_: Option<String> = "type",
    }
}

partial! {
    pub struct ConfigMap {
        binary_data: Option<BTreeMap<String, ByteString>> = "binaryData",
        data: Option<BTreeMap<String, String>> = "data",
        metadata: ObjectMeta = "metadata",
    }
}

partial! {
    pub struct ServiceAccount {
        image_pull_secrets: Option<Vec<LocalObjectReference>> = "imagePullSecrets",
        metadata: ObjectMeta = "metadata",
        secrets: Option<Vec<ObjectReference>> = "secrets",
    }
}

partial! {
    pub struct ServiceSpec {
        cluster_ip: Option<String> = "clusterIP",
        ports: Option<Vec<ServicePort>> = "ports",
        selector: Option<BTreeMap<String, String>> = "selector",
        type_: Option<String> = "type",
    }
}

object! {
    pub struct LocalObjectReference {
        name: String = "name",
    }
}

object! {
    pub struct ObjectReference {
        api_version: Option<String> = "apiVersion",
        field_path: Option<String> = "fieldPath",
        kind: Option<String> = "kind",
        name: Option<String> = "name",
        namespace: Option<String> = "namespace",
        resource_version: Option<String> = "resourceVersion",
        uid: Option<String> = "uid",
    }
}

partial! {
    pub struct ServicePort {
        name: Option<String> = "name",
        port: i32 = "port",
        protocol: Option<String> = "protocol",
    }
}

object! {
    pub struct SecretReference {
        name: Option<String> = "name",
        namespace: Option<String> = "namespace",
    }
}

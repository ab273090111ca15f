//! Environment variables and where their values come from.

use crate::types::json::object;
use crate::types::meta::Quantity;

object! {
    pub struct EnvVar {
        name: String = "name",
        value: Option<String> = "value",
        value_from: Option<EnvVarSource> = "valueFrom",
    }
}

object! {
    pub struct EnvFromSource {
        config_map_ref: Option<ConfigMapEnvSource> = "configMapRef",
        prefix: Option<String> = "prefix",
        secret_ref: Option<SecretEnvSource> = "secretRef",
    }
}

object! {
    pub struct EnvVarSource {
        config_map_key_ref: Option<ConfigMapKeySelector> = "configMapKeyRef",
        field_ref: Option<ObjectFieldSelector> = "fieldRef",
        file_key_ref: Option<FileKeySelector> = "fileKeyRef",
        resource_field_ref: Option<ResourceFieldSelector> = "resourceFieldRef",
        secret_key_ref: Option<SecretKeySelector> = "secretKeyRef",
    }
}

object! {
    pub struct ConfigMapEnvSource {
        name: String = "name",
        optional: Option<bool> = "optional",
    }
}

object! {
    pub struct SecretEnvSource {
        name: String = "name",
        optional: Option<bool> = "optional",
    }
}

object! {
    pub struct ConfigMapKeySelector {
        key: String = "key",
        name: String = "name",
        optional: Option<bool> = "optional",
    }
}

object! {
    pub struct ObjectFieldSelector {
        api_version: Option<String> = "apiVersion",
        field_path: String = "fieldPath",
    }
}

object! {
    pub struct FileKeySelector {
        key: String = "key",
        optional: Option<bool> = "optional",
        path: String = "path",
        volume_name: String = "volumeName",
    }
}

object! {
    pub struct ResourceFieldSelector {
        container_name: Option<String> = "containerName",
        divisor: Option<Quantity> = "divisor",
        resource: String = "resource",
    }
}

object! {
    pub struct SecretKeySelector {
        key: String = "key",
        name: String = "name",
        optional: Option<bool> = "optional",
    }
}

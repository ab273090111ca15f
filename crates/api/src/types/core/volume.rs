//! Volumes of pods.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{LocalObjectReference, ObjectFieldSelector, ResourceFieldSelector};
use crate::types::json::object;
use crate::types::meta::Quantity;

object! {
    pub struct Volume {
        aws_elastic_block_store: Option<Value> = "awsElasticBlockStore",
        azure_disk: Option<Value> = "azureDisk",
        azure_file: Option<Value> = "azureFile",
        cephfs: Option<Value> = "cephfs",
        cinder: Option<Value> = "cinder",
        config_map: Option<ConfigMapVolumeSource> = "configMap",
        csi: Option<CSIVolumeSource> = "csi",
        downward_api: Option<DownwardAPIVolumeSource> = "downwardAPI",
        empty_dir: Option<EmptyDirVolumeSource> = "emptyDir",
        ephemeral: Option<Value> = "ephemeral",
        fc: Option<Value> = "fc",
        flex_volume: Option<Value> = "flexVolume",
        flocker: Option<Value> = "flocker",
        gce_persistent_disk: Option<Value> = "gcePersistentDisk",
        git_repo: Option<Value> = "gitRepo",
        glusterfs: Option<Value> = "glusterfs",
        host_path: Option<HostPathVolumeSource> = "hostPath",
        image: Option<ImageVolumeSource> = "image",
        iscsi: Option<Value> = "iscsi",
        name: String = "name",
        nfs: Option<Value> = "nfs",
        persistent_volume_claim: Option<PersistentVolumeClaimVolumeSource> = "persistentVolumeClaim",
        photon_persistent_disk: Option<Value> = "photonPersistentDisk",
        portworx_volume: Option<Value> = "portworxVolume",
        projected: Option<ProjectedVolumeSource> = "projected",
        quobyte: Option<Value> = "quobyte",
        rbd: Option<Value> = "rbd",
        scale_io: Option<Value> = "scaleIO",
        secret: Option<SecretVolumeSource> = "secret",
        storageos: Option<Value> = "storageos",
        vsphere_volume: Option<Value> = "vsphereVolume",
    }
}

object! {
    pub struct HostPathVolumeSource {
        path: String = "path",
        type_: Option<String> = "type",
    }
}

object! {
    pub struct ConfigMapVolumeSource {
        default_mode: Option<i32> = "defaultMode",
        items: Option<Vec<KeyToPath>> = "items",
        name: String = "name",
        optional: Option<bool> = "optional",
    }
}

object! {
    pub struct CSIVolumeSource {
        driver: String = "driver",
        fs_type: Option<String> = "fsType",
        node_publish_secret_ref: Option<LocalObjectReference> = "nodePublishSecretRef",
        read_only: Option<bool> = "readOnly",
        volume_attributes: Option<BTreeMap<String, String>> = "volumeAttributes",
    }
}

object! {
    pub struct DownwardAPIVolumeSource {
        default_mode: Option<i32> = "defaultMode",
        items: Option<Vec<DownwardAPIVolumeFile>> = "items",
    }
}

object! {
    pub struct EmptyDirVolumeSource {
        medium: Option<String> = "medium",
        size_limit: Option<Quantity> = "sizeLimit",
    }
}

object! {
    pub struct ImageVolumeSource {
        pull_policy: Option<String> = "pullPolicy",
        reference: Option<String> = "reference",
    }
}

object! {
    pub struct PersistentVolumeClaimVolumeSource {
        claim_name: String = "claimName",
        read_only: Option<bool> = "readOnly",
    }
}

object! {
    pub struct ProjectedVolumeSource {
        default_mode: Option<i32> = "defaultMode",
        sources: Option<Vec<VolumeProjection>> = "sources",
    }
}

object! {
    pub struct SecretVolumeSource {
        default_mode: Option<i32> = "defaultMode",
        items: Option<Vec<KeyToPath>> = "items",
        optional: Option<bool> = "optional",
        secret_name: Option<String> = "secretName",
    }
}

object! {
    pub struct KeyToPath {
        key: String = "key",
        mode: Option<i32> = "mode",
        path: String = "path",
    }
}

object! {
    pub struct DownwardAPIVolumeFile {
        field_ref: Option<ObjectFieldSelector> = "fieldRef",
        mode: Option<i32> = "mode",
        path: String = "path",
        resource_field_ref: Option<ResourceFieldSelector> = "resourceFieldRef",
    }
}

object! {
    pub struct VolumeProjection {
        cluster_trust_bundle: Option<Value> = "clusterTrustBundle",
        config_map: Option<ConfigMapProjection> = "configMap",
        downward_api: Option<DownwardAPIProjection> = "downwardAPI",
        pod_certificate: Option<Value> = "podCertificate",
        secret: Option<SecretProjection> = "secret",
        service_account_token: Option<ServiceAccountTokenProjection> = "serviceAccountToken",
    }
}

object! {
    pub struct ConfigMapProjection {
        items: Option<Vec<KeyToPath>> = "items",
        name: String = "name",
        optional: Option<bool> = "optional",
    }
}

object! {
    pub struct DownwardAPIProjection {
        items: Option<Vec<DownwardAPIVolumeFile>> = "items",
    }
}

object! {
    pub struct SecretProjection {
        items: Option<Vec<KeyToPath>> = "items",
        name: String = "name",
        optional: Option<bool> = "optional",
    }
}

object! {
    pub struct ServiceAccountTokenProjection {
        audience: Option<String> = "audience",
        expiration_seconds: Option<i64> = "expirationSeconds",
        path: String = "path",
    }
}

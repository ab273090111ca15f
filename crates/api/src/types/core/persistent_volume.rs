//! Persistent volumes and claims.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{HostPathVolumeSource, NodeSelector, ObjectReference, SecretReference};
use crate::types::json::{object, partial};
use crate::types::meta::{ObjectMeta, Quantity, Time};

partial! {
    pub struct PersistentVolume {
        metadata: ObjectMeta = "metadata",
        spec: Option<PersistentVolumeSpec> = "spec",
        status: Option<PersistentVolumeStatus> = "status",
    }
}

partial! {
    pub struct PersistentVolumeClaim {
        metadata: ObjectMeta = "metadata",
        spec: Option<PersistentVolumeClaimSpec> = "spec",
        status: Option<PersistentVolumeClaimStatus> = "status",
    }
}

object! {
    pub struct PersistentVolumeSpec {
        access_modes: Option<Vec<String>> = "accessModes",
        aws_elastic_block_store: Option<Value> = "awsElasticBlockStore",
        azure_disk: Option<Value> = "azureDisk",
        azure_file: Option<Value> = "azureFile",
        capacity: Option<BTreeMap<String, Quantity>> = "capacity",
        cephfs: Option<Value> = "cephfs",
        cinder: Option<Value> = "cinder",
        claim_ref: Option<ObjectReference> = "claimRef",
        csi: Option<CSIPersistentVolumeSource> = "csi",
        fc: Option<Value> = "fc",
        flex_volume: Option<Value> = "flexVolume",
        flocker: Option<Value> = "flocker",
        gce_persistent_disk: Option<Value> = "gcePersistentDisk",
        glusterfs: Option<Value> = "glusterfs",
        host_path: Option<HostPathVolumeSource> = "hostPath",
        iscsi: Option<Value> = "iscsi",
        local: Option<LocalVolumeSource> = "local",
        mount_options: Option<Vec<String>> = "mountOptions",
        nfs: Option<Value> = "nfs",
        node_affinity: Option<VolumeNodeAffinity> = "nodeAffinity",
        persistent_volume_reclaim_policy: Option<String> = "persistentVolumeReclaimPolicy",
        photon_persistent_disk: Option<Value> = "photonPersistentDisk",
        portworx_volume: Option<Value> = "portworxVolume",
        quobyte: Option<Value> = "quobyte",
        rbd: Option<Value> = "rbd",
        scale_io: Option<Value> = "scaleIO",
        storage_class_name: Option<String> = "storageClassName",
        storageos: Option<Value> = "storageos",
        volume_attributes_class_name: Option<String> = "volumeAttributesClassName",
        volume_mode: Option<String> = "volumeMode",
        vsphere_volume: Option<Value> = "vsphereVolume",
    }
}

partial! {
    pub struct PersistentVolumeStatus {
        phase: Option<String> = "phase",
    }
}

partial! {
    pub struct PersistentVolumeClaimSpec {
        access_modes: Option<Vec<String>> = "accessModes",
        resources: Option<VolumeResourceRequirements> = "resources",
        volume_mode: Option<String> = "volumeMode",
        volume_name: Option<String> = "volumeName",
    }
}

partial! {
    pub struct PersistentVolumeClaimStatus {
        access_modes: Option<Vec<String>> = "accessModes",
        allocated_resource_statuses: Option<BTreeMap<String, String>> = "allocatedResourceStatuses",
        allocated_resources: Option<BTreeMap<String, Quantity>> = "allocatedResources",
        capacity: Option<BTreeMap<String, Quantity>> = "capacity",
        conditions: Option<Vec<PersistentVolumeClaimCondition>> = "conditions",
        phase: Option<String> = "phase",
    }
}

object! {
    pub struct CSIPersistentVolumeSource {
        controller_expand_secret_ref: Option<SecretReference> = "controllerExpandSecretRef",
        controller_publish_secret_ref: Option<SecretReference> = "controllerPublishSecretRef",
        driver: String = "driver",
        fs_type: Option<String> = "fsType",
        node_expand_secret_ref: Option<SecretReference> = "nodeExpandSecretRef",
        node_publish_secret_ref: Option<SecretReference> = "nodePublishSecretRef",
        node_stage_secret_ref: Option<SecretReference> = "nodeStageSecretRef",
        read_only: Option<bool> = "readOnly",
        volume_attributes: Option<BTreeMap<String, String>> = "volumeAttributes",
        volume_handle: String = "volumeHandle",
    }
}

object! {
    pub struct LocalVolumeSource {
        fs_type: Option<String> = "fsType",
        path: String = "path",
    }
}

object! {
    pub struct VolumeNodeAffinity {
        required: Option<NodeSelector> = "required",
    }
}

partial! {
    pub struct VolumeResourceRequirements {
        limits: Option<BTreeMap<String, Quantity>> = "limits",
        requests: Option<BTreeMap<String, Quantity>> = "requests",
    }
}

partial! {
    pub struct PersistentVolumeClaimCondition {
        last_probe_time: Option<Time> = "lastProbeTime",
        last_transition_time: Option<Time> = "lastTransitionTime",
        message: Option<String> = "message",
        reason: Option<String> = "reason",
        status: String = "status",
        type_: String = "type",
    }
}

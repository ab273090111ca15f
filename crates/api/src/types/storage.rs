//! CSI drivers and attachments.

use std::collections::BTreeMap;

use crate::types::json::{kind, object, partial};
use crate::types::meta::ObjectMeta;

kind! {
    "storage.k8s.io/v1";
    pub struct CSINode {
        metadata: ObjectMeta = "metadata",
        spec: CSINodeSpec = "spec",
    }
}

partial! {
    pub struct CSIDriver {
        metadata: ObjectMeta = "metadata",
        spec: CSIDriverSpec = "spec",
    }
}

partial! {
    pub struct VolumeAttachment {
        metadata: ObjectMeta = "metadata",
        spec: VolumeAttachmentSpec = "spec",
        status: Option<VolumeAttachmentStatus> = "status",
    }
}

object! {
    pub struct CSINodeSpec {
        drivers: Vec<CSINodeDriver> = "drivers",
    }
}

partial! {
    pub struct CSIDriverSpec {
        attach_required: Option<bool> = "attachRequired",
        fs_group_policy: Option<String> = "fsGroupPolicy",
        node_allocatable_update_period_seconds: Option<i64> = "nodeAllocatableUpdatePeriodSeconds",
        pod_info_on_mount: Option<bool> = "podInfoOnMount",
        prevent_pod_scheduling_if_missing: Option<bool> = "preventPodSchedulingIfMissing",
        requires_republish: Option<bool> = "requiresRepublish",
        se_linux_mount: Option<bool> = "seLinuxMount",
        service_account_token_in_secrets: Option<bool> = "serviceAccountTokenInSecrets",
        storage_capacity: Option<bool> = "storageCapacity",
        token_requests: Option<Vec<TokenRequest>> = "tokenRequests",
        volume_lifecycle_modes: Option<Vec<String>> = "volumeLifecycleModes",
    }
}

partial! {
    pub struct VolumeAttachmentSpec {
        attacher: String = "attacher",
        node_name: String = "nodeName",
        source: VolumeAttachmentSource = "source",
    }
}

partial! {
    pub struct VolumeAttachmentStatus {
        attached: bool = "attached",
        attachment_metadata: Option<BTreeMap<String, String>> = "attachmentMetadata",
    }
}

object! {
    pub struct CSINodeDriver {
        allocatable: Option<VolumeNodeResources> = "allocatable",
        name: String = "name",
        node_id: String = "nodeID",
        topology_keys: Option<Vec<String>> = "topologyKeys",
    }
}

object! {
    pub struct TokenRequest {
        audience: String = "audience",
        expiration_seconds: Option<i64> = "expirationSeconds",
    }
}

partial! {
    pub struct VolumeAttachmentSource {
        persistent_volume_name: Option<String> = "persistentVolumeName",
    }
}

object! {
    pub struct VolumeNodeResources {
        count: Option<i32> = "count",
    }
}

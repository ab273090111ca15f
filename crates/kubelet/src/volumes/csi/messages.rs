//! Messages of the container storage interface (v1, node service) and of plugin registration. What is not used is left
//! out: it is skipped when read.

use std::collections::BTreeMap;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Empty {}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PluginInfo {
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(string, tag = "2")]
    pub name: String,
    /// The socket of the driver itself; the registering socket if empty.
    #[prost(string, tag = "3")]
    pub endpoint: String,
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RegistrationStatus {
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    #[prost(string, tag = "2")]
    pub error: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct NodeInfo {
    #[prost(string, tag = "1")]
    pub node_id: String,
    /// Zero for no limit.
    #[prost(int64, tag = "2")]
    pub max_volumes_per_node: i64,
    #[prost(message, optional, tag = "3")]
    pub accessible_topology: Option<Topology>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Topology {
    #[prost(btree_map = "string, string", tag = "1")]
    pub segments: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct NodeCapabilities {
    #[prost(message, repeated, tag = "1")]
    pub capabilities: Vec<NodeCapability>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct NodeCapability {
    #[prost(message, optional, tag = "1")]
    pub rpc: Option<NodeRpc>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct NodeRpc {
    #[prost(enumeration = "NodeRpcKind", tag = "1")]
    pub kind: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum NodeRpcKind {
    Unknown = 0,
    StageUnstageVolume = 1,
    GetVolumeStats = 2,
    ExpandVolume = 3,
    VolumeCondition = 4,
    SingleNodeMultiWriter = 5,
    VolumeMountGroup = 6,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct VolumeCapability {
    /// It is a device. Else it is mounted.
    #[prost(message, optional, tag = "1")]
    pub block: Option<BlockVolume>,
    #[prost(message, optional, tag = "2")]
    pub mount: Option<MountVolume>,
    #[prost(message, optional, tag = "3")]
    pub access_mode: Option<AccessMode>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct BlockVolume {}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct MountVolume {
    #[prost(string, tag = "1")]
    pub fs_type: String,
    #[prost(string, repeated, tag = "2")]
    pub mount_flags: Vec<String>,
    /// The number of the group that is to own the files.
    #[prost(string, tag = "3")]
    pub volume_mount_group: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AccessMode {
    #[prost(enumeration = "AccessModeKind", tag = "1")]
    pub mode: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum AccessModeKind {
    Unknown = 0,
    SingleNodeWriter = 1,
    SingleNodeReaderOnly = 2,
    MultiNodeReaderOnly = 3,
    MultiNodeSingleWriter = 4,
    MultiNodeMultiWriter = 5,
    SingleNodeSingleWriter = 6,
    SingleNodeMultiWriter = 7,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct NodeStageVolume {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub publish_context: BTreeMap<String, String>,
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    #[prost(message, optional, tag = "4")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "5")]
    pub secrets: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub volume_context: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct NodeUnstageVolume {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub staging_target_path: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct NodePublishVolume {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub publish_context: BTreeMap<String, String>,
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    #[prost(string, tag = "4")]
    pub target_path: String,
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(bool, tag = "6")]
    pub readonly: bool,
    #[prost(btree_map = "string, string", tag = "7")]
    pub secrets: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "8")]
    pub volume_context: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct NodeExpandVolume {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// Where it is published.
    #[prost(string, tag = "2")]
    pub volume_path: String,
    #[prost(message, optional, tag = "3")]
    pub capacity_range: Option<CapacityRange>,
    #[prost(string, tag = "4")]
    pub staging_target_path: String,
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub secrets: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CapacityRange {
    #[prost(int64, tag = "1")]
    pub required_bytes: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct NodeUnpublishVolume {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub target_path: String,
}

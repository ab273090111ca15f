//! Messages of the device plugin API, v1beta1.

use std::collections::BTreeMap;

#[derive(Clone, PartialEq, prost::Message)]
pub struct Empty {}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct PluginOptions {
    #[prost(bool, tag = "1")]
    pub pre_start_required: bool,
    #[prost(bool, tag = "2")]
    pub get_preferred_allocation_available: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Register {
    #[prost(string, tag = "1")]
    pub version: String,
    /// The name of the plugin's socket, beside the kubelet's.
    #[prost(string, tag = "2")]
    pub endpoint: String,
    #[prost(string, tag = "3")]
    pub resource_name: String,
    #[prost(message, optional, tag = "4")]
    pub options: Option<PluginOptions>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceList {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Device {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub health: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PreferredRequest {
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<ContainerPreferredRequest>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerPreferredRequest {
    #[prost(string, repeated, tag = "1")]
    pub available: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub must_include: Vec<String>,
    #[prost(int32, tag = "3")]
    pub size: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PreferredResponse {
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<DeviceIds>,
}

/// Of several messages that name devices and nothing else.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceIds {
    #[prost(string, repeated, tag = "1")]
    pub ids: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateRequest {
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<DeviceIds>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocateResponse {
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<Allocated>,
}

/// What a container needs to use its devices.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Allocated {
    #[prost(btree_map = "string, string", tag = "1")]
    pub envs: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "2")]
    pub mounts: Vec<Mount>,
    #[prost(message, repeated, tag = "3")]
    pub devices: Vec<DeviceFile>,
    #[prost(btree_map = "string, string", tag = "4")]
    pub annotations: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "5")]
    pub cdi_devices: Vec<CdiDevice>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Mount {
    #[prost(string, tag = "1")]
    pub container_path: String,
    #[prost(string, tag = "2")]
    pub host_path: String,
    #[prost(bool, tag = "3")]
    pub read_only: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceFile {
    #[prost(string, tag = "1")]
    pub container_path: String,
    #[prost(string, tag = "2")]
    pub host_path: String,
    #[prost(string, tag = "3")]
    pub permissions: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct CdiDevice {
    #[prost(string, tag = "1")]
    pub name: String,
}

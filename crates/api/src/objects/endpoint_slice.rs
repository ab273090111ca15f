//! EndpointSlices. They are written whole, so all their fields are here.
//!
//! Whom an endpoint stands for (`target_ref`) is much of a slice, and only those who write slices care: readers take an
//! `EndpointSlice<IgnoredAny>`, which skips it while decoding.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Kind, Labels, Meta, or_default};

pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// On slices and Endpoints of services without an address of their own.
pub const HEADLESS: &str = "service.kubernetes.io/headless";
/// When the change happened that the object shows.
pub const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(
    default,
    rename_all = "camelCase",
    bound(deserialize = "R: Deserialize<'de> + Default")
)]
pub struct EndpointSlice<R = TargetRef> {
    pub metadata: Meta,
    /// `IPv4`, `IPv6` or `FQDN`
    pub address_type: String,
    #[serde(deserialize_with = "or_default")]
    pub endpoints: Vec<Endpoint<R>>,
    #[serde(deserialize_with = "or_default")]
    pub ports: Vec<EndpointPort>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(
    default,
    rename_all = "camelCase",
    bound(deserialize = "R: Deserialize<'de> + Default")
)]
pub struct Endpoint<R = TargetRef> {
    pub addresses: Vec<String>,
    pub conditions: EndpointConditions,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_ref: Option<R>,
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub deprecated_topology: Labels,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hints: Option<Hints>,
}

/// What is not said is true, and for terminating false.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct EndpointConditions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serving: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminating: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TargetRef {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field_path: String,
}

/// Whose traffic the endpoint is best for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Hints {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub for_zones: Vec<Named>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub for_nodes: Vec<Named>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Named {
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointPort {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,
}

impl<R: DeserializeOwned + Default + Send + Sync + 'static> Kind for EndpointSlice<R> {
    const API_VERSION: &'static str = "discovery.k8s.io/v1";
    const KIND: &'static str = "EndpointSlice";
    const RESOURCE: &'static str = "endpointslices";

    fn meta(&self) -> &Meta {
        &self.metadata
    }

    /// Slices of a service of this name, in whatever namespace.
    fn index(&self) -> Option<&str> {
        self.service()
    }
}

impl<R> EndpointSlice<R> {
    /// The service whose slice this says it is.
    pub fn service(&self) -> Option<&str> {
        self.metadata.label(SERVICE_NAME).filter(|name| !name.is_empty())
    }

    pub fn is_managed_by(&self, controller: &str) -> bool {
        self.metadata.label(MANAGED_BY) == Some(controller)
    }
}

impl<R> Endpoint<R> {
    pub fn is_ready(&self) -> bool {
        self.conditions.ready == Some(true)
    }
}

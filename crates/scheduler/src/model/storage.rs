//! What CSI drivers say of nodes and of the room they have.

use orlop_api::quantity::Quantity;
use serde::{Deserialize, Deserializer};

use super::{LabelSelector, Meta, ObjectMeta, or_default};

/// On CSI nodes: in-tree plugins that were replaced by drivers.
pub const MIGRATED_PLUGINS: &str = "storage.alpha.kubernetes.io/migrated-plugins";

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CsiNode {
    pub metadata: Meta,
    pub spec: CsiNodeSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CsiNodeSpec {
    /// Written as null when there are none.
    #[serde(deserialize_with = "or_default")]
    pub drivers: Vec<CsiNodeDriver>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CsiNodeDriver {
    pub name: String,
    pub allocatable: Option<CsiAllocatable>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CsiAllocatable {
    pub count: Option<i64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CsiStorageCapacity {
    pub metadata: ObjectMeta,
    pub storage_class_name: String,
    pub node_topology: Option<LabelSelector>,
    #[serde(deserialize_with = "quantity")]
    pub capacity: Option<Quantity>,
    #[serde(deserialize_with = "quantity")]
    pub maximum_volume_size: Option<Quantity>,
}

impl CsiStorageCapacity {
    /// Bytes of the largest volume that can be made.
    pub fn volume_limit(&self) -> Option<i64> {
        let limit = self.maximum_volume_size.as_ref().or(self.capacity.as_ref());
        limit.map(Quantity::value)
    }
}

fn quantity<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Quantity>, D::Error> {
    let text: Option<String> = Option::deserialize(from)?;
    Ok(text.and_then(|t| Quantity::parse(&t).ok()))
}

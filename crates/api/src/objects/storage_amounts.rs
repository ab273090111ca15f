//! Amounts of storage, as volumes and claims list them.

use serde::Deserialize;

use super::Labels;
use crate::quantity::Quantity;

/// A list of resources, of which `storage` has been read: it is asked for much more often than it is decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Option<Labels>")]
pub struct StorageAmounts {
    listed: Labels,
    storage: Option<Quantity>,
}

impl From<Option<Labels>> for StorageAmounts {
    fn from(listed: Option<Labels>) -> StorageAmounts {
        let listed = listed.unwrap_or_default();
        let storage = listed.get("storage").and_then(|text| Quantity::parse(text).ok());
        StorageAmounts { listed, storage }
    }
}

impl StorageAmounts {
    /// All resources, as written.
    pub fn listed(&self) -> &Labels {
        &self.listed
    }

    /// None if there is none, or none that can be read.
    pub fn storage(&self) -> Option<&Quantity> {
        self.storage.as_ref()
    }

    /// Of storage, in billionths of a byte: what sizes are compared by.
    pub fn nanos(&self) -> i128 {
        self.storage.as_ref().map_or(0, Quantity::nanos)
    }
}

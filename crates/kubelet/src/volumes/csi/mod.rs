//! Volumes of CSI (container storage interface) drivers.
//!
//! A driver's registrar creates a socket below `<root>/plugins_registry`; `registration` finds it, gets the driver's name, and
//! adds the driver to the node's CSINode. A volume is *staged* once for the node (if the driver supports that) and *published*
//! for each pod. What is requested is on disk before the call, in `vol_data.json` as Kubernetes writes it, so that after a
//! crash everything that may have been mounted is torn down. A volume that was enlarged is *expanded* when it is published,
//! and periodically while it is in use.

mod block;
mod client;
mod disk;
mod expand;
#[cfg(test)]
mod fake;
mod growth;
mod messages;
mod node_object;
mod publish;
mod registration;
mod target;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::error::MountError;
use client::Client;
use growth::Memory;
pub(super) use publish::Publisher;
pub(super) use registration::{Registry, watch};
pub(super) use target::Target;

/// The drivers that are registered on this node, by name.
#[derive(Default)]
pub(super) struct Drivers {
    clients: Mutex<HashMap<String, Client>>,
    /// One at a time for each volume: staging and unstaging must not overtake each other.
    turns: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// How volumes have grown, as long as pods have them.
    memories: Mutex<HashMap<String, Memory>>,
}

impl Drivers {
    fn client(&self, driver: &str) -> Result<Client, MountError> {
        let found = self.clients.lock().get(driver).cloned();
        found.ok_or_else(|| {
            MountError::Invalid(format!(
                "driver name {driver} not found in the list of registered CSI drivers"
            ))
        })
    }

    pub(super) fn turn(&self, driver: &str, handle: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock();
        // Nobody else holds these.
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        turns.entry(key(driver, handle)).or_default().clone()
    }

    fn remember<T>(&self, target: &Target, what: impl FnOnce(&mut Memory) -> T) -> T {
        let mut memories = self.memories.lock();
        what(memories.entry(key(&target.driver, &target.handle)).or_default())
    }

    fn forget(&self, driver: &str, handle: &str) {
        self.memories.lock().remove(&key(driver, handle));
    }
}

fn key(driver: &str, handle: &str) -> String {
    format!("{driver}^{handle}")
}

/// A SHA-256 in hexadecimal, as Kubernetes names things of any length.
fn hashed(parts: &[&str]) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, parts.concat().as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

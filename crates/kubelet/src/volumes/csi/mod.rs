//! Volumes of drivers that speak the container storage interface (CSI).
//!
//! A driver's registrar puts a socket below `<root>/plugins_registry`; `registration` finds it, asks it which driver it
//! speaks for, and enters the driver in the node's CSINode. For a volume the driver is asked to *stage* it once for the
//! node (if it does such a thing) and to *publish* it for each pod. What was asked for is on disk before it is asked, in
//! `vol_data.json` as Kubernetes writes it, so that a killed agent takes down whatever may have been mounted. A volume that was
//! made larger is *expanded* when a pod gets it, and from time to time while one has it.

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

//! Which devices there are and which pods they are allocated to. Pure but for the checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use prost::Message;
use serde::{Deserialize, Serialize};

use super::DeviceError;
use super::messages::{Allocated, Device};

/// By resource: capacity and allocatable.
pub type Amounts = BTreeMap<String, (u64, u64)>;

/// Devices of a resource that a container is allocated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claim {
    pub ids: BTreeSet<String>,
    /// None until the plugin's Allocate response.
    pub allocated: Option<Allocated>,
}

#[derive(Clone, Debug, Default)]
pub struct Book {
    /// By resource and id: whether it is healthy.
    devices: BTreeMap<String, BTreeMap<String, bool>>,
    /// By uid, container and resource.
    claims: BTreeMap<String, BTreeMap<String, BTreeMap<String, Claim>>>,
}

#[derive(Default, Serialize, Deserialize)]
struct File {
    /// Resources of plugins.
    resources: BTreeSet<String>,
    claims: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    pod_uid: String,
    container_name: String,
    resource_name: String,
    device_ids: BTreeSet<String>,
    /// The plugin's encoded response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    alloc_resp: Option<String>,
}

impl Book {
    pub fn knows(&self, resource: &str) -> bool {
        self.devices.contains_key(resource)
    }

    /// The plugin's current device list.
    pub fn set(&mut self, resource: &str, devices: &[Device]) {
        let all = devices.iter().map(|d| (d.id.clone(), d.health == "Healthy"));
        self.devices.insert(resource.to_string(), all.collect());
    }

    /// The plugin is disconnected: its devices become unhealthy.
    pub fn lose(&mut self, resource: &str) {
        let devices = self.devices.entry(resource.to_string()).or_default();
        devices.values_mut().for_each(|healthy| *healthy = false);
    }

    /// The plugin stays disconnected. The resource is reported as zero, not left out: the API would keep the old number.
    pub fn forget(&mut self, resource: &str) {
        self.devices.insert(resource.to_string(), BTreeMap::new());
    }

    pub fn amounts(&self) -> Amounts {
        let count = |devices: &BTreeMap<String, bool>| {
            let healthy = devices.values().filter(|healthy| **healthy).count();
            (devices.len() as u64, healthy as u64)
        };
        self.devices
            .iter()
            .map(|(name, devices)| (name.clone(), count(devices)))
            .collect()
    }

    fn used(&self, resource: &str) -> BTreeSet<&String> {
        let containers = self.claims.values().flat_map(|containers| containers.values());
        let claims = containers.filter_map(|resources| resources.get(resource));
        claims.flat_map(|claim| &claim.ids).collect()
    }

    /// Healthy devices that are not allocated.
    pub fn free(&self, resource: &str) -> BTreeSet<String> {
        let used = self.used(resource);
        let devices = self.devices.get(resource).into_iter().flatten();
        let free = devices.filter(|(id, healthy)| **healthy && !used.contains(id));
        free.map(|(id, _)| id.clone()).collect()
    }

    pub fn claim(&self, uid: &str, container: &str, resource: &str) -> Option<&Claim> {
        self.claims.get(uid)?.get(container)?.get(resource)
    }

    pub fn of(&self, uid: &str, container: &str) -> BTreeMap<String, Claim> {
        let containers = self.claims.get(uid);
        containers.and_then(|c| c.get(container)).cloned().unwrap_or_default()
    }

    pub fn give(&mut self, uid: &str, container: &str, resource: &str, claim: Claim) {
        let containers = self.claims.entry(uid.to_string()).or_default();
        let resources = containers.entry(container.to_string()).or_default();
        resources.insert(resource.to_string(), claim);
    }

    pub fn pods(&self) -> Vec<String> {
        self.claims.keys().cloned().collect()
    }

    /// True if the pod had devices.
    pub fn release(&mut self, uid: &str) -> bool {
        self.claims.remove(uid).is_some()
    }

    pub fn load(path: &Path) -> Result<Book, DeviceError> {
        let invalid = |error: Box<dyn std::error::Error + Send + Sync>| DeviceError::checkpoint("read", path, error);
        let file: File = match std::fs::read(path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|e| invalid(e.into()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => File::default(),
            Err(error) => return Err(invalid(error.into())),
        };
        let mut book = Book::default();
        file.resources.iter().for_each(|resource| book.forget(resource));
        for entry in file.claims {
            let bytes = entry.alloc_resp.map(|text| STANDARD.decode(text)).transpose();
            let bytes = bytes.map_err(|e| invalid(e.into()))?;
            let allocated = bytes.map(|bytes| Allocated::decode(bytes.as_slice())).transpose();
            let claim = Claim {
                ids: entry.device_ids,
                allocated: allocated.map_err(|e| invalid(e.into()))?,
            };
            book.give(&entry.pod_uid, &entry.container_name, &entry.resource_name, claim);
        }
        Ok(book)
    }

    pub fn save(&self, path: &Path) -> io::Result<()> {
        let mut file = File {
            resources: self.devices.keys().cloned().collect(),
            claims: Vec::new(),
        };
        for (uid, containers) in &self.claims {
            for (container, resources) in containers {
                file.claims.extend(resources.iter().map(|(resource, claim)| Entry {
                    pod_uid: uid.clone(),
                    container_name: container.clone(),
                    resource_name: resource.clone(),
                    device_ids: claim.ids.clone(),
                    alloc_resp: claim.allocated.as_ref().map(|a| STANDARD.encode(a.encode_to_vec())),
                }));
            }
        }
        crate::json::write(path, &file)
    }
}

/// Picks devices for a container: reusable ones of init containers first, then the plugin's preference, then any.
pub fn choose(
    resource: &str,
    free: &BTreeSet<String>,
    reusable: &BTreeSet<String>,
    preferred: &[String],
    count: usize,
) -> Result<BTreeSet<String>, DeviceError> {
    let mut chosen: BTreeSet<String> = reusable.iter().take(count).cloned().collect();
    let needed = count - chosen.len();
    if free.len() < needed {
        return Err(DeviceError::Unavailable {
            resource: resource.to_string(),
            requested: needed,
            available: free.len(),
        });
    }
    let preferred = preferred.iter().filter(|id| free.contains(*id));
    for id in preferred.chain(free) {
        if chosen.len() == count {
            break;
        }
        chosen.insert(id.clone());
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn device(id: &str, health: &str) -> Device {
        Device {
            id: id.into(),
            health: health.into(),
        }
    }

    fn set(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|id| id.to_string()).collect()
    }

    #[test]
    fn devices_come_go_and_are_given() {
        let mut book = Book::default();
        assert!(!book.knows("x/y"));
        let all = [device("a", "Healthy"), device("b", "Healthy"), device("c", "Unhealthy")];
        book.set("x/y", &all);
        assert_eq!(book.amounts(), [("x/y".to_string(), (3, 2))].into());
        let claim = Claim {
            ids: set(&["a"]),
            allocated: Some(Allocated {
                envs: [("K".to_string(), "v".to_string())].into(),
                ..Allocated::default()
            }),
        };
        book.give("u", "c", "x/y", claim.clone());
        assert_eq!(book.free("x/y"), set(&["b"]));
        // A device that is in use counts: it is the pods that are counted against it.
        assert_eq!(book.amounts()["x/y"], (3, 2));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("claims.json");
        assert!(Book::load(&path).unwrap().amounts().is_empty());
        book.save(&path).unwrap();
        let mut next = Book::load(&path).unwrap();
        assert_eq!(next.claim("u", "c", "x/y"), Some(&claim));
        assert_eq!(next.amounts()["x/y"], (0, 0), "until its plugin comes");
        next.set("x/y", &all);
        assert_eq!(next.free("x/y"), set(&["b"]));
        book.lose("x/y");
        assert_eq!((book.amounts()["x/y"], book.free("x/y").len()), ((3, 0), 0));
        book.forget("x/y");
        assert_eq!(book.amounts()["x/y"], (0, 0));
        assert!(book.release("u") && !book.release("u"));
        std::fs::write(&path, "{").unwrap();
        assert!(Book::load(&path).unwrap_err().to_string().contains("claims.json"));
    }

    proptest! {
        #[test]
        fn the_right_number_and_nothing_foreign(
            free in proptest::collection::btree_set("[a-f]", 0..6),
            reusable in proptest::collection::btree_set("[g-i]", 0..3),
            preferred in proptest::collection::vec("[a-z]", 0..6),
            count in 0usize..8,
        ) {
            match choose("x/y", &free, &reusable, &preferred, count) {
                Err(_) => prop_assert!(free.len() + reusable.len() < count),
                Ok(chosen) => {
                    prop_assert_eq!(chosen.len(), count);
                    prop_assert!(chosen.iter().all(|id| free.contains(id) || reusable.contains(id)));
                    let wanted = preferred.iter().filter(|id| free.contains(*id)).collect::<BTreeSet<_>>().len();
                    let got = chosen.iter().filter(|id| preferred.contains(id)).count();
                    prop_assert!(got >= wanted.min(count - reusable.len().min(count)));
                }
            }
        }
    }
}

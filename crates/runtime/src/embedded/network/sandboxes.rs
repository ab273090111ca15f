//! What each sandbox has of the network, in a file a sandbox. It is written before anything is done in the kernel, so that
//! whatever was begun can be found and finished or taken back.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::error::{PodNetworkError, Result};
use super::files;
use super::host_ports::HostPort;
use super::names::Names;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sandbox {
    /// The host's end of its veth pair.
    pub link: String,
    pub addresses: Vec<IpAddr>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<HostPort>,
    /// Counts up: of two sandboxes with the same host port the later one has it.
    pub number: u64,
}

pub(super) struct Sandboxes {
    directory: PathBuf,
    all: BTreeMap<String, Sandbox>,
}

impl Sandboxes {
    pub(super) fn open(directory: PathBuf) -> Result<Sandboxes> {
        files::make_directory(&directory)?;
        let mut all = BTreeMap::new();
        for (id, content) in files::read_all(&directory)? {
            match serde_json::from_str(&content) {
                Ok(sandbox) => drop(all.insert(id, sandbox)),
                // The machine lost power; the namespaces are gone too.
                Err(err) => {
                    tracing::warn!(sandbox = %id, %err, "removing unreadable sandbox network state");
                    files::remove(&directory.join(id))?;
                }
            }
        }
        Ok(Sandboxes { directory, all })
    }

    pub(super) fn get(&self, id: &str) -> Option<&Sandbox> {
        self.all.get(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Sandbox)> {
        self.all.iter().map(|(id, sandbox)| (id.as_str(), sandbox))
    }

    /// What a sandbox is to have: its link and number stay if it is known.
    pub(super) fn describe(&self, id: &str, names: &Names, addresses: Vec<IpAddr>, ports: Vec<HostPort>) -> Sandbox {
        let known = self.get(id);
        let is_taken = |link: &str| self.iter().any(|(other, sandbox)| other != id && sandbox.link == link);
        let link = known.map(|known| known.link.clone()).unwrap_or_else(|| {
            let mut attempts = 0..=u32::MAX;
            let free = attempts.find_map(|attempt| Some(names.veth(id, attempt)).filter(|link| !is_taken(link)));
            free.unwrap_or_else(|| names.veth(id, 0))
        });
        let number = known.map(|known| known.number);
        let next = || self.all.values().map(|sandbox| sandbox.number + 1).max().unwrap_or(0);
        Sandbox {
            link,
            addresses,
            ports,
            number: number.unwrap_or_else(next),
        }
    }

    pub(super) fn put(&mut self, id: &str, sandbox: Sandbox) -> Result<()> {
        if self.all.get(id) == Some(&sandbox) {
            return Ok(());
        }
        let text = serde_json::to_vec(&sandbox).expect("names, numbers and addresses are JSON");
        files::replace(&self.directory.join(id), &text)?;
        self.all.insert(id.to_string(), sandbox);
        Ok(())
    }

    pub(super) fn remove(&mut self, id: &str) -> Result<()> {
        files::remove(&self.directory.join(id))?;
        self.all.remove(id);
        Ok(())
    }
}

/// An id becomes a file's name.
pub(super) fn check_id(id: &str) -> Result<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    match !id.is_empty() && id.len() <= 128 && id.chars().all(allowed) {
        true => Ok(()),
        false => Err(PodNetworkError::InvalidSandbox(id.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandboxes_come_back_and_keep_their_links() {
        let folder = tempfile::tempdir().unwrap();
        let names = Names::new("c", "n");
        let mut all = Sandboxes::open(folder.path().join("s")).unwrap();
        let addresses = vec!["10.0.0.2".parse().unwrap()];
        let one = all.describe("one", &names, addresses.clone(), vec![]);
        all.put("one", one.clone()).unwrap();
        let two = all.describe("two", &names, vec![], vec![]);
        assert_eq!((one.number, two.number), (0, 1));
        all.put("two", two).unwrap();
        std::fs::write(folder.path().join("s/three"), "{").unwrap();
        let mut all = Sandboxes::open(folder.path().join("s")).unwrap();
        assert_eq!(all.iter().map(|(id, _)| id).collect::<Vec<_>>(), ["one", "two"]);
        assert_eq!(all.get("one"), Some(&one));
        assert_eq!(all.describe("one", &names, addresses, vec![]), one);
        all.remove("one").unwrap();
        all.remove("one").unwrap();
        assert_eq!(std::fs::read_dir(folder.path().join("s")).unwrap().count(), 1);
    }

    #[test]
    fn a_link_that_another_sandbox_has_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let names = Names::new("c", "n");
        let mut all = Sandboxes::open(folder.path().to_path_buf()).unwrap();
        let other = Sandbox {
            link: names.veth("two", 0),
            addresses: vec![],
            ports: vec![],
            number: 0,
        };
        all.put("one", other).unwrap();
        assert_eq!(all.describe("two", &names, vec![], vec![]).link, names.veth("two", 1));
    }

    #[test]
    fn ids_are_names_of_files() {
        assert!(check_id("0f3a").is_ok());
        for wrong in ["", "..", "a/b", ".new-1", &"x".repeat(129)] {
            assert!(check_id(wrong).is_err(), "{wrong}");
        }
    }
}

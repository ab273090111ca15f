//! User ids of their own for pods that do not share the node's (`hostUsers: false`): each gets a range that no other pod
//! has. Ranges are written down beside the pod's files, in Kubernetes' form, so that a restart gives no range twice.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use orlop_runtime::cri::messages as cri;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{NodeFacts, SpecError, spec_flag, uid};

/// Ids in a range. The first range is the node's own.
const LENGTH: u32 = 65_536;
const RANGES: u32 = u32::MAX / LENGTH;
const FILE: &str = "userns";

/// Cheap to clone; clones share what is given out.
#[derive(Clone, Debug)]
pub struct Users {
    pods_dir: PathBuf,
    /// Number of the range by pod.
    given: Arc<Mutex<BTreeMap<String, u32>>>,
}

#[derive(Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
struct Mappings {
    uid_mappings: Vec<Mapping>,
    gid_mappings: Vec<Mapping>,
}

#[derive(Clone, Copy, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
struct Mapping {
    host_id: u32,
    container_id: u32,
    length: u32,
}

impl Users {
    /// Reads what was given out before.
    pub fn new(facts: &NodeFacts) -> Users {
        let pods_dir = facts.root_dir.join("pods");
        let mut given = BTreeMap::new();
        for entry in fs::read_dir(&pods_dir).into_iter().flatten().flatten() {
            if let Some(range) = read(&entry.path()) {
                given.insert(entry.file_name().to_string_lossy().into_owned(), range);
            }
        }
        Users {
            pods_dir,
            given: Arc::new(Mutex::new(given)),
        }
    }

    /// The ids of a pod, the same each time; none for pods that share the node's. `supported`: the pod's runtime can do it.
    pub fn of(&self, pod: &Pod, supported: bool) -> Result<Option<cri::UserNamespace>, SpecError> {
        let shared = pod.spec.as_ref().and_then(|s| s.host_users) != Some(false);
        if shared {
            return Ok(None);
        }
        if !supported {
            return Err(SpecError::new(
                "can't set `spec.hostUsers: false`, runtime does not support user namespaces",
            ));
        }
        if spec_flag(pod, |s| s.host_network) {
            return Err(SpecError::new(
                "can't set `spec.hostUsers: false` with `spec.hostNetwork: true`",
            ));
        }
        let mut given = self.given.lock();
        if let Some(range) = given.get(uid(pod)) {
            return Ok(Some(namespace(*range)));
        }
        let taken: std::collections::BTreeSet<u32> = given.values().copied().collect();
        let free = (1..RANGES).find(|range| !taken.contains(range));
        let range = free.ok_or_else(|| {
            SpecError::new("create user namespace: could not find an empty slot to allocate a user namespace")
        })?;
        write(&self.pods_dir.join(uid(pod)), range).map_err(|e| SpecError(format!("create user namespace: {e}")))?;
        given.insert(uid(pod).to_string(), range);
        Ok(Some(namespace(range)))
    }

    /// A pod is gone, with all its files: another may have its ids. Doing it again is fine.
    pub fn release(&self, uid: &str) {
        if self.given.lock().remove(uid).is_some() {
            let _ = fs::remove_file(self.pods_dir.join(uid).join(FILE));
        }
    }
}

fn mapping(range: u32) -> Mapping {
    Mapping {
        host_id: range * LENGTH,
        container_id: 0,
        length: LENGTH,
    }
}

fn namespace(range: u32) -> cri::UserNamespace {
    let Mapping {
        host_id,
        container_id,
        length,
    } = mapping(range);
    let ids = vec![cri::IDMapping {
        host_id,
        container_id,
        length,
    }];
    cri::UserNamespace {
        mode: cri::NamespaceMode::Pod as i32,
        uids: ids.clone(),
        gids: ids,
    }
}

/// The range written down in a pod's folder, if it is one of ours.
fn read(dir: &Path) -> Option<u32> {
    let found: Mappings = serde_json::from_slice(&fs::read(dir.join(FILE)).ok()?).ok()?;
    let first = found.uid_mappings.first()?;
    let range = first.host_id / LENGTH;
    let expected = Mappings {
        uid_mappings: vec![mapping(range)],
        gid_mappings: vec![mapping(range)],
    };
    ((1..RANGES).contains(&range) && found == expected).then_some(range)
}

/// On the disk for good before anything runs with these ids.
fn write(dir: &Path, range: u32) -> io::Result<()> {
    let mappings = Mappings {
        uid_mappings: vec![mapping(range)],
        gid_mappings: vec![mapping(range)],
    };
    fs::create_dir_all(dir)?;
    let part = dir.join(".userns.part");
    let mut file = fs::File::create(&part)?;
    file.write_all(&serde_json::to_vec(&mappings)?)?;
    file.sync_all()?;
    fs::rename(&part, dir.join(FILE))?;
    fs::File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;
    use serde_json::json;

    fn pod(uid: &str) -> Pod {
        let mut pod = testing::pod(json!({"hostUsers": false}));
        pod.metadata.uid = Some(uid.into());
        pod
    }

    #[test]
    fn every_pod_has_its_own_range_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let facts = NodeFacts {
            root_dir: dir.path().into(),
            ..NodeFacts::default()
        };
        let first = |users: &Users, uid: &str| users.of(&pod(uid), true).unwrap().unwrap().uids[0].host_id;
        let users = Users::new(&facts);
        assert_eq!(
            [first(&users, "a"), first(&users, "b"), first(&users, "a")],
            [65_536, 131_072, 65_536]
        );
        let text = fs::read_to_string(dir.path().join("pods/b/userns")).unwrap();
        let mapping = r#"[{"hostId":131072,"containerId":0,"length":65536}]"#;
        assert_eq!(text, format!(r#"{{"uidMappings":{mapping},"gidMappings":{mapping}}}"#));
        for (strange, text) in [("c", "nonsense"), ("d", r#"{"uidMappings":[],"gidMappings":[]}"#)] {
            fs::create_dir_all(dir.path().join("pods").join(strange)).unwrap();
            fs::write(dir.path().join("pods").join(strange).join(FILE), text).unwrap();
        }
        let users = Users::new(&facts);
        assert_eq!([first(&users, "e"), first(&users, "b")], [196_608, 131_072]);
        users.release("a");
        users.release("a");
        assert!(!dir.path().join("pods/a/userns").exists());
        assert_eq!(first(&users, "f"), 65_536);
    }

    #[test]
    fn who_gets_none() {
        let dir = tempfile::tempdir().unwrap();
        let facts = NodeFacts {
            root_dir: dir.path().into(),
            ..NodeFacts::default()
        };
        let users = Users::new(&facts);
        assert_eq!(users.of(&testing::pod(json!({})), true), Ok(None));
        assert_eq!(users.of(&testing::pod(json!({"hostUsers": true})), false), Ok(None));
        assert_eq!(
            users.of(&pod("a"), false).unwrap_err().0,
            "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
        );
        let host = testing::pod(json!({"hostUsers": false, "hostNetwork": true}));
        assert!(users.of(&host, true).is_err());
    }
}

//! User namespaces (`hostUsers: false`): each pod gets a range of IDs that no other pod has. Ranges are stored beside the
//! pod's files, in Kubernetes' format, so that no range is allocated twice after a restart.
//!
//! Volumes keep their owners: the runtime uses idmapped mounts.
// Upstream: pkg/kubelet/userns (v1.36)

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use orlop_api::types::core::Pod;
use orlop_runtime::cri::messages as cri;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{SpecError, spec_flag, uid};

/// Ranges are multiples of this.
pub(super) const UNIT: u32 = 65_536;
const FILE: &str = "userns";
/// Whose subordinate ids pods may have.
const USER: &str = "kubelet";

/// The ids that pods may have, all of them and each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    first: u32,
    count: u32,
    per_pod: u32,
}

impl Ids {
    /// All but the first range, which is the node's own.
    pub fn all(per_pod: u32) -> Ids {
        Ids {
            first: per_pod,
            count: (u32::MAX - per_pod).saturating_add(1),
            per_pod,
        }
    }

    /// Those that the machine's administrator gave to the user `kubelet` with subuid and subgid; without such a user, or
    /// without the `getsubids` program, all.
    pub fn of_machine(per_pod: u32, max_pods: u32) -> Result<Ids, SpecError> {
        let known = nix::unistd::User::from_name(USER).map_err(|e| SpecError(format!("user {USER}: {e}")))?;
        let ids = match known {
            None => Ids::all(per_pod),
            Some(_) => match subordinate()? {
                None => Ids::all(per_pod),
                Some((first, count)) => Ids { first, count, per_pod },
            },
        };
        ids.checked(max_pods)
            .map_err(|problem| SpecError(format!("kubelet mappings: {problem}")))
    }

    fn checked(self, max_pods: u32) -> Result<Ids, SpecError> {
        let Ids { first, count, per_pod } = self;
        if per_pod == 0 || !per_pod.is_multiple_of(UNIT) {
            return Err(SpecError(format!(
                "kubelet user namespace length {per_pod} is not a multiple of {UNIT}"
            )));
        }
        if !first.is_multiple_of(per_pod) {
            return Err(SpecError(format!(
                "kubelet user assigned ID {first} is not a multiple of {per_pod}"
            )));
        }
        if first < per_pod {
            return Err(SpecError(format!(
                "kubelet user assigned ID {first} must be greater or equal to {per_pod}"
            )));
        }
        if !count.is_multiple_of(per_pod) {
            return Err(SpecError(format!(
                "kubelet user assigned IDs length {count} is not a multiple of {per_pod}"
            )));
        }
        if u64::from(first) + u64::from(count) > 1 << 32 {
            return Err(SpecError(format!(
                "kubelet user assigned IDs {first}+{count} exceed the range of user IDs"
            )));
        }
        if count / per_pod < max_pods {
            return Err(SpecError(format!(
                "kubelet user assigned IDs are not enough to support {max_pods} pods"
            )));
        }
        Ok(self)
    }

    /// The ranges that pods can get.
    fn slots(self) -> impl Iterator<Item = Mapping> {
        (0..self.count / self.per_pod).map(move |n| Mapping {
            host_id: self.first + n * self.per_pod,
            container_id: 0,
            length: self.per_pod,
        })
    }
}

/// First id and count, as `getsubids` has them, the same for users and groups; none where there is no such program.
fn subordinate() -> Result<Option<(u32, u32)>, SpecError> {
    let ask = |arguments: &[&str]| match Command::new("getsubids").args(arguments).output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(SpecError(format!("getsubids: {error}"))),
        Ok(output) if !output.status.success() => Err(SpecError(format!(
            "error retrieving additional ids for user {USER:?}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
        Ok(output) => Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned())),
    };
    let (Some(users), Some(groups)) = (ask(&[USER])?, ask(&["-g", USER])?) else {
        return Ok(None);
    };
    if users != groups {
        return Err(SpecError(format!("mismatched subuids and subgids for user {USER:?}")));
    }
    parse_subordinate(&users).map(Some)
}

/// `0: kubelet 65536 2147483648`
fn parse_subordinate(text: &str) -> Result<(u32, u32), SpecError> {
    let mut lines = text.trim_matches('\n').lines();
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return Err(SpecError(format!(
            "error parsing line {text:?}: it must contain only one line"
        )));
    };
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, _, first, count] = fields[..] else {
        return Err(SpecError(format!("invalid line {text:?}")));
    };
    let number = |field: &str| {
        let parsed = field.parse();
        parsed.map_err(|e| SpecError(format!("error parsing line {text:?}: {e}")))
    };
    Ok((number(first)?, number(count)?))
}

/// Who has which ids. Cheap to clone; clones share it.
#[derive(Clone, Debug)]
pub struct Users {
    pods_dir: PathBuf,
    ids: Ids,
    /// By pod.
    given: Arc<Mutex<BTreeMap<String, Mapping>>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mappings {
    uid_mappings: Vec<Mapping>,
    gid_mappings: Vec<Mapping>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
struct Mapping {
    host_id: u32,
    container_id: u32,
    length: u32,
}

impl Mapping {
    fn range(self) -> Range<u64> {
        let first = u64::from(self.host_id);
        first..first + u64::from(self.length)
    }

    fn overlaps(self, other: Mapping) -> bool {
        let (a, b) = (self.range(), other.range());
        a.start < b.end && b.start < a.end
    }
}

impl Users {
    /// Reads what was given out before.
    pub fn new(root_dir: &Path, ids: Ids) -> Users {
        let pods_dir = root_dir.join("pods");
        let mut given = BTreeMap::new();
        for entry in fs::read_dir(&pods_dir).into_iter().flatten().flatten() {
            match read(&entry.path()) {
                Ok(Some(mapping)) => {
                    given.insert(entry.file_name().to_string_lossy().into_owned(), mapping);
                }
                Ok(None) => {}
                Err(problem) => {
                    tracing::error!(path = %entry.path().display(), err = %problem, "failed to read user namespace mappings")
                }
            }
        }
        Users {
            pods_dir,
            ids,
            given: Arc::new(Mutex::new(given)),
        }
    }

    /// The ids that a pod has; none for pods that share the node's, and for those that got none yet.
    pub fn known(&self, pod: &Pod) -> Option<cri::UserNamespace> {
        let given = self.given.lock().get(uid(pod)).copied();
        given.filter(|_| wants_own(pod)).map(namespace)
    }

    /// Gives a pod its ids, the same each time; nothing for pods that share the node's. `handler` is the pod's in the
    /// runtime, and `supported` whether that can do it.
    pub fn ensure(&self, pod: &Pod, handler: &str, supported: bool) -> Result<(), SpecError> {
        if !wants_own(pod) {
            return Ok(());
        }
        if !supported {
            let who = match handler {
                "" => "runtime".to_string(),
                name => format!("RuntimeClass handler {name:?}"),
            };
            return Err(SpecError(format!(
                "can't set `spec.hostUsers: false`, {who} does not support user namespaces"
            )));
        }
        if spec_flag(pod, |s| s.host_network) {
            return Err(SpecError::new(
                "can't set `spec.hostUsers: false` with `spec.hostNetwork: true`",
            ));
        }
        let mut given = self.given.lock();
        if given.contains_key(uid(pod)) {
            return Ok(());
        }
        let dir = self.pods_dir.join(uid(pod));
        let found = read(&dir).map_err(|problem| SpecError(format!("user namespace: {problem}")))?;
        let is_free = |slot: &Mapping| !given.values().any(|other| other.overlaps(*slot));
        let free = found.filter(is_free).or_else(|| self.ids.slots().find(is_free));
        let free = free.ok_or_else(|| {
            SpecError::new("create user namespace: could not find an empty slot to allocate a user namespace")
        })?;
        write(&dir, free).map_err(|e| SpecError(format!("create user namespace: {e}")))?;
        given.insert(uid(pod).to_string(), free);
        Ok(())
    }

    /// A pod is gone, with all its files: another may have its ids. Doing it again is fine.
    pub fn release(&self, uid: &str) {
        if self.given.lock().remove(uid).is_some() {
            let _ = fs::remove_file(self.pods_dir.join(uid).join(FILE));
        }
    }
}

fn wants_own(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|s| s.host_users) == Some(false)
}

fn namespace(mapping: Mapping) -> cri::UserNamespace {
    let Mapping {
        host_id,
        container_id,
        length,
    } = mapping;
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

/// The range written down in a pod's directory, if there is one.
fn read(dir: &Path) -> Result<Option<Mapping>, SpecError> {
    let text = match fs::read(dir.join(FILE)) {
        Ok(text) => text,
        Err(_) => return Ok(None),
    };
    let found: Mappings =
        serde_json::from_slice(&text).map_err(|e| SpecError(format!("invalid user namespace mappings file: {e}")))?;
    let ([users], [groups]) = (&found.uid_mappings[..], &found.gid_mappings[..]) else {
        return Err(SpecError::new(
            "invalid user namespace configuration: no more than one mapping allowed.",
        ));
    };
    if users != groups {
        return Err(SpecError::new(
            "invalid user namespace configuration: GID and UID mapping should be identical",
        ));
    }
    if users.container_id != 0 {
        return Err(SpecError::new(
            "invalid user namespace configuration: UID 0 must be mapped",
        ));
    }
    match users.host_id < UNIT || users.length == 0 {
        true => Err(SpecError(format!(
            "invalid user namespace configuration: id {} is out of range",
            users.host_id
        ))),
        false => Ok(Some(*users)),
    }
}

/// On the disk for good before anything runs with these ids.
fn write(dir: &Path, mapping: Mapping) -> io::Result<()> {
    let mappings = Mappings {
        uid_mappings: vec![mapping],
        gid_mappings: vec![mapping],
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
mod tests;

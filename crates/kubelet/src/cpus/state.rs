//! CPU assignments and their checkpoint, `cpu_manager_state`, as Kubernetes writes it.
//!
//! The checksum is over the text that Go's spew makes of the structure: the upstream kubelet must accept it.
// Upstream: pkg/kubelet/cm/cpumanager/state (v1.36), the second version of the format

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{CpuError, CpuSet, CpuSetError};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CpuAssignments {
    /// For all containers that have none of their own.
    pub shared: CpuSet,
    /// By uid and container.
    pub own: BTreeMap<String, BTreeMap<String, CpuSet>>,
}

impl CpuAssignments {
    pub(super) fn of(&self, uid: &str, container: &str) -> Option<&CpuSet> {
        self.own.get(uid)?.get(container)
    }

    /// What containers have for themselves.
    pub(super) fn taken(&self) -> CpuSet {
        let sets = self.own.values().flat_map(|containers| containers.values());
        sets.flat_map(CpuSet::iter).collect()
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    policy_name: String,
    #[serde(default)]
    default_cpu_set: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, BTreeMap<String, String>>,
    #[serde(default)]
    checksum: u32,
}

impl File {
    fn of(policy: &str, state: &CpuAssignments) -> File {
        let entries = state.own.iter().map(|(uid, containers)| {
            let containers = containers.iter().map(|(name, cpus)| (name.clone(), cpus.to_string()));
            (uid.clone(), containers.collect())
        });
        let mut file = File {
            policy_name: policy.to_string(),
            default_cpu_set: state.shared.to_string(),
            entries: entries.collect(),
            checksum: 0,
        };
        file.checksum = file.sum();
        file
    }

    fn sum(&self) -> u32 {
        let pods = self.entries.iter().map(|(uid, containers)| {
            let sets = containers.iter().map(|(name, cpus)| format!("{name}:{cpus}"));
            format!("{uid}:map[{}]", sets.collect::<Vec<_>>().join(" "))
        });
        let text = format!(
            "(*state.CPUManagerCheckpoint){{PolicyName:(string){} DefaultCPUSet:(string){} \
             Entries:(map[string]map[string]string)map[{}] Checksum:(checksum.Checksum)0}}",
            self.policy_name,
            self.default_cpu_set,
            pods.collect::<Vec<_>>().join(" ")
        );
        fnv1a(text.as_bytes())
    }

    fn state(&self) -> Result<CpuAssignments, String> {
        let shared = self.default_cpu_set.parse();
        let shared = shared
            .map_err(|e: CpuSetError| format!("could not parse default cpu set {:?}: {e}", self.default_cpu_set))?;
        let mut state = CpuAssignments {
            shared,
            ..CpuAssignments::default()
        };
        for (uid, containers) in &self.entries {
            for (name, text) in containers {
                let cpus = text.parse().map_err(|e: CpuSetError| {
                    format!("could not parse cpuset {text:?} for container {name:?} in pod {uid:?}: {e}")
                })?;
                state.own.entry(uid.clone()).or_default().insert(name.clone(), cpus);
            }
        }
        Ok(state)
    }
}

fn fnv1a(bytes: &[u8]) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    bytes.iter().fold(0x811c_9dc5, step)
}

/// Loads the checkpoint; none if there is no file.
pub(super) fn load(path: &Path, policy: &str) -> Result<Option<CpuAssignments>, CpuError> {
    let read = || {
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let file: File = serde_json::from_slice(&text).map_err(|e| e.to_string())?;
        // Very old checkpoints have none.
        if file.checksum != 0 && file.checksum != file.sum() {
            return Err("checkpoint is corrupted".to_string());
        }
        match file.policy_name == policy {
            true => file.state().map(Some),
            false => Err(format!(
                "configured policy {policy:?} differs from state checkpoint policy {:?}",
                file.policy_name
            )),
        }
    };
    read().map_err(|reason| CpuError::Checkpoint {
        path: path.to_path_buf(),
        reason,
    })
}

pub(super) fn save(path: &Path, policy: &str, state: &CpuAssignments) -> io::Result<()> {
    crate::json::write(path, &File::of(policy, state))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn files_of_kubernetes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cpu_manager_state");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            load(&path, "none").map_err(|e| e.to_string().replace(dir.path().to_str().unwrap(), ""))
        };
        assert_eq!(load(&path, "none").unwrap(), None);
        let text = r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#;
        assert_eq!(read(text), Ok(Some(CpuAssignments::default())));
        let both = r#"{"policyName":"none","defaultCpuSet":"1-3",
            "entries":{"pod":{"container1":"4-6","container2":"1-3"}},"checksum":3610638499}"#;
        let state = read(both).unwrap().unwrap();
        assert_eq!(
            (state.shared.to_string(), state.taken().to_string()),
            ("1-3".into(), "1-6".into())
        );
        assert_eq!(state.of("pod", "container1"), Some(&set("4-6")));
        for (text, problem) in [
            (
                r#"{"policyName":"none","defaultCpuSet":"4-6","checksum":1337}"#,
                "checkpoint is corrupted",
            ),
            ("{", "EOF while parsing an object at line 1 column 1"),
            (
                r#"{"policyName":"other","defaultCpuSet":"1-3","checksum":1394507217}"#,
                r#"configured policy "none" differs from state checkpoint policy "other""#,
            ),
            (
                r#"{"policyName":"none","defaultCpuSet":"1.3","checksum":3021697696}"#,
                r#"could not parse default cpu set "1.3": "1.3" is not a CPU number or range"#,
            ),
        ] {
            let want = format!(
                "could not restore state from checkpoint: {problem}, please drain this node and delete the CPU manager \
                 checkpoint file \"/cpu_manager_state\" before restarting Kubelet"
            );
            assert_eq!(read(text), Err(want));
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cpu_manager_state");
        let mut state = CpuAssignments {
            shared: set("0,4-7"),
            ..CpuAssignments::default()
        };
        state.own.entry("u".into()).or_default().insert("c".into(), set("1-3"));
        save(&path, "static", &state).unwrap();
        assert_eq!(load(&path, "static").unwrap(), Some(state));
        save(&path, "none", &CpuAssignments::default()).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

//! What a container runtime keeps in memory for each pod, beside the pod's own processes.

use std::collections::BTreeMap;

use crate::bench::process;

/// The processes of this machine, by their ids.
pub(super) struct Processes(BTreeMap<u32, String>);

impl Processes {
    pub(super) fn now() -> Processes {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        Processes(pids.filter_map(|pid| Some((pid, process::usage(pid)?.name))).collect())
    }

    /// Bytes a pod, since `before`, for this many pods whose own processes have the name `own`. What came in smaller numbers
    /// than pods did is somebody else's.
    pub(super) fn overhead_since(&self, before: &Processes, pods: usize, own: &str) -> u64 {
        let held = self.held_since(before, pods, own);
        let memory: u64 = held.into_iter().filter_map(process::proportional).sum();
        memory / pods.max(1) as u64
    }

    fn held_since(&self, before: &Processes, pods: usize, own: &str) -> Vec<u32> {
        let mut new: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for (pid, name) in &self.0 {
            if before.0.get(pid) != Some(name) && name != own {
                new.entry(name).or_default().push(*pid);
            }
        }
        new.into_values().filter(|pids| pids.len() >= pods).flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_with_each_pod_is_its_overhead() {
        let of = |all: &[(u32, &str)]| Processes(all.iter().map(|(pid, name)| (*pid, name.to_string())).collect());
        let before = of(&[(1, "init"), (2, "shim"), (3, "cargo")]);
        let after = of(&[
            (1, "init"),
            (2, "shim"),
            // The id of something that ended.
            (3, "shim"),
            (4, "shim"),
            (5, "pause"),
            (6, "pause"),
            (7, "sleep"),
            (8, "sleep"),
            (9, "cargo"),
        ]);
        assert_eq!(after.held_since(&before, 2, "sleep"), [5, 6, 3, 4]);
        assert!(Processes::now().0.contains_key(&std::process::id()));
    }
}

//! `nodes.json`: the worker nodes of a data directory. They are there until they are removed, however often the cluster is
//! started.

use std::io;
use std::path::Path;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use super::ranges::WORKERS_MAX;
use crate::data_dir;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct WorkersRecord {
    /// Of the workers' own addresses; none before the first worker.
    pub range: Option<Ipv4Net>,
    /// By their numbers.
    pub workers: Vec<WorkerRecord>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct WorkerRecord {
    pub name: String,
    /// From 1 on: which addresses it has.
    pub number: u8,
    /// Not to be started.
    pub is_stopped: bool,
    /// Its link is down.
    pub is_cut: bool,
}

/// Why there is no such worker.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WorkerNameError {
    #[error("invalid node name {0:?}: must be a lowercase RFC 1123 subdomain")]
    Invalid(String),
    #[error("node {0:?} already exists")]
    Exists(String),
    #[error("a machine has at most {WORKERS_MAX} worker nodes")]
    TooMany,
}

impl WorkersRecord {
    pub(crate) fn read(data_dir: &Path) -> io::Result<WorkersRecord> {
        match std::fs::read_to_string(data_dir.join(data_dir::NODES_FILE)) {
            Ok(text) => serde_json::from_str(&text).map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(WorkersRecord::default()),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn write(&self, data_dir: &Path) -> io::Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        data_dir::write_private(&data_dir.join(data_dir::NODES_FILE), &format!("{text}\n"))
    }

    pub(crate) fn find(&mut self, name: &str) -> Option<&mut WorkerRecord> {
        self.workers.iter_mut().find(|worker| worker.name == name)
    }

    /// One more; without a name the first free one of `worker-1`, `worker-2` … `own` is the machine's own node.
    pub(crate) fn add(&mut self, name: Option<&str>, own: &str) -> Result<WorkerRecord, WorkerNameError> {
        let is_taken = |name: &str| name == own || self.workers.iter().any(|worker| worker.name == name);
        let number = (1..=WORKERS_MAX).find(|number| !self.workers.iter().any(|worker| worker.number == *number));
        let number = number.ok_or(WorkerNameError::TooMany)?;
        let name = match name {
            None => (1..)
                .map(|n: u32| format!("worker-{n}"))
                .find(|name| !is_taken(name))
                .ok_or(WorkerNameError::TooMany)?,
            Some(name) if !is_node_name(name) => return Err(WorkerNameError::Invalid(name.to_string())),
            Some(name) if is_taken(name) => return Err(WorkerNameError::Exists(name.to_string())),
            Some(name) => name.to_string(),
        };
        let worker = WorkerRecord {
            name,
            number,
            ..WorkerRecord::default()
        };
        self.workers.push(worker.clone());
        self.workers.sort_by_key(|worker| worker.number);
        Ok(worker)
    }

    /// So many run from now on: those that there are, then new ones; further ones are stopped, and stay.
    pub(crate) fn set_running(&mut self, count: usize, own: &str) -> Result<(), WorkerNameError> {
        for (at, worker) in self.workers.iter_mut().enumerate() {
            worker.is_stopped = at >= count;
        }
        while self.workers.len() < count {
            self.add(None, own)?;
        }
        Ok(())
    }
}

/// It is a directory's name and the name of a network namespace, too.
fn is_node_name(name: &str) -> bool {
    let part = |part: &str| {
        let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        edge(part.chars().next())
            && edge(part.chars().next_back())
            && part
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    name.len() <= 63 && name.split('.').all(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_keep_their_numbers() {
        let mut record = WorkersRecord::default();
        record.set_running(2, "vm").unwrap();
        let all = |record: &WorkersRecord| -> Vec<(String, u8, bool)> {
            let shown = |w: &WorkerRecord| (w.name.clone(), w.number, w.is_stopped);
            record.workers.iter().map(shown).collect()
        };
        let one = |name: &str, number: u8, is_stopped: bool| (name.to_string(), number, is_stopped);
        assert_eq!(all(&record), [one("worker-1", 1, false), one("worker-2", 2, false)]);
        record.set_running(1, "vm").unwrap();
        assert_eq!(all(&record), [one("worker-1", 1, false), one("worker-2", 2, true)]);
        record.workers.remove(0);
        assert_eq!(record.add(Some("edge.a"), "vm").unwrap().number, 1);
        assert_eq!(record.add(None, "vm").unwrap().name, "worker-1");
        record.set_running(3, "vm").unwrap();
        let names: Vec<_> = record.workers.iter().map(|w| w.name.as_str()).collect();
        assert_eq!(names, ["edge.a", "worker-2", "worker-1"]);
    }

    #[test]
    fn names_that_nodes_can_have() {
        let mut record = WorkersRecord::default();
        for name in ["", "a/b", "..", "-a", "a-", "A", "a..b", &"x".repeat(64)] {
            assert_eq!(record.add(Some(name), "vm"), Err(WorkerNameError::Invalid(name.into())));
        }
        assert_eq!(record.add(Some("vm"), "vm"), Err(WorkerNameError::Exists("vm".into())));
        assert!(record.add(Some("b2.zone-1"), "vm").is_ok());
        for _ in 1..WORKERS_MAX {
            record.add(None, "vm").unwrap();
        }
        assert_eq!(record.add(None, "vm"), Err(WorkerNameError::TooMany));
    }

    #[test]
    fn the_file_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(WorkersRecord::read(dir.path()).unwrap(), WorkersRecord::default());
        let mut record = WorkersRecord {
            range: Some("172.30.3.0/24".parse().unwrap()),
            ..WorkersRecord::default()
        };
        record.set_running(3, "vm").unwrap();
        record.find("worker-2").unwrap().is_cut = true;
        record.write(dir.path()).unwrap();
        assert_eq!(WorkersRecord::read(dir.path()).unwrap(), record);
    }
}

//! The sandboxes and containers that there are, in memory.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::interfaces::Map;
use super::protocol::Exited;
use super::records::{ContainerRecord, SandboxRecord};
use crate::cri::messages::{ContainerState, PodSandboxState};
use crate::{Code, Error, Result};

/// Stages of a container; each is left only for a later one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Created,
    /// A start is under way.
    Starting,
    Running {
        started_at: i64,
        pid: i32,
    },
    Exited(Exited),
}

impl Stage {
    pub(super) fn state(&self) -> ContainerState {
        match self {
            Stage::Created | Stage::Starting => ContainerState::Created,
            Stage::Running { .. } => ContainerState::Running,
            Stage::Exited(_) => ContainerState::Exited,
        }
    }
}

/// A sandbox. What changes is behind locks of its own, held for moments only.
pub(super) struct Sandbox {
    pub id: String,
    pub dir: PathBuf,
    pub record: Mutex<SandboxRecord>,
    /// Its shim's process; `None`: it has none any more.
    pub shim: Mutex<Option<i32>>,
    /// Being stopped: that its shim goes is no surprise.
    pub stopping: AtomicBool,
    /// Stops and removals of one sandbox are one at a time.
    pub lifecycle: tokio::sync::Mutex<()>,
}

impl Sandbox {
    pub(super) fn new(dir: PathBuf, record: SandboxRecord, shim: Option<i32>) -> Sandbox {
        Sandbox {
            id: record.id.clone(),
            dir,
            record: Mutex::new(record),
            shim: Mutex::new(shim),
            stopping: AtomicBool::new(false),
            lifecycle: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn state(&self) -> PodSandboxState {
        let runs = self.shim.lock().is_some() && !self.stopping.load(Ordering::SeqCst);
        match runs && !self.record.lock().stopped {
            true => PodSandboxState::Ready,
            false => PodSandboxState::NotReady,
        }
    }
}

pub(super) struct Container {
    pub id: String,
    pub sandbox: Arc<Sandbox>,
    pub dir: PathBuf,
    pub record: Mutex<ContainerRecord>,
    pub stage: watch::Sender<Stage>,
    /// The stop signal was sent: a second stop only waits.
    pub stop_signalled: AtomicBool,
    pub removing: AtomicBool,
}

impl Container {
    pub(super) fn new(sandbox: Arc<Sandbox>, dir: PathBuf, record: ContainerRecord, stage: Stage) -> Container {
        Container {
            id: record.id.clone(),
            sandbox,
            dir,
            record: Mutex::new(record),
            stage: watch::Sender::new(stage),
            stop_signalled: AtomicBool::new(false),
            removing: AtomicBool::new(false),
        }
    }

    pub(super) fn stage(&self) -> Stage {
        self.stage.borrow().clone()
    }

    /// `Err`: it can't be started any more.
    pub(super) fn begin_start(&self) -> Result<()> {
        let mut refused = None;
        self.stage.send_if_modified(|stage| match stage {
            Stage::Created if !self.removing.load(Ordering::SeqCst) => {
                *stage = Stage::Starting;
                true
            }
            other => {
                refused = Some(other.state());
                false
            }
        });
        match refused {
            None => Ok(()),
            Some(state) => Err(Error::new(
                Code::Other,
                format!(
                    "failed to set starting state for container {:?}: container is in {state:?} state",
                    self.id
                ),
            )),
        }
    }

    /// It runs, unless its end was heard of first.
    pub(super) fn set_running(&self, started_at: i64, pid: i32) {
        self.stage.send_if_modified(|stage| {
            let earlier = matches!(stage, Stage::Created | Stage::Starting);
            if earlier {
                *stage = Stage::Running { started_at, pid };
            }
            earlier
        });
    }

    /// It has ended. `false`: that was known.
    pub(super) fn set_exited(&self, exited: Exited) -> bool {
        self.stage.send_if_modified(|stage| {
            let first = !matches!(stage, Stage::Exited(_));
            if first {
                *stage = Stage::Exited(exited);
            }
            first
        })
    }
}

#[derive(Default)]
pub(super) struct Store {
    pub sandboxes: HashMap<String, Arc<Sandbox>>,
    pub containers: HashMap<String, Arc<Container>>,
    /// Names that are taken: no sandbox and no container of a pod is made twice.
    pub names: HashSet<String>,
}

impl Store {
    /// A full id, or the beginning of one if it is the only one.
    pub(super) fn sandbox(&self, id: &str) -> Option<Arc<Sandbox>> {
        find(&self.sandboxes, id)
    }

    pub(super) fn container(&self, id: &str) -> Option<Arc<Container>> {
        find(&self.containers, id)
    }

    pub(super) fn containers_of(&self, sandbox: &str) -> Vec<Arc<Container>> {
        self.containers
            .values()
            .filter(|c| c.sandbox.id == sandbox)
            .cloned()
            .collect()
    }
}

fn find<T>(all: &HashMap<String, Arc<T>>, id: &str) -> Option<Arc<T>> {
    if let Some(found) = all.get(id) {
        return Some(found.clone());
    }
    if id.is_empty() {
        return None;
    }
    let mut matching = all.iter().filter(|(full, _)| full.starts_with(id));
    match (matching.next(), matching.next()) {
        (Some((_, found)), None) => Some(found.clone()),
        _ => None,
    }
}

/// Labels match a selector that names all of them.
pub(super) fn matches(labels: &Map, selector: &Map) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

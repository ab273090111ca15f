//! Controls of a simulated runtime for tests: injected faults, held calls, the calls in order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tokio::sync::watch;

use crate::cri::messages::ExecSyncResponse;
use crate::{Error, Result};

/// The calls of the runtime trait, by CRI's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Version,
    Status,
    UpdateRuntimeConfig,
    RuntimeConfig,
    RunPodSandbox,
    StopPodSandbox,
    RemovePodSandbox,
    PodSandboxStatus,
    ListPodSandbox,
    CreateContainer,
    StartContainer,
    StopContainer,
    RemoveContainer,
    ListContainers,
    ContainerStatus,
    UpdateContainerResources,
    ReopenContainerLog,
    ExecSync,
    Exec,
    Attach,
    PortForward,
    ContainerStats,
    ListContainerStats,
    ListPodSandboxStats,
    GetContainerEvents,
    ListImages,
    ImageStatus,
    PullImage,
    RemoveImage,
    ImageFsInfo,
}

impl Kind {
    /// Calls that only look are counted, not kept: a relist would drown the others.
    pub fn only_looks(self) -> bool {
        use Kind::*;
        matches!(
            self,
            Version
                | Status
                | RuntimeConfig
                | PodSandboxStatus
                | ListPodSandbox
                | ListContainers
                | ContainerStatus
                | ContainerStats
                | ListContainerStats
                | ListPodSandboxStats
                | GetContainerEvents
                | ListImages
                | ImageStatus
                | ImageFsInfo
        )
    }
}

/// A call that was made. Shown as `StartContainer default/web/nginx`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub kind: Kind,
    /// `namespace/pod`, `namespace/pod/container`, or an image; an id where there is no such thing.
    pub subject: String,
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {}", self.kind, self.subject)
    }
}

/// What a command run in a container answers.
pub(super) type ExecHandler = Arc<dyn Fn(&[String]) -> Result<ExecSyncResponse> + Send + Sync>;

/// Calls of one kind wait until this is dropped.
pub struct Hold(#[expect(dead_code, reason = "dropping it is its use")] pub(super) watch::Sender<()>);

/// More calls than this are not kept: a runtime that nobody asks must not grow.
const CALLS_MAX: usize = 100_000;

#[derive(Default)]
pub(super) struct Script {
    faults: BTreeMap<Kind, Fault>,
    holds: BTreeMap<Kind, watch::Receiver<()>>,
    calls: VecDeque<Call>,
    counts: BTreeMap<Kind, u64>,
    /// By `namespace/pod/container` or the container's name alone.
    answers: BTreeMap<String, ExecHandler>,
}

#[derive(Default)]
struct Fault {
    next: VecDeque<Error>,
    always: Option<Error>,
}

impl Script {
    pub(super) fn fail_next(&mut self, kind: Kind, error: Error) {
        self.faults.entry(kind).or_default().next.push_back(error);
    }

    pub(super) fn fail_always(&mut self, kind: Kind, error: Option<Error>) {
        self.faults.entry(kind).or_default().always = error;
    }

    pub(super) fn hold(&mut self, kind: Kind) -> Hold {
        let (held, waiting) = watch::channel(());
        self.holds.insert(kind, waiting);
        Hold(held)
    }

    pub(super) fn answer(&mut self, container: &str, answer: ExecHandler) {
        self.answers.insert(container.to_string(), answer);
    }

    pub(super) fn answer_for(&self, subject: &str) -> Option<ExecHandler> {
        let name = subject.rsplit('/').next().unwrap_or(subject);
        self.answers.get(subject).or_else(|| self.answers.get(name)).cloned()
    }

    /// Notes a call. What it returns first has to be waited for, if anything; the fault then takes the call's place.
    pub(super) fn called(
        &mut self,
        kind: Kind,
        subject: String,
        keep: bool,
    ) -> (Option<watch::Receiver<()>>, Option<Error>) {
        *self.counts.entry(kind).or_default() += 1;
        if keep && !kind.only_looks() && self.calls.len() < CALLS_MAX {
            self.calls.push_back(Call { kind, subject });
        }
        let hold = self.holds.get(&kind).filter(|h| h.has_changed().is_ok()).cloned();
        if hold.is_none() {
            self.holds.remove(&kind);
        }
        let fault = self.faults.get_mut(&kind);
        (
            hold,
            fault.and_then(|f| f.next.pop_front().or_else(|| f.always.clone())),
        )
    }

    pub(super) fn take_calls(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.calls).into()
    }

    pub(super) fn count(&self, kind: Kind) -> u64 {
        self.counts.get(&kind).copied().unwrap_or(0)
    }
}

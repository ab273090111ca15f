//! Volume errors, worded as in Kubernetes' events.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::downward::DownwardApiError;
use crate::grpc::CallError;
use crate::objects::ObjectError;

/// A volume that is not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeFailure {
    /// The name in the pod.
    pub volume: String,
    pub message: String,
    /// Whether it is known what to mount: false while a claim is unbound.
    pub processed: bool,
}

/// The volumes that are not ready. `Display` lists all; `events` has one message each, as FailedMount events do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeError {
    pub failures: Vec<VolumeFailure>,
}

impl std::error::Error for VolumeError {}

impl fmt::Display for VolumeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.events().join("; "))
    }
}

impl VolumeError {
    pub(super) fn one(volume: &str, message: impl Into<String>) -> VolumeError {
        let failure = VolumeFailure {
            volume: volume.to_string(),
            message: message.into(),
            processed: true,
        };
        VolumeError {
            failures: vec![failure],
        }
    }

    /// The messages of the FailedMount events.
    pub fn events(&self) -> Vec<String> {
        let (mounts, claims): (Vec<_>, Vec<_>) = self.failures.iter().partition(|f| f.processed);
        let mut texts: Vec<String> = mounts.into_iter().map(|f| f.message.clone()).collect();
        if !claims.is_empty() {
            let reasons: Vec<&str> = claims.iter().map(|f| f.message.as_str()).collect();
            texts.push(self.waiting(&reasons.join("; ")));
        }
        texts
    }

    /// The message after a timeout.
    pub fn timed_out(&self) -> String {
        self.waiting("timed out waiting for the condition")
    }

    fn waiting(&self, reason: &str) -> String {
        let names = |unprocessed_only: bool| {
            let failures = self.failures.iter().filter(|f| !unprocessed_only || !f.processed);
            let mut names: Vec<&str> = failures.map(|f| f.volume.as_str()).collect();
            names.sort_unstable();
            names.join(" ")
        };
        let (unmounted, unprocessed) = (names(false), names(true));
        format!(
            "Unable to attach or mount volumes: unmounted volumes=[{unmounted}], unattached volumes=[], \
             failed to process volumes=[{unprocessed}]: {reason}"
        )
    }
}

/// What keeps one volume from being set up or torn down. `Display` is the reason as events show it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MountError {
    /// A call to the file system, as Kubernetes words it: `mkdir /x: not a directory`.
    #[error("{operation} {}: {}", path.display(), reason(source))]
    Io {
        operation: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{mount} (from {})", from.display())]
    Bind { from: PathBuf, mount: Box<MountError> },
    /// A program (losetup, blkid, mkfs, fsck, mount) could not be run, or failed.
    #[error("{0}")]
    Program(String),
    /// A disk could not be prepared or mounted.
    #[error("local: failed to mount device {} at {} (fstype: {fs_type}), error {source}", device.display(), at.display())]
    Disk {
        device: PathBuf,
        at: PathBuf,
        fs_type: String,
        source: Box<MountError>,
    },
    /// The object that the volume is made from could not be read.
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error(transparent)]
    DownwardApi(#[from] DownwardApiError),
    /// The CSI driver's answer.
    #[error(transparent)]
    Driver(#[from] CallError),
    /// The pod, its claim or its volume says something that this node cannot do.
    #[error("{0}")]
    Invalid(String),
    /// In which step it happened.
    #[error("{step}: {source}")]
    Step { step: String, source: Box<MountError> },
    /// Several problems of one volume.
    #[error("[{}]", texts.join(", "))]
    Several { texts: Vec<String> },
}

impl MountError {
    pub(super) fn during(step: impl Into<String>, source: impl Into<MountError>) -> MountError {
        MountError::Step {
            step: step.into(),
            source: Box::new(source.into()),
        }
    }

    pub(super) fn invalid(text: impl Into<String>) -> MountError {
        MountError::Invalid(text.into())
    }

    /// As Kubernetes lists them: each once, without brackets if there is but one.
    pub(super) fn several(mut problems: Vec<MountError>) -> MountError {
        let mut seen = std::collections::BTreeSet::new();
        problems.retain(|problem| seen.insert(problem.to_string()));
        match problems.len() {
            1 => problems.remove(0),
            _ => MountError::Several {
                texts: problems.iter().map(MountError::to_string).collect(),
            },
        }
    }
}

pub(super) fn io_error(operation: &'static str, path: &Path, source: io::Error) -> MountError {
    MountError::Io {
        operation,
        path: path.to_path_buf(),
        source,
    }
}

fn reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => lower_first(Errno::from_raw(number).desc()),
        None => error.to_string(),
    }
}

fn lower_first(text: &str) -> String {
    let mut characters = text.chars();
    match characters.next() {
        Some(first) => first.to_lowercase().chain(characters).collect(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_event_for_each_mount_and_one_for_all_claims() {
        let failure = |volume: &str, message: &str, processed| VolumeFailure {
            volume: volume.into(),
            message: message.into(),
            processed,
        };
        let error = VolumeError {
            failures: vec![
                failure("b", "MountVolume.SetUp failed for volume \"b\" : x", true),
                failure("c", "error processing PVC n/c: PVC is not bound", false),
                failure("a", "error processing PVC n/a: PVC is not bound", false),
            ],
        };
        let waiting = "Unable to attach or mount volumes: unmounted volumes=[a b c], unattached volumes=[], \
                       failed to process volumes=[a c]: ";
        let claims = "error processing PVC n/c: PVC is not bound; error processing PVC n/a: PVC is not bound";
        assert_eq!(
            error.events(),
            [
                "MountVolume.SetUp failed for volume \"b\" : x".to_string(),
                format!("{waiting}{claims}")
            ]
        );
        assert_eq!(
            error.timed_out(),
            format!("{waiting}timed out waiting for the condition")
        );
    }

    #[test]
    fn texts() {
        let error = io::Error::from_raw_os_error(20);
        let error = io_error("mkdir", Path::new("/x"), error);
        assert_eq!(error.to_string(), "mkdir /x: not a directory");
        let several = |texts: &[&str]| {
            let problems = texts.iter().map(|text| MountError::invalid(*text));
            MountError::several(problems.collect()).to_string()
        };
        assert_eq!(several(&["a", "a"]), "a");
        assert_eq!(several(&["a", "b", "a"]), "[a, b]");
    }
}

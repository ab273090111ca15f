//! What a sandbox, a container and a command are made of, as the shim is told: everything is decided already.
//!
//! The runtime writes these as JSON (a container's beside its record, `spec.json`), the shim only carries them out. They
//! play the part of OCI's `config.json`, with what is always the same left out.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::cgroups::CgroupSpec;

/// Identifiers of the host's users and groups as a user namespace shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IdRange {
    pub inside: u32,
    pub outside: u32,
    pub count: u32,
}

/// The user namespace of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UserNamespaceSpec {
    pub users: Vec<IdRange>,
    pub groups: Vec<IdRange>,
}

impl UserNamespaceSpec {
    /// What root inside is outside.
    pub(crate) fn root(&self) -> (u32, u32) {
        let outside = |ranges: &[IdRange]| ranges.iter().find(|r| r.inside == 0).map_or(0, |r| r.outside);
        (outside(&self.users), outside(&self.groups))
    }
}

/// A pod's sandbox: namespaces that its containers share, held by its shim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SandboxSpec {
    pub id: String,
    /// The pod's directory, where the shim listens.
    pub dir: PathBuf,
    /// Its own network; otherwise the node's.
    pub network: bool,
    pub ipc: bool,
    /// The host name in an UTS namespace of its own; `None`: the node's.
    pub hostname: Option<String>,
    /// One PID namespace for all containers.
    pub shared_pid: bool,
    pub user: Option<UserNamespaceSpec>,
    /// Kernel parameters by file name below `/proc/sys`.
    pub sysctls: Vec<(String, String)>,
    /// The size of `/dev/shm`; `None`: the node's is used.
    pub shm_bytes: Option<u64>,
    /// A cgroup to join and leave ahead of time: see [`super::cgroups::Hierarchies::slow_to_join`].
    pub cgroup: Option<PathBuf>,
}

/// Whose processes a container sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PidMode {
    /// Its own.
    Container,
    /// All of the pod.
    Pod,
    /// All of the node.
    Node,
    /// Those of another container of the pod.
    Target(String),
}

/// Propagation of mounts between the node and a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Propagation {
    Private,
    HostToContainer,
    Bidirectional,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Access {
    ReadWrite,
    ReadOnly,
    /// What is mounted below it is read-only too.
    RecursiveReadOnly,
}

/// What is mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum MountKind {
    Proc,
    /// `/sys`; writable for privileged containers.
    Sys {
        writable: bool,
    },
    /// An empty `/dev` to be furnished.
    Dev,
    DevPts,
    MessageQueues,
    /// `/sys/fs/cgroup`, with the container's own cgroup only unless `whole`.
    Cgroup {
        writable: bool,
        whole: bool,
    },
    /// `/dev/shm` that the pod's containers share.
    PodShm,
    Bind {
        source: PathBuf,
        access: Access,
        propagation: Propagation,
        /// Owners are shown as the pod's user namespace maps them.
        mapped: bool,
    },
    /// A directory of the container's own that begins as what the image has there.
    Volume {
        source: PathBuf,
    },
    /// The files of an image, read-only; its layers, lowest first, and a path below its root.
    Image {
        layers: Vec<PathBuf>,
        sub_path: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MountSpec {
    pub target: PathBuf,
    pub kind: MountKind,
}

/// A device node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeviceSpec {
    pub path: PathBuf,
    /// A block device; otherwise a character device.
    pub block: bool,
    pub major: u32,
    pub minor: u32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// Capabilities, one bit each, numbered as by the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Capabilities {
    /// Bounding, permitted and effective.
    pub allowed: u64,
    /// Ambient and inheritable.
    pub ambient: u64,
}

/// A program and as whom it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessSpec {
    pub args: Vec<String>,
    pub env: Vec<String>,
    pub cwd: String,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub capabilities: Capabilities,
    pub no_new_privileges: bool,
    /// A filter of system calls: BPF instructions, one number each.
    pub filter: Vec<u64>,
    /// The AppArmor profile.
    pub apparmor: Option<String>,
    pub oom_score_adj: Option<i32>,
    pub tty: bool,
}

/// The root file system of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RootSpec {
    /// Directories of the image's layers, lowest first. With `copied`, the layers were copied to `upper`.
    pub layers: Vec<PathBuf>,
    pub upper: PathBuf,
    pub work: PathBuf,
    /// An empty directory to mount at.
    pub mount_point: PathBuf,
    pub copied: bool,
    pub read_only: bool,
}

/// A container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ContainerSpec {
    pub id: String,
    /// The container's directory, where the shim records how it fares.
    pub dir: PathBuf,
    pub process: ProcessSpec,
    pub root: RootSpec,
    pub mounts: Vec<MountSpec>,
    pub devices: Vec<DeviceSpec>,
    pub masked_paths: Vec<PathBuf>,
    pub read_only_paths: Vec<PathBuf>,
    pub cgroup: CgroupSpec,
    /// It sees its own cgroup as the root.
    pub cgroup_namespace: bool,
    pub pid: PidMode,
    /// `None`: its output is not logged.
    pub log: Option<PathBuf>,
    pub stdin: bool,
    /// Its input ends with the first client's.
    pub stdin_once: bool,
}

//! Filters of system calls: a profile (the default one, or one of the node's files) compiled to BPF.
// Upstream: containerd contrib/seccomp (v2.3); OCI runtime specification, "Seccomp"; runc libcontainer/seccomp/patchbpf

mod assembler;
mod compile;
mod default_profile;
mod oci;
mod syscalls;

pub(crate) use compile::compile;
pub(crate) use default_profile::default_profile;
pub(crate) use oci::parse;
pub(crate) use syscalls::Architecture;

/// What happens to a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Allow,
    Errno(u16),
    KillThread,
    KillProcess,
    Trap,
    Trace(u16),
    Log,
}

/// How an argument is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    NotEqual,
    Less,
    LessOrEqual,
    Equal,
    GreaterOrEqual,
    Greater,
    /// Equal under this mask.
    Masked(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub argument: u8,
    pub comparison: Comparison,
    pub value: u64,
}

/// Calls and what happens to them if all conditions hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub names: Vec<String>,
    pub action: Action,
    pub conditions: Vec<Condition>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Profile {
    pub default_action: Action,
    pub architectures: Vec<Architecture>,
    pub rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SeccompError {
    #[error("invalid seccomp profile: {0}")]
    Invalid(String),
    #[error("seccomp filter is too large: {0} instructions")]
    TooLarge(usize),
}

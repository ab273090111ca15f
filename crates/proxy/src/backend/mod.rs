//! Back ends: what applies a plan to this node.

pub mod iptables;
pub mod ipvs;
pub mod nftables;
pub mod userspace;

use std::fmt;
use std::str::FromStr;

use tokio::runtime::Handle;

use crate::plan::{Change, Plan};
use crate::settings::Settings;

/// How services are made reachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    Iptables,
    Nftables,
    Ipvs,
    Userspace,
}

impl Mode {
    pub const ALL: [Mode; 4] = [Mode::Iptables, Mode::Nftables, Mode::Ipvs, Mode::Userspace];

    /// As in `mode` of a KubeProxyConfiguration.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Iptables => "iptables",
            Mode::Nftables => "nftables",
            Mode::Ipvs => "ipvs",
            Mode::Userspace => "userspace",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Mode {
    type Err = ParseModeError;

    fn from_str(text: &str) -> Result<Mode, ParseModeError> {
        let found = Mode::ALL.into_iter().find(|mode| mode.as_str() == text);
        found.ok_or_else(|| ParseModeError(text.to_string()))
    }
}

/// Not the name of a mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid proxy mode {0:?}: must be iptables, nftables, ipvs or userspace")]
pub struct ParseModeError(String);

/// Why a mode is not supported on this node. The text is for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnsupportedMode(pub(crate) String);

impl From<Error> for UnsupportedMode {
    fn from(error: Error) -> UnsupportedMode {
        UnsupportedMode(error.0)
    }
}

/// Why a plan could not be applied. The text is for people: what failed, and the kernel's or the program's reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

/// Of what back ends do.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Applies plans to the kernel, or in this process. Calls block; the shell makes them off the async threads, one at a time.
///
/// After an error the next call has `Change::All`. Whatever the kernel holds at the first call (rules of an earlier
/// process) is taken over without a needless change and without a gap in traffic.
pub trait Backend: Send {
    /// Always the same.
    fn mode(&self) -> Mode;

    /// `change` says which service ports may differ since the last call that succeeded; only those are looked at.
    /// `Change::All` compares everything, with what the kernel really holds too, and so repairs what others have done.
    fn sync(&mut self, plan: &Plan, change: &Change) -> Result<Report>;

    /// Removes everything this back end has ever made on this node, in this process or an earlier one; no new
    /// connection goes through it afterwards. Connections under way go on as far as the back end can see to it.
    fn cleanup(&mut self) -> Result<Cleaned>;
}

/// What a sync did, for the metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Rules (or elements, servers) in place now, by table where there are tables: `[("nat", 120), ("filter", 8)]`.
    pub rules: Vec<(&'static str, usize)>,
    /// Rules (or elements, servers) written or removed by this sync, by table.
    pub written: Vec<(&'static str, usize)>,
    /// Service ports that can't be applied for a reason of their own; logged once each, the rest is in place.
    pub problems: Vec<String>,
}

/// How a cleanup ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleaned {
    /// Nothing is left.
    Whole,
    /// Connections under way still need something: call again in a while.
    Draining,
}

/// Whether a mode is supported on this node; else why not. May load kernel modules, changes nothing else.
pub fn check_support(mode: Mode) -> Result<(), UnsupportedMode> {
    match mode {
        Mode::Iptables => iptables::check_support(),
        Mode::Nftables => nftables::check_support(),
        Mode::Ipvs => ipvs::check_support(),
        Mode::Userspace => Ok(()),
    }
}

/// A back end for a mode that is supported.
pub fn create(mode: Mode, settings: &Settings, runtime: &Handle) -> Result<Box<dyn Backend>> {
    Ok(match mode {
        Mode::Iptables => Box::new(iptables::new(settings.clone())?),
        Mode::Nftables => Box::new(nftables::new(settings.clone())?),
        Mode::Ipvs => Box::new(ipvs::new(settings.clone())?),
        Mode::Userspace => Box::new(userspace::Userspace::new(settings.clone(), runtime.clone())?),
    })
}

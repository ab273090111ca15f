//! The systemd cgroup driver: each cgroup is a slice. systemd rewrites a slice's limits whenever a unit below it starts or
//! stops, so it has to know them: limits that are only in the files would be lost with the pod's first container.
//!
//! What a slice's properties are is pure; [`Slices`] sets them over D-Bus and waits for the job.
// Upstream: github.com/opencontainers/cgroups/systemd, as pkg/kubelet/cm uses it (v1.36)

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::Mutex;
use zbus::connection::Builder;
use zbus::message::Type;
use zbus::wire::OwnedObjectPath;
use zbus::{Connection, MatchRule, Message, MessageStream, Variant};

use super::files::weight;
use super::{CgroupError, Limits, Result};
use crate::spec::CgroupVersion;

const SERVICE: &str = "org.freedesktop.systemd1";
const OBJECT: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
/// Of systemd's answers, and of its jobs.
const LIMIT: Duration = Duration::from_secs(30);
/// Signals that wait while nobody looks.
const SIGNALS: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");
/// Ends of others' jobs that are remembered while the answer to a call is awaited.
const ENDS_MAX: usize = 1024;

/// In a slice's properties a share of the CPU is a whole number of percents.
const PERCENT: i64 = 10_000;
const SECOND: i64 = 1_000_000;

/// What a property can be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Property {
    Flag(bool),
    Number(u64),
    Text(String),
    Names(Vec<String>),
}

impl From<&Property> for Variant<'static> {
    fn from(property: &Property) -> Variant<'static> {
        match property {
            Property::Flag(flag) => Variant::from(*flag),
            Property::Number(number) => Variant::from(*number),
            Property::Text(text) => Variant::from(text.clone()),
            Property::Names(names) => Variant::from(names.clone()),
        }
    }
}

type Properties = Vec<(&'static str, Property)>;

/// The slice that a group is: the last name of its path.
fn unit(group: &str) -> &str {
    match group.trim_end_matches('/').rsplit('/').next() {
        None | Some("") => "-.slice",
        Some(name) => name,
    }
}

/// What a new slice has besides limits.
fn beginnings(group: &str, version: CgroupVersion) -> Properties {
    let above = group
        .trim_end_matches('/')
        .rsplit_once('/')
        .map_or("", |(above, _)| above);
    let io = match version {
        CgroupVersion::V1 => "BlockIOAccounting",
        CgroupVersion::V2 => "IOAccounting",
    };
    let mut out = vec![
        (
            "Description",
            Property::Text(format!("pods of Kubernetes: {}", unit(group))),
        ),
        ("Wants", Property::Names(vec![unit(above).to_string()])),
        ("DefaultDependencies", Property::Flag(false)),
    ];
    let accounting = ["MemoryAccounting", "CPUAccounting", "TasksAccounting", io];
    out.extend(accounting.map(|name| (name, Property::Flag(true))));
    out
}

/// Limits as systemd can keep them: a part of a percent of a CPU counts as a whole one.
pub(super) fn rounded(mut limits: Limits) -> Limits {
    if let Some((quota @ 1.., period @ 1..)) = limits.cpu_quota {
        let per_second = quota.saturating_mul(SECOND) / period;
        let whole = per_second.saturating_add(PERCENT - 1) / PERCENT * PERCENT;
        if whole != per_second {
            limits.cpu_quota = Some((whole.saturating_mul(period) / SECOND, period));
        }
    }
    limits
}

/// A slice's limits as its properties; the largest number is no limit. Huge pages have none: they are in the files only.
pub(super) fn properties(version: CgroupVersion, limits: &Limits) -> Properties {
    let or_free = |value: i64| u64::try_from(value).unwrap_or(u64::MAX);
    let (cpu, memory) = match version {
        CgroupVersion::V1 => ("CPUShares", "MemoryLimit"),
        CgroupVersion::V2 => ("CPUWeight", "MemoryMax"),
    };
    let mut out = vec![];
    let mut add = |name: &'static str, value: u64| out.push((name, Property::Number(value)));
    if let Some(shares) = limits.cpu_shares {
        add(
            cpu,
            or_free(match version {
                CgroupVersion::V1 => shares,
                CgroupVersion::V2 => weight(shares),
            }),
        );
    }
    if let Some((quota, period)) = limits.cpu_quota {
        let per_second = match (quota, period) {
            (1.., 1..) => or_free(quota.saturating_mul(SECOND) / period),
            _ => u64::MAX,
        };
        add("CPUQuotaPeriodUSec", or_free(period));
        add("CPUQuotaPerSecUSec", per_second);
    }
    if let Some(bytes) = limits.memory {
        add(memory, or_free(bytes));
    }
    if let Some(pids) = limits.pids {
        // systemd takes no zero.
        add("TasksMax", or_free(if pids == 0 { 1 } else { pids }));
    }
    if version == CgroupVersion::V2 {
        for (file, value) in &limits.unified {
            let name = match file.as_str() {
                "memory.min" => "MemoryMin",
                "memory.low" => "MemoryLow",
                "memory.high" => "MemoryHigh",
                _ => continue,
            };
            add(name, value.parse().unwrap_or(u64::MAX));
        }
    }
    out
}

/// The slices of this machine's systemd. Clones share a connection, which is made when it is needed, and anew when
/// systemd was restarted.
#[derive(Clone, Debug)]
pub struct Slices {
    /// None: the system's bus.
    address: Option<String>,
    bus: Arc<Mutex<Option<Connection>>>,
}

impl Slices {
    pub fn of_this_machine() -> Slices {
        Slices {
            address: None,
            bus: Arc::default(),
        }
    }

    /// On another bus.
    #[cfg(test)]
    pub(super) fn at(address: &str) -> Slices {
        Slices {
            address: Some(address.to_string()),
            bus: Arc::default(),
        }
    }

    /// Whether systemd is this machine's first process; then it answers, now or soon.
    pub fn run_this_machine() -> bool {
        Path::new("/run/systemd/system").is_dir()
    }

    async fn bus(&self) -> zbus::Result<Connection> {
        let mut bus = self.bus.lock().await;
        if let Some(bus) = bus.as_ref().filter(|bus| !bus.is_closed()) {
            return Ok(bus.clone());
        }
        let builder = match &self.address {
            Some(address) => Builder::address(address.as_str()),
            None => Builder::system(),
        };
        let made = builder.method_timeout(LIMIT).build().await?;
        Ok(bus.insert(made).clone())
    }

    /// Starts a group's slice, and those above it. One that runs is left as it is.
    pub(super) async fn start(&self, group: &str, version: CgroupVersion) -> Result<()> {
        let beginnings = beginnings(group, version);
        let properties: Vec<(&str, Variant<'_>)> = beginnings.iter().map(|(name, p)| (*name, p.into())).collect();
        let none: Vec<(&str, Vec<(&str, Variant<'_>)>)> = vec![];
        let body = (unit(group), "replace", properties, none);
        let started = self.job("StartTransientUnit", &body).await;
        match started {
            Err(error) if is_named(&error, "UnitExists") => Ok(()),
            Err(error) => Err(failed("start", group, error)),
            Ok(result) if result == "done" => Ok(()),
            Ok(result) => Err(failed(
                "start",
                group,
                zbus::Error::Failure(format!("the job is {result}")),
            )),
        }
    }

    pub(super) async fn set(&self, group: &str, version: CgroupVersion, limits: &Limits) -> Result<()> {
        let wanted = properties(version, limits);
        if wanted.is_empty() {
            return Ok(());
        }
        let properties: Vec<(&str, Variant<'_>)> = wanted.iter().map(|(name, p)| (*name, p.into())).collect();
        // Until the next start of the machine, as the slice itself.
        let body = (unit(group), true, properties);
        let done = self.call("SetUnitProperties", &body).await;
        done.map(drop).map_err(|error| failed("change", group, error))
    }

    /// Stops a group's slice with all that is in it. Doing it again is fine.
    pub async fn stop(&self, group: &str) -> Result<()> {
        match self.job("StopUnit", &(unit(group), "replace")).await {
            Ok(_) => {}
            Err(error) if is_named(&error, "NoSuchUnit") => return Ok(()),
            Err(error) => return Err(failed("stop", group, error)),
        }
        // A slice that failed would be kept to be looked at.
        let _ = self.call("ResetFailedUnit", &(unit(group),)).await;
        Ok(())
    }

    async fn call<B>(&self, method: &str, body: &B) -> zbus::Result<Message>
    where
        B: serde::Serialize + zbus::DynamicType,
    {
        let bus = self.bus().await?;
        bus.call_method(Some(SERVICE), OBJECT, Some(MANAGER), method, body)
            .await
    }

    /// A call that starts a job, and how the job ended.
    async fn job<B>(&self, method: &str, body: &B) -> zbus::Result<String>
    where
        B: serde::Serialize + zbus::DynamicType,
    {
        let bus = self.bus().await?;
        let rule = MatchRule::builder()
            .msg_type(Type::Signal)
            .interface(MANAGER)
            .member("JobRemoved")
            .path(OBJECT)
            .build()?;
        let mut ends = MessageStream::for_match_rule(rule, &bus, Some(SIGNALS)).await?;
        let mut call = std::pin::pin!(self.call(method, body));
        // The JobRemoved signal may come before the reply.
        let mut ended = HashMap::new();
        let work = async {
            let mut job: Option<OwnedObjectPath> = None;
            loop {
                if let Some(result) = job.as_ref().and_then(|job| ended.remove(job)) {
                    return Ok(result);
                }
                tokio::select! {
                    answer = &mut call, if job.is_none() => job = Some(answer?.body().deserialize()?),
                    end = ends.next() => {
                        let end = end.ok_or_else(|| zbus::Error::Failure("systemd hung up".to_string()))??;
                        let (_, path, _, result): (u32, OwnedObjectPath, String, String) = end.body().deserialize()?;
                        if ended.len() < ENDS_MAX {
                            ended.insert(path, result);
                        }
                    }
                }
            }
        };
        let late = || zbus::Error::Failure(format!("not done within {} s", LIMIT.as_secs()));
        tokio::time::timeout(LIMIT, work).await.unwrap_or_else(|_| Err(late()))
    }
}

fn is_named(error: &zbus::Error, name: &str) -> bool {
    matches!(error, zbus::Error::MethodError(full, ..) if full.as_str().rsplit('.').next() == Some(name))
}

fn failed(action: &'static str, group: &str, source: zbus::Error) -> CgroupError {
    CgroupError::Systemd {
        action,
        unit: unit(group).to_string(),
        source: Box::new(source),
    }
}

#[cfg(test)]
#[path = "systemd_tests.rs"]
mod tests;

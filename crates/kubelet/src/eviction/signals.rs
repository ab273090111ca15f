//! Eviction signals and their thresholds.
//!
//! Upstream: pkg/kubelet/eviction/{helpers,types}.go, pkg/kubelet/eviction/api (v1.36).

use std::collections::BTreeMap;
use std::time::Duration;

use orlop_api::duration::parse_duration;
use orlop_api::quantity::{Format, Quantity};

use crate::config::{self, Config};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    MemoryAvailable,
    AllocatableMemoryAvailable,
    NodeFsAvailable,
    NodeFsInodesFree,
    ImageFsAvailable,
    ImageFsInodesFree,
    ContainerFsAvailable,
    ContainerFsInodesFree,
    PidAvailable,
}

/// Which file system a disk signal is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    Node,
    Image,
    Container,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Memory,
    Disk,
    Pid,
}

/// Which parts of the node's disk are file systems of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Images are not on the node's file system.
    pub dedicated_images: bool,
    /// Images and containers' writable layers are apart, and the latter on the node's file system.
    pub split_containers: bool,
}

/// All that a configuration can name.
const NAMES: [(&str, Signal); 8] = [
    ("memory.available", Signal::MemoryAvailable),
    ("nodefs.available", Signal::NodeFsAvailable),
    ("nodefs.inodesFree", Signal::NodeFsInodesFree),
    ("imagefs.available", Signal::ImageFsAvailable),
    ("imagefs.inodesFree", Signal::ImageFsInodesFree),
    ("containerfs.available", Signal::ContainerFsAvailable),
    ("containerfs.inodesFree", Signal::ContainerFsInodesFree),
    ("pid.available", Signal::PidAvailable),
];

impl Signal {
    /// By the name that configurations use. `allocatableMemory.available` is none of those.
    pub fn by_name(name: &str) -> Option<Signal> {
        let (_, signal) = NAMES.iter().find(|(known, _)| *known == name)?;
        Some(*signal)
    }

    /// As configurations and metrics name it.
    pub fn name(self) -> &'static str {
        let named = NAMES.iter().find(|(_, signal)| *signal == self);
        named.map_or("allocatableMemory.available", |(name, _)| name)
    }

    /// The starved resource, as messages name it.
    pub fn resource(self) -> &'static str {
        match self {
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => "memory",
            Signal::NodeFsAvailable | Signal::ImageFsAvailable | Signal::ContainerFsAvailable => "ephemeral-storage",
            Signal::NodeFsInodesFree | Signal::ImageFsInodesFree | Signal::ContainerFsInodesFree => "inodes",
            Signal::PidAvailable => "pids",
        }
    }

    pub fn kind(self) -> Kind {
        match self {
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => Kind::Memory,
            Signal::PidAvailable => Kind::Pid,
            _ => Kind::Disk,
        }
    }

    pub fn file_system(self) -> Option<FileSystem> {
        Some(match self {
            Signal::NodeFsAvailable | Signal::NodeFsInodesFree => FileSystem::Node,
            Signal::ImageFsAvailable | Signal::ImageFsInodesFree => FileSystem::Image,
            Signal::ContainerFsAvailable | Signal::ContainerFsInodesFree => FileSystem::Container,
            _ => return None,
        })
    }

    /// Bytes are written in binary units, other amounts in decimal ones.
    pub fn format(self) -> Format {
        match self.resource() {
            "memory" | "ephemeral-storage" => Format::BinarySI,
            _ => Format::DecimalSI,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    pub available: i64,
    pub capacity: i64,
}

impl Observation {
    pub fn of(available: u64, capacity: u64) -> Observation {
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        Observation {
            available: signed(available),
            capacity: signed(capacity),
        }
    }
}

pub type Observations = BTreeMap<Signal, Observation>;

#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    pub signal: Signal,
    pub value: config::Threshold,
    /// Zero: hard.
    pub grace: Duration,
    pub min_reclaim: Option<config::Threshold>,
}

impl Threshold {
    pub fn is_hard(&self) -> bool {
        self.grace.is_zero()
    }

    /// The threshold is met below this.
    pub fn quantity(&self, capacity: i64) -> Quantity {
        quantity(&self.value, capacity)
    }

    /// Whether the threshold is met; `reclaimed`: with its minimum reclaim added.
    pub fn is_met(&self, observed: &Observation, reclaimed: bool) -> bool {
        let mut wanted = self.quantity(observed.capacity);
        if let Some(more) = self.min_reclaim.as_ref().filter(|_| reclaimed) {
            wanted.add(&quantity(more, observed.capacity));
        }
        wanted > Quantity::from_i64(observed.available, self.signal.format())
    }
}

fn quantity(value: &config::Threshold, capacity: i64) -> Quantity {
    match value {
        config::Threshold::Quantity(quantity) => quantity.clone(),
        // Upstream keeps the fraction in 32 bits, which shows in the numbers of its messages.
        config::Threshold::Fraction(fraction) => {
            let bytes = capacity as f64 * f64::from(*fraction as f32);
            Quantity::from_i64(bytes as i64, Format::BinarySI)
        }
    }
}

/// The thresholds of a configuration that was checked when it was read. Those of `containerfs` follow from the layout,
/// whatever the configuration says. `allocatable`: pods together have a limit of memory, too.
pub fn thresholds(config: &Config, layout: Layout, allocatable: bool) -> Vec<Threshold> {
    let parse = |signal: &str, text: &String| config::parse_threshold(signal, text).ok().flatten();
    let with = |given: &BTreeMap<String, String>, soft: bool| -> Vec<Threshold> {
        let thresholds = given.iter().filter_map(|(name, text)| {
            let grace = config.eviction_soft_grace_period.get(name).filter(|_| soft);
            let grace = grace.and_then(|text| parse_duration(text).ok()).unwrap_or_default();
            Some(Threshold {
                signal: Signal::by_name(name)?,
                value: parse(name, text)?,
                grace: Duration::from_nanos(u64::try_from(grace).unwrap_or_default()),
                min_reclaim: config
                    .eviction_minimum_reclaim
                    .get(name)
                    .and_then(|text| config::parse_reclaim(name, text).ok()),
            })
        });
        thresholds
            .filter(|t| t.signal.file_system() != Some(FileSystem::Container))
            .collect()
    };
    let mut all = with(&config.eviction_hard, false);
    all.extend(with(&config.eviction_soft, true));
    let same_disk = match layout.dedicated_images && !layout.split_containers {
        true => FileSystem::Image,
        false => FileSystem::Node,
    };
    let copies: Vec<Threshold> = all
        .iter()
        .filter_map(|threshold| {
            let signal = match threshold.signal {
                Signal::MemoryAvailable if allocatable && threshold.is_hard() => Signal::AllocatableMemoryAvailable,
                signal if signal.file_system() != Some(same_disk) => return None,
                signal if signal.resource() == "inodes" => Signal::ContainerFsInodesFree,
                _ => Signal::ContainerFsAvailable,
            };
            Some(Threshold {
                signal,
                ..threshold.clone()
            })
        })
        .collect();
    all.extend(copies);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, layout: Layout, allocatable: bool) -> Vec<String> {
        let text = format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{text}");
        let config = config::parse(Some(&text), &[]).unwrap();
        let of = |t: &Threshold| {
            let reclaim = t
                .min_reclaim
                .as_ref()
                .map(|r| quantity(r, 1000).canonical())
                .unwrap_or_default();
            format!(
                "{:?}<{} {:?} {reclaim}",
                t.signal,
                t.quantity(1000).canonical(),
                t.grace
            )
            .trim()
            .to_string()
        };
        thresholds(&config, layout, allocatable).iter().map(of).collect()
    }

    #[test]
    fn thresholds_of_a_configuration() {
        let apart = Layout {
            dedicated_images: true,
            split_containers: false,
        };
        assert_eq!(
            shown("", Layout::default(), true),
            [
                "ImageFsAvailable<150 0ns",
                "ImageFsInodesFree<50 0ns",
                "MemoryAvailable<100Mi 0ns",
                "NodeFsAvailable<100 0ns",
                "NodeFsInodesFree<50 0ns",
                "AllocatableMemoryAvailable<100Mi 0ns",
                "ContainerFsAvailable<100 0ns",
                "ContainerFsInodesFree<50 0ns",
            ]
        );
        let text = "evictionHard: {memory.available: 1Gi, containerfs.available: 1%}\n\
                    evictionSoft: {imagefs.available: 20%}\n\
                    evictionSoftGracePeriod: {imagefs.available: 1m30s}\n\
                    evictionMinimumReclaim: {imagefs.available: 5%}\n";
        assert_eq!(
            shown(text, apart, false),
            [
                "MemoryAvailable<1Gi 0ns",
                "ImageFsAvailable<200 90s 50",
                "ContainerFsAvailable<200 90s 50"
            ]
        );
    }
}

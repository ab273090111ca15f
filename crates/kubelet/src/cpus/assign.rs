//! Which CPUs a pod is assigned, and whether the state of a former kubelet process is valid. Pure.

use orlop_api::quantity::Quantity;
use orlop_api::types::core::{Container, Pod};

use super::state::CpuAssignments;
use super::take::take;
use super::topology::{Level, Topology};
use super::{CpuError, CpuSet, CpuSetError, Options};
use crate::config::Config;
use crate::pod::policy;
use crate::sources::admission::Rejection;
use crate::spec::resources::{QosClass, qos_class};

/// Combinations of memory nodes are tried one by one.
const MOST_NUMA_NODES: usize = 8;

/// `topologyManagerPolicy`: how close the CPUs of a container must be to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Alignment {
    #[default]
    None,
    /// As close as can be.
    BestEffort,
    /// On as few memory nodes as would do if all were free, or not at all.
    Restricted,
    SingleNumaNode,
}

#[derive(Debug)]
pub(super) struct Rules {
    topology: Topology,
    pub(super) reserved: CpuSet,
    options: Options,
    alignment: Alignment,
    /// All containers of a pod on the same memory nodes.
    whole_pods: bool,
}

pub(super) fn unexpected(error: CpuError) -> Rejection {
    Rejection {
        reason: "UnexpectedAdmissionError".into(),
        message: format!("Allocate failed due to {error}, which is unexpected"),
    }
}

impl Rules {
    /// `kept_milli`: system and kube reserved CPU, unless reservedSystemCPUs is set.
    pub(super) fn new(config: &Config, kept_milli: i64, topology: Topology) -> Result<Rules, CpuError> {
        let invalid = |field, reason: String| CpuError::Config { field, reason };
        let options = Options::parse(&config.cpu_manager_policy_options)
            .map_err(|e| invalid("cpuManagerPolicyOptions", e.to_string()))?;
        let alignment = match config.topology_manager_policy.as_str() {
            "best-effort" => Alignment::BestEffort,
            "restricted" => Alignment::Restricted,
            "single-numa-node" => Alignment::SingleNumaNode,
            _ => Alignment::None,
        };
        let nodes = topology.count(Level::Numa);
        if alignment != Alignment::None && nodes > MOST_NUMA_NODES {
            let reason = format!("unsupported on machines with more than {MOST_NUMA_NODES} NUMA Nodes");
            return Err(invalid("topologyManagerPolicy", reason));
        }
        let named: CpuSet = config
            .reserved_system_cpus
            .parse()
            .map_err(|e: CpuSetError| invalid("reservedSystemCPUs", e.to_string()))?;
        let all = topology.all();
        let unknown = &named - &all;
        if !unknown.is_empty() {
            return Err(invalid(
                "reservedSystemCPUs",
                format!("CPUs {unknown} do not exist on this node"),
            ));
        }
        let reserved = match (named.is_empty(), kept_milli) {
            (false, _) => named,
            (true, ..=0) => {
                return Err(invalid(
                    "cpuManagerPolicy",
                    "the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero"
                        .to_string(),
                ));
            }
            (true, milli) => {
                let count = usize::try_from(milli).unwrap_or(usize::MAX).div_ceil(1000);
                take(&topology, &all, count, &options).map_err(|e| {
                    let reason = format!("unable to reserve the required amount of CPUs: {e}");
                    invalid("cpuManagerPolicy", reason)
                })?
            }
        };
        Ok(Rules {
            topology,
            reserved,
            options,
            alignment,
            whole_pods: config.topology_manager_scope == "pod",
        })
    }

    /// Validates the checkpoint's assignments; empty ones are a fresh start.
    pub(super) fn check(&self, mut state: CpuAssignments) -> Result<CpuAssignments, CpuError> {
        let mut all = self.topology.all();
        if self.options.strict_reservation {
            all = &all - &self.reserved;
        }
        let wrong = |text: String| Err(CpuError::State(text));
        if state.shared.is_empty() {
            if state.own.is_empty() {
                state.shared = all;
                return Ok(state);
            }
            // Differs from upstream, which could not start again here.
            if !self.options.strict_reservation {
                return wrong("default cpuset cannot be empty".to_string());
            }
        }
        let (shared, reserved) = (&state.shared, &self.reserved);
        if self.options.strict_reservation && shared.overlaps(reserved) {
            let both = (shared & reserved).to_string();
            return wrong(format!(
                "some of strictly reserved cpus: {both:?} are present in defaultCpuSet: {:?}",
                shared.to_string()
            ));
        }
        if !self.options.strict_reservation && !reserved.is_subset(shared) {
            return wrong(format!(
                "not all reserved cpus: {:?} are present in defaultCpuSet: {:?}",
                reserved.to_string(),
                shared.to_string()
            ));
        }
        for (uid, containers) in &state.own {
            if let Some((name, cpus)) = containers.iter().find(|(_, cpus)| cpus.overlaps(shared)) {
                return wrong(format!(
                    "pod: {uid}, container: {name} cpuset: {:?} overlaps with default cpuset {:?}",
                    cpus.to_string(),
                    shared.to_string()
                ));
            }
        }
        let known = shared | &state.taken();
        match known == all {
            true => Ok(state),
            false => wrong(format!(
                "current set of available CPUs {:?} doesn't match with CPUs in state {:?}",
                all.to_string(),
                known.to_string()
            )),
        }
    }

    /// The state with what the pod's containers get.
    pub(super) fn assign(&self, state: &CpuAssignments, pod: &Pod) -> Result<CpuAssignments, Rejection> {
        let mut new = state.clone();
        let uid = policy::uid(pod).to_string();
        // CPUs of init containers that have ended by then.
        let mut reusable = CpuSet::default();
        let for_all = match self.whole_pods {
            true => Some(self.near(&self.free(state), &reusable, self.pod_total(pod))?),
            false => None,
        };
        let init = policy::init_containers(pod).iter();
        let init = init.map(|c| (c, !policy::is_sidecar(c)));
        let all = init.chain(policy::regular_containers(pod).iter().map(|c| (c, false)));
        for (container, ends_first) in all {
            let count = self.wanted(pod, container);
            if count == 0 {
                continue;
            }
            let cpus = match new.of(&uid, &container.name) {
                Some(known) => known.clone(),
                None => {
                    self.check_cores(&new, count)?;
                    let free = self.free(&new);
                    let near = match &for_all {
                        Some(near) => near.clone(),
                        None => self.near(&free, &reusable, count)?,
                    };
                    self.pick(&(&free | &reusable), near.as_ref(), count)
                        .map_err(unexpected)?
                }
            };
            new.shared = &new.shared - &cpus;
            reusable = match ends_first {
                true => &reusable | &cpus,
                false => &reusable - &cpus,
            };
            let own = new.own.entry(uid.clone()).or_default();
            own.insert(container.name.clone(), cpus);
        }
        Ok(new)
    }

    fn free(&self, state: &CpuAssignments) -> CpuSet {
        &state.shared - &self.reserved
    }

    /// How many CPUs a container is to have for itself.
    fn wanted(&self, pod: &Pod, container: &Container) -> usize {
        if qos_class(pod) != QosClass::Guaranteed || policy::spec(pod).resources.is_some() {
            return 0;
        }
        let requests = container.resources.as_ref().and_then(|r| r.requests.as_ref());
        let cpu = requests.and_then(|r| Quantity::parse(&r.get("cpu")?.0).ok());
        let milli = cpu.map_or(0, |q| q.milli_value());
        match milli % 1000 {
            0 => usize::try_from(milli / 1000).unwrap_or(0),
            _ => 0,
        }
    }

    /// Init containers run one after the other, beside the sidecars before them.
    fn pod_total(&self, pod: &Pod) -> usize {
        let (mut sidecars, mut peak) = (0, 0);
        for container in policy::init_containers(pod) {
            let count = self.wanted(pod, container);
            match policy::is_sidecar(container) {
                true => sidecars += count,
                false => peak = peak.max(sidecars + count),
            }
        }
        let regular: usize = policy::regular_containers(pod)
            .iter()
            .map(|c| self.wanted(pod, c))
            .sum();
        peak.max(sidecars + regular)
    }

    /// With `full-pcpus-only` nobody gets part of a core.
    fn check_cores(&self, state: &CpuAssignments, count: usize) -> Result<(), Rejection> {
        let threads = self.topology.cpus_per_core();
        if !self.options.full_pcpus_only {
            return Ok(());
        }
        let refuse = |message: String| {
            Err(Rejection {
                reason: "SMTAlignmentError".into(),
                message: format!("SMT Alignment Error: {message}"),
            })
        };
        if !count.is_multiple_of(threads) {
            return refuse(format!("requested {count} cpus not multiple cpus per core = {threads}"));
        }
        // A core that is partly reserved for the system can't be allocated as a whole.
        let all = self.topology.all();
        let cores = self.topology.numbers(&self.reserved, Level::Core);
        let kept = cores.iter().flat_map(|core| {
            let whole = self.topology.within(&all, Level::Core, core);
            whole.iter().collect::<Vec<_>>()
        });
        let available = (&state.shared - &kept.collect()).len();
        match count > available {
            true => refuse(format!(
                "not enough free physical CPUs: available physical CPUs = {available}, requested CPUs = {count}, CPUs \
                 per core = {threads}"
            )),
            false => Ok(()),
        }
    }

    /// The memory nodes to take CPUs from, if it matters; an error if they must be closer than they can be.
    fn near(&self, free: &CpuSet, reusable: &CpuSet, count: usize) -> Result<Option<CpuSet>, Rejection> {
        if self.alignment == Alignment::None || count == 0 {
            return Ok(None);
        }
        let all = self.topology.all();
        let nodes: Vec<u32> = self.topology.numbers(&all, Level::Numa).iter().collect();
        let (mut fewest, mut best): (usize, Option<CpuSet>) = (nodes.len(), None);
        for choice in 1u32..1 << nodes.len() {
            let chosen = nodes.iter().enumerate().filter(|(place, _)| choice & (1 << place) != 0);
            let chosen: CpuSet = chosen.map(|(_, node)| *node).collect();
            let inside = |cpus: &CpuSet| -> usize {
                chosen
                    .iter()
                    .map(|node| self.topology.within(cpus, Level::Numa, node).len())
                    .sum()
            };
            if inside(&all) >= count {
                fewest = fewest.min(chosen.len());
            }
            let enough = inside(reusable) == reusable.len() && inside(&(free | reusable)) >= count;
            if enough && best.as_ref().is_none_or(|best| chosen.len() < best.len()) {
                best = Some(chosen);
            }
        }
        let is_close = match self.alignment {
            Alignment::Restricted => best.as_ref().is_some_and(|best| best.len() == fewest),
            Alignment::SingleNumaNode => best.as_ref().is_some_and(|best| best.len() == 1),
            Alignment::None | Alignment::BestEffort => true,
        };
        match is_close {
            true => Ok(best),
            false => Err(Rejection {
                reason: "TopologyAffinityError".into(),
                message: "Resources cannot be allocated with Topology locality".into(),
            }),
        }
    }

    /// CPUs of the preferred NUMA nodes first.
    fn pick(&self, available: &CpuSet, near: Option<&CpuSet>, count: usize) -> Result<CpuSet, CpuError> {
        let mut taken = CpuSet::default();
        if let Some(nodes) = near {
            let here = nodes.iter().flat_map(|node| {
                let cpus = self.topology.within(available, Level::Numa, node);
                cpus.iter().collect::<Vec<_>>()
            });
            let here: CpuSet = here.collect();
            taken = take(&self.topology, &here, count.min(here.len()), &self.options)?;
        }
        let rest = take(
            &self.topology,
            &(available - &taken),
            count - taken.len(),
            &self.options,
        );
        // Readers look for the number that was requested.
        let rest = rest.map_err(|error| match error {
            CpuError::NotEnough {
                requested, available, ..
            } if !taken.is_empty() => CpuError::NotEnough {
                requested,
                available,
                whole: Some(count),
            },
            error => error,
        })?;
        Ok(&taken | &rest)
    }
}

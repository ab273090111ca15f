//! Picks exclusive CPUs: as few cores, caches, sockets and NUMA nodes as possible. Pure.
// Upstream: pkg/kubelet/cm/cpumanager/cpu_assignment.go (v1.36)

use super::topology::{Level, Topology};
use super::{CpuError, CpuSet, Options};

/// `count` of the available CPUs. An error says that there are too few.
pub(super) fn take(
    topology: &Topology,
    available: &CpuSet,
    count: usize,
    options: &Options,
) -> Result<CpuSet, CpuError> {
    if available.len() < count {
        return Err(CpuError::NotEnough {
            requested: count,
            available: available.len(),
            whole: None,
        });
    }
    let group = if options.full_pcpus_only {
        topology.cpus_per_core()
    } else {
        1
    };
    if options.distribute_across_numa
        && count > 0
        && count.is_multiple_of(group)
        && let Some(spread) = spread(topology, available, count, group)
    {
        return Ok(spread);
    }
    let mut picker = Picker::new(topology, available, count);
    picker.pack(options.prefer_cache);
    Ok(picker.taken)
}

struct Picker<'a> {
    topology: &'a Topology,
    free: CpuSet,
    taken: CpuSet,
    needed: usize,
}

impl<'a> Picker<'a> {
    fn new(topology: &'a Topology, available: &CpuSet, needed: usize) -> Picker<'a> {
        Picker {
            topology,
            free: &topology.all() & available,
            taken: CpuSet::default(),
            needed,
        }
    }

    /// Whole large units as long as they are needed whole, then smaller ones, then what is left of units in use.
    fn pack(&mut self, prefer_cache: bool) {
        let [outer, inner] = self.levels();
        self.take_whole(outer);
        self.take_whole(inner);
        if prefer_cache {
            self.take_within_caches();
        }
        self.take_whole(Level::Core);
        for core in self.ordered(Level::Core) {
            let rest = self.within(Level::Core, core);
            let part = rest.iter().take(self.needed).collect();
            self.give(&part);
        }
    }

    /// The larger of socket and memory node first: machines have either inside the other.
    fn levels(&self) -> [Level; 2] {
        match self.topology.count(Level::Socket) >= self.topology.count(Level::Numa) {
            true => [Level::Numa, Level::Socket],
            false => [Level::Socket, Level::Numa],
        }
    }

    fn within(&self, level: Level, number: u32) -> CpuSet {
        self.topology.within(&self.free, level, number)
    }

    fn give(&mut self, cpus: &CpuSet) {
        self.taken = &self.taken | cpus;
        self.free = &self.free - cpus;
        self.needed -= cpus.len();
    }

    /// Those with free CPUs, the fullest first, inside their larger units in the same order.
    fn ordered(&self, level: Level) -> Vec<u32> {
        let sorted = |level: Level, among: &CpuSet| {
            let mut numbers: Vec<u32> = self.topology.numbers(among, level).iter().collect();
            numbers.sort_by_key(|number| (self.within(level, *number).len(), *number));
            numbers
        };
        let [outer, inner] = self.levels();
        let mut found: Vec<u32> = Vec::new();
        for unit in sorted(outer, &self.free) {
            let here = self.within(outer, unit);
            let inside = match level {
                _ if level == outer => vec![unit],
                _ if level == inner || level == Level::Cache => sorted(level, &here),
                _ => {
                    let parts = sorted(inner, &here).into_iter();
                    parts
                        .flat_map(|part| sorted(level, &self.within(inner, part)))
                        .collect()
                }
            };
            // A socket can be in two memory nodes.
            found.extend(
                inside
                    .into_iter()
                    .filter(|number| !found.contains(number))
                    .collect::<Vec<_>>(),
            );
        }
        found
    }

    fn take_whole(&mut self, level: Level) {
        for number in self.ordered(level) {
            let whole = self.topology.within(&self.topology.all(), level, number);
            if whole.len() <= self.needed && whole.is_subset(&self.free) {
                self.give(&whole);
            }
        }
    }

    /// Whole caches, and the rest from one cache if one has enough.
    fn take_within_caches(&mut self) {
        self.take_whole(Level::Cache);
        let threads = self.topology.cpus_per_core();
        for cache in self.ordered(Level::Cache) {
            if self.needed == 0 {
                return;
            }
            let here = self.within(Level::Cache, cache);
            let cores = self.topology.numbers(&here, Level::Core);
            let enough: CpuSet = cores.iter().take(self.needed.div_ceil(threads)).collect();
            let of_these = |cpu: &u32| self.topology.place(*cpu).is_some_and(|p| enough.contains(p.core));
            let mut cpus: CpuSet = here.iter().filter(of_these).collect();
            while cpus.len() > self.needed {
                cpus.pop_last();
            }
            if cpus.len() == self.needed {
                self.give(&cpus);
            }
        }
    }
}

/// Evenly over as few memory nodes as have enough, so that what is left is as even as can be; none if no choice of nodes
/// can share it out evenly.
fn spread(topology: &Topology, available: &CpuSet, count: usize, group: usize) -> Option<CpuSet> {
    let free = &topology.all() & available;
    let nodes: Vec<(u32, usize)> = topology
        .numbers(&free, Level::Numa)
        .iter()
        .map(|node| (node, topology.within(&free, Level::Numa, node).len()))
        .collect();
    // Machines have few memory nodes; more than that are not tried in all combinations.
    let choices = 1u32 << nodes.len().min(16);
    for size in 1..=nodes.len() {
        let mut best: Option<(u128, Vec<(u32, usize)>)> = None;
        for choice in (1..choices).filter(|choice| choice.count_ones() as usize == size) {
            let chosen = |place: usize| choice & (1 << place) != 0;
            let Some(shares) = shares(&nodes, chosen, count, group) else {
                continue;
            };
            // The sum of squares is least when what is left is most even.
            let left = nodes
                .iter()
                .zip(&shares)
                .map(|((_, free), share)| (free - share) as u128);
            let unevenness: u128 = left.map(|left| left * left).sum();
            if best.as_ref().is_none_or(|(known, _)| unevenness < *known) {
                let named = nodes.iter().zip(shares).map(|((node, _), share)| (*node, share));
                best = Some((unevenness, named.collect()));
            }
        }
        if let Some((_, shares)) = best {
            let mut taken = CpuSet::default();
            for (node, share) in shares {
                let mut picker = Picker::new(topology, &topology.within(&free, Level::Numa, node), share);
                picker.pack(false);
                taken = &taken | &picker.taken;
            }
            return Some(taken);
        }
    }
    None
}

/// What each node gives: the same of all that are chosen, and what remains from where most is left.
fn shares(nodes: &[(u32, usize)], chosen: impl Fn(usize) -> bool, count: usize, group: usize) -> Option<Vec<usize>> {
    let places: Vec<usize> = (0..nodes.len()).filter(|place| chosen(*place)).collect();
    let each = count / places.len() / group * group;
    let mut shares = vec![0; nodes.len()];
    for place in &places {
        if nodes[*place].1 < each {
            return None;
        }
        shares[*place] = each;
    }
    let mut rest = count - each * places.len();
    while rest > 0 {
        let left = |place: usize| nodes[place].1 - shares[place];
        let most = places.iter().copied().filter(|place| left(*place) >= group);
        let most = most.max_by_key(|place| (left(*place), std::cmp::Reverse(*place)))?;
        shares[most] += group;
        rest -= group;
    }
    Some(shares)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::topology::testing::machine;
    use super::*;

    const PLAIN: Options = Options::NONE;
    const SPREAD: Options = Options {
        distribute_across_numa: true,
        ..Options::NONE
    };
    const CACHES: Options = Options {
        prefer_cache: true,
        ..Options::NONE
    };

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn whole_units_first() {
        // One socket, four cores of two threads: 0 and 4 are one core.
        let single = machine(1, 1, 4, 2);
        // Two sockets of a memory node each, six cores of two threads.
        let dual = machine(2, 1, 6, 2);
        // Two sockets of two memory nodes.
        let four = machine(2, 2, 2, 2);
        for (topology, available, count, options, want) in [
            (&single, "0-7", 1, PLAIN, "0"),
            (&single, "0-7", 2, PLAIN, "0,4"),
            (&single, "1-7", 1, PLAIN, "4"),
            (&single, "1-7", 2, PLAIN, "1,5"),
            (&single, "0-7", 3, PLAIN, "0-1,4"),
            (&single, "0,1,6,7", 2, PLAIN, "0-1"),
            (&single, "0-7", 8, PLAIN, "0-7"),
            (&dual, "0-23", 12, PLAIN, "0-5,12-17"),
            (&dual, "1-23", 12, PLAIN, "6-11,18-23"),
            (&dual, "0-23", 13, PLAIN, "0-6,12-17"),
            (&dual, "1-23", 2, PLAIN, "1,13"),
            (&four, "0-15", 8, PLAIN, "0-3,8-11"),
            (&four, "0-15", 4, PLAIN, "0-1,8-9"),
            (&dual, "0-23", 4, SPREAD, "0-1,12-13"),
            (&dual, "0-23", 14, SPREAD, "0-3,6-9,12-14,18-20"),
            (&four, "0-15", 6, SPREAD, "0-3,8,10"),
            (&dual, "0-23", 5, CACHES, "0-2,12-13"),
        ] {
            let taken = take(topology, &set(available), count, &options).unwrap();
            assert_eq!(taken.to_string(), want, "{count} of {available} {options:?}");
        }
        let none = take(&single, &set("1-2"), 3, &PLAIN).unwrap_err().to_string();
        assert_eq!(
            none,
            "not enough cpus available to satisfy request: requested=3, available=2"
        );
    }

    proptest! {
        /// As many as were asked for, only what is there, and no core is broken that need not be.
        #[test]
        fn exact_free_and_packed(
            (sockets, numas, cores, threads) in (1u32..3, 1u32..3, 1u32..5, 1u32..3),
            gone in proptest::collection::btree_set(0u32..32, 0..20),
            count in 0usize..34,
            (distribute_across_numa, full_pcpus_only, prefer_cache) in (any::<bool>(), any::<bool>(), any::<bool>()),
        ) {
            let topology = machine(sockets, numas, cores, threads);
            let available = &topology.all() - &gone.into_iter().collect();
            let options = Options { distribute_across_numa, full_pcpus_only, prefer_cache, ..Options::NONE };
            let Ok(taken) = take(&topology, &available, count, &options) else {
                prop_assert!(count > available.len());
                return Ok(());
            };
            prop_assert_eq!(taken.len(), count);
            prop_assert!(taken.is_subset(&available));
            let left = &available - &taken;
            let cores = topology.numbers(&topology.all(), Level::Core);
            let broken = cores.iter().filter(|core| {
                let of = |set: &CpuSet| topology.within(set, Level::Core, *core).len();
                of(&available) == threads as usize && of(&taken) > 0 && of(&left) > 0
            });
            if !prefer_cache && !distribute_across_numa {
                prop_assert!(broken.count() <= 1);
            }
        }
    }
}

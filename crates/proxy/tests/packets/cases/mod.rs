//! What is expected of every mode. Where a mode can't do as the others, its exception stands beside the case, or, if it
//! holds everywhere, in `Bed::as_mode_has_it`.

mod changes;
mod established;
mod kernel;
mod reach;
mod sessions;

use orlop_proxy::backend::Mode;

use crate::bed::Bed;
use crate::world::World;

/// Cases that belong together, each group in a world of its own.
pub(crate) const GROUPS: &[(&str, fn(&mut Bed))] = &[
    ("cluster_ip", reach::cluster_ip),
    ("node_port", reach::node_port),
    ("load_balancer", reach::load_balancer),
    ("load_balancer_at_node", reach::load_balancer_at_node),
    ("external_ip", reach::external_ip),
    ("policies", reach::policies),
    ("no_endpoints", reach::no_endpoints),
    ("terminating", reach::terminating),
    ("affinity", sessions::affinity),
    ("udp", sessions::udp),
    ("changes", changes::changes),
    ("established", established::established),
    ("foreign_rules", kernel::foreign_rules),
    ("repair", kernel::repair),
];

/// Tries one group in one mode.
pub(crate) fn run(mode: Mode, group: &str) {
    let (_, cases) = GROUPS
        .iter()
        .find(|(name, _)| *name == group)
        .unwrap_or_else(|| panic!("no cases {group}"));
    let mut bed = Bed::new(mode, World::routed());
    cases(&mut bed);
    bed.finish();
}

pub(crate) fn run_direct() {
    reach::directly(&World::routed());
    reach::directly(&World::bridged());
}

/// Tries the bridged world, where the kernel lets rules look into bridges.
pub(crate) fn run_bridged(mode: Mode) {
    let mut bed = Bed::new(mode, World::bridged());
    reach::cluster_ip(&mut bed);
    bed.finish();
}

/// One mode takes over from another under connections.
pub(crate) fn run_switch(from: Mode, to: Mode) {
    let mut bed = Bed::new(from, World::routed());
    established::switch(&mut bed, to);
    bed.finish();
}

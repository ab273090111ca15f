//! Packets through each mode, between network namespaces: one table of expectations for all modes (`cases`), tried
//! through the planner and the back ends as they are. Needs root, `ip`, `nft` and `iptables`. IPVS runs in an emulated machine
//! (`orlop_testkit::machine`), which has its tools and QEMU besides.

mod bed;
mod cases;
mod ipvs;
mod modes;
mod netns;
mod policy;
mod service;
mod world;

use orlop_proxy::backend::Mode;
use orlop_testkit::machine;

/// Each group of cases as a test of its own, in each mode.
macro_rules! modes {
    ($($name:ident: $mode:ident),*) => {$(
        mod $name {
            use super::*;
            modes!(@groups $mode cluster_ip node_port load_balancer load_balancer_at_node external_ip policies no_endpoints terminating affinity
                udp changes established foreign_rules repair);

            /// No group of the table is left out.
            #[test]
            fn all_groups() {
                assert!(cases::GROUPS.iter().map(|(name, _)| *name).eq(TESTED.iter().copied()));
            }

            #[test]
            fn bridged() {
                cases::run_bridged(Mode::$mode);
            }
        }
    )*};
    (@groups $mode:ident $($group:ident)*) => {
        const TESTED: &[&str] = &[$(stringify!($group)),*];
        $(
            #[test]
            fn $group() {
                cases::run(Mode::$mode, stringify!($group));
            }
        )*
    };
}

modes!(iptables: Iptables, nftables: Nftables, userspace: Userspace);

#[test]
fn places_reach_each_other_without_a_proxy() {
    cases::run_direct();
}

/// Every mode takes over from every other.
#[test]
fn switches() {
    for from in modes::HERE {
        for to in modes::HERE.iter().filter(|to| *to != from) {
            println!("from {from} to {to}");
            cases::run_switch(*from, *to);
        }
    }
}

/// IPVS, in a machine that has it.
#[test]
fn ipvs_in_a_machine() {
    machine::run("ipvs_in_a_machine", |_| ipvs::machine(), ipvs::all);
}

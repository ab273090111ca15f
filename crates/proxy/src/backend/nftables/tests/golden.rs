//! What a table gets, as commands of nft.

use super::super::kernel::Snapshot;
use super::super::table::Table;
use super::super::text::In;
use super::*;
use crate::testing::check_golden;

/// What a first sync of this plan does, family by family.
pub(super) fn first_sync(settings: &Settings, plan: &Plan, family: Family) -> (Table, String) {
    let mut table = Table::new(family);
    let own = addresses(&["127.0.0.1", "192.168.0.2", "10.20.0.1", "fd00::2"]);
    let mut problems = vec![];
    let script = table
        .rebuild(settings, plan, &own, &Snapshot::default(), &mut problems)
        .unwrap();
    assert_eq!(problems, [""; 0]);
    table.done();
    (table, In(family, &script).to_string())
}

fn check(name: &str, found: &str) {
    check_golden(&format!("nftables/{name}"), found);
}

#[test]
fn all_kinds_of_services() {
    let plan = plan(all_kinds());
    for (family, name) in [(Family::V4, "all-kinds-ip.nft"), (Family::V6, "all-kinds-ip6.nft")] {
        check(name, &first_sync(&settings(), &plan, family).1);
    }
}

#[test]
fn no_service_in_all_settings() {
    let node_ports = Settings {
        node_port_ranges: vec!["10.0.0.0/8".parse().unwrap()],
        detect_local: DetectLocal::Bridge("cni0".to_string()),
        ..Settings::default()
    };
    let everything = Settings {
        masquerade_all: true,
        masquerade_bit: 15,
        ..Settings::default()
    };
    let prefix = Settings {
        detect_local: DetectLocal::Prefix("veth".to_string()),
        ..Settings::default()
    };
    let mut text = String::new();
    for (name, settings) in [
        ("node port ranges, bridge", node_ports),
        ("masquerade all", everything),
        ("prefix", prefix),
    ] {
        for family in Family::ALL {
            text += &format!("# {name}\n{}\n", first_sync(&settings, &plan([]), family).1);
        }
    }
    check("settings.nft", &text);
}

/// Only what a change needs is written.
#[test]
fn changes() {
    let settings = settings();
    let mut ports = all_kinds();
    let mut plan = plan(ports.clone());
    let (mut table, _) = first_sync(&settings, &plan, Family::V4);
    let mut text = String::new();
    let mut step = |name: &str, path: &str, new: Option<ServicePort>, plan: &mut Plan| {
        let key = key(Family::V4, path);
        plan.ports.remove(&key);
        if let Some(port) = new {
            plan.ports.insert(key.clone(), Arc::new(port));
        }
        let script = table.change(&settings, plan, &[key], &mut vec![]).unwrap();
        table.done();
        text += &format!("# {name}\n{}\n", In(Family::V4, &script));
    };
    let svc4 = ports.swap_remove(3);
    let svc5 = ports
        .iter()
        .find(|port| &*port.key.name == "svc5" && port.key.family == Family::V4)
        .unwrap();
    let replaced = svc4.clone().with(&["10.180.0.6:80", "10.180.0.5:80 here"]);
    step(
        "an endpoint for another",
        "ns4/svc4:p80",
        Some(replaced.clone()),
        &mut plan,
    );
    step("the same again", "ns4/svc4:p80", Some(replaced), &mut plan);
    let one = svc4.clone().with(&["10.180.0.5:80 here"]);
    step("one endpoint less", "ns4/svc4:p80", Some(one), &mut plan);
    let many = [
        "10.180.0.5:80 here",
        "10.180.0.6:80",
        "10.180.0.7:80",
        "10.180.0.8:80",
        "10.180.0.9:80",
    ];
    step(
        "more than its range has numbers",
        "ns4/svc4:p80",
        Some(svc4.clone().with(&many)),
        &mut plan,
    );
    step("no endpoints", "ns4/svc4:p80", Some(svc4.with(&[])), &mut plan);
    step("gone", "ns4/svc4:p80", None, &mut plan);
    let two = svc5.clone().with(&["10.180.0.3:80 here", "10.180.0.4:80"]);
    step(
        "affinity: one endpoint more",
        "ns5/svc5:p80",
        Some(two.clone()),
        &mut plan,
    );
    let longer = ServicePort {
        affinity: Some(20),
        ..two
    };
    step(
        "affinity: another timeout",
        "ns5/svc5:p80",
        Some(longer.clone()),
        &mut plan,
    );
    let none = ServicePort {
        affinity: None,
        ..longer
    };
    step("affinity: none any more", "ns5/svc5:p80", Some(none), &mut plan);
    check("changes.nft", &text);
}

#[test]
fn addresses_of_the_other_family_are_a_problem() {
    let odd = ServicePort {
        external_ips: addresses(&["fd00::1"]),
        ..port("ns/odd:p", "172.30.0.1").with(&["10.0.0.1:80"])
    };
    let mut table = Table::new(Family::V4);
    let mut problems = vec![];
    table.rebuild(&settings(), &plan([odd]), &[], &Snapshot::default(), &mut problems);
    assert_eq!(problems, ["ns/odd:p: fd00::1 is no address of family ip"]);
}

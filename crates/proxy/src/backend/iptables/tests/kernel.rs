//! The real programs, in network namespaces of their own.

use super::*;
use crate::testing::{in_namespace, shell};

fn backend(variant: Variant, settings: Settings) -> Iptables {
    let installed = program::installed().unwrap();
    Iptables::with_variant(settings, installed, variant).unwrap()
}

fn saved(variant: Variant, family: Family) -> Saved {
    let program = Program { variant, family };
    let mut saved = Saved::default();
    for table in Table::ALL {
        saved.insert(table, saved::parse(&program.save(table).unwrap()));
    }
    saved
}

const BOTH: [Variant; 2] = [Variant::Nft, Variant::Legacy];

/// Services of all kinds.
fn all_kinds() -> Plan {
    let two = &["10.180.0.1:80", "10.180.1.2:80"][..];
    let five = &[
        "10.180.0.1:80",
        "10.180.0.2:80",
        "10.180.0.3:80",
        "10.180.0.4:80",
        "10.180.0.5:80",
    ][..];
    let base = balancer("local", two);
    let local = ServicePort {
        external_local: true,
        internal_local: true,
        health_check_node_port: Some(31000),
        local: base.cluster[..1].to_vec(),
        affinity: Some(10800),
        ..base
    };
    let mut ports = vec![
        port("five", "172.30.0.1", five),
        port("none", "172.30.0.2", &[]),
        balancer("none-outside", &[]),
        ServicePort {
            local: vec![],
            key: Key {
                name: "elsewhere".into(),
                ..local.key.clone()
            },
            ..local.clone()
        },
        local,
        ServicePort {
            source_ranges: vec!["203.0.113.128/25".parse().unwrap(), "192.168.0.0/16".parse().unwrap()],
            ..balancer("guarded", two)
        },
    ];
    for (name, protocol) in [("udp", Protocol::Udp), ("sctp", Protocol::Sctp)] {
        ports.push(ServicePort {
            protocol,
            ..balancer(name, two)
        });
    }
    for (name, endpoints) in [
        ("six", &["[fd00:10:180::1]:80", "[fd00:10:180::2]:80"][..]),
        ("six-none", &[][..]),
    ] {
        ports.push(ServicePort {
            node_port: Some(30006),
            affinity: Some(60),
            load_balancer_ips: vec!["2001:db8::9".parse().unwrap()],
            source_ranges: vec!["2001:db8:1::/48".parse().unwrap(), "::/0".parse().unwrap()],
            ..port(name, "fd00:172::1", endpoints)
        });
    }
    plan(ports)
}

fn settings() -> Settings {
    Settings {
        detect_local: DetectLocal::Ranges(vec!["10.0.0.0/8".parse().unwrap(), "fd00:10::/64".parse().unwrap()]),
        ..Settings::default()
    }
}

#[test]
fn the_kernel_shows_rules_as_they_are_rendered() {
    for variant in BOTH {
        for detect_local in [
            settings().detect_local,
            DetectLocal::Bridge("cni0".into()),
            DetectLocal::Prefix("veth".into()),
        ] {
            in_namespace(move || {
                let settings = Settings {
                    detect_local,
                    localhost_node_ports: true,
                    ..settings()
                };
                let mut backend = backend(variant, settings);
                let report = backend.sync(&all_kinds(), &Change::All).unwrap();
                assert_eq!(report.rules.len(), 2);
                // What is compared with what the kernel shows needs no change.
                let again = backend.sync(&all_kinds(), &Change::All).unwrap();
                assert_eq!(again.written, [("filter", 0), ("nat", 0)], "{variant:?}");
                for family in Family::ALL {
                    let saved = saved(variant, family);
                    let rules = |table| -> usize {
                        let ours = saved.chains(table).filter(|(name, _)| saved::is_ours(table, name));
                        ours.map(|(_, rules)| rules.len()).sum()
                    };
                    assert!(rules(Table::Nat) > 20 && rules(Table::Filter) > 4);
                }
            });
        }
    }
}

/// What netlink tells, in the text of iptables-save.
#[test]
fn tables_are_read_as_iptables_save_shows_them() {
    for detect_local in [
        settings().detect_local,
        DetectLocal::Bridge("cni0".into()),
        DetectLocal::Prefix("veth".into()),
    ] {
        in_namespace(move || {
            let settings = Settings {
                detect_local,
                localhost_node_ports: true,
                ..settings()
            };
            backend(Variant::Nft, settings)
                .sync(&all_kinds(), &Change::All)
                .unwrap();
            for family in Family::ALL {
                let read = nft::read(family).unwrap().expect("all of ours can be told");
                let shown = saved(Variant::Nft, family);
                for table in Table::ALL {
                    for (name, rules) in shown.chains(table) {
                        // A chain of the kernel's own is shown whether it is there or not.
                        assert_eq!(read.chain(table, name).unwrap_or_default(), rules, "{table:?} {name}");
                    }
                    assert!(read.chains(table).all(|(name, _)| shown.chain(table, name).is_some()));
                }
            }
            shell("iptables-nft -t nat -A OUTPUT -m owner --uid-owner 7 -j KUBE-MARK-MASQ");
            let read = nft::read(Family::V4).unwrap().expect("all of ours can be told");
            let output = read.chain(Table::Nat, "OUTPUT").unwrap();
            assert_eq!(output.last().unwrap(), "? -j KUBE-MARK-MASQ");
            // What others put into a chain of ours can't always be told; then the program is asked.
            shell("iptables-nft -t nat -A KUBE-MARK-MASQ -m length --length 100 -j ACCEPT");
            assert!(nft::read(Family::V4).unwrap().is_none());
        });
    }
    in_namespace(|| assert!(nft::read(Family::V4).unwrap().unwrap() == read_nothing()));
}

fn read_nothing() -> Saved {
    let mut saved = Saved::default();
    Table::ALL
        .iter()
        .for_each(|table| saved.insert(*table, Default::default()));
    saved
}

#[test]
fn a_new_process_takes_over_without_a_change() {
    for variant in BOTH {
        in_namespace(move || {
            let plan = all_kinds();
            backend(variant, settings()).sync(&plan, &Change::All).unwrap();
            let before = (saved(variant, Family::V4), saved(variant, Family::V6));
            let mut next = backend(variant, settings());
            let report = next.sync(&plan, &Change::Keys(vec![])).unwrap();
            assert_eq!(report.written, [("filter", 0), ("nat", 0)]);
            assert!((saved(variant, Family::V4), saved(variant, Family::V6)) == before);

            // One service is gone meanwhile: its chains go, the others stay.
            let mut fewer = plan.clone();
            fewer.ports.retain(|key, _| &*key.name != "five");
            let mut third = backend(variant, settings());
            third.sync(&fewer, &Change::All).unwrap();
            let after = saved(variant, Family::V4);
            let count = |saved: &Saved| saved.chains(Table::Nat).count();
            assert_eq!(count(&before.0) - count(&after), 6);
        });
    }
}

#[test]
fn changes_end_where_a_full_sync_does() {
    for variant in BOTH {
        in_namespace(move || {
            let mut plan = plan([port("a", "172.30.0.1", &["10.180.0.1:80"])]);
            let mut changing = backend(variant, settings());
            changing.sync(&plan, &Change::All).unwrap();
            let steps = [
                port("a", "172.30.0.1", &["10.180.0.1:80", "10.180.0.2:80"]),
                port("b", "172.30.0.2", &[]),
                balancer("c", &["10.180.0.1:80"]),
                port("b", "172.30.0.2", &["10.180.0.9:80"]),
                balancer("c", &[]),
                port("a", "172.30.0.3", &["10.180.0.2:80"]),
            ];
            for step in steps {
                let key = step.key.clone();
                plan.ports.insert(key.clone(), Arc::new(step));
                changing.sync(&plan, &Change::Keys(vec![key])).unwrap();
                let report = backend(variant, settings()).sync(&plan, &Change::All).unwrap();
                assert_eq!(report.written, [("filter", 0), ("nat", 0)]);
            }
            let keys: Vec<Key> = plan.ports.keys().cloned().collect();
            plan.ports.clear();
            changing.sync(&plan, &Change::Keys(keys)).unwrap();
            let saved = saved(variant, Family::V4);
            assert!(saved.chains(Table::Nat).all(|(name, _)| !names::is_of_service(name)));
        });
    }
}

#[test]
fn what_somebody_deleted_is_repaired() {
    for variant in BOTH {
        in_namespace(move || {
            let mut backend = backend(variant, settings());
            backend.sync(&all_kinds(), &Change::All).unwrap();
            let before = saved(variant, Family::V4);
            let infix = if variant == Variant::Nft { "nft" } else { "legacy" };
            shell(&format!(
                "iptables-{infix} -t nat -F KUBE-SERVICES; iptables-{infix} -t nat -D PREROUTING 1
                 iptables-{infix} -t nat -X KUBE-PROXY-CANARY; iptables-{infix} -t filter -F FORWARD
                 iptables-{infix} -t nat -A KUBE-MARK-MASQ -j ACCEPT"
            ));
            backend.sync(&all_kinds(), &Change::All).unwrap();
            assert!(saved(variant, Family::V4) == before);
        });
    }
}

#[test]
fn cleanup_leaves_what_others_have() {
    for variant in BOTH {
        in_namespace(move || {
            let infix = if variant == Variant::Nft { "nft" } else { "legacy" };
            shell(&format!(
                "iptables-{infix} -t nat -N MINE; iptables-{infix} -t nat -A MINE -j ACCEPT
                 iptables-{infix} -t nat -A PREROUTING -j MINE; iptables-{infix} -A FORWARD -s 10.9.9.9/32 -j DROP
                 iptables-{infix} -t mangle -N KUBE-KUBELET-CANARY"
            ));
            let saved_before = saved(variant, Family::V4);
            let mut backend = backend(variant, settings());
            backend.sync(&all_kinds(), &Change::All).unwrap();
            assert!(saved(variant, Family::V4) != saved_before);
            assert_eq!(backend.cleanup().unwrap(), Cleaned::Whole);
            assert!(saved(variant, Family::V4) == saved_before);
            assert!(
                saved(variant, Family::V6)
                    .chains(Table::Nat)
                    .all(|(_, rules)| rules.is_empty())
            );
            assert_eq!(backend.cleanup().unwrap(), Cleaned::Whole);
        });
    }
}

#[test]
fn large_plans_have_no_comments_on_endpoints() {
    in_namespace(|| {
        let many = |count: u32| -> Vec<ServicePort> {
            let one = |n: u32| {
                let texts: Vec<String> = (0..5).map(|e| format!("10.{e}.{}.{}:80", n / 256, n % 256)).collect();
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                port(&format!("svc{n}"), &format!("172.30.{}.{}", n / 256, n % 256), &texts)
            };
            (0..count).map(one).collect()
        };
        let mut backend = backend(Variant::Nft, settings());
        backend.sync(&plan(many(200)), &Change::All).unwrap();
        let has_comment = || {
            shell("iptables-nft -t nat -S")
                .lines()
                .any(|l| l.contains("SEP") && l.contains("comment"))
        };
        assert!(has_comment());
        let more = plan(many(201));
        let key = more.ports.keys().find(|key| &*key.name == "svc200").unwrap().clone();
        backend.sync(&more, &Change::Keys(vec![key])).unwrap();
        assert!(!has_comment());
        let report = backend.sync(&more, &Change::All).unwrap();
        assert_eq!(report.written, [("filter", 0), ("nat", 0)]);
    });
}

#[test]
fn a_refused_input_says_which_line() {
    for variant in BOTH {
        in_namespace(move || {
            let family = Family::V4;
            let error = Program { variant, family }
                .restore("*nat\n-A NOWHERE -j ACCEPT\nCOMMIT\n")
                .unwrap_err();
            assert!(error.to_string().contains("-A NOWHERE -j ACCEPT"), "{error}");
            let missing = "*nat\n:HERE - [0:0]\n-D HERE -s 10.0.0.1/32 -j ACCEPT\nCOMMIT\n";
            let error = Program { variant, family }.restore(missing).unwrap_err();
            assert!(
                error.to_string().contains("-D HERE") || error.to_string().contains("COMMIT"),
                "{error}"
            );
            // After that, the next sync compares everything.
            let mut backend = backend(variant, settings());
            backend
                .sync(&plan([port("a", "172.30.0.1", &[])]), &Change::All)
                .unwrap();
            let infix = if variant == Variant::Nft { "nft" } else { "legacy" };
            shell(&format!("iptables-{infix} -F KUBE-SERVICES"));
            let next = plan([port("a", "172.30.0.1", &["10.0.0.1:80"])]);
            let keys: Vec<Key> = next.ports.keys().cloned().collect();
            backend.sync(&next, &Change::Keys(keys.clone())).unwrap_err();
            backend.sync(&next, &Change::Keys(keys)).unwrap();
            let report = backend.sync(&next, &Change::All).unwrap();
            assert_eq!(report.written, [("filter", 0), ("nat", 0)]);
        });
    }
}

#[test]
fn the_variant_is_where_others_are() {
    let choose = || program::choose(&program::installed().unwrap().variants, &Family::ALL);
    in_namespace(move || {
        assert_eq!(choose(), Variant::Nft);
        shell("iptables-legacy -t mangle -N KUBE-IPTABLES-HINT");
        assert_eq!(choose(), Variant::Legacy);
        shell("iptables-nft -t mangle -N KUBE-IPTABLES-HINT");
        assert_eq!(choose(), Variant::Nft);
    });
    in_namespace(move || {
        backend(Variant::Legacy, settings())
            .sync(&plan([]), &Change::All)
            .unwrap();
        assert_eq!(choose(), Variant::Legacy);
        check_support().unwrap();
    });
}

#[test]
fn node_ports_are_open_where_they_are_wanted() {
    in_namespace(|| {
        shell("ip addr add 192.168.7.2/24 dev lo; ip link set lo up");
        let settings = Settings {
            node_port_ranges: vec!["192.168.0.0/16".parse().unwrap(), "127.0.0.0/8".parse().unwrap()],
            ..settings()
        };
        let report = backend(Variant::Nft, settings).sync(&plan([]), &Change::All).unwrap();
        assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
        let saved = saved(Variant::Nft, Family::V4);
        let services = saved.chain(Table::Nat, names::SERVICES).unwrap();
        assert_eq!(services.len(), 1);
        assert!(services[0].starts_with("-d 192.168.7.2/32 "), "{services:?}");
    });
}

//! Against the kernel, in network namespaces of their own.

use std::process::{Command, Stdio};

use super::super::{Nftables, check_support, new};
use super::golden::first_sync;
use super::*;
use crate::backend::{Backend, Cleaned, Report};
use crate::plan::Change;
use crate::testing::in_namespace;

pub(super) fn nft(arguments: &str) -> String {
    let output = Command::new("nft")
        .args(arguments.split(' '))
        .output()
        .expect("nft is installed");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "nft {arguments}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn load(text: &str) {
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("nft is installed");
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "nft refuses:\n{text}");
}

pub(super) fn wrote(report: &Report) -> usize {
    report.written.iter().map(|(_, count)| count).sum()
}

fn synced(settings: &Settings, plan: &Plan) -> (Nftables, Report) {
    let mut backend = new(settings.clone()).unwrap();
    let report = backend.sync(plan, &Change::All).unwrap();
    (backend, report)
}

/// Nothing is left to do, says a back end that knows nothing but the plan and the kernel.
fn assert_settled(settings: &Settings, plan: &Plan) {
    let (_, report) = synced(settings, plan);
    assert_eq!(wrote(&report), 0, "{report:?}");
}

/// nft makes the same table of the text as we do of the values.
#[test]
fn the_kernel_has_what_the_text_says() {
    let plan = plan(all_kinds());
    let prefix = Settings {
        detect_local: DetectLocal::Prefix("veth".to_string()),
        node_port_ranges: vec!["0.0.0.0/0".parse().unwrap()],
        masquerade_bit: 3,
        ..settings()
    };
    for settings in [settings(), prefix] {
        for (family, name) in [(Family::V4, "ip"), (Family::V6, "ip6")] {
            let list = format!("list table {name} kube-proxy");
            let ours = in_namespace(|| {
                synced(&settings, &plan);
                nft(&list)
            });
            let text = first_sync(&settings, &plan, family).1;
            let theirs = in_namespace(|| {
                load(&text);
                nft(&list)
            });
            for (ours, theirs) in ours.lines().zip(theirs.lines()) {
                assert_eq!(ours, theirs);
            }
            assert_eq!(ours, theirs);
        }
    }
}

#[test]
fn a_restart_writes_nothing() {
    in_namespace(|| {
        let plan = plan(all_kinds());
        let (mut first, report) = synced(&settings(), &plan);
        assert!(wrote(&report) > 100, "{report:?}");
        assert_settled(&settings(), &plan);
        let again = first.sync(&plan, &Change::All).unwrap();
        assert_eq!((wrote(&again), &again.rules), (0, &report.rules));
        // A second process goes on where the first ended, with the endpoints' numbers as they are.
        let mut other = plan.clone();
        let key = key(Family::V4, "ns4/svc4:p80");
        let fewer = ServicePort::clone(&other.ports[&key]).with(&["10.180.0.5:80 here", "10.180.0.6:80"]);
        other.ports.insert(key.clone(), Arc::new(fewer));
        let (_, report) = synced(&settings(), &other);
        // One endpoint for another.
        assert_eq!(report.written, [("ip", 2), ("ip6", 0)]);
    });
}

#[test]
fn clients_stay_remembered_over_a_restart() {
    in_namespace(|| {
        let plan = plan(all_kinds());
        synced(&settings(), &plan);
        let set = "affinity-GTK6MW7G-ns5/svc5/tcp/p80__10.180.0.3/80";
        nft(&format!("add element ip kube-proxy {set} {{ 10.9.9.9 timeout 1h }}"));
        let (mut backend, _) = synced(&settings(), &plan);
        let key = key(Family::V4, "ns5/svc5:p80");
        let mut other = plan.clone();
        let more = ServicePort {
            affinity: Some(77),
            ..ServicePort::clone(&plan.ports[&key]).with(&["10.180.0.3:80 here", "10.180.0.4:80"])
        };
        other.ports.insert(key.clone(), Arc::new(more));
        backend.sync(&other, &Change::Keys(vec![key])).unwrap();
        assert!(nft(&format!("list set ip kube-proxy {set}")).contains("10.9.9.9"));
        assert_settled(&settings(), &other);
    });
}

#[test]
fn what_others_did_is_repaired() {
    in_namespace(|| {
        let plan = plan(all_kinds());
        let (mut backend, _) = synced(&settings(), &plan);
        let whole = nft("list ruleset");
        let sorted = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
            lines.sort();
            lines
        };
        for damage in [
            "delete table ip kube-proxy",
            "flush ruleset",
            "flush chain ip kube-proxy services",
            "flush map ip kube-proxy service-ips",
            "flush map ip kube-proxy service-endpoints-0",
            "delete element ip kube-proxy service-ips { 172.30.0.41 . tcp . 80 }",
            "flush chain ip kube-proxy service-ULMVA6XW-ns1/svc1/tcp/p80",
            "insert rule ip kube-proxy nat-prerouting accept",
            "add element ip6 kube-proxy cluster-ips { fd00::77 }",
            "add chain ip kube-proxy mine { type filter hook input priority 5 ; }",
            "add table ip kube-proxy { flags dormant ; }",
            "add set ip kube-proxy affinity-of-nobody { type ipv4_addr ; flags dynamic,timeout ; }",
        ] {
            nft(damage);
            let report = backend.sync(&plan, &Change::All).unwrap();
            assert!(wrote(&report) > 0, "{damage}");
            let (found, wanted) = (sorted(&nft("list ruleset")), sorted(&whole));
            let differ: Vec<_> = found
                .iter()
                .zip(&wanted)
                .filter(|(found, wanted)| found != wanted)
                .take(3)
                .collect();
            assert!(
                found.len() == wanted.len() && differ.is_empty(),
                "{damage}: {differ:#?}"
            );
        }
        assert_settled(&settings(), &plan);
    });
}

/// Of kube-proxy itself, or of a version of Orlop that had it otherwise.
#[test]
fn a_table_of_another_make_is_replaced() {
    in_namespace(|| {
        nft("add table ip kube-proxy { comment \"x\" ; }");
        nft("add chain ip kube-proxy nat-prerouting { type nat hook prerouting priority -90 ; }");
        nft("add set ip kube-proxy cluster-ips { type ipv4_addr . inet_service ; }");
        nft("add chain ip kube-proxy service-X/y");
        nft("add rule ip kube-proxy service-X/y numgen random mod 1 vmap { 0 : drop }");
        let plan = plan(all_kinds());
        synced(&settings(), &plan);
        assert!(nft("list chain ip kube-proxy nat-prerouting").contains("priority dstnat;"));
        assert!(!nft("list ruleset").contains("service-X/y"));
        assert_settled(&settings(), &plan);
    });
}

#[test]
fn the_tables_of_others_are_not_touched() {
    in_namespace(|| {
        nft("add table inet mine { chain a { type filter hook input priority 0 ; tcp dport 22 accept ; } ; }");
        nft("add table ip nat-of-mine { set kube-proxy { type ipv4_addr ; elements = { 10.0.0.1 } ; } ; }");
        let before = nft("list ruleset");
        let (mut backend, _) = synced(&settings(), &plan(all_kinds()));
        assert!(nft("list ruleset").starts_with(&before));
        assert_eq!(backend.cleanup().unwrap(), Cleaned::Whole);
        assert_eq!(nft("list ruleset"), before);
        assert_eq!(backend.cleanup().unwrap(), Cleaned::Whole);
        // And it goes on from there, if wanted.
        backend.sync(&plan(all_kinds()), &Change::Keys(vec![])).unwrap();
        assert_settled(&settings(), &plan(all_kinds()));
    });
}

#[test]
fn errors_name_the_object_and_the_next_full_sync_recovers() {
    in_namespace(|| {
        let mut plan = plan(all_kinds());
        let (mut backend, _) = synced(&settings(), &plan);
        nft("flush map ip kube-proxy service-ips");
        let key = key(Family::V4, "ns1/svc1:p80");
        plan.ports.remove(&key);
        let change = Change::Keys(vec![key]);
        let error = backend.sync(&plan, &change).unwrap_err().to_string();
        let element = "delete element ip kube-proxy service-ips { 172.30.0.41 . tcp . 80 }";
        assert!(error.contains(element) && error.contains("No such file"), "{error}");
        backend.sync(&plan, &change).unwrap();
        assert_settled(&settings(), &plan);
    });
}

/// However small the transactions, nothing is forgotten; traffic could go through at each cut.
#[test]
fn syncs_in_many_transactions_end_the_same() {
    in_namespace(|| {
        let plan = plan(all_kinds());
        let mut backend = new(settings()).unwrap();
        backend.kernel.transaction_length = 1;
        backend.sync(&plan, &Change::All).unwrap();
        assert_settled(&settings(), &plan);
        let mut other = plan.clone();
        other.ports.retain(|key, _| key.name.len() > 4);
        let gone = plan.ports.keys().filter(|key| !other.ports.contains_key(*key));
        backend.sync(&other, &Change::Keys(gone.cloned().collect())).unwrap();
        assert_settled(&settings(), &other);
    });
}

#[test]
fn the_kernel_says_whether_it_can() {
    in_namespace(|| {
        check_support().unwrap();
        assert_eq!(nft("list ruleset"), "");
        synced(&settings(), &plan([]));
        check_support().unwrap();
    });
}

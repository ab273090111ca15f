use std::process::Command;

use netlink_sys::protocols::NETLINK_NETFILTER;

use super::*;
use crate::nft::Verdict;
use crate::testing::in_namespace;

const ADDRESSES: SetKind = SetKind {
    key: &[Part::Source],
    is_interval: false,
    data: DataKind::None,
};
const PORTS: SetKind = SetKind {
    key: &[Part::Protocol, Part::Port],
    is_interval: true,
    data: DataKind::None,
};
const VERDICTS: SetKind = SetKind {
    key: &[Part::Destination],
    is_interval: false,
    data: DataKind::Verdict,
};

fn name(text: &str) -> Name {
    text.into()
}

fn base(rules: Vec<Rule>) -> Chain {
    let hook = Hook {
        kind: "filter",
        number: 2,
        priority: 0,
    };
    Chain {
        hook: Some(hook),
        rules,
    }
}

fn dispatch(map: &'static str) -> Rule {
    Rule::new(Family::V4, |to| {
        to.load(&[Part::Destination]);
        to.dispatch(map);
    })
}

fn accept_from(set: &'static str) -> Rule {
    Rule::new(Family::V4, |to| {
        to.load(&[Part::Source]);
        to.lookup(set, false);
        to.verdict(Verdict::Accept);
    })
}

/// One pod with its chain, peers and ports.
fn example() -> Table {
    let mut table = Table::new(Family::V4, "example");
    table.put_set(&name("peers"), ADDRESSES);
    table.put_set(&name("ports"), PORTS);
    table.put_set(&name("pods"), VERDICTS);
    table.put_element(&name("peers"), Key::new([10, 0, 0, 1]), Data::None);
    let (first, last) = ([6, 0, 0, 0, 0, 80, 0, 0], [6, 0, 0, 0, 0, 90, 0, 0]);
    table.put_element(&name("ports"), Key::interval(first, last), Data::None);
    table.put_chain(
        &name("pod"),
        Chain {
            hook: None,
            rules: vec![
                accept_from("peers").commented("some"),
                Rule::new(Family::V4, |to| to.verdict(Verdict::Drop)),
            ],
        },
    );
    let jump = Data::Verdict(Target::Jump(name("pod")));
    table.put_element(&name("pods"), Key::new([10, 0, 0, 2]), jump);
    table.put_chain(&name("forward"), base(vec![dispatch("pods")]));
    table
}

fn listed() -> String {
    let output = Command::new("nft").args(["list", "ruleset"]).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

fn nft(command: &str) {
    let status = Command::new("nft").args(command.split(' ')).status().unwrap();
    assert!(status.success(), "{command}");
}

fn in_kernel(work: impl FnOnce(&mut Connection) + Send) {
    in_namespace(|| work(&mut Connection::open(NETLINK_NETFILTER).unwrap()));
}

#[test]
fn a_table_is_written_once_and_found_again() {
    in_kernel(|kernel| {
        let mut table = example();
        assert!(table.sync(kernel).unwrap() > 0);
        assert_eq!(table.sync(kernel).unwrap(), 0);
        assert_eq!(table.resync(kernel).unwrap(), 0);
        let text = listed();
        for wanted in [
            "elements = { 10.0.0.2 : jump pod }",
            "ip saddr @peers accept comment \"some\"",
            "ip daddr vmap @pods",
            "elements = { tcp . 80-90 }",
            "elements = { 10.0.0.1 }",
            "type filter hook forward priority filter; policy accept;",
        ] {
            assert!(text.contains(wanted), "{wanted} is not in\n{text}");
        }
        // Another process describes the same.
        assert_eq!(example().sync(kernel).unwrap(), 0);
    });
}

#[test]
fn only_differences_are_written() {
    in_kernel(|kernel| {
        let mut table = example();
        table.sync(kernel).unwrap();
        table.put_element(&name("peers"), Key::new([10, 0, 0, 3]), Data::None);
        assert_eq!(table.sync(kernel).unwrap(), 1);
        table.remove_element(&name("peers"), &Key::new([10, 0, 0, 1]));
        table.put_element(&name("pods"), Key::new([10, 0, 0, 2]), Data::Verdict(Target::Drop));
        // The element goes, and comes with another verdict.
        assert_eq!(table.sync(kernel).unwrap(), 3);
        // Put and removed before it was written.
        table.put_element(&name("peers"), Key::new([10, 0, 0, 9]), Data::None);
        table.remove_element(&name("peers"), &Key::new([10, 0, 0, 9]));
        assert_eq!(table.sync(kernel).unwrap(), 0);
        let text = listed();
        assert!(
            text.contains("elements = { 10.0.0.3 }") && text.contains("10.0.0.2 : drop"),
            "{text}"
        );
        assert_eq!(table.resync(kernel).unwrap(), 0);
    });
}

#[test]
fn chains_and_sets_go_with_what_leads_to_them() {
    in_kernel(|kernel| {
        let mut table = example();
        table.sync(kernel).unwrap();
        table.remove_element(&name("pods"), &Key::new([10, 0, 0, 2]));
        table.remove_chain(&name("pod"));
        table.remove_set(&name("peers"));
        table.remove_set(&name("ports"));
        table.sync(kernel).unwrap();
        let text = listed();
        assert!(
            !text.contains("peers") && !text.contains("chain pod") && !text.contains("set ports"),
            "{text}"
        );
        assert_eq!(table.resync(kernel).unwrap(), 0);
        // The same names again.
        let mut again = example();
        again.sync(kernel).unwrap();
        assert_eq!(again.resync(kernel).unwrap(), 0);
        again.delete(kernel).unwrap();
        again.delete(kernel).unwrap();
        assert_eq!(listed(), "");
        assert!(again.sync(kernel).unwrap() > 0, "it is made anew");
    });
}

#[test]
fn what_others_did_is_repaired() {
    in_kernel(|kernel| {
        let mut table = example();
        table.sync(kernel).unwrap();
        let right = listed();
        for wrong in [
            "flush ruleset",
            "flush chain ip example pod",
            "add element ip example peers { 1.2.3.4 }",
            "delete element ip example pods { 10.0.0.2 }",
            "add rule ip example pod ip saddr 9.9.9.9 accept",
            "add chain ip example stranger",
            "add set ip example stranger { type ipv4_addr; }",
        ] {
            nft(wrong);
            assert!(table.resync(kernel).unwrap() > 0, "{wrong}");
            assert_eq!(listed(), right, "after {wrong}");
        }
        // Of another kind, or a base chain of somebody else: all of it is made anew.
        nft("delete table ip example");
        nft("add table ip example");
        nft("add set ip example peers { type ipv6_addr; }");
        table.resync(kernel).unwrap();
        assert_eq!(listed(), right);
        Command::new("nft")
            .args([
                "add",
                "chain",
                "ip",
                "example",
                "other",
                "{ type filter hook input priority 0; policy drop; }",
            ])
            .status()
            .unwrap();
        table.resync(kernel).unwrap();
        assert_eq!(listed(), right);
    });
}

#[test]
fn a_refused_change_is_named_and_tried_again() {
    in_kernel(|kernel| {
        let mut table = example();
        table.sync(kernel).unwrap();
        let nowhere = Rule::new(Family::V4, |to| to.verdict(Verdict::Jump("nowhere")));
        table.put_chain(
            &name("pod"),
            Chain {
                hook: None,
                rules: vec![nowhere],
            },
        );
        let error = table.sync(kernel).unwrap_err();
        assert_eq!(
            error.to_string(),
            "failed to change table ip example: add rule to chain pod"
        );
        table.put_chain(&name("nowhere"), Chain::default());
        table.sync(kernel).unwrap();
        assert!(listed().contains("jump nowhere"));
    });
}

#[test]
fn many_elements_share_messages() {
    in_kernel(|kernel| {
        let mut table = Table::new(Family::V4, "many");
        table.put_set(&name("all"), ADDRESSES);
        for n in 0..20_000u32 {
            table.put_element(&name("all"), Key::new(n.to_be_bytes()), Data::None);
        }
        table.sync(kernel).unwrap();
        assert_eq!(table.resync(kernel).unwrap(), 0);
        table.remove_set(&name("all"));
        table.sync(kernel).unwrap();
        assert!(!listed().contains("set all"));
    });
}

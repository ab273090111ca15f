//! Connections under way, whatever happens around them.

use orlop_proxy::backend::Mode;
use orlop_proxy::plan::{Family, Protocol};

use crate::bed::{Bed, Expect, Seen};
use crate::service::Svc;
use crate::world::{Outcome, TcpTalk};

/// A connection, where it came from, and whom it has.
struct Under {
    talk: TcpTalk,
    label: String,
    pod: String,
}

fn connect(bed: &Bed, service: &Svc) -> Vec<Under> {
    let mut all = Vec::new();
    for family in Family::ALL {
        let node = bed.world.address("host", family);
        for (from, to) in [
            ("client", service.cluster(family)),
            ("host", service.cluster(family)),
            ("a1", service.cluster(family)),
            ("outside", service.node_port_at(node)),
            ("outside", service.ingress(family)),
        ] {
            let mut talk = bed.world.connect(from, to);
            let label = format!("{from} → {to}");
            match talk.ask() {
                Ok(Outcome::Answer { pod, .. }) => all.push(Under { talk, label, pod }),
                other => panic!("{}: {label}: {other:?}", bed.mode),
            }
        }
    }
    all
}

fn all_go_on(bed: &mut Bed, connections: &mut [Under], when: &str) {
    for under in connections {
        let answer = under.talk.ask();
        let same = matches!(&answer, Ok(Outcome::Answer { pod, .. }) if *pod == under.pod);
        bed.require(same, || format!("{} after {when}: {answer:?}", under.label));
    }
}

fn web() -> Svc {
    Svc::new("web", 10, &["a1", "a2", "b1"])
        .node_port(30010)
        .load_balancer()
}

pub(super) fn established(bed: &mut Bed) {
    let (web, other) = (web(), Svc::new("other", 11, &["a1"]).node_port(30011));
    bed.put(&[&web]);
    let mut connections = connect(bed, &web);

    bed.put(&[&other]);
    bed.put(&[&other.clone().pods(&["a3", "b1"])]);
    bed.remove(&other);
    all_go_on(bed, &mut connections, "unrelated changes");

    // Its own endpoints change: who has one that goes away keeps it as long as it serves.
    bed.put(&[&web.clone().pods(&["a3", "b1"])]);
    all_go_on(bed, &mut connections, "a change of endpoints");
    bed.put(&[&web]);

    bed.restart();
    all_go_on(bed, &mut connections, "a restart");
    bed.sync_all();
    all_go_on(bed, &mut connections, "a full sync");
    for family in Family::ALL {
        let to = web.cluster(family);
        bed.check(
            "client",
            Protocol::Tcp,
            to,
            Expect::Served(&["a1", "a2", "b1"], Seen::Kept),
        );
    }
}

/// Another mode takes over, and the old one is cleaned up.
pub(super) fn switch(bed: &mut Bed, to: Mode) {
    // The rule that every network plugin has for what leaves the cluster. A kernel without any rule left that translates
    // addresses also stops to do so for connections under way.
    for family in ["ip", "ip6"] {
        bed.shell(&format!("nft add table {family} plugin"));
        let chain = format!("{family} plugin egress");
        bed.shell(&format!(
            "nft add chain {chain} {{ type nat hook postrouting priority 110 ; }}"
        ));
        bed.shell(&format!("nft add rule {chain} tcp dport 9 masquerade"));
    }
    let web = web();
    bed.put(&[&web]);
    let mut connections = connect(bed, &web);
    let from = bed.mode;
    let mut before = bed.switch(to);
    all_go_on(bed, &mut connections, &format!("the switch from {from}"));
    for family in Family::ALL {
        let node = bed.world.address("host", family);
        let all: &[&str] = &["a1", "a2", "b1"];
        bed.check(
            "client",
            Protocol::Tcp,
            web.cluster(family),
            Expect::Served(all, Seen::Kept),
        );
        let to = web.node_port_at(node);
        bed.check("outside", Protocol::Tcp, to, Expect::Served(all, Seen::Node));
    }
    all_go_on(bed, &mut connections, "new connections");
    // Nothing holds the old mode any longer: it is gone for good in a while.
    drop(connections);
    let started = orlop_base::clock::monotonic();
    loop {
        let cleaned = bed.world.node().netns.enter(|| before.cleanup());
        match cleaned.unwrap() {
            orlop_proxy::backend::Cleaned::Whole => break,
            orlop_proxy::backend::Cleaned::Draining if started.elapsed() > std::time::Duration::from_secs(60) => {
                return bed.require(false, || format!("{from} is never cleaned up"));
            }
            orlop_proxy::backend::Cleaned::Draining => std::thread::sleep(std::time::Duration::from_millis(50)),
        }
    }
    for family in Family::ALL {
        let all: &[&str] = &["a1", "a2", "b1"];
        bed.check(
            "client",
            Protocol::Tcp,
            web.cluster(family),
            Expect::Served(all, Seen::Kept),
        );
    }
}

//! What is in the kernel besides our own: never touched, and all that is left of us in the end.

use std::thread;
use std::time::Duration;

use orlop_proxy::backend::Cleaned;
use orlop_proxy::plan::{Family, Protocol};

use crate::bed::{Bed, Expect, Seen};
use crate::modes;
use crate::service::Svc;

const ALL: &[&str] = &["a1", "a2", "b1"];

fn services() -> [Svc; 3] {
    [
        Svc::new("web", 10, ALL).node_port(30010).load_balancer().external_ip(),
        Svc::new("dns", 11, ALL).udp().affinity(60),
        Svc::new("none", 12, &[]).node_port(30012),
    ]
}

/// Rules, tables and routes of somebody else.
fn foreign(bed: &Bed) {
    for line in [
        "nft add table inet somebody",
        "nft add chain inet somebody input { type filter hook input priority 0 ; }",
        "nft add rule inet somebody input tcp dport 9 drop",
        "nft add table ip kube-proxy-else",
        "ip route add 192.0.2.0/24 via 172.16.1.1",
    ] {
        bed.shell(line);
    }
    for program in ["iptables", "ip6tables"] {
        for rest in [
            "-t nat -N SOMEBODY",
            "-t nat -A SOMEBODY -p tcp --dport 9 -j RETURN",
            "-t nat -A PREROUTING -j SOMEBODY",
            "-t nat -A POSTROUTING -p tcp --dport 9 -j RETURN",
            "-t filter -A FORWARD -p tcp --dport 9 -j DROP",
            "-t filter -A INPUT -p tcp --dport 9 -j DROP",
            "-t filter -N KUBELET-ELSE",
            "-t mangle -A PREROUTING -p tcp --dport 9 -j DROP",
        ] {
            bed.shell(&format!("{program} {rest}"));
        }
    }
}

pub(super) fn foreign_rules(bed: &mut Bed) {
    foreign(bed);
    let before = modes::kernel(bed);
    let [web, dns, none] = services();
    bed.put(&[&web, &dns, &none]);
    for family in Family::ALL {
        bed.check(
            "client",
            Protocol::Tcp,
            web.cluster(family),
            Expect::Served(ALL, Seen::Kept),
        );
    }
    let during = modes::kernel(bed);
    for line in &before {
        bed.require(during.contains(line), || format!("a sync took away {line:?}"));
    }
    bed.require(during.len() > before.len(), || "a sync leaves no trace".to_string());
    // A proxy that starts over finds what its earlier self has made, and cleans that up too.
    bed.restart();
    bed.remove(&dns);
    cleaned_whole(bed);
    let after = modes::kernel(bed);
    for line in &before {
        bed.require(after.contains(line), || format!("a cleanup took away {line:?}"));
    }
    for line in &after {
        bed.require(before.contains(line), || format!("a cleanup leaves {line:?}"));
    }
    for family in Family::ALL {
        let node = bed.world.address("host", family);
        bed.check("outside", Protocol::Tcp, web.node_port_at(node), Expect::Refused);
    }
    // Once more does no harm.
    cleaned_whole(bed);
    let again = modes::kernel(bed);
    bed.require(again == after, || "a second cleanup changes something".to_string());
    // And a back end that was cleaned up can be used again.
    bed.sync_all();
    for family in Family::ALL {
        bed.check(
            "client",
            Protocol::Tcp,
            web.cluster(family),
            Expect::Served(ALL, Seen::Kept),
        );
    }
}

fn cleaned_whole(bed: &mut Bed) {
    let started = orlop_base::clock::monotonic();
    while bed.cleanup() != Cleaned::Whole {
        if started.elapsed() > Duration::from_secs(60) {
            return bed.require(false, || "never cleaned up".to_string());
        }
        thread::sleep(Duration::from_millis(50));
    }
}

pub(super) fn repair(bed: &mut Bed) {
    let [web, dns, none] = services();
    bed.put(&[&web, &dns, &none]);
    let whole = modes::kernel(bed);
    modes::sabotage(bed);
    bed.sync_all();
    let repaired = modes::kernel(bed);
    for line in &whole {
        bed.require(repaired.contains(line), || format!("not repaired: {line:?}"));
    }
    for family in Family::ALL {
        let node = bed.world.address("host", family);
        bed.check(
            "client",
            Protocol::Tcp,
            web.cluster(family),
            Expect::Served(ALL, Seen::Kept),
        );
        bed.check(
            "outside",
            Protocol::Tcp,
            web.node_port_at(node),
            Expect::Served(ALL, Seen::Node),
        );
        bed.check("outside", Protocol::Tcp, none.node_port_at(node), Expect::Refused);
    }
    // The same by a proxy that starts on the ruins.
    modes::sabotage(bed);
    bed.restart();
    for family in Family::ALL {
        bed.check(
            "client",
            Protocol::Tcp,
            web.cluster(family),
            Expect::Served(ALL, Seen::Kept),
        );
        bed.check("host", Protocol::Tcp, none.cluster(family), Expect::Refused);
    }
}

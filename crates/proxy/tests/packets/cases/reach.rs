//! From where services can be reached, by which address, and what pods see.

use std::net::IpAddr;

use orlop_proxy::backend::Mode;
use orlop_proxy::plan::{Family, Protocol};

use crate::bed::{Bed, Expect, Seen};
use crate::service::{State, Svc};
use crate::world::{Outcome, PATIENCE, POD_PORT, World};

use Expect::{Dropped, Ended, Refused, Served};
use Protocol::{Tcp, Udp};
use Seen::{Kept, Node};

const ALL: &[&str] = &["a1", "a2", "b1"];
const LOCAL: &[&str] = &["a1", "a2"];

/// Without a proxy, places reach each other.
pub(super) fn directly(world: &World) {
    for family in Family::ALL {
        for from in ["client", "a1", "host", "outside", "stranger", "b2"] {
            for to in ["a2", "b1"] {
                let address = (world.address(to, family), POD_PORT).into();
                for protocol in [Tcp, Udp] {
                    let outcome = world.ask(from, protocol, address, PATIENCE);
                    let Outcome::Answer { pod, .. } = outcome else {
                        panic!("{from} → {protocol:?} {address} ({to}): {outcome:?}");
                    };
                    assert_eq!(pod, to);
                }
            }
        }
    }
}

pub(super) fn cluster_ip(bed: &mut Bed) {
    directly(&bed.world);
    let web = Svc::new("web", 10, ALL);
    let dns = Svc::new("dns", 11, ALL).udp().port(53);
    bed.put(&[&web, &dns]);
    for family in Family::ALL {
        for service in [&web, &dns] {
            let (to, protocol) = (service.cluster(family), service.protocol());
            bed.check("client", protocol, to, Served(ALL, Kept));
            bed.check("host", protocol, to, Served(ALL, Node));
            // A pod behind the service, which may come back to itself.
            bed.check("a1", protocol, to, Served(ALL, Kept));
            // Routed here by someone: answers must come back this way.
            bed.check("outside", protocol, to, Served(ALL, Node));
        }
        // The same address at a port that no service has, and an address that no service has: neither leaves the node.
        let mut other = web.cluster(family);
        other.set_port(81);
        let nobody = Svc::new("nobody", 99, &[]).cluster(family);
        let unallocated = match bed.mode {
            // As kube-proxy does.
            Mode::Nftables => Dropped,
            _ => Refused,
        };
        for protocol in [Tcp, Udp] {
            for from in ["client", "a1", "outside", "host"] {
                bed.check(from, protocol, other, Refused);
            }
            bed.check("client", protocol, nobody, unallocated);
            bed.check("host", protocol, nobody, unallocated);
        }
    }
}

pub(super) fn node_port(bed: &mut Bed) {
    let web = Svc::new("web", 10, ALL).node_port(30080);
    let dns = Svc::new("dns", 11, ALL).udp().port(53).node_port(30080);
    bed.put(&[&web, &dns]);
    for family in Family::ALL {
        let node = bed.world.address("host", family);
        for service in [&web, &dns] {
            let (to, protocol) = (service.node_port_at(node), service.protocol());
            bed.check("outside", protocol, to, Served(ALL, Node));
            bed.check("client", protocol, to, Served(ALL, Node));
            bed.check("a1", protocol, to, Served(ALL, Node));
            bed.check("host", protocol, to, Served(ALL, Node));
            bed.check("client", protocol, service.cluster(family), Served(ALL, Kept));
        }
        // Another address of the node: nftables has node ports at the node's own addresses only, unless told otherwise.
        let gateway: IpAddr = match family {
            Family::V4 => "10.244.1.1".parse().unwrap(),
            Family::V6 => "fd00:244:1::1".parse().unwrap(),
        };
        let expect = match bed.mode {
            Mode::Nftables => Refused,
            _ => Served(ALL, Node),
        };
        bed.check("client", Tcp, web.node_port_at(gateway), expect);
        // Loopback is left alone, unless told otherwise.
        let loopback: IpAddr = match family {
            Family::V4 => "127.0.0.1".parse().unwrap(),
            Family::V6 => "::1".parse().unwrap(),
        };
        bed.check("host", Tcp, web.node_port_at(loopback), Ended);
        // A port that no service has.
        let mut other = web.node_port_at(node);
        other.set_port(30081);
        bed.check("outside", Tcp, other, Refused);
    }
}

pub(super) fn load_balancer(bed: &mut Bed) {
    let open = Svc::new("open", 10, ALL).node_port(30010).load_balancer();
    let ranges = ["203.0.113.0/24", "2001:db8:3::/64"];
    let closed = Svc::new("closed", 11, ALL)
        .node_port(30011)
        .load_balancer()
        .only_from(&ranges);
    bed.put(&[&open, &closed]);
    for family in Family::ALL {
        for from in ["outside", "stranger", "client", "host"] {
            bed.check(from, Tcp, open.ingress(family), Served(ALL, Node));
        }
        bed.check("outside", Tcp, closed.ingress(family), Served(ALL, Node));
        bed.check("stranger", Tcp, closed.ingress(family), Dropped);
        bed.check("client", Tcp, closed.ingress(family), Dropped);
        // The ranges are for the load balancer's address only.
        let node = bed.world.address("host", family);
        bed.check("stranger", Tcp, closed.node_port_at(node), Served(ALL, Node));
        bed.check("client", Tcp, closed.cluster(family), Served(ALL, Kept));
    }
    // The ranges change.
    bed.put(&[&closed.clone().only_from(&["198.18.0.0/24", "2001:db8:4::/64"])]);
    for family in Family::ALL {
        bed.check("outside", Tcp, closed.ingress(family), Dropped);
        bed.check("stranger", Tcp, closed.ingress(family), Served(ALL, Node));
        bed.check("outside", Tcp, open.ingress(family), Served(ALL, Node));
    }
}

/// The load balancer's address is the node's own: only the service's ports lead to it.
pub(super) fn load_balancer_at_node(bed: &mut Bed) {
    let web = Svc::new("web", 10, ALL).load_balancer_at_node();
    let near = Svc::new("near", 11, ALL)
        .port(81)
        .external_local()
        .load_balancer_at_node();
    bed.put(&[&web, &near]);
    for family in Family::ALL {
        for from in ["outside", "client", "host", "a1"] {
            bed.check(from, Tcp, web.ingress(family), Served(ALL, Node));
        }
        bed.check("outside", Tcp, near.ingress(family), Served(LOCAL, Kept));
        let mut other = web.ingress(family);
        other.set_port(82);
        for from in ["outside", "client", "host"] {
            bed.check(from, Tcp, other, Refused);
        }
    }
    bed.remove(&web);
    for family in Family::ALL {
        bed.check("outside", Tcp, web.ingress(family), Refused);
        bed.check("host", Tcp, web.ingress(family), Refused);
        bed.check("outside", Tcp, near.ingress(family), Served(LOCAL, Kept));
    }
}

pub(super) fn external_ip(bed: &mut Bed) {
    let web = Svc::new("web", 10, ALL).external_ip();
    let near = Svc::new("near", 11, ALL).external_ip().external_local();
    bed.put(&[&web, &near]);
    for family in Family::ALL {
        for from in ["outside", "client", "host", "a1"] {
            bed.check(from, Tcp, web.external(family), Served(ALL, Node));
        }
        bed.check("outside", Tcp, near.external(family), Served(LOCAL, Kept));
        bed.check("client", Tcp, near.external(family), Served(ALL, Kept));
    }
}

pub(super) fn policies(bed: &mut Bed) {
    let inner = Svc::new("inner", 10, ALL).internal_local().node_port(30010);
    let outer = Svc::new("outer", 11, ALL)
        .external_local()
        .node_port(30011)
        .load_balancer();
    let far_inner = Svc::new("far-inner", 12, &["b1", "b2"]).internal_local();
    let far_outer = Svc::new("far-outer", 13, &["b1", "b2"])
        .external_local()
        .node_port(30013)
        .load_balancer();
    let both = Svc::new("both", 14, ALL)
        .internal_local()
        .external_local()
        .node_port(30014);
    bed.put(&[&inner, &outer, &far_inner, &far_outer, &both]);
    const FAR: &[&str] = &["b1", "b2"];
    for family in Family::ALL {
        let node = bed.world.address("host", family);
        bed.check("client", Tcp, inner.cluster(family), Served(LOCAL, Kept));
        bed.check("host", Tcp, inner.cluster(family), Served(LOCAL, Node));
        bed.check("outside", Tcp, inner.node_port_at(node), Served(ALL, Node));

        bed.check("client", Tcp, outer.cluster(family), Served(ALL, Kept));
        for to in [outer.node_port_at(node), outer.ingress(family)] {
            bed.check("outside", Tcp, to, Served(LOCAL, Kept));
            // Who is on the node is not outside: all endpoints are good for them.
            bed.check("client", Tcp, to, Served(ALL, Kept));
            bed.check("host", Tcp, to, Served(ALL, Node));
        }
        bed.check("client", Tcp, both.cluster(family), Served(LOCAL, Kept));
        bed.check("outside", Tcp, both.node_port_at(node), Served(LOCAL, Kept));
        bed.check("client", Tcp, both.node_port_at(node), Served(ALL, Kept));

        bed.check("client", Tcp, far_inner.cluster(family), Dropped);
        bed.check("host", Tcp, far_inner.cluster(family), Dropped);
        for to in [far_outer.node_port_at(node), far_outer.ingress(family)] {
            bed.check("outside", Tcp, to, Dropped);
            bed.check("client", Tcp, to, Served(FAR, Kept));
            bed.check("host", Tcp, to, Served(FAR, Node));
        }
        bed.check("client", Tcp, far_outer.cluster(family), Served(FAR, Kept));
    }
    // Endpoints come to this node, and leave it.
    bed.put(&[
        &far_inner.clone().pods(&["b1", "a3"]),
        &far_outer.clone().pods(&["b1", "a3"]),
        &outer.clone().pods(&["b1"]),
    ]);
    for family in Family::ALL {
        let node = bed.world.address("host", family);
        bed.check("client", Tcp, far_inner.cluster(family), Served(&["a3"], Kept));
        bed.check("outside", Tcp, far_outer.node_port_at(node), Served(&["a3"], Kept));
        bed.check("outside", Tcp, outer.node_port_at(node), Dropped);
        bed.check("client", Tcp, outer.ingress(family), Served(&["b1"], Kept));
    }
}

pub(super) fn no_endpoints(bed: &mut Bed) {
    let web = Svc::new("web", 10, &[]).node_port(30010).load_balancer().external_ip();
    let dns = Svc::new("dns", 11, &[]).udp().port(53).node_port(30011);
    let near = Svc::new("near", 12, &[])
        .internal_local()
        .external_local()
        .node_port(30012)
        .load_balancer();
    let unready = Svc::new("unready", 13, &[]).endpoints(&[("a1", State::NotReady), ("b1", State::NotReady)]);
    bed.put(&[&web, &dns, &near, &unready]);
    for family in Family::ALL {
        let node = bed.world.address("host", family);
        for service in [&web, &dns, &near, &unready] {
            bed.check("client", service.protocol(), service.cluster(family), Refused);
        }
        for service in [&web, &dns, &near] {
            for from in ["outside", "client"] {
                bed.check(from, service.protocol(), service.node_port_at(node), Refused);
            }
        }
        // A host that refuses its own TCP connection hears of it only at the second try, a second later.
        bed.check("host", Tcp, web.cluster(family), Refused);
        bed.check("host", Udp, dns.cluster(family), Refused);
        bed.check("host", Udp, dns.node_port_at(node), Refused);
        for to in [web.ingress(family), web.external(family), near.ingress(family)] {
            bed.check("outside", Tcp, to, Refused);
            bed.check("client", Tcp, to, Refused);
        }
    }
    // Endpoints come, and go again.
    bed.put(&[&web.clone().pods(&["a1"]), &dns.clone().pods(&["b1"])]);
    for family in Family::ALL {
        bed.check("client", Tcp, web.cluster(family), Served(&["a1"], Kept));
        bed.check("outside", Tcp, web.ingress(family), Served(&["a1"], Node));
        bed.check("client", Udp, dns.cluster(family), Served(&["b1"], Kept));
    }
    bed.put(&[&web, &dns]);
    for family in Family::ALL {
        bed.check("client", Tcp, web.cluster(family), Refused);
        bed.check("outside", Tcp, web.ingress(family), Refused);
        bed.check("client", Udp, dns.cluster(family), Refused);
    }
}

pub(super) fn terminating(bed: &mut Bed) {
    use State::{Draining, Gone, NotReady, Ready};
    // While one is ready, those that go away get nothing new.
    let some = Svc::new("some", 10, &[]).endpoints(&[("a1", Ready), ("a2", Draining), ("b1", Gone)]);
    // When none is, those that still serve do.
    let last =
        Svc::new("last", 11, &[]).endpoints(&[("a1", Draining), ("a2", Gone), ("b1", Draining), ("b2", NotReady)]);
    let none = Svc::new("none", 12, &[]).endpoints(&[("a1", Gone), ("b1", Gone)]);
    // The same on each node by itself, where the policy is Local: a load balancer may not know yet.
    let near = Svc::new("near", 13, &[])
        .endpoints(&[("a1", Draining), ("b1", Ready)])
        .node_port(30013)
        .external_local();
    bed.put(&[&some, &last, &none, &near]);
    for family in Family::ALL {
        let node = bed.world.address("host", family);
        bed.check("client", Tcp, some.cluster(family), Served(&["a1"], Kept));
        bed.check("client", Tcp, last.cluster(family), Served(&["a1", "b1"], Kept));
        bed.check("client", Tcp, none.cluster(family), Refused);
        bed.check("outside", Tcp, near.node_port_at(node), Served(&["a1"], Kept));
        bed.check("client", Tcp, near.cluster(family), Served(&["b1"], Kept));
    }
}

//! Clients that come back: affinity, and UDP sockets that stay.

use std::thread;
use std::time::Duration;

use orlop_proxy::backend::Mode;
use orlop_proxy::plan::{Family, Protocol};

use crate::bed::{Bed, Expect, Seen};
use crate::service::Svc;
use crate::world::{Outcome, PATIENCE};

use Expect::{Refused, Served};
use Seen::{Kept, Node};

fn pod_that_answers(bed: &Bed, from: &str, service: &Svc, family: Family) -> String {
    match bed
        .world
        .ask(from, service.protocol(), service.cluster(family), PATIENCE)
    {
        Outcome::Answer { pod, .. } => pod,
        other => panic!("{}: {from} → {}: {other:?}", bed.mode, service.name),
    }
}

pub(super) fn affinity(bed: &mut Bed) {
    const ALL: &[&str] = &["a1", "a2", "b1"];
    let long = Svc::new("long", 10, ALL).affinity(600).node_port(30010);
    let datagrams = Svc::new("datagrams", 11, ALL).affinity(600).udp();
    let short = Svc::new("short", 12, ALL).affinity(1);
    bed.put(&[&long, &datagrams, &short]);
    for family in Family::ALL {
        for service in [&long, &datagrams] {
            for from in ["client", "a3", "host", "outside"] {
                let first = pod_that_answers(bed, from, service, family);
                for _ in 0..12 {
                    let again = pod_that_answers(bed, from, service, family);
                    bed.require(again == first, || format!("{from} has {first}, then {again}"));
                }
            }
        }
        // The pod a client sticks to goes away; it has another, and sticks to that.
        let first = pod_that_answers(bed, "client", &long, family);
        let rest: Vec<&'static str> = ALL.iter().copied().filter(|pod| *pod != first).collect();
        bed.put(&[&long.clone().pods(&rest)]);
        let second = pod_that_answers(bed, "client", &long, family);
        bed.require(second != first, || format!("{first} still answers"));
        for _ in 0..12 {
            let again = pod_that_answers(bed, "client", &long, family);
            bed.require(again == second, || format!("client has {second}, then {again}"));
        }
        bed.put(&[&long]);
    }
    // IPVS keeps a client's choice while it remembers connections of it, which is for minutes after they ended.
    if bed.mode != Mode::Ipvs {
        another_after_a_while(bed, &short);
    }
}

/// Affinity ends when a client has been away for that long.
fn another_after_a_while(bed: &mut Bed, service: &Svc) {
    let first = pod_that_answers(bed, "client", service, Family::V4);
    let started = orlop_base::clock::monotonic();
    loop {
        thread::sleep(Duration::from_millis(1300));
        if pod_that_answers(bed, "client", service, Family::V4) != first {
            return;
        }
        if started.elapsed() > Duration::from_secs(60) {
            return bed.require(false, || format!("{first} answers for ever"));
        }
    }
}

/// Sends from one socket until this pod answers; what is in between may be lost.
fn until_answered_by(bed: &mut Bed, talk: &mut crate::world::UdpTalk, wanted: &str) {
    let started = orlop_base::clock::monotonic();
    let mut last = None;
    while started.elapsed() < Duration::from_secs(15) {
        match talk.ask(Duration::from_millis(500)) {
            Ok(Outcome::Answer { pod, .. }) if pod == wanted => return,
            other => last = Some(other),
        }
    }
    bed.require(false, || format!("{wanted} does not answer the same socket: {last:?}"));
}

pub(super) fn udp(bed: &mut Bed) {
    let dns = Svc::new("dns", 10, &["a1"])
        .udp()
        .port(53)
        .node_port(30053)
        .load_balancer();
    let late = Svc::new("late", 11, &[]).udp().port(53);
    bed.put(&[&dns, &late]);
    for family in Family::ALL {
        let node = bed.world.address("host", family);
        bed.check("client", Protocol::Udp, dns.cluster(family), Served(&["a1"], Kept));
        bed.check("outside", Protocol::Udp, dns.ingress(family), Served(&["a1"], Node));
        bed.check("client", Protocol::Udp, late.cluster(family), Refused);

        // A client that never closes its socket, by each kind of address, while the pod behind is replaced.
        let mut talks = vec![
            bed.world.udp("client", dns.cluster(family)),
            bed.world.udp("host", dns.cluster(family)),
            bed.world.udp("outside", dns.node_port_at(node)),
            bed.world.udp("outside", dns.ingress(family)),
        ];
        for pod in ["a1", "a2", "b1"] {
            bed.put(&[&dns.clone().pods(match pod {
                "a1" => &["a1"],
                "a2" => &["a2"],
                _ => &["b1"],
            })]);
            for talk in &mut talks {
                until_answered_by(bed, talk, pod);
            }
        }
        // One that sends before there is an endpoint: what the kernel remembers of that must not stay in the way.
        let mut early = bed.world.udp("client", late.cluster(family));
        for _ in 0..2 {
            let answer = early.ask(Duration::from_millis(300));
            bed.require(answer.is_err(), || format!("nobody should answer: {answer:?}"));
        }
        bed.put(&[&late.clone().pods(&["a3"])]);
        until_answered_by(bed, &mut early, "a3");
        bed.put(&[&late, &dns]);
    }
}

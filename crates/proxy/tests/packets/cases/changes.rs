//! Changes one at a time, while the rest stays as it is.

use orlop_proxy::plan::{Change, Family, Protocol};

use crate::bed::{Bed, Expect, Seen};
use crate::service::Svc;

use Expect::{Ended, Refused, Served};
use Protocol::Tcp;
use Seen::{Kept, Node};

pub(super) fn changes(bed: &mut Bed) {
    let web = Svc::new("web", 10, &["a1"]).node_port(30010);
    let other = Svc::new("other", 11, &["a3"]).node_port(30011);
    bed.put(&[&web, &other]);
    let served = |bed: &mut Bed, service: &Svc, pods: &'static [&'static str]| {
        for family in Family::ALL {
            bed.check("client", Tcp, service.cluster(family), Served(pods, Kept));
        }
    };
    served(bed, &web, &["a1"]);

    bed.put(&[&web.clone().pods(&["a1", "a2"])]);
    served(bed, &web, &["a1", "a2"]);
    bed.put(&[&web.clone().pods(&["a1", "a2", "b1"])]);
    served(bed, &web, &["a1", "a2", "b1"]);
    bed.put(&[&web.clone().pods(&["b1"])]);
    served(bed, &web, &["b1"]);
    served(bed, &other, &["a3"]);

    // Its port and node port become others: the old ones lead nowhere.
    let moved = Svc::new("web", 10, &["b1"]).port(8000).node_port(30020);
    bed.put(&[&moved]);
    served(bed, &moved, &["b1"]);
    for family in Family::ALL {
        let node = bed.world.address("host", family);
        bed.check("outside", Tcp, moved.node_port_at(node), Served(&["b1"], Node));
        bed.check("outside", Tcp, web.node_port_at(node), Refused);
    }

    // Two services change places in one go.
    let one = Svc::new("one", 20, &["a1"]).node_port(30030);
    let two = Svc::new("two", 21, &["a2"]).node_port(30031);
    bed.put(&[&one, &two]);
    bed.put(&[&one.clone().node_port(30031), &two.clone().node_port(30030)]);
    for family in Family::ALL {
        let node = bed.world.address("host", family);
        bed.check("outside", Tcp, one.node_port_at(node), Served(&["a2"], Node));
        bed.check("outside", Tcp, two.node_port_at(node), Served(&["a1"], Node));
    }

    // Gone: the cluster address leads nowhere any more, whatever the network behind says of it; the node port is refused.
    bed.remove(&moved);
    for family in Family::ALL {
        let node = bed.world.address("host", family);
        bed.check("outside", Tcp, moved.node_port_at(node), Refused);
        unreachable(bed, "client", &moved, family);
    }
    served(bed, &other, &["a3"]);

    // Nothing to do is nothing done.
    let plan = bed.planner.plan().clone();
    let backend = &mut bed.backend;
    let report = bed
        .world
        .node()
        .netns
        .enter(|| backend.sync(&plan, &Change::Keys(vec![])).unwrap());
    let written: usize = report.written.iter().map(|(_, count)| count).sum();
    bed.require(written == 0, || format!("{:?} written for no change", report.written));
    let report = bed.sync_all();
    let written: usize = report.written.iter().map(|(_, count)| count).sum();
    bed.require(written == 0, || {
        format!("{:?} written though all was in place", report.written)
    });
    served(bed, &other, &["a3"]);

    // And it comes back.
    bed.put(&[&web]);
    served(bed, &web, &["a1"]);
    bed.remove(&web);
    bed.remove(&other);
    for family in Family::ALL {
        unreachable(bed, "client", &other, family);
        let node = bed.world.address("host", family);
        bed.check("host", Tcp, other.node_port_at(node), Ended);
    }
}

fn unreachable(bed: &mut Bed, from: &str, service: &Svc, family: Family) {
    use crate::world::{IMPATIENCE, Outcome};
    // The router sends cluster addresses back to the node until a packet has lived long enough.
    let outcome = bed.world.ask(from, Tcp, service.cluster(family), IMPATIENCE);
    let reached = matches!(outcome, Outcome::Answer { .. });
    bed.require(!reached, || {
        format!("{from} still reaches {}: {outcome:?}", service.name)
    });
}

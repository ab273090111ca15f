//! How worker nodes are connected: each is a network namespace with a link to the machine, which routes between them.
//!
//! ```text
//!  worker-1: eth0 172.30.7.2/32 ── veth ── machine: orl…-n1 172.30.7.1/32   172.30.7.2/32  dev orl…-n1
//!            default via 172.30.7.1                                         10.244.1.0/24 via 172.30.7.2
//! ```
//!
//! Links are routed, as those of pods are, and have addresses of both families if pods have. A node that is cut off has its
//! link down; what is sent to it then is answered with "unreachable" instead of leaving the machine by its default route.
//! Everything here can be repeated.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::{IpNet, Ipv4Net};
use orlop_netlink::nft::{Chain, Hook, Name, Part, Rule, Table};
use orlop_netlink::route::{Link, Route, RouteEntry, RouteKind, Veth, everywhere};
use orlop_netlink::{Connection, Family, Namespace};
use orlop_runtime::embedded::network::{nodes_prefix, nodes_table};

use super::ranges::{self, LinkEnds, PodRanges};

const NAMESPACES: &str = "/run/netns";
const INSIDE: &str = "eth0";
const MTU: u32 = 1500;
/// Behind every other route.
const LAST_METRIC: u32 = 1 << 24;

const POSTROUTING: u32 = 4;
const SNAT: i32 = 100;

/// The links of a cluster's workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkerLinks {
    /// The data directory, by its whole path.
    pub cluster: String,
    /// Of the workers' addresses.
    pub range: Ipv4Net,
    /// Of all pods.
    pub pods: PodRanges,
    /// Otherwise the nodes' pod networks do it themselves.
    pub routes_pods: bool,
}

/// One worker's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WorkerLink {
    pub name: String,
    pub number: u8,
    pub pods: PodRanges,
}

impl WorkerLinks {
    /// The file that stands for a worker's network namespace, also for `ip netns exec`.
    pub(crate) fn namespace(cluster: &str, node: &str) -> PathBuf {
        Path::new(NAMESPACES).join(format!("{}-{node}", nodes_prefix(cluster)))
    }

    fn link_name(&self, worker: &WorkerLink) -> String {
        format!("{}-n{}", nodes_prefix(&self.cluster), worker.number)
    }

    fn ends(&self, worker: &WorkerLink) -> Vec<LinkEnds> {
        let families = self.pods.families().into_iter();
        families
            .map(|family| LinkEnds::new(self.range, worker.number, family))
            .collect()
    }

    /// The workers' addresses and this worker's pods.
    fn routed<'a>(&'a self, worker: &'a WorkerLink) -> impl Iterator<Item = IpNet> {
        let families = self.pods.families().into_iter();
        let nodes = families.map(|family| ranges::node_range(self.range, family));
        nodes.chain(worker.pods.iter())
    }

    /// Makes a worker's namespace and connects it.
    pub(crate) fn connect(&self, worker: &WorkerLink) -> io::Result<()> {
        let namespace = Namespace::ensure(&WorkerLinks::namespace(&self.cluster, &worker.name))?;
        let ends = self.ends(worker);
        let mut route = Route::open()?;
        for range in self.routed(worker) {
            route.replace_route(&unreachable(range))?;
        }
        let link = self.ensure_link(&mut route, worker, &namespace)?;
        for end in &ends {
            route.add_address(link.index, end.gateway)?;
        }
        route.set_up(link.index)?;
        namespace.run(|| set_up_inside(&ends))??;
        for end in &ends {
            route.replace_route(&RouteEntry {
                source: Some(end.gateway),
                ..RouteEntry::by_link(IpNet::from(end.worker), link.index)
            })?;
            let same_family = |range: &IpNet| range.addr().is_ipv4() == end.worker.is_ipv4();
            for range in worker.pods.iter().filter(same_family).filter(|_| self.routes_pods) {
                route.replace_route(&by_gateway(range, end.worker, link.index))?;
            }
        }
        self.masquerade()
    }

    fn ensure_link(&self, route: &mut Route, worker: &WorkerLink, namespace: &Namespace) -> io::Result<Link> {
        let name = self.link_name(worker);
        // Both ends go together: without the other one in the namespace it is that of a worker that is gone.
        let is_whole = namespace.run(|| Route::open()?.link(INSIDE))??.is_some();
        match route.link(&name)? {
            Some(link) if is_whole => return Ok(link),
            Some(link) => route.delete_link(link.index)?,
            None => {}
        }
        route.create_veth(&Veth {
            name: &name,
            peer_name: INSIDE,
            peer_namespace: std::os::fd::AsFd::as_fd(namespace),
            mtu: MTU,
        })?;
        route.link(&name)?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// What workers and their pods send out of the machine has the machine's address.
    fn masquerade(&self) -> io::Result<()> {
        let mut netfilter = Connection::netfilter()?;
        for pods in self.pods.iter() {
            let family = Family::of(pods.addr());
            let range = ranges::node_range(self.range, family);
            let rule = Rule::new(family, |to| {
                to.within(Part::Source, range, false);
                to.within(Part::Destination, range, true);
                to.within(Part::Destination, pods, true);
                to.masquerade();
            });
            let hook = Hook {
                kind: "nat",
                number: POSTROUTING,
                priority: SNAT,
            };
            let chain = Chain {
                hook: Some(hook),
                rules: vec![rule.commented("worker nodes leave the machine with its address")],
            };
            let mut table = table(&self.cluster, family);
            table.put_chain(&Name::from("masquerade"), chain);
            table.resync(&mut netfilter).map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// Takes a worker's link down: nobody reaches it, and it reaches nobody.
    pub(crate) fn cut(&self, worker: &WorkerLink) -> io::Result<()> {
        let mut route = Route::open()?;
        match route.link(&self.link_name(worker))? {
            Some(link) => route.set_down(link.index),
            None => Ok(()),
        }
    }

    /// Takes a worker's link and namespace away. What is gone already is fine.
    pub(crate) fn remove(&self, worker: &WorkerLink) -> io::Result<()> {
        let mut route = Route::open()?;
        if let Some(link) = route.link(&self.link_name(worker))? {
            route.delete_link(link.index)?;
        }
        for range in worker.pods.iter() {
            route.delete_route(&unreachable(range))?;
        }
        Namespace::remove(&WorkerLinks::namespace(&self.cluster, &worker.name))
    }

    /// Takes away all that a cluster's workers have, whatever there is of it.
    pub(crate) fn remove_all(
        cluster: &str,
        nodes: &[String],
        range: Option<Ipv4Net>,
        pods: &[IpNet],
    ) -> io::Result<()> {
        let mut route = Route::open()?;
        let prefix = format!("{}-n", nodes_prefix(cluster));
        for link in route.links()?.into_iter().filter(|link| link.name.starts_with(&prefix)) {
            route.delete_link(link.index)?;
        }
        let own = range
            .iter()
            .flat_map(|range| Family::ALL.map(|family| ranges::node_range(*range, family)));
        let ranges: Vec<IpNet> = own.chain(pods.iter().copied()).collect();
        let is_ours = |entry: &RouteEntry| {
            *entry == unreachable(entry.to) && ranges.iter().any(|range| range.contains(&entry.to))
        };
        for entry in route.our_routes()?.into_iter().filter(is_ours) {
            route.delete_route(&entry)?;
        }
        let mut netfilter = Connection::netfilter()?;
        for family in Family::supported() {
            let mut table = table(cluster, *family);
            table.delete(&mut netfilter).map_err(io::Error::other)?;
        }
        for node in nodes {
            Namespace::remove(&WorkerLinks::namespace(cluster, node))?;
        }
        Ok(())
    }
}

fn table(cluster: &str, family: Family) -> Table {
    Table::new(family, nodes_table(cluster).as_str())
}

/// The networks that this machine has addresses in.
pub(crate) fn used_networks() -> io::Result<Vec<IpNet>> {
    let addresses = Route::open()?.addresses()?.into_iter();
    Ok(addresses
        .filter_map(|address| IpNet::new(address.ip, address.prefix).ok())
        .map(|net| net.trunc())
        .collect())
}

fn set_up_inside(ends: &[LinkEnds]) -> io::Result<()> {
    let mut route = Route::open()?;
    let loopback = route.link("lo")?.ok_or(io::ErrorKind::NotFound)?;
    route.set_up(loopback.index)?;
    let link = route.link(INSIDE)?.ok_or(io::ErrorKind::NotFound)?;
    for end in ends {
        route.add_address(link.index, end.worker)?;
    }
    route.set_up(link.index)?;
    for end in ends {
        let family = Family::of(end.worker);
        route.replace_route(&by_gateway(everywhere(family), end.gateway, link.index))?;
    }
    Ok(())
}

fn by_gateway(to: IpNet, gateway: IpAddr, link: u32) -> RouteEntry {
    let kind = RouteKind::Unicast {
        link: Some(link),
        gateway: Some(gateway),
        is_on_link: true,
    };
    RouteEntry::new(to, kind)
}

fn unreachable(to: IpNet) -> RouteEntry {
    RouteEntry {
        metric: LAST_METRIC,
        ..RouteEntry::new(to, RouteKind::Unreachable)
    }
}

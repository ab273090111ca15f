//! The thread that does the work: one call after the other, in the node's network namespace.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;

use ipnet::IpNet;
use netlink_sys::protocols::NETLINK_NETFILTER;
use orlop_netlink::conntrack::Conntrack;
use orlop_netlink::nft::Table;
use orlop_netlink::route::{Link, Route, RouteEntry, RouteKind, Veth, Vxlan};
use orlop_netlink::{Connection, Family, Namespace, Protocol};

use super::addresses::{Leases, Range};
use super::error::{PodNetworkError, Result, kernel, state};
use super::host_ports::{self, HostPort};
use super::names::{Names, vxlan_mac};
use super::overlay::{self, PeerNode, Transport};
use super::pod::{self, PodAddress};
use super::rules::{self, Ranges};
use super::sandboxes::{Sandbox, Sandboxes, check_id};
use super::{Freed, Options, node};
use crate::cri::messages::PortMapping;

/// Where no link leads out of the node.
const MTU_DEFAULT: u32 = 1500;
/// Less, and IPv6 is off on a link.
const MTU_LEAST: u32 = 1280;

pub(super) struct Worker {
    options: Options,
    names: Names,
    /// The node's.
    namespace: Namespace,
    route: Route,
    netfilter: Connection,
    /// One of each family at most.
    ranges: Vec<Range>,
    tables: Vec<Table>,
    mtu: u32,
    leases: Leases,
    sandboxes: Sandboxes,
    #[cfg(test)]
    pub(super) steps_left: Option<usize>,
}

impl Worker {
    /// On a thread that is in the node's namespace.
    pub(super) fn open(options: Options, namespace: Namespace) -> Result<Worker> {
        let names = Names::new(&options.cluster, &options.node);
        Ok(Worker {
            route: Route::open().map_err(kernel("open a route socket"))?,
            netfilter: Connection::open(NETLINK_NETFILTER).map_err(kernel("open a netfilter socket"))?,
            leases: Leases::open(options.state_dir.join("addresses"))?,
            sandboxes: Sandboxes::open(options.state_dir.join("sandboxes"))?,
            ranges: vec![],
            tables: vec![],
            mtu: MTU_DEFAULT,
            names,
            namespace,
            options,
            #[cfg(test)]
            steps_left: None,
        })
    }

    pub(super) fn is_ready(&self) -> bool {
        !self.ranges.is_empty()
    }

    /// Where a test has the process end.
    pub(super) fn step(&mut self) -> Result<()> {
        #[cfg(test)]
        if let Some(left) = &mut self.steps_left {
            *left = left.checked_sub(1).ok_or(PodNetworkError::Stopped)?;
        }
        Ok(())
    }

    pub(super) fn set_ranges(&mut self, ranges: &[IpNet]) -> Result<()> {
        let ranges: Vec<Range> = ranges.iter().copied().map(Range::new).collect::<Result<_>>()?;
        for (at, range) in ranges.iter().enumerate() {
            let family = Family::of(range.net().addr());
            if ranges[..at]
                .iter()
                .any(|other| Family::of(other.net().addr()) == family)
            {
                let reason = "the node has another one of this family";
                return Err(PodNetworkError::InvalidRange {
                    range: range.net(),
                    reason,
                });
            }
        }
        node::forward(&overlay::families(&ranges))?;
        let mtu = self
            .link_mtu()
            .map_err(kernel("find the MTU of the link that leads out"))?;
        self.mtu = mtu.saturating_sub(self.options.transport.overhead(None)).max(MTU_LEAST);
        for gone in self.ranges.iter().filter(|range| !ranges.contains(range)) {
            let outcome = self.route.delete_route(&nobody(*gone));
            outcome.map_err(kernel("delete the route to a former pod CIDR"))?;
        }
        for range in &ranges {
            let outcome = self.route.replace_route(&nobody(*range));
            outcome.map_err(kernel("add the route to the pod CIDR"))?;
        }
        self.ranges = ranges;
        self.describe_tables()?;
        self.sync_tables(true)
    }

    fn link_mtu(&mut self) -> io::Result<u32> {
        if let Some(mtu) = self.options.mtu {
            return Ok(mtu);
        }
        let Some(index) = self.route.default_link()? else {
            return Ok(MTU_DEFAULT);
        };
        let links = self.route.links()?;
        let link = links.into_iter().find(|link| link.index == index);
        Ok(link.map_or(MTU_DEFAULT, |link| link.mtu))
    }

    /// One table a family that there is a range of; those of families that there is none of any more go.
    fn describe_tables(&mut self) -> Result<()> {
        for family in Family::ALL {
            let at = self.tables.iter().position(|table| table.family() == family);
            let wanted = self.ranges.iter().any(|range| Family::of(range.net().addr()) == family);
            match (at, wanted) {
                (None, true) => self.tables.push(Table::new(family, self.names.table.as_str())),
                (Some(at), false) => self.tables.remove(at).delete(&mut self.netfilter)?,
                _ => {}
            }
        }
        for table in &mut self.tables {
            let family = table.family();
            let Some(range) = self
                .ranges
                .iter()
                .find(|range| Family::of(range.net().addr()) == family)
            else {
                continue;
            };
            let ranges = Ranges {
                pods: range.net(),
                cluster: &self.options.cluster_ranges,
                link_prefix: &self.names.prefix,
            };
            let mappings = host_ports::plan(family, self.sandboxes.iter().map(|(_, sandbox)| sandbox));
            rules::describe(table, &ranges, &mappings);
        }
        Ok(())
    }

    /// `all`: whatever the kernel holds, and not only what changed.
    fn sync_tables(&mut self, all: bool) -> Result<()> {
        for table in &mut self.tables {
            match all {
                true => table.resync(&mut self.netfilter)?,
                false => table.sync(&mut self.netfilter)?,
            };
        }
        Ok(())
    }

    pub(super) fn attach(&mut self, id: &str, netns: &Path, ports: &[PortMapping]) -> Result<Vec<IpAddr>> {
        check_id(id)?;
        if !self.is_ready() {
            return Err(PodNetworkError::NotReady);
        }
        let ports = host_ports::parse(ports)?;
        let namespace = Namespace::open(netns).map_err(kernel(format!("open {}", netns.display())))?;
        if self.is_own(&namespace)? {
            return Err(PodNetworkError::NodeNamespace(netns.to_path_buf()));
        }
        self.step()?;
        let sandbox = self.reserve(id, ports)?;
        self.step()?;
        self.connect(&sandbox, &namespace)?;
        self.step()?;
        self.describe_tables()?;
        self.sync_tables(false)?;
        self.forget_flows(&sandbox.ports)?;
        Ok(sandbox.addresses)
    }

    fn is_own(&self, namespace: &Namespace) -> Result<bool> {
        let same = namespace.is_same(&self.namespace);
        same.map_err(kernel("identify the pod's network namespace"))
    }

    /// Writes down what the sandbox is to have.
    fn reserve(&mut self, id: &str, ports: Vec<HostPort>) -> Result<Sandbox> {
        let mut addresses = vec![];
        for range in self.ranges.clone() {
            match self.leases.lease(range, id) {
                Ok(ip) => addresses.push(ip),
                Err(error) => {
                    // Not one family without the other, unless it had that before.
                    if self.sandboxes.get(id).is_none() {
                        self.leases.release(id)?;
                    }
                    return Err(error);
                }
            }
            self.step()?;
        }
        let sandbox = self.sandboxes.describe(id, &self.names, addresses, ports);
        self.sandboxes.put(id, sandbox.clone())?;
        Ok(sandbox)
    }

    fn connect(&mut self, sandbox: &Sandbox, namespace: &Namespace) -> Result<()> {
        let link = self.veth(sandbox, namespace)?;
        self.step()?;
        let addresses: Vec<PodAddress> = sandbox
            .addresses
            .iter()
            .filter_map(|ip| self.pod_address(*ip))
            .collect();
        pod::set_up(namespace, &addresses)?;
        self.step()?;
        node::set_up_link(&link.name, &overlay::families(&self.ranges), !sandbox.ports.is_empty())?;
        self.step()?;
        self.set_up_link(&link, &addresses)
            .map_err(kernel(format!("configure link {}", link.name)))
    }

    /// The sandbox's pair of links: the one that is there, or a new one.
    fn veth(&mut self, sandbox: &Sandbox, namespace: &Namespace) -> Result<Link> {
        let name = &sandbox.link;
        let failed = |action: &str| kernel(format!("{action} link {name}"));
        let found = self.route.link(name).map_err(failed("find"))?;
        if let Some(found) = found {
            let peer = pod::find(namespace)?;
            let is_pair = peer.is_some_and(|peer| peer.peer == Some(found.index) && found.peer == Some(peer.index));
            if is_pair {
                return Ok(found);
            }
            // Its other end is in a namespace that the sandbox had before.
            self.route.delete_link(found.index).map_err(failed("delete"))?;
        }
        let veth = Veth {
            name,
            peer_name: pod::LINK,
            peer_namespace: namespace.as_fd(),
            mtu: self.mtu,
        };
        self.route.create_veth(&veth).map_err(failed("create"))?;
        let made = self.route.link(name).map_err(failed("find"))?;
        made.ok_or_else(|| failed("find")(io::ErrorKind::NotFound.into()))
    }

    fn pod_address(&self, ip: IpAddr) -> Option<PodAddress> {
        let mut ranges = self.ranges.iter();
        let range = ranges.find(|range| Family::of(range.net().addr()) == Family::of(ip))?;
        let gateway = range.gateway();
        Some(PodAddress { ip, gateway })
    }

    fn set_up_link(&mut self, link: &Link, addresses: &[PodAddress]) -> io::Result<()> {
        for address in addresses {
            self.route.add_address(link.index, address.gateway)?;
        }
        if !link.is_up {
            self.route.set_up(link.index)?;
        }
        for address in addresses {
            let mut entry = RouteEntry::by_link(IpNet::from(address.ip), link.index);
            entry.source = Some(address.gateway);
            self.route.replace_route(&entry)?;
        }
        Ok(())
    }

    /// The sandbox's link, which is to be deleted before the sandbox is forgotten.
    pub(super) fn link_of(&self, id: &str) -> Result<Option<String>> {
        check_id(id)?;
        Ok(self.sandboxes.get(id).map(|sandbox| sandbox.link.clone()))
    }

    /// Frees what a sandbox has beside its link.
    pub(super) fn forget(&mut self, id: &str) -> Result<()> {
        check_id(id)?;
        let ports = self.sandboxes.get(id).map(|sandbox| sandbox.ports.clone());
        self.leases.release(id)?;
        self.step()?;
        self.sandboxes.remove(id)?;
        self.step()?;
        self.describe_tables()?;
        self.sync_tables(false)?;
        self.forget_flows(&ports.unwrap_or_default())
    }

    /// UDP flows by these host ports that go elsewhere than they should.
    fn forget_flows(&mut self, ports: &[HostPort]) -> Result<()> {
        let udp = ports.iter().filter(|port| port.protocol == Protocol::Udp);
        let udp: BTreeSet<u16> = udp.map(|port| port.host_port).collect();
        if udp.is_empty() {
            return Ok(());
        }
        let forgotten = self.forget_flows_by(&udp);
        forgotten.map_err(kernel("delete stale UDP flows"))
    }

    fn forget_flows_by(&mut self, ports: &BTreeSet<u16>) -> io::Result<()> {
        let own: BTreeSet<IpAddr> = self.route.addresses()?.into_iter().map(|address| address.ip).collect();
        let mut conntrack = Conntrack::open()?;
        for range in &self.ranges {
            let family = Family::of(range.net().addr());
            let mappings = host_ports::plan(family, self.sandboxes.iter().map(|(_, sandbox)| sandbox));
            let stale = conntrack.flows(family, Protocol::Udp, |flow| {
                let to = flow.destination;
                ports.contains(&to.port()) && own.contains(&to.ip()) && mappings.is_stale(flow, range.net())
            })?;
            conntrack.delete(family, &stale)?;
        }
        Ok(())
    }

    /// Those that are not there are fine.
    pub(super) fn delete_links(&mut self, names: &[String]) -> Result<()> {
        let deleted = self.route.delete_links(names, self.names.group);
        deleted.map_err(kernel("delete links"))
    }

    pub(super) fn retain(&mut self, live: &[String]) -> Result<Freed> {
        let live: BTreeSet<&str> = live.iter().map(String::as_str).collect();
        let is_gone = |id: &&str| !live.contains(id);
        let sandboxes: Vec<String> = self
            .sandboxes
            .iter()
            .map(|(id, _)| id)
            .filter(is_gone)
            .map(Into::into)
            .collect();
        let kept = self.sandboxes.iter().filter(|(id, _)| live.contains(id));
        let kept: BTreeSet<String> = kept.map(|(_, sandbox)| sandbox.link.clone()).collect();
        let links: Vec<String> = self
            .our_links()?
            .into_iter()
            .filter(|name| !kept.contains(name))
            .collect();
        self.delete_links(&links)?;
        for id in &sandboxes {
            self.forget(id)?;
        }
        let owners: BTreeSet<String> = self.leases.owners().filter(is_gone).map(Into::into).collect();
        for id in &owners {
            self.leases.release(id)?;
        }
        self.describe_tables()?;
        self.sync_tables(true)?;
        Ok(Freed {
            sandboxes: sandboxes.len(),
            addresses: owners.len(),
            links: links.len(),
        })
    }

    /// The node's ends of pods' links.
    fn our_links(&mut self) -> Result<Vec<String>> {
        let links = self.route.links().map_err(kernel("list links"))?;
        let names = links.into_iter().map(|link| link.name);
        Ok(names.filter(|name| self.names.is_veth(name)).collect())
    }

    pub(super) fn set_nodes(&mut self, nodes: &[PeerNode]) -> Result<()> {
        let Options {
            cluster,
            node,
            transport,
            ..
        } = &self.options;
        let plan = overlay::plan(cluster, node, *transport, nodes);
        let vxlan = match (*transport, overlay::local_address(nodes, node)) {
            (Transport::Routes, _) => None,
            // Nothing can be sent before the node has an address.
            (Transport::Vxlan { .. }, None) => return Ok(()),
            (Transport::Vxlan { id, port }, Some(local)) => Some(self.vxlan(id, port, local)?),
        };
        let applied = overlay::apply(&mut self.route, &plan, vxlan, &self.options.cluster_ranges);
        applied.map_err(kernel("set the routes to other nodes"))
    }

    /// The index of the VXLAN device, which is made if need be.
    fn vxlan(&mut self, id: u32, port: u16, local: IpAddr) -> Result<u32> {
        let Options { cluster, node, .. } = &self.options;
        let mac = vxlan_mac(cluster, node);
        let name = self.names.vxlan.clone();
        let failed = |action: &str| kernel(format!("{action} link {name}"));
        let mtu = self.link_mtu().map_err(failed("find the MTU of"))?;
        let mtu = mtu.saturating_sub(self.options.transport.overhead(Some(local)));
        let vxlan = Vxlan {
            name: &name,
            id,
            local,
            port,
            mac,
            mtu,
        };
        let mut found = self.route.link(&name).map_err(failed("find"))?;
        if let Some(link) = found.take_if(|link| link.mac != Some(mac) || link.local != Some(local)) {
            self.route.delete_link(link.index).map_err(failed("delete"))?;
        }
        let link = match found {
            Some(link) => link,
            None => {
                self.route.create_vxlan(&vxlan).map_err(failed("create"))?;
                let made = self.route.link(&name).map_err(failed("find"))?;
                made.ok_or_else(|| failed("find")(io::ErrorKind::NotFound.into()))?
            }
        };
        self.set_up_vxlan(&link).map_err(failed("configure"))?;
        Ok(link.index)
    }

    fn set_up_vxlan(&mut self, link: &Link) -> io::Result<()> {
        for range in &self.ranges {
            // What the node itself sends to pods of other nodes comes from its address among its own pods.
            self.route.add_address(link.index, range.gateway())?;
        }
        match link.is_up {
            true => Ok(()),
            false => self.route.set_up(link.index),
        }
    }

    pub(super) fn remove_all(&mut self) -> Result<()> {
        let mut links = self.our_links()?;
        links.push(self.names.vxlan.clone());
        self.delete_links(&links)?;
        self.remove_routes().map_err(kernel("delete routes"))?;
        self.tables.clear();
        for family in Family::supported() {
            Table::new(*family, self.names.table.as_str()).delete(&mut self.netfilter)?;
        }
        self.ranges.clear();
        let directory = &self.options.state_dir;
        match std::fs::remove_dir_all(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            outcome => outcome.map_err(state("remove", directory))?,
        }
        // Whoever goes on with this network begins with nothing.
        self.leases = Leases::open(directory.join("addresses"))?;
        self.sandboxes = Sandboxes::open(directory.join("sandboxes"))?;
        std::fs::remove_dir_all(directory).map_err(state("remove", directory))
    }

    /// Those to other nodes, and those that say that there is nobody. Pods' own went with their links.
    fn remove_routes(&mut self) -> io::Result<()> {
        let cluster = &self.options.cluster_ranges;
        let own: Vec<IpNet> = self.ranges.iter().map(|range| range.net()).collect();
        let within = |entry: &RouteEntry| cluster.iter().chain(&own).any(|range| range.contains(&entry.to));
        for entry in self.route.our_routes()?.into_iter().filter(within) {
            self.route.delete_route(&entry)?;
        }
        Ok(())
    }
}

/// Who sends to an address that no pod has is told at once.
fn nobody(range: Range) -> RouteEntry {
    RouteEntry::new(range.net(), RouteKind::Unreachable)
}

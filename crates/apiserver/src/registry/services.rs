//! Addresses and node ports of services: chosen, checked and released in the same transaction as the service itself, so
//! that no two services ever share one and none is leaked.
//!
//! An address is taken by an IPAddress object named after it, as in Kubernetes. A node port is taken by a record of our
//! own under /registry/ranges/servicenodeports/.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use orlop_api::{Cursor, KindDef, ProblemKind, Problems, Status, Value};
use orlop_base::clock::rfc3339;
use orlop_store::{Action, Expect, Op, RangeQuery};
use serde_json::json;

use super::Registry;
use super::create::meta_text;
use crate::kinds;
use crate::object::Object;

/// Records of taken node ports; not served, so not in the table of kinds.
pub(crate) const NODE_PORT: &KindDef = &KindDef {
    kind: "NodePort",
    plural: "ranges/servicenodeports",
    ..KindDef::BASE
};

fn node_port_key(port: i64) -> String {
    format!("{}ranges/servicenodeports/{port}", kinds::PREFIX)
}

/// Whether objects of this kind have addresses or ports to take.
pub fn concerns(kind: &KindDef) -> bool {
    kind.kind == "Service" && kind.group.is_empty()
}

/// What a write of this object must take and release. Fills in what the system chooses. `new` is `None` on delete.
pub fn plan(
    registry: &Registry,
    kind: &KindDef,
    new: Option<&mut Value>,
    old: Option<&Value>,
) -> Result<Vec<Op<Object>>, Status> {
    if !concerns(kind) {
        return Ok(vec![]);
    }
    let mut held_ips = old.map(addresses).unwrap_or_default();
    let mut held_ports = old.map(node_ports).unwrap_or_default();
    let mut ops = vec![];
    if let Some(service) = new {
        if let Some(old) = old {
            carry_over(service, old);
        }
        let mut allocation = Allocation {
            registry,
            problems: Problems::default(),
            held_ips,
            held_ports,
            ops,
        };
        allocation.choose_families(service);
        allocation.addresses(service);
        allocation.ports(service);
        if !allocation.problems.is_empty() {
            return Err(Status::invalid(
                "",
                "Service",
                meta_text(service, "name"),
                &allocation.problems,
            ));
        }
        let (ips, ports) = (addresses(service), node_ports(service));
        held_ips = allocation.held_ips.into_iter().filter(|ip| !ips.contains(ip)).collect();
        held_ports = allocation
            .held_ports
            .into_iter()
            .filter(|p| !ports.contains(p))
            .collect();
        ops = allocation.ops;
    }
    let ip_kind = kinds::of_stored("ipaddresses.networking.k8s.io").expect("IPAddress is a built-in kind");
    let released = held_ips.iter().map(|ip| kinds::key(ip_kind, "", &ip.to_string()));
    for key in released.chain(held_ports.iter().map(|p| node_port_key(*p))) {
        ops.push(Op {
            key: key.into(),
            expect: Expect::Any,
            action: Action::Delete,
        });
    }
    Ok(ops)
}

fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

fn addresses(service: &Value) -> BTreeSet<IpAddr> {
    let list = service.pointer("/spec/clusterIPs").and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .filter_map(|ip| ip.as_str()?.parse().ok())
        .collect()
}

fn node_ports(service: &Value) -> BTreeSet<i64> {
    let ports = service.pointer("/spec/ports").and_then(Value::as_array);
    let mut set: BTreeSet<i64> = ports
        .into_iter()
        .flatten()
        .filter_map(|p| p["nodePort"].as_i64())
        .filter(|p| *p > 0)
        .collect();
    set.extend(
        service
            .pointer("/spec/healthCheckNodePort")
            .and_then(Value::as_i64)
            .filter(|p| *p > 0),
    );
    set
}

fn has_cluster_ip(service: &Value) -> bool {
    text(service, "/spec/type") != "ExternalName"
}

fn wants_node_ports(service: &Value) -> bool {
    match text(service, "/spec/type") {
        "NodePort" => true,
        "LoadBalancer" => service
            .pointer("/spec/allocateLoadBalancerNodePorts")
            .and_then(Value::as_bool)
            .unwrap_or(true),
        _ => false,
    }
}

fn wants_health_port(service: &Value) -> bool {
    text(service, "/spec/type") == "LoadBalancer" && text(service, "/spec/externalTrafficPolicy") == "Local"
}

/// An update that does not mention what the system chose keeps it; one that leaves a type drops what only that type has.
fn carry_over(new: &mut Value, old: &Value) {
    let spec = new["spec"].as_object_mut().expect("a decoded service has a spec");
    let kind = |v: &Value| text(v, "/spec/type").to_string();
    if spec.get("type").and_then(Value::as_str) == Some("ExternalName") {
        if kind(old) != "ExternalName" {
            for (name, unset) in [("clusterIP", "clusterIP"), ("clusterIPs", "clusterIPs")] {
                if spec.get(name) == old["spec"].get(unset) {
                    spec.remove(name);
                }
            }
            for name in ["ipFamilies", "ipFamilyPolicy"] {
                spec.remove(name);
            }
        }
    } else {
        for name in ["clusterIP", "clusterIPs"] {
            if !spec.contains_key(name)
                && let Some(held) = old["spec"].get(name)
            {
                spec.insert(name.into(), held.clone());
            }
        }
    }
    carry_ports_over(new, old);
    if !wants_health_port(new) {
        if new["spec"].get("healthCheckNodePort") == old["spec"].get("healthCheckNodePort") {
            new["spec"]
                .as_object_mut()
                .expect("a decoded service has a spec")
                .remove("healthCheckNodePort");
        }
    } else if new["spec"].get("healthCheckNodePort").is_none()
        && let Some(port) = old["spec"].get("healthCheckNodePort")
    {
        new["spec"]["healthCheckNodePort"] = port.clone();
    }
}

fn carry_ports_over(new: &mut Value, old: &Value) {
    let keeps = wants_node_ports(new);
    let old_ports: Vec<Value> = old
        .pointer("/spec/ports")
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let same = |a: &Value, b: &Value| a["port"] == b["port"] && a["protocol"] == b["protocol"];
    let mut taken: BTreeSet<i64> = node_ports(new);
    for port in new["spec"]
        .get_mut("ports")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let before = old_ports
            .iter()
            .find(|o| same(o, port))
            .and_then(|o| o["nodePort"].as_i64())
            .unwrap_or(0);
        let now = port["nodePort"].as_i64().unwrap_or(0);
        if keeps && now == 0 && before > 0 && taken.insert(before) {
            port["nodePort"] = before.into();
        } else if !keeps && now > 0 && now == before {
            port.as_object_mut().expect("a port is an object").remove("nodePort");
        }
    }
}

/// Takes addresses and ports of services that nobody has taken for them: another program wrote those, which keeps its own
/// records.
pub(crate) async fn repair(registry: &Registry) -> Result<(), Status> {
    if !registry.store.is_shared() {
        return Ok(());
    }
    let prefix = format!("{}services/", kinds::PREFIX);
    let query = RangeQuery {
        prefix: &prefix,
        ..RangeQuery::default()
    };
    let page = registry.store.range(query, &mut |_| true);
    for item in page.expect("a range at the current revision does not fail").items {
        let service = item.record.value();
        let mut allocation = Allocation {
            registry,
            problems: Problems::default(),
            held_ips: BTreeSet::new(),
            held_ports: BTreeSet::new(),
            ops: vec![],
        };
        for ip in addresses(&service) {
            if !allocation.is_taken(ip) {
                allocation.take(&service, ip);
            }
        }
        for port in node_ports(&service) {
            if registry.store.get(&node_port_key(port)).is_none() {
                allocation.take_port(&service, port);
            }
        }
        // Another server may do the same.
        if !allocation.ops.is_empty() && registry.commit(allocation.ops).await?.is_some() {
            tracing::info!(key = %item.key, "recorded addresses and ports of a service");
        }
    }
    Ok(())
}

struct Allocation<'r> {
    registry: &'r Registry,
    problems: Problems,
    held_ips: BTreeSet<IpAddr>,
    held_ports: BTreeSet<i64>,
    ops: Vec<Op<Object>>,
}

fn family(ip: &IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}

impl Allocation<'_> {
    fn ranges(&self) -> &[IpNet] {
        &self.registry.config.service_cidrs
    }

    /// ipFamilyPolicy and ipFamilies, from what is asked for and what this cluster has.
    fn choose_families(&mut self, service: &mut Value) {
        if !has_cluster_ip(service) {
            return;
        }
        let cluster: Vec<&'static str> = self.ranges().iter().map(|r| family(&r.addr())).collect();
        let asked: Vec<String> = strings(&service["spec"]["ipFamilies"]);
        let fixed: Vec<String> = addresses_in_order(service)
            .iter()
            .map(|ip| family(ip).to_string())
            .collect();
        let headless = text(service, "/spec/clusterIP") == "None";
        let selectorless = service["spec"]["selector"].as_object().is_none_or(|s| s.is_empty());
        let default_policy = match () {
            _ if headless && selectorless => "RequireDualStack",
            _ if asked.len() > 1 || fixed.len() > 1 => "RequireDualStack",
            _ => "SingleStack",
        };
        let policy = match text(service, "/spec/ipFamilyPolicy") {
            "" => default_policy.to_string(),
            given => given.to_string(),
        };
        let mut families = if asked.is_empty() { fixed } else { asked };
        if families.is_empty() {
            families.push(cluster[0].to_string());
        }
        let free_choice = headless && selectorless;
        for wanted in &families {
            if !free_choice && !cluster.contains(&wanted.as_str()) {
                let root = Cursor::root(service);
                self.problems.push(
                    ProblemKind::Invalid,
                    &root.at("spec").at("ipFamilies").index_path(0),
                    Some(format!("{wanted:?}")),
                    "not configured on this cluster",
                );
            }
        }
        if policy != "SingleStack" && families.len() == 1 {
            let other = if families[0] == "IPv4" { "IPv6" } else { "IPv4" };
            if free_choice || cluster.contains(&other) {
                families.push(other.to_string());
            } else if policy == "RequireDualStack" {
                let root = Cursor::root(service);
                self.problems.push(
                    ProblemKind::Invalid,
                    root.at("spec").at("ipFamilyPolicy").path(),
                    Some(format!("{policy:?}")),
                    "Cluster is not configured for dual-stack services",
                );
            }
        }
        service["spec"]["ipFamilyPolicy"] = policy.into();
        service["spec"]["ipFamilies"] = families.into();
    }

    fn addresses(&mut self, service: &mut Value) {
        if !has_cluster_ip(service) || text(service, "/spec/clusterIP") == "None" || !self.problems.is_empty() {
            return;
        }
        let families = strings(&service["spec"]["ipFamilies"]);
        let given = addresses_in_order(service);
        let mut all = vec![];
        for (i, family) in families.iter().enumerate() {
            match given.get(i) {
                Some(ip) => {
                    self.take_given(service, *ip);
                    all.push(ip.to_string());
                }
                None => match self.take_any(service, family) {
                    Some(ip) => all.push(ip.to_string()),
                    None => {
                        let spec = Cursor::root(service).at("spec");
                        self.problems.push(
                            ProblemKind::Internal,
                            spec.at("clusterIPs").path(),
                            None,
                            format!("failed to allocate a service address of family {family}: the range is full"),
                        );
                        return;
                    }
                },
            }
        }
        service["spec"]["clusterIP"] = all.first().cloned().unwrap_or_default().into();
        service["spec"]["clusterIPs"] = all.into();
    }

    fn is_taken(&self, ip: IpAddr) -> bool {
        let kind = kinds::of_stored("ipaddresses.networking.k8s.io").expect("IPAddress is a built-in kind");
        self.registry
            .store
            .get(&kinds::key(kind, "", &ip.to_string()))
            .is_some()
    }

    fn take_given(&mut self, service: &Value, ip: IpAddr) {
        if self.held_ips.contains(&ip) {
            return;
        }
        let why = match self.ranges().iter().find(|r| r.contains(&ip)) {
            None => "the provided network does not match the current range".to_string(),
            Some(range) if ip == range.network() || (range.addr().is_ipv4() && ip == range.broadcast()) => {
                format!("the provided IP ({ip}) is not in the valid range. The range of valid IPs is {range}")
            }
            Some(_) if self.is_taken(ip) => "provided IP is already allocated".to_string(),
            Some(_) => return self.take(service, ip),
        };
        let ips = Cursor::root(service).at("spec").at("clusterIPs");
        self.problems.push(
            ProblemKind::Invalid,
            ips.path(),
            Some(format!("[{:?}]", ip.to_string())),
            format!("failed to allocate IP {ip}: {why}"),
        );
    }

    fn take_any(&mut self, service: &Value, wanted: &str) -> Option<IpAddr> {
        let range = *self.ranges().iter().find(|r| family(&r.addr()) == wanted)?;
        let size = range_size(&range);
        // The lower part is left to addresses given by hand. Upstream: the same split, so that .1 and .10 stay free.
        let reserved = (size / 16).clamp(16, 256).min(size / 2);
        let upper = size - reserved;
        let start = self.registry.random.lock().below(upper.max(1));
        let free = (0..upper.min(1 << 20))
            .map(|i| nth(&range, reserved + (start + i) % upper))
            .chain((1..reserved).map(|i| nth(&range, i)))
            .find(|ip| *ip != last(&range) && !self.is_taken(*ip))?;
        self.take(service, free);
        Some(free)
    }

    fn take(&mut self, service: &Value, ip: IpAddr) {
        let kind = kinds::of_stored("ipaddresses.networking.k8s.io").expect("IPAddress is a built-in kind");
        let object = json!({
            "apiVersion": kind.api_version(), "kind": kind.kind,
            "metadata": {
                "name": ip.to_string(),
                "uid": uuid::Uuid::new_v4().to_string(),
                "creationTimestamp": rfc3339(self.registry.now()),
                "labels": {
                    "ipaddress.kubernetes.io/ip-family": family(&ip),
                    "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
                },
            },
            "spec": {"parentRef": {
                "resource": "services",
                "namespace": meta_text(service, "namespace"),
                "name": meta_text(service, "name"),
            }},
        });
        self.ops.push(Op {
            key: kinds::key(kind, "", &ip.to_string()).into(),
            expect: Expect::Absent,
            action: Action::Put(Object::encode(&object, kind).into()),
        });
    }

    fn ports(&mut self, service: &mut Value) {
        // The same number may serve several protocols of one service.
        let mut own: BTreeSet<i64> = BTreeSet::new();
        let wants = wants_node_ports(service);
        let mut ports = service["spec"]
            .get("ports")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        for (i, port) in ports.iter_mut().enumerate() {
            match port["nodePort"].as_i64().unwrap_or(0) {
                0 if wants => {
                    if let Some(chosen) = self.take_any_port(service, &own) {
                        port["nodePort"] = chosen.into();
                        own.insert(chosen);
                    } else {
                        let spec = Cursor::root(service).at("spec");
                        let path = spec.at("ports").index_path(i).field("nodePort");
                        self.problems.push(
                            ProblemKind::Internal,
                            &path,
                            None,
                            "failed to allocate a nodePort: range is full",
                        );
                    }
                }
                0 => {}
                given => {
                    let path = Cursor::root(service)
                        .at("spec")
                        .at("ports")
                        .index_path(i)
                        .field("nodePort");
                    if own.insert(given) {
                        self.take_given_port(service, given, &path);
                    }
                }
            }
        }
        if !ports.is_empty() {
            service["spec"]["ports"] = ports.into();
        }
        if wants_health_port(service) {
            match service["spec"]["healthCheckNodePort"].as_i64().unwrap_or(0) {
                0 => {
                    if let Some(chosen) = self.take_any_port(service, &own) {
                        service["spec"]["healthCheckNodePort"] = chosen.into();
                    }
                }
                given => {
                    let path = Cursor::root(service)
                        .at("spec")
                        .at("healthCheckNodePort")
                        .path()
                        .clone();
                    self.take_given_port(service, given, &path);
                }
            }
        }
    }

    fn take_given_port(&mut self, service: &Value, port: i64, path: &orlop_api::Path) {
        if self.held_ports.contains(&port) {
            return;
        }
        let (first, last) = self.registry.config.node_ports;
        let why = if !(i64::from(first)..=i64::from(last)).contains(&port) {
            format!("provided port is not in the valid range. The range of valid ports is {first}-{last}")
        } else if self.registry.store.get(&node_port_key(port)).is_some() {
            "provided port is already allocated".to_string()
        } else {
            return self.take_port(service, port);
        };
        self.problems
            .push(ProblemKind::Invalid, path, Some(port.to_string()), why);
    }

    fn take_any_port(&mut self, service: &Value, own: &BTreeSet<i64>) -> Option<i64> {
        let (first, last) = self.registry.config.node_ports;
        let size = u64::from(last - first) + 1;
        let start = self.registry.random.lock().below(size);
        let free = (0..size)
            .map(|i| i64::from(first) + ((start + i) % size) as i64)
            .find(|p| {
                !own.contains(p)
                    && !self.held_ports.contains(p)
                    && self.registry.store.get(&node_port_key(*p)).is_none()
            })?;
        self.take_port(service, free);
        Some(free)
    }

    fn take_port(&mut self, service: &Value, port: i64) {
        let owner = format!("{}/{}", meta_text(service, "namespace"), meta_text(service, "name"));
        let record =
            json!({"metadata": {"name": port.to_string(), "uid": meta_text(service, "uid")}, "service": owner});
        self.ops.push(Op {
            key: node_port_key(port).into(),
            expect: Expect::Absent,
            action: Action::Put(Object::encode(&record, NODE_PORT).into()),
        });
    }
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(|v| v.as_str().map(str::to_string))
        .collect()
}

fn addresses_in_order(service: &Value) -> Vec<IpAddr> {
    let mut list = strings(&service["spec"]["clusterIPs"]);
    if list.is_empty() {
        list.extend(Some(text(service, "/spec/clusterIP").to_string()).filter(|s| !s.is_empty()));
    }
    list.iter().filter_map(|ip| ip.parse().ok()).collect()
}

/// Addresses in a range, capped: nobody needs more than 2^32 services.
fn range_size(range: &IpNet) -> u64 {
    let bits = range.max_prefix_len() - range.prefix_len();
    1u64 << bits.min(32)
}

fn nth(range: &IpNet, n: u64) -> IpAddr {
    match range.network() {
        IpAddr::V4(base) => Ipv4Addr::from(u32::from(base).wrapping_add(n as u32)).into(),
        IpAddr::V6(base) => Ipv6Addr::from(u128::from(base).wrapping_add(u128::from(n))).into(),
    }
}

fn last(range: &IpNet) -> IpAddr {
    range.broadcast()
}

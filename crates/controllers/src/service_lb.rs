//! Services of type LoadBalancer get the nodes' addresses in their status: without a cloud the nodes are the load balancer,
//! and their proxies take packets to these addresses at the service's own ports. Services with a `loadBalancerClass` are
//! somebody else's, as in Kubernetes.
// Upstream: cloud-provider/controllers/service (v1.36), whose name, account and events it has.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::objects::endpoint_slice::SERVICE_NAME;
use crate::objects::node::NodeAddress;
use crate::objects::{EndpointSlice, Node, Service};
use crate::runtime::{
    Cache, Def, Key, Next, Reconcile, ReconcileResult, Recorder, Setup, WorkQueue, Writer, status_patch,
};

pub(crate) const DEF: Def = Def {
    name: "service-lb-controller",
    account: "service-controller",
    on_by_default: true,
    start,
};

/// Nodes with this label take no packets for load balancers.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// Nodes with this taint are about to go. Upstream: the cluster autoscaler's.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";
/// Addresses of a service at most: clients need a few, and a status is not for thousands.
const ADDRESSES_MAX: usize = 16;
/// Where one gets into a machine to put things right.
const SSH: u16 = 22;

/// Stands for all services: a node changed.
const ALL_SERVICES: &str = "";

/// What a service's status is to have.
#[derive(Debug, PartialEq, Eq)]
enum LoadBalancerPlan {
    /// It is somebody else's, or never had one.
    Leave,
    Addresses(Vec<IpAddr>),
    /// It asks for a port of the nodes' own.
    Refused {
        port: u16,
    },
}

/// A node that takes packets for load balancers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BalancingNode {
    name: String,
    addresses: Vec<IpAddr>,
}

fn plan(
    service: &Service,
    nodes: &[BalancingNode],
    serving: &BTreeSet<String>,
    own_ports: &BTreeSet<u16>,
) -> LoadBalancerPlan {
    let spec = &service.spec;
    if spec.r#type != "LoadBalancer" {
        return match service.status.load_balancer.ingress.is_empty() {
            true => LoadBalancerPlan::Leave,
            // It was one before.
            false => LoadBalancerPlan::Addresses(vec![]),
        };
    }
    if spec.load_balancer_class.is_some() || service.metadata.is_deleted() {
        return LoadBalancerPlan::Leave;
    }
    let tcp = spec
        .ports
        .iter()
        .filter(|port| matches!(port.protocol.as_str(), "" | "TCP"));
    if let Some(port) = tcp.map(|port| port.port).find(|port| own_ports.contains(port)) {
        return LoadBalancerPlan::Refused { port };
    }
    // Others would drop the packets.
    let is_local = spec.external_traffic_policy == "Local";
    let nodes = nodes.iter().filter(|node| !is_local || serving.contains(&node.name));
    let addresses = |family: &str| {
        let of_family = |ip: &&IpAddr| ip.is_ipv4() == (family == "IPv4");
        let found = nodes
            .clone()
            .filter_map(move |node| node.addresses.iter().find(of_family));
        found.copied().take(ADDRESSES_MAX).collect::<Vec<_>>()
    };
    LoadBalancerPlan::Addresses(spec.ip_families.iter().flat_map(|family| addresses(family)).collect())
}

/// None: it takes no packets for load balancers.
fn balancing_node(node: &Node) -> Option<BalancingNode> {
    let is_ready = node.condition("Ready").is_some_and(|ready| ready.is_true());
    let is_leaving = node.metadata.is_deleted() || node.spec.taints.iter().any(|taint| taint.key == TO_BE_DELETED);
    if !is_ready || is_leaving || node.metadata.labels.contains_key(EXCLUDED) {
        return None;
    }
    let of_type = |wanted: &'static str| node.status.addresses.iter().filter(move |a| a.r#type == wanted);
    // Clients are outside: where nodes have an address for them, that is it.
    let all = of_type("ExternalIP").chain(of_type("InternalIP"));
    Some(BalancingNode {
        name: node.metadata.name.clone(),
        addresses: all
            .filter_map(|NodeAddress { address, .. }| address.parse().ok())
            .collect(),
    })
}

/// Names of the nodes that have endpoints which take packets.
fn serving_nodes(slices: &[Arc<EndpointSlice>]) -> BTreeSet<String> {
    let endpoints = slices.iter().flat_map(|slice| &slice.endpoints);
    let ready = endpoints.filter(|endpoint| endpoint.conditions.ready != Some(false));
    ready.filter_map(|endpoint| endpoint.node_name.clone()).collect()
}

fn status(addresses: &[IpAddr]) -> Value {
    let ingress = addresses
        .iter()
        .map(|ip| json!({"ip": ip.to_string(), "ipMode": "VIP"}));
    match addresses.is_empty() {
        // A merge patch takes it away.
        true => json!({"loadBalancer": {"ingress": null}}),
        false => json!({"loadBalancer": {"ingress": ingress.collect::<Vec<_>>()}}),
    }
}

struct Controller {
    services: Cache<Service>,
    nodes: Cache<Node>,
    slices: Cache<EndpointSlice>,
    queue: WorkQueue,
    recorder: Recorder,
}

fn start(setup: &Setup) {
    let queue = setup.queue("service");
    let (services, nodes, slices) = (setup.cache::<Service>(), setup.cache(), setup.cache::<EndpointSlice>());
    queue.follow(&services);
    let wake = queue.clone();
    nodes.on_change(move |old: Option<&Arc<Node>>, new: Option<&Arc<Node>>| {
        let concerns = |node: &Arc<Node>| (balancing_node(node), node.status.daemon_endpoints.clone());
        // Not whenever its status changes, which is all the time.
        if old.map(concerns) != new.map(concerns) {
            wake.add(Key::new("", ALL_SERVICES));
        }
    });
    let wake = queue.clone();
    slices.on_change(move |old, new| {
        let serving =
            |slice: Option<&Arc<EndpointSlice>>| slice.map(|slice| serving_nodes(std::slice::from_ref(slice)));
        if let Some(slice) = new.or(old)
            && let Some(service) = slice.metadata.label(SERVICE_NAME)
            && serving(old) != serving(new)
        {
            wake.add(Key::new(slice.metadata.namespace.as_str(), service));
        }
    });
    let controller = Controller {
        services,
        nodes,
        slices,
        queue: queue.clone(),
        recorder: setup.recorder.clone(),
    };
    setup.run(queue, 1, controller);
}

impl Controller {
    fn slices_of(&self, namespace: &str, service: &str) -> Vec<Arc<EndpointSlice>> {
        let mut slices = self.slices.list_in(namespace);
        slices.retain(|slice| slice.metadata.label(SERVICE_NAME) == Some(service));
        slices
    }

    /// Ports at which nodes themselves are reached: a service there would cut them off.
    fn own_ports(&self, nodes: &[Arc<Node>]) -> BTreeSet<u16> {
        let kubelets = nodes
            .iter()
            .map(|node| node.status.daemon_endpoints.kubelet_endpoint.port);
        let servers = self.slices_of("default", "kubernetes");
        let servers = servers
            .iter()
            .flat_map(|slice| slice.ports.iter().filter_map(|port| port.port));
        kubelets.chain(servers).chain([SSH]).collect()
    }

    fn plan(&self, service: &Service) -> LoadBalancerPlan {
        let all = self.nodes.list();
        let mut nodes: Vec<BalancingNode> = all.iter().filter_map(|node| balancing_node(node)).collect();
        nodes.sort();
        let meta = &service.metadata;
        let serving = match service.spec.external_traffic_policy == "Local" {
            true => serving_nodes(&self.slices_of(&meta.namespace, &meta.name)),
            false => BTreeSet::new(),
        };
        plan(service, &nodes, &serving, &self.own_ports(&all))
    }
}

impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        if key.name == ALL_SERVICES {
            let services = self.services.list();
            let balanced = services.iter().filter(|service| service.spec.r#type == "LoadBalancer");
            balanced.for_each(|service| self.queue.add(Key::from_object(&**service)));
            return Ok(Next::Done);
        }
        let Some(service) = self.services.at(key) else {
            return Ok(Next::Done);
        };
        let addresses = match self.plan(&service) {
            LoadBalancerPlan::Leave => return Ok(Next::Done),
            LoadBalancerPlan::Addresses(addresses) => addresses,
            LoadBalancerPlan::Refused { port } => {
                let note = format!("Error syncing load balancer: port {port} is a port of the nodes themselves");
                self.recorder.warning(&*service, "SyncLoadBalancerFailed", note);
                vec![]
            }
        };
        let ingress = service.status.load_balancer.ingress.iter();
        let has: Vec<Option<IpAddr>> = ingress.map(|ingress| ingress.ip.parse().ok()).collect();
        if has == addresses.iter().copied().map(Some).collect::<Vec<_>>() {
            return Ok(Next::Done);
        }
        let patch = status_patch(&service.metadata, &status(&addresses));
        writer.patch_status::<Service>(&service.metadata, &patch).await?;
        if !addresses.is_empty() {
            self.recorder
                .normal(&*service, "EnsuredLoadBalancer", "Ensured load balancer");
        }
        Ok(Next::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;

    fn node(name: &str, addresses: &[(&str, &str)], is_ready: bool) -> Value {
        let addresses: Vec<Value> = addresses
            .iter()
            .map(|(kind, ip)| json!({"type": kind, "address": ip}))
            .collect();
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "status": {
                "addresses": addresses,
                "conditions": [{"type": "Ready", "status": if is_ready { "True" } else { "False" }}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            },
        })
    }

    fn service(name: &str, spec: Value) -> Value {
        let mut all = json!({"type": "LoadBalancer", "ipFamilies": ["IPv4"], "ports": [{"port": 80}]});
        for (key, value) in spec.as_object().unwrap() {
            all[key] = value.clone();
        }
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "ns", "name": name}, "spec": all})
    }

    fn shown(cluster: &Cluster, name: &str) -> Vec<String> {
        let service = cluster.get::<Service>("ns", name).unwrap();
        service
            .status
            .load_balancer
            .ingress
            .into_iter()
            .map(|ingress| ingress.ip)
            .collect()
    }

    #[test]
    fn addresses_by_family_and_type() {
        let read = |value: Value| -> Node { serde_json::from_value(value).unwrap() };
        let both = read(node(
            "b",
            &[("InternalIP", "10.0.0.2"), ("InternalIP", "fd00::2"), ("Hostname", "b")],
            true,
        ));
        let outer = read(node(
            "a",
            &[("InternalIP", "10.0.0.1"), ("ExternalIP", "192.0.2.1")],
            true,
        ));
        let mut nodes: Vec<BalancingNode> = [both, outer].iter().filter_map(balancing_node).collect();
        nodes.sort();
        let addresses = |spec: Value| {
            let service: Service = serde_json::from_value(service("s", spec)).unwrap();
            match plan(
                &service,
                &nodes,
                &BTreeSet::from(["b".to_string()]),
                &BTreeSet::from([22]),
            ) {
                LoadBalancerPlan::Addresses(all) => all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
                other => format!("{other:?}"),
            }
        };
        assert_eq!(addresses(json!({})), "192.0.2.1 10.0.0.2");
        assert_eq!(
            addresses(json!({"ipFamilies": ["IPv6", "IPv4"]})),
            "fd00::2 192.0.2.1 10.0.0.2"
        );
        assert_eq!(addresses(json!({"externalTrafficPolicy": "Local"})), "10.0.0.2");
        assert_eq!(addresses(json!({"loadBalancerClass": "example.com/x"})), "Leave");
        assert_eq!(addresses(json!({"type": "NodePort"})), "Leave");
        assert_eq!(addresses(json!({"ports": [{"port": 22}]})), "Refused { port: 22 }");
        assert_eq!(
            addresses(json!({"ports": [{"port": 22, "protocol": "UDP"}]})),
            "192.0.2.1 10.0.0.2"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn services_follow_nodes() {
        let cluster = Cluster::new();
        cluster.put(node("a", &[("InternalIP", "10.0.0.1")], true));
        cluster.put(node("b", &[("InternalIP", "10.0.0.2")], false));
        cluster.put(service("plain", json!({})));
        cluster.put(service("theirs", json!({"loadBalancerClass": "example.com/x"})));
        cluster.put(service("kubelet", json!({"ports": [{"port": 10250}]})));
        cluster.run(&[&DEF]);
        cluster.wait_until_idle().await;
        assert_eq!(shown(&cluster, "plain"), ["10.0.0.1"]);
        assert!(shown(&cluster, "theirs").is_empty() && shown(&cluster, "kubelet").is_empty());
        let refused =
            "Warning SyncLoadBalancerFailed Error syncing load balancer: port 10250 is a port of the nodes themselves";
        assert!(
            cluster.events().iter().any(|event| event == refused),
            "{:?}",
            cluster.events()
        );
        assert_eq!(cluster.writes().len(), 1);

        cluster.put(node("b", &[("InternalIP", "10.0.0.2")], true));
        cluster.wait_until_idle().await;
        assert_eq!(shown(&cluster, "plain"), ["10.0.0.1", "10.0.0.2"]);
        cluster.edit::<Node>("", "a", |node| node["metadata"]["labels"][EXCLUDED] = "".into());
        cluster.wait_until_idle().await;
        assert_eq!(shown(&cluster, "plain"), ["10.0.0.2"]);
        cluster.edit::<Service>("ns", "plain", |service| service["spec"]["type"] = "ClusterIP".into());
        cluster.wait_until_idle().await;
        assert!(shown(&cluster, "plain").is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn local_services_are_where_their_endpoints_are() {
        let cluster = Cluster::new();
        cluster.put(node("a", &[("InternalIP", "10.0.0.1")], true));
        cluster.put(node("b", &[("InternalIP", "10.0.0.2")], true));
        cluster.put(service("local", json!({"externalTrafficPolicy": "Local"})));
        cluster.run(&[&DEF]);
        cluster.wait_until_idle().await;
        assert!(shown(&cluster, "local").is_empty());
        cluster.put(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"namespace": "ns", "name": "local-x", "labels": {SERVICE_NAME: "local"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.1.0.1"], "nodeName": "b", "conditions": {"ready": true}}],
        }));
        cluster.wait_until_idle().await;
        assert_eq!(shown(&cluster, "local"), ["10.0.0.2"]);
    }
}

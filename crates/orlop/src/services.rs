//! What makes services reachable from the node that `orlop up` brings with it: the proxy, and DNS.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use orlop_apiserver::Config as ServerConfig;
use orlop_base::{Clock, Shutdown};
use orlop_client::{Api, path};
use orlop_proxy::backend::ParseModeError;
use orlop_proxy::{CONFIG_KEY, CONFIG_MAP, Config, Metrics, Mode, Options};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cluster::{CommandLines, create_if_absent};
use crate::node::NodePlan;
use crate::nodes::ranges::PodRanges;

/// Which address of the service range pods look names up at.
const DNS_PLACE: u32 = 10;
/// On the node; the service is at port 53.
const DNS_PORT: u16 = 10053;
const DNS_METRICS_PORT: u16 = 9153;

#[derive(clap::Args)]
pub(crate) struct ServicesArgs {
    /// Proxy mode: iptables, nftables, ipvs, userspace or none [default: as the ConfigMap kube-proxy
    /// in kube-system says; at first the first of them that this machine can do]
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    proxy_mode: Option<ModeArg>,
    /// Port of the proxy's metrics endpoint on 127.0.0.1 (0: disabled)
    #[arg(long, value_name = "PORT", default_value_t = 10249)]
    proxy_metrics_port: u16,
    /// Port of the proxy's healthz endpoint, for load balancers (0: disabled)
    #[arg(long, value_name = "PORT", default_value_t = 10256)]
    proxy_healthz_port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModeArg {
    None,
    One(Mode),
}

fn parse_mode(text: &str) -> Result<ModeArg, ParseModeError> {
    match text {
        "none" => Ok(ModeArg::None),
        text => text.parse().map(ModeArg::One),
    }
}

/// What is to be started.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServicesPlan {
    /// To be written into the ConfigMap, which all nodes follow.
    #[serde(skip)]
    mode: Option<Mode>,
    metrics_port: u16,
    healthz_port: u16,
    dns_address: IpAddr,
    node_name: String,
    node_addresses: Vec<IpAddr>,
    /// Of all pods.
    pod_ranges: PodRanges,
    service_ranges: Vec<IpNet>,
}

impl ServicesArgs {
    /// Where real pods look names up; none if nothing makes it reachable.
    pub(crate) fn dns_address(&self, config: &ServerConfig) -> Option<IpAddr> {
        (self.proxy_mode != Some(ModeArg::None)).then(|| config.service_address(DNS_PLACE))
    }

    /// None: nobody here needs services.
    pub(crate) fn plan(&self, node: Option<&NodePlan>, config: &ServerConfig) -> Option<ServicesPlan> {
        // Simulated pods send no packets.
        let node = node.filter(|node| node.is_real())?;
        let mode = match self.proxy_mode {
            Some(ModeArg::None) => return None,
            Some(ModeArg::One(mode)) => Some(mode),
            None => None,
        };
        Some(ServicesPlan {
            mode,
            metrics_port: self.proxy_metrics_port,
            healthz_port: self.proxy_healthz_port,
            dns_address: config.service_address(DNS_PLACE),
            node_name: node.identity.name.clone(),
            node_addresses: node.identity.addresses.clone(),
            pod_ranges: node.pod_cidr().of_cluster(),
            service_ranges: config.service_cidrs.clone(),
        })
    }
}

impl ServicesPlan {
    /// The same on a worker node, whose ports are its own.
    pub(crate) fn for_worker(&self, name: &str, addresses: Vec<IpAddr>) -> ServicesPlan {
        ServicesPlan {
            node_name: name.to_string(),
            node_addresses: addresses,
            ..self.clone()
        }
    }

    pub(crate) fn describe(&self, lines: &mut CommandLines) {
        let metrics = endpoint(Ipv4Addr::LOCALHOST, self.metrics_port);
        let healthz = endpoint(Ipv4Addr::UNSPECIFIED, self.healthz_port);
        lines.set_proxy(&self.node_name, &self.pod_ranges.to_string(), metrics, healthz);
    }

    /// The cluster's pods, and this machine, whose own addresses stand for pods where a mode hides them.
    fn dns_clients(&self) -> Vec<IpNet> {
        let own = self.node_addresses.iter().map(|ip| IpNet::from(*ip));
        let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)].map(IpNet::from);
        let pods = self.pod_ranges.iter();
        pods.chain(own)
            .chain(loopback)
            .chain(self.service_ranges.iter().copied())
            .collect()
    }
}

/// Runs the proxy until the shutdown. `admin` may write what the cluster has of it: its ConfigMap, and the right to read
/// that; none on nodes that find them there.
pub(crate) async fn proxy(plan: ServicesPlan, admin: Option<Api>, api: Api, shutdown: Shutdown) -> anyhow::Result<()> {
    if let Some(admin) = admin {
        publish(&plan, &admin).await?;
    }
    let options = Options {
        api,
        config: Config {
            cluster_cidrs: plan.pod_ranges.iter().collect(),
            metrics: endpoint(Ipv4Addr::LOCALHOST, plan.metrics_port),
            healthz: endpoint(Ipv4Addr::UNSPECIFIED, plan.healthz_port),
            ..Config::default()
        },
        node_name: plan.node_name,
        node_addresses: plan.node_addresses,
        service_ranges: plan.service_ranges,
        follows_config_map: true,
        clock: Clock::System,
        metrics: Arc::new(Metrics::default()),
        shutdown,
    };
    Ok(orlop_proxy::run(options).await?)
}

/// None for port 0.
fn endpoint(ip: Ipv4Addr, port: u16) -> Option<SocketAddr> {
    (port != 0).then(|| SocketAddr::new(ip.into(), port))
}

/// Answers for the names of the cluster until the shutdown.
pub(crate) async fn dns(plan: ServicesPlan, api: Api, shutdown: Shutdown) -> anyhow::Result<()> {
    let at = |port: u16| plan.node_addresses.iter().map(move |ip| SocketAddr::new(*ip, port));
    let options = |port: u16, metrics: Option<SocketAddr>| orlop_dns::Options {
        api: api.clone(),
        cluster_domain: "cluster.local".to_string(),
        service_ranges: plan.service_ranges.clone(),
        pod_ranges: plan.pod_ranges.iter().collect(),
        listen: at(port).collect(),
        clients: plan.dns_clients(),
        resolv_conf: "/etc/resolv.conf".into(),
        metrics,
        ready: None,
        health: None,
        publish: Some(orlop_dns::Publish {
            node: plan.node_name.clone(),
            addresses: plan.node_addresses.clone(),
            service_ips: vec![plan.dns_address],
        }),
        clock: Clock::System,
        shutdown: shutdown.clone(),
    };
    let running = match orlop_dns::run(options(DNS_PORT, at(DNS_METRICS_PORT).next())).await {
        Ok(running) => running,
        // Pods come by the service's address, so any port will do.
        Err(why) => {
            tracing::warn!(err = %why, "failed to bind the DNS port, using another");
            orlop_dns::run(options(0, None)).await?
        }
    };
    running.stopped().await;
    Ok(())
}

/// As kubeadm has them. What is there already stays, but for a mode that is asked for now.
async fn publish(plan: &ServicesPlan, admin: &Api) -> anyhow::Result<()> {
    let rbac = "rbac.authorization.k8s.io";
    let versioned = format!("{rbac}/v1");
    let role = json!({
        "apiVersion": versioned, "kind": "Role", "metadata": {"name": CONFIG_MAP, "namespace": "kube-system"},
        "rules": [{
            "apiGroups": [""], "resources": ["configmaps"], "resourceNames": [CONFIG_MAP],
            "verbs": ["get", "list", "watch"],
        }],
    });
    let binding = json!({
        "apiVersion": versioned, "kind": "RoleBinding", "metadata": {"name": CONFIG_MAP, "namespace": "kube-system"},
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": CONFIG_MAP},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": "system:kube-proxy"}],
    });
    let mode = plan.mode.map_or("", Mode::as_str);
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": CONFIG_MAP, "namespace": "kube-system", "labels": {"app": CONFIG_MAP}},
        "data": {CONFIG_KEY: document(mode, &plan.pod_ranges)},
    });
    create_if_absent(admin, &versioned, "roles", &role).await?;
    create_if_absent(admin, &versioned, "rolebindings", &binding).await?;
    let is_new = create_if_absent(admin, "v1", "configmaps", &map).await?;
    if !is_new && plan.mode.is_some() {
        let path = path::object("v1", Some("kube-system"), "configmaps", CONFIG_MAP);
        let patch = json!({"data": {CONFIG_KEY: document(mode, &plan.pod_ranges)}});
        let patched: Result<Value, _> = admin.patch_merge(&path, &patch).await;
        patched.map_err(|e| anyhow::anyhow!("failed to write ConfigMap {CONFIG_MAP}: {e}"))?;
    }
    Ok(())
}

fn document(mode: &str, pod_ranges: &PodRanges) -> String {
    format!(
        "apiVersion: {}\nkind: {}\nmode: \"{mode}\"\nclusterCIDR: \"{pod_ranges}\"\n",
        orlop_proxy::config::API_VERSION,
        orlop_proxy::config::KIND
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_and_the_document_they_end_up_in() {
        assert_eq!(parse_mode("none"), Ok(ModeArg::None));
        assert_eq!(parse_mode("ipvs"), Ok(ModeArg::One(Mode::Ipvs)));
        assert!(parse_mode("magic").is_err());
        let ranges = "10.244.0.0/24,fd00::/64".parse().unwrap();
        let (config, warnings) = orlop_proxy::config::parse(&document("nftables", &ranges), &[]).unwrap();
        assert_eq!((config.mode, warnings.len()), (Some(Mode::Nftables), 0));
        assert_eq!(config.cluster_cidrs, ranges.iter().collect::<Vec<_>>());
    }
}

//! `orlop up`: a cluster in the foreground.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use orlop_apiserver::Config;

use super::controllers::ControllersArgs;
use crate::components::Components;
use crate::fleet::FleetArgs;
use crate::node::{self, NodeArgs, NodePlan};
use crate::services::ServicesArgs;

#[derive(clap::Args)]
pub struct Args {
    /// Where the cluster keeps its state [default: /var/lib/orlop as root, else ~/.local/share/orlop]
    #[arg(long, value_name = "DIR", env = "ORLOP_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Address to listen on [default: all if this machine runs pods, since they need the server; else 127.0.0.1]
    #[arg(long)]
    bind: Option<IpAddr>,
    /// Port to listen on; 0 takes any free one
    #[arg(long, default_value_t = 6443)]
    port: u16,
    /// Range of service addresses (one per address family, separated by a comma)
    #[arg(long, value_name = "CIDR", value_delimiter = ',', default_value = "10.96.0.0/12")]
    service_cidr: Vec<ipnet::IpNet>,
    /// Write one JSON line for each request to this file
    #[arg(long, value_name = "FILE")]
    audit_log: Option<PathBuf>,
    /// A KubeSchedulerConfiguration for the scheduler
    #[arg(long, value_name = "FILE")]
    scheduler_config: Option<PathBuf>,
    #[command(flatten, next_help_heading = "This machine as a node")]
    node: NodeArgs,
    #[command(flatten, next_help_heading = "Services")]
    services: ServicesArgs,
    #[command(flatten, next_help_heading = "Simulated nodes")]
    fleet: FleetArgs,
    #[command(flatten, next_help_heading = "Controllers")]
    controllers: ControllersArgs,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let started = Instant::now();
    let scheduler = scheduler_config(args.scheduler_config.as_deref())?;
    let (controllers, settings) = (args.controllers.chosen()?, args.controllers.settings()?);
    let data_dir = args.data_dir.map_or_else(default_data_dir, Ok)?;
    let mut config = Config::new(data_dir.clone());
    config.service_cidrs = args.service_cidr;
    let fleet = args.fleet.plan()?;
    let mut node = args.node.plan(&data_dir, args.services.dns_address(&config))?;
    if let (Some(node), Some(fleet)) = (&mut node, &fleet) {
        // Without a zone it would be left out of spreading over the simulated nodes' zones.
        node.identity.labels.extend(fleet.nodes.labels_for_real_node());
    }
    let services = args.services.plan(node.as_ref(), &config);
    let settings = orlop_controllers::Settings {
        // There is one API server, and it knows at once.
        namespace_deletion_delay: Duration::ZERO,
        local_path_dir: Some(data_dir.join("local-path")),
        local_node: node.as_ref().map(|node| node.identity.name.clone()),
        ..settings
    };
    config.bind = args.bind.unwrap_or_else(|| usual_address(node.as_ref()));
    config.port = args.port;
    config.audit_log = args.audit_log;
    super::apiserver::serve(config, |running, kubeconfig| {
        let took = started.elapsed().as_millis();
        println!(
            "Orlop serves Kubernetes {} on https://{} ({took} ms)",
            orlop_apiserver::discovery::GIT_VERSION,
            super::apiserver::reachable(running.address)
        );
        if node.is_some() || fleet.is_none() {
            println!("{}", node::described(node.as_ref()));
        }
        if let Some(fleet) = &fleet {
            println!(
                "{} nodes are simulated: their pods only seem to run.",
                fleet.nodes.count()
            );
        }
        println!("Use it:  export KUBECONFIG={}", kubeconfig.display());
        let mut components = Components::default();
        components.start_scheduler(running, scheduler);
        components.start_controllers(running, controllers, settings);
        if let Some(node) = node {
            components.start_node(running, node);
        }
        if let Some(services) = services {
            components.start_services(running, services);
        }
        if let Some(fleet) = fleet {
            components.start_fleet(running, fleet);
        }
        components
    })
}

/// Pods come from other addresses than this machine's loopback.
fn usual_address(node: Option<&NodePlan>) -> IpAddr {
    match node.is_some_and(NodePlan::is_real) {
        true => Ipv4Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::LOCALHOST.into(),
    }
}

/// What the file says, or the defaults. Every problem of a bad file is named.
fn scheduler_config(file: Option<&Path>) -> anyhow::Result<orlop_scheduler::config::Config> {
    let Some(file) = file else {
        return Ok(orlop_scheduler::config::Config::default());
    };
    let text = std::fs::read_to_string(file).with_context(|| format!("{} can't be read", file.display()))?;
    let extra: Vec<_> = orlop_scheduler::plugins::EXTRA.iter().map(|e| e.row).collect();
    match orlop_scheduler::config::parse(&text, &extra) {
        Ok((config, warnings)) => {
            for warning in warnings {
                tracing::warn!("{}: {warning}", file.display());
            }
            Ok(config)
        }
        Err(problems) => {
            let lines: Vec<String> = problems.iter().map(|p| format!("  {p}")).collect();
            anyhow::bail!(
                "{} is no usable scheduler configuration:\n{}",
                file.display(),
                lines.join("\n")
            )
        }
    }
}

/// Root's state belongs to the machine, anyone else's to their home.
pub fn default_data_dir() -> anyhow::Result<PathBuf> {
    if nix::unistd::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/orlop"));
    }
    let home = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    home("XDG_DATA_HOME")
        .or_else(|| home("HOME").map(|h| h.join(".local/share")))
        .map(|base| base.join("orlop"))
        .ok_or_else(|| anyhow::anyhow!("neither HOME nor XDG_DATA_HOME is set; say where to keep data with --data-dir"))
}

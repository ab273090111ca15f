//! `orlop up`: a cluster in the foreground.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use orlop_apiserver::Config;
use orlop_base::clock::monotonic;

use super::controllers::ControllersArgs;
use super::parse_duration;
use crate::components::{self, Components};
use crate::control;
use crate::fleet::FleetArgs;
use crate::node::{self, NodeArgs, NodePlan};
use crate::services::ServicesArgs;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Data directory of the cluster [default: /var/lib/orlop as root, else ~/.local/share/orlop]
    #[arg(long, value_name = "DIR", env = "ORLOP_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Address to listen on [default: all if this machine runs pods, since they need the server; else 127.0.0.1]
    #[arg(long)]
    bind: Option<IpAddr>,
    /// Port to listen on (0: any free port)
    #[arg(long, default_value_t = 6443)]
    port: u16,
    /// CIDR range of Service cluster IPs (one per IP family, comma-separated)
    #[arg(long, value_name = "CIDR", value_delimiter = ',', default_value = "10.96.0.0/12")]
    service_cidr: Vec<ipnet::IpNet>,
    /// File to write audit events to, one JSON line per event
    #[arg(long, value_name = "FILE")]
    audit_log: Option<PathBuf>,
    /// KubeSchedulerConfiguration file of the scheduler
    #[arg(long, value_name = "FILE")]
    scheduler_config: Option<PathBuf>,
    /// Components to leave out; `orlop component start NAME` starts them later
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = components::NAMES)]
    disable: Vec<String>,
    /// The same as --disable=scheduler
    #[arg(long)]
    no_scheduler: bool,
    /// The same as --disable=controller-manager
    #[arg(long, visible_alias = "no-controllers")]
    no_controller_manager: bool,
    /// The same as --disable=kubelet
    #[arg(long)]
    no_kubelet: bool,
    /// The same as --disable=proxy
    #[arg(long)]
    no_proxy: bool,
    /// The same as --disable=dns
    #[arg(long)]
    no_dns: bool,
    /// Secure port of the scheduler on 127.0.0.1: healthz, metrics, configz (0: disabled)
    #[arg(long, value_name = "PORT", default_value_t = orlop_scheduler::serving::DEFAULT_PORT)]
    scheduler_port: u16,
    /// Secure port of the controller manager on 127.0.0.1: healthz and metrics (0: disabled)
    #[arg(long, value_name = "PORT", default_value_t = super::controller_manager::PORT)]
    controller_manager_port: u16,
    /// Time after which a component whose task keeps its thread is reported as stalled
    #[arg(long, hide = true, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    component_stall_timeout: Duration,
    #[command(flatten, next_help_heading = "This machine as a node")]
    node: NodeArgs,
    #[command(flatten, next_help_heading = "Services")]
    services: ServicesArgs,
    #[command(flatten, next_help_heading = "Simulated nodes")]
    fleet: FleetArgs,
    #[command(flatten, next_help_heading = "Controllers")]
    controllers: ControllersArgs,
}

impl Args {
    /// The components to leave out.
    fn disabled(&self) -> Vec<String> {
        let short = [
            (self.no_scheduler, components::SCHEDULER),
            (self.no_controller_manager, components::CONTROLLER_MANAGER),
            (self.no_kubelet, components::KUBELET),
            (self.no_proxy, components::PROXY),
            (self.no_dns, components::DNS),
        ];
        let short = short
            .into_iter()
            .filter(|(given, _)| *given)
            .map(|(_, name)| name.to_string());
        self.disable.iter().cloned().chain(short).collect()
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let started = monotonic();
    let disabled = args.disabled();
    let (scheduler_port, manager_port) = (args.scheduler_port, args.controller_manager_port);
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
                "{} simulated nodes: pods report Running, no containers are started.",
                fleet.nodes.count()
            );
        }
        if !disabled.is_empty() {
            println!(
                "Left out: {}. `orlop component start NAME` starts a component.",
                disabled.join(", ")
            );
        }
        println!("Use it:  export KUBECONFIG={}", kubeconfig.display());
        running
            .server
            .health
            .components
            .set_stall_timeout(args.component_stall_timeout);
        let mut components = Components::new(running, disabled);
        components.start_scheduler(running, scheduler, scheduler_port);
        components.start_controllers(running, controllers, settings, manager_port);
        if let Some(node) = node {
            components.start_node(running, node);
        }
        if let Some(services) = services {
            components.start_services(running, services);
        }
        if let Some(fleet) = fleet {
            components.start_fleet(running, fleet);
        }
        let control = control::start(
            &data_dir,
            components.supervisor().clone(),
            components.shutdown().clone(),
        );
        match control {
            Ok(task) => components.keep(task),
            Err(error) => tracing::warn!(err = %error, "failed to listen for `orlop component`"),
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

/// What the file says, or the defaults. Every problem of a bad file is named. One process has the data directory: there
/// is nobody to be elected against, and no lease to lose, unless the file asks for an election.
fn scheduler_config(file: Option<&Path>) -> anyhow::Result<orlop_scheduler::config::Config> {
    let Some(file) = file else {
        let mut config = orlop_scheduler::config::Config::default();
        config.leader_election.leader_elect = false;
        return Ok(config);
    };
    let text = std::fs::read_to_string(file).with_context(|| format!("failed to read {}", file.display()))?;
    let extra: Vec<_> = orlop_scheduler::plugins::EXTRA.iter().map(|e| e.row).collect();
    match orlop_scheduler::config::parse(&text, &extra) {
        Ok((mut config, warnings)) => {
            for warning in warnings {
                tracing::warn!(file = %file.display(), warning = %warning, "loaded configuration with a warning");
            }
            config.leader_election.leader_elect = asks_for_election(&text);
            Ok(config)
        }
        Err(problems) => {
            let lines: Vec<String> = problems.iter().map(|p| format!("  {p}")).collect();
            anyhow::bail!(
                "{} is not a valid scheduler configuration:\n{}",
                file.display(),
                lines.join("\n")
            )
        }
    }
}

/// The default of the file's format is true; what counts here is whether somebody wrote so.
fn asks_for_election(text: &str) -> bool {
    let document: Result<serde_json::Value, _> = serde_saphyr::from_str(text);
    document.is_ok_and(|document| document["leaderElection"]["leaderElect"] == true)
}

/// Root's state belongs to the machine, anyone else's to their home.
pub(crate) fn default_data_dir() -> anyhow::Result<PathBuf> {
    if nix::unistd::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/orlop"));
    }
    let home = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    home("XDG_DATA_HOME")
        .or_else(|| home("HOME").map(|h| h.join(".local/share")))
        .map(|base| base.join("orlop"))
        .ok_or_else(|| anyhow::anyhow!("neither HOME nor XDG_DATA_HOME is set; say where to keep data with --data-dir"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn components_are_left_out_by_name() {
        let parse = |line: &str| Cli::try_parse_from(std::iter::once("up").chain(line.split_whitespace()));
        let disabled = |line: &str| parse(line).unwrap_or_else(|e| panic!("{e}")).args.disabled();
        assert!(disabled("").is_empty());
        assert_eq!(
            disabled("--no-scheduler --disable proxy,dns"),
            ["proxy", "dns", "scheduler"]
        );
        assert_eq!(disabled("--no-controllers"), ["controller-manager"]);
        assert!(parse("--disable etcd").is_err());
    }

    #[test]
    fn an_election_is_held_only_where_it_is_asked_for() {
        let head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
        for (rest, elects) in [
            ("", false),
            ("leaderElection: {leaderElect: true}\n", true),
            ("leaderElection: {leaderElect: false}\n", false),
            ("leaderElection: {resourceName: mine}\n", false),
        ] {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), format!("{head}{rest}")).unwrap();
            let config = scheduler_config(Some(file.path())).unwrap();
            assert_eq!(config.leader_election.leader_elect, elects, "{rest}");
        }
        assert!(!scheduler_config(None).unwrap().leader_election.leader_elect);
    }
}

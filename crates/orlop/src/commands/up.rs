//! `orlop up`: a cluster in the foreground, or in the background.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use orlop_apiserver::{Config, Running};
use orlop_base::Clock;
use orlop_base::clock::monotonic;
use orlop_kubelet::fleet::Options;

use super::controllers::ControllersArgs;
use super::parse_duration;
use crate::cluster::{self, ChosenConfig, CommandLines, ComponentPods, ControlPlaneNode};
use crate::components::{self, Components, NodeApis};
use crate::fleet::FleetArgs;
use crate::log_file::LogFile;
use crate::machine::{self, Machine};
use crate::node::{self, NodeArgs, NodeCertificate, NodePlan};
use crate::nodes::{Workers, WorkersOptions};
use crate::services::{ServicesArgs, ServicesPlan};
use crate::session::Session;
use crate::stop::StopRequest;
use crate::{data_dir, detach};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run in the background: return when the cluster serves and its node is Ready. `orlop status` shows it, `orlop down`
    /// stops it, DATA_DIR/orlop.log has its log
    #[arg(short, long)]
    detach: bool,
    /// With --detach: how long to wait until the node is Ready
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    wait: Duration,
    /// YAML file with these flags by name; what is given on the command line or in the environment wins
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Do not add a context for the cluster to the kubeconfig ($KUBECONFIG or ~/.kube/config)
    #[arg(long)]
    no_kubeconfig: bool,
    /// Leave pods running when a signal stops this process: the next start adopts them, `orlop down` ends them
    #[arg(long)]
    keep_pods: bool,
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
    fn data_dir(&self) -> anyhow::Result<PathBuf> {
        self.data_dir.clone().map_or_else(default_data_dir, Ok)
    }

    /// Where this process logs, if it is one in the background.
    pub(super) fn log_file(&self) -> Option<LogFile> {
        if !self.detach || !detach::is_detached() {
            return None;
        }
        // Standard error leads there whether or not its size can be bounded.
        LogFile::of_process(&self.data_dir().ok()?).ok()
    }

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
    let data_dir = args.data_dir()?;
    match (args.detach, detach::is_detached()) {
        (true, false) => return start_in_background(&data_dir, args.wait),
        (true, true) => detach::leave_session(),
        (false, _) => {}
    }
    let disabled = args.disabled();
    let (scheduler_port, manager_port) = (args.scheduler_port, args.controller_manager_port);
    let scheduler = scheduler_config(args.scheduler_config)?;
    let (controllers, settings) = (args.controllers.chosen()?, args.controllers.settings()?);
    let mut lines = CommandLines::default();
    lines.set_scheduler(scheduler_port, scheduler.file.as_ref());
    lines.set_controller_manager(manager_port, args.controllers.names());
    let mut config = Config::new(data_dir.clone());
    config.service_cidrs = args.service_cidr;
    let fleet = args.fleet.plan()?;
    let dns = args.services.dns_address(&config);
    let mut node = args.node.plan(&data_dir, dns)?;
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
    if let Some(node) = node
        .as_ref()
        .filter(|node| node.is_real() && config.bind.is_unspecified())
    {
        // What pods and worker nodes reach, also on a machine without a default route.
        config.advertise = node.identity.addresses.first().copied();
    }
    config.port = args.port;
    config.audit_log = args.audit_log;
    if let Some(services) = &services {
        services.describe(&mut lines);
    }
    lines.set_apiserver(&config);
    let shown = node
        .as_mut()
        .map(|node| show_components(node, &lines, &data_dir))
        .transpose()?;
    let machine = Machine {
        made_data_dir: data_dir::is_vacant(&data_dir),
        kubeconfigs: vec![],
        proxy: services.is_some(),
        made_tables: services.iter().flat_map(|_| machine::missing_tables()).collect(),
        own_address: None,
        nodes: node.iter().filter_map(NodePlan::traces).collect(),
    };
    let mut session = Session::default();
    let served = super::apiserver::serve(config, |running, kubeconfig, stop| {
        let took = started.elapsed();
        let stop = StopRequest::new(stop.clone()).keeping_pods(args.keep_pods);
        session.begin(&data_dir, kubeconfig, !args.no_kubeconfig, machine);
        let mut greeting = greeting(running, took, node.as_ref(), fleet.as_ref(), &disabled);
        running
            .server
            .health
            .components
            .set_stall_timeout(args.component_stall_timeout);
        let logs = data_dir.join(data_dir::LOGS);
        if let Err(error) = cluster::logs::write_to(&logs) {
            tracing::warn!(path = %logs.display(), err = %error, "failed to open the components' log files");
        }
        let is_disabled = |name: &str| disabled.iter().any(|disabled| disabled == name);
        let own_nodes = node.iter().filter(|_| !is_disabled(components::KUBELET));
        let own_nodes = own_nodes.flat_map(|node| {
            let own = std::iter::once(node.identity.name.clone());
            own.chain(Workers::running(&node.workers))
        });
        let own_nodes: Vec<String> = own_nodes.collect();
        let mut components = Components::new(&running.server.health.components, disabled, stop.clone());
        if let Some((pods, node)) = shown {
            components.show_cluster(running, pods, node);
        }
        components.start_scheduler(running, scheduler, scheduler_port, &data_dir);
        components.start_controllers(running, controllers, settings, manager_port);
        if let Some(node) = node {
            let apis = NodeApis::in_process(running, &node.identity.name);
            if node.embedded().is_some() {
                let options = workers_options(running, &node, services.as_ref(), dns, &data_dir, &stop);
                components.start_workers(Workers::new(options, node.workers.clone()));
            }
            match NodeCertificate::issue(&running.pki, &node.identity) {
                Ok(certificate) => components.start_node(&apis, node, certificate),
                Err(error) => tracing::error!(err = %format!("{error:#}"), "failed to start the kubelet"),
            }
            if let Some(services) = services {
                components.start_services(&apis, services);
            }
        }
        if let Some(fleet) = fleet {
            components.start_fleet(running, fleet);
        }
        greeting.extend(session.join_kubeconfig(kubeconfig));
        greeting.iter().for_each(|line| println!("{line}"));
        session.announce(running, &mut components, &stop, own_nodes, greeting);
        components
    });
    session.end();
    cluster::logs::flush();
    served
}

/// What worker nodes of this machine are started with.
fn workers_options(
    running: &Running,
    node: &NodePlan,
    services: Option<&ServicesPlan>,
    dns: Option<IpAddr>,
    data_dir: &Path,
    stop: &StopRequest,
) -> WorkersOptions {
    let server = match running.address.ip() {
        ip if ip.is_unspecified() => node.identity.addresses.first().copied().unwrap_or(ip),
        ip => ip,
    };
    WorkersOptions {
        data_dir: data_dir::absolute(data_dir),
        own_node: node.identity.name.clone(),
        pod_cidr: node.pod_cidr().clone(),
        pod_network: node.embedded().map(|embedded| embedded.pod_network).unwrap_or_default(),
        labels: node.identity.labels.clone(),
        dns,
        kubelet_config: node.kubelet_config().cloned(),
        services: services.cloned(),
        server_url: super::apiserver::url((server, running.address.port()).into()),
        pki: running.pki.clone(),
        admin: Components::admin(running),
        stop: stop.clone(),
    }
}

/// What the user is told when the API is served.
fn greeting(
    running: &Running,
    took: Duration,
    node: Option<&NodePlan>,
    fleet: Option<&Options>,
    disabled: &[String],
) -> Vec<String> {
    let mut lines = vec![format!(
        "Orlop serves Kubernetes {} on {} ({} ms)",
        orlop_apiserver::discovery::GIT_VERSION,
        super::apiserver::url(running.address),
        took.as_millis()
    )];
    if node.is_some() || fleet.is_none() {
        lines.push(node::described(node));
    }
    if let Some(fleet) = fleet {
        lines.push(format!(
            "{} simulated nodes: pods report Running, no containers are started.",
            fleet.nodes.count()
        ));
    }
    if !disabled.is_empty() {
        lines.push(format!(
            "Left out: {}. `orlop component start NAME` starts a component.",
            disabled.join(", ")
        ));
    }
    lines
}

fn start_in_background(data_dir: &Path, patience: Duration) -> anyhow::Result<()> {
    let greeting = detach::start(data_dir, patience)?;
    greeting.iter().for_each(|line| println!("{line}"));
    println!(
        "It runs in the background:  {}, {}",
        data_dir::command("status", data_dir),
        data_dir::command("down", data_dir)
    );
    Ok(())
}

/// The components are shown as pods of this node, with their logs in the data directory.
fn show_components(
    node: &mut NodePlan,
    lines: &CommandLines,
    data_dir: &Path,
) -> anyhow::Result<(ComponentPods, ControlPlaneNode)> {
    cluster::logs::capture();
    let name = node.identity.name.clone();
    let (pods, hosted) = ComponentPods::new(&name, lines, &data_dir.join(data_dir::LOGS), Clock::System.now())?;
    node.hosted = hosted;
    let further_nodes = Workers::running(&node.workers).count();
    Ok((pods, ControlPlaneNode { name, further_nodes }))
}

/// Pods come from other addresses than this machine's loopback.
fn usual_address(node: Option<&NodePlan>) -> IpAddr {
    match node.is_some_and(NodePlan::is_real) {
        true => Ipv4Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::LOCALHOST.into(),
    }
}

/// What the file says, or the defaults. Every problem of a bad file is named.
fn scheduler_config(file: Option<PathBuf>) -> anyhow::Result<ChosenConfig> {
    let Some(file) = file else {
        let mut config = orlop_scheduler::config::Config::default();
        // There is nobody to be elected against.
        config.leader_election.leader_elect = false;
        return Ok(ChosenConfig { config, file: None });
    };
    let text = std::fs::read_to_string(&file).with_context(|| format!("failed to read {}", file.display()))?;
    match cluster::parse_scheduler_config(&text) {
        Ok((config, warnings)) => {
            for warning in warnings {
                tracing::warn!(file = %file.display(), warning = %warning, "loaded configuration with a warning");
            }
            let file = Some(file);
            Ok(ChosenConfig { config, file })
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
}

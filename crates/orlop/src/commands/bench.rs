//! `orlop bench`: measure an API server or a scheduler, of a running cluster or of one started for the purpose.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;

use crate::bench::client::Target;
use crate::bench::controllers::{Bench, Sizes, print};
use crate::bench::own_server::{OwnServer, Part};
use crate::bench::scheduling::catalogue;
use crate::bench::scheduling::report::{self, WorkloadResult};
use crate::bench::scheduling::run::{Run, Settings};
use crate::bench::scheduling::workload::{Params, Workload};
use crate::bench::{extensions, hostile, measure, pods, reference, services, workloads};

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Args {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(clap::Subcommand)]
enum What {
    /// Load an API server and report rates and latencies (also what `orlop bench` alone does)
    Api(ApiArgs),
    /// Give a scheduler pods to place and report how fast they are bound
    Scheduling(SchedulingArgs),
    /// Sync many services with our proxy, and with kube-proxy if it is in PATH, and report how long rule syncs take
    Services(ServicesArgs),
    /// Scale and roll out workloads on simulated nodes, and report rates and writes per pod
    Controllers(ControllersArgs),
    /// Start pods on the embedded runtime and on containerd, and compare: time, memory, and bare CRI calls
    Pods(PodsArgs),
    /// Run hostile clients against an API server and report the latency of honest ones
    Hostile(HostileArgs),
    /// Define custom resources, create their objects and admission policies, and report rates, latencies and memory, beside
    /// kube-apiserver if it is in PATH
    Extensions(ExtensionsArgs),
}

#[derive(clap::Args)]
struct ExtensionsArgs {
    /// Measure the server of this kubeconfig (of an administrator); without it, one is started in a temporary directory
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Report the memory of this process, the server's [default: that of the server that is started]
    #[arg(long)]
    pid: Option<u32>,
    /// How many CustomResourceDefinitions
    #[arg(long, default_value_t = 1_000)]
    definitions: usize,
    /// How many objects of each kind
    #[arg(long, default_value_t = 2_000)]
    objects: usize,
    /// How many ValidatingAdmissionPolicies, of ten rules each
    #[arg(long, default_value_t = 100)]
    policies: usize,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct HostileArgs {
    /// Measure the server of this kubeconfig (of an administrator, on this machine); without it, one is started in a
    /// temporary directory
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Hostile clients of each kind
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=256))]
    clients: u32,
    /// How long to measure under each kind
    #[arg(long, default_value_t = 4, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Which kinds, separated by commas [default: all]
    #[arg(long, value_delimiter = ',', value_name = "KIND")]
    kinds: Vec<String>,
}

#[derive(clap::Args)]
struct ApiArgs {
    /// Measure the server of this kubeconfig; without it, one is started in a temporary directory
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// How many pods to create
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// How many watchers to serve at once
    #[arg(long, default_value_t = 1_000)]
    watchers: usize,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct ControllersArgs {
    /// How many simulated nodes
    #[arg(long, default_value_t = 1_000)]
    nodes: usize,
    /// Pods of the Deployment that is scaled up and down
    #[arg(long, default_value_t = 5_000)]
    pods: u64,
    /// Deployments of ten pods that are made at once
    #[arg(long, default_value_t = 500)]
    deployments: u64,
    /// Pods of the Deployment that is rolled over
    #[arg(long, default_value_t = 1_000)]
    rolled: u64,
    /// Show what was written, by resource and verb
    #[arg(long)]
    writes: bool,
}

#[derive(clap::Args)]
struct ServicesArgs {
    /// How many services, of five endpoints each
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    services: u32,
    /// Modes to measure
    #[arg(
        long,
        value_name = "MODE",
        value_delimiter = ',',
        default_value = "iptables,nftables"
    )]
    modes: Vec<String>,
}

#[derive(clap::Args)]
struct PodsArgs {
    /// Container runtimes to measure, in turns: embedded, and sockets (unix:///run/…)
    /// [default: embedded, and containerd if it listens at unix:///run/containerd/containerd.sock]
    #[arg(long = "runtime", value_name = "RUNTIME", value_delimiter = ',', value_parser = parse_pods_runtime)]
    runtimes: Vec<String>,
    /// Where those with a socket look for the configuration of pod networks (it is written there)
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    cni_conf_dir: PathBuf,
    /// Image of the containers, with a `sleep` in it. The runtimes must have it, or be able to pull it, unless it is built in: that
    /// is imported with `ctr`
    #[arg(long, default_value = "orlop.local/echo")]
    image: String,
    /// How many to start at once
    #[arg(long, default_value_t = 110, value_parser = clap::value_parser!(u32).range(1..=230))]
    pods: u32,
}

fn parse_pods_runtime(text: &str) -> Result<String, &'static str> {
    let text = text.strip_prefix("cri:").unwrap_or(text);
    match text == pods::EMBEDDED || text.starts_with("unix://") {
        true => Ok(text.to_string()),
        false => Err("must be embedded or unix:///path/to/socket"),
    }
}

const SCHEDULING_HELP: &str = "\
Workloads have the shapes of Kubernetes' scheduler_perf and its sizes; \"1 s avg\" and the percentiles beside it are \
made by its rules. Nodes are plain Node objects without a kubelet.

On a cluster of your own (--kubeconfig): it should have no other nodes, and no node lifecycle controller, which would \
mark the nodes NotReady after 40 s as nobody renews them (kube-controller-manager --controllers=*,-node-lifecycle-controller). \
Everything made has a name that begins with that of the run, and is deleted at the end, also after Ctrl-C; namespaces without a namespace controller \
stay Terminating.";

#[derive(clap::Args)]
#[command(after_long_help = SCHEDULING_HELP)]
struct SchedulingArgs {
    /// Measure the cluster of this kubeconfig; without it, `orlop up` is started anew for each workload
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Which to run: a name of --list or a path to a file of your own; may be repeated [default: all]
    #[arg(long = "workload", short, value_name = "NAME|FILE")]
    workloads: Vec<String>,
    /// Show the workloads and their sizes
    #[arg(long)]
    list: bool,
    /// Which size to run: full (that of scheduler_perf), small, or another one of the workload
    #[arg(long, default_value = "full")]
    size: String,
    /// Take this many nodes instead
    #[arg(long)]
    nodes: Option<usize>,
    /// Measure this many pods instead
    #[arg(long)]
    pods: Option<usize>,
    /// Make this many pods before the measurement instead
    #[arg(long)]
    init_pods: Option<usize>,
    /// Report memory and processor time of these processes too; repeat, or separate by commas
    #[arg(
        long = "pid",
        visible_alias = "scheduler-pid",
        value_name = "PID",
        value_delimiter = ','
    )]
    pids: Vec<u32>,
    /// Give up when no pod has been bound for so many seconds
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    timeout: u64,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    match args.what {
        None => api(args.api),
        Some(What::Api(args)) => api(args),
        Some(What::Scheduling(args)) => scheduling(args),
        Some(What::Controllers(args)) => controllers(&args),
        Some(What::Services(args)) => services(&args),
        Some(What::Pods(args)) => pods(&args),
        Some(What::Hostile(args)) => hostile(&args),
        Some(What::Extensions(args)) => extensions(&args),
    }
}

fn hostile(args: &HostileArgs) -> anyhow::Result<()> {
    let own = match &args.kubeconfig {
        Some(_) => None,
        None => Some(OwnServer::start(Part::ApiServer)?),
    };
    let kubeconfig = match (&args.kubeconfig, &own) {
        (Some(path), _) => path.clone(),
        (None, own) => own.as_ref().expect("started above").kubeconfig(),
    };
    let settings = hostile::Settings {
        clients: args.clients as usize,
        time: Duration::from_secs(args.seconds),
        kinds: hostile::Kind::parse_all(&args.kinds)?,
        pid: own.as_ref().map(OwnServer::pid),
    };
    hostile::run(&kubeconfig, &settings)
}

fn extensions(args: &ExtensionsArgs) -> anyhow::Result<()> {
    let own = match &args.kubeconfig {
        Some(_) => None,
        None => Some(OwnServer::start(Part::ApiServer)?),
    };
    let kubeconfig = match (&args.kubeconfig, &own) {
        (Some(path), _) => path.clone(),
        (None, own) => own.as_ref().expect("started above").kubeconfig(),
    };
    let settings = extensions::Settings {
        definitions: args.definitions,
        objects: args.objects,
        policies: args.policies,
        pid: args.pid.or(own.as_ref().map(OwnServer::pid)),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut figures = runtime.block_on(extensions::run(&kubeconfig, settings))?;
    if own.is_some() && services::is_in_path(reference::PROGRAM) {
        drop(own);
        eprintln!("· kube-apiserver, beside it");
        let other = reference::KubeApiServer::start()?;
        let settings = extensions::Settings {
            pid: Some(other.pid()),
            ..settings
        };
        for mut row in runtime.block_on(extensions::run(&other.kubeconfig(), settings))? {
            row.name = format!("kube-apiserver: {}", row.name);
            figures.push(row);
        }
    }
    match args.json {
        true => println!("{:#}", measure::to_json(&figures)),
        false => measure::print_table(&figures),
    }
    Ok(())
}

fn services(args: &ServicesArgs) -> anyhow::Result<()> {
    services::enter_private_network()?;
    let own = OwnServer::start(Part::ApiServer)?;
    let kubeconfig = own.kubeconfig();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        eprintln!("· {} services", args.services);
        let bench = services::Bench::prepare(&kubeconfig, args.services).await?;
        let mut rows = vec![];
        for mode in &args.modes {
            for program in ["orlop", "kube-proxy"] {
                if program == "orlop" || services::is_in_path(program) {
                    eprintln!("· {program} in mode {mode}");
                    rows.push(bench.measure(program, mode).await);
                }
            }
        }
        services::print(args.services, &rows);
        Ok(())
    })
}

fn pods(args: &PodsArgs) -> anyhow::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("real pods need root");
    }
    let runtimes = match args.runtimes.is_empty() {
        true => pods::usual_runtimes(),
        false => args.runtimes.clone(),
    };
    if runtimes.len() == 1 {
        eprintln!("· {} alone: --runtime names others to compare it with", runtimes[0]);
    }
    let stage = pods::Stage::set(pods::Setting {
        runtimes: &runtimes,
        cni_conf_dir: &args.cni_conf_dir,
        image: &args.image,
        pods: args.pods as usize,
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let columns = runtime.block_on(stage.measure())?;
    drop(stage);
    pods::print(&columns, args.pods as usize);
    Ok(())
}

fn api(args: ApiArgs) -> anyhow::Result<()> {
    let own = match &args.kubeconfig {
        Some(_) => None,
        None => Some(OwnServer::start(Part::ApiServer)?),
    };
    let kubeconfig = args
        .kubeconfig
        .clone()
        .unwrap_or_else(|| own.as_ref().expect("started above").kubeconfig());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let figures = runtime.block_on(measure_all(&args, &kubeconfig, own.as_ref()))?;
    if args.json {
        println!("{:#}", measure::to_json(&figures));
    } else {
        measure::print_table(&figures);
        if let Some(own) = &own {
            println!(
                "\nexec to /readyz: {} ms; resident: {:.1} MB idle, {:.1} MB at the end",
                own.ready.as_millis(),
                own.idle_mb,
                own.resident_mb()
            );
        }
    }
    Ok(())
}

async fn measure_all(
    args: &ApiArgs,
    kubeconfig: &Path,
    own: Option<&OwnServer>,
) -> anyhow::Result<Vec<measure::Figures>> {
    let target = Target::from_kubeconfig(kubeconfig)?;
    let say = |what: &str| eprintln!("· {what}");
    workloads::prepare(&target).await?;
    let mut figures = vec![];
    let alone = (args.pods / 10).max(1);
    say("creates, one client");
    figures.push(workloads::creates(&target, 1, alone, "one").await?);
    say("creates, 64 clients");
    figures.push(workloads::creates(&target, 64, args.pods - alone.min(args.pods), "many").await?);
    if let Some(own) = own {
        eprintln!("· resident with {} pods: {:.1} MB", args.pods, own.resident_mb());
    }
    say("gets");
    figures.push(workloads::gets(&target, 1, 5_000, "one", alone).await?);
    figures.push(workloads::gets(&target, 64, 50_000, "one", alone).await?);
    say("lists");
    figures.push(workloads::lists(&target, 10).await?);
    say("watch fan-out");
    figures.push(workloads::fan_out(&target, args.watchers, 50).await?);
    say("cleaning up");
    workloads::clean_up(&target).await?;
    Ok(figures)
}

fn controllers(args: &ControllersArgs) -> anyhow::Result<()> {
    let own = OwnServer::start(Part::Simulated(args.nodes))?;
    let target = Target::from_kubeconfig(&own.kubeconfig())?;
    let sizes = Sizes {
        pods: args.pods,
        deployments: args.deployments,
        rolled: args.rolled,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut bench = Bench::connect(&target, own.pid()).await?;
        let outcome = bench.run(&sizes, args.nodes).await;
        print(&bench.steps, args.writes);
        println!("resident at the end: {:.0} MB", own.resident_mb());
        outcome.map_err(|e| e.context(own.log_tail()))
    })
}

fn scheduling(args: SchedulingArgs) -> anyhow::Result<()> {
    let chosen = catalogue::find(&args.workloads)?;
    if args.list {
        print_list(&chosen);
        return Ok(());
    }
    let planned = plan(&args, chosen)?;
    let (mut outcomes, mut failures) = (vec![], vec![]);
    for (workload, params) in planned {
        let name = workload.name.clone();
        // With other numbers it is another size, not to be mixed up with the one asked for.
        let size = match workload.sizes.get(&args.size) == Some(&params) {
            true => &args.size,
            false => "changed",
        };
        eprintln!("· {name} ({size})");
        match one_workload(&args, workload, size, params) {
            Ok(Some(outcome)) => {
                eprintln!("{}", outcome.details());
                outcomes.push(outcome);
            }
            Ok(None) => {
                failures.push(name);
                break;
            }
            Err(error) => {
                eprintln!("  failed: {error:#}");
                failures.push(name);
            }
        }
    }
    if args.json {
        let rows: Vec<_> = outcomes.iter().map(WorkloadResult::to_json).collect();
        println!("{:#}", serde_json::Value::from(rows));
    } else if !outcomes.is_empty() {
        println!("{}", report::table(&outcomes));
    }
    if !failures.is_empty() {
        bail!("not finished: {}", failures.join(", "));
    }
    Ok(())
}

fn print_list(workloads: &[Workload]) {
    for workload in workloads {
        println!("{}: {}", workload.name, workload.description);
        for (size, params) in &workload.sizes {
            let numbers: Vec<String> = params.iter().map(|(name, n)| format!("{name} {n}")).collect();
            println!("    {size}: {}", numbers.join(", "));
        }
    }
}

/// Finds what is wrong with any workload before the first one runs.
fn plan(args: &SchedulingArgs, workloads: Vec<Workload>) -> anyhow::Result<Vec<(Workload, Params)>> {
    let given = [("nodes", args.nodes), ("pods", args.pods), ("initPods", args.init_pods)];
    let overrides: Params = given
        .iter()
        .filter_map(|(name, value)| Some((name.to_string(), (*value)?)))
        .collect();
    let templates = catalogue::templates();
    let mut planned = vec![];
    for workload in workloads {
        let params = workload.params(&args.size, &overrides)?;
        let problems = workload.problems(&params, &templates);
        if !problems.is_empty() {
            bail!("workload {}:\n  {}", workload.name, problems.join("\n  "));
        }
        planned.push((workload, params));
    }
    Ok(planned)
}

/// None when it was interrupted.
fn one_workload(
    args: &SchedulingArgs,
    workload: Workload,
    size: &str,
    params: Params,
) -> anyhow::Result<Option<WorkloadResult>> {
    // A server of its own for each workload: the peak of memory is that of the workload.
    let own = match &args.kubeconfig {
        Some(_) => None,
        None => Some(OwnServer::start(Part::Scheduling)?),
    };
    let kubeconfig = match (&args.kubeconfig, &own) {
        (Some(path), _) => path.clone(),
        (None, own) => own.as_ref().expect("started above").kubeconfig(),
    };
    let settings = Settings {
        patience: Duration::from_secs(args.timeout),
        pids: args
            .pids
            .iter()
            .copied()
            .chain(own.as_ref().map(OwnServer::pid))
            .collect(),
    };
    let target = Target::from_kubeconfig(&kubeconfig)?;
    // One thread: the client shares the processors with what it measures, and needs a part of one only.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut run = Run::prepare(&target, workload, size, params, settings).await?;
        let outcome = tokio::select! {
            outcome = run.execute() => outcome.map(Some),
            _ = tokio::signal::ctrl_c() => Ok(None),
        };
        if own.is_none() {
            if matches!(outcome, Ok(None)) {
                eprintln!("  interrupted; cleaning up");
            }
            if let Err(error) = run.clean_up().await {
                eprintln!("  not everything could be deleted: {error:#}");
            }
        }
        outcome
    })
}

//! The commands. One file each: its arguments and `run`; one entry in `Command`.

mod agent;
pub(crate) mod apiserver;
mod apiserver_access;
mod apiserver_flags;
mod bench;
mod completion;
mod component;
mod config;
mod config_file;
pub(crate) mod controller_manager;
mod controllers;
mod down;
mod election;
mod envtest;
mod etcd;
mod explain;
mod image;
mod kubelet;
mod node;
mod proxy;
mod scheduler;
mod serving;
mod signals;
mod simulate;
mod status;
pub(crate) mod up;
mod upstream_flags;
mod version;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::logging::LoggingArgs;

/// Kubernetes 1.36 in one binary.
#[derive(Parser)]
#[command(name = "orlop", version, about, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    logging: LoggingArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a cluster here, in the foreground until Ctrl-C, or in the background with -d
    Up(Box<up::Args>),
    /// Show what runs here, and whether it is healthy
    Status(status::Args),
    /// Stop the cluster that runs here; --purge removes all that it made on this machine
    Down(down::Args),
    /// Run the API server alone
    Apiserver(Box<apiserver::Args>),
    /// Write links for Go projects' envtest: KUBEBUILDER_ASSETS
    Envtest(envtest::Args),
    /// Run etcd alone: its v3 API, for a kube-apiserver or any other client
    Etcd(Box<etcd::Args>),
    /// Run the scheduler alone, against any cluster
    Scheduler(Box<scheduler::Args>),
    /// Run the controller manager alone, against any cluster
    ControllerManager(Box<controller_manager::Args>),
    /// Run the kubelet alone, for any cluster or standalone
    Kubelet(Box<kubelet::Args>),
    /// Run the service proxy alone, against any cluster
    Proxy(Box<proxy::Args>),
    /// Say why a pod is where it is, or nowhere; --fix: what would let it run. For any cluster
    Explain(explain::Args),
    /// Say what would happen: drains, new nodes, new workloads. Of a live cluster or manifests; nothing is written
    Simulate(Box<simulate::Args>),
    /// Pull, load, save, list and remove images of this machine's nodes
    Image(image::Args),
    /// List, add, stop, start, cut off and remove nodes of a running `orlop up`
    Node(node::Args),
    /// Look at, stop and start the components of a running `orlop up`
    Component(component::Args),
    /// Run a worker node of this machine: `orlop up` does
    #[command(hide = true)]
    Agent(agent::Args),
    /// Load an API server and report rates and latencies
    Bench(bench::Args),
    /// Print the configuration file of `orlop up`
    Config(config::Args),
    /// Print a completion script for a shell
    Completion(completion::Args),
    /// Write man pages
    #[command(hide = true)]
    Man(completion::ManArgs),
    /// Show the version of Orlop and of the Kubernetes API it serves
    Version(version::Args),
}

/// 0 done, 1 failed, 2 wrong usage (clap exits with 2 by itself).
pub(crate) fn main() -> ExitCode {
    let line: Vec<OsString> = std::env::args_os().collect();
    let cli = parse(&line).unwrap_or_else(|error| error.exit());
    let log_file = match &cli.command {
        Command::Up(args) => args.log_file(),
        Command::Agent(args) => args.log_file(),
        _ => None,
    };
    crate::logging::start(&cli.logging, log_file);
    let result = match cli.command {
        Command::Up(args) => up::run(*args),
        Command::Status(args) => match status::run(args) {
            Ok(true) => Ok(()),
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => Err(error),
        },
        Command::Down(args) => down::run(args),
        Command::Apiserver(args) => apiserver::run(*args),
        Command::Envtest(args) => envtest::run(args),
        Command::Etcd(args) => etcd::run(*args),
        Command::Scheduler(args) => scheduler::run(*args),
        Command::ControllerManager(args) => controller_manager::run(*args),
        Command::Kubelet(args) => kubelet::run(*args),
        Command::Proxy(args) => proxy::run(*args),
        Command::Explain(args) => explain::run(args),
        // As for status: the answer is in the exit code, too.
        Command::Simulate(args) => match simulate::run(*args) {
            Ok(true) => Ok(()),
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => Err(error),
        },
        Command::Image(args) => image::run(args),
        Command::Node(args) => node::run(args),
        Command::Component(args) => component::run(args),
        Command::Agent(args) => agent::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Config(args) => {
            let mut cli = Cli::command();
            cli.build();
            config::run(&args, cli.find_subcommand("up").unwrap_or(&cli));
            Ok(())
        }
        Command::Completion(args) => completion::run(&args, Cli::command()),
        Command::Man(args) => completion::write_man(&args, Cli::command()),
        Command::Version(args) => version::run(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The command in a line of arguments. A link with the name of one of Kubernetes' binaries is the command that stands for it.
fn parse(line: &[OsString]) -> Result<Cli, clap::Error> {
    let name = line.first().map(Path::new).and_then(Path::file_name);
    match name.and_then(OsStr::to_str) {
        Some("kube-apiserver") => parse_alone(line, "kube-apiserver", "apiserver", Command::Apiserver),
        Some("kube-scheduler") => parse_alone(line, "kube-scheduler", "scheduler", Command::Scheduler),
        Some("kube-controller-manager") => parse_alone(
            line,
            "kube-controller-manager",
            "controller-manager",
            Command::ControllerManager,
        ),
        Some("etcd") => parse_alone(&etcd::line(line.to_vec(), 1), "etcd", "etcd", Command::Etcd),
        Some("kubelet") => parse_alone(line, "kubelet", "kubelet", Command::Kubelet),
        Some("kube-proxy") => parse_alone(line, "kube-proxy", "proxy", Command::Proxy),
        // As a plugin of kubectl: `kubectl why pod NAME`.
        Some("kubectl-why") => parse_alone(line, "kubectl-why", "explain", Command::Explain),
        _ if line.get(1).is_some_and(|command| command == "etcd") => Cli::try_parse_from(etcd::line(line.to_vec(), 2)),
        _ => parse_own(line),
    }
}

/// With the flags of a configuration file, where the line names one.
fn parse_own(line: &[OsString]) -> Result<Cli, clap::Error> {
    let mut command = Cli::command();
    command.build();
    let matches = command.clone().try_get_matches_from(line)?;
    let up = matches.subcommand_matches("up").zip(command.find_subcommand("up"));
    let extended = match up {
        Some((matches, up)) => config_file::extended(line, up, matches)?,
        None => None,
    };
    match extended {
        Some(line) => Cli::try_parse_from(line),
        None => Cli::from_arg_matches(&matches),
    }
}

/// Whether a line of arguments is one that can be started.
#[cfg(test)]
pub(crate) fn check_line(line: &[OsString]) -> Result<(), clap::Error> {
    parse(line).map(drop)
}

/// A command's arguments without the command's name before them.
#[derive(Parser)]
#[command(max_term_width = 100)]
struct Alone<A: Args> {
    #[command(flatten)]
    logging: LoggingArgs,
    #[command(flatten)]
    args: A,
}

fn parse_alone<A: Args>(
    line: &[OsString],
    name: &'static str,
    stands_for: &str,
    command: impl FnOnce(A) -> Command,
) -> Result<Cli, clap::Error> {
    let cli = Cli::command();
    let about = cli.find_subcommand(stands_for).and_then(clap::Command::get_about);
    let alone = Alone::<A>::command()
        .name(name)
        .bin_name(name)
        .about(about.cloned().unwrap_or_default())
        // `Kubernetes v1.36.…`, as those binaries say it.
        .display_name("Kubernetes")
        .version(orlop_apiserver::discovery::GIT_VERSION);
    let alone = Alone::<A>::from_arg_matches(&alone.try_get_matches_from(line)?)?;
    Ok(Cli {
        logging: alone.logging,
        command: command(alone.args),
    })
}

/// A flag's value in Go's notation.
fn parse_duration(text: &str) -> anyhow::Result<std::time::Duration> {
    orlop_scheduler::config::parse_duration(text).context("must be a duration such as 60s, 5m or 1h")
}

/// As Go reads booleans.
fn parse_bool(text: &str) -> anyhow::Result<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => anyhow::bail!("must be true or false"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Cli, clap::Error> {
        parse(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn a_name_of_kubernetes_is_its_command() {
        type Is = fn(&Command) -> bool;
        let names: [(&str, Is); 6] = [
            ("etcd", |c| matches!(c, Command::Etcd(_))),
            ("kube-apiserver", |c| matches!(c, Command::Apiserver(_))),
            ("kube-scheduler", |c| matches!(c, Command::Scheduler(_))),
            ("kube-controller-manager", |c| {
                matches!(c, Command::ControllerManager(_))
            }),
            ("kubelet", |c| matches!(c, Command::Kubelet(_))),
            ("kube-proxy", |c| matches!(c, Command::Proxy(_))),
        ];
        for (name, is) in names {
            for line in [format!("/usr/local/bin/{name} -v 4"), format!("{name} --v=4")] {
                let cli = parsed(&line).unwrap_or_else(|e| panic!("{line}: {e}"));
                assert!(is(&cli.command), "{line}");
            }
            let help = parsed(&format!("{name} --help")).err().expect("help").to_string();
            assert!(help.contains(&format!("Usage: {name} [OPTIONS]")), "{help}");
            let version = parsed(&format!("{name} --version"))
                .err()
                .expect("a version")
                .to_string();
            assert!(version.starts_with("Kubernetes v1.36."), "{version}");
            let wrong = parsed(&format!("{name} --nothing-of-the-kind")).err().expect("refused");
            assert!(wrong.to_string().contains(&format!("Usage: {name}")), "{wrong}");
        }
        assert!(matches!(
            parsed("/usr/local/bin/kubectl-why pod web -n a").unwrap().command,
            Command::Explain(_)
        ));
        assert!(matches!(
            parsed("orlop scheduler -v 4").unwrap().command,
            Command::Scheduler(_)
        ));
        assert!(parsed("kube-something scheduler").is_ok(), "any other name is ours");
    }

    #[test]
    fn every_command_has_verbosity() {
        let manifest = "kube-scheduler --authentication-kubeconfig=/etc/kubernetes/scheduler.conf --leader-elect=true \
                        --kubeconfig=/etc/kubernetes/scheduler.conf -v=2";
        for line in [
            manifest,
            "orlop up -v 4",
            "orlop -v 4 up",
            "orlop apiserver --v=4",
            "orlop kubelet -v=4",
            "orlop proxy -v4",
        ] {
            parsed(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        }
    }
}

//! The commands. One file each: its arguments and `run`; one entry in `Command`.

mod apiserver;
mod bench;
mod component;
mod controller_manager;
mod controllers;
mod election;
mod kubelet;
mod proxy;
mod scheduler;
mod serving;
mod signals;
pub mod up;
mod version;

use std::process::ExitCode;

pub use controller_manager::ManagerPages;

use clap::{Parser, Subcommand};

/// Kubernetes 1.36 in one binary.
#[derive(Parser)]
#[command(name = "orlop", version, about, propagate_version = true, max_term_width = 100)]
struct Cli {
    /// Write log lines as text or JSON.
    #[arg(long, global = true, default_value = "text", value_parser = ["text", "json"])]
    log_format: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a cluster here, in the foreground until Ctrl-C
    Up(Box<up::Args>),
    /// Run the API server alone
    Apiserver(apiserver::Args),
    /// Run the scheduler alone, against any cluster
    Scheduler(Box<scheduler::Args>),
    /// Run the controllers alone, against any cluster
    ControllerManager(Box<controller_manager::Args>),
    /// Run the node agent alone: pods of this machine, for any cluster or for none
    Kubelet(Box<kubelet::Args>),
    /// Make services reachable on this machine, for any cluster
    Proxy(Box<proxy::Args>),
    /// Look at, stop and start the components of a running `orlop up`
    Component(component::Args),
    /// Load an API server and report rates and latencies
    Bench(bench::Args),
    /// Show the version of Orlop and of the Kubernetes API it serves
    Version(version::Args),
}

/// 0 done, 1 failed, 2 wrong usage (clap exits with 2 by itself).
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let level = match &cli.command {
        Command::Scheduler(args) => args.log_level(),
        Command::ControllerManager(args) => args.log_level(),
        Command::Kubelet(args) => args.log_level(),
        Command::Proxy(args) => args.log_level(),
        _ => "info",
    };
    crate::logging::start(cli.log_format == "json", level);
    let result = match cli.command {
        Command::Up(args) => up::run(*args),
        Command::Apiserver(args) => apiserver::run(args),
        Command::Scheduler(args) => scheduler::run(*args),
        Command::ControllerManager(args) => controller_manager::run(*args),
        Command::Kubelet(args) => kubelet::run(*args),
        Command::Proxy(args) => proxy::run(*args),
        Command::Component(args) => component::run(args),
        Command::Bench(args) => bench::run(args),
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

/// What `-v` is as a level of our own log; `detailed` is what a component tells in detail before everything does.
fn level_of(verbosity: u8, detailed: &'static str) -> &'static str {
    match verbosity {
        0..=3 => "info",
        4..=5 => detailed,
        6..=7 => "debug",
        _ => "trace",
    }
}

/// A flag's value in Go's notation.
fn parse_duration(text: &str) -> Result<std::time::Duration, String> {
    orlop_scheduler::config::parse_duration(text)
        .ok_or_else(|| "a duration such as 60s, 5m or 1h is wanted".to_string())
}

/// As Go reads booleans.
fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("true or false is wanted".to_string()),
    }
}

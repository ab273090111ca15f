//! `orlop component`: look at the components of a running `orlop up`, stop them and start them.

use std::path::PathBuf;

use crate::control;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Data directory of the `orlop up` [default: /var/lib/orlop as root, else ~/.local/share/orlop]
    #[arg(long, global = true, value_name = "DIR", env = "ORLOP_DATA_DIR")]
    data_dir: Option<PathBuf>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List the components with their states
    Ls,
    /// Stop a component until it is started again
    Stop { name: String },
    /// Start a component that was stopped or left out
    Start { name: String },
    /// For tests: make one of the component's tasks panic
    #[command(hide = true)]
    Panic { name: String },
    /// For tests: make the component end by itself
    #[command(hide = true)]
    End { name: String },
    /// For tests: make one of the component's tasks block its thread
    #[command(hide = true)]
    Stall { name: String, seconds: u64 },
}

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    let data_dir = args.data_dir.map_or_else(super::up::default_data_dir, Ok)?;
    let request = match args.verb {
        Verb::Ls => "ls".to_string(),
        Verb::Stop { name } => format!("stop {name}"),
        Verb::Start { name } => format!("start {name}"),
        Verb::Panic { name } => format!("panic {name}"),
        Verb::End { name } => format!("end {name}"),
        Verb::Stall { name, seconds } => format!("stall {name} {seconds}"),
    };
    print!("{}", control::ask(&data_dir, &request)?);
    Ok(())
}

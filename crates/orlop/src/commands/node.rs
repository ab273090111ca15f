//! `orlop node`: the nodes with real pods that a running `orlop up` has on this machine.

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
    /// List the nodes of this machine with their states
    Ls,
    /// Add a worker node
    Add {
        /// Name of the node [default: the first free one of worker-1, worker-2, …]
        name: Option<String>,
    },
    /// Stop a worker node, as if it was switched off: its pods, its kubelet and its proxy
    Stop { name: String },
    /// Start a worker node that was stopped
    Start { name: String },
    /// Cut a worker node off from the network: everything goes on there, but nobody reaches it
    Cut { name: String },
    /// Connect a worker node that was cut off
    Heal { name: String },
    /// Remove a worker node with its pods, its images' layers aside, and its Node object
    Rm { name: String },
}

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    let data_dir = args.data_dir.map_or_else(super::up::default_data_dir, Ok)?;
    let request = match args.verb {
        Verb::Ls => "node ls".to_string(),
        Verb::Add { name: None } => "node add".to_string(),
        Verb::Add { name: Some(name) } => format!("node add {name}"),
        Verb::Stop { name } => format!("node stop {name}"),
        Verb::Start { name } => format!("node start {name}"),
        Verb::Cut { name } => format!("node cut {name}"),
        Verb::Heal { name } => format!("node heal {name}"),
        Verb::Rm { name } => format!("node rm {name}"),
    };
    print!("{}", control::ask(&data_dir, &request)?);
    Ok(())
}

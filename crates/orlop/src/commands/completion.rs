//! `orlop completion SHELL` and `orlop man DIR`: what shells and readers of man pages are given, from the flags themselves.

use std::path::PathBuf;

use anyhow::Context;
use clap_complete::Shell;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Shell to complete commands in: `source <(orlop completion bash)`
    shell: Shell,
}

#[derive(clap::Args)]
pub(super) struct ManArgs {
    /// Directory to write to
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(super) fn run(args: &Args, mut command: clap::Command) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "orlop", &mut script);
    println!("{}", String::from_utf8(script)?.trim_end());
    Ok(())
}

/// A page for each command.
pub(super) fn write_man(args: &ManArgs, command: clap::Command) -> anyhow::Result<()> {
    let directory = &args.directory;
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(command, directory))
        .with_context(|| format!("failed to write man pages to {}", directory.display()))
}

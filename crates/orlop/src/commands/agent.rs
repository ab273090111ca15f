//! `orlop agent`: the process of a worker node, started by `orlop up`.

use std::path::PathBuf;

use crate::log_file::LogFile;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Directory of the node, with node.json
    directory: PathBuf,
}

impl Args {
    /// Where this process logs: whoever started it has it write there.
    pub(super) fn log_file(&self) -> Option<LogFile> {
        LogFile::of_process(&self.directory).ok()
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    crate::nodes::run_agent(&args.directory)
}

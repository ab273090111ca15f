//! `orlop down`: stops the cluster of a data directory, and with `--purge` removes all that it made on the machine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::signal::Signal;
use orlop_base::clock::{Shift, monotonic};

use crate::machine::{self, Machine, Purge};
use crate::output::counted;
use crate::process_file::{Holder, ProcessFile, ProcessId};
use crate::progress::Progress;
use crate::{control, data_dir, detach};

const LOOK: Duration = Duration::from_millis(50);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a stopping cluster is asked how many pods are left.
const ASK: Duration = Duration::from_millis(500);
/// For containers that a killed cluster left running, unless it is said otherwise.
const GRACE_DEFAULT: Duration = Duration::from_secs(30);

#[derive(clap::Args)]
pub(super) struct Args {
    /// Data directory of the cluster [default: /var/lib/orlop as root, else ~/.local/share/orlop]
    #[arg(long, value_name = "DIR", env = "ORLOP_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Period of time in seconds given to each pod to terminate, at most [default: the pod's own]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32))]
    grace_period: Option<u32>,
    /// Afterwards remove the data directory, and everything that the cluster made on this machine
    #[arg(long)]
    purge: bool,
    /// With --purge: remove the data directory even if something else could not be removed
    #[arg(long, requires = "purge")]
    force: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    let dir = args.data_dir.map_or_else(super::up::default_data_dir, Ok)?;
    if args.purge && dir.exists() && !data_dir::is_one(&dir) {
        bail!(
            "{} is not a data directory of Orlop: nothing was removed",
            dir.display()
        );
    }
    let holder = Holder::find(&dir);
    match holder.process() {
        Some(process) => {
            stop(&dir, &holder, process, args.grace_period)?;
            println!("Stopped the cluster in {}.", dir.display());
        }
        None => {
            println!("No cluster runs in {}.", dir.display());
            stop_orphans(&dir, args.grace_period)?;
        }
    }
    if !dir.exists() {
        return Ok(());
    }
    // A process that was killed has left these.
    ProcessFile::remove(&dir);
    remove_contexts(&dir);
    match args.purge {
        true => purge(&dir, args.grace_period, args.force),
        false => Ok(()),
    }
}

/// Asks the process to stop, and waits until it has.
fn stop(dir: &Path, holder: &Holder, process: &ProcessId, grace: Option<u32>) -> anyhow::Result<()> {
    let mut progress = Progress::start("Stopping the cluster");
    let request = grace.map_or("down".to_string(), |seconds| format!("down {seconds}"));
    let is_asked = matches!(holder, Holder::Serving(_)) && control::ask_within(dir, &request, REQUEST_TIMEOUT).is_ok();
    if !is_asked {
        let signalled = process.signal(Signal::SIGTERM);
        signalled.with_context(|| format!("failed to signal process {}", process.pid))?;
    }
    let mut ask_at = monotonic();
    while process.is_alive() {
        if monotonic() >= ask_at {
            if let Ok(report) = detach::ask(dir)
                && report.stopping_pods > 0
            {
                progress.set(&format!(
                    "Stopping pods within their grace periods, {} left",
                    report.stopping_pods
                ));
            }
            ask_at = monotonic().later(ASK);
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Pods that a cluster which was killed has left running.
fn stop_orphans(dir: &Path, grace: Option<u32>) -> anyhow::Result<()> {
    let (machine, uids) = (Machine::read(dir)?, machine::pod_uids(dir));
    if machine.nodes.is_empty() || uids.is_empty() {
        return Ok(());
    }
    let _progress = Progress::start("Stopping pods that were left running");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for node in &machine.nodes {
        match runtime.block_on(machine::stop_orphans(node, &uids, grace_or_default(grace))) {
            Ok(0) => {}
            Ok(pods) => println!("Stopped {} left running.", counted(pods, "pod")),
            Err(error) => eprintln!(
                "warning: failed to stop pods in the container runtime {}: {error}",
                node.runtime
            ),
        }
    }
    Ok(())
}

fn grace_or_default(grace: Option<u32>) -> Duration {
    grace.map_or(GRACE_DEFAULT, |seconds| Duration::from_secs(seconds.into()))
}

/// A cluster takes its context out when it stops; this is for one that was killed.
fn remove_contexts(dir: &Path) {
    let dir = data_dir::absolute(dir);
    let machine = match Machine::read(&dir) {
        Ok(machine) => machine,
        Err(error) => return eprintln!("warning: failed to read machine.json: {error}"),
    };
    for target in machine.kubeconfigs {
        if let Err(error) = target.unmerge(&dir) {
            eprintln!("warning: {:#}", anyhow::Error::new(error));
        }
    }
}

fn purge(dir: &Path, grace: Option<u32>, force: bool) -> anyhow::Result<()> {
    let mut purge =
        Purge::new(dir, grace_or_default(grace), force).context("failed to read what there is to remove")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut progress = Progress::start("Removing what the cluster made");
    for removal in machine::ALL {
        progress.detail(&format!("Removing {}", removal.what));
        runtime.block_on((removal.run)(&mut purge));
    }
    drop(progress);
    for what in &purge.removed {
        println!("Removed {what}");
    }
    match purge.problems.is_empty() || force {
        true => {
            purge
                .problems
                .iter()
                .for_each(|problem| eprintln!("warning: {problem}"));
            Ok(())
        }
        false => bail!("failed to remove everything:\n  {}", purge.problems.join("\n  ")),
    }
}

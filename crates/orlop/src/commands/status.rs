//! `orlop status`: what runs in a data directory, and how well.

use std::path::{Path, PathBuf};

use orlop_base::Clock;
use serde_json::json;

use crate::process_file::Holder;
use crate::{data_dir, detach, status};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Data directory of the cluster [default: /var/lib/orlop as root, else ~/.local/share/orlop]
    #[arg(long, value_name = "DIR", env = "ORLOP_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Output format: text or json
    #[arg(short, long, value_name = "FORMAT", default_value = "text", value_parser = ["text", "json"])]
    output: String,
}

/// Whether it is healthy.
pub(super) fn run(args: Args) -> anyhow::Result<bool> {
    let dir = args.data_dir.map_or_else(super::up::default_data_dir, Ok)?;
    let is_json = args.output == "json";
    let holder = Holder::find(&dir);
    let Holder::Serving(process) = &holder else {
        let (phase, text) = describe_absence(&holder, &dir);
        match is_json {
            true => println!(
                "{:#}",
                json!({"healthy": false, "phase": phase, "dataDir": dir, "message": text})
            ),
            false => println!("{text}"),
        }
        return Ok(false);
    };
    let report = match detach::ask(&dir) {
        Ok(report) => report,
        Err(error) => {
            let text = format!("process {} runs, but does not answer: {error:#}", process.id.pid);
            match is_json {
                true => println!(
                    "{:#}",
                    json!({"healthy": false, "phase": "Unresponsive", "pid": process.id.pid, "dataDir": dir,
                           "message": text})
                ),
                false => println!("{text}"),
            }
            return Ok(false);
        }
    };
    match is_json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => println!("{}", status::render(&report, Clock::System.now()).trim_end()),
    }
    Ok(report.healthy)
}

fn describe_absence(holder: &Holder, dir: &Path) -> (&'static str, String) {
    let start = data_dir::command("up -d", dir);
    let dir = dir.display();
    match holder {
        Holder::Starting(process) => (
            "Starting",
            format!("the cluster in {dir} starts (process {})", process.pid),
        ),
        Holder::Killed(process) => (
            "Killed",
            format!(
                "no cluster runs in {dir}: process {} was killed, or the machine was restarted; nothing is lost, start it \
                 again with: {start}",
                process.id.pid
            ),
        ),
        Holder::Nobody | Holder::Serving(_) => {
            ("Stopped", format!("no cluster runs in {dir}; start one with: {start}"))
        }
    }
}

//! `orlop up -d`: the same command in a process of its own, which is waited for until its cluster is ready.

use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use orlop_base::clock::{Shift, monotonic};

use crate::process_file::Holder;
use crate::progress::Progress;
use crate::status::Report;
use crate::{control, data_dir, log_file};

/// Tells the new process that it is one.
const MARK: &str = "ORLOP_DETACHED";
const LOOK: Duration = Duration::from_millis(50);
const ASK_TIMEOUT: Duration = Duration::from_secs(5);
/// Lines of the log that are shown when it fails.
const LINES_SHOWN: usize = 10;
/// More of the log than this is not read for them.
const TAIL_MAX: u64 = 64 * 1024;

/// Whether this process was started by `up -d`.
pub(crate) fn is_detached() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Makes this process independent of the terminal it came from.
pub(crate) fn leave_session() {
    // Fails only for the first process of a group, which is independent enough.
    let _ = nix::unistd::setsid();
}

/// Starts this command again, in the background, and waits until its cluster is ready. What it tells its user then.
pub(crate) fn start(dir: &Path, patience: Duration) -> anyhow::Result<Vec<String>> {
    if let Some(process) = Holder::find(dir).process() {
        bail!(
            "a cluster runs in {} already (process {}); see: {}",
            dir.display(),
            process.pid,
            data_dir::command("status", dir)
        );
    }
    let made = data_dir::create_private(dir);
    made.with_context(|| format!("failed to use the data directory {}", dir.display()))?;
    let log = log_file::open(dir).context("failed to open the log")?;
    let log_start = log.metadata()?.len();
    let child = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(MARK, "1")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("failed to start a process")?;
    let mut started = Started {
        child,
        dir: dir.to_path_buf(),
        log_start,
    };
    let pid = started.child.id();
    let mut progress = Progress::start("Starting the cluster");
    let report = started.wait(&mut progress, patience)?;
    drop(progress);
    anyhow::ensure!(
        report.missing().is_none(),
        "still waiting after {} s until {}; the cluster goes on in the background (process {pid}): \
         see `{}`, or stop it with `{}`",
        patience.as_secs(),
        report.missing().unwrap_or_default(),
        data_dir::command("status", dir),
        data_dir::command("down", dir)
    );
    match Holder::find(dir) {
        Holder::Serving(file) => Ok(file.greeting),
        _ => bail!(
            "the cluster has stopped again; see {}",
            dir.join(data_dir::LOG).display()
        ),
    }
}

/// A process that was started.
struct Started {
    child: Child,
    dir: PathBuf,
    /// Where its own lines begin in the log.
    log_start: u64,
}

impl Started {
    /// How the cluster is once it is ready, or when time is up.
    fn wait(&mut self, progress: &mut Progress, patience: Duration) -> anyhow::Result<Report> {
        let deadline = monotonic().later(patience);
        let mut last: Option<Report> = None;
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("{}", self.reason(status));
            }
            if self.serves() {
                last = ask(&self.dir).ok().or(last);
            }
            let missing = last.as_ref().map(Report::missing);
            match (missing, last.as_ref()) {
                (Some(None), Some(report)) => return Ok(report.clone()),
                (Some(Some(missing)), _) => progress.set(&format!("Waiting until {missing}")),
                _ => {}
            }
            if monotonic() >= deadline {
                let pid = self.child.id();
                return last.with_context(|| {
                    format!(
                        "the cluster does not serve after {} s; its process {pid} goes on: see {}, or stop it with `{}`",
                        patience.as_secs(),
                        self.dir.join(data_dir::LOG).display(),
                        data_dir::command("down", &self.dir)
                    )
                });
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Its own file, and not that of one which was killed.
    fn serves(&self) -> bool {
        matches!(Holder::find(&self.dir), Holder::Serving(file) if file.id.pid == self.child.id() as i32)
    }

    /// Why it ended, in its own words.
    fn reason(&self, status: ExitStatus) -> String {
        let path = self.dir.join(data_dir::LOG);
        let text = read_from(&path, self.log_start).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n");
        match tail.rsplit_once("error: ") {
            // An error of a command is its last word.
            Some((_, error)) => format!("{error}\n(whole log: {})", path.display()),
            None => format!(
                "the process ended early ({status}):\n{tail}\n(whole log: {})",
                path.display()
            ),
        }
    }
}

fn read_from(path: &Path, start: u64) -> std::io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(start.max(size.saturating_sub(TAIL_MAX))))?;
    let mut bytes = vec![];
    file.take(TAIL_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What the running cluster says of itself.
pub(crate) fn ask(dir: &Path) -> anyhow::Result<Report> {
    let answer = control::ask_within(dir, "status", ASK_TIMEOUT)?;
    serde_json::from_str(&answer).context("failed to understand the answer")
}

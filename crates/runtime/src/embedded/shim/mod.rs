//! `orlop shim`: what makes and watches the containers of a pod.
//!
//! Forking a process with many threads is unsafe, so the runtime has another one do it: it starts the binary anew, once, as
//! the *spawner*, single-threaded, which waits for pods on its standard input. For each pod it forks a shim, which is ready
//! at once and shares the spawner's memory until it writes to it. A shim keeps the pod's namespaces, makes its containers,
//! owns their input and output, writes their logs, and records how they end. It has its own session and outlives the
//! runtime and the spawner; a new runtime finds it by its socket. If it dies its containers die with it.
//!
//! ```text
//! orlop ── spawner ─┬─ shim of pod a ─┬─ container
//!                   │                 └─ container
//!                   └─ shim of pod b ─── container
//! ```

mod connection;
mod container;
mod devices;
mod error;
mod exits;
mod launch;
mod log;
mod mounts;
mod output;
mod pause;
mod program;
mod requests;
mod root_path;
mod rootfs;
mod sandbox;
mod server;
pub(crate) mod state_file;

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use nix::libc;

use super::protocol::{self, Answer};
use super::spec::SandboxSpec;
use super::sys::mounts::{self as raw_mounts, MountAttr};
use super::sys::namespaces::{self, Fork};
use super::sys::processes;
use error::{Result, Step, StepError};
use server::Server;

/// Where a shim listens, in the pod's directory.
pub(crate) const SOCKET: &str = "shim.sock";
/// Why a shim ended that nobody asked to.
pub(crate) const LOG: &str = "shim.log";
/// Set for the spawner once its own file can't be written to.
const SEALED: &str = "ORLOP_SHIM_SEALED";
/// Longer than any command line that a shim gives itself: the place that it can write to is the old one's.
pub(crate) const COMMAND_LINE_ROOM: usize = 80;
/// Like containerd's shims: killed for want of memory only after everything in the pods.
const OOM_SCORE_ADJ: &str = "-998";

/// Runs the spawner until the runtime goes. Must be called before the process has a second thread.
pub fn main() -> ! {
    let code = match spawn_shims() {
        Ok(()) => 0,
        Err(_) => 1,
    };
    processes::exit(code)
}

fn spawn_shims() -> Result<()> {
    if std::env::var_os(SEALED).is_none() {
        return Err(run_sealed());
    }
    processes::become_opaque().step("become opaque")?;
    processes::set_name(c"orlop-shim");
    // A shim writes to a few pages only; a huge one would be copied whole.
    processes::allow_huge_pages(false);
    processes::ignore_children();
    // Shims live as long as their pods: locks and pipes of whoever started the cluster are not theirs to hold.
    processes::close_inherited_from(3).step("close inherited descriptors")?;
    // A terminal's signals are for the runtime; one that leads a session already need not start one.
    let _ = nix::unistd::setsid();
    drop(fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ));
    if let Some(path) = network_namespace_argument() {
        let namespace = fs::File::open(&path).step_with(|| format!("open {path}"))?;
        namespaces::enter(namespace.as_fd(), libc::CLONE_NEWNET).step("enter the node's network namespace")?;
    }
    let input = std::io::stdin();
    let mut buffer = vec![];
    loop {
        let mut descriptors = vec![];
        let spec = protocol::receive_message::<SandboxSpec>(input.as_fd(), &mut buffer, &mut descriptors);
        let (Some(spec), Some(connection)) = (spec.step("receive a pod")?, descriptors.pop()) else {
            return Ok(());
        };
        match namespaces::fork(0, None) {
            Ok(Fork::Child) => run_shim(&spec, connection),
            Ok(Fork::Parent { .. }) => {}
            Err(e) => fail(connection.as_fd(), &format!("fork: {e}")),
        }
    }
}

/// Runs this program again from a mount that can't be written to: until a container's first process is the container's
/// program it is this one, and what runs in the container could otherwise find its file and replace it.
fn run_sealed() -> StepError {
    let sealed = raw_mounts::clone_tree_at(Path::new("/proc/self/exe"), false).and_then(|file| {
        raw_mounts::set_attributes(file.as_fd(), false, &MountAttr::read_only())?;
        Ok(file)
    });
    let texts = |texts: &mut dyn Iterator<Item = Vec<u8>>| -> io::Result<Vec<CString>> {
        texts.map(|text| Ok(CString::new(text)?)).collect()
    };
    let arguments = texts(&mut std::env::args_os().map(OsStringExt::into_vec));
    let variables = std::env::vars_os().map(|(name, value)| [name.into_vec(), value.into_vec()].join(&b'='));
    let environment = texts(&mut variables.chain([format!("{SEALED}=1").into_bytes()]));
    let prepared = (|| Ok((sealed?, arguments?, environment?)))();
    let error = match prepared {
        Ok((file, arguments, environment)) => processes::execute_descriptor(file.as_fd(), &arguments, &environment),
        Err(error) => error,
    };
    Err::<(), _>(error)
        .step("run from a sealed file")
        .expect_err("there is an error")
}

/// `--network-namespace PATH`: where the node is not the machine itself.
fn network_namespace_argument() -> Option<String> {
    let mut arguments = std::env::args().skip_while(|a| a != "--network-namespace");
    arguments.nth(1)
}

fn fail(connection: BorrowedFd<'_>, message: &str) {
    let answer = Answer::Failed {
        message: message.to_string(),
        missing: false,
    };
    drop(protocol::send_message(connection, &answer, &[]));
}

fn write_last_words(log: &Path, words: impl std::fmt::Display) {
    drop(fs::write(log, format!("{words}\n")));
}

/// The shim of one pod, in the process that was forked for it.
fn run_shim(spec: &SandboxSpec, connection: OwnedFd) -> ! {
    let log = spec.dir.join(LOG);
    std::panic::set_hook(Box::new(move |panic| write_last_words(&log, panic)));
    // What panics has written why; it must not go on with what the spawner does.
    let run = || run_server(spec, connection);
    let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or(1);
    processes::exit(code)
}

fn run_server(spec: &SandboxSpec, connection: OwnedFd) -> i32 {
    match Server::create(spec, &connection) {
        Ok(server) => match server.run(connection) {
            Ok(()) => 0,
            Err(error) => {
                write_last_words(&spec.dir.join(LOG), error);
                1
            }
        },
        Err(error) => {
            fail(connection.as_fd(), &error.to_string());
            1
        }
    }
}

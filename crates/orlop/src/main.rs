//! The `orlop` binary: Kubernetes in one process.

/// In place of std's, in all modules below: see `output`.
macro_rules! println {
    ($($text:tt)+) => { crate::output::line(format_args!($($text)+)) };
}
macro_rules! eprintln {
    ($($text:tt)+) => { crate::output::error_line(format_args!($($text)+)) };
}

mod accounts;
mod bench;
mod cluster;
mod commands;
mod components;
mod control;
mod data_dir;
mod detach;
mod embedded;
mod fleet;
#[cfg(test)]
mod in_process_tests;
mod kubeconfig;
mod live_cluster;
mod log_file;
mod logging;
mod machine;
mod node;
mod nodes;
mod output;
mod pod_network;
mod process_file;
mod progress;
mod service_manager;
mod services;
mod session;
mod signing;
mod status;
mod stop;

use std::process::ExitCode;

// Small and quick, and gives memory back when a burst is over.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Makes and watches containers: it forks, so it has to be alone in its process, and hands on nothing of ours.
    if std::env::args_os().nth(1).is_some_and(|command| command == "shim") {
        let _ = nix::sys::prctl::set_thp_disable(false);
        orlop_runtime::embedded::shim::main()
    }
    // Huge pages are zeroed whole for every burst, and kept whole after it: a fifth more memory and a tenth more work.
    // Where the kernel has none, there is nothing to switch off.
    let _ = nix::sys::prctl::set_thp_disable(true);
    raise_open_files();
    commands::main()
}

/// As many open files as the machine lets us have: connections take one each. Upstream: Go raises it at start, too.
fn raise_open_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        // Where it is refused we have what we had.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

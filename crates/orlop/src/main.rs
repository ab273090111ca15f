//! The `orlop` binary: Kubernetes in one process.

mod bench;
mod commands;
mod components;
mod logging;

use std::process::ExitCode;

// Small and quick, and gives memory back when a burst is over.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    commands::main()
}

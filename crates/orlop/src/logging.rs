//! Log lines go to standard error; what a command answers goes to standard output.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// `RUST_LOG` overrides the level; JSON lines for machines with `--log-format json`.
pub fn start(json: bool, level: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    // Colours are for people: a file would only hold their codes.
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty());
    let builder = tracing_subscriber::fmt()
        .with_ansi(colours)
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false);
    if json { builder.json().init() } else { builder.init() }
}

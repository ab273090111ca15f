//! Log lines go to standard error; what a command answers goes to standard output.

use tracing_subscriber::EnvFilter;

/// `RUST_LOG` overrides the level; JSON lines for machines with `--log-format json`.
pub fn start(json: bool, level: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false);
    if json { builder.json().init() } else { builder.init() }
}

//! Files that tests hand to clients: `fixtures/` of this crate.

use std::path::{Path, PathBuf};

/// The path of a fixture, for a command line.
pub fn fixture(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
    assert!(path.exists(), "there is no fixture {}", path.display());
    path
}

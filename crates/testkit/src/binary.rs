//! Where the binary under test is.

use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn workspace_root() -> &'static Path {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    root.expect("crates/testkit is two levels below the root")
}

/// The `orlop` binary under test: the one that is shipped, whatever profile the tests themselves were built with (they are
/// in `target/PROFILE/deps`). `ORLOP_BIN` names another one.
pub fn orlop() -> PathBuf {
    if let Some(named) = std::env::var_os("ORLOP_BIN") {
        return PathBuf::from(named);
    }
    let test = std::env::current_exe().expect("a running test has a path");
    let target = test.ancestors().nth(3).expect("tests live in target/PROFILE/deps");
    let binary = target.join("release/orlop");
    if !binary.is_file() {
        panic!("{} is missing; build it first: make build", binary.display());
    }
    binary
}

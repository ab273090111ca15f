//! Where the binary under test is.

use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn workspace_root() -> &'static Path {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    root.expect("crates/testkit is two levels below the root")
}

/// The `orlop` binary of the profile these tests were built with: tests are in `target/PROFILE/deps`, it is one above.
pub fn orlop() -> PathBuf {
    let test = std::env::current_exe().expect("a running test has a path");
    let profile = test
        .parent()
        .and_then(Path::parent)
        .expect("tests live in target/PROFILE/deps");
    let binary = profile.join("orlop");
    if !binary.is_file() {
        let release = if profile.ends_with("release") { " --release" } else { "" };
        panic!(
            "{} is missing; build it first: cargo build{release} -p orlop",
            binary.display()
        );
    }
    binary
}

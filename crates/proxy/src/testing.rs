//! What tests against the real kernel share.

use std::path::Path;
use std::process::Command;
use std::thread;

use nix::sched::{CloneFlags, unshare};

/// On a thread in a network namespace of its own, so that nobody else's rules are touched.
pub(crate) fn in_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let body = || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace can be made (as root)");
        work()
    };
    let joined = thread::scope(|scope| scope.spawn(body).join());
    joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Compares with a file of tests/golden; `UPDATE_GOLDEN=1` writes it instead.
pub(crate) fn check_golden(path: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(path);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, found).expect("the golden file can be written");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    let path = path.display();
    for (number, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
        let line = number + 1;
        assert_eq!(
            found, expected,
            "{path}:{line} differs (rewrite it with UPDATE_GOLDEN=1)"
        );
    }
    assert!(
        found == expected,
        "{path} differs (rewrite it with UPDATE_GOLDEN=1):\n{found}"
    );
}

/// What a command prints; it must succeed.
pub(crate) fn shell(command: &str) -> String {
    let output = Command::new("sh").args(["-ec", command]).output().expect("a shell");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

//! What tests against the real kernel share.

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

//! Network namespaces: work that must be done inside one.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::{NSFS_MAGIC, statfs};

/// A network namespace, which is there at least as long as this value.
#[derive(Clone, Debug)]
pub struct Namespace {
    file: Arc<File>,
}

impl Namespace {
    /// Of a file that stands for it: `/proc/PID/ns/net`, or one that it is mounted on.
    pub fn open(path: &Path) -> io::Result<Namespace> {
        let file = Arc::new(File::open(path)?);
        Ok(Namespace { file })
    }

    /// That of the calling thread.
    pub fn current() -> io::Result<Namespace> {
        Namespace::open(Path::new("/proc/thread-self/ns/net"))
    }

    /// A new one, that goes with the last value that stands for it and the last process in it.
    pub fn create() -> io::Result<Namespace> {
        in_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            Namespace::current()
        })?
    }

    /// The one that a file stands for. If there is none a new one is made, which stays as long as the file does: `ip netns` knows
    /// those in `/run/netns`.
    pub fn ensure(path: &Path) -> io::Result<Namespace> {
        if is_namespace(path) {
            return Namespace::open(path);
        }
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        // What is left of one that is gone: after a reboot, or by a process that was killed just here.
        File::create(path)?;
        in_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            mount(
                Some("/proc/thread-self/ns/net"),
                path,
                None::<&str>,
                MsFlags::MS_BIND,
                None::<&str>,
            )?;
            Namespace::current()
        })?
    }

    /// Takes the file away; the namespace goes with the last process in it. None there is fine.
    pub fn remove(path: &Path) -> io::Result<()> {
        if is_namespace(path) {
            umount2(path, MntFlags::MNT_DETACH)?;
        }
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether both stand for the same one.
    pub fn is_same(&self, other: &Namespace) -> io::Result<bool> {
        let (own, other) = (self.file.metadata()?, other.file.metadata()?);
        Ok((own.dev(), own.ino()) == (other.dev(), other.ino()))
    }

    /// Moves the calling thread into it, for good: only for threads that do nothing else.
    pub fn enter(&self) -> io::Result<()> {
        Ok(setns(&*self.file, CloneFlags::CLONE_NEWNET)?)
    }

    /// Does something inside it, on a thread that is made for it and ends with it. The caller waits, and so must not be
    /// a thread that others wait for.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        in_thread(|| self.enter().map(|()| work()))?
    }
}

/// Whether a namespace is mounted on the file.
fn is_namespace(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.filesystem_type() == NSFS_MAGIC)
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn in_thread<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let worker = thread::Builder::new()
            .name("netns".to_string())
            .spawn_scoped(scope, work)?;
        match worker.join() {
            Ok(result) => Ok(result),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

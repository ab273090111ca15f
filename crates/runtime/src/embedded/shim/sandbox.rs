//! The namespaces that the containers of a pod share. The shim lives in them and is what keeps them alive: when the last
//! process of a pod is gone nothing is left, whoever was killed at whatever moment.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::libc;

use crate::embedded::spec::{IdRange, SandboxSpec, UserNamespaceSpec};
use crate::embedded::sys::namespaces::{self, Fork};
use crate::embedded::sys::{self, mounts, processes, sockets};

use super::error::{Result, Step};
use super::pause;

/// What containers are made in, beside what the shim is in itself.
#[derive(Debug)]
pub(super) struct Sandbox {
    /// The shim's own PID namespace, to come back to.
    pub own_pids: OwnedFd,
    /// A mount namespace that holds nothing but the `/dev/shm` that the pod's containers share.
    pub shm: Option<OwnedFd>,
    pub user: Option<OwnedFd>,
    /// The PID namespace that the pod's containers share, and its first process.
    pub shared_pids: Option<SharedPids>,
}

#[derive(Debug)]
pub(super) struct SharedPids {
    pub pid: i32,
    pub namespace: OwnedFd,
}

impl Sandbox {
    /// Moves this process into new namespaces.
    pub(super) fn create(spec: &SandboxSpec) -> Result<Sandbox> {
        if let Some(cgroup) = &spec.cgroup {
            join_ahead(cgroup)?;
        }
        let host_mounts = open_own("mnt")?;
        let own_pids = open_own("pid")?;
        let kinds = [
            (spec.network, libc::CLONE_NEWNET),
            (spec.ipc, libc::CLONE_NEWIPC),
            (spec.hostname.is_some(), libc::CLONE_NEWUTS),
        ];
        let kinds = kinds.iter().filter(|(wanted, _)| *wanted).map(|(_, kind)| kind).sum();
        let user = match &spec.user {
            Some(user) => Some(enter_new_with_user(user, kinds)?),
            None => {
                namespaces::unshare(kinds).step("create the pod's namespaces")?;
                None
            }
        };
        if let Some(name) = &spec.hostname {
            nix::unistd::sethostname(name).step("set the host name")?;
        }
        if spec.network {
            bring_loopback_up().step("bring the loopback interface up")?;
        }
        for (file, value) in &spec.sysctls {
            let path = Path::new("/proc/sys").join(file);
            fs::write(&path, value).step_with(|| format!("set sysctl {file}"))?;
        }
        let root = spec.user.as_ref().map_or((0, 0), UserNamespaceSpec::root);
        let shm = match spec.shm_bytes {
            Some(bytes) => Some(create_shm(&spec.dir, bytes, root, host_mounts.as_fd())?),
            None => None,
        };
        let shared_pids = match spec.shared_pid {
            true => Some(start_pause(user.as_ref(), &spec.dir)?),
            false => None,
        };
        Ok(Sandbox {
            own_pids,
            shm,
            user,
            shared_pids,
        })
    }
}

/// One of this process's namespaces.
pub(super) fn open_own(kind: &str) -> Result<OwnedFd> {
    let file = File::open(format!("/proc/self/ns/{kind}")).step_with(|| format!("open namespace {kind}"))?;
    Ok(file.into())
}

/// Makes a user namespace and, owned by it, the others; enters those others. Returns the user namespace, which this process
/// stays out of.
fn enter_new_with_user(spec: &UserNamespaceSpec, kinds: libc::c_int) -> Result<OwnedFd> {
    let (wait, release) = sockets::pipe().step("make a pipe")?;
    let child = match namespaces::fork(kinds | libc::CLONE_NEWUSER, None).step("create the user namespace")? {
        Fork::Child => {
            drop(release);
            // Holds the namespaces until they were opened.
            let _ = nix::unistd::read(wait.as_fd(), &mut [0]);
            processes::exit(0);
        }
        Fork::Parent { pid, .. } => pid,
    };
    let result = (|| {
        write_map(child, "uid_map", &spec.users).step("map users")?;
        write_map(child, "gid_map", &spec.groups).step("map groups")?;
        let open =
            |kind: &str| File::open(format!("/proc/{child}/ns/{kind}")).step_with(|| format!("open namespace {kind}"));
        for (kind, name) in [
            (libc::CLONE_NEWNET, "net"),
            (libc::CLONE_NEWIPC, "ipc"),
            (libc::CLONE_NEWUTS, "uts"),
        ] {
            if kinds & kind != 0 {
                namespaces::enter(open(name)?.as_fd(), kind).step_with(|| format!("enter namespace {name}"))?;
            }
        }
        Ok(open("user")?.into())
    })();
    drop(release);
    drop(processes::wait_for(child));
    result
}

fn write_map(pid: i32, file: &str, ranges: &[IdRange]) -> io::Result<()> {
    let line = |r: &IdRange| format!("{} {} {}\n", r.inside, r.outside, r.count);
    // The kernel takes a map in one write.
    let map: String = ranges.iter().map(line).collect();
    let mut file = fs::OpenOptions::new().write(true).open(format!("/proc/{pid}/{file}"))?;
    file.write_all(map.as_bytes())
}

/// A mount namespace with one mount in it. No mount table of the node's ever shows it, and it goes with this process.
fn create_shm(any_dir: &Path, bytes: u64, (uid, gid): (u32, u32), host: BorrowedFd<'_>) -> Result<OwnedFd> {
    namespaces::unshare(libc::CLONE_NEWNS).step("create a mount namespace")?;
    let namespace = open_own("mnt")?;
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    let options = CString::new(format!("mode=1777,size={bytes},uid={uid},gid={gid}")).expect("numbers have no NUL");
    enter_only_mount(any_dir, c"shm", flags, &options)?;
    namespaces::enter(host, libc::CLONE_NEWNS).step("leave the mount namespace")?;
    Ok(namespace)
}

/// Makes a new tmpfs the root of this mount namespace, and unmounts everything else. `any_dir` is not changed.
pub(super) fn enter_only_mount(
    any_dir: &Path,
    name: &std::ffi::CStr,
    flags: libc::c_ulong,
    options: &std::ffi::CStr,
) -> Result<()> {
    let root = Path::new("/");
    mounts::mount(None, root, None, libc::MS_REC | libc::MS_PRIVATE, None).step("make mounts private")?;
    mounts::mount(Some(name), any_dir, Some(c"tmpfs"), flags, Some(options)).step("mount tmpfs")?;
    nix::unistd::chdir(any_dir).step("enter tmpfs")?;
    mounts::pivot_to_working_directory().step("make tmpfs the root")?;
    mounts::unmount_lazily(Path::new(".")).step("unmount the old root")?;
    Ok(())
}

fn start_pause(user: Option<&OwnedFd>, any_dir: &Path) -> Result<SharedPids> {
    let kinds = libc::CLONE_NEWPID | libc::CLONE_NEWNS;
    match namespaces::fork(kinds, None).step("create the pod's PID namespace")? {
        Fork::Child => pause::run(user, any_dir),
        Fork::Parent { pid, .. } => {
            let namespace = File::open(format!("/proc/{pid}/ns/pid")).step("open the pod's PID namespace")?;
            Ok(SharedPids {
                pid,
                namespace: namespace.into(),
            })
        }
    }
}

/// Has a child join a cgroup and end. Nobody waits for it, and whether it could does not matter.
fn join_ahead(cgroup: &Path) -> Result<()> {
    if let Fork::Child = namespaces::fork(0, None).step("fork")? {
        drop(fs::write(cgroup.join("cgroup.procs"), "0"));
        processes::exit(0);
    }
    Ok(())
}

fn bring_loopback_up() -> io::Result<()> {
    let socket = sockets::tcp_socket(libc::AF_INET)?;
    sys::sockets::set_interface_up(socket.as_fd(), c"lo")
}

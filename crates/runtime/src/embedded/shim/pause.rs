//! The first process of a PID namespace that containers share: it waits for orphans, as `/pause` does elsewhere.
//!
//! Containers of the pod see it, and may look into it if they are privileged. So it has no capabilities and an empty root.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use nix::libc;

use crate::embedded::sys::identity::{self, ThreadCapabilities};
use crate::embedded::sys::{namespaces, processes};

use super::error::{Result, Step};
use super::sandbox;

/// As in the usual pause image.
const USER: u32 = 65_535;

pub(super) fn run(user: Option<&OwnedFd>, any_dir: &Path) -> ! {
    let code = match prepare(user, any_dir) {
        Ok(signals) => wait_for_orphans(&signals),
        Err(_) => 1,
    };
    processes::exit(code)
}

fn prepare(user: Option<&OwnedFd>, any_dir: &Path) -> Result<OwnedFd> {
    processes::reset_signals();
    processes::set_command_line(&["/pause"]);
    processes::set_name(c"pause");
    let signals = processes::signals_as_descriptor(&[libc::SIGCHLD]).step("listen for signals")?;
    sandbox::enter_only_mount(any_dir, c"pause", libc::MS_RDONLY | libc::MS_NODEV, c"size=0")?;
    if let Some(user) = user {
        namespaces::enter(user.as_fd(), libc::CLONE_NEWUSER).step("enter the user namespace")?;
    }
    for capability in 0..64 {
        if identity::bounding_has(capability) == Some(true) {
            identity::drop_from_bounding(capability).step("drop capabilities")?;
        }
    }
    identity::become_user(USER, USER, &[]).step("change the user")?;
    identity::set_capabilities(ThreadCapabilities::default()).step("drop capabilities")?;
    processes::set_no_new_privileges().step("set no_new_privs")?;
    // Changing the user has reset it.
    processes::set_parent_death_signal(libc::SIGKILL).step("follow the shim")?;
    processes::close_all_but(signals.as_fd()).step("close descriptors")?;
    Ok(signals)
}

fn wait_for_orphans(signals: &OwnedFd) -> i32 {
    loop {
        while processes::reap().is_some() {}
        let mut wait = [libc::pollfd {
            fd: signals.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        }];
        drop(processes::poll(&mut wait, -1));
        while nix::unistd::read(signals.as_fd(), &mut [0; 128]).is_ok() {}
    }
}

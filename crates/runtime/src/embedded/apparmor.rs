//! AppArmor, where the kernel has it: which profiles are loaded, and the default profile of containers, which the first
//! runtime of a cluster loads. The kernel takes profiles compiled only; without AppArmor's own compiler (`apparmor_parser`, in
//! the package that comes with systems that use AppArmor) the default of another runtime is used, or none.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::process::{Command, Stdio};

const ENABLED: &str = "/sys/module/apparmor/parameters/enabled";
const PROFILES: &str = "/sys/kernel/security/apparmor/profiles";
const REMOVE: &str = "/sys/kernel/security/apparmor/.remove";
/// Not always in `PATH`.
const COMPILERS: [&str; 3] = ["apparmor_parser", "/usr/sbin/apparmor_parser", "/sbin/apparmor_parser"];

/// The profiles that the kernel has, one a line with its mode. `None`: it has no AppArmor, or it is off.
pub(super) fn loaded_profiles() -> Option<String> {
    let enabled = std::fs::read_to_string(ENABLED).ok()?;
    match enabled.trim() {
        "Y" => Some(std::fs::read_to_string(PROFILES).unwrap_or_default()),
        _ => None,
    }
}

/// Whether a profile is among those.
pub(super) fn is_loaded(loaded: &str, name: &str) -> bool {
    loaded
        .lines()
        .filter_map(|line| line.split(" (").next())
        .any(|line| line == name)
}

/// Loads the default profile under this name unless it is there, or there is nothing to load it into or with.
pub(super) fn ensure_default_profile(name: &str) {
    let Some(loaded) = loaded_profiles() else { return };
    if is_loaded(&loaded, name) {
        return;
    }
    match load(&default_profile(name)) {
        Ok(()) => tracing::info!(profile = name, "loaded the default AppArmor profile of containers"),
        Err(error) => tracing::warn!(
            profile = name, err = %error,
            "failed to load the default AppArmor profile of containers; is the package apparmor installed?"
        ),
    }
}

/// Takes a profile out of the kernel. One that is not there is fine. Whether it was there.
pub fn remove_profile(name: &str) -> io::Result<bool> {
    if !loaded_profiles().is_some_and(|loaded| is_loaded(&loaded, name)) {
        return Ok(false);
    }
    OpenOptions::new()
        .write(true)
        .open(REMOVE)?
        .write_all(name.as_bytes())?;
    Ok(true)
}

fn load(profile: &str) -> io::Result<()> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for compiler in COMPILERS {
        let started = Command::new(compiler)
            .args(["--replace", "--skip-cache"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = match started {
            Ok(child) => child,
            Err(error) => {
                last = error;
                continue;
            }
        };
        if let Some(mut input) = child.stdin.take() {
            input.write_all(profile.as_bytes())?;
        }
        let output = child.wait_with_output()?;
        return match output.status.success() {
            true => Ok(()),
            false => Err(io::Error::other(
                String::from_utf8_lossy(&output.stderr).trim().to_string(),
            )),
        };
    }
    Err(last)
}

/// What containers may do is mostly decided by capabilities, namespaces and seccomp. This keeps those that have more of them
/// from what is not in any namespace: mounts, kernel parameters, devices' and the kernel's own files.
fn default_profile(name: &str) -> String {
    format!(
        "profile {name} flags=(attach_disconnected,mediate_deleted) {{
  network,
  capability,
  file,
  umount,
  signal (receive) peer=unconfined,
  signal (send, receive) peer={name},
  ptrace (trace, read, tracedby, readby) peer={name},
  deny mount,
  deny /proc/* w,
  deny /proc/sys/** wklx,
  deny /proc/sysrq-trigger rwklx,
  deny /proc/mem rwklx,
  deny /proc/kmem rwklx,
  deny /proc/kcore rwklx,
  deny /sys/firmware/** rwklx,
  deny /sys/devices/virtual/powercap/** rwklx,
  deny /sys/kernel/security/** rwklx,
  deny /sys/[^f]*/** wklx,
  deny /sys/f[^s]*/** wklx,
  deny /sys/fs/[^c]*/** wklx,
}}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_found_by_their_whole_names() {
        let loaded = "docker-default (enforce)\nmine (complain)\n";
        assert!(is_loaded(loaded, "mine") && is_loaded(loaded, "docker-default"));
        assert!(!is_loaded(loaded, "min") && !is_loaded(loaded, "docker"));
        assert!(default_profile("x").starts_with("profile x flags"));
    }
}

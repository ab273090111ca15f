//! Block devices for containers: links and mounts below the kubelet's directory, in Kubernetes' places. Blocking.
//!
//! ```text
//! pods/<uid>/volumeDevices/<plugin>/<volume>      a link to the device: what containers are given
//! plugins/<plugin>/volumeDevices/<volume>/<uid>   the device itself, mounted; a loop device on it holds it open
//! ```
//!
//! The loop device keeps the kernel from giving another disk the name of one that was pulled out while a pod has it. The
//! link comes first and goes last: as long as it is there, there is something to take down.
// Upstream: pkg/volume/util/volumepathhandler, MapBlockVolume (v1.36)

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::{MountError, io_error};
use super::host_path::make_directories;
use super::mount_table::{bind, is_mount_point, unmount};
use super::paths::{self, Plugin};

/// Where the kernel lists loop devices.
const BLOCK: &str = "/sys/block";

/// A device for one pod.
#[derive(Clone, Debug)]
pub(super) struct Mapping {
    /// Below the pod's directory.
    pub link: PathBuf,
    /// The place for all pods that have the volume.
    pub shared: PathBuf,
    pub pod_uid: String,
}

impl Mapping {
    /// That of a volume of the node's own.
    pub(super) fn local(root: &Path, pod_directory: &Path, name: &str) -> Mapping {
        let plugin = root.join("plugins").join(Plugin::Local.directory());
        Mapping {
            link: paths::device(pod_directory, Plugin::Local, name),
            shared: plugin.join("volumeDevices").join(name),
            pod_uid: uid_of(pod_directory),
        }
    }

    fn mounted(&self) -> PathBuf {
        self.shared.join(&self.pod_uid)
    }

    /// The link alone: whatever follows will be taken down.
    pub(super) fn announce(&self, device: &Path) -> Result<(), MountError> {
        let parent = self.link.parent().expect("below a plugin's directory");
        make_directories(parent, 0o750)?;
        match fs::read_link(&self.link) {
            Ok(is) if is == device => return Ok(()),
            // Names of devices change when the machine starts again.
            Ok(_) => fs::remove_file(&self.link).map_err(|e| io_error("remove", &self.link, e))?,
            Err(_) => {}
        }
        symlink(device, &self.link).map_err(|e| io_error("symlink", &self.link, e))
    }

    /// Makes it all, as far as it is not there.
    pub(super) fn make(&self, device: &Path) -> Result<(), MountError> {
        let kind = fs::metadata(device).map_err(|e| io_error("stat", device, e))?;
        if !kind.file_type().is_block_device() {
            return Err(MountError::Invalid(format!(
                "{} is not a block device",
                device.display()
            )));
        }
        self.announce(device)?;
        let at = self.mounted();
        make_directories(&self.shared, 0o750)?;
        if !at.exists() {
            fs::write(&at, "").map_err(|e| io_error("open", &at, e))?;
        }
        if is_mount_point(&at)? {
            let is_same = fs::metadata(&at).is_ok_and(|now| now.rdev() == kind.rdev());
            match is_same {
                true => return hold(&at),
                false => unmount(&at)?,
            }
        }
        bind(device, &at, false)?;
        hold(&at)
    }

    /// Takes it down, but for the link.
    pub(super) fn release(&self) -> Result<(), MountError> {
        let at = self.mounted();
        if let Some(device) = loop_on(&at) {
            losetup(&["-d", &device.to_string_lossy()])?;
        }
        unmount(&at)?;
        gone(fs::remove_file(&at), &at)?;
        // Another pod may have it still.
        let _ = fs::remove_dir(&self.shared);
        Ok(())
    }

    pub(super) fn forget(&self) -> Result<(), MountError> {
        gone(fs::remove_file(&self.link), &self.link)
    }
}

fn uid_of(pod_directory: &Path) -> String {
    let name = pod_directory.file_name().expect("named by the pod's uid");
    name.to_string_lossy().into_owned()
}

/// The names of a pod's devices of a plugin.
pub(super) fn names(pod_directory: &Path, plugin: Plugin) -> Vec<String> {
    let directory = paths::devices(pod_directory).join(plugin.directory());
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// Takes down the pod's devices of the node's own.
pub(super) fn release_local(root: &Path, pod_directory: &Path) -> Result<(), MountError> {
    for name in names(pod_directory, Plugin::Local) {
        let mapping = Mapping::local(root, pod_directory, &name);
        mapping.release()?;
        mapping.forget()?;
    }
    Ok(())
}

fn gone(removed: std::io::Result<()>, at: &Path) -> Result<(), MountError> {
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io_error("remove", at, error)),
        _ => Ok(()),
    }
}

/// Keeps a device open, whoever comes and goes.
fn hold(at: &Path) -> Result<(), MountError> {
    match loop_on(at) {
        Some(_) => Ok(()),
        None => losetup(&["-f", &at.to_string_lossy()]),
    }
}

fn losetup(arguments: &[&str]) -> Result<(), MountError> {
    let shown = arguments.join(" ");
    let output = Command::new("losetup").args(arguments).output();
    match output {
        Err(error) => Err(MountError::Program(format!("losetup {shown} failed: {error}"))),
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(MountError::Program(format!(
            "losetup {shown} failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
    }
}

/// The loop device of a file.
fn loop_on(file: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(BLOCK).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).find_map(|device| {
        let backing = fs::read_to_string(device.join("loop/backing_file")).ok()?;
        let backing = backing.trim_end_matches('\n').trim_end_matches(" (deleted)");
        let name = device.file_name()?;
        (Path::new(backing) == file).then(|| Path::new("/dev").join(name))
    })
}

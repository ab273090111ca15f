//! Carries out a volume's plan on disk. Blocking; idempotent, also after having been interrupted anywhere.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use orlop_api::types::core::Pod;

use super::atomic;
use super::block::Mapping;
use super::empty_dir::{self, Medium};
use super::error::{MountError, io_error};
use super::file_system::{self, Disk};
use super::host_path;
use super::mount_table::{bind, is_mount_point};
use super::nested;
use super::ownership::Ownership;
use super::paths::{self, Plugin};
use super::payload::Payload;
use super::plan::{Local, Problem, ProblemKind};

/// A volume that containers can be given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ready {
    pub host_path: PathBuf,
    /// Whatever the mount says.
    pub read_only: bool,
    /// Made by the kubelet, for this pod alone.
    pub managed: bool,
    /// The name of its directory: that of the persistent volume, if it is one.
    pub directory_name: String,
    /// Its driver wants to be asked again and again.
    pub is_published_again: bool,
    /// A block device: containers get it as such, not mounted.
    pub is_device: bool,
    /// It may be made larger while pods have it.
    pub grows: bool,
}

impl Ready {
    /// An image: the runtime has it somewhere, and mounts it.
    pub(super) fn image(name: &str) -> Ready {
        Ready {
            managed: false,
            ..Ready::managed(PathBuf::new(), name, true)
        }
    }

    fn managed(host_path: PathBuf, name: &str, read_only: bool) -> Ready {
        Ready {
            host_path,
            read_only,
            managed: true,
            directory_name: name.to_string(),
            is_published_again: false,
            is_device: false,
            grows: false,
        }
    }

    pub(super) fn device(link: PathBuf, name: &str, read_only: bool) -> Ready {
        Ready {
            is_device: true,
            ..Ready::managed(link, name, read_only)
        }
    }
}

/// Where and for whom.
pub(super) struct Site<'a> {
    pub pod: &'a Pod,
    pub pod_directory: &'a Path,
    /// The volume's name in the pod.
    pub volume: &'a str,
    pub ownership: Ownership,
    pub may_mount: bool,
    pub now: Timestamp,
}

impl Site<'_> {
    pub(super) fn empty_dir(&self, medium: &Medium) -> Result<Ready, Problem> {
        let at = paths::volume(self.pod_directory, Plugin::EmptyDir, self.volume);
        let marker = paths::ready_marker(self.pod_directory, Plugin::EmptyDir, self.volume);
        if *medium != Medium::Disk && !self.may_mount {
            let message = "memory storage requested, but this kubelet is not allowed to mount";
            return Err(Problem::invalid(message.to_string()));
        }
        empty_dir::set_up(&at, &marker, medium, &self.ownership)?;
        Ok(Ready::managed(at, self.volume, false))
    }

    pub(super) fn files(&self, plugin: Plugin, payload: Payload, medium: &Medium) -> Result<Ready, Problem> {
        let at = paths::volume(self.pod_directory, plugin, self.volume);
        empty_dir::set_up_for_files(&at, medium)?;
        for point in nested::mount_points(self.pod, self.volume)? {
            host_path::make_directories(&at.join(point), 0o755)
                .map_err(|e| MountError::during("unable to create nested volume mountpoints", e))?;
        }
        let ownership = self.ownership.always();
        atomic::write(&at, payload, self.now, |directory| ownership.apply(directory, true))?;
        Ok(Ready::managed(at, self.volume, true))
    }

    pub(super) fn host_path(&self, path: &str, kind: &str, read_only: bool) -> Result<Ready, Problem> {
        host_path::check(path, kind)?;
        Ok(Ready {
            host_path: path.into(),
            read_only,
            managed: false,
            directory_name: self.volume.to_string(),
            is_published_again: false,
            is_device: false,
            grows: false,
        })
    }

    /// A block device of the node.
    pub(super) fn local_device(&self, root: &Path, volume: &Local) -> Result<Ready, Problem> {
        let (name, read_only) = (volume.name.as_str(), volume.read_only);
        let (from, _) = self.local_path(name, &volume.path)?;
        if !self.may_mount {
            let message = "a block device is required, but this kubelet is not allowed to mount";
            return Err(Problem::invalid(message.to_string()));
        }
        let failed = |reason: MountError| Problem {
            kind: ProblemKind::Step("MapVolume.MapBlockVolume failed"),
            ..Problem::from(reason)
        };
        let device = from.canonicalize().map_err(|e| failed(io_error("readlink", from, e)))?;
        let mapping = Mapping::local(root, self.pod_directory, name);
        mapping.make(&device).map_err(failed)?;
        Ok(Ready::device(mapping.link, name, read_only))
    }

    /// The path of a volume of the node, and what is there.
    fn local_path<'p>(&self, name: &str, path: &'p str) -> Result<(&'p Path, fs::FileType), Problem> {
        if !paths::is_file_name(name) {
            return Err(Problem::invalid(format!(
                "volume name {name:?} is not a valid directory name"
            )));
        }
        if path.is_empty() {
            return Err(Problem::invalid(format!("LocalVolume volume {name:?} path is empty")));
        }
        if host_path::has_backsteps(path) {
            return Err(Problem::invalid(format!("invalid path: {path} must not contain '..'")));
        }
        let from = Path::new(path);
        let found = match fs::metadata(from) {
            Ok(found) => found.file_type(),
            Err(error) => {
                let reason = match error.kind() {
                    ErrorKind::NotFound => MountError::Invalid(format!("path {path:?} does not exist")),
                    _ => io_error("stat", from, error),
                };
                return Err(Problem {
                    kind: ProblemKind::Step("MountVolume.NewMounter initialization failed"),
                    ..Problem::from(reason)
                });
            }
        };
        Ok((from, found))
    }

    /// A disk of the node, mounted once for all pods that have it. Gives the place.
    fn local_disk(&self, root: &Path, volume: &Local) -> Result<PathBuf, Problem> {
        if !self.may_mount {
            let message = "a disk has to be mounted, but this kubelet is not allowed to mount";
            return Err(Problem::invalid(message.to_string()));
        }
        let disk = Disk {
            device: Path::new(&volume.path),
            kind: &volume.fs_type,
            read_only: volume.read_only,
            options: &volume.mount_options,
        };
        // First the marker that there is something to tear down.
        let own = paths::volume(self.pod_directory, Plugin::Local, &volume.name);
        host_path::make_directories(&own, 0o750)?;
        let at = file_system::place(root, &volume.name);
        disk.mount(&at).map_err(|reason| Problem {
            kind: ProblemKind::Step("MountVolume.MountDevice failed"),
            ..Problem::from(reason)
        })?;
        Ok(at)
    }

    /// A directory or a disk of the node, mounted below the pod's directory so that several pods can have it.
    pub(super) fn local(&self, root: &Path, volume: &Local) -> Result<Ready, Problem> {
        let (name, read_only) = (volume.name.as_str(), volume.read_only);
        let (from, found) = self.local_path(name, &volume.path)?;
        let from = match found {
            found if found.is_block_device() => self.local_disk(root, volume)?,
            found if found.is_dir() => from.to_path_buf(),
            _ => {
                return Err(Problem::invalid("only directory and block device are supported"));
            }
        };
        let at = paths::volume(self.pod_directory, Plugin::Local, name);
        if !self.may_mount {
            return Ok(Ready::managed(from, name, read_only));
        }
        let marker = paths::ready_marker(self.pod_directory, Plugin::Local, name);
        let is_mounted = is_mount_point(&at)?;
        if !is_mounted {
            host_path::make_directories(&at, 0o750)?;
            bind(&from, &at, read_only)?;
        }
        let is_done = is_mounted && marker.exists();
        if !read_only && !is_done {
            self.ownership.apply(&at, false)?;
            empty_dir::mark(&marker)?;
        }
        Ok(Ready::managed(at, name, read_only))
    }
}

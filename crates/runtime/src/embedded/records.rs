//! What the runtime remembers of sandboxes and containers, and where.
//!
//! ```text
//! ROOT/mount-points                                the lowest layer of every root: see [`Layout::mount_points`]
//! ROOT/pods/<sandbox>/record                       written when the sandbox is ready, rewritten when it is stopped
//!                    /shim.sock  hostname  hosts  resolv.conf
//!                    /containers/<container>/record spec.json    written when it is created
//!                                           /state.json          the shim's: started, ended
//!                                           /upper work root     its writable layer, where it is mounted
//! ```
//!
//! A directory without a record is of work that was interrupted, or of a removal: it is removed.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use prost::Message;

use crate::cri::messages::{ContainerConfig, LinuxContainerResources, LinuxContainerUser, PodSandboxConfig};

const RECORD: &str = "record";
/// In `/etc`, the pod's own.
const MOUNTED_FILES: [&str; 3] = ["hostname", "hosts", "resolv.conf"];

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SandboxRecord {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(message, optional, tag = "2")]
    pub config: Option<PodSandboxConfig>,
    #[prost(string, tag = "3")]
    pub handler: String,
    #[prost(int64, tag = "4")]
    pub created_at: i64,
    #[prost(string, repeated, tag = "5")]
    pub addresses: Vec<String>,
    #[prost(bool, tag = "6")]
    pub stopped: bool,
    #[prost(string, tag = "7")]
    pub hostname: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ContainerRecord {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub sandbox: String,
    #[prost(message, optional, tag = "3")]
    pub config: Option<ContainerConfig>,
    #[prost(int64, tag = "4")]
    pub created_at: i64,
    #[prost(string, tag = "5")]
    pub image_id: String,
    #[prost(string, tag = "6")]
    pub image_ref: String,
    /// As statuses name the image.
    #[prost(string, tag = "7")]
    pub image_name: String,
    #[prost(int32, tag = "8")]
    pub stop_signal: i32,
    #[prost(string, tag = "9")]
    pub cgroup: String,
    #[prost(message, optional, tag = "10")]
    pub user: Option<LinuxContainerUser>,
    /// As they are now: they can be changed while it runs.
    #[prost(message, optional, tag = "11")]
    pub resources: Option<LinuxContainerResources>,
    #[prost(string, tag = "12")]
    pub log_path: String,
}

impl SandboxRecord {
    pub(crate) fn config(&self) -> PodSandboxConfig {
        self.config.clone().unwrap_or_default()
    }
}

/// Where everything is.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    root: PathBuf,
}

impl Layout {
    pub(crate) fn create(root: &Path) -> io::Result<Layout> {
        let layout = Layout {
            root: root.to_path_buf(),
        };
        fs::create_dir_all(layout.pods())?;
        // Containers' files may be anybody's, also those of the node's users.
        fs::set_permissions(root, fs::Permissions::from_mode(0o700))?;
        let base = layout.mount_points();
        for dir in ["dev", "etc", "proc", "sys"] {
            fs::create_dir_all(base.join(dir))?;
        }
        for file in MOUNTED_FILES {
            fs::File::create(base.join("etc").join(file))?;
        }
        Ok(layout)
    }

    /// What is mounted in every container needs something to be mounted on. As the lowest layer it is there already,
    /// unless the image has its own, and need not be made in each container's writable layer.
    pub(crate) fn mount_points(&self) -> PathBuf {
        self.root.join("mount-points")
    }

    pub(crate) fn pods(&self) -> PathBuf {
        self.root.join("pods")
    }

    pub(crate) fn pod(&self, sandbox: &str) -> PathBuf {
        self.pods().join(sandbox)
    }

    pub(crate) fn containers(&self, sandbox: &str) -> PathBuf {
        self.pod(sandbox).join("containers")
    }

    pub(crate) fn container(&self, sandbox: &str, container: &str) -> PathBuf {
        self.containers(sandbox).join(container)
    }
}

/// Replaces a record at once.
pub(crate) fn write_record(dir: &Path, record: &impl Message) -> io::Result<()> {
    let new = dir.join("record.new");
    fs::write(&new, record.encode_to_vec())?;
    fs::rename(new, dir.join(RECORD))
}

/// `None`: there is none, or it is not whole (after a loss of power).
pub(crate) fn read_record<T: Message + Default>(dir: &Path) -> io::Result<Option<T>> {
    match fs::read(dir.join(RECORD)) {
        Ok(bytes) if bytes.is_empty() => Ok(None),
        Ok(bytes) => Ok(T::decode(bytes.as_slice()).ok()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// From now on the directory is rubbish.
pub(crate) fn remove_record(dir: &Path) -> io::Result<()> {
    match fs::remove_file(dir.join(RECORD)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes a directory with all that is in it. What is gone already is fine.
pub(crate) fn remove_all(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Names of the directories in one.
pub(crate) fn subdirectories(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        other => other?,
    };
    let mut names = vec![];
    for entry in entries {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    Ok(names)
}

//! What is on disk about volumes of drivers. Blocking.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::super::error::{MountError, io_error};
use super::super::host_path::make_directories;
use super::super::paths::{self, Paths, Plugin};
use super::hashed;

const DATA: &str = "vol_data.json";

/// A volume that a driver was, or was about to be, asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct VolumeData {
    #[serde(rename = "specVolID", skip_serializing_if = "String::is_empty")]
    pub name: String,
    pub volume_handle: String,
    pub driver_name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    #[serde(rename = "attachmentID", skip_serializing_if = "String::is_empty")]
    pub attachment_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub volume_lifecycle_mode: String,
}

/// A volume as published for a pod: the directory with its data, and where the driver mounts it.
#[derive(Clone, Debug)]
pub(super) struct Published {
    pub directory: PathBuf,
    pub data: VolumeData,
}

impl Published {
    pub(super) fn mount_point(&self) -> PathBuf {
        mount_point(&self.directory)
    }
}

pub(super) fn mount_point(directory: &Path) -> PathBuf {
    directory.join("mount")
}

/// The file that marks that the driver was called.
pub(super) fn data(directory: &Path) -> PathBuf {
    directory.join(DATA)
}

/// Where a volume is staged; its data is beside it.
pub(super) fn staging(paths: &Paths, driver: &str, handle: &str) -> PathBuf {
    let drivers = paths.root.join("plugins/kubernetes.io/csi");
    drivers.join(driver).join(hashed(&[handle])).join("globalmount")
}

pub(super) fn save(directory: &Path, data: &VolumeData) -> Result<(), MountError> {
    make_directories(directory, 0o750)?;
    let text = serde_json::to_vec(data).expect("strings can be written as JSON");
    // Whole or not at all: what is taken down depends on it.
    let (new, path) = (directory.join("vol_data.json.new"), directory.join(DATA));
    fs::write(&new, text).map_err(|e| io_error("open", &new, e))?;
    fs::rename(&new, &path).map_err(|e| io_error("rename", &new, e))
}

/// `None` if nothing was saved, and so nothing was asked for.
pub(super) fn load(directory: &Path) -> Result<Option<VolumeData>, MountError> {
    let path = data(directory);
    match fs::read(&path) {
        Ok(text) => match serde_json::from_slice(&text) {
            Ok(data) => Ok(Some(data)),
            Err(error) => Err(MountError::Invalid(format!(
                "failed to parse volume data file [{}]: {error}",
                path.display()
            ))),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error("open", &path, error)),
    }
}

/// All volumes of drivers that a pod has.
pub(super) fn of_pod(pod: &Path) -> Result<Vec<Published>, MountError> {
    let directory = paths::volumes(pod).join(Plugin::Csi.directory());
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io_error("open", &directory, error)),
    };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        if let Some(data) = load(&entry.path())? {
            found.push(Published {
                directory: entry.path(),
                data,
            });
        }
    }
    Ok(found)
}

/// All volumes of drivers that any pod has.
pub(super) fn of_all(paths: &Paths) -> Result<Vec<Published>, MountError> {
    let pods = fs::read_dir(paths.pods()).map_err(|e| io_error("open", &paths.pods(), e))?;
    let mut all = Vec::new();
    for pod in pods.flatten() {
        all.extend(of_pod(&pod.path())?);
    }
    Ok(all)
}

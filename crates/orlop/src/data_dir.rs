//! What is in a data directory, and whether a directory is one.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Files and directories that a cluster keeps here. What else is there is somebody's, such as `IMAGES` and `REGISTRIES`.
pub(crate) const ENTRIES: &[&str] = &[
    "store",
    "pki",
    "kubeconfig",
    "kubeconfig.new",
    "kubelet",
    "local-path",
    LOGS,
    SCHEDULER_CONFIG,
    IMAGE_STORE,
    PODS,
    NETWORK,
    NODES,
    NODES_FILE,
    "nodes.json.new",
    "control.sock",
    LOG,
    OLD_LOG,
    PROCESS,
    "process.json.new",
    MACHINE,
    "machine.json.new",
];

/// The scheduler's configuration that worked last.
pub(crate) const SCHEDULER_CONFIG: &str = "scheduler-config.yaml";
/// Logs of the components.
pub(crate) const LOGS: &str = "logs";
/// What `orlop up -d` logs.
pub(crate) const LOG: &str = "orlop.log";
pub(crate) const OLD_LOG: &str = "orlop.log.1";
/// Images of the embedded runtime, which the nodes of a machine share.
pub(crate) const IMAGE_STORE: &str = "image-store";
/// Sandboxes and containers of the embedded runtime.
pub(crate) const PODS: &str = "pods";
/// Who has which address of the pod network.
pub(crate) const NETWORK: &str = "network";
/// A directory for each worker node, with what the kubelet and the embedded runtime of this machine's own have here.
pub(crate) const NODES: &str = "nodes";
/// Which worker nodes there are: see `nodes`.
pub(crate) const NODES_FILE: &str = "nodes.json";
/// Archives of images to be loaded at the start, if somebody put some there.
pub(crate) const IMAGES: &str = "images";
/// Mirrors, credentials and certificates of registries, if somebody wrote them.
pub(crate) const REGISTRIES: &str = "registries.yaml";
/// The process that has the directory: see `process_file`.
pub(crate) const PROCESS: &str = "process.json";
/// What the cluster made elsewhere on the machine: see `machine`.
pub(crate) const MACHINE: &str = "machine.json";

/// Whether a cluster has, or had, its state here.
pub(crate) fn is_one(dir: &Path) -> bool {
    dir.join("store/lock").is_file() || dir.join(MACHINE).is_file()
}

/// Whether nothing is there yet but what whoever started us made.
pub(crate) fn is_vacant(dir: &Path) -> bool {
    match std::fs::read_dir(dir) {
        Ok(mut entries) => entries.all(|entry| entry.is_ok_and(|entry| entry.file_name() == LOG)),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// The path by which others know the directory: a relative one means something else elsewhere.
pub(crate) fn absolute(dir: &Path) -> PathBuf {
    dir.canonicalize()
        .or_else(|_| std::path::absolute(dir))
        .unwrap_or_else(|_| dir.to_path_buf())
}

/// A command line for the user about the cluster in this directory.
pub(crate) fn command(verb: &str, dir: &Path) -> String {
    let set = std::env::var_os("ORLOP_DATA_DIR").filter(|set| !set.is_empty());
    let usual = set
        .map(PathBuf::from)
        .map_or_else(crate::commands::up::default_data_dir, Ok);
    match usual.is_ok_and(|usual| absolute(&usual) == absolute(dir)) {
        true => format!("orlop {verb}"),
        false => format!("orlop {verb} --data-dir {}", dir.display()),
    }
}

/// Makes a directory for the owner's eyes only, and those above it.
pub(crate) fn create_private(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Appears whole or not at all, for the owner's eyes only.
pub(crate) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut temporary = path.file_name().unwrap_or_default().to_os_string();
    temporary.push(".new");
    let temporary = path.with_file_name(temporary);
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(temporary, path)
}

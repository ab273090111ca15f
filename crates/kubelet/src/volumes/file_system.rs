//! Disks of the node that pods have as directories: given a file system if they have none, and mounted. Blocking.
//!
//! ```text
//! plugins/kubernetes.io/local-volume/mounts/<volume>   the disk, mounted once
//! pods/<uid>/volumes/kubernetes.io~local-volume/…      shown again for each pod
//! ```
//!
//! What is on a disk stays there: it is formatted only if `blkid` says that it finds nothing at all.
// Upstream: pkg/volume/local/local.go; staging/src/k8s.io/mount-utils, SafeFormatAndMount (v1.36)

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::error::{MountError, io_error};
use super::host_path::make_directories;
use super::mount_table::{is_mount_point, mounts_below, unmount, unmount_below};
use super::paths::{self, Plugin};

const DEFAULT: &str = "ext4";
/// What `blkid` ends with when there is nothing that it knows.
const FOUND_NOTHING: i32 = 2;
/// What `fsck` ends with when it leaves errors behind.
const UNREPAIRED: i32 = 4;

/// A disk and how it is to be mounted.
#[derive(Clone, Debug)]
pub(super) struct Disk<'a> {
    pub device: &'a Path,
    /// Empty for the usual one.
    pub kind: &'a str,
    pub read_only: bool,
    pub options: &'a [String],
}

/// What comes before mounting.
#[derive(Debug, PartialEq, Eq)]
enum First {
    /// With these arguments.
    Format(Vec<String>),
    /// It has been in use, and may have been pulled out.
    Check,
    Nothing,
}

/// Where a volume's disk is mounted, whoever has it.
pub(super) fn place(root: &Path, volume: &str) -> PathBuf {
    root.join("plugins/kubernetes.io/local-volume/mounts").join(volume)
}

impl Disk<'_> {
    /// Mounts the disk, if it is not. Only one at a time may do so for a volume.
    pub(super) fn mount(&self, at: &Path) -> Result<(), MountError> {
        make_directories(at, 0o750)?;
        if is_mount_point(at)? {
            return Ok(());
        }
        let mounted = self.prepare(at).and_then(|()| self.mount_prepared(at));
        mounted.map_err(|error| {
            // Empty, and made again with the next try.
            let _ = fs::remove_dir(at);
            MountError::Disk {
                device: self.device.to_path_buf(),
                at: at.to_path_buf(),
                fs_type: self.kind().to_string(),
                source: Box::new(error),
            }
        })
    }

    fn kind(&self) -> &str {
        if self.kind.is_empty() { DEFAULT } else { self.kind }
    }

    fn prepare(&self, at: &Path) -> Result<(), MountError> {
        let device = self.device.display().to_string();
        let arguments = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", &device];
        let output = run("blkid", &arguments).map_err(|e| MountError::Program(e.to_string()));
        let found = output.and_then(|output| found(output.status.code(), &shown(&output)));
        let found = found.map_err(|e| MountError::during(format!("failed to get disk format of disk {device}"), e))?;
        match self.first(&found)? {
            First::Format(arguments) => self.format(&arguments, at),
            First::Check => check(&device),
            First::Nothing => Ok(()),
        }
    }

    fn first(&self, found: &str) -> Result<First, MountError> {
        let (kind, device) = (self.kind(), self.device.display().to_string());
        if !is_kind(kind) {
            return Err(MountError::Invalid(format!("invalid fsType {kind:?}")));
        }
        match (found, self.read_only) {
            ("", true) => Err(MountError::Invalid(format!(
                "cannot mount unformatted disk {device} as we are manipulating it in read-only mode"
            ))),
            ("", false) => {
                let forced: &[&str] = match kind {
                    "ext3" | "ext4" => &["-F", "-m0"],
                    "xfs" => &["-f"],
                    _ => &[],
                };
                let forced = forced.iter().map(|option| option.to_string());
                Ok(First::Format(forced.chain([device]).collect()))
            }
            (_, true) => Ok(First::Nothing),
            (_, false) => Ok(First::Check),
        }
    }

    fn format(&self, arguments: &[String], at: &Path) -> Result<(), MountError> {
        let kind = self.kind();
        tracing::info!(device = %self.device.display(), fs_type = kind, "formatting disk");
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let failed = |code: String, output: String| {
            MountError::Program(format!(
                "format of disk {:?} failed: type:({kind:?}) target:({:?}) options:({:?}) errcode:({code}) \
                 output:({output}) ",
                self.device.display().to_string(),
                at.display().to_string(),
                self.mount_options(),
            ))
        };
        match run(&format!("mkfs.{kind}"), &arguments) {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(failed(output.status.to_string(), shown(&output))),
            Err(error) => Err(failed(error.to_string(), String::new())),
        }
    }

    fn mount_options(&self) -> String {
        let own = self.read_only.then_some("ro").into_iter();
        let options = own.chain(self.options.iter().map(String::as_str));
        options.chain(["defaults"]).collect::<Vec<_>>().join(",")
    }

    /// By the program, which knows all options, and what further programs some file systems need.
    fn mount_prepared(&self, at: &Path) -> Result<(), MountError> {
        let (device, at) = (self.device.display().to_string(), at.display().to_string());
        let options = self.mount_options();
        let arguments = ["-t", self.kind(), "-o", &options, &device, &at];
        let output = run("mount", &arguments).map_err(|e| MountError::Program(format!("mount failed: {e}")))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(MountError::Program(format!(
                "mount failed: {}\nMounting command: mount\nMounting arguments: {}\nOutput: {}\n",
                output.status,
                arguments.join(" "),
                shown(&output)
            ))),
        }
    }
}

/// The name becomes that of a program.
fn is_kind(kind: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    kind.starts_with(|c: char| c.is_ascii_alphanumeric()) && kind.chars().all(is_plain)
}

/// The file system on a disk by what `blkid` says of it; empty if there is nothing on it.
fn found(code: Option<i32>, output: &str) -> Result<String, MountError> {
    match code {
        Some(0) => {}
        Some(FOUND_NOTHING) => return Ok(String::new()),
        Some(code) => return Err(MountError::Program(format!("exit status {code}"))),
        None => return Err(MountError::Program("blkid was killed".to_string())),
    }
    let mut kind = String::new();
    for line in output.lines().filter(|line| !line.is_empty()) {
        match line.split_once('=') {
            Some(("TYPE", value)) => kind = value.to_string(),
            // Never formatted, and not mounted either.
            Some(("PTTYPE", _)) => return Ok("unknown data, probably partitions".to_string()),
            Some(_) => {}
            None => return Err(MountError::Program(format!("blkid returns invalid output: {output}"))),
        }
    }
    Ok(kind)
}

/// Repairs what can be repaired without asking.
fn check(device: &str) -> Result<(), MountError> {
    match run("fsck", &["-a", device]) {
        Ok(output) if output.status.code() == Some(UNREPAIRED) => Err(MountError::Program(format!(
            "'fsck' found errors on device {device} but could not correct them: {}",
            shown(&output)
        ))),
        Ok(output) => {
            tracing::debug!(device, status = %output.status, "ran fsck");
            Ok(())
        }
        Err(error) => {
            tracing::warn!(device, err = %error, "failed to run fsck; mounting without a check");
            Ok(())
        }
    }
}

fn run(program: &str, arguments: &[&str]) -> std::io::Result<Output> {
    Command::new(program).args(arguments).output()
}

fn shown(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&text).trim_end().to_string()
}

/// The names of the node's volumes that a pod has as directories.
pub(super) fn names(pod_directory: &Path) -> Vec<String> {
    let directory = paths::volumes(pod_directory).join(Plugin::Local.directory());
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// Takes a volume away from a pod, and its disk from the node if the pod was the last to have it. Only one at a time may do
/// so for a volume.
pub(super) fn release(root: &Path, pod_directory: &Path, volume: &str) -> Result<(), MountError> {
    unmount_below(&paths::volume(pod_directory, Plugin::Local, volume))?;
    let of_pod = paths::volume(Path::new(""), Plugin::Local, volume);
    let all = mounts_below(&root.join("pods"))?;
    if all.iter().any(|point| point.ends_with(&of_pod)) {
        return Ok(());
    }
    let at = place(root, volume);
    unmount(&at)?;
    match fs::remove_dir(&at) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io_error("remove", &at, error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_blkid_says() {
        let cases = [
            (Some(0), "DEVNAME=/dev/x\nTYPE=ext4\n", Ok("ext4")),
            (
                Some(0),
                "TYPE=ext4\n\nPTTYPE=gpt\n",
                Ok("unknown data, probably partitions"),
            ),
            (Some(0), "DEVNAME=/dev/x\n", Ok("")),
            (Some(2), "", Ok("")),
            (Some(8), "", Err("exit status 8")),
            (Some(0), "what", Err("blkid returns invalid output: what")),
            (None, "", Err("blkid was killed")),
        ];
        for (code, output, expected) in cases {
            let expected = expected.map(String::from).map_err(String::from);
            let found = found(code, output).map_err(|error| error.to_string());
            assert_eq!(found, expected, "{output}");
        }
    }

    #[test]
    fn only_what_is_empty_and_may_be_written_is_formatted() {
        let first = |kind: &str, found: &str, read_only: bool| {
            let disk = Disk {
                device: Path::new("/dev/x"),
                kind,
                read_only,
                options: &[],
            };
            disk.first(found).map_err(|error| error.to_string())
        };
        let format = |arguments: &[&str]| Ok(First::Format(arguments.iter().map(|a| a.to_string()).collect()));
        assert_eq!(first("", "", false), format(&["-F", "-m0", "/dev/x"]));
        assert_eq!(first("xfs", "", false), format(&["-f", "/dev/x"]));
        assert_eq!(first("btrfs", "", false), format(&["/dev/x"]));
        assert_eq!(first("xfs", "ext4", false), Ok(First::Check));
        assert_eq!(first("", "unknown data, probably partitions", false), Ok(First::Check));
        assert_eq!(first("", "ext4", true), Ok(First::Nothing));
        let refused = "cannot mount unformatted disk /dev/x as we are manipulating it in read-only mode";
        assert_eq!(first("", "", true), Err(refused.to_string()));
        for kind in ["../x", "-F", "a b", "ext4/x"] {
            assert!(first(kind, "", false).is_err(), "{kind}");
        }
    }

    #[test]
    fn options() {
        let options = ["noatime".to_string()];
        let disk = Disk {
            device: Path::new("/dev/x"),
            kind: "",
            read_only: true,
            options: &options,
        };
        assert_eq!(disk.mount_options(), "ro,noatime,defaults");
    }
}

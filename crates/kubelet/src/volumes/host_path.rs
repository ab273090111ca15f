//! Paths of the node itself, mounted as they are. Checked, and made where the type says so; never cleaned up.

use std::fs::{self, DirBuilder, FileType, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use super::error::{MountError, io_error};

/// Checks the path against `hostPath.type` and makes it if it is to be made.
pub(super) fn check(path: &str, kind: &str) -> Result<(), MountError> {
    if has_backsteps(path) {
        return Err(MountError::Invalid(format!(
            "invalid HostPath `{path}`: must not contain '..'"
        )));
    }
    let at = Path::new(path);
    let found = fs::metadata(at).ok().map(|metadata| metadata.file_type());
    match (kind, found) {
        ("", _) => Ok(()),
        ("DirectoryOrCreate", None) => make_directories(at, 0o755),
        ("FileOrCreate", None) => make_file(at),
        _ => {
            let (is_one, said) =
                expected(kind).ok_or_else(|| MountError::Invalid(format!("{kind} is an invalid volume type")))?;
            if found.is_some_and(|found| is_one(&found)) {
                Ok(())
            } else {
                Err(MountError::Invalid(format!(
                    "hostPath type check failed: {path} is not {said}"
                )))
            }
        }
    }
}

/// The check of a hostPath type, and its name in messages.
fn expected(kind: &str) -> Option<(fn(&FileType) -> bool, &'static str)> {
    Some(match kind {
        "Directory" | "DirectoryOrCreate" => (FileType::is_dir, "a directory"),
        "File" | "FileOrCreate" => (FileType::is_file, "a file"),
        "Socket" => (FileTypeExt::is_socket, "a socket file"),
        "CharDevice" => (FileTypeExt::is_char_device, "a character device"),
        "BlockDevice" => (FileTypeExt::is_block_device, "a block device"),
        _ => return None,
    })
}

pub(super) fn has_backsteps(path: &str) -> bool {
    path.split('/').any(|part| part == "..")
}

pub(super) fn make_directories(path: &Path, mode: u32) -> Result<(), MountError> {
    let made = DirBuilder::new().recursive(true).mode(mode).create(path);
    made.map_err(|e| io_error("mkdir", path, e))
}

fn make_file(path: &Path) -> Result<(), MountError> {
    let made = OpenOptions::new().create(true).append(true).mode(0o644).open(path);
    made.map(drop).map_err(|e| io_error("open", path, e))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn every_type() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| format!("{}/{name}", temp.path().display());
        fs::create_dir(at("dir")).unwrap();
        fs::write(at("file"), "").unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        std::os::unix::fs::symlink(at("dir"), at("link")).unwrap();
        let cases = [
            ("dir", "Directory", ""),
            ("link", "Directory", ""),
            (
                "file",
                "Directory",
                "hostPath type check failed: @/file is not a directory",
            ),
            (
                "none",
                "Directory",
                "hostPath type check failed: @/none is not a directory",
            ),
            (
                "file",
                "DirectoryOrCreate",
                "hostPath type check failed: @/file is not a directory",
            ),
            ("new/dir", "DirectoryOrCreate", ""),
            ("new/dir", "Directory", ""),
            ("file/dir", "DirectoryOrCreate", "mkdir @/file/dir: not a directory"),
            ("file", "File", ""),
            ("dir", "File", "hostPath type check failed: @/dir is not a file"),
            ("newfile", "FileOrCreate", ""),
            ("newfile", "File", ""),
            ("dir", "FileOrCreate", "hostPath type check failed: @/dir is not a file"),
            (
                "no/parent",
                "FileOrCreate",
                "open @/no/parent: no such file or directory",
            ),
            ("socket", "Socket", ""),
            (
                "file",
                "Socket",
                "hostPath type check failed: @/file is not a socket file",
            ),
            (
                "file",
                "CharDevice",
                "hostPath type check failed: @/file is not a character device",
            ),
            (
                "file",
                "BlockDevice",
                "hostPath type check failed: @/file is not a block device",
            ),
            ("none", "", ""),
            ("file", "Shed", "Shed is an invalid volume type"),
            (
                "dir/../file",
                "",
                "invalid HostPath `@/dir/../file`: must not contain '..'",
            ),
        ];
        for (name, kind, expected) in cases {
            let answer = check(&at(name), kind)
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default();
            assert_eq!(
                answer,
                expected.replace('@', &temp.path().display().to_string()),
                "{name} {kind}"
            );
        }
        check("/dev/null", "CharDevice").unwrap();
    }
}

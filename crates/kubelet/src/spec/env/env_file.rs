//! Files of variables, as `fileKeyRef` names them: lines `NAME='value'` and comments. A value may go over several lines;
//! nothing within its quotes has a meaning.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

/// More than any environment can hold.
const MAX_BYTES: u64 = 1 << 20;

/// Why a file of variables could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum EnvFileError {
    #[error("failed to {action} {}: {source}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{} is not a regular file", .0.display())]
    NotRegular(PathBuf),
    #[error("{} is too long", .0.display())]
    TooLong(PathBuf),
    #[error("invalid environment variable format at line {line}: {problem}")]
    Format { line: usize, problem: &'static str },
    #[error("invalid environment variable format starting at line {line}: unclosed single quote")]
    Unclosed { line: usize },
}

/// The value of a key in a file within a volume; `None` if it has none or an empty one. Links in the path lead nowhere
/// outside of the volume: containers write there.
pub(super) fn read(volume: &Path, path: &Path, key: &str) -> Result<Option<String>, EnvFileError> {
    let failed = |action, path: &Path, source| EnvFileError::Io {
        action,
        path: path.to_path_buf(),
        source,
    };
    let dir = File::open(volume).map_err(|e| failed("open", volume, e))?;
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let file = openat2(&dir, path, how).map_err(|e| failed("open", path, e.into()))?;
    let file = File::from(file);
    let problem = |e: std::io::Error| failed("read", path, e);
    if !file.metadata().map_err(problem)?.is_file() {
        return Err(EnvFileError::NotRegular(path.to_path_buf()));
    }
    let mut text = String::new();
    let length = file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(problem)?;
    if length as u64 > MAX_BYTES {
        return Err(EnvFileError::TooLong(path.to_path_buf()));
    }
    value(&text, key)
}

fn value(text: &str, key: &str) -> Result<Option<String>, EnvFileError> {
    let mut lines = text.split('\n').map(|l| l.strip_suffix('\r').unwrap_or(l)).enumerate();
    while let Some((index, line)) = lines.next() {
        let line = line.trim_start_matches([' ', '\t']);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |problem| {
            Err(EnvFileError::Format {
                line: index + 1,
                problem,
            })
        };
        let Some((name, rest)) = line.split_once('=') else {
            return wrong("missing '='");
        };
        match name.trim_end_matches([' ', '\t']) {
            "" => return wrong("empty variable name"),
            trimmed if trimmed != name => return wrong("whitespace before '=' is not allowed"),
            _ => {}
        }
        // As in a shell: after `NAME= ` the value is empty.
        if rest.starts_with([' ', '\t']) {
            if name == key {
                return Ok(None);
            }
            continue;
        }
        let Some(mut rest) = rest.strip_prefix('\'') else {
            return wrong("value must be enclosed in single quotes");
        };
        let mut value = String::new();
        let after = loop {
            match rest.split_once('\'') {
                Some((end, after)) => {
                    value.push_str(end);
                    break after.trim_start_matches([' ', '\t']);
                }
                None => {
                    value.push_str(rest);
                    value.push('\n');
                    rest = match lines.next() {
                        Some((_, next)) => next,
                        None => {
                            return Err(EnvFileError::Unclosed { line: index + 1 });
                        }
                    };
                }
            }
        };
        if !after.is_empty() && !after.starts_with('#') {
            return wrong("unexpected content after closing quote");
        }
        if name == key {
            return Ok(Some(value).filter(|v| !v.is_empty()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn values() {
        let text = "# comment\n\n  A='a'\n\tB='b # no comment' # comment\nC='two\nlines'\nD='$A \"x\"'\r\nE= 'e'\nF=''\nA='again'\n";
        for (key, expected) in [
            ("A", Some("a")),
            ("B", Some("b # no comment")),
            ("C", Some("two\nlines")),
            ("D", Some("$A \"x\"")),
            ("E", None),
            ("F", None),
            ("G", None),
        ] {
            assert_eq!(value(text, key).unwrap().as_deref(), expected, "{key}");
        }
    }

    #[test]
    fn what_is_wrong() {
        for (text, expected) in [
            ("X\nA='a'", "at line 1: missing '='"),
            ("='a'", "at line 1: empty variable name"),
            ("\nX ='a'", "at line 2: whitespace before '=' is not allowed"),
            ("X=a", "at line 1: value must be enclosed in single quotes"),
            ("X=\"a\"", "at line 1: value must be enclosed in single quotes"),
            ("X='a' b", "at line 1: unexpected content after closing quote"),
            ("X='a'\nY='b\nc", "starting at line 2: unclosed single quote"),
        ] {
            let error = value(text, "A").unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("invalid environment variable format {expected}"),
                "{text}"
            );
        }
        // What comes after the key does not matter.
        assert_eq!(value("A='a'\nnonsense", "A").unwrap().as_deref(), Some("a"));
    }

    #[test]
    fn links_lead_nowhere_outside() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        fs::create_dir_all(volume.join("sub")).unwrap();
        fs::write(dir.path().join("secret"), "A='secret'\n").unwrap();
        fs::write(volume.join("sub/env"), "A='mine'\n").unwrap();
        symlink("sub/env", volume.join("link")).unwrap();
        symlink("../secret", volume.join("up")).unwrap();
        symlink(dir.path().join("secret"), volume.join("far")).unwrap();
        let read = |path: &str| read(&volume, Path::new(path), "A");
        assert_eq!(read("sub/env").unwrap().as_deref(), Some("mine"));
        assert_eq!(read("link").unwrap().as_deref(), Some("mine"));
        for path in ["up", "far", "../secret", "sub", "missing"] {
            assert!(read(path).is_err(), "{path}");
        }
        nix::unistd::mkfifo(&volume.join("pipe"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(read("pipe").is_err());
        fs::write(volume.join("big"), "A".repeat(MAX_BYTES as usize + 1)).unwrap();
        assert_eq!(read("big").unwrap_err().to_string(), "big is too long");
    }
}

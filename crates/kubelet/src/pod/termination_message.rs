//! The termination message of a container: from its termination message file, or else the end of its log.
//!
//! The file is the one that was mounted into the container at the path its annotations name. Only the end of a log is
//! read, however long it is.

use std::io::{Read, Seek, SeekFrom};

use orlop_runtime::cri::messages::{ContainerState, ContainerStatus};

use crate::spec::labels::{TERMINATION_MESSAGE_PATH as MESSAGE_PATH, TERMINATION_MESSAGE_POLICY as MESSAGE_POLICY};

/// Upstream: MaxContainerTerminationMessageLength and its kin.
const FILE_MAX: u64 = 4096;
const LOG_MAX: usize = 2048;
const LOG_LINES: usize = 80;
/// Enough of the file for `LOG_LINES` lines with their time stamps and `LOG_MAX` bytes in the longest piece of a line.
const TAIL: u64 = 64 * 1024;

pub(super) async fn read(status: &ContainerStatus) -> String {
    debug_assert_eq!(status.state, ContainerState::Exited as i32);
    let path = status.annotations.get(MESSAGE_PATH).map_or("", String::as_str);
    let policy = status.annotations.get(MESSAGE_POLICY).map_or("", String::as_str);
    // What could not even be started has no log.
    let from_log = policy == "FallbackToLogsOnError" && status.exit_code != 0 && status.reason != "ContainerCannotRun";
    let mount = status
        .mounts
        .iter()
        .find(|m| !path.is_empty() && m.container_path == path);
    let file = mount.map(|m| m.host_path.clone());
    let log = from_log.then(|| status.log_path.clone());
    if file.is_none() && log.is_none() {
        return String::new();
    }
    let reading = crate::blocking::run(move || read_files(file.as_deref(), log.as_deref()));
    reading.await.unwrap_or_default()
}

fn read_files(file: Option<&str>, log: Option<&str>) -> String {
    if let Some(path) = file {
        match end_of(path, FILE_MAX) {
            Ok(bytes) if !bytes.is_empty() => return String::from_utf8_lossy(&bytes).into_owned(),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return format!("Error on reading termination log {path}: {error}"),
        }
    }
    match log.map(|path| end_of(path, TAIL)) {
        None => String::new(),
        Some(Ok(bytes)) => last_lines(&bytes),
        Some(Err(error)) => format!("Error on reading termination message from logs: {error}"),
    }
}

/// The last bytes of a file. Links are not followed and only plain files are read: the file was in a container's hands.
fn end_of(path: &str, max: u64) -> std::io::Result<Vec<u8>> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = nix::fcntl::OFlag::O_NOFOLLOW | nix::fcntl::OFlag::O_NONBLOCK;
    let mut file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    file.seek(SeekFrom::Start(about.len().saturating_sub(max)))?;
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What the last lines of a log in the CRI's format (`time stream F|P content`) say.
fn last_lines(log: &[u8]) -> String {
    let mut lines: Vec<&[u8]> = log.split_inclusive(|b| *b == b'\n').collect();
    let mut said: Vec<u8> = Vec::new();
    let mut whole = 0;
    let mut kept = Vec::new();
    while let Some(line) = lines.pop() {
        let mut fields = line.splitn(4, |b| *b == b' ');
        let (Some(_), Some(_), Some(tags), Some(content)) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let partial = tags.split(|b| *b == b':').next() == Some(b"P");
        if !partial && whole == LOG_LINES {
            break;
        }
        whole += usize::from(!partial);
        kept.push(if partial {
            content.strip_suffix(b"\n").unwrap_or(content)
        } else {
            content
        });
    }
    for content in kept.into_iter().rev() {
        said.extend_from_slice(content);
    }
    let from = said.len().saturating_sub(LOG_MAX);
    String::from_utf8_lossy(&said[from..]).into_owned()
}

#[cfg(test)]
mod tests {
    use orlop_runtime::cri::messages::Mount;

    use super::*;

    async fn words(policy: &str, exit_code: i32, file: Option<&str>, log: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
        if let Some(text) = file {
            std::fs::write(path("msg"), text).unwrap();
        }
        std::fs::write(path("log"), log).unwrap();
        let notes = [(MESSAGE_PATH, "/dev/termination-log"), (MESSAGE_POLICY, policy)];
        let status = ContainerStatus {
            state: ContainerState::Exited as i32,
            exit_code,
            annotations: notes.map(|(k, v)| (k.to_string(), v.to_string())).into(),
            mounts: vec![Mount {
                container_path: "/dev/termination-log".into(),
                host_path: path("msg"),
                ..Default::default()
            }],
            log_path: path("log"),
            ..Default::default()
        };
        read(&status).await
    }

    #[tokio::test]
    async fn the_file_first_then_the_log_if_it_failed() {
        let log =
            "2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:00Z stderr P tw\n2026-01-01T00:00:00Z stderr F o\n";
        let fallback = "FallbackToLogsOnError";
        assert_eq!(words("File", 1, Some("bye"), log).await, "bye");
        assert_eq!(words("File", 1, Some(""), log).await, "");
        assert_eq!(words("File", 1, None, log).await, "");
        assert_eq!(words(fallback, 1, Some("bye"), log).await, "bye");
        assert_eq!(words(fallback, 1, Some(""), log).await, "one\ntwo\n");
        assert_eq!(words(fallback, 1, None, log).await, "one\ntwo\n");
        assert_eq!(words(fallback, 0, Some(""), log).await, "");
        assert_eq!(words("File", 1, Some(&"x".repeat(5000)), log).await.len(), 4096);
    }

    #[tokio::test]
    async fn a_long_log_gives_its_end() {
        let line = |n: usize| format!("2026-01-01T00:00:00.000000000Z stdout F line {n}\n");
        let log: String = (0..20_000).map(line).collect();
        let said = words("FallbackToLogsOnError", 2, None, &log).await;
        assert_eq!(said.lines().count(), 80);
        assert!(
            said.starts_with("line 19920\n") && said.ends_with("line 19999\n"),
            "{said}"
        );
        let long = format!("t stdout F {}\n", "y".repeat(10_000));
        assert_eq!(words("FallbackToLogsOnError", 2, None, &long).await.len(), 2048);
    }

    #[tokio::test]
    async fn a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("secret"), "secret").unwrap();
        let link = dir.path().join("msg");
        std::os::unix::fs::symlink(dir.path().join("secret"), &link).unwrap();
        let said = read_files(link.to_str(), None);
        assert!(said.starts_with("Error on reading termination log"), "{said}");
    }
}

//! The configuration in effect, in the file that users look for and edit: `/var/lib/kubelet/config.yaml`.
//!
//! Its header says who wrote it, with the digest of the rest: an unmodified file is rewritten at each start, an edited one
//! is read as the user's configuration, and one without such a header is not ours.

use std::io::{self, Write};
use std::path::Path;

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::{Map, Value, json};

use super::read;

const HEAD: &str = "# The kubelet configuration in effect, written by orlop at each start.\n\
                    # To change it, edit this file and restart: what was edited is read, and not written again.\n";
const MARK: &str = "# orlop-sha256: ";

/// Whose a configuration file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// There is none.
    Nobody,
    /// As we wrote it.
    Ours,
    /// We wrote it, and somebody changed it.
    Edited,
    SomebodyElse,
}

/// Who wrote the file last. One that can't be read is not ours.
pub fn owner(path: &Path) -> Owner {
    match std::fs::read_to_string(path) {
        Ok(text) => owner_of(&text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Owner::Nobody,
        Err(_) => Owner::SomebodyElse,
    }
}

/// Who wrote this text last.
pub fn owner_of(text: &str) -> Owner {
    let Some((_, marked)) = text.split_once(MARK) else {
        return Owner::SomebodyElse;
    };
    match marked.split_once('\n') {
        Some((sum, body)) if sum == checksum(body) => Owner::Ours,
        _ => Owner::Edited,
    }
}

fn checksum(body: &str) -> String {
    let sum = digest(&SHA256, body.as_bytes());
    sum.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes the document unless the file is somebody's. Whether it did.
pub fn write(path: &Path, document: &Value) -> io::Result<bool> {
    if !matches!(owner(path), Owner::Nobody | Owner::Ours) {
        return Ok(false);
    }
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let unfinished = path.with_extension("tmp");
    let mut file = std::fs::File::create(&unfinished)?;
    file.write_all(render(document)?.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(unfinished, path)?;
    Ok(true)
}

/// A text that tells by itself whether somebody changed it: `head` are comments for people.
pub fn stamp(head: &str, body: &str) -> String {
    format!("{head}{MARK}{}\n{body}", checksum(body))
}

fn render(document: &Value) -> io::Result<String> {
    Ok(stamp(HEAD, &to_yaml(document)?))
}

/// The configuration as a whole file.
pub fn to_yaml(document: &Value) -> io::Result<String> {
    let mut whole = Map::new();
    whole.insert("apiVersion".to_string(), json!(read::API_VERSION));
    whole.insert("kind".to_string(), json!(read::KIND));
    whole.extend(document.as_object().cloned().unwrap_or_default());
    serde_saphyr::to_string(&Value::Object(whole)).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    #[test]
    fn what_is_written_reads_back_the_same() {
        let flags = [
            ("staticPodPath", json!("/etc/kubernetes/manifests")),
            ("clusterDNS", json!(["10.96.0.10"])),
            ("evictionHard", json!({"memory.available": "5%"})),
            (
                "registerWithTaints",
                json!([{"key": "a", "value": "true", "effect": "NoSchedule"}]),
            ),
        ];
        for config in [parse(None, &[]).unwrap(), parse(None, &flags).unwrap()] {
            let text = render(&config.document).unwrap();
            let again = parse(Some(&text), &[]).unwrap_or_else(|e| panic!("{e:?} in\n{text}"));
            assert_eq!(again.document, config.document, "{text}");
            assert_eq!(owner_of(&text), Owner::Ours);
        }
    }

    #[test]
    fn only_what_nobody_touched_is_written_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubelet/config.yaml");
        let read = || std::fs::read_to_string(&path).unwrap();
        assert_eq!(owner(&path), Owner::Nobody);
        assert!(write(&path, &json!({"maxPods": 1})).unwrap());
        assert!(write(&path, &json!({"maxPods": 2})).unwrap());
        assert!(read().contains("\nmaxPods: 2\n"), "{}", read());
        let edited = read().replace("maxPods: 2", "maxPods: 3");
        std::fs::write(&path, &edited).unwrap();
        assert_eq!(owner(&path), Owner::Edited);
        assert!(!write(&path, &json!({"maxPods": 4})).unwrap());
        assert_eq!(read(), edited);
        for foreign in ["", "kind: KubeletConfiguration\n"] {
            std::fs::write(&path, foreign).unwrap();
            assert_eq!(owner(&path), Owner::SomebodyElse);
            assert!(!write(&path, &json!({})).unwrap());
            assert_eq!(read(), foreign);
        }
    }
}

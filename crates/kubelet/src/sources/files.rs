//! A directory of static pod manifests (or a single file), scanned periodically.
//!
//! One file is one pod. A file that can't be decoded is logged and changes nothing: the pod it held before keeps running. A
//! file is read once it is the same in two scans, so that one that is being written is left alone.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use orlop_api::types::core::Pod;

use super::Origin;
use super::manifest::{self, LENGTH_MAX, ManifestSource, SourceError};

/// What changes when a file does.
type Stamp = (u64, i64, i64, u64);

pub(super) struct Folder {
    path: PathBuf,
    node: String,
    known: BTreeMap<PathBuf, Known>,
    is_first: bool,
    /// A directory that can't be read is named once.
    complained: bool,
}

struct Known {
    seen: Stamp,
    /// The stamp of what was last read.
    read: Option<Stamp>,
    pod: Option<Arc<Pod>>,
}

impl Folder {
    pub(super) fn new(path: PathBuf, node: &str) -> Folder {
        Folder {
            path,
            node: node.to_string(),
            known: BTreeMap::new(),
            is_first: true,
            complained: false,
        }
    }

    /// Scans again; returns all pods if something changed. `thorough` reads every file, whatever its stamp.
    pub(super) fn look(&mut self, thorough: bool, now: Timestamp) -> Option<Vec<Arc<Pod>>> {
        let files = match self.files() {
            Ok(files) => {
                self.complained = false;
                files
            }
            Err(error) => {
                if !std::mem::replace(&mut self.complained, true) {
                    tracing::error!(path = %self.path.display(), err = %error, "failed to read static pods");
                }
                // A directory that is gone holds nothing; one that can't be read for now changes nothing.
                match error.kind() {
                    io::ErrorKind::NotFound => BTreeMap::new(),
                    _ => return std::mem::take(&mut self.is_first).then(Vec::new),
                }
            }
        };
        let is_first = std::mem::take(&mut self.is_first);
        let before = self.known.len();
        self.known.retain(|path, _| files.contains_key(path));
        let mut changed = is_first || self.known.len() != before;
        for (path, stamp) in files {
            changed |= self.look_at(path, stamp, is_first, thorough, now);
        }
        changed.then(|| self.pods())
    }

    fn look_at(&mut self, path: PathBuf, stamp: Stamp, is_first: bool, thorough: bool, now: Timestamp) -> bool {
        let node = self.node.clone();
        let known = self.known.entry(path.clone()).or_insert(Known {
            seen: (0, 0, 0, 0),
            read: None,
            pod: None,
        });
        let settled = is_first || known.seen == stamp;
        known.seen = stamp;
        if !settled || (known.read == Some(stamp) && !thorough) {
            return false;
        }
        let is_news = known.read.replace(stamp) != Some(stamp);
        match read(&path, &node, now) {
            Ok(pod) => {
                let uid = |pod: &Pod| pod.metadata.uid.clone();
                let same = known
                    .pod
                    .as_ref()
                    .is_some_and(|old| uid(old) == uid(&pod) && old.spec == pod.spec);
                if !same {
                    known.pod = Some(Arc::new(pod));
                }
                !same
            }
            Err(error) => {
                if is_news {
                    let kept = known.pod.is_some();
                    tracing::error!(path = %path.display(), kept, err = %error, "failed to read static pod");
                }
                false
            }
        }
    }

    fn files(&self) -> io::Result<BTreeMap<PathBuf, Stamp>> {
        let stamp = |m: &std::fs::Metadata| (m.ino(), m.mtime(), m.mtime_nsec(), m.len());
        let metadata = std::fs::metadata(&self.path)?;
        if metadata.is_file() {
            return Ok([(self.path.clone(), stamp(&metadata))].into());
        }
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(&self.path)? {
            let path = entry?.path();
            // Editors and half-finished copies begin with a dot.
            let hidden = path
                .file_name()
                .is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
            // Links are followed, as with config maps mounted as a directory.
            let Ok(metadata) = std::fs::metadata(&path) else {
                continue;
            };
            if !hidden && metadata.is_file() {
                files.insert(path, stamp(&metadata));
            }
        }
        Ok(files)
    }

    /// The first of those that share a name, by the names of their files.
    fn pods(&self) -> Vec<Arc<Pod>> {
        let mut names = HashSet::new();
        let mut all = Vec::new();
        for (path, known) in &self.known {
            let Some(pod) = &known.pod else { continue };
            if names.insert((pod.metadata.namespace.clone(), pod.metadata.name.clone())) {
                all.push(pod.clone());
            } else {
                tracing::error!(path = %path.display(), "ignored a static pod: another file has a pod of that name");
            }
        }
        all
    }
}

fn read(path: &Path, node: &str, now: Timestamp) -> Result<Pod, SourceError> {
    let file = std::fs::File::open(path)?;
    let mut bytes = Vec::new();
    file.take(LENGTH_MAX as u64 + 1).read_to_end(&mut bytes)?;
    let place = ManifestSource {
        origin: Origin::File,
        name: &path.to_string_lossy(),
        node,
    };
    manifest::pod(&bytes, &place, now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(name: &str, image: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: {image}}}]}}"
        )
    }

    struct Case {
        dir: tempfile::TempDir,
        folder: Folder,
    }

    impl Case {
        fn write(&self, file: &str, text: &str) {
            std::fs::write(self.dir.path().join(file), text).unwrap();
        }

        /// What is there once files have settled; `=` if nothing changed.
        fn look(&mut self) -> String {
            let now = "2026-01-01T00:00:00Z".parse().unwrap();
            let looks = [self.folder.look(false, now), self.folder.look(false, now)];
            let Some(pods) = looks.into_iter().flatten().next_back() else {
                return "=".into();
            };
            let shown = pods.iter().map(|pod| {
                let image = pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap();
                format!("{}:{image}", pod.metadata.name.clone().unwrap())
            });
            shown.collect::<Vec<_>>().join(" ")
        }
    }

    #[test]
    fn files_come_change_break_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(dir.path().to_path_buf(), "n");
        let mut case = Case { dir, folder };
        case.write("a.yaml", &manifest("a", "one"));
        case.write(".hidden.yaml", &manifest("h", "one"));
        std::fs::create_dir(case.dir.path().join("folder")).unwrap();
        assert_eq!(case.look(), "a-n:one");
        assert_eq!(case.look(), "=");
        case.write("b.json", &manifest("b", "one"));
        assert_eq!(case.look(), "a-n:one b-n:one");
        // Broken: what it held before goes on, and no news of it.
        case.write("a.yaml", "apiVersion: v1\nkind: Po");
        assert_eq!(case.look(), "=");
        case.write("c.yaml", "\0\x01broken");
        assert_eq!(case.look(), "=");
        case.write("a.yaml", &manifest("a", "two"));
        assert_eq!(case.look(), "a-n:two b-n:one");
        case.write("d.yaml", &manifest("a", "other"));
        assert_eq!(case.look(), "a-n:two b-n:one");
        std::fs::remove_file(case.dir.path().join("a.yaml")).unwrap();
        assert_eq!(case.look(), "b-n:one a-n:other");
        std::fs::remove_dir_all(case.dir.path()).unwrap();
        assert_eq!(case.look(), "");
        assert_eq!(case.look(), "=");
    }

    #[test]
    fn a_file_is_left_alone_until_it_settles() {
        let dir = tempfile::tempdir().unwrap();
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut folder = Folder::new(dir.path().join("one.yaml"), "n");
        assert_eq!(folder.look(false, now), Some(vec![]));
        std::fs::write(dir.path().join("one.yaml"), manifest("a", "one")).unwrap();
        assert_eq!(folder.look(false, now), None);
        assert_eq!(folder.look(false, now).unwrap().len(), 1);
        // The same again, written anew: nothing to do.
        std::fs::write(dir.path().join("one.yaml"), manifest("a", "one")).unwrap();
        assert_eq!((folder.look(false, now), folder.look(true, now)), (None, None));
    }
}

//! Which images there are: one file with all of them, so that a tag moves from one image to another in one step.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::content::{Durability, Needs, read_json, write_json};
use super::digest::Digest;
use super::manifest::Descriptor;
use super::reference::Reference;
use crate::cri::messages::{Image, ImageSpec, Int64Value};

/// Beginnings of ids shorter than this are not looked up: they are more likely names.
const MIN_ID_PREFIX: usize = 4;

/// An image, by its configuration's digest as containerd has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ImageRecord {
    pub id: Digest,
    pub manifest: Descriptor,
    pub layers: Vec<LayerRecord>,
    /// All blobs it is made of, indexes among them.
    pub blobs: BTreeSet<Digest>,
    /// Whole references: `docker.io/library/busybox:latest`, `docker.io/library/busybox@sha256:…`.
    pub references: BTreeSet<String>,
    /// What was downloaded for it, as the CRI reports sizes.
    pub size: u64,
    /// `USER` of the configuration.
    pub user: String,
    /// Never collected as garbage.
    pub pinned: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LayerRecord {
    pub blob: Descriptor,
    pub diff_id: Digest,
    pub chain_id: Digest,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ImageIndex {
    pub images: BTreeMap<Digest, ImageRecord>,
}

impl ImageRecord {
    pub(super) fn needs(&self) -> Needs {
        Needs {
            blobs: self.blobs.clone(),
            layers: self.layers.iter().map(|l| l.chain_id.clone()).collect(),
        }
    }

    pub(super) fn tags(&self) -> impl Iterator<Item = &String> {
        self.references.iter().filter(|r| !r.contains('@'))
    }

    pub(super) fn digests(&self) -> impl Iterator<Item = &String> {
        self.references.iter().filter(|r| r.contains('@'))
    }

    /// As the CRI has it.
    pub(super) fn message(&self) -> Image {
        let (uid, username) = split_user(&self.user);
        Image {
            id: self.id.to_string(),
            repo_tags: self.tags().cloned().collect(),
            repo_digests: self.digests().cloned().collect(),
            size: self.size,
            uid: uid.map(|value| Int64Value { value }),
            username,
            spec: Some(ImageSpec {
                image: self.id.to_string(),
                ..ImageSpec::default()
            }),
            pinned: self.pinned,
        }
    }
}

/// `USER` as the CRI has it: a number or a name, without the group.
///
/// Upstream: containerd, internal/cri/server/image_status.go (`getUserFromImage`).
fn split_user(user: &str) -> (Option<i64>, String) {
    let user = user.split(':').next().unwrap_or_default();
    match user.parse() {
        Ok(uid) => (Some(uid), String::new()),
        Err(_) => (None, user.to_string()),
    }
}

impl ImageIndex {
    /// By id, by reference, or by the beginning of an id that no other has.
    pub(super) fn find(&self, image: &str) -> Option<&ImageRecord> {
        if let Ok(id) = Digest::parse(image) {
            return self.images.get(&id);
        }
        let by_reference = Reference::parse(image).ok().and_then(|reference| {
            let whole = reference.to_string();
            self.images.values().find(|record| record.references.contains(&whole))
        });
        by_reference.or_else(|| self.find_by_prefix(image))
    }

    fn find_by_prefix(&self, prefix: &str) -> Option<&ImageRecord> {
        let prefix = prefix.strip_prefix("sha256:").unwrap_or(prefix);
        if prefix.len() < MIN_ID_PREFIX {
            return None;
        }
        let mut found = self.images.values().filter(|r| r.id.hex().starts_with(prefix));
        let first = found.next();
        first.filter(|_| found.next().is_none())
    }

    /// Adds an image, or what is new about one that is there. Its tags are taken from those who had them.
    pub(super) fn insert(&mut self, record: ImageRecord) {
        for other in self.images.values_mut() {
            other.references.retain(|r| !record.references.contains(r));
        }
        match self.images.get_mut(&record.id) {
            None => drop(self.images.insert(record.id.clone(), record)),
            Some(known) => {
                let before = std::mem::replace(known, record);
                known.references.extend(before.references);
                known.blobs.extend(before.blobs);
                known.pinned |= before.pinned;
            }
        }
    }

    /// Takes one reference off an image, and removes the image with its last tag, as `docker rmi` does.
    pub(super) fn untag(&mut self, reference: &str) -> Option<Digest> {
        let id = self
            .images
            .values()
            .find(|r| r.references.contains(reference))?
            .id
            .clone();
        let record = self.images.get_mut(&id)?;
        record.references.remove(reference);
        if record.tags().next().is_none() {
            self.images.remove(&id);
        }
        Some(id)
    }

    /// What all images are made of.
    pub(super) fn needs(&self) -> Needs {
        let mut needs = Needs::default();
        for record in self.images.values() {
            needs.extend(record.needs());
        }
        needs
    }
}

/// Reads the index, and again only when its file was replaced: other processes replace it too.
#[derive(Default)]
pub(super) struct IndexCache {
    read: Mutex<Option<(Stamp, Arc<ImageIndex>)>>,
}

/// What tells a file from the one that replaced it.
type Stamp = (u64, i64, i64, u64);

impl IndexCache {
    pub(super) fn read(&self, path: &Path) -> io::Result<Arc<ImageIndex>> {
        let stamp = match std::fs::metadata(path) {
            Ok(meta) => (meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.len()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Arc::default()),
            Err(e) => return Err(e),
        };
        let mut read = self.read.lock();
        if let Some((known, index)) = read.as_ref()
            && *known == stamp
        {
            return Ok(index.clone());
        }
        let index: Arc<ImageIndex> = Arc::new(read_json(path)?.unwrap_or_default());
        *read = Some((stamp, index.clone()));
        Ok(index)
    }

    /// Replaces the index; the caller holds the store's lock.
    pub(super) fn write(&self, path: &Path, index: &ImageIndex) -> io::Result<()> {
        write_json(path, index, Durability::Machine)?;
        // The clock of some file systems is coarse: two versions in one tick must not be taken for one.
        *self.read.lock() = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str, references: &[&str]) -> ImageRecord {
        ImageRecord {
            id: Digest::of(name.as_bytes()),
            manifest: Descriptor {
                media_type: String::new(),
                digest: Digest::of(b"manifest"),
                size: 1,
                platform: None,
                annotations: BTreeMap::new(),
            },
            layers: vec![],
            blobs: BTreeSet::from([Digest::of(name.as_bytes())]),
            references: references.iter().map(|r| r.to_string()).collect(),
            size: 1,
            user: String::new(),
            pinned: false,
        }
    }

    #[test]
    fn images_are_found_by_what_users_call_them() {
        let sha = Digest::of(b"index");
        let digested = format!("docker.io/library/a@{sha}");
        let mut index = ImageIndex::default();
        index.insert(record("a", &["docker.io/library/a:latest", &digested]));
        index.insert(record("b", &["localhost:5000/b:v1"]));
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        for (image, found) in [
            ("a", Some(&a)),
            ("a:latest", Some(&a)),
            ("a:other", None),
            (&format!("a:tag@{sha}"), Some(&a)),
            (a.as_str(), Some(&a)),
            (a.hex(), Some(&a)),
            (&a.hex()[..12], Some(&a)),
            (&a.hex()[..3], None),
            ("localhost:5000/b:v1", Some(&b)),
            (sha.as_str(), None),
            ("", None),
        ] {
            assert_eq!(index.find(image).map(|r| &r.id), found, "{image}");
        }
    }

    #[test]
    fn tags_move() {
        let mut index = ImageIndex::default();
        index.insert(record("a", &["r.io/x:1", "r.io/x:2"]));
        index.insert(record("b", &["r.io/x:2"]));
        assert_eq!(index.find("r.io/x:1").unwrap().id, Digest::of(b"a"));
        assert_eq!(index.find("r.io/x:2").unwrap().id, Digest::of(b"b"));
        // The same image again keeps what it was called before.
        index.insert(record("a", &["r.io/y:1"]));
        assert_eq!(index.images[&Digest::of(b"a")].tags().count(), 2);
        assert_eq!(index.untag("r.io/y:1"), Some(Digest::of(b"a")));
        assert_eq!(index.untag("r.io/y:1"), None);
        assert_eq!(index.untag("r.io/x:1"), Some(Digest::of(b"a")));
        assert!(!index.images.contains_key(&Digest::of(b"a")));
    }

    #[test]
    fn users_of_images() {
        for (user, uid, name) in [
            ("", None, ""),
            ("1000", Some(1000), ""),
            ("1000:2000", Some(1000), ""),
            ("www:www", None, "www"),
            ("0", Some(0), ""),
        ] {
            let message = ImageRecord {
                user: user.to_string(),
                ..record("a", &[])
            }
            .message();
            assert_eq!((message.uid.map(|u| u.value), message.username.as_str()), (uid, name));
        }
    }
}

//! How an unpacked layer says that something below it is gone.
//!
//! In archives a whiteout is a file `.wh.NAME`, and `.wh..wh..opq` hides all that is below in its directory
//! (opencontainers/image-spec, layer.md). Overlayfs wants a character device 0:0 and an extended attribute instead. Where
//! the store's file system can have those, layers are kept so and can be mounted as they are; where it cannot (the
//! store lies on an overlayfs itself, or we are not root), the names stay as in the archive and root file systems are
//! copies.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, XattrFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::tree::TreeDir;

const OPAQUE_ATTRIBUTE: &str = "trusted.overlay.opaque";
const PREFIX: &[u8] = b".wh.";
const META_PREFIX: &[u8] = b".wh..wh.";
const OPAQUE_NAME: &[u8] = b".wh..wh..opq";

/// The form that the layers of a store have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Whiteouts {
    /// For overlayfs: devices and attributes.
    Overlay,
    /// As in the archive: by name. Such layers cannot be mounted, only copied.
    Names,
}

/// What a name in an archive means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning<'a> {
    Plain,
    /// What has this name below is gone.
    Whiteout(&'a [u8]),
    /// All that is below in this directory is gone.
    Opaque,
    /// Notes of AUFS to itself: nothing for us.
    Metadata,
    Invalid,
}

pub(crate) fn meaning(name: &[u8]) -> Meaning<'_> {
    if name == OPAQUE_NAME {
        return Meaning::Opaque;
    }
    if name.starts_with(META_PREFIX) {
        return Meaning::Metadata;
    }
    match name.strip_prefix(PREFIX) {
        None => Meaning::Plain,
        Some(b"" | b"." | b"..") => Meaning::Invalid,
        Some(hidden) => Meaning::Whiteout(hidden),
    }
}

impl Whiteouts {
    /// Which form a directory can have: tried out with a whiteout and an attribute that are removed again.
    pub fn supported_in(dir: &Path) -> Whiteouts {
        match try_overlay(dir) {
            Ok(()) => Whiteouts::Overlay,
            Err(_) => Whiteouts::Names,
        }
    }

    /// Hides what layers below have under this name.
    pub fn hide(self, dir: &TreeDir, name: &[u8]) -> io::Result<()> {
        match self {
            Whiteouts::Names => create_empty(dir, &[PREFIX, name].concat()),
            Whiteouts::Overlay => match dir.stat(name)? {
                None => make_device(dir, name),
                // The layer has something of this name itself: a whiteout concerns what is below only.
                Some(stat) if is_directory(&stat) => self.hide_all(&dir.enter(name)?),
                Some(_) => Ok(()),
            },
        }
    }

    /// Hides all that layers below have in this directory.
    pub fn hide_all(self, dir: &TreeDir) -> io::Result<()> {
        match self {
            Whiteouts::Names => create_empty(dir, OPAQUE_NAME),
            Whiteouts::Overlay => Ok(rustix::fs::fsetxattr(dir, OPAQUE_ATTRIBUTE, b"y", XattrFlags::empty())?),
        }
    }

    /// What a name in an unpacked layer means.
    pub fn meaning_of<'a>(self, name: &'a [u8], stat: &Stat) -> Meaning<'a> {
        match self {
            Whiteouts::Names => meaning(name),
            Whiteouts::Overlay if is_whiteout_device(stat) => Meaning::Whiteout(name),
            Whiteouts::Overlay => Meaning::Plain,
        }
    }

    pub fn is_opaque(self, dir: &TreeDir) -> io::Result<bool> {
        match self {
            Whiteouts::Names => Ok(dir.stat(OPAQUE_NAME)?.is_some()),
            Whiteouts::Overlay => match rustix::fs::fgetxattr(dir, OPAQUE_ATTRIBUTE, &mut [0u8; 8][..]) {
                Ok(_) => Ok(true),
                Err(Errno::NODATA | Errno::NOTSUP) => Ok(false),
                Err(e) => Err(e.into()),
            },
        }
    }
}

pub(crate) fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

pub(crate) fn is_whiteout_device(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

fn make_device(dir: impl AsFd, name: &[u8]) -> io::Result<()> {
    Ok(rustix::fs::mknodat(
        dir,
        name,
        FileType::CharacterDevice,
        Mode::empty(),
        0,
    )?)
}

fn create_empty(dir: &TreeDir, name: &[u8]) -> io::Result<()> {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o600))?;
    Ok(())
}

fn try_overlay(dir: &Path) -> io::Result<()> {
    let name = format!("whiteout-{}", std::process::id());
    let dir = std::fs::File::open(dir)?;
    let device = make_device(&dir, name.as_bytes());
    let seen = rustix::fs::statat(&dir, name.as_str(), AtFlags::SYMLINK_NOFOLLOW);
    let removed = rustix::fs::unlinkat(&dir, name.as_str(), AtFlags::empty());
    device?;
    removed?;
    // An overlayfs may make something else of it.
    if !is_whiteout_device(&seen?) {
        return Err(Errno::NOTSUP.into());
    }
    rustix::fs::fsetxattr(&dir, OPAQUE_ATTRIBUTE, b"y", XattrFlags::empty())?;
    Ok(rustix::fs::fremovexattr(&dir, OPAQUE_ATTRIBUTE)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_meanings() {
        for (name, what) in [
            ("a", Meaning::Plain),
            (".wh.a", Meaning::Whiteout(b"a")),
            (".wh..wh..opq", Meaning::Opaque),
            (".wh..wh.plnk", Meaning::Metadata),
            (".wh.", Meaning::Invalid),
            (".wh...", Meaning::Invalid),
            (".wh..", Meaning::Invalid),
            (".wh..a", Meaning::Whiteout(b".a")),
        ] {
            assert_eq!(meaning(name.as_bytes()), what, "{name}");
        }
    }
}

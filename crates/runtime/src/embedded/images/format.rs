//! Opening a store, or making it.

use std::io;
use std::path::Path;

use super::content::{Durability, Layout, read_json, write_json};
use super::index::ImageIndex;
use super::{ImageError, Result, Whiteouts};

/// What a store is like, decided when it is made.
#[derive(serde::Serialize, serde::Deserialize)]
struct StoreFormat {
    version: u32,
    whiteouts: Whiteouts,
}

const STORE_VERSION: u32 = 1;

pub(super) fn open_layout(root: &Path) -> Result<(Layout, Whiteouts)> {
    let failed = |source| ImageError::File {
        path: root.to_path_buf(),
        source,
    };
    let layout = Layout::create(root).map_err(failed)?;
    let lock = layout.lock().map_err(failed)?;
    let path = root.join("format.json");
    let format = match read_json::<StoreFormat>(&path).map_err(failed)? {
        Some(format) => format,
        None => {
            let format = StoreFormat {
                version: STORE_VERSION,
                whiteouts: Whiteouts::supported_in(&layout.layers()),
            };
            write_json(&path, &format, Durability::Machine).map_err(failed)?;
            format
        }
    };
    if format.version != STORE_VERSION {
        let message = format!("image store has version {}, expected {STORE_VERSION}", format.version);
        return Err(failed(io::Error::other(message)));
    }
    set_aside_if_damaged(&layout.index()).map_err(failed)?;
    layout.remove_abandoned(&lock).map_err(failed)?;
    Ok((layout, format.whiteouts))
}

/// An index that cannot be read would keep the node from starting, and all that it says can be pulled again.
fn set_aside_if_damaged(path: &Path) -> io::Result<()> {
    match read_json::<ImageIndex>(path) {
        Ok(_) => Ok(()),
        Err(err) if err.kind() == io::ErrorKind::InvalidData => {
            let aside = path.with_extension("damaged");
            tracing::error!(path = %path.display(), aside = %aside.display(), %err, "failed to read image index; starting with none");
            std::fs::rename(path, aside)
        }
        Err(err) => Err(err),
    }
}

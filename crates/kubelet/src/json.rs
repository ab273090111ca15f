//! Files of JSON.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

/// The old file or the new, whole; never half of one.
pub(crate) fn write(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let unfinished = path.with_extension("tmp");
    let mut file = File::create(&unfinished)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    file.sync_all()?;
    fs::rename(unfinished, path)
}

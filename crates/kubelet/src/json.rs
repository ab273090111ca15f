//! API objects to and from `Value`, by way of text: serde makes the code that reads or writes a type anew for each format,
//! and for types as large as a pod that is minutes of building and megabytes of binary. None of this is hot.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Result, Value};

pub(crate) fn to_value(object: &impl Serialize) -> Result<Value> {
    serde_json::from_slice(&serde_json::to_vec(object)?)
}

pub(crate) fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T> {
    serde_json::from_slice(&serde_json::to_vec(value)?)
}

/// The old file or the new, whole; never half of one.
pub(crate) fn write(path: &std::path::Path, value: &impl serde::Serialize) -> std::io::Result<()> {
    let unfinished = path.with_extension("tmp");
    let mut file = std::fs::File::create(&unfinished)?;
    std::io::Write::write_all(&mut file, &serde_json::to_vec(value)?)?;
    file.sync_all()?;
    std::fs::rename(unfinished, path)
}

//! The kinds of the storage group.

use serde_json::Value;

use crate::field::{Cursor, Problems};
use crate::kind::KindDef;
use crate::names;

pub mod csi_driver;
pub mod csi_node;
pub mod csi_storage_capacity;
pub mod storage_class;
pub mod volume_attachment;
pub mod volume_attributes_class;

pub const GROUP: &str = "storage.k8s.io";

pub const ALL: &[&KindDef] = &[
    &csi_driver::DEF,
    &csi_node::DEF,
    &csi_storage_capacity::DEF,
    &storage_class::DEF,
    &volume_attachment::DEF,
    &volume_attributes_class::DEF,
];

/// The name of a CSI driver wherever one stands: a domain name of at most 63 characters, case ignored.
pub fn validate_driver_name(c: &Cursor<'_>, p: &mut Problems) {
    if c.is_empty() {
        return p.required(c, "");
    }
    if c.len() > 63 {
        p.too_long(c, 63);
    }
    p.invalid_each(c, names::dns_subdomain(&c.str().to_lowercase()));
}

/// The provisioner of a class. The complaint shows it in lower case, as it is compared.
fn validate_provisioner(c: &Cursor<'_>, p: &mut Problems) {
    if c.is_empty() {
        return p.required(c, "");
    }
    let lower = c.str().to_lowercase();
    for message in names::qualified_name(&lower) {
        p.invalid_value(c.path(), &Value::from(lower.as_str()), message);
    }
}

/// The opaque parameters of a class: not too many, not too big, none without a name.
fn validate_parameters(c: &Cursor<'_>, p: &mut Problems) {
    const COUNT_MAX: usize = 512;
    const BYTES_MAX: usize = 256 << 10;
    if c.len() > COUNT_MAX {
        return p.too_long(c, COUNT_MAX);
    }
    if c.has_key("") {
        p.invalid_value(c.path(), &Value::from(""), "field can not be empty.");
    }
    if map_bytes(c) > BYTES_MAX {
        p.too_long(c, BYTES_MAX);
    }
}

/// The bytes in all keys and values of a string map.
fn map_bytes(c: &Cursor<'_>) -> usize {
    c.entries().map(|(key, value)| key.len() + value.len()).sum()
}

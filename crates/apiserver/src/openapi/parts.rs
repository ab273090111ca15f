//! Parts of a Swagger document from elsewhere, in protobuf: appended to a whole document they are added to it.

use serde_json::{Map, Value};

use super::gnostic::{self, Kind};
use super::gnostic_v2;

/// Paths and definitions, as fields of the document.
pub(crate) fn swagger_part(paths: &Map<String, Value>, definitions: &Map<String, Value>) -> Vec<u8> {
    let (mut inner_paths, mut inner_definitions) = (vec![], vec![]);
    for (name, item) in paths {
        let kind = Kind::Message(&gnostic_v2::PATH_ITEM);
        gnostic::named(&mut inner_paths, gnostic_v2::PATH, name, kind, item);
    }
    for (name, definition) in definitions {
        let kind = Kind::Message(&gnostic_v2::SCHEMA);
        gnostic::named(&mut inner_definitions, gnostic_v2::DEFINITION, name, kind, definition);
    }
    let mut out = vec![];
    for (tag, content) in [
        (gnostic_v2::PATHS, inner_paths),
        (gnostic_v2::DEFINITIONS, inner_definitions),
    ] {
        gnostic::write(&mut out, tag, &[&content]).expect("writing to memory does not fail");
    }
    out
}

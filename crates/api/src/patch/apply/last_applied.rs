//! The way from client-side to server-side apply. `kubectl apply` used to note what it applied in an annotation; once the
//! same user applies server-side, differences from that note are not conflicts, and the note is kept up to date.

use serde_json::Value;

use super::ObjectType;
use super::check;
use super::set::{self, Set};
use super::shape::Shape;
use super::walk;

pub(super) const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The manager to which this applies.
pub(super) const KUBECTL: &str = "kubectl";
/// All annotations of an object together may not be larger.
const MAX_ANNOTATION_BYTES: usize = 256 * 1024;

fn annotation(object: &Value) -> Option<&str> {
    let text = object.get("metadata")?.get("annotations")?.get(ANNOTATION)?.as_str()?;
    Some(text).filter(|t| !t.is_empty())
}

/// The fields that the note has with the values the object has: they are the user's own, whoever set them last.
pub(super) fn allowed_conflicts(live: &Value, ty: ObjectType<'_>, api_version: &str) -> Option<Set> {
    let noted: Value = serde_json::from_str(annotation(live)?).ok()?;
    if noted.get("apiVersion")?.as_str()? != api_version || check::problems(&noted, ty).is_some() {
        return None;
    }
    let shape = Shape::of_object(ty);
    let mut fields = walk::fields_of(&noted, shape);
    let diff = walk::compare(Some(&noted), live, shape);
    set::subtract(&mut fields, &diff.changed);
    set::subtract(&mut fields, &diff.removed);
    Some(fields)
}

/// Writes down what was applied, if there is a note already. A note that does not fit is dropped.
pub(super) fn note(object: &mut Value, applied: &Value) {
    if annotation(object).is_none() {
        return;
    }
    let mut applied = applied.clone();
    if let Some(annotations) = applied
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    {
        annotations.remove(ANNOTATION);
    }
    // As Go writes JSON: nothing that could be taken for HTML, and a line's end.
    let text = applied
        .to_string()
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        + "\n";
    let Some(annotations) = object
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut)
    else {
        return;
    };
    annotations.insert(ANNOTATION.into(), text.into());
    let size: usize = annotations
        .iter()
        .map(|(k, v)| k.len() + v.as_str().map_or(0, str::len))
        .sum();
    if size > MAX_ANNOTATION_BYTES {
        annotations.remove(ANNOTATION);
    }
}

//! Strategic merge patch: a merge patch that knows from the schema which lists merge and by which key, and whose
//! directives say what plain merging cannot: `$patch`, `$retainKeys`, `$setElementOrder/…`, `$deleteFromPrimitiveList/…`.
//!
//! Upstream: apimachinery/pkg/util/strategicpatch (v1.36), the part that the API server runs.

use std::collections::HashSet;

use serde_json::{Map, Value};

use self::list::Merge;
use super::PatchError;
use super::go_format::{GoFormatted, GoFormattedMap, go_type, json_kind};
use super::merge::drop_nulls;
use crate::schema::json_syntax_error;
use crate::schema::{Field, Ty, TypeRef, schema};

mod list;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const ELEMENT_ORDER: &str = "$setElementOrder";
const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList";

type Object = Map<String, Value>;

/// Reads a patch from a request body.
pub fn decode(patch: &[u8]) -> Result<Value, PatchError> {
    if let Some(why) = json_syntax_error(patch) {
        return Err(PatchError::Malformed(why));
    }
    match serde_json::from_slice(patch) {
        Ok(patch @ Value::Object(_)) => Ok(patch),
        Ok(Value::Null) => Ok(Value::Object(Map::new())),
        Ok(other) => Err(PatchError::Malformed(format!(
            "json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
            json_kind(&other)
        ))),
        Err(why) => Err(PatchError::Malformed(why.to_string())),
    }
}

/// Applies a patch to an object of a type. If it fails, the object may be half changed: work on a copy.
pub fn apply(target: &mut Value, patch: Value, ty: TypeRef) -> Result<(), PatchError> {
    let (Value::Object(target), Value::Object(patch)) = (target, patch) else {
        return Err(PatchError::Malformed("invalid JSON document".into()));
    };
    let merged = merge_map(std::mem::take(target), patch, MergeType::Struct(ty))?;
    *target = merged;
    Ok(())
}

/// What the schema knows of the map or list element being merged.
#[derive(Clone, Copy)]
enum MergeType {
    Struct(TypeRef),
    /// Not a struct, so nothing is known of what lies below: the kind of Go type it is.
    Other(&'static str),
}

impl MergeType {
    fn of(ty: &Ty) -> MergeType {
        match ty {
            Ty::Struct(r) => MergeType::Struct(*r),
            Ty::Map(_) => MergeType::Other("map"),
            Ty::List(_) | Ty::Items(_) => MergeType::Other("slice"),
            _ => MergeType::Other("struct"),
        }
    }

    fn name(self) -> &'static str {
        match self {
            MergeType::Struct(_) => "struct",
            MergeType::Other(kind) => kind,
        }
    }

    fn field(self, name: &str) -> Result<&'static Field, PatchError> {
        let r = match self {
            MergeType::Struct(r) => r,
            MergeType::Other(kind) => {
                return Err(PatchError::Failed(format!(
                    "merging an object in json but data type is not struct, instead is: {kind}"
                )));
            }
        };
        let ty = schema().ty(r);
        ty.field(name).ok_or_else(|| {
            let struct_name = ty.short_name();
            PatchError::Failed(format!(
                "unable to find api field in struct {struct_name} for the json field {name:?}"
            ))
        })
    }

    /// Maps merge, whatever the table says; the one exception is declared upstream with `patchStrategy:"replace"`.
    fn replaces_map(self, name: &str) -> bool {
        match self {
            MergeType::Struct(r) => name == "selector" && schema().ty(r).name == "policy/v1.PodDisruptionBudgetSpec",
            MergeType::Other(_) => false,
        }
    }

    /// How a list field merges.
    fn list(self, name: &str) -> Result<Merge, PatchError> {
        let field = self.field(name)?;
        let Some(element) = field.ty.item() else {
            return Err(PatchError::Failed(format!(
                "expected slice or array type, but got: {}",
                self.name()
            )));
        };
        Ok(Merge {
            merges: field.patch.merges(),
            key: field.merge_key,
            element: MergeType::of(element),
        })
    }
}

fn merge_map(mut original: Object, mut patch: Object, place: MergeType) -> Result<Object, PatchError> {
    if let Some(directive) = patch.remove(DIRECTIVE) {
        return match directive.as_str() {
            Some("replace") => Ok(patch),
            Some("delete") => Ok(Map::new()),
            _ => {
                let shown = GoFormatted(&directive).to_string();
                patch.insert(DIRECTIVE.into(), directive);
                Err(unknown_directive(&shown, &patch))
            }
        };
    }
    retain_keys(&mut original, &mut patch)?;
    merge_ordered_lists(&mut original, &mut patch, place)?;
    for (key, value) in patch {
        if key.starts_with(DELETE_FROM_LIST) {
            let name = directive_target(&key, DELETE_FROM_LIST)
                .ok_or_else(|| PatchError::Malformed("invalid patch format of primitive list".into()))?;
            delete_from_list(&mut original, name, value, place)?;
        } else {
            merge_member(&mut original, key, value, place)?;
        }
    }
    Ok(original)
}

fn merge_member(original: &mut Object, key: String, patch: Value, place: MergeType) -> Result<(), PatchError> {
    let merged = match (original.get_mut(&key), patch) {
        (_, Value::Null) => {
            original.remove(&key);
            return Ok(());
        }
        (Some(Value::Object(old)), Value::Object(new)) => {
            let field = place.field(&key)?;
            Some(Value::Object(if place.replaces_map(&key) {
                new
            } else {
                merge_map(std::mem::take(old), new, MergeType::of(&field.ty))?
            }))
        }
        (Some(Value::Array(old)), Value::Array(new)) => {
            let how = place.list(&key)?;
            Some(Value::Array(how.merge(std::mem::take(old), new)?))
        }
        (_, mut new) => {
            drop_nulls(&mut new);
            without_directives(new)
        }
    };
    match merged {
        Some(value) => original.insert(key, value),
        None => original.remove(&key),
    };
    Ok(())
}

fn delete_from_list(original: &mut Object, name: &str, patch: Value, place: MergeType) -> Result<(), PatchError> {
    match (original.get_mut(name), patch) {
        (_, Value::Null) => {
            original.remove(name);
        }
        (Some(Value::Array(old)), Value::Array(gone)) => {
            let how = place.list(name)?;
            *old = how.delete(std::mem::take(old), gone)?;
        }
        _ => {}
    }
    Ok(())
}

/// `$retainKeys`: keys it does not list go; the patch may set only keys that it lists.
fn retain_keys(original: &mut Object, patch: &mut Object) -> Result<(), PatchError> {
    let Some(retained) = patch.remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let malformed = || PatchError::Malformed("invalid patch format of retainKeys".into());
    let retained = retained.as_array().ok_or_else(malformed)?;
    let retained: HashSet<&str> = retained.iter().filter_map(Value::as_str).collect();
    let retains = |key: &str| retained.contains(key);
    let is_directive = |key: &str| key.starts_with(DELETE_FROM_LIST) || key.starts_with(ELEMENT_ORDER);
    if patch
        .iter()
        .any(|(k, v)| !v.is_null() && !is_directive(k) && !retains(k))
    {
        return Err(malformed());
    }
    original.retain(|k, _| retains(k));
    Ok(())
}

/// Merges the lists that a `$setElementOrder` speaks of, and takes both out of the patch.
fn merge_ordered_lists(original: &mut Object, patch: &mut Object, place: MergeType) -> Result<(), PatchError> {
    let directives: Vec<String> = patch.keys().filter(|k| k.starts_with(ELEMENT_ORDER)).cloned().collect();
    for directive in directives {
        let order = match patch.remove(&directive) {
            Some(Value::Array(order)) => order,
            other => return Err(wrong_type("[]interface {}", &other.unwrap_or_default())),
        };
        let name = directive_target(&directive, ELEMENT_ORDER).ok_or_else(bad_element_order)?;
        let old = list_at(original.remove(name))?;
        let new = list_at(patch.remove(name))?;
        let how = place.list(name)?;
        if let Some(new) = &new {
            how.check_order(new, &order)?;
        }
        let merged = match (old, new) {
            (None, None) => continue,
            (Some(old), None) => how.order(old.clone(), &order, &old)?,
            (None, Some(new)) => {
                let kept = new.into_iter().filter_map(without_directives).collect();
                how.order(kept, &order, &[])?
            }
            (Some(old), Some(new)) => {
                let merged = how.merge(old.clone(), new)?;
                how.order(merged, &order, &old)?
            }
        };
        original.insert(name.to_string(), Value::Array(merged));
    }
    Ok(())
}

fn list_at(value: Option<Value>) -> Result<Option<Vec<Value>>, PatchError> {
    match value {
        None => Ok(None),
        Some(Value::Array(list)) => Ok(Some(list)),
        Some(other) => Err(wrong_type("[]interface {}", &other)),
    }
}

/// The field in `$directive/field`.
fn directive_target<'a>(key: &'a str, directive: &str) -> Option<&'a str> {
    key.strip_prefix(directive)?.strip_prefix('/')
}

/// A value that is new to the object, without the parts that only direct a merge. None: it was all directive.
fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) if map.contains_key(DIRECTIVE) => None,
        Value::Object(map) => Some(Value::Object(
            map.into_iter()
                .filter_map(|(k, v)| Some((k, without_directives(v)?)))
                .collect(),
        )),
        Value::Array(list) => Some(Value::Array(list.into_iter().filter_map(without_directives).collect())),
        other => Some(other),
    }
}

fn unknown_directive(directive: &str, map: &Object) -> PatchError {
    PatchError::Failed(format!(
        "unknown patch type: {directive} in map: {}",
        GoFormattedMap(map)
    ))
}

fn wrong_type(wanted: &str, found: &Value) -> PatchError {
    PatchError::Failed(format!("expected a {wanted}, but received a {}", go_type(found)))
}

fn bad_element_order() -> PatchError {
    PatchError::Malformed("invalid patch format of setElementOrder list".into())
}

#[cfg(test)]
mod tests;

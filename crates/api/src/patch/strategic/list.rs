//! Lists in a strategic merge: by key where the elements are maps, by value where they are scalars; and the order that
//! comes out, which is the patch's for what it mentions, with the rest kept in place as well as that allows.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::{DIRECTIVE, MergeType, Object, merge_map, unknown_directive, wrong_type};
use crate::patch::PatchError;
use crate::patch::go_format::{GoFormatted, GoFormattedList, GoFormattedMap, go_type};

/// How a list field merges.
#[derive(Clone, Copy)]
pub(super) struct Merge {
    /// Else the patch's list replaces the old one.
    pub merges: bool,
    /// The field that tells elements apart, if they are maps.
    pub key: Option<&'static str>,
    pub element: MergeType,
}

impl Merge {
    pub(super) fn merge(self, old: Vec<Value>, patch: Vec<Value>) -> Result<Vec<Value>, PatchError> {
        if !self.merges {
            return Ok(patch);
        }
        if old.is_empty() && patch.is_empty() {
            return Ok(old);
        }
        if !elements_are_maps(&[&old, &patch])? {
            let mut merged = old.clone();
            merged.extend(patch.iter().cloned());
            dedup(&mut merged);
            return self.order(merged, &patch, &old);
        }
        let key = self.key.ok_or_else(|| {
            PatchError::Failed(format!(
                "cannot merge lists without merge key for {}",
                self.element.name()
            ))
        })?;
        let (old, patch) = follow_directives(old, patch, key)?;
        let mut merged = old.clone();
        let mut places = places(&merged, key)?;
        for element in &patch {
            let element = map(element)?;
            match places.entry(key_of(element, key)?.to_string()) {
                Entry::Occupied(at) => {
                    if let Value::Object(before) = &mut merged[*at.get()] {
                        *before = merge_map(std::mem::take(before), element.clone(), self.element)?;
                    }
                }
                Entry::Vacant(at) => {
                    at.insert(merged.len());
                    merged.push(Value::Object(element.clone()));
                }
            }
        }
        self.order(merged, &patch, &old)
    }

    /// `$deleteFromPrimitiveList`, whatever the list's own strategy.
    pub(super) fn delete(self, old: Vec<Value>, gone: Vec<Value>) -> Result<Vec<Value>, PatchError> {
        if old.is_empty() && gone.is_empty() {
            return Ok(old);
        }
        if elements_are_maps(&[&old, &gone])? {
            return Merge { merges: true, ..self }.merge(old, gone);
        }
        let gone: HashSet<String> = gone.iter().map(Value::to_string).collect();
        Ok(old.into_iter().filter(|v| !gone.contains(&v.to_string())).collect())
    }

    /// `$setElementOrder` must list every element of the patch, in the patch's order.
    pub(super) fn check_order(self, patch: &[Value], order: &[Value]) -> Result<(), PatchError> {
        if patch.is_empty() || order.is_empty() {
            return Ok(());
        }
        let mut ordered = order.iter();
        for element in patch {
            if self.key.is_some() && map(element)?.contains_key(DIRECTIVE) {
                continue;
            }
            loop {
                let Some(candidate) = ordered.next() else {
                    return Err(PatchError::Failed(format!(
                        "The order in patch list:\n{}\n doesn't match $setElementOrder list:\n{}\n",
                        GoFormattedList(patch),
                        GoFormattedList(order)
                    )));
                };
                if self.id(element)? == self.id(candidate)? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// What tells an element apart: the value of its key, or the scalar itself.
    fn id(self, element: &Value) -> Result<&Value, PatchError> {
        match self.key {
            Some(key) => key_of(map(element)?, key),
            None => Ok(element),
        }
    }

    /// Sorts `list`: what `order` lists in that order, the rest as in `live`, each placed before the first element that
    /// follows it in `live`.
    pub(super) fn order(self, list: Vec<Value>, order: &[Value], live: &[Value]) -> Result<Vec<Value>, PatchError> {
        let index = |within: &[Value]| -> Result<HashMap<String, usize>, PatchError> {
            let mut places = HashMap::new();
            for (i, element) in within.iter().enumerate() {
                places.entry(self.id(element)?.to_string()).or_insert(i);
            }
            Ok(places)
        };
        let (in_order, in_live) = (index(order)?, index(live)?);
        // Each element with its place in `order` and in `live`.
        let (mut listed, mut rest) = (vec![], vec![]);
        for element in list {
            let id = self.id(&element)?.to_string();
            let at_live = in_live.get(&id).copied();
            match in_order.get(&id) {
                Some(i) => listed.push((*i, at_live, element)),
                None => rest.push((at_live, element)),
            }
        }
        listed.sort_by_key(|(i, _, _)| *i);
        rest.sort_by_key(|(at_live, _)| at_live.unwrap_or(usize::MAX));

        let mut out = Vec::with_capacity(listed.len() + rest.len());
        let mut rest = rest.into_iter().peekable();
        for (_, at_live, element) in listed {
            while let Some((Some(other), _)) = rest.peek()
                && at_live.is_some_and(|at| *other < at)
            {
                out.extend(rest.next().map(|(_, v)| v));
            }
            out.push(element);
        }
        out.extend(rest.map(|(_, v)| v));
        Ok(out)
    }
}

/// Obeys the elements that carry a directive: the old list with the deleted elements gone, and the patch without them.
/// With a `replace` among them the patch's other elements are the whole list.
fn follow_directives(old: Vec<Value>, patch: Vec<Value>, key: &str) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let mut plain = Vec::with_capacity(patch.len());
    let mut replace = false;
    let mut gone = HashSet::new();
    for element in patch {
        let Some(directive) = element.get(DIRECTIVE) else {
            plain.push(element);
            continue;
        };
        let element = map(&element)?;
        match directive.as_str() {
            Some("delete") => {
                gone.insert(key_of(element, key)?.clone());
            }
            Some("replace") => replace = true,
            Some("merge") => {
                return Err(PatchError::Failed(
                    "merging lists cannot yet be specified in the patch".into(),
                ));
            }
            _ => return Err(unknown_directive(&GoFormatted(directive).to_string(), element)),
        }
    }
    if replace {
        return Ok((plain, vec![]));
    }
    let stays = |element: &Value| element.get(key).is_none_or(|id| !gone.contains(id));
    Ok((old.into_iter().filter(stays).collect(), plain))
}

/// Where the first element with each key is.
fn places(list: &[Value], key: &str) -> Result<HashMap<String, usize>, PatchError> {
    let mut places = HashMap::with_capacity(list.len());
    for (i, element) in list.iter().enumerate() {
        if let Some(id) = map(element)?.get(key) {
            places.entry(id.to_string()).or_insert(i);
        }
    }
    Ok(places)
}

fn map(value: &Value) -> Result<&Object, PatchError> {
    value
        .as_object()
        .ok_or_else(|| wrong_type("map[string]interface {}", value))
}

fn key_of<'a>(element: &'a Object, key: &str) -> Result<&'a Value, PatchError> {
    element.get(key).ok_or_else(|| {
        PatchError::Failed(format!(
            "map: {} does not contain declared merge key: {key}",
            GoFormattedMap(element)
        ))
    })
}

/// Whether the elements are maps; all must be of one type, and none a list.
fn elements_are_maps(lists: &[&[Value]]) -> Result<bool, PatchError> {
    let mut all = lists.iter().flat_map(|l| l.iter());
    let Some(first) = all.next() else {
        return Err(PatchError::Failed("no elements in any of the given slices".into()));
    };
    if first.is_array() {
        return Err(PatchError::Unprocessable("lists of lists are not supported".into()));
    }
    if all.any(|v| go_type(v) != go_type(first)) {
        let shown: Vec<String> = lists.iter().map(|l| GoFormattedList(l).to_string()).collect();
        return Err(PatchError::Failed(format!(
            "list element types are not identical: [{}]",
            shown.join(" ")
        )));
    }
    Ok(first.is_object())
}

fn dedup(list: &mut Vec<Value>) {
    let mut seen = HashSet::with_capacity(list.len());
    list.retain(|v| seen.insert(v.to_string()));
}

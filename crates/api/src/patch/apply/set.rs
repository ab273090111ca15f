//! Sets of field paths, kept in the very form they are stored in (`FieldsV1`): a tree of JSON maps whose keys are path
//! elements (`f:spec`, `k:{"name":"web"}`, `v:"x"`). So nothing is decoded or encoded on the way to and from an object.
//!
//! In a tree, `{}` under an element says that the element's path is in the set. An element whose path is in the set and
//! which has elements below it says so with a `.` among them. An element that is neither has no place in the tree.

use std::sync::LazyLock;

use serde_json::{Map, Value, map::Entry};

use super::element;
use crate::field::cut;

pub(super) type Set = Map<String, Value>;

/// The mark of a path that is in the set itself, beside those below it.
const SELF: &str = ".";

fn leaf() -> Value {
    Value::Object(Map::new())
}

fn is_member(node: &Set) -> bool {
    node.is_empty() || node.contains_key(SELF)
}

/// The node under an element. There are only maps in a tree; whatever else may have got in reads as an empty one.
fn node(value: &Value) -> &Set {
    static EMPTY: LazyLock<Set> = LazyLock::new(Set::new);
    value.as_object().unwrap_or(&EMPTY)
}

fn node_mut(value: &mut Value) -> &mut Set {
    if !value.is_object() {
        *value = leaf();
    }
    value.as_object_mut().expect("made a map just above")
}

/// Adds an element, or replaces what the set has of it: its path if `member`, and the paths below it.
pub(super) fn put(set: &mut Set, element: String, member: bool, mut below: Set) {
    if member {
        if !below.is_empty() {
            below.insert(SELF.into(), leaf());
        }
    } else if below.is_empty() {
        return;
    }
    set.insert(element, Value::Object(below));
}

/// Adds one element's path to a set that may know the element already.
pub(super) fn put_member(set: &mut Set, element: String) {
    match set.entry(element) {
        Entry::Vacant(at) => {
            at.insert(leaf());
        }
        Entry::Occupied(mut at) => {
            let at = node_mut(at.get_mut());
            if !at.is_empty() {
                at.insert(SELF.into(), leaf());
            }
        }
    }
}

/// The paths below an element.
pub(super) fn below<'a>(set: &'a Set, element: &str) -> Option<&'a Set> {
    set.get(element).map(node)
}

/// Whether the element's own path is in the set.
pub(super) fn has(set: &Set, element: &str) -> bool {
    set.get(element).is_some_and(|n| is_member(node(n)))
}

/// Whether a set of paths below something says anything but "itself".
pub(super) fn has_below(set: &Set) -> bool {
    set.keys().any(|k| k != SELF)
}

pub(super) fn union(set: &mut Set, other: Set) {
    for (element, theirs) in other {
        if element == SELF {
            continue;
        }
        match set.entry(element) {
            Entry::Vacant(at) => {
                at.insert(theirs);
            }
            Entry::Occupied(mut at) => {
                let ours = node_mut(at.get_mut());
                let member = is_member(ours) || is_member(node(&theirs));
                if let Value::Object(theirs) = theirs {
                    union(ours, theirs);
                }
                if member && !ours.is_empty() {
                    ours.insert(SELF.into(), leaf());
                }
            }
        }
    }
}

/// Removes the paths that are in the other set. A path is not removed with the one above it.
pub(super) fn subtract(set: &mut Set, other: &Set) {
    set.retain(|element, ours| {
        let Some(theirs) = other.get(element) else { return true };
        let (ours, theirs) = (node_mut(ours), node(theirs));
        let member = is_member(ours) && !is_member(theirs);
        ours.remove(SELF);
        subtract(ours, theirs);
        match (ours.is_empty(), member) {
            (true, member) => member,
            (false, true) => {
                ours.insert(SELF.into(), leaf());
                true
            }
            (false, false) => true,
        }
    });
}

/// The paths in both sets.
pub(super) fn intersection(a: &Set, b: &Set) -> Set {
    let mut both = Set::new();
    for (element, ours) in a {
        let Some(theirs) = b.get(element).filter(|_| element != SELF) else {
            continue;
        };
        let (ours, theirs) = (node(ours), node(theirs));
        let member = is_member(ours) && is_member(theirs);
        put(&mut both, element.clone(), member, intersection(ours, theirs));
    }
    both
}

/// Removes the path of a field, given by the names on the way to it, and all that lie below.
pub(super) fn remove_field(set: &mut Set, path: &[&str]) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    let key = element::field(first);
    if rest.is_empty() {
        set.remove(&key);
        return;
    }
    let Some(below) = set.get_mut(&key).map(node_mut) else {
        return;
    };
    let member = is_member(below);
    remove_field(below, rest);
    below.remove(SELF);
    if !below.is_empty() {
        if member {
            below.insert(SELF.into(), leaf());
        }
    } else if !member {
        set.remove(&key);
    }
}

/// All paths as people read them (`.spec.containers[name="web"].image`), those at one place before those below it.
/// No more than `most`, and huge ones cut.
pub(super) fn paths(set: &Set, most: usize) -> Vec<String> {
    let mut out = vec![];
    collect(set, &mut String::new(), &mut out, most);
    out
}

fn collect(set: &Set, prefix: &mut String, out: &mut Vec<String>, most: usize) {
    if out.len() >= most {
        return;
    }
    let here = prefix.len();
    let mut elements: Vec<(&String, &Set)> = set
        .iter()
        .filter(|(k, _)| *k != SELF)
        .map(|(k, v)| (k, node(v)))
        .collect();
    elements.sort_by(|(a, _), (b, _)| element::order(a, b));
    for (key, below) in &elements {
        if is_member(below) {
            element::show(key, prefix);
            out.push(cut(prefix.clone()));
            if out.len() >= most {
                return;
            }
            prefix.truncate(here);
        }
    }
    for (key, below) in &elements {
        element::show(key, prefix);
        collect(below, prefix, out, most);
        prefix.truncate(here);
    }
}

/// A set that a user sent, with its elements written the one way we write them. None if it is not a set. Elements of
/// unknown kinds are left out.
pub(super) fn canonical(sent: &Value) -> Option<Set> {
    let mut set = Set::new();
    for (key, value) in sent.as_object()? {
        if key == SELF {
            set.insert(SELF.into(), leaf());
        } else if let Some(element) = element::canonical(key)? {
            let below = canonical(value)?;
            let member = below.keys().all(|k| k == SELF) || below.contains_key(SELF);
            let mut only = Set::new();
            put(
                &mut only,
                element,
                member,
                below.into_iter().filter(|(k, _)| k != SELF).collect(),
            );
            union(&mut set, only);
        }
    }
    Some(set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;
    use std::collections::BTreeSet;

    fn set(value: Value) -> Set {
        match value {
            Value::Object(map) => map,
            _ => unreachable!(),
        }
    }

    #[test]
    fn the_parts_are_told_apart() {
        let a = set(json!({"f:a": {}, "f:b": {".": {}, "f:c": {}}, "f:d": {"f:e": {}, "f:f": {}}}));
        let b = set(json!({"f:b": {}, "f:d": {"f:e": {}}}));
        let mut difference = a.clone();
        subtract(&mut difference, &b);
        assert_eq!(
            Value::Object(difference),
            json!({"f:a": {}, "f:b": {"f:c": {}}, "f:d": {"f:f": {}}})
        );
        assert_eq!(
            Value::Object(intersection(&a, &b)),
            json!({"f:b": {}, "f:d": {"f:e": {}}})
        );
        assert_eq!(paths(&a, 100), [".a", ".b", ".b.c", ".d.e", ".d.f"]);
    }

    #[test]
    fn fields_are_removed_with_all_that_lies_below() {
        let all = json!({"f:m": {".": {}, "f:l": {".": {}, "f:x": {}}}, "f:s": {"f:y": {}}});
        let mut s = set(all.clone());
        remove_field(&mut s, &["m", "l"]);
        remove_field(&mut s, &["m", "none", "x"]);
        remove_field(&mut s, &["s"]);
        assert_eq!(Value::Object(s), json!({"f:m": {}}));
        let mut s = set(all);
        remove_field(&mut s, &["s", "y"]);
        assert_eq!(paths(&s, 100), [".m", ".m.l", ".m.l.x"]);
    }

    #[test]
    fn what_users_send_is_written_our_way() {
        let sent = json!({"f:a": {"k:{\"port\": 80, \"name\":\"x\"}": {}, "z:what": {}}, "f:b": {".": {}}});
        let expected = json!({"f:a": {"k:{\"name\":\"x\",\"port\":80}": {}}, "f:b": {}});
        assert_eq!(canonical(&sent).map(Value::Object), Some(expected));
        for broken in [
            json!(1),
            json!({"f": {}}),
            json!({"f:a": 1}),
            json!({"k:{": {}}),
            json!({"i:x": {}}),
        ] {
            assert_eq!(canonical(&broken), None, "{broken}");
        }
    }

    fn any_set() -> impl Strategy<Value = BTreeSet<Vec<&'static str>>> {
        prop::collection::btree_set(
            prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 1..4),
            0..8,
        )
    }

    fn tree(paths: &BTreeSet<Vec<&str>>) -> Set {
        let mut all = Set::new();
        for path in paths {
            let mut one = Set::new();
            for name in path.iter().rev() {
                one = Set::from_iter([(element::field(name), Value::Object(one))]);
            }
            union(&mut all, one);
        }
        all
    }

    fn texts(paths: impl IntoIterator<Item = Vec<&'static str>>) -> BTreeSet<String> {
        paths.into_iter().map(|p| format!(".{}", p.join("."))).collect()
    }

    proptest! {
        #[test]
        fn trees_behave_as_sets_of_paths(a in any_set(), b in any_set()) {
            let (ta, tb) = (tree(&a), tree(&b));
            prop_assert_eq!(paths(&ta, 100).into_iter().collect::<BTreeSet<_>>(), texts(a.clone()));
            let both: BTreeSet<_> = paths(&intersection(&ta, &tb), 100).into_iter().collect();
            prop_assert_eq!(both, texts(a.intersection(&b).cloned()));
            let mut rest = ta.clone();
            subtract(&mut rest, &tb);
            prop_assert_eq!(paths(&rest, 100).into_iter().collect::<BTreeSet<_>>(), texts(a.difference(&b).cloned()));
            let mut either = ta.clone();
            union(&mut either, tb);
            prop_assert_eq!(&either, &tree(&a.union(&b).cloned().collect()));
            prop_assert_eq!(canonical(&Value::Object(either.clone())), Some(either));
        }
    }
}

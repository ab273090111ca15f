//! JSON patch (RFC 6902) as Kubernetes applies it, which is laxer than the RFC in a few places clients rely on: an index
//! may be negative (from the end), `replace` of a map key that is not there adds it, and `test` for null passes where
//! nothing is. That is why this is not the json-patch crate.
//!
//! Operations work on each other's results, so a small patch can ask for much: `add` and `move` in turn nest ever deeper,
//! and moving or shifting a large list ten thousand times takes minutes. What is put anywhere is measured first, so that
//! nothing deeper than [`MAX_DEPTH`] ever comes into being (to drop such a value would already overflow the stack), and
//! the work of all operations together is bounded.
//!
//! Upstream: gopkg.in/evanphx/json-patch.v4 as used by apiserver's patch handler (v1.36).

use serde::Deserialize;
use serde_json::{Map, Value};

use super::PatchError;
use super::go_format::json_kind;
use crate::schema::{MAX_DEPTH, json_syntax_error};

/// The most operations one patch may have.
pub const MAX_OPERATIONS: usize = 10_000;
/// The most bytes (of JSON) that all `copy` operations of a patch may add.
pub const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;
/// The most values that all operations of a patch may look at or shift, in lists and below what they move.
const MAX_TOUCHED: usize = 64 * 1024 * 1024;

/// Whether a patch was not applied because one of its tests failed.
pub fn is_failed_test(error: &PatchError) -> bool {
    matches!(error, PatchError::Unprocessable(why) if why.ends_with(TEST_FAILED))
}

const TEST_FAILED: &str = "test failed";

/// Whether a patch has no operations.
pub fn is_empty(patch: &[u8]) -> Result<bool, PatchError> {
    Ok(decode(patch)?.is_empty())
}

/// Applies a patch. If an operation fails, those before it have been applied: work on a copy.
pub fn apply(target: &mut Value, patch: &[u8]) -> Result<(), PatchError> {
    let operations = decode(patch)?;
    let mut spent = Spent::default();
    for operation in operations {
        operation.apply(target, &mut spent)?;
    }
    Ok(())
}

/// What the operations so far have cost.
#[derive(Default)]
struct Spent {
    copied_bytes: usize,
    touched: usize,
}

impl Spent {
    fn touch(&mut self, values: usize) -> Result<(), Refused> {
        self.touched += values;
        if self.touched > MAX_TOUCHED {
            return Err(Refused::TooMuch);
        }
        Ok(())
    }

    /// Looks whether a value may stand below `above` lists and objects.
    fn measure(&mut self, value: &Value, above: usize) -> Result<(), Refused> {
        self.touch(1)?;
        let deeper = || match above < MAX_DEPTH as usize {
            true => Ok(above + 1),
            false => Err(Refused::TooDeep),
        };
        match value {
            Value::Array(list) => {
                let above = deeper()?;
                list.iter().try_for_each(|item| self.measure(item, above))
            }
            Value::Object(map) => {
                let above = deeper()?;
                map.values().try_for_each(|member| self.measure(member, above))
            }
            _ => Ok(()),
        }
    }
}

/// Why an operation is not carried out.
#[derive(Debug)]
enum Refused {
    Because(String),
    TooDeep,
    TooMuch,
}

impl From<String> for Refused {
    fn from(why: String) -> Refused {
        Refused::Because(why)
    }
}

impl From<Refused> for PatchError {
    fn from(refused: Refused) -> PatchError {
        match refused {
            Refused::Because(why) => PatchError::Unprocessable(why),
            Refused::TooDeep => PatchError::TooDeep,
            Refused::TooMuch => PatchError::TooLarge(format!(
                "The operations of the JSON patch move or compare more than {MAX_TOUCHED} values"
            )),
        }
    }
}

/// One step. Whatever is missing is only missed when the step is applied.
#[derive(Debug, Deserialize)]
struct Operation {
    #[serde(default)]
    op: Value,
    #[serde(default)]
    path: Value,
    #[serde(default)]
    from: Value,
    #[serde(default)]
    value: Value,
}

fn decode(patch: &[u8]) -> Result<Vec<Operation>, PatchError> {
    let malformed = |why: String| PatchError::Malformed(format!("error decoding patch: {why}"));
    let wrong_kind = |value: &Value, wanted: &str| {
        malformed(format!(
            "json: cannot unmarshal {} into Go value of type {wanted}",
            json_kind(value)
        ))
    };
    if let Some(why) = json_syntax_error(patch) {
        return Err(malformed(why));
    }
    let list = match serde_json::from_slice::<Value>(patch).map_err(|e| malformed(e.to_string()))? {
        Value::Array(list) => list,
        Value::Null => vec![],
        other => return Err(wrong_kind(&other, "[]handlers.jsonPatchOp")),
    };
    if list.len() > MAX_OPERATIONS {
        return Err(PatchError::TooLarge(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            list.len()
        )));
    }
    let mut operations = Vec::with_capacity(list.len());
    for item in list {
        if !item.is_object() {
            return Err(wrong_kind(&item, "handlers.jsonPatchOp"));
        }
        let operation = Operation::deserialize(item).map_err(|e| malformed(e.to_string()))?;
        let texts = [
            ("op", &operation.op),
            ("path", &operation.path),
            ("from", &operation.from),
        ];
        if let Some((name, value)) = texts.into_iter().find(|(_, v)| !v.is_string() && !v.is_null()) {
            return Err(malformed(format!(
                "json: cannot unmarshal {} into Go struct field jsonPatchOp.{name} of type string",
                json_kind(value)
            )));
        }
        operations.push(operation);
    }
    Ok(operations)
}

impl Operation {
    fn apply(self, target: &mut Value, spent: &mut Spent) -> Result<(), Refused> {
        match self.op.as_str().unwrap_or("unknown") {
            "add" => {
                let path = self.path("add")?.to_string();
                spent.measure(&self.value, levels(&path))?;
                let (at, key) = parent(target, &path)
                    .ok_or_else(|| format!("add operation does not apply: doc is missing path: {path:?}: {MISSING}"))?;
                add(at, &key, self.value, spent).map_err(|e| e.within(&format!("error in add for path: '{path}'")))
            }
            "remove" => {
                let path = self.path("remove")?;
                let (at, key) = parent(target, path).ok_or_else(|| {
                    format!("remove operation does not apply: doc is missing path: {path:?}: {MISSING}")
                })?;
                remove(at, &key, spent)
                    .map(drop)
                    .map_err(|e| e.within(&format!("error in remove for path: '{path}'")))
            }
            "replace" => {
                let path = self.path("replace")?.to_string();
                spent.measure(&self.value, levels(&path))?;
                Ok(replace(target, &path, self.value)?)
            }
            "move" => self.move_value(target, spent),
            "copy" => self.copy(target, spent),
            "test" => Ok(self.test(target)?),
            other => Err(format!("Unexpected kind: {other}").into()),
        }
    }

    fn path(&self, op: &str) -> Result<&str, String> {
        self.path
            .as_str()
            .ok_or_else(|| format!("{op} operation failed to decode path: {MISSING}"))
    }

    fn from(&self, op: &str) -> Result<&str, String> {
        self.from
            .as_str()
            .ok_or_else(|| format!("{op} operation failed to decode from: {MISSING}"))
    }

    fn move_value(&self, target: &mut Value, spent: &mut Spent) -> Result<(), Refused> {
        let from = self.from("move")?;
        let (at, key) = parent(target, from)
            .ok_or_else(|| format!("move operation does not apply: doc is missing from path: {from}: {MISSING}"))?;
        let value = remove(at, &key, spent).map_err(|e| e.within(&format!("error in move for path: '{key}'")))?;
        let path = self.path("move")?;
        spent.measure(&value, levels(path))?;
        let (at, key) = parent(target, path).ok_or_else(|| {
            format!("move operation does not apply: doc is missing destination path: {path}: {MISSING}")
        })?;
        add(at, &key, value, spent).map_err(|e| e.within(&format!("error in move for path: '{path}'")))
    }

    fn copy(&self, target: &mut Value, spent: &mut Spent) -> Result<(), Refused> {
        let from = self.from("copy")?;
        let (at, key) = parent(target, from)
            .ok_or_else(|| format!("copy operation does not apply: doc is missing from path: {from}: {MISSING}"))?;
        let value = get(at, &key).map_err(|e| format!("error in copy for from: '{from}': {e}"))?;
        let path = self.path("copy")?;
        if let Some(value) = value {
            spent.measure(value, levels(path))?;
        }
        let value = value.cloned().unwrap_or_default();
        spent.copied_bytes += value.to_string().len();
        if spent.copied_bytes > MAX_COPIED_BYTES {
            return Err(Refused::Because(format!(
                "Unable to complete the copy, the accumulated size increase of copy is {}, exceeding the limit \
                 {MAX_COPIED_BYTES}",
                spent.copied_bytes
            )));
        }
        let (at, key) = parent(target, path).ok_or_else(|| {
            format!("copy operation does not apply: doc is missing destination path: {path}: {MISSING}")
        })?;
        add(at, &key, value, spent).map_err(|e| e.within("error while adding value during copy"))
    }

    fn test(&self, target: &mut Value) -> Result<(), String> {
        let path = self.path("test")?;
        let found = if path.is_empty() {
            Some(&*target)
        } else {
            let (at, key) = parent(target, path)
                .ok_or_else(|| format!("test operation does not apply: is missing path: {path}: {MISSING}"))?;
            get(at, &key).map_err(|e| format!("error in test for path: '{path}': {e}"))?
        };
        if found.unwrap_or(&Value::Null) == &self.value {
            Ok(())
        } else {
            Err(format!("testing value {path} failed: {TEST_FAILED}"))
        }
    }
}

impl Refused {
    fn within(self, place: &str) -> Refused {
        match self {
            Refused::Because(why) => Refused::Because(format!("{place}: {why}")),
            other => other,
        }
    }
}

const MISSING: &str = "missing value";

/// How many lists and objects stand above the value that a pointer names.
fn levels(pointer: &str) -> usize {
    pointer.bytes().filter(|b| *b == b'/').count()
}

/// The container that a pointer's last token is looked up in, and that token.
fn parent<'a>(target: &'a mut Value, pointer: &str) -> Option<(&'a mut Value, String)> {
    let mut tokens = pointer.split('/').skip(1).map(unescape).peekable();
    let mut at = target;
    loop {
        let token = tokens.next()?;
        if tokens.peek().is_none() {
            return (at.is_object() || at.is_array()).then_some((at, token));
        }
        at = match at {
            Value::Object(map) => map.get_mut(&token)?,
            Value::Array(list) => {
                let i = index(&token, list.len()).ok()?;
                list.get_mut(i)?
            }
            _ => return None,
        };
    }
}

/// `~1` is a slash and `~0` a tilde, read from left to right in one pass.
fn unescape(token: &str) -> String {
    if !token.contains('~') {
        return token.to_string();
    }
    let mut out = String::with_capacity(token.len());
    let mut rest = token;
    while let Some(i) = rest.find('~') {
        out.push_str(&rest[..i]);
        let (character, width) = match rest.as_bytes().get(i + 1) {
            Some(b'1') => ('/', 2),
            Some(b'0') => ('~', 2),
            _ => ('~', 1),
        };
        out.push(character);
        rest = &rest[i + width..];
    }
    out + rest
}

/// An index below `len`; negative ones count from the end.
fn index(token: &str, len: usize) -> Result<usize, String> {
    let i: i64 = token
        .parse()
        .map_err(|_| format!("strconv.Atoi: parsing {token:?}: invalid syntax"))?;
    let at = if i < 0 { i.saturating_add(len as i64) } else { i };
    if (0..len as i64).contains(&at) {
        Ok(at as usize)
    } else {
        Err(format!("Unable to access invalid index: {i}: invalid index referenced"))
    }
}

fn get<'a>(at: &'a Value, key: &str) -> Result<Option<&'a Value>, String> {
    match at {
        Value::Object(map) => Ok(map.get(key)),
        Value::Array(list) => Ok(Some(&list[index(key, list.len())?])),
        _ => Ok(None),
    }
}

fn add(at: &mut Value, key: &str, value: Value, spent: &mut Spent) -> Result<(), Refused> {
    match at {
        Value::Object(map) => {
            map.insert(key.to_string(), value);
        }
        Value::Array(list) if key == "-" => list.push(value),
        Value::Array(list) => {
            if key.parse::<i64>().is_err() {
                return Err(Refused::Because(format!(
                    "value was not a proper array index: '{key}': strconv.Atoi: parsing {key:?}: invalid syntax"
                )));
            }
            let i = index(key, list.len() + 1)?;
            spent.touch(list.len() - i)?;
            list.insert(i, value);
        }
        _ => return Err(Refused::Because(MISSING.to_string())),
    }
    Ok(())
}

fn remove(at: &mut Value, key: &str, spent: &mut Spent) -> Result<Value, Refused> {
    match at {
        Value::Object(map) => map
            .remove(key)
            .ok_or_else(|| Refused::Because(format!("Unable to remove nonexistent key: {key}: {MISSING}"))),
        Value::Array(list) => {
            let i = index(key, list.len())?;
            spent.touch(list.len() - i)?;
            Ok(list.remove(i))
        }
        _ => Err(Refused::Because(MISSING.to_string())),
    }
}

fn replace(target: &mut Value, path: &str, value: Value) -> Result<(), String> {
    if path.is_empty() {
        // Null decodes to an empty document.
        *target = match value {
            Value::Object(_) | Value::Array(_) => value,
            Value::Null => Value::Object(Map::new()),
            _ => return Err("replace operation value must be object or array".into()),
        };
        return Ok(());
    }
    let (at, key) = parent(target, path)
        .ok_or_else(|| format!("replace operation does not apply: doc is missing path: {path}: {MISSING}"))?;
    match at {
        Value::Object(map) => {
            map.insert(key, value);
        }
        Value::Array(list) => {
            let i = index(&key, list.len())
                .map_err(|_| format!("replace operation does not apply: doc is missing key: {path}: {MISSING}"))?;
            list[i] = value;
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn patched(target: Value, patch: Value) -> Result<Value, PatchError> {
        let mut target = target;
        apply(&mut target, patch.to_string().as_bytes())?;
        Ok(target)
    }

    #[test]
    fn operations_do_what_they_say() {
        let cases = [
            (
                json!([{"op": "add", "path": "/b", "value": 2}]),
                json!({"a": [1, 2], "b": 2}),
            ),
            (
                json!([{"op": "add", "path": "/a/0", "value": 0}]),
                json!({"a": [0, 1, 2]}),
            ),
            (
                json!([{"op": "add", "path": "/a/-", "value": 3}]),
                json!({"a": [1, 2, 3]}),
            ),
            (
                json!([{"op": "add", "path": "/a/-1", "value": 3}]),
                json!({"a": [1, 2, 3]}),
            ),
            (
                json!([{"op": "add", "path": "/a/2", "value": 3}]),
                json!({"a": [1, 2, 3]}),
            ),
            (json!([{"op": "remove", "path": "/a/1"}]), json!({"a": [1]})),
            (json!([{"op": "remove", "path": "/a/-2"}]), json!({"a": [2]})),
            (
                json!([{"op": "replace", "path": "/a/0", "value": {"x": 1}}]),
                json!({"a": [{"x": 1}, 2]}),
            ),
            (
                json!([{"op": "replace", "path": "/new", "value": 1}]),
                json!({"a": [1, 2], "new": 1}),
            ),
            (
                json!([{"op": "replace", "path": "", "value": {"x": 1}}]),
                json!({"x": 1}),
            ),
            (
                json!([{"op": "move", "from": "/a", "path": "/b"}]),
                json!({"b": [1, 2]}),
            ),
            (
                json!([{"op": "copy", "from": "/a/0", "path": "/b"}]),
                json!({"a": [1, 2], "b": 1}),
            ),
            (
                json!([{"op": "test", "path": "/a/0", "value": 1}]),
                json!({"a": [1, 2]}),
            ),
            (
                json!([{"op": "test", "path": "/none", "value": null}]),
                json!({"a": [1, 2]}),
            ),
            (
                json!([{"op": "test", "path": "", "value": {"a": [1, 2]}}]),
                json!({"a": [1, 2]}),
            ),
            (
                json!([{"op": "add", "path": "/x~1y~0z~01", "value": 1}]),
                json!({"a": [1, 2], "x/y~z~1": 1}),
            ),
            (json!([]), json!({"a": [1, 2]})),
        ];
        for (patch, expected) in cases {
            assert_eq!(patched(json!({"a": [1, 2]}), patch.clone()), Ok(expected), "{patch}");
        }
    }

    #[test]
    fn failures_name_the_operation() {
        let cases = [
            (
                json!([{"op": "add", "path": "/x/y", "value": 2}]),
                "add operation does not apply: doc is missing path: \"/x/y\": missing value",
            ),
            (
                json!([{"op": "add", "path": "", "value": {}}]),
                "add operation does not apply: doc is missing path: \"\": missing value",
            ),
            (
                json!([{"op": "add", "path": "/a/9", "value": 2}]),
                "error in add for path: '/a/9': Unable to access invalid index: 9: invalid index referenced",
            ),
            (
                json!([{"op": "remove", "path": "/x"}]),
                "error in remove for path: '/x': Unable to remove nonexistent key: x: missing value",
            ),
            (
                json!([{"op": "replace", "path": "/a/9", "value": 1}]),
                "replace operation does not apply: doc is missing key: /a/9: missing value",
            ),
            (
                json!([{"op": "test", "path": "/a/0", "value": 2}]),
                "testing value /a/0 failed: test failed",
            ),
            (
                json!([{"op": "test", "path": "/a/0/b", "value": 2}]),
                "test operation does not apply: is missing path: /a/0/b: missing value",
            ),
            (
                json!([{"op": "move", "from": "/x", "path": "/y"}]),
                "error in move for path: 'x': Unable to remove nonexistent key: x: missing value",
            ),
            (json!([{"op": "frob", "path": "/a"}]), "Unexpected kind: frob"),
            (json!([{"path": "/a"}]), "Unexpected kind: unknown"),
            (
                json!([{"op": "remove"}]),
                "remove operation failed to decode path: missing value",
            ),
        ];
        for (patch, expected) in cases {
            let error = patched(json!({"a": [1, 2]}), patch.clone()).unwrap_err();
            assert_eq!(error, PatchError::Unprocessable(expected.into()), "{patch}");
            let status = error.status();
            assert_eq!((status.code, &*status.reason), (422, "Invalid"));
            assert_eq!(
                status.message,
                "the server rejected our request due to an error in our request"
            );
        }
    }

    #[test]
    fn malformed_and_oversized_patches_are_refused() {
        for (patch, expected) in [
            (
                r#"{"op": "add"}"#,
                "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp",
            ),
            (
                "[3]",
                "error decoding patch: json: cannot unmarshal number into Go value of type handlers.jsonPatchOp",
            ),
            (
                r#"[{"op": 1}]"#,
                "error decoding patch: json: cannot unmarshal number into Go struct field jsonPatchOp.op of type string",
            ),
        ] {
            let error = apply(&mut json!({}), patch.as_bytes()).unwrap_err();
            assert_eq!(error.to_string(), expected);
            assert_eq!(error.status().code, 400);
        }
        assert_eq!(apply(&mut json!({}), b"[{").unwrap_err().status().code, 400);

        let many = vec![json!({"op": "add", "path": "/a", "value": 1}); MAX_OPERATIONS + 1];
        let error = patched(json!({}), many.into()).unwrap_err();
        assert_eq!(error.status().code, 413);

        // Doubling a list a few dozen times must stop early.
        let mut doubling = vec![json!({"op": "add", "path": "/a", "value": ["some text"]})];
        doubling.resize(60, json!({"op": "copy", "from": "/a", "path": "/a/-"}));
        assert_eq!(patched(json!({}), doubling.into()).unwrap_err().status().code, 422);
    }

    /// Pairs of operations that put the object into itself, one level deeper each time.
    fn nesting(pairs: usize, list: bool) -> Value {
        let (empty, inner) = if list { (json!([]), "/b/-") } else { (json!({}), "/b/a") };
        let step = |_| {
            [
                json!({"op": "add", "path": "/b", "value": empty}),
                json!({"op": "move", "from": "/a", "path": inner}),
                json!({"op": "move", "from": "/b", "path": "/a"}),
            ]
        };
        (0..pairs).flat_map(step).collect()
    }

    #[test]
    fn no_patch_nests_deeper_than_an_object_may() {
        for list in [false, true] {
            let error = patched(json!({"a": {}}), nesting(3000, list)).unwrap_err();
            assert_eq!(error, PatchError::TooDeep);
            let status = error.status();
            assert_eq!((status.code, &*status.reason), (422, "Invalid"));
            assert!(
                status.message.contains("exceeded max depth of 120"),
                "{}",
                status.message
            );
            // As deep as an object may be is fine.
            let deepest = MAX_DEPTH as usize - 2;
            assert!(patched(json!({"a": {}}), nesting(deepest, list)).is_ok());
            let error = patched(json!({"a": {}}), nesting(deepest + 1, list)).unwrap_err();
            assert_eq!(error, PatchError::TooDeep);
        }
    }

    #[test]
    fn copies_and_values_of_the_patch_count_as_deep_as_they_land() {
        let deep = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!([inner]));
        let at = |op: &str| json!([{"op": op, "path": "/a/b/c", "value": deep(118), "from": "/d"}]);
        let target = || json!({"a": {"b": {}}, "d": deep(118)});
        for op in ["add", "replace", "copy", "move"] {
            assert_eq!(patched(target(), at(op)), Err(PatchError::TooDeep), "{op}");
        }
        let whole = json!([{"op": "replace", "path": "", "value": deep(121)}]);
        assert_eq!(patched(target(), whole), Err(PatchError::TooDeep));
    }

    #[test]
    fn the_work_of_a_patch_is_bounded() {
        let long = Value::from(vec![0; 100_000]);
        let mut shifting = vec![json!({"op": "add", "path": "/a", "value": long})];
        shifting.resize(MAX_OPERATIONS, json!({"op": "add", "path": "/a/0", "value": 0}));
        assert_eq!(patched(json!({}), shifting.into()).unwrap_err().status().code, 413);
        let mut moving = vec![json!({"op": "add", "path": "/a", "value": long})];
        for _ in 0..1000 {
            moving.push(json!({"op": "move", "from": "/a", "path": "/b"}));
            moving.push(json!({"op": "move", "from": "/b", "path": "/a"}));
        }
        assert_eq!(patched(json!({}), moving.into()).unwrap_err().status().code, 413);
    }

    pub(super) fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-3i64..5).prop_map(Value::from),
            "[ab/~0-]{0,3}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[ab0-]{0,2}", inner, 0..4)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    fn any_operation() -> impl Strategy<Value = Value> {
        let op = prop::sample::select(vec!["add", "remove", "replace", "move", "copy", "test", "frob"]);
        let pointer = "(/[ab0-9~-]{0,2}){0,3}";
        (op, pointer, pointer, any_json())
            .prop_map(|(op, path, from, value)| json!({"op": op, "path": path, "from": from, "value": value}))
    }

    proptest! {
        #[test]
        fn no_patch_panics(target in any_json(), patch in prop_oneof![
            any_json(),
            prop::collection::vec(any_operation(), 0..6).prop_map(Value::from),
        ]) {
            let _ = patched(target, patch);
        }

        #[test]
        fn no_bytes_panic(patch in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = apply(&mut json!({"a": 1}), &patch);
        }

        #[test]
        fn what_was_added_tests_equal_and_can_be_removed(target in any_json(), value in any_json()) {
            prop_assume!(target.is_object() && target.get("new").is_none());
            let steps = json!([
                {"op": "add", "path": "/new", "value": value},
                {"op": "test", "path": "/new", "value": value},
                {"op": "remove", "path": "/new"},
            ]);
            prop_assert_eq!(patched(target.clone(), steps), Ok(target));
        }
    }
}

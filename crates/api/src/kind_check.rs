//! Asking a row of the table what it says about an object, in the tests of the kinds.

use serde_json::Value;

use crate::field::{Cursor, Problem, Problems};
use crate::kind::KindDef;
use crate::schema::{from_value, schema};

/// `base` with `patch` merged in (null removes).
pub(crate) fn merged(base: &Value, patch: &Value) -> Value {
    let mut object = base.clone();
    json_patch::merge(&mut object, patch);
    object
}

/// `object` with the kind's defaults; panics if filling them in twice gives something else.
pub(crate) fn defaulted(def: &KindDef, mut object: Value) -> Value {
    (def.default)(&mut object);
    let once = object.clone();
    (def.default)(&mut object);
    assert_eq!(object, once, "defaults of {} are not idempotent", def.kind);
    object
}

/// `object` as validators see it: decoded, with defaults. Panics if it is not of the kind's type.
pub(crate) fn read(def: &KindDef, object: Value) -> Value {
    let ty = schema()
        .get(def.schema)
        .unwrap_or_else(|| panic!("no type {}", def.schema));
    let decoded = from_value(object, ty).unwrap_or_else(|e| panic!("{}: {e}", def.kind));
    assert_eq!(decoded.problems, Vec::<String>::new(), "{}", def.kind);
    defaulted(def, decoded.value)
}

fn texts(problems: Problems) -> Vec<String> {
    problems.0.iter().map(Problem::to_string).collect()
}

pub(crate) fn create_problems(def: &KindDef, object: Value) -> Vec<String> {
    let object = read(def, object);
    let mut p = Problems::default();
    (def.validate)(&Cursor::root(&object), &mut p);
    texts(p)
}

/// What an update through the main endpoint is told.
pub(crate) fn update_problems(def: &KindDef, new: Value, old: Value) -> Vec<String> {
    let (mut new, old) = (read(def, new), read(def, old));
    (def.prepare_update)(&mut new, &old);
    let mut p = Problems::default();
    (def.validate)(&Cursor::root(&new), &mut p);
    (def.validate_update)(&Cursor::root(&new), &Cursor::root(&old), &mut p);
    texts(p)
}

/// What an update through the status endpoint is told.
pub(crate) fn status_problems(def: &KindDef, new: Value, old: Value) -> Vec<String> {
    let (mut new, old) = (read(def, new), read(def, old));
    (def.prepare_status)(&mut new, &old);
    let mut p = Problems::default();
    (def.validate_status)(&Cursor::root(&new), &Cursor::root(&old), &mut p);
    texts(p)
}

/// `base` is fine; with each patch, creating it is refused with just the given message.
pub(crate) fn refuses(def: &KindDef, base: &Value, cases: &[(Value, &str)]) {
    assert_eq!(
        create_problems(def, base.clone()),
        Vec::<String>::new(),
        "the base {}",
        def.kind
    );
    for (patch, wanted) in cases {
        assert_eq!(
            create_problems(def, merged(base, patch)),
            [*wanted],
            "{} with {patch}",
            def.kind
        );
    }
}

/// `base` may be written back as it is; with each patch the update is refused with just the given message.
pub(crate) fn refuses_update(def: &KindDef, base: &Value, cases: &[(Value, &str)]) {
    assert_eq!(
        update_problems(def, base.clone(), base.clone()),
        Vec::<String>::new(),
        "{}",
        def.kind
    );
    for (patch, wanted) in cases {
        assert_eq!(
            update_problems(def, merged(base, patch), base.clone()),
            [*wanted],
            "{} updated with {patch}",
            def.kind
        );
    }
}

/// The cells of a row as text, joined by `|`.
pub(crate) fn row(def: &KindDef, object: &Value) -> String {
    let now = "2026-01-01T00:10:00Z".parse().unwrap();
    let cells = (def.cells)(object, now);
    assert_eq!(cells.len(), def.columns.len(), "{}: one cell per column", def.kind);
    let texts: Vec<String> = cells
        .iter()
        .map(|c| c.as_str().map_or_else(|| c.to_string(), str::to_string))
        .collect();
    texts.join("|")
}

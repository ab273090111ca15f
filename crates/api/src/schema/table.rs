//! Reads the table's text. `tools/schema.py` has its grammar.

use super::names::Names;
use super::{Field, ListType, PatchStrategy, Presence, Schema, Ty, Type, TypeRef, Wire};

pub(super) fn read(text: &'static str) -> Schema {
    // Types refer to one another, so all names come first. They are sorted.
    let names: Vec<&str> = text.lines().filter(|l| !l.starts_with(' ')).map(first_word).collect();
    let refer = |name: &str| {
        let i = names
            .binary_search(&name)
            .unwrap_or_else(|_| panic!("the table has no type {name}"));
        TypeRef(i as u16)
    };
    let mut types: Vec<Type> = Vec::with_capacity(names.len());
    for line in text.lines() {
        match line.strip_prefix(' ') {
            None => types.push(Type {
                name: first_word(line),
                fields: vec![],
                atomic: line.ends_with(" atomic"),
                names: Names::default(),
                always: vec![],
                wire: vec![],
            }),
            Some(line) => {
                let owner = types.last_mut().expect("a type's line stands before its fields");
                owner
                    .fields
                    .push(field(line, &refer).unwrap_or_else(|| panic!("the table's line {line:?}")));
            }
        }
    }
    for t in &mut types {
        for (order, field) in t.fields.iter_mut().enumerate() {
            field.order = order as u16;
        }
        t.fields.sort_by_key(|field| field.name);
        t.fields.shrink_to_fit();
        index(t);
    }
    Schema { types }
}

fn first_word(line: &'static str) -> &'static str {
    line.split(' ').next().unwrap_or(line)
}

fn index(t: &mut Type) {
    t.names = Names::new(t.fields.iter().map(|f| f.name));
    for (i, f) in t.fields.iter().enumerate() {
        let i = i as u16;
        if matches!(f.presence, Presence::Always | Presence::Nullable) {
            t.always.push(i);
        }
        if f.tag == 0 {
            continue;
        }
        let mut message = &mut t.wire;
        for tag in f.via.into_iter().filter(|n| *n != 0) {
            let at = message.iter().position(|w| w.0 == tag).unwrap_or_else(|| {
                message.push((tag, Wire::Inline(vec![])));
                message.len() - 1
            });
            let Wire::Inline(inner) = &mut message[at].1 else {
                panic!("number {tag} of {} is both a field and a message", t.name)
            };
            message = inner;
        }
        message.push((f.tag, Wire::Field(i)));
    }
    sort(&mut t.wire);
}

fn sort(message: &mut [(u32, Wire)]) {
    message.sort_by_key(|w| w.0);
    for (_, wire) in message {
        if let Wire::Inline(inner) = wire {
            sort(inner);
        }
    }
}

fn field(line: &'static str, refer: &dyn Fn(&str) -> TypeRef) -> Option<Field> {
    let mut words = line.splitn(5, ' ');
    let name = words.next()?;
    let mut numbers = words.next()?.rsplit('/').map(|n| n.parse::<u32>().ok());
    let tag = numbers.next()??;
    let (inner, outer) = (numbers.next().unwrap_or(Some(0))?, numbers.next().unwrap_or(Some(0))?);
    let ty = ty(words.next()?, refer);
    let presence = words.next()?;
    let mut f = Field {
        name,
        order: 0,
        tag,
        via: if outer == 0 { [inner, 0] } else { [outer, inner] },
        ty,
        presence: match presence.as_bytes()[0] {
            b'o' => Presence::OmitEmpty,
            b'p' => Presence::Pointer,
            b'a' => Presence::Always,
            b'n' => Presence::Nullable,
            _ => return None,
        },
        required: presence.ends_with('r'),
        list: ListType::Atomic,
        map_atomic: false,
        struct_atomic: None,
        patch: PatchStrategy::Replace,
        merge_key: None,
        default: None,
    };
    for marker in words.next().unwrap_or("").split_terminator(' ') {
        mark(&mut f, marker)?;
    }
    Some(f)
}

fn mark(f: &mut Field, marker: &'static str) -> Option<()> {
    let (word, value) = marker.split_once('=')?;
    let (value_head, value_tail) = value.split_once(':').unwrap_or((value, ""));
    match (word, value_head) {
        ("list", "set") => f.list = ListType::Set,
        ("list", "map") => f.list = ListType::Map(value_tail.split(',').collect()),
        ("map", "atomic") => f.map_atomic = true,
        ("struct", _) => f.struct_atomic = Some(value == "atomic"),
        ("patch", strategy) => {
            f.patch = match strategy {
                "merge" => PatchStrategy::Merge,
                "retainKeys" => PatchStrategy::RetainKeys,
                "merge,retainKeys" => PatchStrategy::MergeRetainKeys,
                "replace" => PatchStrategy::Replace,
                _ => return None,
            };
            f.merge_key = (!value_tail.is_empty()).then_some(value_tail);
        }
        ("default", _) => f.default = Some(value),
        _ => return None,
    }
    Some(())
}

fn ty(text: &str, refer: &dyn Fn(&str) -> TypeRef) -> Ty {
    if let Some(item) = text.strip_prefix("[]") {
        return Ty::List(Box::new(ty(item, refer)));
    }
    if let Some(item) = text.strip_prefix("items[]") {
        return Ty::Items(Box::new(ty(item, refer)));
    }
    if let Some(value) = text.strip_prefix("{}") {
        return Ty::Map(Box::new(ty(value, refer)));
    }
    let props = || refer("apiextensions/v1.JSONSchemaProps");
    match text {
        "string" => Ty::String,
        "bytes" => Ty::Bytes,
        "bool" => Ty::Bool,
        "int32" => Ty::Int32,
        "int64" => Ty::Int64,
        "float64" => Ty::Float64,
        "Quantity" => Ty::Quantity,
        "IntOrString" => Ty::IntOrString,
        "Time" => Ty::Time,
        "MicroTime" => Ty::MicroTime,
        "Duration" => Ty::Duration,
        "RawExtension" | "FieldsV1" | "JSON" => Ty::Any,
        "SchemaOrBool" => Ty::SchemaOrBool(props()),
        "SchemaOrArray" => Ty::SchemaOrArray(props()),
        "SchemaOrStrings" => Ty::SchemaOrStrings(props()),
        name => Ty::Struct(refer(name)),
    }
}

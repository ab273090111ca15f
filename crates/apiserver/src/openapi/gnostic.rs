//! OpenAPI documents in protobuf, in the form of Google's gnostic: what client-go asks for at /openapi/v2.
//!
//! The messages mirror the JSON, so a table says which member of an object is which field, and one function writes them
//! all. `gnostic_v2` and `gnostic_v3` are the tables.

use std::io::{self, Write};

use serde_json::Value;

/// What a message is made from.
pub(super) enum Shape {
    /// An object: its members are fields.
    Object {
        fields: &'static [(&'static str, u32, Kind)],
        /// The field for members whose names start with `x-`; 0: none.
        extensions: u32,
        /// The field for all other members, as pairs of a name and a value.
        others: Option<(u32, Kind)>,
    },
    /// A value that is in one of several fields, depending on what it is. `None`: an empty message.
    Choice(fn(&Value) -> Option<(u32, Kind)>),
}

/// The type of a field. Where the JSON is an array, the field is repeated.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Text,
    Bool,
    Number,
    /// Anything, as YAML.
    Any,
    Message(&'static Shape),
}

/// Only members with names of their own.
pub(super) const fn map(kind: Kind) -> Shape {
    Shape::Object {
        fields: &[],
        extensions: 0,
        others: Some((1, kind)),
    }
}

/// Only known members, and extensions.
pub(super) const fn object(fields: &'static [(&'static str, u32, Kind)], extensions: u32) -> Shape {
    Shape::Object {
        fields,
        extensions,
        others: None,
    }
}

pub(super) fn encode(shape: &Shape, value: &Value) -> Vec<u8> {
    let mut out = vec![];
    message(&mut out, shape, value);
    out
}

/// Writes a field of that value; one that is repeated if the value is an array.
pub(super) fn field(out: &mut Vec<u8>, tag: u32, kind: Kind, value: &Value) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| single(out, tag, kind, item)),
        _ => single(out, tag, kind, value),
    }
}

/// A pair of a name and a value, in field `tag`.
pub(super) fn named(out: &mut Vec<u8>, tag: u32, name: &str, kind: Kind, value: &Value) {
    let mut pair = vec![];
    bytes(&mut pair, 1, name.as_bytes());
    single(&mut pair, 2, kind, value);
    bytes(out, tag, &pair);
}

fn bytes(out: &mut Vec<u8>, tag: u32, content: &[u8]) {
    write(out, tag, &[content]).expect("writing to memory does not fail");
}

/// A field whose content is these pieces.
pub(super) fn write(out: &mut dyn Write, tag: u32, pieces: &[&[u8]]) -> io::Result<()> {
    let mut head = vec![];
    varint(&mut head, u64::from(tag) << 3 | 2);
    varint(&mut head, pieces.iter().map(|p| p.len() as u64).sum());
    out.write_all(&head)?;
    pieces.iter().try_for_each(|piece| out.write_all(piece))
}

fn message(out: &mut Vec<u8>, shape: &Shape, value: &Value) {
    match (shape, value) {
        (Shape::Choice(pick), _) => {
            if let Some((tag, kind)) = pick(value) {
                field(out, tag, kind, value);
            }
        }
        (
            Shape::Object {
                fields,
                extensions,
                others,
            },
            Value::Object(members),
        ) => {
            for (name, value) in members {
                if let Some((_, tag, kind)) = fields.iter().find(|f| f.0 == name) {
                    field(out, *tag, *kind, value);
                } else if name.starts_with("x-") && *extensions != 0 {
                    named(out, *extensions, name, Kind::Any, value);
                } else if let Some((tag, kind)) = others {
                    named(out, *tag, name, *kind, value);
                }
            }
        }
        _ => {}
    }
}

fn single(out: &mut Vec<u8>, tag: u32, kind: Kind, value: &Value) {
    match kind {
        Kind::Text => bytes(out, tag, value.as_str().unwrap_or_default().as_bytes()),
        Kind::Bool => {
            varint(out, u64::from(tag) << 3);
            varint(out, u64::from(value.as_bool().unwrap_or_default()));
        }
        Kind::Number => {
            varint(out, u64::from(tag) << 3 | 1);
            out.extend_from_slice(&value.as_f64().unwrap_or_default().to_le_bytes());
        }
        // JSON is YAML.
        Kind::Any => {
            let mut any = vec![];
            bytes(&mut any, 2, format!("{value}\n").as_bytes());
            bytes(out, tag, &any);
        }
        Kind::Message(shape) => bytes(out, tag, &encode(shape, value)),
    }
}

fn varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    /// The fields of a message: number, and content (of numbers: their bytes).
    pub(crate) fn read(mut bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
        fn number(bytes: &mut &[u8]) -> u64 {
            let mut n = 0;
            for shift in (0..).step_by(7) {
                let (first, rest) = bytes.split_first().expect("a whole number");
                *bytes = rest;
                n |= u64::from(first & 0x7f) << shift;
                if first & 0x80 == 0 {
                    break;
                }
            }
            n
        }
        let mut fields = vec![];
        while !bytes.is_empty() {
            let key = number(&mut bytes);
            let length = match key & 7 {
                0 => {
                    let n = number(&mut bytes);
                    fields.push(((key >> 3) as u32, n.to_le_bytes().to_vec()));
                    continue;
                }
                1 => 8,
                2 => number(&mut bytes) as usize,
                other => panic!("wire type {other}"),
            };
            let (content, rest) = bytes.split_at(length);
            fields.push(((key >> 3) as u32, content.to_vec()));
            bytes = rest;
        }
        fields
    }

    /// The contents of the fields of that number.
    pub(crate) fn all(message: &[u8], tag: u32) -> Vec<Vec<u8>> {
        let fields = read(message).into_iter();
        fields.filter(|f| f.0 == tag).map(|f| f.1).collect()
    }

    /// The value in field 2 of the pair in field `tag` whose name is `name`.
    pub(crate) fn named_value(message: &[u8], tag: u32, name: &str) -> Option<Vec<u8>> {
        let mut pairs = all(message, tag).into_iter();
        let pair = pairs.find(|pair| all(pair, 1) == [name.as_bytes()])?;
        all(&pair, 2).pop()
    }

    #[test]
    fn members_become_fields() {
        static LEAF: Shape = object(
            &[
                ("a", 1, Kind::Text),
                ("b", 2, Kind::Bool),
                ("n", 300, Kind::Number),
                ("any", 4, Kind::Any),
            ],
            9,
        );
        static TREE: Shape = map(Kind::Message(&LEAF));
        let value =
            json!({"leaf": {"a": ["x", "y"], "b": true, "n": 0.5, "any": ["p", 1], "x-list": [1, 2], "lost": 1}});
        let bytes = encode(&TREE, &value);
        let leaf = named_value(&bytes, 1, "leaf").unwrap();
        assert_eq!(all(&leaf, 1), [b"x", b"y"]);
        assert_eq!(all(&leaf, 2), [1u64.to_le_bytes()]);
        assert_eq!(all(&leaf, 300), [0.5f64.to_le_bytes()]);
        let any: Vec<_> = all(&leaf, 4).iter().flat_map(|m| all(m, 2)).collect();
        assert_eq!(any, [b"\"p\"\n".to_vec(), b"1\n".to_vec()]);
        let extension = named_value(&leaf, 9, "x-list").unwrap();
        assert_eq!(all(&extension, 2), [b"[1,2]\n"]);
        assert_eq!(read(&leaf).len(), 7);
    }
}

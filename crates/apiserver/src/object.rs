//! A stored object: its JSON as it is served, and beside it what selectors need.
//!
//! The bytes leave out what a reader gets spliced in: `kind` and `apiVersion` (typed lists do not repeat them) and
//! `metadata.resourceVersion` (only the commit decides it). The log gets the same bytes behind a four-byte header that
//! says where the resourceVersion goes. Labels and selectable fields are taken from the value when it is written, and
//! after a restart from the bytes, the first time a selector asks.

use std::sync::{LazyLock, OnceLock};

use bytes::{BufMut, Bytes, BytesMut};
use orlop_api::schema::{TypeRef, members_in_order, schema};
use orlop_api::{KindDef, Value};
use orlop_store::{Record, RecordError};

use crate::kinds;

const HEADER: usize = 4;
/// In the header of objects that hold their own `kind` and `apiVersion`: custom ones, which may be stored in any of their
/// kind's versions.
const SELF_TYPED: u32 = 1 << 31;

/// The most bytes of an object that is stored: as much as etcd takes in one request by default.
pub const MAX_BYTES: usize = 1536 * 1024;

pub struct Object {
    raw: Bytes,
    kind: Option<&'static KindDef>,
    index: OnceLock<Index>,
}

/// What selectors look at.
#[derive(Default)]
pub struct Index {
    labels: Box<[(Box<str>, Box<str>)]>,
    /// In the order of the kind's `fields`.
    fields: Box<[Box<str>]>,
}

impl Object {
    /// Encodes a whole object. `value` has a metadata.uid, as every stored object does.
    pub fn encode(value: &Value, kind: &'static KindDef) -> Object {
        let mut out = Vec::with_capacity(4096);
        out.extend_from_slice(&[0; HEADER]);
        out.push(b'{');
        let mut splice = 0;
        let members = value.as_object().expect("an object in flight is a JSON object");
        let mut first = true;
        for (name, member) in members_in_order(members, schema().get(kind.schema)) {
            if (name == "apiVersion" || name == "kind") && kind.custom.is_none() {
                continue;
            }
            if !first {
                out.push(b',');
            }
            first = false;
            write_json(&mut out, name);
            out.push(b':');
            if name == "metadata" {
                splice = encode_metadata(&value["metadata"], &mut out);
            } else {
                write_json(&mut out, &member);
            }
        }
        out.push(b'}');
        let typed = if kind.custom.is_some() { SELF_TYPED } else { 0 };
        out[..HEADER].copy_from_slice(&(splice as u32 | typed).to_le_bytes());
        let index = OnceLock::new();
        let _ = index.set(Index::of(value, kind));
        // Objects stay for long: no room to spare in them.
        Object {
            raw: Bytes::from(out.into_boxed_slice()),
            kind: Some(kind),
            index,
        }
    }

    /// The bytes of a record from those of its JSON. The revision goes in at `splice` of it.
    pub(crate) fn assemble(json: &[&[u8]], splice: usize, is_self_typed: bool) -> Bytes {
        let mut out = Vec::with_capacity(HEADER + json.iter().map(|part| part.len()).sum::<usize>());
        let typed = if is_self_typed { SELF_TYPED } else { 0 };
        out.extend_from_slice(&((HEADER + splice) as u32 | typed).to_le_bytes());
        json.iter().for_each(|part| out.extend_from_slice(part));
        out.into()
    }

    fn header(&self) -> u32 {
        let header: [u8; HEADER] = self.raw[..HEADER].try_into().expect("a header of four bytes");
        u32::from_le_bytes(header)
    }

    fn splice(&self) -> usize {
        (self.header() & !SELF_TYPED) as usize
    }

    /// Whether it says itself of which kind and version it is.
    pub fn is_self_typed(&self) -> bool {
        self.header() & SELF_TYPED != 0
    }

    /// Whether it says that it is of this group and version. It begins with that: members are in order of their names.
    pub fn is_of_version(&self, group: &str, version: &str) -> bool {
        let rest = self.raw[HEADER..].strip_prefix(br#"{"apiVersion":""#);
        let rest = rest.and_then(|rest| rest.strip_prefix(group.as_bytes())?.strip_prefix(b"/"));
        rest.and_then(|rest| rest.strip_prefix(version.as_bytes()))
            .is_some_and(|rest| rest.starts_with(b"\""))
    }

    /// The JSON before and after the place of the resourceVersion; the head starts with `{`.
    pub fn parts(&self) -> (&[u8], &[u8]) {
        let at = self.splice();
        (&self.raw[HEADER..at], &self.raw[at..])
    }

    /// Whether it is too large to be stored.
    pub fn is_too_large(&self) -> bool {
        self.raw.len() > MAX_BYTES
    }

    /// Bytes that a list item of this object takes, about.
    pub fn size(&self) -> usize {
        self.raw.len() + 40
    }

    /// Appends the object without `kind` and `apiVersion`, as it stands in a typed list.
    pub fn write_item(&self, revision: u64, out: &mut BytesMut) {
        let (head, tail) = self.parts();
        out.put_slice(head);
        write_revision(revision, tail, out);
        out.put_slice(tail);
    }

    /// Appends the whole object, `kind` and `apiVersion` first.
    pub fn write_whole(&self, revision: u64, type_head: &str, out: &mut BytesMut) {
        let (head, tail) = self.parts();
        match self.is_self_typed() {
            true => out.put_slice(head),
            false => {
                out.put_slice(type_head.as_bytes());
                out.put_slice(&head[1..]);
            }
        }
        write_revision(revision, tail, out);
        out.put_slice(tail);
    }

    /// The object as a value, without resourceVersion and, unless it is self-typed, `kind` and `apiVersion`.
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.raw[HEADER..]).expect("stored bytes are JSON that was encoded here")
    }

    /// Some of its members; none if they are not of the expected types.
    pub fn read<'a, T: serde::Deserialize<'a>>(&'a self) -> Option<T> {
        serde_json::from_slice(&self.raw[HEADER..]).ok()
    }

    fn index(&self) -> &Index {
        self.index.get_or_init(|| match self.kind {
            Some(kind) => Index::of(&self.value(), kind),
            None => Index::default(),
        })
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.index().labels.iter().find(|(k, _)| **k == *key).map(|(_, v)| &**v)
    }

    /// The value of a selectable field by its place in the kind's `fields`.
    pub fn field(&self, i: usize) -> &str {
        self.index().fields.get(i).map_or("", |f| f)
    }
}

/// `{"kind":"Pod","apiVersion":"v1",`: what goes before the rest of a whole object.
pub fn type_head(kind: &str, api_version: &str) -> String {
    format!(r#"{{"kind":{kind:?},"apiVersion":{api_version:?},"#)
}

/// It goes behind the uid. Objects of older logs have its place before a member, which is what `tail` begins with then.
fn write_revision(revision: u64, tail: &[u8], out: &mut BytesMut) {
    let is_before_member = tail.first() == Some(&b'"');
    if !is_before_member {
        out.put_u8(b',');
    }
    out.put_slice(br#""resourceVersion":""#);
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut n = revision;
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    out.put_slice(&digits[at..]);
    out.put_u8(b'"');
    if is_before_member {
        out.put_u8(b',');
    }
}

fn write_json<T: serde::Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(out, value).expect("writing JSON to memory does not fail");
}

/// Writes the metadata without its resourceVersion and tells where that one goes: behind the uid, which every object has.
fn encode_metadata(metadata: &Value, out: &mut Vec<u8>) -> usize {
    static OBJECT_META: LazyLock<Option<TypeRef>> = LazyLock::new(|| schema().get("meta/v1.ObjectMeta"));
    let mut splice = None;
    out.push(b'{');
    let mut first = true;
    let members = metadata.as_object().expect("an object in flight has metadata");
    for (name, member) in members_in_order(members, *OBJECT_META) {
        if name == "resourceVersion" {
            continue;
        }
        if !first {
            out.push(b',');
        }
        first = false;
        write_json(out, name);
        out.push(b':');
        write_json(out, &member);
        if name == "uid" {
            splice = Some(out.len());
        }
    }
    out.push(b'}');
    splice.expect("every stored object has a metadata.uid")
}

impl Index {
    fn of(value: &Value, kind: &'static KindDef) -> Index {
        let labels = value.pointer("/metadata/labels").and_then(Value::as_object);
        Index {
            labels: labels
                .into_iter()
                .flatten()
                .map(|(k, v)| (k.as_str().into(), v.as_str().unwrap_or("").into()))
                .collect(),
            fields: kind.fields.iter().map(|f| f.value(value).into()).collect(),
        }
    }
}

impl Record for Object {
    fn bytes(&self) -> &Bytes {
        &self.raw
    }

    fn decode(key: &str, bytes: Bytes) -> Result<Self, RecordError> {
        if bytes.starts_with(crate::encryption::ENCRYPTED) {
            let why = "it is encrypted; start with the --encryption-provider-config that it was written with";
            return Err(RecordError(why.to_string()));
        }
        let object = Object {
            raw: bytes,
            kind: kinds::of_store_key(key),
            index: OnceLock::new(),
        };
        if object.raw.len() < HEADER + 2 || !(HEADER + 1..object.raw.len()).contains(&object.splice()) {
            return Err(RecordError(format!("the record of {key} is not an object")));
        }
        Ok(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_stored_is_what_is_served() {
        let kind = &KindDef {
            kind: "Foo",
            plural: "foos",
            ..KindDef::BASE
        };
        let value = json!({
            "apiVersion": "v1", "kind": "Foo", "spec": {"a": [1, 2]}, "data": "x",
            "metadata": {"name": "n", "labels": {"a": "b"}, "uid": "u", "resourceVersion": "7"},
        });
        let object = Object::encode(&value, Box::leak(Box::new(*kind)));
        let mut out = BytesMut::new();
        object.write_whole(1234567890, &type_head("Foo", "v1"), &mut out);
        let mut wanted = value.clone();
        wanted["metadata"]["resourceVersion"] = "1234567890".into();
        assert_eq!(serde_json::from_slice::<Value>(&out).unwrap(), wanted);
        assert!(out.starts_with(br#"{"kind":"Foo","apiVersion":"v1","data":"#));
        let text = std::str::from_utf8(&out).unwrap();
        assert!(
            text.contains(r#""metadata":{"name":"n","uid":"u","resourceVersion":"1234567890","labels":"#),
            "{text}"
        );
        assert_eq!(object.label("a"), Some("b"));

        let again = Object::decode("/registry/foos/default/n", object.bytes().clone()).unwrap();
        let mut item = BytesMut::new();
        again.write_item(7, &mut item);
        let mut wanted = value;
        wanted
            .as_object_mut()
            .unwrap()
            .retain(|k, _| k != "kind" && k != "apiVersion");
        assert_eq!(serde_json::from_slice::<Value>(&item).unwrap(), wanted);
        assert!(Object::decode("/registry/foos/n", Bytes::from_static(b"abc")).is_err());
    }

    #[test]
    fn objects_of_older_logs_have_the_revision_before_the_uid() {
        let json = br#"{"metadata":{"name":"n","uid":"u"}}"#;
        let at = HEADER + json.windows(6).position(|w| w == br#""uid":"#).unwrap();
        let raw = [&(at as u32).to_le_bytes()[..], json].concat();
        let object = Object::decode("/registry/pods/default/n", raw.into()).unwrap();
        let mut item = BytesMut::new();
        object.write_item(7, &mut item);
        assert_eq!(
            item,
            &br#"{"metadata":{"name":"n","resourceVersion":"7","uid":"u"}}"#[..]
        );
    }
}

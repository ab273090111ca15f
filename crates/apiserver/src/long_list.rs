//! Lists too long to be held whole for each reader: made piece by piece while they are sent, in any format. What comes out
//! is byte for byte what the whole list would be.

use bytes::{BufMut, Bytes, BytesMut};
use orlop_api::schema::{InOrder, Ty, TypeRef, schema};
use orlop_api::{Value, protobuf};
use serde_json::{Map, json};

use crate::negotiate::{Format, Representation};

/// Lists go out in pieces of about this size. Each is made between two others' turns, so it is short.
const PIECE: usize = 32 * 1024;

/// The pieces of a list whose members come one by one.
pub(crate) struct LongList<I> {
    form: Form,
    /// The name of the member that is the list: items, or rows.
    member: &'static str,
    head: Option<Vec<u8>>,
    items: I,
    tail: Option<Vec<u8>>,
    is_first: bool,
}

enum Form {
    /// With the type of the members.
    Json(&'static Ty),
    Indented(&'static Ty),
    Yaml,
    /// The type of the list, and what it begins with before its first item.
    Protobuf {
        list: TypeRef,
        before: usize,
    },
}

impl<I: Iterator<Item = Value> + Clone> LongList<I> {
    /// `envelope` is the list without its members. Protobuf says how long the list is before it begins: all of `items` is
    /// encoded once for that.
    pub(crate) fn new(
        envelope: &Value,
        member: &'static str,
        items: I,
        wanted: Representation,
        schema_name: &str,
    ) -> LongList<I> {
        let list = schema().get(schema_name);
        let item = list.and_then(|list| schema().ty(list).field(member)?.ty.item());
        let item = item.unwrap_or(&Ty::Any);
        let form = match (wanted.format, list) {
            (Format::Yaml, _) => Form::Yaml,
            (Format::Protobuf, Some(list)) => Form::Protobuf {
                list,
                before: protobuf::encode_message(&json!({}), list).len(),
            },
            _ if wanted.pretty => Form::Indented(item),
            _ => Form::Json(item),
        };
        let (head, tail) = form.around(envelope, member, &items);
        LongList {
            form,
            member,
            head: Some(head),
            items,
            tail: Some(tail),
            is_first: true,
        }
    }

    pub(crate) fn content_type(&self) -> &'static str {
        match self.form {
            Form::Json(_) | Form::Indented(_) => "application/json",
            Form::Yaml => "application/yaml",
            Form::Protobuf { .. } => Format::Protobuf.content_type(),
        }
    }
}

impl<I: Iterator<Item = Value>> Iterator for LongList<I> {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        self.tail.as_ref()?;
        let mut out = BytesMut::with_capacity(PIECE + 8192);
        out.put_slice(&self.head.take().unwrap_or_default());
        while out.len() < PIECE {
            let Some(item) = self.items.next() else {
                out.put_slice(&self.tail.take().unwrap_or_default());
                break;
            };
            let is_first = std::mem::replace(&mut self.is_first, false);
            self.form.write(&item, self.member, is_first, &mut out);
        }
        Some(out.freeze())
    }
}

impl Form {
    /// What goes before and after the members.
    fn around(
        &self,
        envelope: &Value,
        member: &str,
        items: &(impl Iterator<Item = Value> + Clone),
    ) -> (Vec<u8>, Vec<u8>) {
        match self {
            Form::Json(_) => {
                let text = serde_json::to_string(&InOrder::of(envelope)).expect("a value is always JSON");
                let open = text.strip_suffix('}').unwrap_or(&text);
                (format!("{open},\"{member}\":[").into(), b"]}\n".to_vec())
            }
            Form::Indented(_) => {
                let text = serde_json::to_string_pretty(&InOrder::of(envelope)).expect("a value is always JSON");
                let open = text.strip_suffix("\n}").unwrap_or(&text);
                (format!("{open},\n  \"{member}\": [\n").into(), b"\n  ]\n}".to_vec())
            }
            Form::Yaml => {
                let members = envelope.as_object().cloned().unwrap_or_default();
                let (before, after): (Map<_, _>, Map<_, _>) =
                    members.into_iter().partition(|(name, _)| **name < *member);
                let head = format!("{}{member}:\n", yaml(&Value::from(before)));
                (head.into(), yaml(&Value::from(after)).into())
            }
            Form::Protobuf { list, .. } => {
                let bytes: usize = items.clone().map(|item| self.message(&item, member).len()).sum();
                around_protobuf(envelope, *list, bytes)
            }
        }
    }

    fn write(&self, item: &Value, member: &str, is_first: bool, out: &mut BytesMut) {
        match self {
            Form::Json(ty) => {
                if !is_first {
                    out.put_u8(b',');
                }
                serde_json::to_writer(out.writer(), &InOrder::typed(item, ty)).expect("a value is always JSON");
            }
            Form::Indented(ty) => {
                let text = serde_json::to_string_pretty(&InOrder::typed(item, ty)).expect("a value is always JSON");
                out.put_slice(if is_first { b"    " } else { b",\n    " });
                out.put_slice(text.replace('\n', "\n    ").as_bytes());
            }
            Form::Yaml => {
                let text = yaml(&json!({ member: [item] }));
                let line = text.find('\n').map_or(0, |end| end + 1);
                out.put_slice(&text.as_bytes()[line..]);
            }
            Form::Protobuf { .. } => out.put_slice(&self.message(item, member)),
        }
    }

    /// A member in protobuf, its number and length before it.
    fn message(&self, item: &Value, member: &str) -> Vec<u8> {
        let Form::Protobuf { list, before } = self else {
            return vec![];
        };
        let mut whole = protobuf::encode_message(&json!({ member: [item] }), *list);
        whole.split_off(*before)
    }
}

fn yaml(value: &Value) -> String {
    if value.as_object().is_some_and(Map::is_empty) {
        return String::new();
    }
    serde_saphyr::to_string(value).expect("a JSON value can be written as YAML")
}

/// The envelope of protobuf, with the length that the list has together with its members.
fn around_protobuf(envelope: &Value, list: TypeRef, members: usize) -> (Vec<u8>, Vec<u8>) {
    let text = |name: &str| envelope[name].as_str().unwrap_or("");
    let mut head = protobuf::encode(envelope, text("apiVersion"), text("kind"), list);
    let own = protobuf::encode_message(envelope, list);
    // The end of the envelope: two empty texts.
    let tail = head.split_off(head.len() - 4);
    head.truncate(head.len() - own.len() - varint(own.len()).len());
    head.extend(varint(own.len() + members));
    head.extend(own);
    (head, tail)
}

fn varint(mut n: usize) -> Vec<u8> {
    let mut out = vec![];
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::negotiate::Shape;
    use crate::respond::{self, Body};

    fn whole(list: &Value, wanted: Representation, schema_name: &str) -> Vec<u8> {
        match respond::value_response(200, list, wanted, schema_name).into_body() {
            Body::Whole(Some(bytes)) => bytes.to_vec(),
            _ => panic!("a value is answered whole"),
        }
    }

    #[test]
    fn pieces_make_up_the_same_list_in_every_format() {
        let maps: Vec<Value> = (0..300)
            .map(|i| {
                let text = format!("- line {i}\n\"quoted\": {{}}\n  # ünïcode {}", "x".repeat(i * 3));
                json!({
                    "metadata": {"name": format!("m{i}"), "uid": "u", "labels": {"a": "", "b": "true", "c": "1e3"}},
                    "data": {"text": text, "empty": "", "yes": "no", "more": "a: b\n"},
                })
            })
            .collect();
        let envelope = json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}});
        let columns = json!([{"name": "Name", "type": "string"}]);
        let table = json!({
            "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {}, "columnDefinitions": columns,
        });
        for (envelope, member, schema_name) in [(envelope, "items", "core/v1.ConfigMapList"), (table, "rows", "")] {
            let mut list = envelope.clone();
            list[member] = maps.clone().into();
            let formats = [
                (Format::Json, false),
                (Format::Json, true),
                (Format::Yaml, false),
                (Format::Protobuf, false),
            ];
            for (format, pretty) in formats {
                if format == Format::Protobuf && schema_name.is_empty() {
                    continue;
                }
                let shape = Shape::Object;
                let wanted = Representation { format, shape, pretty };
                let pieces: Vec<Bytes> =
                    LongList::new(&envelope, member, maps.clone().into_iter(), wanted, schema_name).collect();
                assert!(pieces.len() > 3, "{format:?}");
                assert!(pieces.iter().all(|piece| piece.len() < 2 * PIECE), "{format:?}");
                assert_eq!(
                    pieces.concat(),
                    whole(&list, wanted, schema_name),
                    "{format:?} {pretty}"
                );
            }
        }
    }
}

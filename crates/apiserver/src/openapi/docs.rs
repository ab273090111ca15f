//! Descriptions of types and fields, for `kubectl explain`. The build script takes them from the k8s-openapi crate; they
//! are kept compressed in the binary and unpacked only while a document is made.

use std::collections::HashMap;
use std::io::Read;

use flate2::read::DeflateDecoder;

use super::definitions::Describe;

/// Records that end in U+001E: a definition's name, its description, then name and description of each field, with U+001F
/// between them.
static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptions.deflate"));
const RECORD: char = '\u{1e}';
const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
const FIELD: char = '\u{1f}';

pub struct Docs {
    definitions: HashMap<Box<str>, Entry>,
}

struct Entry {
    description: Box<str>,
    fields: HashMap<Box<str>, Box<str>>,
}

impl Docs {
    pub fn load() -> Docs {
        let mut text = String::new();
        DeflateDecoder::new(PACKED)
            .read_to_string(&mut text)
            .expect("the build script's own output");
        Docs::read(&text)
    }

    fn read(text: &str) -> Docs {
        let record = |record: &str| {
            let mut words = record.split(FIELD).map(Box::<str>::from);
            let (name, description) = (words.next()?, words.next()?);
            let mut fields = HashMap::new();
            while let (Some(field), Some(text)) = (words.next(), words.next()) {
                fields.insert(field, text);
            }
            Some((name, Entry { description, fields }))
        };
        Docs {
            definitions: text.split(RECORD).filter_map(record).collect(),
        }
    }
}

impl Describe for Docs {
    fn definition(&self, name: &str) -> Option<&str> {
        match self.definitions.get(name) {
            Some(Entry { description, .. }) => (!description.is_empty()).then_some(description),
            None => name.ends_with("List").then_some("A list of objects of one kind."),
        }
    }

    fn field(&self, definition: &str, field: &str) -> Option<&str> {
        let entry = match (self.definitions.get(definition), field) {
            (Some(entry), _) => entry,
            // k8s-openapi has one type for all lists. Their other fields are those of a status.
            (None, "items") => return Some("The objects."),
            (None, _) if definition.ends_with("List") => self.definitions.get(STATUS)?,
            (None, _) => return None,
        };
        entry.fields.get(field).map(|text| &**text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read() {
        let docs = Docs::read("a.B\u{1f}A b.\u{1f}c\u{1f}Its c.\u{1f}d\u{1f}Its d.\u{1e}e.F\u{1f}\u{1e}");
        assert_eq!(docs.definition("a.B"), Some("A b."));
        assert_eq!(docs.field("a.B", "d"), Some("Its d."));
        assert_eq!(docs.field("a.B", "e"), None);
        assert_eq!(docs.definition("e.F"), None);
        assert_eq!(docs.definition("g"), None);
        assert!(docs.definition("a.BList").is_some());
        assert!(docs.field("a.BList", "items").is_some());
    }

    #[test]
    fn the_build_found_descriptions() {
        let docs = Docs::load();
        let pod = "io.k8s.api.core.v1.PodSpec";
        assert!(docs.definition(pod).is_some_and(|text| text.len() > 10));
        assert!(docs.field(pod, "affinity").is_some_and(|text| text.len() > 10));
        assert!(docs.definitions.len() > 500, "{} types", docs.definitions.len());
        assert!(PACKED.len() < 400 * 1024, "{} bytes", PACKED.len());
    }
}

//! Descriptions of types and fields, for `kubectl explain`. The build script takes them from the k8s-openapi crate; they
//! are kept compressed in the binary and unpacked only while a document is made.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};

use flate2::read::DeflateDecoder;

use super::definitions::Describe;

/// Records that end in U+001E: a definition's name, its description, then name and description of each field, with U+001F
/// between them.
static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptions.deflate"));
const RECORD: u8 = 0x1e;
const FIELD: char = '\u{1f}';

/// Its fields, but for one, are those of a list.
const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";

/// Fields of our own: the definition, the field, its description.
const OWN: [(&str, &str, &str); 1] = [(
    "io.k8s.api.core.v1.NodeAffinity",
    "requiredDuringSchedulingRequiredDuringExecution",
    "Like requiredDuringSchedulingIgnoredDuringExecution, but it holds while the pod runs, too: if the node's labels \
     change so that no term matches any more, the pod is evicted from the node. Only Orlop has this field.",
)];

/// The descriptions of some definitions.
pub(super) struct Docs {
    /// By name, what follows the name in the record.
    records: HashMap<String, String>,
}

impl Docs {
    pub(super) fn load(wanted: impl Fn(&str) -> bool) -> Docs {
        Docs::read(DeflateDecoder::new(PACKED), wanted)
    }

    fn read(text: impl Read, wanted: impl Fn(&str) -> bool) -> Docs {
        let record = |bytes: std::io::Result<Vec<u8>>| {
            let bytes = bytes.expect("the build script's own output");
            let (name, rest) = std::str::from_utf8(&bytes).ok()?.split_once(FIELD)?;
            (name == STATUS || wanted(name)).then(|| (name.to_string(), rest.to_string()))
        };
        Docs {
            records: BufReader::new(text).split(RECORD).filter_map(record).collect(),
        }
    }
}

impl Describe for Docs {
    fn definition(&self, name: &str) -> Option<&str> {
        match self.records.get(name) {
            Some(record) => record.split(FIELD).next().filter(|text| !text.is_empty()),
            // k8s-openapi has one type for all lists.
            None => name.ends_with("List").then_some("A list of objects of one kind."),
        }
    }

    fn field(&self, definition: &str, field: &str) -> Option<&str> {
        let own = OWN.iter().find(|(of, name, _)| *of == definition && *name == field);
        if let Some((_, _, text)) = own {
            return Some(*text);
        }
        let record = match (self.records.get(definition), field) {
            (Some(record), _) => record,
            (None, "items") => return Some("The objects."),
            (None, _) if definition.ends_with("List") => self.records.get(STATUS)?,
            (None, _) => return None,
        };
        let mut words = record.split(FIELD).skip(1);
        while let (Some(name), Some(text)) = (words.next(), words.next()) {
            if name == field {
                return Some(text);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read() {
        let text = "a.B\u{1f}A b.\u{1f}c\u{1f}Its c.\u{1f}d\u{1f}Its d.\u{1e}e.F\u{1f}\u{1e}g\u{1f}A g.\u{1e}";
        let docs = Docs::read(text.as_bytes(), |name| name != "g");
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
        let docs = Docs::load(|_| true);
        let pod = "io.k8s.api.core.v1.PodSpec";
        assert!(docs.definition(pod).is_some_and(|text| text.len() > 10));
        assert!(docs.field(pod, "affinity").is_some_and(|text| text.len() > 10));
        assert!(docs.records.len() > 500, "{} types", docs.records.len());
        assert!(PACKED.len() < 400 * 1024, "{} bytes", PACKED.len());
    }
}

//! A line of a watch, taken apart without looking into its object: `{"type":"ADDED","object":{…}}`.

use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum EventType {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

impl EventType {
    const ALL: [(&'static [u8], EventType); 5] = [
        (b"ADDED", EventType::Added),
        (b"MODIFIED", EventType::Modified),
        (b"DELETED", EventType::Deleted),
        (b"BOOKMARK", EventType::Bookmark),
        (b"ERROR", EventType::Error),
    ];

    pub(super) fn is_change(self) -> bool {
        matches!(self, EventType::Added | EventType::Modified | EventType::Deleted)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WatchEvent<'a> {
    pub(super) event_type: EventType,
    /// JSON.
    pub(super) object: &'a [u8],
}

impl<'a> WatchEvent<'a> {
    /// Takes a line apart that is written as all servers do, in one pass over nothing but its ends. If `object` is one
    /// JSON value then the line was one and this is what it says; otherwise only `parse` knows.
    pub(super) fn split(line: &'a [u8]) -> Option<WatchEvent<'a>> {
        let rest = line.strip_prefix(b"{\"type\":\"")?;
        let (name, event_type) = EventType::ALL.iter().find(|(name, _)| rest.starts_with(name))?;
        let object = rest[name.len()..].strip_prefix(b"\",\"object\":")?;
        let object = object.trim_ascii_end().strip_suffix(b"}")?;
        Some(WatchEvent {
            event_type: *event_type,
            object,
        })
    }

    /// Takes any valid line apart, whatever the order of its fields.
    pub(super) fn parse(line: &'a [u8]) -> serde_json::Result<WatchEvent<'a>> {
        #[derive(Deserialize)]
        struct Fields<'a> {
            r#type: EventType,
            #[serde(borrow)]
            object: &'a RawValue,
        }
        let fields: Fields<'a> = serde_json::from_slice(line)?;
        Ok(WatchEvent {
            event_type: fields.r#type,
            object: fields.object.get().as_bytes(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_lines_are_split_and_all_are_parsed() {
        let usual = "{\"type\":\"MODIFIED\",\"object\":{\"a\":[1,\"}\"]}}\n";
        let expected = WatchEvent {
            event_type: EventType::Modified,
            object: b"{\"a\":[1,\"}\"]}",
        };
        assert_eq!(WatchEvent::split(usual.as_bytes()), Some(expected));
        assert_eq!(WatchEvent::parse(usual.as_bytes()).unwrap(), expected);
        for line in [
            "{\"object\":{\"a\":[1,\"}\"]},\"type\":\"MODIFIED\"}",
            "{ \"type\": \"MODIFIED\", \"object\": {\"a\":[1,\"}\"]}, \"more\": {} }",
        ] {
            assert_eq!(WatchEvent::split(line.as_bytes()), None);
            assert_eq!(WatchEvent::parse(line.as_bytes()).unwrap(), expected);
        }
    }

    #[test]
    fn what_is_split_wrongly_is_no_json() {
        let line = b"{\"type\":\"ADDED\",\"object\":{},\"more\":{}}";
        let event = WatchEvent::split(line).unwrap();
        assert!(serde_json::from_slice::<serde_json::Value>(event.object).is_err());
        assert_eq!(WatchEvent::parse(line).unwrap().object, b"{}");
        assert!(WatchEvent::parse(b"{\"type\":\"OTHER\",\"object\":{}}").is_err());
    }
}

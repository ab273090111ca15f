//! Content negotiation: which representation the client wants, and what it sent.

use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE};
use orlop_api::Status;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Json,
    Yaml,
    Protobuf,
}

impl Format {
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Json => "application/json",
            Format::Yaml => "application/yaml",
            Format::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    fn of_media_type(media: &str) -> Option<Format> {
        match media {
            "application/json" => Some(Format::Json),
            "application/yaml" => Some(Format::Yaml),
            "application/vnd.kubernetes.protobuf" => Some(Format::Protobuf),
            _ => None,
        }
    }
}

/// What the client wants objects turned into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Object,
    Table,
    PartialObjectMetadata,
    PartialObjectMetadataList,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Representation {
    pub format: Format,
    pub shape: Shape,
    pub pretty: bool,
}

impl Representation {
    pub const JSON: Representation = Representation {
        format: Format::Json,
        shape: Shape::Object,
        pretty: false,
    };
}

/// Reads the Accept header; the first clause that can be served wins. No header: JSON.
pub fn accept(headers: &HeaderMap, pretty: bool) -> Result<Representation, Status> {
    let header = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .collect::<Vec<_>>()
        .join(",");
    if header.trim().is_empty() {
        return Ok(Representation {
            pretty,
            ..Representation::JSON
        });
    }
    for clause in header.split(',') {
        if let Some(wanted) = read_clause(clause) {
            return Ok(Representation { pretty, ..wanted });
        }
    }
    Err(none_acceptable(&header))
}

/// The same for what has no protobuf form.
pub fn without_protobuf(headers: &HeaderMap, wanted: Representation) -> Result<Representation, Status> {
    let accept: Vec<&str> = headers.get_all(ACCEPT).iter().filter_map(|v| v.to_str().ok()).collect();
    let others = accept.iter().flat_map(|v| v.split(',')).filter_map(read_clause);
    others
        .map(|other| Representation {
            pretty: wanted.pretty,
            ..other
        })
        .find(|other| other.format != Format::Protobuf)
        .ok_or_else(|| {
            Status::not_acceptable("only the following media types are accepted: application/json, application/yaml")
        })
}

/// A media type nobody here writes, or one of ours in a form that is not there.
fn none_acceptable(header: &str) -> Status {
    let types = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
    let known = header
        .split(',')
        .any(|c| Format::of_media_type(&media_type(c)).is_some());
    if known {
        return Status::not_acceptable(format!("only the following media types are accepted: {types}"));
    }
    let mut status = Status::not_acceptable(format!("406: Not Acceptable\n\nAvailable representations: {types}"));
    status.details = Some(Box::default());
    status
}

fn read_clause(clause: &str) -> Option<Representation> {
    let mut parts = clause.split(';').map(str::trim);
    let media = parts.next()?;
    let format = match media {
        "*/*" | "application/*" => Format::Json,
        other => Format::of_media_type(other)?,
    };
    let (mut kind, mut group, mut version) = ("", "", "");
    for part in parts {
        match part.split_once('=') {
            Some(("as", v)) => kind = v,
            Some(("g", v)) => group = v,
            Some(("v", v)) => version = v,
            // Frames of a watch: only "watch" streams are served, in the same format.
            Some(("stream", v)) if v != "watch" => return None,
            _ => {}
        }
    }
    let shape = match kind {
        "" => Shape::Object,
        _ if group != "meta.k8s.io" || !matches!(version, "v1" | "v1beta1") => return None,
        "Table" => Shape::Table,
        "PartialObjectMetadata" => Shape::PartialObjectMetadata,
        "PartialObjectMetadataList" => Shape::PartialObjectMetadataList,
        _ => return None,
    };
    Some(Representation {
        format,
        shape,
        pretty: false,
    })
}

/// The format of a request body.
pub fn body_format(headers: &HeaderMap) -> Result<Format, Status> {
    let Some(header) = headers.get(CONTENT_TYPE) else {
        return Ok(Format::Json);
    };
    let media = media_type(header.to_str().unwrap_or(""));
    Format::of_media_type(&media).ok_or_else(|| {
        Status::unsupported_media_type(
            "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf",
        )
    })
}

/// The media type without parameters, lower case.
pub fn media_type(header: &str) -> String {
    header.split(';').next().unwrap_or("").trim().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(header: &str) -> Option<Representation> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, header.parse().unwrap());
        accept(&headers, false).ok()
    }

    #[test]
    fn accept_headers() {
        let json = Representation::JSON;
        let table = Representation {
            shape: Shape::Table,
            ..json
        };
        let proto = Representation {
            format: Format::Protobuf,
            ..json
        };
        for (header, answer) in [
            ("*/*", Some(json)),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
                Some(table),
            ),
            (
                "application/json;as=Table;v=v9;g=meta.k8s.io,application/json",
                Some(json),
            ),
            ("application/vnd.kubernetes.protobuf,application/json", Some(proto)),
            ("text/html, application/json;q=0.9", Some(json)),
            ("text/plain", None),
            ("application/json;as=Table;v=v1;g=other", None),
        ] {
            assert_eq!(wanted(header), answer, "{header}");
        }
        assert_eq!(accept(&HeaderMap::new(), false).unwrap(), json);
    }
}

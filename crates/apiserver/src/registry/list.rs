//! list: selectors, pages that stay at one revision, and which revision to read at.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use orlop_api::selector::{FieldSelector, LabelSelector};
use orlop_api::{KindDef, Status};
use orlop_store::{Item, Page, RangeError, RangeQuery, Revision};
use serde_json::{Value, json};

use super::Registry;
use crate::kinds;
use crate::object::Object;
use crate::request::RequestInfo;

/// A parsed list or watch request.
#[derive(Clone, Debug)]
pub struct ListOptions {
    pub namespace: String,
    pub filter: Filter,
    pub limit: usize,
    pub start_after: Option<String>,
    /// Where a list reads: a past revision, or `None` for now.
    pub at: Option<Revision>,
    /// The resourceVersion parameter as given.
    pub resource_version: String,
}

/// What selectors keep. Cheap to test against what is stored beside each object.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub labels: LabelSelector,
    name: Vec<(bool, String)>,
    namespace: Vec<(bool, String)>,
    /// (index into the kind's fields, wanted equal, value)
    fields: Vec<(usize, bool, String)>,
}

impl Filter {
    pub fn parse(kind: &KindDef, labels: &str, fields: &str) -> Result<Filter, Status> {
        let labels = LabelSelector::parse(labels).map_err(Status::bad_request)?;
        let selector = FieldSelector::parse(fields).map_err(Status::bad_request)?;
        let mut filter = Filter {
            labels,
            ..Default::default()
        };
        for term in selector.terms {
            match term.field.as_str() {
                "metadata.name" => filter.name.push((term.equal, term.value)),
                "metadata.namespace" if kind.namespaced => filter.namespace.push((term.equal, term.value)),
                other => {
                    let i = kind
                        .fields
                        .iter()
                        .position(|f| f.name == other)
                        .ok_or_else(|| Status::bad_request(format!("field label not supported: {other}")))?;
                    filter.fields.push((i, term.equal, term.value));
                }
            }
        }
        Ok(filter)
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.name.is_empty() && self.namespace.is_empty() && self.fields.is_empty()
    }

    /// The one name the selector asks for, if any.
    pub fn exact_name(&self) -> Option<&str> {
        self.name.iter().find(|(equal, _)| *equal).map(|(_, n)| n.as_str())
    }

    pub fn matches(&self, kind: &KindDef, item: &Item<Object>) -> bool {
        if self.is_empty() {
            return true;
        }
        let (namespace, name) = kinds::split_key(kind, &item.key);
        self.name.iter().all(|(equal, n)| (n == name) == *equal)
            && self.namespace.iter().all(|(equal, n)| (n == namespace) == *equal)
            && self.labels.matches(|key| item.record.label(key))
            && self
                .fields
                .iter()
                .all(|(i, equal, v)| (item.record.field(*i) == v) == *equal)
    }
}

impl ListOptions {
    pub fn parse(kind: &KindDef, info: &RequestInfo) -> Result<ListOptions, Status> {
        let query = &info.query;
        let text = |name: &str| query.get(name).unwrap_or("");
        let limit = query.number("limit")?.unwrap_or(0).max(0) as usize;
        let mut options = ListOptions {
            namespace: info.namespace.clone(),
            filter: Filter::parse(kind, text("labelSelector"), text("fieldSelector"))?,
            limit,
            start_after: None,
            at: None,
            resource_version: text("resourceVersion").to_string(),
        };
        // A watch on one object by its path is a watch with a name selector.
        if !info.name.is_empty() {
            options.filter.name.push((true, info.name.clone()));
        }
        if info.verb != "watch" {
            options.choose_revision(text("resourceVersionMatch"), text("continue"))?;
        }
        Ok(options)
    }

    fn choose_revision(&mut self, matching: &str, token: &str) -> Result<(), Status> {
        if !token.is_empty() {
            if !matching.is_empty() {
                return Err(invalid_options(
                    "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is provided",
                ));
            }
            if !self.resource_version.is_empty() && self.resource_version != "0" {
                return Err(Status::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
            let (revision, start) = read_continue(token)?;
            self.at = revision;
            self.start_after = Some(start);
            return Ok(());
        }
        let revision = parse_revision(&self.resource_version)?;
        match (matching, revision) {
            ("", None) => {}
            ("", Some(_)) => {
                // Without a match rule: exact where a limit is given, else "not older than".
                if self.limit > 0 && self.resource_version != "0" {
                    self.at = revision;
                }
            }
            ("NotOlderThan", Some(_)) => {}
            ("Exact", Some(0)) => {
                return Err(invalid_options(
                    "resourceVersionMatch: Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
                ));
            }
            ("Exact", Some(n)) => self.at = Some(n),
            ("NotOlderThan" | "Exact", None) => {
                return Err(invalid_options(
                    "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
                ));
            }
            (other, _) => {
                return Err(invalid_options(&format!(
                    "resourceVersionMatch: Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\""
                )));
            }
        }
        Ok(())
    }
}

fn invalid_options(detail: &str) -> Status {
    Status::new(
        422,
        "Invalid",
        format!("ListOptions.meta.k8s.io \"\" is invalid: {detail}"),
    )
}

pub fn parse_revision(text: &str) -> Result<Option<Revision>, Status> {
    match text {
        "" => Ok(None),
        text => text
            .parse()
            .map(Some)
            .map_err(|_| Status::bad_request(format!("Invalid value: {text:?}: invalid resource version"))),
    }
}

/// A continue token: where the last page ended and at which revision. Opaque to clients.
pub fn write_continue(revision: Revision, last_key: &str) -> String {
    let token = json!({"v": "meta.k8s.io/v1", "rv": revision, "start": last_key});
    URL_SAFE_NO_PAD.encode(token.to_string())
}

fn read_continue(token: &str) -> Result<(Option<Revision>, String), Status> {
    let bad = || Status::bad_request("continue key is not valid: the token was not issued by this server");
    let bytes = URL_SAFE_NO_PAD.decode(token.trim_end_matches('=')).map_err(|_| bad())?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|_| bad())?;
    if value["v"] != "meta.k8s.io/v1" {
        return Err(bad());
    }
    let start = value["start"].as_str().ok_or_else(bad)?;
    let revision = value["rv"].as_i64().ok_or_else(bad)?;
    // A negative revision: go on from this key in what is there now (after the first revision was compacted away).
    Ok((u64::try_from(revision).ok(), start.to_string()))
}

impl Registry {
    /// The items a list request asks for.
    pub fn page(&self, kind: &'static KindDef, options: &ListOptions) -> Result<Page<Object>, Status> {
        let namespace = (!options.namespace.is_empty()).then_some(options.namespace.as_str());
        let mut prefix = kinds::key_prefix(kind, namespace);
        if let Some(start) = &options.start_after
            && !start.starts_with(&prefix)
        {
            return Err(Status::bad_request(
                "continue key is not valid: it belongs to another list",
            ));
        }
        // A selector for one name needs no scan where the key is known.
        if let Some(name) = options.filter.exact_name()
            && (namespace.is_some() || !kind.namespaced)
        {
            prefix.push_str(name);
        }
        if let Some(newest) = parse_revision(&options.resource_version)?
            && newest > self.store.revision()
        {
            return Err(too_large_revision(newest, self.store.revision()));
        }
        let query = RangeQuery {
            prefix: &prefix,
            start_after: options.start_after.as_deref(),
            at: options.at,
            limit: (options.limit > 0).then_some(options.limit),
        };
        let mut keep = |item: &Item<Object>| options.filter.matches(kind, item);
        self.store.range(query, &mut keep).map_err(|e| match e {
            RangeError::Compacted { .. } if options.start_after.is_some() => self.expired_page(options),
            RangeError::Compacted { .. } => expired(),
            RangeError::Future { current } => too_large_revision(options.at.unwrap_or(0), current),
        })
    }

    /// The revision of a continued list is gone: say so, with a token that goes on at the newest one.
    fn expired_page(&self, options: &ListOptions) -> Status {
        let token = json!({"v": "meta.k8s.io/v1", "rv": -1, "start": options.start_after});
        let mut status = Status::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.",
        );
        status.continue_token = Some(URL_SAFE_NO_PAD.encode(token.to_string()));
        status
    }
}

pub fn expired() -> Status {
    Status::expired("The resourceVersion for the provided list is too old.")
}

fn too_large_revision(asked: Revision, current: Revision) -> Status {
    let mut status = Status::timeout(format!("Too large resource version: {asked}, current: {current}"));
    status.details = Some(Box::new(orlop_api::status::Details {
        causes: vec![orlop_api::status::Cause {
            reason: "ResourceVersionTooLarge".into(),
            message: "Too large resource version".into(),
            field: String::new(),
        }],
        retry_after_seconds: 1,
        ..Default::default()
    }));
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continue_tokens_come_back_whole_and_bad_ones_are_refused() {
        let token = write_continue(42, "/registry/pods/default/a b");
        assert_eq!(
            read_continue(&token).unwrap(),
            (Some(42), "/registry/pods/default/a b".to_string())
        );
        for bad in ["", "x", "e30", "!!!!", "eyJ2IjoxfQ"] {
            assert_eq!(read_continue(bad).unwrap_err().code, 400, "{bad}");
        }
    }
}

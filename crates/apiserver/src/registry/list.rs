//! list: selectors, pages that stay at one revision, and which revision to read at.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use orlop_api::selector::{FieldSelector, LabelSelector};
use orlop_api::{KindDef, Status};
use orlop_apiextensions::CustomVersion;
use orlop_store::{Item, Page, RangeError, RangeQuery, Revision};
use serde_json::{Value, json};

use super::Registry;
use super::context::OptionProblems;
use crate::object::Object;
use crate::request::RequestInfo;
use crate::{custom, kinds};

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
    /// Where those fields are in objects of a custom kind.
    custom: Option<Arc<CustomVersion>>,
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
                // The short form that namespaces alone understand.
                "name" if kind.kind == "Namespace" => filter.name.push((term.equal, term.value)),
                "metadata.namespace" if kind.namespaced || kind.fields.is_empty() => {
                    filter.namespace.push((term.equal, term.value));
                }
                other => {
                    let custom = custom::schema_of(kind);
                    let i = match &custom {
                        Some(version) => version.selectable_fields().iter().position(|f| *f.name == *other),
                        None => kind.fields.iter().position(|f| f.name == other),
                    };
                    let i = i.ok_or_else(|| Status::bad_request(unknown_field(kind, other)))?;
                    filter.fields.push((i, term.equal, term.value));
                    filter.custom = custom;
                }
            }
        }
        Ok(filter)
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.name.is_empty() && self.namespace.is_empty() && self.fields.is_empty()
    }

    /// Whether it depends on what is in custom objects, which may differ between the version that is stored and the one
    /// that is shown.
    pub fn looks_inside(&self) -> bool {
        self.custom.is_some() && !self.fields.is_empty()
    }

    /// The same without what depends on that.
    pub fn from_outside(&self) -> Filter {
        let fields = if self.looks_inside() {
            vec![]
        } else {
            self.fields.clone()
        };
        Filter { fields, ..self.clone() }
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
            && self.matches_fields(item)
    }

    fn matches_fields(&self, item: &Item<Object>) -> bool {
        let Some(version) = self.custom.as_ref().filter(|_| !self.fields.is_empty()) else {
            let matches = |(i, equal, v): &(usize, bool, String)| (item.record.field(*i) == v) == *equal;
            return self.fields.iter().all(matches);
        };
        let object = item.record.value();
        let matches = |(i, equal, v): &(usize, bool, String)| (version.field_value(*i, &object) == *v) == *equal;
        self.fields.iter().all(matches)
    }
}

fn unknown_field(kind: &KindDef, field: &str) -> String {
    match kind.kind {
        "Job" => format!("field label {field:?} not supported for Job"),
        "ResourceSlice" => {
            let version = kind.api_version();
            format!("field label not supported for {version}, Kind=ResourceSlice: {field}")
        }
        _ if kind.fields.is_empty() => {
            format!("{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
        }
        _ => format!("field label not supported: {field}"),
    }
}

impl ListOptions {
    pub fn parse(kind: &KindDef, info: &RequestInfo) -> Result<ListOptions, Status> {
        let query = &info.query;
        let text = |name: &str| query.get(name).unwrap_or("");
        query.number("timeoutSeconds")?;
        // A list of anything not older than the beginning comes whole: it is made from memory anyway.
        let whole = text("resourceVersion") == "0" && text("resourceVersionMatch") != "Exact";
        let limit = query.number("limit")?.filter(|_| !whole).unwrap_or(0).max(0) as usize;
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
            let initial_events = query.get("sendInitialEvents").is_some();
            check_list(
                text("resourceVersionMatch"),
                text("resourceVersion"),
                text("continue"),
                initial_events,
            )?;
            options.choose_revision(text("resourceVersionMatch"), text("continue"))?;
        }
        Ok(options)
    }

    /// Where to read; the options go together.
    fn choose_revision(&mut self, matching: &str, token: &str) -> Result<(), Status> {
        if !token.is_empty() {
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
        let revision = parse_revision(&self.resource_version)
            .map_err(|why| Status::bad_request(format!("invalid resource version: {why}")))?;
        // Without a match rule: exact where a limit is given, else "not older than".
        if matching == "Exact" || (matching.is_empty() && self.limit > 0 && self.resource_version != "0") {
            self.at = revision;
        }
        Ok(())
    }
}

/// Which options of a list exclude each other.
fn check_list(matching: &str, revision: &str, token: &str, initial_events: bool) -> Result<(), Status> {
    let mut problems = OptionProblems::default();
    if !matching.is_empty() {
        let field = "resourceVersionMatch";
        if !token.is_empty() {
            problems.forbidden(field, "resourceVersionMatch is forbidden when continue is provided");
        }
        if revision.is_empty() {
            problems.forbidden(
                field,
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            );
        }
        if !matches!(matching, "Exact" | "NotOlderThan") {
            problems.not_supported(field, &format!("{matching:?}"), r#""Exact", "NotOlderThan", """#);
        }
        if matching == "Exact" && revision == "0" {
            problems.forbidden(
                field,
                "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            );
        }
    }
    if initial_events {
        problems.forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list");
    }
    problems.end("ListOptions")
}

/// A text that is no resource version; callers differ in what they make of it.
#[derive(Debug, thiserror::Error)]
#[error("resourceVersion: Invalid value: {0:?}: strconv.ParseUint: parsing {0:?}: invalid syntax")]
pub struct RevisionError(String);

impl From<RevisionError> for Status {
    fn from(error: RevisionError) -> Status {
        Status::plain_error(error.to_string())
    }
}

pub fn parse_revision(text: &str) -> Result<Option<Revision>, RevisionError> {
    match text {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| RevisionError(text.to_string())),
    }
}

/// A continue token: at which revision the list is read, and the first key of the next page, relative to the list's
/// prefix. Opaque to clients, but Kubernetes' own form.
pub fn write_continue(revision: Revision, prefix: &str, last_key: &str) -> String {
    let last = last_key.strip_prefix(prefix).unwrap_or(last_key);
    // The first key after the last one shown is that one and a zero.
    let token = json!({"v": "meta.k8s.io/v1", "rv": revision, "start": format!("{last}\0")});
    URL_SAFE_NO_PAD.encode(token.to_string())
}

/// The revision (none: the newest) and the key, relative to the list's prefix, after which the page begins.
fn read_continue(token: &str) -> Result<(Option<Revision>, String), Status> {
    let bad = |why: &str| Status::bad_request(format!("invalid continue token: continue key is not valid: {why}"));
    let bytes = URL_SAFE_NO_PAD
        .decode(token.trim_end_matches('='))
        .map_err(|e| bad(&e.to_string()))?;
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|e| bad(&orlop_api::schema::json_syntax_error(&bytes).unwrap_or_else(|| e.to_string())))?;
    if value["v"] != "meta.k8s.io/v1" {
        let version = value["v"].as_str().unwrap_or("");
        return Err(bad(&format!(
            "server does not recognize this encoded version {version:?}"
        )));
    }
    let revision = value["rv"].as_i64().unwrap_or(0);
    if revision == 0 {
        return Err(bad("incorrect encoded start resourceVersion (version meta.k8s.io/v1)"));
    }
    let start = value["start"].as_str().unwrap_or("");
    if start.is_empty() {
        return Err(bad("encoded start key empty (version meta.k8s.io/v1)"));
    }
    if start.starts_with('/') || start.split('/').any(|part| part == "..") {
        return Err(bad(start));
    }
    // A negative revision: go on from this key in what is there now (after the first revision was compacted away).
    let after = start.strip_suffix('\0').unwrap_or(start);
    Ok((u64::try_from(revision).ok(), after.to_string()))
}

impl Registry {
    /// Waits until what a get or a list asks for can be read.
    pub async fn await_revision_of(&self, info: &RequestInfo) -> Result<(), Status> {
        // A page of a list that was begun elsewhere.
        if let Some(token) = info.query.get("continue").filter(|token| !token.is_empty())
            && let Ok((Some(revision), _)) = read_continue(token)
        {
            return self.await_revision(Some(revision)).await;
        }
        // What is no revision is refused where it is used.
        match parse_revision(info.query.get("resourceVersion").unwrap_or("")) {
            Ok(asked) => self.await_revision(asked).await,
            Err(_) => Ok(()),
        }
    }

    /// The same for a watch. One that begins at a revision of the future waits for it while it runs.
    pub async fn await_start(&self, info: &RequestInfo) -> Result<(), Status> {
        match parse_revision(info.query.get("resourceVersion").unwrap_or("")) {
            Ok(None) => self.await_revision(None).await,
            Ok(Some(asked)) => {
                let _ = self.await_revision(Some(asked)).await;
                Ok(())
            }
            Err(_) => Ok(()),
        }
    }

    /// The items a list request asks for.
    pub fn page(&self, kind: &'static KindDef, options: &ListOptions) -> Result<Page<Object>, Status> {
        let namespace = (!options.namespace.is_empty()).then_some(options.namespace.as_str());
        let mut prefix = kinds::key_prefix(kind, namespace);
        let start_after = options.start_after.as_ref().map(|start| format!("{prefix}{start}"));
        // A selector for one name needs no scan where the key is known.
        if let Some(name) = options.filter.exact_name()
            && (namespace.is_some() || !kind.namespaced)
        {
            prefix.push_str(name);
        }
        if let Ok(Some(newest)) = parse_revision(&options.resource_version)
            && newest > self.store.revision()
        {
            return Err(too_large_revision(newest, self.store.revision()));
        }
        let query = RangeQuery {
            prefix: &prefix,
            start_after: start_after.as_deref(),
            at: options.at,
            limit: (options.limit > 0).then_some(options.limit),
            ..RangeQuery::default()
        };
        let mut keep = |item: &Item<Object>| options.filter.matches(kind, item);
        self.store.range(query, &mut keep).map_err(|e| match e {
            RangeError::Compacted { .. } if options.start_after.is_some() => self.expired_page(options),
            RangeError::Compacted { .. } => expired(),
            RangeError::Future { current } => too_large_revision(options.at.unwrap_or(0), current),
        })
    }

    /// The same, the objects in the version that is asked for.
    pub async fn presented_page(&self, kind: &'static KindDef, options: &ListOptions) -> Result<Page<Object>, Status> {
        let mut rough = ListOptions {
            filter: options.filter.from_outside(),
            ..options.clone()
        };
        let namespace = (!options.namespace.is_empty()).then_some(options.namespace.as_str());
        let prefix = kinds::key_prefix(kind, namespace);
        let mut kept = vec![];
        loop {
            let mut page = self.page(kind, &rough)?;
            let last = page.items.last().map(|item| item.key.clone());
            let mut items = self.present_all(kind, page.items).await?;
            if options.filter.looks_inside() {
                items.retain(|item| options.filter.matches(kind, item));
            }
            kept.extend(items);
            let is_full = options.limit > 0 && kept.len() >= options.limit;
            match last.filter(|_| page.more && !is_full && options.filter.looks_inside()) {
                Some(last) => {
                    rough.start_after = Some(last.strip_prefix(&prefix).unwrap_or(&last).to_string());
                    rough.at = Some(page.revision);
                }
                None => {
                    if options.limit > 0 && kept.len() > options.limit {
                        kept.truncate(options.limit);
                        page.more = true;
                    }
                    page.items = kept;
                    return Ok(page);
                }
            }
        }
    }

    /// The revision of a continued list is gone: say so, with a token that goes on at the newest one.
    fn expired_page(&self, options: &ListOptions) -> Status {
        let start = options.start_after.as_deref().unwrap_or("");
        let token = json!({"v": "meta.k8s.io/v1", "rv": -1, "start": format!("{start}\0")});
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

pub fn too_large_revision(asked: Revision, current: Revision) -> Status {
    let mut status = Status::timeout(format!(
        "Timeout: Too large resource version: {asked}, current: {current}"
    ));
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
        let token = write_continue(42, "/registry/pods/", "/registry/pods/default/a b");
        assert_eq!(read_continue(&token).unwrap(), (Some(42), "default/a b".to_string()));
        let escape = URL_SAFE_NO_PAD.encode(r#"{"v":"meta.k8s.io/v1","rv":1,"start":"../a"}"#);
        for bad in ["", "x", "e30", "!!!!", "eyJ2IjoxfQ", &escape] {
            assert_eq!(read_continue(bad).unwrap_err().code, 400, "{bad}");
        }
    }

    #[test]
    fn list_options_that_contradict_each_other_are_named_all_at_once() {
        assert!(check_list("", "", "", false).is_ok() && check_list("NotOlderThan", "7", "", false).is_ok());
        let status = check_list("Foo", "", "x", true).unwrap_err();
        assert_eq!(status.code, 422);
        assert_eq!(status.details.map(|d| d.causes.len()), Some(4));
        let status = check_list("Exact", "0", "", false).unwrap_err();
        assert_eq!(
            status.message,
            "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""
        );
    }

    #[test]
    fn unknown_fields_are_refused_in_the_words_of_the_kind() {
        for (plural, group, wanted) in [
            (
                "configmaps",
                "",
                "\"x\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
            ),
            ("pods", "", "field label not supported: x"),
            ("jobs", "batch", "field label \"x\" not supported for Job"),
        ] {
            let kind = kinds::of_resource(group, "v1", plural).unwrap();
            assert_eq!(Filter::parse(kind, "", "x=y").unwrap_err().message, wanted);
        }
    }
}

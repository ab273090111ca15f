//! What every verb knows of the request it serves.

use std::collections::BTreeMap;

use http::HeaderMap;
use jiff::Timestamp;
use orlop_api::{Path, ProblemKind, Problems, Status};
use parking_lot::Mutex;

use crate::authn::UserInfo;
use crate::request::{Query, RequestInfo};

/// What is said about a request on its way: advice for the client, sent as `Warning:` headers, and annotations for the audit
/// log. Collected from anywhere in the request, without order or doubles.
#[derive(Default)]
pub struct Warnings {
    texts: Mutex<Vec<String>>,
    annotations: Mutex<BTreeMap<String, String>>,
    /// Annotations that say what the request's object was, for logs that hold that.
    request_annotations: Mutex<BTreeMap<String, String>>,
}

/// Bounds of what one request may say.
const MAX_ANNOTATIONS: usize = 200;
const MAX_ANNOTATION_BYTES: usize = 10 << 10;
/// A patch is recorded whole or not at all.
const MAX_PATCH_BYTES: usize = 256 << 10;

impl Warnings {
    pub fn add(&self, text: impl Into<String>) {
        let text = text.into();
        let mut list = self.texts.lock();
        // Kubernetes stops at 4 KiB or so of warnings; a client reads the first few only.
        if list.len() < 50 && !list.contains(&text) {
            list.push(text);
        }
    }

    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.texts.lock())
    }

    /// Adds an annotation for the audit log. The first of a name stays, and the name must be a qualified one.
    pub fn annotate(&self, key: String, mut value: String) {
        let qualified = key
            .split_once('/')
            .is_some_and(|(prefix, name)| !prefix.is_empty() && !name.is_empty());
        if !qualified || !orlop_api::names::qualified_name(&key).is_empty() {
            tracing::warn!(key, "failed to set audit annotation: not a qualified name");
            return;
        }
        if value.len() > MAX_ANNOTATION_BYTES {
            value.truncate(value.floor_char_boundary(MAX_ANNOTATION_BYTES));
        }
        let mut annotations = self.annotations.lock();
        if annotations.len() < MAX_ANNOTATIONS {
            annotations.entry(key).or_insert(value);
        }
    }

    /// Adds an annotation for an audit log at level Request or above.
    pub fn annotate_request(&self, key: String, value: String) {
        let mut annotations = self.request_annotations.lock();
        if annotations.len() < MAX_ANNOTATIONS && value.len() <= MAX_PATCH_BYTES {
            annotations.entry(key).or_insert(value);
        }
    }

    pub fn take_annotations(&self) -> BTreeMap<String, String> {
        std::mem::take(&mut *self.annotations.lock())
    }

    pub fn take_request_annotations(&self) -> BTreeMap<String, String> {
        std::mem::take(&mut *self.request_annotations.lock())
    }
}

/// The request, as far as verbs care.
pub struct Context<'r> {
    pub info: &'r RequestInfo,
    pub user: &'r UserInfo,
    pub headers: &'r HeaderMap,
    pub now: Timestamp,
    pub options: WriteOptions,
    pub warnings: &'r Warnings,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

/// The query parameters that all writes share.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    pub dry_run: bool,
    pub manager: String,
    pub field_validation: FieldValidation,
    /// Server-side apply only.
    pub force: Option<bool>,
    /// The server creates an object of its own, whose status is known already.
    pub keep_status: bool,
}

/// What is wrong with the options of a request, collected: `CreateOptions.meta.k8s.io "" is invalid: …`.
#[derive(Default)]
pub struct OptionProblems(Problems);

impl OptionProblems {
    pub fn forbidden(&mut self, field: &'static str, detail: &str) {
        self.push(ProblemKind::Forbidden, field, None, detail.to_string());
    }

    /// `shown` is the value as it stands in the message, `supported` the list of what would do.
    pub fn not_supported(&mut self, field: &'static str, shown: &str, supported: &str) {
        let detail = format!("supported values: {supported}");
        self.push(ProblemKind::NotSupported, field, Some(shown.to_string()), detail);
    }

    pub fn push(&mut self, kind: ProblemKind, field: &'static str, value: Option<String>, detail: String) {
        self.0.push(kind, &Path::default().field(field), value, detail);
    }

    /// `kind` is that of the options.
    pub fn end(self, kind: &str) -> Result<(), Status> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(Status::invalid("meta.k8s.io", kind, "", &self.0)),
        }
    }
}

impl WriteOptions {
    /// The options of a verb; `is_apply` for a server-side apply, which needs a manager and may be forced.
    pub fn parse(verb: &str, is_apply: bool, query: &Query, headers: &HeaderMap) -> Result<WriteOptions, Status> {
        let mut problems = OptionProblems::default();
        let given = query.get("fieldManager").unwrap_or("");
        let force = query.get("force").map(|_| query.flag("force"));
        if verb == "patch" && is_apply && given.is_empty() {
            let detail = "is required for apply patch".to_string();
            problems.push(ProblemKind::Required, "fieldManager", None, detail);
        }
        if verb == "patch" && !is_apply && force.is_some() {
            problems.forbidden("force", "may not be specified for non-apply patch");
        }
        check_manager(given, &mut problems);
        let dry_run = dry_run(query.all("dryRun"), &mut problems);
        let field_validation = match query.get("fieldValidation") {
            None | Some("" | "Warn") => FieldValidation::Warn,
            Some("Strict") => FieldValidation::Strict,
            Some("Ignore") => FieldValidation::Ignore,
            Some(other) => {
                let supported = r#""", "Ignore", "Strict", "Warn""#;
                problems.not_supported("fieldValidation", &format!("{other:?}"), supported);
                FieldValidation::Warn
            }
        };
        problems.end(match verb {
            "create" => "CreateOptions",
            "update" => "UpdateOptions",
            "patch" => "PatchOptions",
            _ => "DeleteOptions",
        })?;
        let manager = if given.is_empty() {
            manager_of(headers)
        } else {
            given.to_string()
        };
        Ok(WriteOptions {
            dry_run,
            manager,
            field_validation,
            force,
            keep_status: false,
        })
    }
}

/// Whether it is a dry run. "All" is the one way there is.
pub fn dry_run<'a>(values: impl Iterator<Item = &'a str>, problems: &mut OptionProblems) -> bool {
    let values: Vec<&str> = values.collect();
    if values.iter().any(|v| *v != "All") {
        let shown = serde_json::to_string(&values).expect("a list of strings is JSON");
        problems.not_supported("dryRun", &shown, "\"All\"");
    }
    values.contains(&"All")
}

fn check_manager(name: &str, problems: &mut OptionProblems) {
    if name.len() > 128 {
        let detail = "may not be more than 128 bytes".to_string();
        problems.push(ProblemKind::TooLong, "fieldManager", None, detail);
    }
    for (at, c) in name.char_indices().filter(|(_, c)| c.is_control()) {
        let detail = format!("invalid character U+{:04X} (at position {at})", c as u32);
        let shown: String = name
            .chars()
            .map(|c| {
                if c.is_control() {
                    format!("\\x{:02x}", c as u32)
                } else {
                    c.to_string()
                }
            })
            .collect();
        problems.push(
            ProblemKind::Invalid,
            "fieldManager",
            Some(format!("\"{shown}\"")),
            detail,
        );
    }
}

/// The field manager where none is given: the first word of the user agent.
fn manager_of(headers: &HeaderMap) -> String {
    let agent = headers
        .get(http::header::USER_AGENT)
        .and_then(|v| v.to_str().ok())
        .unwrap_or("");
    let first = agent.split('/').next().unwrap_or("");
    let name: String = first.chars().filter(|c| !c.is_control()).take(128).collect();
    if name.is_empty() { "unknown".to_string() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_judged_by_the_verb() {
        let parse = |verb, apply, query| {
            let parsed = WriteOptions::parse(verb, apply, &Query::parse(query), &HeaderMap::new());
            parsed.map_err(|status| status.message)
        };
        let good = parse("create", false, "dryRun=All&fieldManager=me&fieldValidation=Strict").unwrap();
        assert!(good.dry_run && good.manager == "me" && good.field_validation == FieldValidation::Strict);
        for (verb, apply, query, wanted) in [
            (
                "create",
                false,
                "dryRun=Foo",
                r#"CreateOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: ["Foo"]: supported values: "All""#,
            ),
            (
                "patch",
                true,
                "",
                r#"PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch"#,
            ),
            (
                "patch",
                false,
                "force=true&fieldManager=%01",
                r#"PatchOptions.meta.k8s.io "" is invalid: [force: Forbidden: may not be specified for non-apply patch, fieldManager: Invalid value: "\x01": invalid character U+0001 (at position 0)]"#,
            ),
            (
                "update",
                false,
                "fieldValidation=Foo",
                r#"UpdateOptions.meta.k8s.io "" is invalid: fieldValidation: Unsupported value: "Foo": supported values: "", "Ignore", "Strict", "Warn""#,
            ),
        ] {
            assert_eq!(parse(verb, apply, query).unwrap_err(), wanted);
        }
    }
}

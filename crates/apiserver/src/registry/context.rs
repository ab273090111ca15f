//! What every verb knows of the request it serves.

use http::HeaderMap;
use jiff::Timestamp;
use orlop_api::Status;
use parking_lot::Mutex;

use crate::authn::UserInfo;
use crate::request::{Query, RequestInfo};

/// Advice for the client, sent as `Warning:` headers. Collected from anywhere in the request, without order or doubles.
#[derive(Default)]
pub struct Warnings(Mutex<Vec<String>>);

impl Warnings {
    pub fn add(&self, text: impl Into<String>) {
        let text = text.into();
        let mut list = self.0.lock();
        // Kubernetes stops at 4 KiB or so of warnings; a client reads the first few only.
        if list.len() < 50 && !list.contains(&text) {
            list.push(text);
        }
    }

    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock())
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
}

impl WriteOptions {
    pub fn parse(query: &Query, headers: &HeaderMap) -> Result<WriteOptions, Status> {
        Ok(WriteOptions {
            dry_run: dry_run(query.all("dryRun"))?,
            manager: manager(query.get("fieldManager"), headers)?,
            field_validation: match query.get("fieldValidation") {
                None | Some("" | "Warn") => FieldValidation::Warn,
                Some("Strict") => FieldValidation::Strict,
                Some("Ignore") => FieldValidation::Ignore,
                Some(other) => {
                    return Err(bad_option(format!(
                        "fieldValidation: Unsupported value: {other:?}: supported values: \"Ignore\", \"Strict\", \"Warn\""
                    )));
                }
            },
            force: query.get("force").map(|_| query.flag("force")),
        })
    }
}

fn bad_option(detail: String) -> Status {
    Status::new(
        422,
        "Invalid",
        format!("PatchOptions.meta.k8s.io \"\" is invalid: {detail}"),
    )
}

pub fn dry_run<'a>(values: impl Iterator<Item = &'a str>) -> Result<bool, Status> {
    let mut dry = false;
    for value in values {
        match value {
            "All" => dry = true,
            "" => {}
            other => {
                return Err(bad_option(format!(
                    "dryRun: Unsupported value: {other:?}: supported values: \"All\""
                )));
            }
        }
    }
    Ok(dry)
}

/// The field manager: as given, or the first word of the user agent.
fn manager(given: Option<&str>, headers: &HeaderMap) -> Result<String, Status> {
    match given {
        Some(name) if !name.is_empty() => {
            if name.len() > 128 {
                return Err(bad_option(
                    "fieldManager: Too long: may not be more than 128 bytes".to_string(),
                ));
            }
            if name.chars().any(char::is_control) {
                return Err(bad_option(format!(
                    "fieldManager: Invalid value: {name:?}: should only contain printable characters"
                )));
            }
            Ok(name.to_string())
        }
        _ => {
            let agent = headers
                .get(http::header::USER_AGENT)
                .and_then(|v| v.to_str().ok())
                .unwrap_or("");
            let first = agent.split('/').next().unwrap_or("");
            let name: String = first.chars().filter(|c| !c.is_control()).take(128).collect();
            Ok(if name.is_empty() { "unknown".to_string() } else { name })
        }
    }
}

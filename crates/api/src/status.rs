//! What goes wrong, in Kubernetes' words: `metav1.Status` with its reasons and codes. Inner layers make one of these;
//! only the HTTP layer turns it into bytes.

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::field::Problems;

/// A refusal or failure. `Display` is the message.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Status {
    pub code: u16,
    pub reason: Cow<'static, str>,
    pub message: String,
    pub details: Option<Box<Details>>,
    /// For an expired list: a token with which the client may go on at the newest revision.
    pub continue_token: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub struct Details {
    pub name: String,
    pub group: String,
    /// The resource (plural) for most errors, the kind for validation errors: as Kubernetes has it.
    pub kind: String,
    pub uid: String,
    pub causes: Vec<Cause>,
    pub retry_after_seconds: u32,
}

#[derive(Clone, Debug)]
pub struct Cause {
    pub reason: String,
    pub message: String,
    pub field: String,
}

/// "pods" or "deployments.apps", as it stands in messages.
pub fn qualified(group: &str, resource: &str) -> String {
    if group.is_empty() {
        resource.to_string()
    } else {
        format!("{resource}.{group}")
    }
}

impl Status {
    pub fn new(code: u16, reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Status {
        Status {
            code,
            reason: reason.into(),
            message: message.into(),
            details: None,
            continue_token: None,
        }
    }

    fn about(mut self, group: &str, kind: &str, name: &str) -> Status {
        let details = self.details.get_or_insert_default();
        details.group = group.into();
        details.kind = kind.into();
        details.name = name.into();
        self
    }

    pub fn bad_request(message: impl Into<String>) -> Status {
        Status::new(400, "BadRequest", message)
    }

    pub fn unauthorized() -> Status {
        Status::new(401, "Unauthorized", "Unauthorized")
    }

    pub fn not_found(group: &str, resource: &str, name: &str) -> Status {
        Status::new(
            404,
            "NotFound",
            format!("{} {name:?} not found", qualified(group, resource)),
        )
        .about(group, resource, name)
    }

    /// No such path or resource at all.
    pub fn no_such_resource() -> Status {
        let mut status = Status::new(404, "NotFound", "the server could not find the requested resource");
        status.details = Some(Box::default());
        status
    }

    pub fn already_exists(group: &str, resource: &str, name: &str) -> Status {
        Status::new(
            409,
            "AlreadyExists",
            format!("{} {name:?} already exists", qualified(group, resource)),
        )
        .about(group, resource, name)
    }

    pub fn conflict(group: &str, resource: &str, name: &str, why: impl std::fmt::Display) -> Status {
        let what = qualified(group, resource);
        Status::new(
            409,
            "Conflict",
            format!("Operation cannot be fulfilled on {what} {name:?}: {why}"),
        )
        .about(group, resource, name)
    }

    /// The usual lost race.
    pub fn modified(group: &str, resource: &str, name: &str) -> Status {
        Status::conflict(
            group,
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub fn forbidden(group: &str, resource: &str, name: &str, why: impl std::fmt::Display) -> Status {
        let what = qualified(group, resource);
        let message = match (resource, name) {
            ("", _) => format!("forbidden: {why}"),
            (_, "") => format!("{what} is forbidden: {why}"),
            _ => format!("{what} {name:?} is forbidden: {why}"),
        };
        Status::new(403, "Forbidden", message).about(group, resource, name)
    }

    /// All validation problems of an object at once. `kind` is the kind, not the resource.
    pub fn invalid(group: &str, kind: &str, name: &str, problems: &Problems) -> Status {
        let mut texts: Vec<String> = problems.0.iter().map(|p| p.to_string()).collect();
        if problems.untold() > 0 {
            texts.push(format!("... and {} more", problems.untold()));
        }
        let list = match texts.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let what = qualified(group, kind);
        let mut status = Status::new(422, "Invalid", format!("{what} {name:?} is invalid: {list}"));
        let causes = problems
            .0
            .iter()
            .map(|p| Cause {
                reason: p.kind.reason().into(),
                message: p.body(),
                field: match p.field.as_str() {
                    "" => "<nil>".into(),
                    field => field.into(),
                },
            })
            .collect();
        status.details = Some(Box::new(Details {
            name: name.into(),
            group: group.into(),
            kind: kind.into(),
            causes,
            ..Default::default()
        }));
        status
    }

    pub fn expired(message: impl Into<String>) -> Status {
        Status::new(410, "Expired", message)
    }

    pub fn method_not_allowed() -> Status {
        let message = "the server does not allow this method on the requested resource";
        let mut status = Status::new(405, "MethodNotAllowed", message);
        status.details = Some(Box::default());
        status
    }

    /// A failure that Kubernetes reports by its text alone, without a reason.
    pub fn plain_error(message: impl Into<String>) -> Status {
        Status::new(500, "", message)
    }

    pub fn not_acceptable(message: impl Into<String>) -> Status {
        Status::new(406, "NotAcceptable", message)
    }

    pub fn unsupported_media_type(message: impl Into<String>) -> Status {
        Status::new(415, "UnsupportedMediaType", message)
    }

    pub fn too_large(message: impl Into<String>) -> Status {
        Status::new(413, "RequestEntityTooLarge", message)
    }

    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Status {
        let mut status = Status::new(429, "TooManyRequests", message);
        status.details = Some(Box::new(Details {
            retry_after_seconds,
            ..Default::default()
        }));
        status
    }

    pub fn internal(message: impl std::fmt::Display) -> Status {
        let mut status = Status::new(500, "InternalError", format!("Internal error occurred: {message}"));
        let cause = Cause {
            reason: String::new(),
            message: message.to_string(),
            field: String::new(),
        };
        status.details = Some(Box::new(Details {
            causes: vec![cause],
            ..Default::default()
        }));
        status
    }

    pub fn unavailable(message: impl Into<String>) -> Status {
        Status::new(503, "ServiceUnavailable", message)
    }

    pub fn timeout(message: impl Into<String>) -> Status {
        Status::new(504, "Timeout", message)
    }

    /// What another server said in a `metav1.Status` object; `code` where it names none.
    pub fn from_value(value: &Value, code: u16) -> Status {
        let text = |value: &Value, name: &str| value[name].as_str().unwrap_or("").to_string();
        let given = value["code"].as_u64().filter(|given| *given > 0);
        let mut status = Status::new(
            given.and_then(|given| given.try_into().ok()).unwrap_or(code),
            text(value, "reason"),
            text(value, "message"),
        );
        let details = &value["details"];
        if details.is_object() {
            let causes = details["causes"].as_array().into_iter().flatten();
            let cause = |cause: &Value| Cause {
                reason: text(cause, "reason"),
                message: text(cause, "message"),
                field: text(cause, "field"),
            };
            let retry_after = details["retryAfterSeconds"].as_u64();
            status.details = Some(Box::new(Details {
                name: text(details, "name"),
                group: text(details, "group"),
                kind: text(details, "kind"),
                uid: text(details, "uid"),
                causes: causes.map(cause).collect(),
                retry_after_seconds: retry_after.and_then(|n| n.try_into().ok()).unwrap_or(0),
            }));
        }
        status
    }

    /// The `metav1.Status` object.
    pub fn to_value(&self) -> Value {
        let mut value = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            value["reason"] = self.reason.as_ref().into();
        }
        if let Some(token) = &self.continue_token {
            value["metadata"]["continue"] = token.clone().into();
        }
        if let Some(details) = &self.details {
            value["details"] = details.to_value();
        }
        value
    }
}

impl Details {
    fn to_value(&self) -> Value {
        let mut map = serde_json::Map::new();
        for (key, text) in [
            ("name", &self.name),
            ("group", &self.group),
            ("kind", &self.kind),
            ("uid", &self.uid),
        ] {
            if !text.is_empty() {
                map.insert(key.into(), text.clone().into());
            }
        }
        if !self.causes.is_empty() {
            map.insert("causes".into(), self.causes.iter().map(Cause::to_value).collect());
        }
        if self.retry_after_seconds > 0 {
            map.insert("retryAfterSeconds".into(), self.retry_after_seconds.into());
        }
        Value::Object(map)
    }
}

impl Cause {
    fn to_value(&self) -> Value {
        let mut map = serde_json::Map::new();
        for (key, text) in [
            ("reason", &self.reason),
            ("message", &self.message),
            ("field", &self.field),
        ] {
            if !text.is_empty() {
                map.insert(key.into(), text.clone().into());
            }
        }
        Value::Object(map)
    }
}

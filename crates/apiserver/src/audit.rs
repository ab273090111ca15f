//! The audit log: one JSON line (`audit.k8s.io/v1` Event, level Metadata) for each finished request.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use jiff::Timestamp;
use orlop_base::clock::rfc3339_micro;
use parking_lot::Mutex;
use serde_json::json;

use crate::authn::UserInfo;
use crate::request::RequestInfo;

pub struct AuditLog {
    file: Mutex<File>,
}

impl AuditLog {
    pub fn open(path: &Path) -> std::io::Result<AuditLog> {
        use std::os::unix::fs::OpenOptionsExt;
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        Ok(AuditLog { file: Mutex::new(file) })
    }

    pub fn record(
        &self,
        info: &RequestInfo,
        method_path: &str,
        user: Option<&UserInfo>,
        code: u16,
        start: Timestamp,
        end: Timestamp,
    ) {
        let mut event = json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata",
            "auditID": uuid::Uuid::new_v4().to_string(), "stage": "ResponseComplete",
            "requestURI": method_path, "verb": info.verb,
            "user": user.map(UserInfo::to_value).unwrap_or_else(|| json!({})),
            "responseStatus": {"metadata": {}, "code": code},
            "requestReceivedTimestamp": rfc3339_micro(start), "stageTimestamp": rfc3339_micro(end),
        });
        if info.is_resource {
            let mut object = json!({"resource": info.resource, "apiVersion": info.version});
            let parts = [
                ("namespace", &info.namespace),
                ("name", &info.name),
                ("apiGroup", &info.group),
                ("subresource", &info.subresource),
            ];
            for (name, text) in parts {
                if !text.is_empty() {
                    object[name] = text.as_str().into();
                }
            }
            event["objectRef"] = object;
        }
        // One write a line, so that lines never mix. A full disk must not stop the API: it is reported once a request.
        if let Err(e) = self.file.lock().write_all(format!("{event}\n").as_bytes()) {
            tracing::warn!("the audit log can't be written: {e}");
        }
    }
}

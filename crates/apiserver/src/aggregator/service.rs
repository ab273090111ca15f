//! What an APIService says, read once. Pure.

use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use orlop_api::Value;
use orlop_base::clock::rfc3339;
use serde_json::json;

use crate::lookup::{items, text};

/// A port of a service, behind which an extension API server is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ServiceRef {
    pub namespace: String,
    pub name: String,
    pub port: u16,
}

impl ServiceRef {
    /// The name that its certificate must hold.
    pub(crate) fn host(&self) -> String {
        format!("{}.{}.svc", self.name, self.namespace)
    }
}

impl fmt::Display for ServiceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.namespace, self.name, self.port)
    }
}

/// The condition `Available`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub status: String,
    pub reason: String,
    pub message: String,
}

impl Condition {
    fn new(status: &str, reason: &str, message: impl Into<String>) -> Condition {
        Condition {
            status: status.into(),
            reason: reason.into(),
            message: message.into(),
        }
    }

    pub(crate) fn passed() -> Condition {
        Condition::new("True", "Passed", "all checks passed")
    }

    pub(crate) fn local() -> Condition {
        Condition::new("True", "Local", "Local APIServices are always available")
    }

    pub(crate) fn unavailable(reason: &str, message: impl Into<String>) -> Condition {
        Condition::new("False", reason, message)
    }

    pub(crate) fn is_true(&self) -> bool {
        self.status == "True"
    }

    /// Puts the condition into an APIService. The time is that of the last change of its status.
    pub(crate) fn write(&self, service: &mut Value, now: Timestamp) {
        let mut conditions = items(service, &["status", "conditions"]).to_vec();
        let place = conditions.iter().position(|c| text(c, &["type"]) == "Available");
        let before = place.map(|i| conditions[i].clone()).unwrap_or_default();
        let since = match text(&before, &["status"]) == self.status {
            true => before["lastTransitionTime"].clone(),
            false => rfc3339(now).into(),
        };
        let condition = json!({
            "type": "Available", "status": self.status, "lastTransitionTime": since,
            "reason": self.reason, "message": self.message,
        });
        match place {
            Some(i) => conditions[i] = condition,
            None => conditions.push(condition),
        }
        service["status"]["conditions"] = conditions.into();
    }
}

/// An APIService object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiService {
    pub name: String,
    pub group: String,
    pub version: String,
    pub group_priority: i64,
    pub version_priority: i64,
    /// Who serves it; none: this server.
    pub service: Option<ServiceRef>,
    pub trust: Trusted,
    pub condition: Option<Condition>,
}

/// Which certificates an extension API server may show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trusted {
    /// In PEM; if empty, the authorities that this machine trusts.
    pub ca_bundle: Vec<u8>,
    /// Any certificate at all.
    pub insecure: bool,
}

impl ApiService {
    pub(crate) fn read(object: &Value) -> ApiService {
        let spec = |name: &str| text(object, &["spec", name]).to_string();
        let number = |name: &str| object["spec"][name].as_i64().unwrap_or(0);
        let reference = |reference: &Value| ServiceRef {
            namespace: text(reference, &["namespace"]).to_string(),
            name: text(reference, &["name"]).to_string(),
            port: reference["port"]
                .as_u64()
                .and_then(|p| p.try_into().ok())
                .unwrap_or(443),
        };
        let conditions = items(object, &["status", "conditions"]);
        let available = conditions.iter().find(|c| text(c, &["type"]) == "Available");
        ApiService {
            name: text(object, &["metadata", "name"]).to_string(),
            group: spec("group"),
            version: spec("version"),
            group_priority: number("groupPriorityMinimum"),
            version_priority: number("versionPriority"),
            service: object.pointer("/spec/service").filter(|s| s.is_object()).map(reference),
            trust: Trusted {
                ca_bundle: BASE64_STANDARD.decode(spec("caBundle")).unwrap_or_default(),
                insecure: object["spec"]["insecureSkipTLSVerify"] == true,
            },
            condition: available.map(|c| Condition {
                status: text(c, &["status"]).to_string(),
                reason: text(c, &["reason"]).to_string(),
                message: text(c, &["message"]).to_string(),
            }),
        }
    }

    pub(crate) fn is_available(&self) -> bool {
        self.condition.as_ref().is_some_and(Condition::is_true)
    }

    /// Whether requests can be given away at all. Differs from upstream in the core group: an APIService that gave `/api/v1`
    /// to a service would cut every component off from the objects that lead to that service.
    pub(crate) fn is_delegated(&self) -> bool {
        self.service.is_some() && !self.group.is_empty() && self.group != orlop_api::apiregistration::GROUP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_services_are_read() {
        let object = json!({
            "metadata": {"name": "v1.g.io"},
            "spec": {"group": "g.io", "version": "v1", "groupPriorityMinimum": 2000, "versionPriority": 15,
                "caBundle": "aGk=", "service": {"namespace": "a", "name": "b"}},
            "status": {"conditions": [{"type": "Available", "status": "False", "reason": "R", "message": "m"}]},
        });
        let service = ApiService::read(&object);
        let reference = service.service.clone().unwrap();
        assert_eq!(
            (reference.to_string().as_str(), reference.host().as_str()),
            ("a/b:443", "b.a.svc")
        );
        assert_eq!(service.trust.ca_bundle, b"hi");
        assert!(service.is_delegated() && !service.is_available());
        let local = json!({"metadata": {"name": "v1.g.io"}, "spec": {"group": "g.io", "version": "v1"}});
        assert!(!ApiService::read(&local).is_delegated());
        for group in ["", "apiregistration.k8s.io"] {
            let mut object = object.clone();
            object["spec"]["group"] = group.into();
            assert!(!ApiService::read(&object).is_delegated(), "{group:?}");
        }
    }

    #[test]
    fn conditions_keep_the_time_of_their_last_change() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let mut service = json!({"status": {"conditions": [{"type": "Other", "status": "True"}]}});
        let since = |service: &Value| service["status"]["conditions"][1]["lastTransitionTime"].clone();
        Condition::passed().write(&mut service, at(0));
        assert_eq!(since(&service), "1970-01-01T00:00:00Z");
        assert_eq!(service["status"]["conditions"][0]["type"], "Other");
        Condition::local().write(&mut service, at(5));
        assert_eq!(since(&service), "1970-01-01T00:00:00Z");
        assert_eq!(service["status"]["conditions"][1]["reason"], "Local");
        Condition::unavailable("MissingEndpoints", "m").write(&mut service, at(9));
        assert_eq!(since(&service), "1970-01-01T00:00:09Z");
        assert_eq!(service["status"]["conditions"].as_array().unwrap().len(), 2);
    }
}

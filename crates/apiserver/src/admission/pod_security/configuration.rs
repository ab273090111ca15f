//! What the server's operator says of pod security: the policy of namespaces that say nothing, and who is exempt.
//! Upstream: pod-security-admission/admission/api (v1.36).

use orlop_api::Value;

use super::policy::{ANYTHING, Level, Policy, Standard, Version};
use crate::lookup::{items, text};

const KIND: &str = "PodSecurityConfiguration";
const GROUP: &str = "pod-security.admission.config.k8s.io/";

/// `PodSecurityConfiguration`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSecurityConfiguration {
    pub(super) defaults: Policy,
    users: Vec<String>,
    namespaces: Vec<String>,
    runtime_classes: Vec<String>,
}

impl Default for PodSecurityConfiguration {
    fn default() -> Self {
        PodSecurityConfiguration {
            defaults: Policy {
                enforce: ANYTHING,
                audit: ANYTHING,
                warn: ANYTHING,
            },
            users: vec![],
            namespaces: vec![],
            runtime_classes: vec![],
        }
    }
}

/// A file that does not say it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(in super::super) struct ConfigurationError(String);

impl PodSecurityConfiguration {
    /// From the file's object; or what is wrong with it.
    pub(in super::super) fn read(object: &Value) -> Result<PodSecurityConfiguration, ConfigurationError> {
        let (version, kind) = (text(object, &["apiVersion"]), text(object, &["kind"]));
        if kind != KIND || !version.starts_with(GROUP) {
            return Err(ConfigurationError(format!("{version:?} {kind:?} is no {KIND}")));
        }
        let standard = |mode: &str| {
            let word = |field: &str| Some(text(object, &["defaults", field])).filter(|word| !word.is_empty());
            let wrong = |field: &str, why: &str| ConfigurationError(format!("defaults.{field}: {why}"));
            let version = format!("{mode}-version");
            Ok::<_, ConfigurationError>(Standard {
                level: word(mode)
                    .map_or(Ok(Level::Privileged), Level::parse)
                    .map_err(|why| wrong(mode, why))?,
                version: word(&version)
                    .map_or(Ok(Version::Latest), Version::parse)
                    .map_err(|why| wrong(&version, why))?,
            })
        };
        let names = |list: &str| -> Vec<String> {
            let items = items(object, &["exemptions", list]);
            items.iter().filter_map(Value::as_str).map(str::to_string).collect()
        };
        Ok(PodSecurityConfiguration {
            defaults: Policy {
                enforce: standard("enforce")?,
                audit: standard("audit")?,
                warn: standard("warn")?,
            },
            users: names("usernames"),
            namespaces: names("namespaces"),
            runtime_classes: names("runtimeClasses"),
        })
    }

    pub(super) fn exempts_namespace(&self, namespace: &str) -> bool {
        self.namespaces.iter().any(|exempt| exempt == namespace)
    }

    pub(super) fn exempts_user(&self, user: &str) -> bool {
        self.users.iter().any(|exempt| exempt == user)
    }

    /// By the spec of a pod or of a template.
    pub(super) fn exempts_class(&self, spec: &Value) -> bool {
        let class = text(spec, &["runtimeClassName"]);
        !class.is_empty() && self.runtime_classes.iter().any(|exempt| exempt == class)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::fixture::Desk;
    use super::super::PLUGIN;
    use super::*;

    fn configuration() -> Value {
        json!({
            "apiVersion": "pod-security.admission.config.k8s.io/v1", "kind": "PodSecurityConfiguration",
            "defaults": {"enforce": "baseline", "enforce-version": "v1.30", "warn": "restricted"},
            "exemptions": {"usernames": ["root"], "namespaces": ["free"], "runtimeClasses": ["sandboxed"]},
        })
    }

    #[test]
    fn files_are_read_or_told_what_is_wrong() {
        let read = PodSecurityConfiguration::read(&configuration()).unwrap();
        assert_eq!(read.defaults.enforce.to_string(), "baseline:v1.30");
        assert_eq!(read.defaults.warn.to_string(), "restricted:latest");
        assert_eq!(read.defaults.audit, ANYTHING);
        for (change, message) in [
            (
                json!({"kind": "Pod"}),
                r#""pod-security.admission.config.k8s.io/v1" "Pod" is no PodSecurityConfiguration"#,
            ),
            (
                json!({"defaults": {"audit": "none"}}),
                "defaults.audit: must be one of privileged, baseline, restricted",
            ),
            (
                json!({"defaults": {"warn-version": "1.30"}}),
                "defaults.warn-version: must be \"latest\" or \"v1.x\"",
            ),
        ] {
            let mut object = configuration();
            object
                .as_object_mut()
                .unwrap()
                .extend(change.as_object().unwrap().clone());
            assert_eq!(PodSecurityConfiguration::read(&object).unwrap_err().0, message);
        }
    }

    #[test]
    fn namespaces_that_say_nothing_have_the_defaults_and_the_exempt_have_none() {
        let pod = |class: &str| {
            let mut spec = json!({"containers": [{"name": "c", "securityContext": {"privileged": true}}]});
            if !class.is_empty() {
                spec["runtimeClassName"] = class.into();
            }
            json!({"metadata": {"name": "p"}, "spec": spec})
        };
        for (namespace, user, class, refused) in [
            ("ns", "alice", "", true),
            ("lax", "alice", "", false),
            ("free", "alice", "", false),
            ("ns", "root", "", false),
            ("ns", "alice", "sandboxed", false),
            ("ns", "alice", "other", true),
        ] {
            let lax = json!({"metadata": {"name": "lax", "labels": {
                "pod-security.kubernetes.io/enforce": "privileged", "pod-security.kubernetes.io/warn": "privileged",
            }}});
            let mut desk = Desk::new()
                .with("namespaces", lax)
                .with("namespaces", json!({"metadata": {"name": "free"}}))
                .user(user, &[]);
            desk.config.admission.pod_security = PodSecurityConfiguration::read(&configuration()).unwrap();
            let mut pod = pod(class);
            pod["metadata"]["namespace"] = namespace.into();
            let result = desk.create(&PLUGIN, "pods", pod);
            assert_eq!(result.is_err(), refused, "{namespace} {user} {class} {result:?}");
            if let Err(status) = result {
                assert!(
                    status
                        .message
                        .contains(r#"violates PodSecurity "baseline:v1.30": privileged"#),
                    "{}",
                    status.message
                );
            }
        }
    }
}

//! AuthorizationConfiguration files (`apiserver.config.k8s.io`): which authorizers are asked, in order. The
//! `--authorization-mode` flags say the same.
// Upstream: staging/src/k8s.io/apiserver/pkg/apis/apiserver/validation (v1.36)

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use orlop_api::names;
use serde::Deserialize;

use crate::config_file::{self, ContentError, duration};
use crate::expressions::Expression;

const VERSIONS: [&str; 2] = ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1"];
const MAX_CONDITIONS: usize = 64;
const MAX_TIMEOUT: Duration = Duration::from_secs(30);
/// What flags call their webhook.
const DEFAULT_WEBHOOK: &str = "default";

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AuthorizationConfiguration {
    pub authorizers: Vec<AuthorizerOptions>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AuthorizerOptions {
    pub r#type: String,
    pub name: String,
    pub webhook: Option<AuthorizationWebhookOptions>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AuthorizationWebhookOptions {
    #[serde(rename = "authorizedTTL", deserialize_with = "duration")]
    pub authorized_ttl: Option<Duration>,
    pub cache_authorized_requests: Option<bool>,
    #[serde(rename = "unauthorizedTTL", deserialize_with = "duration")]
    pub unauthorized_ttl: Option<Duration>,
    pub cache_unauthorized_requests: Option<bool>,
    #[serde(deserialize_with = "duration")]
    pub timeout: Option<Duration>,
    pub subject_access_review_version: String,
    pub match_condition_subject_access_review_version: String,
    pub failure_policy: String,
    pub connection_info: ConnectionInfo,
    pub match_conditions: Vec<MatchCondition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ConnectionInfo {
    pub r#type: String,
    pub kube_config_file: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct MatchCondition {
    pub expression: String,
}

/// Flags about the webhook that `--authorization-mode=Webhook` names.
#[derive(Clone, Debug)]
pub struct WebhookFlags {
    pub config_file: PathBuf,
    pub version: String,
    pub authorized_ttl: Duration,
    pub unauthorized_ttl: Duration,
}

/// What is wrong with an authorization configuration.
#[derive(Debug, thiserror::Error)]
pub enum AuthorizationConfigError {
    #[error("{0}")]
    Content(String),
    #[error("{}", .0.join(", "))]
    Invalid(Vec<String>),
}

impl From<ContentError> for AuthorizationConfigError {
    fn from(error: ContentError) -> AuthorizationConfigError {
        AuthorizationConfigError::Content(error.to_string())
    }
}

impl AuthorizationConfiguration {
    pub(crate) fn parse(bytes: &[u8]) -> Result<AuthorizationConfiguration, AuthorizationConfigError> {
        let configuration: AuthorizationConfiguration =
            config_file::decode(bytes, &VERSIONS, "AuthorizationConfiguration")?;
        let problems = configuration.problems();
        match problems.is_empty() {
            true => Ok(configuration),
            false => Err(AuthorizationConfigError::Invalid(problems)),
        }
    }

    /// What flags say: modes in order, and where the webhook is.
    pub fn from_modes(
        modes: &[String],
        webhook: Option<&WebhookFlags>,
    ) -> Result<AuthorizationConfiguration, AuthorizationConfigError> {
        let invalid = |why: String| Err(AuthorizationConfigError::Invalid(vec![why]));
        let mut seen = HashSet::new();
        if !modes.iter().all(|mode| seen.insert(mode)) {
            return invalid(format!(
                "authorization-mode {modes:?} has mode specified more than once"
            ));
        }
        if webhook.is_some() && !modes.iter().any(|mode| mode == "Webhook") {
            return invalid("cannot specify --authorization-webhook-config-file without mode Webhook".into());
        }
        let mut authorizers = Vec::new();
        for mode in modes {
            let (name, options) = match mode.as_str() {
                "Webhook" => match webhook {
                    Some(flags) => (DEFAULT_WEBHOOK.to_string(), Some(flags.options())),
                    None => return invalid("authorization-mode Webhook's authorization config file not passed".into()),
                },
                "Node" | "RBAC" | "AlwaysAllow" | "AlwaysDeny" => (mode.to_ascii_lowercase(), None),
                "ABAC" => return invalid("authorization-mode ABAC is not supported".into()),
                other => return invalid(format!("authorization-mode {other:?} is not a valid mode")),
            };
            authorizers.push(AuthorizerOptions {
                r#type: mode.clone(),
                name,
                webhook: options,
            });
        }
        Ok(AuthorizationConfiguration { authorizers })
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.authorizers.is_empty() {
            problems.push("authorizers: Required value: at least one authorization mode must be defined".to_string());
        }
        let (mut types, mut seen) = (HashSet::new(), HashSet::new());
        for (i, authorizer) in self.authorizers.iter().enumerate() {
            let path = format!("authorizers[{i}]");
            match authorizer.r#type.as_str() {
                "" => {
                    problems.push(format!("{path}.type: Required value"));
                    continue;
                }
                "Node" | "RBAC" | "AlwaysAllow" | "AlwaysDeny" | "Webhook" => {}
                "ABAC" => {
                    problems.push(format!("{path}.type: Invalid value: \"ABAC\": ABAC is not supported"));
                    continue;
                }
                other => {
                    problems.push(format!(
                        "{path}.type: Unsupported value: {other:?}: supported values: \"AlwaysAllow\", \"AlwaysDeny\", \
                         \"Node\", \"RBAC\", \"Webhook\""
                    ));
                    continue;
                }
            }
            if !types.insert(&authorizer.r#type) && authorizer.r#type != "Webhook" {
                problems.push(format!("{path}.type: Duplicate value: {:?}", authorizer.r#type));
                continue;
            }
            check_name(&format!("{path}.name"), &authorizer.name, &mut seen, &mut problems);
            match (authorizer.r#type.as_str(), &authorizer.webhook) {
                ("Webhook", None) => {
                    problems.push(format!("{path}.webhook: Required value: required when type=Webhook"))
                }
                ("Webhook", Some(webhook)) => webhook.check(&path, &mut problems),
                (_, Some(_)) => problems.push(format!(
                    "{path}.webhook: Invalid value: \"non-null\": may only be specified when type=Webhook"
                )),
                (_, None) => {}
            }
        }
        problems
    }
}

fn check_name<'a>(path: &str, name: &'a str, seen: &mut HashSet<&'a str>, problems: &mut Vec<String>) {
    if name.is_empty() {
        problems.push(format!("{path}: Required value"));
        return;
    }
    if !seen.insert(name) {
        problems.push(format!("{path}: Duplicate value: {name:?}"));
        return;
    }
    let wrong: Vec<String> = names::dns_subdomain(name).iter().map(ToString::to_string).collect();
    if !wrong.is_empty() {
        let wrong = wrong.join(", ");
        problems.push(format!(
            "{path}: Invalid value: {name:?}: authorizer name is invalid: {wrong}"
        ));
    }
}

impl WebhookFlags {
    fn options(&self) -> AuthorizationWebhookOptions {
        AuthorizationWebhookOptions {
            authorized_ttl: Some(self.authorized_ttl),
            unauthorized_ttl: Some(self.unauthorized_ttl),
            timeout: Some(MAX_TIMEOUT),
            subject_access_review_version: self.version.clone(),
            failure_policy: "NoOpinion".to_string(),
            connection_info: ConnectionInfo {
                r#type: "KubeConfigFile".to_string(),
                kube_config_file: Some(self.config_file.clone()),
            },
            ..AuthorizationWebhookOptions::default()
        }
    }
}

impl AuthorizationWebhookOptions {
    fn check(&self, path: &str, problems: &mut Vec<String>) {
        let mut required = |field: &str, is_missing: bool| {
            if is_missing {
                problems.push(format!("{path}.{field}: Required value"));
            }
        };
        let is_zero = |duration: Option<Duration>| duration.is_none_or(|duration| duration.is_zero());
        required("timeout", is_zero(self.timeout));
        required("authorizedTTL", is_zero(self.authorized_ttl));
        required("unauthorizedTTL", is_zero(self.unauthorized_ttl));
        required(
            "subjectAccessReviewVersion",
            self.subject_access_review_version.is_empty(),
        );
        required("failurePolicy", self.failure_policy.is_empty());
        required("connectionInfo.type", self.connection_info.r#type.is_empty());
        if self.timeout.is_some_and(|timeout| timeout > MAX_TIMEOUT) {
            problems.push(format!("{path}.timeout: Invalid value: must be > 0s and <= 30s"));
        }
        let mut one_of = |field: &str, value: &str, supported: &[&str]| {
            if !value.is_empty() && !supported.contains(&value) {
                let supported: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
                let supported = supported.join(", ");
                problems.push(format!(
                    "{path}.{field}: Unsupported value: {value:?}: supported values: {supported}"
                ));
            }
        };
        let version = &self.subject_access_review_version;
        one_of("subjectAccessReviewVersion", version, &["v1", "v1beta1"]);
        let version = &self.match_condition_subject_access_review_version;
        one_of("matchConditionSubjectAccessReviewVersion", version, &["v1"]);
        one_of("failurePolicy", &self.failure_policy, &["NoOpinion", "Deny"]);
        one_of("connectionInfo.type", &self.connection_info.r#type, &["KubeConfigFile"]);
        if version.is_empty() && !self.match_conditions.is_empty() {
            problems.push(format!(
                "{path}.matchConditionSubjectAccessReviewVersion: Required value: required if match conditions are specified"
            ));
        }
        self.connection_info
            .check(&format!("{path}.connectionInfo.kubeConfigFile"), problems);
        self.check_conditions(path, problems);
    }

    fn check_conditions(&self, path: &str, problems: &mut Vec<String>) {
        if self.match_conditions.len() > MAX_CONDITIONS {
            let count = self.match_conditions.len();
            problems.push(format!(
                "{path}.matchConditions: Too many: {count}: must have at most {MAX_CONDITIONS} items"
            ));
            return;
        }
        let mut seen = HashSet::new();
        for (i, condition) in self.match_conditions.iter().enumerate() {
            let path = format!("{path}.matchConditions[{i}].expression");
            let text = &condition.expression;
            if text.trim().is_empty() {
                problems.push(format!("{path}: Required value"));
            } else if !seen.insert(text) {
                problems.push(format!("{path}: Duplicate value: {text:?}"));
            } else if let Err(e) = Expression::request_condition(text) {
                problems.push(format!("{path}: Invalid value: {text:?}: {e}"));
            }
        }
    }
}

impl ConnectionInfo {
    fn check(&self, path: &str, problems: &mut Vec<String>) {
        if self.r#type != "KubeConfigFile" {
            return;
        }
        let file = self.kube_config_file.as_deref().unwrap_or(Path::new(""));
        if file.as_os_str().is_empty() {
            problems.push(format!("{path}: Required value"));
            return;
        }
        let why = match (file.is_absolute(), std::fs::metadata(file)) {
            (false, _) => "must be an absolute path".to_string(),
            (true, Err(e)) => format!("error loading file: {e}"),
            (true, Ok(found)) if !found.is_file() => "must be a regular file".to_string(),
            (true, Ok(_)) => return,
        };
        problems.push(format!(
            "{path}: Invalid value: {:?}: {why}",
            file.display().to_string()
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: &str) -> Result<AuthorizationConfiguration, AuthorizationConfigError> {
        let text = format!("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n{body}");
        AuthorizationConfiguration::parse(text.as_bytes())
    }

    #[test]
    fn files_are_checked_field_by_field() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let webhook = |change: &str| {
            let base = format!(
                "authorizedTTL: 5m, unauthorizedTTL: 30s, timeout: 3s, subjectAccessReviewVersion: v1, \
                 failurePolicy: Deny, connectionInfo: {{type: KubeConfigFile, kubeConfigFile: {}}}",
                file.path().display()
            );
            let base = match change.split_once(" -> ") {
                Some((from, to)) => base.replace(from, to),
                None => base,
            };
            format!("authorizers: [{{type: Webhook, name: w, webhook: {{{base}}}}}, {{type: RBAC, name: rbac}}]")
        };
        assert_eq!(parse(&webhook("")).unwrap().authorizers.len(), 2);
        for (body, wanted) in [
            (
                "".to_string(),
                "authorizers: Required value: at least one authorization mode",
            ),
            ("authorizers: [{}]".to_string(), "authorizers[0].type: Required value"),
            (
                "authorizers: [{type: ABAC, name: a}]".to_string(),
                "ABAC is not supported",
            ),
            (
                "authorizers: [{type: Odd, name: a}]".to_string(),
                "Unsupported value: \"Odd\"",
            ),
            (
                "authorizers: [{type: RBAC, name: a}, {type: RBAC, name: b}]".to_string(),
                "authorizers[1].type: Duplicate value: \"RBAC\"",
            ),
            (
                "authorizers: [{type: RBAC, name: a}, {type: Node, name: a}]".to_string(),
                "authorizers[1].name: Duplicate value: \"a\"",
            ),
            (
                "authorizers: [{type: RBAC, name: A}]".to_string(),
                "authorizer name is invalid",
            ),
            (
                "authorizers: [{type: Webhook, name: w}]".to_string(),
                "required when type=Webhook",
            ),
            (
                "authorizers: [{type: RBAC, name: w, webhook: {}}]".to_string(),
                "may only be specified when type=Webhook",
            ),
            (webhook("timeout: 3s -> timeout: 31s"), "must be > 0s and <= 30s"),
            (
                webhook("authorizedTTL: 5m -> authorizedTTL: 0s"),
                "authorizers[0].authorizedTTL: Required value",
            ),
            (
                webhook("Version: v1 -> Version: v2"),
                "supported values: \"v1\", \"v1beta1\"",
            ),
            (webhook("Deny -> Allow"), "supported values: \"NoOpinion\", \"Deny\""),
            (
                webhook("type: KubeConfigFile -> type: InClusterConfig"),
                "supported values: \"KubeConfigFile\"",
            ),
            (
                webhook("kubeConfigFile: / -> kubeConfigFile: "),
                "must be an absolute path",
            ),
            (
                webhook("kubeConfigFile: / -> kubeConfigFile: /nowhere/"),
                "error loading file",
            ),
            (
                webhook("timeout: 3s -> timeout: 3s, matchConditions: [{expression: 'true'}]"),
                "required if match conditions are specified",
            ),
        ] {
            let error = parse(&body).unwrap_err().to_string();
            assert!(error.contains(wanted), "{body}:\n{error}");
        }
    }

    #[test]
    fn modes_are_a_chain_too() {
        let modes = |text: &str| -> Vec<String> { text.split(',').map(str::to_string).collect() };
        let flags = WebhookFlags {
            config_file: "/etc/hook".into(),
            version: "v1".into(),
            authorized_ttl: Duration::from_secs(300),
            unauthorized_ttl: Duration::from_secs(30),
        };
        let chain = AuthorizationConfiguration::from_modes(&modes("Node,RBAC,Webhook"), Some(&flags)).unwrap();
        let names: Vec<&str> = chain.authorizers.iter().map(|a| a.name.as_str()).collect();
        assert_eq!(names, ["node", "rbac", "default"]);
        for (text, flags, wanted) in [
            ("RBAC,RBAC", None, "has mode specified more than once"),
            ("ABAC", None, "authorization-mode ABAC is not supported"),
            ("Odd", None, "authorization-mode \"Odd\" is not a valid mode"),
            ("Webhook", None, "authorization config file not passed"),
            ("RBAC", Some(&flags), "without mode Webhook"),
        ] {
            let error = AuthorizationConfiguration::from_modes(&modes(text), flags)
                .unwrap_err()
                .to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}

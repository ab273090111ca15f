//! Audit policies: which requests are recorded, how much of them, and at which stages. The first rule that matches a
//! request decides; what no rule matches is not recorded.
// Upstream: staging/src/k8s.io/apiserver/pkg/audit/policy (v1.36)

use std::path::Path;

use orlop_api::names;
use serde::Deserialize;

use super::Stage;
use crate::authn::UserInfo;
use crate::config_file::{self, ContentError, FileError};
use crate::request::RequestInfo;

const STAGES: [Stage; 4] = [
    Stage::RequestReceived,
    Stage::ResponseStarted,
    Stage::ResponseComplete,
    Stage::Panic,
];

/// How much of a request is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(crate) enum Level {
    #[default]
    None,
    Metadata,
    Request,
    RequestResponse,
}

impl Level {
    pub(crate) const ALL: [Level; 4] = [Level::None, Level::Metadata, Level::Request, Level::RequestResponse];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Level::None => "None",
            Level::Metadata => "Metadata",
            Level::Request => "Request",
            Level::RequestResponse => "RequestResponse",
        }
    }
}

/// What a policy says of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Coverage {
    pub level: Level,
    /// By the stages' position in their order.
    omitted: [bool; STAGES.len()],
    pub omit_managed_fields: bool,
}

impl Coverage {
    /// Everything at one level.
    pub(crate) fn all(level: Level) -> Coverage {
        Coverage {
            level,
            ..Coverage::default()
        }
    }

    pub(crate) fn includes(&self, stage: Stage) -> bool {
        self.level > Level::None && !self.omitted[stage as usize]
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Policy {
    #[serde(rename = "metadata")]
    _metadata: serde::de::IgnoredAny,
    rules: Vec<Rule>,
    omit_stages: Vec<String>,
    omit_managed_fields: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Rule {
    level: String,
    users: Vec<String>,
    user_groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<GroupResources>,
    namespaces: Vec<String>,
    #[serde(rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    omit_stages: Vec<String>,
    omit_managed_fields: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct GroupResources {
    group: String,
    resources: Vec<String>,
    resource_names: Vec<String>,
}

/// Why an audit policy cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PolicyError {
    #[error(transparent)]
    Content(#[from] ContentError),
    #[error("loaded illegal policy with 0 rules")]
    NoRules,
    #[error("{}", .0.join(", "))]
    Invalid(Vec<String>),
}

impl Policy {
    pub(crate) fn load(path: &Path) -> Result<Policy, FileError> {
        Policy::parse(&config_file::read(path)?).map_err(|e| FileError::invalid(path, e))
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Policy, PolicyError> {
        let policy: Policy = config_file::decode(bytes, &["audit.k8s.io/v1"], "Policy")?;
        let problems = policy.problems();
        if !problems.is_empty() {
            return Err(PolicyError::Invalid(problems));
        }
        match policy.rules.is_empty() {
            true => Err(PolicyError::NoRules),
            false => Ok(policy),
        }
    }

    /// What to record of a request by this user; nobody, where authentication failed.
    pub(crate) fn coverage(&self, info: &RequestInfo, user: Option<&UserInfo>) -> Coverage {
        let Some(rule) = self.rules.iter().find(|rule| rule.matches(info, user)) else {
            return Coverage::default();
        };
        let omits = |stage: Stage| {
            let mut names = self.omit_stages.iter().chain(&rule.omit_stages);
            names.any(|name| *name == format!("{stage:?}"))
        };
        Coverage {
            level: rule.level().unwrap_or_default(),
            omitted: STAGES.map(omits),
            omit_managed_fields: rule.omit_managed_fields.unwrap_or(self.omit_managed_fields),
        }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        check_stages("omitStages", &self.omit_stages, &mut problems);
        for (i, rule) in self.rules.iter().enumerate() {
            rule.check(&format!("rules[{i}]"), &mut problems);
        }
        problems
    }
}

fn check_stages(path: &str, stages: &[String], problems: &mut Vec<String>) {
    for (i, stage) in stages.iter().enumerate() {
        if !STAGES.iter().any(|known| format!("{known:?}") == *stage) {
            problems.push(format!(
                "{path}[{i}]: Invalid value: {stage:?}: allowed stages are \
                 RequestReceived,ResponseStarted,ResponseComplete,Panic"
            ));
        }
    }
}

impl Rule {
    fn level(&self) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.name() == self.level)
    }

    fn check(&self, path: &str, problems: &mut Vec<String>) {
        match (self.level.as_str(), self.level()) {
            ("", _) => problems.push(format!("{path}.level: Required value")),
            (other, None) => problems.push(format!(
                "{path}.level: Unsupported value: {other:?}: supported values: \
                 \"Metadata\", \"None\", \"Request\", \"RequestResponse\""
            )),
            _ => {}
        }
        for (i, url) in self.non_resource_urls.iter().enumerate().filter(|(_, url)| *url != "*") {
            let at = format!("{path}.nonResourceURLs[{i}]: Invalid value: {url:?}");
            if !url.starts_with('/') {
                problems.push(format!("{at}: non-resource URL rules must begin with a '/' character"));
            }
            if url
                .trim_end()
                .char_indices()
                .any(|(at, c)| c == '*' && at + 1 < url.len())
            {
                problems.push(format!(
                    "{at}: non-resource URL wildcards '*' must be the final character of the rule"
                ));
            }
        }
        for group in &self.resources {
            if !group.group.is_empty() && group.group != "*" {
                let wrong = names::dns_subdomain(&group.group);
                if !wrong.is_empty() {
                    let wrong: Vec<String> = wrong.iter().map(|w| w.to_string()).collect();
                    problems.push(format!(
                        "{path}.resources.group: Invalid value: {:?}: {}",
                        group.group,
                        wrong.join(",")
                    ));
                }
            }
            if !group.resource_names.is_empty() && group.resources.is_empty() {
                problems.push(format!(
                    "{path}.resources.resourceNames: Invalid value: {:?}: using resourceNames requires at least one resource",
                    group.resource_names
                ));
            }
        }
        check_stages(&format!("{path}.omitStages"), &self.omit_stages, problems);
        let is_about_resources = !self.resources.is_empty() || !self.namespaces.is_empty();
        if !self.non_resource_urls.is_empty() && is_about_resources {
            problems.push(format!(
                "{path}.nonResourceURLs: Invalid value: {:?}: rules cannot apply to both regular resources and \
                 non-resource URLs",
                self.non_resource_urls
            ));
        }
    }

    fn matches(&self, info: &RequestInfo, user: Option<&UserInfo>) -> bool {
        let any_of = |list: &[String], text: &str| list.is_empty() || list.iter().any(|item| item == text);
        let name = user.map_or("", |user| user.name.as_str());
        if !any_of(&self.users, name) || !any_of(&self.verbs, info.verb) {
            return false;
        }
        if !self.user_groups.is_empty() && !self.user_groups.iter().any(|g| user.is_some_and(|u| u.in_group(g))) {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            return info.is_resource && any_of(&self.namespaces, &info.namespace) && self.matches_resource(info);
        }
        if !self.non_resource_urls.is_empty() {
            return !info.is_resource && self.non_resource_urls.iter().any(|url| matches_path(url, &info.path));
        }
        true
    }

    fn matches_resource(&self, info: &RequestInfo) -> bool {
        self.resources.is_empty() || self.resources.iter().any(|group| group.matches(info))
    }
}

impl GroupResources {
    fn matches(&self, info: &RequestInfo) -> bool {
        if self.group != info.group {
            return false;
        }
        let named = || self.resource_names.is_empty() || self.resource_names.contains(&info.name);
        self.resources.is_empty() || (named() && self.resources.iter().any(|r| matches_resource(r, info)))
    }
}

fn matches_resource(wanted: &str, info: &RequestInfo) -> bool {
    match wanted.split_once('/') {
        _ if wanted == "*" => true,
        None => info.subresource.is_empty() && wanted == info.resource,
        Some(("*", subresource)) => !info.subresource.is_empty() && subresource == info.subresource,
        Some((resource, "*")) => resource == info.resource,
        Some((resource, subresource)) => resource == info.resource && subresource == info.subresource,
    }
}

fn matches_path(wanted: &str, path: &str) -> bool {
    match wanted.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => path == wanted,
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    fn policy(rules: &str) -> Policy {
        let text = format!("{{apiVersion: audit.k8s.io/v1, kind: Policy, rules: {rules}}}");
        Policy::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let ann = UserInfo::new("ann", &["staff", "system:authenticated"]);
        let get = "GET /api/v1/namespaces/default/pods/busybox";
        let log = "GET /api/v1/namespaces/default/pods/busybox/log";
        for (rules, request, wanted) in [
            ("[{level: None}]", get, Level::None),
            ("[{level: Metadata}]", get, Level::Metadata),
            ("[{level: Request, users: [ann]}]", get, Level::Request),
            ("[{level: Request, users: [bob]}]", get, Level::None),
            ("[{level: Request, userGroups: [staff]}]", get, Level::Request),
            (
                "[{level: Request, userGroups: [other]}, {level: Metadata}]",
                get,
                Level::Metadata,
            ),
            ("[{level: Request, verbs: [get]}]", get, Level::Request),
            ("[{level: Request, verbs: [list]}]", get, Level::None),
            ("[{level: Request, namespaces: [default]}]", get, Level::Request),
            ("[{level: Request, namespaces: ['']}]", get, Level::None),
            (
                "[{level: Request, namespaces: ['']}]",
                "GET /api/v1/nodes",
                Level::Request,
            ),
            ("[{level: Request, namespaces: [default]}]", "GET /healthz", Level::None),
            (
                "[{level: Request, nonResourceURLs: ['*']}]",
                "GET /healthz",
                Level::Request,
            ),
            (
                "[{level: Request, nonResourceURLs: [/healthz*]}]",
                "GET /healthz/etcd",
                Level::Request,
            ),
            (
                "[{level: Request, nonResourceURLs: [/healthz]}]",
                "GET /healthz/etcd",
                Level::None,
            ),
            ("[{level: Request, nonResourceURLs: ['*']}]", get, Level::None),
            ("[{level: Request, resources: [{group: ''}]}]", log, Level::Request),
            ("[{level: Request, resources: [{group: apps}]}]", get, Level::None),
            (
                "[{level: Request, resources: [{resources: [pods]}]}]",
                get,
                Level::Request,
            ),
            ("[{level: Request, resources: [{resources: [pods]}]}]", log, Level::None),
            (
                "[{level: Request, resources: [{resources: [pods/log]}]}]",
                log,
                Level::Request,
            ),
            (
                "[{level: Request, resources: [{resources: [pods/log]}]}]",
                get,
                Level::None,
            ),
            (
                "[{level: Request, resources: [{resources: ['pods/*']}]}]",
                log,
                Level::Request,
            ),
            (
                "[{level: Request, resources: [{resources: ['*/log']}]}]",
                log,
                Level::Request,
            ),
            (
                "[{level: Request, resources: [{resources: ['*/log']}]}]",
                get,
                Level::None,
            ),
            (
                "[{level: Request, resources: [{resources: ['*']}]}]",
                log,
                Level::Request,
            ),
            (
                "[{level: Request, resources: [{resources: [pods], resourceNames: [busybox]}]}]",
                get,
                Level::Request,
            ),
            (
                "[{level: Request, resources: [{resources: [pods], resourceNames: [other]}]}]",
                get,
                Level::None,
            ),
            (
                "[{level: Request, resources: [{resources: [pods]}]}]",
                "GET /healthz",
                Level::None,
            ),
        ] {
            let (method, path) = request.split_once(' ').unwrap();
            let info = RequestInfo::parse(&method.parse::<Method>().unwrap(), path, "");
            assert_eq!(
                policy(rules).coverage(&info, Some(&ann)).level,
                wanted,
                "{rules} {request}"
            );
        }
        let info = RequestInfo::parse(&Method::GET, "/api/v1/pods", "");
        let nobody = |rules| policy(rules).coverage(&info, None).level;
        assert_eq!(nobody("[{level: Request, users: [ann]}]"), Level::None);
        assert_eq!(nobody("[{level: Request, userGroups: [staff]}]"), Level::None);
        assert_eq!(nobody("[{level: Metadata}]"), Level::Metadata);
    }

    #[test]
    fn stages_and_managed_fields_are_omitted_by_rule_and_by_policy() {
        let text = "{apiVersion: audit.k8s.io/v1, kind: Policy, omitStages: [RequestReceived], omitManagedFields: true, \
                    rules: [{level: Metadata, verbs: [get], omitStages: [Panic], omitManagedFields: false}, {level: Request}]}";
        let policy = Policy::parse(text.as_bytes()).unwrap();
        let of = |method: Method| policy.coverage(&RequestInfo::parse(&method, "/api/v1/pods/x", ""), None);
        let get = of(Method::GET);
        let omitted = STAGES.map(|stage| !get.includes(stage));
        assert_eq!((omitted, get.omit_managed_fields), ([true, false, false, true], false));
        let put = of(Method::PUT);
        let omitted = STAGES.map(|stage| !put.includes(stage));
        assert_eq!((omitted, put.omit_managed_fields), ([true, false, false, false], true));
        assert!(!Coverage::default().includes(Stage::ResponseComplete));
    }

    #[test]
    fn wrong_policies_are_refused() {
        for (body, wanted) in [
            ("rules: []", "loaded illegal policy with 0 rules"),
            ("rules: [{}]", "rules[0].level: Required value"),
            ("rules: [{level: Some}]", "rules[0].level: Unsupported value: \"Some\""),
            ("rules: [{level: None, verb: [get]}]", "unknown field `verb`"),
            (
                "rules: [{level: None, nonResourceURLs: [logs]}]",
                "non-resource URL rules must begin with a '/' character",
            ),
            (
                "rules: [{level: None, nonResourceURLs: ['/l*s']}]",
                "must be the final character",
            ),
            (
                "rules: [{level: None, nonResourceURLs: [/x], namespaces: [a]}]",
                "rules cannot apply to both regular resources and non-resource URLs",
            ),
            (
                "rules: [{level: None, resources: [{group: a/v1}]}]",
                "rules[0].resources.group: Invalid value: \"a/v1\"",
            ),
            (
                "rules: [{level: None, resources: [{resourceNames: [a]}]}]",
                "using resourceNames requires at least one resource",
            ),
            (
                "rules: [{level: None}]\nomitStages: [Late]",
                "allowed stages are RequestReceived,",
            ),
        ] {
            let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{body}");
            let error = Policy::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(wanted), "{body}: {error}");
        }
        let old = Policy::parse(b"{apiVersion: audit.k8s.io/v1beta1, kind: Policy}").unwrap_err();
        assert!(old.to_string().contains("unknown apiVersion and kind"));
    }
}

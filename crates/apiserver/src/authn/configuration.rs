//! AuthenticationConfiguration files (`apiserver.config.k8s.io`): which issuers' JSON web tokens are accepted, whom they make,
//! and what anonymous requests may ask for. The `--oidc-*` flags say the same of one issuer.
// Upstream: staging/src/k8s.io/apiserver/pkg/apis/apiserver/validation (v1.36)

use std::collections::HashSet;

use http::Uri;
use orlop_api::names;
use serde::Deserialize;

use crate::config_file::{self, ContentError};
use crate::expressions::Expression;

const VERSIONS: [&str; 2] = ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1beta1"];
const MAX_ISSUERS: usize = 64;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AuthenticationConfiguration {
    pub jwt: Vec<JwtOptions>,
    pub anonymous: Option<AnonymousOptions>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AnonymousOptions {
    pub enabled: bool,
    pub conditions: Vec<AnonymousCondition>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AnonymousCondition {
    pub path: String,
}

/// One issuer of JSON web tokens.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct JwtOptions {
    pub issuer: Issuer,
    pub claim_validation_rules: Vec<ClaimValidationRule>,
    pub claim_mappings: ClaimMappings,
    pub user_validation_rules: Vec<UserValidationRule>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Issuer {
    pub url: String,
    #[serde(rename = "discoveryURL")]
    pub discovery_url: String,
    /// In PEM; empty for the system's.
    pub certificate_authority: String,
    pub audiences: Vec<String>,
    pub audience_match_policy: String,
    pub egress_selector_type: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ClaimValidationRule {
    pub claim: String,
    pub required_value: String,
    pub expression: String,
    pub message: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ClaimMappings {
    pub username: ClaimMapping,
    pub groups: ClaimMapping,
    pub uid: ClaimMapping,
    pub extra: Vec<ExtraMapping>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ClaimMapping {
    pub claim: String,
    pub prefix: Option<String>,
    pub expression: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ExtraMapping {
    pub key: String,
    pub value_expression: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct UserValidationRule {
    pub expression: String,
    pub message: String,
}

/// What is wrong with an authentication configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    #[error("{0}")]
    Content(String),
    #[error("{}", .0.join(", "))]
    Invalid(Vec<String>),
}

impl From<ContentError> for ConfigurationError {
    fn from(error: ContentError) -> ConfigurationError {
        ConfigurationError::Content(error.to_string())
    }
}

impl AuthenticationConfiguration {
    /// Reads a file's content. `own_issuer` is that of service account tokens, which no other may share.
    pub(crate) fn parse(bytes: &[u8], own_issuer: &str) -> Result<AuthenticationConfiguration, ConfigurationError> {
        let configuration: AuthenticationConfiguration =
            config_file::decode(bytes, &VERSIONS, "AuthenticationConfiguration")?;
        configuration.check(own_issuer)?;
        Ok(configuration)
    }

    pub(crate) fn check(&self, own_issuer: &str) -> Result<(), ConfigurationError> {
        let mut problems = Problems::default();
        if self.jwt.len() > MAX_ISSUERS {
            let count = self.jwt.len();
            problems.add(
                "jwt",
                format!("Too many: {count}: must have at most {MAX_ISSUERS} items"),
            );
        }
        let (mut urls, mut discovery) = (HashSet::new(), HashSet::new());
        for (i, jwt) in self.jwt.iter().enumerate().take(MAX_ISSUERS) {
            let path = format!("jwt[{i}]");
            jwt.check(&path, own_issuer, &mut problems);
            if !urls.insert(&jwt.issuer.url) {
                problems.duplicate(&format!("{path}.issuer.url"), &jwt.issuer.url);
            }
            if !jwt.issuer.discovery_url.is_empty() && !discovery.insert(&jwt.issuer.discovery_url) {
                problems.duplicate(&format!("{path}.issuer.discoveryURL"), &jwt.issuer.discovery_url);
            }
        }
        if let Some(anonymous) = &self.anonymous
            && !anonymous.enabled
            && !anonymous.conditions.is_empty()
        {
            let why = "enabled should be set to true when conditions are defined";
            problems.add("anonymous.conditions", format!("Invalid value: {why}"));
        }
        match problems.0.is_empty() {
            true => Ok(()),
            false => Err(ConfigurationError::Invalid(problems.0)),
        }
    }
}

#[derive(Default)]
struct Problems(Vec<String>);

impl Problems {
    fn add(&mut self, path: &str, problem: String) {
        self.0.push(format!("{path}: {problem}"));
    }

    fn invalid(&mut self, path: &str, value: &str, why: impl std::fmt::Display) {
        self.add(path, format!("Invalid value: {value:?}: {why}"));
    }

    fn duplicate(&mut self, path: &str, value: &str) {
        self.add(path, format!("Duplicate value: {value:?}"));
    }

    fn required(&mut self, path: &str, why: &str) {
        match why {
            "" => self.add(path, "Required value".to_string()),
            why => self.add(path, format!("Required value: {why}")),
        }
    }

    fn compiled<E: std::fmt::Display>(&mut self, path: &str, text: &str, outcome: Result<Expression, E>) {
        if let Err(e) = outcome {
            self.invalid(path, text, e);
        }
    }
}

impl JwtOptions {
    fn check(&self, path: &str, own_issuer: &str, problems: &mut Problems) {
        self.issuer.check(&format!("{path}.issuer"), own_issuer, problems);
        self.check_claim_rules(&format!("{path}.claimValidationRules"), problems);
        self.check_mappings(&format!("{path}.claimMappings"), problems);
        let mut seen = HashSet::new();
        for (i, rule) in self.user_validation_rules.iter().enumerate() {
            let path = format!("{path}.userValidationRules[{i}].expression");
            if rule.expression.is_empty() {
                problems.required(&path, "");
            } else if !seen.insert(&rule.expression) {
                problems.duplicate(&path, &rule.expression);
            } else {
                problems.compiled(&path, &rule.expression, Expression::user_condition(&rule.expression));
            }
        }
    }

    fn check_claim_rules(&self, path: &str, problems: &mut Problems) {
        let (mut claims, mut expressions) = (HashSet::new(), HashSet::new());
        for (i, rule) in self.claim_validation_rules.iter().enumerate() {
            let path = format!("{path}[{i}]");
            match (rule.claim.as_str(), rule.expression.as_str()) {
                ("", "") => problems.required(&path, "claim or expression is required"),
                (claim, "") => {
                    if !rule.message.is_empty() {
                        let why = "may not be specified when claim is set";
                        problems.invalid(&format!("{path}.message"), &rule.message, why);
                    }
                    if !claims.insert(claim) {
                        problems.duplicate(&format!("{path}.claim"), claim);
                    }
                }
                ("", expression) => {
                    if !rule.required_value.is_empty() {
                        let why = "may not be specified when expression is set";
                        problems.invalid(&format!("{path}.requiredValue"), &rule.required_value, why);
                    }
                    let path = format!("{path}.expression");
                    match expressions.insert(expression) {
                        false => problems.duplicate(&path, expression),
                        true => problems.compiled(&path, expression, Expression::claims_condition(expression)),
                    }
                }
                (claim, _) => problems.invalid(&path, claim, "claim and expression can't both be set"),
            }
        }
    }

    fn check_mappings(&self, path: &str, problems: &mut Problems) {
        let mappings = &self.claim_mappings;
        mappings
            .username
            .check(&format!("{path}.username"), true, true, problems);
        mappings.groups.check(&format!("{path}.groups"), false, true, problems);
        mappings.uid.check(&format!("{path}.uid"), false, false, problems);
        let mut seen = HashSet::new();
        for (i, extra) in mappings.extra.iter().enumerate() {
            let path = format!("{path}.extra[{i}]");
            check_extra_key(&format!("{path}.key"), &extra.key, problems);
            if !seen.insert(&extra.key) {
                problems.duplicate(&format!("{path}.key"), &extra.key);
                continue;
            }
            let path = format!("{path}.valueExpression");
            match extra.value_expression.as_str() {
                "" => problems.required(&path, ""),
                text => problems.compiled(&path, text, Expression::over_claims(text)),
            }
        }
        let rules = self.claim_validation_rules.iter().map(|rule| &rule.expression);
        let extra = mappings.extra.iter().map(|extra| &extra.value_expression);
        let mut all = rules.chain(extra).chain([&mappings.username.expression]);
        if mentions(&mappings.username.expression, "email") && !all.any(|text| mentions(text, "email_verified")) {
            problems.invalid(
                &format!("{path}.username.expression"),
                &mappings.username.expression,
                "claims.email_verified must be used in claimMappings.username.expression or \
                 claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used \
                 in claimMappings.username.expression",
            );
        }
    }
}

/// Whether an expression reads a claim.
fn mentions(expression: &str, claim: &str) -> bool {
    ["claims.", "claims.?"].iter().any(|prefix| {
        let wanted = format!("{prefix}{claim}");
        expression.match_indices(&wanted).any(|(at, found)| {
            let next = expression[at + found.len()..].chars().next();
            next.is_none_or(|c| !c.is_alphanumeric() && c != '_')
        })
    })
}

fn check_extra_key(path: &str, key: &str, problems: &mut Problems) {
    let Some((domain, rest)) = key
        .split_once('/')
        .filter(|(domain, rest)| !domain.is_empty() && !rest.is_empty())
    else {
        match key {
            "" => problems.required(path, ""),
            _ => problems.invalid(path, key, "must be a domain-prefixed path (such as \"acme.io/foo\")"),
        }
        return;
    };
    let wrong: Vec<String> = names::dns_subdomain(domain).iter().map(ToString::to_string).collect();
    if !wrong.is_empty() {
        problems.invalid(path, domain, wrong.join(", "));
    }
    if rest.contains(|c: char| !c.is_ascii_alphanumeric() && !"/-._~%!$&'()*+,;=:@".contains(c)) {
        problems.invalid(path, rest, "Invalid path");
    }
    if key.chars().any(char::is_uppercase) {
        problems.invalid(path, key, "must be lowercase");
    }
    let is_reserved = |suffix: &str| domain == suffix || domain.ends_with(&format!(".{suffix}"));
    if is_reserved("kubernetes.io") || is_reserved("k8s.io") {
        let why = "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use";
        problems.invalid(path, key, why);
    }
}

impl ClaimMapping {
    fn check(&self, path: &str, is_required: bool, has_prefix: bool, problems: &mut Problems) {
        match (self.claim.as_str(), self.expression.as_str()) {
            ("", "") if is_required => problems.required(path, "claim or expression is required"),
            ("", "") => {}
            ("", text) => {
                if let Some(prefix) = &self.prefix {
                    let why = "may not be specified when expression is set";
                    problems.invalid(&format!("{path}.prefix"), prefix, why);
                }
                problems.compiled(&format!("{path}.expression"), text, Expression::over_claims(text));
            }
            (_, "") if has_prefix && self.prefix.is_none() => problems.required(
                &format!("{path}.prefix"),
                "prefix is required when claim is set. It can be set to an empty string to disable prefixing",
            ),
            (_, "") => {}
            _ => problems.invalid(path, "", "claim and expression can't both be set"),
        }
    }
}

impl Issuer {
    fn check(&self, path: &str, own_issuer: &str, problems: &mut Problems) {
        let url = format!("{path}.url");
        match self.url.as_str() {
            "" => problems.required(&url, ""),
            text => {
                if text == own_issuer {
                    let why = format!("URL must not overlap with disallowed issuers: [{own_issuer}]");
                    problems.invalid(&url, text, why);
                }
                check_url(&url, text, problems);
            }
        }
        if !self.discovery_url.is_empty() {
            let path = format!("{path}.discoveryURL");
            if self.url.trim_end_matches('/') == self.discovery_url.trim_end_matches('/') {
                problems.invalid(&path, &self.discovery_url, "discoveryURL must be different from URL");
            }
            check_url(&path, &self.discovery_url, problems);
        }
        self.check_audiences(path, problems);
        if !self.certificate_authority.is_empty() && !has_certificate(&self.certificate_authority) {
            let why = "data does not contain any valid RSA or ECDSA certificates";
            problems.invalid(&format!("{path}.certificateAuthority"), "<omitted>", why);
        }
        if !self.egress_selector_type.is_empty() {
            let why = "egress selectors are not supported";
            problems.invalid(&format!("{path}.egressSelectorType"), &self.egress_selector_type, why);
        }
    }

    fn check_audiences(&self, path: &str, problems: &mut Problems) {
        let audiences = format!("{path}.audiences");
        if self.audiences.is_empty() {
            problems.required(&audiences, &format!("at least one {audiences} is required"));
            return;
        }
        let mut seen = HashSet::new();
        for (i, audience) in self.audiences.iter().enumerate() {
            let path = format!("{audiences}[{i}]");
            if audience.is_empty() {
                problems.required(&path, "");
            }
            if !seen.insert(audience) {
                problems.duplicate(&path, audience);
            }
        }
        let policy = &self.audience_match_policy;
        let why = match self.audiences.len() {
            1 if policy.is_empty() || policy == "MatchAny" => return,
            1 => "audienceMatchPolicy must be empty or MatchAny for single audience",
            _ if policy == "MatchAny" => return,
            _ => "audienceMatchPolicy must be MatchAny for multiple audiences",
        };
        problems.invalid(&format!("{path}.audienceMatchPolicy"), policy, why);
    }
}

fn has_certificate(pem: &str) -> bool {
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject;
    CertificateDer::pem_slice_iter(pem.as_bytes()).any(|found| found.is_ok())
}

fn check_url(path: &str, text: &str, problems: &mut Problems) {
    let (plain, fragment) = text.split_once('#').unwrap_or((text, ""));
    if !fragment.is_empty() {
        problems.invalid(path, text, "URL must not contain a fragment");
    }
    let Ok(url) = plain.parse::<Uri>() else {
        problems.invalid(path, text, "invalid URL");
        return;
    };
    if url.scheme_str() != Some("https") {
        problems.invalid(path, text, "URL scheme must be https");
    }
    if url
        .authority()
        .is_some_and(|authority| authority.as_str().contains('@'))
    {
        problems.invalid(path, text, "URL must not contain a username or password");
    }
    if url.query().is_some_and(|query| !query.is_empty()) {
        problems.invalid(path, text, "URL must not contain a query");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "https://own.example";

    fn parse(body: &str) -> Result<AuthenticationConfiguration, ConfigurationError> {
        let text = format!("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n{body}");
        AuthenticationConfiguration::parse(text.as_bytes(), OWN)
    }

    fn issuer(fields: &str) -> String {
        format!(
            "jwt: [{{issuer: {{url: 'https://i.example', audiences: [a], {fields}}}, \
             claimMappings: {{username: {{claim: sub, prefix: ''}}}}}}]"
        )
    }

    fn mapping(fields: &str) -> String {
        format!("jwt: [{{issuer: {{url: 'https://i.example', audiences: [a]}}, {fields}}}]")
    }

    #[test]
    fn good_configurations() {
        for body in [
            "",
            "anonymous: {enabled: true, conditions: [{path: /livez}]}",
            "anonymous: {enabled: false}",
            &issuer(""),
            &issuer("audienceMatchPolicy: MatchAny"),
            &issuer("discoveryURL: 'https://other.example/.well-known/openid-configuration'"),
            &mapping(
                "claimMappings: {username: {claim: email, prefix: 'x:'}, groups: {claim: g, prefix: ''}, uid: {claim: u}}, \
                 claimValidationRules: [{claim: hd, requiredValue: example.com}]",
            ),
        ] {
            parse(body).unwrap_or_else(|e| panic!("{body}: {e}"));
        }
    }

    #[test]
    fn wrong_configurations_are_refused_by_field() {
        for (body, wanted) in [
            (
                "anonymous: {enabled: false, conditions: [{path: /livez}]}".to_string(),
                "anonymous.conditions: Invalid value: enabled should be set to true when conditions are defined",
            ),
            ("jwt: [{}]".to_string(), "jwt[0].issuer.url: Required value"),
            (
                issuer("discoveryURL: 'https://i.example/'"),
                "discoveryURL must be different from URL",
            ),
            (
                issuer("audienceMatchPolicy: All"),
                "must be empty or MatchAny for single audience",
            ),
            (
                issuer("certificateAuthority: x"),
                "jwt[0].issuer.certificateAuthority: Invalid value: \"<omitted>\"",
            ),
            (
                issuer("egressSelectorType: cluster"),
                "egress selectors are not supported",
            ),
            (
                issuer("").replace("https://i.example", "http://i.example"),
                "URL scheme must be https",
            ),
            (
                issuer("").replace("i.example", "u:p@i.example"),
                "must not contain a username or password",
            ),
            (
                issuer("").replace("i.example", "i.example?a=b"),
                "must not contain a query",
            ),
            (
                issuer("").replace("i.example", "i.example#f"),
                "must not contain a fragment",
            ),
            (
                issuer("").replace("i.example", "own.example"),
                "URL must not overlap with disallowed issuers: [https://own.example]",
            ),
            (
                issuer("").replace("[a]", "[]"),
                "jwt[0].issuer.audiences: Required value",
            ),
            (
                issuer("").replace("[a]", "[a, a, b]"),
                "jwt[0].issuer.audiences[1]: Duplicate value: \"a\"",
            ),
            (
                issuer("").replace("[a]", "[a, b]"),
                "audienceMatchPolicy must be MatchAny for multiple audiences",
            ),
            (
                mapping(""),
                "jwt[0].claimMappings.username: Required value: claim or expression is required",
            ),
            (
                mapping("claimMappings: {username: {claim: sub}}"),
                "jwt[0].claimMappings.username.prefix: Required value: prefix is required when claim is set",
            ),
            (
                mapping("claimMappings: {username: {claim: sub, prefix: '', expression: claims.sub}}"),
                "claim and expression can't both be set",
            ),
            (
                mapping("claimValidationRules: [{claim: a}, {claim: a}, {}]"),
                "jwt[0].claimValidationRules[1].claim: Duplicate value: \"a\", jwt[0].claimValidationRules[2]: Required value",
            ),
            (
                mapping("claimValidationRules: [{claim: a, message: m}]"),
                "message: Invalid value: \"m\": may not be specified when claim is set",
            ),
            (
                mapping("claimMappings: {extra: [{key: foo, valueExpression: '\"a\"'}]}"),
                "must be a domain-prefixed path",
            ),
            (
                mapping("claimMappings: {extra: [{key: a.k8s.io/b, valueExpression: '\"a\"'}]}"),
                "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use",
            ),
            (mapping("claimMappings: {extra: [{key: e.org/B}]}"), "must be lowercase"),
            (
                mapping("userValidationRules: [{}]"),
                "userValidationRules[0].expression: Required value",
            ),
            (
                mapping("claimMappings: {username: {expression: 'claims.email'}}"),
                "claims.email_verified must be used",
            ),
            ("jwts: []".to_string(), "unknown field `jwts`"),
        ] {
            let error = parse(&body).unwrap_err().to_string();
            assert!(error.contains(wanted), "{body}:\n{error}");
        }
        assert!(mentions("claims.?email.orValue('')", "email"));
        assert!(!mentions("claims.email_verified", "email"));
    }
}

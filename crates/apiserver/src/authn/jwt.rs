//! JSON web tokens of other issuers (OpenID Connect): who signed them, whom they are for, and whom they make.
// Upstream: staging/src/k8s.io/apiserver/plugin/pkg/authenticator/token/oidc (v1.36). Left out: distributed claims and
// ES512, which our cryptography has no JSON web tokens for.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jiff::Timestamp;
use jsonwebtoken::Algorithm;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::configuration::{ClaimMapping, JwtOptions};
use super::keys::{KeysError, ProviderKeys};
use super::{CREDENTIAL_ID, UserInfo};
use crate::expressions::{Expression, ExpressionError};
use crate::remote::TlsSetupError;

/// How far ahead the clock of an issuer may be. Upstream: go-oidc's leeway for `nbf`.
const NOT_BEFORE_LEEWAY_SECONDS: i64 = 300;
/// Pause between attempts to reach a provider for the first time.
const FIRST_FETCH_PAUSE: Duration = Duration::from_secs(10);

/// The algorithms that configuration files allow.
pub(super) const ALGORITHMS: [Algorithm; 8] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];

/// Why a token makes nobody. The text is for the log.
#[derive(Debug, thiserror::Error)]
pub(super) enum JwtError {
    #[error("oidc: verify token: {0}")]
    Verify(String),
    #[error("oidc: verify token: fetching keys {0}")]
    Keys(#[from] KeysError),
    #[error("oidc: {0}")]
    Claims(String),
    #[error("oidc: error evaluating {what}: {reason}")]
    Expression { what: &'static str, reason: String },
}

/// Why an issuer's tokens cannot be accepted at all.
#[derive(Debug, thiserror::Error)]
pub enum JwtSetupError {
    #[error("issuer {issuer}: {source}")]
    Tls { issuer: String, source: TlsSetupError },
    #[error("issuer {issuer}: {reason}")]
    Expression { issuer: String, reason: String },
}

/// Accepts the tokens of one issuer.
pub(super) struct JwtAuthenticator {
    options: JwtOptions,
    algorithms: Vec<Algorithm>,
    keys: ProviderKeys,
    expressions: Expressions,
}

/// The compiled expressions, in the order in which the options have them.
#[derive(Default)]
struct Expressions {
    username: Option<Expression>,
    groups: Option<Expression>,
    uid: Option<Expression>,
    extra: Vec<Expression>,
    claim_rules: Vec<(Expression, String, String)>,
    user_rules: Vec<(Expression, String, String)>,
}

impl Expressions {
    fn compile(options: &JwtOptions) -> Result<Expressions, ExpressionError> {
        let mappings = &options.claim_mappings;
        let optional = |mapping: &ClaimMapping| match mapping.expression.as_str() {
            "" => Ok(None),
            text => Expression::over_claims(text).map(Some),
        };
        let claim_rules = options.claim_validation_rules.iter();
        let claim_rules = claim_rules.filter(|rule| !rule.expression.is_empty()).map(|rule| {
            let compiled = Expression::claims_condition(&rule.expression)?;
            Ok((compiled, rule.expression.clone(), rule.message.clone()))
        });
        let user_rules = options.user_validation_rules.iter().map(|rule| {
            let compiled = Expression::user_condition(&rule.expression)?;
            Ok((compiled, rule.expression.clone(), rule.message.clone()))
        });
        let extra = mappings.extra.iter();
        Ok(Expressions {
            username: optional(&mappings.username)?,
            groups: optional(&mappings.groups)?,
            uid: optional(&mappings.uid)?,
            extra: extra
                .map(|extra| Expression::over_claims(&extra.value_expression))
                .collect::<Result<_, _>>()?,
            claim_rules: claim_rules.collect::<Result<_, _>>()?,
            user_rules: user_rules.collect::<Result<_, _>>()?,
        })
    }

    fn read_claims(&self) -> bool {
        let mapped = [&self.username, &self.groups, &self.uid];
        mapped.iter().any(|e| e.is_some()) || !self.extra.is_empty() || !self.claim_rules.is_empty()
    }
}

impl JwtAuthenticator {
    /// Options must have been checked.
    pub(super) fn new(options: JwtOptions, algorithms: Vec<Algorithm>) -> Result<JwtAuthenticator, JwtSetupError> {
        let issuer = options.issuer.url.clone();
        let expressions = Expressions::compile(&options).map_err(|e| JwtSetupError::Expression {
            issuer: issuer.clone(),
            reason: e.to_string(),
        })?;
        let keys = ProviderKeys::new(&options.issuer).map_err(|source| JwtSetupError::Tls { issuer, source })?;
        Ok(JwtAuthenticator {
            options,
            algorithms,
            keys,
            expressions,
        })
    }

    pub(super) fn issuer(&self) -> &str {
        &self.options.issuer.url
    }

    /// Fetches the keys for the first time.
    pub(super) async fn prepare(&self) -> Result<(), KeysError> {
        self.keys.fetch().await
    }

    /// Fetches the keys in the background until that worked once. Providers may run on top of this very cluster.
    pub(super) fn prepare_in_background(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        tokio::spawn(async move {
            while let Some(this) = weak.upgrade()
                && !this.keys.are_known()
            {
                if let Err(e) = this.prepare().await {
                    tracing::warn!(issuer = this.issuer(), err = %e, "failed to fetch the keys of an OpenID Connect provider");
                }
                drop(this);
                tokio::time::sleep(FIRST_FETCH_PAUSE).await;
            }
        });
    }

    /// The user of a token, none if another issuer made it.
    pub(super) async fn authenticate(&self, token: &str, now: Timestamp) -> Result<Option<UserInfo>, JwtError> {
        if untrusted_issuer(token).as_deref() != Some(self.issuer()) {
            return Ok(None);
        }
        let claims = self.verified_claims(token).await?;
        self.check_token(&claims, now)?;
        self.user(claims).map(Some)
    }

    async fn verified_claims(&self, token: &str) -> Result<Map<String, Value>, JwtError> {
        let verify = |reason: String| JwtError::Verify(reason);
        let header = jsonwebtoken::decode_header(token).map_err(|e| verify(e.to_string()))?;
        if !self.algorithms.contains(&header.alg) {
            let why = format!(
                "unexpected signature algorithm {:?}; expected {:?}",
                header.alg, self.algorithms
            );
            return Err(verify(why));
        }
        let key_id = header.kid.as_deref();
        if let Some(claims) = self.keys.verify(token, key_id, header.alg) {
            return Ok(claims);
        }
        // Perhaps it was signed with a new key.
        self.keys.fetch().await?;
        let claims = self.keys.verify(token, key_id, header.alg);
        claims.ok_or_else(|| verify("failed to verify signature: failed to verify id token signature".into()))
    }

    fn check_token(&self, claims: &Map<String, Value>, now: Timestamp) -> Result<(), JwtError> {
        let audiences = match claims.get("aud") {
            None => vec![],
            Some(value) => string_or_list(value).ok_or_else(|| JwtError::Verify("malformed aud claim".into()))?,
        };
        let wanted = &self.options.issuer.audiences;
        if !wanted.iter().any(|audience| audiences.contains(audience)) {
            let why = format!("expected audience in {wanted:?} got {audiences:?}");
            return Err(JwtError::Verify(why));
        }
        let seconds = |name: &str| claims.get(name).and_then(Value::as_f64).map(|seconds| seconds as i64);
        let now = now.as_second();
        match seconds("exp") {
            Some(expires) if now <= expires => {}
            Some(expires) => {
                return Err(JwtError::Verify(format!("token is expired (Token Expiry: {expires})")));
            }
            None => return Err(JwtError::Verify("token has no expiry".into())),
        }
        if seconds("nbf").is_some_and(|from| now.saturating_add(NOT_BEFORE_LEEWAY_SECONDS) < from) {
            return Err(JwtError::Verify("current time before the nbf (not before) time".into()));
        }
        Ok(())
    }

    fn user(&self, claims: Map<String, Value>) -> Result<UserInfo, JwtError> {
        let value = match self.expressions.read_claims() {
            true => Value::Object(claims.clone()),
            false => Value::Null,
        };
        let mappings = &self.options.claim_mappings;
        let mut user = UserInfo {
            name: self.username(&claims, &value)?,
            groups: self.groups(&claims, &value)?,
            uid: match (&self.expressions.uid, mappings.uid.claim.as_str()) {
                (Some(expression), _) => text(
                    eval(expression, &value, "uid claim expression")?,
                    "uid claim expression",
                )?,
                (None, "") => String::new(),
                (None, claim) => claim_text(&claims, claim, "uid claim")?,
            },
            ..UserInfo::default()
        };
        if let Some(id) = claims.get("jti").and_then(Value::as_str).filter(|id| !id.is_empty()) {
            user.extra.insert(CREDENTIAL_ID.into(), vec![format!("JTI={id}")]);
        }
        for (mapping, expression) in mappings.extra.iter().zip(&self.expressions.extra) {
            let values = strings(
                eval(expression, &value, "extra claim expression")?,
                "extra claim expression",
            )?;
            if !values.is_empty() {
                user.extra.insert(mapping.key.clone(), values);
            }
        }
        self.check_claims(&claims, &value)?;
        if !self.expressions.user_rules.is_empty() {
            check_rules(
                &self.expressions.user_rules,
                &user.to_value(),
                "user info validation rule",
            )?;
        }
        Ok(user)
    }

    fn username(&self, claims: &Map<String, Value>, value: &Value) -> Result<String, JwtError> {
        const WHAT: &str = "username claim expression";
        if let Some(expression) = &self.expressions.username {
            let name = text(eval(expression, value, WHAT)?, WHAT)?;
            return match name.is_empty() {
                true => Err(JwtError::Claims(
                    "empty username via CEL expression is not allowed".into(),
                )),
                false => Ok(name),
            };
        }
        let mapping = &self.options.claim_mappings.username;
        let name = claim_text(claims, &mapping.claim, "username claims")?;
        if mapping.claim == "email"
            && let Some(verified) = claims.get("email_verified")
        {
            match verified.as_bool() {
                None => {
                    return Err(JwtError::Claims(
                        "parse 'email_verified' claim: must be a boolean".into(),
                    ));
                }
                Some(false) => return Err(JwtError::Claims("email not verified".into())),
                Some(true) => {}
            }
        }
        Ok(format!("{}{name}", mapping.prefix.as_deref().unwrap_or("")))
    }

    fn groups(&self, claims: &Map<String, Value>, value: &Value) -> Result<Vec<String>, JwtError> {
        const WHAT: &str = "group claim expression";
        let mapping = &self.options.claim_mappings.groups;
        if let Some(expression) = &self.expressions.groups {
            return strings(eval(expression, value, WHAT)?, WHAT);
        }
        let Some(found) = claims.get(&mapping.claim) else {
            return Ok(vec![]);
        };
        let groups = string_or_list(found).ok_or_else(|| {
            JwtError::Claims(format!(
                "parse groups claim {:?}: must be a string or a list of strings",
                mapping.claim
            ))
        })?;
        let prefix = mapping.prefix.as_deref().unwrap_or("");
        Ok(groups.into_iter().map(|group| format!("{prefix}{group}")).collect())
    }

    fn check_claims(&self, claims: &Map<String, Value>, value: &Value) -> Result<(), JwtError> {
        for rule in self
            .options
            .claim_validation_rules
            .iter()
            .filter(|rule| !rule.claim.is_empty())
        {
            let claim = &rule.claim;
            let Some(found) = claims.get(claim) else {
                return Err(JwtError::Claims(format!(
                    "required claim {claim} not present in ID token"
                )));
            };
            let Some(found) = found.as_str() else {
                return Err(JwtError::Claims(format!("parse claim {claim}: must be a string")));
            };
            if found != rule.required_value {
                return Err(JwtError::Claims(format!(
                    "required claim {claim} value does not match. Got = {found}, want = {}",
                    rule.required_value
                )));
            }
        }
        check_rules(&self.expressions.claim_rules, value, "claim validation expression")
    }
}

/// Who a token says has made it; nothing is verified.
fn untrusted_issuer(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Issuer {
        #[serde(default)]
        iss: String,
    }
    let mut parts = token.split('.');
    let (Some(_), Some(payload), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return None;
    };
    let json = BASE64_URL_SAFE_NO_PAD.decode(payload).ok()?;
    let issuer = serde_json::from_slice::<Issuer>(&json).ok()?.iss;
    Some(match issuer.as_str() {
        // The name that Google gave itself before OpenID Connect.
        "accounts.google.com" => "https://accounts.google.com".to_string(),
        _ => issuer,
    })
}

fn claim_text(claims: &Map<String, Value>, claim: &str, what: &str) -> Result<String, JwtError> {
    match claims.get(claim) {
        None => Err(JwtError::Claims(format!("parse {what} {claim:?}: claim not present"))),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(JwtError::Claims(format!("parse {what} {claim:?}: must be a string"))),
    }
}

fn string_or_list(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(one) => Some(vec![one.clone()]),
        Value::Array(many) => many.iter().map(|item| item.as_str().map(str::to_string)).collect(),
        _ => None,
    }
}

fn eval(expression: &Expression, variable: &Value, what: &'static str) -> Result<Value, JwtError> {
    expression.eval(variable).map_err(|e| JwtError::Expression {
        what,
        reason: e.to_string(),
    })
}

fn text(value: Value, what: &'static str) -> Result<String, JwtError> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err(JwtError::Expression {
            what,
            reason: format!("{what} must return a string"),
        }),
    }
}

/// A string or a list of strings; empty ones count as absent.
fn strings(value: Value, what: &'static str) -> Result<Vec<String>, JwtError> {
    let found = match &value {
        Value::Null => Some(vec![]),
        value => string_or_list(value),
    };
    let found = found.ok_or_else(|| JwtError::Expression {
        what,
        reason: "expression must return a string or a list of strings".to_string(),
    })?;
    Ok(found.into_iter().filter(|text| !text.is_empty()).collect())
}

/// Each rule must hold; a rule is an expression, its text and what to say if it does not hold.
fn check_rules(rules: &[(Expression, String, String)], variable: &Value, what: &'static str) -> Result<(), JwtError> {
    for (expression, text, message) in rules {
        if eval(expression, variable, what)? != Value::Bool(true) {
            let reason = match message.as_str() {
                "" => format!("validation expression '{text}' failed"),
                message => format!("validation expression '{text}' failed: {message}"),
            };
            return Err(JwtError::Expression { what, reason });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::configuration::{ClaimValidationRule, Issuer};
    use super::*;

    fn authenticator(change: impl FnOnce(&mut JwtOptions)) -> JwtAuthenticator {
        let mut options = JwtOptions {
            issuer: Issuer {
                url: "https://i.example".into(),
                audiences: vec!["a".into(), "b".into()],
                ..Issuer::default()
            },
            ..JwtOptions::default()
        };
        options.claim_mappings.username = ClaimMapping {
            claim: "sub".into(),
            prefix: Some("i:".into()),
            ..ClaimMapping::default()
        };
        change(&mut options);
        let expressions = Expressions::compile(&options).unwrap();
        let keys = ProviderKeys::new(&options.issuer).unwrap();
        JwtAuthenticator {
            options,
            algorithms: ALGORITHMS.to_vec(),
            keys,
            expressions,
        }
    }

    fn user(authenticator: &JwtAuthenticator, claims: Value) -> Result<String, String> {
        let Value::Object(claims) = claims else {
            panic!("an object")
        };
        let now = Timestamp::from_second(1000).unwrap();
        let checked = authenticator
            .check_token(&claims, now)
            .and_then(|()| authenticator.user(claims));
        let user = checked.map_err(|e| e.to_string())?;
        Ok(format!("{} {} {}", user.name, user.groups.join("+"), user.uid))
    }

    #[test]
    fn claims_make_users() {
        let plain = authenticator(|_| {});
        let email = authenticator(|options| {
            options.claim_mappings.username.claim = "email".into();
            options.claim_mappings.groups.claim = "roles".into();
            options.claim_mappings.groups.prefix = Some("g:".into());
            options.claim_mappings.uid.claim = "id".into();
            options.claim_validation_rules.push(ClaimValidationRule {
                claim: "hd".into(),
                required_value: "x".into(),
                ..ClaimValidationRule::default()
            });
        });
        let whole = |more: Value| {
            let mut claims = json!({"aud": "a", "exp": 1001, "email": "e", "id": "1", "hd": "x"});
            for (name, value) in more.as_object().unwrap() {
                claims[name] = value.clone();
            }
            claims
        };
        for (authenticator, claims, wanted) in [
            (&plain, json!({"aud": "a", "exp": 1000, "sub": "s"}), Ok("i:s  ")),
            (
                &plain,
                json!({"aud": ["z", "b"], "exp": 1000.5, "sub": "s"}),
                Ok("i:s  "),
            ),
            (
                &plain,
                json!({"aud": "z", "exp": 1000, "sub": "s"}),
                Err("expected audience in [\"a\", \"b\"] got [\"z\"]"),
            ),
            (&plain, json!({"exp": 1000, "sub": "s"}), Err("expected audience")),
            (
                &plain,
                json!({"aud": "a", "exp": 999, "sub": "s"}),
                Err("token is expired"),
            ),
            (&plain, json!({"aud": "a", "sub": "s"}), Err("token has no expiry")),
            (
                &plain,
                json!({"aud": "a", "exp": 2000, "nbf": 1300, "sub": "s"}),
                Ok("i:s  "),
            ),
            (
                &plain,
                json!({"aud": "a", "exp": 2000, "nbf": 1301, "sub": "s"}),
                Err("before the nbf"),
            ),
            (
                &plain,
                json!({"aud": "a", "exp": 2000}),
                Err("parse username claims \"sub\": claim not present"),
            ),
            (
                &plain,
                json!({"aud": "a", "exp": 2000, "sub": 5}),
                Err("must be a string"),
            ),
            (&email, whole(json!({"roles": "admin"})), Ok("i:e g:admin 1")),
            (
                &email,
                whole(json!({"roles": ["a", "b"], "email_verified": true})),
                Ok("i:e g:a+g:b 1"),
            ),
            (
                &email,
                whole(json!({"email_verified": false})),
                Err("oidc: email not verified"),
            ),
            (
                &email,
                whole(json!({"email_verified": "yes"})),
                Err("parse 'email_verified' claim"),
            ),
            (&email, whole(json!({"roles": 5})), Err("parse groups claim \"roles\"")),
            (&email, whole(json!({"id": null})), Err("parse uid claim \"id\"")),
            (
                &email,
                whole(json!({"hd": "y"})),
                Err("required claim hd value does not match. Got = y, want = x"),
            ),
            (
                &email,
                json!({"aud": "a", "exp": 1001, "email": "e", "id": "1"}),
                Err("required claim hd not present in ID token"),
            ),
        ] {
            let found = user(authenticator, claims.clone());
            match wanted {
                Ok(wanted) => assert_eq!(found.as_deref(), Ok(wanted), "{claims}"),
                Err(part) => assert!(found.as_ref().is_err_and(|e| e.contains(part)), "{claims} {found:?}"),
            }
        }
    }

    #[test]
    fn issuers_are_told_apart() {
        let token = |claims: Value| format!("x.{}.y", BASE64_URL_SAFE_NO_PAD.encode(claims.to_string()));
        assert_eq!(untrusted_issuer(&token(json!({"iss": "i"}))).as_deref(), Some("i"));
        let google = untrusted_issuer(&token(json!({"iss": "accounts.google.com"})));
        assert_eq!(google.as_deref(), Some("https://accounts.google.com"));
        for bad in ["", "a.b", "a.b.c", "a.b.c.d", "{}"] {
            assert_eq!(untrusted_issuer(bad), None, "{bad}");
        }
    }
}

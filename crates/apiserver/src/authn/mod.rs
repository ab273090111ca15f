//! Authentication: whose request is this? Client certificates and bearer tokens (from a file, of service accounts, for
//! bootstrapping) are tried in turn; the first that is good counts. Then tokens of other issuers, and last a webhook, are
//! asked, which may take a while. A request that presents no credential is anonymous, and whether that may go on is the
//! caller's policy; one whose every credential is bad is refused. Front proxies may say for whom they ask.

mod bootstrap_token;
mod certificate;
mod configuration;
mod impersonation;
mod jwt;
mod keys;
mod options;
mod request_header;
mod secret_token;
mod service_account;
mod static_tokens;
mod token_request;
mod user;
mod webhook;

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use http::{HeaderMap, header};
use jiff::Timestamp;
use orlop_x509::ClientAuthority;
use rustls_pki_types::CertificateDer;
use serde_json::Value;

pub use certificate::CertIdentity;
pub use configuration::{
    AnonymousCondition, AnonymousOptions, AuthenticationConfiguration, ClaimMapping, ClaimMappings,
    ClaimValidationRule, ConfigurationError, ExtraMapping, Issuer, JwtOptions, UserValidationRule,
};
pub use impersonation::{impersonate, strip_headers};
pub use jwt::JwtSetupError;
pub use options::{AuthenticationError, AuthenticationOptions, OidcOptions};
pub use request_header::RequestHeaderOptions;
pub use secret_token::SecretTokens;
pub use service_account::{Bound, BoundObject, DEFAULT_ISSUER, IssueError, KeyError, ServiceAccountRef, TokenIssuer};
pub(crate) use service_account::{LAST_USED, day};
pub use static_tokens::{TokenFileError, parse_token_file};
pub use token_request::IssuedToken;
pub use user::*;
pub use webhook::TokenWebhookOptions;

use crate::lookup::{ObjectLookup, text};
use options::Configured;

/// How clients without control over their headers (browsers) pass a token when they open a WebSocket.
const WEBSOCKET_TOKEN_PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// A credential was presented and is no good. Clients only learn that (401); the text is for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthnError {
    #[error("client certificate: {0}")]
    Certificate(String),
    #[error("{0}")]
    Token(String),
}

impl AuthnError {
    pub fn status(&self) -> orlop_api::Status {
        orlop_api::Status::unauthorized()
    }

    fn invalid_token() -> AuthnError {
        AuthnError::Token("invalid bearer token".into())
    }
}

/// The user of a bearer token, and what the token is good for among the audiences asked about.
#[derive(Clone, Debug)]
pub struct Authenticated {
    pub user: Arc<UserInfo>,
    pub audiences: Vec<String>,
}

pub struct Authenticator {
    issuer: Arc<TokenIssuer>,
    static_tokens: HashMap<String, Arc<UserInfo>>,
    /// Without one, client certificates say nothing.
    clients: Option<ClientAuthority>,
    /// What options and configuration files add.
    configured: Configured,
}

impl Authenticator {
    pub fn new(issuer: Arc<TokenIssuer>) -> Authenticator {
        Authenticator {
            issuer,
            static_tokens: HashMap::new(),
            clients: None,
            configured: Configured::default(),
        }
    }

    /// Also takes certificates that this authority vouches for.
    pub fn with_client_authority(mut self, clients: ClientAuthority) -> Authenticator {
        self.clients = Some(clients);
        self
    }

    /// What the certificates say that a client showed in the handshake, the leaf first.
    pub fn client_certificate(&self, chain: Option<&[CertificateDer<'_>]>, now: Timestamp) -> Option<CertIdentity> {
        Some(CertIdentity::new(self.clients.as_ref()?, chain?, now))
    }

    /// Also accepts tokens read by `parse_token_file`.
    pub fn with_static_tokens(mut self, tokens: HashMap<String, Arc<UserInfo>>) -> Authenticator {
        self.static_tokens = tokens;
        self
    }

    pub fn issuer(&self) -> &Arc<TokenIssuer> {
        &self.issuer
    }

    /// The user of a request, none if it carries no credential. `client_cert` is that of the connection.
    pub async fn authenticate(
        &self,
        headers: &HeaderMap,
        client_cert: Option<&CertIdentity>,
        now: Timestamp,
        lookup: &dyn ObjectLookup,
    ) -> Result<Option<Arc<UserInfo>>, AuthnError> {
        if let (Some(proxies), Some(certificate)) = (self.configured.request_header(), client_cert)
            && proxies.applies(headers)
            && let Ok(Some(user)) = proxies.user(headers, certificate.chain(), now)
        {
            return Ok(Some(Arc::new(user)));
        }
        let by_certificate = client_cert.map_or(Ok(None), |certificate| certificate.user(now));
        if let Ok(Some(_)) = by_certificate {
            return by_certificate;
        }
        let token = match bearer_token(headers)
            .transpose()
            .or_else(|| websocket_token(headers).transpose())
        {
            None => return by_certificate,
            Some(token) => token?,
        };
        let audiences = self.issuer.api_audiences();
        let found = self.authenticate_token(&token, audiences, now, lookup).await?;
        Ok(Some(found.user))
    }

    /// Checks a bearer token of any kind.
    pub async fn authenticate_token(
        &self,
        token: &str,
        audiences: &[String],
        now: Timestamp,
        lookup: &dyn ObjectLookup,
    ) -> Result<Authenticated, AuthnError> {
        let refused = match self.authenticate_own(token, audiences, now, lookup) {
            Ok(found) => return Ok(found),
            Err(refused) => refused,
        };
        let mut reason = None;
        for issuer in self.configured.issuers() {
            match issuer.authenticate(token, now).await {
                Ok(None) => {}
                Ok(Some(mut user)) => {
                    user.ensure_authenticated();
                    return self.for_api(Arc::new(user), audiences);
                }
                Err(e) => reason = Some(e.to_string()),
            }
        }
        if let Some(webhook) = self.configured.webhook() {
            match webhook
                .authenticate(token, audiences, self.issuer.api_audiences())
                .await
            {
                Ok(Ok(found)) => return Ok(found),
                Ok(Err(why)) if why.is_empty() => {}
                Ok(Err(why)) => reason = Some(why.to_string()),
                Err(e) => {
                    tracing::warn!(err = %e, "failed to call token webhook");
                    reason = Some(e.to_string());
                }
            }
        }
        Err(reason.map_or(refused, AuthnError::Token))
    }

    /// Checks a bearer token that this server or its cluster may have issued.
    fn authenticate_own(
        &self,
        token: &str,
        audiences: &[String],
        now: Timestamp,
        lookup: &dyn ObjectLookup,
    ) -> Result<Authenticated, AuthnError> {
        if let Some(user) = self.static_tokens.get(token) {
            return self.for_api(user.clone(), audiences);
        }
        if let Some(found) = self.issuer.authenticate(token, audiences, now, lookup)? {
            return Ok(found);
        }
        match bootstrap_token::authenticate(token, now, lookup) {
            Some(user) => self.for_api(Arc::new(user), audiences),
            None => Err(AuthnError::invalid_token()),
        }
    }

    /// Tokens that know of no audience are good for the API server.
    fn for_api(&self, user: Arc<UserInfo>, audiences: &[String]) -> Result<Authenticated, AuthnError> {
        let own = self.issuer.api_audiences().iter();
        let common: Vec<String> = own.filter(|audience| audiences.contains(audience)).cloned().collect();
        match common.is_empty() {
            true => Err(AuthnError::invalid_token()),
            false => Ok(Authenticated {
                user,
                audiences: common,
            }),
        }
    }
}

/// The token of an `Authorization: Bearer …` header; other schemes are no business of ours.
fn bearer_token(headers: &HeaderMap) -> Result<Option<String>, AuthnError> {
    let Some(value) = headers.get(header::AUTHORIZATION) else {
        return Ok(None);
    };
    let value = std::str::from_utf8(value.as_bytes()).map_err(|_| AuthnError::invalid_token())?;
    let mut parts = value.trim().splitn(3, ' ');
    match (parts.next(), parts.next()) {
        (Some(scheme), Some(token)) if scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() => {
            Ok(Some(token.to_string()))
        }
        _ => Ok(None),
    }
}

/// A token among the subprotocols of a WebSocket request. There must be another one, to answer with.
fn websocket_token(headers: &HeaderMap) -> Result<Option<String>, AuthnError> {
    let has = |name, wanted: &str| {
        let values = headers.get_all(name).into_iter().filter_map(|v| v.to_str().ok());
        values
            .flat_map(|v| v.split(','))
            .any(|v| v.trim().eq_ignore_ascii_case(wanted))
    };
    if !has(header::CONNECTION, "upgrade") || !has(header::UPGRADE, "websocket") {
        return Ok(None);
    }
    let values = headers
        .get_all(header::SEC_WEBSOCKET_PROTOCOL)
        .into_iter()
        .filter_map(|v| v.to_str().ok());
    let protocols: Vec<&str> = values.flat_map(|v| v.split(',')).map(str::trim).collect();
    let mut tokens = protocols.iter().filter_map(|p| p.strip_prefix(WEBSOCKET_TOKEN_PREFIX));
    let (Some(encoded), None) = (tokens.next(), tokens.next()) else {
        return match protocols.iter().any(|p| p.starts_with(WEBSOCKET_TOKEN_PREFIX)) {
            true => Err(AuthnError::Token(
                "multiple base64.bearer.authorization tokens specified".into(),
            )),
            false => Ok(None),
        };
    };
    let decoded = BASE64_URL_SAFE_NO_PAD
        .decode(encoded)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok());
    let token =
        decoded.ok_or_else(|| AuthnError::Token("invalid base64.bearer.authorization token encoding".into()))?;
    if !token.is_empty() && protocols.len() == 1 {
        return Err(AuthnError::Token("missing additional subprotocol".into()));
    }
    Ok(Some(token).filter(|token| !token.is_empty()))
}

/// A value of a secret's data, decoded; empty if there is none.
fn data_of(secret: &Value, key: &str) -> Vec<u8> {
    BASE64_STANDARD.decode(text(secret, &["data", key])).unwrap_or_default()
}

/// Compares secrets without telling, by the time it takes, how much of them agrees.
fn same_bytes(a: &[u8], b: &[u8]) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(a, b).is_ok()
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use http::{HeaderName, HeaderValue};
    use rustls_pki_types::pem::PemObject;
    use serde_json::json;

    use super::*;
    use crate::lookup::fixture::Objects;
    use crate::pki::Pki;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(
                HeaderName::try_from(*name).unwrap(),
                HeaderValue::from_str(value).unwrap(),
            );
        }
        map
    }

    #[tokio::test]
    async fn credentials_are_tried_in_turn() {
        let now: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::load_or_create(dir.path(), &[], now).unwrap();
        let issuer = TokenIssuer::new(DEFAULT_ISSUER, &pki.service_account_key).unwrap();
        let objects = Objects::default().with(
            "serviceaccounts",
            json!({"metadata": {"namespace": "ns", "name": "robot", "uid": "u"}}),
        );
        let robot = ServiceAccountRef {
            namespace: "ns",
            name: "robot",
            uid: "u",
        };
        let (jwt, _) = issuer.issue(robot, issuer.api_audiences(), 600, None, now).unwrap();
        let (elsewhere, _) = issuer.issue(robot, &["other".to_string()], 600, None, now).unwrap();
        let authenticator =
            Authenticator::new(Arc::new(issuer)).with_static_tokens(parse_token_file("t1,alice,1").unwrap());

        let authenticator = authenticator.with_client_authority(pki.client_authority().unwrap());
        let shown = |credential: &crate::pki::Credential| {
            let der = CertificateDer::from_pem_slice(credential.certificate.as_bytes()).unwrap();
            authenticator.client_certificate(Some(&[der]), now).unwrap()
        };
        let admin = shown(&pki.admin);
        let elsewhere_dir = tempfile::tempdir().unwrap();
        // Somebody else's authority, of the same name.
        let forged = shown(&Pki::load_or_create(elsewhere_dir.path(), &[], now).unwrap().admin);
        let late: Timestamp = "2036-11-15T12:00:00Z".parse().unwrap();

        let bearer = |token: &str| format!("Bearer {token}");
        let protocol = |token: &str| {
            format!(
                "v4.channel.k8s.io, {WEBSOCKET_TOKEN_PREFIX}{}",
                BASE64_URL_SAFE_NO_PAD.encode(token)
            )
        };
        let websocket = |protocols: String| {
            vec![
                ("connection", "Upgrade".to_string()),
                ("upgrade", "websocket".into()),
                ("sec-websocket-protocol", protocols),
            ]
        };
        let authorization = |value: String| vec![("authorization", value)];
        let none = vec![];
        // headers, certificate, now, user ("" for nobody; none for an error)
        let robot_name = "system:serviceaccount:ns:robot";
        let cases = [
            (none.clone(), None, now, Some("")),
            (none.clone(), Some(&admin), now, Some("kubernetes-admin")),
            (none.clone(), Some(&admin), late, None),
            (authorization(bearer("t1")), None, now, Some("alice")),
            (authorization(bearer("t1")), Some(&admin), now, Some("kubernetes-admin")),
            (
                authorization(bearer("bad")),
                Some(&admin),
                now,
                Some("kubernetes-admin"),
            ),
            (authorization(bearer("t1")), Some(&admin), late, Some("alice")),
            // A certificate that is no good is no obstacle, and worth nothing.
            (none.clone(), Some(&forged), now, None),
            (authorization(bearer("t1")), Some(&forged), now, Some("alice")),
            (authorization(bearer("bad")), Some(&forged), now, None),
            (websocket(protocol("t1")), Some(&forged), now, Some("alice")),
            (authorization("bEARER  t1".into()), None, now, Some("")),
            (authorization("bEARER t1 more".into()), None, now, Some("alice")),
            (authorization("Basic abc".into()), None, now, Some("")),
            (authorization("Bearer".into()), None, now, Some("")),
            (authorization(bearer("bad")), None, now, None),
            (authorization(bearer(&jwt)), None, now, Some(robot_name)),
            (authorization(bearer(&jwt)), None, late, None),
            (authorization(bearer(&elsewhere)), None, now, None),
            (authorization(bearer("abcdef.0123456789abcdef")), None, now, None),
            (websocket(protocol("t1")), None, now, Some("alice")),
            (websocket(protocol(&jwt)), None, now, Some(robot_name)),
            (websocket(protocol("bad")), None, now, None),
            (websocket("v4.channel.k8s.io".into()), None, now, Some("")),
            (websocket(format!("{WEBSOCKET_TOKEN_PREFIX}dDE")), None, now, None),
            (
                websocket(format!("{},{}", protocol("t1"), protocol("t1"))),
                None,
                now,
                None,
            ),
            (websocket(format!("x,{WEBSOCKET_TOKEN_PREFIX}***")), None, now, None),
            (vec![("sec-websocket-protocol", protocol("t1"))], None, now, Some("")),
        ];
        for (lines, certificate, now, expected) in cases {
            let lines: Vec<(&str, &str)> = lines.iter().map(|(n, v)| (*n, v.as_str())).collect();
            let found = authenticator
                .authenticate(&headers(&lines), certificate, now, &objects)
                .await;
            let found = found.map(|user| user.map_or(String::new(), |user| user.name.clone()));
            assert_eq!(found.as_deref().ok(), expected, "{lines:?} {found:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_credentials_never_panic(
            bytes in proptest::collection::vec(0u8..=255, 0..60),
            text in "(Bearer |bearer|)[a-zA-Z0-9._ -]{0,80}",
            dotted in "([A-Za-z0-9_-]{0,20}\\.){0,4}[A-Za-z0-9_-]{0,20}",
        ) {
            let authenticator = Authenticator::new(Arc::new(service_account::tests::issuer()));
            let objects = Objects::default();
            let now = Timestamp::UNIX_EPOCH;
            let payload = BASE64_URL_SAFE_NO_PAD.encode(&bytes);
            let ours = BASE64_URL_SAFE_NO_PAD.encode(json!({"iss": DEFAULT_ISSUER, "x": text}).to_string());
            for value in [bytes.clone(), text.into_bytes(), format!("Bearer {dotted}").into_bytes(),
                format!("Bearer {payload}.{payload}.{payload}").into_bytes(), format!("Bearer {payload}.{ours}.{payload}").into_bytes()] {
                if let Ok(value) = HeaderValue::from_bytes(&value) {
                    let mut map = HeaderMap::new();
                    map.insert(header::AUTHORIZATION, value);
                    let found = authenticator.authenticate(&map, None, now, &objects).now_or_never().expect("nobody is asked");
                    proptest::prop_assert!(!matches!(found, Ok(Some(_))));
                }
            }
            let dir = tempfile::tempdir().unwrap();
            let clients = Pki::load_or_create(dir.path(), &[], now).unwrap().client_authority().unwrap();
            let shown = CertIdentity::new(&clients, &[CertificateDer::from(bytes)], now);
            proptest::prop_assert!(shown.user(now).is_err());
        }
    }
}

//! What options and configuration files add to authentication: static tokens, issuers of JSON web tokens, a webhook, front
//! proxies, and what anonymous requests may ask for.

use std::path::PathBuf;
use std::sync::Arc;

use jsonwebtoken::Algorithm;
use orlop_base::{BoxFuture, Clock, Shutdown};
use parking_lot::RwLock;

use super::Authenticator;
use super::configuration::{
    AnonymousOptions, AuthenticationConfiguration, ClaimMapping, ClaimValidationRule, ConfigurationError, JwtOptions,
};
use super::jwt::{ALGORITHMS, JwtAuthenticator, JwtSetupError};
use super::keys::KeysError;
use super::request_header::{RequestHeader, RequestHeaderOptions};
use super::static_tokens::{TokenFileError, parse_token_file};
use super::webhook::{TokenWebhook, TokenWebhookOptions};
use crate::config_file::{self, FileError, Reloads};
use crate::remote::KubeconfigError;

/// Who is let in.
#[derive(Clone, Debug, Default)]
pub struct AuthenticationOptions {
    /// Whether requests without credentials are anonymous ones (the default) or refused.
    pub anonymous: Option<bool>,
    /// `token,user,uid,"group1,group2"`, one a line.
    pub token_file: Option<PathBuf>,
    /// An AuthenticationConfiguration; followed as it changes.
    pub config_file: Option<PathBuf>,
    pub oidc: Option<OidcOptions>,
    pub webhook: Option<TokenWebhookOptions>,
    /// None: front proxies with certificates of the cluster's own authority for them.
    pub request_header: Option<RequestHeaderOptions>,
}

/// One issuer of tokens, as flags describe it.
#[derive(Clone, Debug, Default)]
pub struct OidcOptions {
    pub issuer_url: String,
    pub client_id: String,
    pub ca_file: Option<PathBuf>,
    pub username_claim: String,
    /// Empty: the issuer's URL and `#`, unless the claim is `email`. `-`: none.
    pub username_prefix: String,
    pub groups_claim: String,
    pub groups_prefix: String,
    pub signing_algorithms: Vec<String>,
    pub required_claims: Vec<(String, String)>,
}

/// Why authentication cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum AuthenticationError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{path}: {source}", path = path.display())]
    Tokens { path: PathBuf, source: TokenFileError },
    #[error("invalid authentication configuration {path}: {source}", path = path.display())]
    Configuration { path: PathBuf, source: ConfigurationError },
    #[error("oidc: {0}")]
    Oidc(ConfigurationError),
    #[error("oidc: unsupported signing alg: {0:?}")]
    Algorithm(String),
    #[error("{0} and an authentication configuration that says so too are mutually exclusive")]
    Twice(&'static str),
    #[error(transparent)]
    Jwt(#[from] JwtSetupError),
    #[error("failed to set up the token webhook: {0}")]
    Webhook(#[from] KubeconfigError),
    #[error("request-header client CA: {0}")]
    RequestHeader(#[from] orlop_x509::AuthorityError),
    #[error("issuer {issuer}: {source}")]
    Keys { issuer: String, source: KeysError },
}

/// What the options have made.
pub(super) struct Configured {
    webhook: Option<TokenWebhook>,
    request_header: Option<RequestHeader>,
    /// From flags: what a configuration file says comes on top.
    fixed: Vec<Arc<JwtAuthenticator>>,
    anonymous: Option<bool>,
    loaded: RwLock<Arc<Loaded>>,
    file: Option<(PathBuf, Vec<u8>)>,
    reloads: Reloads,
}

/// What may be loaded anew.
#[derive(Default)]
struct Loaded {
    issuers: Vec<Arc<JwtAuthenticator>>,
    anonymous: Option<AnonymousOptions>,
}

impl Default for Configured {
    fn default() -> Configured {
        Configured {
            webhook: None,
            request_header: None,
            fixed: vec![],
            anonymous: None,
            loaded: RwLock::default(),
            file: None,
            reloads: Reloads::new("apiserver_authentication_config_controller"),
        }
    }
}

impl Configured {
    pub(super) fn webhook(&self) -> Option<&TokenWebhook> {
        self.webhook.as_ref()
    }

    pub(super) fn request_header(&self) -> Option<&RequestHeader> {
        self.request_header.as_ref()
    }

    pub(super) fn issuers(&self) -> Vec<Arc<JwtAuthenticator>> {
        let loaded = self.loaded.read();
        // Most servers have none, and most tokens are not theirs.
        if self.fixed.is_empty() && loaded.issuers.is_empty() {
            return vec![];
        }
        self.fixed.iter().chain(&loaded.issuers).cloned().collect()
    }

    /// Reads what a configuration file holds; nothing is in force yet.
    fn load(&self, bytes: &[u8], path: &std::path::Path, own_issuer: &str) -> Result<Loaded, AuthenticationError> {
        let parsed = AuthenticationConfiguration::parse(bytes, own_issuer);
        let parsed = parsed.map_err(|source| AuthenticationError::Configuration {
            path: path.to_path_buf(),
            source,
        })?;
        if self.anonymous.is_some() && parsed.anonymous.is_some() {
            return Err(AuthenticationError::Twice("--anonymous-auth"));
        }
        if !self.fixed.is_empty() && !parsed.jwt.is_empty() {
            return Err(AuthenticationError::Twice("--oidc-issuer-url"));
        }
        let issuers = parsed.jwt.into_iter().map(|options| {
            let made = JwtAuthenticator::new(options, ALGORITHMS.to_vec())?;
            Ok::<_, AuthenticationError>(Arc::new(made))
        });
        Ok(Loaded {
            issuers: issuers.collect::<Result<_, _>>()?,
            anonymous: parsed.anonymous,
        })
    }
}

impl OidcOptions {
    // Upstream: BuiltInAuthenticationOptions.ToAuthenticationConfig in pkg/kubeapiserver/options/authentication.go
    fn jwt(&self, own_issuer: &str) -> Result<JwtAuthenticator, AuthenticationError> {
        let authority = match &self.ca_file {
            Some(path) => String::from_utf8_lossy(&config_file::read(path)?).into_owned(),
            None => String::new(),
        };
        let username_prefix = match self.username_prefix.as_str() {
            "-" => String::new(),
            "" if self.username_claim != "email" => format!("{}#", self.issuer_url),
            prefix => prefix.to_string(),
        };
        let mapping = |claim: &str, prefix: &str| ClaimMapping {
            claim: claim.to_string(),
            prefix: (!claim.is_empty()).then(|| prefix.to_string()),
            ..ClaimMapping::default()
        };
        let required = self.required_claims.iter().map(|(claim, value)| ClaimValidationRule {
            claim: claim.clone(),
            required_value: value.clone(),
            ..ClaimValidationRule::default()
        });
        let mut options = JwtOptions {
            claim_validation_rules: required.collect(),
            ..JwtOptions::default()
        };
        options.issuer.url = self.issuer_url.clone();
        options.issuer.audiences = vec![self.client_id.clone()];
        options.issuer.certificate_authority = authority;
        options.claim_mappings.username = mapping(&self.username_claim, &username_prefix);
        options.claim_mappings.groups = mapping(&self.groups_claim, &self.groups_prefix);
        let configuration = AuthenticationConfiguration {
            jwt: vec![options.clone()],
            anonymous: None,
        };
        configuration.check(own_issuer).map_err(AuthenticationError::Oidc)?;
        Ok(JwtAuthenticator::new(options, self.algorithms()?)?)
    }

    fn algorithms(&self) -> Result<Vec<Algorithm>, AuthenticationError> {
        let known = |name: &String| {
            let parsed = name
                .parse::<Algorithm>()
                .ok()
                .filter(|found| ALGORITHMS.contains(found));
            parsed.ok_or_else(|| AuthenticationError::Algorithm(name.clone()))
        };
        match self.signing_algorithms.is_empty() {
            true => Ok(vec![Algorithm::RS256]),
            false => self.signing_algorithms.iter().map(known).collect(),
        }
    }
}

impl Authenticator {
    /// Also lets in whom these options name. `front_proxies` vouches for proxies unless the options say who does.
    pub fn with_options(
        mut self,
        options: &AuthenticationOptions,
        front_proxies: &str,
    ) -> Result<Authenticator, AuthenticationError> {
        if let Some(path) = &options.token_file {
            let text = String::from_utf8_lossy(&config_file::read(path)?).into_owned();
            let tokens = parse_token_file(&text).map_err(|source| AuthenticationError::Tokens {
                path: path.clone(),
                source,
            })?;
            self = self.with_static_tokens(tokens);
        }
        let own_issuer = self.issuer.name().to_string();
        let request_header = options.request_header.clone();
        let request_header = request_header.unwrap_or_else(|| RequestHeaderOptions::of_cluster(front_proxies));
        let fixed = options.oidc.as_ref().map(|oidc| oidc.jwt(&own_issuer)).transpose()?;
        let mut configured = Configured {
            webhook: options.webhook.as_ref().map(TokenWebhook::new).transpose()?,
            request_header: Some(RequestHeader::new(request_header)?),
            fixed: fixed.map(Arc::new).into_iter().collect(),
            anonymous: options.anonymous,
            ..Configured::default()
        };
        if let Some(path) = &options.config_file {
            let bytes = config_file::read(path)?;
            let loaded = configured.load(&bytes, path, &own_issuer)?;
            configured.loaded = RwLock::new(Arc::new(loaded));
            configured.file = Some((path.clone(), bytes));
        }
        self.configured = configured;
        Ok(self)
    }

    /// Whether a request without credentials may go on as an anonymous one.
    pub(crate) fn takes_anonymous(&self, path: &str) -> bool {
        match &self.configured.loaded.read().anonymous {
            Some(options) => {
                let conditions = &options.conditions;
                options.enabled && (conditions.is_empty() || conditions.iter().any(|c| c.path == path))
            }
            None => self.configured.anonymous.unwrap_or(true),
        }
    }

    /// Begins to fetch providers' keys.
    pub(crate) fn prepare(&self) {
        for issuer in self.configured.issuers() {
            issuer.prepare_in_background();
        }
    }

    /// Reads the configuration file again as it changes, if there is one. A new configuration is in force once the keys of
    /// all its issuers are there.
    pub(crate) async fn follow<T: AsRef<Authenticator> + Send + Sync + 'static>(
        owner: Arc<T>,
        clock: Clock,
        shutdown: Shutdown,
    ) {
        let this: &Authenticator = (*owner).as_ref();
        let Some((path, bytes)) = this.configured.file.clone() else {
            return;
        };
        let load = |found: Vec<Vec<u8>>| {
            let (owner, path) = (owner.clone(), path.clone());
            let reload = async move {
                let this: &Authenticator = (*owner).as_ref();
                let own_issuer = this.issuer.name();
                let loaded = this.configured.load(&found[0], &path, own_issuer)?;
                for issuer in &loaded.issuers {
                    let fetched = issuer.prepare().await;
                    fetched.map_err(|source| AuthenticationError::Keys {
                        issuer: issuer.issuer().to_string(),
                        source,
                    })?;
                }
                *this.configured.loaded.write() = Arc::new(loaded);
                Ok(())
            };
            Box::pin(reload) as BoxFuture<'static, Result<(), AuthenticationError>>
        };
        let reloads = &this.configured.reloads;
        config_file::follow(vec![path.clone()], vec![bytes], reloads, &clock, &shutdown, load).await;
    }

    pub(crate) fn write_metrics(&self, out: &mut String) {
        if self.configured.file.is_some() {
            self.configured.reloads.write_metrics(out);
        }
    }
}

impl RequestHeaderOptions {
    /// The names that kubeadm gives.
    pub fn of_cluster(client_authority: &str) -> RequestHeaderOptions {
        let one = |name: &str| vec![name.to_string()];
        RequestHeaderOptions {
            client_authority: client_authority.to_string(),
            allowed_names: one("front-proxy-client"),
            username_headers: one("X-Remote-User"),
            uid_headers: one("X-Remote-Uid"),
            group_headers: one("X-Remote-Group"),
            extra_prefixes: one("X-Remote-Extra-"),
        }
    }
}

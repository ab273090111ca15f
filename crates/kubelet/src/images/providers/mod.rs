//! Credential provider plugins: programs that are run for credentials when an image of their registries is pulled. Responses
//! are cached as long as they say.
//!
//! A provider that fails is skipped with a log line: the pull may succeed with other credentials, or without any.
// Upstream: pkg/credentialprovider/plugin (v1.36)

mod config;
mod run;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use jiff::Timestamp;
use orlop_api::types::authentication::TokenRequestSpec;
use orlop_api::types::core::{Pod, ServiceAccount};
use orlop_base::Clock;
use parking_lot::Mutex;

use self::config::{ProviderConfig, TokenAttributes};
use self::run::{CacheKeyType, Program, Request, Response};
use super::keyring::{AccountSource, Credentials, Keyring, Source, fits, hex};
use crate::objects::{ObjectError, Objects};

/// Answers kept at once, of one provider.
const KEPT_MAX: usize = 10_000;

/// Cheap to clone.
#[derive(Clone)]
pub struct Providers {
    all: Arc<Vec<Provider>>,
}

/// Why a credential provider gave no credentials, or is not configured as it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// The configuration's file, or what is in it.
    #[error("{0}")]
    Config(String),
    #[error("plugin binary directory {} did not exist", .0.display())]
    NoDirectory(PathBuf),
    #[error("plugin binary executable {}{problem}", path.display())]
    Program { path: PathBuf, problem: String },
    #[error("failed to get {what}: {source}")]
    Object { what: &'static str, source: ObjectError },
    #[error("error execing credential provider plugin {provider} for image {image}: {reason}")]
    Exec {
        provider: String,
        image: String,
        reason: String,
    },
    /// What exactly is wrong with a response is not reported: it may contain a password.
    #[error("error decoding credential provider plugin response from stdout")]
    Response,
    #[error(
        "apiVersion from credential plugin response did not match expected apiVersion:{expected}, actual apiVersion:{actual}"
    )]
    ApiVersion { expected: String, actual: String },
    #[error("cacheDuration: {0}")]
    CacheDuration(String),
    #[error(
        "credential provider plugin returned the service account token as the password which is not allowed when service account cache type is not set to 'Token'"
    )]
    TokenAsPassword,
    #[error("the credential provider's task failed")]
    Interrupted,
}

struct Provider {
    match_images: Vec<String>,
    default_duration: Duration,
    tokens: Option<TokenAttributes>,
    program: Arc<Program>,
    objects: Objects,
    clock: Clock,
    kept: Mutex<BTreeMap<Key, Kept>>,
    /// Equal questions that are asked at the same time are asked once.
    under_way: Arc<Mutex<BTreeMap<Question, Running>>>,
}

type Running = Shared<BoxFuture<'static, Result<Response, ProviderError>>>;

type Question = (String, Option<Account>);

/// For what an answer holds, and for whose pods.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// An image, a registry, or all that the provider knows.
    scope: Option<String>,
    account: Option<Account>,
}

/// A service account, as far as a provider gets to see it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Account {
    source: AccountSource,
    annotations: BTreeMap<String, String>,
    /// Of the token; empty where answers hold for any token of the account.
    token_hash: String,
}

struct Kept {
    auth: BTreeMap<String, run::Auth>,
    until: Timestamp,
}

/// Whom the provider is to be asked for.
struct Asker {
    account: Account,
    token: String,
}

impl Providers {
    /// Reads the configuration, and looks that every provider's program is there.
    pub fn open(config: &Path, programs: &Path, objects: &Objects, clock: &Clock) -> Result<Providers, ProviderError> {
        if !programs.is_dir() {
            return Err(ProviderError::NoDirectory(programs.to_path_buf()));
        }
        let all = config::read(config)?.into_iter().map(|config| {
            let program = Program::find(programs, &config)?;
            Ok(Provider::new(config, program, objects.clone(), clock.clone()))
        });
        Ok(Providers {
            all: Arc::new(all.collect::<Result<_, ProviderError>>()?),
        })
    }

    /// What they have for a repository, the most specific first.
    pub async fn lookup(&self, repository: &str, pod: &Pod) -> Vec<Credentials> {
        let mut keyring = Keyring::default();
        for provider in self.all.iter() {
            match provider.ask(repository, pod).await {
                Ok((auth, account)) => {
                    for (location, auth) in auth {
                        let source = account.clone().map(Source::ServiceAccount);
                        keyring.insert(&location, auth.username, auth.password, source);
                    }
                }
                Err(why) => tracing::error!(
                    provider = provider.program.name(),
                    repository,
                    err = %why,
                    "failed to get credentials from provider"
                ),
            }
        }
        keyring.lookup(repository)
    }
}

type ProviderResponse = (BTreeMap<String, run::Auth>, Option<AccountSource>);

impl Provider {
    fn new(config: ProviderConfig, program: Program, objects: Objects, clock: Clock) -> Provider {
        Provider {
            match_images: config.match_images,
            default_duration: config.default_cache_duration.unwrap_or_default(),
            tokens: config.token_attributes,
            program: Arc::new(program),
            objects,
            clock,
            kept: Mutex::default(),
            under_way: Arc::default(),
        }
    }

    async fn ask(&self, repository: &str, pod: &Pod) -> Result<ProviderResponse, ProviderError> {
        let nothing = (BTreeMap::new(), None);
        if !self.match_images.iter().any(|pattern| fits(pattern, repository)) {
            return Ok(nothing);
        }
        let asker = match &self.tokens {
            None => None,
            Some(attributes) => match self.asker(attributes, pod).await? {
                Some(asker) => Some(asker),
                None if attributes.require_service_account == Some(true) || has_account(pod) => return Ok(nothing),
                None => None,
            },
        };
        let source = asker.as_ref().map(|asker| asker.account.source.clone());
        let account = asker.as_ref().map(|asker| asker.account.clone());
        if let Some(auth) = self.kept(repository, account.as_ref()) {
            return Ok((auth, source));
        }
        let token = asker.map(|asker| asker.token).unwrap_or_default();
        let response = self.run(repository, account.clone(), token.clone()).await?;
        let by_token = (self.tokens.as_ref()).is_some_and(|attributes| attributes.cache_type == "Token");
        if !token.is_empty() && !by_token && response.auth.values().any(|auth| auth.password == token) {
            return Err(ProviderError::TokenAsPassword);
        }
        self.keep(repository, account, &response)?;
        Ok((response.auth, source))
    }

    /// None if the pod's account does not ask for it, or it has none.
    async fn asker(&self, attributes: &TokenAttributes, pod: &Pod) -> Result<Option<Asker>, ProviderError> {
        if !has_account(pod) {
            return Ok(None);
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let name = account_name(pod);
        let fetched = self
            .objects
            .fetch("v1", Some(namespace), "serviceaccounts", "serviceaccount", name);
        let failed = |what| move |source| ProviderError::Object { what, source };
        let found: ServiceAccount = fetched.await.map_err(failed("service account"))?;
        let has = found.metadata.annotations.unwrap_or_default();
        let mut annotations = BTreeMap::new();
        for key in &attributes.required_service_account_annotation_keys {
            // This is how accounts say that they want it.
            let Some(value) = has.get(key) else { return Ok(None) };
            annotations.insert(key.clone(), value.clone());
        }
        for key in &attributes.optional_service_account_annotation_keys {
            if let Some(value) = has.get(key) {
                annotations.insert(key.clone(), value.clone());
            }
        }
        let spec = TokenRequestSpec {
            audiences: Some(vec![attributes.service_account_token_audience.clone()]),
            ..TokenRequestSpec::default()
        };
        let token = self.objects.service_account_token(namespace, name, &spec, pod).await;
        let token = token.map_err(failed("service account token"))?;
        let account = Account {
            source: AccountSource {
                uid: found.metadata.uid.unwrap_or_default(),
                namespace: namespace.to_string(),
                name: name.to_string(),
            },
            annotations,
            token_hash: match attributes.cache_type == "Token" {
                true => hex(digest::digest(&digest::SHA256, token.token.as_bytes()).as_ref()),
                false => String::new(),
            },
        };
        Ok(Some(Asker {
            account,
            token: token.token.clone(),
        }))
    }

    fn kept(&self, repository: &str, account: Option<&Account>) -> Option<BTreeMap<String, run::Auth>> {
        let now = self.clock.now();
        let kept = self.kept.lock();
        let scopes = [Some(repository), Some(registry(repository)), None];
        scopes.into_iter().find_map(|scope| {
            let key = Key {
                scope: scope.map(str::to_string),
                account: account.cloned(),
            };
            let found = kept.get(&key).filter(|kept| kept.until >= now)?;
            Some(found.auth.clone())
        })
    }

    fn keep(&self, repository: &str, account: Option<Account>, response: &Response) -> Result<(), ProviderError> {
        let scope = match response.cache_key_type {
            CacheKeyType::Image => Some(repository),
            CacheKeyType::Registry => Some(registry(repository)),
            CacheKeyType::Global => None,
        };
        let key = Key {
            scope: scope.map(str::to_string),
            account,
        };
        let how_long = response.cache_duration()?.unwrap_or(self.default_duration);
        if how_long.is_zero() {
            return Ok(());
        }
        let now = self.clock.now();
        let until = now.checked_add(how_long).unwrap_or(Timestamp::MAX);
        let mut kept = self.kept.lock();
        if kept.len() >= KEPT_MAX {
            kept.retain(|_, kept| kept.until >= now);
        }
        if kept.len() < KEPT_MAX {
            let auth = response.auth.clone();
            kept.insert(key, Kept { auth, until });
        }
        Ok(())
    }

    async fn run(&self, repository: &str, account: Option<Account>, token: String) -> Result<Response, ProviderError> {
        let question = (repository.to_string(), account.clone());
        let running = {
            let mut under_way = self.under_way.lock();
            match under_way.get(&question) {
                Some(running) => running.clone(),
                None => {
                    let request = Request {
                        image: repository.to_string(),
                        service_account_token: token,
                        service_account_annotations: account.map(|a| a.annotations).unwrap_or_default(),
                    };
                    let (program, all, own) = (self.program.clone(), self.under_way.clone(), question.clone());
                    // It goes on when nobody waits for it any more.
                    let task = tokio::spawn(async move {
                        let answer = program.run(&request).await;
                        all.lock().remove(&own);
                        answer
                    });
                    let running = task
                        .map(|ended| ended.unwrap_or(Err(ProviderError::Interrupted)))
                        .boxed()
                        .shared();
                    under_way.insert(question, running.clone());
                    running
                }
            }
        };
        running.await
    }
}

fn account_name(pod: &Pod) -> &str {
    let name = pod.spec.as_ref().and_then(|s| s.service_account_name.as_deref());
    name.unwrap_or_default()
}

fn has_account(pod: &Pod) -> bool {
    !account_name(pod).is_empty()
}

/// With its port.
fn registry(repository: &str) -> &str {
    repository.split('/').next().unwrap_or_default()
}

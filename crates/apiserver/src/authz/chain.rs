//! The chain of authorizers: built-in ones and webhooks, in the order that the configuration gives, and the file that may
//! change it while the server runs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use orlop_base::metrics::text::{header, label, line};
use orlop_base::{BoxFuture, Clock, Shutdown};
use parking_lot::{Mutex, RwLock};

use super::configuration::{AuthorizationConfigError, AuthorizationConfiguration, AuthorizerOptions};
use super::webhook::{WebhookAuthorizer, WebhookMetrics, WebhookSetupError};
use super::{Attributes, Decision, NodeAuthorizer, PolicyRule, Rbac};
use crate::authn::{MASTERS, UserInfo};
use crate::config_file::{self, FileError, Reloads};
use crate::lookup::ObjectLookup;
use crate::remote::wait_for;

/// Who is asked. By default the node authorizer and RBAC.
#[derive(Clone, Debug, Default)]
pub struct AuthorizationOptions {
    /// What flags say.
    pub modes: Option<AuthorizationConfiguration>,
    /// An AuthorizationConfiguration instead; followed as it changes.
    pub config_file: Option<PathBuf>,
}

/// Why authorization cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum AuthorizationError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("invalid authorization configuration {path}: {source}", path = path.display())]
    Configuration {
        path: PathBuf,
        source: AuthorizationConfigError,
    },
    #[error("authorization webhook {0}")]
    Webhook(#[from] WebhookSetupError),
    #[error("unknown authorization mode {0} specified")]
    Mode(String),
}

pub struct Authorizer {
    node: NodeAuthorizer,
    pub(super) rbac: Rbac,
    chain: RwLock<Arc<Chain>>,
    /// By type and name. What was counted outlives its authorizer.
    counts: Mutex<BTreeMap<(String, String), Arc<Counts>>>,
    webhook_metrics: Arc<WebhookMetrics>,
    file: Option<(PathBuf, Vec<u8>)>,
    reloads: Reloads,
}

struct Chain {
    members: Vec<Member>,
    /// Whether somebody outside of this process is asked.
    has_webhooks: bool,
}

struct Member {
    kind: MemberKind,
    counts: Arc<Counts>,
}

enum MemberKind {
    Node,
    Rbac,
    AlwaysAllow,
    AlwaysDeny,
    Webhook(Box<WebhookAuthorizer>),
}

#[derive(Default)]
struct Counts {
    allowed: AtomicU64,
    denied: AtomicU64,
}

/// All rules somebody has, as far as the chain can tell.
#[derive(Default)]
pub(super) struct ChainRules {
    pub(super) rules: Vec<PolicyRule>,
    pub(super) errors: Vec<String>,
    pub(super) is_incomplete: bool,
}

impl Default for Authorizer {
    fn default() -> Authorizer {
        let mut authorizer = Authorizer {
            node: NodeAuthorizer::default(),
            rbac: Rbac::default(),
            chain: RwLock::new(Arc::new(Chain {
                members: vec![],
                has_webhooks: false,
            })),
            counts: Mutex::default(),
            webhook_metrics: Arc::default(),
            file: None,
            reloads: Reloads::new("apiserver_authorization_config_controller"),
        };
        let modes = ["Node", "RBAC"].map(String::from);
        let configuration = AuthorizationConfiguration::from_modes(&modes, None).expect("two modes that are known");
        let chain = authorizer.build(&configuration).expect("modes without a webhook");
        *authorizer.chain.get_mut() = Arc::new(chain);
        authorizer
    }
}

impl Authorizer {
    pub fn new(options: &AuthorizationOptions) -> Result<Authorizer, AuthorizationError> {
        let mut authorizer = Authorizer::default();
        let configuration = match (&options.config_file, &options.modes) {
            (Some(path), _) => {
                let bytes = config_file::read(path)?;
                let configuration = parse(&bytes, path)?;
                authorizer.file = Some((path.clone(), bytes));
                configuration
            }
            (None, Some(modes)) => modes.clone(),
            (None, None) => return Ok(authorizer),
        };
        *authorizer.chain.get_mut() = Arc::new(authorizer.build(&configuration)?);
        Ok(authorizer)
    }

    fn build(&self, configuration: &AuthorizationConfiguration) -> Result<Chain, AuthorizationError> {
        let members = configuration.authorizers.iter().map(|options| self.member(options));
        let members: Vec<Member> = members.collect::<Result<_, _>>()?;
        let has_webhooks = members.iter().any(|m| matches!(m.kind, MemberKind::Webhook(_)));
        Ok(Chain { members, has_webhooks })
    }

    fn member(&self, options: &AuthorizerOptions) -> Result<Member, AuthorizationError> {
        let kind = match (options.r#type.as_str(), &options.webhook) {
            ("Node", _) => MemberKind::Node,
            ("RBAC", _) => MemberKind::Rbac,
            ("AlwaysAllow", _) => MemberKind::AlwaysAllow,
            ("AlwaysDeny", _) => MemberKind::AlwaysDeny,
            ("Webhook", Some(webhook)) => {
                let metrics = self.webhook_metrics.clone();
                MemberKind::Webhook(Box::new(WebhookAuthorizer::new(&options.name, webhook, metrics)?))
            }
            (other, _) => return Err(AuthorizationError::Mode(other.to_string())),
        };
        let mut counts = self.counts.lock();
        let counts = counts
            .entry((options.r#type.clone(), options.name.clone()))
            .or_default();
        Ok(Member {
            kind,
            counts: counts.clone(),
        })
    }

    /// Decides. Where a webhook is in the chain, this thread waits for it: `decide` does not.
    pub fn authorize(&self, attrs: &Attributes<'_>, lookup: &dyn ObjectLookup) -> Decision {
        if attrs.user.in_group(MASTERS) {
            return master();
        }
        let chain = self.chain.read().clone();
        let deciding = chain.decide(self, attrs, lookup);
        match chain.has_webhooks {
            true => wait_for(deciding),
            false => futures::FutureExt::now_or_never(deciding).expect("nobody outside of this process is asked"),
        }
    }

    pub async fn decide(&self, attrs: &Attributes<'_>, lookup: &dyn ObjectLookup) -> Decision {
        if attrs.user.in_group(MASTERS) {
            return master();
        }
        let chain = self.chain.read().clone();
        chain.decide(self, attrs, lookup).await
    }

    /// Everything that a user may do in a namespace, as far as it can be listed.
    pub(super) fn rules_of(&self, user: &UserInfo, namespace: &str, lookup: &dyn ObjectLookup) -> ChainRules {
        let mut all = ChainRules::default();
        let chain = self.chain.read().clone();
        for member in &chain.members {
            match &member.kind {
                MemberKind::Node if user.node_name().is_some() => {
                    all.is_incomplete = true;
                    all.errors
                        .push("node authorizer does not support user rule resolution".to_string());
                }
                MemberKind::Node | MemberKind::AlwaysDeny => {}
                MemberKind::Rbac => {
                    let found = self.rbac.rules_of(user, namespace, lookup);
                    all.rules.extend(found.rules);
                    all.errors.extend(super::rbac::joined(&found.errors));
                }
                MemberKind::AlwaysAllow => all.rules.extend(everything()),
                MemberKind::Webhook(_) => {
                    all.is_incomplete = true;
                    all.errors
                        .push("webhook authorizer does not support user rule resolution".to_string());
                }
            }
        }
        all
    }

    /// Reads the configuration file again as it changes, if there is one.
    pub(crate) async fn follow<T: AsRef<Authorizer> + Send + Sync + 'static>(
        owner: Arc<T>,
        clock: Clock,
        shutdown: Shutdown,
    ) {
        let this: &Authorizer = (*owner).as_ref();
        let Some((path, bytes)) = this.file.clone() else {
            return;
        };
        let load = |found: Vec<Vec<u8>>| {
            let (owner, path) = (owner.clone(), path.clone());
            let reload = async move {
                let this: &Authorizer = (*owner).as_ref();
                let chain = this.build(&parse(&found[0], &path)?)?;
                *this.chain.write() = Arc::new(chain);
                Ok(())
            };
            Box::pin(reload) as BoxFuture<'static, Result<(), AuthorizationError>>
        };
        config_file::follow(vec![path.clone()], vec![bytes], &this.reloads, &clock, &shutdown, load).await;
    }

    pub(crate) fn write_metrics(&self, out: &mut String) {
        let name = "apiserver_authorization_decisions_total";
        let help =
            "Total number of terminal decisions made by an authorizer split by authorizer type, name, and decision.";
        header(out, name, "counter", help);
        for ((kind, authorizer), counts) in self.counts.lock().iter() {
            for (decision, count) in [("allowed", &counts.allowed), ("denied", &counts.denied)] {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    let labels = [
                        label("decision", decision),
                        label("name", authorizer),
                        label("type", kind),
                    ];
                    line(out, name, &labels.join(","), count);
                }
            }
        }
        self.webhook_metrics.write(out);
        if self.file.is_some() {
            self.reloads.write_metrics(out);
        }
    }
}

fn parse(bytes: &[u8], path: &std::path::Path) -> Result<AuthorizationConfiguration, AuthorizationError> {
    AuthorizationConfiguration::parse(bytes).map_err(|source| AuthorizationError::Configuration {
        path: path.to_path_buf(),
        source,
    })
}

fn master() -> Decision {
    Decision {
        allowed: true,
        ..Decision::default()
    }
}

/// What those have who may do everything.
fn everything() -> [PolicyRule; 2] {
    let every = || vec!["*".to_string()];
    [
        PolicyRule::resource(&["*"], &["*"], &["*"]),
        PolicyRule {
            verbs: every(),
            non_resource_urls: every(),
            ..PolicyRule::default()
        },
    ]
}

impl Chain {
    async fn decide(&self, authorizer: &Authorizer, attrs: &Attributes<'_>, lookup: &dyn ObjectLookup) -> Decision {
        let mut undecided = Decision::default();
        for member in &self.members {
            let decision = match &member.kind {
                MemberKind::Node => authorizer.node.authorize(attrs, lookup),
                MemberKind::Rbac => authorizer.rbac.authorize(attrs, lookup),
                MemberKind::AlwaysAllow => master(),
                MemberKind::AlwaysDeny => Decision::no_opinion("Everything is forbidden."),
                MemberKind::Webhook(webhook) => webhook.authorize(attrs).await,
            };
            if decision.allowed || decision.denied {
                let count = if decision.allowed {
                    &member.counts.allowed
                } else {
                    &member.counts.denied
                };
                count.fetch_add(1, Ordering::Relaxed);
                return decision;
            }
            undecided = both(undecided, decision);
        }
        undecided
    }
}

/// Two authorizers without an opinion: what both have to say.
fn both(first: Decision, second: Decision) -> Decision {
    let joined =
        |first: &str, second: &str, separator: &str| -> Arc<str> { format!("{first}{separator}{second}").into() };
    Decision {
        reason: match (&*first.reason, &*second.reason) {
            (_, "") => first.reason,
            ("", _) => second.reason,
            (one, other) => joined(one, other, "\n"),
        },
        error: match (first.error, second.error) {
            (Some(one), Some(other)) => Some(joined(&one, &other, ", ")),
            (one, other) => one.or(other),
        },
        ..Decision::default()
    }
}

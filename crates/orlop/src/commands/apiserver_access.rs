//! kube-apiserver's flags about who comes in: authentication, authorization, audit and encryption at rest.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::ArgAction;
use orlop_apiserver::Config;
use orlop_apiserver::audit::{
    AuditOptions, BatchOptions, LogFormat, LogOptions, Mode, ThrottleOptions, TruncateOptions, WebhookOptions,
};
use orlop_apiserver::authn::{AuthenticationOptions, OidcOptions, RequestHeaderOptions, TokenWebhookOptions};
use orlop_apiserver::authz::{AuthorizationConfiguration, AuthorizationOptions, WebhookFlags};

use super::parse_duration;

#[derive(clap::Args)]
pub(super) struct AccessFlags {
    #[command(flatten)]
    authentication: AuthenticationFlags,
    #[command(flatten)]
    oidc: OidcFlags,
    #[command(flatten)]
    request_header: RequestHeaderFlags,
    #[command(flatten)]
    authorization: AuthorizationFlags,
    #[command(flatten)]
    audit: AuditFlags,
    #[command(flatten)]
    audit_webhook: AuditWebhookFlags,
    #[command(flatten)]
    encryption: EncryptionFlags,
}

#[derive(clap::Args)]
struct EncryptionFlags {
    /// File with an EncryptionConfiguration: which resources are encrypted at rest, and how; reloaded when it changes
    #[arg(long, value_name = "FILE")]
    encryption_provider_config: Option<PathBuf>,
    /// Accepted for kube-apiserver's sake: the file is always reloaded
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, value_parser = super::parse_bool, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", hide = true)]
    encryption_provider_config_automatic_reload: bool,
}

#[derive(clap::Args)]
struct AuthenticationFlags {
    /// File with an AuthenticationConfiguration: JWT issuers and anonymous requests; reloaded when it changes
    #[arg(long, value_name = "FILE")]
    authentication_config: Option<PathBuf>,
    /// Enable anonymous requests [default: true]
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, value_parser = super::parse_bool, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    anonymous_auth: Option<bool>,
    /// File of static bearer tokens: token,user,uid,"group1,group2"
    #[arg(long, value_name = "FILE")]
    token_auth_file: Option<PathBuf>,
    /// Kubeconfig of a webhook for token authentication
    #[arg(long, value_name = "FILE")]
    authentication_token_webhook_config_file: Option<PathBuf>,
    /// Version of the TokenReviews to send to the webhook
    #[arg(long, value_name = "VERSION", default_value = "v1beta1", value_parser = ["v1", "v1beta1"])]
    authentication_token_webhook_version: String,
    /// How long answers of the token webhook are cached
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = parse_duration)]
    authentication_token_webhook_cache_ttl: Duration,
}

#[derive(clap::Args)]
struct OidcFlags {
    /// URL of the OpenID Connect issuer; https only
    #[arg(long, value_name = "URL")]
    oidc_issuer_url: Option<String>,
    /// Client ID that tokens must name as their audience
    #[arg(long, value_name = "ID", default_value = "")]
    oidc_client_id: String,
    /// Certificate authorities of the issuer [default: the system's]
    #[arg(long, value_name = "FILE")]
    oidc_ca_file: Option<PathBuf>,
    /// Claim to use as the user name
    #[arg(long, value_name = "CLAIM", default_value = "sub")]
    oidc_username_claim: String,
    /// Prefix of user names; "-" for none [default: the issuer's URL and "#", unless the claim is email]
    #[arg(long, value_name = "PREFIX", default_value = "")]
    oidc_username_prefix: String,
    /// Claim to use as the user's groups
    #[arg(long, value_name = "CLAIM", default_value = "")]
    oidc_groups_claim: String,
    /// Prefix of groups
    #[arg(long, value_name = "PREFIX", default_value = "")]
    oidc_groups_prefix: String,
    /// Allowed signing algorithms: RS256, RS384, RS512, ES256, ES384, PS256, PS384, PS512
    #[arg(long, value_name = "ALG", value_delimiter = ',', default_value = "RS256")]
    oidc_signing_algs: Vec<String>,
    /// Claim that tokens must have, and its value
    #[arg(long, value_name = "CLAIM=VALUE", value_parser = parse_pair)]
    oidc_required_claim: Vec<(String, String)>,
}

#[derive(clap::Args)]
struct RequestHeaderFlags {
    /// Certificate authorities of front proxies [default: that of the data directory]
    #[arg(long, value_name = "FILE")]
    requestheader_client_ca_file: Option<PathBuf>,
    /// Common names of front proxies' certificates; any, if empty
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    requestheader_allowed_names: Vec<String>,
    /// Headers to look for user names in
    #[arg(long, value_name = "HEADER", value_delimiter = ',')]
    requestheader_username_headers: Vec<String>,
    /// Headers to look for user UIDs in
    #[arg(long, value_name = "HEADER", value_delimiter = ',')]
    requestheader_uid_headers: Vec<String>,
    /// Headers to look for groups in
    #[arg(long, value_name = "HEADER", value_delimiter = ',')]
    requestheader_group_headers: Vec<String>,
    /// Prefixes of headers with further facts about the user
    #[arg(long, value_name = "PREFIX", value_delimiter = ',')]
    requestheader_extra_headers_prefix: Vec<String>,
}

#[derive(clap::Args)]
struct AuthorizationFlags {
    /// Authorizers in order: Node, RBAC, Webhook, AlwaysAllow, AlwaysDeny [default: Node,RBAC]
    #[arg(
        long,
        value_name = "MODE",
        value_delimiter = ',',
        conflicts_with = "authorization_config"
    )]
    authorization_mode: Vec<String>,
    /// File with an AuthorizationConfiguration; reloaded when it changes
    #[arg(long, value_name = "FILE")]
    authorization_config: Option<PathBuf>,
    /// Not supported: authorization mode ABAC
    #[arg(long, value_name = "FILE", hide = true)]
    authorization_policy_file: Option<PathBuf>,
    /// Kubeconfig of the webhook of authorization mode Webhook
    #[arg(long, value_name = "FILE", conflicts_with = "authorization_config")]
    authorization_webhook_config_file: Option<PathBuf>,
    /// Version of the SubjectAccessReviews to send to the webhook
    #[arg(long, value_name = "VERSION", default_value = "v1beta1", value_parser = ["v1", "v1beta1"])]
    authorization_webhook_version: String,
    /// How long "authorized" answers of the webhook are cached
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    authorization_webhook_cache_authorized_ttl: Duration,
    /// How long "unauthorized" answers of the webhook are cached
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    authorization_webhook_cache_unauthorized_ttl: Duration,
}

#[derive(clap::Args)]
struct AuditFlags {
    /// File with the audit policy [default: everything at level Metadata]
    #[arg(long, value_name = "FILE")]
    audit_policy_file: Option<PathBuf>,
    /// File to write audit events to; "-" is standard output
    #[arg(long, value_name = "FILE")]
    audit_log_path: Option<PathBuf>,
    /// Maximum number of days to keep rotated audit logs; 0 keeps them
    #[arg(long, value_name = "DAYS", default_value_t = 366)]
    audit_log_maxage: u32,
    /// Maximum number of rotated audit logs to keep; 0 keeps all
    #[arg(long, value_name = "N", default_value_t = 100)]
    audit_log_maxbackup: usize,
    /// Size in megabytes at which the audit log is rotated; 0 for never
    #[arg(long, value_name = "MB", default_value_t = 100)]
    audit_log_maxsize: u64,
    /// Compress rotated audit logs
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, value_parser = super::parse_bool, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    audit_log_compress: bool,
    /// Format of the audit log: json or legacy (one line of text an event)
    #[arg(long, value_name = "FORMAT", default_value = "json", value_parser = ["json", "legacy"])]
    audit_log_format: String,
    /// API version of the events in the audit log
    #[arg(long, value_name = "VERSION", default_value = "audit.k8s.io/v1", value_parser = ["audit.k8s.io/v1"])]
    audit_log_version: String,
    /// How events reach the log: blocking, blocking-strict (a request fails if its event can't be written) or batch
    #[arg(long, value_name = "MODE", default_value = "blocking", value_parser = parse_mode)]
    audit_log_mode: Mode,
    /// Events that may wait to be written, in batch mode
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    audit_log_batch_buffer_size: usize,
    /// Events in a batch at most
    #[arg(long, value_name = "N", default_value_t = 1)]
    audit_log_batch_max_size: usize,
    /// How long a batch waits to be full
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration)]
    audit_log_batch_max_wait: Duration,
    /// Limit the rate of batches
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, value_parser = super::parse_bool, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    audit_log_batch_throttle_enable: bool,
    /// Batches a second on average
    #[arg(long, value_name = "QPS", default_value_t = 0.0)]
    audit_log_batch_throttle_qps: f64,
    /// Batches at once
    #[arg(long, value_name = "N", default_value_t = 0)]
    audit_log_batch_throttle_burst: u32,
    /// Truncate large events
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, value_parser = super::parse_bool, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    audit_log_truncate_enabled: bool,
    /// Bytes of an event at most
    #[arg(long, value_name = "BYTES", default_value_t = 100 * 1024)]
    audit_log_truncate_max_event_size: usize,
    /// Bytes of a batch at most
    #[arg(long, value_name = "BYTES", default_value_t = 10 << 20)]
    audit_log_truncate_max_batch_size: usize,
}

#[derive(clap::Args)]
struct AuditWebhookFlags {
    /// Kubeconfig of a webhook that events are sent to
    #[arg(long, value_name = "FILE")]
    audit_webhook_config_file: Option<PathBuf>,
    /// Time before the first failed batch is sent again
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    audit_webhook_initial_backoff: Duration,
    /// API version of the events sent to the webhook
    #[arg(long, value_name = "VERSION", default_value = "audit.k8s.io/v1", value_parser = ["audit.k8s.io/v1"])]
    audit_webhook_version: String,
    /// How events reach the webhook: batch, blocking or blocking-strict
    #[arg(long, value_name = "MODE", default_value = "batch", value_parser = parse_mode)]
    audit_webhook_mode: Mode,
    /// Events that may wait to be sent; further ones are dropped
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    audit_webhook_batch_buffer_size: usize,
    /// Events in a batch at most
    #[arg(long, value_name = "N", default_value_t = 400)]
    audit_webhook_batch_max_size: usize,
    /// How long a batch waits to be full
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    audit_webhook_batch_max_wait: Duration,
    /// Limit the rate of batches
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, value_parser = super::parse_bool, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true")]
    audit_webhook_batch_throttle_enable: bool,
    /// Batches a second on average
    #[arg(long, value_name = "QPS", default_value_t = 10.0)]
    audit_webhook_batch_throttle_qps: f64,
    /// Batches at once
    #[arg(long, value_name = "N", default_value_t = 15)]
    audit_webhook_batch_throttle_burst: u32,
    /// Truncate large events
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, value_parser = super::parse_bool, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    audit_webhook_truncate_enabled: bool,
    /// Bytes of an event at most
    #[arg(long, value_name = "BYTES", default_value_t = 100 * 1024)]
    audit_webhook_truncate_max_event_size: usize,
    /// Bytes of a batch at most
    #[arg(long, value_name = "BYTES", default_value_t = 10 << 20)]
    audit_webhook_truncate_max_batch_size: usize,
}

impl AccessFlags {
    pub(super) fn apply(self, config: &mut Config) -> anyhow::Result<()> {
        config.authentication = AuthenticationOptions {
            oidc: self.oidc.options()?,
            request_header: self.request_header.options()?,
            ..self.authentication.options()
        };
        if config.authentication.oidc.is_some() && config.api_audiences.is_empty() {
            bail!("--api-audiences must not be empty");
        }
        config.authorization = self.authorization.options()?;
        config.encryption_file = self.encryption.encryption_provider_config;
        config.audit = AuditOptions {
            policy_file: self.audit.audit_policy_file.clone(),
            log: self.audit.options("log")?,
            webhook: self.audit_webhook.options("webhook")?,
        };
        Ok(())
    }
}

impl AuthenticationFlags {
    fn options(self) -> AuthenticationOptions {
        let webhook = self.authentication_token_webhook_config_file;
        AuthenticationOptions {
            anonymous: self.anonymous_auth,
            token_file: self.token_auth_file,
            config_file: self.authentication_config,
            webhook: webhook.map(|config_file| TokenWebhookOptions {
                config_file,
                version: self.authentication_token_webhook_version,
                cache_ttl: self.authentication_token_webhook_cache_ttl,
            }),
            ..AuthenticationOptions::default()
        }
    }
}

impl OidcFlags {
    fn options(self) -> anyhow::Result<Option<OidcOptions>> {
        let issuer_url = match (self.oidc_issuer_url, self.oidc_client_id.is_empty()) {
            (None, true) => return Ok(None),
            (Some(url), false) => url,
            _ => bail!("oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set"),
        };
        Ok(Some(OidcOptions {
            issuer_url,
            client_id: self.oidc_client_id,
            ca_file: self.oidc_ca_file,
            username_claim: self.oidc_username_claim,
            username_prefix: self.oidc_username_prefix,
            groups_claim: self.oidc_groups_claim,
            groups_prefix: self.oidc_groups_prefix,
            signing_algorithms: self.oidc_signing_algs,
            required_claims: self.oidc_required_claim,
        }))
    }
}

impl RequestHeaderFlags {
    fn options(self) -> anyhow::Result<Option<RequestHeaderOptions>> {
        let Some(file) = self.requestheader_client_ca_file else {
            let others = [&self.requestheader_allowed_names, &self.requestheader_username_headers];
            if others.iter().any(|list| !list.is_empty()) {
                bail!("--requestheader-* flags need --requestheader-client-ca-file");
            }
            return Ok(None);
        };
        let client_authority = std::fs::read_to_string(&file)
            .with_context(|| format!("failed to read --requestheader-client-ca-file {}", file.display()))?;
        Ok(Some(RequestHeaderOptions {
            client_authority,
            allowed_names: self.requestheader_allowed_names,
            username_headers: self.requestheader_username_headers,
            uid_headers: self.requestheader_uid_headers,
            group_headers: self.requestheader_group_headers,
            extra_prefixes: self.requestheader_extra_headers_prefix,
        }))
    }
}

impl AuthorizationFlags {
    fn options(self) -> anyhow::Result<AuthorizationOptions> {
        if self.authorization_policy_file.is_some() {
            bail!("--authorization-policy-file is not supported: there is no authorization mode ABAC");
        }
        let webhook = self.authorization_webhook_config_file.map(|config_file| WebhookFlags {
            config_file,
            version: self.authorization_webhook_version,
            authorized_ttl: self.authorization_webhook_cache_authorized_ttl,
            unauthorized_ttl: self.authorization_webhook_cache_unauthorized_ttl,
        });
        let modes = match (self.authorization_mode.is_empty(), &webhook) {
            (true, None) => None,
            _ => Some(AuthorizationConfiguration::from_modes(
                &self.authorization_mode,
                webhook.as_ref(),
            )?),
        };
        Ok(AuthorizationOptions {
            modes,
            config_file: self.authorization_config,
        })
    }
}

impl AuditFlags {
    fn options(self, plugin: &str) -> anyhow::Result<Option<LogOptions>> {
        let Some(path) = self.audit_log_path else {
            return Ok(None);
        };
        let throttle = self.audit_log_batch_throttle_enable.then_some(ThrottleOptions {
            qps: self.audit_log_batch_throttle_qps,
            burst: self.audit_log_batch_throttle_burst,
        });
        let batch = BatchOptions {
            mode: self.audit_log_mode,
            buffer_size: self.audit_log_batch_buffer_size,
            max_size: self.audit_log_batch_max_size,
            max_wait: self.audit_log_batch_max_wait,
            throttle,
        };
        let truncate = self.audit_log_truncate_enabled.then_some(TruncateOptions {
            max_event_size: self.audit_log_truncate_max_event_size,
            max_batch_size: self.audit_log_truncate_max_batch_size,
        });
        check_backend(plugin, batch, truncate)?;
        Ok(Some(LogOptions {
            path,
            max_age_days: self.audit_log_maxage,
            max_backups: self.audit_log_maxbackup,
            max_size_mb: self.audit_log_maxsize,
            compress: self.audit_log_compress,
            format: match self.audit_log_format.as_str() {
                "legacy" => LogFormat::Legacy,
                _ => LogFormat::Json,
            },
            batch,
            truncate,
        }))
    }
}

impl AuditWebhookFlags {
    fn options(self, plugin: &str) -> anyhow::Result<Option<WebhookOptions>> {
        let Some(config_file) = self.audit_webhook_config_file else {
            return Ok(None);
        };
        let throttle = self.audit_webhook_batch_throttle_enable.then_some(ThrottleOptions {
            qps: self.audit_webhook_batch_throttle_qps,
            burst: self.audit_webhook_batch_throttle_burst,
        });
        let batch = BatchOptions {
            mode: self.audit_webhook_mode,
            buffer_size: self.audit_webhook_batch_buffer_size,
            max_size: self.audit_webhook_batch_max_size,
            max_wait: self.audit_webhook_batch_max_wait,
            throttle,
        };
        let truncate = self.audit_webhook_truncate_enabled.then_some(TruncateOptions {
            max_event_size: self.audit_webhook_truncate_max_event_size,
            max_batch_size: self.audit_webhook_truncate_max_batch_size,
        });
        check_backend(plugin, batch, truncate)?;
        Ok(Some(WebhookOptions {
            config_file,
            initial_backoff: self.audit_webhook_initial_backoff,
            batch,
            truncate,
        }))
    }
}

/// What batch mode and truncation need.
fn check_backend(plugin: &str, batch: BatchOptions, truncate: Option<TruncateOptions>) -> anyhow::Result<()> {
    if batch.mode == Mode::Batch {
        for (what, value) in [("buffer size", batch.buffer_size), ("max batch size", batch.max_size)] {
            if value == 0 {
                bail!("invalid audit batch {plugin} {what} {value}, must be a positive number");
            }
        }
        if let Some(throttle) = batch.throttle {
            if throttle.qps.is_nan() || throttle.qps <= 0.0 {
                bail!(
                    "invalid audit batch {plugin} throttle QPS {}, must be a positive number",
                    throttle.qps
                );
            }
            if throttle.burst == 0 {
                bail!("invalid audit batch {plugin} throttle burst 0, must be a positive number");
            }
        }
    }
    if let Some(truncate) = truncate {
        let (event, all) = (truncate.max_event_size, truncate.max_batch_size);
        if event == 0 {
            bail!("invalid audit truncate {plugin} max event size {event}, must be a positive number");
        }
        if all < event {
            bail!(
                "invalid audit truncate {plugin} max batch size {all}, must be greater than max event size ({event})"
            );
        }
    }
    Ok(())
}

fn parse_mode(text: &str) -> anyhow::Result<Mode> {
    match text {
        "batch" => Ok(Mode::Batch),
        "blocking" => Ok(Mode::Blocking),
        "blocking-strict" => Ok(Mode::BlockingStrict),
        _ => bail!("allowed modes are batch, blocking and blocking-strict"),
    }
}

fn parse_pair(text: &str) -> anyhow::Result<(String, String)> {
    let (name, value) = text.split_once('=').context("must be CLAIM=VALUE")?;
    Ok((name.to_string(), value.to_string()))
}

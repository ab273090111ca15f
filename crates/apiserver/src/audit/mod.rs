//! Auditing: events (`audit.k8s.io/v1`) of requests, to a file and to a webhook.
//!
//! Without a policy, a request that changes something, or leads on to a pod or node, is recorded at level Metadata as
//! `RequestReceived` before it is carried out: what is done is in the log before anybody can see it. Every request is
//! recorded as `ResponseComplete` at its end (`Panic` if it came to that), and those that stay open as `ResponseStarted`
//! before. With a policy, every request that it covers is recorded as `RequestReceived` once its user is known, unless the
//! policy omits that stage.
//!
//! Differs from upstream: without a policy upstream records nothing; request objects are recorded as they were sent, not
//! defaulted.

mod backend;
mod batch;
mod file;
mod objects;
mod policy;
mod trail;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use orlop_base::Clock;
use orlop_base::metrics::text::{header, line};
use serde_json::Value;

use backend::{Backend, Delivery};
pub(crate) use objects::{request_object, take_response_object};
pub(crate) use policy::Level;
use policy::Policy;
pub use trail::{Stage, Trail, response_status};

use crate::authn::UserInfo;
use crate::config_file::FileError;
use crate::remote::{KubeconfigError, Webhook};
use crate::request::RequestInfo;

/// What is audited, and where events go.
#[derive(Clone, Debug, Default)]
pub struct AuditOptions {
    /// None: everything at level Metadata.
    pub policy_file: Option<PathBuf>,
    pub log: Option<LogOptions>,
    pub webhook: Option<WebhookOptions>,
}

/// A file of events, rotated as it grows.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// `-` is standard output.
    pub path: PathBuf,
    /// Older files than this many days are deleted; 0 for none.
    pub max_age_days: u32,
    /// So many rotated files are kept; 0 for all.
    pub max_backups: usize,
    /// Size in megabytes at which the file is rotated; 0 for never.
    pub max_size_mb: u64,
    pub compress: bool,
    pub format: LogFormat,
    pub batch: BatchOptions,
    pub truncate: Option<TruncateOptions>,
}

impl LogOptions {
    /// One file that grows for ever, with a line an event.
    pub fn plain(path: PathBuf) -> LogOptions {
        LogOptions {
            path,
            max_age_days: 0,
            max_backups: 0,
            max_size_mb: 0,
            compress: false,
            format: LogFormat::Json,
            batch: BatchOptions::log(),
            truncate: None,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    #[default]
    Json,
    /// One line of text an event, with a few of its fields.
    Legacy,
}

#[derive(Clone, Debug)]
pub struct WebhookOptions {
    /// A kubeconfig that describes it.
    pub config_file: PathBuf,
    pub initial_backoff: Duration,
    pub batch: BatchOptions,
    pub truncate: Option<TruncateOptions>,
}

/// How events reach a backend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchOptions {
    pub mode: Mode,
    /// Events that wait; further ones are dropped and counted.
    pub buffer_size: usize,
    pub max_size: usize,
    pub max_wait: Duration,
    pub throttle: Option<ThrottleOptions>,
}

/// How many batches are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThrottleOptions {
    pub qps: f64,
    pub burst: u32,
}

impl BatchOptions {
    // Upstream: defaultLogBatchConfig and defaultWebhookBatchConfig in pkg/server/options/audit.go
    pub fn log() -> BatchOptions {
        BatchOptions {
            mode: Mode::Blocking,
            buffer_size: 10_000,
            max_size: 1,
            max_wait: Duration::ZERO,
            throttle: None,
        }
    }

    pub fn webhook() -> BatchOptions {
        BatchOptions {
            mode: Mode::Batch,
            buffer_size: 10_000,
            max_size: 400,
            max_wait: Duration::from_secs(30),
            throttle: Some(ThrottleOptions { qps: 10.0, burst: 15 }),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Events are sent in the background.
    Batch,
    /// Requests wait until their events are sent.
    Blocking,
    /// And fail, before they are carried out, if that does not work.
    BlockingStrict,
}

/// Bounds, in bytes, of what a backend is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TruncateOptions {
    pub max_event_size: usize,
    pub max_batch_size: usize,
}

/// Why auditing cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error("failed to open the audit log {path}", path = path.display())]
    Log { path: PathBuf, source: std::io::Error },
    #[error("loading audit policy file")]
    Policy(#[from] FileError),
    #[error("initializing audit webhook")]
    Webhook(#[from] KubeconfigError),
}

/// Writes down what requests do.
pub struct AuditLog {
    policy: Option<Policy>,
    backends: Vec<Backend>,
    counters: Arc<Counters>,
}

#[derive(Default)]
struct Counters {
    events: AtomicU64,
    rejected: AtomicU64,
    /// Events that a plugin could not process.
    log_errors: AtomicU64,
    webhook_errors: AtomicU64,
    buffered_errors: AtomicU64,
    truncate_errors: AtomicU64,
    levels: [AtomicU64; Level::ALL.len()],
}

impl AuditLog {
    /// None if events go nowhere. Starts what sends them in the background.
    pub fn open(options: &AuditOptions, clock: &Clock) -> Result<Option<AuditLog>, AuditError> {
        let policy = options.policy_file.as_deref().map(Policy::load).transpose()?;
        let counters = Arc::new(Counters::default());
        let mut backends = Vec::new();
        if let Some(log) = &options.log {
            let file = file::LogFile::open(log, clock.clone()).map_err(|source| AuditError::Log {
                path: log.path.clone(),
                source,
            })?;
            backends.push(Backend::log(file, log, counters.clone()));
        }
        if let Some(options) = &options.webhook {
            let webhook = Webhook::from_kubeconfig(&options.config_file)?;
            backends.push(Backend::webhook(webhook, options, counters.clone()));
        }
        Ok((!backends.is_empty()).then_some(AuditLog {
            policy,
            backends,
            counters,
        }))
    }

    /// The same with a file that is never rotated.
    pub fn to_file(path: &Path, clock: &Clock) -> Result<AuditLog, AuditError> {
        let options = AuditOptions {
            log: Some(LogOptions::plain(path.to_path_buf())),
            ..AuditOptions::default()
        };
        Ok(AuditLog::open(&options, clock)?.expect("there is a file to write to"))
    }

    /// Whether a policy says what is recorded.
    pub(crate) fn has_policy(&self) -> bool {
        self.policy.is_some()
    }

    /// Finds out how much of a request is recorded, now that its user is known, and records it where a policy says so.
    /// False if that failed and the request must not go on.
    #[must_use]
    pub(crate) fn begin(&self, trail: &mut Trail, info: &RequestInfo, user: Option<&UserInfo>, now: Timestamp) -> bool {
        if let Some(policy) = &self.policy {
            trail.coverage = policy.coverage(info, user);
        }
        let level = trail.coverage.level;
        self.counters.levels[level as usize].fetch_add(1, Ordering::Relaxed);
        let stored = !self.has_policy() || self.record(trail, Stage::RequestReceived, None, now);
        if !stored {
            self.counters.rejected.fetch_add(1, Ordering::Relaxed);
        }
        stored
    }

    /// Records a stage of a request if that is wanted. False if a backend that must not fail did.
    pub fn record(&self, trail: &Trail, stage: Stage, response: Option<&Value>, at: Timestamp) -> bool {
        self.deliver(trail, stage, response, at, Delivery::Waiting)
    }

    fn deliver(
        &self,
        trail: &Trail,
        stage: Stage,
        response: Option<&Value>,
        at: Timestamp,
        delivery: Delivery,
    ) -> bool {
        if !trail.coverage.includes(stage) {
            return true;
        }
        self.counters.events.fetch_add(1, Ordering::Relaxed);
        let event = trail.event(stage, response, at);
        let mut stored = true;
        for backend in &self.backends {
            stored &= backend.process(&event, delivery);
        }
        stored
    }

    /// Sends what waits.
    pub async fn close(&self) {
        for backend in &self.backends {
            backend.close().await;
        }
    }

    pub(crate) fn write_metrics(&self, out: &mut String) {
        let counters = &self.counters;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let name = "apiserver_audit_event_total";
        header(
            out,
            name,
            "counter",
            "Counter of audit events generated and sent to the audit backend.",
        );
        line(out, name, "", load(&counters.events));
        let name = "apiserver_audit_requests_rejected_total";
        let help = "Counter of apiserver requests rejected due to an error in audit logging backend.";
        header(out, name, "counter", help);
        line(out, name, "", load(&counters.rejected));
        let name = "apiserver_audit_error_total";
        let help = "Counter of audit events that failed to be audited properly. Plugin identifies the plugin affected by \
                    the error.";
        header(out, name, "counter", help);
        for (plugin, count) in [
            ("log", &counters.log_errors),
            ("webhook", &counters.webhook_errors),
            ("buffered", &counters.buffered_errors),
            ("truncate", &counters.truncate_errors),
        ] {
            line(out, name, &format!("plugin=\"{plugin}\""), load(count));
        }
        let name = "apiserver_audit_level_total";
        let help = "Counter of policy levels for audit events (1 per request).";
        header(out, name, "counter", help);
        for level in Level::ALL {
            let labels = format!("level=\"{}\"", level.name());
            line(out, name, &labels, load(&counters.levels[level as usize]));
        }
    }
}

/// Records `ResponseComplete` when an answer that goes on has ended.
pub struct Completion {
    pub log: Arc<AuditLog>,
    pub trail: Trail,
    pub response: Value,
    pub clock: Clock,
}

impl Drop for Completion {
    fn drop(&mut self) {
        let now = self.clock.now();
        let response = Some(&self.response);
        // Nobody waits for it any more.
        self.log
            .deliver(&self.trail, Stage::ResponseComplete, response, now, Delivery::Detached);
    }
}

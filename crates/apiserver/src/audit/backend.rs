//! Where events go: a file or a webhook, directly or in batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use super::batch::Batcher;
use super::file::LogFile;
use super::{Counters, LogFormat, LogOptions, Mode, TruncateOptions, WebhookOptions};
use crate::remote::{Backoff, Webhook, wait_for};

/// Of one attempt to send a batch.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
const TRUNCATED: &str = "audit.k8s.io/truncated";

/// Whether a request waits until its event is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    Waiting,
    Detached,
}

pub(super) struct Backend {
    output: Arc<Output>,
    truncate: Option<TruncateOptions>,
    mode: Mode,
    batcher: Option<Batcher>,
    counters: Arc<Counters>,
}

pub(super) struct Output {
    target: Target,
    counters: Arc<Counters>,
    truncate: Option<TruncateOptions>,
}

enum Target {
    File { file: LogFile, format: LogFormat },
    Webhook { webhook: Box<Webhook>, backoff: Backoff },
}

impl Backend {
    pub(super) fn log(file: LogFile, options: &LogOptions, counters: Arc<Counters>) -> Backend {
        let format = options.format;
        Backend::new(Target::File { file, format }, options.batch, options.truncate, counters)
    }

    pub(super) fn webhook(webhook: Webhook, options: &WebhookOptions, counters: Arc<Counters>) -> Backend {
        let (webhook, backoff) = (Box::new(webhook), Backoff::new(options.initial_backoff));
        Backend::new(
            Target::Webhook { webhook, backoff },
            options.batch,
            options.truncate,
            counters,
        )
    }

    fn new(
        target: Target,
        batch: super::BatchOptions,
        truncate: Option<TruncateOptions>,
        counters: Arc<Counters>,
    ) -> Backend {
        let output = Arc::new(Output {
            target,
            counters: counters.clone(),
            truncate,
        });
        let batcher = (batch.mode == Mode::Batch).then(|| Batcher::start(output.clone(), batch));
        Backend {
            output,
            truncate,
            mode: batch.mode,
            batcher,
            counters,
        }
    }

    /// False if the event is not stored although it had to be.
    pub(super) fn process(&self, event: &Value, delivery: Delivery) -> bool {
        let fitted = match self.truncate {
            Some(bounds) => truncated(event, bounds.max_event_size),
            None => Some(event.clone()),
        };
        let Some(event) = fitted else {
            self.counters.truncate_errors.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(audit_id = ?event["auditID"], "failed to audit: event is too large even after truncating");
            return self.mode != Mode::BlockingStrict;
        };
        if let Some(batcher) = &self.batcher {
            if !batcher.push(event) {
                self.counters.buffered_errors.fetch_add(1, Ordering::Relaxed);
                tracing::warn!("failed to queue audit event: audit buffer queue blocked");
            }
            return true;
        }
        let stored = match (&self.output.target, delivery) {
            (Target::File { .. }, _) => self.output.write(&[event]),
            (Target::Webhook { .. }, Delivery::Waiting) => wait_for(self.output.send(vec![event])),
            (Target::Webhook { .. }, Delivery::Detached) => {
                let output = self.output.clone();
                if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                    runtime.spawn(async move { output.send(vec![event]).await });
                }
                true
            }
        };
        stored || self.mode != Mode::BlockingStrict
    }

    pub(super) async fn close(&self) {
        if let Some(batcher) = &self.batcher {
            batcher.close().await;
        }
    }
}

impl Output {
    /// Sends a batch, in parts if it is too large. False if some of it got lost.
    pub(super) async fn send(&self, events: Vec<Value>) -> bool {
        let Target::Webhook { webhook, backoff } = &self.target else {
            return self.write(&events);
        };
        let mut sent = true;
        for part in parts(events, self.truncate.map(|bounds| bounds.max_batch_size)) {
            let count = part.len();
            let list = json!({"kind": "EventList", "apiVersion": "audit.k8s.io/v1", "metadata": {}, "items": part});
            let body = Bytes::from(list.to_string());
            // Whatever the error, the receiver may come back.
            let outcome = backoff
                .retry(|_| true, || Box::pin(webhook.post_bytes(body.clone(), SEND_TIMEOUT)))
                .await;
            if let Err(e) = outcome {
                count_errors(&self.counters.webhook_errors, count);
                tracing::warn!(err = %e, events = count, "failed to send audit events");
                sent = false;
            }
        }
        sent
    }

    fn write(&self, events: &[Value]) -> bool {
        let Target::File { file, format } = &self.target else {
            return false;
        };
        let mut written = true;
        for event in events {
            let line = match format {
                LogFormat::Json => format!("{event}\n"),
                LogFormat::Legacy => format!("{}\n", legacy_line(event)),
            };
            // A full disk must not stop the API unless that was asked for.
            if let Err(e) = file.write(line.as_bytes()) {
                count_errors(&self.counters.log_errors, 1);
                tracing::warn!(err = %e, "failed to write audit log");
                written = false;
            }
        }
        written
    }
}

fn count_errors(counter: &AtomicU64, count: usize) {
    counter.fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
}

fn size(event: &Value) -> usize {
    event.to_string().len()
}

/// The event if it is small enough, perhaps without its objects; none if it is too large even so.
fn truncated(event: &Value, max: usize) -> Option<Value> {
    if size(event) <= max {
        return Some(event.clone());
    }
    let mut short = event.clone();
    let members = short.as_object_mut()?;
    let removed = [members.remove("requestObject"), members.remove("responseObject")];
    if removed.iter().any(Option::is_some) || matches!(event["level"].as_str(), Some("Request" | "RequestResponse")) {
        short["annotations"][TRUNCATED] = "true".into();
    }
    (size(&short) <= max).then_some(short)
}

/// Events in as many lists as it takes for each to be small enough.
fn parts(events: Vec<Value>, max: Option<usize>) -> Vec<Vec<Value>> {
    let Some(max) = max else { return vec![events] };
    let mut parts: Vec<Vec<Value>> = Vec::new();
    let mut bytes = 0;
    for event in events {
        let length = size(&event);
        match parts.last_mut() {
            Some(part) if bytes + length <= max => {
                bytes += length;
                part.push(event);
            }
            _ => {
                bytes = length;
                parts.push(vec![event]);
            }
        }
    }
    parts
}

/// An event in one line of text.
// Upstream: EventString in staging/src/k8s.io/apiserver/pkg/audit/format.go
fn legacy_line(event: &Value) -> String {
    let text = |path: &str, none: &str| match event.pointer(path).and_then(Value::as_str) {
        Some(text) if !text.is_empty() => text.to_string(),
        _ => none.to_string(),
    };
    let list = |path: &str, none: &str| match event.pointer(path).and_then(Value::as_array) {
        Some(items) if !items.is_empty() => {
            let quoted: Vec<String> = items
                .iter()
                .filter_map(Value::as_str)
                .map(|s| format!("{s:?}"))
                .collect();
            quoted.join(",")
        }
        _ => none.to_string(),
    };
    let groups = match event.pointer("/user/username") {
        Some(_) => list("/user/groups", "<none>"),
        None => "<none>".to_string(),
    };
    let response = event.pointer("/responseStatus/code");
    let response = response.map_or("<deferred>".to_string(), Value::to_string);
    format!(
        "{} AUDIT: id={:?} stage={:?} ip={:?} method={:?} user={:?} groups={:?} as={:?} asgroups={:?} user-agent={:?} \
         namespace={:?} uri={:?} response=\"{}\"",
        text("/requestReceivedTimestamp", ""),
        text("/auditID", ""),
        text("/stage", ""),
        text("/sourceIPs/0", "<unknown>"),
        text("/verb", ""),
        text("/user/username", "<none>"),
        groups,
        text("/impersonatedUser/username", "<self>"),
        list("/impersonatedUser/groups", "<lookup>"),
        text("/userAgent", ""),
        text("/objectRef/namespace", "<none>"),
        text("/requestURI", ""),
        response,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_events_lose_their_objects() {
        let small = json!({"level": "Request", "auditID": "a"});
        let large = json!({"level": "Request", "auditID": "a", "requestObject": {"data": "x".repeat(500)},
            "annotations": {"k": "v"}});
        assert_eq!(truncated(&small, 200), Some(small.clone()));
        let short = truncated(&large, 200).unwrap();
        let annotations = json!({"k": "v", TRUNCATED: "true"});
        assert_eq!(
            short,
            json!({"level": "Request", "auditID": "a", "annotations": annotations})
        );
        assert_eq!(truncated(&large, 20), None);
        let list = parts(
            vec![small.clone(), small.clone(), small.clone()],
            Some(size(&small) * 2),
        );
        assert_eq!(list.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(parts(vec![small.clone(), small], None).len(), 1);
    }

    #[test]
    fn events_as_lines_of_text() {
        let event = json!({"requestReceivedTimestamp": "2026-01-01T00:00:00.000000Z", "auditID": "i",
            "stage": "ResponseComplete", "sourceIPs": ["10.0.0.1"], "verb": "get",
            "user": {"username": "ann", "groups": ["a", "b"]}, "userAgent": "kubectl", "requestURI": "/api/v1/pods",
            "objectRef": {"namespace": "ns"}, "responseStatus": {"code": 200}});
        assert_eq!(
            legacy_line(&event),
            "2026-01-01T00:00:00.000000Z AUDIT: id=\"i\" stage=\"ResponseComplete\" ip=\"10.0.0.1\" method=\"get\" \
             user=\"ann\" groups=\"\\\"a\\\",\\\"b\\\"\" as=\"<self>\" asgroups=\"<lookup>\" user-agent=\"kubectl\" \
             namespace=\"ns\" uri=\"/api/v1/pods\" response=\"200\""
        );
        let bare = legacy_line(&json!({"user": {}}));
        assert!(bare.contains("user=\"<none>\" groups=\"<none>\""), "{bare}");
        assert!(bare.ends_with("response=\"<deferred>\""));
    }
}

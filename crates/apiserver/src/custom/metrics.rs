//! What conversions by webhooks count, under Kubernetes' names.
//!
//! Upstream: apiextensions-apiserver/pkg/apiserver/conversion/metrics.go (v1.36).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use orlop_base::metrics::series::{Buckets, Family, Histogram};
use orlop_base::metrics::text::header;

/// Upper bounds of the buckets of calls, in seconds.
const CALLS: &[f64] = &[
    0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0,
];
const CONVERSIONS: Buckets = Buckets {
    start: 0.001,
    factor: 2.0,
    count: 15,
};
/// Of one metric. Names come from definitions, which come and go.
const MAX_SERIES: usize = 10_000;

pub(crate) struct ConversionMetrics {
    conversions: Family<Histogram, 4>,
    requests: Family<AtomicU64, 2>,
    calls: Family<Histogram, 2>,
}

impl Default for ConversionMetrics {
    fn default() -> ConversionMetrics {
        let (conversions, calls): (Arc<[f64]>, Arc<[f64]>) = (CONVERSIONS.bounds(), CALLS.into());
        let labels = ["crd_name", "from_version", "succeeded", "to_version"];
        ConversionMetrics {
            conversions: Family::new(labels, move || Histogram::new(conversions.clone()))
                .bounded(MAX_SERIES, ["unexpected"; 4]),
            requests: Family::new(["failure_type", "result"], AtomicU64::default),
            calls: Family::new(["failure_type", "result"], move || Histogram::new(calls.clone())),
        }
    }
}

/// `v1` of `example.com/v1`.
fn version(api_version: &str) -> &str {
    api_version.rsplit('/').next().unwrap_or(api_version)
}

impl ConversionMetrics {
    /// Objects of one version were to become objects of another.
    pub(super) fn converted(&self, definition: &str, from: &str, to: &str, succeeded: bool, took: Duration) {
        let labels = [
            definition,
            version(from),
            if succeeded { "true" } else { "false" },
            version(to),
        ];
        self.conversions.with(labels, |h| h.observe(took.as_secs_f64()));
    }

    /// A webhook was asked. `failure` is empty if its answer can be used.
    pub(super) fn answered(&self, failure: &str, took: Duration) {
        let labels = [failure, if failure.is_empty() { "success" } else { "failure" }];
        self.requests.with(labels, |count| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        self.calls.with(labels, |h| h.observe(took.as_secs_f64()));
    }

    pub(crate) fn render(&self, out: &mut String) {
        let name = "apiserver_crd_conversion_webhook_duration_seconds";
        header(out, name, "histogram", "CRD webhook conversion duration in seconds.");
        self.conversions.write(out, name);
        let name = "apiserver_conversion_webhook_request_total";
        let help = "Counter for conversion webhook requests with success/failure and failure error type.";
        header(out, name, "counter", help);
        self.requests.write(out, name);
        let name = "apiserver_conversion_webhook_duration_seconds";
        header(out, name, "histogram", "Conversion webhook request latency.");
        self.calls.write(out, name);
    }
}

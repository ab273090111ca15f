//! The fields that are not about profiles: the client, leader election, back-off.
// Upstream: pkg/scheduler/apis/config/validation/validation.go, staging/src/k8s.io/component-base/config (v1.36)

use std::time::Duration;

use orlop_api::Cursor;

use super::problem::Problems;
use super::read::Fields;
use super::{ClientConnection, LeaderElection};

pub(super) fn client_connection(c: Cursor<'_>, p: &mut Problems) -> ClientConnection {
    let mut f = Fields::open(c, p);
    let burst = f.int("burst", p).filter(|&n| n != 0).unwrap_or(100);
    if burst < 0 {
        p.invalid(&f.path().field("burst"), burst, "must be non-negative");
    }
    let connection = ClientConnection {
        kubeconfig: f.text("kubeconfig", p).unwrap_or_default(),
        accept_content_types: f.text("acceptContentTypes", p).unwrap_or_default(),
        content_type: (f.filled("contentType", p)).unwrap_or_else(|| "application/vnd.kubernetes.protobuf".to_string()),
        qps: f.float("qps", p).filter(|&n| n != 0.0).unwrap_or(50.0),
        burst: u32::try_from(burst).unwrap_or(0),
    };
    f.close(p);
    connection
}

pub(super) fn leader_election(c: Cursor<'_>, p: &mut Problems) -> LeaderElection {
    let mut f = Fields::open(c, p);
    let path = f.path().clone();
    let leader_elect = f.flag("leaderElect", p).unwrap_or(true);
    let mut time = |name, default: u64| {
        let nanos = f.duration(name, p).unwrap_or(0);
        if nanos < 0 {
            let shown = f.at(name).value().cloned().unwrap_or_default();
            p.invalid(&path.field(name), shown, "must be greater than zero");
        }
        match u64::try_from(nanos) {
            Ok(0) | Err(_) => Duration::from_secs(default),
            Ok(nanos) => Duration::from_nanos(nanos),
        }
    };
    let election = LeaderElection {
        leader_elect,
        lease_duration: time("leaseDuration", 15),
        renew_deadline: time("renewDeadline", 10),
        retry_period: time("retryPeriod", 2),
        resource_lock: f.filled("resourceLock", p).unwrap_or_else(|| "leases".to_string()),
        resource_namespace: (f.filled("resourceNamespace", p)).unwrap_or_else(|| "kube-system".to_string()),
        resource_name: (f.filled("resourceName", p)).unwrap_or_else(|| "kube-scheduler".to_string()),
    };
    f.close(p);
    if leader_elect {
        let shown = super::render::time(election.renew_deadline);
        if election.lease_duration <= election.renew_deadline {
            let path = path.field("leaseDuration");
            p.invalid(&path, shown.as_str(), "must be greater than `RenewDeadline`");
        }
        // The wait between two tries has a jitter of up to a fifth; the deadline must allow for one try.
        if election.renew_deadline
            <= election
                .retry_period
                .saturating_mul(12)
                .checked_div(10)
                .unwrap_or_default()
        {
            let path = path.field("renewDeadline");
            p.invalid(&path, shown, "must be greater than `RetryPeriod`*1.2");
        }
        if election.resource_lock != "leases" {
            let path = path.field("resourceLock");
            p.invalid(
                &path,
                election.resource_lock.as_str(),
                "resourceLock value must be \"leases\"",
            );
        }
    }
    election
}

pub(super) fn parallelism(f: &mut Fields<'_>, p: &mut Problems) -> u32 {
    let n = f.int("parallelism", p).unwrap_or(16);
    if n <= 0 {
        let text = "should be an integer value greater than zero";
        p.invalid(&f.path().field("parallelism"), n, text);
    }
    u32::try_from(n).unwrap_or(1)
}

/// `percentageOfNodesToScore` of the configuration or of a profile.
pub(super) fn percentage(f: &mut Fields<'_>, p: &mut Problems) -> Option<u32> {
    let n = f.int("percentageOfNodesToScore", p)?;
    if !(0..=100).contains(&n) {
        let path = f.path().field("percentageOfNodesToScore");
        p.invalid(&path, n, "not in valid range [0-100]");
    }
    u32::try_from(n).ok()
}

/// The first and the longest back-off.
pub(super) fn backoff(f: &mut Fields<'_>, p: &mut Problems) -> (Duration, Duration) {
    let initial = f.long("podInitialBackoffSeconds", p).unwrap_or(1);
    let max = f.long("podMaxBackoffSeconds", p).unwrap_or(10);
    if initial <= 0 {
        let path = f.path().field("podInitialBackoffSeconds");
        p.invalid(&path, initial, "must be greater than 0");
    }
    if max < initial {
        let path = f.path().field("podMaxBackoffSeconds");
        p.invalid(&path, max, "must be greater than or equal to PodInitialBackoffSeconds");
    }
    let seconds = |n: i64| Duration::from_secs(u64::try_from(n).unwrap_or(0));
    (seconds(initial), seconds(max))
}

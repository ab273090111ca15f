//! Clears requests away: those decided on after an hour, those that nobody decides on after a day.
// Differs from upstream, which also looks whether an issued certificate has run out: an hour after the approval it goes
// anyway.

use std::time::Duration;

use jiff::Timestamp;
use orlop_base::Clock;
use orlop_client::Error;

use super::ACCOUNT;
use crate::objects::CertificateSigningRequest;
use crate::runtime::{Cache, Def, Key, Next, Reconcile, ReconcileResult, Setup, Writer};

pub(crate) const DEF: Def = Def {
    name: "certificatesigningrequest-cleaner-controller",
    account: ACCOUNT,
    on_by_default: true,
    start,
};

const DECIDED: Duration = Duration::from_secs(3600);
const PENDING: Duration = Duration::from_secs(24 * 3600);

struct Cleaner {
    requests: Cache<CertificateSigningRequest>,
    clock: Clock,
}

fn start(setup: &Setup) {
    let (queue, requests) = (setup.queue("csrcleaner"), setup.cache::<CertificateSigningRequest>());
    let wake = queue.clone();
    requests.on_change(move |_, new| {
        if let Some(request) = new {
            wake.add(Key::from_object(&**request));
        }
    });
    let clock = setup.clock.clone();
    setup.run(queue, 1, Cleaner { requests, clock });
}

impl Reconcile for Cleaner {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let Some(request) = self.requests.at(key).filter(|r| !r.metadata.is_deleted()) else {
            return Ok(Next::Done);
        };
        let Some(end) = end(&request) else {
            return Ok(Next::Done);
        };
        let left = end.duration_since(self.clock.now());
        if let Ok(left) = Duration::try_from(left)
            && !left.is_zero()
        {
            return Ok(Next::After(left));
        }
        match writer.delete::<CertificateSigningRequest>(&request.metadata).await {
            Ok(()) | Err(Error::NotFound(_)) => Ok(Next::Done),
            Err(error) => Err(error.into()),
        }
    }
}

/// When the request has stayed long enough.
fn end(request: &CertificateSigningRequest) -> Option<Timestamp> {
    let after = |since: Option<Timestamp>, stay: Duration| since?.checked_add(stay).ok();
    let conditions = &request.status.conditions;
    if conditions.is_empty() {
        return after(request.metadata.creation_timestamp, PENDING);
    }
    let ends = conditions
        .iter()
        .filter_map(|condition| match condition.r#type.as_str() {
            "Denied" | "Failed" => after(condition.last_update_time, DECIDED),
            "Approved" if request.is_issued() => after(condition.last_update_time, DECIDED),
            "Approved" => after(condition.last_update_time, PENDING),
            _ => None,
        });
    ends.min()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::Cluster;

    #[tokio::test(start_paused = true)]
    async fn requests_go_in_time() {
        let cluster = Cluster::new();
        // It is midnight.
        for (name, conditions, certificate, since) in [
            ("pending", json!([]), "", "2025-12-31T00:00:01Z"),
            ("pending-long", json!([]), "", "2025-12-31T00:00:00Z"),
            ("denied", json!(["Denied"]), "", "2025-12-31T23:00:01Z"),
            ("denied-long", json!(["Denied"]), "", "2025-12-31T23:00:00Z"),
            ("failed-long", json!(["Approved", "Failed"]), "", "2025-12-31T22:00:00Z"),
            ("issued-long", json!(["Approved"]), "eA==", "2025-12-31T22:00:00Z"),
            ("unissued", json!(["Approved"]), "", "2025-12-31T22:00:00Z"),
            ("unissued-long", json!(["Approved"]), "", "2025-12-30T22:00:00Z"),
        ] {
            let kinds = conditions.as_array().unwrap().iter();
            let conditions = kinds.map(|kind| json!({"type": kind, "status": "True", "lastUpdateTime": since}));
            let conditions: Vec<_> = conditions.collect();
            cluster.put(
                json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
                               "metadata": {"name": name, "creationTimestamp": since},
                               "status": {"conditions": conditions, "certificate": certificate}}),
            );
        }
        cluster.run(&[&DEF]);
        tokio::time::sleep(Duration::from_millis(500)).await;
        let names = || -> Vec<String> {
            let all = cluster.list::<CertificateSigningRequest>("").into_iter();
            all.map(|request| request.metadata.name).collect()
        };
        assert_eq!(names(), ["denied", "pending", "unissued"]);
        cluster.advance(Duration::from_secs(2)).await;
        assert_eq!(names(), ["unissued"]);
    }
}

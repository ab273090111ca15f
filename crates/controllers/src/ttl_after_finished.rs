//! Finished Jobs that are to be kept only for a while: deleted when their time is over, with all that is theirs.
// Upstream: pkg/controller/ttlafterfinished (v1.36)

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use orlop_base::Clock;
use orlop_client::{DeleteOptions, Error, Preconditions};

use crate::objects::Job;
use crate::runtime::{Cache, Def, Key, Next, Reconcile, ReconcileResult, Setup, Writer};

pub(crate) const DEF: Def = Def {
    name: "ttl-after-finished-controller",
    account: "ttl-after-finished-controller",
    on_by_default: true,
    start,
};

struct Controller {
    jobs: Cache<Job>,
    clock: Clock,
}

fn start(setup: &Setup) {
    let jobs = setup.cache::<Job>();
    let queue = setup.queue("ttl_jobs_to_delete");
    let wake = queue.clone();
    jobs.on_change(move |_, new| {
        if let Some(job) = new.filter(|job| expires_at(job).is_some()) {
            wake.add(Key::from_object(&**job));
        }
    });
    let clock = setup.clock.clone();
    setup.run(queue, setup.settings.concurrent_syncs, Controller { jobs, clock });
}

/// When the Job is to go, if its end is known.
fn expires_at(job: &Job) -> Option<Timestamp> {
    let seconds = job.spec.ttl_seconds_after_finished?;
    let mut ends = job.status.conditions.iter();
    let end = ends.find(|c| matches!(&*c.r#type, "Complete" | "Failed") && c.is_true())?;
    if job.metadata.is_deleted() {
        return None;
    }
    let ttl = SignedDuration::from_secs(seconds);
    Some(end.last_transition_time?.checked_add(ttl).unwrap_or(Timestamp::MAX))
}

impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let Some(job) = self.jobs.at(key) else {
            return Ok(Next::Done);
        };
        let Some(at) = expires_at(&job) else {
            return Ok(Next::Done);
        };
        let left = Duration::try_from(at.duration_since(self.clock.now())).unwrap_or_default();
        if !left.is_zero() {
            return Ok(Next::After(left));
        }
        // Only as it was seen: its time may have been made longer just now.
        let options = DeleteOptions {
            propagation_policy: Some("Foreground"),
            preconditions: Some(Preconditions {
                resource_version: Some(job.metadata.resource_version.clone()),
                ..Preconditions::default()
            }),
            ..DeleteOptions::default()
        };
        match writer.delete_with::<Job>(&job.metadata, options).await {
            Ok(()) | Err(Error::NotFound(_)) => Ok(Next::Done),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::Cluster;

    fn job(name: &str, ttl: Option<i64>, condition: &str) -> Value {
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "ns"},
               "spec": {"ttlSecondsAfterFinished": ttl},
               "status": {"conditions": [{"type": condition, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
    }

    #[tokio::test(start_paused = true)]
    async fn finished_jobs_go_when_their_time_is_over() {
        let cluster = Cluster::new();
        for (name, ttl, condition) in [
            ("at-once", Some(0), "Complete"),
            ("later", Some(60), "Failed"),
            ("longer", Some(60), "Complete"),
            ("forever", None, "Complete"),
            ("running", Some(0), "Suspended"),
        ] {
            cluster.put(job(name, ttl, condition));
        }
        cluster.run(&[&DEF]);
        let left = || {
            cluster
                .list::<Job>("ns")
                .into_iter()
                .filter(|job| !job.metadata.is_deleted())
        };
        let names = || left().map(|job| job.metadata.name).collect::<Vec<_>>();
        cluster.wait_until_idle().await;
        assert_eq!(names(), ["forever", "later", "longer", "running"]);
        cluster.edit::<Job>("ns", "longer", |job| {
            job["spec"]["ttlSecondsAfterFinished"] = json!(600)
        });
        cluster.advance(Duration::from_secs(62)).await;
        assert_eq!(names(), ["forever", "longer", "running"]);
        cluster.advance(Duration::from_secs(600)).await;
        assert_eq!(names(), ["forever", "running"]);
    }
}

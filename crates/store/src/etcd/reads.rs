//! Reads that must not be old: what etcd's revision is, asked once for all who wait, and the image that has reached it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use orlop_base::clock::Shift;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::messages::{AlarmType, RangeRequest};
use super::{Etcd, NotCurrent};
use crate::{Record, Revision};

/// How long etcd may take to say its revision; those who ask meanwhile wait for that.
const ANSWER: Duration = Duration::from_secs(4);
/// Who may be answered by one question.
const SHARED: usize = 8192;
/// How long the watch may be behind etcd's revision before another one is opened.
const LAG: Duration = Duration::from_secs(1);
/// How often etcd is asked while nobody needs it.
const PROBE: Duration = Duration::from_secs(1);

impl<R: Record> Etcd<R> {
    pub(crate) fn revision(&self) -> Revision {
        self.shared.state.read().revision
    }

    /// Whether the image reaches a revision in time.
    pub(crate) async fn reaches(&self, revision: Revision, until: Instant) -> bool {
        match self.reached.wait(revision, || self.revision()) {
            None => true,
            Some(reached) => matches!(tokio::time::timeout_at(until, reached).await, Ok(Ok(()))),
        }
    }

    /// Waits until the image is as etcd was at some moment since now.
    pub(crate) async fn current(&self, until: Instant) -> Result<Revision, NotCurrent> {
        let (ask, answer) = oneshot::channel();
        let gone = || NotCurrent("the store is closed".to_string());
        let asked = async {
            self.asked.send(ask).await.map_err(|_| gone())?;
            answer.await.map_err(|_| gone())?
        };
        let revision = match tokio::time::timeout_at(until, asked).await {
            Ok(answer) => answer?,
            Err(_) => return Err(NotCurrent("etcd does not answer".to_string())),
        };
        match self.reaches(revision, until).await {
            true => Ok(revision),
            false => Err(NotCurrent(format!(
                "the watch of etcd is behind: at revision {}, etcd at {revision}",
                self.revision()
            ))),
        }
    }

    pub(crate) async fn current_now(&self) -> Result<Revision, NotCurrent> {
        self.current(Instant::now().later(self.patience)).await
    }

    /// Answers who asks for etcd's revision: all who asked before one call began share its answer.
    pub(super) async fn answer(&self, mut questions: mpsc::Receiver<oneshot::Sender<Result<Revision, NotCurrent>>>) {
        let mut waiting = Vec::new();
        while questions.recv_many(&mut waiting, SHARED).await > 0 {
            let before = self.revision();
            let wait = self.pending.begin();
            let answer = self.ask_revision(Instant::now().later(self.patience.min(ANSWER))).await;
            wait.end(answer.is_ok());
            let answer = match answer {
                Ok(revision) if revision < before => Err(NotCurrent(format!(
                    "etcd went back from revision {before} to {revision} (was it restored from a backup?); restart \
                     this server"
                ))),
                answer => answer,
            };
            match &answer {
                Ok(_) => self.recovered(),
                Err(error) => self.failed(&error.0),
            }
            for ask in waiting.drain(..) {
                let _ = ask.send(answer.clone());
            }
        }
    }

    /// A linearizable read of a key that nobody has.
    async fn ask_revision(&self, until: Instant) -> Result<Revision, NotCurrent> {
        let nothing = RangeRequest {
            key: Bytes::from_static(b"\0"),
            limit: 1,
            ..RangeRequest::default()
        };
        match self.client.range(nothing, until).await {
            Ok(answer) => Ok(answer.header.unwrap_or_default().revision as Revision),
            Err(error) => Err(NotCurrent(format!("etcd does not answer: {error}"))),
        }
    }

    /// Asks now and then although nobody waits, so that health checks know, and looks after the watch.
    pub(super) async fn probe(&self) {
        loop {
            tokio::time::sleep(PROBE).await;
            if self.no_space.load(Ordering::Acquire) {
                let alarms = self
                    .client
                    .alarms(Instant::now().later(self.patience.min(ANSWER)))
                    .await;
                let is_over = alarms.is_ok_and(|alarms| alarms.iter().all(|a| a.alarm != AlarmType::NoSpace as i32));
                self.no_space.fetch_and(!is_over, Ordering::AcqRel);
            }
            let (ask, answer) = oneshot::channel();
            if self.asked.send(ask).await.is_err() {
                return;
            }
            if let Ok(Ok(revision)) = answer.await
                && !self.reaches(revision, Instant::now().later(LAG)).await
            {
                tracing::warn!(
                    revision,
                    at = self.revision(),
                    "the watch of etcd is behind; opening another one"
                );
                self.rewatch.notify_one();
            }
        }
    }
}

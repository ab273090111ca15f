//! The watch of etcd: opened where the image stands, again after every break, and from a new list when what happened in
//! between has been compacted away.

use std::time::Duration;

use bytes::Bytes;
use orlop_base::clock::Shift;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::apply::Fed;
use super::client::CallError;
use super::messages::{KeyValue, RangeRequest, WatchCreateRequest};
use super::{Etcd, NotCurrent};
use crate::log::OpenError;
use crate::{Record, RecordError, Revision};

/// Keys of one answer of a list.
const PAGE: i64 = 1000;
/// How far back a fresh image may begin, so that watches and lists in pages that another server began can go on here.
const HISTORY: i64 = 20_000;
/// How long a new list may take.
const LIST: Duration = Duration::from_secs(60);
/// Between two attempts to watch.
const PAUSE: Duration = Duration::from_millis(100);

type Questions = mpsc::Receiver<oneshot::Sender<Result<Revision, NotCurrent>>>;

/// How a watch ended.
enum Ended {
    Compacted,
    Broken(String),
    /// Nobody applies what it brings any more.
    Closed,
}

impl From<CallError> for Ended {
    fn from(error: CallError) -> Ended {
        match error.is_compacted() {
            true => Ended::Compacted,
            false => Ended::Broken(error.to_string()),
        }
    }
}

impl<R: Record> Etcd<R> {
    /// The thread that speaks with etcd. Says when the image is there, or why it is not.
    pub(super) async fn run(
        &self,
        feed: mpsc::Sender<Fed>,
        questions: Questions,
        compaction_interval: Duration,
        patience: Duration,
        tell: std::sync::mpsc::Sender<Result<(), OpenError>>,
    ) {
        let mut fed = match self.load(&feed, Instant::now().later(patience)).await {
            Ok(revision) => revision,
            Err(error) => {
                let _ = tell.send(Err(error));
                return;
            }
        };
        let work = async {
            let present = async {
                // What happened since the revision that the image began at.
                let caught_up = self.current(Instant::now().later(LIST)).await;
                let unreadable = self.unreadable.lock().pop_first();
                let _ = tell.send(match (caught_up, unreadable) {
                    (Err(NotCurrent(reason)), _) => Err(OpenError::Etcd {
                        endpoints: String::new(),
                        reason,
                    }),
                    (Ok(_), Some((key, reason))) => Err(OpenError::Record {
                        key,
                        reason: RecordError(reason),
                    }),
                    (Ok(_), None) => Ok(()),
                });
            };
            tokio::join!(
                self.follow(&feed, &mut fed),
                self.answer(questions),
                self.probe(),
                self.tick(&feed),
                self.compact_regularly(compaction_interval),
                present
            );
        };
        tokio::select! {
            _ = work => {}
            () = self.stop.wait() => {}
        }
    }

    async fn tick(&self, feed: &mpsc::Sender<Fed>) {
        let every = self.options.tick();
        loop {
            tokio::time::sleep(every).await;
            if feed.send(Fed::Tick).await.is_err() {
                return;
            }
        }
    }

    /// The first image, at a revision as old as etcd and we can afford.
    async fn load(&self, feed: &mpsc::Sender<Fed>, until: Instant) -> Result<Revision, OpenError> {
        let failed = |error: CallError| OpenError::Etcd {
            endpoints: String::new(),
            reason: error.to_string(),
        };
        let (compacted, present) = self.last_compaction(until).await.map_err(failed)?;
        let oldest = compacted.unwrap_or(1).max(present.saturating_sub(HISTORY)).max(1);
        let until = until.max(Instant::now().later(LIST));
        let (revision, kvs) = match self.list(Some(oldest), until).await {
            Err(error) if error.is_compacted() => self.list(None, until).await,
            listed => listed,
        }
        .map_err(failed)?;
        let (tell, loaded) = oneshot::channel();
        let everything = Fed::Everything {
            revision,
            kvs,
            loaded: Some(tell),
        };
        let closed = || OpenError::Etcd {
            endpoints: String::new(),
            reason: "the store is closed".to_string(),
        };
        feed.send(everything).await.map_err(|_| closed())?;
        loaded.await.map_err(|_| closed())??;
        Ok(revision)
    }

    /// All that there is at a revision, or now.
    async fn list(&self, at: Option<i64>, until: Instant) -> Result<(Revision, Vec<KeyValue>), CallError> {
        let prefix = Bytes::copy_from_slice(self.codec.prefix());
        let (mut from, end) = (prefix.clone(), end_of(&prefix));
        let (mut at, mut kvs) = (at.unwrap_or(0), Vec::new());
        loop {
            let request = RangeRequest {
                key: from,
                range_end: end.clone(),
                limit: PAGE,
                revision: at,
                ..RangeRequest::default()
            };
            let answer = self.client.range(request, until).await?;
            if at == 0 {
                at = answer.header.unwrap_or_default().revision;
            }
            let last = answer.kvs.last().map(|kv| kv.key.clone());
            kvs.extend(answer.kvs);
            match last.filter(|_| answer.more) {
                // The first key after the last one is that one and a zero.
                Some(last) => from = [&last[..], b"\0"].concat().into(),
                None => return Ok((at as Revision, kvs)),
            }
        }
    }

    /// Hands over what happens after `fed`, until the store closes.
    async fn follow(&self, feed: &mpsc::Sender<Fed>, fed: &mut Revision) {
        // Where the watch was when that was logged: attempts in vain are no news.
        let mut logged = None;
        loop {
            match self.watch(feed, fed).await {
                Ended::Closed => return,
                Ended::Broken(error) if logged == Some(*fed) => {
                    tracing::debug!(error, revision = *fed, "failed to open the watch of etcd again");
                }
                Ended::Broken(error) => {
                    tracing::warn!(error, revision = *fed, "the watch of etcd broke off; opening it again");
                    logged = Some(*fed);
                }
                Ended::Compacted => {
                    tracing::warn!(
                        revision = *fed,
                        "what happened since was compacted away in etcd; listing again"
                    );
                    match self.list(None, Instant::now().later(LIST)).await {
                        Ok((revision, kvs)) => {
                            let everything = Fed::Everything {
                                revision,
                                kvs,
                                loaded: None,
                            };
                            if feed.send(everything).await.is_err() {
                                return;
                            }
                            *fed = revision;
                            continue;
                        }
                        Err(error) => tracing::warn!(%error, "failed to list etcd's records"),
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn watch(&self, feed: &mpsc::Sender<Fed>, fed: &mut Revision) -> Ended {
        let create = WatchCreateRequest {
            // From the first key on.
            key: Bytes::from_static(b"\0"),
            range_end: Bytes::from_static(b"\0"),
            start_revision: *fed as i64 + 1,
            fragment: true,
            ..WatchCreateRequest::default()
        };
        let mut stream = match self.client.watch(create).await {
            Ok(stream) => stream,
            Err(error) => return error.into(),
        };
        // Of a revision that came in pieces.
        let mut pieces = Vec::new();
        loop {
            let answer = tokio::select! {
                answer = stream.next() => answer,
                () = self.rewatch.notified() => {
                    self.client.leave_member_of(&stream);
                    return Ended::Broken("nothing came any more".to_string());
                }
            };
            let answer = match answer {
                Ok(answer) => answer,
                Err(error) => {
                    self.client.leave_member_of(&stream);
                    return error.into();
                }
            };
            if answer.compact_revision > 0 {
                return Ended::Compacted;
            }
            if answer.canceled {
                self.client.leave_member_of(&stream);
                return Ended::Broken(answer.cancel_reason);
            }
            pieces.extend(answer.events);
            if answer.fragment {
                continue;
            }
            let Some(last) = pieces.last().and_then(|event| event.kv.as_ref()) else {
                continue;
            };
            let revision = last.mod_revision as Revision;
            if feed.send(Fed::Events(std::mem::take(&mut pieces))).await.is_err() {
                return Ended::Closed;
            }
            *fed = (*fed).max(revision);
        }
    }
}

/// The first key after all that begin with a prefix.
fn end_of(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end.into();
        }
    }
    // All keys.
    Bytes::from_static(b"\0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_prefixes() {
        for (prefix, end) in [
            (&b"/registry/"[..], &b"/registry0"[..]),
            (b"a\xff", b"b"),
            (b"\xff\xff", b"\0"),
            (b"", b"\0"),
        ] {
            assert_eq!(end_of(prefix), end);
        }
    }
}

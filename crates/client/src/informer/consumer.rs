//! The typed end of an informer: decodes objects into the consumer's type and sends them. All else is the same for every
//! type, and compiled once.

use futures::future::BoxFuture;
use tokio::sync::mpsc;

use super::Delta;
use super::watch_event::EventType;

/// Decodes one object from JSON.
pub type Decode<T> = fn(&[u8]) -> serde_json::Result<T>;

/// What the informer knows of its consumer.
pub(super) trait Consumer: Send {
    /// What is decoded from here on, until `send`, is the whole state; what was not sent before is dropped.
    fn begin_state(&mut self);

    /// Decodes the object of a change and keeps it for `send`.
    fn decode(&mut self, change: EventType, object: &[u8]) -> serde_json::Result<()>;

    /// Keeps a bookmark for `send`.
    fn add_bookmark(&mut self, revision: u64);

    /// Sends all that was kept: the state first, if there is one. False if nobody receives any more.
    fn send(&mut self) -> BoxFuture<'_, bool>;
}

pub(super) struct Channel<T> {
    decode: Decode<T>,
    sink: mpsc::Sender<Delta<T>>,
    /// The whole state while it is still coming in.
    state: Option<Vec<T>>,
    /// What is not ADDED changes what came before it, so from there on changes are sent after the state.
    changes: Vec<Delta<T>>,
}

impl<T> Channel<T> {
    pub(super) fn new(decode: Decode<T>, sink: mpsc::Sender<Delta<T>>) -> Channel<T> {
        Channel {
            decode,
            sink,
            state: None,
            changes: vec![],
        }
    }
}

impl<T: Send> Consumer for Channel<T> {
    fn begin_state(&mut self) {
        self.state = Some(vec![]);
        self.changes.clear();
    }

    fn decode(&mut self, change: EventType, object: &[u8]) -> serde_json::Result<()> {
        let object = (self.decode)(object)?;
        match (change, &mut self.state) {
            (EventType::Added, Some(state)) if self.changes.is_empty() => state.push(object),
            (EventType::Deleted, _) => self.changes.push(Delta::Deleted(object)),
            _ => self.changes.push(Delta::Applied(object)),
        }
        Ok(())
    }

    fn add_bookmark(&mut self, revision: u64) {
        self.changes.push(Delta::Bookmark(revision));
    }

    fn send(&mut self) -> BoxFuture<'_, bool> {
        let state = self.state.take().map(Delta::Reset);
        let (sink, changes) = (&self.sink, self.changes.drain(..));
        Box::pin(async move {
            for delta in state.into_iter().chain(changes) {
                if sink.send(delta).await.is_err() {
                    return false;
                }
            }
            true
        })
    }
}

//! The front end of an informer: one kind of objects is watched, and its changes go to a sink.
//!
//! ```text
//!   informer (lists, watches, decodes) ──► queue ──► sink: a cache, or an inbox that several informers share
//! ```
//!
//! The informer goes on reading and decoding while the sink is busy, until the queue is full. What waits is handed over
//! together.

use futures::future::BoxFuture;
use orlop_base::Shutdown;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{Decode, Delta, Selection, watch_with};
use crate::api::Api;

/// Changes that may wait, and those handed over at once; a full queue slows the watch down, nothing is lost.
const QUEUE: usize = 256;

/// Where the changes of one kind go.
pub trait Sink<T>: Send + 'static {
    /// Takes changes in, in their order. False if nobody wants any more, which ends the informer.
    fn observe(&mut self, changes: Vec<Delta<T>>) -> BoxFuture<'_, bool>;
}

/// A cache: each change is applied at once.
impl<T: Send + 'static, F: FnMut(Delta<T>) + Send + 'static> Sink<T> for F {
    fn observe(&mut self, changes: Vec<Delta<T>>) -> BoxFuture<'_, bool> {
        changes.into_iter().for_each(self);
        Box::pin(std::future::ready(true))
    }
}

/// A queue of messages, for whoever watches several kinds and handles one change at a time.
pub struct Inbox<T, M> {
    messages: mpsc::Sender<M>,
    wrap: fn(Vec<Delta<T>>) -> M,
}

impl<T, M> Inbox<T, M> {
    /// `wrap` makes a message of changes.
    pub fn new(messages: &mpsc::Sender<M>, wrap: fn(Vec<Delta<T>>) -> M) -> Inbox<T, M> {
        Inbox {
            messages: messages.clone(),
            wrap,
        }
    }
}

impl<T: Send + 'static, M: Send + 'static> Sink<T> for Inbox<T, M> {
    fn observe(&mut self, changes: Vec<Delta<T>>) -> BoxFuture<'_, bool> {
        let message = (self.wrap)(changes);
        Box::pin(async move { self.messages.send(message).await.is_ok() })
    }
}

/// Starts an informer; it runs until the shutdown, or until the returned task is aborted.
pub fn start<T: DeserializeOwned + Send + 'static>(
    api: &Api,
    selection: Selection,
    sink: impl Sink<T>,
    shutdown: &Shutdown,
) -> JoinHandle<()> {
    start_with(api, selection, |json| serde_json::from_slice(json), sink, shutdown)
}

/// Like `start`, with objects decoded by a function: kinds that are decoded into one type (a trait object) share the code
/// that is compiled for it.
pub fn start_with<T: Send + 'static>(
    api: &Api,
    selection: Selection,
    decode: Decode<T>,
    mut sink: impl Sink<T>,
    shutdown: &Shutdown,
) -> JoinHandle<()> {
    let (sender, mut changes) = mpsc::channel(QUEUE);
    // Ends when nobody receives any more.
    orlop_base::spawn(watch_with(api.clone(), selection, decode, sender, shutdown.clone()));
    orlop_base::spawn(async move {
        loop {
            let mut batch = Vec::new();
            if changes.recv_many(&mut batch, QUEUE).await == 0 || !sink.observe(batch).await {
                return;
            }
        }
    })
}

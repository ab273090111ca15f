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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use orlop_api::objects::Namespace;
    use orlop_base::Clock;
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;
    use crate::testing::{Server, eventually};

    const PATH: &str = "/api/v1/namespaces";

    fn server() -> Server {
        Server::new(Clock::manual("2026-01-01T00:00:00Z".parse().unwrap()), 1)
    }

    fn put(server: &Server, name: &str) {
        server.put(&format!("{PATH}/{name}"), json!({"metadata": {"name": name}}));
    }

    fn shown(delta: &Delta<Namespace>) -> String {
        let name = |object: &Namespace| object.metadata.name.clone();
        match delta {
            Delta::Reset(objects) => format!("={}", objects.iter().map(name).collect::<Vec<_>>().join(",")),
            Delta::Applied(object) => format!("+{}", name(object)),
            Delta::Deleted(object) => format!("-{}", name(object)),
            Delta::Bookmark(_) => String::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cache_gets_each_change_in_order() {
        let (server, seen) = (server(), Arc::new(Mutex::new(String::new())));
        put(&server, "a");
        let (cache, shutdown) = (seen.clone(), Shutdown::default());
        let sink = move |delta: Delta<Namespace>| cache.lock().push_str(&shown(&delta));
        let informer = start(&server.api(), Selection::all(PATH), sink, &shutdown);
        eventually("the list", async || *seen.lock() == "=a").await;
        put(&server, "b");
        server.remove("/api/v1/namespaces/a");
        eventually("the changes", async || *seen.lock() == "=a+b-a").await;
        server.compact();
        eventually("another list", async || *seen.lock() == "=a+b-a=b").await;
        shutdown.trigger();
        informer.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_inbox_gets_what_waits_at_once_and_ends_the_informer_when_it_is_dropped() {
        let (server, shutdown) = (server(), Shutdown::default());
        let (sender, mut inbox) = mpsc::channel(1);
        let wrap = |changes: Vec<Delta<Namespace>>| changes.iter().map(shown).collect::<String>();
        let informer = start(
            &server.api(),
            Selection::all(PATH),
            Inbox::new(&sender, wrap),
            &shutdown,
        );
        assert_eq!(inbox.recv().await.unwrap(), "=");
        for name in ["a", "b", "c", "d"] {
            put(&server, name);
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
        // One message waits in the inbox and one to get into it; the rest came meanwhile.
        let (mut all, mut last) = (String::new(), String::new());
        while all != "+a+b+c+d" {
            last = inbox.recv().await.unwrap();
            all.push_str(&last);
        }
        assert!(last.contains("+c+d"), "{last}");
        drop(inbox);
        put(&server, "e");
        informer.await.unwrap();
    }
}

//! One signal that tells every task of a process to stop.

use tokio::sync::watch;

/// Cloned into every long-running task. `trigger` once; `wait` resolves in all clones, at once if already triggered.
#[derive(Clone, Debug)]
pub struct Shutdown {
    tx: watch::Sender<bool>,
}

impl Default for Shutdown {
    fn default() -> Self {
        Shutdown {
            tx: watch::Sender::new(false),
        }
    }
}

impl Shutdown {
    /// Signals all clones, for good. A second call does nothing.
    pub fn trigger(&self) {
        self.tx.send_replace(true);
    }

    /// Whether it was triggered.
    pub fn is_triggered(&self) -> bool {
        *self.tx.borrow()
    }

    /// Resolves once triggered. Cancel-safe: a future that is dropped misses nothing.
    pub async fn wait(&self) {
        let mut rx = self.tx.subscribe();
        // The sender lives in self, so this cannot fail.
        let _ = rx.wait_for(|stop| *stop).await;
    }
}

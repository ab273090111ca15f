//! One at a time for each name: two pulls that want the same layer get it once.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

#[derive(Default)]
pub(super) struct Flights {
    by_name: Mutex<HashMap<String, Weak<AsyncMutex<()>>>>,
}

impl Flights {
    /// Waits until nobody else is in with this name.
    pub(super) async fn enter(&self, name: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut by_name = self.by_name.lock();
            // As many as are under way, and no more.
            by_name.retain(|_, lock| lock.strong_count() > 0);
            match by_name.get(name).and_then(Weak::upgrade) {
                Some(lock) => lock,
                None => {
                    let lock = Arc::new(AsyncMutex::new(()));
                    by_name.insert(name.to_string(), Arc::downgrade(&lock));
                    lock
                }
            }
        };
        lock.lock_owned().await
    }
}

//! What tests of several modules share.

use std::fmt::Debug;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// Polls until the expected value is seen, for a minute at most. The panic shows the last value.
pub(crate) async fn until<T: Debug + PartialEq>(what: &str, mut look: impl FnMut() -> T, expected: T) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while look() != expected {
            tokio::time::sleep(POLL).await;
        }
    });
    if waited.await.is_err() {
        panic!("{what}: {:?} after {PATIENCE:?}, not {expected:?}", look());
    }
}

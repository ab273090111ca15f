//! Deletes tokens that have run out.

use std::time::Duration;

use orlop_base::Clock;
use orlop_client::Error;

use super::{end, is_token};
use crate::objects::Secret;
use crate::runtime::{Cache, Def, Key, Next, Reconcile, ReconcileResult, Setup, Writer};

pub(crate) const DEF: Def = Def {
    name: "token-cleaner-controller",
    account: "token-cleaner",
    on_by_default: false,
    start,
};

struct Cleaner {
    secrets: Cache<Secret>,
    clock: Clock,
}

fn start(setup: &Setup) {
    let (queue, secrets) = (setup.queue("token_cleaner"), setup.cache::<Secret>());
    let wake = queue.clone();
    secrets.on_change(move |_, new| {
        if let Some(secret) = new.filter(|secret| is_token(secret)) {
            wake.add(Key::from_object(&**secret));
        }
    });
    let clock = setup.clock.clone();
    setup.run(queue, 1, Cleaner { secrets, clock });
}

impl Reconcile for Cleaner {
    async fn reconcile(&self, key: &Key, writer: &Writer) -> ReconcileResult {
        let Some(secret) = self.secrets.at(key).filter(|secret| is_token(secret)) else {
            return Ok(Next::Done);
        };
        let Some(end) = end(&secret) else {
            return Ok(Next::Done);
        };
        if let Ok(left) = Duration::try_from(end.duration_since(self.clock.now()))
            && !left.is_zero()
        {
            return Ok(Next::After(left));
        }
        match writer.delete::<Secret>(&secret.metadata).await {
            Ok(()) | Err(Error::NotFound(_)) => Ok(Next::Done),
            Err(error) => Err(error.into()),
        }
    }
}

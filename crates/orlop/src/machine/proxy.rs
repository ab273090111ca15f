//! The rules of the service proxy, in whatever mode it was.

use orlop_proxy::{Settings, engine};

use super::{Purge, Removal};

pub(super) const REMOVAL: Removal = Removal {
    what: "proxy rules",
    run: |purge| Box::pin(run(purge)),
};

async fn run(purge: &mut Purge) {
    if !purge.machine.proxy {
        return;
    }
    let runtime = tokio::runtime::Handle::current();
    let cleaned = tokio::task::spawn_blocking(move || engine::clean_up(&Settings::default(), &runtime)).await;
    match cleaned {
        Ok(problems) if problems.is_empty() => purge.removed("proxy rules"),
        Ok(problems) => purge.failed("proxy rules", problems.join("; ")),
        Err(error) => purge.failed("proxy rules", error),
    }
}

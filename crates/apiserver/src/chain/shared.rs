//! Requests to a server that shares its store with others.

use http::{HeaderMap, Response};
use orlop_api::{KindDef, Status};

use super::Server;
use crate::negotiate::Representation;
use crate::registry::Context;
use crate::respond::Body;

impl Server {
    /// What another server has changed a moment ago may not have come to this one: reads wait for it, and a write that is
    /// refused by what it sees looks again, once, at all that there was when it was refused.
    pub(super) async fn dispatch(
        &self,
        kind: &'static KindDef,
        bytes: &[u8],
        headers: &HeaderMap,
        ctx: &Context<'_>,
        wanted: Representation,
    ) -> Result<Response<Body>, Status> {
        let (registry, info) = (&self.registry, ctx.info);
        if !registry.store.is_shared() || !kind.is_stored() {
            return self.carry_out(kind, bytes, headers, ctx, wanted).await;
        }
        if !info.is_mutating() {
            registry.await_revision_of(info).await?;
            return self.carry_out(kind, bytes, headers, ctx, wanted).await;
        }
        let seen = registry.store.revision();
        let done = self.carry_out(kind, bytes, headers, ctx, wanted).await;
        match &done {
            Err(status) if may_be_outdated(status) && registry.await_present().await? > seen => {
                self.carry_out(kind, bytes, headers, ctx, wanted).await
            }
            _ => done,
        }
    }
}

/// Whether a write was refused for what is stored.
fn may_be_outdated(status: &Status) -> bool {
    matches!(status.code, 403 | 404 | 409 | 410 | 422)
}

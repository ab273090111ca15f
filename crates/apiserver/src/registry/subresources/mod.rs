//! What hangs off an object: one file a subresource. Discovery facts are in the kind's row; behaviour is here.

mod binding;
mod eviction;
mod namespace;
mod pod;
mod reviews;
pub(crate) mod scale;
mod token;

use std::sync::Arc;

use http::HeaderMap;
use orlop_api::{KindDef, Status, Value};

use super::update::Endpoint;
use super::{Context, Registry, VerbResult};
use crate::admission::{self, Operation, Review};

impl Registry {
    /// A request on a subresource that the kind's row lists.
    pub async fn subresource(
        self: &Arc<Self>,
        kind: &'static KindDef,
        bytes: &[u8],
        headers: &HeaderMap,
        ctx: &Context<'_>,
    ) -> Result<VerbResult, Status> {
        let info = ctx.info;
        match (kind.plural, info.subresource.as_str(), info.verb) {
            (_, "scale", _) => self.scale(kind, bytes, headers, ctx).await,
            ("pods", "binding", "create") => self.bind(&info.name, bytes, headers, ctx).await,
            ("pods", "eviction", "create") => self.evict(bytes, headers, ctx).await,
            ("serviceaccounts", "token", "create") => self.issue_token(bytes, headers, ctx).await,
            ("namespaces", "finalize", "update") => self.update(kind, &namespace::FINALIZE, bytes, headers, ctx).await,
            (_, _, "get") => self.get(kind, &info.namespace, &info.name).await,
            (_, sub, "update") => self.update(kind, endpoint(sub)?, bytes, headers, ctx).await,
            (_, sub, "patch") => self.patch(kind, endpoint(sub)?, bytes, headers, ctx).await,
            _ => Err(Status::method_not_allowed()),
        }
    }

    /// Admission of a body that is not stored itself (a token request, an eviction).
    async fn admit_body(&self, kind: &'static KindDef, body: &mut Value, ctx: &Context<'_>) -> Result<(), Status> {
        let review = Review {
            operation: Operation::Create,
            kind,
            subresource: &ctx.info.subresource,
            namespace: ctx.info.namespace.clone(),
            name: ctx.info.name.clone(),
            name_prefix: String::new(),
            user: ctx.user,
            dry_run: ctx.options.dry_run,
            now: ctx.now,
            lookup: self,
            config: &self.config,
            authorizer: &self.authorizer,
            warnings: ctx.warnings,
            request: ctx.info,
            delete: None,
            dynamic: &self.dynamic_admission,
            kinds: &self.kinds,
            conversions: Default::default(),
        };
        admission::mutate(&review, body, None).await?;
        admission::validate(&review, Some(body), None).await?;
        // What is not kept is not counted.
        admission::charge_quota(&review, Some(body), None).map(|_| ())
    }

    /// create on a kind that is only a question: answered, not stored.
    pub async fn create_only(
        self: &Arc<Self>,
        kind: &'static KindDef,
        bytes: &[u8],
        headers: &HeaderMap,
        ctx: &Context<'_>,
    ) -> Result<VerbResult, Status> {
        match kind.kind {
            "Binding" => self.bind("", bytes, headers, ctx).await,
            _ => self.review(kind, bytes, headers, ctx).await,
        }
    }
}

fn endpoint(subresource: &str) -> Result<&'static Endpoint, Status> {
    match subresource {
        "status" => Ok(&Endpoint::STATUS),
        "resize" => Ok(&pod::RESIZE),
        "ephemeralcontainers" => Ok(&pod::EPHEMERAL_CONTAINERS),
        "approval" => Ok(&reviews::APPROVAL),
        _ => Err(Status::no_such_resource()),
    }
}

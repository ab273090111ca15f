//! serviceaccounts/token: a signed, expiring token, optionally bound to a pod, secret or node.

use http::HeaderMap;
use orlop_api::patch::apply as ownership;
use orlop_api::schema::schema;
use orlop_api::{Status, Value};

use crate::kinds;
use crate::registry::body::{self, BodyType};
use crate::registry::{Context, Registry, VerbResult};

/// How long a token is good if the request does not say.
const DEFAULT_SECONDS: i64 = 3600;

impl Registry {
    pub async fn issue_token(
        &self,
        bytes: &[u8],
        headers: &HeaderMap,
        ctx: &Context<'_>,
    ) -> Result<VerbResult, Status> {
        let wanted = BodyType::new(
            "authentication.k8s.io",
            "v1",
            "TokenRequest",
            "authentication/v1.TokenRequest",
        );
        let mut request = body::decode(bytes, headers, &wanted, ctx)?;
        if request.pointer("/spec/expirationSeconds").is_none_or(Value::is_null) {
            request["spec"]["expirationSeconds"] = DEFAULT_SECONDS.into();
        }
        let options = ownership::UpdateOptions {
            manager: &ctx.options.manager,
            now: ctx.now,
            api_version: "authentication.k8s.io/v1",
            subresource: "token",
            reset: &[],
        };
        ownership::update_managed_fields(
            &mut request,
            None,
            schema().get("authentication/v1.TokenRequest"),
            &options,
        );
        let (namespace, name) = (&ctx.info.namespace, &ctx.info.name);
        self.admit_body(
            kinds::of_stored("serviceaccounts").expect("a core kind"),
            &mut request,
            ctx,
        )
        .await?;
        let issued = self
            .authenticator
            .issuer()
            .answer_request(namespace, name, request, ctx.now, self)?;
        issued.warnings.into_iter().for_each(|w| ctx.warnings.add(w));
        Ok(VerbResult::Value {
            value: issued.request,
            code: 201,
        })
    }
}

//! serviceaccounts/token: a signed, expiring token, optionally bound to a pod, secret or node.

use http::HeaderMap;
use orlop_api::Status;

use crate::registry::body::{self, BodyType};
use crate::registry::{Context, Outcome, Registry};

impl Registry {
    pub fn issue_token(&self, bytes: &[u8], headers: &HeaderMap, ctx: &Context<'_>) -> Result<Outcome, Status> {
        let wanted = BodyType::new(
            "authentication.k8s.io",
            "v1",
            "TokenRequest",
            "authentication/v1.TokenRequest",
        );
        let request = body::decode(bytes, headers, wanted, ctx)?;
        let (namespace, name) = (&ctx.info.namespace, &ctx.info.name);
        let issued = self
            .authenticator
            .issuer()
            .answer_request(namespace, name, request, ctx.now, self)?;
        issued.warnings.into_iter().for_each(|w| ctx.warnings.add(w));
        Ok(Outcome::Value {
            value: issued.request,
            code: 201,
        })
    }
}

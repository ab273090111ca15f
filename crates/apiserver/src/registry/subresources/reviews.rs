//! Kinds that are questions: who am I, may I, may they, is this token good. And the approval of signing requests.

use http::HeaderMap;
use orlop_api::certificates::signing_request;
use orlop_api::{Cursor, KindDef, Problems, Status, Value};
use orlop_base::clock::rfc3339;
use serde_json::json;

use crate::authz::check_local_review;
use crate::registry::body::{self, BodyType};
use crate::registry::create::own_fields;
use crate::registry::update::Endpoint;
use crate::registry::{Context, Registry, VerbResult};

pub(super) const APPROVAL: Endpoint = Endpoint {
    subresource: "approval",
    prepare: |_, new, old| signing_request::prepare_approval(new, old),
    validate: |_, new, old, p| signing_request::validate_approval(new, old, p),
    generation: false,
    owns: true,
};

impl Registry {
    pub async fn review(
        &self,
        kind: &'static KindDef,
        bytes: &[u8],
        headers: &HeaderMap,
        ctx: &Context<'_>,
    ) -> Result<VerbResult, Status> {
        let mut review = body::decode(bytes, headers, &BodyType::of(kind)?, ctx)?;
        (kind.default)(&mut review);
        let mut problems = Problems::default();
        (kind.validate)(&Cursor::root(&review), &mut problems);
        if !problems.is_empty() {
            // Questions about rights are refused without their kind being named.
            let name = if kind.group == "authorization.k8s.io" {
                ""
            } else {
                kind.kind
            };
            return Err(Status::invalid(kind.group, name, "", &problems));
        }
        own_fields(&mut review, None, kind, ctx, "");
        let status = match kind.kind {
            "SelfSubjectReview" => {
                review["metadata"] = json!({"creationTimestamp": rfc3339(ctx.now)});
                json!({"userInfo": ctx.user.to_value()})
            }
            "TokenReview" => self.authenticator.token_review(&review["spec"], ctx.now, self).await?,
            "SelfSubjectAccessReview" => self
                .authorizer
                .self_subject_access_review(ctx.user, &review["spec"], self),
            "SubjectAccessReview" => self.authorizer.subject_access_review(&review["spec"], self),
            "LocalSubjectAccessReview" => {
                check_local_review(&review, &ctx.info.namespace)?;
                self.authorizer.subject_access_review(&review["spec"], self)
            }
            "SelfSubjectRulesReview" => {
                let namespace = review.pointer("/spec/namespace").and_then(Value::as_str).unwrap_or("");
                if namespace.is_empty() {
                    return Err(Status::bad_request("no namespace on request"));
                }
                let rules = self.authorizer.self_subject_rules_review(ctx.user, namespace, self);
                // This answer does not repeat the question.
                review["spec"] = json!({});
                review["metadata"] = json!({});
                rules
            }
            _ => return Err(Status::method_not_allowed()),
        };
        review["status"] = status;
        Ok(VerbResult::Value {
            value: review,
            code: 201,
        })
    }
}

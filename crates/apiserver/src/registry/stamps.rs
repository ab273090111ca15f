//! What only the server can write into an object, after the kind's own preparation: who asked for a certificate, when a
//! decision was made, what a quota counts.

use orlop_api::certificates::signing_request::{self, Requestor};
use orlop_api::core::persistent_volume;
use orlop_api::{KindDef, Value};

use super::create::meta_text;
use super::{Context, Registry};
use crate::admission::resource_quota;

pub(super) fn on_create(registry: &Registry, kind: &KindDef, object: &mut Value, ctx: &Context<'_>) {
    match kind.kind {
        "CertificateSigningRequest" => {
            let extra: Vec<_> = ctx.user.extra.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
            let by = Requestor {
                username: &ctx.user.name,
                uid: &ctx.user.uid,
                groups: &ctx.user.groups,
                extra: &extra,
            };
            signing_request::set_requestor(object, &by);
        }
        "ResourceQuota" => set_quota_status(registry, object, ctx),
        _ => {}
    }
}

pub(super) fn on_update(registry: &Registry, kind: &KindDef, new: &mut Value, old: &Value, ctx: &Context<'_>) {
    match kind.kind {
        "CertificateSigningRequest" => signing_request::stamp_conditions(new, old, ctx.now),
        "PersistentVolume" => persistent_volume::stamp_phase_transition(new, old, ctx.now),
        "ResourceQuota" if new["spec"] != old["spec"] => set_quota_status(registry, new, ctx),
        _ => {}
    }
}

fn set_quota_status(registry: &Registry, quota: &mut Value, ctx: &Context<'_>) {
    let namespace = meta_text(quota, "namespace").to_string();
    quota["status"] = resource_quota::recount(quota, &namespace, registry, ctx.now);
}

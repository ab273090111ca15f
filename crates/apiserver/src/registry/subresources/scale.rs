//! scale: the replicas of a workload as an autoscaling/v1 Scale.

use http::HeaderMap;
use orlop_api::autoscaling::scale;
use orlop_api::{Cursor, KindDef, Problems, Status, Value};

use crate::custom;
use crate::registry::body::{self, BodyType};
use crate::registry::create::{check_name, meta_text};
use crate::registry::patch::Patch;
use crate::registry::update::Endpoint;
use crate::registry::{Context, Registry, VerbResult};

/// A scale changes the spec of its parent by the parent's own rules.
const SCALE: Endpoint = Endpoint {
    subresource: "scale",
    ..Endpoint::MAIN
};

impl Registry {
    pub async fn scale(
        &self,
        kind: &'static KindDef,
        bytes: &[u8],
        headers: &HeaderMap,
        ctx: &Context<'_>,
    ) -> Result<VerbResult, Status> {
        let wanted = BodyType::new("autoscaling", "v1", "Scale", "autoscaling/v1.Scale");
        let outcome = match ctx.info.verb {
            "get" => {
                let item = self.find(kind, &ctx.info.namespace, &ctx.info.name)?;
                let item = self.present(kind, item).await?;
                return Ok(VerbResult::ok(scale_of(kind, &self.value_of(&item))?));
            }
            "update" => {
                let scale = body::decode(bytes, headers, &wanted, ctx)?;
                check_name(&scale, &ctx.info.name)?;
                self.change(kind, &SCALE, ctx, &|old| scaled(kind, old, &scale)).await?
            }
            "patch" => {
                let patch = Patch::parse(bytes, headers)?;
                let patched = |old: &Value| -> Result<Value, Status> {
                    scaled(kind, old, &patch.patched(&scale_of(kind, old)?, &wanted, ctx)?)
                };
                self.change(kind, &SCALE, ctx, &patched).await?
            }
            _ => return Err(Status::method_not_allowed()),
        };
        let object = match outcome {
            VerbResult::Stored { item, .. } => self.value_of(&item),
            VerbResult::Value { value, .. } => value,
        };
        Ok(VerbResult::ok(scale_of(kind, &object)?))
    }
}

/// Where a custom kind has its replicas, if it says so.
pub(crate) fn scale_of(kind: &KindDef, object: &Value) -> Result<Value, Status> {
    let version = custom::schema_of(kind);
    match version.as_ref().and_then(|version| version.scale_paths()) {
        Some(paths) => paths.get_scale(object).map_err(Status::internal),
        None => Ok(scale::scale_of(kind, object)),
    }
}

pub(crate) fn scaled(kind: &KindDef, old: &Value, scale: &Value) -> Result<Value, Status> {
    let mut new = old.clone();
    let mut problems = Problems::default();
    let version = custom::schema_of(kind);
    match version.as_ref().and_then(|version| version.scale_paths()) {
        Some(paths) => {
            problems.non_negative(&Cursor::root(scale).at("spec").at("replicas"));
            if problems.is_empty() {
                paths.set_scale(&mut new, scale).map_err(Status::internal)?;
            }
        }
        None => scale::apply_scale(&mut new, scale, &mut problems),
    }
    if !problems.is_empty() {
        return Err(Status::invalid(
            "autoscaling",
            "Scale",
            meta_text(old, "name"),
            &problems,
        ));
    }
    let metadata = new["metadata"].as_object_mut().expect("stored objects have metadata");
    // The revision named in the Scale is the one the client had seen of the object.
    match meta_text(scale, "resourceVersion") {
        "" => metadata.remove("resourceVersion"),
        revision => metadata.insert("resourceVersion".into(), revision.into()),
    };
    let uid = meta_text(scale, "uid");
    if !uid.is_empty() {
        new["metadata"]["uid"] = uid.into();
    }
    Ok(new)
}

//! The list of volumes: names, one source each.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::Read;
use super::volume_sources::{self, SOURCES};
use crate::field::{Cursor, Problems};
use crate::names;

/// Volumes by name. Only good ones: a mount of another is reported as not found, as upstream does.
pub(super) type Named<'a> = HashMap<&'a str, &'a Value>;

pub(super) fn validate<'a>(spec: &Cursor<'a>, pod: Option<&Cursor<'_>>, p: &mut Problems) -> Named<'a> {
    let list = spec.list("volumes");
    let pod_name = pod.map_or("", |metadata| metadata.text("name"));
    let claims_made = claims_made(list, pod_name);
    let mut good = Named::with_capacity(list.len());
    for volume in spec.each("volumes") {
        let before = p.count();
        let name = volume.text("name");
        source(&volume, name, pod, p);
        if name.is_empty() {
            p.required(&volume.at("name"), "");
        } else {
            let problems = names::dns_label(name);
            if !problems.is_empty() {
                p.invalid_each(&volume.at("name"), problems);
            }
        }
        if good.contains_key(name) {
            p.duplicate(&volume.at("name"));
        }
        if p.count() == before
            && let Some(value) = volume.value()
        {
            good.insert(name, value);
        }
        if let Some(claim) = volume
            .given("persistentVolumeClaim")
            .filter(|_| !claims_made.is_empty())
            && claims_made.contains(claim.text("claimName"))
        {
            let detail = "must not reference a PVC that gets created for an ephemeral volume";
            p.invalid(&claim.at("claimName"), detail);
        }
    }
    good
}

/// The claims that will be made for ephemeral volumes, as far as the pod's name is known.
fn claims_made(volumes: &[Value], pod_name: &str) -> HashSet<String> {
    let named = volumes
        .iter()
        .filter(|v| !pod_name.is_empty() && v.get("ephemeral").is_some());
    let name = |v: &Value| v.get("name").and_then(Value::as_str).unwrap_or("").to_string();
    named.map(|v| format!("{pod_name}-{}", name(v))).collect()
}

fn source(volume: &Cursor<'_>, name: &str, pod: Option<&Cursor<'_>>, p: &mut Problems) {
    let fields = volume.value().and_then(Value::as_object);
    let given = fields
        .into_iter()
        .flatten()
        .filter(|(k, v)| *k != "name" && !v.is_null());
    let several = match given.count() {
        0 => return p.required(volume, "must specify a volume type"),
        n => n > 1,
    };
    let mut given = SOURCES
        .iter()
        .filter_map(|(k, check)| Some((*k, volume.given(k)?, check)));
    let Some((kind, source, check)) = given.next() else {
        return;
    };
    check(&source, pod.is_some(), p);
    if kind == "ephemeral" {
        claim_name(volume, name, pod, p);
    }
    if several {
        for (_, surplus, _) in given {
            p.forbidden(&surplus, "may not specify more than 1 volume type");
        }
    }
    if let Some(iscsi) = volume.given("iscsi") {
        volume_sources::iscsi_name_length(volume, &iscsi, p);
    }
}

/// The claim that will be made is named after pod and volume, as far as their names are known.
fn claim_name(volume: &Cursor<'_>, name: &str, pod: Option<&Cursor<'_>>, p: &mut Problems) {
    let pod_name = pod.map_or("", |metadata| metadata.text("name"));
    if pod_name.is_empty() || name.is_empty() {
        return;
    }
    let claim = format!("{pod_name}-{name}");
    for problem in names::dns_subdomain(&claim) {
        p.invalid(&volume.at("name"), format!("PVC name {claim:?}: {problem}"));
    }
}

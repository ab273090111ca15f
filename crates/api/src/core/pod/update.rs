//! What may change in a pod that exists: little by way of the pod itself, ephemeral containers and resources by way of
//! their own endpoints.

use serde_json::{Value, json};

use super::equal::{diff, same, same_at};
use super::keep_metadata;
use crate::core::pod_spec::{self, MIRROR_POD, Read};
use crate::field::{Cursor, Problems};
use crate::kind::copy_member;
use crate::names;
use crate::resources;

const MAX_DEADLINE: i64 = i32::MAX as i64;

const UPDATABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
                         `spec.tolerations` (only additions to existing tolerations),\
                         `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// An update of the pod itself.
pub(super) fn validate(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    annotations(new, old, p);
    let (spec, old_spec) = (new.at("spec"), old.at("spec"));
    for list in ["containers", "initContainers"] {
        if spec.list(list).len() != old_spec.list(list).len() {
            return p.forbidden(&spec.at(list), "pod updates may not add or remove containers");
        }
    }
    if !deadline(&spec, &old_spec, p) {
        return;
    }
    only_added_tolerations(&spec, &old_spec, p);
    only_removed_gates(&spec, &old_spec, p);
    if !same(spec.value(), old_spec.value()) {
        rest_is_same(&spec, &old_spec, p);
    }
}

/// Annotations that are fixed for life: of mirror pods, and AppArmor profiles.
pub(super) fn annotations(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let (new, old) = (
        new.at("metadata").at("annotations"),
        old.at("metadata").at("annotations"),
    );
    let special = |key: &str| match key {
        MIRROR_POD => Some("mirror pod annotation"),
        key if key.starts_with(pod_spec::APP_ARMOR_PREFIX) => Some("AppArmor annotations"),
        _ => None,
    };
    for (map, other, what) in [(&old, &new, "remove or update"), (&new, &old, "add")] {
        let Some(map) = map.value().and_then(Value::as_object) else {
            continue;
        };
        for (key, value) in map {
            let Some(name) = special(key) else { continue };
            let there = other.raw(key);
            let wrong = if what == "add" {
                there.is_none()
            } else {
                there != Some(value)
            };
            if wrong {
                let at = Cursor::new(None, new.path().key(key));
                p.forbidden(&at, format!("may not {what} {name}"));
            }
        }
    }
}

/// The deadline may be set or shortened. False if it is so wrong that there is no point in looking further.
fn deadline(spec: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) -> bool {
    let at = spec.at("activeDeadlineSeconds");
    let before = old.number("activeDeadlineSeconds");
    match (at.as_i64(), before) {
        (Some(n), _) if !(0..=MAX_DEADLINE).contains(&n) => {
            p.invalid_each(&at, names::in_range(n, 0, MAX_DEADLINE));
            return false;
        }
        (Some(n), Some(before)) if before < n => {
            p.invalid(&at, "must be less than or equal to previous value");
            return false;
        }
        (None, Some(_)) => p.invalid(&at, "must not update from a positive integer to nil value"),
        _ => {}
    }
    true
}

fn without_seconds(toleration: &Value) -> Value {
    let mut toleration = toleration.clone();
    if let Some(map) = toleration.as_object_mut() {
        map.remove("tolerationSeconds");
    }
    toleration
}

fn only_added_tolerations(spec: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let (new, before) = (spec.list("tolerations"), old.list("tolerations"));
    if new == before {
        return;
    }
    let new: Vec<Value> = new.iter().map(without_seconds).collect();
    if !before.iter().all(|t| new.contains(&without_seconds(t))) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        p.forbidden(&spec.at("tolerations"), detail);
    }
}

fn only_removed_gates(spec: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    for gate in spec.each("schedulingGates") {
        let name = gate.text("name");
        if !old
            .list("schedulingGates")
            .iter()
            .any(|g| super::text(g, "/name") == name)
        {
            let detail = format!("only deletion is allowed, but found new scheduling gate '{name}'");
            p.forbidden(&gate.at("name"), detail);
        }
    }
}

/// Everything but what may change, compared.
fn rest_is_same(spec: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let (Some(new_spec), Some(old_spec)) = (spec.value(), old.value()) else {
        return;
    };
    let mut munged = new_spec.clone();
    for list in ["containers", "initContainers"] {
        let containers = munged.get_mut(list).and_then(Value::as_array_mut);
        for (container, before) in containers.into_iter().flatten().zip(old.list(list)) {
            copy_member(container, before, "image");
        }
    }
    for field in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        copy_member(&mut munged, old_spec, field);
    }
    if old.number("terminationGracePeriodSeconds").is_some_and(|n| n < 0)
        && spec.number("terminationGracePeriodSeconds") == Some(1)
    {
        copy_member(&mut munged, old_spec, "terminationGracePeriodSeconds");
    }
    if !old.list("schedulingGates").is_empty() {
        narrowed(spec, old, &mut munged, p);
    }
    if !same(Some(&munged), Some(old_spec)) {
        let detail = format!(
            "pod updates may not change fields other than {UPDATABLE}\n{}",
            diff(old_spec, &munged)
        );
        p.forbidden(spec, detail);
    }
}

/// While a pod is gated, the nodes it may go to can still be narrowed down.
fn narrowed(spec: &Cursor<'_>, old: &Cursor<'_>, munged: &mut Value, p: &mut Problems) {
    let Some(old_spec) = old.value() else { return };
    if !same(spec.raw("nodeSelector"), old.raw("nodeSelector")) {
        let before = old.raw("nodeSelector").and_then(Value::as_object);
        let kept = |(k, v): (&String, &Value)| spec.raw("nodeSelector").and_then(|s| s.get(k)) == Some(v);
        if !before.into_iter().flatten().all(kept) {
            let detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
            p.invalid(&spec.at("nodeSelector"), detail);
        }
        copy_member(munged, old_spec, "nodeSelector");
    }
    let [new, before] = [spec, old].map(|spec| spec.at("affinity").at("nodeAffinity"));
    if same(new.value(), before.value()) {
        return;
    }
    for field in [
        "requiredDuringSchedulingIgnoredDuringExecution",
        "requiredDuringSchedulingRequiredDuringExecution",
    ] {
        only_narrower_terms(&new.at(field), &before.at(field), p);
    }
    match (munged.get_mut("affinity"), old.has("affinity"), before.value()) {
        (None, _, Some(before)) => munged["affinity"] = json!({"nodeAffinity": before}),
        (Some(affinity), had_affinity, _) => {
            let only_nodes = affinity
                .as_object()
                .is_some_and(|a| a.keys().all(|k| k == "nodeAffinity"));
            if !had_affinity && only_nodes {
                copy_member(munged, old_spec, "affinity");
            } else {
                copy_member(affinity, old.raw("affinity").unwrap_or(&Value::Null), "nodeAffinity");
            }
        }
        (None, _, None) => {}
    }
}

/// Terms are alternatives, so none may come or go; within a term, requirements may be added.
fn only_narrower_terms(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let before: Vec<Cursor<'_>> = old.at("nodeSelectorTerms").items().collect();
    let terms = new.at("nodeSelectorTerms");
    if before.is_empty() {
        return;
    }
    if before.len() != terms.len() {
        return p.invalid(
            &terms,
            "no additions/deletions to non-empty NodeSelectorTerms list are allowed",
        );
    }
    for (term, before) in terms.items().zip(before) {
        let parts = ["matchExpressions", "matchFields"];
        let was_empty = parts.iter().all(|part| before.list(part).is_empty());
        let narrower = parts.iter().all(|part| {
            let (new, old) = (term.list(part), before.list(part));
            new.starts_with(old) && (!was_empty || new.is_empty())
        });
        if !narrower {
            p.invalid(&term, "only additions are allowed (no mutations or deletions)");
        }
    }
}

fn is_mirror(pod: &Cursor<'_>) -> bool {
    pod.at("metadata")
        .raw("annotations")
        .is_some_and(|a| a.get(MIRROR_POD).is_some())
}

/// Refuses the request as a whole: nothing else about it matters.
fn refuse(p: &mut Problems, detail: &str) {
    p.clear();
    p.forbidden(&pod_spec::whole_pod(), detail);
}

/// Readies an update through `ephemeralcontainers`: nothing but that list changes.
pub fn prepare_ephemeral(new: &mut Value, old: &Value) {
    let given = new.get("spec").cloned().unwrap_or_default();
    for part in ["spec", "status"] {
        copy_member(new, old, part);
    }
    keep_metadata(new, old);
    if let Some(spec) = pod_spec::ensure_object(new, "spec") {
        copy_member(spec, &given, "ephemeralContainers");
    }
}

/// An update through `ephemeralcontainers`, instead of `validate` and `validate_update`: containers may be added, but
/// those that are there stay as they are.
pub fn validate_ephemeral_containers_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    super::validate(new, p);
    annotations(new, old, p);
    if is_mirror(old) {
        return refuse(p, "static pods do not support ephemeral containers");
    }
    let (spec, old_spec) = (new.at("spec"), old.at("spec"));
    let at = spec.at("ephemeralContainers");
    for before in old_spec.list("ephemeralContainers") {
        let name = super::text(before, "/name");
        match spec
            .list("ephemeralContainers")
            .iter()
            .rfind(|c| super::text(c, "/name") == name)
        {
            None => p.forbidden(
                &at,
                format!("existing ephemeral containers {name:?} may not be removed\n"),
            ),
            Some(now) if !same(Some(now), Some(before)) => {
                let detail = format!(
                    "existing ephemeral containers {name:?} may not be changed\n{}",
                    diff(before, now)
                );
                p.forbidden(&at, detail);
            }
            Some(_) => {}
        }
    }
}

/// Readies an update through `resize`: nothing but resources and resize policies changes. If containers were added,
/// removed, renamed or reordered, the request is left as it is for validation to refuse.
pub fn prepare_resize(new: &mut Value, old: &Value) {
    let list = |pod: &Value, name: &str| -> Vec<Value> {
        pod.pointer(&format!("/spec/{name}"))
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default()
    };
    let lists = ["containers", "initContainers"];
    if lists.iter().any(|name| list(new, name).len() != list(old, name).len()) {
        return;
    }
    let merged = lists.map(|name| {
        let (given, mut kept) = (list(new, name), list(old, name));
        if given.iter().zip(&kept).any(|(a, b)| a.get("name") != b.get("name")) {
            return given;
        }
        for (container, given) in kept.iter_mut().zip(&given) {
            for field in ["resources", "resizePolicy"] {
                copy_member(container, given, field);
            }
        }
        kept
    });
    let given = new.get("spec").cloned().unwrap_or_default();
    for part in ["spec", "status"] {
        copy_member(new, old, part);
    }
    keep_metadata(new, old);
    let Some(spec) = pod_spec::ensure_object(new, "spec") else {
        return;
    };
    copy_member(spec, &given, "resources");
    for (name, containers) in lists.into_iter().zip(merged).filter(|(_, list)| !list.is_empty()) {
        spec[name] = Value::Array(containers);
    }
}

/// An update through `resize`, instead of `validate` and `validate_update`: cpu and memory may change, nothing may be
/// taken away, and the QoS class stays.
pub fn validate_resize(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    super::validate(new, p);
    if is_mirror(old) {
        return refuse(p, "static pods cannot be resized");
    }
    let (spec, old_spec) = (new.at("spec"), old.at("spec"));
    if old_spec.given("os").is_some_and(|os| os.text("name") == "windows") {
        return refuse(p, "windows pods cannot be resized");
    }
    let (Some(new_pod), Some(old_pod)) = (new.value(), old.value()) else {
        return;
    };
    let class = match super::text(old_pod, "/status/qosClass") {
        "" => resources::qos_class(old_pod),
        class => class,
    };
    if class != resources::qos_class(new_pod) {
        let shown = super::text(new_pod, "/status/qosClass").into();
        p.invalid_value(
            spec.path(),
            &shown,
            "Pod QOS Class may not change as a result of resizing",
        );
    }
    if !node_can_resize(old_pod) {
        p.forbidden(&spec, "Pod running on node without support for resize");
    }
    pod_level_resize(&spec, &old_spec, p);
    let before = p.count();
    containers_in_order(&spec, &old_spec, p);
    if p.count() == before {
        containers_resize(&spec, &old_spec, p);
    }
    if p.is_empty() && !same(Some(&masked(&spec, &old_spec)), old_spec.value()) {
        p.forbidden(&spec, "only cpu and memory resources are mutable");
    }
}

/// Kubelets that can resize report the resources of running containers.
fn node_can_resize(pod: &Value) -> bool {
    let statuses = pod.pointer("/status/containerStatuses").and_then(Value::as_array);
    let running = statuses
        .into_iter()
        .flatten()
        .find(|s| s.pointer("/state/running").is_some());
    running.is_none_or(|s| s.get("resources").is_some())
}

/// `new` with cpu and memory as in `old`.
fn mask_compute(new: Option<&Value>, old: Option<&Value>) -> Value {
    let mut masked = new.cloned().unwrap_or_else(|| json!({}));
    let none = Value::Null;
    for part in ["limits", "requests"] {
        let before = old.and_then(|r| r.get(part)).unwrap_or(&none);
        if let Some(list) = pod_spec::ensure_object(&mut masked, part) {
            for name in [resources::CPU, resources::MEMORY] {
                copy_member(list, before, name);
            }
        }
    }
    masked
}

fn masked(spec: &Cursor<'_>, old: &Cursor<'_>) -> Value {
    let mut masked = spec.value().cloned().unwrap_or_default();
    for list in ["containers", "initContainers"] {
        let containers = masked.get_mut(list).and_then(Value::as_array_mut);
        for (container, before) in containers.into_iter().flatten().zip(old.list(list)) {
            let masked = mask_compute(container.get("resources"), before.get("resources"));
            if let Some(container) = container.as_object_mut() {
                container.insert("resources".into(), masked);
            }
        }
    }
    if let Some(own) = spec.raw("resources") {
        let compute = mask_compute(Some(own), old.raw("resources"));
        if let Some(masked) = masked.as_object_mut() {
            masked.insert("resources".into(), compute);
        }
    }
    masked
}

/// Something that had a request or limit has none any more.
fn removed(new: Option<&Value>, old: Option<&Value>, part: &str) -> bool {
    let list = |r: Option<&Value>| {
        r.and_then(|r| r.get(part))
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default()
    };
    let (new, old) = (list(new), list(old));
    old.keys().any(|name| !new.contains_key(name))
}

fn pod_level_resize(spec: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let (new, before) = (spec.raw("resources"), old.raw("resources"));
    let is_set = |r: Option<&Value>| {
        ["limits", "requests"].iter().any(|part| {
            r.and_then(|r| r.get(part))
                .and_then(Value::as_object)
                .is_some_and(|list| !list.is_empty())
        })
    };
    if !is_set(new) && !is_set(before) {
        return;
    }
    let at = spec.at("resources");
    if before.is_some() && new.is_none() {
        return p.forbidden(&at, "pod-level resources cannot be removed");
    }
    for part in ["requests", "limits"] {
        if removed(new, before, part) {
            p.forbidden(&at.at(part), format!("pod-level resource {part} cannot be removed"));
        }
    }
    if !same_at("resources", Some(&mask_compute(new, before)), before) {
        p.forbidden(spec, "only cpu and memory resources are mutable at pod-level");
    }
}

fn containers_in_order(spec: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    for list in ["containers", "initContainers"] {
        if spec.list(list).len() != old.list(list).len() {
            p.forbidden(&spec.at(list), format!("{list} may not be added or removed on resize"));
            continue;
        }
        for (container, before) in spec.each(list).zip(old.list(list)) {
            if container.text("name") != super::text(before, "/name") {
                p.forbidden(
                    &container.at("name"),
                    format!("{list} may not be renamed or reordered on resize"),
                );
            }
        }
    }
}

fn containers_resize(spec: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    for list in ["initContainers", "containers"] {
        for (container, before) in spec.each(list).zip(old.list(list)) {
            let (new, old_resources) = (container.raw("resources"), before.get("resources"));
            for part in ["requests", "limits"] {
                if removed(new, old_resources, part) {
                    let at = container.at("resources").at(part);
                    p.forbidden(&at, format!("resource {part} cannot be removed"));
                }
            }
            if same(container.value(), Some(before)) {
                continue;
            }
            let mut masked = container.value().cloned().unwrap_or_default();
            let compute = mask_compute(new, old_resources);
            if let Some(masked) = masked.as_object_mut() {
                masked.insert("resources".into(), compute);
            }
            if !same(Some(&masked), Some(before)) {
                if list == "containers" {
                    p.forbidden(spec, "only cpu and memory resources are mutable");
                } else {
                    let detail = "only cpu and memory resources for init or sidecar containers are mutable";
                    p.forbidden(&container, detail);
                }
            }
            let restarts = |policy: &Value| super::text(policy, "/restartPolicy") == "RestartContainer";
            let once = list == "initContainers" && container.text("restartPolicy") != "Always";
            if once && container.list("resizePolicy").iter().any(restarts) {
                let detail = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
                p.forbidden(&container, detail);
            }
        }
    }
}

//! `clusterIP`, `clusterIPs`, `ipFamilies` and `ipFamilyPolicy`: four fields that say nearly the same, kept in step.
//!
//! Upstream: normalizeClusterIPs and initIPFamilyFields in pkg/registry/core/service/storage (v1.36).

use serde_json::{Value, json};

use super::{list, remove, text};
use crate::field::{Cursor, Path, Problems};
use crate::{fill, ip};

/// Fills `clusterIPs` from `clusterIP` for clients that only know the latter. Looks at no other field.
pub fn normalize(new: &mut Value, old: Option<&Value>) {
    let new = fill::member(new, "spec");
    let single = text(new, "clusterIP").to_string();
    let Some(old) = old else {
        if !single.is_empty() && list(new, "clusterIPs").is_empty() {
            new["clusterIPs"] = json!([single]);
        }
        return;
    };
    let empty = Value::Null;
    let old = old.get("spec").unwrap_or(&empty);
    let old_single = text(old, "clusterIP");
    if list(new, "clusterIPs").is_empty() && !list(old, "clusterIPs").is_empty() && single == old_single {
        new["clusterIPs"] = old["clusterIPs"].clone();
    }
    // The singular changed and the plural did not: it is the singular that is meant.
    if single != old_single && list(new, "clusterIPs") == list(old, "clusterIPs") {
        if single.is_empty() {
            remove(new, "clusterIPs");
        } else {
            new["clusterIPs"] = json!([single]);
        }
    }
}

/// Settles `ipFamilyPolicy` and `ipFamilies` for a cluster whose services have the given families (the default one
/// first): what is not said is inferred, what cannot be is refused. Run on creation and update, before addresses are
/// allocated: one per family.
pub fn init_families(service: &mut Value, old: Option<&Value>, cluster: &[&str], p: &mut Problems) {
    let empty = Value::Null;
    let old = old.map(|o| o.get("spec").unwrap_or(&empty));
    let spec = fill::member(service, "spec");
    if text(spec, "type") == "ExternalName" || old.is_some_and(|old| is_settled_preference(spec, old)) {
        return;
    }
    let selectorless = text(spec, "clusterIP") == "None"
        && spec
            .get("selector")
            .and_then(Value::as_object)
            .is_none_or(|s| s.is_empty());
    if spec.get("ipFamilyPolicy").is_none() {
        let inherited = old.and_then(|o| o.get("ipFamilyPolicy")).cloned();
        let fallback = if selectorless {
            "RequireDualStack"
        } else {
            "SingleStack"
        };
        spec["ipFamilyPolicy"] = inherited.unwrap_or_else(|| fallback.into());
    }
    let before = p.count();
    super::validation::validate_cluster_ips(&Cursor::new(Some(spec), spec_path()), p);
    if p.count() > before {
        return;
    }
    if let Some(old) = old {
        settle_release(spec, old, p);
    }
    check_single_stack(spec, p);
    infer_from_addresses(spec, cluster, p);
    if p.count() > before {
        return;
    }
    if !selectorless {
        check_configured(spec, cluster, p);
        if p.count() > before {
            return;
        }
    }
    complete_families(spec, cluster, selectorless);
}

fn spec_path() -> Path {
    Path::default().field("spec")
}

/// A service that prefers two families and is not being changed stays as it is, whatever the cluster has become.
fn is_settled_preference(spec: &Value, old: &Value) -> bool {
    let prefers = |s: &Value| text(s, "ipFamilyPolicy") == "PreferDualStack";
    prefers(spec)
        && (prefers(old) || old.get("ipFamilyPolicy").is_none())
        && text(spec, "type") == text(old, "type")
        && matches!(text(spec, "type"), "ClusterIP" | "NodePort" | "LoadBalancer")
        && ["clusterIPs", "ipFamilies"]
            .iter()
            .all(|f| list(spec, f) == list(old, f))
}

/// Going back to one family is said with the policy; the second address and family then go by themselves.
fn settle_release(spec: &mut Value, old: &Value, p: &mut Problems) {
    let single = text(spec, "ipFamilyPolicy") == "SingleStack";
    for (field, what) in [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")] {
        let (now, before) = (list(spec, field), list(old, field));
        if single {
            if now == before && now.len() > 1 {
                spec[field] = json!([now[0]]);
            }
        } else if !now.is_empty() && now.len() < before.len() {
            policy_problem(
                spec,
                format!("must be 'SingleStack' to release the secondary {what}"),
                p,
            );
        }
    }
}

fn check_single_stack(spec: &Value, p: &mut Problems) {
    if text(spec, "ipFamilyPolicy") != "SingleStack" {
        return;
    }
    for (field, what) in [("clusterIPs", "cluster IPs"), ("ipFamilies", "IP families")] {
        if list(spec, field).len() == 2 {
            let detail = format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified");
            policy_problem(spec, detail, p);
        }
    }
}

fn infer_from_addresses(spec: &mut Value, cluster: &[&str], p: &mut Problems) {
    let ips = list(spec, "clusterIPs").to_vec();
    for (i, address) in ips.iter().enumerate().skip(list(spec, "ipFamilies").len()) {
        let address = address.as_str().unwrap_or("");
        if address == "None" {
            break;
        }
        match ip::family(address) {
            Some(family) if cluster.contains(&family) => push_family(spec, family),
            family => {
                let detail = format!("{} is not configured on this cluster", family.unwrap_or("unknown"));
                p.invalid_value(&spec_path().field("clusterIPs").index(i), &json!(ips), detail);
            }
        }
    }
}

fn check_configured(spec: &Value, cluster: &[&str], p: &mut Problems) {
    if text(spec, "ipFamilyPolicy") == "RequireDualStack" && cluster.len() < 2 {
        policy_problem(
            spec,
            "this cluster is not configured for dual-stack services".to_string(),
            p,
        );
    }
    for (i, family) in list(spec, "ipFamilies").iter().enumerate() {
        if !cluster.iter().any(|c| family == c) {
            let path = spec_path().field("ipFamilies").index(i);
            p.invalid_value(&path, family, "not configured on this cluster");
        }
    }
}

fn complete_families(spec: &mut Value, cluster: &[&str], selectorless: bool) {
    if list(spec, "ipFamilies").is_empty() {
        push_family(spec, cluster.first().copied().unwrap_or("IPv4"));
    }
    let wants_two = text(spec, "ipFamilyPolicy") != "SingleStack" && (selectorless || cluster.len() == 2);
    if wants_two && list(spec, "ipFamilies").len() == 1 {
        let other = if spec["ipFamilies"][0] == "IPv4" {
            "IPv6"
        } else {
            "IPv4"
        };
        push_family(spec, other);
    }
}

fn push_family(spec: &mut Value, family: &str) {
    fill::empty(spec, "ipFamilies", json!([]));
    if let Some(families) = spec["ipFamilies"].as_array_mut() {
        families.push(family.into());
    }
}

fn policy_problem(spec: &Value, detail: String, p: &mut Problems) {
    let policy = spec.get("ipFamilyPolicy").unwrap_or(&Value::Null);
    p.invalid_value(&spec_path().field("ipFamilyPolicy"), policy, detail);
}

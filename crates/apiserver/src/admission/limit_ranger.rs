//! LimitRanger: containers that name no requests or limits get the namespace's; whatever is out of bounds is refused.
//! Upstream: plugin/pkg/admission/limitranger (v1.36).

use orlop_api::quantity::Quantity;
use orlop_api::resources::{self, PodResourceOptions, ResourceList};
use orlop_api::{Status, Value};

use super::{Change, Operation, Plugin, Review};

pub const PLUGIN: Plugin = Plugin {
    name: "LimitRanger",
    mutate: Some(mutate),
    validate: Some(validate),
};

const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// New pods and, since they may be resized, pods through that endpoint; new and growing claims.
fn applies(review: &Review<'_>) -> bool {
    let resized = review.kind.plural == "pods" && review.subresource == "resize";
    let claim = review.is("", "persistentvolumeclaims") && review.operation != Operation::Delete;
    review.kind.group.is_empty()
        && (claim || resized || (review.is("", "pods") && review.operation == Operation::Create))
}

fn limits(review: &Review<'_>) -> Vec<Value> {
    let ranges = review.lookup.list("limitranges", Some(&review.namespace));
    ranges
        .iter()
        .filter_map(|r| r.pointer("/spec/limits")?.as_array().cloned())
        .flatten()
        .collect()
}

fn mutate(review: &Review<'_>, pod: &mut Value, _: Option<&Value>) -> Result<(), Status> {
    if !applies(review) || review.kind.plural != "pods" {
        return Ok(());
    }
    let mut set = vec![];
    for limit in limits(review).iter().filter(|l| l["type"] == "Container") {
        for (list, title) in [("containers", "container"), ("initContainers", "init container")] {
            for container in pod["spec"]
                .get_mut(list)
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                set.extend(fill(container, limit, title));
            }
        }
    }
    if !set.is_empty() && review.operation == Operation::Create {
        pod["metadata"]["annotations"][ANNOTATION] = format!("LimitRanger plugin set: {}", set.join("; ")).into();
    }
    Ok(())
}

/// Fills in what the container does not say; tells what it was.
fn fill(container: &mut Value, limit: &Value, title: &str) -> Vec<String> {
    let name = container["name"].as_str().unwrap_or("").to_string();
    let mut told = vec![];
    for (side, source, word) in [
        ("requests", "defaultRequest", "request"),
        ("limits", "default", "limit"),
    ] {
        let mut set = vec![];
        for (resource, quantity) in limit[source].as_object().into_iter().flatten() {
            if container
                .pointer(&format!("/resources/{side}"))
                .and_then(|r| r.get(resource))
                .is_none()
            {
                container["resources"][side][resource.as_str()] = quantity.clone();
                set.push(resource.clone());
            }
        }
        if !set.is_empty() {
            set.sort();
            told.push(format!("{} {word} for {title} {name}", set.join(", ")));
        }
    }
    told
}

fn validate(review: &Review<'_>, object: Option<&Value>, _: Option<&Value>) -> Result<Vec<Change>, Status> {
    let Some(object) = object.filter(|_| applies(review)) else {
        return Ok(vec![]);
    };
    let mut complaints = vec![];
    for limit in limits(review) {
        let kind = limit["type"].as_str().unwrap_or("");
        match (kind, review.kind.plural) {
            ("Container", "pods") => {
                for list in ["containers", "initContainers"] {
                    for container in object["spec"][list].as_array().into_iter().flatten() {
                        let side = |name: &str| resources::list(container["resources"].get(name));
                        check(&limit, kind, &side("requests"), &side("limits"), &mut complaints);
                    }
                }
            }
            ("Pod", "pods") => {
                let options = PodResourceOptions {
                    exclude_overhead: true,
                    ..Default::default()
                };
                let (requests, limits) = (
                    resources::pod_requests(object, options),
                    resources::pod_limits(object, options),
                );
                check(&limit, kind, &requests, &limits, &mut complaints);
            }
            ("PersistentVolumeClaim", "persistentvolumeclaims") => {
                let requests = resources::list(object.pointer("/spec/resources/requests"));
                check_claim(&limit, kind, &requests, &mut complaints);
            }
            _ => {}
        }
    }
    match complaints.as_slice() {
        [] => Ok(vec![]),
        [one] => Err(review.forbidden(one)),
        many => Err(review.forbidden(format!("[{}]", many.join(", ")))),
    }
}

fn check(limit: &Value, kind: &str, requests: &ResourceList, limits: &ResourceList, out: &mut Vec<String>) {
    for (name, enforced) in resources::list(limit.get("min")) {
        let shown = enforced.canonical();
        match (requests.get(&name), limits.get(&name)) {
            (None, _) => out.push(format!(
                "minimum {name} usage per {kind} is {shown}.  No request is specified"
            )),
            (Some(r), _) if *r < enforced => {
                out.push(format!(
                    "minimum {name} usage per {kind} is {shown}, but request is {}",
                    r.canonical()
                ));
            }
            (_, Some(l)) if *l < enforced => {
                out.push(format!(
                    "minimum {name} usage per {kind} is {shown}, but limit is {}",
                    l.canonical()
                ));
            }
            _ => {}
        }
    }
    for (name, enforced) in resources::list(limit.get("max")) {
        let shown = enforced.canonical();
        match (requests.get(&name), limits.get(&name)) {
            (_, None) => out.push(format!(
                "maximum {name} usage per {kind} is {shown}.  No limit is specified"
            )),
            (_, Some(l)) if *l > enforced => {
                out.push(format!(
                    "maximum {name} usage per {kind} is {shown}, but limit is {}",
                    l.canonical()
                ));
            }
            (Some(r), _) if *r > enforced => {
                out.push(format!(
                    "maximum {name} usage per {kind} is {shown}, but request is {}",
                    r.canonical()
                ));
            }
            _ => {}
        }
    }
    for (name, enforced) in resources::list(limit.get("maxLimitRequestRatio")) {
        out.extend(ratio(&name, kind, &enforced, requests.get(&name), limits.get(&name)));
    }
}

fn ratio(
    name: &str,
    kind: &str,
    enforced: &Quantity,
    request: Option<&Quantity>,
    limit: Option<&Quantity>,
) -> Option<String> {
    let told = format!(
        "{name} max limit to request ratio per {kind} is {}",
        enforced.canonical()
    );
    let Some(request) = request.filter(|r| !r.is_zero()) else {
        return Some(format!("{told}, but no request is specified or request is 0"));
    };
    let Some(limit) = limit.filter(|l| !l.is_zero()) else {
        return Some(format!("{told}, but no limit is specified or limit is 0"));
    };
    let observed = limit.as_f64() / request.as_f64();
    (observed > enforced.as_f64()).then(|| format!("{told}, but provided ratio is {observed:.6}"))
}

fn check_claim(limit: &Value, kind: &str, requests: &ResourceList, out: &mut Vec<String>) {
    for (bound, word, breaks) in [
        ("min", "minimum", (|r, e| r < e) as fn(&Quantity, &Quantity) -> bool),
        ("max", "maximum", |r, e| r > e),
    ] {
        for (name, enforced) in resources::list(limit.get(bound)) {
            let told = format!("{word} {name} usage per {kind} is {}", enforced.canonical());
            match requests.get(&name) {
                None => out.push(format!("{told}.  No request is specified")),
                Some(r) if breaks(r, &enforced) => out.push(format!("{told}, but request is {}", r.canonical())),
                Some(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn complaints(limit: Value, requests: Value, limits: Value) -> Vec<String> {
        let mut out = vec![];
        check(
            &limit,
            "Container",
            &resources::list(Some(&requests)),
            &resources::list(Some(&limits)),
            &mut out,
        );
        out
    }

    #[test]
    fn bounds_are_told_as_kubernetes_tells_them() {
        let limit = json!({"min": {"cpu": "100m"}, "max": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "2"}});
        assert!(complaints(limit.clone(), json!({"cpu": "500m"}), json!({"cpu": "1"})).is_empty());
        assert_eq!(
            complaints(limit.clone(), json!({"cpu": "50m"}), json!({"cpu": "2"})),
            [
                "minimum cpu usage per Container is 100m, but request is 50m",
                "maximum cpu usage per Container is 1, but limit is 2",
                "cpu max limit to request ratio per Container is 2, but provided ratio is 40.000000",
            ]
        );
        assert_eq!(
            complaints(limit, json!({}), json!({})),
            [
                "minimum cpu usage per Container is 100m.  No request is specified",
                "maximum cpu usage per Container is 1.  No limit is specified",
                "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0",
            ]
        );
    }

    #[test]
    fn defaults_fill_only_gaps() {
        let limit =
            json!({"type": "Container", "default": {"cpu": "1", "memory": "1Gi"}, "defaultRequest": {"cpu": "500m"}});
        let mut container = json!({"name": "c", "resources": {"limits": {"memory": "2Gi"}}});
        let told = fill(&mut container, &limit, "container");
        assert_eq!(told, ["cpu request for container c", "cpu limit for container c"]);
        let wanted = json!({"limits": {"cpu": "1", "memory": "2Gi"}, "requests": {"cpu": "500m"}});
        assert_eq!(container["resources"], wanted);
    }
}

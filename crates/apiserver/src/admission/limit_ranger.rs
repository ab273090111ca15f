//! LimitRanger: containers that name no requests or limits get the namespace's; whatever is out of bounds is refused.
//! Upstream: plugin/pkg/admission/limitranger (v1.36).

use orlop_api::quantity::Quantity;
use orlop_api::resources::{self, PodResourceOptions, ResourceList};
use orlop_api::{Status, Value};
use serde_json::Map;

use super::{Change, Operation, Plugin, Review, together};
use crate::lookup::{items, text};

pub(super) const PLUGIN: Plugin = Plugin {
    name: "LimitRanger",
    mutate: Some(mutate),
    validate: Some(validate),
};

const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// New pods and, since they may be resized, pods through that endpoint; new and changed claims. What is on its way out
/// is left alone.
fn applies(review: &Review<'_>, old: Option<&Value>) -> bool {
    let going = old.is_some_and(|o| o["metadata"]["deletionTimestamp"].is_string());
    let made = review.is("", "pods") && review.operation == Operation::Create;
    let resized = review.is_sub("", "pods", "resize") && review.operation == Operation::Update;
    let claim = review.is("", "persistentvolumeclaims") && review.operation != Operation::Delete;
    !going && (made || resized || claim)
}

fn limits(range: &Value) -> &[Value] {
    items(range, &["spec", "limits"])
}

fn mutate(review: &Review<'_>, pod: &mut Value, old: Option<&Value>) -> Result<(), Status> {
    if !applies(review, old) || review.kind.plural != "pods" {
        return Ok(());
    }
    for range in review.lookup.list("limitranges", Some(&review.namespace)) {
        let mut set = vec![];
        let (requests, bounds) = container_defaults(&range);
        for (list, title) in [("containers", "container"), ("initContainers", "init container")] {
            let containers = pod["spec"].get_mut(list).and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten() {
                set.extend(fill(container, "requests", &requests, "request", title));
                set.extend(fill(container, "limits", &bounds, "limit", title));
            }
        }
        if !set.is_empty() {
            pod["metadata"]["annotations"][ANNOTATION] = format!("LimitRanger plugin set: {}", set.join("; ")).into();
        }
    }
    Ok(())
}

/// What containers get that say nothing: requests and limits, of several rows the last word on each resource.
fn container_defaults(range: &Value) -> (Map<String, Value>, Map<String, Value>) {
    let rows = || limits(range).iter().filter(|l| l["type"] == "Container");
    let collect = |member: &str| -> Map<String, Value> {
        let lists = rows().filter_map(|l| l.get(member)?.as_object());
        lists.flatten().map(|(k, v)| (k.clone(), v.clone())).collect()
    };
    (collect("defaultRequest"), collect("default"))
}

/// Fills in what the container does not say; tells what it was.
fn fill(container: &mut Value, side: &str, defaults: &Map<String, Value>, word: &str, title: &str) -> Option<String> {
    let mut set = vec![];
    for (resource, quantity) in defaults {
        let said = container
            .pointer(&format!("/resources/{side}"))
            .and_then(|r| r.get(resource));
        if said.is_none() {
            container["resources"][side][resource.as_str()] = quantity.clone();
            set.push(resource.as_str());
        }
    }
    let name = text(container, &["name"]);
    (!set.is_empty()).then(|| format!("{} {word} for {title} {name}", set.join(", ")))
}

fn validate(review: &Review<'_>, object: Option<&Value>, old: Option<&Value>) -> Result<Vec<Change>, Status> {
    let Some(object) = object.filter(|_| applies(review, old)) else {
        return Ok(vec![]);
    };
    // The first range that something breaks is told in full.
    for range in review.lookup.list("limitranges", Some(&review.namespace)) {
        let complaints = match review.kind.plural {
            "pods" => check_pod(&range, object),
            _ => check_claim(&range, object),
        };
        if !complaints.is_empty() {
            return Err(review.forbidden(together(complaints)));
        }
    }
    Ok(vec![])
}

fn check_pod(range: &Value, pod: &Value) -> Vec<String> {
    let mut complaints = vec![];
    for limit in limits(range) {
        match text(limit, &["type"]) {
            "Container" => {
                for container in ["containers", "initContainers"]
                    .iter()
                    .flat_map(|list| items(pod, &["spec", list]))
                {
                    let side = |name: &str| resources::list(container["resources"].get(name));
                    check(limit, "Container", &side("requests"), &side("limits"), &mut complaints);
                }
            }
            "Pod" => {
                let (requests, limits) = pod_totals(pod);
                check(limit, "Pod", &requests, &limits, &mut complaints);
            }
            _ => {}
        }
    }
    complaints
}

/// The pod's own say on cpu and memory stands for that of its containers; overhead does not count.
fn pod_totals(pod: &Value) -> (ResourceList, ResourceList) {
    let options = PodResourceOptions::default();
    let over = |mut total: ResourceList, side: &str| {
        let own = resources::list(pod["spec"]["resources"].get(side));
        total.extend(
            own.into_iter()
                .filter(|(name, _)| matches!(name.as_str(), "cpu" | "memory")),
        );
        total
    };
    (
        over(resources::container_requests(pod, options), "requests"),
        over(resources::container_limits(pod, options), "limits"),
    )
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
    (observed * 1000.0 > enforced.milli_value() as f64).then(|| format!("{told}, but provided ratio is {observed:.6}"))
}

fn check_claim(range: &Value, claim: &Value) -> Vec<String> {
    let requests = resources::list(claim.pointer("/spec/resources/requests"));
    let mut complaints = vec![];
    for limit in limits(range).iter().filter(|l| l["type"] == "PersistentVolumeClaim") {
        for (name, enforced) in resources::list(limit.get("min")) {
            complaints.extend(bound(&name, "minimum", &enforced, requests.get(&name), |r, e| r < e));
        }
        for (name, enforced) in resources::list(limit.get("max")) {
            complaints.extend(bound(&name, "maximum", &enforced, requests.get(&name), |r, e| r > e));
        }
    }
    complaints
}

fn bound(
    name: &str,
    word: &str,
    enforced: &Quantity,
    request: Option<&Quantity>,
    breaks: fn(&Quantity, &Quantity) -> bool,
) -> Option<String> {
    let told = format!(
        "{word} {name} usage per PersistentVolumeClaim is {}",
        enforced.canonical()
    );
    match request {
        None => Some(format!("{told}.  No request is specified")),
        Some(r) if breaks(r, enforced) => Some(format!("{told}, but request is {}", r.canonical())),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixture::{Desk, told, with};
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

    fn range(name: &str, limits: Value) -> Value {
        json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"limits": limits}})
    }

    fn pod(containers: Value) -> Value {
        json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": {"containers": containers}})
    }

    #[test]
    fn defaults_fill_only_gaps() {
        let rows = json!([
            {"type": "Container", "default": {"cpu": "1", "memory": "1Gi"}, "defaultRequest": {"cpu": "1m"}},
            {"type": "Pod", "default": {"x": "1"}},
            {"type": "Container", "defaultRequest": {"cpu": "500m", "memory": "2Mi"}},
        ]);
        let desk = Desk::new().with("limitranges", range("r", rows));
        let mut given = pod(json!([{"name": "c", "resources": {"limits": {"memory": "2Gi"}}}]));
        given["spec"]["initContainers"] = json!([{"name": "i"}]);
        let created = desk.create(&PLUGIN, "pods", given.clone()).unwrap();
        assert_eq!(
            created["spec"]["containers"][0]["resources"],
            json!({"limits": {"cpu": "1", "memory": "2Gi"}, "requests": {"cpu": "500m", "memory": "2Mi"}})
        );
        assert_eq!(
            created["metadata"]["annotations"][ANNOTATION],
            "LimitRanger plugin set: cpu, memory request for container c; cpu limit for container c; \
             cpu, memory request for init container i; cpu, memory limit for init container i"
        );
        let again = desk.create(&PLUGIN, "pods", created.clone()).unwrap();
        assert_eq!(again, created);
        assert_eq!(
            desk.update(&PLUGIN, "pods", given.clone(), given.clone()).unwrap(),
            given
        );
        assert_ne!(
            desk.update(&PLUGIN, "pods/resize", given.clone(), given.clone())
                .unwrap(),
            given
        );
    }

    #[test]
    fn bounds_are_enforced_range_by_range() {
        let max = |kind: &str, cpu: &str| json!([{"type": kind, "max": {"cpu": cpu}}]);
        let desk = Desk::new()
            .with("limitranges", range("a", max("Container", "1")))
            .with("limitranges", range("b", max("Pod", "2")));
        let container = |cpu: &str| json!({"name": "c", "resources": {"limits": {"cpu": cpu}}});
        let (two, three) = (
            json!([container("1"), container("1")]),
            json!([container("1"), container("1"), container("1")]),
        );
        let refused = |why: &str| format!("pods \"p\" is forbidden: {why}");
        let per_container = "maximum cpu usage per Container is 1, but limit is 2";
        let per_pod = "maximum cpu usage per Pod is 2, but limit is 3";
        let cases = [
            (two, "ok".to_string()),
            (json!([container("2"), container("2")]), refused(per_container)),
            (
                json!([container("2"), {"name": "d"}]),
                refused(&format!(
                    "[{per_container}, maximum cpu usage per Container is 1.  No limit is specified]"
                )),
            ),
            (three, refused(per_pod)),
        ];
        for (containers, expected) in cases {
            let pod = pod(containers);
            assert_eq!(told(desk.create(&PLUGIN, "pods", pod.clone())), expected);
            assert_eq!(
                told(desk.update(&PLUGIN, "pods/resize", pod.clone(), pod.clone())),
                expected
            );
            assert_eq!(told(desk.update(&PLUGIN, "pods", pod.clone(), pod.clone())), "ok");
            let going = with(
                pod.clone(),
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            );
            assert_eq!(told(desk.update(&PLUGIN, "pods/resize", pod, going)), "ok");
        }
        let own = with(
            pod(json!([container("1")])),
            json!({"spec": {"resources": {"limits": {"cpu": "3"}}, "overhead": {"cpu": "5"}}}),
        );
        assert_eq!(told(desk.create(&PLUGIN, "pods", own)), refused(per_pod));
    }

    #[test]
    fn claims_have_bounds_too() {
        let rows = json!([{"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "2Gi"}}]);
        let desk = Desk::new().with("limitranges", range("r", rows));
        let claim = |size: &str| json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": {"resources": {"requests": {"storage": size}}}});
        let refused = |why: &str| format!("persistentvolumeclaims \"c\" is forbidden: {why}");
        let bare = json!({"metadata": {"name": "c", "namespace": "ns"}, "spec": {}});
        let unsaid = "[minimum storage usage per PersistentVolumeClaim is 1Gi.  No request is specified, \
            maximum storage usage per PersistentVolumeClaim is 2Gi.  No request is specified]";
        for (claim, expected) in [
            (claim("1Gi"), "ok".to_string()),
            (
                claim("512Mi"),
                refused("minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 512Mi"),
            ),
            (
                claim("3Gi"),
                refused("maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi"),
            ),
            (bare, refused(unsaid)),
        ] {
            assert_eq!(
                told(desk.create(&PLUGIN, "persistentvolumeclaims", claim.clone())),
                expected
            );
            let updated = desk.update(&PLUGIN, "persistentvolumeclaims", claim.clone(), claim.clone());
            assert_eq!(told(updated), expected);
            let status = desk.update(&PLUGIN, "persistentvolumeclaims/status", claim.clone(), claim);
            assert_eq!(told(status), "ok");
        }
    }
}

//! The metrics an autoscaler goes by: what may stand in `spec.metrics`, and how they are shown.
//!
//! Upstream: pkg/apis/autoscaling/validation and the printers of pkg/printers/internalversion (v1.36).

use serde_json::Value;

use crate::field::{Cursor, Problems};
use crate::quantity::Quantity;
use crate::{meta, names, printing, resources};

type Check = fn(&Cursor<'_>, &mut Problems);

/// Each metric source: the word in `type`, the field it goes with, what it demands. In the order in which they count
/// when there are several.
const SOURCES: [(&str, &str, Check); 5] = [
    ("Object", "object", validate_object),
    ("External", "external", validate_external),
    ("Pods", "pods", validate_pods),
    ("Resource", "resource", validate_resource),
    ("ContainerResource", "containerResource", validate_container_resource),
];

pub fn validate(metrics: &Cursor<'_>, p: &mut Problems) {
    for metric in metrics.items() {
        validate_one(&metric, p);
    }
}

fn validate_one(metric: &Cursor<'_>, p: &mut Problems) {
    let kind = metric.at("type");
    if kind.is_empty() {
        p.required(&kind, "must specify a metric source type");
    }
    let present: Vec<_> = SOURCES
        .iter()
        .filter(|(_, field, _)| metric.at(field).exists())
        .collect();
    if let Some((_, field, check)) = present.first() {
        check(&metric.at(field), p);
    }
    let wanted = SOURCES.iter().find(|(word, ..)| *word == kind.str());
    match wanted {
        None => p.not_supported(&kind, &SOURCES.map(|(word, ..)| word)),
        Some((_, field, _)) if !metric.at(field).exists() => {
            p.required(
                &metric.at(field),
                "must populate information for the given metric source",
            );
        }
        Some(_) => {}
    }
    if present.len() > 1 {
        for (word, field, _) in present {
            if *word != kind.str() {
                p.forbidden(&metric.at(field), "must populate the given metric source only");
            }
        }
    }
}

fn validate_object(source: &Cursor<'_>, p: &mut Problems) {
    validate_reference(&source.at("describedObject"), true, p);
    validate_identifier(&source.at("metric"), p);
    let target = source.at("target");
    validate_target(&target, p);
    if !target.at("value").exists() && !target.at("averageValue").exists() {
        p.required(
            &target.at("averageValue"),
            "must set either a target value or averageValue",
        );
    }
}

fn validate_external(source: &Cursor<'_>, p: &mut Problems) {
    validate_identifier(&source.at("metric"), p);
    let target = source.at("target");
    validate_target(&target, p);
    match (target.at("value").exists(), target.at("averageValue").exists()) {
        (false, false) => p.required(
            &target.at("averageValue"),
            "must set either a target value for metric or a per-pod target",
        ),
        (true, true) => p.forbidden(
            &target.at("value"),
            "may not set both a target value for metric and a per-pod target",
        ),
        _ => {}
    }
}

fn validate_pods(source: &Cursor<'_>, p: &mut Problems) {
    validate_identifier(&source.at("metric"), p);
    let target = source.at("target");
    validate_target(&target, p);
    if !target.at("averageValue").exists() {
        p.required(
            &target.at("averageValue"),
            "must specify a positive target averageValue",
        );
    }
}

fn validate_resource(source: &Cursor<'_>, p: &mut Problems) {
    if source.at("name").is_empty() {
        p.required(&source.at("name"), "must specify a resource name");
    }
    validate_resource_target(&source.at("target"), p);
}

fn validate_container_resource(source: &Cursor<'_>, p: &mut Problems) {
    let (name, container) = (source.at("name"), source.at("container"));
    if name.is_empty() {
        p.required(&name, "must specify a resource name");
    } else {
        validate_resource_name(&name, p);
    }
    if container.is_empty() {
        p.required(&container, "must specify a container");
    } else {
        p.invalid_each(&container, names::dns_label(container.str()));
    }
    validate_resource_target(&source.at("target"), p);
}

/// A resource that containers can ask for: a standard one, or an extended one with a domain.
fn validate_resource_name(c: &Cursor<'_>, p: &mut Problems) {
    let name = c.str();
    p.invalid_each(c, names::qualified_name(name));
    if !name.contains('/') {
        if !resources::is_standard_for_containers(name) {
            p.invalid(c, "must be a standard resource for containers");
        }
    } else if !resources::is_native(name) && !resources::is_extended(name) {
        p.invalid(c, "doesn't follow extended resource name standard");
    }
}

fn validate_resource_target(target: &Cursor<'_>, p: &mut Problems) {
    validate_target(target, p);
    match (
        target.at("averageUtilization").exists(),
        target.at("averageValue").exists(),
    ) {
        (false, false) => p.required(
            &target.at("averageUtilization"),
            "must set either a target raw value or a target utilization",
        ),
        (true, true) => p.forbidden(
            &target.at("averageValue"),
            "may not set both a target raw value and a target utilization",
        ),
        _ => {}
    }
}

fn validate_target(target: &Cursor<'_>, p: &mut Problems) {
    let kind = target.at("type");
    if kind.is_empty() {
        p.required(&kind, "must specify a metric target type");
    }
    if !matches!(kind.str(), "Utilization" | "Value" | "AverageValue") {
        meta::invalid_text(&kind, "must be either Utilization, Value, or AverageValue", p);
    }
    for field in ["value", "averageValue"] {
        let c = target.at(field);
        if c.as_str()
            .is_some_and(|s| Quantity::parse(s).is_ok_and(|q| q.sign() != 1))
        {
            p.invalid(&c, "must be positive");
        }
    }
    let utilization = target.at("averageUtilization");
    if utilization.as_i64().is_some_and(|n| n < 1) {
        p.invalid(&utilization, "must be greater than 0");
    }
}

fn validate_identifier(metric: &Cursor<'_>, p: &mut Problems) {
    let name = metric.at("name");
    if name.is_empty() {
        p.required(&name, "must specify a metric name");
    } else {
        p.invalid_each(&name, names::path_segment(name.str()));
    }
}

/// A `CrossVersionObjectReference`. The core group has no name, so it can be meant only where that is allowed.
pub fn validate_reference(reference: &Cursor<'_>, core_group: bool, p: &mut Problems) {
    for field in ["kind", "name"] {
        let c = reference.at(field);
        if c.is_empty() {
            p.required(&c, "");
        } else {
            p.invalid_each(&c, names::path_segment(c.str()));
        }
    }
    let version = reference.at("apiVersion");
    let text = version.str();
    let group = text.split_once('/').map_or("", |(group, _)| group);
    if text.matches('/').count() > 1 {
        p.invalid(&version, format!("unexpected GroupVersion string: {text}"));
    } else if group.is_empty() && !core_group {
        meta::invalid_text(&version, "apiVersion must specify API group", p);
    }
}

/// The TARGETS cell: current and wanted value of the first two metrics.
pub fn targets(specs: &[Value], statuses: &[Value]) -> String {
    const SHOWN: usize = 2;
    if specs.is_empty() {
        return "<none>".to_string();
    }
    let list: Vec<String> = specs
        .iter()
        .enumerate()
        .take(SHOWN)
        .map(|(i, spec)| target_text(spec, statuses.get(i)))
        .collect();
    match specs.len().saturating_sub(SHOWN) {
        0 => list.join(", "),
        more => format!("{} + {more} more...", list.join(", ")),
    }
}

fn target_text(spec: &Value, status: Option<&Value>) -> String {
    let Some((word, field, _)) = SOURCES.iter().find(|(word, ..)| spec["type"] == *word) else {
        return "<unknown type>".to_string();
    };
    let source = &spec[*field];
    let current = status.and_then(|s| s.get(*field)).map(|s| &s["current"]);
    let quantity = |v: &Value, name: &str| v[name].as_str().unwrap_or("<nil>").to_string();
    let percent = |v: &Value| v["averageUtilization"].as_i64().map(|n| format!("{n}%"));
    let unknown = || "<unknown>".to_string();
    let target = &source["target"];
    let average = target["averageValue"].is_string();
    match *word {
        "Resource" | "ContainerResource" => {
            let (now, wanted) = if average {
                (
                    current.map_or_else(unknown, |c| quantity(c, "averageValue")),
                    quantity(target, "averageValue"),
                )
            } else {
                (
                    current.and_then(percent).unwrap_or_else(unknown),
                    percent(target).unwrap_or_else(|| "<auto>".to_string()),
                )
            };
            format!("{}: {now}/{wanted}", printing::text(source, "/name"))
        }
        "Pods" => {
            let now = current.map_or_else(unknown, |c| quantity(c, "averageValue"));
            format!("{now}/{}", quantity(target, "averageValue"))
        }
        _ if average => {
            let now = current.and_then(|c| c["averageValue"].as_str());
            format!(
                "{}/{} (avg)",
                now.unwrap_or("<unknown>"),
                quantity(target, "averageValue")
            )
        }
        _ => {
            let now = current.map_or_else(unknown, |c| quantity(c, "value"));
            format!("{now}/{}", quantity(target, "value"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::found;
    use serde_json::json;

    fn cpu(target: Value) -> Value {
        json!({"type": "Resource", "resource": {"name": "cpu", "target": target}})
    }

    fn queue(target: Value) -> Value {
        json!({"type": "External", "external": {"metric": {"name": "queue"}, "target": target}})
    }

    fn ingress(target: Value) -> Value {
        json!({"type": "Object", "object": {"metric": {"name": "hits"}, "target": target,
            "describedObject": {"kind": "Ingress", "name": "main", "apiVersion": "networking.k8s.io/v1"}}})
    }

    fn pods(target: Value) -> Value {
        json!({"type": "Pods", "pods": {"metric": {"name": "packets"}, "target": target}})
    }

    fn container(name: &str, container: &str) -> Value {
        json!({"type": "ContainerResource", "containerResource": {"name": name, "container": container,
            "target": {"type": "Utilization", "averageUtilization": 50}}})
    }

    #[test]
    fn what_is_refused() {
        let both = json!({"type": "Pods", "resource": cpu(json!({"type": "Utilization", "averageUtilization": 5}))["resource"],
            "pods": pods(json!({"type": "AverageValue", "averageValue": "1"}))["pods"]});
        let supported = "\"ContainerResource\", \"External\", \"Object\", \"Pods\", \"Resource\"";
        for (metric, wanted) in [
            (cpu(json!({"type": "Utilization", "averageUtilization": 50})), String::new()),
            (queue(json!({"type": "Value", "value": "30"})), String::new()),
            (ingress(json!({"type": "Value", "value": "2k"})), String::new()),
            (pods(json!({"type": "AverageValue", "averageValue": "100m"})), String::new()),
            (container("memory", "c"), String::new()),
            (container("example.com/gpu", "c"), String::new()),
            (
                json!({"type": "Guess"}),
                format!("m[0].type: Unsupported value: \"Guess\": supported values: {supported}"),
            ),
            (
                json!({}),
                format!("m[0].type: Required value: must specify a metric source type\nm[0].type: Unsupported value: \"\": supported values: {supported}"),
            ),
            (
                json!({"type": "Pods"}),
                "m[0].pods: Required value: must populate information for the given metric source".into(),
            ),
            (both, "m[0].resource: Forbidden: must populate the given metric source only".into()),
            (
                cpu(json!({"type": "Utilization"})),
                "m[0].resource.target.averageUtilization: Required value: must set either a target raw value or a target utilization".into(),
            ),
            (
                cpu(json!({"type": "Utilization", "averageUtilization": 0})),
                "m[0].resource.target.averageUtilization: Invalid value: 0: must be greater than 0".into(),
            ),
            (
                cpu(json!({"type": "Utilization", "averageUtilization": 1, "averageValue": "1"})),
                "m[0].resource.target.averageValue: Forbidden: may not set both a target raw value and a target utilization".into(),
            ),
            (
                cpu(json!({"type": "Total", "averageValue": "1"})),
                "m[0].resource.target.type: Invalid value: \"Total\": must be either Utilization, Value, or AverageValue".into(),
            ),
            (
                cpu(json!({"type": "AverageValue", "averageValue": "0"})),
                "m[0].resource.target.averageValue: Invalid value: \"0\": must be positive".into(),
            ),
            (
                queue(json!({"type": "Value"})),
                "m[0].external.target.averageValue: Required value: must set either a target value for metric or a per-pod target".into(),
            ),
            (
                queue(json!({"type": "Value", "value": "1", "averageValue": "1"})),
                "m[0].external.target.value: Forbidden: may not set both a target value for metric and a per-pod target".into(),
            ),
            (
                ingress(json!({"type": "Value"})),
                "m[0].object.target.averageValue: Required value: must set either a target value or averageValue".into(),
            ),
            (
                pods(json!({"type": "AverageValue"})),
                "m[0].pods.target.averageValue: Required value: must specify a positive target averageValue".into(),
            ),
            (container("gpu", "c"), "m[0].containerResource.name: Invalid value: \"gpu\": must be a standard resource for containers".into()),
            (
                container("requests.a.io/gpu", "c"),
                "m[0].containerResource.name: Invalid value: \"requests.a.io/gpu\": doesn't follow extended resource name standard".into(),
            ),
            (container("cpu", ""), "m[0].containerResource.container: Required value: must specify a container".into()),
            (
                json!({"type": "Pods", "pods": {"metric": {"name": "a/b"}, "target": {"type": "AverageValue", "averageValue": "1"}}}),
                "m[0].pods.metric.name: Invalid value: \"a/b\": may not contain '/'".into(),
            ),
            (
                json!({"type": "Pods", "pods": {"metric": {}, "target": {"type": "AverageValue", "averageValue": "1"}}}),
                "m[0].pods.metric.name: Required value: must specify a metric name".into(),
            ),
        ] {
            let object = json!({"m": [metric]});
            assert_eq!(found(|p| validate(&Cursor::root(&object).at("m"), p)).join("\n"), wanted);
        }
    }

    #[test]
    fn references() {
        for (reference, core_group, wanted) in [
            (
                json!({"kind": "Deployment", "name": "a", "apiVersion": "apps/v1"}),
                false,
                "",
            ),
            (json!({"kind": "Service", "name": "a", "apiVersion": "v1"}), true, ""),
            (
                json!({"kind": "Deployment", "name": "a"}),
                false,
                "apiVersion: Invalid value: \"\": apiVersion must specify API group",
            ),
            (
                json!({"kind": "Deployment", "name": "a", "apiVersion": "a/b/c"}),
                true,
                "apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c",
            ),
            (
                json!({"name": ".."}),
                true,
                "kind: Required value\nname: Invalid value: \"..\": may not be '..'",
            ),
        ] {
            let said = found(|p| validate_reference(&Cursor::root(&reference), core_group, p));
            assert_eq!(said.join("\n"), wanted, "{reference}");
        }
    }

    #[test]
    fn targets_as_kubectl_shows_them() {
        let used = |percent: i64| json!({"resource": {"name": "cpu", "current": {"averageUtilization": percent, "averageValue": "7m"}}});
        let share = || cpu(json!({"averageUtilization": 80}));
        for (specs, statuses, wanted) in [
            (json!([]), json!([]), "<none>"),
            (json!([share()]), json!([]), "cpu: <unknown>/80%"),
            (json!([share()]), json!([used(20)]), "cpu: 20%/80%"),
            (json!([cpu(json!({}))]), json!([]), "cpu: <unknown>/<auto>"),
            (
                json!([cpu(json!({"averageValue": "50m"}))]),
                json!([used(20)]),
                "cpu: 7m/50m",
            ),
            (json!([container("memory", "c")]), json!([]), "memory: <unknown>/50%"),
            (
                json!([pods(json!({"averageValue": "1k"}))]),
                json!([{"pods": {"current": {"averageValue": "2"}}}]),
                "2/1k",
            ),
            (
                json!([queue(json!({"value": "5"}))]),
                json!([{"external": {"current": {"value": "4"}}}]),
                "4/5",
            ),
            (
                json!([queue(json!({"averageValue": "5"}))]),
                json!([]),
                "<unknown>/5 (avg)",
            ),
            (
                json!([ingress(json!({"averageValue": "5"}))]),
                json!([{"object": {"current": {"averageValue": "4"}}}]),
                "4/5 (avg)",
            ),
            (json!([{"type": "Guess"}]), json!([]), "<unknown type>"),
            (
                json!([share(), share(), share(), share()]),
                json!([used(1), used(2)]),
                "cpu: 1%/80%, cpu: 2%/80% + 2 more...",
            ),
        ] {
            assert_eq!(targets(specs.as_array().unwrap(), statuses.as_array().unwrap()), wanted);
        }
    }
}

//! StatefulSet: pods with a name, an order and volumes of their own.
//!
//! Upstream: pkg/apis/apps/validation and pkg/registry/apps/statefulset (v1.36).

use std::collections::HashSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::core::{persistent_volume_claim, pod_template};
use crate::field::{Cursor, Problems};
use crate::fill;
use crate::kind::{Column, KindDef, Subresource, keep_status};
use crate::workload;
use crate::{int_or_string, names, printing};

pub const DEF: KindDef = KindDef {
    group: "apps",
    kind: "StatefulSet",
    plural: "statefulsets",
    singular: "statefulset",
    short_names: &["sts"],
    categories: &["all"],
    schema: "apps/v1.StatefulSet",
    subresources: &[Subresource::SCALE, Subresource::STATUS],
    columns: &[
        Column::string("Ready"),
        Column::AGE,
        Column::wide("Containers"),
        Column::wide("Images"),
    ],
    cells,
    name_rule: names::dns_label,
    default,
    prepare_create,
    prepare_update,
    prepare_status: workload::keep_spec,
    validate,
    validate_update,
    validate_status,
    warnings,
    generation: true,
    ..KindDef::BASE
};

fn default(object: &mut Value) {
    let spec = fill::member(object, "spec");
    fill::empty(spec, "podManagementPolicy", "OrderedReady");
    let strategy = fill::member(spec, "updateStrategy");
    if strategy["type"].as_str().unwrap_or("").is_empty() {
        strategy["type"] = "RollingUpdate".into();
        fill::member(strategy, "rollingUpdate");
    }
    if strategy["type"] == "RollingUpdate" && strategy["rollingUpdate"].is_object() {
        fill::absent(&mut strategy["rollingUpdate"], "partition", 0);
    }
    let retention = fill::member(spec, "persistentVolumeClaimRetentionPolicy");
    fill::empty(retention, "whenDeleted", "Retain");
    fill::empty(retention, "whenScaled", "Retain");
    fill::absent(spec, "replicas", 1);
    fill::absent(spec, "revisionHistoryLimit", 10);
    let claims = spec.get_mut("volumeClaimTemplates").and_then(Value::as_array_mut);
    claims.into_iter().flatten().for_each(default_claim);
    let template = fill::member(spec, "template");
    fill::member(template, "spec");
    pod_template::default(template);
}

/// A claim in the list is a whole object, kind and status and all.
fn default_claim(claim: &mut Value) {
    claim["apiVersion"] = "v1".into();
    claim["kind"] = "PersistentVolumeClaim".into();
    (persistent_volume_claim::DEF.default)(claim);
}

const MAX_UNAVAILABLE: &str = "/spec/updateStrategy/rollingUpdate/maxUnavailable";

/// `maxUnavailable` is behind a feature gate that is off: it is kept only where it is already.
fn drop_max_unavailable(object: &mut Value) {
    if let Some(rolling) = object.pointer_mut("/spec/updateStrategy/rollingUpdate")
        && let Some(map) = rolling.as_object_mut()
    {
        map.remove("maxUnavailable");
    }
}

fn prepare_create(object: &mut Value) {
    workload::reset_status(object, DEF.schema);
    drop_max_unavailable(object);
}

fn prepare_update(new: &mut Value, old: &Value) {
    keep_status(new, old);
    if old.pointer(MAX_UNAVAILABLE).is_none() {
        drop_max_unavailable(new);
    }
}

fn validate(object: &Cursor<'_>, p: &mut Problems) {
    let spec = object.at("spec");
    let management = spec.at("podManagementPolicy");
    match management.str() {
        "" => p.required(&management, ""),
        "OrderedReady" | "Parallel" => {}
        _ => p.invalid(&management, "must be 'OrderedReady' or 'Parallel'"),
    }
    validate_update_strategy(&spec.at("updateStrategy"), p);
    let retention = spec.at("persistentVolumeClaimRetentionPolicy");
    for when in ["whenDeleted", "whenScaled"] {
        let policy = retention.at(when);
        if retention.exists() && !matches!(policy.str(), "Retain" | "Delete") {
            let shown = format!("{:?}", policy.str());
            workload::unsupported(policy.path(), shown, &["Retain", "Delete"], p);
        }
    }
    for claim in spec.at("volumeClaimTemplates").items() {
        persistent_volume_claim::validate_spec(&claim.at("spec"), p);
    }
    workload::validate_counts(&spec, &["replicas", "minReadySeconds"], p);
    p.non_negative(&spec.at("ordinals").at("start"));
    let service = spec.at("serviceName");
    if !service.is_empty() {
        p.invalid_each(&service, names::dns_label(service.str()));
    }
    validate_selector_and_template(&spec, p);
}

fn validate_update_strategy(strategy: &Cursor<'_>, p: &mut Problems) {
    let rolling = strategy.at("rollingUpdate");
    match strategy.at("type").str() {
        "" => p.required(strategy, ""),
        "OnDelete" if rolling.exists() => p.invalid(&rolling, "only allowed for updateStrategy 'RollingUpdate'"),
        "OnDelete" => {}
        "RollingUpdate" => validate_rolling_update(&rolling, p),
        _ => p.invalid(strategy, "must be 'RollingUpdate' or 'OnDelete'"),
    }
}

fn validate_rolling_update(rolling: &Cursor<'_>, p: &mut Problems) {
    p.non_negative(&rolling.at("partition"));
    let unavailable = rolling.at("maxUnavailable");
    if unavailable.exists() {
        int_or_string::validate(&unavailable, p);
        if int_or_string::number(&unavailable) == 0 {
            p.invalid(&unavailable, "cannot be 0");
        }
        int_or_string::validate_at_most_100_percent(&unavailable, p);
    }
}

fn validate_selector_and_template(spec: &Cursor<'_>, p: &mut Problems) {
    let (selector, template) = (spec.at("selector"), spec.at("template"));
    workload::validate_selector(&selector, "statefulset", p);
    let matches = workload::selects(&selector, &template.at("metadata").at("labels"));
    match matches {
        None => p.invalid(&selector, ""),
        Some(false) => workload::labels_mismatch(&template, p),
        Some(true) => {}
    }
    if matches.is_some() {
        let pod = as_in_a_pod(&template, &spec.at("volumeClaimTemplates"));
        pod_template::validate(&Cursor::new(Some(&pod), template.path().clone()), p);
    }
    workload::validate_long_running(&template, "StatefulSet", p);
}

/// The template as the controller will fill it in: host name and subdomain are its own to set, and each claim is a
/// volume that containers may mount.
fn as_in_a_pod(template: &Cursor<'_>, claims: &Cursor<'_>) -> Value {
    let mut pod = template.value().cloned().unwrap_or(json!({}));
    let spec = fill::member(&mut pod, "spec");
    if let Some(map) = spec.as_object_mut() {
        map.remove("subdomain");
        map.remove("hostname");
    }
    let mut names: HashSet<&str> = claims.items().map(|c| c.at("metadata").at("name").str()).collect();
    if names.is_empty() {
        return pod;
    }
    let mut volumes: Vec<Value> = spec["volumes"].as_array().cloned().unwrap_or_default();
    volumes.retain(|v| !names.contains(v["name"].as_str().unwrap_or("")));
    for claim in claims.items() {
        let name = claim.at("metadata").at("name").str();
        // Each once, in the order of the claims.
        if names.remove(name) {
            volumes.push(json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
        }
    }
    spec["volumes"] = volumes.into();
    pod
}

/// What an update may change of the spec.
const MUTABLE: [&str; 7] = [
    "replicas",
    "template",
    "updateStrategy",
    "minReadySeconds",
    "ordinals",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
];

fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let fixed = |object: &Cursor<'_>| {
        let mut spec = object.at("spec").value().cloned().unwrap_or(json!({}));
        if let Some(map) = spec.as_object_mut() {
            map.retain(|name, _| !MUTABLE.contains(&name.as_str()));
        }
        spec
    };
    if fixed(new) != fixed(old) {
        p.forbidden(
            &new.at("spec"),
            "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
        );
    }
}

fn validate_status(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let status = new.at("status");
    let parts = [
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
        "availableReplicas",
    ];
    p.non_negative(&status.at("replicas"));
    workload::validate_counts(&status, &parts, p);
    workload::validate_counts(&status, &["observedGeneration", "collisionCount"], p);
    workload::validate_not_above(&status, &parts, "replicas", "status.replicas", p);
    workload::validate_not_above(
        &status,
        &["availableReplicas"],
        "readyReplicas",
        "status.readyReplicas",
        p,
    );
    workload::validate_collision_count(&status, &old.at("status"), p);
}

fn warnings(new: &Cursor<'_>, old: Option<&Cursor<'_>>) -> Vec<String> {
    let mut out = workload::template_warnings(new, old);
    let spec = new.at("spec");
    for claim in spec.at("volumeClaimTemplates").items() {
        out.extend(persistent_volume_claim::spec_warnings(&claim.at("spec")));
    }
    if workload::count(&spec.at("revisionHistoryLimit")) < 0 {
        out.push(
            "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended"
                .to_string(),
        );
    }
    out
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let (names, images) = pod_template::container_cells(object.pointer("/spec/template/spec"));
    let (ready, wanted) = (
        printing::int(object, "/status/readyReplicas"),
        printing::int(object, "/spec/replicas"),
    );
    vec![
        format!("{ready}/{wanted}").into(),
        printing::age(object, now),
        names.into(),
        images.into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::*;

    fn good() -> Value {
        let claim = json!({
            "metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        });
        json!({
            "metadata": {"name": "db", "namespace": "x"},
            "spec": {
                "serviceName": "db", "selector": {"matchLabels": {"app": "web"}}, "template": template(),
                "volumeClaimTemplates": [claim],
            },
        })
    }

    #[test]
    fn defaults() {
        let spec = defaulted(&DEF, &good())["spec"].clone();
        assert_eq!(spec["replicas"], 1);
        assert_eq!(spec["revisionHistoryLimit"], 10);
        assert_eq!(spec["podManagementPolicy"], "OrderedReady");
        assert_eq!(
            spec["updateStrategy"],
            json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}})
        );
        let retain = json!({"whenDeleted": "Retain", "whenScaled": "Retain"});
        assert_eq!(spec["persistentVolumeClaimRetentionPolicy"], retain);
        let claim = &spec["volumeClaimTemplates"][0];
        assert_eq!(claim["status"], json!({"phase": "Pending"}));
        assert_eq!(claim["spec"]["volumeMode"], "Filesystem");
        assert_eq!(
            (&claim["apiVersion"], &claim["kind"]),
            (&json!("v1"), &json!("PersistentVolumeClaim"))
        );
        for strategy in [json!({"type": "OnDelete"}), json!({"type": "RollingUpdate"})] {
            let object = defaulted(&DEF, &with(&good(), "/spec/updateStrategy", strategy.clone()));
            assert_eq!(object["spec"]["updateStrategy"], strategy);
        }
    }

    #[test]
    fn what_is_refused() {
        assert_eq!(refused(&DEF, &good()), Vec::<String>::new());
        let rolling = |value: Value| json!({"type": "RollingUpdate", "rollingUpdate": value});
        for (pointer, value, wanted) in [
            (
                "/spec/podManagementPolicy",
                json!("Random"),
                "spec.podManagementPolicy: Invalid value: \"Random\": must be 'OrderedReady' or 'Parallel'",
            ),
            (
                "/spec/updateStrategy",
                json!({"type": "OnDelete", "rollingUpdate": {"partition": 1}}),
                "spec.updateStrategy.rollingUpdate: Invalid value: {\"partition\":1}: only allowed for updateStrategy 'RollingUpdate'",
            ),
            (
                "/spec/updateStrategy",
                json!({"type": "Recreate"}),
                "spec.updateStrategy: Invalid value: {\"type\":\"Recreate\"}: must be 'RollingUpdate' or 'OnDelete'",
            ),
            (
                "/spec/updateStrategy",
                rolling(json!({"partition": -1})),
                "spec.updateStrategy.rollingUpdate.partition: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                "/spec/updateStrategy",
                rolling(json!({"maxUnavailable": 0})),
                "spec.updateStrategy.rollingUpdate.maxUnavailable: Invalid value: 0: cannot be 0",
            ),
            (
                "/spec/updateStrategy",
                rolling(json!({"maxUnavailable": "101%"})),
                "spec.updateStrategy.rollingUpdate.maxUnavailable: Invalid value: \"101%\": must not be greater than 100%",
            ),
            (
                "/spec/persistentVolumeClaimRetentionPolicy",
                json!({"whenScaled": "Recycle"}),
                "spec.persistentVolumeClaimRetentionPolicy.whenScaled: Unsupported value: \"Recycle\": supported values: \"Retain\", \"Delete\"",
            ),
            (
                "/spec/volumeClaimTemplates/0/spec/accessModes",
                json!([]),
                "spec.volumeClaimTemplates[0].spec.accessModes: Required value: at least 1 access mode is required",
            ),
            (
                "/spec/replicas",
                json!(-1),
                "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                "/spec/minReadySeconds",
                json!(-1),
                "spec.minReadySeconds: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                "/spec/ordinals",
                json!({"start": -1}),
                "spec.ordinals.start: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                "/spec/serviceName",
                json!("a.b"),
                "spec.serviceName: Invalid value: \"a.b\": must not contain dots",
            ),
            (
                "/spec/selector",
                json!({}),
                "spec.selector: Invalid value: {}: empty selector is invalid for statefulset",
            ),
            (
                "/spec/selector",
                json!(null),
                "spec.selector: Required value\nspec.template.metadata.labels: Invalid value: {\"app\":\"web\"}: `selector` does not match template `labels`",
            ),
            (
                "/spec/template/spec/restartPolicy",
                json!("Never"),
                "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
            ),
            (
                "/spec/template/spec/activeDeadlineSeconds",
                json!(5),
                "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in StatefulSet is not Supported",
            ),
        ] {
            assert_eq!(refused(&DEF, &with(&good(), pointer, value)).join("\n"), wanted);
        }
    }

    #[test]
    fn claims_count_as_volumes_of_the_template() {
        let mut object = good();
        object["spec"]["template"]["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {}}, {"name": "tmp"}]);
        object["spec"]["template"]["spec"]["hostname"] = json!("x");
        let spec = Cursor::root(&object).at("spec");
        let pod = as_in_a_pod(&spec.at("template"), &spec.at("volumeClaimTemplates"));
        let volumes = json!([{"name": "tmp"}, {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
        assert_eq!(pod["spec"]["volumes"], volumes);
        assert!(pod["spec"].get("hostname").is_none());
    }

    #[test]
    fn updates() {
        for (pointer, value) in [
            ("/spec/replicas", json!(5)),
            ("/spec/ordinals", json!({"start": 5})),
            ("/spec/template/spec/containers/0/image", json!("other")),
            ("/spec/updateStrategy", json!({"type": "OnDelete"})),
            ("/spec/revisionHistoryLimit", json!(1)),
            ("/spec/minReadySeconds", json!(1)),
            (
                "/spec/persistentVolumeClaimRetentionPolicy",
                json!({"whenDeleted": "Delete"}),
            ),
        ] {
            assert!(
                update_refused(&DEF, &with(&good(), pointer, value), &good()).is_empty(),
                "{pointer}"
            );
        }
        for (pointer, value) in [
            ("/spec/serviceName", json!("other")),
            ("/spec/selector", json!({})),
            ("/spec/podManagementPolicy", json!("Parallel")),
            ("/spec/volumeClaimTemplates/0/metadata/name", json!("more")),
        ] {
            assert_eq!(
                update_refused(&DEF, &with(&good(), pointer, value), &good()),
                [
                    "spec: Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
                ],
                "{pointer}"
            );
        }
    }

    #[test]
    fn max_unavailable_is_dropped_unless_it_was_there() {
        let asked = with(
            &good(),
            "/spec/updateStrategy/rollingUpdate",
            json!({"maxUnavailable": 2}),
        );
        let mut created = asked.clone();
        prepare_create(&mut created);
        assert!(created.pointer(MAX_UNAVAILABLE).is_none());
        let mut updated = asked.clone();
        prepare_update(&mut updated, &created);
        assert!(updated.pointer(MAX_UNAVAILABLE).is_none());
        let mut kept = asked.clone();
        prepare_update(&mut kept, &asked);
        assert_eq!(kept.pointer(MAX_UNAVAILABLE), Some(&json!(2)));
    }

    #[test]
    fn statuses() {
        let old = json!({"status": {"collisionCount": 2}});
        for (status, wanted) in [
            (
                json!({"replicas": 2, "readyReplicas": 1, "availableReplicas": 1, "collisionCount": 2}),
                "",
            ),
            (
                json!({"replicas": 1, "currentReplicas": 2, "collisionCount": 2}),
                "status.currentReplicas: Invalid value: 2: cannot be greater than status.replicas",
            ),
            (
                json!({"replicas": 2, "availableReplicas": 2, "readyReplicas": 1, "collisionCount": 2}),
                "status.availableReplicas: Invalid value: 2: cannot be greater than status.readyReplicas",
            ),
            (
                json!({"collisionCount": 1}),
                "status.collisionCount: Invalid value: 1: cannot be decremented",
            ),
        ] {
            assert_eq!(
                status_refused(&DEF, &json!({"status": status}), &old).join("\n"),
                wanted
            );
        }
    }

    #[test]
    fn a_row_and_a_warning() {
        let mut object = defaulted(&DEF, &good());
        object["status"] = json!({"readyReplicas": 1});
        let wanted = json!(["1/1", "<unknown>", "c", "nginx"]);
        assert_eq!(Value::from(cells(&object, at("2026-01-01T00:05:00Z"))), wanted);
        assert!(warnings(&Cursor::root(&object), None).is_empty());
        object["spec"]["revisionHistoryLimit"] = json!(-1);
        assert_eq!(warnings(&Cursor::root(&object), None).len(), 1);
    }
}

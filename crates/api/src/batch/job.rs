//! Job: pods that run until enough of them have succeeded.
//!
//! Upstream: pkg/apis/batch/validation and pkg/registry/batch/job (v1.36).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::batch::{job_spec, job_status};
use crate::core::pod_template;
use crate::field::{Cursor, Problems};
use crate::fill;
use crate::kind::{Column, KindDef, SelectableField, Subresource, drop_status};
use crate::workload::{self, count};
use crate::{meta, names, printing};

pub const CONTROLLER_UID: &str = "batch.kubernetes.io/controller-uid";
pub const JOB_NAME: &str = "batch.kubernetes.io/job-name";
/// The same two under their first names.
pub const OLD_CONTROLLER_UID: &str = "controller-uid";
pub const OLD_JOB_NAME: &str = "job-name";

pub const DEF: KindDef = KindDef {
    group: "batch",
    kind: "Job",
    plural: "jobs",
    singular: "job",
    categories: &["all"],
    schema: "batch/v1.Job",
    subresources: &[Subresource::STATUS],
    fields: &[SelectableField {
        name: "status.successful",
        read: Some(|object| printing::int(object, "/status/succeeded").to_string()),
    }],
    columns: &[
        Column::string("Status"),
        Column::string("Completions"),
        Column::string("Duration"),
        Column::AGE,
        Column::wide("Containers"),
        Column::wide("Images"),
        Column::wide("Selector"),
    ],
    cells,
    default,
    prepare_create,
    prepare_status: workload::keep_spec,
    validate,
    validate_update,
    validate_status: job_status::validate,
    warnings,
    generation: true,
    ..KindDef::BASE
};

fn default(object: &mut Value) {
    let spec = fill::member(object, "spec");
    if spec["parallelism"].is_null() {
        fill::absent(spec, "completions", 1);
        spec["parallelism"] = 1.into();
    }
    let limit = if spec["backoffLimitPerIndex"].is_null() {
        6
    } else {
        i32::MAX
    };
    fill::absent(spec, "backoffLimit", limit);
    fill::absent(spec, "completionMode", "NonIndexed");
    fill::absent(spec, "suspend", false);
    let replacement = if spec["podFailurePolicy"].is_null() {
        "TerminatingOrFailed"
    } else {
        "Failed"
    };
    fill::absent(spec, "podReplacementPolicy", replacement);
    fill::absent(spec, "manualSelector", false);
    job_spec::default(spec);
    let generated = object
        .pointer("/spec/template/metadata/labels")
        .and_then(|l| l.get(CONTROLLER_UID));
    if generated.is_some() || object["spec"]["manualSelector"] == true {
        default_labels(object);
    }
}

/// A Job without labels has those of its template, the generated ones among them. Hence they are copied only when
/// those are there, or none are to come.
fn default_labels(object: &mut Value) {
    let empty = |v: Option<&Value>| v.and_then(Value::as_object).is_none_or(|m| m.is_empty());
    let labels = object.pointer("/spec/template/metadata/labels").cloned();
    if !empty(labels.as_ref()) && empty(object.pointer("/metadata/labels")) {
        fill::member(object, "metadata")["labels"] = labels.unwrap_or_default();
    }
}

fn prepare_create(object: &mut Value) {
    drop_status(object);
    if object["spec"]["manualSelector"] != true {
        generate_selector(object);
    }
    default_labels(object);
}

/// Makes the pods this Job's alone: they carry its name and uid, and the uid is what it selects by. What a user has
/// put there is left alone; if it is wrong, validation says so.
fn generate_selector(object: &mut Value) {
    let uid = printing::text(object, "/metadata/uid").to_string();
    let name = printing::text(object, "/metadata/name").to_string();
    let spec = fill::member(object, "spec");
    let labels = fill::member(fill::member(fill::member(spec, "template"), "metadata"), "labels");
    for (key, value) in [
        (OLD_JOB_NAME, &name),
        (JOB_NAME, &name),
        (OLD_CONTROLLER_UID, &uid),
        (CONTROLLER_UID, &uid),
    ] {
        fill::absent(labels, key, value.as_str());
    }
    fill::absent(
        fill::member(fill::member(spec, "selector"), "matchLabels"),
        CONTROLLER_UID,
        uid,
    );
}

fn validate(object: &Cursor<'_>, p: &mut Problems) {
    let spec = object.at("spec");
    validate_generated_selector(object, p);
    job_spec::validate(&spec, p);
    let selector = spec.at("selector");
    if selector.exists() {
        meta::validate_label_selector(&selector, p);
    } else {
        p.required(&selector, "");
    }
    if workload::selects(&selector, &spec.at("template").at("metadata").at("labels")) == Some(false) {
        workload::labels_mismatch(&spec.at("template"), p);
    }
    let completions = count(&spec.at("completions"));
    if job_spec::is_indexed(&spec) && completions > 0 {
        let name = object.at("metadata").at("name");
        let longest = format!("{}-{}", name.str(), completions - 1);
        if !names::dns_label(&longest).is_empty() {
            p.invalid(
                &name,
                format!("will not able to create pod with invalid DNS label: {longest}"),
            );
        }
    }
}

fn validate_generated_selector(object: &Cursor<'_>, p: &mut Problems) {
    let spec = object.at("spec");
    let selector = spec.at("selector");
    if spec.at("manualSelector").is_true() || !selector.exists() {
        return;
    }
    let (uid, name) = (object.at("metadata").at("uid"), object.at("metadata").at("name"));
    if uid.is_empty() {
        p.required(&uid, "");
    }
    let labels = spec.at("template").at("metadata").at("labels");
    let mut expected = json!({});
    for (key, value) in [
        (OLD_CONTROLLER_UID, uid.str()),
        (OLD_JOB_NAME, name.str()),
        (CONTROLLER_UID, uid.str()),
        (JOB_NAME, name.str()),
    ] {
        expected[key] = value.into();
        let path = labels.path().key(key);
        let detail = format!("must be '{value}'");
        match labels.value().and_then(|l| l.get(key)) {
            None => p.required(&Cursor::new(None, path), detail),
            Some(found) if found != value => {
                p.invalid_value(&path, labels.value().unwrap_or(&Value::Null), detail);
            }
            Some(_) => {}
        }
    }
    let expected = Cursor::new(Some(&expected), labels.path().clone());
    if workload::selects(&selector, &expected) == Some(false) {
        p.invalid(&selector, "`selector` not auto-generated");
    }
}

fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let (spec, old_spec) = (new.at("spec"), old.at("spec"));
    validate_completions(&spec, &old_spec, p);
    p.immutable(&spec.at("selector"), &old_spec.at("selector"));
    validate_template_update(&spec, old, p);
    for field in [
        "completionMode",
        "podFailurePolicy",
        "backoffLimitPerIndex",
        "managedBy",
        "successPolicy",
    ] {
        p.immutable(&spec.at(field), &old_spec.at(field));
    }
}

/// Indexed Jobs are elastic: their completions may follow their parallelism.
fn validate_completions(spec: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let completions = spec.at("completions");
    if !job_spec::is_indexed(spec) {
        return p.immutable(&completions, &old.at("completions"));
    }
    let changed = completions.value() != old.at("completions").value();
    if changed && completions.exists() && completions.value() != spec.at("parallelism").value() {
        p.invalid(&completions, "can only be modified in tandem with spec.parallelism");
    }
}

/// The template is fixed, but for what decides where pods run and with how much, while the Job is suspended and none do.
fn validate_template_update(spec: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let (template, old_template) = (spec.at("template"), old.at("spec").at("template"));
    let suspended = old.at("spec").at("suspend").is_true();
    let status = old.at("status");
    let idle = (!status.at("startTime").exists() || job_status::has_condition(old, "Suspended", "True"))
        && count(&status.at("active")) == 0;
    if !(suspended && idle) {
        return p.immutable(&template, &old_template);
    }
    let fixed = |template: &Cursor<'_>| without_placement(template.at("spec").value());
    if fixed(&template) != fixed(&old_template) {
        p.invalid(&template.at("spec"), "field is immutable");
    }
}

/// A pod spec without node selector, node affinity, tolerations, scheduling gates and container resources.
fn without_placement(pod: Option<&Value>) -> Value {
    let mut pod = pod.cloned().unwrap_or(json!({}));
    if let Some(map) = pod.as_object_mut() {
        map.retain(|name, _| !matches!(name.as_str(), "nodeSelector" | "tolerations" | "schedulingGates"));
        if let Some(affinity) = map.get_mut("affinity").and_then(Value::as_object_mut) {
            affinity.remove("nodeAffinity");
            if affinity.is_empty() {
                map.remove("affinity");
            }
        }
    }
    for list in ["containers", "initContainers"] {
        let containers = pod.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
            container.remove("resources");
        }
    }
    pod
}

fn warnings(new: &Cursor<'_>, old: Option<&Cursor<'_>>) -> Vec<String> {
    let mut out = workload::name_warnings(new, old);
    if old.is_none_or(|old| old.at("spec").value() != new.at("spec").value()) {
        out.extend(job_spec::warnings(&new.at("spec")));
    }
    out
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let (names, images) = pod_template::container_cells(object.pointer("/spec/template/spec"));
    vec![
        state(object).into(),
        completions(object).into(),
        workload::duration_cell(
            printing::text(object, "/status/startTime"),
            printing::text(object, "/status/completionTime"),
            now,
        ),
        printing::age(object, now),
        names.into(),
        images.into(),
        workload::selector_cell(object.pointer("/spec/selector")),
    ]
}

fn state(object: &Value) -> &'static str {
    let job = Cursor::root(object);
    let is = |kind: &str| job_status::has_condition(&job, kind, "True");
    if let Some(end) = ["Complete", "Failed"].into_iter().find(|kind| is(kind)) {
        return end;
    }
    if job.at("metadata").at("deletionTimestamp").exists() {
        return "Terminating";
    }
    let phases = ["Suspended", "FailureTarget", "SuccessCriteriaMet"];
    phases.into_iter().find(|kind| is(kind)).unwrap_or("Running")
}

fn completions(object: &Value) -> String {
    let succeeded = printing::int(object, "/status/succeeded");
    if let Some(wanted) = object.pointer("/spec/completions").and_then(Value::as_i64) {
        return format!("{succeeded}/{wanted}");
    }
    match printing::int(object, "/spec/parallelism") {
        many @ 2.. => format!("{succeeded}/1 of {many}"),
        _ => format!("{succeeded}/1"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::*;

    fn bare() -> Value {
        let mut template = template();
        template["spec"]["restartPolicy"] = json!("Never");
        json!({"metadata": {"name": "pi", "namespace": "x", "uid": "u-1"}, "spec": {"template": template}})
    }

    fn good() -> Value {
        let mut object = defaulted(&DEF, &bare());
        prepare_create(&mut object);
        object
    }

    #[test]
    fn defaults() {
        for (more, wanted) in [
            (
                json!({}),
                json!({"completions": 1, "parallelism": 1, "backoffLimit": 6}),
            ),
            (
                json!({"parallelism": 3}),
                json!({"completions": null, "parallelism": 3, "backoffLimit": 6}),
            ),
            (
                json!({"completions": 3}),
                json!({"completions": 3, "parallelism": 1, "backoffLimit": 6}),
            ),
            (
                json!({"backoffLimitPerIndex": 1}),
                json!({"completions": 1, "parallelism": 1, "backoffLimit": i32::MAX}),
            ),
        ] {
            let mut object = bare();
            object["spec"]
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            let spec = defaulted(&DEF, &object)["spec"].clone();
            for (name, value) in wanted.as_object().unwrap() {
                assert_eq!(&spec[name], value, "{name} of {more}");
            }
            assert_eq!(spec["completionMode"], "NonIndexed");
            assert_eq!(
                (&spec["suspend"], &spec["manualSelector"]),
                (&json!(false), &json!(false))
            );
            assert_eq!(spec["podReplacementPolicy"], "TerminatingOrFailed");
        }
        let policy = with(&bare(), "/spec/podFailurePolicy", json!({"rules": []}));
        assert_eq!(defaulted(&DEF, &policy)["spec"]["podReplacementPolicy"], "Failed");
    }

    #[test]
    fn the_selector_is_generated() {
        let object = good();
        let labels = json!({
            "app": "web", "controller-uid": "u-1", "batch.kubernetes.io/controller-uid": "u-1", "job-name": "pi",
            "batch.kubernetes.io/job-name": "pi",
        });
        assert_eq!(object["spec"]["template"]["metadata"]["labels"], labels);
        assert_eq!(object["metadata"]["labels"], labels);
        let selector = json!({"matchLabels": {"batch.kubernetes.io/controller-uid": "u-1"}});
        assert_eq!(object["spec"]["selector"], selector);
        assert_eq!(refused(&DEF, &object), Vec::<String>::new());

        let mut own = with(&bare(), "/metadata/labels", json!({"a": "b"}));
        prepare_create(&mut own);
        assert_eq!(own["metadata"]["labels"], json!({"a": "b"}));

        let mut manual = with(&bare(), "/spec/manualSelector", json!(true));
        manual["spec"]["selector"] = json!({"matchLabels": {"app": "web"}});
        let mut manual = defaulted(&DEF, &manual);
        prepare_create(&mut manual);
        assert_eq!(manual["spec"]["template"]["metadata"]["labels"], json!({"app": "web"}));
        assert_eq!(refused(&DEF, &manual), Vec::<String>::new());
    }

    #[test]
    fn what_is_refused() {
        let labels = "/spec/template/metadata/labels";
        for (object, wanted) in [
            (
                with(&good(), "/spec/selector", json!(null)),
                vec![
                    "spec.selector: Required value",
                    "spec.template.metadata.labels: Invalid value",
                ],
            ),
            (
                with(&good(), "/spec/selector", json!({"matchLabels": {"a": "b"}})),
                vec![
                    "spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b\"}}: `selector` not auto-generated",
                    "spec.template.metadata.labels: Invalid value",
                ],
            ),
            (
                with(
                    &good(),
                    labels,
                    json!({"controller-uid": "u-2", "batch.kubernetes.io/controller-uid": "u-1", "batch.kubernetes.io/job-name": "pi"}),
                ),
                vec![
                    "spec.template.metadata.labels[controller-uid]: Invalid value: {\"batch.kubernetes.io/controller-uid\":\"u-1\",\"batch.kubernetes.io/job-name\":\"pi\",\"controller-uid\":\"u-2\"}: must be 'u-1'",
                    "spec.template.metadata.labels[job-name]: Required value: must be 'pi'",
                ],
            ),
            (
                with(
                    &with(&good(), "/spec/manualSelector", json!(true)),
                    "/spec/selector",
                    json!({"matchLabels": {"x": "y"}}),
                ),
                vec!["spec.template.metadata.labels: Invalid value: "],
            ),
            (
                with(&good(), "/spec/template/spec/restartPolicy", json!("Always")),
                vec!["spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\""],
            ),
        ] {
            let said = refused(&DEF, &object);
            assert_eq!(said.len(), wanted.len(), "{said:#?}");
            for (said, wanted) in said.iter().zip(wanted) {
                assert!(said.starts_with(wanted), "{said}");
            }
        }
        let name = "x".repeat(62);
        let mut long = with(&bare(), "/metadata/name", json!(name));
        long["spec"]["completionMode"] = json!("Indexed");
        prepare_create(&mut long);
        let detail = format!("will not able to create pod with invalid DNS label: {name}-0");
        assert_eq!(
            refused(&DEF, &long),
            [format!("metadata.name: Invalid value: {name:?}: {detail}")]
        );
    }

    #[test]
    fn updates() {
        let said =
            |pointer: &str, value: Value| update_refused(&DEF, &with(&good(), pointer, value), &good()).join("\n");
        for (pointer, value) in [
            ("/spec/parallelism", json!(4)),
            ("/spec/suspend", json!(true)),
            ("/spec/ttlSecondsAfterFinished", json!(4)),
            ("/spec/activeDeadlineSeconds", json!(4)),
            ("/spec/backoffLimit", json!(4)),
        ] {
            assert_eq!(said(pointer, value), "", "{pointer}");
        }
        for (pointer, value, wanted) in [
            (
                "/spec/completions",
                json!(5),
                "spec.completions: Invalid value: 5: field is immutable",
            ),
            (
                "/spec/selector",
                json!({}),
                "spec.selector: Invalid value: {}: field is immutable",
            ),
            (
                "/spec/completionMode",
                json!("Indexed"),
                "spec.completionMode: Invalid value: \"Indexed\": field is immutable",
            ),
            (
                "/spec/backoffLimitPerIndex",
                json!(1),
                "spec.backoffLimitPerIndex: Invalid value: 1: field is immutable",
            ),
            (
                "/spec/managedBy",
                json!("a.io/b"),
                "spec.managedBy: Invalid value: \"a.io/b\": field is immutable",
            ),
            (
                "/spec/podFailurePolicy",
                json!({"rules": []}),
                "spec.podFailurePolicy: Invalid value: {\"rules\":[]}: field is immutable",
            ),
            (
                "/spec/successPolicy",
                json!({"rules": []}),
                "spec.successPolicy: Invalid value: {\"rules\":[]}: field is immutable",
            ),
        ] {
            assert_eq!(said(pointer, value), wanted);
        }
        let template = said("/spec/template/spec/containers/0/image", json!("other"));
        assert!(template.starts_with("spec.template: Invalid value: {") && template.ends_with(": field is immutable"));
    }

    #[test]
    fn indexed_jobs_are_elastic() {
        let mut old = good();
        old["spec"]["completionMode"] = json!("Indexed");
        let mut new = with(&old, "/spec/completions", json!(3));
        assert_eq!(
            update_refused(&DEF, &new, &old),
            ["spec.completions: Invalid value: 3: can only be modified in tandem with spec.parallelism"]
        );
        new["spec"]["parallelism"] = json!(3);
        assert!(update_refused(&DEF, &new, &old).is_empty());
    }

    #[test]
    fn a_suspended_job_may_move() {
        let suspended = with(&good(), "/spec/suspend", json!(true));
        let started = with(&suspended, "/status", json!({"startTime": "2026-01-01T00:00:00Z"}));
        let mut paused = started.clone();
        paused["status"]["conditions"] = json!([{"type": "Suspended", "status": "True"}]);
        let active = with(&paused, "/status/active", json!(1));
        for (pointer, value, allowed) in [
            ("nodeSelector", json!({"a": "b"}), true),
            ("tolerations", json!([{"operator": "Exists"}]), true),
            ("schedulingGates", json!([{"name": "g"}]), true),
            ("affinity", json!({"nodeAffinity": {}}), true),
            ("containers/0/resources", json!({"limits": {"cpu": "1"}}), true),
            ("affinity", json!({"podAffinity": {}}), false),
            ("containers/0/image", json!("other"), false),
        ] {
            let pointer = format!("/spec/template/spec/{pointer}");
            for (old, may) in [
                (&suspended, allowed),
                (&paused, allowed),
                (&started, false),
                (&active, false),
                (&good(), false),
            ] {
                let said = update_refused(&DEF, &with(old, &pointer, value.clone()), old);
                assert_eq!(said.is_empty(), may, "{pointer}: {said:?}");
            }
        }
        let said = update_refused(
            &DEF,
            &with(&suspended, "/spec/template/spec/hostname", json!("h")),
            &suspended,
        );
        assert!(said[0].starts_with("spec.template.spec: Invalid value: "), "{said:?}");
        let labels = with(&suspended, "/spec/template/metadata/labels/more", json!("x"));
        assert!(update_refused(&DEF, &labels, &suspended).is_empty());
    }

    #[test]
    fn rows() {
        let now = at("2026-01-01T00:10:00Z");
        let row = |status: Value, more: Value| {
            let mut object = json!({"metadata": {}, "spec": {"completions": 3}, "status": status});
            object["spec"]
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            Value::from(cells(&object, now)[..3].to_vec())
        };
        let is = |kind: &str| json!([{"type": kind, "status": "True"}]);
        let start = "2026-01-01T00:00:00Z";
        for (status, spec, wanted) in [
            (json!({}), json!({}), json!(["Running", "0/3", ""])),
            (
                json!({"startTime": start, "succeeded": 1}),
                json!({}),
                json!(["Running", "1/3", "10m"]),
            ),
            (
                json!({"startTime": start, "completionTime": "2026-01-01T00:00:05Z", "conditions": is("Complete")}),
                json!({}),
                json!(["Complete", "0/3", "5s"]),
            ),
            (
                json!({"conditions": is("Failed")}),
                json!({"completions": null}),
                json!(["Failed", "0/1", ""]),
            ),
            (
                json!({"conditions": is("Suspended")}),
                json!({"completions": null, "parallelism": 4}),
                json!(["Suspended", "0/1 of 4", ""]),
            ),
            (
                json!({"conditions": is("FailureTarget")}),
                json!({}),
                json!(["FailureTarget", "0/3", ""]),
            ),
            (
                json!({"conditions": is("SuccessCriteriaMet")}),
                json!({}),
                json!(["SuccessCriteriaMet", "0/3", ""]),
            ),
        ] {
            assert_eq!(row(status, spec), wanted);
        }
        assert_eq!(state(&json!({"metadata": {"deletionTimestamp": start}})), "Terminating");
        let wide = json!(["c", "nginx", "batch.kubernetes.io/controller-uid=u-1"]);
        assert_eq!(Value::from(cells(&good(), now)[4..].to_vec()), wide);
    }
}

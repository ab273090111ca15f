//! CronJob: Jobs by the clock.
//!
//! Upstream: pkg/apis/batch/validation and pkg/registry/batch/cronjob (v1.36).

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;

use crate::batch::cron_schedule::Schedule;
use crate::batch::job_spec;
use crate::core::pod_template;
use crate::field::{Cursor, Problems};
use crate::fill;
use crate::kind::{Column, KindDef, Subresource};
use crate::printing;
use crate::workload::{self, unsupported};

/// A Job's name is this one's and eleven characters more.
const MAX_NAME_BYTES: usize = 52;
const MAX_ZONE_PART_BYTES: usize = 14;

pub const DEF: KindDef = KindDef {
    group: "batch",
    kind: "CronJob",
    plural: "cronjobs",
    singular: "cronjob",
    short_names: &["cj"],
    categories: &["all"],
    schema: "batch/v1.CronJob",
    subresources: &[Subresource::STATUS],
    columns: &[
        Column::string("Schedule"),
        Column::string("Timezone"),
        Column {
            kind: "boolean",
            ..Column::string("Suspend")
        },
        Column::integer("Active"),
        Column::string("Last Schedule"),
        Column::AGE,
        Column::wide("Containers"),
        Column::wide("Images"),
        Column::wide("Selector"),
    ],
    cells,
    default,
    prepare_status: workload::keep_spec,
    validate,
    warnings,
    generation: true,
    ..KindDef::BASE
};

fn default(object: &mut Value) {
    let spec = fill::member(object, "spec");
    fill::empty(spec, "concurrencyPolicy", "Allow");
    fill::absent(spec, "suspend", false);
    fill::absent(spec, "successfulJobsHistoryLimit", 3);
    fill::absent(spec, "failedJobsHistoryLimit", 1);
    job_spec::default(fill::member(fill::member(spec, "jobTemplate"), "spec"));
}

fn validate(object: &Cursor<'_>, p: &mut Problems) {
    let spec = object.at("spec");
    validate_schedule(&spec.at("schedule"), p);
    p.non_negative(&spec.at("startingDeadlineSeconds"));
    if spec.at("timeZone").exists() {
        validate_time_zone(&spec.at("timeZone"), p);
    }
    let policy = spec.at("concurrencyPolicy");
    p.one_of(&policy, true, &["Allow", "Forbid", "Replace"]);
    validate_job_template(&spec.at("jobTemplate").at("spec"), p);
    workload::validate_counts(&spec, &["successfulJobsHistoryLimit", "failedJobsHistoryLimit"], p);
    let name = object.at("metadata").at("name");
    if name.len() > MAX_NAME_BYTES {
        p.invalid(&name, "must be no more than 52 characters");
    }
}

fn validate_schedule(schedule: &Cursor<'_>, p: &mut Problems) {
    let text = schedule.str();
    if text.is_empty() {
        return p.required(schedule, "");
    }
    let zone = text.strip_prefix("TZ=").or(text.strip_prefix("CRON_TZ="));
    let judged = match zone.map(|z| z.split_once(' ')) {
        None => Schedule::parse(text).map_err(String::from),
        Some(None) => Err("invalid schedule format: a time zone and no schedule".to_string()),
        Some(Some((zone, _))) if TimeZone::get(zone).is_err() => {
            Err(format!("provided bad location {zone}: unknown time zone {zone}"))
        }
        Some(Some((_, schedule))) => Schedule::parse(schedule.trim()).map_err(String::from),
    };
    if let Err(why) = judged {
        p.invalid(schedule, why);
    }
    if text.contains("TZ") {
        p.invalid(
            schedule,
            "cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
        );
    }
}

fn validate_time_zone(zone: &Cursor<'_>, p: &mut Problems) {
    let name = zone.str();
    if name.is_empty() {
        return p.invalid(zone, "timeZone must be nil or non-empty string");
    }
    let fine = |b: u8| b.is_ascii_alphanumeric() || b".-_+".contains(&b);
    let strange = name.split('/').any(|part| {
        let shaped = (1..=MAX_ZONE_PART_BYTES).contains(&part.len()) && part.bytes().all(fine);
        matches!(part, "." | "..") || part.starts_with('-') || !shaped
    });
    if strange {
        return p.invalid(zone, format!("unknown time zone {name}"));
    }
    if name.eq_ignore_ascii_case("Local") {
        p.invalid(
            zone,
            "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones",
        );
    }
    // The database answers to any case; upstream knows only names written as they are.
    let known = TimeZone::get(name).is_ok_and(|z| z.iana_name() == Some(name));
    if !known && name != "Local" {
        p.invalid(zone, format!("unknown time zone {name}"));
    }
}

fn validate_job_template(spec: &Cursor<'_>, p: &mut Problems) {
    job_spec::validate(spec, p);
    let (selector, manual) = (spec.at("selector"), spec.at("manualSelector"));
    if selector.exists() {
        p.invalid(&selector, "`selector` will be auto-generated");
    }
    if manual.is_true() {
        unsupported(manual.path(), "true".to_string(), &["nil", "false"], p);
    }
}

fn warnings(new: &Cursor<'_>, old: Option<&Cursor<'_>>) -> Vec<String> {
    let mut out = workload::name_warnings(new, old);
    if old.is_none_or(|old| old.at("spec").value() != new.at("spec").value()) {
        out.extend(job_spec::warnings(&new.at("spec").at("jobTemplate").at("spec")));
    }
    out
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let job = object.pointer("/spec/jobTemplate/spec");
    let (names, images) = pod_template::container_cells(job.and_then(|j| j.pointer("/template/spec")));
    let suspend = match object.pointer("/spec/suspend").and_then(Value::as_bool) {
        None => "<unset>",
        Some(true) => "True",
        Some(false) => "False",
    };
    let last = match printing::text(object, "/status/lastScheduleTime") {
        "" => "<none>".to_string(),
        time => printing::since(Some(time), now),
    };
    let active = object
        .pointer("/status/active")
        .and_then(Value::as_array)
        .map_or(0, Vec::len);
    vec![
        printing::text(object, "/spec/schedule").into(),
        printing::text_or_none(object, "/spec/timeZone"),
        suspend.into(),
        active.into(),
        last.into(),
        printing::age(object, now),
        names.into(),
        images.into(),
        workload::selector_cell(job.and_then(|j| j.get("selector"))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::*;
    use serde_json::json;

    fn good() -> Value {
        let mut template = template();
        template["spec"]["restartPolicy"] = json!("OnFailure");
        json!({
            "metadata": {"name": "tidy", "namespace": "x"},
            "spec": {"schedule": "*/5 * * * *", "jobTemplate": {"spec": {"template": template}}},
        })
    }

    #[test]
    fn defaults() {
        let spec = defaulted(&DEF, &good())["spec"].clone();
        assert_eq!(spec["concurrencyPolicy"], "Allow");
        assert_eq!(spec["suspend"], false);
        assert_eq!(
            (&spec["successfulJobsHistoryLimit"], &spec["failedJobsHistoryLimit"]),
            (&json!(3), &json!(1))
        );
        assert!(
            spec["jobTemplate"]["spec"].get("backoffLimit").is_none(),
            "that is for the Job"
        );
        defaulted(&DEF, &json!({}));
    }

    #[test]
    fn what_is_refused() {
        assert_eq!(refused(&DEF, &good()), Vec::<String>::new());
        let no_tz = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
        let zone = |name: &str, why: &str| {
            (
                "/spec/timeZone",
                json!(name),
                format!("spec.timeZone: Invalid value: {name:?}: {why}"),
            )
        };
        let iana = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        for (pointer, value, wanted) in [
            ("/spec/timeZone", json!("Europe/Berlin"), String::new()),
            ("/spec/timeZone", json!("UTC"), String::new()),
            ("/spec/timeZone", json!("Etc/GMT+5"), String::new()),
            ("/spec/schedule", json!(null), "spec.schedule: Required value".into()),
            (
                "/spec/schedule",
                json!("error"),
                "spec.schedule: Invalid value: \"error\": expected exactly 5 fields, found 1: [error]".into(),
            ),
            (
                "/spec/schedule",
                json!("TZ=Europe/Berlin 0 0 * * *"),
                format!("spec.schedule: Invalid value: \"TZ=Europe/Berlin 0 0 * * *\": {no_tz}"),
            ),
            (
                "/spec/schedule",
                json!("CRON_TZ=No/Where 0 0 * * *"),
                format!("spec.schedule: Invalid value: \"CRON_TZ=No/Where 0 0 * * *\": provided bad location No/Where: unknown time zone No/Where\nspec.schedule: Invalid value: \"CRON_TZ=No/Where 0 0 * * *\": {no_tz}"),
            ),
            (
                "/spec/startingDeadlineSeconds",
                json!(-1),
                "spec.startingDeadlineSeconds: Invalid value: -1: must be greater than or equal to 0".into(),
            ),
            zone("", "timeZone must be nil or non-empty string"),
            zone("../etc", "unknown time zone ../etc"),
            zone("Mars/Olympus", "unknown time zone Mars/Olympus"),
            zone("europe/berlin", "unknown time zone europe/berlin"),
            zone("Local", iana),
            (
                "/spec/concurrencyPolicy",
                json!("Queue"),
                "spec.concurrencyPolicy: Unsupported value: \"Queue\": supported values: \"Allow\", \"Forbid\", \"Replace\"".into(),
            ),
            (
                "/spec/successfulJobsHistoryLimit",
                json!(-1),
                "spec.successfulJobsHistoryLimit: Invalid value: -1: must be greater than or equal to 0".into(),
            ),
            (
                "/spec/failedJobsHistoryLimit",
                json!(-1),
                "spec.failedJobsHistoryLimit: Invalid value: -1: must be greater than or equal to 0".into(),
            ),
            (
                "/spec/jobTemplate/spec/selector",
                json!({}),
                "spec.jobTemplate.spec.selector: Invalid value: {}: `selector` will be auto-generated".into(),
            ),
            (
                "/spec/jobTemplate/spec/manualSelector",
                json!(true),
                "spec.jobTemplate.spec.manualSelector: Unsupported value: true: supported values: \"nil\", \"false\"".into(),
            ),
            (
                "/spec/jobTemplate/spec/parallelism",
                json!(-1),
                "spec.jobTemplate.spec.parallelism: Invalid value: -1: must be greater than or equal to 0".into(),
            ),
            ("/metadata/name", json!("x".repeat(52)), String::new()),
            (
                "/metadata/name",
                json!("x".repeat(53)),
                format!("metadata.name: Invalid value: \"{}\": must be no more than 52 characters", "x".repeat(53)),
            ),
        ] {
            assert_eq!(refused(&DEF, &with(&good(), pointer, value)).join("\n"), wanted);
        }
    }

    #[test]
    fn rows() {
        let now = at("2026-01-01T00:10:00Z");
        let mut object = defaulted(&DEF, &good());
        let wanted = json!([
            "*/5 * * * *",
            "<none>",
            "False",
            0,
            "<none>",
            "<unknown>",
            "c",
            "nginx",
            "<none>"
        ]);
        assert_eq!(Value::from(cells(&object, now)), wanted);
        object["spec"]["timeZone"] = json!("Asia/Tokyo");
        object["spec"]["suspend"] = json!(true);
        object["status"] = json!({"active": [{}], "lastScheduleTime": "2026-01-01T00:05:00Z"});
        let wanted = json!(["*/5 * * * *", "Asia/Tokyo", "True", 1, "5m"]);
        assert_eq!(Value::from(cells(&object, now)[..5].to_vec()), wanted);
    }
}

//! What a status of a Job may say, and how it may go on from there. The Job may be run by a controller of someone else
//! (`managedBy`), so the promises made to readers are kept here.
//!
//! Upstream: pkg/apis/batch/validation and pkg/registry/batch/job (v1.36). Most rules look only at what changed, so
//! that a status that is already wrong does not stand in the way of unrelated updates.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::batch::{job_indexes, job_spec};
use crate::field::{Cursor, Problems};
use crate::workload::{count, invalid_whole, validate_counts};

/// Whether the Job has the condition with this status.
pub fn has_condition(job: &Cursor<'_>, kind: &str, status: &str) -> bool {
    let conditions = job.at("status").at("conditions");
    conditions
        .items()
        .any(|c| c.at("type").str() == kind && c.at("status").str() == status)
}

fn is(job: &Cursor<'_>, kind: &str) -> bool {
    has_condition(job, kind, "True")
}

/// Complete or failed: nothing more will happen.
pub fn is_finished(job: &Cursor<'_>) -> bool {
    is(job, "Complete") || is(job, "Failed")
}

/// The two sides of an update, and what differs between them.
struct Change<'a> {
    new: &'a Cursor<'a>,
    old: &'a Cursor<'a>,
    status: Cursor<'a>,
    old_status: Cursor<'a>,
    spec: Cursor<'a>,
    finished: bool,
}

pub fn validate(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let change = Change {
        new,
        old,
        status: new.at("status"),
        old_status: old.at("status"),
        spec: new.at("spec"),
        finished: is_finished(new),
    };
    let counts = ["active", "succeeded", "failed", "ready", "terminating"];
    validate_counts(&change.status, &counts, p);
    change.validate_uncounted(p);
    change.validate_conditions(p);
    change.validate_times(p);
    change.validate_finished(p);
    change.validate_indexes(p);
    change.validate_progress(p);
}

impl Change<'_> {
    fn differs(&self, field: &'static str) -> bool {
        self.status.at(field).value() != self.old_status.at(field).value()
    }

    fn number_differs(&self, field: &'static str) -> bool {
        count(&self.status.at(field)) != count(&self.old_status.at(field))
    }

    fn turned(&self, condition: &str) -> bool {
        is(self.new, condition) != is(self.old, condition)
    }

    fn finish_turned(&self) -> bool {
        self.finished != is_finished(self.old)
    }

    fn against_conditions(&self, detail: &str, p: &mut Problems) {
        invalid_whole(self.status.at("conditions").path(), detail, p);
    }

    /// Each pod is listed once.
    fn validate_uncounted(&self, p: &mut Problems) {
        let uncounted = self.status.at("uncountedTerminatedPods");
        let mut seen = BTreeSet::new();
        for list in ["succeeded", "failed"] {
            for uid in uncounted.at(list).items() {
                if uid.is_empty() {
                    p.invalid(&uid, "must not be empty");
                } else if !seen.insert(uid.str()) {
                    p.duplicate(&uid);
                }
            }
        }
    }

    fn validate_conditions(&self, p: &mut Problems) {
        let (complete, failed) = (is(self.new, "Complete"), is(self.new, "Failed"));
        let (failing, met) = (is(self.new, "FailureTarget"), is(self.new, "SuccessCriteriaMet"));
        let complete_turned = self.turned("Complete");
        let refusals = [
            (
                complete && failed && (complete_turned || self.turned("Failed")),
                "cannot set Complete=True and Failed=true conditions",
            ),
            (
                complete && failing && (complete_turned || self.turned("FailureTarget")),
                "cannot set Complete=True and FailureTarget=true conditions",
            ),
            (
                failed && !failing && (self.turned("Failed") || self.differs("failedIndexes")),
                "cannot set Failed=True condition without the FailureTarget=true condition",
            ),
            (
                complete && !met && (complete_turned || self.turned("SuccessCriteriaMet")),
                "cannot set Complete=True condition without the SuccessCriteriaMet=true condition",
            ),
            (
                met && failed,
                "cannot set SuccessCriteriaMet=True and Failed=true conditions",
            ),
            (
                met && failing,
                "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions",
            ),
            (
                complete && !met && self.spec.at("successPolicy").exists(),
                "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True",
            ),
        ];
        for (refused, detail) in refusals {
            if refused {
                self.against_conditions(detail, p);
            }
        }
    }

    fn validate_times(&self, p: &mut Problems) {
        let (start, completion) = (self.status.at("startTime"), self.status.at("completionTime"));
        let complete = is(self.new, "Complete");
        if self.turned("Complete") || self.differs("completionTime") {
            if completion.exists() && !complete {
                p.invalid(
                    &completion,
                    "cannot set completionTime when there is no Complete=True condition",
                );
            }
            if !completion.exists() && complete {
                p.required(&completion, "completionTime is required for Complete jobs");
            }
        }
        // Timestamps are all in one form, in which the order of the text is the order of time.
        let moved = self.differs("startTime") || self.differs("completionTime");
        if moved && start.exists() && completion.exists() && completion.str() < start.str() {
            p.invalid(&completion, "must be equal to or after `startTime`");
        }
    }

    fn validate_finished(&self, p: &mut Problems) {
        if !self.finished {
            return;
        }
        let turned = self.finish_turned();
        let active = self.status.at("active");
        if count(&active) > 0 && (turned || self.number_differs("active")) {
            p.invalid(&active, "active>0 is invalid for finished job");
        }
        let start = self.status.at("startTime");
        let nothing_to_do = self.spec.at("suspend").is_true() && self.spec.at("completions").as_i64() == Some(0);
        if !start.exists() && (turned || self.differs("startTime")) && !nothing_to_do {
            p.required(&start, "startTime is required for finished job");
        }
        let uncounted = self.status.at("uncountedTerminatedPods");
        let waiting = uncounted.at("failed").len() + uncounted.at("succeeded").len() > 0;
        if waiting && (turned || self.differs("uncountedTerminatedPods")) {
            p.invalid(&uncounted, "must be empty for finished job");
        }
        let terminating = self.status.at("terminating");
        if count(&terminating) > 0 && (turned || self.differs("terminating")) {
            p.invalid(&terminating, "terminating>0 is invalid for finished job");
        }
    }

    fn validate_indexes(&self, p: &mut Problems) {
        let (done, failed) = (self.status.at("completedIndexes"), self.status.at("failedIndexes"));
        let (done_differs, failed_differs) = (
            done.str() != self.old_status.at("completedIndexes").str(),
            self.differs("failedIndexes"),
        );
        let per_index = self.spec.at("backoffLimitPerIndex").exists();
        let completions = self.spec.at("completions").as_i64();
        if let Some(limit) = completions {
            if done_differs && let Err(why) = job_indexes::parse(done.str(), limit) {
                p.invalid(&done, format!("error parsing completedIndexes: {why}"));
            }
            if failed_differs
                && per_index
                && let Err(why) = job_indexes::parse(failed.str(), limit)
            {
                p.invalid(&failed, format!("error parsing failedIndexes: {why}"));
            }
        }
        if done_differs && !done.is_empty() && !job_spec::is_indexed(&self.spec) {
            p.invalid(
                &done,
                "cannot set non-empty completedIndexes when non-indexed completion mode",
            );
        }
        if failed_differs && failed.exists() && !per_index {
            p.invalid(
                &failed,
                "cannot set non-null failedIndexes when backoffLimitPerIndex is null",
            );
        }
        if (done_differs || failed_differs)
            && let Some(limit) = completions
            && let Some(index) = job_indexes::first_common(done.str(), failed.str(), limit)
        {
            p.invalid(
                &failed,
                format!("failedIndexes and completedIndexes overlap at index: {index}"),
            );
        }
    }

    /// Counters and terminal conditions do not go back.
    fn validate_progress(&self, p: &mut Problems) {
        let ready = self.status.at("ready");
        let readiness_differs = self.differs("ready") || self.number_differs("active");
        if readiness_differs && ready.exists() && count(&ready) > count(&self.status.at("active")) {
            p.invalid(&ready, "cannot set more ready pods than active");
        }
        for condition in ["Failed", "Complete", "FailureTarget"] {
            if is(self.old, condition) && !is(self.new, condition) {
                self.against_conditions(&format!("cannot disable the terminal {condition}=True condition"), p);
            }
        }
        // An indexed Job whose completions follow its parallelism can be scaled down, and its successes with it.
        let elastic = job_spec::is_indexed(&self.spec)
            && self.spec.at("completions").value() == self.spec.at("parallelism").value();
        for (field, fixed) in [("failed", true), ("succeeded", !elastic)] {
            let now = self.status.at(field);
            if fixed && count(&now) < count(&self.old_status.at(field)) {
                let shown = Value::from(count(&now));
                p.invalid_value(now.path(), &shown, format!("cannot decrease the {field} counter"));
            }
        }
        let completion = self.status.at("completionTime");
        if completion.exists() && self.old_status.at("completionTime").exists() && self.differs("completionTime") {
            p.invalid(&completion, "field is immutable");
        }
        let resuming = is(self.old, "Suspended") && has_condition(self.new, "Suspended", "False");
        let started = self.old_status.at("startTime").exists();
        if started && self.differs("startTime") && !resuming && !self.spec.at("suspend").is_true() {
            p.invalid(
                &self.status.at("startTime"),
                "field is immutable for unsuspended job once set",
            );
        }
        let (met, was_met) = (is(self.new, "SuccessCriteriaMet"), is(self.old, "SuccessCriteriaMet"));
        if was_met && !met {
            self.against_conditions("cannot disable the SuccessCriteriaMet=True condition", p);
        }
        if is(self.old, "Complete") && !was_met && met {
            self.against_conditions(
                "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions",
                p,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::found;
    use serde_json::json;

    const START: &str = "2026-01-01T00:00:00Z";
    const LATER: &str = "2026-01-01T00:01:00Z";

    fn conditions(names: &[&str]) -> Value {
        names.iter().map(|n| json!({"type": n, "status": "True"})).collect()
    }

    fn said(spec: &Value, new: Value, old: Value) -> String {
        let (new, old) = (
            json!({"spec": spec, "status": new}),
            json!({"spec": spec, "status": old}),
        );
        found(|p| validate(&Cursor::root(&new), &Cursor::root(&old), p)).join("\n")
    }

    #[test]
    fn the_way_a_job_goes() {
        let spec = json!({"completions": 2, "parallelism": 2, "completionMode": "NonIndexed"});
        let running = json!({"startTime": START, "active": 2, "ready": 1});
        let met = json!({"startTime": START, "succeeded": 2, "conditions": conditions(&["SuccessCriteriaMet"]),
            "uncountedTerminatedPods": {"succeeded": ["a", "b"]}});
        let done = json!({"startTime": START, "completionTime": LATER, "succeeded": 2, "uncountedTerminatedPods": {},
            "conditions": conditions(&["SuccessCriteriaMet", "Complete"])});
        let failed = json!({"startTime": START, "failed": 1, "conditions": conditions(&["FailureTarget", "Failed"])});
        for (new, old) in [
            (&running, &json!({})),
            (&met, &running),
            (&done, &met),
            (&done, &done),
            (&failed, &running),
        ] {
            assert_eq!(said(&spec, new.clone(), old.clone()), "");
        }
    }

    #[test]
    fn what_is_refused() {
        let spec = json!({"completions": 2, "parallelism": 2, "completionMode": "NonIndexed"});
        let both = json!({"startTime": START, "completionTime": LATER,
            "conditions": conditions(&["SuccessCriteriaMet", "Complete", "FailureTarget", "Failed"])});
        let c = "status.conditions: Invalid value";
        let done = |more: Value| {
            let mut status = json!({"startTime": START, "completionTime": LATER,
                "conditions": conditions(&["SuccessCriteriaMet", "Complete"])});
            status
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            status
        };
        for (new, old, wanted) in [
            (json!({"active": -1}), json!({}), "status.active: Invalid value: -1: must be greater than or equal to 0".to_string()),
            (
                json!({"uncountedTerminatedPods": {"succeeded": ["", "a"], "failed": ["a"]}}),
                json!({}),
                "status.uncountedTerminatedPods.succeeded[0]: Invalid value: \"\": must not be empty\nstatus.uncountedTerminatedPods.failed[0]: Duplicate value: \"a\"".to_string(),
            ),
            (
                both,
                json!({}),
                format!("{c}: cannot set Complete=True and Failed=true conditions\n{c}: cannot set Complete=True and FailureTarget=true conditions\n{c}: cannot set SuccessCriteriaMet=True and Failed=true conditions\n{c}: cannot set SuccessCriteriaMet=True and FailureTarget=true conditions"),
            ),
            (
                json!({"startTime": START, "conditions": conditions(&["Failed"])}),
                json!({}),
                format!("{c}: cannot set Failed=True condition without the FailureTarget=true condition"),
            ),
            (
                json!({"startTime": START, "completionTime": LATER, "conditions": conditions(&["Complete"])}),
                json!({}),
                format!("{c}: cannot set Complete=True condition without the SuccessCriteriaMet=true condition"),
            ),
            (
                done(json!({"completionTime": null})),
                json!({}),
                "status.completionTime: Required value: completionTime is required for Complete jobs".to_string(),
            ),
            (
                json!({"completionTime": LATER}),
                json!({}),
                format!("status.completionTime: Invalid value: \"{LATER}\": cannot set completionTime when there is no Complete=True condition"),
            ),
            (
                done(json!({"startTime": LATER, "completionTime": START})),
                json!({}),
                format!("status.completionTime: Invalid value: \"{START}\": must be equal to or after `startTime`"),
            ),
            (done(json!({"active": 1})), json!({}), "status.active: Invalid value: 1: active>0 is invalid for finished job".to_string()),
            (done(json!({"startTime": null})), json!({}), "status.startTime: Required value: startTime is required for finished job".to_string()),
            (
                done(json!({"uncountedTerminatedPods": {"failed": ["a"]}})),
                json!({}),
                "status.uncountedTerminatedPods: Invalid value: {\"failed\":[\"a\"]}: must be empty for finished job".to_string(),
            ),
            (
                done(json!({"terminating": 1})),
                json!({}),
                "status.terminating: Invalid value: 1: terminating>0 is invalid for finished job".to_string(),
            ),
            (
                json!({"completedIndexes": "0"}),
                json!({}),
                "status.completedIndexes: Invalid value: \"0\": cannot set non-empty completedIndexes when non-indexed completion mode".to_string(),
            ),
            (
                json!({"failedIndexes": ""}),
                json!({}),
                "status.failedIndexes: Invalid value: \"\": cannot set non-null failedIndexes when backoffLimitPerIndex is null".to_string(),
            ),
            (json!({"ready": 2, "active": 1}), json!({}), "status.ready: Invalid value: 2: cannot set more ready pods than active".to_string()),
            (
                json!({"startTime": START, "completionTime": LATER, "conditions": conditions(&["SuccessCriteriaMet"])}),
                done(json!({})),
                format!("status.completionTime: Invalid value: \"{LATER}\": cannot set completionTime when there is no Complete=True condition\n{c}: cannot disable the terminal Complete=True condition"),
            ),
            (json!({"failed": 1}), json!({"failed": 2}), "status.failed: Invalid value: 1: cannot decrease the failed counter".to_string()),
            (json!({}), json!({"succeeded": 2}), "status.succeeded: Invalid value: 0: cannot decrease the succeeded counter".to_string()),
            (
                done(json!({"completionTime": "2026-01-01T00:02:00Z"})),
                done(json!({})),
                "status.completionTime: Invalid value: \"2026-01-01T00:02:00Z\": field is immutable".to_string(),
            ),
            (
                json!({"startTime": LATER}),
                json!({"startTime": START}),
                format!("status.startTime: Invalid value: \"{LATER}\": field is immutable for unsuspended job once set"),
            ),
            (
                json!({}),
                json!({"conditions": conditions(&["SuccessCriteriaMet"])}),
                format!("{c}: cannot disable the SuccessCriteriaMet=True condition"),
            ),
        ] {
            assert_eq!(said(&spec, new, old), wanted);
        }
    }

    #[test]
    fn indexed_jobs() {
        let spec = json!({"completions": 4, "parallelism": 4, "completionMode": "Indexed", "backoffLimitPerIndex": 1});
        for (new, old, wanted) in [
            (
                json!({"completedIndexes": "0,2-3", "failedIndexes": "1"}),
                json!({}),
                "",
            ),
            (json!({"succeeded": 1}), json!({"succeeded": 3}), ""),
            (json!({"completedIndexes": "9"}), json!({"completedIndexes": "9"}), ""),
            (
                json!({"completedIndexes": "4"}),
                json!({}),
                "status.completedIndexes: Invalid value: \"4\": error parsing completedIndexes: too large index: \"4\"",
            ),
            (
                json!({"failedIndexes": "x"}),
                json!({}),
                "status.failedIndexes: Invalid value: \"x\": error parsing failedIndexes: cannot convert string to integer for index: \"x\"",
            ),
            (
                json!({"completedIndexes": "0-2", "failedIndexes": "2"}),
                json!({}),
                "status.failedIndexes: Invalid value: \"2\": failedIndexes and completedIndexes overlap at index: 2",
            ),
        ] {
            assert_eq!(said(&spec, new, old), wanted);
        }
    }

    #[test]
    fn a_suspended_job_may_start_again() {
        let spec = json!({"suspend": false, "completions": 1, "parallelism": 1});
        let resumed = json!({"startTime": LATER, "conditions": [{"type": "Suspended", "status": "False"}]});
        let suspended = json!({"startTime": START, "conditions": conditions(&["Suspended"])});
        assert_eq!(said(&spec, resumed, suspended), "");
    }
}

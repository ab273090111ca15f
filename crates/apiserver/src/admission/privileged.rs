//! `--allow-privileged=false`: no container may be privileged.
//!
//! Upstream this is part of validation (pkg/apis/core/validation, v1.36): it says so in the same words.

use orlop_api::{Path, ProblemKind, Problems, Status, Value};

use super::{Review, pod_security};
use crate::lookup::items;

const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Refuses pods, and workloads with templates of pods, that ask for it.
pub(super) fn refuse(review: &Review<'_>, object: &Value) -> Result<(), Status> {
    let whole = review.kind.group.is_empty() && review.kind.plural == "pods";
    let templates = pod_security::TEMPLATES.iter();
    let template = templates
        .filter(|(group, plural, _)| review.is(group, plural))
        .map(|(_, _, place)| *place);
    let Some(place) = whole.then_some("").into_iter().chain(template).next() else {
        return Ok(());
    };
    let Some(spec) = object.pointer(&format!("{place}/spec")) else {
        return Ok(());
    };
    let path = place
        .split('/')
        .filter(|part| !part.is_empty())
        .fold(Path::default(), |path, part| path.field(part));
    let path = path.field("spec");
    let mut problems = Problems::default();
    for list in LISTS {
        for (n, container) in items(spec, &[list]).iter().enumerate() {
            if container["securityContext"]["privileged"] == true {
                let at = path.field(list).index(n).field("securityContext").field("privileged");
                problems.push(ProblemKind::Forbidden, &at, None, "disallowed by cluster policy");
            }
        }
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(Status::invalid(
            review.kind.group,
            review.kind.kind,
            review.displayed_name(),
            &problems,
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Operation;
    use super::super::fixture::{Desk, told};
    use super::*;

    #[test]
    fn pods_and_templates_that_ask_for_it_are_refused() {
        let spec = json!({"containers": [{"name": "a"}, {"name": "b", "securityContext": {"privileged": true}}]});
        let pod = json!({"metadata": {"name": "p"}, "spec": spec});
        let job = json!({"metadata": {"name": "j"}, "spec": {"jobTemplate": {"spec": {"template": {"spec": spec}}}}});
        let plain = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}]}});
        let desk = Desk::new();
        for (what, object, message) in [
            (
                "pods",
                &pod,
                "Pod \"p\" is invalid: spec.containers[1].securityContext.privileged: Forbidden: disallowed by cluster policy",
            ),
            (
                "cronjobs.batch",
                &job,
                "CronJob.batch \"j\" is invalid: spec.jobTemplate.spec.template.spec.containers[1].securityContext.privileged: \
                 Forbidden: disallowed by cluster policy",
            ),
            ("pods", &plain, "ok"),
            ("configmaps", &pod, "ok"),
        ] {
            let review = desk.review(Operation::Create, what, object);
            assert_eq!(told(refuse(&review, object)), message);
        }
    }
}

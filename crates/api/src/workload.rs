//! What the kinds that run pods have in common: how defaults are filled in, a selector and the template it must match,
//! counts in a status, the cells of `-o wide`.

use jiff::Timestamp;
use serde_json::Value;

use crate::core::pod_template;
use crate::field::{Cursor, Path, ProblemKind, Problems};
use crate::kind::copy_member;
use crate::selector::LabelSelector;
use crate::{meta, names, printing, schema};

/// Drops what a creator wrote to the status. What stays is what Go writes of an empty one: counts of 0 and the like.
pub fn reset_status(object: &mut Value, schema_name: &str) {
    let ty = schema::schema().get(schema_name).map(|r| schema::schema().ty(r));
    if let Some(status) = ty.and_then(|t| t.field("status")) {
        object["status"] = schema::zero(&status.ty);
    }
}

/// An update through the status subresource where upstream protects the spec alone: annotations, and for most kinds
/// labels, may come along with the status.
pub fn keep_spec(new: &mut Value, old: &Value) {
    copy_member(new, old, "spec");
}

/// Whether `selector` (a `metav1.LabelSelector`) matches `labels`. An absent one matches nothing; none if it is invalid.
pub fn selects(selector: &Cursor<'_>, labels: &Cursor<'_>) -> Option<bool> {
    let Some(value) = selector.value() else {
        return Some(false);
    };
    let mut problems = Problems::default();
    meta::validate_label_selector(selector, &mut problems);
    let parsed = LabelSelector::from_object(value).ok()?;
    problems.is_empty().then(|| parsed.matches_map(labels.value()))
}

/// A selector with neither labels nor expressions.
pub fn selects_all(selector: &Cursor<'_>) -> bool {
    selector.exists() && selector.at("matchLabels").is_empty() && selector.at("matchExpressions").is_empty()
}

/// The required, nonempty selector of a spec.
pub fn validate_selector(selector: &Cursor<'_>, owner: &str, p: &mut Problems) {
    if !selector.exists() {
        p.required(selector, "");
        return;
    }
    meta::validate_label_selector(selector, p);
    if selects_all(selector) {
        p.invalid(selector, format!("empty selector is invalid for {owner}"));
    }
}

/// The labels that must match the selector.
pub fn labels_mismatch(template: &Cursor<'_>, p: &mut Problems) {
    let labels = template.at("metadata").at("labels");
    p.invalid(&labels, "`selector` does not match template `labels`");
}

/// Pods of long-running kinds are restarted always, and have no deadline.
pub fn validate_long_running(template: &Cursor<'_>, owner: &str, p: &mut Problems) {
    let spec = template.at("spec");
    if spec.at("restartPolicy").str() != "Always" {
        p.not_supported(&spec.at("restartPolicy"), &["Always"]);
    }
    let deadline = spec.at("activeDeadlineSeconds");
    if deadline.exists() {
        p.forbidden(&deadline, format!("activeDeadlineSeconds in {owner} is not Supported"));
    }
}

/// `Unsupported value` with the value and the order of the list as given; upstream does not sort these lists.
pub fn unsupported(path: &Path, value: String, supported: &[&str], p: &mut Problems) {
    let list: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
    let detail = format!("supported values: {}", list.join(", "));
    p.push(ProblemKind::NotSupported, path, Some(value), detail);
}

/// `Invalid value` without showing any.
pub fn invalid_whole(path: &Path, detail: impl Into<String>, p: &mut Problems) {
    p.push(ProblemKind::Invalid, path, None, detail);
}

pub fn count(c: &Cursor<'_>) -> i64 {
    c.as_i64().unwrap_or(0)
}

/// Each of the named counts is at least 0.
pub fn validate_counts(status: &Cursor<'_>, names: &[&'static str], p: &mut Problems) {
    for name in names {
        p.non_negative(&status.at(name));
    }
}

/// None of the named counts exceeds `limit`.
pub fn validate_not_above(
    status: &Cursor<'_>,
    names: &[&'static str],
    limit: &'static str,
    what: &str,
    p: &mut Problems,
) {
    let most = count(&status.at(limit));
    for name in names {
        let c = status.at(name);
        if count(&c) > most {
            p.invalid(&c, format!("cannot be greater than {what}"));
        }
    }
}

/// `status.collisionCount` only grows.
pub fn validate_collision_count(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let (new, old) = (new.at("collisionCount"), old.at("collisionCount"));
    if old.exists() && (!new.exists() || count(&new) < count(&old)) {
        p.invalid_value(new.path(), &count(&new).into(), "cannot be decremented");
    }
}

/// Advice on a kind whose pods are named after it: on its name, and on its template.
pub fn warnings(object: &Cursor<'_>, old: Option<&Cursor<'_>>) -> Vec<String> {
    let mut out = name_warnings(object, old);
    out.extend(template_warnings(object, old));
    out
}

/// Such names are best DNS labels. Said once, at creation.
pub fn name_warnings(object: &Cursor<'_>, old: Option<&Cursor<'_>>) -> Vec<String> {
    let problems = names::dns_label(object.at("metadata").at("name").str());
    if old.is_some() || problems.is_empty() {
        return vec![];
    }
    vec![format!(
        "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: [{}]",
        problems.join(" ")
    )]
}

/// Advice on the template in a spec, unless nothing changed there.
pub fn template_warnings(object: &Cursor<'_>, old: Option<&Cursor<'_>>) -> Vec<String> {
    let spec = object.at("spec");
    if old.is_some_and(|old| old.at("spec").value() == spec.value()) {
        return vec![];
    }
    pod_template::warnings(&spec.at("template"))
}

/// A label selector in the form of a query: `a=b,c in (x,y),!d`, by key. "" for an absent one; none if it is invalid.
pub fn selector_text(selector: Option<&Value>) -> Option<String> {
    let Some(selector) = selector else {
        return Some(String::new());
    };
    let mut terms: Vec<(&str, String)> = vec![];
    for (key, value) in selector
        .get("matchLabels")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        terms.push((key, format!("{key}={}", value.as_str().unwrap_or(""))));
    }
    for e in selector
        .get("matchExpressions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let key = e.get("key").and_then(Value::as_str).unwrap_or("");
        let mut values: Vec<&str> = e
            .get("values")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        values.sort_unstable();
        let values = values.join(",");
        let text = match e.get("operator").and_then(Value::as_str).unwrap_or("") {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_string(),
            "DoesNotExist" => format!("!{key}"),
            _ => return None,
        };
        terms.push((key, text));
    }
    terms.sort_by_key(|(key, _)| *key);
    let texts: Vec<String> = terms.into_iter().map(|(_, text)| text).collect();
    Some(texts.join(","))
}

/// The SELECTOR cell of most kinds.
pub fn selector_cell(selector: Option<&Value>) -> Value {
    match selector_text(selector) {
        None => "<error>".into(),
        Some(text) if text.is_empty() => "<none>".into(),
        Some(text) => text.into(),
    }
}

/// Time between two timestamps, or since the first if there is no second; "" without a first.
pub fn duration_cell(from: &str, to: &str, now: Timestamp) -> Value {
    let Ok(start) = from.parse::<Timestamp>() else {
        return "".into();
    };
    let end = to.parse::<Timestamp>().unwrap_or(now);
    printing::human_duration(end.as_second() - start.as_second()).into()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::field::Problem;
    use crate::kind::KindDef;
    use crate::kinds;
    use serde_json::json;

    /// The problems a check finds, as text.
    pub fn found(check: impl FnOnce(&mut Problems)) -> Vec<String> {
        let mut problems = Problems::default();
        check(&mut problems);
        problems.0.iter().map(Problem::to_string).collect()
    }

    /// The object with its defaults; they are the same when filled in again.
    pub fn defaulted(def: &KindDef, object: &Value) -> Value {
        let mut once = object.clone();
        (def.default)(&mut once);
        let mut twice = once.clone();
        (def.default)(&mut twice);
        assert_eq!(once, twice, "defaults are idempotent");
        assert!(!once.to_string().contains("null"), "defaults leave no nulls: {once}");
        let ty = schema::schema().get(def.schema).expect("each kind has a type");
        let decoded = schema::from_value(once.clone(), ty).expect("defaults have the right types");
        assert_eq!(decoded.problems, Vec::<String>::new(), "all fields are known");
        once
    }

    /// What `validate` says of an object after defaulting.
    pub fn refused(def: &KindDef, object: &Value) -> Vec<String> {
        let object = defaulted(def, object);
        found(|p| (def.validate)(&Cursor::root(&object), p))
    }

    /// What `validate_update` says, both sides defaulted.
    pub fn update_refused(def: &KindDef, new: &Value, old: &Value) -> Vec<String> {
        let (new, old) = (defaulted(def, new), defaulted(def, old));
        found(|p| (def.validate_update)(&Cursor::root(&new), &Cursor::root(&old), p))
    }

    pub fn status_refused(def: &KindDef, new: &Value, old: &Value) -> Vec<String> {
        found(|p| (def.validate_status)(&Cursor::root(new), &Cursor::root(old), p))
    }

    /// The object with the value at a JSON pointer replaced; null removes the member.
    pub fn with(object: &Value, pointer: &str, value: Value) -> Value {
        let mut out = object.clone();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        let mut at = &mut out;
        for part in parent.split('/').filter(|s| !s.is_empty()) {
            at = match part.parse::<usize>() {
                Ok(i) if at.is_array() => &mut at[i],
                _ => &mut at[part],
            };
        }
        match (name.parse::<usize>(), value) {
            (Ok(i), value) if at.is_array() => at[i] = value,
            (_, Value::Null) => {
                at.as_object_mut().unwrap().remove(name);
            }
            (_, value) => at[name] = value,
        }
        out
    }

    /// A pod template that is fine for every long-running kind.
    pub fn template() -> Value {
        json!({
            "metadata": {"labels": {"app": "web"}},
            "spec": {
                "containers": [{
                    "name": "c", "image": "nginx", "imagePullPolicy": "Always", "resources": {},
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                }],
                "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler",
                "securityContext": {}, "terminationGracePeriodSeconds": 30,
            },
        })
    }

    pub fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// A small manifest of each kind goes all the way to the store, and is by then as Go would write it.
    #[test]
    fn manifests() {
        let pods = r#""template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}"#;
        let once = r#""template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}"#;
        let selector = r#""selector":{"matchLabels":{"a":"b"}}"#;
        let target = r#""maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"}"#;
        let claim = r#"{"metadata":{"name":"d"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}"#;
        for (api_version, kind, rest) in [
            ("v1", "ReplicationController", format!(r#""spec":{{{pods}}}"#)),
            ("apps/v1", "Deployment", format!(r#""spec":{{{selector},{pods}}}"#)),
            ("apps/v1", "ReplicaSet", format!(r#""spec":{{{selector},{pods}}}"#)),
            ("apps/v1", "DaemonSet", format!(r#""spec":{{{selector},{pods}}}"#)),
            (
                "apps/v1",
                "StatefulSet",
                format!(r#""spec":{{{selector},{pods},"volumeClaimTemplates":[{claim}]}}"#),
            ),
            (
                "apps/v1",
                "ControllerRevision",
                r#""data":{"a":1},"revision":2"#.to_string(),
            ),
            ("batch/v1", "Job", format!(r#""spec":{{{once}}}"#)),
            (
                "batch/v1",
                "CronJob",
                format!(r#""spec":{{"schedule":"@daily","jobTemplate":{{"spec":{{{once}}}}}}}"#),
            ),
            (
                "autoscaling/v2",
                "HorizontalPodAutoscaler",
                format!(r#""spec":{{{target},"behavior":{{}}}}"#),
            ),
            (
                "autoscaling/v1",
                "HorizontalPodAutoscaler",
                format!(r#""spec":{{{target}}}"#),
            ),
            (
                "policy/v1",
                "PodDisruptionBudget",
                format!(r#""spec":{{{selector},"minAvailable":1}}"#),
            ),
            ("scheduling.k8s.io/v1", "PriorityClass", r#""value":5"#.to_string()),
            (
                "coordination.k8s.io/v1",
                "Lease",
                r#""spec":{"holderIdentity":"me","leaseDurationSeconds":3}"#.to_string(),
            ),
        ] {
            let text = format!(
                r#"{{"apiVersion":"{api_version}","kind":"{kind}","metadata":{{"name":"n","uid":"u"}},{rest}}}"#
            );
            let def = kinds::all()
                .find(|k| k.api_version() == api_version && k.kind == kind)
                .expect("in the table");
            let ty = schema::schema().get(def.schema).expect("each kind has a type");
            let decoded = schema::decode_json(text.as_bytes(), ty).unwrap();
            assert_eq!(decoded.problems, Vec::<String>::new(), "{kind}");
            let mut object = decoded.value;
            (def.default)(&mut object);
            (def.prepare_create)(&mut object);
            let problems = found(|p| (def.validate)(&Cursor::root(&object), p));
            assert_eq!(problems, Vec::<String>::new(), "{kind}");
            let again = schema::from_value(object.clone(), ty).unwrap();
            assert_eq!(again.value, object, "{kind}");
            let mut defaulted = object.clone();
            (def.default)(&mut defaulted);
            assert_eq!(defaulted, object, "{kind}");
            let row = (def.cells)(&object, at("2026-01-01T00:00:00Z"));
            assert_eq!(row.len(), def.columns.len(), "{kind}");
        }
    }

    #[test]
    fn selectors_as_text() {
        for (selector, wanted) in [
            (json!(null), Some("")),
            (json!({}), Some("")),
            (json!({"matchLabels": {"b": "1", "a": ""}}), Some("a=,b=1")),
            (
                json!({"matchLabels": {"m": "1"}, "matchExpressions": [
                    {"key": "z", "operator": "Exists"},
                    {"key": "c", "operator": "In", "values": ["y", "x"]},
                    {"key": "d", "operator": "NotIn", "values": ["y"]},
                    {"key": "e", "operator": "DoesNotExist"},
                ]}),
                Some("c in (x,y),d notin (y),!e,m=1,z"),
            ),
            (json!({"matchExpressions": [{"key": "z", "operator": "Near"}]}), None),
        ] {
            assert_eq!(selector_text(Some(&selector)).as_deref(), wanted, "{selector}");
        }
        assert_eq!(selector_cell(None), "<none>");
        assert_eq!(
            selector_cell(Some(&json!({"matchExpressions": [{"key": "a"}]}))),
            "<error>"
        );
    }

    #[test]
    fn warnings_about_names() {
        let object = json!({"metadata": {"name": "a.b"}});
        let c = Cursor::root(&object);
        let said = name_warnings(&c, None);
        assert!(
            said.len() == 1 && said[0].ends_with("a DNS label is recommended: [must not contain dots]"),
            "{said:?}"
        );
        assert!(name_warnings(&c, Some(&c)).is_empty());
        assert!(name_warnings(&Cursor::root(&json!({"metadata": {"name": "a"}})), None).is_empty());
    }
}

//! Object metadata and label selectors as objects: the same rules in every kind.
//!
//! Upstream: apimachinery pkg/api/validation/objectmeta.go and pkg/apis/meta/v1/validation (v1.36).

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::field::{Cursor, Path, ProblemKind, Problems};
use crate::names::{self, Rule, pattern_message};

/// All annotations of an object, keys and values together.
pub const MAX_ANNOTATIONS_BYTES: usize = 256 * 1024;
pub const MAX_FIELD_MANAGER_BYTES: usize = 128;
const MAX_SUBRESOURCE_BYTES: usize = 256;
const MAX_CONDITION_REASON_BYTES: usize = 1024;
const MAX_CONDITION_MESSAGE_BYTES: usize = 32 * 1024;

/// `Invalid value` for a string field, which Go shows as "" when it is absent.
pub fn invalid_text(c: &Cursor<'_>, detail: impl Into<String>, p: &mut Problems) {
    p.invalid_value(c.path(), &json!(c.str()), detail);
}

/// `field is immutable` for a string field: absent and "" are the same.
pub fn immutable_text(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    if new.str() != old.str() {
        invalid_text(new, "field is immutable", p);
    }
}

/// `Unsupported value` with the supported ones in the order given: some rules list them sorted, some do not.
pub fn not_supported(c: &Cursor<'_>, supported: &[&str], p: &mut Problems) {
    let list: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
    let detail = format!("supported values: {}", list.join(", "));
    p.push(
        ProblemKind::NotSupported,
        c.path(),
        Some(format!("{:?}", c.str())),
        detail,
    );
}

/// The value of an annotation of an object (not of its metadata).
pub fn annotation<'a>(object: &Cursor<'a>, key: &str) -> Option<&'a str> {
    object.at("metadata").at("annotations").value()?.get(key)?.as_str()
}

/// The value of a label of an object.
pub fn label<'a>(object: &Cursor<'a>, key: &str) -> Option<&'a str> {
    object.at("metadata").at("labels").value()?.get(key)?.as_str()
}

/// Validates the ObjectMeta of a new object. `namespaced` and `name_rule` come from the kind. A name has been generated
/// by now if one was asked for.
pub fn validate_create(meta: &Cursor<'_>, namespaced: bool, name_rule: Rule, p: &mut Problems) {
    let prefix = meta.at("generateName");
    if !prefix.is_empty() {
        for message in name_rule(&masked_prefix(prefix.str())) {
            p.invalid(&prefix, message);
        }
    }
    let name = meta.at("name");
    if name.is_empty() {
        p.required(&name, "name or generateName is required");
    } else {
        p.invalid_each(&name, name_rule(name.str()));
    }
    let namespace = meta.at("namespace");
    match (namespaced, namespace.is_empty()) {
        (true, true) => p.required(&namespace, ""),
        (true, false) => p.invalid_each(&namespace, names::dns_label(namespace.str())),
        (false, false) => p.forbidden(&namespace, "not allowed on this type"),
        (false, true) => {}
    }
    p.non_negative(&meta.at("generation"));
    validate_common(meta, p);
}

/// Validates the ObjectMeta of an update: what may not change has not changed. The caller has carried over what an
/// update need not repeat (uid, creationTimestamp, deletionTimestamp, and the resourceVersion if none was demanded).
pub fn validate_update(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    if old.at("deletionTimestamp").exists() {
        validate_no_new_finalizers(&new.at("finalizers"), &old.at("finalizers"), p);
    }
    let version = new.at("resourceVersion");
    if version.is_empty() {
        invalid_text(&version, "must be specified for an update", p);
    }
    let generation = new.at("generation");
    if generation.as_i64().unwrap_or(0) < old.at("generation").as_i64().unwrap_or(0) {
        let shown = json!(generation.as_i64().unwrap_or(0));
        p.invalid_value(generation.path(), &shown, "must not be decremented");
    }
    for field in ["name", "namespace", "uid"] {
        immutable_text(&new.at(field), &old.at(field), p);
    }
    for field in ["creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        p.immutable(&new.at(field), &old.at(field));
    }
    validate_common(new, p);
}

fn validate_common(meta: &Cursor<'_>, p: &mut Problems) {
    validate_labels(&meta.at("labels"), p);
    validate_annotations(&meta.at("annotations"), p);
    validate_owner_references(&meta.at("ownerReferences"), p);
    validate_finalizers(&meta.at("finalizers"), p);
    validate_managed_fields(&meta.at("managedFields"), p);
}

/// What the name rule sees of a generateName: a dash at the end is fine, as more characters follow. Upstream takes the
/// character before the dash with it; so do we, that the same prefixes pass.
fn masked_prefix(prefix: &str) -> String {
    match prefix.strip_suffix('-') {
        Some(stem) if !stem.is_empty() => {
            let mut chars = stem.chars();
            chars.next_back();
            format!("{}a", chars.as_str())
        }
        _ => prefix.to_string(),
    }
}

/// The labels and annotations of a template (a pod's, a claim's): only these are looked at.
pub fn validate_template(meta: &Cursor<'_>, p: &mut Problems) {
    validate_annotations(&meta.at("annotations"), p);
    validate_labels(&meta.at("labels"), p);
}

/// `metadata.labels` or any other string map with label syntax. Problems stand at the map, not at the entry.
pub fn validate_labels(labels: &Cursor<'_>, p: &mut Problems) {
    for (key, value) in labels.entries() {
        validate_label_key(key, labels.path(), p);
        for message in names::label_value(value.str()) {
            p.invalid_value(labels.path(), &json!(value.str()), message);
        }
    }
}

/// A label's or a taint's key, shown at `path`.
pub fn validate_label_key(key: &str, path: &Path, p: &mut Problems) {
    for message in names::qualified_name(key) {
        p.invalid_value(path, &json!(key), message);
    }
}

pub fn validate_annotations(annotations: &Cursor<'_>, p: &mut Problems) {
    let mut size = 0;
    for (key, value) in annotations.entries() {
        for message in names::qualified_name(&key.to_lowercase()) {
            p.invalid_value(annotations.path(), &json!(key), message);
        }
        size += key.len() + value.len();
    }
    if size > MAX_ANNOTATIONS_BYTES {
        p.too_long(annotations, MAX_ANNOTATIONS_BYTES);
    }
}

/// An owner needs an apiVersion, a kind, a name and a uid; at most one owner is the controller. Problems carry no index.
pub fn validate_owner_references(references: &Cursor<'_>, p: &mut Problems) {
    let mut controller: Option<String> = None;
    for reference in references.items() {
        validate_owner_reference(&reference, references.path(), p);
        if !reference.at("controller").is_true() {
            continue;
        }
        let this = format!("{}/{}", reference.at("kind").str(), reference.at("name").str());
        match &controller {
            None => controller = Some(this),
            Some(first) => p.invalid(
                references,
                format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                ),
            ),
        }
    }
}

fn validate_owner_reference(reference: &Cursor<'_>, path: &Path, p: &mut Problems) {
    let (api_version, kind) = (reference.at("apiVersion").str(), reference.at("kind").str());
    // More than one slash, and it names no group and version at all.
    let version = match api_version.split('/').collect::<Vec<_>>().as_slice() {
        [version] | [_, version] => version,
        _ => "",
    };
    if version.is_empty() {
        p.invalid_value(
            &path.field("apiVersion"),
            &json!(api_version),
            "version must not be empty",
        );
    }
    for field in ["kind", "name", "uid"] {
        if reference.at(field).is_empty() {
            p.invalid_value(&path.field(field), &json!(""), "must not be empty");
        }
    }
    if api_version == "v1" && kind == "Event" {
        let shown = reference.value().unwrap_or(&Value::Null);
        p.invalid_value(path, shown, "/v1, Kind=Event is disallowed from being an owner");
    }
}

pub fn validate_finalizers(finalizers: &Cursor<'_>, p: &mut Problems) {
    let (mut orphan, mut foreground) = (false, false);
    for finalizer in finalizers.items() {
        for message in names::qualified_name(finalizer.str()) {
            p.invalid_value(finalizers.path(), &json!(finalizer.str()), message);
        }
        match finalizer.str() {
            "orphan" => orphan = true,
            "foregroundDeletion" => foreground = true,
            _ => {}
        }
    }
    if orphan && foreground {
        p.invalid(finalizers, "finalizer orphan and foregroundDeletion cannot be both set");
    }
}

/// Beyond `validate_finalizers`, for all kinds but custom resources: a finalizer without a domain is one of Kubernetes'
/// own.
pub fn validate_builtin_finalizers(finalizers: &Cursor<'_>, p: &mut Problems) {
    for finalizer in finalizers.items() {
        if !is_standard_or_qualified(finalizer.str()) {
            p.invalid(&finalizer, UNQUALIFIED_FINALIZER);
        }
    }
}

pub(crate) const UNQUALIFIED_FINALIZER: &str = "name is neither a standard finalizer name nor is it fully qualified";

pub(crate) fn is_standard_or_qualified(finalizer: &str) -> bool {
    finalizer.contains('/') || matches!(finalizer, "kubernetes" | "orphan" | "foregroundDeletion")
}

fn validate_no_new_finalizers(new: &Cursor<'_>, old: &Cursor<'_>, p: &mut Problems) {
    let known: BTreeSet<&str> = old.items().map(|f| f.str()).collect();
    let extra: BTreeSet<&str> = new.items().map(|f| f.str()).filter(|f| !known.contains(f)).collect();
    if !extra.is_empty() {
        let list: Vec<String> = extra.iter().map(|f| format!("{f:?}")).collect();
        let list = list.join(", ");
        p.forbidden(
            new,
            format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{list}}}"
            ),
        );
    }
}

pub fn validate_managed_fields(entries: &Cursor<'_>, p: &mut Problems) {
    for entry in entries.items() {
        let operation = entry.at("operation");
        if !matches!(operation.str(), "Apply" | "Update") {
            invalid_text(&operation, "must be `Apply` or `Update`", p);
        }
        let fields_type = entry.at("fieldsType");
        if !matches!(fields_type.str(), "" | "FieldsV1") {
            p.invalid(&fields_type, "must be `FieldsV1`");
        }
        validate_field_manager(&entry.at("manager"), p);
        let subresource = entry.at("subresource");
        if subresource.len() > MAX_SUBRESOURCE_BYTES {
            p.too_long(&subresource, MAX_SUBRESOURCE_BYTES);
        }
    }
}

/// A field manager's name: short and printable. Also used for the query parameter of that name.
pub fn validate_field_manager(manager: &Cursor<'_>, p: &mut Problems) {
    if manager.len() > MAX_FIELD_MANAGER_BYTES {
        p.too_long(manager, MAX_FIELD_MANAGER_BYTES);
    }
    for (position, c) in manager.str().char_indices() {
        if c.is_control() || (c.is_whitespace() && c != ' ') {
            p.invalid(
                manager,
                format!("invalid character U+{:04X} (at position {position})", c as u32),
            );
        }
    }
}

/// A `metav1.LabelSelector`.
pub fn validate_label_selector(selector: &Cursor<'_>, p: &mut Problems) {
    validate_labels(&selector.at("matchLabels"), p);
    for requirement in selector.at("matchExpressions").items() {
        validate_requirement(&requirement, p);
    }
}

fn validate_requirement(requirement: &Cursor<'_>, p: &mut Problems) {
    let (operator, values) = (requirement.at("operator"), requirement.at("values"));
    match operator.str() {
        "In" | "NotIn" if values.is_empty() => {
            p.required(&values, "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            p.forbidden(
                &values,
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            );
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        _ => invalid_text(&operator, "not a valid selector operator", p),
    }
    let key = requirement.at("key");
    validate_label_key(key.str(), key.path(), p);
    for value in values.items() {
        p.invalid_each(&value, names::label_value(value.str()));
    }
}

/// A list of `metav1.Condition`.
pub fn validate_conditions(conditions: &Cursor<'_>, p: &mut Problems) {
    let mut seen = BTreeSet::new();
    for condition in conditions.items() {
        let kind = condition.at("type");
        if !seen.insert(kind.str()) {
            p.push(
                ProblemKind::Duplicate,
                kind.path(),
                Some(format!("{:?}", kind.str())),
                "",
            );
        }
        validate_condition(&condition, p);
    }
}

fn validate_condition(condition: &Cursor<'_>, p: &mut Problems) {
    let kind = condition.at("type");
    validate_label_key(kind.str(), kind.path(), p);
    let status = condition.at("status");
    if !matches!(status.str(), "True" | "False" | "Unknown") {
        p.not_supported(&status, &["True", "False", "Unknown"]);
    }
    let observed = condition.at("observedGeneration");
    if observed.as_i64().is_some_and(|n| n < 0) {
        p.invalid(&observed, "must be greater than or equal to zero");
    }
    if !condition.at("lastTransitionTime").exists() {
        p.required(&condition.at("lastTransitionTime"), "");
    }
    let reason = condition.at("reason");
    if reason.is_empty() {
        p.required(&reason, "");
    } else {
        p.invalid_each(&reason, condition_reason(reason.str()));
        if reason.len() > MAX_CONDITION_REASON_BYTES {
            p.too_long(&reason, MAX_CONDITION_REASON_BYTES);
        }
    }
    let message = condition.at("message");
    if message.len() > MAX_CONDITION_MESSAGE_BYTES {
        p.too_long(&message, MAX_CONDITION_MESSAGE_BYTES);
    }
}

fn condition_reason(s: &str) -> Vec<String> {
    let b = s.as_bytes();
    let inner = |c: &u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b',' | b':');
    let fine = match b {
        [] => false,
        [only] => only.is_ascii_alphabetic(),
        [first, middle @ .., last] => {
            first.is_ascii_alphabetic() && middle.iter().all(inner) && (last.is_ascii_alphanumeric() || *last == b'_')
        }
    };
    if fine {
        return vec![];
    }
    vec![pattern_message(
        "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'",
        "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?",
        &["my_name", "MY_NAME", "MyName", "ReasonA,ReasonB", "ReasonA:ReasonB"],
    )]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Problem;

    fn lines(check: impl Fn(&mut Problems)) -> Vec<String> {
        let mut p = Problems::default();
        check(&mut p);
        p.0.iter().map(Problem::to_string).collect()
    }

    fn created(meta: Value, namespaced: bool) -> Vec<String> {
        let object = json!({"metadata": meta});
        lines(|p| {
            validate_create(
                &Cursor::root(&object).at("metadata"),
                namespaced,
                names::dns_subdomain,
                p,
            )
        })
    }

    #[test]
    fn new_objects() {
        let label_shape = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
        let key_shape = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
        let subdomain = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
        let owner = |more: Value| {
            let mut o = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u"});
            o.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            o
        };
        for (meta, problems) in [
            (json!({"name": "a.b"}), vec![]),
            (json!({"generateName": "ab-", "name": "ab-x"}), vec![]),
            (json!({}), vec!["metadata.name: Required value: name or generateName is required".into()]),
            (json!({"name": "A"}), vec![format!("metadata.name: Invalid value: \"A\": {subdomain}")]),
            (
                json!({"generateName": "A_", "name": "a"}),
                vec![format!("metadata.generateName: Invalid value: \"A_\": {subdomain}")],
            ),
            (
                json!({"name": "a", "namespace": "x"}),
                vec!["metadata.namespace: Forbidden: not allowed on this type".into()],
            ),
            (
                json!({"name": "a", "generation": -1}),
                vec!["metadata.generation: Invalid value: -1: must be greater than or equal to 0".into()],
            ),
            (
                json!({"name": "a", "labels": {"k": "-"}}),
                vec![format!("metadata.labels: Invalid value: \"-\": {label_shape}")],
            ),
            (
                json!({"name": "a", "labels": {"k$": "v"}, "annotations": {"UPPER.io/x": "anything goes"}}),
                vec![format!("metadata.labels: Invalid value: \"k$\": {key_shape}")],
            ),
            (
                json!({"name": "a", "annotations": {"-": ""}}),
                vec![format!("metadata.annotations: Invalid value: \"-\": {key_shape}")],
            ),
            (
                json!({"name": "a", "annotations": {"a": "x".repeat(256 * 1024)}}),
                vec!["metadata.annotations: Too long: may not be more than 262144 bytes".into()],
            ),
            (json!({"name": "a", "ownerReferences": [owner(json!({"controller": true})), owner(json!({}))]}), vec![]),
            (
                json!({"name": "a", "ownerReferences": [{"apiVersion": "a/", "kind": "", "name": "", "uid": ""}]}),
                vec![
                    "metadata.ownerReferences.apiVersion: Invalid value: \"a/\": version must not be empty".into(),
                    "metadata.ownerReferences.kind: Invalid value: \"\": must not be empty".into(),
                    "metadata.ownerReferences.name: Invalid value: \"\": must not be empty".into(),
                    "metadata.ownerReferences.uid: Invalid value: \"\": must not be empty".into(),
                ],
            ),
            (
                json!({"name": "a", "ownerReferences": [owner(json!({"apiVersion": "v1", "kind": "Event"}))]}),
                vec![
                    r#"metadata.ownerReferences: Invalid value: {"apiVersion":"v1","kind":"Event","name":"r","uid":"u"}: /v1, Kind=Event is disallowed from being an owner"#.into(),
                ],
            ),
            (json!({"name": "a", "finalizers": ["x.io/y", "orphan"]}), vec![]),
            (
                json!({"name": "a", "finalizers": ["$"]}),
                vec![format!("metadata.finalizers: Invalid value: \"$\": {key_shape}")],
            ),
            (
                json!({"name": "a", "finalizers": ["orphan", "foregroundDeletion"]}),
                vec!["metadata.finalizers: Invalid value: [\"orphan\",\"foregroundDeletion\"]: finalizer orphan and foregroundDeletion cannot be both set".into()],
            ),
            (
                json!({"name": "a", "managedFields": [{"operation": "Apply", "fieldsType": "FieldsV1", "manager": "m"},
                    {"fieldsType": "V2", "manager": "a\tb", "subresource": "s".repeat(257)}]}),
                vec![
                    "metadata.managedFields[1].operation: Invalid value: \"\": must be `Apply` or `Update`".into(),
                    "metadata.managedFields[1].fieldsType: Invalid value: \"V2\": must be `FieldsV1`".into(),
                    "metadata.managedFields[1].manager: Invalid value: \"a\\tb\": invalid character U+0009 (at position 1)".into(),
                    "metadata.managedFields[1].subresource: Too long: may not be more than 256 bytes".into(),
                ],
            ),
        ] {
            assert_eq!(created(meta.clone(), false), problems, "{meta}");
        }
        let two = [
            owner(json!({"controller": true})),
            owner(json!({"controller": true, "name": "s"})),
        ];
        let found = created(json!({"name": "a", "ownerReferences": two}), false);
        let wanted = "Only one reference can have Controller set to true. Found \"true\" in references for ReplicaSet/r and ReplicaSet/s";
        assert!(found.len() == 1 && found[0].ends_with(wanted), "{found:?}");
        assert_eq!(
            created(json!({"name": "a"}), true),
            ["metadata.namespace: Required value"]
        );
        assert_eq!(
            created(json!({"name": "a", "namespace": "x.y"}), true),
            ["metadata.namespace: Invalid value: \"x.y\": must not contain dots"]
        );
    }

    #[test]
    fn updates() {
        let old = json!({"metadata": {
            "name": "a", "namespace": "n", "uid": "u", "generation": 2, "resourceVersion": "5",
            "creationTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x.io/y"]}});
        let deleted = {
            let mut o = old.clone();
            o["metadata"]["deletionTimestamp"] = json!("2026-01-02T00:00:00Z");
            o
        };
        for (old, field, value, wanted) in [
            (&old, "annotations", json!({"a": "b"}), ""),
            (&old, "finalizers", json!(["x.io/y", "x.io/z"]), ""),
            (&deleted, "finalizers", json!([]), ""),
            (
                &deleted,
                "finalizers",
                json!(["x.io/z", "x.io/y", "a.io/b"]),
                "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{\"a.io/b\", \"x.io/z\"}",
            ),
            (
                &old,
                "resourceVersion",
                json!(""),
                "metadata.resourceVersion: Invalid value: \"\": must be specified for an update",
            ),
            (
                &old,
                "generation",
                json!(1),
                "metadata.generation: Invalid value: 1: must not be decremented",
            ),
            (
                &old,
                "name",
                json!("b"),
                "metadata.name: Invalid value: \"b\": field is immutable",
            ),
            (
                &old,
                "namespace",
                json!("m"),
                "metadata.namespace: Invalid value: \"m\": field is immutable",
            ),
            (
                &old,
                "uid",
                json!(""),
                "metadata.uid: Invalid value: \"\": field is immutable",
            ),
            (
                &old,
                "creationTimestamp",
                Value::Null,
                "metadata.creationTimestamp: Invalid value: null: field is immutable",
            ),
            (
                &old,
                "deletionTimestamp",
                json!("2026-01-02T00:00:00Z"),
                "metadata.deletionTimestamp: Invalid value: \"2026-01-02T00:00:00Z\": field is immutable",
            ),
            (
                &old,
                "deletionGracePeriodSeconds",
                json!(3),
                "metadata.deletionGracePeriodSeconds: Invalid value: 3: field is immutable",
            ),
        ] {
            let mut new = old.clone();
            new["metadata"][field] = value;
            let (new, old) = (Cursor::root(&new).at("metadata"), Cursor::root(old).at("metadata"));
            let found = lines(|p| validate_update(&new, &old, p));
            assert_eq!(found.join("\n"), wanted, "{field}");
        }
    }

    #[test]
    fn selectors() {
        let selector = json!({"matchLabels": {"a": "b"}, "matchExpressions": [
            {"key": "a", "operator": "In", "values": ["x"]},
            {"key": "a", "operator": "Exists"},
            {"key": "a", "operator": "NotIn"},
            {"key": "a", "operator": "DoesNotExist", "values": ["x"]},
            {"key": "a/b/c", "operator": "Near"},
            {"key": "a", "operator": "In", "values": ["x", " "]},
        ]});
        let found = lines(|p| validate_label_selector(&Cursor::root(&selector), p));
        let starts = [
            "matchExpressions[2].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
            "matchExpressions[3].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            "matchExpressions[4].operator: Invalid value: \"Near\": not a valid selector operator",
            "matchExpressions[4].key: Invalid value: \"a/b/c\": a valid label key must consist of",
            "matchExpressions[5].values[1]: Invalid value: \" \": a valid label must be",
        ];
        assert_eq!(found.len(), starts.len(), "{found:#?}");
        for (line, start) in found.iter().zip(starts) {
            assert!(line.starts_with(start), "{line}");
        }
    }

    #[test]
    fn conditions() {
        let good = json!({"type": "Ready", "status": "True", "reason": "A_ok:b", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let object =
            json!({"conditions": [good, good, {"type": "", "status": "Yes", "observedGeneration": -1, "reason": "1"}]});
        let found = lines(|p| validate_conditions(&Cursor::root(&object).at("conditions"), p));
        let starts = [
            "conditions[1].type: Duplicate value: \"Ready\"",
            "conditions[2].type: Invalid value: \"\": name part must be non-empty",
            "conditions[2].type: Invalid value: \"\": name part must consist",
            "conditions[2].status: Unsupported value: \"Yes\": supported values: \"False\", \"True\", \"Unknown\"",
            "conditions[2].observedGeneration: Invalid value: -1: must be greater than or equal to zero",
            "conditions[2].lastTransitionTime: Required value",
            "conditions[2].reason: Invalid value: \"1\": a condition reason must start",
        ];
        assert_eq!(found.len(), starts.len(), "{found:#?}");
        for (line, start) in found.iter().zip(starts) {
            assert!(line.starts_with(start), "{line}");
        }
    }
}

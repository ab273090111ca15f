//! What a DaemonSet or StatefulSet looked like before: its ControllerRevisions. Each holds a patch that brings a template
//! back; the highest number is what the workload looks like now. `kubectl rollout history` and `undo` read them.
// Upstream: pkg/controller/history (v1.36)

use std::sync::Arc;

use orlop_client::{Error, path};
use serde_json::{Value, json};

use crate::objects::{ControllerRevision, Kind, Labels, Meta};
use crate::ownership::controller_reference;
use crate::runtime::{ReconcileError, Writer, precondition};

/// On pods: which revision they were made from.
pub(crate) const POD_LABEL: &str = "controller-revision-hash";

/// Upstream cuts the owner's name here so that the hash fits behind it.
const PREFIX_MAX: usize = 223;

/// The patch that brings a template back.
pub(crate) fn patch_of(template: &Value) -> Value {
    let mut template = template.clone();
    template["$patch"] = "replace".into();
    json!({"spec": {"template": template}})
}

/// The template that a revision brings back.
pub(crate) fn template_in(revision: &ControllerRevision) -> Value {
    let mut template = revision.data["spec"]["template"].clone();
    if let Some(fields) = template.as_object_mut() {
        fields.remove("$patch");
    }
    template
}

/// In order, the oldest first.
pub(crate) fn sort(revisions: &mut [Arc<ControllerRevision>]) {
    let order = |r: &ControllerRevision| (r.revision, r.metadata.creation_timestamp, r.metadata.name.clone());
    revisions.sort_by_cached_key(|revision| order(revision));
}

/// Which of the revisions is the present one.
#[derive(Debug)]
pub(crate) enum RevisionChoice {
    Keep(Arc<ControllerRevision>),
    /// One goes back to what once was: that revision becomes the newest.
    Renumber(Arc<ControllerRevision>, i64),
    Create(i64),
}

/// `sorted`: all revisions, the oldest first.
pub(crate) fn choose(sorted: &[Arc<ControllerRevision>], patch: &Value) -> RevisionChoice {
    let found = sorted.iter().rfind(|revision| same(&revision.data, patch));
    let others = sorted.iter().filter(|revision| !same(&revision.data, patch));
    let newest_other = others.map(|revision| revision.revision).max().unwrap_or(0);
    match found {
        None => RevisionChoice::Create(newest_other + 1),
        Some(revision) if revision.revision <= newest_other => {
            RevisionChoice::Renumber(revision.clone(), newest_other + 1)
        }
        Some(revision) => RevisionChoice::Keep(revision.clone()),
    }
}

/// Older servers wrote a `creationTimestamp` of null into every template.
pub(crate) fn same(a: &Value, b: &Value) -> bool {
    const NULL_TIME: &str = "/spec/template/metadata/creationTimestamp";
    let has_null = |data: &Value| data.pointer(NULL_TIME).is_some_and(Value::is_null);
    if a == b || !(has_null(a) || has_null(b)) {
        return a == b;
    }
    let without = |data: &Value| {
        let mut data = data.clone();
        if let Some(Value::Object(meta)) = data.pointer_mut("/spec/template/metadata") {
            meta.remove("creationTimestamp");
        }
        data
    };
    without(a) == without(b)
}

/// A revision as its workload wants it.
pub(crate) struct DesiredRevision<'a> {
    pub patch: &'a Value,
    pub template_labels: Labels,
    /// The label that the hash goes into.
    pub hash_label: &'static str,
    /// Goes into the hash, so that a name that is taken is not tried again.
    pub probe: Option<i64>,
}

pub(crate) enum Ensured {
    There(Arc<ControllerRevision>),
    /// A different revision has the name: count the collision and come again.
    NameTaken,
}

/// Sees to it that the present revision exists and has the highest number.
pub(crate) async fn ensure<O: Kind>(
    writer: &Writer,
    owner: &O,
    sorted: &[Arc<ControllerRevision>],
    wanted: &DesiredRevision<'_>,
) -> Result<Ensured, ReconcileError> {
    match choose(sorted, wanted.patch) {
        RevisionChoice::Keep(revision) => Ok(Ensured::There(revision)),
        RevisionChoice::Renumber(revision, number) => {
            let patch = json!({"metadata": precondition(&revision.metadata), "revision": number});
            let made = writer.patch::<ControllerRevision>(&revision.metadata, &patch).await?;
            Ok(Ensured::There(Arc::new(made)))
        }
        RevisionChoice::Create(number) => {
            let wanted = object(owner, wanted, number);
            let made = writer
                .create::<ControllerRevision>(&owner.meta().namespace, &wanted)
                .await;
            match made {
                Ok(made) => Ok(Ensured::There(Arc::new(made))),
                Err(Error::AlreadyExists(_)) => taken(writer, owner, &wanted).await,
                Err(error) => Err(error.into()),
            }
        }
    }
}

fn object<O: Kind>(owner: &O, wanted: &DesiredRevision<'_>, number: i64) -> Value {
    let meta = owner.meta();
    let hash = hash(wanted.patch, wanted.probe);
    let mut labels = wanted.template_labels.clone();
    labels.insert(wanted.hash_label.to_string(), hash.clone());
    json!({
        "apiVersion": ControllerRevision::API_VERSION,
        "kind": ControllerRevision::KIND,
        "metadata": {
            "name": format!("{}-{hash}", prefix(&meta.name)),
            "namespace": meta.namespace,
            "labels": labels,
            "annotations": meta.annotations,
            "ownerReferences": [controller_reference(owner)],
        },
        "data": wanted.patch,
        "revision": number,
    })
}

/// Names are ASCII, so any place is good for a cut.
fn prefix(name: &str) -> &str {
    name.get(..PREFIX_MAX).unwrap_or(name)
}

/// The cache may not have shown a revision that we made, or one that has lost its owner; or it is somebody else's.
async fn taken<O: Kind>(writer: &Writer, owner: &O, wanted: &Value) -> Result<Ensured, ReconcileError> {
    let meta = owner.meta();
    let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
    let at = path::object(
        ControllerRevision::API_VERSION,
        Some(&meta.namespace),
        ControllerRevision::RESOURCE,
        name,
    );
    let there: ControllerRevision = writer.api().get(&at).await?;
    match there.metadata.controller() {
        Some(other) if other.uid == meta.uid && same(&there.data, &wanted["data"]) => {
            Ok(Ensured::There(Arc::new(there)))
        }
        // Left behind by one of the same name: it is collected, or becomes free for us to take.
        Some(other) if other.uid != meta.uid && other.kind == O::KIND && other.name == meta.name => Err(
            ReconcileError::NotYet(format!("ControllerRevision {name} belongs to a deleted {}", O::KIND)),
        ),
        None if same(&there.data, &wanted["data"]) => Err(ReconcileError::NotYet(format!(
            "ControllerRevision {name} is not adopted yet"
        ))),
        _ => Ok(Ensured::NameTaken),
    }
}

/// The first `count` of those that nothing needs any more. `sorted`: the oldest first.
pub(crate) fn oldest_unused(
    sorted: &[Arc<ControllerRevision>],
    in_use: impl Fn(&ControllerRevision) -> bool,
    count: usize,
) -> Vec<Arc<ControllerRevision>> {
    let unused = sorted.iter().filter(|revision| !in_use(revision));
    unused.take(count).cloned().collect()
}

pub(crate) async fn delete(writer: &Writer, revisions: &[Arc<ControllerRevision>]) -> Result<(), ReconcileError> {
    for revision in revisions {
        match writer.delete::<ControllerRevision>(&revision.metadata).await {
            Ok(()) | Err(Error::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// A patch that says that one more name was taken.
pub(crate) fn count_collision(meta: &Meta, count: Option<i64>) -> Value {
    json!({"metadata": precondition(meta), "status": {"collisionCount": count.unwrap_or(0) + 1}})
}

/// FNV-1 of the patch as Go would write it (so that names are those that Kubernetes gives), in letters that make no words.
pub(crate) fn hash(patch: &Value, probe: Option<i64>) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut text = String::new();
    write_as_go(patch, &mut text);
    if let Some(probe) = probe {
        text.push_str(&probe.to_string());
    }
    let fnv = text.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        hash.wrapping_mul(0x0100_0193) ^ u32::from(byte)
    });
    let digits = fnv.to_string();
    digits
        .bytes()
        .map(|digit| char::from(LETTERS[usize::from(digit) % LETTERS.len()]))
        .collect()
}

/// Compact, keys in order, and what could be taken for HTML escaped.
fn write_as_go(value: &Value, to: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut keys: Vec<&String> = fields.keys().collect();
            keys.sort();
            to.push('{');
            for (i, key) in keys.into_iter().enumerate() {
                if i > 0 {
                    to.push(',');
                }
                write_text_as_go(key, to);
                to.push(':');
                write_as_go(&fields[key], to);
            }
            to.push('}');
        }
        Value::Array(items) => {
            to.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    to.push(',');
                }
                write_as_go(item, to);
            }
            to.push(']');
        }
        Value::String(text) => write_text_as_go(text, to),
        plain => to.push_str(&plain.to_string()),
    }
}

fn write_text_as_go(text: &str, to: &mut String) {
    for c in Value::from(text).to_string().chars() {
        match c {
            '<' => to.push_str("\\u003c"),
            '>' => to.push_str("\\u003e"),
            '&' => to.push_str("\\u0026"),
            '\u{2028}' => to.push_str("\\u2028"),
            '\u{2029}' => to.push_str("\\u2029"),
            c => to.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision(name: &str, number: i64, image: &str) -> Arc<ControllerRevision> {
        let template = json!({"spec": {"image": image}});
        Arc::new(ControllerRevision {
            metadata: Meta {
                name: name.into(),
                ..Meta::default()
            },
            data: patch_of(&template),
            revision: number,
        })
    }

    #[test]
    fn which_revision_is_the_present_one() {
        let wanted = patch_of(&json!({"spec": {"image": "b"}}));
        for (there, expect) in [
            (vec![], "create 1"),
            (vec![("x", 1, "a")], "create 2"),
            (vec![("x", 7, "a")], "create 8"),
            (vec![("x", 1, "a"), ("y", 2, "b")], "keep y"),
            (vec![("y", 1, "b"), ("x", 2, "a")], "renumber y 3"),
            (vec![("y", 2, "b"), ("x", 2, "a")], "renumber y 3"),
            // Two alike: the newer one.
            (vec![("x", 1, "a"), ("y", 2, "b"), ("z", 3, "b")], "keep z"),
            (vec![("y", 1, "b"), ("z", 2, "b"), ("x", 5, "a")], "renumber z 6"),
        ] {
            let mut revisions: Vec<_> = there.iter().map(|(n, r, i)| revision(n, *r, i)).collect();
            revisions.reverse();
            sort(&mut revisions);
            let got = match choose(&revisions, &wanted) {
                RevisionChoice::Keep(r) => format!("keep {}", r.metadata.name),
                RevisionChoice::Renumber(r, n) => format!("renumber {} {n}", r.metadata.name),
                RevisionChoice::Create(n) => format!("create {n}"),
            };
            assert_eq!(got, expect, "{there:?}");
        }
    }

    #[test]
    fn a_template_survives_its_revision() {
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}});
        let revision = ControllerRevision {
            data: patch_of(&template),
            ..ControllerRevision::default()
        };
        assert_eq!(template_in(&revision), template);
        assert_eq!(revision.data["spec"]["template"]["$patch"], "replace");
        let old = patch_of(
            &json!({"metadata": {"creationTimestamp": null, "labels": {"a": "b"}}, "spec": {"containers": []}}),
        );
        assert!(same(&old, &revision.data) && same(&revision.data, &old));
        assert!(!same(&old, &patch_of(&json!({"metadata": {"labels": {"a": "c"}}}))));
    }

    #[test]
    fn hashes_are_those_of_kubernetes() {
        // hash/fnv's New32 of the text, its digits through rand.SafeEncodeString.
        for (patch, probe, expect) in [
            (json!({}), None, fnv_words(b"{}")),
            (
                json!({"b": [1, true, null], "a": "<&>"}),
                Some(0),
                fnv_words(br#"{"a":"\u003c\u0026\u003e","b":[1,true,null]}0"#),
            ),
        ] {
            assert_eq!(hash(&patch, probe), expect);
        }
        assert_eq!(fnv_words(b""), "65bb57b6b5");
        assert_ne!(hash(&json!({}), None), hash(&json!({}), Some(1)));
    }

    fn fnv_words(text: &[u8]) -> String {
        let mut fnv: u64 = 2_166_136_261;
        for byte in text {
            fnv = (fnv * 16_777_619 % (1 << 32)) ^ u64::from(*byte);
        }
        let letters = b"bcdfghjklmnpqrstvwxz2456789";
        let digits = fnv.to_string().into_bytes();
        digits.iter().map(|d| letters[*d as usize % 27] as char).collect()
    }

    #[test]
    fn the_oldest_unused_go_first() {
        let revisions: Vec<_> = (1..=5).map(|n| revision(&format!("r{n}"), n, "x")).collect();
        let names = |count| -> Vec<String> {
            let gone = oldest_unused(&revisions, |r| r.metadata.name == "r2", count);
            gone.iter().map(|r| r.metadata.name.clone()).collect()
        };
        assert_eq!(names(0), [""; 0]);
        assert_eq!(names(2), ["r1", "r3"]);
        assert_eq!(names(9), ["r1", "r3", "r4", "r5"]);
    }
}

//! A Deployment's ReplicaSets: which one has its template, and what they are together.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::objects::{Deployment, PodTemplate, ReplicaSet};
use crate::ownership::controller_reference;

pub(crate) const HASH_LABEL: &str = "pod-template-hash";
const NAME_MAX: usize = 253;

/// The set of the present template, if there is one, and the others from the oldest to the newest.
pub(crate) struct Sets {
    pub new: Option<Arc<ReplicaSet>>,
    pub old: Vec<Arc<ReplicaSet>>,
}

impl Sets {
    pub(crate) fn classify(deployment: &Deployment, mut sets: Vec<Arc<ReplicaSet>>) -> Sets {
        sets.sort_by(|a, b| age(a).cmp(&age(b)));
        // Of several with the template the oldest is the one, whoever asks.
        let place = sets
            .iter()
            .position(|set| same_template(&set.spec.template, &deployment.spec.template));
        Sets {
            new: place.map(|place| sets.remove(place)),
            old: sets,
        }
    }

    /// The old ones, then the new one.
    pub(crate) fn all(&self) -> impl DoubleEndedIterator<Item = &Arc<ReplicaSet>> {
        self.old.iter().chain(&self.new)
    }
}

/// Less is older.
pub(crate) fn age(set: &ReplicaSet) -> (Option<jiff::Timestamp>, &str) {
    (set.metadata.creation_timestamp, &set.metadata.name)
}

pub(crate) fn size(set: &ReplicaSet) -> i64 {
    set.spec.replicas.unwrap_or(1)
}

pub(crate) fn is_active(set: &ReplicaSet) -> bool {
    size(set) > 0
}

/// Whether its status speaks of its present spec.
pub(crate) fn is_observed(set: &ReplicaSet) -> bool {
    set.status.observed_generation >= set.metadata.generation
}

/// Equal but for the label that tells a Deployment's sets apart.
pub(crate) fn same_template(a: &PodTemplate, b: &PodTemplate) -> bool {
    let labels = |t: &PodTemplate| {
        let mut labels = t.metadata.labels.clone();
        labels.remove(HASH_LABEL);
        labels
    };
    a.spec == b.spec
        && a.metadata.annotations == b.metadata.annotations
        && a.metadata.finalizers == b.metadata.finalizers
        && labels(a) == labels(b)
}

/// A short word for the template; another one for each collision there was. The words differ from upstream's, which
/// hashes Go structs and changes with them.
fn hash(template: &PodTemplate, collisions: Option<i64>) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let text = json!([template, collisions]).to_string();
    // FNV-1a
    let number = text.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    let letter = |digit: u8| ALPHABET[usize::from(digit) % ALPHABET.len()] as char;
    number.to_string().bytes().map(letter).collect()
}

/// The ReplicaSet of the Deployment's template. Its name is the template's, so that it is never made twice.
pub(crate) fn new_set(deployment: &Deployment, replicas: i64, annotations: Value) -> (String, Value) {
    let (meta, spec) = (&deployment.metadata, &deployment.spec);
    let hash = hash(&spec.template, deployment.status.collision_count);
    let room = NAME_MAX - 1 - hash.len();
    let stem = &meta.name[..meta.name.floor_char_boundary(room)];
    let name = format!("{stem}-{hash}");
    let mut template = spec.template.clone();
    template.metadata.labels.insert(HASH_LABEL.to_string(), hash.clone());
    let mut selector = spec.selector.clone();
    selector["matchLabels"][HASH_LABEL] = json!(hash);
    let set = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {
            "name": name, "namespace": meta.namespace, "labels": template.metadata.labels, "annotations": annotations,
            "ownerReferences": [controller_reference(deployment)],
        },
        "spec": {
            "replicas": replicas, "minReadySeconds": spec.min_ready_seconds, "selector": selector, "template": template,
        },
    });
    (name, set)
}

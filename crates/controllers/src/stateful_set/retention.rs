//! What becomes of a pod's claims when the set shrinks or goes: who owns them decides, and the garbage collector does it.
//!
//! | whenScaled | whenDeleted | owner |
//! |---|---|---|
//! | Retain | Retain | nobody |
//! | Retain | Delete | the set |
//! | Delete | Retain | the pod, once it is to go |
//! | Delete | Delete | the set; the pod, once it is to go |
// Upstream: pkg/controller/statefulset/stateful_set_utils.go (v1.36)

use crate::objects::{Kind, Meta, OwnerReference, Pod, StatefulSet};
use crate::ownership::controller_reference;

/// What is to be done about a claim's owners.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Owners {
    AsTheyAre,
    /// The new list.
    Set(Vec<OwnerReference>),
    /// Somebody else manages the claim: what the policy says does not count. The new list, if ours are still on it.
    Conflict(Option<Vec<OwnerReference>>),
}

/// The pod that a claim belongs to; one that is not made yet has no uid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder<'a> {
    pub name: &'a str,
    pub uid: &'a str,
    /// Beyond the ordinals that the set is to have.
    pub condemned: bool,
}

fn deletes(policy: &str) -> bool {
    policy == "Delete"
}

/// Whether the reference names the set or the pod, whatever the uid.
fn names(reference: &OwnerReference, kind: &str, api_version: &str, name: &str) -> bool {
    reference.kind == kind && reference.api_version == api_version && reference.name == name
}

fn names_set(reference: &OwnerReference, set: &StatefulSet) -> bool {
    names(
        reference,
        StatefulSet::KIND,
        StatefulSet::API_VERSION,
        &set.metadata.name,
    )
}

fn names_pod(reference: &OwnerReference, pod: &Holder<'_>) -> bool {
    names(reference, Pod::KIND, Pod::API_VERSION, pod.name)
}

/// A claim of a pod that is gone, to be deleted with it: a new pod must wait for a new claim.
pub(super) fn is_left_over(set: &StatefulSet, pod: &Holder<'_>, claim: &Meta) -> bool {
    let policy = &set.spec.persistent_volume_claim_retention_policy;
    let mut owners = claim.owner_references.iter();
    deletes(&policy.when_scaled) && owners.any(|owner| names_pod(owner, pod) && owner.uid != pod.uid)
}

/// Whom the policy wants on a claim.
pub(super) fn wanted(set: &StatefulSet, pod: &Holder<'_>) -> Vec<OwnerReference> {
    let policy = &set.spec.persistent_volume_claim_retention_policy;
    let (scaled, deleted) = (deletes(&policy.when_scaled), deletes(&policy.when_deleted));
    let goes = scaled && pod.condemned;
    if goes {
        vec![OwnerReference {
            api_version: Pod::API_VERSION.to_string(),
            kind: Pod::KIND.to_string(),
            name: pod.name.to_string(),
            uid: pod.uid.to_string(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]
    } else if deleted {
        vec![controller_reference(set)]
    } else {
        vec![]
    }
}

pub(super) fn plan(set: &StatefulSet, pod: &Holder<'_>, claim: &Meta) -> Owners {
    let owners = &claim.owner_references;
    let stale = |o: &OwnerReference| {
        (names_set(o, set) && o.uid != set.metadata.uid) || (names_pod(o, pod) && o.uid != pod.uid)
    };
    if owners.iter().any(stale) {
        // From an earlier set or pod of the name: the garbage collector has the word.
        return Owners::AsTheyAre;
    }
    let ours = |o: &&OwnerReference| names_set(o, set) || names_pod(o, pod);
    let others: Vec<OwnerReference> = owners.iter().filter(|o| !ours(o)).cloned().collect();
    let policy = &set.spec.persistent_volume_claim_retention_policy;
    let matters = deletes(&policy.when_scaled) || deletes(&policy.when_deleted);
    if matters && others.iter().any(|o| o.controller == Some(true)) {
        return Owners::Conflict((others.len() < owners.len()).then_some(others));
    }
    let wanted = wanted(set, pod);
    let now: Vec<&OwnerReference> = owners.iter().filter(ours).collect();
    let as_wanted = now.len() == wanted.len()
        && wanted
            .iter()
            .all(|w| now.iter().any(|o| o.uid == w.uid && o.controller == Some(true)));
    match as_wanted {
        true => Owners::AsTheyAre,
        false => Owners::Set(others.into_iter().chain(wanted).collect()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(scaled: &str, deleted: &str) -> StatefulSet {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "uid": "s"},
            "spec": {"persistentVolumeClaimRetentionPolicy": {"whenScaled": scaled, "whenDeleted": deleted}},
        }))
        .unwrap()
    }

    /// `set`, `pod`, `set?` (not managing), `old-set`, `old-pod`, `other`, `other!` (managing).
    fn owners(words: &str) -> Vec<OwnerReference> {
        let one = |word: &str| {
            let (kind, version, name, uid) = match word.trim_end_matches(['!', '?']) {
                "set" => ("StatefulSet", "apps/v1", "web", "s"),
                "old-set" => ("StatefulSet", "apps/v1", "web", "s-before"),
                "pod" => ("Pod", "v1", "web-3", "p"),
                "old-pod" => ("Pod", "v1", "web-3", "p-before"),
                _ => ("ConfigMap", "v1", "x", "x"),
            };
            let managing = word.ends_with('!') || !(word.ends_with('?') || word == "other");
            OwnerReference {
                api_version: version.into(),
                kind: kind.into(),
                name: name.into(),
                uid: uid.into(),
                controller: managing.then_some(true),
                block_owner_deletion: Some(true),
            }
        };
        words.split_whitespace().map(one).collect()
    }

    fn told(owners: &[OwnerReference]) -> String {
        let word = |o: &OwnerReference| match o.uid.as_str() {
            "s" => "set".to_string(),
            "p" => "pod".to_string(),
            other => other.to_string(),
        };
        owners.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn owners_follow_the_policy() {
        for (scaled, deleted, condemned, before, after) in [
            ("Retain", "Retain", false, "", "="),
            ("", "", true, "", "="),
            ("Retain", "Retain", false, "set", ""),
            ("Retain", "Retain", true, "pod other", "x"),
            ("Retain", "Delete", false, "", "set"),
            ("Retain", "Delete", false, "set", "="),
            ("Retain", "Delete", false, "set?", "set"),
            ("Retain", "Delete", true, "", "set"),
            ("Delete", "Retain", false, "", "="),
            ("Delete", "Retain", false, "set", ""),
            ("Delete", "Retain", true, "", "pod"),
            ("Delete", "Retain", false, "pod", ""),
            ("Delete", "Delete", false, "", "set"),
            ("Delete", "Delete", true, "set", "pod"),
            ("Delete", "Delete", true, "pod", "="),
            ("Delete", "Delete", false, "pod other", "x set"),
            // Left alone.
            ("Delete", "Delete", true, "old-set", "="),
            ("Delete", "Delete", true, "old-pod", "="),
            ("Delete", "Delete", true, "other!", "conflict"),
            ("Delete", "Delete", true, "other! set", "conflict x"),
            ("Retain", "Retain", true, "other!", "="),
        ] {
            let (set, claim) = (
                set(scaled, deleted),
                Meta {
                    owner_references: owners(before),
                    ..Meta::default()
                },
            );
            let pod = Holder {
                name: "web-3",
                uid: "p",
                condemned,
            };
            let got = match plan(&set, &pod, &claim) {
                Owners::AsTheyAre => "=".to_string(),
                Owners::Set(owners) => told(&owners),
                Owners::Conflict(None) => "conflict".to_string(),
                Owners::Conflict(Some(owners)) => format!("conflict {}", told(&owners)),
            };
            assert_eq!(got, after, "{scaled} {deleted} {condemned} {before}");
        }
    }

    #[test]
    fn a_new_pod_waits_for_the_old_ones_claim_to_go() {
        let claim = |words: &str| Meta {
            owner_references: owners(words),
            ..Meta::default()
        };
        let new = Holder {
            name: "web-3",
            uid: "",
            condemned: false,
        };
        assert!(is_left_over(&set("Delete", "Retain"), &new, &claim("pod")));
        assert!(!is_left_over(&set("Retain", "Delete"), &new, &claim("pod")));
        assert!(!is_left_over(&set("Delete", "Retain"), &new, &claim("set other!")));
    }
}

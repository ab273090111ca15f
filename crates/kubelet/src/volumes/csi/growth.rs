//! Whether a volume is to be expanded on this node, and what its claim's status is to say. No I/O.
//!
//! A volume is expanded in two steps: a controller expands the storage and writes the new size to the persistent volume; the
//! node then expands the file system or the device, and writes the size to the claim. Newer resizers track this in the
//! claim's status (`allocatedResources`, `allocatedResourceStatuses`); with older ones the sizes alone decide.
// Upstream: pkg/volume/util/operationexecutor/node_expander.go, pkg/volume/util/resize_util.go (v1.36)

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use orlop_api::quantity::Quantity;
use orlop_api::types::core::{PersistentVolumeClaim, PersistentVolumeClaimStatus};
use orlop_api::types::meta::Quantity as QuantityText;
use orlop_base::clock::{Shift, rfc3339};
use serde_json::{Value, json};
use tonic::Code;

use super::super::error::MountError;
use crate::grpc::CallError;

const STORAGE: &str = "storage";
const PENDING: &str = "NodeResizePending";
const IN_PROGRESS: &str = "NodeResizeInProgress";
const INFEASIBLE: &str = "NodeResizeInfeasible";
const ERROR: &str = "NodeResizeError";
/// Conditions of a resize in progress; all are removed when it is done.
const CONDITIONS: [&str; 4] = ["FileSystemResizePending", "Resizing", "ControllerResizeError", ERROR];
/// On claims of volumes for which the controller does everything.
const NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(122);

/// What is known of a volume as long as pods here have it. A kubelet that comes back begins with what the claim says.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// How large it is on this node.
    size: Option<Quantity>,
    /// The driver can't let it grow under pods that have it.
    pub is_stuck_in_use: bool,
    /// The driver has said no, and that was its last word.
    pub has_failed_for_good: bool,
    /// How long to wait, and until when.
    retry: Option<(Duration, Timestamp)>,
}

impl Memory {
    /// Whether to look at all at a volume that pods have. Without the claim, which takes a request.
    pub(super) fn is_due(&self, volume: &Quantity, now: Timestamp) -> bool {
        let waits = self.retry.is_some_and(|(_, until)| now < until);
        let is_smaller = self.size.as_ref().is_none_or(|size| size < volume);
        !self.is_stuck_in_use && !waits && is_smaller
    }

    pub(super) fn begin(&mut self, claim: &PersistentVolumeClaim) {
        let size = capacity(claim);
        if self.size.is_none() && !size.is_zero() {
            self.size = Some(size);
        }
    }

    pub(super) fn grown(&mut self, size: Quantity) {
        *self = Memory {
            size: Some(size),
            ..Memory::default()
        };
    }

    pub(super) fn failed(&mut self, now: Timestamp) {
        let delay = match self.retry {
            Some((delay, _)) => delay.saturating_mul(2).min(RETRY_MAX),
            None => RETRY_FIRST,
        };
        self.retry = Some((delay, now.later(delay)));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occasion {
    /// A pod is being given the volume.
    Mounting,
    /// A pod has it.
    InUse,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Nothing,
    /// It is larger, but this pod only reads it.
    ReadOnly,
    /// Nothing is left to do here to have it this large.
    Done(Quantity),
    Expand(Expansion),
}

/// What the driver is to be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expansion {
    pub size: Quantity,
    /// The claim says so already, since another node was quicker.
    pub is_told: bool,
    /// The resizer keeps the books in the claim's status.
    pub is_tracked: bool,
    /// Somebody wants another size by now: if this one fails, the controller is to decide anew.
    pub gives_up: bool,
}

pub(super) fn decide(
    occasion: Occasion,
    volume: &Quantity,
    claim: &PersistentVolumeClaim,
    read_only: bool,
    memory: &Memory,
) -> Decision {
    let told = capacity(claim);
    let is_larger = match (occasion, &memory.size) {
        (Occasion::Mounting, _) => *volume > told,
        (Occasion::InUse, Some(size)) => volume > size,
        (Occasion::InUse, None) => false,
    };
    if !is_larger || volume.is_zero() {
        return Decision::Nothing;
    }
    if read_only {
        return Decision::ReadOnly;
    }
    let step = step(claim);
    let allocated = claim.status.as_ref().and_then(|s| s.allocated_resources.as_ref());
    let is_tracked = !step.is_empty() || allocated.is_some();
    let size = match is_tracked {
        true => storage(allocated),
        false => volume.clone(),
    };
    let is_told = told >= size && step.is_empty();
    let gives_up = is_tracked && memory.has_failed_for_good && requested(claim) != size;
    let may = !is_tracked || (is_told && is_for_all_nodes(claim)) || matches!(step, PENDING | IN_PROGRESS);
    match (may, is_told) {
        (true, _) => Decision::Expand(Expansion {
            size,
            is_told,
            is_tracked,
            gives_up,
        }),
        // The controller did all there was to do.
        (false, true) => Decision::Done(size),
        (false, false) => Decision::Nothing,
    }
}

/// Volumes that many nodes write to grow on each of them.
fn is_for_all_nodes(claim: &PersistentVolumeClaim) -> bool {
    let modes = claim.spec.iter().flat_map(|spec| spec.access_modes.iter().flatten());
    let annotations = claim.metadata.annotations.as_ref();
    let is_spared = annotations.is_some_and(|all| all.contains_key(NOT_REQUIRED));
    modes.into_iter().any(|mode| mode == "ReadWriteMany") && !is_spared
}

fn step(claim: &PersistentVolumeClaim) -> &str {
    let statuses = claim
        .status
        .as_ref()
        .and_then(|s| s.allocated_resource_statuses.as_ref());
    statuses.and_then(|all| all.get(STORAGE)).map_or("", String::as_str)
}

fn capacity(claim: &PersistentVolumeClaim) -> Quantity {
    storage(claim.status.as_ref().and_then(|status| status.capacity.as_ref()))
}

fn requested(claim: &PersistentVolumeClaim) -> Quantity {
    let resources = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    storage(resources.and_then(|resources| resources.requests.as_ref()))
}

/// Zero if nothing is said.
pub(super) fn storage(list: Option<&BTreeMap<String, QuantityText>>) -> Quantity {
    let text = list.and_then(|list| list.get(STORAGE));
    text.and_then(|text| Quantity::parse(&text.0).ok()).unwrap_or_default()
}

/// Why a volume did not grow.
#[derive(Debug)]
pub(super) struct Failure {
    pub kind: FailureKind,
    pub reason: MountError,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureKind {
    /// The driver is away, or may still be at it.
    Passing,
    Unsupported,
    /// Not while pods have it.
    InUse,
    /// Never to this size.
    Infeasible,
    Other,
}

impl Failure {
    pub(super) fn new(kind: FailureKind, reason: MountError) -> Failure {
        Failure { kind, reason }
    }

    /// From a driver's answer to the call itself. Kubernetes means to tell "may still be at it" apart, too, but wraps the
    /// error before it looks; a claim must not be given up because of a timeout.
    pub(super) fn of_call(error: CallError) -> Failure {
        let kind = match error.code {
            Code::FailedPrecondition => FailureKind::InUse,
            Code::InvalidArgument | Code::OutOfRange | Code::NotFound => FailureKind::Infeasible,
            Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::ResourceExhausted | Code::Aborted => {
                FailureKind::Passing
            }
            _ => FailureKind::Other,
        };
        let what = "Expander.NodeExpand failed to expand the volume ";
        let reason = match kind {
            // Upstream wraps this one without a colon.
            FailureKind::Infeasible => MountError::Invalid(format!("{what}{error}")),
            _ => MountError::during(what, error),
        };
        Failure::new(kind, reason)
    }
}

/// What follows from a failure.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Consequence {
    pub mark: Option<Mark>,
    pub outcome: ExpansionResult,
}

/// What the claim is to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Failed,
    /// Nobody is to try this size again.
    Infeasible,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ExpansionResult {
    /// As good as done: the driver has no part in it.
    Done,
    /// Not as long as pods have it; they may go on.
    Stuck,
    Failed,
}

pub(super) fn consequence(kind: FailureKind, expansion: &Expansion) -> Consequence {
    let is_optional = !expansion.is_tracked || expansion.is_told;
    let outcome = match kind {
        FailureKind::Unsupported if is_optional => ExpansionResult::Done,
        FailureKind::InUse => ExpansionResult::Stuck,
        _ => ExpansionResult::Failed,
    };
    let mark = match kind {
        _ if !expansion.is_tracked || outcome == ExpansionResult::Done => None,
        FailureKind::Passing => None,
        FailureKind::Infeasible => Some(Mark::Infeasible),
        _ if expansion.gives_up => Some(Mark::Infeasible),
        _ => Some(Mark::Failed),
    };
    Consequence { mark, outcome }
}

/// The change that says that the node is at it; none if that is said.
pub(super) fn in_progress(claim: &PersistentVolumeClaim) -> Option<Value> {
    let status = json!({"allocatedResourceStatuses": {STORAGE: IN_PROGRESS}});
    (step(claim) != IN_PROGRESS).then(|| guarded(claim, status))
}

/// The change that says that all is done.
pub(super) fn finished(claim: &PersistentVolumeClaim, size: &Quantity) -> Value {
    let default = PersistentVolumeClaimStatus::default();
    let now = claim.status.as_ref().unwrap_or(&default);
    let mut status = json!({"capacity": {STORAGE: size.canonical()}});
    if let Some(statuses) = &now.allocated_resource_statuses {
        status["allocatedResourceStatuses"] = match statuses.keys().all(|key| key == STORAGE) {
            true => Value::Null,
            false => json!({STORAGE: null}),
        };
    }
    let over = now.conditions.iter().flatten().map(|c| c.type_.as_str());
    let over: Vec<Value> = over
        .filter(|kind| CONDITIONS.contains(kind))
        .map(|kind| json!({"$patch": "delete", "type": kind}))
        .collect();
    if !over.is_empty() {
        status["conditions"] = Value::Array(over);
    }
    guarded(claim, status)
}

/// The patch that records a failure, whatever else has changed meanwhile; none if nothing would change.
pub(super) fn failed(claim: &PersistentVolumeClaim, mark: Mark, reason: &str, now: Timestamp) -> Option<Value> {
    let mut status = json!({});
    if mark == Mark::Infeasible {
        status["allocatedResourceStatuses"] = json!({STORAGE: INFEASIBLE});
    }
    let conditions = claim.status.iter().flat_map(|s| s.conditions.iter().flatten());
    // Only the first failure is reported.
    if !conditions.into_iter().any(|c| c.type_ == ERROR && c.status == "True") {
        status["conditions"] = json!([{
            "type": ERROR, "status": "True", "lastTransitionTime": rfc3339(now),
            "message": format!("failed to expand pvc with {reason}"),
        }]);
    }
    (status != json!({})).then(|| json!({"status": status}))
}

/// A change to the claim as it was read, and no other.
fn guarded(claim: &PersistentVolumeClaim, status: Value) -> Value {
    json!({"metadata": {"resourceVersion": claim.metadata.resource_version}, "status": status})
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A claim of 1Gi that wants 2Gi.
    fn claim(status: Value, modes: Value) -> PersistentVolumeClaim {
        let mut claim = json!({
            "metadata": {"name": "c", "resourceVersion": "7"},
            "spec": {"accessModes": modes, "resources": {"requests": {STORAGE: "2Gi"}}},
            "status": {"capacity": {STORAGE: "1Gi"}},
        });
        claim["status"]
            .as_object_mut()
            .unwrap()
            .extend(status.as_object().unwrap().clone());
        orlop_api::types::from_value(claim).unwrap()
    }

    fn size(text: &str) -> Quantity {
        Quantity::parse(text).unwrap()
    }

    fn tracked(step: &str) -> Value {
        json!({"allocatedResources": {STORAGE: "2Gi"}, "allocatedResourceStatuses": {STORAGE: step}})
    }

    fn expansion(is_told: bool, is_tracked: bool) -> Expansion {
        Expansion {
            size: size("2Gi"),
            is_told,
            is_tracked,
            gives_up: false,
        }
    }

    #[test]
    fn when_the_driver_is_asked() {
        let (one, many) = (json!(["ReadWriteOnce"]), json!(["ReadWriteMany"]));
        let done = json!({"capacity": {STORAGE: "2Gi"}, "allocatedResources": {STORAGE: "2Gi"}});
        let expand = |is_told, is_tracked| Decision::Expand(expansion(is_told, is_tracked));
        let cases = [
            // The sizes alone decide where nobody keeps books.
            (Occasion::Mounting, json!({}), &one, "1Gi", expand(false, false)),
            (Occasion::InUse, json!({}), &one, "1Gi", expand(false, false)),
            (Occasion::InUse, json!({}), &one, "2Gi", Decision::Nothing),
            (
                Occasion::Mounting,
                json!({"capacity": {STORAGE: "2Gi"}}),
                &one,
                "1Gi",
                Decision::Nothing,
            ),
            (Occasion::Mounting, tracked(PENDING), &one, "1Gi", expand(false, true)),
            (Occasion::InUse, tracked(IN_PROGRESS), &one, "1Gi", expand(false, true)),
            (Occasion::InUse, tracked(INFEASIBLE), &one, "1Gi", Decision::Nothing),
            (
                Occasion::InUse,
                tracked("ControllerResizeInProgress"),
                &one,
                "1Gi",
                Decision::Nothing,
            ),
            // Another node, or the controller alone, has done it.
            (Occasion::InUse, done.clone(), &one, "1Gi", Decision::Done(size("2Gi"))),
            (Occasion::InUse, done.clone(), &many, "1Gi", expand(true, true)),
            (Occasion::InUse, done.clone(), &many, "2Gi", Decision::Nothing),
            (Occasion::Mounting, done, &many, "1Gi", Decision::Nothing),
        ];
        for (occasion, status, modes, here, expected) in cases {
            let claim = claim(status, modes.clone());
            let mut memory = Memory::default();
            memory.grown(size(here));
            let decision = decide(occasion, &size("2Gi"), &claim, false, &memory);
            assert_eq!(decision, expected, "{occasion:?} {:?}", claim.status);
            if matches!(expected, Decision::Expand(_)) {
                let decision = decide(occasion, &size("2Gi"), &claim, true, &memory);
                assert_eq!(decision, Decision::ReadOnly);
            }
        }
        let mut spared = claim(
            json!({"capacity": {STORAGE: "2Gi"}, "allocatedResources": {STORAGE: "2Gi"}}),
            many,
        );
        spared.metadata.annotations = Some(BTreeMap::from([(NOT_REQUIRED.into(), String::new())]));
        let mut memory = Memory::default();
        memory.grown(size("1Gi"));
        let decision = decide(Occasion::InUse, &size("2Gi"), &spared, false, &memory);
        assert_eq!(decision, Decision::Done(size("2Gi")));
    }

    #[test]
    fn a_size_that_nobody_wants_any_more_is_given_up() {
        let mut wanted = claim(tracked(PENDING), json!([]));
        let mut memory = Memory::default();
        memory.begin(&wanted);
        memory.has_failed_for_good = true;
        let gives_up = |claim: &PersistentVolumeClaim, memory: &Memory| match decide(
            Occasion::InUse,
            &size("2Gi"),
            claim,
            false,
            memory,
        ) {
            Decision::Expand(expansion) => expansion.gives_up,
            other => panic!("{other:?}"),
        };
        assert!(!gives_up(&wanted, &memory));
        let requests = BTreeMap::from([(STORAGE.to_string(), QuantityText("1500Mi".into()))]);
        wanted.spec.as_mut().unwrap().resources.as_mut().unwrap().requests = Some(requests);
        assert!(gives_up(&wanted, &memory));
        memory.has_failed_for_good = false;
        assert!(!gives_up(&wanted, &memory));
    }

    #[test]
    fn what_follows_from_failures() {
        let words = "Expander.NodeExpand failed to expand the volume";
        let cases = [
            (
                Code::FailedPrecondition,
                FailureKind::InUse,
                Some(Mark::Failed),
                ExpansionResult::Stuck,
            ),
            (
                Code::OutOfRange,
                FailureKind::Infeasible,
                Some(Mark::Infeasible),
                ExpansionResult::Failed,
            ),
            (
                Code::DeadlineExceeded,
                FailureKind::Passing,
                None,
                ExpansionResult::Failed,
            ),
            (
                Code::Internal,
                FailureKind::Other,
                Some(Mark::Failed),
                ExpansionResult::Failed,
            ),
        ];
        for (code, kind, mark, outcome) in cases {
            let failure = Failure::of_call(CallError {
                code,
                message: "no".into(),
            });
            let colon = if code == Code::OutOfRange { "" } else { ": " };
            let reason = format!("{words} {colon}rpc error: code = {code:?} desc = no");
            assert_eq!((failure.kind, failure.reason.to_string()), (kind, reason));
            let consequence = consequence(kind, &expansion(false, true));
            assert_eq!((consequence.mark, consequence.outcome), (mark, outcome), "{code:?}");
        }
        let given_up = Expansion {
            gives_up: true,
            ..expansion(false, true)
        };
        assert_eq!(consequence(FailureKind::Other, &given_up).mark, Some(Mark::Infeasible));
        let unsupported = |is_told, is_tracked| {
            let found = consequence(FailureKind::Unsupported, &expansion(is_told, is_tracked));
            (found.mark, found.outcome)
        };
        assert_eq!(unsupported(false, true), (Some(Mark::Failed), ExpansionResult::Failed));
        assert_eq!(unsupported(true, true), (None, ExpansionResult::Done));
        assert_eq!(unsupported(false, false), (None, ExpansionResult::Done));
    }

    #[test]
    fn what_claims_say() {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let pending = claim(tracked(PENDING), json!([]));
        let guard = json!({"resourceVersion": "7"});
        assert_eq!(
            in_progress(&pending),
            Some(json!({"metadata": guard, "status": {"allocatedResourceStatuses": {STORAGE: IN_PROGRESS}}}))
        );
        let mut under_way = tracked(IN_PROGRESS);
        under_way["conditions"] = json!([
            {"type": "FileSystemResizePending", "status": "True"}, {"type": "Other", "status": "True"},
            {"type": ERROR, "status": "True"},
        ]);
        let under_way = claim(under_way, json!([]));
        assert_eq!(in_progress(&under_way), None);
        let over = |kind: &str| json!({"$patch": "delete", "type": kind});
        let status = json!({
            "capacity": {STORAGE: "2Gi"}, "allocatedResourceStatuses": null,
            "conditions": [over("FileSystemResizePending"), over(ERROR)],
        });
        assert_eq!(
            finished(&under_way, &size("2Gi")),
            json!({"metadata": guard, "status": status})
        );
        let plain = finished(&claim(json!({}), json!([])), &size("2Gi"));
        assert_eq!(plain["status"], json!({"capacity": {STORAGE: "2Gi"}}));
        let others = json!({"allocatedResourceStatuses": {STORAGE: PENDING, "x": PENDING}});
        let others = finished(&claim(others, json!([])), &size("2Gi"));
        assert_eq!(others["status"]["allocatedResourceStatuses"], json!({STORAGE: null}));

        let condition = json!([{
            "type": ERROR, "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z",
            "message": "failed to expand pvc with why",
        }]);
        assert_eq!(
            failed(&pending, Mark::Failed, "why", now),
            Some(json!({"status": {"conditions": condition}}))
        );
        assert_eq!(failed(&under_way, Mark::Failed, "why", now), None);
        let infeasible = json!({"status": {"allocatedResourceStatuses": {STORAGE: INFEASIBLE}}});
        assert_eq!(failed(&under_way, Mark::Infeasible, "why", now), Some(infeasible));
    }

    #[test]
    fn later_and_later() {
        let mut now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let mut memory = Memory::default();
        memory.begin(&claim(json!({}), json!([])));
        assert!(memory.is_due(&size("2Gi"), now) && !memory.is_due(&size("1Gi"), now));
        for millis in [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 122_000, 122_000] {
            memory.failed(now);
            now += Duration::from_millis(millis - 1);
            assert!(!memory.is_due(&size("2Gi"), now), "{millis}");
            now += Duration::from_millis(1);
            assert!(memory.is_due(&size("2Gi"), now), "{millis}");
        }
        memory.is_stuck_in_use = true;
        assert!(!memory.is_due(&size("2Gi"), now));
        memory.grown(size("2Gi"));
        assert!(memory.is_due(&size("3Gi"), now) && !memory.is_due(&size("2Gi"), now));
    }
}

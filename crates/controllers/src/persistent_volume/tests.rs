//! Plans as tables; and random clusters in which volumes and claims come and go while writes are lost half-way.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::plan::{Around, Event, Plan, Step};
use super::*;

fn read<T: DeserializeOwned>(value: &Value) -> Arc<T> {
    Arc::new(serde_json::from_value(value.clone()).unwrap())
}

/// Merges `changes` into `base`.
fn with(base: &Value, changes: Value) -> Value {
    let mut object = base.clone();
    json_patch::merge(&mut object, &changes);
    object
}

fn claim() -> Value {
    json!({
        "metadata": {"namespace": "ns", "name": "c", "uid": "uc", "resourceVersion": "7"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Pending"},
    })
}

fn volume(name: &str, size: &str) -> Value {
    json!({
        "metadata": {"name": name, "uid": format!("u{name}"), "resourceVersion": "5"},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": size},
                 "persistentVolumeReclaimPolicy": "Retain"},
        "status": {"phase": "Available"},
    })
}

fn chosen(claim: &Value, volumes: &[Value], waits: bool) -> Option<String> {
    let volumes: Vec<Arc<PersistentVolume>> = volumes.iter().map(read).collect();
    let best = matching::best(&read(claim), &volumes, waits);
    best.map(|volume| volume.metadata.name.clone())
}

#[test]
fn a_claim_gets_the_smallest_volume_that_fits() {
    let (a, b) = (volume("a", "5Gi"), volume("b", "2Gi"));
    let rest = [volume("tiny", "1023Mi"), a.clone(), b.clone()];
    assert_eq!(chosen(&claim(), &rest, false).as_deref(), Some("b"));
    // What keeps the smaller one from being taken.
    let worse = [
        json!({"status": {"phase": "Released"}}),
        json!({"spec": {"storageClassName": "other"}}),
        json!({"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "other"}}}),
        json!({"spec": {"volumeMode": "Block"}}),
        json!({"spec": {"volumeAttributesClassName": "gold"}}),
        json!({"spec": {"accessModes": ["ReadOnlyMany"]}}),
        // More modes than asked for: kept for those who ask for them.
        json!({"spec": {"accessModes": ["ReadWriteOnce", "ReadWriteMany"]}}),
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        json!({"spec": {"claimRef": {"namespace": "ns", "name": "other"}}}),
        json!({"spec": {"claimRef": {"namespace": "ns", "name": "c", "uid": "a namesake"}}}),
    ];
    for changes in worse {
        let volumes = [a.clone(), with(&b, changes.clone())];
        assert_eq!(chosen(&claim(), &volumes, false).as_deref(), Some("a"), "{changes}");
    }
    // A reserved volume goes first, even for a claim that waits, and whatever its class, phase and labels.
    let reserved = with(
        &a,
        json!({"spec": {"claimRef": {"namespace": "ns", "name": "c"}, "storageClassName": "other"},
               "status": {"phase": "Released"}}),
    );
    for waits in [false, true] {
        assert_eq!(
            chosen(&claim(), &[b.clone(), reserved.clone()], waits).as_deref(),
            Some("a")
        );
    }
    assert_eq!(chosen(&claim(), &[a.clone(), b.clone()], true), None);
    let small = with(&reserved, json!({"spec": {"capacity": {"storage": "1Mi"}}}));
    assert_eq!(chosen(&claim(), &[b.clone(), small], false).as_deref(), Some("b"));
    // Labels.
    let picky = with(
        &claim(),
        json!({"spec": {"selector": {"matchLabels": {"disk": "fast"}}}}),
    );
    let fast = with(&a, json!({"metadata": {"labels": {"disk": "fast"}}}));
    assert_eq!(chosen(&picky, &[fast, b.clone()], false).as_deref(), Some("a"));
    assert_eq!(chosen(&picky, &[a, b], false), None);
}

fn class(name: &str, provisioner: &str, mode: &str) -> Arc<StorageClass> {
    read(&json!({"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode}))
}

#[test]
fn what_becomes_of_claims_that_find_nothing() {
    let of = |name: &str| with(&claim(), json!({"spec": {"storageClassName": name}}));
    let waits = |pods: &[&str]| Around {
        class: Some(class("w", "x.io/p", "WaitForFirstConsumer")),
        unscheduled_pods: pods.iter().map(ToString::to_string).collect(),
        provisioning: true,
        ..Around::default()
    };
    let makes = |provisioner: &str| Around {
        class: Some(class("w", provisioner, "Immediate")),
        provisioning: true,
        ..Around::default()
    };
    let asked = json!({"metadata": {"annotations": {"volume.kubernetes.io/storage-provisioner": "x.io/p"}}});
    let nothing = Around {
        provisioning: true,
        ..Around::default()
    };
    let cases: Vec<(Value, &Around, &str, &str)> = vec![];
    let (w0, w1, w2) = (waits(&[]), waits(&["p"]), waits(&["p", "q"]));
    let (m, none, host) = (
        makes("x.io/p"),
        makes("kubernetes.io/no-provisioner"),
        makes("kubernetes.io/host-path"),
    );
    let mut cases = cases;
    cases.extend([
        (
            claim(),
            &nothing,
            "FailedBinding",
            "no persistent volumes available for this claim and no storage class is set",
        ),
        (
            of("w"),
            &w0,
            "WaitForFirstConsumer",
            "waiting for first consumer to be created before binding",
        ),
        (of("w"), &w1, "WaitForPodScheduled", "waiting for pod p to be scheduled"),
        (
            of("w"),
            &w2,
            "WaitForPodScheduled",
            "waiting for pods p,q to be scheduled",
        ),
        (
            of("w"),
            &nothing,
            "ProvisioningFailed",
            "storageclass.storage.k8s.io \"w\" not found",
        ),
        (
            of("w"),
            &none,
            "ProvisioningFailed",
            "no volume plugin matched name: kubernetes.io/no-provisioner",
        ),
        (
            of("w"),
            &host,
            "ProvisioningFailed",
            "Failed to create provisioner: provisioning in volume plugin \"kubernetes.io/host-path\" is disabled",
        ),
        (
            with(&of("w"), asked.clone()),
            &m,
            "ExternalProvisioning",
            "Waiting for a volume to be created either by the external provisioner 'x.io/p' or manually by the system \
             administrator. If volume creation is delayed, please verify that the provisioner is running and correctly \
             registered.",
        ),
    ]);
    for (claim, around, reason, message) in cases {
        let Plan { step, event } = plan::claim(&read(&claim), around);
        assert!(matches!(step, Step::Nothing), "{step:?}");
        let event = event.unwrap();
        assert_eq!((event.reason, event.message.as_str()), (reason, message));
    }
    // Before that: the provisioner is asked by annotations, of old plugins their driver.
    let annotations = |around: &Around, claim: &Value| match plan::claim(&read(claim), around).step {
        Step::Claim(patch) => patch["metadata"]["annotations"].clone(),
        other => panic!("{other:?}"),
    };
    let key = "volume.kubernetes.io/storage-provisioner";
    assert_eq!(annotations(&m, &of("w"))[key], "x.io/p");
    let ebs = makes("kubernetes.io/aws-ebs");
    assert_eq!(annotations(&ebs, &of("w"))[key], "ebs.csi.aws.com");
    let node = json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "n"}}});
    assert_eq!(annotations(&w1, &with(&of("w"), node))[key], "x.io/p");
}

#[test]
fn claims_without_a_class_get_the_youngest_default() {
    let class = |name: &str, created: &str, default: &str| -> Arc<StorageClass> {
        read(
            &json!({"metadata": {"name": name, "creationTimestamp": created, "annotations":
            {"storageclass.kubernetes.io/is-default-class": default}}}),
        )
    };
    let (old, new) = ("2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z");
    let classes = [
        class("old", old, "true"),
        class("z", new, "true"),
        class("a", new, "true"),
        class("no", new, "false"),
    ];
    let around = Around {
        default_class: default_class(&classes).map(|c| c.metadata.name.clone()),
        provisioning: true,
        ..Around::default()
    };
    let patched = |claim: Value| match plan::claim(&read(&claim), &around).step {
        Step::Claim(patch) => patch["spec"]["storageClassName"].clone(),
        _ => Value::Null,
    };
    assert_eq!(patched(claim()), "a");
    // An empty class is a wish, too.
    assert_eq!(
        patched(with(&claim(), json!({"spec": {"storageClassName": ""}}))),
        Value::Null
    );
}

#[test]
fn claims_that_name_a_volume() {
    let mine = with(&claim(), json!({"spec": {"volumeName": "v"}}));
    let by_us = json!({"metadata": {"annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}}});
    let taken = with(
        &volume("v", "1Gi"),
        json!({"spec": {"claimRef": {"namespace": "ns", "name": "d", "uid": "ud"}}}),
    );
    let plan_for = |claim: &Value, volume: Option<&Value>| {
        let around = Around {
            named: volume.map(read),
            ..Around::default()
        };
        plan::claim(&read(claim), &around)
    };
    let said = |plan: Plan| {
        plan.event
            .map(|event| (event.reason, event.message))
            .unwrap_or_default()
    };
    assert!(matches!(plan_for(&mine, None).step, Step::Nothing));
    for (changes, reason) in [
        (
            json!({"spec": {"capacity": {"storage": "1Mi"}}}),
            "requested PV is too small",
        ),
        (
            json!({"spec": {"storageClassName": "x"}}),
            "storageClassName does not match",
        ),
        (
            json!({"spec": {"volumeAttributesClassName": "x"}}),
            "volumeAttributesClassName does not match",
        ),
        (json!({"spec": {"volumeMode": "Block"}}), "incompatible volumeMode"),
        (
            json!({"spec": {"accessModes": ["ReadOnlyMany"]}}),
            "incompatible accessMode",
        ),
        (
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            "the volume is marked for deletion \"v\"",
        ),
    ] {
        let plan = plan_for(&mine, Some(&with(&volume("v", "1Gi"), changes)));
        let expected = format!("Cannot bind to requested volume \"v\": {reason}");
        assert_eq!(said(plan), ("VolumeMismatch", expected));
    }
    let expected = "volume \"v\" already bound to a different claim.".to_string();
    let plan = plan_for(&mine, Some(&taken));
    assert!(matches!(plan.step, Step::Nothing));
    assert_eq!(said(plan), ("FailedBinding", expected.clone()));
    let plan = plan_for(&with(&mine, by_us), Some(&taken));
    assert!(matches!(&plan.step, Step::Refuse(why) if why.contains("already claimed by \"ns/d\"")));
    assert_eq!(said(plan), ("FailedBinding", expected));
    // Once bound, never again to another.
    let bound = with(
        &mine,
        json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
               "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}}),
    );
    for (volume, reason) in [(None, "ClaimLost"), (Some(&taken), "ClaimMisbound")] {
        let plan = plan_for(&bound, volume);
        assert_eq!(plan.event.as_ref().unwrap().reason, reason);
        let Step::ClaimStatus(patch) = plan.step else { panic!() };
        assert_eq!(
            patch["status"],
            json!({"phase": "Lost", "capacity": null, "accessModes": null})
        );
    }
    let nameless = with(
        &bound,
        json!({"spec": {"volumeName": null}, "status": {"phase": "Lost"}}),
    );
    assert!(plan_for(&nameless, None).event.is_none());
}

#[test]
fn what_becomes_of_volumes() {
    let bound = with(
        &volume("v", "1Gi"),
        json!({"spec": {"claimRef": {"namespace": "ns", "name": "c", "uid": "uc"}}, "status": {"phase": "Bound"}}),
    );
    let policy = |policy: &str| json!({"spec": {"persistentVolumeReclaimPolicy": policy}});
    let released = |changes: Value| with(&with(&bound, json!({"status": {"phase": "Released"}})), changes);
    let by = |who: &str| json!({"metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": who}}});
    let host = |path: &str| with(&policy("Delete"), json!({"spec": {"hostPath": {"path": path}}}));
    let mine = with(&claim(), json!({"spec": {"volumeName": "v"}}));
    let elsewhere = with(&claim(), json!({"spec": {"volumeName": "w"}}));
    let ours = json!({"metadata": {"annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}}});
    let cases = [
        (volume("v", "1Gi"), None, "-"),
        (with(&bound, json!({"spec": {"claimRef": null}})), None, "Available"),
        (
            with(&bound, json!({"spec": {"claimRef": {"uid": null}}})),
            None,
            "Available",
        ),
        (bound.clone(), Some(&mine), "-"),
        (
            with(&bound, json!({"status": {"phase": "Available"}})),
            Some(&mine),
            "Bound",
        ),
        (bound.clone(), Some(&claim()), "wake"),
        (
            with(&bound, json!({"spec": {"volumeMode": "Block"}})),
            Some(&claim()),
            "- VolumeMismatch: Cannot bind PersistentVolume to requested PersistentVolumeClaim \"c\" due to incompatible \
             volumeMode.",
        ),
        (
            bound.clone(),
            Some(&elsewhere),
            r#"{"metadata":{"resourceVersion":"5","uid":"uv"},"spec":{"claimRef":{"uid":null}}}"#,
        ),
        (
            with(&bound, ours.clone()),
            Some(&elsewhere),
            r#"{"metadata":{"annotations":{"pv.kubernetes.io/bound-by-controller":null},"resourceVersion":"5","uid":"uv"},"spec":{"claimRef":null}}"#,
        ),
        (
            with(&with(&bound, by("x.io/p")), policy("Delete")),
            Some(&elsewhere),
            "Released",
        ),
        (bound.clone(), None, "Released"),
        (
            bound.clone(),
            Some(&with(&mine, json!({"metadata": {"uid": "namesake"}}))),
            "Released",
        ),
        (released(json!({})), None, "-"),
        (
            released(policy("Recycle")),
            None,
            "Failed VolumeFailedRecycle: No recycler plugin found for the volume!",
        ),
        (
            released(policy("")),
            None,
            "Failed VolumeUnknownReclaimPolicy: Volume has unrecognized PersistentVolumeReclaimPolicy",
        ),
        (released(with(&policy("Delete"), by("x.io/p"))), None, "-"),
        (
            released(with(&policy("Delete"), json!({"spec": {"csi": {"driver": "d"}}}))),
            None,
            "-",
        ),
        (
            released(policy("Delete")),
            None,
            "Failed VolumeFailedDelete: error getting deleter volume plugin for volume \"v\": no volume plugin matched",
        ),
        (
            released(with(&policy("Delete"), json!({"spec": {"nfs": {}}}))),
            None,
            "Failed VolumeFailedDelete: error getting deleter volume plugin for volume \"v\": no deletable volume plugin \
             matched",
        ),
        (released(host("/tmp/x")), None, "remove /tmp/x"),
        (
            released(host("/tmp/../etc")),
            None,
            "Failed VolumeFailedDelete: host_path deleter only supports /tmp/.+ but received provided /tmp/../etc",
        ),
        (
            released(host("/tmp/")),
            None,
            "Failed VolumeFailedDelete: host_path deleter only supports /tmp/.+ but received provided /tmp/",
        ),
        (
            with(&released(host("/etc")), json!({"status": {"phase": "Failed"}})),
            None,
            "-",
        ),
        (
            with(&bound, by("kubernetes.io/gce-pd")),
            Some(&mine),
            r#"{"metadata":{"annotations":{"pv.kubernetes.io/migrated-to":"pd.csi.storage.gke.io"},"resourceVersion":"5","uid":"uv"}}"#,
        ),
        (
            with(&with(&bound, by("kubernetes.io/host-path")), policy("Delete")),
            Some(&mine),
            r#"{"metadata":{"finalizers":["kubernetes.io/pv-controller"],"resourceVersion":"5","uid":"uv"}}"#,
        ),
    ];
    for (volume, owner, expected) in cases {
        let owner: Option<Arc<PersistentVolumeClaim>> = owner.map(read);
        let Plan { step, event } = plan::volume(&read(&volume), owner.as_deref());
        let mut found = match step {
            Step::Nothing => "-".to_string(),
            Step::WakeClaim => "wake".to_string(),
            Step::VolumeStatus(_, patch) => patch["status"]["phase"].as_str().unwrap().to_string(),
            Step::Volume(_, patch) => patch.to_string(),
            Step::DeleteHostPath(path) => format!("remove {path}"),
            other => panic!("{other:?}"),
        };
        if let Some(Event { reason, message, .. }) = event {
            found += &format!(" {reason}: {message}");
        }
        assert_eq!(found, expected, "{volume}");
    }
}

#[test]
fn capacity_is_what_the_volume_had_before_it_grew() {
    let grown = with(
        &volume("v", "2Gi"),
        json!({"metadata": {"annotations": {"volume.alpha.kubernetes.io/pre-resize-capacity": "1Gi"}},
               "spec": {"claimRef": {"namespace": "ns", "name": "c", "uid": "uc"}, "volumeAttributesClassName": "gold"},
               "status": {"phase": "Bound"}}),
    );
    let claim = with(
        &claim(),
        json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": {"volumeName": "v"}}),
    );
    let around = Around {
        named: Some(read(&grown)),
        ..Around::default()
    };
    let Step::ClaimStatus(patch) = plan::claim(&read(&claim), &around).step else {
        panic!()
    };
    assert_eq!(
        patch["status"],
        json!({"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
               "currentVolumeAttributesClassName": "gold"})
    );
}

/// A cluster of volumes and claims, with an API server's sense of revisions.
#[derive(Default)]
struct World {
    claims: BTreeMap<String, Value>,
    volumes: BTreeMap<String, Value>,
    revision: u64,
    uids: u64,
    /// Every pair that ever was bound on both sides: claim's uid → volume's name.
    bound: BTreeMap<String, String>,
}

#[derive(Clone, Debug)]
enum Act {
    CreateClaim {
        name: u8,
        size: u8,
        names: Option<u8>,
    },
    CreateVolume {
        name: u8,
        size: u8,
        reserved: Option<u8>,
        delete: bool,
    },
    DeleteClaim(u8),
    DeleteVolume(u8),
    /// A reconcile that gets to do this many writes before it is stopped.
    ClaimTurn(u8, u8),
    VolumeTurn(u8, u8),
    /// A reconcile that decides on what it saw before another one came in between.
    Race(u8, u8),
}

impl World {
    fn stamp(&mut self, object: &mut Value) {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
    }

    fn uid(&mut self) -> String {
        self.uids += 1;
        format!("uid{}", self.uids)
    }

    /// Whether it took.
    fn write(&mut self, claim: bool, name: &str, patch: &Value) -> bool {
        let objects = if claim { &mut self.claims } else { &mut self.volumes };
        let Some(object) = objects.get(name) else { return false };
        for field in ["uid", "resourceVersion"] {
            if patch["metadata"][field] != object["metadata"][field] {
                return false;
            }
        }
        let mut object = with(object, patch.clone());
        self.stamp(&mut object);
        let objects = if claim { &mut self.claims } else { &mut self.volumes };
        objects.insert(name.to_string(), object);
        self.check();
        true
    }

    fn around(&self, claim: &Value) -> Around {
        let named = claim["spec"]["volumeName"]
            .as_str()
            .and_then(|name| self.volumes.get(name));
        Around {
            named: named.map(read),
            candidates: self.volumes.values().map(read).collect(),
            ..Around::default()
        }
    }

    fn claim_turn(&mut self, name: &str, writes: u8) {
        for _ in 0..writes {
            let Some(claim) = self.claims.get(name).cloned() else {
                return;
            };
            let plan = plan::claim(&read(&claim), &self.around(&claim));
            if !self.apply(name, plan) {
                return;
            }
        }
    }

    fn apply(&mut self, claim: &str, plan: Plan) -> bool {
        match plan.step {
            Step::Volume(volume, patch) | Step::VolumeStatus(volume, patch) => {
                self.write(false, &volume.metadata.name, &patch)
            }
            Step::Claim(patch) | Step::ClaimStatus(patch) => self.write(true, claim, &patch),
            _ => false,
        }
    }

    fn volume_plan(&self, name: &str) -> Option<Plan> {
        let volume = self.volumes.get(name)?;
        let owner = volume["spec"]["claimRef"]["name"]
            .as_str()
            .and_then(|name| self.claims.get(name));
        let owner: Option<Arc<PersistentVolumeClaim>> = owner.map(read);
        Some(plan::volume(&read(volume), owner.as_deref()))
    }

    fn volume_turn(&mut self, name: &str, writes: u8) {
        for _ in 0..writes {
            let Some(plan) = self.volume_plan(name) else { return };
            let wrote = match plan.step {
                Step::Volume(_, patch) | Step::VolumeStatus(_, patch) => self.write(false, name, &patch),
                Step::DeleteHostPath(_) => self.volumes.remove(name).is_some(),
                _ => false,
            };
            if !wrote {
                return;
            }
        }
    }

    fn act(&mut self, act: &Act) {
        let (claim, volume) = (|n: &u8| format!("c{}", n % 4), |n: &u8| format!("v{}", n % 5));
        match act {
            Act::CreateClaim { name, size, names } if !self.claims.contains_key(&claim(name)) => {
                let mut object = with(
                    &self::claim(),
                    json!({"metadata": {"name": claim(name), "uid": self.uid()},
                           "spec": {"volumeName": names.as_ref().map(volume),
                                    "resources": {"requests": {"storage": format!("{}Gi", size % 4)}}}}),
                );
                self.stamp(&mut object);
                self.claims.insert(claim(name), object);
            }
            Act::CreateVolume {
                name,
                size,
                reserved,
                delete,
            } if !self.volumes.contains_key(&volume(name)) => {
                let reference = reserved.as_ref().map(|n| json!({"namespace": "ns", "name": claim(n)}));
                let policy = if *delete { "Delete" } else { "Retain" };
                let mut object = with(
                    &self::volume(&volume(name), &format!("{}Gi", size % 4)),
                    json!({"metadata": {"uid": self.uid()}, "status": null,
                           "spec": {"claimRef": reference, "persistentVolumeReclaimPolicy": policy,
                                    "hostPath": {"path": "/tmp/x"}}}),
                );
                self.stamp(&mut object);
                self.volumes.insert(volume(name), object);
            }
            Act::DeleteClaim(name) => drop(self.claims.remove(&claim(name))),
            Act::DeleteVolume(name) => drop(self.volumes.remove(&volume(name))),
            Act::ClaimTurn(name, writes) => self.claim_turn(&claim(name), *writes),
            Act::VolumeTurn(name, writes) => self.volume_turn(&volume(name), *writes),
            Act::Race(name, other) => {
                let (name, other) = (claim(name), claim(other));
                let Some(seen) = self.claims.get(&name) else { return };
                let plan = plan::claim(&read(seen), &self.around(seen));
                self.claim_turn(&other, 4);
                self.apply(&name, plan);
            }
            _ => {}
        }
    }

    /// What holds at any time.
    fn check(&mut self) {
        let mut taken = BTreeSet::new();
        for claim in self.claims.values() {
            let Some(volume) = claim["spec"]["volumeName"]
                .as_str()
                .and_then(|name| self.volumes.get(name))
            else {
                continue;
            };
            let completed = !claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"].is_null();
            let mutual = volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"];
            if !(completed && mutual) {
                continue;
            }
            let uid = |object: &Value| object["metadata"]["uid"].as_str().unwrap().to_string();
            assert!(taken.insert(uid(volume)), "two claims have one volume");
            // A volume that was made anew under its old name, from a backup perhaps, is taken back.
            let name = volume["metadata"]["name"].as_str().unwrap().to_string();
            let by_us = !claim["metadata"]["annotations"]["pv.kubernetes.io/bound-by-controller"].is_null();
            let before = self.bound.insert(uid(claim), name.clone());
            // What users tie together themselves is not measured.
            if before.is_none() && by_us {
                let size = |object: &Value, at: &str| object.pointer(at).unwrap().as_str().unwrap().replace("Gi", "");
                assert!(size(volume, "/spec/capacity/storage") >= size(claim, "/spec/resources/requests/storage"));
            }
            assert!(
                before.is_none_or(|before| before == name),
                "a claim has had two volumes"
            );
        }
    }

    /// Turns for everybody until nobody has anything to do.
    fn settle(&mut self) {
        for _ in 0..20 {
            let before = self.revision;
            let volumes = self.volumes.len();
            for n in 0..5 {
                self.claim_turn(&format!("c{n}"), 9);
                self.volume_turn(&format!("v{n}"), 9);
            }
            if self.revision == before && self.volumes.len() == volumes {
                return;
            }
        }
        panic!("never settles: {:#?} {:#?}", self.claims, self.volumes);
    }

    fn check_settled(&self) {
        for claim in self.claims.values() {
            let volume = claim["spec"]["volumeName"]
                .as_str()
                .and_then(|name| self.volumes.get(name));
            let mine = volume.is_some_and(|volume| volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]);
            let phase = claim["status"]["phase"].as_str().unwrap();
            assert_eq!(phase == "Bound", mine, "{claim}");
            if phase == "Pending" && claim["spec"]["volumeName"].is_null() {
                let left: Vec<Value> = self.volumes.values().cloned().collect();
                assert_eq!(chosen(claim, &left, false), None);
            }
        }
        for volume in self.volumes.values() {
            let owner = volume["spec"]["claimRef"]["name"]
                .as_str()
                .and_then(|name| self.claims.get(name));
            let uid = &volume["spec"]["claimRef"]["uid"];
            let bound = owner.is_some_and(|claim| claim["metadata"]["uid"] == *uid && !uid.is_null());
            let expected = if bound {
                "Bound"
            } else if uid.is_null() {
                "Available"
            } else {
                "Released"
            };
            let mode = &volume["status"]["phase"];
            assert_eq!(mode, expected, "{volume}");
            assert!(expected != "Released" || volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain");
        }
    }
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        3 => (any::<u8>(), any::<u8>(), prop::option::weighted(0.2, any::<u8>()))
            .prop_map(|(name, size, names)| Act::CreateClaim { name, size, names }),
        3 => (any::<u8>(), any::<u8>(), prop::option::weighted(0.3, any::<u8>()), any::<bool>())
            .prop_map(|(name, size, reserved, delete)| Act::CreateVolume { name, size, reserved, delete }),
        1 => any::<u8>().prop_map(Act::DeleteClaim),
        1 => any::<u8>().prop_map(Act::DeleteVolume),
        6 => (any::<u8>(), 1..5u8).prop_map(|(name, writes)| Act::ClaimTurn(name, writes)),
        6 => (any::<u8>(), 1..3u8).prop_map(|(name, writes)| Act::VolumeTurn(name, writes)),
        3 => (any::<u8>(), any::<u8>()).prop_map(|(name, other)| Act::Race(name, other)),
    ];
    prop::collection::vec(act, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_ever_bound_twice(acts in acts()) {
        let mut world = World::default();
        for act in &acts {
            world.act(act);
            world.check();
        }
        world.settle();
        world.check();
        world.check_settled();
    }
}

//! Node expansion of volumes: calls the driver, updates the claim, records events.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use orlop_api::quantity::Quantity;
use orlop_api::types::core::{PersistentVolumeClaim, Pod};
use orlop_client::events::{EventType, ObjectReference};
use orlop_client::path;
use serde_json::Value;

use super::super::act::Ready;
use super::super::blocking;
use super::super::error::MountError;
use super::super::paths::{self, Plugin};
use super::block::Places;
use super::disk;
use super::growth::{self, Decision, Expansion, ExpansionResult, Failure, FailureKind, Mark, Occasion};
use super::messages::{CapacityRange, NodeExpandVolume};
use super::publish::{Publisher, shown};
use super::target::Target;
use crate::objects::ObjectError;

/// One pod and a volume of it.
struct Site<'a> {
    target: &'a Target,
    pod: &'a Pod,
    /// What containers have.
    volume: PathBuf,
    staging: PathBuf,
    /// There as long as the volume is published.
    evidence: PathBuf,
}

impl Publisher<'_> {
    /// Expands a volume that was just published to a pod. The caller holds the volume's lock.
    pub(super) async fn grow_mounted(
        &self,
        target: &Target,
        pod: &Pod,
        pod_directory: &Path,
    ) -> Result<(), MountError> {
        let site = self.site(target, pod, pod_directory);
        self.grow(&site, Occasion::Mounting).await
    }

    /// Expands a volume in use. Failures are recorded as events and retried later.
    pub(crate) async fn grow_in_use(&self, pod: &Pod, ready: &Ready) {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let Some(pod_directory) = self.paths.pod(uid) else {
            return;
        };
        let found = self.objects.persistent_volume(&ready.directory_name).await;
        let Ok(volume) = found else { return };
        let Some(spec) = &volume.spec else { return };
        let Some(source) = &spec.csi else { return };
        let target = Target::persistent(&ready.directory_name, spec, source, ready.read_only);
        let turn = self.drivers.turn(&target.driver, &target.handle);
        // Whoever has it looks after the volume as it is; next time will do.
        let Ok(_turn) = turn.try_lock() else { return };
        let site = self.site(&target, pod, &pod_directory);
        let evidence = site.evidence.clone();
        if !blocking(move || evidence.symlink_metadata().is_ok()).await {
            return;
        }
        if let Err(reason) = self.grow(&site, Occasion::InUse).await {
            self.drivers.remember(&target, |memory| memory.failed(self.clock.now()));
            let note = format!(
                "NodeExpandVolume.NodeExpandVolume failed for volume {:?} : {reason}",
                target.name
            );
            self.events.pod(pod, EventType::Warning, "VolumeResizeFailed", note);
        }
    }

    fn site<'a>(&self, target: &'a Target, pod: &'a Pod, pod_directory: &Path) -> Site<'a> {
        let (volume, staging, evidence) = if target.is_block {
            let places = Places::of(self.paths, pod_directory, &target.name);
            (places.target, places.staging, places.mapping.link)
        } else {
            let directory = paths::volume(pod_directory, Plugin::Csi, &target.name);
            let staging = disk::staging(self.paths, &target.driver, &target.handle);
            (disk::mount_point(&directory), staging, disk::data(&directory))
        };
        Site {
            target,
            pod,
            volume,
            staging,
            evidence,
        }
    }

    async fn grow(&self, site: &Site<'_>, occasion: Occasion) -> Result<(), MountError> {
        let target = site.target;
        let Some((namespace, name)) = &target.claim else {
            return Ok(());
        };
        let memory = self.drivers.remember(target, |memory| memory.clone());
        if occasion == Occasion::InUse && !memory.is_due(&target.size, self.clock.now()) {
            return Ok(());
        }
        let claim = self.objects.persistent_volume_claim(namespace, name).await;
        let claim = claim.map_err(|e| MountError::during("mountVolume.NodeExpandVolume get PVC failed ", e))?;
        let memory = self.drivers.remember(target, |memory| {
            memory.begin(&claim);
            memory.clone()
        });
        match growth::decide(occasion, &target.size, &claim, target.read_only, &memory) {
            Decision::Nothing => Ok(()),
            Decision::ReadOnly => {
                let what = "MountVolume.NodeExpandVolume failed";
                let note = format!("{what} for volume {:?} requested read-only file system", target.name);
                self.tell(site, &claim, EventType::Warning, "FileSystemResizeFailed", &note);
                Ok(())
            }
            Decision::Done(size) => {
                self.drivers.remember(target, |memory| memory.grown(size));
                Ok(())
            }
            Decision::Expand(expansion) => self.expand(site, (*claim).clone(), &expansion).await,
        }
    }

    async fn expand(
        &self,
        site: &Site<'_>,
        claim: PersistentVolumeClaim,
        wanted: &Expansion,
    ) -> Result<(), MountError> {
        let mut claim = claim;
        let is_written = wanted.is_tracked && !wanted.is_told;
        if let Some(patch) = growth::in_progress(&claim).filter(|_| is_written) {
            claim = self.patch(&claim, &patch).await?;
        }
        if let Err(failure) = self.ask(site, &wanted.size).await {
            return self.not_expanded(site, &claim, wanted, failure).await;
        }
        let node = site.pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let note = format!(
            "MountVolume.NodeExpandVolume succeeded for volume {:?} {}",
            site.target.name,
            node.unwrap_or_default()
        );
        self.tell(site, &claim, EventType::Normal, "FileSystemResizeSuccessful", &note);
        if !wanted.is_told {
            let patched = self.patch(&claim, &growth::finished(&claim, &wanted.size)).await;
            patched.map_err(|e| MountError::during("mountVolume.NodeExpandVolume update pvc status failed", e))?;
        }
        self.drivers
            .remember(site.target, |memory| memory.grown(wanted.size.clone()));
        Ok(())
    }

    async fn not_expanded(
        &self,
        site: &Site<'_>,
        claim: &PersistentVolumeClaim,
        wanted: &Expansion,
        failure: Failure,
    ) -> Result<(), MountError> {
        let consequence = growth::consequence(failure.kind, wanted);
        if let Some(mark) = consequence.mark {
            self.drivers
                .remember(site.target, |memory| memory.has_failed_for_good = true);
            self.mark_failed(claim, mark, &failure.reason.to_string()).await;
        }
        match consequence.outcome {
            ExpansionResult::Done => {
                let size = wanted.size.clone();
                self.drivers.remember(site.target, |memory| memory.grown(size));
                Ok(())
            }
            ExpansionResult::Stuck => {
                tracing::warn!(volume = site.target.name, err = %failure.reason, "failed to expand volume");
                self.drivers
                    .remember(site.target, |memory| memory.is_stuck_in_use = true);
                Ok(())
            }
            ExpansionResult::Failed => Err(failure.reason),
        }
    }

    async fn mark_failed(&self, claim: &PersistentVolumeClaim, mark: Mark, reason: &str) {
        let Some(patch) = growth::failed(claim, mark, reason, self.clock.now()) else {
            return;
        };
        // It will be said with the next failure.
        if let Err(error) = self.patch(claim, &patch).await {
            tracing::warn!(err = %error, "failed to record the failed expansion in the claim");
        }
    }

    /// Asks the driver.
    async fn ask(&self, site: &Site<'_>, size: &Quantity) -> Result<(), Failure> {
        let target = site.target;
        let client = self.drivers.client(&target.driver);
        let client = client.map_err(|e| Failure::new(FailureKind::Passing, e))?;
        let other = |step: &str, reason: MountError| Failure::new(FailureKind::Other, MountError::during(step, reason));
        let capabilities = client.capabilities().await.map_err(|e| {
            other(
                "Expander.NodeExpand failed to check if node supports expansion ",
                e.into(),
            )
        })?;
        if !capabilities.expands {
            let reason = format!("NodeExpand is not supported by the CSI driver {}", target.driver);
            return Err(Failure::new(FailureKind::Unsupported, MountError::Invalid(reason)));
        }
        let secrets = self.secrets(&target.expand_secret, "NodeExpandSecretRef").await;
        let secrets = secrets.map_err(|e| other("expander.NodeExpand failed", e))?;
        let request = NodeExpandVolume {
            volume_id: target.handle.clone(),
            volume_path: shown(&site.volume),
            capacity_range: Some(CapacityRange {
                required_bytes: size.value(),
            }),
            staging_target_path: match capabilities.stages {
                true => shown(&site.staging),
                false => String::new(),
            },
            volume_capability: Some(target.capability(capabilities, None)),
            secrets,
        };
        client.expand(request).await.map_err(Failure::of_call)
    }

    async fn patch(&self, claim: &PersistentVolumeClaim, patch: &Value) -> Result<PersistentVolumeClaim, MountError> {
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        let failed = |reason: String| {
            let step = format!("patchPVCStatus failed to patch PVC {name:?}");
            MountError::during(step, ObjectError::Failed(reason))
        };
        let api = self.objects.api();
        let api = api.ok_or_else(|| failed("kube client is not configured".into()))?;
        let namespace = claim.metadata.namespace.as_deref();
        let at = path::subresource("v1", namespace, "persistentvolumeclaims", name, "status");
        api.patch_strategic(&at, patch).await.map_err(|e| failed(e.chain()))
    }

    /// Those who look at the pod and those who look at the claim.
    fn tell(&self, site: &Site<'_>, claim: &PersistentVolumeClaim, kind: EventType, reason: &'static str, note: &str) {
        self.events.pod(site.pod, kind, reason, note);
        self.events.record(claim_reference(claim), kind, reason, note);
    }
}

fn claim_reference(claim: &PersistentVolumeClaim) -> ObjectReference {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    ObjectReference {
        api_version: Cow::Borrowed("v1"),
        kind: Cow::Borrowed("PersistentVolumeClaim"),
        namespace: text(&claim.metadata.namespace),
        name: text(&claim.metadata.name),
        uid: text(&claim.metadata.uid),
        resource_version: text(&claim.metadata.resource_version),
        field_path: String::new(),
    }
}

//! What a volume of a pod is to become: its source looked up, nothing on disk touched.

use orlop_api::types::ToJson;
use orlop_api::types::authentication::TokenRequestSpec;
use orlop_api::types::core::{
    ConfigMap, HostPathVolumeSource, KeyToPath, PersistentVolume, Pod, ProjectedVolumeSource, Secret,
    ServiceAccountTokenProjection, Volume, VolumeDevice, VolumeProjection,
};

use super::claims::{self, ClaimRef};
use super::csi;
use super::downward::{self, Allocatable};
use super::empty_dir::{Medium, memory_size};
use super::error::MountError;
use super::nested;
use super::ownership::Ownership;
use super::paths::Plugin;
use super::payload::{self, DEFAULT_MODE, File, Payload, Projection};
use crate::objects::{ObjectError, Objects};

/// What to do on disk.
#[derive(Debug)]
pub(super) enum Plan {
    EmptyDir(Medium),
    /// Files that are written, and written again when they change.
    Files {
        plugin: Plugin,
        payload: Payload,
        medium: Medium,
    },
    HostPath {
        path: String,
        kind: String,
        read_only: bool,
    },
    Local(Local),
    Csi(Box<csi::Target>),
    /// Nothing at all: the image is pulled with the container's own.
    Image,
}

/// A directory or a disk of the node.
#[derive(Debug)]
pub(super) struct Local {
    /// Of the persistent volume.
    pub name: String,
    pub path: String,
    pub read_only: bool,
    /// As a device, not mounted.
    pub is_block: bool,
    /// For disks.
    pub fs_type: String,
    pub mount_options: Vec<String>,
}

/// Why a volume is not ready.
#[derive(Debug)]
pub(super) struct Problem {
    pub kind: ProblemKind,
    pub reason: MountError,
    /// What the message calls the volume, if not by its name in the pod.
    pub volume: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProblemKind {
    /// It is not known what to mount.
    Unprocessed,
    /// In this step.
    Step(&'static str),
}

impl<E: Into<MountError>> From<E> for Problem {
    fn from(reason: E) -> Problem {
        Problem {
            kind: ProblemKind::Step("MountVolume.SetUp failed"),
            reason: reason.into(),
            volume: None,
        }
    }
}

impl Problem {
    pub(super) fn invalid(reason: impl Into<String>) -> Problem {
        Problem::from(MountError::invalid(reason))
    }

    fn unprocessed(reason: MountError) -> Problem {
        Problem {
            kind: ProblemKind::Unprocessed,
            ..Problem::from(reason)
        }
    }
}

/// What looking up needs.
pub(super) struct Lookup<'a> {
    pub objects: &'a Objects,
    pub pod: &'a Pod,
    pub allocatable: &'a Allocatable,
    pub ownership: Ownership,
    /// Whether files may be kept in memory, which takes a mount.
    pub may_mount: bool,
    /// Why the runtime can't mount images, if so.
    pub image_trouble: Option<String>,
}

/// Whether a volume's files follow what they are made from.
pub(super) fn is_refreshed(volume: &Volume) -> bool {
    volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.projected.is_some()
        || volume.downward_api.is_some()
}

impl Lookup<'_> {
    pub(super) async fn plan(&self, volume: &Volume) -> Result<Plan, Problem> {
        if let Some(source) = &volume.empty_dir {
            return Ok(Plan::EmptyDir(Medium::of(source, self.pod, self.allocatable)?));
        }
        if let Some(source) = &volume.host_path {
            return Ok(host_path(source, false));
        }
        if is_refreshed(volume) {
            return Ok(self.files(volume).await?);
        }
        if let Some(claim) = self.claim(volume) {
            let bound = claims::bound_volume(self.objects, self.pod, &claim).await;
            let bound = bound.map_err(Problem::unprocessed)?;
            return self.persistent(volume, &bound, claim.read_only);
        }
        if let Some(source) = &volume.csi {
            return Ok(Plan::Csi(Box::new(csi::Target::inline(self.pod, volume, source))));
        }
        if volume.image.is_some() {
            return match &self.image_trouble {
                None => Ok(Plan::Image),
                Some(trouble) => Err(Problem::invalid(trouble.clone())),
            };
        }
        match unsupported(volume) {
            // A volume without a source is an empty directory.
            None => Ok(Plan::EmptyDir(Medium::Disk)),
            Some(kind) => Err(Problem::invalid(refused(kind))),
        }
    }

    fn claim(&self, volume: &Volume) -> Option<ClaimRef> {
        if let Some(source) = &volume.persistent_volume_claim {
            return Some(ClaimRef {
                name: source.claim_name.clone(),
                read_only: source.read_only.unwrap_or(false),
                ephemeral: false,
            });
        }
        volume.ephemeral.as_ref().map(|_| ClaimRef {
            name: claims::ephemeral_claim_name(self.pod, &volume.name),
            read_only: false,
            ephemeral: true,
        })
    }

    fn persistent(&self, volume: &Volume, bound: &PersistentVolume, read_only: bool) -> Result<Plan, Problem> {
        let name = bound.metadata.name.clone().unwrap_or_default();
        let spec = bound.spec.clone().unwrap_or_default();
        let mode = spec.volume_mode.as_deref().unwrap_or("Filesystem");
        let is_block = mode == "Block";
        let wrong = match is_block {
            true => nested::container_mounts(self.pod)
                .flatten()
                .any(|m| m.name == volume.name),
            false => container_devices(self.pod).any(|d| d.name == volume.name),
        };
        if wrong {
            let list = if is_block { "volumeMounts" } else { "volumeDevices" };
            return Err(Problem::unprocessed(MountError::Invalid(format!(
                "volume {} has volumeMode {mode}, but is specified in {list}",
                volume.name
            ))));
        }
        if let Some(source) = spec.host_path.as_ref().filter(|_| !is_block) {
            return Ok(host_path(source, read_only));
        }
        if let Some(source) = &spec.local {
            return Ok(Plan::Local(Local {
                name,
                path: source.path.clone(),
                read_only,
                is_block,
                fs_type: source.fs_type.clone().unwrap_or_default(),
                mount_options: spec.mount_options.clone().unwrap_or_default(),
            }));
        }
        if let Some(source) = &spec.csi {
            let target = csi::Target::persistent(&name, &spec, source, read_only);
            return Ok(Plan::Csi(Box::new(target)));
        }
        let message = match unsupported(&spec) {
            Some(kind) => refused(kind),
            None if is_block => format!("persistent volume {name} does not support volumeMode Block on this node"),
            None => format!("persistent volume {name} is of a type that is not supported by this node"),
        };
        Err(Problem {
            volume: Some(name),
            ..Problem::invalid(message)
        })
    }

    async fn files(&self, volume: &Volume) -> Result<Plan, MountError> {
        let memory = match self.may_mount {
            true => Medium::Memory(memory_size(None, self.pod, self.allocatable)),
            false => Medium::Disk,
        };
        let (plugin, payload, medium) = if let Some(source) = &volume.config_map {
            let projection = projection(&source.items, source.default_mode, source.optional);
            (
                Plugin::ConfigMap,
                self.config_map(&source.name, &projection).await?,
                Medium::Disk,
            )
        } else if let Some(source) = &volume.secret {
            let projection = projection(&source.items, source.default_mode, source.optional);
            let name = source.secret_name.as_deref().unwrap_or_default();
            (Plugin::Secret, self.secret(name, &projection).await?, memory)
        } else if let Some(source) = &volume.downward_api {
            let items = source.items.as_deref().unwrap_or_default();
            let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
            let payload = downward::payload(items, self.pod, self.allocatable, mode)?;
            (Plugin::DownwardApi, payload, memory)
        } else {
            let source = volume.projected.clone().unwrap_or_default();
            (Plugin::Projected, self.projected(&volume.name, &source).await?, memory)
        };
        Ok(Plan::Files {
            plugin,
            payload: payload::checked(payload)?,
            medium,
        })
    }

    async fn config_map(&self, name: &str, projection: &Projection<'_>) -> Result<Payload, MountError> {
        let found = self.objects.config_map(self.namespace(), name).await;
        match found {
            Ok(found) => payload::of_config_map(&found, projection),
            Err(ObjectError::NotFound(_)) if projection.optional => {
                payload::of_config_map(&ConfigMap::default(), projection)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn secret(&self, name: &str, projection: &Projection<'_>) -> Result<Payload, MountError> {
        let found = self.objects.secret(self.namespace(), name).await;
        match found {
            Ok(found) => payload::of_secret(&found, projection),
            Err(ObjectError::NotFound(_)) if projection.optional => payload::of_secret(&Secret::default(), projection),
            Err(error) => Err(error.into()),
        }
    }

    async fn projected(&self, volume: &str, source: &ProjectedVolumeSource) -> Result<Payload, MountError> {
        if !self.objects.has_api() {
            return Err(MountError::Invalid(format!(
                "cannot setup projected volume {volume} because kube client is not configured"
            )));
        }
        let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        let mut payload = Payload::new();
        let mut problems = Vec::new();
        for part in source.sources.iter().flatten() {
            match self.part(part, mode).await {
                Ok(files) => payload.extend(files),
                Err(problem) => problems.push(problem),
            }
        }
        if problems.is_empty() {
            Ok(payload)
        } else {
            Err(MountError::several(problems))
        }
    }

    async fn part(&self, part: &VolumeProjection, mode: i32) -> Result<Payload, MountError> {
        if let Some(source) = &part.secret {
            let projection = projection(&source.items, Some(mode), source.optional);
            self.secret(&source.name, &projection).await
        } else if let Some(source) = &part.config_map {
            let projection = projection(&source.items, Some(mode), source.optional);
            self.config_map(&source.name, &projection).await
        } else if let Some(source) = &part.downward_api {
            let items = source.items.as_deref().unwrap_or_default();
            downward::payload(items, self.pod, self.allocatable, mode)
        } else if let Some(source) = &part.service_account_token {
            self.token(source, mode).await
        } else if part.cluster_trust_bundle.is_some() {
            Err(MountError::invalid(
                "projections of cluster trust bundles are not supported by this node",
            ))
        } else if part.pod_certificate.is_some() {
            Err(MountError::invalid(
                "projections of pod certificates are not supported by this node",
            ))
        } else {
            Ok(Payload::new())
        }
    }

    async fn token(&self, source: &ServiceAccountTokenProjection, mode: i32) -> Result<Payload, MountError> {
        let audience = source.audience.clone().filter(|audience| !audience.is_empty());
        let spec = TokenRequestSpec {
            audiences: Some(audience.into_iter().collect()),
            expiration_seconds: source.expiration_seconds.or(Some(3600)),
            bound_object_ref: None,
        };
        let account = self.pod.spec.as_ref().and_then(|s| s.service_account_name.as_deref());
        let account = account.unwrap_or("default");
        let token = self
            .objects
            .service_account_token(self.namespace(), account, &spec, self.pod);
        let token = token.await?;
        Ok(Payload::from([(
            source.path.clone(),
            self.private_file(&token.token, mode),
        )]))
    }

    /// For its user's eyes only, where it is known who that is; setting the group lets that in.
    fn private_file(&self, data: &str, mode: i32) -> File {
        let is_known = self.ownership.user.is_some() || self.ownership.group.is_some();
        let mut file = File::new(data, if is_known { 0o600 } else { mode });
        file.owner = self.ownership.user;
        file
    }

    fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or_default()
    }
}

/// The devices that containers of the pod ask for.
pub(super) fn container_devices(pod: &Pod) -> impl Iterator<Item = &VolumeDevice> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| {
        let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        let ephemeral = spec.ephemeral_containers.iter().flatten();
        let lists = containers
            .map(|c| &c.volume_devices)
            .chain(ephemeral.map(|c| &c.volume_devices));
        lists.flat_map(|list| list.iter().flatten())
    })
}

fn host_path(source: &HostPathVolumeSource, read_only: bool) -> Plan {
    Plan::HostPath {
        path: source.path.clone(),
        kind: source.type_.clone().unwrap_or_default(),
        read_only,
    }
}

fn projection(items: &Option<Vec<KeyToPath>>, mode: Option<i32>, optional: Option<bool>) -> Projection<'_> {
    Projection {
        items: items.as_deref().unwrap_or_default(),
        default_mode: mode.unwrap_or(DEFAULT_MODE),
        optional: optional.unwrap_or(false),
    }
}

/// Sources of volumes that nothing here can mount. All but `gitRepo` have CSI drivers in their place.
const UNSUPPORTED: [&str; 20] = [
    "nfs",
    "iscsi",
    "fc",
    "flexVolume",
    "gitRepo",
    "glusterfs",
    "cephfs",
    "rbd",
    "cinder",
    "flocker",
    "quobyte",
    "scaleIO",
    "storageos",
    "portworxVolume",
    "photonPersistentDisk",
    "vsphereVolume",
    "azureDisk",
    "azureFile",
    "gcePersistentDisk",
    "awsElasticBlockStore",
];

/// The name of such a source of a volume, be it a pod's or a persistent one.
fn unsupported(volume: &impl ToJson) -> Option<&'static str> {
    let fields = orlop_api::types::to_value(volume);
    UNSUPPORTED.into_iter().find(|kind| fields.get(kind).is_some())
}

fn refused(kind: &str) -> String {
    let message = format!("volumes of type {kind} are not supported by this node");
    match kind {
        "gitRepo" => message,
        _ => format!("{message}: use a CSI driver for them"),
    }
}

#[cfg(test)]
mod tests {
    use orlop_api::types::core::PersistentVolumeSpec;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_supported_is_named() {
        for kind in ["nfs", "iscsi", "fc"] {
            let source = match kind {
                "nfs" => json!({"server": "s", "path": "/"}),
                "iscsi" => json!({"targetPortal": "p", "iqn": "i", "lun": 0}),
                _ => json!({"lun": 1}),
            };
            let volume: Volume = orlop_api::types::from_value(json!({"name": "v", kind: source})).unwrap();
            let persistent: PersistentVolumeSpec = orlop_api::types::from_value(json!({kind: source})).unwrap();
            assert_eq!(
                (unsupported(&volume), unsupported(&persistent)),
                (Some(kind), Some(kind))
            );
        }
        assert_eq!(unsupported(&Volume::default()), None);
        assert_eq!(
            refused("nfs"),
            "volumes of type nfs are not supported by this node: use a CSI driver for them"
        );
    }
}

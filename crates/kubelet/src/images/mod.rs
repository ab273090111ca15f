//! The image manager: whether a container's image has to be pulled, and pulling it.
//!
//! `keyring` finds credentials in pull secrets, `providers` runs credential provider plugins, `backoff` says when a failed pull
//! may be retried, `records` which pods may use an image that is present already. Concurrent pulls of the same image with the
//! same credentials are one pull.
//!
//! Upstream: pkg/kubelet/images (v1.36). Left out: `registryPullQPS`, which there turns a burst of pulls into errors; here
//! they are queued.

mod backoff;
pub mod keyring;
pub mod providers;
mod records;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use orlop_api::duration::duration_text;
use orlop_api::types::core::{Container, ImageVolumeSource, Pod, Secret};
use orlop_base::Clock;
use orlop_client::events::EventType::{self, Normal, Warning};
use orlop_runtime::cri::messages::{Image, ImageSpec, PodSandboxConfig};
use orlop_runtime::image_name::{self, ImageName};
use orlop_runtime::{Code, Runtime};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use self::backoff::Backoff;
use self::keyring::{Credentials, Keyring};
use self::providers::Providers;
use self::records::Records;
pub use self::records::Verification;
use crate::config::Config;
use crate::events::Events;
use crate::metrics::Metrics;
use crate::objects::{ObjectError, Objects};

/// How long ErrImagePull is shown before ImagePullBackOff.
const FAILURE_SHOWN: Duration = Duration::from_secs(3);

/// How often a container in ImagePullBackOff is synced, which its events then count.
/// Upstream: pkg/kubelet `backOffPeriod`
const WAITING_TOLD: Duration = Duration::from_secs(10);

/// The image to create a container with.
#[derive(Clone, Debug, PartialEq)]
pub struct PulledImage {
    pub image_ref: String,
    pub image: Option<Image>,
}

/// Why there is no image: `reason` and `message` are what the container's waiting state shows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ImageError {
    /// `ErrImagePull`, `ImagePullBackOff`, `ErrImageNeverPull`, `InvalidImageName`, `ImageInspectError`,
    /// `RegistryUnavailable`, `SignatureValidationFailed`.
    pub reason: &'static str,
    pub message: String,
    /// Do not retry before this; `None`: the default back-off.
    pub retry_after: Option<Duration>,
}

#[derive(Clone)]
pub struct ImageSettings {
    /// `serializeImagePulls`
    pub serialize_pulls: bool,
    /// `maxParallelImagePulls`, where pulls are not serialised.
    pub max_parallel_pulls: Option<u32>,
    pub backoff_first: Duration,
    pub backoff_max: Duration,
    /// `imagePullCredentialsVerificationPolicy`
    pub verification: Verification,
    /// Where to remember pulls, `<root>/image_manager`; `None`: nowhere.
    pub records: Option<PathBuf>,
    /// Docker's `config.json` of the node; the first that is there counts.
    pub docker_configs: Vec<PathBuf>,
    pub providers: Option<Providers>,
    pub metrics: Arc<Metrics>,
}

impl Default for ImageSettings {
    fn default() -> ImageSettings {
        ImageSettings {
            serialize_pulls: true,
            max_parallel_pulls: None,
            backoff_first: Duration::from_secs(10),
            backoff_max: Duration::from_secs(300),
            verification: Verification::default(),
            records: None,
            docker_configs: Vec::new(),
            providers: None,
            metrics: Arc::default(),
        }
    }
}

impl ImageSettings {
    /// From a configuration that was checked when it was read, for a kubelet that lives in `root`.
    pub fn of(config: &Config, root: &Path) -> ImageSettings {
        let list = config.document["preloadedImagesVerificationAllowlist"].as_array();
        let list = list
            .into_iter()
            .flatten()
            .filter_map(|image| Some(image.as_str()?.to_string()));
        let verification = match config.document["imagePullCredentialsVerificationPolicy"].as_str() {
            Some("NeverVerify") => Verification::NeverVerify,
            Some("NeverVerifyAllowlistedImages") => Verification::NeverVerifyAllowlistedImages(list.collect()),
            Some("AlwaysVerify") => Verification::AlwaysVerify,
            _ => Verification::NeverVerifyPreloadedImages,
        };
        let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".docker/config.json"));
        let mut docker_configs = vec![root.join("config.json")];
        docker_configs.extend(home);
        docker_configs.push(PathBuf::from("/.docker/config.json"));
        ImageSettings {
            serialize_pulls: config.serialize_image_pulls,
            max_parallel_pulls: config.max_parallel_image_pulls,
            verification,
            records: Some(root.join("image_manager")),
            docker_configs,
            ..ImageSettings::default()
        }
    }
}

type Secrets = Arc<dyn Fn(String, String) -> BoxFuture<'static, Result<Arc<Secret>, ObjectError>> + Send + Sync>;

/// Why an image was not pulled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum PullError {
    #[error("Failed to record image pull intent for container image {image:?}: {reason}")]
    Record { image: String, reason: String },
    /// The runtime's errors, by credentials.
    #[error("{}", listed(.0))]
    Runtime(Vec<String>),
    #[error("the pull was interrupted")]
    Interrupted,
}

fn listed(errors: &[String]) -> String {
    match errors {
        [one] => one.clone(),
        _ => format!("[{}]", errors.join(", ")),
    }
}

/// The result of a pull.
#[derive(Clone)]
struct Pull {
    answer: Result<(PulledImage, Option<Credentials>), PullError>,
    took: Duration,
}

/// Image, users and passwords.
type PullKey = (String, Vec<(String, String)>);

struct Inner {
    runtime: Arc<dyn Runtime>,
    secrets: Secrets,
    events: Events,
    clock: Clock,
    docker_configs: Vec<PathBuf>,
    providers: Option<Providers>,
    turns: Semaphore,
    backoff: Mutex<Backoff>,
    records: Records,
    /// Bounded by the containers that wait for images.
    pulls: Mutex<FxHashMap<PullKey, Shared<BoxFuture<'static, Pull>>>>,
    metrics: Arc<Metrics>,
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Images {
    inner: Arc<Inner>,
}

/// One container or volume that needs its image.
struct ImageRequest<'a> {
    pod: &'a Pod,
    /// None for an image volume: its events regard the pod.
    container: Option<&'a str>,
    policy: Option<&'a str>,
    /// As the pod says it.
    image: &'a str,
    name: ImageName,
    spec: ImageSpec,
}

impl Images {
    pub fn new(
        runtime: Arc<dyn Runtime>,
        objects: Objects,
        events: Events,
        clock: Clock,
        settings: ImageSettings,
    ) -> Images {
        let secrets: Secrets = Arc::new(move |namespace, name| {
            let objects = objects.clone();
            async move { objects.secret(&namespace, &name).await }.boxed()
        });
        Images::with_secrets(runtime, secrets, events, clock, settings)
    }

    fn with_secrets(
        runtime: Arc<dyn Runtime>,
        secrets: Secrets,
        events: Events,
        clock: Clock,
        settings: ImageSettings,
    ) -> Images {
        let turns = match (settings.serialize_pulls, settings.max_parallel_pulls) {
            (true, _) => 1,
            (false, Some(most)) if most > 0 => most as usize,
            (false, _) => Semaphore::MAX_PERMITS,
        };
        let inner = Inner {
            runtime,
            secrets,
            events,
            clock,
            docker_configs: settings.docker_configs,
            providers: settings.providers,
            turns: Semaphore::new(turns),
            backoff: Mutex::new(Backoff::new(settings.backoff_first, settings.backoff_max)),
            records: Records::open(settings.records, settings.verification),
            pulls: Mutex::default(),
            metrics: settings.metrics,
        };
        Images { inner: Arc::new(inner) }
    }

    /// Ensures that the container's image is present, by its pull policy. Records events, that of the failed
    /// start of the container (`Error: ErrImagePull`) included.
    pub async fn ensure(
        &self,
        pod: &Pod,
        container: &Container,
        sandbox: &PodSandboxConfig,
    ) -> Result<PulledImage, ImageError> {
        let (image, policy) = (container.image.as_deref(), container.image_pull_policy.as_deref());
        let answer = self
            .ensure_for(pod, Some(&container.name), image, policy, sandbox)
            .await;
        self.told(pod, container, answer)
    }

    /// Ensures that the image of a volume is present. A failure keeps the container from starting.
    pub async fn ensure_volume(
        &self,
        pod: &Pod,
        container: &Container,
        source: &ImageVolumeSource,
        sandbox: &PodSandboxConfig,
    ) -> Result<PulledImage, ImageError> {
        let (image, policy) = (source.reference.as_deref(), source.pull_policy.as_deref());
        let answer = self.ensure_for(pod, None, image, policy, sandbox).await;
        self.told(pod, container, answer)
    }

    /// Records the event of a failed start, if it is one.
    fn told<T>(&self, pod: &Pod, container: &Container, answer: Result<T, ImageError>) -> Result<T, ImageError> {
        if let Err(error) = &answer {
            let note = format!("Error: {}", error.reason);
            self.inner
                .events
                .container(pod, &container.name, Warning, "Failed", note);
        }
        answer
    }

    async fn ensure_for(
        &self,
        pod: &Pod,
        container: Option<&str>,
        image: Option<&str>,
        policy: Option<&str>,
        sandbox: &PodSandboxConfig,
    ) -> Result<PulledImage, ImageError> {
        let image = image.unwrap_or_default();
        match ImageName::parse(image).and_then(|name| Ok((name, image_name::with_tag(image)?))) {
            Ok((name, tagged)) => {
                let spec = ImageSpec {
                    image: tagged,
                    annotations: pod.metadata.annotations.clone().unwrap_or_default(),
                    ..ImageSpec::default()
                };
                let wanted = ImageRequest {
                    pod,
                    container,
                    policy,
                    image,
                    name,
                    spec,
                };
                self.ensure_named(&wanted, sandbox).await
            }
            Err(why) => {
                let message = format!("Failed to apply default image tag {image:?}: {why}");
                self.say_of(pod, container, Warning, "InspectFailed", message.clone());
                Err(error("InvalidImageName", message))
            }
        }
    }

    async fn ensure_named(
        &self,
        wanted: &ImageRequest<'_>,
        sandbox: &PodSandboxConfig,
    ) -> Result<PulledImage, ImageError> {
        let policy = pull_policy(wanted);
        let mut credentials = None;
        if policy != "Always" {
            let present = self.inner.runtime.image_status(&wanted.spec).await.map_err(|why| {
                let message = format!("Failed to inspect image {:?}: {}", wanted.image, grpc_text(&why));
                self.say(wanted, Warning, "InspectFailed", message.clone());
                error("ImageInspectError", message)
            })?;
            if let Some(present) = present {
                // Secrets are fetched only where they may matter.
                if self.inner.records.needs_credentials(wanted.image, &present.id) {
                    credentials = Some(self.credentials(wanted).await?);
                }
                let known = credentials.as_deref().unwrap_or_default();
                let now = self.inner.clock.now();
                if !self.inner.records.must_pull(wanted.image, &present.id, known, now) {
                    let image = wanted.image;
                    let note =
                        format!("Container image {image:?} already present on machine and can be accessed by the pod");
                    self.say(wanted, Normal, "Pulled", note);
                    return Ok(PulledImage {
                        image_ref: present.id.clone(),
                        image: Some(present),
                    });
                }
            }
            if policy == "Never" {
                let message = format!(
                    "Container image {:?} is not present with pull policy of Never",
                    wanted.image
                );
                self.say(wanted, Warning, "ErrImageNeverPull", message.clone());
                return Err(error("ErrImageNeverPull", message));
            }
        }
        let credentials = match credentials {
            Some(credentials) => credentials,
            None => self.credentials(wanted).await?,
        };
        self.pull_unless_backing_off(wanted, credentials, sandbox).await
    }

    async fn pull_unless_backing_off(
        &self,
        wanted: &ImageRequest<'_>,
        credentials: Vec<Credentials>,
        sandbox: &PodSandboxConfig,
    ) -> Result<PulledImage, ImageError> {
        let uid = wanted.pod.metadata.uid.as_deref().unwrap_or_default();
        let image = wanted.image;
        let waiting = {
            let backoff = self.inner.backoff.lock();
            let waiting = backoff.waiting(uid, image, self.inner.clock.now());
            waiting.map(|(left, why)| (left, why.to_string()))
        };
        if let Some((left, why)) = waiting {
            let message = format!("Back-off pulling image {image:?}");
            self.say(wanted, Normal, "BackOff", message.clone());
            return Err(ImageError {
                reason: "ImagePullBackOff",
                message: format!("{message}: {why}"),
                retry_after: Some(left.min(WAITING_TOLD)),
            });
        }
        self.say(wanted, Normal, "Pulling", format!("Pulling image {image:?}"));
        let began = Instant::now();
        let pull = self.shared_pull(wanted, credentials, sandbox).await;
        match pull.answer {
            Ok((pulled, _)) => {
                let size = pulled.image.as_ref().map_or(0, |image| image.size);
                let (took, all) = (milliseconds(pull.took), milliseconds(began.elapsed()));
                let note = format!(
                    "Successfully pulled image {image:?} in {took} ({all} including waiting). Image size: {size} bytes."
                );
                self.say(wanted, Normal, "Pulled", note);
                Ok(pulled)
            }
            Err(why) => {
                self.say(
                    wanted,
                    Warning,
                    "Failed",
                    format!("Failed to pull image {image:?}: {why}"),
                );
                let (reason, message) = pull_error(image, why.to_string());
                let now = self.inner.clock.now();
                let text = format!("{reason}: {message}");
                self.inner.backoff.lock().failed(uid, image, text, now);
                Err(ImageError {
                    reason,
                    message,
                    retry_after: Some(FAILURE_SHOWN),
                })
            }
        }
    }

    /// Drops the back-offs of a deleted pod.
    pub fn forget(&self, uid: &str) {
        self.inner.backoff.lock().forget_pod(uid);
    }

    /// Drops the records of images other than these (ids).
    pub fn retain_records(&self, images: &BTreeSet<String>) {
        self.inner.records.retain(images);
    }

    /// Joins an equal pull if there is one. The pull goes on when nobody waits for it any more: most likely somebody
    /// will again.
    async fn shared_pull(
        &self,
        wanted: &ImageRequest<'_>,
        credentials: Vec<Credentials>,
        sandbox: &PodSandboxConfig,
    ) -> Pull {
        let users = credentials
            .iter()
            .map(|c| (c.auth.username.clone(), c.auth.password.clone()));
        let key: PullKey = (wanted.image.to_string(), users.collect());
        let pull = {
            let mut pulls = self.inner.pulls.lock();
            match pulls.get(&key) {
                Some(pull) => pull.clone(),
                None => {
                    let (inner, spec, sandbox) = (self.inner.clone(), wanted.spec.clone(), sandbox.clone());
                    let own_key = key.clone();
                    let task = tokio::spawn(async move {
                        let pull = inner.pull(&own_key.0, spec, credentials, sandbox).await;
                        inner.pulls.lock().remove(&own_key);
                        pull
                    });
                    let pull = task
                        .map(|ended| ended.unwrap_or_else(|_| broken_off()))
                        .boxed()
                        .shared();
                    pulls.insert(key, pull.clone());
                    pull
                }
            }
        };
        pull.await
    }

    /// The pod's secrets and the node's own configuration, as far as they fit the image.
    async fn credentials(&self, wanted: &ImageRequest<'_>) -> Result<Vec<Credentials>, ImageError> {
        let namespace = wanted.pod.metadata.namespace.clone().unwrap_or_default();
        let references = wanted
            .pod
            .spec
            .as_ref()
            .and_then(|spec| spec.image_pull_secrets.as_ref());
        let names = references.into_iter().flatten().map(|reference| reference.name.clone());
        let (mut secrets, mut missing) = (Vec::new(), Vec::new());
        for name in names.filter(|name| !name.is_empty()) {
            match (self.inner.secrets)(namespace.clone(), name.clone()).await {
                Ok(secret) => secrets.push(secret),
                Err(why) => {
                    tracing::debug!(namespace, name, err = %why, "failed to get image pull secret");
                    missing.push(name);
                }
            }
        }
        if !missing.is_empty() {
            let list = missing.join(", ");
            let note = format!(
                "Unable to retrieve some image pull secrets ({list}); attempting to pull the image may not succeed."
            );
            self.inner
                .events
                .pod(wanted.pod, Warning, "FailedToRetrieveImagePullSecret", note);
        }
        let keyring = Keyring::from_secrets(secrets.iter().map(|secret| &**secret));
        let keyring = keyring.map_err(|why| error("ErrImagePull", why.to_string()))?;
        let mut found = keyring.lookup(&wanted.name.repository);
        found.extend(self.inner.node_keyring().await.lookup(&wanted.name.repository));
        if let Some(providers) = &self.inner.providers {
            found.extend(providers.lookup(&wanted.name.repository, wanted.pod).await);
        }
        Ok(found)
    }

    fn say(&self, wanted: &ImageRequest<'_>, kind: EventType, reason: &'static str, note: String) {
        self.say_of(wanted.pod, wanted.container, kind, reason, note);
    }

    fn say_of(&self, pod: &Pod, container: Option<&str>, kind: EventType, reason: &'static str, note: String) {
        match container {
            Some(name) => self.inner.events.container(pod, name, kind, reason, note),
            None => self.inner.events.pod(pod, kind, reason, note),
        }
    }
}

impl Inner {
    async fn node_keyring(&self) -> Keyring {
        for path in &self.docker_configs {
            if let Ok(text) = tokio::fs::read(path).await {
                match Keyring::from_config(&text) {
                    Ok(keyring) => return keyring,
                    Err(why) => {
                        tracing::warn!(path = %path.display(), err = %why, "failed to read registry credentials")
                    }
                }
            }
        }
        Keyring::default()
    }

    async fn pull(&self, image: &str, spec: ImageSpec, with: Vec<Credentials>, sandbox: PodSandboxConfig) -> Pull {
        let _turn = self.turns.acquire().await.expect("never closed");
        let began = Instant::now();
        let present = self.runtime.image_status(&spec).await.ok().flatten();
        let present = present.map(|image| image.id);
        if let Err(why) = self.records.begin(image, present, self.clock.now()) {
            return Pull {
                answer: Err(PullError::Record {
                    image: image.to_string(),
                    reason: why.to_string(),
                }),
                took: Duration::ZERO,
            };
        }
        let answer = self.pull_with_any(&spec, with, &sandbox).await;
        let answer = match answer {
            Ok((image_ref, used)) => {
                // The size is for the event; the image's user is needed for runAsNonRoot.
                let found = self.runtime.image_status(&spec).await.ok().flatten();
                let id = found.as_ref().map_or(image_ref.as_str(), |found| found.id.as_str());
                self.records.pulled(image, id, used.as_ref(), self.clock.now());
                let size = found.as_ref().map_or(0, |found| found.size);
                self.metrics.pulled(size, began.elapsed());
                let image = found;
                Ok((PulledImage { image_ref, image }, used))
            }
            Err(why) => {
                self.records.failed(image);
                Err(why)
            }
        };
        Pull {
            answer,
            took: began.elapsed(),
        }
    }

    /// Each of the credentials in turn, or none if there are none.
    async fn pull_with_any(
        &self,
        spec: &ImageSpec,
        with: Vec<Credentials>,
        sandbox: &PodSandboxConfig,
    ) -> Result<(String, Option<Credentials>), PullError> {
        let attempts = match with.is_empty() {
            true => vec![None],
            false => with.into_iter().map(Some).collect(),
        };
        let mut errors: Vec<String> = Vec::new();
        for credentials in attempts {
            let auth = credentials.as_ref().map(|credentials| credentials.auth.clone());
            match self.runtime.pull_image(spec.clone(), auth, sandbox.clone()).await {
                Ok(image_ref) if image_ref.is_empty() => {
                    errors.push(format!("imageRef of image {:?} is not set", spec.image));
                }
                Ok(image_ref) => return Ok((image_ref, credentials)),
                Err(why) => {
                    let why = grpc_text(&why);
                    if !errors.contains(&why) {
                        errors.push(why);
                    }
                }
            }
        }
        Err(PullError::Runtime(errors))
    }
}

fn broken_off() -> Pull {
    Pull {
        answer: Err(PullError::Interrupted),
        took: Duration::ZERO,
    }
}

fn error(reason: &'static str, message: String) -> ImageError {
    ImageError {
        reason,
        message,
        retry_after: None,
    }
}

/// The pod's pull policy, or the default for a pod without defaults.
fn pull_policy<'a>(wanted: &ImageRequest<'a>) -> &'a str {
    match wanted.policy {
        Some(policy) if !policy.is_empty() => policy,
        _ if wanted.name.tag.as_deref() == Some("latest") && wanted.name.digest.is_none() => "Always",
        _ => "IfNotPresent",
    }
}

/// A runtime's error as gRPC in Go writes it; the code is left out where it says nothing.
fn grpc_text(error: &orlop_runtime::Error) -> String {
    let code = match error.code {
        Code::NotFound => "NotFound",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::Unavailable => "Unavailable",
        Code::Unimplemented => "Unimplemented",
        Code::Other => return error.message.clone(),
    };
    match error.message.starts_with("rpc error: ") {
        true => error.message.clone(),
        false => format!("rpc error: code = {code} desc = {}", error.message),
    }
}

/// Reason and message for a failed pull. Two reasons are recognised by the prefix of the runtime's message.
fn pull_error(image: &str, why: String) -> (&'static str, String) {
    for (reason, words) in [
        ("RegistryUnavailable", "the registry is unavailable"),
        ("SignatureValidationFailed", "the signature validation failed"),
    ] {
        if let Some(rest) = why.strip_prefix(reason) {
            return (reason, format!("image pull failed for {image} because {words}{rest}"));
        }
    }
    ("ErrImagePull", why)
}

/// In Go's notation, to the millisecond.
fn milliseconds(took: Duration) -> String {
    duration_text(i64::try_from(took.as_millis()).unwrap_or(i64::MAX / 1_000_000) * 1_000_000)
}

#[cfg(test)]
mod tests;

//! Volumes that are images: the kubelet pulls them, the runtime mounts them.
//!
//! Runtimes do not say whether they can. Those that can't would not notice the image and mount nothing, or the wrong thing:
//! of the two that are known, those that are too old are refused; all others are believed.
// Upstream: pkg/kubelet/kuberuntime getImageVolumes (v1.36)

use orlop_api::types::core::{Container, ImageVolumeSource, Pod};
use orlop_runtime::cri::messages::VersionResponse;

/// Runtimes, and the first versions that can mount images.
const FIRST: [(&str, (u32, u32)); 2] = [("containerd", (2, 1)), ("cri-o", (1, 31))];

/// The volumes of a container that are images.
pub fn of<'a>(pod: &'a Pod, container: &'a Container) -> impl Iterator<Item = (&'a str, &'a ImageVolumeSource)> + Send {
    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes
        .filter_map(|volume| Some((volume.name.as_str(), volume.image.as_ref()?)))
        .filter(|(name, _)| mounts.iter().any(|mount| mount.name == *name))
}

/// Why the runtime can't mount images, if so.
pub fn trouble(runtime: &VersionResponse) -> Option<String> {
    let name = runtime.runtime_name.as_str();
    let (_, first) = FIRST.into_iter().find(|(known, _)| name.eq_ignore_ascii_case(known))?;
    let is = numbers(&runtime.runtime_version)?;
    (is < first).then(|| {
        format!(
            "volumes of type image are not supported by {name} {}: {}.{} or newer is required",
            runtime.runtime_version, first.0, first.1
        )
    })
}

/// Of `v2.1.0-rc.1`, `1.6.20~ds1`: the first two.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.trim_start_matches('v').split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn runtimes_that_can_not() {
        let cases = [
            ("containerd", "1.6.20~ds1", true),
            ("containerd", "v2.0.5", true),
            ("containerd", "v2.1.0-rc.1", false),
            ("containerd", "3.0.0", false),
            ("cri-o", "1.30.9", true),
            ("cri-o", "1.36.0", false),
            ("containerd", "main", false),
            ("other", "0.1", false),
        ];
        for (runtime_name, runtime_version, expected) in cases {
            let version = VersionResponse {
                runtime_name: runtime_name.into(),
                runtime_version: runtime_version.into(),
                ..VersionResponse::default()
            };
            assert_eq!(
                trouble(&version).is_some(),
                expected,
                "{runtime_name} {runtime_version}"
            );
        }
    }

    #[test]
    fn images_that_a_container_mounts() {
        let pod: Pod = orlop_api::types::from_value(json!({"spec": {
            "containers": [{"name": "c", "volumeMounts": [{"name": "b", "mountPath": "/b"}, {"name": "d", "mountPath": "/d"}]}],
            "volumes": [
                {"name": "a", "image": {"reference": "one"}},
                {"name": "b", "image": {"reference": "two"}},
                {"name": "d", "emptyDir": {}},
            ],
        }}))
        .unwrap();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let found: Vec<_> = of(&pod, container)
            .map(|(name, source)| (name, source.reference.as_deref()))
            .collect();
        assert_eq!(found, [("b", Some("two"))]);
    }
}

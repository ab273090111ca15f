//! Which images to remove. Pure.
//!
//! Upstream: pkg/kubelet/images/image_gc_manager.go (v1.36).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use orlop_runtime::cri::messages::{Container, Image};

use crate::spec::labels;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImagePolicy {
    /// `imageGCHighThresholdPercent`: images are removed above this usage …
    pub high_percent: u64,
    /// … down to this one (`imageGCLowThresholdPercent`).
    pub low_percent: u64,
    /// `imageMinimumGCAge`: an image just pulled is about to be used.
    pub min_age: Duration,
    /// `imageMaximumGCAge`: images unused for longer are removed in any case; zero: never.
    pub max_age: Duration,
}

impl Default for ImagePolicy {
    fn default() -> ImagePolicy {
        ImagePolicy {
            high_percent: 85,
            low_percent: 80,
            min_age: Duration::from_secs(120),
            max_age: Duration::ZERO,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ImageUse {
    first: Timestamp,
    /// `None`: not since the kubelet started.
    last_used: Option<Timestamp>,
    size: u64,
    pinned: bool,
    in_use: bool,
}

/// When images were first seen and last used. Bounded by the images there are.
#[derive(Clone, Debug, Default)]
pub struct History {
    images: BTreeMap<String, ImageUse>,
}

impl History {
    /// Updates from all images and all containers; dead containers keep their images in use.
    pub fn observe(&mut self, images: &[Image], containers: &[Container], now: Timestamp) {
        let used: BTreeSet<&str> = containers
            .iter()
            .flat_map(|c| {
                [c.image_id.as_str(), c.image_ref.as_str()]
                    .into_iter()
                    .chain(labels::noted_images(&c.annotations))
            })
            .filter(|id| !id.is_empty())
            .collect();
        let ids: BTreeSet<&str> = images.iter().map(|image| image.id.as_str()).collect();
        self.images.retain(|id, _| ids.contains(id.as_str()));
        for image in images {
            let names = image.repo_digests.iter().chain(&image.repo_tags);
            let in_use = names.chain([&image.id]).any(|name| used.contains(name.as_str()));
            let pinned = image.pinned || holds_sandboxes(image);
            let seen = self.images.entry(image.id.clone()).or_insert(ImageUse {
                first: now,
                last_used: None,
                size: 0,
                pinned: false,
                in_use,
            });
            seen.size = image.size;
            seen.pinned = pinned;
            seen.in_use = in_use;
            if in_use {
                seen.last_used = Some(now);
            }
        }
    }

    pub fn removed(&mut self, id: &str) {
        self.images.remove(id);
    }

    pub fn ids(&self) -> BTreeSet<String> {
        self.images.keys().cloned().collect()
    }

    /// Ids and sizes of removable images, the least recently used first.
    pub fn candidates(&self, policy: &ImagePolicy, now: Timestamp) -> Vec<(String, u64)> {
        let mut free: Vec<_> = self.unused().collect();
        free.retain(|(_, seen)| now.duration_since(seen.first) >= signed(policy.min_age));
        free.sort_by_key(|(id, seen)| (seen.last_used, seen.first, *id));
        free.into_iter().map(|(id, seen)| (id.clone(), seen.size)).collect()
    }

    /// Images unused for too long. Not before the kubelet has watched for that long itself.
    pub fn too_old(&self, policy: &ImagePolicy, began: Timestamp, now: Timestamp) -> Vec<String> {
        let max_age = signed(policy.max_age);
        if policy.max_age.is_zero() || now.duration_since(began) <= max_age {
            return Vec::new();
        }
        let unused_for = |seen: &ImageUse| now.duration_since(seen.last_used.unwrap_or(seen.first));
        let old = self.unused().filter(|(_, seen)| unused_for(seen) > max_age);
        old.map(|(id, _)| id.clone()).collect()
    }

    fn unused(&self) -> impl Iterator<Item = (&String, &ImageUse)> {
        self.images.iter().filter(|(_, seen)| !seen.in_use && !seen.pinned)
    }
}

/// The pause image. Runtimes pin it; older ones (containerd before 1.7) do not report that, and no
/// container shows that it is in use.
fn holds_sandboxes(image: &Image) -> bool {
    image.repo_tags.iter().any(|tag| {
        let name = tag.rsplit('/').next().unwrap_or_default();
        let name = name.split(':').next().unwrap_or_default();
        name == "pause" || name.ends_with("-pause")
    })
}

fn signed(duration: Duration) -> jiff::SignedDuration {
    jiff::SignedDuration::try_from(duration).unwrap_or(jiff::SignedDuration::MAX)
}

/// How full the disk is, in whole per cent.
pub fn used_percent(capacity: u64, available: u64) -> u64 {
    100 - (u128::from(available.min(capacity)) * 100 / u128::from(capacity.max(1))) as u64
}

/// How many bytes to free; `None`: there is room enough.
pub fn to_free(policy: &ImagePolicy, capacity: u64, available: u64) -> Option<u64> {
    if used_percent(capacity, available) < policy.high_percent {
        return None;
    }
    let wanted = u128::from(capacity) * u128::from(100 - policy.low_percent.min(100)) / 100;
    let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
    Some(wanted.saturating_sub(available.min(capacity)))
}

/// `12.3 GiB`
pub fn size_text(bytes: u64) -> String {
    let units = [
        ("TiB", 1u64 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
    ];
    match units.into_iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(id: &str, size: u64, pinned: bool) -> Image {
        Image {
            id: id.to_string(),
            repo_digests: vec![format!("r/{id}@sha256:x")],
            size,
            pinned,
            ..Image::default()
        }
    }

    fn uses(image_ref: &str) -> Container {
        Container {
            image_ref: image_ref.to_string(),
            ..Container::default()
        }
    }

    fn at(minutes: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + 60 * minutes).unwrap()
    }

    fn ids(candidates: &[(String, u64)]) -> Vec<&str> {
        candidates.iter().map(|(id, _)| id.as_str()).collect()
    }

    #[test]
    fn unused_images_go_the_longest_unused_first() {
        let mut images = ["a", "b", "c", "d", "e"].map(|id| image(id, 10, id == "d"));
        images[4].repo_tags = vec!["registry.k8s.io/pause:3.6".to_string()];
        let mut history = History::default();
        let policy = ImagePolicy::default();
        history.observe(&images, &[uses("a"), uses("r/b@sha256:x")], at(0));
        assert!(history.candidates(&policy, at(1)).is_empty(), "too young");
        assert_eq!(ids(&history.candidates(&policy, at(2))), ["c"]);
        history.observe(&images, &[uses("a")], at(5));
        assert_eq!(ids(&history.candidates(&policy, at(5))), ["c", "b"]);
        history.observe(&images, &[], at(6));
        assert_eq!(ids(&history.candidates(&policy, at(6))), ["c", "b", "a"]);
        history.removed("c");
        history.observe(&images[..2], &[], at(7));
        assert_eq!(history.ids(), ["a".to_string(), "b".to_string()].into());
    }

    #[test]
    fn mounted_images_are_in_use() {
        let images = ["a", "b", "c"].map(|id| image(id, 10, false));
        let spec = |image: &str| orlop_runtime::cri::messages::ImageSpec {
            image: image.into(),
            ..Default::default()
        };
        let mut container = uses("a");
        labels::note_images(&mut container.annotations, [spec("c"), spec("x")].iter());
        let mut history = History::default();
        history.observe(&images, &[container], at(0));
        assert_eq!(ids(&history.candidates(&ImagePolicy::default(), at(5))), ["b"]);
    }

    #[test]
    fn old_images_go_in_any_case() {
        let images = ["a", "b"].map(|id| image(id, 10, false));
        let mut history = History::default();
        let policy = ImagePolicy {
            max_age: Duration::from_secs(600),
            ..ImagePolicy::default()
        };
        history.observe(&images, &[uses("a")], at(0));
        history.observe(&images, &[], at(5));
        assert!(history.too_old(&policy, at(0), at(10)).is_empty());
        assert_eq!(history.too_old(&policy, at(0), at(11)), ["a", "b"]);
        history.observe(&images, &[uses("a")], at(11));
        assert_eq!(history.too_old(&policy, at(0), at(12)), ["b"]);
        assert!(history.too_old(&ImagePolicy::default(), at(0), at(9999)).is_empty());
    }

    #[test]
    fn how_much_to_free() {
        let policy = ImagePolicy::default();
        for (capacity, available, want) in [
            (1000, 200, None),
            (1000, 151, Some(49)), // whole per cent: 151 of 1000 free counts as 15
            (1000, 161, None),
            (1000, 150, Some(50)),
            (1000, 0, Some(200)),
            (1000, 5000, None),
        ] {
            assert_eq!(to_free(&policy, capacity, available), want, "{available}");
        }
        let sizes = [5, 2048, 3 << 20, (5 << 30) / 2].map(size_text);
        assert_eq!(sizes, ["5 B", "2.0 KiB", "3.0 MiB", "2.5 GiB"]);
    }
}

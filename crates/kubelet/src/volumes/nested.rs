//! Volumes mounted inside other volumes: the directories that must be there to mount on. No I/O.

use orlop_api::types::core::{Pod, VolumeMount};

use super::error::MountError;

/// The lists of mounts of all containers of the pod.
pub(super) fn container_mounts(pod: &Pod) -> impl Iterator<Item = &[VolumeMount]> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| {
        let init = spec.init_containers.iter().flatten().map(|c| &c.volume_mounts);
        let main = spec.containers.iter().map(|c| &c.volume_mounts);
        let ephemeral = spec.ephemeral_containers.iter().flatten().map(|c| &c.volume_mounts);
        init.chain(main)
            .chain(ephemeral)
            .map(|mounts| mounts.as_deref().unwrap_or_default())
    })
}

/// Paths below the volume on which other volumes are mounted, in any container.
pub(super) fn mount_points(pod: &Pod, volume: &str) -> Result<Vec<String>, MountError> {
    let mut found = Vec::new();
    for mounts in container_mounts(pod) {
        let mut all: Vec<String> = mounts.iter().map(|m| clean(&m.mount_path)).collect();
        all.sort_unstable();
        for own in mounts.iter().filter(|m| m.name == volume).map(|m| clean(&m.mount_path)) {
            if own.starts_with("../") {
                return Err(MountError::Invalid(format!("invalid container mount point {own}")));
            }
            let prefix = format!("{own}/");
            let mut outer: Vec<String> = Vec::new();
            for point in &all {
                let Some(below) = point.strip_prefix(&prefix) else {
                    continue;
                };
                // What is inside one of these is made in it.
                if !outer.iter().any(|o| point.starts_with(o)) {
                    outer.push(format!("{point}/"));
                    found.push(below.to_string());
                }
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// The shortest path that means the same, by its text alone.
fn clean(path: &str) -> String {
    let is_absolute = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            ".." if is_absolute => {}
            part => parts.push(part),
        }
    }
    let joined = parts.join("/");
    match (is_absolute, joined.is_empty()) {
        (true, _) => format!("/{joined}"),
        (false, true) => ".".into(),
        (false, false) => joined,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_outermost_of_each() {
        let mounts = |list: &[(&str, &str)]| {
            let list = list.iter().map(|(name, path)| json!({"name": name, "mountPath": path}));
            json!(list.collect::<Vec<_>>())
        };
        let cases = [
            (
                mounts(&[("v", "/d"), ("w", "/d/n"), ("x", "/d/n/o"), ("y", "/dd")]),
                "n",
            ),
            (
                mounts(&[("v", "/d/"), ("w", "/d/n-vol"), ("x", "/d/n"), ("y", "/d/n/z")]),
                "n n-vol",
            ),
            (mounts(&[("v", "/d"), ("w", "/d/../e/f"), ("x", "/d/./g//h")]), "g/h"),
            (mounts(&[("v", "/d"), ("v", "/e"), ("w", "/d/a"), ("w", "/e/b")]), "a b"),
            (
                mounts(&[("v", "../../etc"), ("w", "../../etc/cron.d")]),
                "invalid container mount point ../../etc",
            ),
            (mounts(&[("w", "/d"), ("v", "/d/n")]), ""),
        ];
        for (list, expected) in cases {
            let spec = json!({"containers": [{"name": "c", "volumeMounts": list}]});
            let pod: Pod = orlop_api::types::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
            let found = mount_points(&pod, "v").map_or_else(|e| e.to_string(), |points| points.join(" "));
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn cleaned() {
        let cases = [
            ("/", "/"),
            ("/a/../..", "/"),
            ("a/..", "."),
            ("../a", "../a"),
            ("a//b/./c", "a/b/c"),
        ];
        for (path, expected) in cases {
            assert_eq!(clean(path), expected);
        }
    }
}

//! What is to be in a volume of files: path → contents, computed from objects. No I/O.

use std::collections::BTreeMap;

use orlop_api::types::core::{ConfigMap, KeyToPath, Secret};

use super::error::MountError;

/// The mode of files where nobody says.
pub(super) const DEFAULT_MODE: i32 = 0o644;
const PATH_MAX: usize = 4096;
const NAME_MAX: usize = 255;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct File {
    pub data: Vec<u8>,
    pub mode: u32,
    /// Who owns it, if not root.
    pub owner: Option<u32>,
}

impl File {
    pub(super) fn new(data: impl Into<Vec<u8>>, mode: i32) -> File {
        File {
            data: data.into(),
            mode: mode as u32 & 0o777,
            owner: None,
        }
    }
}

/// Files by their path below the volume.
pub(super) type Payload = BTreeMap<String, File>;

/// How keys of an object become files.
pub(super) struct Projection<'a> {
    pub items: &'a [KeyToPath],
    pub default_mode: i32,
    pub optional: bool,
}

pub(super) fn of_config_map(config_map: &ConfigMap, projection: &Projection<'_>) -> Result<Payload, MountError> {
    let texts = config_map
        .data
        .iter()
        .flatten()
        .map(|(k, v)| (k.as_str(), v.as_bytes()));
    let binary = config_map
        .binary_data
        .iter()
        .flatten()
        .map(|(k, v)| (k.as_str(), v.0.as_slice()));
    let missing = "configmap references non-existent config key";
    // Where a key is in both, the text is what an item gets and the binary is what a whole map gets.
    if projection.items.is_empty() {
        of_keys(&texts.chain(binary).collect(), projection, missing)
    } else {
        of_keys(&binary.chain(texts).collect(), projection, missing)
    }
}

pub(super) fn of_secret(secret: &Secret, projection: &Projection<'_>) -> Result<Payload, MountError> {
    let data = secret.data.iter().flatten().map(|(k, v)| (k.as_str(), v.0.as_slice()));
    of_keys(&data.collect(), projection, "references non-existent secret key")
}

fn of_keys(keys: &BTreeMap<&str, &[u8]>, projection: &Projection<'_>, missing: &str) -> Result<Payload, MountError> {
    let mut payload = Payload::new();
    if projection.items.is_empty() {
        let files = keys
            .iter()
            .map(|(key, data)| (key.to_string(), File::new(*data, projection.default_mode)));
        payload.extend(files);
        return Ok(payload);
    }
    for item in projection.items {
        match keys.get(item.key.as_str()) {
            Some(data) => {
                let mode = item.mode.unwrap_or(projection.default_mode);
                payload.insert(item.path.clone(), File::new(*data, mode));
            }
            None if projection.optional => {}
            None => return Err(MountError::Invalid(format!("{missing}: {}", item.key))),
        }
    }
    Ok(payload)
}

/// The payload with its paths cleaned, or what is wrong with one of them.
pub(super) fn checked(payload: Payload) -> Result<Payload, MountError> {
    payload
        .into_iter()
        .map(|(path, file)| Ok((checked_path(&path)?, file)))
        .collect()
}

fn checked_path(path: &str) -> Result<String, MountError> {
    if path.is_empty() {
        return Err(MountError::Invalid(format!(
            "invalid path: must not be empty: {path:?}"
        )));
    }
    if path.starts_with('/') {
        return Err(MountError::Invalid(format!(
            "invalid path: must be relative path: {path}"
        )));
    }
    if path.len() > PATH_MAX {
        return Err(MountError::Invalid(format!(
            "invalid path: must be less than or equal to {PATH_MAX} characters"
        )));
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        if part == ".." {
            return Err(MountError::Invalid(format!(
                "invalid path: must not contain '..': {path}"
            )));
        }
        if part.len() > NAME_MAX {
            let message = format!("invalid path: filenames must be less than or equal to {NAME_MAX} characters");
            return Err(MountError::Invalid(message));
        }
        // The first that is left, not only the first as written: `./..data` would be the writer's own.
        if parts.is_empty() && part.starts_with("..") {
            return Err(MountError::Invalid(format!(
                "invalid path: must not start with '..': {path}"
            )));
        }
        if part.contains('\0') {
            return Err(MountError::Invalid(format!(
                "invalid path: must not contain a zero byte: {path:?}"
            )));
        }
        if !matches!(part, "" | ".") {
            parts.push(part);
        }
    }
    if parts.is_empty() {
        return Err(MountError::Invalid(format!("invalid path: must name a file: {path:?}")));
    }
    Ok(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(payload: Result<Payload, MountError>) -> String {
        match payload {
            Ok(files) => {
                let files = files
                    .iter()
                    .map(|(path, file)| format!("{path}={}:{:o}", String::from_utf8_lossy(&file.data), file.mode));
                files.collect::<Vec<_>>().join(" ")
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn keys_become_files() {
        let config: ConfigMap =
            orlop_api::types::from_value(json!({"data": {"a": "1", "b": "2"}, "binaryData": {"c": "Mw=="}})).unwrap();
        let secret: Secret = orlop_api::types::from_value(json!({"data": {"a": "MQ=="}})).unwrap();
        let cases = [
            (json!([]), false, "a=1:644 b=2:644 c=3:644", "a=1:644"),
            (
                json!([{"key": "a", "path": "x/y", "mode": 0o400}]),
                false,
                "x/y=1:400",
                "x/y=1:400",
            ),
            (
                json!([{"key": "z", "path": "x"}]),
                false,
                "configmap references non-existent config key: z",
                "references non-existent secret key: z",
            ),
            (json!([{"key": "z", "path": "x"}]), true, "", ""),
        ];
        for (items, optional, of_map, of_the_secret) in cases {
            let items: Vec<KeyToPath> = orlop_api::types::from_value(items).unwrap();
            let projection = Projection {
                items: &items,
                default_mode: DEFAULT_MODE,
                optional,
            };
            assert_eq!(shown(of_config_map(&config, &projection)), of_map);
            assert_eq!(shown(of_secret(&secret, &projection)), of_the_secret);
        }
    }

    #[test]
    fn hostile_paths() {
        let cases = [
            ("a", "a"),
            ("a/b", "a/b"),
            ("./a//b/.", "a/b"),
            ("ü/…", "ü/…"),
            ("a/..b", "a/..b"),
            ("...", "invalid path: must not start with '..': ..."),
            ("", "invalid path: must not be empty: \"\""),
            ("/etc/passwd", "invalid path: must be relative path: /etc/passwd"),
            ("../x", "invalid path: must not contain '..': ../x"),
            ("a/../../x", "invalid path: must not contain '..': a/../../x"),
            ("..data", "invalid path: must not start with '..': ..data"),
            ("./..data/x", "invalid path: must not start with '..': ./..data/x"),
            (".", "invalid path: must name a file: \".\""),
            ("a\0", "invalid path: must not contain a zero byte: \"a\\0\""),
        ];
        for (path, expected) in cases {
            assert_eq!(checked_path(path).unwrap_or_else(|e| e.to_string()), expected);
        }
        assert!(
            checked_path(&"x".repeat(256))
                .unwrap_err()
                .to_string()
                .contains("filenames")
        );
        assert!(
            checked_path(&"x/".repeat(2049))
                .unwrap_err()
                .to_string()
                .contains("4096")
        );
    }
}

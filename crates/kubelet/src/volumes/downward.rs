//! The downward API as files: what a pod may know of itself. No I/O.

use std::collections::BTreeMap;
use std::fmt::Write;

use orlop_api::names;
use orlop_api::quantity::Quantity;
use orlop_api::types::core::{Container, DownwardAPIVolumeFile, Pod, ResourceFieldSelector};
use orlop_api::types::meta::Quantity as QuantityText;

use super::error::MountError;
use super::payload::{File, Payload};

/// Why a field of the downward API has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DownwardApiError {
    #[error("fieldPath {0:?} does not support subscript")]
    Subscript(String),
    #[error("invalid key subscript in {path}: {problems}")]
    Key { path: String, problems: String },
    #[error("unsupported fieldPath: {0}")]
    Field(String),
    #[error("unsupported container resource : {0}")]
    Resource(String),
    #[error("container {0} not found")]
    Container(String),
    /// A quantity that the API server would not have accepted.
    #[error("{0}")]
    Quantity(String),
}

/// What containers of this node can have at most; stands in for limits that are not set.
pub type Allocatable = BTreeMap<String, QuantityText>;

pub(super) fn payload(
    items: &[DownwardAPIVolumeFile],
    pod: &Pod,
    allocatable: &Allocatable,
    default_mode: i32,
) -> Result<Payload, MountError> {
    let mut payload = Payload::new();
    let mut problems = Vec::new();
    for item in items {
        let value = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => field_value(pod, &field.field_path),
            (None, Some(selector)) => {
                let container = selector.container_name.as_deref().unwrap_or_default();
                resource_value(selector, pod, container, allocatable)
            }
            (None, None) => Ok(String::new()),
        };
        match value {
            Ok(value) => {
                let mode = item.mode.unwrap_or(default_mode);
                payload.insert(item.path.clone(), File::new(value, mode));
            }
            Err(problem) => problems.push(problem.into()),
        }
    }
    if problems.is_empty() {
        Ok(payload)
    } else {
        Err(MountError::several(problems))
    }
}

/// A field of the pod's metadata; maps come as lines of `key="value"`.
pub fn field_value(pod: &Pod, path: &str) -> Result<String, DownwardApiError> {
    let metadata = &pod.metadata;
    if let Some((field, key)) = subscript(path) {
        let (map, name) = match field {
            "metadata.annotations" => (&metadata.annotations, key.to_lowercase()),
            "metadata.labels" => (&metadata.labels, key.to_string()),
            _ => return Err(DownwardApiError::Subscript(path.to_string())),
        };
        let problems = names::qualified_name(&name);
        if !problems.is_empty() {
            return Err(DownwardApiError::Key {
                path: path.to_string(),
                problems: problems.join(";"),
            });
        }
        return Ok(map.as_ref().and_then(|m| m.get(key)).cloned().unwrap_or_default());
    }
    match path {
        "metadata.annotations" => Ok(lines(&metadata.annotations)),
        "metadata.labels" => Ok(lines(&metadata.labels)),
        "metadata.name" => Ok(metadata.name.clone().unwrap_or_default()),
        "metadata.namespace" => Ok(metadata.namespace.clone().unwrap_or_default()),
        "metadata.uid" => Ok(metadata.uid.clone().unwrap_or_default()),
        _ => Err(DownwardApiError::Field(path.to_string())),
    }
}

/// `metadata.labels['a']` → `metadata.labels`, `a`.
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (field, key) = path.strip_suffix("']")?.split_once("['")?;
    (!field.is_empty()).then_some((field, key))
}

fn lines(map: &Option<BTreeMap<String, String>>) -> String {
    let mut text = String::new();
    for (key, value) in map.iter().flatten() {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(key);
        text.push('=');
        quote(&mut text, value);
    }
    text
}

/// Quotes as Go does, which is what programs reading these files were written for.
fn quote(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        let written = match c {
            '"' => write!(out, "\\\""),
            '\\' => write!(out, "\\\\"),
            '\x07' => write!(out, "\\a"),
            '\x08' => write!(out, "\\b"),
            '\x0c' => write!(out, "\\f"),
            '\n' => write!(out, "\\n"),
            '\r' => write!(out, "\\r"),
            '\t' => write!(out, "\\t"),
            '\x0b' => write!(out, "\\v"),
            c if is_printable(c) => write!(out, "{c}"),
            '\0'..'\x20' | '\x7f' => write!(out, "\\x{:02x}", c as u32),
            '\0'..'\u{10000}' => write!(out, "\\u{:04x}", c as u32),
            _ => write!(out, "\\U{:08x}", c as u32),
        };
        written.expect("a string takes all that is written to it");
    }
    out.push('"');
}

fn is_printable(c: char) -> bool {
    // After a letter, marks that combine with it are printed like everything else.
    let mut text = String::from("a");
    text.push(c);
    c == '\'' || text.escape_debug().skip(1).eq([c])
}

/// A request or limit of a container in units of the divisor, rounded up.
pub fn resource_value(
    selector: &ResourceFieldSelector,
    pod: &Pod,
    container: &str,
    allocatable: &Allocatable,
) -> Result<String, DownwardApiError> {
    let container = find_container(pod, container)?;
    let unsupported = || DownwardApiError::Resource(selector.resource.clone());
    let (list, resource) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    let is_plain = matches!(resource, "cpu" | "memory" | "ephemeral-storage");
    if !is_plain && !resource.starts_with("hugepages-") {
        return Err(unsupported());
    }
    let resources = container.resources.as_ref();
    let stated = match list {
        "limits" => resources.and_then(|r| r.limits.as_ref()).and_then(|l| l.get(resource)),
        "requests" => resources
            .and_then(|r| r.requests.as_ref())
            .and_then(|l| l.get(resource)),
        _ => return Err(unsupported()),
    };
    let parse = |text: &QuantityText| Quantity::parse(&text.0).map_err(|e| DownwardApiError::Quantity(e.to_string()));
    let mut amount = stated.map(parse).transpose()?.unwrap_or_default();
    if list == "limits" && is_plain && amount.is_zero() {
        amount = allocatable.get(resource).map(parse).transpose()?.unwrap_or_default();
    }
    let divisor = selector
        .divisor
        .as_ref()
        .map(parse)
        .transpose()?
        .filter(|d| !d.is_zero());
    let divisor = divisor.unwrap_or_else(|| Quantity::from_i64(1, amount.format()));
    let (amount, divisor) = match resource {
        "cpu" => (amount.milli_value(), divisor.milli_value()),
        _ => (amount.value(), divisor.value()),
    };
    Ok(ceiling(amount, divisor.max(1)).to_string())
}

fn ceiling(amount: i64, divisor: i64) -> i64 {
    let (quotient, rest) = (amount.div_euclid(divisor), amount.rem_euclid(divisor));
    quotient + i64::from(rest > 0)
}

fn find_container<'a>(pod: &'a Pod, name: &str) -> Result<&'a Container, DownwardApiError> {
    let spec = pod.spec.as_ref();
    let all = spec
        .into_iter()
        .flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    all.into_iter()
        .find(|container| container.name == name)
        .ok_or_else(|| DownwardApiError::Container(name.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Pod {
        orlop_api::types::from_value(json!({
            "metadata": {
                "name": "p", "namespace": "n", "uid": "u",
                "labels": {"b": "2", "a": "1"},
                "annotations": {"x.y/Key": "line\n\"q\" \\ \t ü \u{7f}\u{a0}\u{301}", "z": "\u{1}\u{200b}\u{e0001}'"},
            },
            "spec": {
                "containers": [{"name": "c", "resources": {
                    "limits": {"memory": "64Mi", "hugepages-2Mi": "4Mi"}, "requests": {"cpu": "250m", "memory": "1"},
                }}],
                "initContainers": [{"name": "i"}],
            },
        }))
        .unwrap()
    }

    #[test]
    fn fields() {
        let quoted = "x.y/Key=\"line\\n\\\"q\\\" \\\\ \\t ü \\x7f\\u00a0\u{301}\"\nz=\"\\x01\\u200b\\U000e0001'\"";
        let cases = [
            ("metadata.name", "p"),
            ("metadata.namespace", "n"),
            ("metadata.uid", "u"),
            ("metadata.labels", "a=\"1\"\nb=\"2\""),
            ("metadata.annotations", quoted),
            ("metadata.labels['a']", "1"),
            ("metadata.labels['nope']", ""),
            ("metadata.annotations['z']", "\u{1}\u{200b}\u{e0001}'"),
            (
                "metadata.name['a']",
                "fieldPath \"metadata.name['a']\" does not support subscript",
            ),
            ("spec.nodeName", "unsupported fieldPath: spec.nodeName"),
        ];
        for (path, expected) in cases {
            assert_eq!(field_value(&pod(), path).unwrap_or_else(|e| e.to_string()), expected);
        }
        let refused = field_value(&pod(), "metadata.labels['a b']").unwrap_err();
        assert!(
            refused
                .to_string()
                .starts_with("invalid key subscript in metadata.labels['a b']: "),
            "{refused}"
        );
    }

    #[test]
    fn resources() {
        let allocatable = Allocatable::from([
            ("cpu".to_string(), QuantityText("3500m".into())),
            ("memory".to_string(), QuantityText("1Gi".into())),
        ]);
        let cases = [
            ("c", "requests.cpu", "", "1"),
            ("c", "requests.cpu", "1m", "250"),
            ("c", "limits.cpu", "", "4"),
            ("c", "limits.memory", "", "67108864"),
            ("c", "limits.memory", "1Mi", "64"),
            ("c", "limits.memory", "60Mi", "2"),
            ("c", "limits.hugepages-2Mi", "1Mi", "4"),
            ("i", "limits.memory", "1Mi", "1024"),
            ("i", "requests.memory", "0", "0"),
            ("i", "limits.ephemeral-storage", "", "0"),
            ("c", "limits.gpu", "", "unsupported container resource : limits.gpu"),
            ("c", "cpu", "", "unsupported container resource : cpu"),
            ("z", "limits.cpu", "", "container z not found"),
        ];
        for (container, resource, divisor, expected) in cases {
            let selector = ResourceFieldSelector {
                container_name: None,
                divisor: (!divisor.is_empty()).then(|| QuantityText(divisor.into())),
                resource: resource.into(),
            };
            let value = resource_value(&selector, &pod(), container, &allocatable);
            assert_eq!(
                value.unwrap_or_else(|e| e.to_string()),
                expected,
                "{resource} / {divisor}"
            );
        }
    }
}

//! The downward API: fields of the pod, and resources of its containers, as text. Variables and volumes read it alike.

use std::collections::BTreeMap;
use std::net::IpAddr;

use orlop_api::quantity::Quantity;
use orlop_api::resources::{CPU, EPHEMERAL_STORAGE, MEMORY, ResourceList, is_pod_level};
use orlop_api::types::core::{Container, Pod, ResourceFieldSelector};
use orlop_api::{ip, names};

use crate::spec::{NodeFacts, SpecError, name, namespace, resources, uid};

/// A field of the pod: `metadata.name`, `metadata.labels['x']`, `status.podIP` and the like.
pub fn field_value(
    pod: &Pod,
    api_version: &str,
    path: &str,
    pod_ips: &[String],
    facts: &NodeFacts,
) -> Result<String, SpecError> {
    if !matches!(api_version, "v1" | "") {
        return Err(SpecError(format!("unsupported pod version: {api_version}")));
    }
    if let Some((map, key)) = subscript(path) {
        return labelled(pod, path, map, key);
    }
    let spec = pod.spec.as_ref();
    let text = |field: Option<&String>| field.cloned().unwrap_or_default();
    let host = || facts.addresses.iter().map(IpAddr::to_string);
    Ok(match path {
        "metadata.name" => name(pod).to_string(),
        "metadata.namespace" => namespace(pod).to_string(),
        "metadata.uid" => uid(pod).to_string(),
        "metadata.labels" => format_map(pod.metadata.labels.as_ref()),
        "metadata.annotations" => format_map(pod.metadata.annotations.as_ref()),
        "spec.nodeName" | "spec.host" => text(spec.and_then(|s| s.node_name.as_ref())),
        "spec.serviceAccountName" => text(spec.and_then(|s| s.service_account_name.as_ref())),
        "status.hostIP" => host()
            .next()
            .ok_or_else(|| SpecError::new("host IP unknown; known addresses: []"))?,
        "status.hostIPs" => host().collect::<Vec<_>>().join(","),
        "status.podIP" => sorted_ips(pod_ips, facts).into_iter().next().unwrap_or_default(),
        "status.podIPs" => sorted_ips(pod_ips, facts).join(","),
        "spec.restartPolicy" | "spec.schedulerName" | "status.phase" => {
            return Err(SpecError(format!("unsupported fieldPath: {path}")));
        }
        _ => return Err(SpecError(format!("field label not supported: {path}"))),
    })
}

/// `metadata.labels['x']` → (`metadata.labels`, `x`)
fn subscript(path: &str) -> Option<(&str, &str)> {
    path.strip_suffix("']")?
        .split_once("['")
        .filter(|(map, _)| !map.is_empty())
}

fn labelled(pod: &Pod, path: &str, map: &str, key: &str) -> Result<String, SpecError> {
    let (values, problems) = match map {
        "metadata.annotations" => (&pod.metadata.annotations, names::qualified_name(&key.to_lowercase())),
        "metadata.labels" => (&pod.metadata.labels, names::qualified_name(key)),
        _ => return Err(SpecError(format!("field label does not support subscript: {path}"))),
    };
    if !problems.is_empty() {
        let problems = problems.join(";");
        return Err(SpecError(format!("invalid key subscript in {path}: {problems}")));
    }
    Ok(values.as_ref().and_then(|v| v.get(key)).cloned().unwrap_or_default())
}

/// At most one address of each family, the node's main family first.
fn sorted_ips(pod_ips: &[String], facts: &NodeFacts) -> Vec<String> {
    let six_first = facts.addresses.first().is_some_and(IpAddr::is_ipv6);
    let ips: Vec<IpAddr> = pod_ips.iter().filter_map(|text| ip::parse(text)).collect();
    let of = |six: bool| ips.iter().find(|ip| ip.is_ipv6() == six);
    [of(six_first), of(!six_first)]
        .into_iter()
        .flatten()
        .map(IpAddr::to_string)
        .collect()
}

/// Lines `key="value"`, sorted.
pub fn format_map(map: Option<&BTreeMap<String, String>>) -> String {
    let lines = map
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", quoted(value)));
    lines.collect::<Vec<_>>().join("\n")
}

/// A string in double quotes with the escapes of Go, which readers of such files undo.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if is_printable(c) => out.push(c),
            c if (c as u32) < 0x1_0000 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push_str(&format!("\\U{:08x}", c as u32)),
        }
    }
    out.push('"');
    out
}

/// Close to Go's notion: no controls, no blanks but the plain one, no format characters.
fn is_printable(c: char) -> bool {
    !c.is_control()
        && (c == ' ' || !c.is_whitespace())
        && !matches!(c as u32, 0xad | 0x200b..=0x200f | 0x202a..=0x202e | 0x2060..=0x206f | 0xe000..=0xf8ff | 0xfeff | 0xfff0..=0xfffb)
}

/// A container's request or limit divided and rounded up. Where it has no limit, the pod's stands for it, or what the node
/// can give at all. `container` is whose variable it is; volumes name the container instead.
pub fn resource_value(
    selector: &ResourceFieldSelector,
    pod: &Pod,
    container: Option<&Container>,
    facts: &NodeFacts,
) -> Result<String, SpecError> {
    let named = selector.container_name.as_deref().filter(|n| !n.is_empty());
    let spec = pod.spec.as_ref();
    let regular = spec.map(|s| s.containers.as_slice()).unwrap_or_default();
    let init = spec.and_then(|s| s.init_containers.as_deref()).unwrap_or_default();
    let (container, with_defaults) = match (named, container) {
        (None, Some(container)) => (container, true),
        (None, None) => return Err(SpecError::new("container  not found")),
        (Some(name), _) => match regular.iter().find(|c| c.name == name) {
            Some(container) => (container, true),
            // Kubernetes has it so: an init container asked for by name shows its own limits only.
            None => match init.iter().find(|c| c.name == name) {
                Some(container) => (container, false),
                None => return Err(SpecError(format!("container {name} not found"))),
            },
        },
    };
    let own = container.resources.as_ref();
    let requests = resources::quantities(own.and_then(|r| r.requests.as_ref()));
    let mut limits = resources::quantities(own.and_then(|r| r.limits.as_ref()));
    if with_defaults {
        default_limits(&mut limits, pod, facts);
    }
    let unsupported = || SpecError(format!("unsupported container resource : {}", selector.resource));
    let (list, resource) = match selector.resource.split_once('.') {
        Some(("limits", resource)) => (&limits, resource),
        Some(("requests", resource)) => (&requests, resource),
        _ => return Err(unsupported()),
    };
    if !matches!(resource, CPU | MEMORY | EPHEMERAL_STORAGE) && !resource.starts_with("hugepages-") {
        return Err(unsupported());
    }
    let divisor = selector.divisor.as_ref().and_then(|d| Quantity::parse(&d.0).ok());
    let divisor = divisor.filter(|d| !d.is_zero());
    let amount = list.get(resource).cloned().unwrap_or(Quantity::ZERO);
    // CPU is counted in thousandths, all else in whole units.
    let units = |q: &Quantity| if resource == CPU { q.milli_value() } else { q.value() };
    let divisor = divisor.as_ref().map_or(if resource == CPU { 1000 } else { 1 }, units);
    Ok(divided_up(units(&amount), divisor).to_string())
}

fn divided_up(amount: i64, divisor: i64) -> i64 {
    (amount as f64 / divisor as f64).ceil() as i64
}

fn default_limits(limits: &mut ResourceList, pod: &Pod, facts: &NodeFacts) {
    let of_pod = pod.spec.as_ref().and_then(|s| s.resources.as_ref()?.limits.as_ref());
    let of_pod = resources::quantities(of_pod);
    for name in [CPU, MEMORY, EPHEMERAL_STORAGE] {
        if limits.get(name).is_some_and(|q| !q.is_zero()) {
            continue;
        }
        let Some(node) = facts.allocatable.get(name) else {
            continue;
        };
        let pods = of_pod.get(name).filter(|q| !q.is_zero() && is_pod_level(name));
        limits.insert(name.to_string(), pods.unwrap_or(node).clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::testing;
    use serde_json::{Value, json};

    fn facts() -> NodeFacts {
        let quantity = |text| Quantity::parse(text).unwrap();
        NodeFacts {
            addresses: vec!["192.168.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            allocatable: [(CPU, "4"), (MEMORY, "8Gi"), (EPHEMERAL_STORAGE, "100Gi")]
                .map(|(name, text)| (name.to_string(), quantity(text)))
                .into(),
            ..NodeFacts::default()
        }
    }

    #[test]
    fn fields() {
        let mut pod = testing::pod(json!({"nodeName": "n1", "serviceAccountName": "sa"}));
        let map = |pairs: &[(&str, &str)]| Some(pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect());
        pod.metadata.labels = map(&[("app", "x"), ("b/c", "y")]);
        pod.metadata.annotations = map(&[("Note", "say \"hi\"\n"), ("a[b]c", "z")]);
        let ips = ["fd00::5".to_string(), "10.0.0.5".to_string(), "10.0.0.6".to_string()];
        for (path, expected) in [
            ("metadata.name", Ok("web")),
            ("metadata.namespace", Ok("default")),
            ("metadata.uid", Ok("u-1")),
            ("metadata.labels", Ok("app=\"x\"\nb/c=\"y\"")),
            ("metadata.annotations", Ok("Note=\"say \\\"hi\\\"\\n\"\na[b]c=\"z\"")),
            ("metadata.labels['app']", Ok("x")),
            ("metadata.labels['b/c']", Ok("y")),
            ("metadata.labels['missing']", Ok("")),
            ("metadata.annotations['Note']", Ok("say \"hi\"\n")),
            ("spec.nodeName", Ok("n1")),
            ("spec.host", Ok("n1")),
            ("spec.serviceAccountName", Ok("sa")),
            ("status.hostIP", Ok("192.168.0.1")),
            ("status.hostIPs", Ok("192.168.0.1,fd00::1")),
            ("status.podIP", Ok("10.0.0.5")),
            ("status.podIPs", Ok("10.0.0.5,fd00::5")),
            ("status.phase", Err("unsupported fieldPath: status.phase")),
            ("spec.nope", Err("field label not supported: spec.nope")),
            (
                "spec.x['y']",
                Err("field label does not support subscript: spec.x['y']"),
            ),
        ] {
            let got = field_value(&pod, "v1", path, &ips, &facts()).map_err(|e| e.0);
            assert_eq!(got, expected.map(String::from).map_err(String::from), "{path}");
        }
        let bad = field_value(&pod, "v1", "metadata.labels['a b']", &ips, &facts()).unwrap_err();
        assert!(
            bad.0.starts_with("invalid key subscript in metadata.labels['a b']: "),
            "{bad}"
        );
        let version = field_value(&pod, "v2", "metadata.name", &ips, &facts()).unwrap_err();
        assert_eq!(version.0, "unsupported pod version: v2");
    }

    #[test]
    fn addresses_follow_the_nodes_family() {
        let six = NodeFacts {
            addresses: vec!["fd00::1".parse().unwrap()],
            ..NodeFacts::default()
        };
        let ips = ["10.0.0.5".to_string(), "fd00:0::5".to_string(), "nonsense".to_string()];
        assert_eq!(sorted_ips(&ips, &six), ["fd00::5", "10.0.0.5"]);
        assert_eq!(sorted_ips(&ips, &NodeFacts::default()), ["10.0.0.5", "fd00::5"]);
        let pod = testing::pod(json!({}));
        assert_eq!(field_value(&pod, "", "status.podIP", &[], &six), Ok(String::new()));
        assert!(field_value(&pod, "v1", "status.hostIP", &[], &NodeFacts::default()).is_err());
    }

    #[test]
    fn quotes_are_gos() {
        for (text, expected) in [
            ("plain é 日", r#""plain é 日""#),
            ("\t\u{1}\u{7f}\\", r#""\t\x01\x7f\\""#),
            ("\u{200b}\u{a0}\u{e000}", r#""\u200b\u00a0\ue000""#),
            ("😀", "\"😀\""),
        ] {
            assert_eq!(quoted(text), expected);
        }
    }

    #[test]
    fn resources_divided() {
        let own = json!({"requests": {"cpu": "150m", "memory": "100Mi", "ephemeral-storage": "1Gi"},
            "limits": {"cpu": "1500m", "memory": "200Mi", "hugepages-2Mi": "4Mi"}});
        let pod = testing::pod(json!({
            "containers": [{"name": "c", "resources": own}, {"name": "d"}],
            "initContainers": [{"name": "i"}],
        }));
        let selector = |container: Option<&str>, resource: &str, divisor: Option<&str>| -> ResourceFieldSelector {
            let mut s = json!({"resource": resource});
            for (key, value) in [("containerName", container), ("divisor", divisor)] {
                if let Some(value) = value {
                    s[key] = Value::from(value);
                }
            }
            orlop_api::types::from_value(s).unwrap()
        };
        for (container, resource, divisor, expected) in [
            (None, "requests.cpu", None, Ok("1")),
            (None, "requests.cpu", Some("1m"), Ok("150")),
            (None, "requests.cpu", Some("0"), Ok("1")),
            (None, "limits.cpu", None, Ok("2")),
            (None, "limits.cpu", Some("1m"), Ok("1500")),
            (None, "limits.memory", None, Ok("209715200")),
            (None, "limits.memory", Some("1Mi"), Ok("200")),
            (None, "requests.memory", Some("1Gi"), Ok("1")),
            (None, "requests.ephemeral-storage", Some("1Mi"), Ok("1024")),
            (None, "limits.ephemeral-storage", Some("1Gi"), Ok("100")),
            (None, "limits.hugepages-2Mi", Some("1Mi"), Ok("4")),
            (None, "requests.hugepages-2Mi", None, Ok("0")),
            (Some("d"), "limits.cpu", None, Ok("4")),
            (Some("d"), "limits.memory", Some("1Gi"), Ok("8")),
            (Some("d"), "requests.cpu", None, Ok("0")),
            (Some("i"), "limits.cpu", None, Ok("0")),
            (Some("x"), "limits.cpu", None, Err("container x not found")),
            (
                None,
                "limits.gpu",
                None,
                Err("unsupported container resource : limits.gpu"),
            ),
            (None, "cpu", None, Err("unsupported container resource : cpu")),
        ] {
            let first = &pod.spec.as_ref().unwrap().containers[0];
            let got =
                resource_value(&selector(container, resource, divisor), &pod, Some(first), &facts()).map_err(|e| e.0);
            let expected = expected.map(String::from).map_err(String::from);
            assert_eq!(got, expected, "{container:?} {resource} {divisor:?}");
        }
        let leveled = testing::pod(json!({"resources": {"limits": {"cpu": "2"}}}));
        let first = &leveled.spec.as_ref().unwrap().containers[0];
        let value = |resource| resource_value(&selector(None, resource, None), &leveled, Some(first), &facts());
        assert_eq!(value("limits.cpu"), Ok("2".into()));
        assert_eq!(value("limits.memory"), Ok((8i64 << 30).to_string()));
        assert!(resource_value(&selector(None, "limits.cpu", None), &leveled, None, &facts()).is_err());
    }
}

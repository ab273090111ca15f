//! Static pods: from the text of a manifest to a pod of this node.
// Upstream: pkg/kubelet/config/common.go, pkg/api/pod/util.go HasAPIObjectReference (v1.36)

use jiff::Timestamp;
use orlop_api::core::pod;
use orlop_api::schema::{self, TypeRef};
use orlop_api::types::core::Pod;
use orlop_api::{Cursor, Problems, Value, meta};
use serde_json::json;

use super::{CONFIG_HASH, CONFIG_SEEN, CONFIG_SOURCE, Origin};

/// Larger manifests are refused.
pub const LENGTH_MAX: usize = 10 << 20;

/// Where a manifest comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestSource<'a> {
    pub origin: Origin,
    /// Path or address.
    pub name: &'a str,
    pub node: &'a str,
}

/// Why a static pod could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The server of the manifest gave none.
    #[error("{0}")]
    Request(String),
    #[error("it is longer than {LENGTH_MAX} bytes")]
    TooLong,
    #[error("{0}")]
    Decode(String),
    #[error("must be a v1 Pod, not {api_version:?} {kind:?}")]
    NotAPod { api_version: String, kind: String },
    #[error("invalid pod: {0}")]
    Invalid(String),
    #[error("static pods may not reference {0}")]
    Reference(String),
}

impl SourceError {
    pub(super) fn request(error: impl std::fmt::Display) -> SourceError {
        SourceError::Request(error.to_string())
    }
}

/// The one pod of a file.
pub fn pod(bytes: &[u8], place: &ManifestSource<'_>, now: Timestamp) -> Result<Pod, SourceError> {
    let value = read(bytes)?;
    one_pod(value, place, now)
}

/// The pods of an answer: one, or a list of them.
pub fn pods(bytes: &[u8], place: &ManifestSource<'_>, now: Timestamp) -> Result<Vec<Pod>, SourceError> {
    let mut value = read(bytes)?;
    match value["kind"].as_str() {
        Some("PodList" | "List") => {
            let items = value["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
            let whole = items.into_iter().map(|mut item| {
                item["apiVersion"] = json!("v1");
                item["kind"] = json!("Pod");
                one_pod(item, place, now)
            });
            whole.collect()
        }
        _ => Ok(vec![one_pod(value, place, now)?]),
    }
}

fn read(bytes: &[u8]) -> Result<Value, SourceError> {
    if bytes.len() > LENGTH_MAX {
        return Err(SourceError::TooLong);
    }
    let (value, _) = schema::yaml_to_value(bytes).map_err(|e| SourceError::Decode(e.to_string()))?;
    match value.is_object() {
        true => Ok(value),
        false => Err(SourceError::Decode(
            "couldn't parse as pod: it holds no object".to_string(),
        )),
    }
}

fn pod_type() -> TypeRef {
    schema::schema().get(pod::DEF.schema).expect("pods are in the table")
}

fn one_pod(value: Value, place: &ManifestSource<'_>, now: Timestamp) -> Result<Pod, SourceError> {
    let word = |name: &str| value[name].as_str().unwrap_or_default().to_string();
    if (word("apiVersion").as_str(), word("kind").as_str()) != ("v1", "Pod") {
        return Err(SourceError::NotAPod {
            api_version: word("apiVersion"),
            kind: word("kind"),
        });
    }
    let decoded = schema::from_value(value, pod_type()).map_err(|e| SourceError::Decode(e.to_string()))?;
    let mut value = decoded.value;
    let name = value["metadata"]["name"].as_str().unwrap_or_default().to_string();
    if name.is_empty() {
        return Err(SourceError::Invalid("name is needed for the pod".to_string()));
    }
    value["status"] = json!({"phase": "Pending"});
    settle(&mut value, &name, place, now);
    (pod::DEF.default)(&mut value);
    validate(&value)?;
    if let Some(resource) = reference(&value) {
        return Err(SourceError::Reference(resource));
    }
    orlop_api::types::from_value(value).map_err(|e| SourceError::Invalid(e.to_string()))
}

/// Name, identity and marks of a static pod.
fn settle(value: &mut Value, name: &str, place: &ManifestSource<'_>, now: Timestamp) {
    let given = value["metadata"]["uid"].as_str().unwrap_or_default().to_string();
    let uid = match given.is_empty() {
        false => given,
        true => {
            let mut hash = Fnv128::default();
            hash.write(value.to_string().as_bytes());
            match place.origin {
                Origin::Url => hash.write(format!("url:{}", place.name).as_bytes()),
                _ => hash.write(format!("host:{}file:{}", place.node, place.name).as_bytes()),
            }
            format!("{:032x}", hash.0)
        }
    };
    let metadata = &mut value["metadata"];
    metadata["uid"] = json!(uid);
    metadata["name"] = json!(format!("{name}-{}", place.node.to_lowercase()));
    if metadata["namespace"].as_str().unwrap_or_default().is_empty() {
        metadata["namespace"] = json!("default");
    }
    if !metadata["annotations"].is_object() {
        metadata["annotations"] = json!({});
    }
    metadata["annotations"][CONFIG_HASH] = json!(uid);
    metadata["annotations"][CONFIG_SEEN] = json!(now.to_string());
    metadata["annotations"][CONFIG_SOURCE] = json!(place.origin.word());
    value["spec"]["nodeName"] = json!(place.node);
    if matches!(place.origin, Origin::File | Origin::Process) {
        // They stay, whatever happens to the node.
        let forever = json!({"operator": "Exists", "effect": "NoExecute"});
        match value["spec"]["tolerations"].as_array_mut() {
            Some(all) if all.contains(&forever) => {}
            Some(all) => all.push(forever),
            None => value["spec"]["tolerations"] = json!([forever]),
        }
    }
}

fn validate(value: &Value) -> Result<(), SourceError> {
    let mut problems = Problems::default();
    let root = Cursor::root(value);
    meta::validate_create(&root.at("metadata"), true, pod::DEF.name_rule, &mut problems);
    (pod::DEF.validate)(&root, &mut problems);
    (pod::DEF.validate_create)(&root, &mut problems);
    match problems.is_empty() {
        true => Ok(()),
        false => {
            let all: Vec<String> = problems.0.iter().map(ToString::to_string).collect();
            Err(SourceError::Invalid(all.join(", ")))
        }
    }
}

/// What of the API the pod names, if anything. Static pods must run without an API server.
fn reference(value: &Value) -> Option<String> {
    let spec = &value["spec"];
    let has = |value: &Value, path: &str| value.pointer(path).is_some_and(|v| !v.is_null());
    let items = |value: &Value| value.as_array().cloned().unwrap_or_default();
    if !spec["serviceAccountName"].as_str().unwrap_or_default().is_empty() {
        return Some("serviceaccounts".into());
    }
    if !items(&spec["imagePullSecrets"]).is_empty() {
        return Some("secrets".into());
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in items(&spec[list]) {
            for (key, resource) in [("secret", "secrets"), ("configMap", "configmaps")] {
                let by_ref = items(&container["envFrom"])
                    .iter()
                    .any(|e| has(e, &format!("/{key}Ref")));
                let by_key = items(&container["env"])
                    .iter()
                    .any(|e| has(e, &format!("/valueFrom/{key}KeyRef")));
                if by_ref || by_key {
                    return Some(resource.into());
                }
            }
        }
    }
    if !items(&spec["resourceClaims"]).is_empty() {
        return Some("resourceclaims".into());
    }
    let kinds = [
        ("configMap", "configmaps (via configmap volumes)"),
        ("secret", "secrets (via secret volumes)"),
        ("csi", "csidrivers (via CSI volumes)"),
        ("glusterfs", "endpoints (via glusterFS volumes)"),
        ("persistentVolumeClaim", "persistentvolumeclaims"),
        ("ephemeral", "persistentvolumeclaims (via ephemeral volumes)"),
        ("azureFile", "secrets (via azureFile volumes)"),
    ];
    let projections = [
        ("configMap", "configmaps (via projected volumes)"),
        ("secret", "secrets (via projected volumes)"),
        ("serviceAccountToken", "serviceaccounts (via projected volumes)"),
        ("clusterTrustBundle", "clustertrustbundles"),
        ("podCertificate", "podcertificates"),
    ];
    let named = |value: &Value, names: &[(&str, &str)]| {
        let found = names.iter().find(|(key, _)| !value[*key].is_null());
        found.map(|(_, resource)| resource.to_string())
    };
    items(&spec["volumes"]).iter().find_map(|volume| {
        named(volume, &kinds).or_else(|| {
            let sources = items(&volume["projected"]["sources"]);
            sources.iter().find_map(|source| named(source, &projections))
        })
    })
}

/// FNV-1a with 128 bits: distinguishes manifests, not cryptographic.
struct Fnv128(u128);

impl Default for Fnv128 {
    fn default() -> Fnv128 {
        Fnv128(0x6c62272e07bb014262b821756295c58d)
    }
}

impl Fnv128 {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 ^= u128::from(*byte);
            self.0 = self.0.wrapping_mul(0x0000000001000000000000000000013b);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: ManifestSource<'static> = ManifestSource {
        origin: Origin::File,
        name: "/m/web.yaml",
        node: "n1",
    };

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    const WEB: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\n\
                       spec: {containers: [{name: c, image: busybox}]}\n";

    #[test]
    fn a_manifest_becomes_a_pod_of_this_node() {
        let web = pod(WEB.as_bytes(), &FILE, now()).unwrap();
        let annotations = web.metadata.annotations.clone().unwrap();
        let uid = web.metadata.uid.clone().unwrap();
        assert_eq!(web.metadata.name.as_deref(), Some("web-n1"));
        assert_eq!(web.metadata.namespace.as_deref(), Some("default"));
        assert_eq!(
            (annotations[CONFIG_HASH].as_str(), annotations[CONFIG_SOURCE].as_str()),
            (uid.as_str(), "file")
        );
        assert_eq!(uid.len(), 32);
        let spec = web.spec.unwrap();
        assert_eq!(
            (spec.node_name.as_deref(), spec.restart_policy.as_deref()),
            (Some("n1"), Some("Always"))
        );
        assert_eq!(
            spec.tolerations.unwrap().last().unwrap().effect.as_deref(),
            Some("NoExecute")
        );
        assert_eq!(web.status.unwrap().phase.as_deref(), Some("Pending"));
        // The same text later is the same pod; another text, file or node is another.
        let uid_of = |text: &str, place: &ManifestSource<'_>| {
            let later = "2026-02-01T00:00:00Z".parse().unwrap();
            pod(text.as_bytes(), place, later).unwrap().metadata.uid.unwrap()
        };
        assert_eq!(uid_of(WEB, &FILE), uid);
        assert_ne!(uid_of(&WEB.replace("busybox", "nginx"), &FILE), uid);
        assert_ne!(
            uid_of(
                WEB,
                &ManifestSource {
                    name: "/m/b.yaml",
                    ..FILE
                }
            ),
            uid
        );
        assert_ne!(uid_of(WEB, &ManifestSource { node: "n2", ..FILE }), uid);
        let named = WEB.replace("name: web", "name: web, uid: mine, namespace: kube-system");
        assert_eq!(uid_of(&named, &FILE), "mine");
        let json = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},
                       "spec":{"containers":[{"name":"c","image":"busybox"}]}}"#;
        assert!(pod(json.as_bytes(), &FILE, now()).is_ok());
    }

    #[test]
    fn manifests_that_are_none() {
        let long = "#".repeat(LENGTH_MAX + 1);
        let cases = [
            ("", "holds no object"),
            ("- 1", "holds no object"),
            ("a: [", "yaml"),
            (
                "apiVersion: v1\nkind: Service",
                "must be a v1 Pod, not \"v1\" \"Service\"",
            ),
            ("apiVersion: v1\nkind: Pod\nspec: {}", "name is needed"),
            // Half written: no image yet.
            (&WEB[..WEB.len() - 20], "yaml"),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c}]}",
                "spec.containers[0].image: Required value",
            ),
            (&WEB.replace("name: web", "name: We_b"), "metadata.name: Invalid value"),
            (
                &WEB.replace("spec: {", "spec: {serviceAccountName: x, "),
                "may not reference serviceaccounts",
            ),
            (
                &WEB.replace("image: busybox", "image: b, envFrom: [{secretRef: {name: s}}]"),
                "may not reference secrets",
            ),
            (
                &WEB.replace("spec: {", "spec: {volumes: [{name: v, configMap: {name: m}}], "),
                "may not reference configmaps (via configmap volumes)",
            ),
            (&long, "it is longer than"),
        ];
        for (text, expected) in cases {
            let error = pod(text.as_bytes(), &FILE, now()).unwrap_err().to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }

    #[test]
    fn lists_from_an_address() {
        let place = ManifestSource {
            origin: Origin::Url,
            name: "http://x",
            node: "n1",
        };
        let item = r#"{"metadata":{"name":"NAME"},"spec":{"containers":[{"name":"c","image":"i"}]}}"#;
        let list = format!(
            r#"{{"apiVersion":"v1","kind":"PodList","items":[{},{}]}}"#,
            item.replace("NAME", "a"),
            item.replace("NAME", "b")
        );
        let names: Vec<String> = pods(list.as_bytes(), &place, now())
            .unwrap()
            .into_iter()
            .filter_map(|p| p.metadata.name)
            .collect();
        assert_eq!(names, ["a-n1", "b-n1"]);
        assert_eq!(pods(WEB.as_bytes(), &place, now()).unwrap().len(), 1);
        assert!(pods(b"{\"kind\":\"PodList\",\"items\":[{}]}", &place, now()).is_err());
    }

    proptest::proptest! {
        #[test]
        fn hostile_manifests_are_no_harm(text in ".{0,300}", cut in 0usize..200) {
            let _ = pod(text.as_bytes(), &FILE, now());
            let _ = pods(&WEB.as_bytes()[..cut.min(WEB.len())], &FILE, now());
        }
    }
}

//! What keys and objects look like in an etcd that kube-apiserver can use as well: its keys, and JSON. Protobuf is read too.
// Upstream: pkg/kubeapiserver/default_storage_factory_builder.go, staging/src/k8s.io/apiserver/pkg/storage/etcd3 (v1.36)

use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use orlop_api::{KindDef, Value, protobuf, schema};
use orlop_store::etcd::StorageCodec;
use orlop_store::{Record, RecordError};
use rustc_hash::FxHashMap;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::definitions;
use crate::kinds;
use crate::object::{Object, type_head};
use crate::registry::rules;
use crate::registry::services::NODE_PORT;

/// Which servers there are, each with an address and a time to live.
pub(crate) const MASTER_LEASES: &str = "/registry/masterleases/";
/// Upstream: --apiserver-count's successor, the lease reconciler: DefaultEndpointReconcilerTTL
pub(crate) const MASTER_LEASE_TTL: Duration = Duration::from_secs(15);

/// Directories of resources that are not named like them.
const OTHER_DIRECTORIES: &[(&str, &str)] = &[
    ("replicationcontrollers", "controllers"),
    ("endpoints", "services/endpoints"),
    ("nodes", "minions"),
    ("services", "services/specs"),
    ("ingresses.networking.k8s.io", "ingress"),
    (
        "apiservices.apiregistration.k8s.io",
        "apiregistration.k8s.io/apiservices",
    ),
    (
        "customresourcedefinitions.apiextensions.k8s.io",
        "apiextensions.k8s.io/customresourcedefinitions",
    ),
    // No resources, but kept like them.
    ("ranges", "ranges"),
    ("masterleases", "masterleases"),
];

/// Between the first segment of our keys ("deployments.apps") and directories below the prefix ("deployments").
struct Directories {
    by_resource: FxHashMap<String, String>,
    by_directory: FxHashMap<String, String>,
}

fn directories() -> &'static Directories {
    static DIRECTORIES: OnceLock<Directories> = OnceLock::new();
    DIRECTORIES.get_or_init(|| {
        let mut by_resource: FxHashMap<String, String> = orlop_api::kinds::all()
            .filter(|kind| kind.is_stored() && kind.stored_as.is_empty())
            .map(|kind| (kind.store_prefix(), kind.plural.to_string()))
            .collect();
        for (resource, directory) in OTHER_DIRECTORIES {
            by_resource.insert(resource.to_string(), directory.to_string());
        }
        let by_directory = by_resource.iter().map(|(r, d)| (d.clone(), r.clone())).collect();
        Directories {
            by_resource,
            by_directory,
        }
    })
}

pub(crate) struct EtcdCodec {
    /// `/registry/`
    prefix: String,
    event_ttl: Duration,
}

impl EtcdCodec {
    pub(crate) fn new(prefix: &str, event_ttl: Duration) -> EtcdCodec {
        let prefix = prefix.trim_matches('/');
        EtcdCodec {
            prefix: match prefix {
                "" => "/".to_string(),
                prefix => format!("/{prefix}/"),
            },
            event_ttl,
        }
    }

    /// What is authenticated beside an encrypted record: where it is. Upstream: the whole key.
    pub(crate) fn path(&self, key: &str) -> String {
        let rest = key.strip_prefix(kinds::PREFIX).unwrap_or(key);
        let (resource, name) = rest.split_once('/').unwrap_or((rest, ""));
        if let Some(directory) = directories().by_resource.get(resource) {
            return format!("{}{directory}/{name}", self.prefix);
        }
        match resource.split_once('.') {
            // A custom one.
            Some((plural, group)) => format!("{}{group}/{plural}/{name}", self.prefix),
            None => format!("{}{rest}", self.prefix),
        }
    }
}

/// The resource in a path below the prefix, and the rest.
fn resource_in(path: &str) -> Option<(String, &str)> {
    let (first, rest) = path.split_once('/')?;
    let by_directory = &directories().by_directory;
    if let Some((second, name)) = rest.split_once('/') {
        if let Some(resource) = by_directory.get(&path[..first.len() + 1 + second.len()]) {
            return Some((resource.clone(), name));
        }
        // A custom one: groups of definitions have a dot.
        if first.contains('.') {
            return Some((format!("{second}.{first}"), name));
        }
    }
    Some((by_directory.get(first)?.clone(), rest))
}

impl StorageCodec for EtcdCodec {
    fn prefix(&self) -> &[u8] {
        self.prefix.as_bytes()
    }

    fn etcd_key(&self, key: &str) -> Bytes {
        self.path(key).into()
    }

    fn key(&self, etcd_key: &[u8]) -> Option<String> {
        let path = std::str::from_utf8(etcd_key).ok()?.strip_prefix(&self.prefix)?;
        let (resource, name) = resource_in(path).filter(|(_, name)| !name.is_empty())?;
        // Of ranges only what is ours: kube-apiserver has one record for all ports there.
        if resource == "ranges" && !name.starts_with("servicenodeports/") {
            return None;
        }
        Some(format!("{}{resource}/{name}", kinds::PREFIX))
    }

    fn encode(&self, key: &str, record: &Bytes) -> Result<Bytes, RecordError> {
        let object = Object::decode(key, record.clone())?;
        let (head, tail) = object.parts();
        if object.is_self_typed() {
            return Ok([head, tail].concat().into());
        }
        let kind = kind_of(key).ok_or_else(|| RecordError(format!("no kind is stored under {key}")))?;
        let types = type_head(kind.kind, &kind.api_version());
        Ok([types.as_bytes(), &head[1..], tail].concat().into())
    }

    fn decode(&self, key: &str, value: Bytes) -> Result<Bytes, RecordError> {
        if value.starts_with(crate::encryption::ENCRYPTED) {
            let why = "it is encrypted; start with the --encryption-provider-config that it was written with";
            return Err(RecordError(why.to_string()));
        }
        let bad = |why: String| RecordError(format!("{key}: {why}"));
        let Some(kind) = kind_of(key) else {
            return custom(&value).ok_or_else(|| bad("not a custom object".to_string()));
        };
        match as_written_here(&value, kind) {
            Some(record) => Ok(record),
            None => converted(&value, kind).map_err(bad),
        }
    }

    fn ttl(&self, key: &str) -> Option<Duration> {
        let rest = key.strip_prefix(kinds::PREFIX)?;
        match rest.split('/').next()? {
            "events" => Some(self.event_ttl),
            "masterleases" => Some(MASTER_LEASE_TTL),
            _ => None,
        }
    }
}

/// The kind in whose form objects under a key are stored, if it is built in.
fn kind_of(key: &str) -> Option<&'static KindDef> {
    let resource = key.strip_prefix(kinds::PREFIX)?.split('/').next()?;
    match resource {
        "masterleases" => kinds::of_stored("endpoints"),
        "ranges" => Some(NODE_PORT),
        resource => kinds::of_stored(resource),
    }
}

#[derive(Deserialize)]
struct Head<'a> {
    kind: &'a str,
    #[serde(rename = "apiVersion")]
    api_version: &'a str,
    #[serde(borrow)]
    metadata: &'a RawValue,
}

#[derive(Deserialize)]
struct Metadata<'a> {
    #[serde(borrow)]
    uid: &'a RawValue,
    #[serde(borrow, rename = "resourceVersion")]
    revision: Option<&'a RawValue>,
}

/// Where the uid ends, if there is one and the object says nothing of its revision.
fn end_of_uid(value: &[u8], head: &Head<'_>) -> Option<usize> {
    let metadata: Metadata<'_> = serde_json::from_str(head.metadata.get()).ok()?;
    let uid = metadata.uid.get();
    if metadata.revision.is_some() || !uid.starts_with('"') {
        return None;
    }
    (uid.as_ptr() as usize + uid.len()).checked_sub(value.as_ptr() as usize)
}

/// JSON that begins as ours does can be taken as it is.
fn as_written_here(value: &[u8], kind: &KindDef) -> Option<Bytes> {
    let value = value.trim_ascii_end();
    let head: Head<'_> = serde_json::from_slice(value).ok()?;
    if head.kind != kind.kind || head.api_version != kind.api_version() {
        return None;
    }
    let types = type_head(kind.kind, &kind.api_version());
    let rest = value.strip_prefix(types.as_bytes())?;
    let splice = end_of_uid(value, &head)? - types.len() + 1;
    Some(Object::assemble(&[b"{", rest], splice, false))
}

/// Custom objects say themselves what they are.
fn custom(value: &[u8]) -> Option<Bytes> {
    let value = value.trim_ascii_end();
    let head: Head<'_> = serde_json::from_slice(value).ok()?;
    if value.starts_with(br#"{"apiVersion":""#)
        && let Some(splice) = end_of_uid(value, &head)
    {
        return Some(Object::assemble(&[value], splice, true));
    }
    let mut value: Value = serde_json::from_slice(value).ok()?;
    value["metadata"].as_object_mut()?.remove("resourceVersion");
    let value = value.to_string();
    let head: Head<'_> = serde_json::from_str(&value).ok()?;
    let splice = end_of_uid(value.as_bytes(), &head)?;
    Some(Object::assemble(&[value.as_bytes()], splice, true))
}

/// What was written in another form, or by another version.
fn converted(value: &[u8], kind: &'static KindDef) -> Result<Bytes, String> {
    let (api_version, name, mut object) = match value.starts_with(protobuf::MAGIC) {
        true => protobuf::decode(value).map_err(|e| e.to_string())?,
        false => {
            let types = schema::peek_type(value).map_err(|e| e.to_string())?;
            let mut object: Value = serde_json::from_slice(value).map_err(|e| e.to_string())?;
            let mut version = types.api_version;
            if version == definitions::OLD_VERSION && types.kind == "CustomResourceDefinition" {
                definitions::to_v1(&mut object);
                version = kind.api_version();
            }
            (version, types.kind, object)
        }
    };
    let written = match api_version == kind.api_version() && name == kind.kind {
        true => kind,
        false => kinds::of_kind(&api_version, &name)
            .filter(|written| written.store_prefix() == kind.store_prefix())
            .ok_or_else(|| format!("it is of {api_version}, Kind={name}, which is not known"))?,
    };
    if !value.starts_with(protobuf::MAGIC) {
        let ty = schema::schema().get(written.schema).ok_or("its kind has no schema")?;
        object = schema::from_value(object, ty).map_err(|e| e.to_string())?.value;
    }
    // Upstream: defaults are filled in whenever an object is read.
    rules::fill_defaults(written, &mut object);
    if !written.stored_as.is_empty() {
        (written.to_stored)(&mut object);
    }
    let metadata = object["metadata"].as_object_mut().ok_or("it has no metadata")?;
    // The records of which servers there are have none.
    metadata.entry("uid").or_insert_with(|| "".into());
    Ok(Object::encode(&object, kind).bytes().clone())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    fn codec() -> EtcdCodec {
        EtcdCodec::new("/registry", Duration::from_secs(3600))
    }

    #[test]
    fn keys_are_those_of_kube_apiserver() {
        let codec = codec();
        for (key, etcd_key) in [
            ("/registry/pods/ns/a", "/registry/pods/ns/a"),
            ("/registry/nodes/a", "/registry/minions/a"),
            ("/registry/services/ns/a", "/registry/services/specs/ns/a"),
            ("/registry/endpoints/ns/a", "/registry/services/endpoints/ns/a"),
            ("/registry/deployments.apps/ns/a", "/registry/deployments/ns/a"),
            ("/registry/ingresses.networking.k8s.io/ns/a", "/registry/ingress/ns/a"),
            ("/registry/leases.coordination.k8s.io/ns/a", "/registry/leases/ns/a"),
            (
                "/registry/clusterroles.rbac.authorization.k8s.io/system:node",
                "/registry/clusterroles/system:node",
            ),
            (
                "/registry/customresourcedefinitions.apiextensions.k8s.io/foos.example.com",
                "/registry/apiextensions.k8s.io/customresourcedefinitions/foos.example.com",
            ),
            (
                "/registry/apiservices.apiregistration.k8s.io/v1.apps",
                "/registry/apiregistration.k8s.io/apiservices/v1.apps",
            ),
            ("/registry/foos.example.com/ns/a", "/registry/example.com/foos/ns/a"),
            (
                "/registry/ranges/servicenodeports/30000",
                "/registry/ranges/servicenodeports/30000",
            ),
            ("/registry/masterleases/10.0.0.1", "/registry/masterleases/10.0.0.1"),
        ] {
            assert_eq!(codec.path(key), etcd_key);
            assert_eq!(codec.key(etcd_key.as_bytes()).as_deref(), Some(key), "{etcd_key}");
        }
        for foreign in [
            "compact_rev_key",
            "/registry/health",
            "/registry/ranges/serviceips",
            "/registry/ranges/servicenodeports",
            "/registry/unheard-of/a",
            "/other/pods/ns/a",
        ] {
            assert_eq!(codec.key(foreign.as_bytes()), None, "{foreign}");
        }
        assert_eq!(
            EtcdCodec::new("a/b/", Duration::ZERO).path("/registry/pods/ns/a"),
            "/a/b/pods/ns/a"
        );
    }

    #[test]
    fn no_two_resources_share_a_directory() {
        let all = directories();
        let unique: BTreeSet<&String> = all.by_resource.values().collect();
        assert_eq!(unique.len(), all.by_resource.len());
    }

    fn shown(key: &str, record: Bytes) -> Value {
        let object = Object::decode(key, record).unwrap();
        let mut out = bytes::BytesMut::new();
        object.write_item(7, &mut out);
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn objects_come_back_as_they_were_whoever_wrote_them() {
        let (codec, key) = (codec(), "/registry/configmaps/ns/a");
        let kind = kinds::of_stored("configmaps").unwrap();
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "v\n\u{e9}"},
            "metadata": {"name": "a", "namespace": "ns", "uid": "u-1", "labels": {"uid": "no"}},
        });
        let record = Object::encode(&map, kind).bytes().clone();
        let value = codec.encode(key, &record).unwrap();
        assert!(
            value.starts_with(br#"{"kind":"ConfigMap","apiVersion":"v1","#),
            "{value:?}"
        );
        assert_eq!(serde_json::from_slice::<Value>(&value).unwrap(), map);
        assert_eq!(codec.decode(key, value.clone()).unwrap(), record);

        let mut wanted = map.clone();
        wanted["metadata"]["resourceVersion"] = "7".into();
        let members = wanted.as_object_mut().unwrap();
        members.retain(|name, _| name != "kind" && name != "apiVersion");
        let with_newline = [&value[..], b"\n"].concat();
        let other_order = serde_json::to_vec(&map).unwrap();
        let mut with_revision = map.clone();
        with_revision["metadata"]["resourceVersion"] = "3".into();
        let with_revision = serde_json::to_vec(&with_revision).unwrap();
        let ty = schema::schema().get(kind.schema).unwrap();
        let protobuf = protobuf::encode(&map, "v1", "ConfigMap", ty);
        for written in [with_newline, other_order, with_revision, protobuf] {
            let record = codec.decode(key, written.into()).unwrap();
            assert_eq!(shown(key, record), wanted);
        }
    }

    #[test]
    fn older_versions_and_records_without_a_uid_are_taken_over() {
        let codec = codec();
        let lease = json!({
            "kind": "Endpoints", "apiVersion": "v1", "metadata": {"generation": 3},
            "subsets": [{"addresses": [{"ip": "10.0.0.1"}]}],
        });
        let key = "/registry/masterleases/10.0.0.1";
        let record = codec.decode(key, lease.to_string().into()).unwrap();
        assert_eq!(shown(key, record)["subsets"], lease["subsets"]);

        let key = "/registry/horizontalpodautoscalers.autoscaling/ns/a";
        let old = json!({
            "kind": "HorizontalPodAutoscaler", "apiVersion": "autoscaling/v1",
            "metadata": {"name": "a", "namespace": "ns", "uid": "u"},
            "spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"},
                     "targetCPUUtilizationPercentage": 50},
        });
        let shown = shown(key, codec.decode(key, old.to_string().into()).unwrap());
        assert_eq!(
            shown["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"],
            50
        );

        let future = json!({"kind": "ConfigMap", "apiVersion": "v9", "metadata": {"name": "a", "uid": "u"}});
        let error = codec.decode("/registry/configmaps/ns/a", future.to_string().into());
        assert!(error.unwrap_err().0.contains("v9, Kind=ConfigMap"));
    }

    #[test]
    fn custom_objects_keep_their_version() {
        let (codec, key) = (codec(), "/registry/foos.example.com/ns/a");
        let foo = br#"{"apiVersion":"example.com/v1","kind":"Foo","metadata":{"name":"a","uid":"u"},"spec":{}}"#;
        let record = codec.decode(key, Bytes::from_static(foo)).unwrap();
        let object = Object::decode(key, record.clone()).unwrap();
        assert!(object.is_self_typed() && object.is_of_version("example.com", "v1"));
        assert_eq!(codec.encode(key, &record).unwrap(), &foo[..]);
        let other = br#"{"kind":"Foo","metadata":{"uid":"u","name":"a"},"apiVersion":"example.com/v1","spec":{}}"#;
        let record = codec.decode(key, Bytes::from_static(other)).unwrap();
        assert!(Object::decode(key, record).unwrap().is_of_version("example.com", "v1"));
    }

    #[test]
    fn events_and_servers_do_not_stay() {
        let codec = codec();
        assert_eq!(codec.ttl("/registry/events/ns/a"), Some(Duration::from_secs(3600)));
        assert_eq!(codec.ttl("/registry/masterleases/10.0.0.1"), Some(MASTER_LEASE_TTL));
        assert_eq!(codec.ttl("/registry/pods/ns/a"), None);
    }
}

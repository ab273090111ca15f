//! Discovery: which groups, versions and resources there are. Made from the table of kinds, and kept as bytes for as long
//! as no definition of a custom kind changes.

use base64::Engine;
use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, VARY};
use http::{HeaderMap, Response, StatusCode};
use orlop_api::kind::Subresource;
use orlop_api::{KindDef, Value, kinds};
use serde_json::json;

use crate::custom::{self, Shown, Snapshot};
use crate::registry::create::stored_kind;
use crate::respond::{self, Body};

/// The Kubernetes version this server speaks.
pub const VERSION_MAJOR: &str = "1";
pub const VERSION_MINOR: &str = "36";
pub const GIT_VERSION: &str = concat!("v1.36.4+orlop", env!("CARGO_PKG_VERSION"));

pub fn version() -> Version {
    Version {
        major: VERSION_MAJOR,
        minor: VERSION_MINOR,
        emulation_major: VERSION_MAJOR,
        emulation_minor: VERSION_MINOR,
        min_compatibility_major: VERSION_MAJOR,
        min_compatibility_minor: "35",
        git_version: GIT_VERSION,
        git_commit: "",
        git_tree_state: "clean",
        build_date: "1970-01-01T00:00:00Z",
        go_version: "",
        compiler: "rustc",
        platform: format!("linux/{}", go_arch()),
    }
}

/// What `/version` answers, in this order. Upstream: version.Info of k8s.io/apimachinery.
#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Version {
    major: &'static str,
    minor: &'static str,
    emulation_major: &'static str,
    emulation_minor: &'static str,
    min_compatibility_major: &'static str,
    min_compatibility_minor: &'static str,
    git_version: &'static str,
    git_commit: &'static str,
    git_tree_state: &'static str,
    build_date: &'static str,
    go_version: &'static str,
    compiler: &'static str,
    platform: String,
}

/// The architecture in Go's words, which is what nodes and clients use.
pub fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// A group with its versions, the preferred one first.
struct Group {
    name: &'static str,
    versions: Vec<&'static str>,
}

/// The built-in groups, then those of custom kinds in order of their names.
fn groups(custom: &Snapshot) -> Vec<Group> {
    let mut groups: Vec<Group> = vec![];
    for kind in kinds::all() {
        add_version(&mut groups, kind);
    }
    let built_in = groups.len();
    for kind in custom.served() {
        add_version(&mut groups, kind);
    }
    groups[built_in..].sort_by_key(|group| group.name);
    for group in &mut groups[built_in..] {
        group.versions.sort_by(|a, b| custom::kube_aware_order(a, b));
    }
    groups
}

fn add_version(groups: &mut Vec<Group>, kind: &KindDef) {
    match groups.iter_mut().find(|g| g.name == kind.group) {
        Some(group) if group.versions.contains(&kind.version) => {}
        Some(group) => group.versions.push(kind.version),
        None => groups.push(Group {
            name: kind.group,
            versions: vec![kind.version],
        }),
    }
}

fn kinds_of(custom: &Snapshot, group: &str, version: &str) -> Vec<&'static KindDef> {
    let mut list: Vec<_> = kinds::all()
        .chain(custom.served())
        .filter(|k| k.group == group && k.version == version)
        .collect();
    list.sort_by_key(|k| k.plural);
    list
}

fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_string()
    } else {
        format!("{group}/{version}")
    }
}

/// Answers a discovery path; `None` if the path is none.
pub(crate) fn respond(
    custom: &Snapshot,
    path: &str,
    headers: &HeaderMap,
    server_address: &str,
) -> Option<Response<Body>> {
    let words: Vec<&str> = path.split('/').filter(|s| !s.is_empty()).collect();
    let aggregated = wants_aggregated(headers);
    match words.as_slice() {
        ["api"] if aggregated.is_some() => Some(cached(&custom.lists().core, aggregated?, headers)),
        ["apis"] if aggregated.is_some() => Some(cached(&custom.lists().groups, aggregated?, headers)),
        ["api"] => Some(respond::json(200, &api_versions(server_address))),
        ["apis"] => Some(respond::json(200, &group_list(custom))),
        ["api", version] => resource_list(custom, "", version).map(|v| respond::json(200, &v)),
        ["apis", group] => group_value(custom, group).map(|mut v| {
            v["kind"] = "APIGroup".into();
            v["apiVersion"] = "v1".into();
            respond::json(200, &v)
        }),
        ["apis", group, version] => resource_list(custom, group, version).map(|v| respond::json(200, &v)),
        _ => None,
    }
}

fn api_versions(server_address: &str) -> Value {
    json!({
        "kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}],
    })
}

fn group_entry(group: &Group) -> Value {
    let version = |v: &&str| json!({"groupVersion": group_version(group.name, v), "version": v});
    let versions: Vec<Value> = group.versions.iter().map(version).collect();
    json!({"name": group.name, "versions": versions, "preferredVersion": versions[0]})
}

fn group_list(custom: &Snapshot) -> Value {
    let list: Vec<Value> = groups(custom)
        .iter()
        .filter(|g| !g.name.is_empty())
        .map(group_entry)
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": list})
}

fn group_value(custom: &Snapshot, name: &str) -> Option<Value> {
    groups(custom)
        .iter()
        .find(|g| g.name == name && !name.is_empty())
        .map(group_entry)
}

fn resource_list(custom: &Snapshot, group: &str, version: &str) -> Option<Value> {
    let kinds = kinds_of(custom, group, version);
    if kinds.is_empty() {
        return None;
    }
    let mut resources = vec![];
    for kind in kinds {
        resources.push(resource_entry(custom, kind));
        resources.extend(kind.subresources.iter().map(|s| subresource_entry(kind, s)));
    }
    let mut list = json!({
        "kind": "APIResourceList", "groupVersion": group_version(group, version), "resources": resources,
    });
    // The oldest list of all says no version of its own.
    if !group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    Some(list)
}

fn resource_entry(custom: &Snapshot, kind: &'static KindDef) -> Value {
    let shown = Shown::of(kind);
    let mut entry = json!({
        "name": kind.plural, "singularName": shown.singular, "namespaced": kind.namespaced,
        "kind": kind.kind, "verbs": shown.verbs,
    });
    if !shown.short_names.is_empty() {
        entry["shortNames"] = json!(shown.short_names);
    }
    if !shown.categories.is_empty() {
        entry["categories"] = json!(shown.categories);
    }
    if kind.is_stored() {
        entry["storageVersionHash"] = storage_hash(custom.stored_form(kind)).into();
    }
    entry
}

/// Of the form in which objects are stored; clients compare it to see whether a migration is due.
fn storage_hash(kind: &'static KindDef) -> String {
    let stored = stored_kind(kind);
    let name = format!("{}/{}/{}", stored.group, stored.version, stored.kind);
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, name.as_bytes());
    base64::engine::general_purpose::STANDARD.encode(&digest.as_ref()[..8])
}

fn subresource_entry(kind: &KindDef, sub: &Subresource) -> Value {
    let mut entry = json!({
        "name": format!("{}/{}", kind.plural, sub.name), "singularName": "", "namespaced": kind.namespaced,
        "kind": if sub.kind.is_empty() { kind.kind } else { sub.kind }, "verbs": sub.verbs,
    });
    if !sub.kind.is_empty() && !sub.version.is_empty() && (sub.group, sub.version) != (kind.group, kind.version) {
        entry["group"] = sub.group.into();
        entry["version"] = sub.version.into();
    }
    entry
}

/// The version of the aggregated list that the client asks for first, if any.
fn wants_aggregated(headers: &HeaderMap) -> Option<&'static str> {
    let accept = headers.get(ACCEPT)?.to_str().ok()?;
    for clause in accept.split(',') {
        let clause: String = clause.chars().filter(|c| !c.is_whitespace()).collect();
        if clause.contains("as=APIGroupDiscoveryList") && clause.contains("g=apidiscovery.k8s.io") {
            if clause.contains("v=v2;") || clause.ends_with("v=v2") {
                return Some("v2");
            }
            if clause.contains("v=v2beta1") {
                return Some("v2beta1");
            }
            continue;
        }
        if clause.starts_with("application/json") || clause.starts_with("*/*") {
            return None;
        }
    }
    None
}

struct Aggregated {
    bytes: Bytes,
    etag: String,
}

/// The aggregated lists of a table of kinds.
pub(crate) struct Cached {
    /// /api
    core: Aggregated,
    /// /apis
    groups: Aggregated,
}

impl Snapshot {
    /// Made at the first use.
    fn lists(&self) -> &Cached {
        self.discovery.get_or_init(|| Cached {
            core: aggregated(self, true),
            groups: aggregated(self, false),
        })
    }
}

fn aggregated(custom: &Snapshot, core: bool) -> Aggregated {
    let items: Vec<Value> = groups(custom)
        .iter()
        .filter(|g| g.name.is_empty() == core)
        .map(|group| aggregated_group(custom, group))
        .collect();
    let list = json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items,
    });
    let bytes = Bytes::from(list.to_string());
    let etag = format!("\"{:016X}{:08X}\"", storage_hash_of(&bytes), bytes.len());
    Aggregated { bytes, etag }
}

fn storage_hash_of(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn aggregated_group(custom: &Snapshot, group: &Group) -> Value {
    let versions: Vec<Value> = group
        .versions
        .iter()
        .map(|version| {
            let resources: Vec<Value> = kinds_of(custom, group.name, version)
                .into_iter()
                .map(aggregated_resource)
                .collect();
            json!({"version": version, "resources": resources, "freshness": "Current"})
        })
        .collect();
    let metadata = if group.name.is_empty() {
        json!({})
    } else {
        json!({"name": group.name})
    };
    json!({"metadata": metadata, "versions": versions})
}

fn aggregated_resource(kind: &'static KindDef) -> Value {
    let shown = Shown::of(kind);
    let gvk = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    // An empty group and version are those of the list.
    let mut entry = json!({
        "resource": kind.plural, "responseKind": gvk("", "", kind.kind),
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": shown.singular, "verbs": shown.verbs,
    });
    if !shown.short_names.is_empty() {
        entry["shortNames"] = json!(shown.short_names);
    }
    if !shown.categories.is_empty() {
        entry["categories"] = json!(shown.categories);
    }
    let subresources: Vec<Value> = kind
        .subresources
        .iter()
        .map(|s| {
            let response = match s.kind {
                "" => gvk("", "", kind.kind),
                _ => gvk(s.group, s.version, s.kind),
            };
            json!({"subresource": s.name, "responseKind": response, "verbs": s.verbs})
        })
        .collect();
    if !subresources.is_empty() {
        entry["subresources"] = subresources.into();
    }
    entry
}

fn cached(list: &Aggregated, version: &str, headers: &HeaderMap) -> Response<Body> {
    let known = headers
        .get(IF_NONE_MATCH)
        .is_some_and(|v| v.as_bytes() == list.etag.as_bytes());
    let mut response = if known {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        let body = match version {
            "v2" => list.bytes.clone(),
            // The older version differs in its name alone.
            _ => String::from_utf8_lossy(&list.bytes)
                .replacen("/v2\"", "/v2beta1\"", 1)
                .into(),
        };
        respond::plain(200, "application/json", body)
    };
    let content_type = format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList");
    let map = response.headers_mut();
    map.insert(
        CONTENT_TYPE,
        HeaderValue::from_str(&content_type).expect("made of plain words"),
    );
    map.insert(
        ETAG,
        HeaderValue::from_str(&list.etag).expect("made of hexadecimal digits"),
    );
    map.insert(VARY, HeaderValue::from_static("Accept"));
    // May be kept, and asked about again by its tag.
    map.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
    response
}

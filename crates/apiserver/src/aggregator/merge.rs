//! Our own discovery and that of extension API servers, as one. Pure but for the cache.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, VARY};
use http::{HeaderMap, Response, StatusCode};
use orlop_api::Value;
use parking_lot::Mutex;
use serde_json::{Map, json};

use super::Table;
use super::documents::{Documents, Entry};
use crate::chain::Server;
use crate::custom::kube_aware_order;
use crate::respond::{self, Body};
use crate::{discovery, openapi};

/// The merged aggregated lists, the newest last: one for each version of the format.
#[derive(Default)]
pub(super) struct Cache(Mutex<Vec<Kept>>);

#[derive(Clone)]
struct Kept {
    /// Of what it was made.
    content_type: HeaderValue,
    local: Bytes,
    tables: u64,
    documents: u64,
    bytes: Bytes,
    etag: HeaderValue,
}

const KEPT_MAX: usize = 2;

impl Server {
    /// `None` for paths that are no discovery, or not about what others serve.
    pub(super) fn merged_discovery(&self, path: &str, headers: &HeaderMap) -> Option<Response<Body>> {
        let words: Vec<&str> = path.split('/').skip(1).collect();
        let table = self.aggregator.table();
        let mut accept = HeaderMap::new();
        if let Some(wanted) = headers.get(ACCEPT) {
            accept.insert(ACCEPT, wanted.clone());
        }
        let address = self.registry.config.external_address();
        let custom = self.registry.kinds.snapshot();
        match words.as_slice() {
            ["apis"] => {
                let local = discovery::respond(&custom, path, &accept, &address)?;
                let content_type = local.headers().get(CONTENT_TYPE)?.clone();
                if content_type.to_str().is_ok_and(|t| t.contains("APIGroupDiscoveryList")) {
                    return self.merged_aggregated(local, content_type, headers);
                }
                let list = group_list(parsed(local)?, &table);
                Some(respond::json(200, &list))
            }
            ["apis", group] if table.remotes.contains_key(*group) => {
                let local = discovery::respond(&custom, path, &HeaderMap::new(), &address).and_then(parsed);
                let mut entry = group_entry(local.as_ref(), group, &table);
                entry["kind"] = "APIGroup".into();
                entry["apiVersion"] = "v1".into();
                Some(respond::json(200, &entry))
            }
            _ => None,
        }
    }

    fn merged_aggregated(
        &self,
        local: Response<Body>,
        content_type: HeaderValue,
        headers: &HeaderMap,
    ) -> Option<Response<Body>> {
        let aggregator = &self.aggregator;
        let local = whole(local.into_body())?;
        // Asked before the rest is read: what changes meanwhile is noticed the next time.
        let (tables, documents) = (*aggregator.changed.borrow(), aggregator.documents.generation());
        let is_current = |kept: &&Kept| {
            kept.content_type == content_type
                && kept.local == local
                && (kept.tables, kept.documents) == (tables, documents)
        };
        let known = aggregator.merged.0.lock().iter().find(is_current).cloned();
        let kept = match known {
            Some(kept) => kept,
            None => {
                let list = serde_json::from_slice(&local).ok()?;
                let list = aggregated(list, &aggregator.table(), &aggregator.documents);
                let bytes = Bytes::from(list.to_string());
                let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &bytes);
                let hash: String = digest.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
                let kept = Kept {
                    content_type,
                    local,
                    tables,
                    documents,
                    bytes,
                    etag: HeaderValue::from_str(&format!("\"{hash}\"")).expect("made of hexadecimal digits"),
                };
                let mut all = aggregator.merged.0.lock();
                all.retain(|other| other.content_type != kept.content_type);
                all.push(kept.clone());
                let extra = all.len().saturating_sub(KEPT_MAX);
                all.drain(..extra);
                kept
            }
        };
        Some(kept.respond(headers))
    }

    /// Where the OpenAPI 3 documents are.
    pub(super) fn merged_index(&self, headers: &HeaderMap) -> Option<Response<Body>> {
        let query = Default::default();
        let local = openapi::respond(
            &self.registry.kinds.snapshot(),
            "/openapi/v3",
            &query,
            &HeaderMap::new(),
        )?;
        let table = self.aggregator.table();
        let index = openapi_index(parsed(local)?, &table, &self.aggregator.documents);
        let mut response = respond::json(200, &index);
        let text = index.to_string();
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
        let hash: String = digest.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
        let etag = HeaderValue::from_str(&format!("\"{hash}\"")).expect("made of hexadecimal digits");
        if headers.get(IF_NONE_MATCH) == Some(&etag) {
            response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        }
        response.headers_mut().insert(ETAG, etag);
        Some(response)
    }
}

impl Kept {
    fn respond(self, headers: &HeaderMap) -> Response<Body> {
        let mut response = match headers.get(IF_NONE_MATCH) == Some(&self.etag) {
            true => {
                let mut response = Response::new(Body::empty());
                *response.status_mut() = StatusCode::NOT_MODIFIED;
                response
            }
            false => respond::plain(200, "application/json", self.bytes),
        };
        let map = response.headers_mut();
        map.insert(CONTENT_TYPE, self.content_type);
        map.insert(ETAG, self.etag);
        map.insert(VARY, HeaderValue::from_static("Accept"));
        map.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
        response
    }
}

/// The bytes of an answer of our own.
pub(super) fn whole(body: Body) -> Option<Bytes> {
    match body {
        Body::Whole(bytes) => bytes,
        Body::Chunks(chunks) => {
            let mut all = Vec::new();
            chunks.for_each(|piece| all.extend_from_slice(&piece));
            Some(all.into())
        }
        _ => None,
    }
}

fn parsed(response: Response<Body>) -> Option<Value> {
    serde_json::from_slice(&whole(response.into_body())?).ok()
}

fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

fn take_items(list: &mut Value, name: &str) -> Vec<Value> {
    match list[name].take() {
        Value::Array(items) => items,
        _ => vec![],
    }
}

/// The preferred version first.
fn sort_versions(table: &Table, group: &str, versions: &mut [Value]) {
    let priority = |version: &str| {
        let known = table.services.get(&format!("{version}.{group}"));
        // Where an APIService is still to come: that of custom resources.
        known.map_or(100, |service| service.version_priority)
    };
    versions.sort_by(|a, b| {
        let (a, b) = (text(a, "/version"), text(b, "/version"));
        priority(b).cmp(&priority(a)).then_with(|| kube_aware_order(a, b))
    });
}

/// An item of `/apis`, from our own if we serve a part of it.
fn group_entry(local: Option<&Value>, group: &str, table: &Table) -> Value {
    let mut versions: Vec<Value> = local
        .and_then(|local| local["versions"].as_array().cloned())
        .unwrap_or_default();
    for version in table
        .remotes
        .get(group)
        .into_iter()
        .flatten()
        .map(|(version, _)| version)
    {
        if !versions.iter().any(|entry| entry["version"] == *version) {
            versions.push(json!({"groupVersion": format!("{group}/{version}"), "version": version}));
        }
    }
    sort_versions(table, group, &mut versions);
    json!({"name": group, "preferredVersion": versions.first(), "versions": versions})
}

fn group_list(mut local: Value, table: &Table) -> Value {
    let mut groups: BTreeMap<String, Value> = BTreeMap::new();
    let mut order = vec![];
    for entry in take_items(&mut local, "groups") {
        let name = text(&entry, "/name").to_string();
        order.push(name.clone());
        groups.insert(name, entry);
    }
    for name in sorted(table.remotes.keys()) {
        let entry = group_entry(groups.get(name), name, table);
        if groups.insert(name.clone(), entry).is_none() {
            order.push(name.clone());
        }
    }
    order.sort_by_cached_key(|name| Reverse(table.group_priority(name)));
    let groups: Vec<Value> = order.iter().filter_map(|name| groups.remove(name)).collect();
    local["groups"] = groups.into();
    local
}

fn sorted<'k>(names: impl Iterator<Item = &'k String>) -> Vec<&'k String> {
    let mut names: Vec<&String> = names.collect();
    names.sort();
    names
}

/// The aggregated list of `/apis`.
fn aggregated(mut local: Value, table: &Table, documents: &Documents) -> Value {
    let mut items = take_items(&mut local, "items");
    for name in sorted(table.remotes.keys()) {
        let place = items.iter().position(|item| text(item, "/metadata/name") == name);
        let place = place.unwrap_or_else(|| {
            items.push(json!({"metadata": {"name": name}, "versions": []}));
            items.len() - 1
        });
        let mut versions = take_items(&mut items[place], "versions");
        for (version, remote) in &table.remotes[name] {
            let Entry { version: entry, .. } = documents.entry(remote);
            versions.retain(|local| local["version"] != *version);
            versions.push(entry);
        }
        sort_versions(table, name, &mut versions);
        items[place]["versions"] = versions.into();
    }
    items.sort_by_cached_key(|item| Reverse(table.group_priority(text(item, "/metadata/name"))));
    local["items"] = items.into();
    local
}

fn openapi_index(mut local: Value, table: &Table, documents: &Documents) -> Value {
    let mut paths = match local["paths"].take() {
        Value::Object(paths) => paths,
        _ => Map::new(),
    };
    for remote in table.all_remotes() {
        let key = format!("apis/{}/{}", remote.api.group, remote.api.version);
        match documents.entry(remote).openapi {
            Some(place) => paths.insert(key, place),
            None => paths.remove(&key),
        };
    }
    local["paths"] = paths.into();
    local
}

/// The versions in an aggregated list of another server.
pub(super) fn versions_of(list: &Value) -> BTreeMap<(String, String), Value> {
    let mut found = BTreeMap::new();
    for item in list["items"].as_array().into_iter().flatten() {
        let versions = item["versions"].as_array().into_iter().flatten();
        for version in versions.filter(|version| version.is_object()) {
            let key = (
                text(item, "/metadata/name").to_string(),
                text(version, "/version").to_string(),
            );
            let mut version = version.clone();
            // Some clients can't do without.
            for resource in items_mut(&mut version, "resources") {
                name_response(resource);
                items_mut(resource, "subresources").for_each(name_response);
            }
            found.insert(key, version);
        }
    }
    found
}

fn items_mut<'v>(value: &'v mut Value, name: &str) -> impl Iterator<Item = &'v mut Value> {
    let list = value.get_mut(name).and_then(Value::as_array_mut);
    list.into_iter().flatten()
}

fn name_response(resource: &mut Value) {
    if let Some(map) = resource.as_object_mut() {
        let kind = map.entry("responseKind").or_insert(Value::Null);
        if kind.is_null() {
            *kind = json!({"group": "", "version": "", "kind": ""});
        }
    }
}

/// A version of aggregated discovery from an APIResourceList. Upstream: ConvertGroupVersionIntoToDiscovery.
pub(super) fn from_legacy(list: &Value) -> Value {
    let all = || list["resources"].as_array().into_iter().flatten();
    let response = |resource: &Value| {
        let word = |name: &str| resource[name].as_str().unwrap_or("");
        json!({"group": word("group"), "version": word("version"), "kind": word("kind")})
    };
    let mut resources: Vec<Value> = vec![];
    for resource in all().filter(|r| !text(r, "/name").contains('/')) {
        let mut entry = json!({
            "resource": text(resource, "/name"), "responseKind": response(resource),
            "scope": if resource["namespaced"] == true { "Namespaced" } else { "Cluster" },
            "singularResource": text(resource, "/singularName"), "verbs": resource["verbs"],
        });
        for name in ["shortNames", "categories"] {
            if resource[name].is_array() {
                entry[name] = resource[name].clone();
            }
        }
        resources.push(entry);
    }
    for resource in all() {
        let Some((parent, name)) = text(resource, "/name").split_once('/') else {
            continue;
        };
        let place = resources.iter().position(|entry| entry["resource"] == parent);
        let place = place.unwrap_or_else(|| {
            let scope = if resource["namespaced"] == true {
                "Namespaced"
            } else {
                "Cluster"
            };
            // A subresource without its resource: it has no verbs, but something that it is below of.
            resources.push(
                json!({"resource": parent, "responseKind": {"group": "", "version": "", "kind": ""},
                "scope": scope, "singularResource": "", "verbs": []}),
            );
            resources.len() - 1
        });
        let entry = json!({"subresource": name, "responseKind": response(resource), "verbs": resource["verbs"]});
        match resources[place]["subresources"].as_array_mut() {
            Some(known) => known.push(entry),
            None => resources[place]["subresources"] = json!([entry]),
        }
    }
    json!({"resources": resources})
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::aggregator::Remote;
    use crate::aggregator::service::ApiService;
    use crate::connect::BackendError;

    fn table(services: &[(&str, &str, i64, i64, bool)]) -> Table {
        let mut table = Table::default();
        for (version, group, priority, version_priority, is_remote) in services {
            let mut object = json!({"metadata": {"name": format!("{version}.{group}")}, "spec": {
                "group": group, "version": version, "groupPriorityMinimum": priority,
                "versionPriority": version_priority}});
            if *is_remote {
                object["spec"]["service"] = json!({"namespace": "n", "name": "s", "port": 443});
            }
            let api = ApiService::read(&object);
            if *is_remote {
                let backend = Err(BackendError::CaBundle);
                let remote = Arc::new(Remote {
                    api: api.clone(),
                    backend,
                });
                table
                    .remotes
                    .entry(group.to_string())
                    .or_default()
                    .insert(version.to_string(), remote);
            }
            table.services.insert(api.name.clone(), api);
        }
        table
    }

    fn sample() -> Table {
        table(&[
            ("v1", "apps", 17800, 15, false),
            ("v1", "crd.io", 1000, 100, false),
            ("v1alpha1", "wardle.io", 2000, 200, true),
            ("v1beta1", "wardle.io", 2000, 200, true),
            ("v1beta1", "metrics.k8s.io", 100, 100, true),
        ])
    }

    fn local_group(name: &str, version: &str) -> Value {
        let version = json!({"groupVersion": format!("{name}/{version}"), "version": version});
        json!({"name": name, "versions": [version], "preferredVersion": version})
    }

    #[test]
    fn groups_are_listed_by_priority() {
        let local = json!({"kind": "APIGroupList", "groups": [
            local_group("apiregistration.k8s.io", "v1"), local_group("apps", "v1"), local_group("crd.io", "v1"),
            local_group("metrics.k8s.io", "v1beta1")]});
        let list = group_list(local, &sample());
        let seen: Vec<(&str, &str, usize)> = list["groups"]
            .as_array()
            .unwrap()
            .iter()
            .map(|g| {
                (
                    text(g, "/name"),
                    text(g, "/preferredVersion/groupVersion"),
                    g["versions"].as_array().unwrap().len(),
                )
            })
            .collect();
        assert_eq!(
            seen,
            [
                ("apiregistration.k8s.io", "apiregistration.k8s.io/v1", 1),
                ("apps", "apps/v1", 1),
                ("wardle.io", "wardle.io/v1beta1", 2),
                ("crd.io", "crd.io/v1", 1),
                ("metrics.k8s.io", "metrics.k8s.io/v1beta1", 1),
            ]
        );
    }

    #[test]
    fn what_was_not_read_is_stale_and_replaces_our_own() {
        let local = json!({"items": [
            {"metadata": {"name": "apps"}, "versions": [{"version": "v1", "freshness": "Current"}]},
            {"metadata": {"name": "metrics.k8s.io"}, "versions": [{"version": "v1beta1", "freshness": "Current"}]}]});
        let list = aggregated(local, &sample(), &Documents::default());
        assert_eq!(
            list["items"],
            json!([
                {"metadata": {"name": "apps"}, "versions": [{"version": "v1", "freshness": "Current"}]},
                {"metadata": {"name": "wardle.io"}, "versions": [{"version": "v1beta1", "freshness": "Stale"},
                    {"version": "v1alpha1", "freshness": "Stale"}]},
                {"metadata": {"name": "metrics.k8s.io"}, "versions": [{"version": "v1beta1", "freshness": "Stale"}]},
            ])
        );
        let index = json!({"paths": {"apis/apps/v1": {}, "apis/metrics.k8s.io/v1beta1": {}}});
        let index = openapi_index(index, &sample(), &Documents::default());
        assert_eq!(index["paths"], json!({"apis/apps/v1": {}}));
    }

    #[test]
    fn older_lists_become_versions() {
        let list = json!({"kind": "APIResourceList", "resources": [
            {"name": "things/status", "namespaced": true, "kind": "Thing", "verbs": ["get"]},
            {"name": "things", "singularName": "thing", "namespaced": true, "kind": "Thing", "verbs": ["list"],
                "shortNames": ["th"]},
            {"name": "lone/scale", "namespaced": false, "group": "autoscaling", "version": "v1", "kind": "Scale",
                "verbs": ["get"]}]});
        let kind = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
        assert_eq!(
            from_legacy(&list)["resources"],
            json!([
                {"resource": "things", "responseKind": kind("", "", "Thing"), "scope": "Namespaced",
                    "singularResource": "thing", "verbs": ["list"], "shortNames": ["th"],
                    "subresources": [{"subresource": "status", "responseKind": kind("", "", "Thing"), "verbs": ["get"]}]},
                {"resource": "lone", "responseKind": kind("", "", ""), "scope": "Cluster", "singularResource": "",
                    "verbs": [], "subresources": [{"subresource": "scale",
                        "responseKind": kind("autoscaling", "v1", "Scale"), "verbs": ["get"]}]},
            ])
        );
        let aggregated = json!({"items": [7, {"versions": 7}, {"metadata": {"name": "g"}, "versions": [7, {"resources": [7]},
            {"version": "v1", "resources": [{"resource": "a", "subresources": [{"subresource": "b"}]}]}]}]});
        let versions = versions_of(&aggregated);
        let version = &versions[&("g".to_string(), "v1".to_string())];
        assert_eq!(version["resources"][0]["responseKind"], kind("", "", ""));
        assert_eq!(
            version["resources"][0]["subresources"][0]["responseKind"],
            kind("", "", "")
        );
    }
}

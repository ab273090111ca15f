//! Which kinds there are, by the discovery API: also those that were unknown when this was built.
// Upstream: client-go discovery (ServerPreferredResources over aggregated discovery)

use std::collections::{BTreeMap, BTreeSet};

use orlop_client::{Api, Result};
use serde::Deserialize;

/// The whole list in one answer. Upstream: since 1.30 in every API server.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;q=0.9";

/// A resource in one of its versions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Resource {
    /// `apps/v1`
    pub api_version: String,
    /// `deployments`
    pub name: String,
    /// `Deployment`
    pub kind: String,
    pub namespaced: bool,
    pub verbs: Vec<String>,
    /// The version that the server prefers of those that have this resource.
    pub preferred: bool,
}

impl Resource {
    pub(crate) fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    pub(crate) fn version(&self) -> &str {
        self.api_version
            .split_once('/')
            .map_or(self.api_version.as_str(), |(_, version)| version)
    }

    pub(crate) fn can(&self, verbs: &[&str]) -> bool {
        verbs.iter().all(|verb| self.verbs.iter().any(|v| v == verb))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Discovered {
    pub resources: Vec<Resource>,
    /// Group versions whose server does not answer at present, and what is wrong with them.
    pub failed: BTreeMap<String, String>,
}

impl Discovered {
    /// What went wrong, in upstream's words; none if nothing did.
    pub(crate) fn trouble(&self) -> Option<String> {
        if self.failed.is_empty() {
            return None;
        }
        let groups: Vec<String> = self.failed.iter().map(|(gv, why)| format!("{gv}: {why}")).collect();
        Some(format!(
            "unable to retrieve the complete list of server APIs: {}",
            groups.join(", ")
        ))
    }

    pub(crate) fn preferred(&self) -> impl Iterator<Item = &Resource> {
        self.resources.iter().filter(|resource| resource.preferred)
    }
}

pub(crate) async fn discover(api: &Api) -> Result<Discovered> {
    let core: GroupList = api.get_as("/api", AGGREGATED).await?;
    let named: GroupList = api.get_as("/apis", AGGREGATED).await?;
    let mut found = Discovered::default();
    for group in core.items.iter().chain(&named.items) {
        read_group(group, &mut found);
    }
    Ok(found)
}

#[derive(Deserialize)]
struct GroupList {
    /// Not there in an answer that is no aggregated list: better an error than a cluster without kinds.
    items: Vec<Group>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Group {
    metadata: GroupMeta,
    versions: Vec<Version>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct GroupMeta {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Version {
    version: String,
    resources: Vec<Entry>,
    freshness: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Entry {
    resource: String,
    response_kind: Option<ResponseKind>,
    scope: String,
    verbs: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseKind {
    kind: String,
}

/// Versions come in the order of preference.
fn read_group(group: &Group, found: &mut Discovered) {
    let mut known = BTreeSet::new();
    for version in &group.versions {
        let api_version = match group.metadata.name.as_str() {
            "" => version.version.clone(),
            name => format!("{name}/{}", version.version),
        };
        if version.freshness == "Stale" {
            let why = format!("stale GroupVersion discovery: {api_version}");
            found.failed.insert(api_version, why);
            continue;
        }
        for entry in &version.resources {
            let kind = entry.response_kind.as_ref().map_or("", |kind| kind.kind.as_str());
            found.resources.push(Resource {
                api_version: api_version.clone(),
                name: entry.resource.clone(),
                kind: kind.to_string(),
                namespaced: entry.scope == "Namespaced",
                verbs: entry.verbs.clone(),
                preferred: known.insert(entry.resource.as_str()),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_versions_and_preferences() {
        let group: Group = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "stable.example.com"},
            "versions": [
                {"version": "v2", "freshness": "Current", "resources": [
                    {"resource": "crons", "responseKind": {"group": "", "version": "", "kind": "Cron"},
                     "scope": "Namespaced", "verbs": ["delete", "list", "watch"]}]},
                {"version": "v1", "resources": [
                    {"resource": "crons", "responseKind": {"kind": "Cron"}, "scope": "Namespaced", "verbs": ["get"]},
                    {"resource": "zones", "responseKind": {"kind": "Zone"}, "scope": "Cluster", "verbs": ["get"]}]},
                {"version": "v0", "freshness": "Stale", "resources": []}],
        }))
        .unwrap();
        let mut found = Discovered::default();
        read_group(&group, &mut found);
        let seen: Vec<_> = found
            .resources
            .iter()
            .map(|r| {
                (
                    r.api_version.as_str(),
                    r.name.as_str(),
                    r.kind.as_str(),
                    r.namespaced,
                    r.preferred,
                )
            })
            .collect();
        assert_eq!(
            seen,
            [
                ("stable.example.com/v2", "crons", "Cron", true, true),
                ("stable.example.com/v1", "crons", "Cron", true, false),
                ("stable.example.com/v1", "zones", "Zone", false, true),
            ]
        );
        assert_eq!(
            (found.resources[0].group(), found.resources[0].version()),
            ("stable.example.com", "v2")
        );
        assert!(found.resources[0].can(&["delete", "watch"]) && !found.resources[1].can(&["delete"]));
        assert_eq!(
            found.trouble().unwrap(),
            "unable to retrieve the complete list of server APIs: stable.example.com/v0: \
             stale GroupVersion discovery: stable.example.com/v0"
        );
    }
}

/// For tests: an API server's answers, for `Cluster::hook`.
#[cfg(test)]
pub(crate) mod fake {
    use serde_json::{Value, json};

    /// Group version, resource, kind, and whether it lives in namespaces.
    pub(crate) type Served = (&'static str, &'static str, &'static str, bool);

    /// Two of each sort, enough for most.
    pub(crate) const USUAL: &[Served] = &[
        ("v1", "configmaps", "ConfigMap", true),
        ("v1", "namespaces", "Namespace", false),
        ("v1", "nodes", "Node", false),
        ("v1", "pods", "Pod", true),
        ("apps/v1", "deployments", "Deployment", true),
        ("apps/v1", "replicasets", "ReplicaSet", true),
    ];

    pub(crate) fn answer(path: &str, served: &[Served]) -> Option<Value> {
        let core = match path {
            "/api" => true,
            "/apis" => false,
            _ => return None,
        };
        let wanted = served.iter().filter(|(version, ..)| version.contains('/') != core);
        let items = wanted.map(|(version, resource, kind, namespaced)| {
            let (group, version) = version.split_once('/').unwrap_or(("", version));
            let scope = if *namespaced { "Namespaced" } else { "Cluster" };
            json!({"metadata": {"name": group}, "versions": [{"version": version, "resources": [
                {"resource": resource, "responseKind": {"kind": kind}, "scope": scope,
                 "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]}]}]})
        });
        Some(json!({"kind": "APIGroupDiscoveryList", "items": items.collect::<Vec<_>>()}))
    }
}

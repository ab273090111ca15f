//! What extending the API costs: definitions by the thousand, custom objects beside ConfigMaps of the same size, admission
//! policies, documents. Against any API server; rows of two servers in one hour can be compared.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http::Method;
use orlop_base::clock::monotonic;
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use super::client::{Connection, Target};
use super::measure::{Figures, timed};
use super::process;
use super::workloads::{self, NAMESPACE};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";
const GROUP: &str = "bench.orlop.example";
/// The group of the wide kind alone.
const WIDE_GROUP: &str = "wide.orlop.example";
/// Fields of the objects that are measured.
const FIELDS: usize = 200;
const CLIENTS: usize = 8;
/// How long a definition may take to be served.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone, Copy)]
pub(crate) struct Settings {
    pub definitions: usize,
    pub objects: usize,
    pub policies: usize,
    /// The server's process, if it is on this machine.
    pub pid: Option<u32>,
}

pub(crate) async fn run(kubeconfig: &Path, settings: Settings) -> anyhow::Result<Vec<Figures>> {
    let target = Target::from_kubeconfig(kubeconfig)?;
    workloads::prepare(&target).await?;
    let mut figures = vec![];
    eprintln!("· {} definitions", settings.definitions);
    figures.push(definitions(&target, settings).await?);
    eprintln!("· definitions until they are usable");
    figures.push(until_usable(&target, 20).await?);
    eprintln!("· {} objects of {FIELDS} fields", settings.objects);
    let wide = Wide::create(&target).await?;
    for (name, path, body) in wide.bodies() {
        figures.push(creates(&target, &format!("create {name}"), &path, body, settings.objects).await?);
        figures.push(reads(&target, &format!("list {name}"), &format!("{path}?limit=500"), 40).await?);
    }
    eprintln!("· documents");
    let document = format!("/openapi/v3/apis/{WIDE_GROUP}/v1");
    figures.push(reads(&target, "OpenAPI v3 of one group", &document, 200).await?);
    eprintln!("· {} policies of ten rules", settings.policies);
    policies(&target, settings.policies).await?;
    let (name, path, body) = wide.bodies().remove(0);
    let label = format!("create {name}, {} policies", settings.policies);
    figures.push(creates(&target, &label, &path, body, settings.objects).await?);
    Ok(figures)
}

/// A definition of an ordinary kind: twenty fields, a status, columns.
fn definition(group: &str, plural: &str, kind: &str, properties: Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "additionalPrinterColumns": [{"name": "First", "type": "string", "jsonPath": ".spec.field000"}],
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": properties},
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                }}},
            }],
        },
    })
}

fn properties(count: usize) -> Value {
    let property = |i: usize| {
        let schema = json!({
            "type": "string", "maxLength": 64, "description": "What this field is about, in a sentence of ordinary length.",
        });
        (format!("field{i:03}"), schema)
    };
    Value::Object((0..count).map(property).collect())
}

fn values(count: usize) -> Map<String, Value> {
    (0..count)
        .map(|i| (format!("field{i:03}"), format!("value number {i}").into()))
        .collect()
}

/// Makes definitions with a few clients, and waits until the last one is served.
async fn definitions(target: &Target, settings: Settings) -> anyhow::Result<Figures> {
    let resident = || {
        settings
            .pid
            .and_then(process::usage)
            .map_or(0.0, |usage| usage.resident as f64 / 1e6)
    };
    let (before, began) = (resident(), monotonic());
    let next = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for _ in 0..4 {
        let (target, next) = (target.clone(), next.clone());
        clients.spawn(async move {
            let mut connection = target.connect().await?;
            let mut latencies = vec![];
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= settings.definitions {
                    return Ok::<_, anyhow::Error>(latencies);
                }
                let body = definition(GROUP, &format!("things{i}"), &format!("Thing{i}"), properties(20)).to_string();
                timed(
                    &mut latencies,
                    connection.expect(Method::POST, DEFINITIONS, body.into()),
                )
                .await?;
            }
        });
    }
    let mut latencies = vec![];
    while let Some(client) = clients.join_next().await {
        latencies.extend(client.context("a client panicked")??);
    }
    let mut connection = target.connect().await?;
    for i in (0..settings.definitions).rev().step_by(100) {
        wait_until_served(&mut connection, GROUP, &format!("things{i}")).await?;
    }
    let mut figures = Figures::new("definitions made and served", began.elapsed(), latencies);
    if settings.pid.is_some() {
        figures.note = format!("{:+.0} MB resident", resident() - before);
    }
    Ok(figures)
}

async fn wait_until_served(connection: &mut Connection, group: &str, plural: &str) -> anyhow::Result<()> {
    let path = format!("/apis/{group}/v1/namespaces/{NAMESPACE}/{plural}");
    let began = monotonic();
    while connection.call(Method::GET, &path, Bytes::new()).await?.0 != 200 {
        if began.elapsed() > PATIENCE {
            bail!("{plural} were not served after {PATIENCE:?}");
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

/// From the request for a definition to the first object of its kind.
async fn until_usable(target: &Target, count: usize) -> anyhow::Result<Figures> {
    let mut connection = target.connect().await?;
    let (began, mut latencies) = (monotonic(), vec![]);
    for i in 0..count {
        let (plural, kind) = (format!("later{i}"), format!("Later{i}"));
        let body = definition(GROUP, &plural, &kind, properties(20)).to_string();
        let object = json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": {"name": "first"}, "spec": values(20),
        });
        let path = format!("/apis/{GROUP}/v1/namespaces/{NAMESPACE}/{plural}");
        let usable = async {
            connection.expect(Method::POST, DEFINITIONS, body.into()).await?;
            let asked = monotonic();
            while connection.call(Method::POST, &path, object.to_string().into()).await?.0 != 201 {
                if asked.elapsed() > PATIENCE {
                    bail!("{plural} could not be created after {PATIENCE:?}");
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Ok(())
        };
        timed(&mut latencies, usable).await?;
    }
    Ok(Figures::new("definition → first object", began.elapsed(), latencies))
}

/// Objects of a wide kind and ConfigMaps of the same members.
struct Wide;

impl Wide {
    async fn create(target: &Target) -> anyhow::Result<Wide> {
        let mut connection = target.connect().await?;
        let body = definition(WIDE_GROUP, "wides", "Wide", properties(FIELDS)).to_string();
        connection.expect(Method::POST, DEFINITIONS, body.into()).await?;
        wait_until_served(&mut connection, WIDE_GROUP, "wides").await?;
        Ok(Wide)
    }

    /// Name, path and body with `<name>` in it.
    fn bodies(&self) -> Vec<(&'static str, String, String)> {
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "<name>"}, "data": values(FIELDS)});
        let wide = json!({
            "apiVersion": format!("{WIDE_GROUP}/v1"), "kind": "Wide", "metadata": {"name": "<name>"}, "spec": values(FIELDS),
        });
        let of_group = format!("/apis/{WIDE_GROUP}/v1/namespaces/{NAMESPACE}/wides");
        vec![
            (
                "ConfigMaps",
                format!("/api/v1/namespaces/{NAMESPACE}/configmaps"),
                map.to_string(),
            ),
            ("custom objects", of_group, wide.to_string()),
        ]
    }
}

async fn creates(target: &Target, name: &str, path: &str, body: String, count: usize) -> anyhow::Result<Figures> {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    let (next, body, path): (Arc<AtomicUsize>, Arc<str>, Arc<str>) = (Arc::default(), body.into(), path.into());
    let (began, mut clients) = (monotonic(), JoinSet::new());
    for _ in 0..CLIENTS {
        let (target, next, body, path) = (target.clone(), next.clone(), body.clone(), path.clone());
        clients.spawn(async move {
            let mut connection = target.connect().await?;
            let mut latencies = vec![];
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= count {
                    return Ok::<_, anyhow::Error>(latencies);
                }
                let body = body.replacen("<name>", &format!("o-{run}-{i}"), 1);
                timed(&mut latencies, connection.expect(Method::POST, &path, body.into())).await?;
            }
        });
    }
    let mut latencies = vec![];
    while let Some(client) = clients.join_next().await {
        latencies.extend(client.context("a client panicked")??);
    }
    Ok(Figures::new(name, began.elapsed(), latencies))
}

async fn reads(target: &Target, name: &str, path: &str, count: usize) -> anyhow::Result<Figures> {
    let mut connection = target.connect().await?;
    // What is made at the first use is not what is measured.
    connection.expect(Method::GET, path, Bytes::new()).await?;
    let (began, mut latencies, mut bytes) = (monotonic(), vec![], 0);
    for _ in 0..count {
        bytes += timed(&mut latencies, connection.expect(Method::GET, path, Bytes::new()))
            .await?
            .len() as u64;
    }
    let mut figures = Figures::new(name, began.elapsed(), latencies);
    figures.bytes = bytes;
    Ok(figures)
}

/// Policies on ConfigMaps that hold, each bound once.
async fn policies(target: &Target, count: usize) -> anyhow::Result<()> {
    let mut connection = target.connect().await?;
    let rule =
        |i: usize| json!({"expression": format!("object.data.field{i:03}.size() > 0 && object.metadata.name != 'no'")});
    for i in 0..count {
        let name = format!("orlop-bench-{i}");
        let policy = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
            "spec": {
                "matchConstraints": {"resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"],
                }]},
                "validations": (0..10).map(rule).collect::<Vec<Value>>(),
            },
        });
        let binding = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        });
        for (resource, object) in [
            ("validatingadmissionpolicies", policy),
            ("validatingadmissionpolicybindings", binding),
        ] {
            let path = format!("{ADMISSION}/{resource}");
            connection
                .expect(Method::POST, &path, object.to_string().into())
                .await?;
        }
    }
    Ok(())
}

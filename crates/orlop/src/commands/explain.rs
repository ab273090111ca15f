//! `orlop explain`: why a pod is where it is, or nowhere; why a workload lacks pods; what would have to change.

use std::io::IsTerminal;

use anyhow::{Context, bail};
use orlop_client::{Error, path};
use orlop_explain::fix::{self, Budget};
use orlop_explain::pod::explain;
use orlop_explain::render::{self, View};
use orlop_explain::style::Style;
use orlop_explain::{PodFacts, WorkloadObjects, World, explain_workload};
use serde::Serialize;
use serde_json::Value;

use crate::live_cluster::{ConnectArgs, LiveCluster};

#[derive(clap::Args)]
pub(super) struct Args {
    /// pod, deployment, replicaset, statefulset, daemonset or job (or KIND/NAME)
    #[arg(value_name = "KIND")]
    kind: String,
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Namespace [default: that of the kubeconfig's context]
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Search for the smallest changes that would let the pod run
    #[arg(long)]
    fix: bool,
    /// Output format: text, wide (every node), json or yaml
    #[arg(short, long, value_name = "FORMAT", default_value = "text", value_parser = ["text", "wide", "json", "yaml"])]
    output: String,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Kinds whose pods are explained: API version, kind, resource, and the names that kubectl takes.
const WORKLOADS: [(&str, &str, &str, &[&str]); 5] = [
    (
        "apps/v1",
        "Deployment",
        "deployments",
        &["deployment", "deployments", "deploy"],
    ),
    (
        "apps/v1",
        "ReplicaSet",
        "replicasets",
        &["replicaset", "replicasets", "rs"],
    ),
    (
        "apps/v1",
        "StatefulSet",
        "statefulsets",
        &["statefulset", "statefulsets", "sts"],
    ),
    ("apps/v1", "DaemonSet", "daemonsets", &["daemonset", "daemonsets", "ds"]),
    ("batch/v1", "Job", "jobs", &["job", "jobs"]),
];

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("failed to start the tokio runtime")?;
    runtime.block_on(answer(args))
}

/// The kind and the name, from `pod web`, `pod/web` or `web`'s lack of either.
fn subject(args: &Args) -> anyhow::Result<(String, String)> {
    let (kind, name) = match (&args.name, args.kind.split_once('/')) {
        (Some(name), None) => (args.kind.clone(), name.clone()),
        (None, Some((kind, name))) => (kind.to_string(), name.to_string()),
        (Some(_), Some(_)) => bail!("give either KIND NAME or KIND/NAME"),
        (None, None) => bail!("give a kind and a name: orlop explain pod {}", args.kind),
    };
    Ok((kind.to_lowercase(), name))
}

async fn answer(args: Args) -> anyhow::Result<()> {
    let (kind, name) = subject(&args)?;
    let workload = WORKLOADS.iter().find(|(.., names)| names.contains(&kind.as_str()));
    let is_pod = matches!(kind.as_str(), "pod" | "pods" | "po");
    if workload.is_none() && !is_pod {
        bail!("can't explain {kind:?}: kinds are pod, deployment, replicaset, statefulset, daemonset and job");
    }
    let cluster = LiveCluster::connect(&args.connect).await?;
    let namespace = args.namespace.clone().unwrap_or_else(|| cluster.namespace.clone());
    match workload {
        Some((api_version, kind, resource, _)) => {
            let object = get(&cluster, api_version, resource, &namespace, &name, kind).await?;
            explain_one_workload(&args, &cluster, &namespace, kind, object).await
        }
        None => {
            let object = get(&cluster, "v1", "pods", &namespace, &name, "Pod").await?;
            explain_one_pod(&args, &cluster, &namespace, object).await
        }
    }
}

async fn get(
    cluster: &LiveCluster,
    api_version: &str,
    resource: &str,
    namespace: &str,
    name: &str,
    kind: &str,
) -> anyhow::Result<Value> {
    let at = path::object(api_version, Some(namespace), resource, name);
    match cluster.api.get::<Value>(&at).await {
        Ok(object) => Ok(object),
        Err(Error::NotFound(_)) => bail!(
            "there is no {kind} {name:?} in namespace {namespace:?}; see what there is with: kubectl get {resource} -A, and give \
             its namespace with -n"
        ),
        Err(error) => Err(error).with_context(|| format!("failed to read {kind} {namespace}/{name}")),
    }
}

async fn explain_one_pod(args: &Args, cluster: &LiveCluster, namespace: &str, pod: Value) -> anyhow::Result<()> {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let fields = format!("involvedObject.kind=Pod,involvedObject.name={name}");
    let (events, snapshot, config) = tokio::join!(
        cluster.objects("v1", "events", namespace, &fields),
        cluster.snapshot(),
        cluster.scheduler_config(&args.connect),
    );
    let mut world = World::new(snapshot?, &config?)?;
    let mut answer = explain(&mut world, &PodFacts::new(&pod, &events));
    if args.fix {
        answer.fixes = Some(fix::search(&mut world, &answer, &mut Budget::default()));
    }
    print_as(args, &answer, |view| render::pod(&answer, view))
}

async fn explain_one_workload(
    args: &Args,
    cluster: &LiveCluster,
    namespace: &str,
    kind: &str,
    mut object: Value,
) -> anyhow::Result<()> {
    object["kind"] = kind.into();
    let (pods, replica_sets, events, quotas, snapshot, config) = tokio::join!(
        cluster.objects("v1", "pods", namespace, ""),
        cluster.objects("apps/v1", "replicasets", namespace, ""),
        cluster.objects("v1", "events", namespace, ""),
        cluster.objects("v1", "resourcequotas", namespace, ""),
        cluster.snapshot(),
        cluster.scheduler_config(&args.connect),
    );
    let uid = |object: &Value| object["metadata"]["uid"].as_str().unwrap_or_default().to_string();
    let is_owned = |object: &Value, owners: &[String]| {
        let references = object["metadata"]["ownerReferences"].as_array();
        let mut controllers = references.into_iter().flatten().filter(|o| o["controller"] == true);
        controllers.any(|o| owners.iter().any(|owner| o["uid"] == owner.as_str()))
    };
    let mut owners = vec![uid(&object)];
    let mut replica_sets: Vec<Value> = replica_sets.into_iter().filter(|set| is_owned(set, &owners)).collect();
    replica_sets
        .iter_mut()
        .for_each(|set| set["kind"] = "ReplicaSet".into());
    owners.extend(replica_sets.iter().map(uid));
    let pods: Vec<Value> = pods.into_iter().filter(|pod| is_owned(pod, &owners)).collect();
    let known: Vec<String> = owners.iter().cloned().chain(pods.iter().map(uid)).collect();
    let is_about = |event: &Value| known.iter().any(|uid| event["involvedObject"]["uid"] == uid.as_str());
    let objects = WorkloadObjects {
        workload: object,
        replica_sets,
        events: events.into_iter().filter(is_about).collect(),
        pods,
        quotas,
    };
    let mut world = World::new(snapshot?, &config?)?;
    let mut answer = explain_workload(&mut world, &objects);
    if args.fix
        && let Some(example) = &mut answer.example
    {
        example.fixes = Some(fix::search(&mut world, example, &mut Budget::default()));
    }
    print_as(args, &answer, |view| render::workload(&answer, view))
}

fn print_as(args: &Args, answer: &impl Serialize, render: impl FnOnce(View) -> String) -> anyhow::Result<()> {
    match args.output.as_str() {
        "json" => println!("{}", serde_json::to_string_pretty(answer)?),
        "yaml" => {
            // By way of JSON, which is what is documented.
            let value = serde_json::to_value(answer)?;
            println!("{}", serde_saphyr::to_string(&value)?.trim_end());
        }
        output => {
            let view = View {
                style: Style { colour: colours() },
                wide: output == "wide",
            };
            println!("{}", render(view).trim_end());
        }
    }
    Ok(())
}

/// Only for terminals, and not for those who want none.
pub(super) fn colours() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn subjects() {
        let cases = [
            ("pod web", Ok(("pod", "web"))),
            ("pod/web", Ok(("pod", "web"))),
            ("Deploy web -n a", Ok(("deploy", "web"))),
            ("web", Err("orlop explain pod web")),
            ("pod/web web", Err("either KIND NAME")),
        ];
        for (line, expected) in cases {
            let words = std::iter::once("explain").chain(line.split_whitespace());
            let args = Cli::try_parse_from(words)
                .unwrap_or_else(|e| panic!("{line}: {e}"))
                .args;
            match (subject(&args), expected) {
                (Ok((kind, name)), Ok(expected)) => assert_eq!((kind.as_str(), name.as_str()), expected, "{line}"),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{line}: {error}"),
                (found, _) => panic!("{line}: {found:?}"),
            }
        }
    }
}

//! `orlop simulate`: what would happen if, of a live cluster or of manifests. Nothing is written.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use orlop_client::{ListQuery, path};
use orlop_explain::World;
use orlop_explain::render::{self, View};
use orlop_explain::simulate::{self, Step, Workloads};
use orlop_explain::style::Style;
use orlop_scheduler::config::Config;
use orlop_scheduler::model::Taint;
use serde_json::Value;

use super::explain::colours;
use crate::live_cluster::{ConnectArgs, LiveCluster, read_config};

/// Steps are taken in this order: nodes are added, cordoned, tainted, drained, removed; files applied; workloads scaled; pods
/// evicted; what is left is repacked.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Simulate the cluster that these manifests describe (a file or a directory) instead of a live one
    #[arg(long, value_name = "PATH", conflicts_with = "kubeconfig")]
    from: Option<PathBuf>,
    /// Apply the objects of a file or a directory
    #[arg(long, value_name = "PATH")]
    apply: Vec<PathBuf>,
    /// Drain nodes, as `kubectl drain --ignore-daemonsets` does
    #[arg(long, value_name = "NODE", num_args = 1..)]
    drain: Vec<String>,
    /// Remove nodes with what is on them
    #[arg(long, value_name = "NODE", num_args = 1..)]
    remove_node: Vec<String>,
    /// Add this many nodes of the shape of --like
    #[arg(long, value_name = "N", requires = "like")]
    add_nodes: Option<usize>,
    /// The node that new ones are like
    #[arg(long, value_name = "NODE", requires = "add_nodes")]
    like: Option<String>,
    /// Cordon nodes
    #[arg(long, value_name = "NODE", num_args = 1..)]
    cordon: Vec<String>,
    /// Uncordon nodes
    #[arg(long, value_name = "NODE", num_args = 1..)]
    uncordon: Vec<String>,
    /// Taint a node
    #[arg(long, value_name = "NODE=KEY[=VALUE]:EFFECT", value_parser = parse_taint)]
    taint: Vec<(String, Taint)>,
    /// Scale a workload
    #[arg(long, value_name = "KIND/NAME=N", value_parser = parse_scale)]
    scale: Vec<(String, String, usize)>,
    /// Evict pods
    #[arg(long, value_name = "POD", num_args = 1..)]
    evict: Vec<String>,
    /// Move pods until no further node can be emptied
    #[arg(long)]
    repack: bool,
    /// Namespace of --scale and --evict [default: that of the kubeconfig's context]
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Output format: text, wide (every move and node), json or yaml
    #[arg(short, long, value_name = "FORMAT", default_value = "text", value_parser = ["text", "wide", "json", "yaml"])]
    output: String,
    #[command(flatten)]
    connect: ConnectArgs,
}

fn parse_taint(text: &str) -> anyhow::Result<(String, Taint)> {
    let shape = "must be NODE=KEY[=VALUE]:EFFECT, such as n1=dedicated=gpu:NoSchedule";
    let (node, rest) = text.split_once('=').context(shape)?;
    let (rest, effect) = rest.rsplit_once(':').context(shape)?;
    let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
    if !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&effect) || key.is_empty() || node.is_empty() {
        bail!("{shape}; effects are NoSchedule, PreferNoSchedule and NoExecute");
    }
    let taint = Taint {
        key: key.into(),
        value: value.into(),
        effect: effect.into(),
        time_added: None,
    };
    Ok((node.to_string(), taint))
}

fn parse_scale(text: &str) -> anyhow::Result<(String, String, usize)> {
    let shape = "must be KIND/NAME=N, such as deployment/web=10";
    let (subject, replicas) = text.rsplit_once('=').context(shape)?;
    let (kind, name) = subject.split_once('/').context(shape)?;
    let kind = match kind.to_lowercase().as_str() {
        "deployment" | "deployments" | "deploy" => "Deployment",
        "replicaset" | "replicasets" | "rs" => "ReplicaSet",
        "statefulset" | "statefulsets" | "sts" => "StatefulSet",
        "replicationcontroller" | "replicationcontrollers" | "rc" => "ReplicationController",
        other => {
            bail!("can't scale {other:?}: kinds are deployment, replicaset, statefulset and replicationcontroller")
        }
    };
    Ok((kind.to_string(), name.to_string(), replicas.parse().context(shape)?))
}

/// Whether everything fits.
pub(super) fn run(args: Args) -> anyhow::Result<bool> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("failed to start the tokio runtime")?;
    let (mut world, mut workloads, mut steps, namespace) = match &args.from {
        Some(path) => from_manifests(path, &args)?,
        None => runtime.block_on(from_live(&args))?,
    };
    steps.extend(planned(&args, &namespace)?);
    if steps.is_empty() {
        bail!(
            "nothing to simulate: say what should happen, for example --drain NODE, --scale deployment/web=10 or --apply FILE"
        );
    }
    let report = simulate::simulate(&mut world, &mut workloads, &steps)?;
    match args.output.as_str() {
        "json" => println!("{}", serde_json::to_string_pretty(&report)?),
        "yaml" => println!(
            "{}",
            serde_saphyr::to_string(&serde_json::to_value(&report)?)?.trim_end()
        ),
        output => {
            let view = View {
                style: Style { colour: colours() },
                wide: output == "wide",
            };
            println!("{}", render::simulation(&report, view).trim_end());
        }
    }
    Ok(report.fits)
}

fn planned(args: &Args, namespace: &str) -> anyhow::Result<Vec<Step>> {
    let mut steps = vec![];
    if let (Some(count), Some(like)) = (args.add_nodes, &args.like) {
        steps.push(Step::AddNodes {
            count,
            like: like.clone(),
        });
    }
    steps.extend(args.uncordon.iter().cloned().map(Step::Uncordon));
    steps.extend(args.cordon.iter().cloned().map(Step::Cordon));
    steps.extend(
        args.taint
            .iter()
            .cloned()
            .map(|(node, taint)| Step::Taint { node, taint }),
    );
    steps.extend(args.drain.iter().cloned().map(Step::Drain));
    steps.extend(args.remove_node.iter().cloned().map(Step::RemoveNode));
    for path in &args.apply {
        steps.push(Step::Apply(objects_of(path)?));
    }
    steps.extend(args.scale.iter().cloned().map(|(kind, name, replicas)| Step::Scale {
        kind,
        namespace: namespace.to_string(),
        name,
        replicas,
    }));
    steps.extend(args.evict.iter().cloned().map(|name| Step::Evict {
        namespace: namespace.to_string(),
        name,
    }));
    steps.extend(args.repack.then_some(Step::Repack));
    Ok(steps)
}

/// Of a file, or of all manifests of a directory; `-` is standard input.
fn objects_of(path: &Path) -> anyhow::Result<Vec<Value>> {
    let mut files = vec![path.to_path_buf()];
    if path.is_dir() {
        let entries = std::fs::read_dir(path).with_context(|| format!("failed to read {}", path.display()))?;
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        files = entries.into_iter().map(|entry| entry.path()).collect();
        files.retain(|file| {
            file.extension()
                .is_some_and(|e| e == "yaml" || e == "yml" || e == "json")
        });
        files.sort();
    }
    let mut objects = vec![];
    for file in files {
        let text = match file.as_os_str() == "-" {
            true => std::io::read_to_string(std::io::stdin()),
            false => std::fs::read_to_string(&file),
        };
        let text = text.with_context(|| format!("failed to read {}", file.display()))?;
        objects.extend(simulate::objects(&text).map_err(|problems| {
            let lines: Vec<String> = problems
                .iter()
                .map(|problem| format!("{}: {problem}", file.display()))
                .collect();
            anyhow::anyhow!("{}", lines.join("\n"))
        })?);
    }
    Ok(objects)
}

type Start = (World, Workloads, Vec<Step>, String);

fn from_manifests(path: &Path, args: &Args) -> anyhow::Result<Start> {
    let config = args
        .connect
        .scheduler_config
        .as_deref()
        .map_or_else(|| Ok(Config::default()), read_config)?;
    let (world, workloads, steps) = simulate::world_of(objects_of(path)?, &config)?;
    let namespace = args.namespace.clone().unwrap_or_else(|| "default".into());
    Ok((world, workloads, steps, namespace))
}

/// Workloads that steps may be about: API version, kind, resource.
const WORKLOADS: [(&str, &str, &str); 5] = [
    ("apps/v1", "Deployment", "deployments"),
    ("apps/v1", "ReplicaSet", "replicasets"),
    ("apps/v1", "StatefulSet", "statefulsets"),
    ("v1", "ReplicationController", "replicationcontrollers"),
    ("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses"),
];

async fn from_live(args: &Args) -> anyhow::Result<Start> {
    let cluster = LiveCluster::connect(&args.connect).await?;
    let (snapshot, config) = tokio::join!(cluster.snapshot(), cluster.scheduler_config(&args.connect));
    let snapshot = snapshot?;
    for needed in ["pods", "nodes"] {
        if let Some(message) = snapshot.unreadable(needed) {
            bail!("can't simulate without {needed}: {message}");
        }
    }
    let mut workloads = Workloads::default();
    if !args.scale.is_empty() || !args.apply.is_empty() {
        for (api_version, kind, resource) in WORKLOADS {
            let (at, query) = (path::collection(api_version, None, resource), ListQuery::default());
            let list = cluster.api.list::<Value>(&at, &query).await;
            // What may not be read can't be scaled; the step says so.
            for mut object in list.map_or_else(|_| vec![], |list| list.items) {
                object["kind"] = kind.into();
                workloads.add(&object);
            }
        }
    }
    let namespace = args.namespace.clone().unwrap_or_else(|| cluster.namespace.clone());
    Ok((World::new(snapshot, &config?)?, workloads, vec![], namespace))
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

    fn steps(line: &str) -> Result<Vec<Step>, String> {
        let words = std::iter::once("simulate").chain(line.split_whitespace());
        let args = Cli::try_parse_from(words).map_err(|error| error.to_string())?.args;
        planned(&args, "ns").map_err(|error| error.to_string())
    }

    #[test]
    fn flags_become_steps() {
        let taint = |key: &str, value: &str| Taint {
            key: key.into(),
            value: value.into(),
            effect: "NoExecute".into(),
            time_added: None,
        };
        let expected = vec![
            Step::AddNodes {
                count: 2,
                like: "a".into(),
            },
            Step::Cordon("c".into()),
            Step::Taint {
                node: "d".into(),
                taint: taint("k", "v"),
            },
            Step::Taint {
                node: "d".into(),
                taint: taint("k.io/x", ""),
            },
            Step::Drain("a".into()),
            Step::Drain("b".into()),
            Step::Scale {
                kind: "Deployment".into(),
                namespace: "ns".into(),
                name: "web".into(),
                replicas: 5,
            },
            Step::Evict {
                namespace: "ns".into(),
                name: "p".into(),
            },
            Step::Repack,
        ];
        let line = "--drain a b --add-nodes 2 --like a --cordon c --taint d=k=v:NoExecute --taint d=k.io/x:NoExecute \
                    --scale deploy/web=5 --evict p --repack";
        assert_eq!(steps(line), Ok(expected));
        for (line, part) in [
            ("--taint a", "NODE=KEY"),
            ("--taint a=b:Never", "effects are"),
            ("--scale web=3", "KIND/NAME=N"),
            ("--scale job/web=3", "can't scale"),
            ("--add-nodes 3", "--like"),
            ("--apply /nowhere.yaml", "/nowhere.yaml"),
        ] {
            let error = steps(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}

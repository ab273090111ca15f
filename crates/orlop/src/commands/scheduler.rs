//! `orlop scheduler`: the scheduler alone, under kube-scheduler's flag names.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, bail};
use orlop_base::{Clock, Random, task};
use orlop_client::{Api, transport};
use orlop_scheduler::config::{self, Config, PluginRow};
use orlop_scheduler::metrics::Metrics;
use orlop_scheduler::serving::{self, SchedulerPages};
use orlop_scheduler::{plugins, shell};
use serde_json::Value;

use super::election::ElectionArgs;
use super::serving::ServingArgs;
use super::{parse_bool, parse_duration, signals};

#[derive(clap::Args)]
pub(super) struct Args {
    /// KubeSchedulerConfiguration file (YAML or JSON)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Kubeconfig of the API server [default: the in-cluster configuration]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Address of the API server (overrides the kubeconfig)
    #[arg(long, value_name = "URL")]
    master: Option<String>,
    /// Write the configuration with all defaults to this file and exit
    #[arg(long, value_name = "FILE")]
    write_config_to: Option<PathBuf>,
    /// Feature gates to enable or disable
    #[arg(long, value_name = "NAME=BOOL", value_delimiter = ',')]
    feature_gates: Vec<String>,
    #[command(flatten, next_help_heading = "Leader election")]
    election: ElectionArgs,
    #[command(flatten, next_help_heading = "Serving")]
    serving: ServingArgs,
    #[command(
        flatten,
        next_help_heading = "Deprecated; ignored with --config, except for the first"
    )]
    deprecated: DeprecatedArgs,
}

#[derive(clap::Args)]
struct DeprecatedArgs {
    /// Time after which an unschedulable pod is moved back to the active or back-off queue
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    pod_max_in_unschedulable_pods_duration: Duration,
    /// No effect: requests are JSON
    #[arg(long, value_name = "TYPE")]
    kube_api_content_type: Option<String>,
    /// No effect: the API server's limits apply
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    kube_api_qps: Option<f32>,
    /// No effect: the API server's limits apply
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    kube_api_burst: Option<i32>,
    /// No effect: profiling is not supported
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = parse_bool)]
    profiling: Option<bool>,
    /// No effect: profiling is not supported
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = parse_bool)]
    contention_profiling: Option<bool>,
}

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    let text = match &args.config {
        None => None,
        Some(path) => {
            let read = std::fs::read_to_string(path);
            Some(read.with_context(|| format!("failed to read the configuration {}", path.display()))?)
        }
    };
    let (config, warnings) = match configuration(&args, text.as_deref()) {
        Ok(done) => done,
        Err(problems) => bail!("invalid configuration:\n{}", problems.join("\n")),
    };
    for warning in warnings {
        tracing::warn!(warning = %warning, "loaded configuration with a warning");
    }
    if let Some(path) = &args.write_config_to {
        let written = std::fs::write(path, config::render(&config));
        written.with_context(|| format!("failed to write {}", path.display()))?;
        println!("Wrote configuration to: {}", path.display());
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("failed to start the tokio runtime")?;
    runtime.block_on(schedule(args, config))
}

async fn schedule(args: Args, config: Config) -> anyhow::Result<()> {
    let (shutdown, asked) = signals::stop_on_signal()?;

    let master = args.master.as_deref();
    let connect = async |kubeconfig: Option<&Path>| {
        let client = transport::from_kubeconfig(kubeconfig, master, "kube-scheduler").await?;
        anyhow::Ok(Api::new(client, "kube-scheduler"))
    };
    let kubeconfig = match config.client_connection.kubeconfig.as_str() {
        // Differs from upstream: there --kubeconfig counts for nothing beside --config.
        "" => args.kubeconfig.clone(),
        path => Some(PathBuf::from(path)),
    };
    let api = connect(kubeconfig.as_deref()).await?;
    let metrics = Arc::new(Metrics::for_lease(&config.leader_election.resource_name));
    let pages = SchedulerPages::new(metrics.clone(), &config, shutdown.clone());
    let port = serving::DEFAULT_PORT;
    let connect = |path: PathBuf| async move { connect(Some(&path)).await };
    let serve = args
        .serving
        .start("kube-scheduler", port, &api, connect, Arc::new(pages), shutdown.clone());
    serve.await?;
    let elects = config.leader_election.leader_elect;
    // A task that panics ends the process, which its supervisor starts again.
    let outcome = task::guard(shell::run(shell::Options {
        api,
        config,
        clock: Clock::System,
        seed: Random::from_entropy().next_u64(),
        metrics,
        identity: None,
        shutdown: shutdown.clone(),
    }));
    let outcome = outcome.await;
    shutdown.trigger();
    match outcome {
        _ if asked.load(Ordering::Relaxed) => {
            tracing::info!("stopped");
            Ok(())
        }
        Err(panic) => bail!("a task of the scheduler panicked: {panic}"),
        Ok(Err(error)) => bail!(error),
        Ok(Ok(())) if elects => bail!("leaderelection lost"),
        Ok(Ok(())) => bail!("the scheduler stopped by itself"),
    }
}

/// The configuration of the file (or the default one) with the flags that count, and warnings; or every problem.
fn configuration(args: &Args, text: Option<&str>) -> Result<(Config, Vec<String>), Vec<String>> {
    let (gates, mut warnings) = config::parse_feature_gates(&args.feature_gates.join(","))?;
    let shown = |problems: Vec<config::Problem>| problems.iter().map(ToString::to_string).collect::<Vec<_>>();
    let extra: Vec<PluginRow> = plugins::EXTRA.iter().map(|plugin| plugin.row).collect();
    let read = |text: &str| config::parse_with_gates(text, &extra, &gates).map_err(shown);
    let mut config = match text {
        None => Config::with_gates(&gates),
        Some(text) => {
            let (config, more) = read(text)?;
            warnings.extend(more);
            config
        }
    };
    let overrides = overrides(args, text.is_some());
    if !overrides.is_empty() {
        // Through the reader once more, which judges flags as it judges the file.
        let rendered = config::render(&config);
        let mut document: Value = serde_saphyr::from_str(&rendered).expect("what is rendered can be read");
        for (at, value) in overrides {
            *document.pointer_mut(at).expect("every field is rendered") = value;
        }
        config = read(&document.to_string())?.0;
    }
    config.pod_max_in_unschedulable = args.deprecated.pod_max_in_unschedulable_pods_duration;
    Ok((config, warnings))
}

/// Flags that were given, and where their values go.
fn overrides(args: &Args, with_file: bool) -> Vec<(&'static str, Value)> {
    let (election, old) = (&args.election, &args.deprecated);
    let text = |value: &Option<String>| value.clone().map(Value::from);
    let mut all = vec![
        ("/leaderElection/leaderElect", election.leader_elect.map(Value::from)),
        (
            "/leaderElection/leaseDuration",
            text(&election.leader_elect_lease_duration),
        ),
        (
            "/leaderElection/renewDeadline",
            text(&election.leader_elect_renew_deadline),
        ),
        ("/leaderElection/retryPeriod", text(&election.leader_elect_retry_period)),
        (
            "/leaderElection/resourceLock",
            text(&election.leader_elect_resource_lock),
        ),
        (
            "/leaderElection/resourceName",
            text(&election.leader_elect_resource_name),
        ),
        (
            "/leaderElection/resourceNamespace",
            text(&election.leader_elect_resource_namespace),
        ),
    ];
    if !with_file {
        let kubeconfig = args
            .kubeconfig
            .as_ref()
            .map(|path| Value::from(path.to_string_lossy().into_owned()));
        all.extend([
            ("/clientConnection/kubeconfig", kubeconfig),
            ("/clientConnection/contentType", text(&old.kube_api_content_type)),
            ("/clientConnection/qps", old.kube_api_qps.map(Value::from)),
            ("/clientConnection/burst", old.kube_api_burst.map(Value::from)),
            ("/enableProfiling", old.profiling.map(Value::from)),
            ("/enableContentionProfiling", old.contention_profiling.map(Value::from)),
        ]);
    }
    all.into_iter().filter_map(|(at, value)| Some((at, value?))).collect()
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

    fn args(line: &str) -> Args {
        let words = std::iter::once("scheduler").chain(line.split_whitespace());
        Cli::try_parse_from(words)
            .unwrap_or_else(|e| panic!("{line}: {e}"))
            .args
    }

    const FILE: &str = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n\
                        leaderElection: {leaderElect: false, leaseDuration: 30s}\nclientConnection: {qps: 7}\n";

    #[test]
    fn flags_and_files() {
        let show = |line: &str, text: Option<&str>| {
            let (config, _) = configuration(&args(line), text).unwrap();
            let e = &config.leader_election;
            format!(
                "{} {:?} {:?} {} {} {} {}",
                e.leader_elect,
                e.lease_duration,
                e.retry_period,
                e.resource_name,
                config.client_connection.qps,
                config.client_connection.kubeconfig,
                config.enable_profiling
            )
        };
        let cases = [
            ("", None, "true 15s 2s kube-scheduler 50  true"),
            (
                "--leader-elect=false --kube-api-qps 9 --profiling=false",
                None,
                "false 15s 2s kube-scheduler 9  false",
            ),
            (
                "--leader-elect --kubeconfig /k",
                None,
                "true 15s 2s kube-scheduler 50 /k true",
            ),
            ("", Some(FILE), "false 30s 2s kube-scheduler 7  true"),
            (
                "--leader-elect --leader-elect-lease-duration 1m0s --leader-elect-retry-period=500ms \
                 --leader-elect-resource-name mine --kube-api-qps 9 --profiling=false",
                Some(FILE),
                "true 60s 500ms mine 7  true",
            ),
        ];
        for (line, text, expected) in cases {
            assert_eq!(show(line, text), expected, "{line}");
        }
    }

    #[test]
    fn every_problem_is_named() {
        let problems = |line: &str, text: Option<&str>| configuration(&args(line), text).err().unwrap_or_default();
        let found = problems(
            "--leader-elect-lease-duration=1s --leader-elect-resource-lock=endpoints",
            None,
        );
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].starts_with("leaderElection.leaseDuration: Invalid value"),
            "{found:?}"
        );
        assert!(
            found[1].starts_with("leaderElection.resourceLock: Invalid value"),
            "{found:?}"
        );
        let found = problems("--leader-elect-retry-period=soon", None);
        assert!(
            found.len() == 1 && found[0].starts_with("leaderElection.retryPeriod"),
            "{found:?}"
        );
        let found = problems("--feature-gates=Nonsense=true,Other=maybe", None);
        assert_eq!(found.len(), 2, "{found:?}");
        let found = problems("", Some("kind: Pod"));
        assert!(!found.is_empty());
        assert!(!problems("", Some(&format!("{FILE}parallelism: 0\npodMaxBackoffSeconds: -1\n"))).is_empty());
    }

    #[test]
    fn usage() {
        for (line, part) in [
            ("--tls-cert-file a", "--tls-private-key-file"),
            ("--leader-elect=maybe", "true or false"),
            ("--secure-port 70000", "--secure-port"),
            ("--pod-max-in-unschedulable-pods-duration 5x", "a duration such as"),
            ("--nonsense", "--nonsense"),
        ] {
            let words = std::iter::once("scheduler").chain(line.split_whitespace());
            let error = Cli::try_parse_from(words).err().unwrap().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
        // As in the manifest of a cluster that kubeadm made.
        args(
            "--authentication-kubeconfig=/etc/kubernetes/scheduler.conf --bind-address=127.0.0.1 \
             --authorization-kubeconfig=/etc/kubernetes/scheduler.conf --kubeconfig=/etc/kubernetes/scheduler.conf \
             --leader-elect=true",
        );
        let odd = args("--pod-max-in-unschedulable-pods-duration 1m30s --feature-gates A=true --feature-gates B=false");
        assert_eq!(
            odd.deprecated.pod_max_in_unschedulable_pods_duration,
            Duration::from_secs(90)
        );
        assert_eq!(odd.feature_gates, ["A=true", "B=false"]);
    }
}

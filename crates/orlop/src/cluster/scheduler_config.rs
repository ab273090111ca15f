//! The scheduler's configuration in the ConfigMap `kube-scheduler-config` of kube-system, and what becomes of changes there.
//!
//! The ConfigMap counts, with one exception: `--scheduler-config FILE` replaces what it says when the process starts. One
//! that nobody edited is written anew at each start, with the file's content or the defaults of this version. A change is
//! applied by restarting the scheduler; one that is not valid changes nothing, not even after a restart of the process: what
//! was in effect last is in the data directory. Events of the ConfigMap say what became of a change. A ConfigMap that is
//! deleted is written anew, as at a start.

use std::io;
use std::path::{Path, PathBuf};

use orlop_base::{Clock, Shutdown, Supervisor};
use orlop_client::events::{Event, EventType, ObjectReference};
use orlop_client::{Api, Delta, Error, Recorder, Selection, path};
use orlop_kubelet::config::effective::{self, Owner};
use orlop_scheduler::config::{self, Config};
use orlop_scheduler::extender::Extender;
use orlop_scheduler::plugins;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

pub(crate) use super::config_maps::NAMESPACE;
use crate::components::SCHEDULER;
use crate::data_dir;

pub(crate) const CONFIG_MAP: &str = "kube-scheduler-config";
pub(crate) const CONFIG_KEY: &str = "config.yaml";
const HEAD: &str = "# The configuration of the scheduler in effect. A change here is applied at once; one that is not valid\n\
                    # changes nothing. Events of this ConfigMap tell what became of it.\n";

/// What the process was started with.
#[derive(Clone)]
pub(crate) struct ChosenConfig {
    pub config: Config,
    /// Where it comes from; none for the defaults.
    pub file: Option<PathBuf>,
}

pub(crate) struct SchedulerConfigSource {
    admin: Api,
    recorder: Recorder,
    chosen: ChosenConfig,
    /// The file with what was in effect last.
    last: PathBuf,
    state: Mutex<SourceState>,
}

#[derive(Default)]
struct SourceState {
    /// Whether the ConfigMap was written or found to be somebody's since the process started.
    is_published: bool,
    in_effect: Option<Config>,
    /// The text that was refused last, so that it is reported once.
    refused: Option<String>,
}

/// Why a ConfigMap is not applied: all problems, each with its field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
struct ConfigProblems(Vec<String>);

impl ConfigProblems {
    fn one(problem: impl ToString) -> ConfigProblems {
        ConfigProblems(vec![problem.to_string()])
    }
}

/// What is to be done about a ConfigMap.
#[derive(Debug, PartialEq)]
enum Verdict {
    Keep,
    Apply,
    Refuse(ConfigProblems),
}

/// The configuration in a text. One process has the data directory: there is nobody to be elected against, and no lease to
/// lose, unless the text asks for an election.
pub(crate) fn parse(text: &str) -> Result<(Config, Vec<String>), Vec<String>> {
    let extra: Vec<_> = plugins::EXTRA.iter().map(|extra| extra.row).collect();
    let shown = |problems: Vec<config::Problem>| problems.iter().map(ToString::to_string).collect::<Vec<_>>();
    let (mut config, warnings) = config::parse(text, &extra).map_err(shown)?;
    config.leader_election.leader_elect = asks_for_election(text);
    Ok((config, warnings))
}

/// The default of the file's format is true; what counts here is whether somebody wrote so.
fn asks_for_election(text: &str) -> bool {
    let document: Result<Value, _> = serde_saphyr::from_str(text);
    document.is_ok_and(|document| document["leaderElection"]["leaderElect"] == true)
}

fn text_of(map: &Value) -> &str {
    map["data"][CONFIG_KEY].as_str().unwrap_or_default()
}

/// What a ConfigMap says, if a scheduler can be started with it.
fn read(map: &Value, api: &Api) -> Result<Config, ConfigProblems> {
    let text = text_of(map);
    if text.trim().is_empty() {
        return Err(ConfigProblems(vec![format!("data[{CONFIG_KEY}]: Required value")]));
    }
    let (config, warnings) = parse(text).map_err(ConfigProblems)?;
    for warning in warnings {
        tracing::warn!(config_map = CONFIG_MAP, warning = %warning, "loaded configuration with a warning");
    }
    plugins::profiles(&config).map_err(ConfigProblems::one)?;
    Extender::all(&config.extenders, api).map_err(ConfigProblems::one)?;
    Ok(config)
}

fn judge(read: Result<Config, ConfigProblems>, in_effect: &Config) -> Verdict {
    match read {
        Err(problems) => Verdict::Refuse(problems),
        Ok(config) if config::render(&config) == config::render(in_effect) => Verdict::Keep,
        Ok(_) => Verdict::Apply,
    }
}

/// The text to write to the ConfigMap when the process starts; none if what is there is to stay.
fn plan_text(existing: Option<&str>, chosen: &ChosenConfig) -> Option<String> {
    let text = effective::stamp(HEAD, &config::render(&chosen.config));
    let is_somebodys = existing.is_some_and(|text| effective::owner_of(text) != Owner::Ours);
    let stays = existing == Some(text.as_str()) || (is_somebodys && chosen.file.is_none());
    (!stays).then_some(text)
}

/// All of it or nothing.
fn write(path: &Path, text: &str) -> io::Result<()> {
    if std::fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let unfinished = path.with_extension("tmp");
    std::fs::write(&unfinished, text)?;
    std::fs::rename(unfinished, path)
}

fn map_path() -> String {
    path::object("v1", Some(NAMESPACE), "configmaps", CONFIG_MAP)
}

impl SchedulerConfigSource {
    /// The task writes events, and ends after the shutdown.
    pub(crate) fn new(
        admin: Api,
        chosen: ChosenConfig,
        data_dir: &Path,
        shutdown: Shutdown,
    ) -> (SchedulerConfigSource, JoinHandle<()>) {
        let (recorder, writing) = Recorder::start(admin.clone(), "kube-scheduler", Clock::System, shutdown);
        let source = SchedulerConfigSource {
            admin,
            recorder: recorder.core_v1_source("kube-scheduler", ""),
            chosen,
            last: data_dir.join(data_dir::SCHEDULER_CONFIG),
            state: Mutex::default(),
        };
        (source, writing)
    }

    /// The configuration to start the scheduler with. A ConfigMap that can't be used is reported, and what was in effect
    /// before stays so.
    pub(crate) async fn load(&self) -> Config {
        let config = match self.current_map().await {
            Ok(map) => match read(&map, &self.admin) {
                Ok(config) => Some(config),
                Err(problems) => {
                    self.refuse(&map, &problems);
                    None
                }
            },
            Err(error) => {
                tracing::warn!(
                    config_map = CONFIG_MAP,
                    err = error.chain(),
                    "failed to read the scheduler configuration"
                );
                None
            }
        };
        let config = config.unwrap_or_else(|| self.last_in_effect());
        self.state.lock().in_effect = Some(config.clone());
        if let Err(error) = write(&self.last, &config::render(&config)) {
            let path = self.last.display();
            tracing::warn!(%path, err = %error, "failed to keep the scheduler configuration in effect");
        }
        config
    }

    fn last_in_effect(&self) -> Config {
        let of_this_process = self.state.lock().in_effect.clone();
        let of_the_last = || parse(&std::fs::read_to_string(&self.last).ok()?).ok();
        let config = of_this_process.or_else(|| of_the_last().map(|(config, _)| config));
        config.unwrap_or_else(|| self.chosen.config.clone())
    }

    async fn current_map(&self) -> Result<Value, Error> {
        let existing = match self.admin.get::<Value>(&map_path()).await {
            Ok(map) => Some(map),
            Err(Error::NotFound(_)) => None,
            Err(error) => return Err(error),
        };
        let is_published = self.state.lock().is_published;
        let map = match existing {
            Some(map) if is_published => map,
            existing => self.publish(existing).await?,
        };
        self.state.lock().is_published = true;
        Ok(map)
    }

    async fn publish(&self, existing: Option<Value>) -> Result<Value, Error> {
        let Some(text) = plan_text(existing.as_ref().map(text_of), &self.chosen) else {
            return Ok(existing.unwrap_or_default());
        };
        if existing.is_none() {
            let map = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": CONFIG_MAP, "namespace": NAMESPACE, "labels": {"component": "kube-scheduler"}},
                "data": {CONFIG_KEY: text},
            });
            let collection = path::collection("v1", Some(NAMESPACE), "configmaps");
            return self.admin.create(&collection, &map).await;
        }
        let written: Value = self
            .admin
            .patch_merge(&map_path(), &json!({"data": {CONFIG_KEY: text}}))
            .await?;
        if let Some(file) = &self.chosen.file {
            let note = format!("replaced by --scheduler-config {}", file.display());
            self.record(&written, EventType::Normal, "ConfigurationReplaced", note);
        }
        Ok(written)
    }

    /// Follows the ConfigMap until the shutdown, and has the scheduler restarted when it says something else.
    pub(crate) async fn follow(&self, supervisor: Supervisor, shutdown: Shutdown) {
        let selection = Selection::all(path::collection("v1", Some(NAMESPACE), "configmaps"))
            .with_fields(&format!("metadata.name={CONFIG_MAP}"));
        let (sender, mut deltas) = mpsc::channel(16);
        orlop_base::spawn(orlop_client::watch::<Value>(
            self.admin.clone(),
            selection,
            sender,
            shutdown,
        ));
        while let Some(delta) = deltas.recv().await {
            let map = match delta {
                Delta::Reset(maps) => maps.into_iter().next(),
                Delta::Applied(map) => Some(map),
                Delta::Deleted(_) => None,
                Delta::Bookmark(_) => continue,
            };
            if self.is_to_restart(map.as_ref())
                && let Err(error) = supervisor.restart(SCHEDULER)
            {
                tracing::warn!(err = %error, "failed to restart the scheduler");
            }
        }
    }

    /// Whether something else is to be in effect than what is.
    fn is_to_restart(&self, map: Option<&Value>) -> bool {
        let Some(in_effect) = self.state.lock().in_effect.clone() else {
            return false;
        };
        let Some(map) = map else {
            self.state.lock().is_published = false;
            tracing::info!(
                config_map = CONFIG_MAP,
                "restarting the scheduler: its configuration was deleted"
            );
            return true;
        };
        match judge(read(map, &self.admin), &in_effect) {
            Verdict::Keep => {
                self.state.lock().refused = None;
                false
            }
            Verdict::Refuse(problems) => {
                self.refuse(map, &problems);
                false
            }
            Verdict::Apply => {
                let note = "the scheduler is restarted with this configuration".to_string();
                self.record(map, EventType::Normal, "ConfigurationApplied", note);
                tracing::info!(
                    config_map = CONFIG_MAP,
                    "restarting the scheduler with another configuration"
                );
                true
            }
        }
    }

    fn refuse(&self, map: &Value, problems: &ConfigProblems) {
        let text = text_of(map).to_string();
        if self.state.lock().refused.replace(text.clone()) == Some(text) {
            return;
        }
        tracing::error!(config_map = CONFIG_MAP, err = %problems, "ignored an invalid scheduler configuration");
        let note = format!("the configuration in effect stays: {problems}");
        self.record(map, EventType::Warning, "InvalidConfiguration", note);
    }

    fn record(&self, map: &Value, kind: EventType, reason: &'static str, note: String) {
        let word = |field: &str| map["metadata"][field].as_str().unwrap_or_default().to_string();
        self.recorder.record(Event {
            regarding: ObjectReference {
                api_version: "v1".into(),
                kind: "ConfigMap".into(),
                namespace: NAMESPACE.into(),
                name: CONFIG_MAP.into(),
                uid: word("uid"),
                resource_version: word("resourceVersion"),
                ..ObjectReference::default()
            },
            related: None,
            kind,
            reason: reason.into(),
            action: "Configure".into(),
            note,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";

    fn chosen(text: &str, file: Option<&str>) -> ChosenConfig {
        ChosenConfig {
            config: parse(&format!("{HEADER}{text}")).unwrap().0,
            file: file.map(PathBuf::from),
        }
    }

    #[test]
    fn an_election_is_held_only_where_it_is_asked_for() {
        for (rest, elects) in [
            ("", false),
            ("leaderElection: {leaderElect: true}\n", true),
            ("leaderElection: {leaderElect: false}\n", false),
            ("leaderElection: {resourceName: mine}\n", false),
        ] {
            assert_eq!(chosen(rest, None).config.leader_election.leader_elect, elects, "{rest}");
        }
    }

    #[test]
    fn what_is_written_is_in_effect() {
        let chosen = chosen("parallelism: 7\n", None);
        let text = plan_text(None, &chosen).unwrap();
        let (again, warnings) = parse(&text).unwrap();
        assert_eq!(config::render(&again), config::render(&chosen.config));
        assert!(warnings.is_empty(), "{warnings:?}");
    }

    #[test]
    fn whose_text_stays_at_the_start() {
        let (default, other) = (chosen("", None), chosen("parallelism: 7\n", None));
        let file = chosen("parallelism: 9\n", Some("/f"));
        let ours = plan_text(None, &default).unwrap();
        let edited = ours.replace("parallelism: 16", "parallelism: 5");
        assert_ne!(ours, edited);
        let foreign = format!("{HEADER}parallelism: 3\n");
        // what is there, what the process is started with, whether it is written
        let cases = [
            (None, &default, true),
            (Some(&ours), &default, false),
            (Some(&ours), &other, true),
            (Some(&ours), &file, true),
            (Some(&edited), &default, false),
            (Some(&edited), &file, true),
            (Some(&foreign), &default, false),
            (Some(&foreign), &file, true),
        ];
        for (n, (existing, chosen, is_written)) in cases.into_iter().enumerate() {
            let text = plan_text(existing.map(String::as_str), chosen);
            assert_eq!(text.is_some(), is_written, "case {n}");
        }
    }

    #[test]
    fn only_valid_changes_are_applied() {
        let in_effect = chosen("", None).config;
        let judged = |text: &str| {
            let read = parse(&format!("{HEADER}{text}"))
                .map(|(config, _)| config)
                .map_err(ConfigProblems);
            judge(read, &in_effect)
        };
        assert_eq!(judged(""), Verdict::Keep);
        assert_eq!(judged("parallelism: 16\n"), Verdict::Keep);
        assert_eq!(judged("parallelism: 4\n"), Verdict::Apply);
        let Verdict::Refuse(problems) = judged("parallelism: -4\npodMaxBackoffSeconds: -1\n") else {
            panic!("applied");
        };
        assert!(
            problems.to_string().contains("parallelism: Invalid value"),
            "{problems}"
        );
        assert!(problems.0.len() >= 2, "{problems}");
    }
}

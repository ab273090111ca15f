//! Configuration files of one kind (`apiVersion`, `kind`, fields): read strictly, and read again when they change.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use orlop_api::schema::yaml_to_value;
use orlop_base::metrics::text::{header, line};
use orlop_base::{BoxFuture, Clock, Shutdown};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Upper bound of a configuration file.
const MAX_BYTES: u64 = 4 << 20;
/// How often files are looked at. Upstream: at most a minute passes before a change is seen.
const POLL: Duration = Duration::from_secs(1);

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("failed to read {path}", path = path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("failed to read {path}: larger than {MAX_BYTES} bytes", path = path.display())]
    TooLarge { path: PathBuf },
    #[error("{path}: {reason}", path = path.display())]
    Invalid { path: PathBuf, reason: String },
}

impl FileError {
    pub(crate) fn invalid(path: &Path, reason: impl ToString) -> FileError {
        FileError::Invalid {
            path: path.to_path_buf(),
            reason: reason.to_string(),
        }
    }
}

/// Why the content of a configuration file is not what it must be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContentError {
    #[error("{0}")]
    Syntax(String),
    #[error("unknown apiVersion and kind {found:?}, must be {expected}")]
    Type { found: String, expected: String },
    #[error("strict decoding error: {0}")]
    Fields(String),
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    let failed = |source| FileError::Read {
        path: path.to_path_buf(),
        source,
    };
    if std::fs::metadata(path).map_err(failed)?.len() > MAX_BYTES {
        return Err(FileError::TooLarge {
            path: path.to_path_buf(),
        });
    }
    std::fs::read(path).map_err(failed)
}

/// Decodes YAML or JSON that must be of this kind, in one of these versions. Unknown and doubled fields are errors.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8], versions: &[&str], kind: &str) -> Result<T, ContentError> {
    let (mut value, problems) = yaml_to_value(bytes).map_err(|e| ContentError::Syntax(e.to_string()))?;
    if !problems.is_empty() {
        return Err(ContentError::Fields(problems.join(", ")));
    }
    let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or("").to_string();
    let (version, found) = (text("apiVersion"), text("kind"));
    if found != kind || !versions.contains(&version.as_str()) {
        return Err(ContentError::Type {
            found: format!("{version}, {found}"),
            expected: format!("{}, {kind}", versions.join(" or ")),
        });
    }
    if let Some(members) = value.as_object_mut() {
        members.remove("apiVersion");
        members.remove("kind");
        members.retain(|_, member| !member.is_null());
    }
    serde_json::from_value(value).map_err(|e| ContentError::Fields(e.to_string()))
}

/// A duration as Kubernetes' configuration files write it ("1m30s").
pub(crate) fn duration<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    use serde::Deserialize;
    let Some(text) = Option::<String>::deserialize(deserializer)? else {
        return Ok(None);
    };
    let nanos = orlop_api::duration::parse_duration(&text).map_err(serde::de::Error::custom)?;
    let nanos = u64::try_from(nanos).map_err(|_| serde::de::Error::custom("must not be negative"))?;
    Ok(Some(Duration::from_nanos(nanos)))
}

/// How often a file was loaded again, under the names that Kubernetes gives such metrics.
pub(crate) struct Reloads {
    /// What the metrics' names begin with, such as `apiserver_authentication_config_controller`.
    name: &'static str,
    succeeded: AtomicU64,
    failed: AtomicU64,
    succeeded_at: AtomicI64,
    failed_at: AtomicI64,
}

impl Reloads {
    pub(crate) fn new(name: &'static str) -> Reloads {
        Reloads {
            name,
            succeeded: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            succeeded_at: AtomicI64::new(0),
            failed_at: AtomicI64::new(0),
        }
    }

    fn observe(&self, succeeded: bool, now: jiff::Timestamp) {
        let (count, at) = match succeeded {
            true => (&self.succeeded, &self.succeeded_at),
            false => (&self.failed, &self.failed_at),
        };
        count.fetch_add(1, Ordering::Relaxed);
        at.store(now.as_second(), Ordering::Relaxed);
    }

    pub(crate) fn write_metrics(&self, out: &mut String) {
        let outcomes = [
            ("success", &self.succeeded, &self.succeeded_at),
            ("failure", &self.failed, &self.failed_at),
        ];
        let name = format!("{}_automatic_reloads_total", self.name);
        let help = "Total number of automatic reloads of the configuration split by status and apiserver identity.";
        header(out, &name, "counter", help);
        for (status, count, _) in outcomes {
            line(
                out,
                &name,
                &format!("status=\"{status}\""),
                count.load(Ordering::Relaxed),
            );
        }
        let name = format!("{}_automatic_reload_last_timestamp_seconds", self.name);
        let help =
            "Timestamp of the last automatic reload of the configuration split by status and apiserver identity.";
        header(out, &name, "gauge", help);
        for (status, count, at) in outcomes {
            if count.load(Ordering::Relaxed) > 0 {
                line(out, &name, &format!("status=\"{status}\""), at.load(Ordering::Relaxed));
            }
        }
    }
}

/// Loads files again whenever their content has changed, until the server stops. What is no good is logged and counted,
/// and what was loaded before stays in use.
pub(crate) async fn follow<E: std::fmt::Display>(
    paths: Vec<PathBuf>,
    mut known: Vec<Vec<u8>>,
    reloads: &Reloads,
    clock: &Clock,
    shutdown: &Shutdown,
    load: impl Fn(Vec<Vec<u8>>) -> BoxFuture<'static, Result<(), E>>,
) {
    let mut ticks = tokio::time::interval(POLL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = shutdown.wait() => return,
        }
        let read: Result<Vec<_>, _> = paths.iter().map(|path| read(path)).collect();
        let found = match read {
            Ok(found) if found == known => continue,
            Ok(found) => found,
            // While a file is being replaced it may be missing for a moment.
            Err(_) => continue,
        };
        let outcome = load(found.clone()).await;
        reloads.observe(outcome.is_ok(), clock.now());
        match outcome {
            Ok(()) => tracing::info!(files = ?paths, "reloaded configuration"),
            Err(e) => {
                tracing::error!(files = ?paths, err = %e, "failed to reload configuration; the last good one stays in use")
            }
        }
        known = found;
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "camelCase")]
    struct Sample {
        #[serde(default, deserialize_with = "duration")]
        wait: Option<Duration>,
    }

    #[test]
    fn files_are_read_strictly() {
        let decode = |text: &str| decode::<Sample>(text.as_bytes(), &["g/v1"], "Sample").map(|s| s.wait);
        let good = "apiVersion: g/v1\nkind: Sample\n";
        assert_eq!(
            decode(&format!("{good}wait: 1m30s")).unwrap(),
            Some(Duration::from_secs(90))
        );
        assert_eq!(decode(good).unwrap(), None);
        for (text, wanted) in [
            ("apiVersion: g/v2\nkind: Sample", "unknown apiVersion and kind"),
            ("apiVersion: g/v1\nkind: Other", "unknown apiVersion and kind"),
            ("apiVersion: g/v1\nkind: Sample\nwiat: 1m", "unknown field `wiat`"),
            ("apiVersion: g/v1\nkind: Sample\nwait: 1m\nwait: 2m", "already set"),
            ("apiVersion: g/v1\nkind: Sample\nwait: -1m", "must not be negative"),
            ("apiVersion: g/v1\nkind: Sample\nwait: soon", "duration"),
            ("{", "yaml"),
        ] {
            let error = decode(text).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}

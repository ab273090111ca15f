//! Credential plugins: programs that print a token or a client certificate.
//!
//! A plugin runs when a client is made, when what it said has expired, and after a 401. One run serves all requests that
//! wait for it, and goes on though they give up.
// Upstream: staging/src/k8s.io/client-go/plugin/pkg/client/auth/exec/exec.go (v1.36)

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use jiff::Timestamp;
use orlop_base::Clock;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;

use super::credentials::{CredentialError, Current, bearer};
use super::tls::Identity;

/// How long a plugin that asks nobody anything may take.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// A server that refuses everything does not make us run the plugin for each request.
const AFTER_REFUSAL_MIN: Duration = Duration::from_secs(5);
/// What is read of a plugin's output; tokens and certificates are a few KiB.
const OUTPUT_MAX: u64 = 1 << 20;
/// What an error quotes of a plugin's complaints.
const QUOTED_MAX: usize = 300;

/// Why a plugin gave no credentials. `hint` is the kubeconfig's `installHint`, after a line break.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    #[error("failed to start {command:?}{hint}")]
    Start {
        command: PathBuf,
        hint: String,
        source: io::Error,
    },
    #[error("{command:?} failed: {status}{complaint}{hint}")]
    Failed {
        command: PathBuf,
        status: ExitStatus,
        complaint: String,
        hint: String,
    },
    #[error("{command:?} did not end within {limit:?}")]
    TimeLimit { command: PathBuf, limit: Duration },
    #[error("interactiveMode is Always and standard input is not a terminal")]
    NoTerminal,
    #[error("{command:?} printed no ExecCredential in JSON")]
    Output {
        command: PathBuf,
        source: serde_json::Error,
    },
    #[error("{command:?} printed apiVersion {found:?}; the kubeconfig expects {expected:?}")]
    Version {
        command: PathBuf,
        expected: &'static str,
        found: String,
    },
    #[error("{command:?} printed neither a token nor a client certificate with its key")]
    Nothing { command: PathBuf },
    #[error("{command:?} printed expirationTimestamp {text:?}, which is no time")]
    Expiration {
        command: PathBuf,
        text: String,
        source: jiff::Error,
    },
    #[error("{command:?} printed a token with characters that a header can't have")]
    Token { command: PathBuf },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InteractiveMode {
    Never,
    IfAvailable,
    Always,
}

/// How to run a plugin.
pub(super) struct ExecPlugin {
    /// Of the kubeconfig, for errors.
    pub(super) field: String,
    pub(super) api_version: &'static str,
    pub(super) command: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) install_hint: String,
    pub(super) interactive_mode: InteractiveMode,
    /// `spec.cluster` of what the plugin is told, if it is to be told.
    pub(super) cluster: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    #[serde(default)]
    api_version: String,
    status: Option<ExecStatus>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ExecStatus {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// What a plugin said.
struct ExecResult {
    authorization: Option<HeaderValue>,
    identity: Option<Arc<Identity>>,
    expires: Option<Timestamp>,
}

impl ExecPlugin {
    async fn run(&self) -> Result<ExecResult, ExecError> {
        let is_interactive = self.is_interactive(io::stdin().is_terminal())?;
        let mut spec = json!({"interactive": is_interactive});
        if let Some(cluster) = &self.cluster {
            spec["cluster"] = cluster.clone();
        }
        let info = json!({"kind": "ExecCredential", "apiVersion": self.api_version, "spec": spec});
        let mut command = Command::new(&self.command);
        command
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .env("KUBERNETES_EXEC_INFO", info.to_string())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        match is_interactive {
            true => command.stdin(Stdio::inherit()).stderr(Stdio::inherit()),
            false => command.stdin(Stdio::null()).stderr(Stdio::piped()),
        };
        let finished = self.output(command);
        let (status, output, complaint) = match is_interactive {
            true => finished.await?,
            false => match tokio::time::timeout(TIME_LIMIT, finished).await {
                Ok(finished) => finished?,
                Err(_) => {
                    return Err(ExecError::TimeLimit {
                        command: self.command.clone(),
                        limit: TIME_LIMIT,
                    });
                }
            },
        };
        if !status.success() {
            return Err(ExecError::Failed {
                command: self.command.clone(),
                status,
                complaint: quoted(&complaint),
                hint: self.hint(),
            });
        }
        self.parse(&output)
    }

    fn is_interactive(&self, is_terminal: bool) -> Result<bool, ExecError> {
        match (self.interactive_mode, is_terminal) {
            (InteractiveMode::Never, _) | (InteractiveMode::IfAvailable, false) => Ok(false),
            (InteractiveMode::IfAvailable | InteractiveMode::Always, true) => Ok(true),
            (InteractiveMode::Always, false) => Err(ExecError::NoTerminal),
        }
    }

    async fn output(&self, mut command: Command) -> Result<(ExitStatus, Vec<u8>, Vec<u8>), ExecError> {
        let failed = |source| ExecError::Start {
            command: self.command.clone(),
            hint: self.hint(),
            source,
        };
        let mut child = command.spawn().map_err(failed)?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let (output, complaint) = tokio::join!(read(out), read(err));
        let status = child.wait().await.map_err(failed)?;
        Ok((status, output.map_err(failed)?, complaint.map_err(failed)?))
    }

    fn parse(&self, output: &[u8]) -> Result<ExecResult, ExecError> {
        let command = || self.command.clone();
        let credential: ExecCredential = serde_json::from_slice(output).map_err(|source| ExecError::Output {
            command: command(),
            source,
        })?;
        if credential.api_version != self.api_version {
            return Err(ExecError::Version {
                command: command(),
                expected: self.api_version,
                found: credential.api_version,
            });
        }
        let filled = |text: Option<String>| text.filter(|t| !t.is_empty());
        let status = credential.status.unwrap_or_default();
        let expires = filled(status.expiration_timestamp).map(|text| {
            text.parse().map_err(|source| ExecError::Expiration {
                command: command(),
                text,
                source,
            })
        });
        let token = filled(status.token).map(|token| {
            let header = bearer(&self.field, token.trim());
            header.map_err(|_| ExecError::Token { command: command() })
        });
        let identity = match (filled(status.client_certificate_data), filled(status.client_key_data)) {
            (Some(certificate), Some(key)) => Some(Arc::new(Identity {
                certificate: certificate.into_bytes(),
                key: key.into_bytes(),
            })),
            (None, None) if token.is_some() => None,
            _ => return Err(ExecError::Nothing { command: command() }),
        };
        Ok(ExecResult {
            authorization: token.transpose()?,
            identity,
            expires: expires.transpose()?,
        })
    }

    fn hint(&self) -> String {
        match self.install_hint.trim() {
            "" => String::new(),
            hint => format!("\n{hint}"),
        }
    }
}

async fn read(pipe: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut bytes = vec![];
    if let Some(pipe) = pipe {
        pipe.take(OUTPUT_MAX).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

/// The end of what a plugin said on standard error.
fn quoted(complaint: &[u8]) -> String {
    let text = String::from_utf8_lossy(complaint);
    let text = text.trim();
    let skipped = text.chars().count().saturating_sub(QUOTED_MAX);
    match text {
        "" => String::new(),
        text => format!(": {}", text.chars().skip(skipped).collect::<String>()),
    }
}

/// What a plugin said last, and the plugin to ask again.
pub(super) struct ExecCredentials {
    plugin: Arc<ExecPlugin>,
    clock: Clock,
    current: Arc<Mutex<LastRun>>,
}

struct LastRun {
    result: ExecResult,
    generation: u64,
    at: Instant,
}

impl ExecCredentials {
    pub(super) async fn start(plugin: ExecPlugin, clock: Clock) -> Result<ExecCredentials, CredentialError> {
        let result = plugin.run().await.map_err(|source| CredentialError::Exec {
            field: plugin.field.clone(),
            source,
        })?;
        Ok(ExecCredentials {
            plugin: Arc::new(plugin),
            clock,
            current: Arc::new(Mutex::new(LastRun {
                result,
                generation: 0,
                at: Instant::now(),
            })),
        })
    }

    /// What the plugin said, or says now if that has expired or the server refused it.
    pub(super) async fn current(&self, refused: Option<u64>) -> Result<Current, CredentialError> {
        let mut last = self.current.clone().lock_owned().await;
        let has_expired = last.result.expires.is_some_and(|at| self.clock.now() >= at);
        let is_refused = refused == Some(last.generation) && last.at.elapsed() >= AFTER_REFUSAL_MIN;
        if has_expired || is_refused {
            let plugin = self.plugin.clone();
            // A task of its own: a caller who gives up does not end a run that others wait for.
            let run = tokio::spawn(async move { run_again(&plugin, &mut last).await.map(|()| last) });
            last = match run.await {
                Ok(finished) => finished.map_err(|source| CredentialError::Exec {
                    field: self.plugin.field.clone(),
                    source,
                })?,
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    // The runtime is going down, and this task with it.
                    Err(_) => std::future::pending().await,
                },
            };
        }
        Ok(Current {
            authorization: last.result.authorization.clone(),
            identity: last.result.identity.clone(),
            generation: last.generation,
        })
    }
}

async fn run_again(plugin: &ExecPlugin, last: &mut OwnedMutexGuard<LastRun>) -> Result<(), ExecError> {
    let result = plugin.run().await;
    last.at = Instant::now();
    last.result = result?;
    last.generation += 1;
    Ok(())
}

#[cfg(test)]
mod tests;

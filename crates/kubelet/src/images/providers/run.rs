//! Runs a credential provider plugin: the request goes to its standard input, the response comes from its standard output.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use orlop_api::duration::parse_duration;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use super::ProviderError;
use super::config::ProviderConfig;

/// No program may take longer.
const TIME_MAX: Duration = Duration::from_secs(60);
/// No answer is read beyond that.
const ANSWER_MAX: u64 = 1 << 20;
/// Nor what it says beside.
const WORDS_MAX: u64 = 4 << 10;

pub(super) struct Request {
    /// Without tag and digest.
    pub image: String,
    pub service_account_token: String,
    pub service_account_annotations: BTreeMap<String, String>,
}

/// Not to be shown: it has passwords in it.
#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Response {
    /// These two are judged before the rest is read.
    #[serde(rename = "kind")]
    _kind: IgnoredAny,
    #[serde(rename = "apiVersion")]
    _api_version: IgnoredAny,
    pub cache_key_type: CacheKeyType,
    #[serde(default)]
    cache_duration: Option<String>,
    #[serde(default, deserialize_with = "none_is_empty")]
    pub auth: BTreeMap<String, Auth>,
}

#[derive(Clone, Copy, Deserialize)]
pub(super) enum CacheKeyType {
    Image,
    Registry,
    Global,
}

#[derive(Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
#[derive(Default)]
pub(super) struct Auth {
    pub username: String,
    pub password: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    api_version: String,
}

fn none_is_empty<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Auth>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl Response {
    /// None: as the configuration says.
    pub(super) fn cache_duration(&self) -> Result<Option<Duration>, ProviderError> {
        let Some(text) = &self.cache_duration else {
            return Ok(None);
        };
        let nanos = parse_duration(text).map_err(|e| ProviderError::CacheDuration(e.to_string()))?;
        Ok(Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))))
    }
}

pub(super) struct Program {
    path: PathBuf,
    name: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
    api_version: String,
}

impl Program {
    pub(super) fn find(directory: &Path, config: &ProviderConfig) -> Result<Program, ProviderError> {
        let path = directory.join(&config.name);
        let failed = |problem: String| ProviderError::Program {
            path: path.clone(),
            problem,
        };
        let found = std::fs::metadata(&path).map_err(|e| failed(format!(": {e}")))?;
        if found.is_dir() || found.permissions().mode() & 0o111 == 0 {
            return Err(failed(" is not a program".to_string()));
        }
        Ok(Program {
            name: config.name.clone(),
            args: config.args.clone(),
            env: config.env.iter().map(|v| (v.name.clone(), v.value.clone())).collect(),
            api_version: config.api_version.clone(),
            path,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) async fn run(&self, request: &Request) -> Result<Response, ProviderError> {
        let failed = |reason: String| ProviderError::Exec {
            provider: self.name.clone(),
            image: request.image.clone(),
            reason,
        };
        let text = match tokio::time::timeout(TIME_MAX, self.exchange(request)).await {
            Ok(answer) => answer.map_err(|error| failed(error.to_string()))?,
            Err(_) => return Err(failed(format!("timed out after {TIME_MAX:?}"))),
        };
        self.read(&text)
    }

    /// Its environment is the kubelet's, with the configured variables in front.
    async fn exchange(&self, request: &Request) -> io::Result<Vec<u8>> {
        let mut child = Command::new(&self.path)
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut input = child.stdin.take().expect("was asked for");
        let output = child.stdout.take().expect("was asked for");
        let words = child.stderr.take().expect("was asked for");
        let text = self.written(request);
        let ask = async move {
            // A program may answer without reading.
            let _ = input.write_all(&text).await;
        };
        let ((), answer, words) = tokio::join!(ask, read(output, ANSWER_MAX), read_some(words, WORDS_MAX));
        let ended = child.wait().await?;
        match ended.success() {
            true => answer,
            false => Err(io::Error::other(format!(
                "{ended}: {}",
                String::from_utf8_lossy(&words).trim()
            ))),
        }
    }

    fn written(&self, request: &Request) -> Vec<u8> {
        let mut text = json!({
            "kind": "CredentialProviderRequest", "apiVersion": self.api_version, "image": request.image,
        });
        if !request.service_account_token.is_empty() {
            text["serviceAccountToken"] = json!(request.service_account_token);
        }
        if !request.service_account_annotations.is_empty() {
            text["serviceAccountAnnotations"] = json!(request.service_account_annotations);
        }
        text.to_string().into_bytes()
    }

    fn read(&self, text: &[u8]) -> Result<Response, ProviderError> {
        let head: Head = serde_json::from_slice(text).map_err(|_| ProviderError::Response)?;
        if head.api_version != self.api_version {
            return Err(ProviderError::ApiVersion {
                expected: self.api_version.clone(),
                actual: head.api_version,
            });
        }
        if head.kind != "CredentialProviderResponse" {
            return Err(ProviderError::Response);
        }
        serde_json::from_slice(text).map_err(|_| ProviderError::Response)
    }
}

/// The first words; what comes after is passed over.
async fn read_some(mut from: impl AsyncRead + Unpin, most: u64) -> Vec<u8> {
    let mut text = Vec::new();
    let _ = (&mut from).take(most).read_to_end(&mut text).await;
    let _ = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
    text
}

async fn read(from: impl AsyncRead + Unpin, most: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut from = from.take(most + 1);
    from.read_to_end(&mut text).await?;
    match text.len() as u64 > most {
        true => Err(io::Error::other(format!("its response is longer than {most} bytes"))),
        false => Ok(text),
    }
}

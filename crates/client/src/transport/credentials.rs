//! Who a client says it is: a fixed header, a token file that is read again, or a credential plugin.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::HeaderValue;
use orlop_base::Clock;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::exec::{ExecCredentials, ExecError, ExecPlugin};
use super::tls::Identity;

/// How long a token file is taken to be as it was. Upstream: client-go's fileTokenSource.
const TOKEN_FILE_PERIOD: Duration = Duration::from_secs(60);

/// Why there are no credentials.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    #[error("{field}: failed to read {}", .path.display())]
    TokenFile {
        field: String,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{field}: the token has characters that a header can't have")]
    Token { field: String },
    #[error("credential plugin {field}")]
    Exec {
        field: String,
        #[source]
        source: ExecError,
    },
}

/// Where credentials come from, as configured.
pub(super) enum CredentialSource {
    None,
    Header(HeaderValue),
    TokenFile(TokenFile),
    Exec(Box<ExecPlugin>),
}

impl CredentialSource {
    pub(super) fn basic(field: &str, user: &str, password: &str) -> Result<CredentialSource, CredentialError> {
        let encoded = BASE64_STANDARD.encode(format!("{user}:{password}"));
        Ok(CredentialSource::Header(header(field, &format!("Basic {encoded}"))?))
    }

    pub(super) fn token(field: &str, token: &str) -> Result<CredentialSource, CredentialError> {
        Ok(CredentialSource::Header(bearer(field, token)?))
    }

    /// `otherwise` is the token to use as long as the file can't be read.
    pub(super) fn token_file(
        field: &str,
        path: PathBuf,
        otherwise: Option<&str>,
    ) -> Result<CredentialSource, CredentialError> {
        let field = field.to_string();
        let header = match (read_token(&field, &path), otherwise) {
            (Err(_), Some(token)) => bearer(&field, token)?,
            (read, _) => read?,
        };
        let current = Mutex::new(Read {
            header,
            at: Instant::now(),
            generation: 0,
        });
        Ok(CredentialSource::TokenFile(TokenFile { field, path, current }))
    }
}

/// What to send with a request.
pub(super) struct Current {
    pub(super) authorization: Option<HeaderValue>,
    pub(super) identity: Option<Arc<Identity>>,
    /// Differs from one set of credentials to the next.
    pub(super) generation: u64,
}

pub(super) enum Credentials {
    None,
    Header(HeaderValue),
    TokenFile(TokenFile),
    Exec(ExecCredentials),
}

impl Credentials {
    /// Runs the credential plugin, if that is the source, so that a broken one is found at the start.
    pub(super) async fn start(source: CredentialSource, clock: Clock) -> Result<Credentials, CredentialError> {
        Ok(match source {
            CredentialSource::None => Credentials::None,
            CredentialSource::Header(header) => Credentials::Header(header),
            CredentialSource::TokenFile(file) => Credentials::TokenFile(file),
            CredentialSource::Exec(plugin) => Credentials::Exec(ExecCredentials::start(*plugin, clock).await?),
        })
    }

    pub(super) async fn current(&self) -> Result<Current, CredentialError> {
        let fixed = |authorization| Current {
            authorization,
            identity: None,
            generation: 0,
        };
        match self {
            Credentials::None => Ok(fixed(None)),
            Credentials::Header(header) => Ok(fixed(Some(header.clone()))),
            Credentials::TokenFile(file) => Ok(file.current(None)),
            Credentials::Exec(exec) => exec.current(None).await,
        }
    }

    /// Others than those that the server refused with a 401, if there are any.
    pub(super) async fn after_refusal(&self, refused: u64) -> Result<Option<Current>, CredentialError> {
        let current = match self {
            Credentials::None | Credentials::Header(_) => return Ok(None),
            Credentials::TokenFile(file) => file.current(Some(refused)),
            Credentials::Exec(exec) => exec.current(Some(refused)).await?,
        };
        Ok(Some(current).filter(|current| current.generation != refused))
    }

    pub(super) fn can_change(&self) -> bool {
        matches!(self, Credentials::TokenFile(_) | Credentials::Exec(_))
    }
}

/// A token that somebody else keeps up to date.
pub(super) struct TokenFile {
    field: String,
    path: PathBuf,
    current: Mutex<Read>,
}

struct Read {
    header: HeaderValue,
    at: Instant,
    generation: u64,
}

impl TokenFile {
    /// Reads the file again if it is time, or if the server refused the token of this generation. Should that fail, the
    /// last token goes on being used: there are those who remove the file once everyone has read it.
    fn current(&self, refused: Option<u64>) -> Current {
        let mut current = self.current.lock();
        let is_due = current.at.elapsed() >= TOKEN_FILE_PERIOD;
        if is_due || refused == Some(current.generation) {
            current.at = Instant::now();
            if let Ok(header) = read_token(&self.field, &self.path)
                && header != current.header
            {
                current.header = header;
                current.generation += 1;
            }
        }
        Current {
            authorization: Some(current.header.clone()),
            identity: None,
            generation: current.generation,
        }
    }
}

fn read_token(field: &str, path: &Path) -> Result<HeaderValue, CredentialError> {
    let failed = |source| CredentialError::TokenFile {
        field: field.to_string(),
        path: path.to_path_buf(),
        source,
    };
    let text = std::fs::read_to_string(path).map_err(failed)?;
    match text.trim() {
        "" => Err(failed(io::Error::new(io::ErrorKind::InvalidData, "the file is empty"))),
        token => bearer(field, token),
    }
}

pub(super) fn bearer(field: &str, token: &str) -> Result<HeaderValue, CredentialError> {
    header(field, &format!("Bearer {token}"))
}

fn header(field: &str, text: &str) -> Result<HeaderValue, CredentialError> {
    let mut value = HeaderValue::from_str(text).map_err(|_| CredentialError::Token {
        field: field.to_string(),
    })?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(current: &Current) -> &str {
        current.authorization.as_ref().unwrap().to_str().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_file_is_read_once_a_minute_and_after_a_refusal() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, " one \n").unwrap();
        let source = CredentialSource::token_file("tokenFile", path.clone(), None).unwrap();
        let credentials = Credentials::start(source, Clock::System).await.unwrap();
        assert_eq!(shown(&credentials.current().await.unwrap()), "Bearer one");
        std::fs::write(&path, "two").unwrap();
        tokio::time::advance(TOKEN_FILE_PERIOD / 2).await;
        assert_eq!(shown(&credentials.current().await.unwrap()), "Bearer one");
        tokio::time::advance(TOKEN_FILE_PERIOD / 2).await;
        let two = credentials.current().await.unwrap();
        assert_eq!(shown(&two), "Bearer two");
        // The server says 401: the same token again is of no use, another one is.
        assert!(credentials.after_refusal(two.generation).await.unwrap().is_none());
        std::fs::write(&path, "three").unwrap();
        let three = credentials.after_refusal(two.generation).await.unwrap().unwrap();
        assert_eq!(shown(&three), "Bearer three");
        // One that is empty, no longer there, or that no header can have leaves the last one in use.
        for broken in [Some("a\nb"), Some(" "), None] {
            match broken {
                None => std::fs::remove_file(&path).unwrap(),
                Some(text) => std::fs::write(&path, text).unwrap(),
            }
            tokio::time::advance(TOKEN_FILE_PERIOD).await;
            assert_eq!(shown(&credentials.current().await.unwrap()), "Bearer three");
        }
    }

    #[tokio::test]
    async fn a_token_stands_in_for_a_file_that_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let error = CredentialSource::token_file("users[u].user.tokenFile", path.clone(), None);
        let expected = format!("users[u].user.tokenFile: failed to read {}", path.display());
        assert_eq!(error.err().unwrap().to_string(), expected);
        let source = CredentialSource::token_file("f", path.clone(), Some("given")).unwrap();
        let credentials = Credentials::start(source, Clock::System).await.unwrap();
        assert_eq!(shown(&credentials.current().await.unwrap()), "Bearer given");
        let error = CredentialSource::token("users[u].user.token", "a\nb").err().unwrap();
        assert_eq!(
            error.to_string(),
            "users[u].user.token: the token has characters that a header can't have"
        );
        let CredentialSource::Header(basic) = CredentialSource::basic("f", "a", "b").unwrap() else {
            panic!("basic authentication is a header");
        };
        assert_eq!(basic, "Basic YTpi");
        assert!(basic.is_sensitive());
    }
}

//! What can go wrong with a request, by what the caller can do about it.

use std::time::Duration;

use http::HeaderMap;
use http::header::RETRY_AFTER;
use serde::Deserialize;

/// What requests give.
pub type Result<T> = std::result::Result<T, Error>;
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a request did not do what was asked. `Display` is the server's message where it gave one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The object (or its namespace, or the resource) is not there.
    #[error("{0}")]
    NotFound(Box<Status>),
    /// Another object of that name is there already.
    #[error("{0}")]
    AlreadyExists(Box<Status>),
    /// Somebody else changed the object: read it again and decide anew.
    #[error("{0}")]
    Conflict(Box<Status>),
    /// The revision or list token is too old: list again.
    #[error("{0}")]
    Gone(Box<Status>),
    /// The request is wrong and will stay wrong: tell the user.
    #[error("{0}")]
    Invalid(Box<Status>),
    /// Not allowed, or not known (401).
    #[error("{0}")]
    Forbidden(Box<Status>),
    /// Try again after a while. Evictions that a disruption budget does not allow come as this, too.
    #[error("{status}")]
    TooManyRequests { retry_after: Duration, status: Box<Status> },
    /// The server, or the way to it, fails: try again later. Whether a write was done is not known.
    #[error("API server unavailable")]
    Unavailable(#[source] UnavailableReason),
    /// The response is not of the caller's type. For a write: it was done.
    #[error("failed to decode the response to {request}")]
    Unreadable { request: String, source: serde_json::Error },
    /// The request could not be made: the path is invalid, or the object can't be encoded.
    #[error("invalid request {request}")]
    Malformed { request: String, source: BoxError },
}

/// Why the API server is unavailable.
#[derive(Debug, thiserror::Error)]
pub enum UnavailableReason {
    #[error("connection failed")]
    Transport(#[source] BoxError),
    #[error("no response within {0:?}")]
    Timeout(Duration),
    #[error("{0}")]
    Server(Box<Status>),
}

/// The server's refusal (`metav1.Status`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, thiserror::Error)]
#[serde(default)]
#[error("{message}")]
pub struct Status {
    pub code: u16,
    pub reason: String,
    pub message: String,
    pub details: StatusDetails,
}

/// What a `Status` is about (`metav1.StatusDetails`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StatusDetails {
    pub name: String,
    pub group: String,
    pub kind: String,
    pub causes: Vec<StatusCause>,
    pub retry_after_seconds: u32,
}

/// One of the reasons of a refusal (`metav1.StatusCause`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct StatusCause {
    pub reason: String,
    pub message: String,
    pub field: String,
}

/// How much of a response that is no `Status` is kept as the message.
const MESSAGE_MAX: usize = 300;
const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(1);

impl Status {
    /// The status in a body; if there is none (a proxy answered, say), one made of its text.
    pub(crate) fn read(code: u16, body: &[u8]) -> Status {
        let found = serde_json::from_slice::<Status>(body).ok();
        let mut status = found.filter(|s| !s.message.is_empty() || !s.reason.is_empty());
        let status = status.get_or_insert_with(|| {
            let text = String::from_utf8_lossy(&body[..body.len().min(MESSAGE_MAX)]);
            let message = match text.trim() {
                "" => format!("server returned {code}"),
                text => format!("server returned {code}: {text}"),
            };
            Status {
                message,
                ..Status::default()
            }
        });
        status.code = code;
        std::mem::take(status)
    }
}

impl Error {
    /// The error of a response that is no success.
    pub(crate) fn from_response(code: u16, headers: &HeaderMap, body: &[u8]) -> Error {
        let status = Status::read(code, body);
        let header = headers.get(RETRY_AFTER).and_then(|v| v.to_str().ok());
        let after = header
            .and_then(|text| text.trim().parse().ok())
            .map(Duration::from_secs);
        Error::from_status(status, after)
    }

    pub(crate) fn from_status(status: Status, retry_after: Option<Duration>) -> Error {
        let status = Box::new(status);
        match (status.code, status.reason.as_str()) {
            (404, _) => Error::NotFound(status),
            (409, "AlreadyExists") => Error::AlreadyExists(status),
            (409, _) => Error::Conflict(status),
            (410, _) => Error::Gone(status),
            (401 | 403, _) => Error::Forbidden(status),
            (429, _) => {
                let in_body = Some(u64::from(status.details.retry_after_seconds)).filter(|s| *s > 0);
                let retry_after = retry_after.or(in_body.map(Duration::from_secs));
                Error::TooManyRequests {
                    retry_after: retry_after.unwrap_or(RETRY_AFTER_DEFAULT),
                    status,
                }
            }
            (400..=499, _) => Error::Invalid(status),
            _ => Error::Unavailable(UnavailableReason::Server(status)),
        }
    }

    /// A request that failed on its way; unless what failed was another request that had to come first (for a token, say).
    pub(crate) fn transport(source: impl Into<BoxError>) -> Error {
        match source.into().downcast::<Error>() {
            Ok(error) => *error,
            Err(source) => Error::Unavailable(UnavailableReason::Transport(source)),
        }
    }

    /// The server's refusal, if there was a response.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Error::NotFound(status)
            | Error::AlreadyExists(status)
            | Error::Conflict(status)
            | Error::Gone(status)
            | Error::Invalid(status)
            | Error::Forbidden(status)
            | Error::TooManyRequests { status, .. }
            | Error::Unavailable(UnavailableReason::Server(status)) => Some(status),
            _ => None,
        }
    }

    /// Whether the error is transient: the same request may succeed later.
    pub fn is_passing(&self) -> bool {
        matches!(self, Error::TooManyRequests { .. } | Error::Unavailable(_))
    }

    /// Whether the server is unreachable: there was no response at all. `Api` has logged it, and nobody else needs to.
    pub fn is_away(&self) -> bool {
        matches!(
            self,
            Error::Unavailable(UnavailableReason::Transport(_) | UnavailableReason::Timeout(_))
        )
    }

    /// This error and its causes in one line, for logs.
    pub fn chain(&self) -> String {
        chain(self)
    }
}

pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn responses_become_what_one_can_do_about_them() {
        // code, Retry-After, body, the error's variant and message
        let cases = [
            (
                404,
                "",
                r#"{"reason":"NotFound","message":"pods \"a\" not found"}"#,
                "NotFound pods \"a\" not found",
            ),
            (
                409,
                "",
                r#"{"reason":"AlreadyExists","message":"there"}"#,
                "AlreadyExists there",
            ),
            (
                409,
                "",
                r#"{"reason":"Conflict","message":"changed"}"#,
                "Conflict changed",
            ),
            (410, "", r#"{"reason":"Expired","message":"old"}"#, "Gone old"),
            (422, "", r#"{"reason":"Invalid","message":"bad"}"#, "Invalid bad"),
            (400, "", "", "Invalid server returned 400"),
            (403, "", r#"{"message":"no"}"#, "Forbidden no"),
            (401, "", r#"{"message":"Unauthorized"}"#, "Forbidden Unauthorized"),
            (
                429,
                "7",
                "slow down\n",
                "TooManyRequests 7s server returned 429: slow down",
            ),
            (
                429,
                "",
                r#"{"message":"m","details":{"retryAfterSeconds":3}}"#,
                "TooManyRequests 3s m",
            ),
            (429, "", r#"{"message":"m"}"#, "TooManyRequests 1s m"),
            (503, "", "<html>", "Unavailable server returned 503: <html>"),
            (500, "", r#"{"message":"etcd"}"#, "Unavailable etcd"),
        ];
        for (code, after, body, expected) in cases {
            let mut headers = HeaderMap::new();
            if !after.is_empty() {
                headers.insert(RETRY_AFTER, HeaderValue::from_static(after));
            }
            let error = Error::from_response(code, &headers, body.as_bytes());
            let message = error.status().expect("an answer").message.clone();
            let kind = match &error {
                Error::NotFound(_) => "NotFound".to_string(),
                Error::AlreadyExists(_) => "AlreadyExists".into(),
                Error::Conflict(_) => "Conflict".into(),
                Error::Gone(_) => "Gone".into(),
                Error::Invalid(_) => "Invalid".into(),
                Error::Forbidden(_) => "Forbidden".into(),
                Error::TooManyRequests { retry_after, .. } => format!("TooManyRequests {retry_after:?}"),
                Error::Unavailable(_) => "Unavailable".into(),
                other => format!("{other:?}"),
            };
            assert_eq!(format!("{kind} {message}"), expected);
            assert_eq!(error.is_passing(), code == 429 || code >= 500);
        }
    }

    #[test]
    fn the_chain_tells_every_cause_once() {
        let error = Error::transport(std::io::Error::other("reset"));
        assert_eq!(error.chain(), "API server unavailable: connection failed: reset");
    }
}

//! How a command's exit is encoded on the error stream: a `Status` object, or plain text in the oldest protocols.

use serde::{Deserialize, Serialize};

use crate::Exit;

const NON_ZERO: &str = "NonZeroExitCode";
const EXIT_CODE: &str = "ExitCode";

/// Which of the two a protocol uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusFormat {
    Json,
    Text,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct Status {
    metadata: serde_json::Map<String, serde_json::Value>,
    status: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<i32>,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct Details {
    causes: Vec<Cause>,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct Cause {
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
}

impl StatusFormat {
    pub(crate) fn encode(self, exit: &Exit) -> Vec<u8> {
        let failure = |reason: &str, message: String, cause: Cause, code| Status {
            status: "Failure".into(),
            message,
            reason: reason.into(),
            details: Some(Details { causes: vec![cause] }),
            code,
            ..Status::default()
        };
        let status = match exit {
            Exit::Code(0) => Status {
                status: "Success".into(),
                ..Status::default()
            },
            Exit::Code(code) => failure(
                NON_ZERO,
                format!("command terminated with non-zero exit code: exit code {code}"),
                Cause {
                    reason: EXIT_CODE.into(),
                    message: code.to_string(),
                },
                None,
            ),
            Exit::Failed(text) => {
                let cause = Cause {
                    reason: String::new(),
                    message: text.clone(),
                };
                failure("InternalError", text.clone(), cause, Some(500))
            }
        };
        match self {
            StatusFormat::Json => serde_json::to_vec(&status).expect("a status is always JSON"),
            StatusFormat::Text => status.message.into_bytes(),
        }
    }

    /// What the other side said, given everything that came on the error stream.
    pub(crate) fn decode(self, bytes: &[u8]) -> Exit {
        if self == StatusFormat::Text {
            let text = String::from_utf8_lossy(bytes);
            return if text.is_empty() {
                Exit::Code(0)
            } else {
                Exit::Failed(text.into_owned())
            };
        }
        let Ok(status) = serde_json::from_slice::<Status>(bytes) else {
            let text = String::from_utf8_lossy(bytes);
            return Exit::Failed(format!("error stream protocol error: {text:?} is not a status"));
        };
        let code = || {
            let causes = &status.details.as_ref()?.causes;
            causes
                .iter()
                .find(|cause| cause.reason == EXIT_CODE)?
                .message
                .parse()
                .ok()
        };
        match (status.status.as_str(), status.reason.as_str()) {
            ("Success", _) => Exit::Code(0),
            (_, NON_ZERO) => match code() {
                Some(code) => Exit::Code(code),
                None => Exit::Failed(format!(
                    "error stream protocol error: no exit code in {:?}",
                    status.message
                )),
            },
            _ => Exit::Failed(status.message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_come_back() {
        for exit in [
            Exit::Code(0),
            Exit::Code(3),
            Exit::Code(137),
            Exit::Failed("no such container".into()),
        ] {
            assert_eq!(StatusFormat::Json.decode(&StatusFormat::Json.encode(&exit)), exit);
        }
        assert_eq!(
            StatusFormat::Json.encode(&Exit::Code(0)),
            br#"{"metadata":{},"status":"Success"}"#
        );
        assert_eq!(
            String::from_utf8(StatusFormat::Json.encode(&Exit::Code(3))).unwrap(),
            concat!(
                r#"{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code: exit code 3","#,
                r#""reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#
            )
        );
    }

    #[test]
    fn old_protocols_say_it_in_words() {
        assert_eq!(StatusFormat::Text.encode(&Exit::Code(0)), b"");
        assert_eq!(StatusFormat::Text.decode(b""), Exit::Code(0));
        assert_eq!(StatusFormat::Text.decode(b"boom"), Exit::Failed("boom".into()));
    }

    #[test]
    fn nonsense_is_a_failure() {
        for bytes in [
            b"".as_slice(),
            b"{",
            b"\xff\xfe",
            br#"{"status":"Failure","reason":"NonZeroExitCode"}"#,
        ] {
            assert!(matches!(StatusFormat::Json.decode(bytes), Exit::Failed(text) if !text.is_empty()));
        }
    }
}

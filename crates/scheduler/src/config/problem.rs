//! What is wrong with a configuration, each problem with its field path, in Kubernetes' words.

use std::fmt;

use orlop_api::{Path, ProblemKind, Value};

/// One problem. `text` is the whole line as it is shown and contains the path; `field` is the path alone (empty if the
/// text could not be read at all).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub field: String,
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Problem {}

/// All problems: first those of decoding (fields that do not exist, values of the wrong type), then those of meaning.
#[derive(Default)]
pub(super) struct Problems {
    decoding: Vec<Problem>,
    meaning: Vec<Problem>,
}

impl Problems {
    pub(super) fn is_empty(&self) -> bool {
        self.decoding.is_empty() && self.meaning.is_empty()
    }

    pub(super) fn into_list(self) -> Vec<Problem> {
        let mut list = self.decoding;
        list.extend(self.meaning);
        list
    }

    /// What strict decoding refuses: `unknown field "…"`, `duplicate field "…"`.
    pub(super) fn strict(&mut self, what: &str, field: String) {
        self.decoding.push(Problem {
            text: format!("strict decoding error: {what} {field:?}"),
            field,
        });
    }

    /// Text that is no YAML.
    pub(super) fn unreadable(&mut self, text: String) {
        self.decoding.push(Problem {
            field: String::new(),
            text,
        });
    }

    /// A value of the wrong type.
    pub(super) fn wrong_type(&mut self, path: &Path, value: &Value, wanted: &str) {
        let problem = problem(ProblemKind::Invalid, path, Some(value.to_string()), wanted);
        self.decoding.push(problem);
    }

    pub(super) fn required(&mut self, path: &Path, detail: &str) {
        self.meaning.push(problem(ProblemKind::Required, path, None, detail));
    }

    pub(super) fn invalid(&mut self, path: &Path, value: impl Into<Value>, detail: impl Into<String>) {
        let value = value.into().to_string();
        self.meaning
            .push(problem(ProblemKind::Invalid, path, Some(value), detail));
    }

    pub(super) fn duplicate(&mut self, path: &Path, value: impl Into<Value>) {
        let value = value.into().to_string();
        self.meaning
            .push(problem(ProblemKind::Duplicate, path, Some(value), ""));
    }

    pub(super) fn forbidden(&mut self, path: &Path, detail: &str) {
        self.meaning.push(problem(ProblemKind::Forbidden, path, None, detail));
    }

    pub(super) fn not_supported(&mut self, path: &Path, value: &str, supported: &[&str]) {
        let list: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
        let value = Value::from(value).to_string();
        let detail = format!("supported values: {}", list.join(", "));
        self.meaning
            .push(problem(ProblemKind::NotSupported, path, Some(value), detail));
    }

    /// Each message of a rule for names as `Invalid value`.
    pub(super) fn invalid_each(&mut self, path: &Path, value: &str, messages: Vec<String>) {
        for message in messages {
            self.invalid(path, value, message);
        }
    }
}

fn problem(kind: ProblemKind, path: &Path, value: Option<String>, detail: impl Into<String>) -> Problem {
    let problem = orlop_api::Problem {
        kind,
        field: path.to_string(),
        value,
        detail: detail.into(),
    };
    Problem {
        text: problem.to_string(),
        field: problem.field,
    }
}

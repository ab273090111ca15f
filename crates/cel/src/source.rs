//! The text of an expression, places in it, and problems as cel-go shows them:
//!
//! ```text
//! ERROR: <input>:1:6: undeclared reference to 'foo' (in container '')
//!  | self.foo
//!  | .....^
//! ```
//!
//! Upstream: cel-go/common/error.go, errors.go, source.go.

use crate::limits;
use std::fmt;

/// Longer lines are not shown.
const MAX_SNIPPET: usize = 16_384;

/// A text and where its lines start. Places are counted in code points.
#[derive(Debug)]
pub(crate) struct Source {
    text: String,
    /// Code points before each line but the first.
    lines: Vec<u32>,
}

impl Source {
    pub(crate) fn new(text: &str) -> Source {
        let newlines = text.chars().zip(1u32..).filter(|(c, _)| *c == '\n');
        Source {
            text: text.to_string(),
            lines: newlines.map(|(_, after)| after).collect(),
        }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Line (from 1) and column (from 0) of a place.
    fn locate(&self, offset: u32) -> (u32, u32) {
        let line = self.lines.partition_point(|start| *start <= offset);
        let start = if line == 0 { 0 } else { self.lines[line - 1] };
        (
            u32::try_from(line).unwrap_or(u32::MAX).saturating_add(1),
            offset - start,
        )
    }

    fn issue(&self, offset: Option<u32>, message: String) -> Issue {
        // Without a place it is line -1, column -1, of which the column is shown from 1.
        let Some(offset) = offset else {
            return Issue {
                line: -1,
                column: 0,
                message,
                snippet: None,
            };
        };
        let (line, column) = self.locate(offset);
        let text = self.text.split('\n').nth(line as usize - 1);
        Issue {
            line: i64::from(line),
            column: i64::from(column) + 1,
            message,
            snippet: text
                .filter(|text| text.len() <= MAX_SNIPPET)
                .map(|text| text.replace('\t', " ")),
        }
    }
}

/// One problem of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// From 1; -1 if the problem is of no place.
    pub line: i64,
    /// From 1, in code points.
    pub column: i64,
    pub message: String,
    /// The line it is in.
    snippet: Option<String>,
}

impl fmt::Display for Issue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ERROR: <input>:{}:{}: {}", self.line, self.column, self.message)?;
        let Some(snippet) = &self.snippet else {
            return Ok(());
        };
        let mut pointer = String::new();
        let mut chars = snippet.chars();
        for _ in 1..self.column {
            match chars.next() {
                Some(c) => pointer.push(if c.len_utf8() > 1 { '\u{ff0e}' } else { '.' }),
                None => break,
            }
        }
        let wide = chars.next().is_some_and(|c| c.len_utf8() > 1);
        pointer.push(if wide { '\u{ff3e}' } else { '^' });
        write!(f, "\n | {snippet}\n | {pointer}")
    }
}

/// The problems of an expression, in the order of their places. `Display` is what users see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Issues {
    issues: Vec<Issue>,
    /// Found, but over the limit of what is reported.
    dropped: usize,
}

impl Issues {
    /// Notes a problem, unless there are enough already.
    pub(crate) fn push(&mut self, source: &Source, offset: Option<u32>, message: impl Into<String>) {
        if self.issues.len() < limits::REPORTED_ERRORS {
            self.issues.push(source.issue(offset, message.into()));
        } else {
            self.dropped += 1;
        }
    }

    pub(crate) fn sort(&mut self) {
        self.issues.sort_by_key(|issue| (issue.line, issue.column));
    }

    pub fn is_empty(&self) -> bool {
        self.issues.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Issue> {
        self.issues.iter()
    }
}

impl fmt::Display for Issues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, issue) in self.issues.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{issue}")?;
        }
        if self.dropped > 0 {
            write!(f, "\n{} more errors were truncated", self.dropped)?;
        }
        Ok(())
    }
}

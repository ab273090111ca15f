//! Semantic versions.
//!
//! Upstream: apiserver/pkg/cel/library/semverlib.go, github.com/blang/semver.

use super::{Body, Outcome, no_overload};
use crate::program::EvalError;
use crate::value::Value;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

pub(super) const FUNCTIONS: &[(&str, Body)] = &[
    ("semver", |args| {
        let version = parse_args(args)?.map_err(EvalError::new)?;
        Ok(Value::Semver(Arc::new(version)))
    }),
    ("isSemver", |args| Ok(Value::Bool(parse_args(args)?.is_ok()))),
    ("major", |args| part(args, |version| version.numbers[0])),
    ("minor", |args| part(args, |version| version.numbers[1])),
    ("patch", |args| part(args, |version| version.numbers[2])),
];

/// A version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    numbers: [u64; 3],
    pre_release: Vec<Identifier>,
    build: Vec<String>,
}

/// A part of a pre-release.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Identifier {
    // Numbers come before words.
    Number(u64),
    Word(String),
}

impl Version {
    /// The order of releases; builds do not matter.
    pub(crate) fn cmp(&self, other: &Version) -> Ordering {
        let pre_releases = match (self.pre_release.is_empty(), other.pre_release.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => self.pre_release.cmp(&other.pre_release),
        };
        self.numbers.cmp(&other.numbers).then(pre_releases)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.numbers;
        write!(f, "{major}.{minor}.{patch}")?;
        for (at, identifier) in self.pre_release.iter().enumerate() {
            f.write_str(if at == 0 { "-" } else { "." })?;
            match identifier {
                Identifier::Number(number) => write!(f, "{number}")?,
                Identifier::Word(word) => f.write_str(word)?,
            }
        }
        if !self.build.is_empty() {
            write!(f, "+{}", self.build.join("."))?;
        }
        Ok(())
    }
}

type Parsed = Result<Version, String>;

fn parse_args(args: &[Value<'_>]) -> Result<Parsed, EvalError> {
    match args {
        [Value::String(text)] | [Value::String(text), Value::Bool(false)] => Ok(parse(text)),
        [Value::String(text), Value::Bool(true)] => Ok(normalize(text).and_then(|text| parse(&text))),
        _ => Err(EvalError::no_such_overload()),
    }
}

fn part<'a>(args: &[Value<'a>], of: fn(&Version) -> u64) -> Outcome<'a> {
    match args {
        [Value::Semver(version)] => Ok(Value::Int(of(version) as i64)),
        _ => no_overload(),
    }
}

/// Without v and leading zeros, with all three numbers.
fn normalize(text: &str) -> Result<String, String> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut parts: Vec<String> = text.splitn(3, '.').map(str::to_string).collect();
    for part in parts.iter_mut().filter(|part| part.len() > 1) {
        let trimmed = part.trim_start_matches('0');
        let zero = if trimmed.starts_with(|c: char| c.is_ascii_digit()) {
            ""
        } else {
            "0"
        };
        *part = format!("{zero}{trimmed}");
    }
    if parts.len() < 3 {
        if parts.last().is_some_and(|last| last.contains(['+', '-'])) {
            return Err("short version cannot contain PreRelease/Build meta data".to_string());
        }
        parts.resize(3, "0".to_string());
    }
    Ok(parts.join("."))
}

fn number(text: &str, name: &str) -> Result<u64, String> {
    if !text.bytes().all(|b| b.is_ascii_digit()) || text.is_empty() {
        return Err(format!("Invalid character(s) found in {name} number {text:?}"));
    }
    if text.len() > 1 && text.starts_with('0') {
        return Err(format!(
            "{} number must not contain leading zeroes {text:?}",
            capitalized(name)
        ));
    }
    text.parse()
        .map_err(|_| format!("strconv.ParseUint: parsing {text:?}: value out of range"))
}

fn capitalized(name: &str) -> String {
    name[..1].to_ascii_uppercase() + &name[1..]
}

fn parse(text: &str) -> Parsed {
    if text.is_empty() {
        return Err("Version string empty".to_string());
    }
    let parts: Vec<&str> = text.splitn(3, '.').collect();
    let [major, minor, rest] = parts.as_slice() else {
        return Err("No Major.Minor.Patch elements found".to_string());
    };
    let (major, minor) = (number(major, "major")?, number(minor, "minor")?);
    let (rest, build) = match rest.split_once('+') {
        Some((rest, build)) => (rest, Some(build)),
        None => (*rest, None),
    };
    let (patch, pre_release) = match rest.split_once('-') {
        Some((patch, pre_release)) => (patch, Some(pre_release)),
        None => (rest, None),
    };
    let patch = number(patch, "patch")?;
    let pre_release = pre_release.map_or(Ok(vec![]), |text| text.split('.').map(identifier).collect())?;
    let build = build.map_or(Ok(vec![]), |text| {
        text.split('.').map(build_part).collect::<Result<Vec<_>, _>>()
    })?;
    Ok(Version {
        numbers: [major, minor, patch],
        pre_release,
        build,
    })
}

fn is_word(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

fn identifier(text: &str) -> Result<Identifier, String> {
    if text.is_empty() {
        return Err("Prerelease is empty".to_string());
    }
    if text.bytes().all(|b| b.is_ascii_digit()) {
        if text.len() > 1 && text.starts_with('0') {
            return Err(format!(
                "Numeric PreRelease version must not contain leading zeroes {text:?}"
            ));
        }
        let number = text.parse();
        return number
            .map(Identifier::Number)
            .map_err(|_| format!("strconv.ParseUint: parsing {text:?}: value out of range"));
    }
    if is_word(text) {
        return Ok(Identifier::Word(text.to_string()));
    }
    Err(format!("Invalid character(s) found in prerelease {text:?}"))
}

fn build_part(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("Build meta data is empty".to_string());
    }
    if is_word(text) {
        Ok(text.to_string())
    } else {
        Err(format!("Invalid character(s) found in build meta data {text:?}"))
    }
}

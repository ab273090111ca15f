//! Field paths in definitions: `.spec.replicas`, `.spec['a.b']`.
//!
//! Upstream: apiextensions-apiserver pkg/apiserver/schema/cel: ValidFieldPath (v1.36).

use orlop_api::field::Path;
use orlop_api::structural::Structural;

/// Text that leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FieldPathError {
    #[error("does not refer to a valid field")]
    NoField,
    #[error("unexpected end of JSON path")]
    End,
    #[error("array notation is not allowed")]
    Array,
    #[error("expected single quoted string but got {0}")]
    Quote(String),
    #[error("expected ] but got {0}")]
    Bracket(String),
    #[error("expected [ or . but got: {0}")]
    Other(String),
    #[error("invalid string literal: {0}")]
    Literal(String),
}

/// A path that was followed: how messages write it, its first field, and the schema it leads to.
pub(crate) struct FieldPath<'s> {
    pub path: Path,
    pub root: String,
    pub schema: Option<&'s Structural>,
}

/// Delimiters, quoted strings, and what is between them.
fn tokens(text: &str) -> Vec<&str> {
    let mut out = vec![];
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let end = if c == '\'' {
            let bytes = rest.as_bytes();
            let close = (1..bytes.len()).find(|i| bytes[*i] == b'\'' && bytes[*i - 1] != b'\\');
            close.map_or(rest.len(), |i| i + 1)
        } else if matches!(c, '.' | '[' | ']') {
            1
        } else {
            rest.find(['.', '[', ']']).unwrap_or(rest.len())
        };
        let (token, behind) = rest.split_at(end);
        out.push(token);
        rest = behind;
    }
    out
}

fn unquote(token: &str) -> Result<String, FieldPathError> {
    let inner = token.strip_prefix('\'').and_then(|t| t.strip_suffix('\''));
    let Some(inner) = inner.filter(|_| token.len() >= 2) else {
        return Err(FieldPathError::Quote(token.to_string()));
    };
    let mut out = String::new();
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | '\'')) => out.push(c),
                _ => return Err(FieldPathError::Literal("invalid syntax".into())),
            },
            c => out.push(c),
        }
    }
    Ok(out)
}

/// Follows a path from a schema. Without `brackets` only the dot notation is allowed.
pub(crate) fn follow<'s>(text: &str, schema: &'s Structural, brackets: bool) -> Result<FieldPath<'s>, FieldPathError> {
    let mut found = FieldPath {
        path: Path::default(),
        root: String::new(),
        schema: Some(schema),
    };
    let mut tokens = tokens(text).into_iter();
    while let Some(token) = tokens.next() {
        let name = match token {
            "[" if !brackets => return Err(FieldPathError::Array),
            "[" => unquote(tokens.next().ok_or(FieldPathError::End)?)?,
            "." => tokens.next().ok_or(FieldPathError::End)?.to_string(),
            other => return Err(FieldPathError::Other(other.to_string())),
        };
        let here = found.schema.ok_or(FieldPathError::NoField)?;
        let first = found.root.is_empty();
        if !here.properties.is_empty() {
            found.path = found.path.member(&name);
            found.schema = Some(here.property(&name).ok_or(FieldPathError::NoField)?);
        } else if here.has_additional() {
            found.path = found.path.key(&name);
            found.schema = here.additional_schema();
        } else {
            return Err(FieldPathError::NoField);
        }
        if first {
            found.root = name;
        }
        if token == "[" {
            match tokens.next() {
                Some("]") => {}
                Some(other) => return Err(FieldPathError::Bracket(other.to_string())),
                None => return Err(FieldPathError::End),
            }
        }
    }
    Ok(found)
}

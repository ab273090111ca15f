//! URLs.
//!
//! Upstream: apiserver/pkg/cel/library/urls.go, Go's net/url.

use super::{Body, Outcome, no_overload};
use crate::program::EvalError;
use crate::value::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

pub(super) const FUNCTIONS: &[(&str, Body)] = &[
    ("url", |args| match args {
        [Value::String(text)] => match parse(text) {
            Ok(url) => Ok(Value::Url(Arc::new(url))),
            Err(why) => Err(EvalError::new(format!(
                "URL parse error during conversion from string: {why}"
            ))),
        },
        _ => no_overload(),
    }),
    ("isURL", |args| match args {
        [Value::String(text)] => Ok(Value::Bool(parse(text).is_ok())),
        _ => no_overload(),
    }),
    ("getScheme", |args| part(args, |url| url.scheme.clone())),
    ("getHost", |args| part(args, |url| url.host.clone())),
    ("getHostname", |args| {
        part(args, |url| split_host(&url.host).0.to_string())
    }),
    ("getPort", |args| part(args, |url| split_host(&url.host).1.to_string())),
    ("getEscapedPath", |args| part(args, |url| url.path.clone())),
    ("getQuery", query),
];

/// A URL, or the path of one.
#[derive(Clone, Debug)]
pub struct Url {
    text: String,
    scheme: String,
    host: String,
    /// Escaped.
    path: String,
    query: String,
}

impl Url {
    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

fn part<'a>(args: &[Value<'a>], of: fn(&Url) -> String) -> Outcome<'a> {
    match args {
        [Value::Url(url)] => Ok(Value::string(of(url))),
        _ => no_overload(),
    }
}

/// Host name without brackets, and port.
fn split_host(host: &str) -> (&str, &str) {
    let (name, port) = match host.rfind(':') {
        Some(at) if host[at + 1..].bytes().all(|b| b.is_ascii_digit()) => (&host[..at], &host[at + 1..]),
        _ => (host, ""),
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    (bare.unwrap_or(name), port)
}

/// A URL with a scheme, or an absolute path; or why it is none.
pub(crate) fn parse(text: &str) -> Result<Url, String> {
    let wrong = |why: &str| Err(format!("parse {text:?}: {why}"));
    if text.is_empty() {
        return wrong("empty url");
    }
    if text.bytes().any(|b| b < 0x20 || b == 0x7f) {
        return wrong("net/url: invalid control character in URL");
    }
    let (scheme, rest) = match scheme(text) {
        Ok(found) => found,
        Err(why) => return wrong(why),
    };
    // A fragment is read by the second of two parsers upstream, for all that it gives.
    let rest = rest.split_once('#').map_or(rest, |(rest, _)| rest);
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    if !rest.starts_with('/') {
        if scheme.is_empty() {
            return wrong("invalid URI for request");
        }
        return Ok(Url {
            text: text.to_string(),
            scheme,
            host: String::new(),
            path: String::new(),
            query: query.to_string(),
        });
    }
    let (authority, path) = match rest.strip_prefix("//") {
        Some(rest) if !scheme.is_empty() || !rest.starts_with('/') => {
            let end = rest.find('/').unwrap_or(rest.len());
            (&rest[..end], &rest[end..])
        }
        _ => ("", rest),
    };
    // Without scheme, two slashes are the start of a path.
    let (authority, path) = if scheme.is_empty() {
        ("", rest)
    } else {
        (authority, path)
    };
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    if let Err(why) = check_host(host) {
        return wrong(&why);
    }
    if let Some(at) = bad_escape(path) {
        let end = path[at..].char_indices().nth(3).map_or(path.len(), |(end, _)| at + end);
        return wrong(&format!("invalid URL escape {:?}", &path[at..end]));
    }
    Ok(Url {
        text: text.to_string(),
        scheme,
        host: host.to_string(),
        path: escape_path(path),
        query: query.to_string(),
    })
}

/// The scheme in lower case, and what follows it.
fn scheme(text: &str) -> Result<(String, &str), &'static str> {
    for (at, b) in text.bytes().enumerate() {
        match b {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if at > 0 => {}
            b':' if at == 0 => return Err("missing protocol scheme"),
            b':' => return Ok((text[..at].to_ascii_lowercase(), &text[at + 1..])),
            _ => break,
        }
    }
    let first = text.split(['/', '?']).next().unwrap_or("");
    if !text.starts_with('/') && first.contains(':') {
        return Err("first path segment in URL cannot contain colon");
    }
    Ok((String::new(), text))
}

fn check_host(host: &str) -> Result<(), String> {
    if let Some(inner) = host.strip_prefix('[') {
        let Some((address, after)) = inner.rsplit_once(']') else {
            return Err("missing ']' in host".to_string());
        };
        if !after.is_empty() && !is_port(after) {
            return Err(format!("invalid port {after:?} after host"));
        }
        let address = address.split('%').next().unwrap_or("");
        if address.parse::<std::net::Ipv6Addr>().is_err() {
            return Err("invalid host: ParseAddr".to_string());
        }
        return Ok(());
    }
    if let Some(at) = host.rfind(':')
        && !is_port(&host[at..])
    {
        return Err(format!("invalid port {:?} after host", &host[at..]));
    }
    if let Some(c) = host.chars().find(|c| " \"<>\\^`{|}".contains(*c)) {
        return Err(format!("invalid character {:?} in host name", c.to_string()));
    }
    match bad_escape(host) {
        Some(_) => Err("invalid URL escape".to_string()),
        None => Ok(()),
    }
}

fn is_port(text: &str) -> bool {
    text.strip_prefix(':')
        .is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()))
}

/// Where a percent sign is not followed by two hexadecimal digits.
fn bad_escape(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_hexdigit);
    bytes
        .iter()
        .enumerate()
        .find(|(at, b)| **b == b'%' && !(digit(at + 1) && digit(at + 2)))
        .map(|(at, _)| at)
}

/// The path with what must be escaped escaped; what is escaped already stays.
fn escape_path(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for b in path.bytes() {
        match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => out.push(char::from(b)),
            b'-' | b'_' | b'.' | b'~' | b'$' | b'&' | b'+' | b',' | b'/' | b':' | b';' | b'=' | b'@' | b'%' | b'!'
            | b'\'' | b'(' | b')' | b'*' | b'[' | b']' => out.push(char::from(b)),
            _ => {
                let _ = write!(out, "%{b:02X}");
            }
        }
    }
    out
}

/// Percent signs and plus signs decoded; None if they are wrong.
fn unescape(text: &str) -> Option<String> {
    if bad_escape(text).is_some() {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(b) = rest.next() {
        match b {
            b'+' => bytes.push(b' '),
            b'%' => {
                let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16));
                bytes.push(u8::try_from(digit()? * 16 + digit()?).ok()?);
            }
            b => bytes.push(b),
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn query<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    let [Value::Url(url)] = args else {
        return no_overload();
    };
    let mut found: BTreeMap<String, Vec<Value<'a>>> = BTreeMap::new();
    for pair in url
        .query
        .split('&')
        .filter(|pair| !pair.is_empty() && !pair.contains(';'))
    {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if let Some((key, value)) = unescape(key).zip(unescape(value)) {
            found.entry(key).or_default().push(Value::string(value));
        }
    }
    Ok(Value::map(
        found.into_iter().map(|(key, values)| (key, Value::list(values))),
    ))
}

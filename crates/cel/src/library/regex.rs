//! Regular expressions: RE2's syntax, linear in the text.
//!
//! Upstream: cel-go's matches, apiserver/pkg/cel/library/regex.go.

use super::{Body, Outcome, no_overload};
use crate::limits;
use crate::program::EvalError;
use crate::value::{Text, Value};
use regex::{Regex, RegexBuilder};

pub(super) const FUNCTIONS: &[(&str, Body)] = &[
    ("matches", |args| computed("matches", args)),
    ("find", |args| computed("find", args)),
    ("findAll", |args| computed("findAll", args)),
];

/// A compiled pattern, bounded in size.
pub(crate) fn compile(pattern: &str) -> Result<Regex, EvalError> {
    let wrong = |why: &str, part: &str| EvalError::new(format!("error parsing regexp: {why}: `{part}`"));
    let translated = re2(pattern).map_err(|(why, part)| wrong(why, &part))?;
    let regex = RegexBuilder::new(&translated).size_limit(limits::REGEX_SIZE).build();
    regex.map_err(|why| match why {
        regex::Error::CompiledTooBig(_) => EvalError::new("error parsing regexp: expression too large"),
        why => {
            let text = why.to_string();
            let last = text.lines().last().unwrap_or("").trim().trim_start_matches("error: ");
            let go = GO_REASONS.iter().find(|(ours, _)| last.starts_with(ours));
            wrong(go.map_or(last, |(_, go)| go), pattern)
        }
    })
}

/// Reasons as Go gives them.
const GO_REASONS: [(&str, &str); 6] = [
    ("unopened group", "unexpected )"),
    ("unclosed group", "missing closing )"),
    ("unclosed character class", "missing closing ]"),
    (
        "repetition operator missing expression",
        "missing argument to repetition operator",
    ),
    ("invalid character class range", "invalid character class range"),
    ("unrecognized escape sequence", "invalid escape sequence"),
];

/// The highest count of a repetition.
const MAX_REPEAT: u32 = 1000;

/// A repetition like `{2,3}` at the start of a text: its length, or that its counts are too high.
fn counted(text: &str) -> Option<Result<usize, ()>> {
    let inside = text.strip_prefix('{')?;
    let end = inside.bytes().take_while(|b| b.is_ascii_digit() || *b == b',').count();
    if inside.as_bytes().get(end) != Some(&b'}') {
        return None;
    }
    let inner = &inside[..end];
    let (low, high) = inner.split_once(',').unwrap_or((inner, ""));
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if low.is_empty() || !digits(low) || !digits(high) {
        return None;
    }
    let fits = |part: &str| part.is_empty() || part.parse::<u32>().is_ok_and(|count| count <= MAX_REPEAT);
    Some(if fits(low) && fits(high) { Ok(end + 2) } else { Err(()) })
}

type Chars<'p> = std::iter::Peekable<std::str::CharIndices<'p>>;

/// The pattern in Rust's syntax, which differs from RE2's in what names and classes of bytes mean.
fn re2(pattern: &str) -> Result<String, (&'static str, String)> {
    // In RE2 the classes \d, \s and \w and the borders \b are ASCII's.
    let mut out = String::with_capacity(pattern.len() + 16);
    let (mut chars, mut in_class) = (pattern.char_indices().peekable(), false);
    let next_is = |chars: &Chars<'_>, wanted: char| chars.clone().next().is_some_and(|(_, c)| c == wanted);
    // Where the last repetition started, if nothing came after it.
    let mut repeated: Option<usize> = None;
    let mut at = 0;
    while let Some((_, c)) = chars.next() {
        let rest = &pattern[at..];
        let count = if in_class || c != '{' { None } else { counted(rest) };
        if !in_class && (count.is_some() || "*+?".contains(c)) {
            let length = match count {
                Some(Err(())) => return Err(("invalid repeat count", rest.to_string())),
                Some(Ok(length)) => length,
                None => 1,
            };
            // One question mark makes it lazy.
            let lazy = usize::from(rest[length..].starts_with('?'));
            let end = at + length + lazy;
            if let Some(start) = repeated {
                return Err(("invalid nested repetition operator", pattern[start..end].to_string()));
            }
            repeated = Some(at);
            out.push_str(&pattern[at..end]);
            for _ in 1..length + lazy {
                chars.next();
            }
            at = end;
            continue;
        }
        repeated = None;
        match c {
            '{' if !in_class => out.push_str("\\{"),
            '\\' => match chars.next().map(|(_, c)| c) {
                Some(class @ ('d' | 's' | 'w' | 'D' | 'S' | 'W')) => out.push_str(ascii_class(class, in_class)),
                Some(border @ ('b' | 'B')) if !in_class => {
                    out.push_str("(?-u:\\");
                    out.push(border);
                    out.push(')');
                }
                Some('Q') => quote_literally(&mut chars, &mut out),
                Some('C') => out.push('.'),
                Some(other) => {
                    out.push('\\');
                    out.push(other);
                }
                None => out.push('\\'),
            },
            '[' if in_class => {
                // A class of its own in Rust, a character in RE2, but for [:alpha:].
                if !next_is(&chars, ':') {
                    out.push('\\');
                }
                out.push('[');
                if next_is(&chars, ':') {
                    copy_named_class(&mut chars, &mut out);
                }
            }
            '[' => {
                in_class = true;
                out.push('[');
                if next_is(&chars, '^') {
                    out.push('^');
                    chars.next();
                }
                if next_is(&chars, ']') {
                    out.push_str("\\]");
                    chars.next();
                }
            }
            ']' if in_class => {
                in_class = false;
                out.push(']');
            }
            // Set operations are Rust's only.
            '&' | '~' if in_class => {
                out.push('\\');
                out.push(c);
            }
            '-' if in_class && next_is(&chars, '-') => out.push_str("\\-"),
            c => out.push(c),
        }
        at = chars.peek().map_or(pattern.len(), |(at, _)| *at);
    }
    Ok(out)
}

fn copy_named_class(chars: &mut Chars<'_>, out: &mut String) {
    for (_, c) in chars.by_ref() {
        out.push(c);
        if c == ']' {
            break;
        }
    }
}

fn quote_literally(chars: &mut Chars<'_>, out: &mut String) {
    let mut text = String::new();
    while let Some((_, c)) = chars.next() {
        if c == '\\' && chars.peek().is_some_and(|(_, c)| *c == 'E') {
            chars.next();
            break;
        }
        text.push(c);
    }
    out.push_str(&regex::escape(&text));
}

fn ascii_class(class: char, in_class: bool) -> &'static str {
    match (class, in_class) {
        ('d', true) => "0-9",
        ('d', false) => "[0-9]",
        ('s', true) => "\\t\\n\\x0C\\r ",
        ('s', false) => "[\\t\\n\\x0C\\r ]",
        ('w', true) => "0-9A-Za-z_",
        ('w', false) => "[0-9A-Za-z_]",
        ('D', _) => "[^0-9]",
        ('S', _) => "[^\\t\\n\\x0C\\r ]",
        _ => "[^0-9A-Za-z_]",
    }
}

fn computed<'a>(function: &str, args: &[Value<'a>]) -> Outcome<'a> {
    match args.get(1) {
        Some(Value::String(pattern)) => {
            let regex = compile(pattern).map_err(|error| match function {
                "matches" => error,
                _ => EvalError::new(format!("Illegal regex: {error}")),
            })?;
            apply(function, &regex, args)
        }
        _ => no_overload(),
    }
}

/// `matches`, `find` or `findAll` with a compiled pattern.
pub(crate) fn apply<'a>(function: &str, regex: &Regex, args: &[Value<'a>]) -> Outcome<'a> {
    let Some(Value::String(text)) = args.first() else {
        return no_overload();
    };
    let most = match args.get(2) {
        None => -1,
        Some(Value::Int(most)) => *most,
        Some(_) => return no_overload(),
    };
    Ok(match function {
        "matches" => Value::Bool(regex.is_match(text)),
        "find" => regex
            .find(text)
            .map_or_else(|| Value::string(""), |found| part(text, found.range())),
        _ => {
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            Value::list(
                regex
                    .find_iter(text)
                    .take(most)
                    .map(|found| part(text, found.range()))
                    .collect(),
            )
        }
    })
}

fn part<'a>(text: &Text<'a>, range: std::ops::Range<usize>) -> Value<'a> {
    match text {
        Text::Borrowed(text) => Value::String(Text::Borrowed(&text[range])),
        Text::Shared(text) => Value::string(&text[range]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_they_mean_in_re2() {
        for (pattern, text, matches) in [
            (r"^\d+$", "123", true),
            (r"^\d+$", "١٢٣", false),
            (r"^[\w.-]+$", "a_b.c-d", true),
            (r"^[[a]+$", "[a[", true),
            (r"^[]a]+$", "]a", true),
            (r"^[[:alpha:]]+$", "abc", true),
            (r"^[a&&b]+$", "a&b", true),
            (r"\bfoo\b", "a foo b", true),
            (r"^\Qa.b\E$", "a.b", true),
            (r"^\Qa.b\E$", "axb", false),
            (r"(?i)^ABC$", "abc", true),
            (r"^\S+$", "a\u{a0}b", true),
        ] {
            assert_eq!(compile(pattern).unwrap().is_match(text), matches, "{pattern} {text}");
        }
        assert!(compile("x++").is_err());
        assert!(compile("x{2}?y{a}").is_ok());
        assert!(compile("x{1001}").is_err());
        assert!(compile("(").is_err());
        assert!(compile("(a{1000}){1000}").is_err());
    }
}

//! Regular expressions as Go writes them (RE2), matched in linear time.
//!
//! The syntax of the `regex` crate is nearly the same; what differs is translated: `\d`, `\w`, `\s` and `\b` are of ASCII,
//! `\Q…\E` quotes, `\<` is a plain character, brackets within classes are too, and so are braces that repeat nothing.

use std::sync::OnceLock;

use regex::{Regex, RegexBuilder};

/// The largest compiled program, in bytes.
const MAX_PROGRAM_BYTES: usize = 4 << 20;
/// The largest cache of states that matching builds up.
const MAX_CACHE_BYTES: usize = 256 << 10;

/// A pattern that is compiled when first matched.
#[derive(Debug, Clone)]
pub struct Pattern {
    text: Box<str>,
    compiled: OnceLock<Option<Box<Regex>>>,
}

/// A text that is no pattern, in Go's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("error parsing regexp: {0}")]
pub struct PatternError(String);

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.text == other.text
    }
}

impl Pattern {
    pub fn new(text: &str) -> Pattern {
        Pattern {
            text: text.into(),
            compiled: OnceLock::new(),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the pattern is found in a text; None if it is not a pattern at all.
    pub fn is_match(&self, text: &str) -> Option<bool> {
        let compiled = self.compiled.get_or_init(|| compile(&self.text).ok().map(Box::new));
        compiled.as_ref().map(|regex| regex.is_match(text))
    }
}

/// Compiles a pattern in Go's syntax.
pub fn compile(pattern: &str) -> Result<Regex, PatternError> {
    let translated = translate(pattern)?;
    RegexBuilder::new(&translated)
        .size_limit(MAX_PROGRAM_BYTES)
        .dfa_size_limit(MAX_CACHE_BYTES)
        .build()
        .map_err(|e| PatternError(refusal(pattern, &e)))
}

/// Why Go refuses the pattern, as far as it can be told; else our own library's last line.
fn refusal(pattern: &str, error: &regex::Error) -> String {
    let text = error.to_string();
    let reason = text.lines().last().unwrap_or_default();
    let reason = reason.strip_prefix("error: ").unwrap_or(reason);
    if reason.contains("unclosed group") {
        return format!("missing closing ): `{pattern}`");
    }
    if reason.contains("unopened group") {
        return format!("unexpected ): `{pattern}`");
    }
    if reason.contains("unclosed character class") {
        let from = pattern.rfind('[').unwrap_or(0);
        return format!("missing closing ]: `{}`", &pattern[from..]);
    }
    if reason.contains("repetition operator missing expression") {
        let op = pattern.find(['*', '+', '?']).unwrap_or(0);
        return format!("missing argument to repetition operator: `{}`", &pattern[op..=op]);
    }
    if reason.contains("look-around") {
        let from = ["(?=", "(?!", "(?<=", "(?<!"].iter().find(|w| pattern.contains(**w));
        let shown = from.copied().unwrap_or("(?");
        let shown = if shown.starts_with("(?<") { "(?<" } else { shown };
        return format!("invalid or unsupported Perl syntax: `{shown}`");
    }
    if reason.contains("exceeds size limit") {
        return format!("expression too large: `{pattern}`");
    }
    if reason.contains("incomplete escape") {
        return "trailing backslash at end of expression: ``".to_string();
    }
    format!("{reason}: `{pattern}`")
}

/// The pattern in the syntax of the `regex` crate.
fn translate(pattern: &str) -> Result<String, PatternError> {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern;
    let mut class = Class::Outside;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        match (c, class) {
            ('\\', _) => {
                rest = escape(after, class, &mut out)?;
                class = class.inside();
                continue;
            }
            ('[', Class::Outside) => {
                out.push('[');
                class = Class::Start;
                rest = after;
                if let Some(negated) = rest.strip_prefix('^') {
                    out.push('^');
                    rest = negated;
                }
                continue;
            }
            // A bracket that closes nothing yet is a plain character.
            (']', Class::Start) => out.push_str("\\]"),
            (']', Class::Inside) => {
                out.push(']');
                class = Class::Outside;
                rest = after;
                continue;
            }
            ('[', _) => match after
                .strip_prefix(':')
                .and_then(|name| name.find(":]").map(|end| &rest[..end + 4]))
            {
                Some(named) => {
                    out.push_str(named);
                    rest = &rest[named.len()..];
                    class = Class::Inside;
                    continue;
                }
                None => out.push_str("\\["),
            },
            ('&' | '~', Class::Start | Class::Inside) => {
                out.push('\\');
                out.push(c);
            }
            // Two hyphens would be a difference of classes.
            ('-', Class::Start | Class::Inside) if after.starts_with('-') && !after.starts_with("-]") => {
                out.push_str("\\-")
            }
            ('{', Class::Outside) if !is_repetition(rest) => out.push_str("\\{"),
            ('}', Class::Outside) if !closes_repetition(pattern, rest) => out.push_str("\\}"),
            (other, _) => out.push(other),
        }
        class = class.inside();
        rest = after;
    }
    Ok(out)
}

/// Where in a bracket expression we are.
#[derive(Clone, Copy, PartialEq)]
enum Class {
    Outside,
    /// Just behind its opening.
    Start,
    Inside,
}

impl Class {
    fn inside(self) -> Class {
        match self {
            Class::Outside => Class::Outside,
            Class::Start | Class::Inside => Class::Inside,
        }
    }
}

/// What follows a backslash; the result is the rest behind it.
fn escape<'p>(after: &'p str, class: Class, out: &mut String) -> Result<&'p str, PatternError> {
    let Some(c) = after.chars().next() else {
        return Err(PatternError("trailing backslash at end of expression: ``".into()));
    };
    let rest = &after[c.len_utf8()..];
    match c {
        'd' => out.push_str("[0-9]"),
        'D' => out.push_str("[^0-9]"),
        'w' => out.push_str("[0-9A-Za-z_]"),
        'W' => out.push_str("[^0-9A-Za-z_]"),
        's' => out.push_str("[\\t\\n\\x0c\\r ]"),
        'S' => out.push_str("[^\\t\\n\\x0c\\r ]"),
        'b' if class == Class::Outside => out.push_str("(?-u:\\b)"),
        'B' if class == Class::Outside => out.push_str("(?-u:\\B)"),
        'Q' if class == Class::Outside => {
            let (quoted, behind) = rest.split_once("\\E").unwrap_or((rest, ""));
            out.push_str(&regex::escape(quoted));
            return Ok(behind);
        }
        'p' | 'P' | 'x' => {
            let braced = rest.strip_prefix('{').and_then(|name| name.find('}'));
            let (name, behind) = rest.split_at(braced.map_or(0, |end| end + 2));
            out.push('\\');
            out.push(c);
            out.push_str(name);
            return Ok(behind);
        }
        '<' | '>' => out.push(c),
        'Z' | 'G' | 'u' | 'U' | 'e' | 'K' | 'R' | 'X' | 'h' | 'H' | 'V' | 'N' | 'E' | '1'..='9' => {
            return Err(PatternError(format!("invalid escape sequence: `\\{c}`")));
        }
        other => {
            out.push('\\');
            out.push(other);
        }
    }
    Ok(rest)
}

/// `{2}`, `{2,}`, `{2,3}`
fn is_repetition(text: &str) -> bool {
    let Some(end) = text.find('}') else { return false };
    let inner = &text[1..end];
    let (low, high) = inner.split_once(',').unwrap_or((inner, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    !low.is_empty() && digits(low) && digits(high)
}

/// Whether the brace at the start of `rest` ends a repetition.
fn closes_repetition(pattern: &str, rest: &str) -> bool {
    let before = &pattern[..pattern.len() - rest.len()];
    let Some(open) = before.rfind('{') else { return false };
    is_repetition(&pattern[open..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_go() {
        for (pattern, matching, other) in [
            (r"^[a-z]+$", "abc", "ABC"),
            (r"^\d+$", "123", "\u{0663}"),
            (r"^\w+$", "a_1", "\u{e4}"),
            (r"^[\w.-]+$", "a.b-c", "a b"),
            (r"^[^\d]$", "a", "1"),
            (r"^[[]a[]]$", "[a]", "a"),
            (r"^[]a]+$", "]a", "b"),
            (r"^[a&&b]+$", "&", "c"),
            (r"^a{$", "a{", "a"),
            (r"^a{2,3}$", "aa", "a"),
            (r"^{a}$", "{a}", "a"),
            (r"^\Qa.b\E$", "a.b", "axb"),
            (r"^[[:alpha:]]+$", "aB", "1"),
            (r"^\p{Greek}$", "\u{3b1}", "a"),
            (r"\bfoo\b", "a foo b", "afoo"),
            (r"^\/a\-b$", "/a-b", "a-b"),
            (r"^\x{41}$", "A", "B"),
        ] {
            let p = Pattern::new(pattern);
            assert_eq!(p.is_match(matching), Some(true), "{pattern} {matching}");
            assert_eq!(p.is_match(other), Some(false), "{pattern} {other}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for (pattern, message) in [
            ("(", "error parsing regexp: missing closing ): `(`"),
            (")", "error parsing regexp: unexpected ): `)`"),
            ("[a", "error parsing regexp: missing closing ]: `[a`"),
            (
                "*a",
                "error parsing regexp: missing argument to repetition operator: `*`",
            ),
            (
                "(?!a)",
                "error parsing regexp: invalid or unsupported Perl syntax: `(?!`",
            ),
            (
                r"a\",
                "error parsing regexp: trailing backslash at end of expression: ``",
            ),
            (r"(a)\1", r"error parsing regexp: invalid escape sequence: `\1`"),
        ] {
            assert_eq!(compile(pattern).unwrap_err().to_string(), message, "{pattern}");
            assert_eq!(Pattern::new(pattern).is_match("x"), None);
        }
        assert!(
            compile(&format!("({}){{1000}}", "[a-z]{1000}")).is_err(),
            "a program that is too large"
        );
    }
}

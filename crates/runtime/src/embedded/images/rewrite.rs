//! Rewrites of repositories for mirrors: the regular expressions that k3s' documentation shows, which are a beginning,
//! an end and groups of anything. A whole engine for regular expressions would be the larger part of this crate; what
//! is not understood is refused by name.

/// `^library/(.*)` → `hub/$1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rewrite {
    pieces: Vec<Piece>,
    from_start: bool,
    to_end: bool,
    replacement: Vec<Replacement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Literal(String),
    /// `(.*)`, `(.+)`: with the least number of bytes.
    Group(usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Replacement {
    Literal(String),
    Group(usize),
}

impl Rewrite {
    pub(super) fn parse(pattern: &str, replacement: &str) -> Result<Rewrite, String> {
        let (from_start, rest) = match pattern.strip_prefix('^') {
            Some(rest) => (true, rest),
            None => (false, pattern),
        };
        let (to_end, rest) = match rest.strip_suffix('$') {
            Some(rest) if !rest.ends_with('\\') => (true, rest),
            _ => (false, rest),
        };
        let pieces = parse_pattern(rest)?;
        let groups = pieces.iter().filter(|p| matches!(p, Piece::Group(_))).count();
        let replacement = parse_replacement(replacement, groups)?;
        Ok(Rewrite {
            pieces,
            from_start,
            to_end,
            replacement,
        })
    }

    /// The path with the first match replaced; `None` without a match.
    pub(super) fn apply(&self, path: &str) -> Option<String> {
        let starts = match self.from_start {
            true => 0..=0,
            false => 0..=path.len(),
        };
        for start in starts.filter(|at| path.is_char_boundary(*at)) {
            let mut groups = vec![];
            let Some(length) = find_match(&self.pieces, &path[start..], self.to_end, &mut groups) else {
                continue;
            };
            // Found from the last to the first.
            groups.reverse();
            let mut text = path[..start].to_string();
            for part in &self.replacement {
                match part {
                    Replacement::Literal(literal) => text.push_str(literal),
                    Replacement::Group(0) => text.push_str(&path[start..start + length]),
                    Replacement::Group(number) => text.push_str(groups.get(number - 1).map_or("", String::as_str)),
                }
            }
            text.push_str(&path[start + length..]);
            return Some(text);
        }
        None
    }
}

/// How many bytes match, groups as long as possible.
fn find_match(pieces: &[Piece], text: &str, to_end: bool, groups: &mut Vec<String>) -> Option<usize> {
    match pieces.split_first() {
        None => (!to_end || text.is_empty()).then_some(0),
        Some((Piece::Literal(literal), rest)) => {
            let after = text.strip_prefix(literal.as_str())?;
            Some(literal.len() + find_match(rest, after, to_end, groups)?)
        }
        Some((Piece::Group(least), rest)) => {
            let lengths = (*least..=text.len()).rev().filter(|at| text.is_char_boundary(*at));
            for length in lengths {
                if let Some(more) = find_match(rest, &text[length..], to_end, groups) {
                    groups.push(text[..length].to_string());
                    return Some(length + more);
                }
            }
            None
        }
    }
}

fn parse_pattern(mut text: &str) -> Result<Vec<Piece>, String> {
    const MAX_GROUPS: usize = 4;
    let mut pieces = vec![];
    let mut literal = String::new();
    while let Some(next) = text.chars().next() {
        let group = [("(.*)", 0), ("(.+)", 1)];
        if let Some((form, least)) = group.iter().find(|(form, _)| text.starts_with(form)) {
            if !literal.is_empty() {
                pieces.push(Piece::Literal(std::mem::take(&mut literal)));
            }
            pieces.push(Piece::Group(*least));
            text = &text[form.len()..];
            continue;
        }
        text = &text[next.len_utf8()..];
        match next {
            '\\' => {
                let escaped = text.chars().next().filter(char::is_ascii_punctuation);
                let escaped = escaped.ok_or("only punctuation can be escaped with \\")?;
                literal.push(escaped);
                text = &text[escaped.len_utf8()..];
            }
            // In repositories' names a period can only be meant as one.
            '.' if !text.starts_with(['*', '+', '?', '{']) => literal.push('.'),
            '^' | '$' | '.' | '*' | '+' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '|' => {
                return Err(format!(
                    "{next:?} is not supported: patterns are made of plain text, ^, $, (.*) and (.+)"
                ));
            }
            _ => literal.push(next),
        }
    }
    if !literal.is_empty() {
        pieces.push(Piece::Literal(literal));
    }
    match pieces.iter().filter(|p| matches!(p, Piece::Group(_))).count() > MAX_GROUPS {
        true => Err(format!("more than {MAX_GROUPS} groups")),
        false => Ok(pieces),
    }
}

/// Text with `$1` or `${1}`.
fn parse_replacement(mut text: &str, groups: usize) -> Result<Vec<Replacement>, String> {
    let mut parts = vec![];
    while let Some(at) = text.find('$') {
        if at > 0 {
            parts.push(Replacement::Literal(text[..at].to_string()));
        }
        let rest = &text[at + 1..];
        let (number, after) = match rest.strip_prefix('{') {
            Some(inner) => inner.split_once('}').ok_or("${ is not closed")?,
            None => rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())),
        };
        let number: usize = number
            .parse()
            .map_err(|_| "$ must be followed by the number of a group")?;
        if number > groups {
            return Err(format!("there is no group ${number}"));
        }
        parts.push(Replacement::Group(number));
        text = after;
    }
    if !text.is_empty() {
        parts.push(Replacement::Literal(text.to_string()));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_documentation_shows() {
        for (pattern, replacement, path, want) in [
            ("^library/(.*)", "hub/$1", "library/busybox", Some("hub/busybox")),
            ("^library/(.*)", "hub/$1", "a/library/b", None),
            (
                "^rancher/(.*)",
                "mirrorproject/rancher-images/$1",
                "rancher/a/b",
                Some("mirrorproject/rancher-images/a/b"),
            ),
            ("(.*)", "proxy/$1", "a/b", Some("proxy/a/b")),
            ("^(.*)$", "proxy/${1}x", "a", Some("proxy/ax")),
            ("a.b", "c", "x/a.b/y", Some("x/c/y")),
            ("a\\.b$", "c", "a.b/a.b", Some("a.b/c")),
            ("^(.+)/(.*)$", "$2-$1-$0", "a/b/c", Some("c-a/b-a/b/c")),
            ("^(.+)/(.+)$", "$2", "a/", None),
        ] {
            let rewrite = Rewrite::parse(pattern, replacement).unwrap();
            assert_eq!(rewrite.apply(path).as_deref(), want, "{pattern} {path}");
        }
        for (pattern, replacement) in [
            ("[a-z]", ""),
            ("a|b", ""),
            ("a*", ""),
            (".*", ""),
            ("(a)", ""),
            ("a\\d", ""),
            ("a", "$1"),
            ("(.*)", "${1"),
            ("(.*)", "$x"),
            ("(.*)(.*)(.*)(.*)(.*)", ""),
        ] {
            assert!(Rewrite::parse(pattern, replacement).is_err(), "{pattern} {replacement}");
        }
    }
}

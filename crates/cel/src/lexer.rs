//! The tokens of an expression.
//!
//! Upstream: the lexer's rules of cel-go/parser/gen/CEL.g4.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Token {
    /// An operator, bracket or word that stands for itself.
    Symbol(&'static str),
    Int,
    Uint,
    Float,
    String,
    Bytes,
    Identifier,
    /// In backticks.
    EscapedIdentifier,
    End,
}

/// A token, its text, and the code points before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lexeme<'s> {
    pub(crate) token: Token,
    pub(crate) text: &'s str,
    pub(crate) offset: u32,
}

/// What is no token.
#[derive(Clone, Debug)]
pub(crate) struct Unrecognized<'s> {
    pub(crate) text: &'s str,
    pub(crate) offset: u32,
}

const SYMBOLS: [&str; 25] = [
    "==", "!=", "<=", ">=", "&&", "||", "<", ">", "[", "]", "{", "}", "(", ")", ".", ",", "-", "!", "?", ":", "+", "*",
    "/", "%", "in",
];
const WORDS: [&str; 4] = ["true", "false", "null", "in"];

/// All tokens, the last of which is the end, and what was skipped as none.
pub(crate) fn tokens(text: &str) -> (Vec<Lexeme<'_>>, Vec<Unrecognized<'_>>) {
    let (mut lexemes, mut unrecognized) = (Vec::new(), Vec::new());
    let (mut rest, mut offset) = (text, 0u32);
    while !rest.is_empty() {
        let (token, length) = next(rest);
        let length = length.max(rest.chars().next().map_or(1, char::len_utf8));
        let (taken, after) = rest.split_at(length);
        match token {
            Next::Token(token) => lexemes.push(Lexeme {
                token,
                text: taken,
                offset,
            }),
            Next::Space => {}
            Next::Unknown => unrecognized.push(Unrecognized { text: taken, offset }),
        }
        offset += u32::try_from(taken.chars().count()).unwrap_or(u32::MAX);
        rest = after;
    }
    lexemes.push(Lexeme {
        token: Token::End,
        text: "<EOF>",
        offset,
    });
    (lexemes, unrecognized)
}

enum Next {
    Token(Token),
    Space,
    Unknown,
}

/// What the text starts with, and how many bytes of it that is.
fn next(text: &str) -> (Next, usize) {
    let bytes = text.as_bytes();
    let first = bytes[0];
    if b"\t \r\n\x0c".contains(&first) {
        let length = bytes.iter().take_while(|b| b"\t \r\n\x0c".contains(b)).count();
        return (Next::Space, length);
    }
    if text.starts_with("//") {
        return (Next::Space, text.find('\n').unwrap_or(text.len()));
    }
    if let Some(found) = quoted(text) {
        return found;
    }
    if first.is_ascii_digit() || (first == b'.' && bytes.get(1).is_some_and(u8::is_ascii_digit)) {
        let (token, length) = number(bytes);
        return (Next::Token(token), length);
    }
    if first.is_ascii_alphabetic() || first == b'_' {
        let length = bytes
            .iter()
            .take_while(|b| b.is_ascii_alphanumeric() || **b == b'_')
            .count();
        let word = WORDS.iter().find(|word| **word == &text[..length]);
        return (
            Next::Token(word.map_or(Token::Identifier, |word| Token::Symbol(word))),
            length,
        );
    }
    if first == b'`' {
        let inner = &bytes[1..];
        let allowed = |b: &u8| b.is_ascii_alphanumeric() || b"_.-/ ".contains(b);
        let length = inner.iter().take_while(|b| allowed(b)).count();
        if length > 0 && inner.get(length) == Some(&b'`') {
            return (Next::Token(Token::EscapedIdentifier), length + 2);
        }
        return (Next::Unknown, 1);
    }
    // What could have become a symbol is refused with the character that it did not become one by.
    if b"|&=".contains(&first) && bytes.get(1) != Some(&first) {
        let length = text.chars().take(2).map(char::len_utf8).sum();
        return (Next::Unknown, length);
    }
    match SYMBOLS.iter().find(|symbol| text.starts_with(**symbol)) {
        Some(symbol) => (Next::Token(Token::Symbol(symbol)), symbol.len()),
        None => (Next::Unknown, 0),
    }
}

/// A string or bytes literal, if the text starts like one.
fn quoted(text: &str) -> Option<(Next, usize)> {
    let after_b = text.strip_prefix(['b', 'B']);
    let token = if after_b.is_some() { Token::Bytes } else { Token::String };
    let after_b = after_b.unwrap_or(text);
    let after_r = after_b.strip_prefix(['r', 'R']);
    let raw = after_r.is_some();
    let body = after_r.unwrap_or(after_b);
    let quote = ["\"\"\"", "'''", "\"", "'"]
        .into_iter()
        .find(|quote| body.starts_with(quote))?;
    let prefix = text.len() - body.len();
    match quoted_length(body, quote, raw) {
        Ok(length) => Some((Next::Token(token), prefix + length)),
        // Three quotes that are not closed may be an empty literal before another quote.
        Err(_) if quote.len() == 3 => Some((Next::Token(token), prefix + 2)),
        Err(at) => {
            // With the character by which it is no literal.
            let next = body[at..].chars().next().map_or(0, char::len_utf8);
            Some((Next::Unknown, prefix + at + next))
        }
    }
}

/// The length of a literal with its quotes; or where it is wrong: the end, or an escape that there is not.
fn quoted_length(body: &str, quote: &str, raw: bool) -> Result<usize, usize> {
    let bytes = body.as_bytes();
    let mut at = quote.len();
    loop {
        let rest = bytes.get(at..).filter(|rest| !rest.is_empty()).ok_or(bytes.len())?;
        if rest.starts_with(quote.as_bytes()) {
            return Ok(at + quote.len());
        }
        at += match rest[0] {
            b'\\' if !raw => 1 + escape_length(&rest[1..]).map_err(|bad| (at + 1 + bad).min(bytes.len()))?,
            b'\n' | b'\r' if quote.len() == 1 => return Err(at),
            _ => 1,
        };
    }
}

/// The length of an escape without its backslash, or which of its characters is wrong.
fn escape_length(rest: &[u8]) -> Result<usize, usize> {
    let digits = |count: usize, first: usize, is_digit: fn(&u8) -> bool| {
        let end = first + count;
        match (first..end).find(|at| !rest.get(*at).is_some_and(is_digit)) {
            Some(bad) => Err(bad),
            None => Ok(end),
        }
    };
    match rest.first() {
        Some(b'a' | b'b' | b'f' | b'n' | b'r' | b't' | b'v' | b'"' | b'\'' | b'\\' | b'?' | b'`') => Ok(1),
        Some(b'x' | b'X') => digits(2, 1, u8::is_ascii_hexdigit),
        Some(b'u') => digits(4, 1, u8::is_ascii_hexdigit),
        Some(b'U') => digits(8, 1, u8::is_ascii_hexdigit),
        Some(b'0'..=b'3') => digits(2, 1, |b| (b'0'..=b'7').contains(b)),
        _ => Err(0),
    }
}

fn number(bytes: &[u8]) -> (Token, usize) {
    let digits = |from: usize| bytes[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let suffixed = |length: usize, token: Token| match bytes.get(length) {
        Some(b'u' | b'U') if token == Token::Int => (Token::Uint, length + 1),
        _ => (token, length),
    };
    if bytes.starts_with(b"0x") {
        let length = bytes[2..].iter().take_while(|b| b.is_ascii_hexdigit()).count();
        if length > 0 {
            return suffixed(length + 2, Token::Int);
        }
    }
    let (mut length, mut token) = (digits(0), Token::Int);
    if bytes.get(length) == Some(&b'.') && digits(length + 1) > 0 {
        length += 1 + digits(length + 1);
        token = Token::Float;
    }
    if matches!(bytes.get(length), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(length + 1), Some(b'+' | b'-')));
        let start = length + 1 + sign;
        if bytes.len() > start && digits(start) > 0 {
            length = start + digits(start);
            token = Token::Float;
        }
    }
    suffixed(length, token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_expressions() {
        for (text, expected) in [
            ("a.b", "a|.|b"),
            ("1.5e+3 .5 1u 0x1Fu 0x 7.a", "1.5e+3|.5|1u|0x1Fu|0|x|7|.|a"),
            ("a in inner // c\n&& b", "a|in|inner|&&|b"),
            (r#"'a\'b' "" b"x" r'\' '''a'b'''"#, r#"'a\'b'|""|b"x"|r'\'|'''a'b'''"#),
            ("`a-b.c`", "`a-b.c`"),
            ("\"é\"+é", "\"é\"|+"),
            ("a & b", "a|b"),
            ("a &b", "a"),
        ] {
            let (lexemes, _) = tokens(text);
            let texts: Vec<_> = lexemes[..lexemes.len() - 1].iter().map(|lexeme| lexeme.text).collect();
            assert_eq!(texts.join("|"), expected, "{text}");
        }
    }
}

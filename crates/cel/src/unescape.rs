//! The texts of string and bytes literals.
//!
//! Upstream: cel-go/parser/unescape.go.

/// Why a literal has no value, in cel-go's words.
pub(crate) type Reason = &'static str;

const UNABLE: Reason = "unable to unescape string";

/// The characters of a string literal, given with prefix and quotes.
pub(crate) fn string(literal: &str) -> Result<String, Reason> {
    let bytes = unescape(literal, false)?;
    String::from_utf8(bytes).map_err(|_| UNABLE)
}

/// The bytes of a bytes literal, given without its `b`.
pub(crate) fn bytes(literal: &str) -> Result<Vec<u8>, Reason> {
    unescape(literal, true)
}

fn unescape(literal: &str, is_bytes: bool) -> Result<Vec<u8>, Reason> {
    let text = literal.replace("\r\n", "\n").replace('\r', "\n");
    let (raw, quoted) = match text.strip_prefix(['r', 'R']) {
        Some(rest) => (true, rest),
        None => (false, text.as_str()),
    };
    let inner = ["\"\"\"", "'''", "\"", "'"].iter().find_map(|quote| {
        let inner = quoted.strip_prefix(quote)?.strip_suffix(quote)?;
        Some(inner)
    });
    let inner = inner.ok_or(UNABLE)?;
    if raw || !inner.contains('\\') {
        return Ok(inner.as_bytes().to_vec());
    }
    let mut out = Vec::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            push(&mut out, c);
            continue;
        }
        let escape = chars
            .next()
            .ok_or("unable to unescape string, found '\\' as last character")?;
        let plain = match escape {
            'a' => Some(7),
            'b' => Some(8),
            'f' => Some(12),
            'n' => Some(b'\n'),
            'r' => Some(b'\r'),
            't' => Some(b'\t'),
            'v' => Some(11),
            '\\' | '\'' | '"' | '`' | '?' => u8::try_from(escape).ok(),
            _ => None,
        };
        match (plain, escape) {
            (Some(byte), _) => out.push(byte),
            (None, 'x' | 'X') => code(&mut out, number(&mut chars, 2, 16, UNABLE)?, is_bytes)?,
            (None, 'u') if !is_bytes => code(&mut out, number(&mut chars, 4, 16, UNABLE)?, false)?,
            (None, 'U') if !is_bytes => code(&mut out, number(&mut chars, 8, 16, UNABLE)?, false)?,
            (None, '0'..='3') => {
                let high = escape.to_digit(8).unwrap_or(0) * 64;
                let low = number(&mut chars, 2, 8, "unable to unescape octal sequence in string")?;
                code(&mut out, high + low, is_bytes)?;
            }
            _ => return Err(UNABLE),
        }
    }
    Ok(out)
}

fn push(out: &mut Vec<u8>, c: char) {
    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}

/// A number of so many digits.
fn number(chars: &mut std::str::Chars<'_>, digits: u32, base: u32, reason: Reason) -> Result<u32, Reason> {
    (0..digits).try_fold(0u32, |sum, _| {
        let digit = chars.next().and_then(|c| c.to_digit(base)).ok_or(reason)?;
        Ok(sum.wrapping_mul(base) | digit)
    })
}

/// Writes a code: in bytes literals the byte, else the code point.
fn code(out: &mut Vec<u8>, code: u32, is_byte: bool) -> Result<(), Reason> {
    match (is_byte, u8::try_from(code)) {
        (true, Ok(byte)) => out.push(byte),
        _ => push(out, char::from_u32(code).ok_or("invalid unicode code point")?),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals() {
        for (literal, value) in [
            (r#""hello""#, Ok("hello")),
            (r#"'a\tb\x41\u00e9\U0001f600\101\?\`'"#, Ok("a\tbAé😀A?`")),
            (r#"r'a\tb'"#, Ok(r"a\tb")),
            ("'''a\"b'c\r\nd'''", Ok("a\"b'c\nd")),
            (r#"'\ud800'"#, Err("invalid unicode code point")),
            (r#"'\q'"#, Err(UNABLE)),
            (r#"'\x4'"#, Err(UNABLE)),
            (r#"'\08'"#, Err("unable to unescape octal sequence in string")),
        ] {
            assert_eq!(string(literal), value.map(str::to_string), "{literal}");
        }
        assert_eq!(bytes(r#"'\xff\303é'"#), Ok(vec![0xff, 0xc3, 0xc3, 0xa9]));
        assert_eq!(bytes(r#"'\u00e9'"#), Err(UNABLE));
    }
}

//! What is wrong with text that is not JSON, in Go's words: people know them, and find help for them.

/// The first thing wrong with `bytes` as JSON; none if it is JSON.
pub fn json_syntax_error(bytes: &[u8]) -> Option<String> {
    let mut scan = Scan { bytes, at: 0 };
    scan.document().err()
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

type Step = Result<(), String>;

impl Scan<'_> {
    fn peek(&self) -> Result<u8, String> {
        let end = || "unexpected end of JSON input".to_string();
        self.bytes.get(self.at).copied().ok_or_else(end)
    }

    fn space(&mut self) {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn wrong<T>(&self, context: &str) -> Result<T, String> {
        Err(format!("invalid character {} {context}", quoted(self.peek()?)))
    }

    fn document(&mut self) -> Step {
        self.values()?;
        self.space();
        match self.at == self.bytes.len() {
            true => Ok(()),
            false => self.wrong("after top-level value"),
        }
    }

    /// A value with all that is in it, without recursion: the text may nest as deep as it likes.
    fn values(&mut self) -> Step {
        let mut open = vec![];
        loop {
            self.space();
            match self.peek()? {
                bracket @ (b'{' | b'[') => {
                    self.at += 1;
                    self.space();
                    let empty = self.peek()? == bracket + 2;
                    if !empty {
                        open.push(bracket);
                        if bracket == b'{' {
                            self.key()?;
                        }
                        continue;
                    }
                    self.at += 1;
                }
                b'"' => self.string()?,
                b't' => self.literal("true")?,
                b'f' => self.literal("false")?,
                b'n' => self.literal("null")?,
                b'-' | b'0'..=b'9' => self.number()?,
                _ => return self.wrong("looking for beginning of value"),
            }
            if self.close(&mut open)? {
                return Ok(());
            }
        }
    }

    /// After a value: what it closes, up to the next one. True at the end of the outermost.
    fn close(&mut self, open: &mut Vec<u8>) -> Result<bool, String> {
        while let Some(bracket) = open.last().copied() {
            self.space();
            match (self.peek()?, bracket) {
                (b',', b'{') => {
                    self.at += 1;
                    self.space();
                    self.key()?;
                    return Ok(false);
                }
                (b',', _) => {
                    self.at += 1;
                    return Ok(false);
                }
                (b'}', b'{') | (b']', b'[') => {
                    self.at += 1;
                    open.pop();
                }
                (_, b'{') => return self.wrong("after object key:value pair"),
                _ => return self.wrong("after array element"),
            }
        }
        Ok(true)
    }

    fn key(&mut self) -> Step {
        if self.peek()? != b'"' {
            return self.wrong("looking for beginning of object key string");
        }
        self.string()?;
        self.space();
        if self.peek()? != b':' {
            return self.wrong("after object key");
        }
        self.at += 1;
        Ok(())
    }

    fn string(&mut self) -> Step {
        self.at += 1;
        loop {
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Ok(());
                }
                b'\\' => {
                    self.at += 1;
                    self.escape()?;
                }
                0..0x20 => return self.wrong("in string literal"),
                _ => self.at += 1,
            }
        }
    }

    fn escape(&mut self) -> Step {
        let kind = self.peek()?;
        if !b"bfnrt\\/\"u".contains(&kind) {
            return self.wrong("in string escape code");
        }
        self.at += 1;
        if kind == b'u' {
            for _ in 0..4 {
                if !self.peek()?.is_ascii_hexdigit() {
                    return self.wrong("in \\u hexadecimal character escape");
                }
                self.at += 1;
            }
        }
        Ok(())
    }

    fn literal(&mut self, word: &str) -> Step {
        for expected in word.bytes() {
            if self.peek()? != expected {
                let expecting = quoted(expected);
                return self.wrong(&format!("in literal {word} (expecting {expecting})"));
            }
            self.at += 1;
        }
        Ok(())
    }

    fn digits(&mut self, context: &str) -> Step {
        if !self.peek()?.is_ascii_digit() {
            return self.wrong(context);
        }
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Step {
        if self.peek()? == b'-' {
            self.at += 1;
        }
        match self.peek()? {
            b'0' => self.at += 1,
            _ => self.digits("in numeric literal")?,
        }
        if self.bytes.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digits("after decimal point in numeric literal")?;
        }
        if matches!(self.bytes.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek()?, b'+' | b'-') {
                self.at += 1;
            }
            self.digits("in exponent of numeric literal")?;
        }
        Ok(())
    }
}

/// A byte as Go quotes it in these messages.
fn quoted(byte: u8) -> String {
    match byte {
        b'\'' => r"'\''".to_string(),
        b'\t' => r"'\t'".to_string(),
        b'\n' => r"'\n'".to_string(),
        b'\r' => r"'\r'".to_string(),
        b'\\' => r"'\\'".to_string(),
        0x20..0x7f => format!("'{}'", byte as char),
        0..0x20 | 0x7f => format!(r"'\x{byte:02x}'"),
        0x80..0xa0 => format!(r"'\u{byte:04x}'"),
        _ => format!("'{}'", char::from(byte)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn errors_read_as_go_writes_them() {
        for (text, wanted) in [
            ("", "unexpected end of JSON input"),
            (r#"{"a":"#, "unexpected end of JSON input"),
            (r#"{"a" "b"}"#, "invalid character '\"' after object key"),
            ("nonsense", "invalid character 'o' in literal null (expecting 'u')"),
            ("garbage", "invalid character 'g' looking for beginning of value"),
            (
                "{a}",
                "invalid character 'a' looking for beginning of object key string",
            ),
            (
                r#"{"a":1,}"#,
                "invalid character '}' looking for beginning of object key string",
            ),
            (r#"{"a":1 "b"}"#, "invalid character '\"' after object key:value pair"),
            ("[1 2]", "invalid character '2' after array element"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("{} {}", "invalid character '{' after top-level value"),
            ("01", "invalid character '1' after top-level value"),
            ("-x", "invalid character 'x' in numeric literal"),
            ("1.x", "invalid character 'x' after decimal point in numeric literal"),
            ("1ex", "invalid character 'x' in exponent of numeric literal"),
            (r#""\q""#, "invalid character 'q' in string escape code"),
            (
                r#""\u00g0""#,
                r"invalid character 'g' in \u hexadecimal character escape",
            ),
            ("\"\n\"", r"invalid character '\n' in string literal"),
            ("'a'", r"invalid character '\'' looking for beginning of value"),
        ] {
            assert_eq!(json_syntax_error(text.as_bytes()).as_deref(), Some(wanted), "{text}");
        }
        for text in ["null", " {} ", r#"[1, {"a": [true, false, "\u00e9\n"]}, -0.5e+3]"#] {
            assert_eq!(json_syntax_error(text.as_bytes()), None, "{text}");
        }
        assert!(json_syntax_error(&[b'['; 100_000]).is_some());
    }

    proptest! {
        #[test]
        fn agrees_with_the_reader(text in r#"[\[\]{}",:0-9truefalsnl. \-]{0,24}"#) {
            let reads = serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok();
            prop_assert_eq!(json_syntax_error(text.as_bytes()).is_none(), reads);
        }
    }
}

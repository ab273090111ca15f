//! The text of a JSON body. What is no text becomes the replacement character, as Go's decoder has it: bytes that are no
//! UTF-8, and halves of surrogate pairs.

use std::borrow::Cow;

/// The body as text that serde_json reads.
pub(crate) fn of_bytes(bytes: &[u8]) -> Cow<'_, str> {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(replace_invalid(bytes)),
    };
    if has_surrogates(text.as_bytes()) {
        return Cow::Owned(replace_lone_surrogates(&text));
    }
    text
}

/// One replacement for each byte that is not part of a character, not one for each run of them.
fn replace_invalid(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() + 16);
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| '\u{fffd}'));
    }
    text
}

/// Whether an escape such as `\ud83d` is there: hardly ever, and cheap to see.
fn has_surrogates(text: &[u8]) -> bool {
    let marks = |w: &[u8]| w[0] == b'\\' && w[1] == b'u' && w[2] | 0x20 == b'd' && w[3] >= b'8';
    text.contains(&b'\\') && text.windows(4).any(marks)
}

fn replace_lone_surrogates(text: &str) -> String {
    let bytes = text.as_bytes();
    // The value of the escape at `i`, if there is one.
    let escape = |i: usize| -> Option<u32> {
        let digits = text.get(i..i + 6)?.strip_prefix("\\u")?;
        digits.bytes().all(|b| b.is_ascii_hexdigit()).then_some(())?;
        u32::from_str_radix(digits, 16).ok()
    };
    let mut out = String::with_capacity(text.len());
    let (mut i, mut copied) = (0, 0);
    while i < bytes.len() {
        if bytes[i] != b'\\' {
            i += 1;
            continue;
        }
        match escape(i) {
            Some(0xd800..=0xdbff) if matches!(escape(i + 6), Some(0xdc00..=0xdfff)) => i += 12,
            Some(0xd800..=0xdfff) => {
                out.push_str(&text[copied..i]);
                out.push_str("\\ufffd");
                i += 6;
                copied = i;
            }
            Some(_) => i += 6,
            // Another escape, such as a backslash itself: what follows it is no start of one.
            None => i += 2,
        }
    }
    out.push_str(&text[copied..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_is_replaced() {
        let cases: [(&[u8], &str); 11] = [
            (b"plain", "plain"),
            ("gr\u{fc}\u{df}e \u{1f600}".as_bytes(), "gr\u{fc}\u{df}e \u{1f600}"),
            (b"x\xff\xfey", "x\u{fffd}\u{fffd}y"),
            (b"\xe2\x82", "\u{fffd}\u{fffd}"),
            (br#""\ud83d\ude00""#, r#""\ud83d\ude00""#),
            (br#""\ud83d""#, r#""\ufffd""#),
            (br#""\uDE00\ud83d""#, r#""\ufffd\ufffd""#),
            (br#""\ud83dx\ude00""#, r#""\ufffdx\ufffd""#),
            (br#""\\ud83d\n""#, r#""\\ud83d\n""#),
            (br#""\u00e9\ud800\u00e9""#, r#""\u00e9\ufffd\u00e9""#),
            (b"\\ud8", "\\ud8"),
        ];
        for (bytes, text) in cases {
            assert_eq!(of_bytes(bytes), text, "{}", String::from_utf8_lossy(bytes));
        }
        // A cut anywhere ends in an error of the decoder, not in a panic here.
        let whole = r#"{"a":"\ud83d\ude00é\\"}"#.as_bytes();
        (0..whole.len()).for_each(|n| drop(of_bytes(&whole[..n])));
    }
}

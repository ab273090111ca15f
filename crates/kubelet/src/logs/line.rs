//! A line of a log file: `2016-10-06T00:17:09.669794202Z stdout P what the container wrote`.
//!
//! The third word has tags separated by colons; the first is `F` for a whole line or the end of one, and `P` for a part
//! that goes on in the next line of the file.

use jiff::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// Everything before what the container wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head<'a> {
    pub time: Timestamp,
    /// As it is in the file: shown as it was written.
    pub time_text: &'a str,
    pub stream: Stream,
    pub is_partial: bool,
}

/// Takes a line without its newline apart. None for what is no line of a log.
pub fn parse(line: &[u8]) -> Option<(Head<'_>, &[u8])> {
    let (time, rest) = word(line)?;
    let (stream, rest) = word(rest)?;
    // A container that wrote an empty line may leave nothing after the tags, not even a space.
    let (tags, content) = word(rest).unwrap_or((rest, b""));
    let time_text = std::str::from_utf8(time).ok()?;
    let head = Head {
        time: time_text.parse().ok()?,
        time_text,
        stream: match stream {
            b"stdout" => Stream::Stdout,
            b"stderr" => Stream::Stderr,
            _ => return None,
        },
        is_partial: match tags.split(|b| *b == b':').next()? {
            b"F" => false,
            b"P" => true,
            _ => return None,
        },
    };
    Some((head, content))
}

fn word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = text.iter().position(|b| *b == b' ')?;
    Some((&text[..space], &text[space + 1..]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_and_what_is_none() {
        let time = "2016-10-06T00:17:09.669794202Z";
        let whole = |text: &str| {
            let line = format!("{time} {text}");
            let (head, content) = parse(line.as_bytes())?;
            assert_eq!(head.time_text, time);
            let content = String::from_utf8_lossy(content).into_owned();
            Some(format!("{:?} {} {content}", head.stream, head.is_partial))
        };
        let cases = [
            ("stdout F a b  c", Some("Stdout false a b  c")),
            ("stderr P part", Some("Stderr true part")),
            ("stdout F:TAG:2 x", Some("Stdout false x")),
            ("stdout F ", Some("Stdout false ")),
            ("stdout F", Some("Stdout false ")),
            ("stdin F x", None),
            ("stdout X x", None),
            ("stdout ", None),
            ("stdout", None),
        ];
        for (text, expected) in cases {
            assert_eq!(whole(text).as_deref(), expected, "{text}");
        }
        for line in [
            "",
            " ",
            "now stdout F x",
            "{\"log\":\"docker\"}",
            "2016-10-06 stdout F x",
        ] {
            assert_eq!(parse(line.as_bytes()), None, "{line}");
        }
    }

    proptest! {
        #[test]
        fn hostile_bytes_are_no_harm(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&line);
        }

        #[test]
        fn what_a_container_wrote_comes_back(content in proptest::collection::vec(any::<u8>(), 0..200), part: bool) {
            let mut line = format!("2026-01-01T00:00:00Z stderr {} ", if part { "P" } else { "F" }).into_bytes();
            line.extend(&content);
            let (head, found) = parse(&line).unwrap();
            prop_assert_eq!(found, &content[..]);
            prop_assert_eq!(head.is_partial, part);
        }
    }
}

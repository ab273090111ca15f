//! From the bytes of a log file to the bytes a reader asked for.

use super::line::{self, Stream};
use super::{Query, Streams};

/// Runtimes split lines at 16 KiB. A line of the file that is longer than this is handed on in parts, so that no file
/// can make us hold more.
const LINE_MAX: usize = 128 * 1024;

/// Takes blocks of a file in order and gives what is to be shown. Holds at most the last unfinished line.
pub struct Filter {
    query: Query,
    /// The beginning of a line whose end has not come yet.
    rest: Vec<u8>,
    /// The line is longer than we hold: its beginning was handled.
    in_long_line: Option<Shown>,
    /// The last piece shown ended a line of the container's.
    at_line_start: bool,
    left: Option<u64>,
}

/// What to do with the rest of a long line.
#[derive(Clone, Copy)]
struct Shown {
    show: bool,
    ends_line: bool,
}

impl Filter {
    pub fn new(query: &Query) -> Filter {
        Filter {
            query: query.clone(),
            rest: Vec::new(),
            in_long_line: None,
            at_line_start: true,
            left: query.limit_bytes,
        }
    }

    /// The reader has got as many bytes as it wanted.
    pub fn is_full(&self) -> bool {
        self.left == Some(0)
    }

    /// Adds what is to be shown of this block to `out`.
    pub fn feed(&mut self, mut block: &[u8], out: &mut Vec<u8>) {
        while !self.is_full() && !block.is_empty() {
            let Some(end) = block.iter().position(|b| *b == b'\n') else {
                return self.keep(block, out);
            };
            let line = &block[..end];
            block = &block[end + 1..];
            match self.in_long_line.take() {
                Some(shown) => self.rest_of_long_line(line, shown, true, out),
                None if self.rest.is_empty() => self.line(line, out),
                None => {
                    let mut whole = std::mem::take(&mut self.rest);
                    whole.extend_from_slice(line);
                    self.line(&whole, out);
                    // The room is used again.
                    whole.clear();
                    self.rest = whole;
                }
            }
        }
    }

    /// The file is at its end for now, and what follows is another one: an unfinished line won't be finished.
    pub fn end_of_file(&mut self) {
        self.rest.clear();
        self.in_long_line = None;
    }

    /// Keeps the beginning of a line; hands it on if it grows too long.
    fn keep(&mut self, part: &[u8], out: &mut Vec<u8>) {
        if let Some(shown) = self.in_long_line {
            return self.rest_of_long_line(part, shown, false, out);
        }
        self.rest.extend_from_slice(part);
        if self.rest.len() < LINE_MAX {
            return;
        }
        let beginning = std::mem::take(&mut self.rest);
        let shown = match line::parse(&beginning) {
            Some((head, content)) => {
                let show = self.shows(&head);
                if show {
                    self.begin(head.time_text, out);
                    self.put(content, out);
                    self.at_line_start = false;
                }
                Shown {
                    show,
                    ends_line: !head.is_partial,
                }
            }
            None => Shown {
                show: false,
                ends_line: false,
            },
        };
        self.in_long_line = Some(shown);
    }

    fn rest_of_long_line(&mut self, part: &[u8], shown: Shown, is_end: bool, out: &mut Vec<u8>) {
        if shown.show {
            self.put(part, out);
            if is_end && shown.ends_line {
                self.put(b"\n", out);
                self.at_line_start = true;
            }
        }
        if !is_end {
            self.in_long_line = Some(shown);
        }
    }

    fn line(&mut self, line: &[u8], out: &mut Vec<u8>) {
        let Some((head, content)) = line::parse(line) else {
            return;
        };
        if !self.shows(&head) {
            return;
        }
        self.begin(head.time_text, out);
        self.put(content, out);
        if !head.is_partial {
            self.put(b"\n", out);
        }
        self.at_line_start = !head.is_partial;
    }

    fn shows(&self, head: &line::Head<'_>) -> bool {
        let stream = match self.query.streams {
            Streams::All => true,
            Streams::Stdout => head.stream == Stream::Stdout,
            Streams::Stderr => head.stream == Stream::Stderr,
        };
        stream && self.query.since.is_none_or(|since| head.time >= since)
    }

    fn begin(&mut self, time: &str, out: &mut Vec<u8>) {
        if self.query.timestamps && self.at_line_start {
            self.put(time.as_bytes(), out);
            self.put(b" ", out);
        }
    }

    fn put(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let count = match &mut self.left {
            None => bytes.len(),
            Some(left) => {
                let count = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= count as u64;
                count
            }
        };
        out.extend_from_slice(&bytes[..count]);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOG: &str = "2026-01-01T00:00:01Z stdout F one\n\
                       2026-01-01T00:00:02Z stderr F two\n\
                       broken\n\
                       2026-01-01T00:00:03Z stdout P thr\n\
                       2026-01-01T00:00:04Z stdout F ee\n\
                       2026-01-01T00:00:05Z stdout F \n\
                       2026-01-01T00:00:06Z stdout F unfinish";

    fn shown(query: &Query, log: &[u8], block: usize) -> String {
        let mut filter = Filter::new(query);
        let mut out = Vec::new();
        log.chunks(block.max(1)).for_each(|part| filter.feed(part, &mut out));
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn what_is_asked_for() {
        let query = Query::default();
        let cases = [
            (query.clone(), "one\ntwo\nthree\n\n"),
            (
                Query {
                    streams: Streams::Stderr,
                    ..query.clone()
                },
                "two\n",
            ),
            (
                Query {
                    streams: Streams::Stdout,
                    limit_bytes: Some(6),
                    ..query.clone()
                },
                "one\nth",
            ),
            (
                Query {
                    limit_bytes: Some(0),
                    ..query.clone()
                },
                "",
            ),
            (
                Query {
                    since: Some("2026-01-01T00:00:03Z".parse().unwrap()),
                    ..query.clone()
                },
                "three\n\n",
            ),
            (
                Query {
                    timestamps: true,
                    since: Some("2026-01-01T00:00:02Z".parse().unwrap()),
                    ..query
                },
                "2026-01-01T00:00:02Z two\n2026-01-01T00:00:03Z three\n2026-01-01T00:00:05Z \n",
            ),
        ];
        for (query, expected) in cases {
            for block in [1, 7, 4096] {
                assert_eq!(shown(&query, LOG.as_bytes(), block), expected, "{query:?}");
            }
        }
    }

    #[test]
    fn endless_lines_are_handed_on() {
        let long = "x".repeat(3 * LINE_MAX);
        let log = format!("2026-01-01T00:00:01Z stdout F {long}\n2026-01-01T00:00:02Z stdout F next\n{long}{long}\n");
        let query = Query {
            timestamps: true,
            ..Query::default()
        };
        let expected = format!("2026-01-01T00:00:01Z {long}\n2026-01-01T00:00:02Z next\n");
        assert!(shown(&query, log.as_bytes(), 10_000) == expected);
        let mut filter = Filter::new(&query);
        let mut out = Vec::new();
        for _ in 0..100 {
            filter.feed(long.as_bytes(), &mut out);
            assert!(filter.rest.capacity() <= 8 * LINE_MAX);
        }
        assert!(out.is_empty());
    }

    proptest! {
        /// How a file is cut into blocks makes no difference, and nothing is made up.
        #[test]
        fn blocks_do_not_matter(
            lines in proptest::collection::vec((any::<bool>(), any::<bool>(), "[a-z\\n ]{0,20}"), 0..20),
            block in 1usize..64,
            limit in proptest::option::of(0u64..100),
        ) {
            let mut log = String::new();
            let mut expected = String::new();
            for (part, err, content) in &lines {
                let content = content.replace('\n', "");
                let (stream, tag) = (if *err { "stderr" } else { "stdout" }, if *part { "P" } else { "F" });
                log.push_str(&format!("2026-01-01T00:00:01Z {stream} {tag} {content}\n"));
                expected.push_str(&content);
                if !part {
                    expected.push('\n');
                }
            }
            expected.truncate(limit.map_or(usize::MAX, |n| n as usize).min(expected.len()));
            let query = Query { limit_bytes: limit, ..Query::default() };
            prop_assert_eq!(shown(&query, log.as_bytes(), block), expected);
        }

        #[test]
        fn hostile_files_are_no_harm(log in proptest::collection::vec(any::<u8>(), 0..2000), block in 1usize..300) {
            shown(&Query { timestamps: true, ..Query::default() }, &log, block);
        }
    }
}

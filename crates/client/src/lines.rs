//! The lines of a body that goes on and on, with as little copying as its frames allow.

use std::io::BufRead;

use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;

use crate::error::BoxError;
use crate::transport::ResponseBody;

/// No object of a cluster is nearly as long.
const LINE_MAX: usize = 64 << 20;

pub(crate) struct Lines {
    body: ResponseBody,
    /// What is left of the last frame.
    frame: Bytes,
    /// The beginning of a line whose end is yet to come.
    partial: BytesMut,
}

impl Lines {
    pub(crate) fn new(body: ResponseBody) -> Lines {
        Lines {
            body,
            frame: Bytes::new(),
            partial: BytesMut::new(),
        }
    }

    /// The next whole line, line break included; none at the end. A line without its end is as if it never came: it
    /// will be sent again. Safe to drop while waiting.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, BoxError> {
        loop {
            if let Some(line) = self.buffered() {
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Ok(Some(line));
            }
            if self.partial.len() > LINE_MAX {
                return Err("watch event exceeds 64 MiB".into());
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(data) = frame?.into_data() {
                        self.frame = data;
                    }
                }
            }
        }
    }

    /// The next line of what has come already. Otherwise all of the frame goes to `partial`.
    fn buffered(&mut self) -> Option<Bytes> {
        let mut rest: &[u8] = &self.frame;
        let length = rest.skip_until(b'\n').expect("a slice can be read");
        if length == 0 || self.frame[length - 1] != b'\n' {
            self.partial.extend_from_slice(&self.frame);
            self.frame.clear();
            return None;
        }
        if self.partial.is_empty() {
            return Some(self.frame.split_to(length));
        }
        self.partial.extend_from_slice(&self.frame[..length]);
        self.frame.advance(length);
        Some(self.partial.split().freeze())
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use proptest::prelude::*;

    use super::*;

    fn lines_of(frames: Vec<Bytes>) -> Vec<String> {
        let frames = frames.into_iter().map(|bytes| Ok(Frame::data(bytes)));
        let body = StreamBody::new(futures::stream::iter(frames.collect::<Vec<_>>()));
        let mut lines = Lines::new(ResponseBody::new(body));
        let mut found = vec![];
        while let Some(line) = lines.next().now_or_never().expect("all frames are there").unwrap() {
            found.push(String::from_utf8(line.to_vec()).unwrap());
        }
        found
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_where_frames_are_cut(
            lines in prop::collection::vec("[a-c]{1,9}", 0..8),
            cuts in prop::collection::vec(0usize..90, 0..8),
            tail in "[a-c]{0,3}",
        ) {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect::<String>() + &tail;
            let mut bytes = Bytes::from(text);
            let mut frames = vec![];
            for cut in cuts {
                frames.push(bytes.split_to(cut.min(bytes.len()).min(7)));
            }
            frames.push(bytes);
            let expected: Vec<String> = lines.iter().map(|line| format!("{line}\n")).collect();
            prop_assert_eq!(lines_of(frames), expected);
        }
    }

    #[test]
    fn empty_lines_are_nothing() {
        assert_eq!(lines_of(vec![Bytes::from_static(b"\n \r\na\n\nb")]), ["a\n"]);
    }
}

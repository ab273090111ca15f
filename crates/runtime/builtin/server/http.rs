//! Requests and responses as text.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::{http_client, text};

pub(super) const MAX_HEAD: usize = 32 << 10;
pub(super) const MAX_BODY: usize = 1 << 20;

pub(super) struct HttpRequest {
    pub(super) method: String,
    pub(super) target: String,
    pub(super) version: String,
    pub(super) headers: Vec<String>,
    pub(super) body: Vec<u8>,
    pub(super) keep_alive: bool,
}

impl HttpRequest {
    /// The next whole request; `None` while it is not; a status if it never will be.
    pub(super) fn take(input: &mut Vec<u8>) -> Result<Option<HttpRequest>, u16> {
        let Some(end) = http_client::find(input, b"\r\n\r\n") else {
            return if input.len() > MAX_HEAD { Err(431) } else { Ok(None) };
        };
        let head = String::from_utf8_lossy(&input[..end]).into_owned();
        let mut lines = head.split("\r\n");
        let mut words = lines.next().unwrap_or_default().split(' ');
        let mut word = || words.next().unwrap_or_default().to_string();
        let (method, target, version) = (word(), word(), word());
        if !version.starts_with("HTTP/1.") || method.is_empty() {
            return Err(400);
        }
        let headers: Vec<String> = lines.map(str::to_string).collect();
        let value = |name: &str| {
            let found = headers.iter().filter_map(|h| h.split_once(':'));
            found
                .filter(|(n, _)| n.eq_ignore_ascii_case(name))
                .map(|(_, v)| v.trim().to_ascii_lowercase())
                .next()
        };
        let chunked = value("transfer-encoding").is_some_and(|v| v == "chunked");
        let (body, used) = if chunked {
            let rest = &input[end + 4..];
            match (http_client::unchunk(rest), http_client::find(rest, b"0\r\n\r\n")) {
                (Some(body), Some(at)) => (body, end + 4 + at + 5),
                _ if rest.len() > MAX_BODY => return Err(413),
                _ => return Ok(None),
            }
        } else {
            let length: usize = match value("content-length") {
                None => 0,
                Some(text) => text.parse().map_err(|_| 400u16)?,
            };
            if length > MAX_BODY {
                return Err(413);
            }
            if input.len() < end + 4 + length {
                return Ok(None);
            }
            (input[end + 4..end + 4 + length].to_vec(), end + 4 + length)
        };
        let connection = value("connection").unwrap_or_default();
        let keep_alive = match version.as_str() {
            "HTTP/1.0" => connection.contains("keep-alive"),
            _ => !connection.contains("close"),
        };
        input.drain(..used);
        Ok(Some(HttpRequest {
            method,
            target,
            version,
            headers,
            body,
            keep_alive,
        }))
    }

    pub(super) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    pub(super) fn parameter(&self, name: &str) -> Option<String> {
        let (_, query) = self.target.split_once('?')?;
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs
            .filter(|(key, _)| *key == name)
            .map(|(_, value)| text::percent_decode(value))
            .next()
    }
}

pub(super) fn response(status: u16, content_type: &str, body: &[u8], keep: bool, head_only: bool) -> Vec<u8> {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        413 => "Content Too Large",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        _ => "Status",
    };
    let mut bytes = format!("HTTP/1.1 {status} {reason}\r\nContent-Length: {}\r\n", body.len());
    if !content_type.is_empty() {
        bytes.push_str(&format!("Content-Type: {content_type}\r\n"));
    }
    bytes.push_str(if keep { "\r\n" } else { "Connection: close\r\n\r\n" });
    let mut bytes = bytes.into_bytes();
    if !head_only {
        bytes.extend_from_slice(body);
    }
    bytes
}

//! `/logs/`: the files below /var/log. Nothing outside of that directory, whatever the path or a symlink says.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures::StreamExt;
use http::Response;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::io::AsyncReadExt;

use super::query::decode;
use super::{BoxError, HttpResponse, answer, text};

const BLOCK: usize = 64 * 1024;
/// Entries of a directory that are shown.
const ENTRIES_MAX: usize = 10_000;

pub(super) async fn serve(root: &Path, path: &str) -> HttpResponse {
    let (root, wanted) = (root.to_path_buf(), path.to_string());
    let found = crate::blocking::run(move || find(&root, &wanted)).await;
    match found {
        Ok(Some(Found::Folder(page))) => answer(200, "text/html; charset=utf-8", page),
        Ok(Some(Found::File(path))) => file(path).await,
        Ok(None) | Err(_) => text(404, "404 page not found"),
    }
}

enum Found {
    Folder(String),
    File(PathBuf),
}

/// None for what does not exist and for what is not accessible, so that clients can't distinguish the two.
fn find(root: &Path, path: &str) -> Option<Found> {
    let root = root.canonicalize().ok()?;
    let mut wanted = root.clone();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        let part = decode(part, false);
        if part == "." || part == ".." || part.contains(['/', '\0']) {
            return None;
        }
        wanted.push(part);
    }
    // Links have been followed here: what they lead to must be inside, too.
    let real = wanted.canonicalize().ok()?;
    if !real.starts_with(&root) {
        return None;
    }
    let metadata = real.metadata().ok()?;
    match (metadata.is_dir(), metadata.is_file()) {
        (true, _) => Some(Found::Folder(listing(&real)?)),
        (_, true) => Some(Found::File(real)),
        // Pipes and devices would hold us up.
        _ => None,
    }
}

fn listing(folder: &Path) -> Option<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .ok()?
        .flatten()
        .take(ENTRIES_MAX)
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder { name + "/" } else { name }
        })
        .collect();
    names.sort();
    let mut page = String::from("<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n");
    for name in names {
        page.push_str(&format!("<a href=\"{}\">{}</a>\n", link(&name), escaped(&name)));
    }
    page.push_str("</pre>\n");
    Some(page)
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&#34;").replace('\'', "&#39;")
}

fn link(name: &str) -> String {
    let mut out = String::new();
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => out.push(byte as char),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

async fn file(path: PathBuf) -> HttpResponse {
    let file = match tokio::fs::File::open(path).await {
        Ok(file) => file,
        Err(_) => return text(404, "404 page not found"),
    };
    let blocks = futures::stream::unfold(file, async |mut file| {
        let mut block = vec![0; BLOCK];
        match file.read(&mut block).await {
            Ok(0) => None,
            Ok(count) => {
                block.truncate(count);
                Some((Ok(Frame::data(Bytes::from(block))), file))
            }
            Err(error) => Some((Err(BoxError::from(error)), file)),
        }
    });
    let mut response = Response::new(StreamBody::new(blocks.boxed()).boxed_unsync());
    let plain = http::HeaderValue::from_static(super::PLAIN);
    response.headers_mut().insert(http::header::CONTENT_TYPE, plain);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_is_shown() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("log");
        std::fs::create_dir_all(root.join("pods")).unwrap();
        std::fs::write(dir.path().join("secret"), "s").unwrap();
        std::fs::write(root.join("a<b.log"), "hello").unwrap();
        std::os::unix::fs::symlink(dir.path().join("secret"), root.join("out")).unwrap();
        std::os::unix::fs::symlink(dir.path(), root.join("up")).unwrap();
        std::os::unix::fs::symlink(root.join("a<b.log"), root.join("in")).unwrap();
        let look = |path: &str| match find(&root, path) {
            None => "none".to_string(),
            Some(Found::Folder(page)) => page,
            Some(Found::File(path)) => std::fs::read_to_string(path).unwrap(),
        };
        let page = look("/");
        assert!(page.contains("<a href=\"a%3Cb.log\">a&lt;b.log</a>") && page.contains("<a href=\"pods/\">pods/</a>"));
        assert_eq!((look("/a%3Cb.log").as_str(), look("/in").as_str()), ("hello", "hello"));
        for path in [
            "/../secret",
            "/%2e%2e/secret",
            "/..%2fsecret",
            "/out",
            "/up/secret",
            "/nothing",
            "/a%00",
        ] {
            assert_eq!(look(path), "none", "{path}");
        }
    }
}

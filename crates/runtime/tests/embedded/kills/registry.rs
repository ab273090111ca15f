//! A registry on loopback that has every image that it is asked for: a layer that is the same for all, and one of its own,
//! so that every pull downloads and unpacks something.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::json;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

pub(super) struct Registry {
    port: u16,
}

struct Content {
    base: Vec<u8>,
    images: Mutex<HashMap<String, Arc<TestImage>>>,
}

struct TestImage {
    manifest: Vec<u8>,
    config: Vec<u8>,
    layer: Vec<u8>,
}

impl Registry {
    /// Serves in the network of the calling thread, as long as the process lives.
    pub(super) fn start(base: &Path) -> Registry {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let content = Arc::new(Content {
            base: archive(base),
            images: Mutex::default(),
        });
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let content = content.clone();
                // A client that was killed has no more use for an answer.
                std::thread::spawn(move || drop(content.answer(stream)));
            }
        });
        Registry { port }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }
}

/// What a directory has, as `tar` packs it, always the same.
fn archive(dir: &Path) -> Vec<u8> {
    let output = Command::new("tar")
        .args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "-C"])
        .arg(dir)
        .args(["-cf", "-", "."])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn sha256(bytes: &[u8]) -> String {
    let hex: String = digest(&SHA256, bytes)
        .as_ref()
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    format!("sha256:{hex}")
}

impl Content {
    fn image(&self, name: &str) -> Arc<TestImage> {
        let mut images = self.images.lock().unwrap();
        let image = images
            .entry(name.to_string())
            .or_insert_with(|| Arc::new(self.make(name)));
        image.clone()
    }

    fn make(&self, name: &str) -> TestImage {
        let own = tempfile::tempdir().unwrap();
        std::fs::write(own.path().join("name"), name).unwrap();
        let layer = archive(own.path());
        let config = json!({"architecture": architecture(), "os": "linux", "config": {"Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [sha256(&self.base), sha256(&layer)]}});
        let config = config.to_string().into_bytes();
        let described = |kind: &str, bytes: &[u8]| json!({"mediaType": format!("application/vnd.oci.image.{kind}"), "digest": sha256(bytes), "size": bytes.len()});
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": described("config.v1+json", &config),
            "layers": [described("layer.v1.tar", &self.base), described("layer.v1.tar", &layer)]});
        TestImage {
            manifest: manifest.to_string().into_bytes(),
            config,
            layer,
        }
    }

    /// One request a connection.
    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
        for line in lines {
            if line?.is_empty() {
                break;
            }
        }
        let words: Vec<&str> = first.split(' ').collect();
        let (method, path) = (words[0], words.get(1).copied().unwrap_or_default());
        let (status, kind, body) = match path.trim_matches('/').split('/').collect::<Vec<_>>()[..] {
            ["v2", name, "manifests", _] => ("200 OK", MANIFEST, self.image(name).manifest.clone()),
            ["v2", name, "blobs", wanted] => {
                let image = self.image(name);
                let found = [&image.config, &image.layer, &self.base];
                match found.into_iter().find(|bytes| sha256(bytes) == wanted) {
                    Some(bytes) => ("200 OK", "application/octet-stream", bytes.clone()),
                    None => ("404 Not Found", "application/json", b"{}".to_vec()),
                }
            }
            ["v2"] => ("200 OK", "application/json", b"{}".to_vec()),
            _ => ("404 Not Found", "application/json", b"{}".to_vec()),
        };
        let mut head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n",
            body.len()
        );
        if kind == MANIFEST {
            head.push_str(&format!("Docker-Content-Digest: {}\r\n", sha256(&body)));
        }
        stream.write_all(format!("{head}\r\n").as_bytes())?;
        if method != "HEAD" {
            stream.write_all(&body)?;
        }
        stream.shutdown(std::net::Shutdown::Write)?;
        // Until the client has everything: what is not read is thrown away with the connection.
        stream.take(1).read_to_end(&mut vec![]).map(drop)
    }
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

//! The images that Orlop brings along: `orlop.local/echo` and `orlop.local/pause`.
//!
//! Both have one and the same layer, made of our own program (`crates/runtime/builtin`) and links to it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use serde_json::json;

use super::digest::Digest;
use super::install::Install;
use super::manifest::{Descriptor, ImageConfig, Manifest, OCI_CONFIG, OCI_LAYER, OCI_MANIFEST, Platform};
use super::tar::{Entry, Kind, TarWriter};

/// The program, where there is one for this architecture.
#[cfg(builtin_images)]
pub(super) const PROGRAM: &[u8] = include_bytes!(env!("ORLOP_BUILTIN_PROGRAM"));
#[cfg(not(builtin_images))]
pub const PROGRAM: &[u8] = &[];

/// Names that the program is found by in `/bin`.
const TOOLS: &[&str] = &[
    "[", "cat", "curl", "date", "echo", "env", "false", "get", "hostname", "id", "kill", "ls", "mkdir", "nslookup",
    "printenv", "ps", "pwd", "rm", "sh", "sleep", "tar", "test", "touch", "true", "wget",
];

const PASSWD: &str = "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n";
const GROUP: &str = "root:x:0:\nnobody:x:65534:\n";

/// An image with all of its blobs.
pub(super) struct BuiltinImage {
    pub install: Install,
    pub blobs: Vec<(Digest, Vec<u8>)>,
}

/// All of them; none where the program cannot be built.
pub(super) fn images() -> io::Result<Vec<BuiltinImage>> {
    if PROGRAM.is_empty() {
        return Ok(vec![]);
    }
    let layer = layer()?;
    let layer = (Digest::of(&layer), layer);
    let echo = json!({
        "Entrypoint": ["/echo"],
        "Env": ["PATH=/bin"],
        "WorkingDir": "/",
        "ExposedPorts": { "80/tcp": {}, "8080/tcp": {}, "9000/tcp": {}, "9000/udp": {} },
    });
    let pause = json!({ "Entrypoint": ["/pause"], "Env": ["PATH=/bin"], "WorkingDir": "/", "User": "65535:65535" });
    [("echo", echo), ("pause", pause)]
        .into_iter()
        .map(|(name, config)| image(name, config, &layer))
        .collect()
}

fn image(name: &str, config: serde_json::Value, layer: &(Digest, Vec<u8>)) -> io::Result<BuiltinImage> {
    let (diff_id, content) = layer;
    let platform = Platform::host();
    let config = json!({
        "architecture": platform.architecture,
        "os": platform.os,
        "config": config,
        "rootfs": { "type": "layers", "diff_ids": [diff_id] },
    });
    let config = serde_json::to_vec(&config)?;
    let describe = |media_type: &str, digest: Digest, size: usize| Descriptor {
        media_type: media_type.to_string(),
        digest,
        size: size as u64,
        platform: None,
        annotations: BTreeMap::new(),
    };
    let manifest = Manifest {
        schema_version: 2,
        media_type: OCI_MANIFEST.to_string(),
        config: describe(OCI_CONFIG, Digest::of(&config), config.len()),
        layers: vec![describe(OCI_LAYER, diff_id.clone(), content.len())],
    };
    let document = serde_json::to_vec(&manifest)?;
    let descriptor = describe(OCI_MANIFEST, Digest::of(&document), document.len());
    let repository = format!("{}/{name}", super::BUILT_IN_REGISTRY);
    let references = BTreeSet::from([
        format!("{repository}:latest"),
        format!("{repository}@{}", descriptor.digest),
    ]);
    let parsed = ImageConfig::parse(&config).map_err(io::Error::other)?;
    let blobs = vec![
        (descriptor.digest.clone(), document),
        (manifest.config.digest.clone(), config),
        (diff_id.clone(), content.clone()),
    ];
    Ok(BuiltinImage {
        install: Install {
            descriptor,
            manifest,
            config: parsed,
            references,
            pinned: true,
        },
        blobs,
    })
}

/// The same bytes for the same program: images are known by digests.
fn layer() -> io::Result<Vec<u8>> {
    let mut writer = TarWriter::new(vec![]);
    let entry = |name: &str, kind, mode| Entry {
        name: name.as_bytes().to_vec(),
        kind,
        mode,
        uid: 0,
        gid: 0,
        size: 0,
        modified: (0, 0),
        link: vec![],
        device: (0, 0),
        xattrs: vec![],
    };
    for (name, mode) in [
        ("bin/", 0o755),
        ("dev/", 0o755),
        ("etc/", 0o755),
        ("proc/", 0o755),
        ("sys/", 0o755),
        ("tmp/", 0o1777),
    ] {
        writer.append(&entry(name, Kind::Directory, mode), &mut io::empty())?;
    }
    for (name, mode, content) in [
        ("echo", 0o755, PROGRAM),
        ("etc/passwd", 0o644, PASSWD.as_bytes()),
        ("etc/group", 0o644, GROUP.as_bytes()),
    ] {
        let file = Entry {
            size: content.len() as u64,
            ..entry(name, Kind::Regular, mode)
        };
        writer.append(&file, &mut &content[..])?;
    }
    let tools = TOOLS.iter().map(|tool| format!("bin/{tool}"));
    for name in tools.chain(["pause".to_string()]) {
        let link = Entry {
            link: b"/echo".to_vec(),
            ..entry(&name, Kind::Symlink, 0o777)
        };
        writer.append(&link, &mut io::empty())?;
    }
    writer.finish()
}

//! Images for tests, without any registry: busybox as Debian ships it, and the one that holds sandboxes open.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::shell::require;

/// The image that holds containerd's sandboxes open.
pub(crate) const PAUSE_IMAGE: &str = "orlop.test/pause:1";

/// A root directory with every applet; the links are relative, so that they hold wherever it is mounted.
const ROOT: &str = r#"
mkdir -p root/bin root/etc root/proc root/sys root/dev root/tmp root/root root/home root/var root/run
chmod 1777 root/tmp
cp "$(command -v busybox)" root/bin/busybox
for applet in $(busybox --list); do [ "$applet" = busybox ] || ln -s busybox "root/bin/$applet"; done
# Debian's static busybox can't look names up, and there is no wget in a real image without that.
rm root/bin/wget && cp "$(command -v wget)" root/bin/wget
for library in $(ldd root/bin/wget | grep -o '/[^ ]*'); do
  mkdir -p "root$(dirname "$library")" && cp -L "$library" "root$library"
done
printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n' >root/etc/passwd
printf 'root:x:0:\nnobody:x:65534:\n' >root/etc/group
tar -C root --numeric-owner --owner=0 --group=0 --sort=name --mtime=@0 -cf layer.tar .
rm -rf root
sha256sum layer.tar | cut -d' ' -f1
"#;

/// Puts an archive with all of them at this path. It is made once for all tests of this machine.
pub(crate) fn put(path: &Path) {
    for tool in ["busybox", "wget", "tar", "sha256sum"] {
        require(tool);
    }
    let kept = std::env::temp_dir().join("orlop-test-images");
    fs::create_dir_all(&kept).expect("a writable temporary directory");
    let alone = File::create(kept.join("lock")).expect("a writable temporary directory");
    alone.lock().expect("a lock on our own file");
    let archive = kept.join(format!("{}.tar", version()));
    if !archive.exists() {
        let work = tempfile::tempdir_in(&kept).expect("a writable directory");
        fs::rename(build(work.path()), &archive).expect("the same directory");
    }
    fs::copy(&archive, path).expect("a writable directory");
}

/// What the images are made of: this recipe, and the tools in it.
fn version() -> String {
    let found = bash("command -v busybox wget", Path::new("/"));
    let tools = found.lines().map(|tool| {
        let facts = fs::metadata(tool).expect("it was just found");
        format!("{}-{}", facts.size(), facts.mtime())
    });
    let recipe = ROOT
        .bytes()
        .fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    tools.chain([format!("{recipe:x}")]).collect::<Vec<_>>().join("-")
}

/// An archive with all of them, as `docker save` would write it.
pub fn build(directory: &Path) -> PathBuf {
    let work = directory.join("images");
    fs::create_dir(&work).expect("a writable directory");
    let digest = bash(ROOT, &work);
    let layer = format!("sha256:{}", digest.trim());
    let images = [
        (
            "busybox",
            json!(["busybox:latest", "busybox:1.36"]),
            json!({ "Env": ["PATH=/bin"], "Cmd": ["sh"] }),
        ),
        (
            "pause",
            json!([PAUSE_IMAGE]),
            json!({ "Env": ["PATH=/bin"], "Entrypoint": ["/bin/sleep", "infinity"] }),
        ),
    ];
    let mut manifest = vec![];
    for (name, tags, config) in images {
        let file = format!("{name}.json");
        let image = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "config": config,
            "rootfs": { "type": "layers", "diff_ids": [layer] },
            "history": [{ "created_by": "orlop's tests" }],
        });
        fs::write(work.join(&file), image.to_string()).expect("a writable directory");
        manifest.push(json!({ "Config": file, "RepoTags": tags, "Layers": ["layer.tar"] }));
    }
    fs::write(work.join("manifest.json"), json!(manifest).to_string()).expect("a writable directory");
    bash("tar -cf ../images.tar -- *", &work);
    directory.join("images.tar")
}

fn bash(script: &str, directory: &Path) -> String {
    let output = Command::new("bash")
        .args(["-ceu", script])
        .current_dir(directory)
        .output();
    let output = output.expect("bash is part of every Debian");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "building images: {complaint}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

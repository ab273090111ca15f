//! `orlop image`: archives in and out, names, and what is removed. No registry and no cluster is needed.

use std::path::Path;
use std::process::{Command, Stdio};

use orlop_testkit::{Ran, build_images, orlop};
use serde_json::Value;

fn image(dir: &Path, line: &str) -> Ran {
    let line = format!("{} image {line}", orlop().display());
    let output = Command::new("bash")
        .args(["-ceu", &line])
        .env("ORLOP_DATA_DIR", dir.join("data"))
        .env_remove("RUST_LOG")
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .expect("bash is part of every Debian");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ran {
        line,
        code: output.status.code(),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

fn tags(dir: &Path) -> Vec<String> {
    let images: Value = serde_json::from_str(&image(dir, "ls -o json").ok()).expect("JSON");
    let images = images["images"].as_array().expect("a list").iter();
    let tags = images.flat_map(|image| image["repoTags"].as_array().expect("a list").clone());
    let mut tags: Vec<String> = tags.map(|tag| tag.as_str().expect("text").to_string()).collect();
    tags.retain(|tag| tag.contains("busybox"));
    tags.sort();
    tags
}

#[test]
fn archives_in_and_out() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path();
    let archive = build_images(dir);
    let busybox = ["docker.io/library/busybox:1.36", "docker.io/library/busybox:latest"];
    let loaded = image(dir, &format!("load {}", archive.display())).ok();
    assert!(loaded.contains("Loaded docker.io/library/busybox:latest\n"), "{loaded}");
    assert_eq!(tags(dir), busybox);
    let table = image(dir, "ls").ok();
    let row = table.lines().find(|line| line.contains(" latest ")).expect("a row");
    assert!(
        row.starts_with("docker.io/library/busybox ") && row.ends_with(" MB"),
        "{table}"
    );

    image(dir, "save -o saved.tar busybox:latest").ok();
    image(dir, "rm busybox:1.36").ok();
    assert_eq!(tags(dir), busybox[1..]);
    let refused = image(dir, "rm busybox:1.36").fails();
    assert!(refused.contains("no such image: busybox:1.36"), "{refused}");
    let refused = image(dir, "rm orlop.local/pause").fails();
    assert!(refused.contains("orlop.local/pause is built in"), "{refused}");
    let id = image(dir, "ls -q").ok();
    let id = id.lines().next().expect("an image").to_string();
    let pruned = image(dir, "prune").ok();
    assert!(pruned.ends_with("0 images removed, 0.0 kB freed\n"), "{pruned}");
    let pruned = image(dir, "prune --all").ok();
    assert!(pruned.contains(&format!("Removed {id}\n")), "{pruned}");
    assert_eq!(tags(dir), [""; 0]);

    // Through pipes, as with docker.
    let loaded = image(dir, "load < saved.tar").ok();
    assert!(loaded.contains("busybox:latest"), "{loaded}");
    assert_eq!(tags(dir), busybox[1..]);
    let listed = image(dir, "save busybox | tar -t").ok();
    assert!(
        listed.contains("manifest.json") && listed.contains("index.json"),
        "{listed}"
    );
    let none = image(dir, "save -o none.tar nonesuch").fails();
    assert!(none.contains("nonesuch") && !dir.join("none.tar").exists(), "{none}");
    std::fs::write(dir.join("garbage.tar"), "this is no archive").unwrap();
    assert_eq!(image(dir, "load garbage.tar").code, Some(1));
}

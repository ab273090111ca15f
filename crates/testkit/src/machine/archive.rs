//! A file system in memory, as the kernel takes it (cpio, newc).

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

#[derive(Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    names: BTreeSet<String>,
}

impl Archive {
    /// What has a name already keeps it.
    pub(super) fn file(&mut self, name: &str, mode: u32, content: &[u8]) {
        if let Some((parent, _)) = name.rsplit_once('/') {
            self.directory(parent);
        }
        if !self.names.insert(name.to_string()) {
            return;
        }
        self.entry(name, mode, content);
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        let number = self.names.len();
        let length = content.len();
        let name_length = name.len() + 1;
        let header = format!(
            "070701{number:08X}{mode:08X}{:08X}{:08X}{:08X}{:08X}{length:08X}{:08X}{:08X}{:08X}{:08X}{name_length:08X}{:08X}",
            0, 0, 1, 0, 0, 0, 0, 0, 0
        );
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self.bytes.extend_from_slice(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    pub(super) fn directory(&mut self, name: &str) {
        if !name.is_empty() && !self.names.contains(name) {
            self.file(name, 0o040_755, &[]);
        }
    }

    pub(super) fn link(&mut self, name: &str, to: &str) {
        self.file(name, 0o120_777, to.as_bytes());
    }

    /// A file of this machine's, a program with the libraries it needs, under the paths where it looks for them.
    pub(super) fn copy(&mut self, name: &str, path: &Path) {
        self.copy_alone(name, path);
        let output = Command::new("ldd").arg(path).output().expect("ldd");
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let library = line.split_whitespace().find(|word| word.starts_with('/'));
            if let Some(library) = library {
                self.copy_alone(library.trim_start_matches('/'), Path::new(library));
            }
        }
    }

    pub(super) fn copy_alone(&mut self, name: &str, path: &Path) {
        let content = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let mode = fs::metadata(path).unwrap().permissions().mode();
        self.file(name, 0o100_000 | (mode & 0o777), &content);
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

//! Block devices for tests. Making one takes root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A disk of a few megabytes.
pub(super) struct LoopDevice {
    pub path: PathBuf,
}

impl LoopDevice {
    pub(super) fn new(directory: &Path) -> LoopDevice {
        assert!(
            nix::unistd::geteuid().is_root(),
            "block devices can be tested by root only"
        );
        let file = directory.join("disk.img");
        fs::File::create(&file).unwrap().set_len(4 << 20).unwrap();
        let output = Command::new("losetup")
            .args(["-f", "--show"])
            .arg(&file)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let path = String::from_utf8(output.stdout).unwrap().trim().into();
        LoopDevice { path }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.path).status();
    }
}

/// How many loop devices a file has.
pub(super) fn loops_on(file: &Path) -> usize {
    let entries = fs::read_dir("/sys/block").unwrap().flatten();
    let backing = entries.filter_map(|entry| fs::read_to_string(entry.path().join("loop/backing_file")).ok());
    backing.filter(|backing| Path::new(backing.trim_end()) == file).count()
}

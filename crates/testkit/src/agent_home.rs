//! Files of a node agent, and control groups that go with them: several agents share this machine.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::containerd::leftovers;

pub struct AgentHome(TempDir);

impl AgentHome {
    #[expect(clippy::new_without_default, reason = "it makes a directory")]
    pub fn new() -> AgentHome {
        AgentHome(tempfile::tempdir().expect("a temporary directory"))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The name of its control groups.
    pub fn cgroup(&self) -> String {
        let name = self
            .0
            .path()
            .file_name()
            .expect("a directory in another")
            .to_string_lossy();
        name.replace('.', "orlop-test-")
    }
}

impl Drop for AgentHome {
    fn drop(&mut self) {
        leftovers::unmount(self.path());
        let name = self.cgroup();
        let all =
            format!("find /sys/fs/cgroup/{name} /sys/fs/cgroup/*/{name} -depth -type d -exec rmdir {{}} + 2>/dev/null");
        drop(Command::new("sh").args(["-c", &all]).status());
    }
}

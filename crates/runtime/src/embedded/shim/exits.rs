//! How containers and commands end.

use std::os::fd::AsFd;

use crate::embedded::cgroups::CgroupSpec;
use crate::embedded::protocol::{Answer, Exited};
use crate::embedded::sys::processes::{self, Ended};

use super::container::{Container, now_ns};
use super::server::{Removal, Server};

/// How often it is tried to remove the cgroup of a container whose last processes are on their way out.
const REMOVALS: u32 = 500;

impl Server {
    pub(super) fn reap(&mut self) {
        while nix::unistd::read(self.signals.as_fd(), &mut [0; 1024]).is_ok() {}
        while let Some(ended) = processes::reap() {
            self.observe_end(ended);
        }
    }

    fn observe_end(&mut self, Ended { pid, code }: Ended) {
        let of_pod = self
            .sandbox
            .shared_pids
            .as_ref()
            .is_some_and(|shared| shared.pid == pid);
        if of_pod {
            // Without its first process the pod's PID namespace is of no use.
            self.shutdown.get_or_insert(0);
            return;
        }
        if let Some((&serial, _)) = self.execs.iter().find(|(_, exec)| exec.pid == pid) {
            self.observe_exec(serial);
            if let Some(exec) = self.execs.remove(&serial) {
                let exited = Exited {
                    id: String::new(),
                    code,
                    reason: String::new(),
                    message: String::new(),
                    started_at: 0,
                    finished_at: now_ns(),
                };
                self.answer(exec.connection, &Answer::Exited(exited), &[]);
                self.mark_finished(exec.connection);
            }
            return;
        }
        if let Some((&serial, _)) = self.containers.iter().find(|(_, container)| container.pid == pid) {
            // What it said before its end comes first.
            self.observe_start(serial);
            if let Some(container) = self.containers.remove(&serial) {
                self.observe_exit(container, code);
            }
        }
    }

    fn mark_finished(&mut self, id: u64) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.finished = true;
        }
        self.close_if_finished(id);
    }

    fn observe_exit(&mut self, mut container: Container, code: i32) {
        let exited = container.record_exit(code, &mut self.buffer);
        self.leaving.append(&mut container.outputs.attached);
        self.flush_leaving();
        self.remove_cgroup(container.cgroup);
        self.tell_watchers(&Answer::Exited(exited));
    }

    pub(super) fn remove_cgroup(&mut self, cgroup: CgroupSpec) {
        if !cgroup.group().remove().unwrap_or(false) {
            self.removals.push(Removal { cgroup, tries: 0 });
        }
    }

    /// Tries again for those whose last processes were still on their way out.
    pub(super) fn remove_cgroups(&mut self) {
        self.removals.retain_mut(|removal| {
            removal.tries += 1;
            let group = removal.cgroup.group();
            group.kill();
            removal.tries < REMOVALS && !group.remove().unwrap_or(false)
        });
    }
}

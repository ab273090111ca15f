//! Resources of containers that exist already: changed in place.

use std::path::Path;

use super::cgroups::{Group, Hierarchies, container_writes, update_writes};
use super::records;
use super::spec::ContainerSpec;
use super::store::{Container, Stage};
use super::{Embedded, blocking, failed};
use crate::cri::messages::LinuxContainerResources;
use crate::{Code, Error, Result};

impl Embedded {
    /// Changes limits in place. A container that is not running gets them with its start.
    pub(super) async fn update_resources(&self, id: &str, resources: LinuxContainerResources) -> Result<()> {
        let container = self.container(id)?;
        let stage = container.stage();
        if matches!(stage, Stage::Exited(_)) {
            return Err(Error::new(
                Code::Other,
                format!("container {:?} has ended", container.id),
            ));
        }
        let embedded = self.clone();
        let of = container.clone();
        let merged = blocking(move || embedded.write_resources(&of, resources, stage)).await?;
        container.record.lock().resources = Some(merged);
        Ok(())
    }

    fn write_resources(
        &self,
        container: &Container,
        resources: LinuxContainerResources,
        stage: Stage,
    ) -> Result<LinuxContainerResources> {
        let mut record = container.record.lock().clone();
        let before = record.resources.clone().unwrap_or_default();
        let merged = merge(&before, resources);
        let hierarchies = &self.inner.hierarchies;
        let group = Group {
            hierarchies,
            path: &record.cgroup,
        };
        let io = |e: std::io::Error| failed("update the container's resources", &e);
        match stage {
            Stage::Running { .. } => {
                let memory = Some(before.memory_limit_in_bytes).filter(|limit| *limit != 0);
                let limits_swap = hierarchies.limits_swap(&record.cgroup);
                group
                    .write(&update_writes(hierarchies.version, &merged, limits_swap, memory))
                    .map_err(io)?;
            }
            _ => rewrite_limits(&container.dir, hierarchies, &merged).map_err(io)?,
        }
        record.resources = Some(merged.clone());
        records::write_record(&container.dir, &record).map_err(io)?;
        Ok(merged)
    }
}

/// What is not said stays as it was.
fn merge(before: &LinuxContainerResources, new: LinuxContainerResources) -> LinuxContainerResources {
    let number = |new: i64, old: i64| if new == 0 { old } else { new };
    let text = |new: String, old: &String| if new.is_empty() { old.clone() } else { new };
    LinuxContainerResources {
        cpu_period: number(new.cpu_period, before.cpu_period),
        cpu_quota: number(new.cpu_quota, before.cpu_quota),
        cpu_shares: number(new.cpu_shares, before.cpu_shares),
        memory_limit_in_bytes: number(new.memory_limit_in_bytes, before.memory_limit_in_bytes),
        memory_swap_limit_in_bytes: number(new.memory_swap_limit_in_bytes, before.memory_swap_limit_in_bytes),
        // The kernel's value of a running process is not changed.
        oom_score_adj: before.oom_score_adj,
        cpuset_cpus: text(new.cpuset_cpus, &before.cpuset_cpus),
        cpuset_mems: text(new.cpuset_mems, &before.cpuset_mems),
        hugepage_limits: match new.hugepage_limits.is_empty() {
            true => before.hugepage_limits.clone(),
            false => new.hugepage_limits,
        },
        unified: before.unified.clone().into_iter().chain(new.unified).collect(),
    }
}

fn rewrite_limits(dir: &Path, hierarchies: &Hierarchies, resources: &LinuxContainerResources) -> std::io::Result<()> {
    let path = dir.join("spec.json");
    let mut spec: ContainerSpec = serde_json::from_slice(&std::fs::read(&path)?)?;
    let parent = Path::new(&spec.cgroup.path)
        .parent()
        .unwrap_or(Path::new("/"))
        .to_string_lossy()
        .into_owned();
    let limits_swap = hierarchies.limits_swap(&parent);
    spec.cgroup.writes = container_writes(hierarchies.version, resources, limits_swap);
    let new = dir.join("spec.json.new");
    std::fs::write(&new, serde_json::to_vec(&spec)?)?;
    std::fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_change_what_they_name() {
        let before = LinuxContainerResources {
            cpu_shares: 2,
            memory_limit_in_bytes: 100,
            oom_score_adj: 5,
            ..LinuxContainerResources::default()
        };
        let after = merge(
            &before,
            LinuxContainerResources {
                memory_limit_in_bytes: 200,
                cpuset_cpus: "1".to_string(),
                oom_score_adj: 9,
                ..LinuxContainerResources::default()
            },
        );
        assert_eq!(
            (after.cpu_shares, after.memory_limit_in_bytes, after.oom_score_adj),
            (2, 200, 5)
        );
        assert_eq!(after.cpuset_cpus, "1");
    }
}

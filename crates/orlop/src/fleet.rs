//! Simulated nodes beside, or instead of, a real one: `orlop up --simulate N`, `--simulate-shape`, `--simulate-file`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use orlop_kubelet::fleet::{Group, Groups, Options, Rules};

#[derive(clap::Args)]
pub(crate) struct FleetArgs {
    /// Number of simulated nodes: pods report Running, no containers are started (docs/simulated-nodes.md)
    #[arg(long, value_name = "N", default_value_t = 0)]
    simulate: usize,
    /// Simulated nodes of one shape: NAME=COUNT[:cpu=16,memory=64Gi,label=K=V,taint=K=V:EFFECT,role=R,zone=Z,…]
    /// (repeatable)
    #[arg(long, value_name = "SHAPE")]
    simulate_shape: Vec<String>,
    /// File with the shapes of simulated nodes
    #[arg(long, value_name = "FILE")]
    simulate_file: Option<PathBuf>,
    /// File with rules for the behaviour of simulated pods
    #[arg(long, value_name = "FILE")]
    simulate_rules: Option<PathBuf>,
}

impl FleetArgs {
    /// The nodes to bring up, if any.
    pub(crate) fn plan(&self) -> anyhow::Result<Option<Options>> {
        let nodes = self.nodes()?;
        if nodes.count() == 0 {
            anyhow::ensure!(
                self.simulate_rules.is_none(),
                "--simulate-rules requires --simulate, --simulate-shape or --simulate-file"
            );
            return Ok(None);
        }
        let rules = match &self.simulate_rules {
            None => Rules::default(),
            Some(file) => {
                Rules::parse(&read(file)?).map_err(|e| anyhow::anyhow!("invalid file {}: {e}", file.display()))?
            }
        };
        let nodes = Arc::new(nodes);
        Ok(Some(Options { nodes, rules }))
    }

    /// Usual ones first, so that they keep their numbers when others are added.
    fn nodes(&self) -> anyhow::Result<Groups> {
        let mut groups = vec![];
        if self.simulate > 0 {
            groups.push(Group::parse(&format!("sim={}", self.simulate)).context("--simulate")?);
        }
        for shape in &self.simulate_shape {
            groups.push(Group::parse(shape).context("--simulate-shape")?);
        }
        if let Some(file) = &self.simulate_file {
            let described = Group::parse_file(&read(file)?);
            groups.extend(described.with_context(|| format!("invalid file {}", file.display()))?);
        }
        Groups::new(groups).context("simulated nodes")
    }
}

fn read(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("failed to read {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(simulate: usize, shapes: &[&str]) -> FleetArgs {
        FleetArgs {
            simulate,
            simulate_shape: shapes.iter().map(|s| s.to_string()).collect(),
            simulate_file: None,
            simulate_rules: None,
        }
    }

    #[test]
    fn shapes_come_after_the_usual_nodes() {
        let plan = args(2, &["big=1:cpu=64", "controlplane"]).plan().unwrap().unwrap();
        let names: Vec<&str> = (0..plan.nodes.count()).map(|n| plan.nodes.name(n)).collect();
        assert_eq!(names, ["sim-0", "sim-1", "big-0", "controlplane"]);
        assert!(args(0, &[]).plan().unwrap().is_none());
    }

    #[test]
    fn problems_name_the_flag_and_the_part() {
        let problem = |args: FleetArgs| format!("{:#}", args.plan().unwrap_err());
        assert_eq!(
            problem(args(0, &["big=2:cpu=much"])),
            "--simulate-shape: big=2:cpu=much: cpu: invalid quantity \"much\": must be a number such as \"16\" or \"64Gi\""
        );
        assert_eq!(
            problem(args(99_999, &[])),
            "--simulate: sim=99999: count: at most 16384 simulated nodes are supported"
        );
        assert_eq!(
            problem(args(2, &["sim-1"])),
            "simulated nodes: name: duplicate node name \"sim-1\""
        );
        let rules = FleetArgs {
            simulate_rules: Some("rules.yaml".into()),
            ..args(0, &[])
        };
        assert!(problem(rules).starts_with("--simulate-rules requires --simulate"));
        let file = FleetArgs {
            simulate_file: Some("/nowhere/nodes.yaml".into()),
            ..args(0, &[])
        };
        assert!(problem(file).starts_with("failed to read /nowhere/nodes.yaml"));
    }
}

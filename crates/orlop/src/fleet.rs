//! Simulated nodes beside, or instead of, a real one: `orlop up --simulate N`.

use std::path::PathBuf;

use anyhow::Context as _;
use orlop_kubelet::fleet::{Options, Rules};

/// No more addresses for pods than for so many nodes.
const MOST: usize = 16_384;

#[derive(clap::Args)]
pub struct FleetArgs {
    /// Bring up this many nodes that only pretend to run pods (docs/simulated-nodes.md)
    #[arg(long, value_name = "N", default_value_t = 0)]
    simulate: usize,
    /// How simulated pods behave
    #[arg(long, value_name = "FILE", requires = "simulate")]
    simulate_rules: Option<PathBuf>,
}

impl FleetArgs {
    /// The nodes to bring up, if any.
    pub fn plan(&self) -> anyhow::Result<Option<Options>> {
        anyhow::ensure!(
            self.simulate <= MOST,
            "--simulate: there is room for {MOST} nodes at most"
        );
        let rules = match &self.simulate_rules {
            None => Rules::default(),
            Some(file) => {
                let text =
                    std::fs::read_to_string(file).with_context(|| format!("{} can't be read", file.display()))?;
                Rules::parse(&text).map_err(|e| anyhow::anyhow!("{} can't be used: {e}", file.display()))?
            }
        };
        Ok((self.simulate > 0).then(|| Options {
            count: self.simulate,
            rules,
            ..Options::default()
        }))
    }
}

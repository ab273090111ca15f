//! Flags about leader election, the same for every component that has one.

use std::time::Duration;

use anyhow::bail;
use orlop_client::leader::Config;

use super::{parse_bool, parse_duration};

/// Where a component also has a configuration file, each wins over it.
#[derive(clap::Args)]
pub(super) struct ElectionArgs {
    /// Run only while holding the leader lease, for replicated components [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          value_parser = parse_bool)]
    pub leader_elect: Option<bool>,
    /// How long non-leader candidates wait before they force acquisition of leadership [default: 15s]
    #[arg(long, value_name = "DURATION")]
    pub leader_elect_lease_duration: Option<String>,
    /// How long a leader retries to renew before it gives up leadership [default: 10s]
    #[arg(long, value_name = "DURATION")]
    pub leader_elect_renew_deadline: Option<String>,
    /// Time between attempts to acquire or renew the lease [default: 2s]
    #[arg(long, value_name = "DURATION")]
    pub leader_elect_retry_period: Option<String>,
    /// Resource type of the lock: leases
    #[arg(long, value_name = "KIND")]
    pub leader_elect_resource_lock: Option<String>,
    /// Name of the lease [default: the component's]
    #[arg(long, value_name = "NAME")]
    pub leader_elect_resource_name: Option<String>,
    /// Namespace of the lease [default: kube-system]
    #[arg(long, value_name = "NAMESPACE")]
    pub leader_elect_resource_namespace: Option<String>,
}

impl ElectionArgs {
    /// None: the component works without being elected.
    pub(super) fn config(&self, name: &str) -> anyhow::Result<Option<Config>> {
        if self.leader_elect == Some(false) {
            return Ok(None);
        }
        if let Some(kind) = self
            .leader_elect_resource_lock
            .as_deref()
            .filter(|kind| *kind != "leases")
        {
            bail!("--leader-elect-resource-lock: {kind:?} is not supported; leases are");
        }
        let text = |value: &Option<String>, default: &str| value.clone().unwrap_or_else(|| default.to_string());
        let namespace = text(&self.leader_elect_resource_namespace, "kube-system");
        let mut config = Config::new(&namespace, &text(&self.leader_elect_resource_name, name));
        let set = |field: &mut Duration, value: &Option<String>| -> anyhow::Result<()> {
            if let Some(text) = value {
                *field = parse_duration(text).map_err(|e| anyhow::anyhow!("{text:?}: {e}"))?;
            }
            Ok(())
        };
        set(&mut config.lease_duration, &self.leader_elect_lease_duration)?;
        set(&mut config.renew_deadline, &self.leader_elect_renew_deadline)?;
        set(&mut config.retry_period, &self.leader_elect_retry_period)?;
        match config.problem() {
            Some(problem) => bail!("{problem}"),
            None => Ok(Some(config)),
        }
    }
}

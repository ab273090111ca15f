//! The node-level cgroups (kubepods, QoS classes, node allocatable): set at the start, and retried until it succeeds.
// Upstream: pkg/kubelet/cm/node_container_manager_linux.go (v1.36)

use std::sync::Arc;
use std::time::Duration;

use orlop_base::Shutdown;
use orlop_client::EventType::{self, Normal, Warning};
use orlop_client::ObjectReference;

use crate::cgroups::Cgroups;
use crate::config::Config;
use crate::events::Events;
use crate::node::{Keeper, resources};

const AGAIN: Duration = Duration::from_secs(60);

pub(super) struct NodeLevel {
    cgroups: Cgroups,
    config: Arc<Config>,
    keeper: Keeper,
    events: Events,
    node: ObjectReference,
}

impl NodeLevel {
    pub(super) fn new(
        cgroups: Cgroups,
        config: Arc<Config>,
        keeper: Keeper,
        events: Events,
        node: ObjectReference,
    ) -> NodeLevel {
        NodeLevel {
            cgroups,
            config,
            keeper,
            events,
            node,
        }
    }

    /// Whether all is as it should be.
    pub(super) async fn set_up(&mut self) -> bool {
        if let Err(error) = self.cgroups.ensure_node_level().await {
            tracing::error!(err = %error, "failed to set up the cgroups of pods");
            let why = format!("failed to set up the cgroups of pods: {error}");
            self.keeper.set_trouble(Some(why));
            let note = format!("Failed to update Node Allocatable Limits: {error}");
            self.say(Warning, "FailedNodeAllocatableEnforcement", note);
            return false;
        }
        self.keeper.set_trouble(None);
        if self.enforces("pods") {
            let note = "Updated Node Allocatable limit across pods";
            self.say(Normal, "NodeAllocatableEnforced", note.to_string());
        }
        let system = (&self.config.system_reserved_cgroup, &self.config.system_reserved);
        let kube = (&self.config.kube_reserved_cgroup, &self.config.kube_reserved);
        let mut all_set = true;
        for (what, (group, list)) in [("system-reserved", system), ("kube-reserved", kube)] {
            let all = self.enforces(what);
            if !all && !self.enforces(&format!("{what}-compressible")) {
                continue;
            }
            // Only CPU can be taken away again.
            let list = list.iter().filter(|(name, _)| all || *name == resources::CPU);
            let list = list.map(|(name, text)| (name.clone(), resources::checked(text)));
            if let Err(error) = self.cgroups.reserve(group, &list.collect()).await {
                all_set = false;
                let note = format!("Failed to enforce {what} limits on {group:?}: {error}");
                self.say(Warning, "FailedNodeAllocatableEnforcement", note);
            }
        }
        all_set
    }

    pub(super) async fn keep_trying(&mut self, shutdown: Shutdown) {
        loop {
            tokio::select! {
                () = shutdown.wait() => return,
                () = tokio::time::sleep(AGAIN) => {}
            }
            if self.set_up().await {
                return;
            }
        }
    }

    fn enforces(&self, what: &str) -> bool {
        self.config.enforce_node_allocatable.iter().any(|word| word == what)
    }

    fn say(&self, kind: EventType, reason: &'static str, note: String) {
        self.events.record(self.node.clone(), kind, reason, note);
    }
}

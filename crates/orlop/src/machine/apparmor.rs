//! The default AppArmor profile of the cluster's containers, where the kernel has AppArmor.

use std::collections::BTreeSet;

use orlop_runtime::embedded::remove_apparmor_profile;

use super::{Purge, Removal};

pub(super) const REMOVAL: Removal = Removal {
    what: "the AppArmor profile",
    run: |purge| Box::pin(run(purge)),
};

async fn run(purge: &mut Purge) {
    let nodes = purge.machine.nodes.iter().filter_map(|node| node.embedded.as_ref());
    let profiles: BTreeSet<String> = nodes.map(|node| node.apparmor_profile()).collect();
    for profile in profiles {
        let what = format!("AppArmor profile {profile}");
        match remove_apparmor_profile(&profile) {
            Ok(true) => purge.removed(what),
            Ok(false) => {}
            Err(error) => purge.failed(&what, error),
        }
    }
}

//! The pod network of a node: links, addresses and rules where it runs containers itself, else our configuration for CNI
//! plugins, its bridge, and the addresses it took.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use orlop_netlink::route::Route;
use orlop_runtime::cni;

use super::{NodeTraces, Purge, Removal, pods};

pub(super) const REMOVAL: Removal = Removal {
    what: "the pod network",
    run: |purge| Box::pin(run(purge)),
};

/// Where the runtimes look that do not say.
const USUAL: &str = "/etc/cni/net.d";
/// Where the plugin host-local keeps the addresses that it gave away, by the network's name.
const ADDRESSES: &str = "/var/lib/cni/networks";

async fn run(purge: &mut Purge) {
    for node in purge.machine.nodes.clone() {
        if let Some(embedded) = &node.embedded {
            let what = format!("pod network of node {}", embedded.name);
            match embedded.remove_network().await {
                Ok(()) => purge.removed(what),
                Err(error) => purge.failed(&what, error),
            }
        }
        let Some(directory) = &node.cni_conf_dir else { continue };
        let directory = match directory.as_os_str().is_empty() {
            true => where_runtime_looks(&node).await,
            false => directory.clone(),
        };
        let action = format!("the pod network in {}", directory.display());
        match cni::remove(&directory) {
            Ok(None) => {}
            Ok(Some((file, bridge))) => {
                purge.removed(file.display().to_string());
                if let Some(bridge) = bridge {
                    remove_bridge(purge, &bridge);
                }
                remove_addresses(purge, &Path::new(ADDRESSES).join(cni::NAME));
            }
            Err(error) => purge.failed(&action, error),
        }
    }
}

async fn where_runtime_looks(node: &NodeTraces) -> PathBuf {
    let folders = match pods::connect(node).await {
        Ok(runtime) => runtime.network_folders().await.unwrap_or_default(),
        Err(_) => cni::Folders::default(),
    };
    folders.configuration.unwrap_or(USUAL.into())
}

fn remove_bridge(purge: &mut Purge, bridge: &str) {
    let removed = Route::open().and_then(|mut route| match route.link(bridge)? {
        Some(link) if link.kind == "bridge" => route.delete_link(link.index).map(|()| true),
        _ => Ok(false),
    });
    match removed {
        Ok(true) => purge.removed(format!("interface {bridge}")),
        Ok(false) => {}
        Err(error) => purge.failed(&format!("interface {bridge}"), error),
    }
}

/// As long as there is no address in it: pods of another cluster may have a network of this name.
fn remove_addresses(purge: &mut Purge, directory: &Path) {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_address = |name: &str| name.replace('_', ":").parse::<IpAddr>().is_ok();
    if entries
        .into_iter()
        .any(|entry| is_address(&entry.file_name().to_string_lossy()))
    {
        return;
    }
    match std::fs::remove_dir_all(directory) {
        Ok(()) => purge.removed(directory.display().to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => purge.failed(&directory.display().to_string(), error),
    }
}

//! The node's own settings: forwarding, and those of pods' links.

use std::io;
use std::path::Path;

use orlop_netlink::Family;

use super::error::{Result, kernel};

/// Has the node forward packets of these families.
pub(super) fn forward(families: &[Family]) -> Result<()> {
    if families.contains(&Family::V4) {
        // Writing it, even the same, would reset settings of all links.
        set_unless_same("net/ipv4/ip_forward", "1")?;
    }
    if families.contains(&Family::V6) && read("net/ipv6/conf/all/forwarding").as_deref() != Some("1") {
        keep_router_advertisements()?;
        set("net/ipv6/conf/all/forwarding", "1")?;
    }
    Ok(())
}

/// A host that forwards ignores router advertisements, and would lose the default route that it has from them.
fn keep_router_advertisements() -> Result<()> {
    let Ok(links) = std::fs::read_dir("/proc/sys/net/ipv6/conf") else {
        return Ok(());
    };
    for link in links.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        let name = format!("net/ipv6/conf/{link}/accept_ra");
        if read(&name).as_deref() == Some("1") {
            set(&name, "2")?;
        }
    }
    Ok(())
}

/// The node's end of a pod's link.
pub(super) fn set_up_link(link: &str, families: &[Family], has_host_ports: bool) -> Result<()> {
    if families.contains(&Family::V4) {
        set_unless_same(&format!("net/ipv4/conf/{link}/forwarding"), "1")?;
        // Of packets that leave by the link that they came by.
        set_unless_same(&format!("net/ipv4/conf/{link}/send_redirects"), "0")?;
        let localnet = if has_host_ports { "1" } else { "0" };
        set_unless_same(&format!("net/ipv4/conf/{link}/route_localnet"), localnet)?;
    }
    // A kernel without IPv6 has none of these.
    if Path::new("/proc/sys/net/ipv6").exists() {
        let disabled = if families.contains(&Family::V6) { "0" } else { "1" };
        set_unless_same(&format!("net/ipv6/conf/{link}/disable_ipv6"), disabled)?;
        set_unless_same(&format!("net/ipv6/conf/{link}/accept_ra"), "0")?;
        set_unless_same(&format!("net/ipv6/conf/{link}/accept_dad"), "0")?;
    }
    Ok(())
}

/// A kernel parameter of the namespace that the calling thread is in.
pub(super) fn set_unless_same(name: &str, value: &str) -> Result<()> {
    if read(name).as_deref() == Some(value) {
        return Ok(());
    }
    set(name, value)
}

fn read(name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path(name)).ok()?;
    Some(text.trim().to_string())
}

fn set(name: &str, value: &str) -> Result<()> {
    write(name, value).map_err(kernel(format!("set {name} to {value}")))
}

fn write(name: &str, value: &str) -> io::Result<()> {
    std::fs::write(path(name), value)
}

fn path(name: &str) -> String {
    format!("/proc/sys/{name}")
}

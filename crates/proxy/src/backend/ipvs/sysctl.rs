//! Kernel parameters that IPVS needs. Upstream: pkg/proxy/ipvs/proxier.go (v1.36).

use std::fs;

use super::super::{Error, Result};
use crate::settings::Settings;

/// Brings them about; those that are right are left alone, so that read-only ones do no harm.
pub(super) fn apply(settings: &Settings) -> Result<()> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    for (name, value) in wanted(settings, version(&release)) {
        let path = format!("/proc/sys/{name}");
        if fs::read_to_string(&path).is_ok_and(|found| found.trim() == value) {
            continue;
        }
        fs::write(&path, value).map_err(|e| Error(format!("failed to set {path} to {value}: {e}")))?;
    }
    Ok(())
}

fn wanted(settings: &Settings, version: (u32, u32)) -> Vec<(&'static str, &'static str)> {
    let mut all = vec![("net/ipv4/vs/conntrack", "1")];
    // Later kernels hand connections of a port used again to another real server without a delay.
    if ((4, 1)..(5, 9)).contains(&version) {
        all.push(("net/ipv4/vs/conn_reuse_mode", "0"));
    }
    all.push(("net/ipv4/vs/expire_nodest_conn", "1"));
    all.push(("net/ipv4/vs/expire_quiescent_template", "1"));
    all.push(("net/ipv4/ip_forward", "1"));
    if settings.ipvs.strict_arp {
        all.push(("net/ipv4/conf/all/arp_ignore", "1"));
        all.push(("net/ipv4/conf/all/arp_announce", "2"));
    }
    all
}

/// `6.1.0-54-cloud-amd64` is 6.1.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release
        .split(['.', '-', '+'])
        .map(|part| part.trim().parse().unwrap_or_default());
    (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_fit_the_kernel() {
        assert_eq!(version("6.1.0-54-cloud-amd64\n"), (6, 1));
        assert_eq!(version("5.4-rc1"), (5, 4));
        let mut settings = Settings::default();
        let names = |settings: &Settings, version| {
            wanted(settings, version)
                .into_iter()
                .map(|(n, _)| n)
                .collect::<Vec<_>>()
        };
        assert!(names(&settings, (5, 4)).contains(&"net/ipv4/vs/conn_reuse_mode"));
        assert!(!names(&settings, (5, 9)).contains(&"net/ipv4/vs/conn_reuse_mode"));
        assert!(!names(&settings, (6, 1)).iter().any(|name| name.contains("arp")));
        settings.ipvs.strict_arp = true;
        assert!(names(&settings, (6, 1)).contains(&"net/ipv4/conf/all/arp_announce"));
    }
}

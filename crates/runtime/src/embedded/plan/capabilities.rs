//! Capabilities of a container.

use crate::cri::messages::Capability;
use crate::embedded::spec::Capabilities;

/// By number.
pub(crate) const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// What containers have without being asked.
// Upstream: containerd pkg/oci defaultUnixCaps (v2.3)
const DEFAULT: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

const ALL: u64 = (1 << NAMES.len()) - 1;

/// The bit of a capability, with or without `CAP_`; 0 for one that nobody knows.
pub(crate) fn bit(name: &str) -> u64 {
    let name = name.to_uppercase();
    let name = name.strip_prefix("CAP_").unwrap_or(&name);
    NAMES.iter().position(|n| *n == name).map_or(0, |at| 1 << at)
}

fn bits<'a>(names: impl IntoIterator<Item = &'a str>) -> u64 {
    names.into_iter().fold(0, |set, name| set | bit(name))
}

/// `ALL` comes first, then what is added by name, then what is dropped by name.
pub(crate) fn plan(wanted: Option<&Capability>, privileged: bool) -> Capabilities {
    if privileged {
        return Capabilities {
            allowed: ALL,
            ambient: 0,
        };
    }
    let mut allowed = bits(DEFAULT);
    let Some(wanted) = wanted else {
        return Capabilities { allowed, ambient: 0 };
    };
    let has_all = |names: &[String]| names.iter().any(|name| name.eq_ignore_ascii_case("ALL"));
    if has_all(&wanted.add_capabilities) {
        allowed = ALL;
    }
    if has_all(&wanted.drop_capabilities) {
        allowed = 0;
    }
    let named = |names: &[String]| bits(names.iter().map(String::as_str));
    allowed |= named(&wanted.add_capabilities) | named(&wanted.add_ambient_capabilities);
    allowed &= !named(&wanted.drop_capabilities);
    Capabilities {
        allowed,
        ambient: named(&wanted.add_ambient_capabilities) & allowed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capability(add: &[&str], drop: &[&str]) -> Capability {
        let owned = |names: &[&str]| names.iter().map(|n| n.to_string()).collect();
        Capability {
            add_capabilities: owned(add),
            drop_capabilities: owned(drop),
            add_ambient_capabilities: vec![],
        }
    }

    #[test]
    fn the_default_is_containerds() {
        // As `capsh` shows it in a container of containerd's.
        assert_eq!(plan(None, false).allowed, 0x0000_0000_a804_25fb);
    }

    #[test]
    fn adding_and_dropping() {
        let allowed = |add: &[&str], drop: &[&str]| plan(Some(&capability(add, drop)), false).allowed;
        assert_eq!(allowed(&["NET_ADMIN"], &[]), 0xa804_25fb | bit("NET_ADMIN"));
        assert_eq!(allowed(&[], &["ALL"]), 0);
        assert_eq!(allowed(&["net_bind_service"], &["ALL"]), bit("CAP_NET_BIND_SERVICE"));
        assert_eq!(allowed(&["ALL"], &["CHOWN"]), ALL & !bit("CHOWN"));
        assert_eq!(allowed(&["NO_SUCH"], &["CHOWN"]), 0xa804_25fb & !bit("CHOWN"));
        assert_eq!(plan(Some(&capability(&[], &["ALL"])), true).allowed, ALL);
    }
}

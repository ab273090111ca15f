//! Which devices a container may use.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum DeviceKind {
    All,
    Character,
    Block,
}

/// Devices that may be used: `None` stands for all numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeviceRule {
    pub kind: DeviceKind,
    pub major: Option<u32>,
    pub minor: Option<u32>,
    pub read: bool,
    pub write: bool,
    /// Making nodes of it.
    pub make: bool,
}

impl DeviceRule {
    /// All devices, for privileged containers.
    pub(crate) fn all() -> DeviceRule {
        DeviceRule {
            kind: DeviceKind::All,
            major: None,
            minor: None,
            read: true,
            write: true,
            make: true,
        }
    }

    pub(crate) fn character(major: u32, minor: Option<u32>) -> DeviceRule {
        DeviceRule {
            kind: DeviceKind::Character,
            major: Some(major),
            minor,
            ..DeviceRule::all()
        }
    }

    /// As version 1's `devices.allow` takes it.
    pub(crate) fn line(&self) -> String {
        let number = |n: Option<u32>| n.map_or("*".to_string(), |n| n.to_string());
        let kind = match self.kind {
            DeviceKind::All => return "a".to_string(),
            DeviceKind::Character => 'c',
            DeviceKind::Block => 'b',
        };
        let access: String = [(self.read, 'r'), (self.write, 'w'), (self.make, 'm')]
            .iter()
            .filter(|(allowed, _)| *allowed)
            .map(|(_, letter)| letter)
            .collect();
        format!("{kind} {}:{} {access}", number(self.major), number(self.minor))
    }
}

/// What every container may use: runc's list.
pub(crate) fn default_rules() -> Vec<DeviceRule> {
    let make_any = |kind| DeviceRule {
        kind,
        read: false,
        write: false,
        ..DeviceRule::all()
    };
    let mut rules = vec![make_any(DeviceKind::Character), make_any(DeviceKind::Block)];
    // null, zero, full, random, urandom, tty, console, ptmx
    let single = [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 1), (5, 2)];
    rules.extend(single.map(|(major, minor)| DeviceRule::character(major, Some(minor))));
    // Terminals.
    rules.push(DeviceRule::character(136, None));
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_version_1() {
        let lines: Vec<String> = default_rules().iter().map(DeviceRule::line).collect();
        assert_eq!(lines[..3], ["c *:* m", "b *:* m", "c 1:3 rwm"]);
        assert_eq!(lines.last().unwrap(), "c 136:* rwm");
        assert_eq!(DeviceRule::all().line(), "a");
    }
}

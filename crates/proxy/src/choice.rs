//! Which mode a proxy runs in.

use crate::backend::{Mode, UnsupportedMode};

/// In this order, unless a mode is asked for: what most clusters have, then what is faster, then what always works.
const PREFERRED: [Mode; 3] = [Mode::Iptables, Mode::Nftables, Mode::Userspace];

/// No mode to run in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModeError {
    /// The configured one.
    #[error("mode {mode} is not supported on this node: {reason}")]
    Unsupported { mode: Mode, reason: UnsupportedMode },
    /// None is configured, and none of the preferred ones is supported.
    #[error("no proxy mode is supported on this node: {0}")]
    NoneSupported(String),
}

/// The mode to run in, and why it is this one.
pub(crate) fn choose_mode(
    asked: Option<Mode>,
    supported: &dyn Fn(Mode) -> Result<(), UnsupportedMode>,
) -> Result<(Mode, String), ModeError> {
    if let Some(mode) = asked {
        supported(mode).map_err(|reason| ModeError::Unsupported { mode, reason })?;
        return Ok((mode, "configured".to_string()));
    }
    let mut reasons = vec![];
    for mode in PREFERRED {
        match supported(mode) {
            Ok(()) if reasons.is_empty() => return Ok((mode, "default".to_string())),
            Ok(()) => return Ok((mode, reasons.join("; "))),
            Err(reason) => reasons.push(format!("{mode} is not supported: {reason}")),
        }
    }
    Err(ModeError::NoneSupported(reasons.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_the_machine_can_do() {
        let only = |modes: &'static [Mode]| {
            move |mode: Mode| match modes.contains(&mode) {
                true => Ok(()),
                false => Err(UnsupportedMode("not installed".to_string())),
            }
        };
        let chosen = |asked, modes| choose_mode(asked, &only(modes)).map(|(mode, why)| format!("{mode}: {why}"));
        assert_eq!(chosen(None, &Mode::ALL).unwrap(), "iptables: default");
        assert_eq!(
            chosen(None, &[Mode::Nftables]).unwrap(),
            "nftables: iptables is not supported: not installed"
        );
        assert_eq!(chosen(Some(Mode::Ipvs), &Mode::ALL).unwrap(), "ipvs: configured");
        let refused = chosen(Some(Mode::Ipvs), &[Mode::Iptables]).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "mode ipvs is not supported on this node: not installed"
        );
        assert!(chosen(None, &[]).is_err());
    }
}

//! Which mode a proxy runs in.

use crate::backend::Mode;

/// In this order, unless a mode is asked for: what most clusters have, then what is faster, then what always works.
const PREFERRED: [Mode; 3] = [Mode::Iptables, Mode::Nftables, Mode::Userspace];

/// The mode to run in, and why it is this one; or why the one asked for can't be had.
pub(crate) fn choose(
    asked: Option<Mode>,
    supported: &dyn Fn(Mode) -> Result<(), String>,
) -> Result<(Mode, String), String> {
    if let Some(mode) = asked {
        supported(mode).map_err(|why| format!("mode {mode} is not supported on this node: {why}"))?;
        return Ok((mode, "as configured".to_string()));
    }
    let mut reasons = vec![];
    for mode in PREFERRED {
        match supported(mode) {
            Ok(()) if reasons.is_empty() => return Ok((mode, "no other is configured".to_string())),
            Ok(()) => return Ok((mode, reasons.join("; "))),
            Err(why) => reasons.push(format!("no {mode}: {why}")),
        }
    }
    Err(reasons.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_the_machine_can_do() {
        let only = |modes: &'static [Mode]| {
            move |mode: Mode| match modes.contains(&mode) {
                true => Ok(()),
                false => Err("nothing there".to_string()),
            }
        };
        let chosen = |asked, modes| choose(asked, &only(modes)).map(|(mode, why)| format!("{mode}: {why}"));
        assert_eq!(chosen(None, &Mode::ALL).unwrap(), "iptables: no other is configured");
        assert_eq!(
            chosen(None, &[Mode::Nftables]).unwrap(),
            "nftables: no iptables: nothing there"
        );
        assert_eq!(chosen(Some(Mode::Ipvs), &Mode::ALL).unwrap(), "ipvs: as configured");
        let refused = chosen(Some(Mode::Ipvs), &[Mode::Iptables]).unwrap_err();
        assert_eq!(refused, "mode ipvs is not supported on this node: nothing there");
        assert!(chosen(None, &[]).is_err());
    }
}

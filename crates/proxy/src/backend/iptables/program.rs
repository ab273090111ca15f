//! The `iptables` programs: which of them there are, which to use, and how they are run.
//!
//! There are two variants that don't see each other's rules: one keeps them in nf_tables, the other (legacy) in the
//! kernel's older tables. The one is right that others on the machine use.

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use super::render::Table;
use super::saved;
use crate::backend::{Error, Result};
use crate::plan::Family;

/// Seconds to wait for the lock that all legacy programs take.
const WAIT: &str = "5";
const LOCK: &str = "/run/xtables.lock";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    Nft,
    Legacy,
    /// As the machine has it, where its programs have no other names.
    Plain {
        is_nft: bool,
    },
}

impl Variant {
    pub(super) fn is_nft(self) -> bool {
        matches!(self, Variant::Nft | Variant::Plain { is_nft: true })
    }

    fn infix(self) -> &'static str {
        match self {
            Variant::Nft => "-nft",
            Variant::Legacy => "-legacy",
            Variant::Plain { .. } => "",
        }
    }
}

/// The programs of one variant and family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub variant: Variant,
    pub family: Family,
}

impl Program {
    fn name(&self, suffix: &str) -> String {
        let base = match self.family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        format!("{base}{}{suffix}", self.variant.infix())
    }

    /// The text of a table; the rules of the others are not looked at.
    pub(super) fn save(&self, table: Table) -> Result<String> {
        let name = self.name("-save");
        let output = run(Command::new(&name).args(["-t", table.as_str()]), &name, None)?;
        if !output.status.success() {
            return Err(Error(failure(&name, &output, "")));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    pub(super) fn restore(&self, input: &str) -> Result<()> {
        let name = self.name("-restore");
        let mut command = Command::new(&name);
        command.args(["--noflush", "-w", WAIT, "--counters"]);
        let output = run(&mut command, &name, Some(input))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(Error(failure(&name, &output, input))),
        }
    }

    /// A table can be listed: the program is there, and the kernel knows the table.
    pub(super) fn check(&self) -> Result<()> {
        let name = self.name("");
        let output = run(
            Command::new(&name).args(["-w", WAIT, "-t", "nat", "-S", "POSTROUTING"]),
            &name,
            None,
        )?;
        match output.status.success() {
            true => Ok(()),
            false => Err(Error(failure(&name, &output, ""))),
        }
    }

    fn has_chain(&self, table: Table, chain: &str) -> bool {
        let name = self.name("");
        let mut command = Command::new(&name);
        command.args(["-w", WAIT, "-t", table.as_str(), "-S", chain, "1"]);
        run(&mut command, &name, None).is_ok_and(|output| output.status.success())
    }

    fn has_hint(&self) -> bool {
        let saved = self.save(Table::Mangle).unwrap_or_default();
        let chains = saved::parse(&saved);
        chains.contains_key("KUBE-IPTABLES-HINT") || chains.contains_key("KUBE-KUBELET-CANARY")
    }

    /// Legacy tables come into being when they are first looked at, and then cost each packet something: asked for only
    /// where they are.
    pub(super) fn may_hold_rules(&self) -> bool {
        let names = match self.family {
            Family::V4 => "/proc/thread-self/net/ip_tables_names",
            Family::V6 => "/proc/thread-self/net/ip6_tables_names",
        };
        self.variant.is_nft() || fs::read_to_string(names).is_ok_and(|names| !names.trim().is_empty())
    }
}

/// What is on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Installed {
    /// The one that `iptables` is comes first.
    pub variants: Vec<Variant>,
    /// `MASQUERADE --random-fully` is known.
    pub random_fully: bool,
}

pub(super) fn installed() -> Result<Installed> {
    let output = run(Command::new("iptables").arg("--version"), "iptables", None)?;
    let version = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        return Err(Error(failure("iptables", &output, "")));
    }
    let is_nft = version.contains("nf_tables");
    let is_there = |name: &str| run(Command::new(name).arg("--version"), name, None).is_ok_and(|o| o.status.success());
    let both = is_there("iptables-nft") && is_there("iptables-legacy");
    let variants = match (both, is_nft) {
        (false, is_nft) => vec![Variant::Plain { is_nft }],
        (true, true) => vec![Variant::Nft, Variant::Legacy],
        (true, false) => vec![Variant::Legacy, Variant::Nft],
    };
    Ok(Installed {
        variants,
        random_fully: is_at_least(&version, &[1, 6, 2]),
    })
}

/// `iptables v1.8.9 (nf_tables)`
fn is_at_least(version: &str, wanted: &[u32]) -> bool {
    let number = version.split_whitespace().find_map(|word| word.strip_prefix('v'));
    let Some(number) = number else { return false };
    let parts: Vec<u32> = number.split('.').map_while(|part| part.parse().ok()).collect();
    parts.as_slice() >= wanted
}

/// Where the kubelet has left its hint; else where kube-proxy's rules are; else what `iptables` is.
///
/// Upstream: the iptables-wrapper of kube-proxy's image.
pub(super) fn choose(variants: &[Variant], families: &[Family]) -> Variant {
    let [preferred, _] = variants else { return variants[0] };
    let programs = |variant: Variant| {
        families.iter().map(move |family| Program {
            variant,
            family: *family,
        })
    };
    let has_hint = |program: Program| program.may_hold_rules() && program.has_hint();
    let has_rules =
        |program: Program| program.may_hold_rules() && program.has_chain(Table::Nat, super::names::POSTROUTING);
    let order = [Variant::Nft, Variant::Legacy];
    let hinted = order.into_iter().find(|variant| programs(*variant).any(has_hint));
    let used = || order.into_iter().find(|variant| programs(*variant).any(has_rules));
    hinted.or_else(used).unwrap_or(*preferred)
}

fn run(command: &mut Command, name: &str, input: Option<&str>) -> Result<Output> {
    command.env("LC_ALL", "C").stdout(Stdio::piped()).stderr(Stdio::piped());
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    let cannot = |e: std::io::Error| Error(format!("failed to run {name}: {e}"));
    let mut child = command.spawn().map_err(cannot)?;
    if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
        // One that stops reading says why on its own.
        let _ = stdin.write_all(input.as_bytes());
    }
    child.wait_with_output().map_err(cannot)
}

/// What a person needs to know of a failure: the lock, or the line that was refused.
fn failure(name: &str, output: &Output, input: &str) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let said: Vec<&str> = stderr.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if stderr.contains("xtables lock") {
        return format!("{name}: another program holds the xtables lock ({LOCK}) for more than {WAIT} s");
    }
    let mut text = format!(
        "{name}: {}",
        if said.is_empty() {
            output.status.to_string()
        } else {
            said.join("; ")
        }
    );
    if let Some((number, line)) = refused_line(&stderr, input) {
        text.push_str(&format!(" (line {number} is {line:?})"));
    }
    text
}

/// The line of the input of which a program speaks.
fn refused_line<'a>(stderr: &str, input: &'a str) -> Option<(usize, &'a str)> {
    let number = |after: &str| {
        let digits: String = after
            .trim_start_matches([':', ' '])
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        digits.parse::<usize>().ok()
    };
    let number = stderr
        .match_indices("line")
        .find_map(|(at, word)| number(&stderr[at + word.len()..]))?;
    let line = input.lines().nth(number.checked_sub(1)?)?;
    Some((number, line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refused_line_is_found() {
        let input = "*nat\n-A NOWHERE -j ACCEPT\nCOMMIT\n";
        let found = |stderr| refused_line(stderr, input).map(|(number, _)| number);
        assert_eq!(found("iptables-restore: line 2 failed"), Some(2));
        assert_eq!(
            found("iptables-restore v1.8.9: x\nError occurred at line: 2\nTry -h"),
            Some(2)
        );
        assert_eq!(found("line 9 failed"), None);
        assert_eq!(found("online"), None);
        assert_eq!(refused_line("line 2 failed", input), Some((2, "-A NOWHERE -j ACCEPT")));
    }

    #[test]
    fn a_lock_that_is_held_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().lock().unwrap();
        let mut command = Command::new("unshare");
        command.args(["--net", "iptables-legacy-restore", "--noflush", "-w", "1"]);
        command.env("XTABLES_LOCKFILE", file.path());
        let output = run(&mut command, "iptables-legacy-restore", Some("*nat\nCOMMIT\n")).unwrap();
        assert!(!output.status.success());
        let text = failure("iptables-legacy-restore", &output, "");
        assert!(
            text.contains("another program holds the xtables lock (/run/xtables.lock)"),
            "{text}"
        );
    }

    #[test]
    fn versions_are_compared_by_number() {
        assert!(is_at_least("iptables v1.8.9 (nf_tables)\n", &[1, 6, 2]));
        assert!(is_at_least("iptables v1.10.0 (legacy)\n", &[1, 6, 2]));
        assert!(!is_at_least("iptables v1.6.1\n", &[1, 6, 2]));
        assert!(!is_at_least("busybox", &[1, 6, 2]));
    }
}

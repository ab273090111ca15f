//! How a simulated container behaves, as its pod's annotations say.
//!
//! `orlop.io/KEY` holds for every container of the pod, `orlop.io/KEY.NAME` for the one of that name and goes first.
//!
//! | key | value | without it |
//! |---|---|---|
//! | `run-for` | how long it runs before it ends by itself, such as `1m30s` | it runs for ever (`0s` for an init container) |
//! | `exit-code` | with which code it then ends | 0 |
//! | `start-delay` | how long starting it takes | 0s |
//! | `stop-delay` | how long it needs to end when asked to | 0s |
//! | `stop-exit-code` | with which code it then ends | 143 |
//! | `cpu` | what it uses, such as `250m` | 1m |
//! | `memory` | what it uses, such as `64Mi`; more than its limit gets it killed (OOMKilled) as it starts | 1Mi |
//! | `log` | what it writes when it starts, where logs are kept | nothing |
//! | `exec-exit-code` | what commands run in it end with | 0 |
//! | `fail-sandbox`, `fail-pull`, `fail-create`, `fail-start` | the error which that step ends in | it goes well |

use std::collections::BTreeMap;
use std::time::Duration;

/// What starts every annotation that simulated containers look at.
pub const PREFIX: &str = "orlop.io/";

/// On a container's own configuration: it is an init container, so that it has to end for its pod to get on.
pub const INIT: &str = "orlop.io/init-container";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behaviour {
    pub run_for: Option<Duration>,
    pub exit_code: i32,
    pub start_delay: Duration,
    pub stop_delay: Duration,
    pub stop_exit_code: i32,
    pub cpu_nano_cores: u64,
    pub memory_bytes: u64,
    pub log: Option<String>,
    pub exec_exit_code: i32,
    pub fail_create: Option<String>,
    pub fail_start: Option<String>,
}

/// An annotation whose value cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("annotation {PREFIX}{key}: {value:?} is not {expected}")]
pub struct BehaviourError {
    key: String,
    value: String,
    expected: &'static str,
}

impl Behaviour {
    /// From the annotations of the pod for a container of this name.
    pub fn read(
        annotations: &BTreeMap<String, String>,
        container: &str,
        init: bool,
    ) -> Result<Behaviour, BehaviourError> {
        let of = Annotations { annotations, container };
        let duration = |key| of.read(key, duration, "a duration such as 1m30s");
        let code = |key| of.read(key, |v| v.parse::<i32>().ok(), "an exit code");
        let amount = |key| of.read(key, quantity_nano, "a quantity such as 250m or 64Mi");
        let ends_by_itself = init.then_some(Duration::ZERO);
        Ok(Behaviour {
            run_for: duration("run-for")?.or(ends_by_itself),
            exit_code: code("exit-code")?.unwrap_or(0),
            start_delay: duration("start-delay")?.unwrap_or_default(),
            stop_delay: duration("stop-delay")?.unwrap_or_default(),
            stop_exit_code: code("stop-exit-code")?.unwrap_or(143),
            cpu_nano_cores: amount("cpu")?.map_or(1_000_000, |nano| u64::try_from(nano).unwrap_or(u64::MAX)),
            memory_bytes: amount("memory")?.map_or(1 << 20, |n| u64::try_from(n / NANO).unwrap_or(u64::MAX)),
            log: of.find("log").map(str::to_string),
            exec_exit_code: code("exec-exit-code")?.unwrap_or(0),
            fail_create: of.find("fail-create").map(str::to_string),
            fail_start: of.find("fail-start").map(str::to_string),
        })
    }
}

struct Annotations<'a> {
    annotations: &'a BTreeMap<String, String>,
    container: &'a str,
}

impl Annotations<'_> {
    fn find(&self, key: &str) -> Option<&str> {
        let own = format!("{PREFIX}{key}.{}", self.container);
        let all = format!("{PREFIX}{key}");
        let found = self.annotations.get(&own).or_else(|| self.annotations.get(&all));
        found.map(String::as_str)
    }

    fn read<T>(
        &self,
        key: &str,
        parse: impl Fn(&str) -> Option<T>,
        expected: &'static str,
    ) -> Result<Option<T>, BehaviourError> {
        let Some(text) = self.find(key) else { return Ok(None) };
        let parsed = parse(text).ok_or_else(|| BehaviourError {
            key: key.to_string(),
            value: text.to_string(),
            expected,
        })?;
        Ok(Some(parsed))
    }
}

/// Which error the annotations ask for in a step that is not a container's: `fail-sandbox`, `fail-pull`.
pub fn asked_to_fail(annotations: &BTreeMap<String, String>, step: &str) -> Option<String> {
    annotations.get(&format!("{PREFIX}fail-{step}")).cloned()
}

/// Go's notation: numbers with units, `1h2m3.5s`. A lone `0` is fine too.
fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let (number, after) = split_number(rest)?;
        let unit_ends = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let seconds = match &after[..unit_ends] {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        total = total.checked_add(Duration::try_from_secs_f64(number * seconds).ok()?)?;
        rest = &after[unit_ends..];
    }
    (!text.is_empty()).then_some(total)
}

const NANO: u128 = 1_000_000_000;

/// Kubernetes' quantities, in billionths of the unit.
fn quantity_nano(text: &str) -> Option<u128> {
    let (number, suffix) = split_number(text)?;
    let factor = match suffix {
        "" => 1e9,
        "n" => 1.0,
        "u" => 1e3,
        "m" => 1e6,
        "k" => 1e12,
        "M" => 1e15,
        "G" => 1e18,
        "T" => 1e21,
        "Ki" => 1e9 * 1024.0,
        "Mi" => 1e9 * 1024.0 * 1024.0,
        "Gi" => 1e9 * 1024.0 * 1024.0 * 1024.0,
        "Ti" => 1e9 * 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    Some((number * factor).round() as u128)
}

/// A number without sign, and what follows it.
fn split_number(text: &str) -> Option<(f64, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Behaviour, BehaviourError> {
        let pairs = pairs.iter().map(|(k, v)| (format!("{PREFIX}{k}"), v.to_string()));
        Behaviour::read(&pairs.collect(), "web", false)
    }

    #[test]
    fn a_containers_own_annotation_goes_first() {
        let found = read(&[("run-for", "1m"), ("run-for.web", "1m30.5s"), ("run-for.other", "9h")]).unwrap();
        assert_eq!(found.run_for, Some(Duration::from_millis(90_500)));
        assert_eq!(read(&[("run-for.other", "9h")]).unwrap().run_for, None);
        let init = Behaviour::read(&BTreeMap::new(), "web", true).unwrap();
        assert_eq!(init.run_for, Some(Duration::ZERO));
    }

    #[test]
    fn amounts() {
        let found = read(&[("cpu", "250m"), ("memory", "1.5Gi"), ("exit-code", "-1")]).unwrap();
        assert_eq!(found.cpu_nano_cores, 250_000_000);
        assert_eq!(found.memory_bytes, 3 << 29);
        assert_eq!(found.exit_code, -1);
    }

    #[test]
    fn nonsense_is_named() {
        for (key, value) in [
            ("run-for", "soon"),
            ("run-for", ""),
            ("run-for", "5"),
            ("run-for", "99999999999999999999h"),
            ("cpu", "1x"),
            ("memory", "-1"),
            ("exit-code", "1.5"),
        ] {
            let message = read(&[(key, value)]).unwrap_err().to_string();
            assert!(
                message.contains(key) && message.contains(&format!("{value:?}")),
                "{message}"
            );
        }
    }
}

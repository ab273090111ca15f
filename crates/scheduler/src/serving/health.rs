//! /healthz, /livez, /readyz: all checks, one check, and all with their names.

/// What health is judged by.
pub(super) struct State {
    pub leader_elect: bool,
    /// Every kind of object has been listed.
    pub synced: bool,
    pub stopping: bool,
}

struct Check {
    name: &'static str,
    /// Where it counts.
    at: &'static [&'static str],
    applies: fn(&State) -> bool,
    passes: fn(&State) -> bool,
}

const CHECKS: &[Check] = &[
    Check {
        name: "ping",
        at: &["healthz", "livez"],
        applies: |_| true,
        passes: |_| true,
    },
    // One that loses its lease stops at once, so whoever answers has not lost it.
    Check {
        name: "leaderElection",
        at: &["healthz", "readyz"],
        applies: |s| s.leader_elect,
        passes: |_| true,
    },
    Check {
        name: "shutdown",
        at: &["readyz"],
        applies: |_| true,
        passes: |s| !s.stopping,
    },
    Check {
        name: "sched-handler-sync",
        at: &["readyz"],
        applies: |_| true,
        passes: |s| s.synced,
    },
];

/// The code and the text, or none if the path is not about health.
pub(super) fn respond(state: &State, path: &str, query: &str) -> Option<(u16, String)> {
    let (endpoint, one) = match path.strip_prefix('/')?.split_once('/') {
        Some((endpoint, one)) => (endpoint, one),
        None => (&path[1..], ""),
    };
    let here = || CHECKS.iter().filter(|c| c.at.contains(&endpoint) && (c.applies)(state));
    here().next()?;
    if !one.is_empty() {
        let check = here().find(|c| c.name == one)?;
        return Some(match (check.passes)(state) {
            true => (200, "ok".to_string()),
            false => (500, "internal server error: check failed\n".to_string()),
        });
    }
    let excluded = |name: &str| query.split('&').any(|p| p.strip_prefix("exclude=") == Some(name));
    let verbose = query.split('&').any(|p| p == "verbose" || p.starts_with("verbose="));
    let (mut text, mut failed) = (String::new(), false);
    for check in here() {
        let name = check.name;
        if excluded(name) {
            text += &format!("[+]{name} excluded: ok\n");
        } else if (check.passes)(state) {
            text += &format!("[+]{name} ok\n");
        } else {
            failed = true;
            text += &format!("[-]{name} failed: reason withheld\n");
        }
    }
    Some(match (failed, verbose) {
        (true, _) => (500, format!("{text}{endpoint} check failed\n")),
        (false, true) => (200, format!("{text}{endpoint} check passed\n")),
        (false, false) => (200, "ok".to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers() {
        let state = |leader_elect, synced, stopping| State {
            leader_elect,
            synced,
            stopping,
        };
        let waiting = "[+]leaderElection ok\n[+]shutdown ok\n[-]sched-handler-sync failed: reason withheld\n\
                       readyz check failed\n";
        let cases = [
            (state(true, false, false), "/healthz", "", 200, "ok"),
            (
                state(true, false, false),
                "/healthz",
                "verbose",
                200,
                "[+]ping ok\n[+]leaderElection ok\nhealthz check passed\n",
            ),
            (
                state(false, false, false),
                "/livez",
                "verbose=1",
                200,
                "[+]ping ok\nlivez check passed\n",
            ),
            (state(true, false, false), "/readyz", "", 500, waiting),
            (state(true, true, false), "/readyz", "", 200, "ok"),
            (
                state(true, false, false),
                "/readyz",
                "exclude=sched-handler-sync",
                200,
                "ok",
            ),
            (state(false, true, false), "/readyz/shutdown", "", 200, "ok"),
            (
                state(false, true, true),
                "/readyz/shutdown",
                "",
                500,
                "internal server error: check failed\n",
            ),
        ];
        for (state, path, query, code, text) in cases {
            assert_eq!(
                respond(&state, path, query),
                Some((code, text.to_string())),
                "{path}?{query}"
            );
        }
        for path in ["/", "/metrics", "/readyz/none", "/health", "healthz"] {
            assert_eq!(respond(&state(true, true, false), path, ""), None, "{path}");
        }
    }
}

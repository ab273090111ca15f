//! /healthz, /livez, /readyz: all checks, one check, and all with their names.

/// A health check and its result.
#[derive(Clone, Copy)]
pub struct Check {
    pub name: &'static str,
    /// The endpoints it belongs to: `healthz`, `livez`, `readyz`.
    pub at: &'static [&'static str],
    pub passes: bool,
}

/// Status code and text; none for a path that no check belongs to.
pub fn respond(checks: &[Check], path: &str, query: &str) -> Option<(u16, String)> {
    let (endpoint, one) = match path.strip_prefix('/')?.split_once('/') {
        Some((endpoint, one)) => (endpoint, one),
        None => (&path[1..], ""),
    };
    let here = || checks.iter().filter(|c| c.at.contains(&endpoint));
    here().next()?;
    if !one.is_empty() {
        let check = here().find(|c| c.name == one)?;
        return Some(match check.passes {
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
        } else if check.passes {
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
        let checks = |synced, stopping: bool| {
            let check = |name, at, passes| Check { name, at, passes };
            [
                check("ping", &["healthz", "livez"][..], true),
                check("shutdown", &["readyz"][..], !stopping),
                check("sync", &["readyz"][..], synced),
            ]
        };
        let waiting = "[+]shutdown ok\n[-]sync failed: reason withheld\nreadyz check failed\n";
        let passed = "[+]ping ok\nhealthz check passed\n";
        let cases = [
            (checks(false, false), "/healthz", "", 200, "ok"),
            (checks(false, false), "/healthz", "verbose", 200, passed),
            (checks(false, false), "/readyz", "", 500, waiting),
            (checks(true, false), "/readyz", "", 200, "ok"),
            (checks(false, false), "/readyz", "exclude=sync", 200, "ok"),
            (checks(true, false), "/readyz/shutdown", "", 200, "ok"),
            (
                checks(true, true),
                "/readyz/shutdown",
                "",
                500,
                "internal server error: check failed\n",
            ),
        ];
        for (checks, path, query, code, text) in cases {
            assert_eq!(
                respond(&checks, path, query),
                Some((code, text.to_string())),
                "{path}?{query}"
            );
        }
        for path in ["/", "/metrics", "/readyz/none", "/health", "healthz"] {
            assert_eq!(respond(&checks(true, false), path, ""), None, "{path}");
        }
    }
}

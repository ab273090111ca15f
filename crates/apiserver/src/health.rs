//! /healthz, /livez, /readyz: all checks, one check, and all with their names.

use std::sync::atomic::{AtomicBool, Ordering};

use http::Response;

use crate::request::Query;
use crate::respond::{self, Body};

/// What the server knows about its own health.
#[derive(Default)]
pub struct Health {
    /// The default objects are there.
    pub bootstrapped: AtomicBool,
    /// No new work: the server is on its way down.
    pub stopping: AtomicBool,
}

struct Check {
    name: &'static str,
    ready_only: bool,
    passes: fn(&Health) -> bool,
}

const CHECKS: &[Check] = &[
    Check {
        name: "ping",
        ready_only: false,
        passes: |_| true,
    },
    Check {
        name: "log",
        ready_only: false,
        passes: |_| true,
    },
    Check {
        name: "etcd",
        ready_only: false,
        passes: |_| true,
    },
    Check {
        name: "etcd-readiness",
        ready_only: true,
        passes: |_| true,
    },
    Check {
        name: "informer-sync",
        ready_only: true,
        passes: |_| true,
    },
    Check {
        name: "poststarthook/rbac/bootstrap-roles",
        ready_only: false,
        passes: |h| h.bootstrapped.load(Ordering::Acquire),
    },
    Check {
        name: "poststarthook/scheduling/bootstrap-system-priority-classes",
        ready_only: false,
        passes: |h| h.bootstrapped.load(Ordering::Acquire),
    },
    Check {
        name: "poststarthook/start-system-namespaces-controller",
        ready_only: false,
        passes: |h| h.bootstrapped.load(Ordering::Acquire),
    },
    Check {
        name: "shutdown",
        ready_only: true,
        passes: |h| !h.stopping.load(Ordering::Acquire),
    },
];

pub fn respond(health: &Health, path: &str, query: &Query) -> Option<Response<Body>> {
    let words: Vec<&str> = path.trim_matches('/').splitn(2, '/').collect();
    let endpoint = match words[0] {
        "healthz" | "livez" | "readyz" => words[0],
        _ => return None,
    };
    let applies = |c: &&Check| endpoint == "readyz" || !c.ready_only;
    if let Some(one) = words.get(1).filter(|w| !w.is_empty()) {
        let check = CHECKS.iter().filter(applies).find(|c| c.name == *one)?;
        return Some(match (check.passes)(health) {
            true => respond::plain(200, "text/plain; charset=utf-8", "ok"),
            false => respond::plain(
                500,
                "text/plain; charset=utf-8",
                "internal server error: check failed\n",
            ),
        });
    }
    let excluded: Vec<&str> = query.all("exclude").collect();
    let mut text = String::new();
    let mut failed = vec![];
    for check in CHECKS.iter().filter(applies) {
        if excluded.contains(&check.name) {
            text.push_str(&format!("[+]{} excluded: ok\n", check.name));
        } else if (check.passes)(health) {
            text.push_str(&format!("[+]{} ok\n", check.name));
        } else {
            failed.push(check.name);
            text.push_str(&format!("[-]{} failed: reason withheld\n", check.name));
        }
    }
    let plain = "text/plain; charset=utf-8";
    Some(match (failed.is_empty(), query.flag("verbose")) {
        (true, false) => respond::plain(200, plain, "ok"),
        (true, true) => respond::plain(200, plain, format!("{text}{endpoint} check passed\n")),
        (false, _) => respond::plain(500, plain, format!("{text}{endpoint} check failed\n")),
    })
}

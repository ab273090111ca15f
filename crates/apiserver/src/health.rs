//! /healthz, /livez, /readyz: all checks, one check, and all with their names. Beside Kubernetes' own there is one for
//! each component that runs in this process.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::Response;
use orlop_base::Supervisor;
use orlop_base::metrics::text::{header, line};

use crate::chain::Server;
use crate::request::Query;
use crate::respond::{self, Body};

/// Loops of `housekeeping` that follow the store.
pub const FOLLOWERS: usize = 4;

/// What the server knows about its own health.
#[derive(Default)]
pub struct Health {
    /// The default objects are there.
    pub bootstrapped: AtomicBool,
    /// No new work: the server is on its way down.
    pub stopping: AtomicBool,
    /// How many of the server's own loops follow the store now.
    pub following: AtomicUsize,
    /// What runs in this process: the server's own loops and, in `orlop up`, all the other components.
    pub components: Supervisor,
}

impl Health {
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

/// One look at everything that a check can be about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Snapshot {
    bootstrapped: bool,
    stopping: bool,
    followers: usize,
    /// The store's writer thread is there.
    store_runs: bool,
    /// Writes come to an end within the time that a health check, or a readiness check, gives them.
    store_answers: bool,
    store_answers_readily: bool,
    /// The last write to the store's log worked.
    log_works: bool,
}

impl Snapshot {
    fn take(server: &Server) -> Snapshot {
        let (health, store) = (&server.health, &server.registry.store);
        let (config, pending) = (&server.registry.config, store.pending_for());
        Snapshot {
            bootstrapped: health.bootstrapped.load(Ordering::Acquire),
            stopping: health.stopping.load(Ordering::Acquire),
            followers: health.following.load(Ordering::Acquire),
            store_runs: store.is_running(),
            store_answers: pending < config.store_healthcheck_timeout,
            store_answers_readily: pending < config.store_readycheck_timeout,
            log_works: store.health().is_ok(),
        }
    }
}

struct Check {
    name: &'static str,
    ready_only: bool,
    passes: fn(&Snapshot) -> bool,
}

const CHECKS: &[Check] = &[
    Check {
        name: "ping",
        ready_only: false,
        // Whoever gets an answer got one.
        passes: |_| true,
    },
    Check {
        name: "log",
        ready_only: false,
        passes: |s| s.store_runs && s.log_works,
    },
    Check {
        name: "etcd",
        ready_only: false,
        passes: |s| s.store_runs && s.store_answers,
    },
    Check {
        name: "etcd-readiness",
        ready_only: true,
        passes: |s| s.store_runs && s.store_answers_readily && s.log_works,
    },
    Check {
        name: "informer-sync",
        ready_only: true,
        passes: |s| s.followers >= FOLLOWERS,
    },
    Check {
        name: "poststarthook/rbac/bootstrap-roles",
        ready_only: false,
        passes: |s| s.bootstrapped,
    },
    Check {
        name: "poststarthook/scheduling/bootstrap-system-priority-classes",
        ready_only: false,
        passes: |s| s.bootstrapped,
    },
    Check {
        name: "poststarthook/start-system-namespaces-controller",
        ready_only: false,
        passes: |s| s.bootstrapped,
    },
    Check {
        name: "shutdown",
        ready_only: true,
        passes: |s| !s.stopping,
    },
];

/// Names and outcomes of the checks at an endpoint. A component is no reason to restart the process: it is at `readyz`
/// only, before the last check, and one that somebody stopped passes.
fn outcomes(endpoint: &str, snapshot: &Snapshot, components: &[(&'static str, bool)]) -> Vec<(&'static str, bool)> {
    let is_ready = endpoint == "readyz";
    // A restart does not empty a full disk, and reads go on meanwhile.
    let snapshot = &Snapshot {
        log_works: snapshot.log_works || !is_ready,
        ..*snapshot
    };
    let own = CHECKS.iter().filter(|c| is_ready || !c.ready_only);
    let mut all: Vec<_> = own.map(|c| (c.name, (c.passes)(snapshot))).collect();
    if is_ready {
        let end = all.len() - 1;
        all.splice(end..end, components.iter().copied());
    }
    all
}

fn look(server: &Server, endpoint: &str) -> Vec<(&'static str, bool)> {
    let components = server.health.components.all();
    let components: Vec<_> = components
        .iter()
        .map(|(name, r)| (*name, r.state.is_healthy()))
        .collect();
    outcomes(endpoint, &Snapshot::take(server), &components)
}

/// Whether `/livez` passes: if not, only a new start helps.
pub fn is_live(server: &Server) -> bool {
    look(server, "livez").iter().all(|(_, passes)| *passes)
}

/// The checks of `/readyz` that fail.
pub fn unready(server: &Server) -> Vec<&'static str> {
    let checks = look(server, "readyz").into_iter();
    checks.filter(|(_, passes)| !passes).map(|(name, _)| name).collect()
}

pub fn respond(server: &Server, path: &str, query: &Query) -> Option<Response<Body>> {
    let words: Vec<&str> = path.trim_matches('/').splitn(2, '/').collect();
    let endpoint = match words[0] {
        "healthz" | "livez" | "readyz" => words[0],
        _ => return None,
    };
    let checks = look(server, endpoint);
    let plain = "text/plain; charset=utf-8";
    if let Some(one) = words.get(1).filter(|w| !w.is_empty()) {
        let (_, passes) = checks.iter().find(|(name, _)| name == one)?;
        return Some(match passes {
            true => respond::plain(200, plain, "ok"),
            false => respond::plain(500, plain, "internal server error: check failed\n"),
        });
    }
    let excluded: Vec<&str> = query.all("exclude").collect();
    let (text, failed) = render(&checks, &excluded);
    Some(match (failed, query.flag("verbose")) {
        (false, false) => respond::plain(200, plain, "ok"),
        (false, true) => respond::plain(200, plain, format!("{text}{endpoint} check passed\n")),
        (true, _) => respond::plain(500, plain, format!("{text}{endpoint} check failed\n")),
    })
}

/// A line for each check, and whether one of them failed.
fn render(checks: &[(&'static str, bool)], excluded: &[&str]) -> (String, bool) {
    let (mut text, mut failed) = (String::new(), false);
    for (name, passes) in checks {
        let _ = match (excluded.contains(name), passes) {
            (true, _) => writeln!(text, "[+]{name} excluded: ok"),
            (false, true) => writeln!(text, "[+]{name} ok"),
            (false, false) => writeln!(text, "[-]{name} failed: reason withheld"),
        };
        failed |= !passes && !excluded.contains(name);
    }
    (text, failed)
}

/// Checks under Kubernetes' name, and what became of the components.
pub fn write_metrics(server: &Server, out: &mut String) {
    let name = "kubernetes_healthcheck";
    header(
        out,
        name,
        "gauge",
        "This metric records the result of a single healthcheck.",
    );
    for endpoint in ["healthz", "livez", "readyz"] {
        for (check, passes) in look(server, endpoint) {
            line(
                out,
                name,
                &format!("name=\"{check}\",type=\"{endpoint}\""),
                u8::from(passes),
            );
        }
    }
    let components = server.health.components.all();
    let help = "1 for the state that the component is in.";
    header(out, "orlop_component_state", "gauge", help);
    for (component, record) in &components {
        let labels = format!("component=\"{component}\",state=\"{}\"", record.state);
        line(out, "orlop_component_state", &labels, 1);
    }
    let help = "Restarts of a component that ended or panicked.";
    header(out, "orlop_component_restarts_total", "counter", help);
    for (component, record) in &components {
        let labels = format!("component=\"{component}\"");
        line(out, "orlop_component_restarts_total", &labels, record.restarts);
    }
    let help = "Panics that made a component fail.";
    header(out, "orlop_component_panics_total", "counter", help);
    for (component, record) in &components {
        let labels = format!("component=\"{component}\"");
        line(out, "orlop_component_panics_total", &labels, record.panics);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: Snapshot = Snapshot {
        bootstrapped: true,
        stopping: false,
        followers: FOLLOWERS,
        store_runs: true,
        store_answers: true,
        store_answers_readily: true,
        log_works: true,
    };

    fn failing(endpoint: &str, snapshot: &Snapshot) -> Vec<&'static str> {
        let all = outcomes(endpoint, snapshot, &[("scheduler", true)]);
        all.into_iter()
            .filter(|(_, passes)| !passes)
            .map(|(name, _)| name)
            .collect()
    }

    /// A check that no state of the server makes fail tells nothing. `ping` alone is about being asked at all.
    #[test]
    fn every_check_but_ping_can_fail() {
        let ill = [
            Snapshot {
                bootstrapped: false,
                ..WELL
            },
            Snapshot { stopping: true, ..WELL },
            Snapshot {
                followers: FOLLOWERS - 1,
                ..WELL
            },
            Snapshot {
                store_runs: false,
                ..WELL
            },
            Snapshot {
                log_works: false,
                ..WELL
            },
        ];
        assert!(failing("readyz", &WELL).is_empty());
        let failed: Vec<&str> = ill.iter().flat_map(|s| failing("readyz", s)).collect();
        let never: Vec<&str> = CHECKS.iter().map(|c| c.name).filter(|n| !failed.contains(n)).collect();
        assert_eq!(never, ["ping"]);
        assert_eq!(failing("livez", &ill[3]), ["log", "etcd"]);
        assert!(failing("livez", &ill[4]).is_empty());
        assert_eq!(failing("readyz", &ill[4]), ["log", "etcd-readiness"]);
        let hung = Snapshot {
            store_answers: false,
            store_answers_readily: false,
            ..WELL
        };
        assert_eq!(failing("livez", &hung), ["etcd"]);
        assert_eq!(failing("readyz", &hung), ["etcd", "etcd-readiness"]);
    }

    #[test]
    fn a_component_that_failed_makes_the_server_unready_and_nothing_else() {
        let all = outcomes("readyz", &WELL, &[("scheduler", false), ("kubelet", true)]);
        let (text, failed) = render(&all, &[]);
        assert!(
            failed && text.ends_with("[-]scheduler failed: reason withheld\n[+]kubelet ok\n[+]shutdown ok\n"),
            "{text}"
        );
        let (text, failed) = render(&all, &["scheduler"]);
        assert!(!failed && text.contains("[+]scheduler excluded: ok\n"), "{text}");
        let names: Vec<_> = outcomes("livez", &WELL, &[("scheduler", false)]);
        assert!(names.iter().all(|(name, _)| *name != "scheduler"));
    }
}

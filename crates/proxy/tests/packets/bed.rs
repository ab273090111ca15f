//! A world with a proxy on node A, and what is expected of it.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::SocketAddr;
use std::process::Command;

use orlop_proxy::backend::{Backend, Cleaned, Mode, Report};
use orlop_proxy::conntrack;
use orlop_proxy::plan::{Change, Family, Node, Planner, Protocol};
use orlop_proxy::settings::{DetectLocal, Settings};
use tokio::runtime::Runtime;

use crate::modes;
use crate::service::{Svc, slice_name};
use crate::world::{IMPATIENCE, Outcome, PATIENCE, World};

/// Whose address a pod sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The client's own. A pod that reaches itself sees the node's: it must, as answers would not pass the node.
    Kept,
    /// One of the node's.
    Node,
}

/// What should become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Each of these pods answers now and then, and no other.
    Served(&'static [&'static str], Seen),
    Refused,
    Dropped,
    /// Refused, or taken and ended at once.
    Ended,
}

pub(crate) struct Bed {
    pub world: World,
    pub mode: Mode,
    pub backend: Box<dyn Backend>,
    pub planner: Planner,
    settings: Settings,
    /// For back ends that serve connections themselves.
    runtime: Runtime,
    failures: Vec<String>,
}

impl Bed {
    pub(crate) fn new(mode: Mode, world: World) -> Bed {
        let settings = settings();
        let node = world.node().netns.clone();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .on_thread_start(move || node.set_here())
            .enable_all()
            .build()
            .unwrap();
        let handle = runtime.handle().clone();
        let backend = world.node().netns.enter(|| modes::start(mode, &settings, handle));
        let planner = Planner::new(Node {
            name: "a".to_string(),
            addresses: vec![world.node().v4, world.node().v6],
            zone: None,
            pod_ranges: vec!["10.244.1.0/24".parse().unwrap(), "fd00:244:1::/64".parse().unwrap()],
        });
        Bed {
            world,
            mode,
            backend,
            planner,
            settings,
            runtime,
            failures: vec![],
        }
    }

    /// Brings services about, new or changed.
    pub(crate) fn put(&mut self, services: &[&Svc]) -> Report {
        for service in services {
            self.planner.apply_service(&service.object());
            for slice in service.slices(&self.world) {
                self.planner.apply_slice(&slice);
            }
        }
        self.sync()
    }

    pub(crate) fn remove(&mut self, service: &Svc) -> Report {
        self.planner.forget_service("default", service.name);
        for family in Family::ALL {
            self.planner.forget_slice("default", &slice_name(service.name, family));
        }
        self.sync()
    }

    fn sync(&mut self) -> Report {
        let change = self.planner.take_changes().change;
        self.sync_with(&change)
    }

    /// Looks at everything, as proxies do now and then.
    pub(crate) fn sync_all(&mut self) -> Report {
        self.sync_with(&Change::All)
    }

    fn sync_with(&mut self, change: &Change) -> Report {
        let (backend, plan) = (&mut self.backend, self.planner.plan());
        let planner = &self.planner;
        let report = self.world.node().netns.enter(|| {
            let report = backend.sync(plan, change);
            // As the engine does after each sync.
            conntrack::clean_stale(plan, change, |port| planner.serving(&port.key)).expect("flows can be deleted");
            report
        });
        let report = report.unwrap_or_else(|e| panic!("{}: sync: {e}", self.mode));
        assert_eq!(report.problems, Vec::<String>::new(), "{}", self.mode);
        report
    }

    /// Another back end takes the place of the one there is, which is not told.
    pub(crate) fn restart(&mut self) {
        self.backend = self.start(self.mode);
        self.sync_all();
    }

    fn start(&self, mode: Mode) -> Box<dyn Backend> {
        let handle = self.runtime.handle().clone();
        let settings = &self.settings;
        self.world.node().netns.enter(|| modes::start(mode, settings, handle))
    }

    pub(crate) fn cleanup(&mut self) -> Cleaned {
        let backend = &mut self.backend;
        let cleaned = self.world.node().netns.enter(|| backend.cleanup());
        cleaned.unwrap_or_else(|e| panic!("{}: cleanup: {e}", self.mode))
    }

    /// Another mode takes over, then the old one is cleaned up.
    pub(crate) fn switch(&mut self, mode: Mode) -> Box<dyn Backend> {
        let next = self.start(mode);
        let mut before = std::mem::replace(&mut self.backend, next);
        self.mode = mode;
        self.sync_all();
        let cleaned = self.world.node().netns.enter(|| before.cleanup());
        cleaned.unwrap_or_else(|e| panic!("{}: cleanup: {e}", before.mode()));
        before
    }

    /// What this mode must do where all should do that, and can't.
    fn as_mode_has_it(&self, expect: Expect) -> Expect {
        match (self.mode, expect) {
            // It has connections of its own to pods.
            (Mode::Userspace, Expect::Served(pods, Seen::Kept)) => Expect::Served(pods, Seen::Node),
            // The kernel has answered before this process hears of a connection.
            (Mode::Userspace, Expect::Dropped) => Expect::Ended,
            (_, expect) => expect,
        }
    }

    /// Asks as often as it takes to see what is expected; what differs is told in the end, with all the rest.
    #[track_caller]
    pub(crate) fn check(&mut self, from: &str, protocol: Protocol, to: SocketAddr, expect: Expect) {
        let failure = match self.as_mode_has_it(expect) {
            Expect::Served(pods, seen) => self.served(from, protocol, to, pods, seen).err(),
            Expect::Refused => self.refused(from, protocol, to, &[Outcome::Refused], PATIENCE),
            Expect::Ended => self.refused(from, protocol, to, &[Outcome::Refused, Outcome::Closed], PATIENCE),
            Expect::Dropped => self.refused(from, protocol, to, &[Outcome::Timeout], IMPATIENCE),
        };
        if let Some(failure) = failure {
            let place = std::panic::Location::caller();
            let label = format!("{}: {from} → {} {to}", self.mode, protocol.as_str());
            self.failures
                .push(format!("{label}: {expect:?} is wanted: {failure} ({place})"));
        }
    }

    fn refused(
        &self,
        from: &str,
        protocol: Protocol,
        to: SocketAddr,
        wanted: &[Outcome],
        limit: std::time::Duration,
    ) -> Option<String> {
        let outcome = self.world.ask(from, protocol, to, limit);
        (!wanted.contains(&outcome)).then(|| format!("{outcome:?}"))
    }

    fn served(&self, from: &str, protocol: Protocol, to: SocketAddr, pods: &[&str], seen: Seen) -> Result<(), String> {
        let mut missing: BTreeSet<&str> = pods.iter().copied().collect();
        // One of three pods is missed by as many random choices once in ten thousand million.
        for _ in 0..60 {
            let outcome = self.world.ask(from, protocol, to, PATIENCE);
            let Outcome::Answer { pod, source } = &outcome else {
                return Err(format!("{outcome:?}"));
            };
            if !pods.contains(&pod.as_str()) {
                return Err(format!("{pod} answers"));
            }
            let wanted = match seen {
                Seen::Kept if pod != from => *source == self.world.address(from, Family::of(to.ip())),
                _ => self.world.is_nodes(*source),
            };
            if !wanted {
                return Err(format!("{pod} sees {source}"));
            }
            missing.remove(pod.as_str());
            if missing.is_empty() {
                return Ok(());
            }
        }
        Err(format!("{missing:?} never answer"))
    }

    /// Notes what went wrong apart from requests.
    pub(crate) fn require(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.failures.push(format!("{}: {}", self.mode, what()));
        }
    }

    /// All that went wrong.
    pub(crate) fn finish(self) {
        let mut text = String::new();
        for failure in &self.failures {
            writeln!(text, "  {failure}").unwrap();
        }
        if !text.is_empty() {
            let rules = self.command("nft", &["list", "ruleset"]);
            panic!("{} not as wanted:\n{text}\n{rules}", self.failures.len());
        }
    }

    /// What a command says on node A.
    pub(crate) fn command(&self, program: &str, args: &[&str]) -> String {
        let output = self
            .world
            .node()
            .netns
            .enter(|| Command::new(program).args(args).output());
        let output = output.unwrap_or_else(|e| panic!("{program}: {e}"));
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(output.status.success(), "{program} {args:?}: {err}");
        out.into_owned()
    }

    /// Runs words apart by blanks as a command on node A.
    pub(crate) fn shell(&self, line: &str) -> String {
        let mut words = line.split_whitespace();
        let program = words.next().expect("a program");
        self.command(program, &words.collect::<Vec<_>>())
    }
}

pub(crate) fn settings() -> Settings {
    let mut settings = Settings {
        detect_local: DetectLocal::Ranges(vec!["10.244.0.0/16".parse().unwrap(), "fd00:244::/32".parse().unwrap()]),
        ..Settings::default()
    };
    settings.service_ranges = vec!["10.96.0.0/16".parse().unwrap(), "fd00:96::/112".parse().unwrap()];
    settings
}

//! What health and metrics say while syncs fail or hang.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc as blocking_channel;

use bytes::Bytes;
use orlop_base::metrics::exposition;
use orlop_client::testing::{Fake, FakeReply};

use super::*;
use crate::backend::{Backend, Cleaned, Report};
use crate::plan::{Change, Plan};

const PERIOD: Duration = Duration::from_secs(30);

/// Fails on request, and waits at its gate in each sync if it has one.
struct FakeBackend {
    mode: Mode,
    fails: Arc<AtomicBool>,
    gate: Option<(tokio::sync::mpsc::UnboundedSender<()>, blocking_channel::Receiver<()>)>,
}

impl Backend for FakeBackend {
    fn mode(&self) -> Mode {
        self.mode
    }

    fn sync(&mut self, _: &Plan, _: &Change) -> backend::Result<Report> {
        if let Some((entered, leave)) = &self.gate {
            entered.send(()).expect("the test waits");
            leave.recv().expect("the test lets it go");
        }
        match self.fails.load(Ordering::Relaxed) {
            true => Err(backend::Error("failed to write rules".to_string())),
            false => Ok(Report::default()),
        }
    }

    fn cleanup(&mut self) -> backend::Result<Cleaned> {
        Ok(Cleaned::Whole)
    }
}

struct World {
    shell: Shell,
    clock: Clock,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
}

/// All informers have synced, from an API server that is gone now.
fn world(backend: FakeBackend) -> World {
    let clock = Clock::manual("2026-01-01T00:00:00Z".parse().unwrap());
    let lost = Fake::serving(|_| FakeReply::Whole(503, Bytes::new()));
    let (metrics, shutdown) = (Arc::new(Metrics::default()), Shutdown::default());
    let options = Options {
        api: lost.api(),
        config: Config::default(),
        node_name: "n1".to_string(),
        node_addresses: vec![],
        service_ranges: vec![],
        follows_config_map: false,
        clock: clock.clone(),
        metrics: metrics.clone(),
        shutdown: shutdown.clone(),
    };
    let (recorder, _) = Recorder::start(options.api.clone(), "kube-proxy", clock.clone(), shutdown);
    let health = Arc::new(Health::new(clock.clone(), PERIOD, metrics.clone()));
    health.set_node_eligible(true);
    let mut shell = Shell::new(options, health.clone(), recorder);
    let (mode, runtime) = (backend.mode, tokio::runtime::Handle::current());
    shell.engine = Some(Engine::with_backend(Planner::default(), Box::new(backend), runtime));
    shell.note_mode(mode);
    World {
        shell,
        clock,
        health,
        metrics,
    }
}

impl World {
    async fn pass(&self, time: Duration) {
        tokio::time::advance(time).await;
        self.clock.advance(time);
    }

    /// Of `/healthz` and `/livez`.
    fn codes(&self) -> (u16, u16) {
        codes(&self.health)
    }

    fn failures(&self, what: &str) -> f64 {
        let families = exposition::parse(&self.metrics.render()).unwrap();
        let family = &families[&format!("kubeproxy_sync_proxy_rules_{what}_failures_total")];
        family.value(&[("ip_family", "IPv4")]).unwrap()
    }
}

fn codes(health: &Health) -> (u16, u16) {
    let code = |path| health.show(path, "").unwrap().code;
    (code("/healthz"), code("/livez"))
}

#[tokio::test(start_paused = true)]
async fn periodic_syncs_that_fail_are_unhealthy_until_one_succeeds() {
    for (mode, failures) in [(Mode::Ipvs, "ipvs_sync"), (Mode::Userspace, "userspace_sync")] {
        let fails = Arc::new(AtomicBool::new(false));
        let backend = FakeBackend {
            mode,
            fails: fails.clone(),
            gate: None,
        };
        let mut world = world(backend);
        world.shell.sync_if_due().await.unwrap();
        assert_eq!(world.codes(), (200, 200));
        // A lost API server changes nothing.
        for _ in 0..5 {
            world.pass(PERIOD).await;
            world.shell.sync_if_due().await.unwrap();
            assert_eq!(world.codes(), (200, 200));
        }
        fails.store(true, Ordering::Relaxed);
        world.pass(PERIOD).await;
        world.shell.sync_if_due().await.unwrap();
        assert_eq!(world.codes(), (200, 200), "the first failure");
        world.pass(PERIOD.saturating_mul(2)).await;
        world.shell.sync_if_due().await.unwrap();
        assert_eq!(world.codes(), (503, 503));
        assert_eq!(world.failures(failures), 2.0, "{mode}");
        assert_eq!(world.failures("iptables_restore"), 0.0, "{mode}");
        fails.store(false, Ordering::Relaxed);
        world.pass(PERIOD).await;
        world.shell.sync_if_due().await.unwrap();
        assert_eq!(world.codes(), (200, 200));
    }
}

#[tokio::test(start_paused = true)]
async fn a_sync_that_hangs_is_unhealthy_until_it_ends() {
    let (entered, mut has_entered) = tokio::sync::mpsc::unbounded_channel();
    let (leave, may_leave) = blocking_channel::channel();
    let backend = FakeBackend {
        mode: Mode::Nftables,
        fails: Arc::default(),
        gate: Some((entered, may_leave)),
    };
    let mut world = world(backend);
    let (clock, health) = (world.clock.clone(), world.health.clone());
    let watching = async {
        has_entered.recv().await.expect("it enters");
        assert_eq!(codes(&health), (200, 200));
        clock.advance(PERIOD.saturating_mul(2));
        assert_eq!(codes(&health), (503, 503));
        leave.send(()).expect("it waits");
    };
    let (synced, ()) = tokio::join!(world.shell.sync_if_due(), watching);
    synced.unwrap();
    assert_eq!(world.codes(), (200, 200));
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_stalls_is_unhealthy_until_it_goes_on() {
    let backend = FakeBackend {
        mode: Mode::Iptables,
        fails: Arc::default(),
        gate: None,
    };
    let mut world = world(backend);
    world.shell.sync_if_due().await.unwrap();
    world.pass(PERIOD.saturating_mul(3)).await;
    assert_eq!(world.codes(), (503, 503));
    world.shell.sync_if_due().await.unwrap();
    assert_eq!(world.codes(), (200, 200));
}

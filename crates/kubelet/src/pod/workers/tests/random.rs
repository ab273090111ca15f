//! Random pods and random histories: what must never happen, and what must happen in the end.

use orlop_runtime::simulated::Kind as Call;
use orlop_runtime::{Code, Error};
use proptest::prelude::*;

use super::*;
use crate::pod::observed;
use crate::pod::testing::pod;
use crate::pod::worker_state::Pace;

#[derive(Clone, Debug)]
enum Happening {
    Pass(u8),
    Exit(u8, u8),
    KillSandbox,
    FailNext(u8),
    Liveness(u8),
    Startup(u8),
    ChangeImage,
    Restart,
    Relist,
    Evict,
    Delete(u8),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        8 => (1u8..60).prop_map(Happening::Pass),
        6 => (0u8..4, 0u8..3).prop_map(|(c, code)| Happening::Exit(c, code)),
        1 => Just(Happening::KillSandbox),
        2 => (0u8..6).prop_map(Happening::FailNext),
        2 => (0u8..4).prop_map(Happening::Liveness),
        1 => (0u8..4).prop_map(Happening::Startup),
        1 => Just(Happening::ChangeImage),
        1 => Just(Happening::Restart),
        1 => Just(Happening::Relist),
        1 => Just(Happening::Evict),
        1 => (0u8..40).prop_map(Happening::Delete),
    ]
}

const NAMES: [&str; 5] = ["i", "s", "j", "a", "b"];

struct History {
    world: World,
    desired: Arc<Pod>,
    ended: bool,
    /// When the present agent took over: it knows nothing of the back-off before.
    restarted_at: Option<Timestamp>,
    /// When something happened for which the kubelet stops containers itself.
    stopping: Vec<Timestamp>,
}

/// Longer than a stop takes.
const STOP_SECONDS: i64 = 40;

impl History {
    /// What must hold at any time.
    async fn check(&self) {
        let runtime: &dyn Runtime = &self.world.runtime;
        let now = observed::look(runtime, "uid", &ObservedPod::default()).await.unwrap();
        for name in NAMES {
            let running = now.running().filter(|c| c.name == name).count();
            assert!(running <= 1, "{running} containers {name} run");
        }
        let ready = now.sandboxes.iter().filter(|s| s.ready).count();
        assert!(ready <= 1, "{ready} sandboxes are ready");
        self.check_order(&now);
        self.check_back_off(&now);
    }

    /// No regular container runs in a sandbox before the init containers have.
    fn check_order(&self, now: &ObservedPod) {
        let Some(active) = now.sandboxes.first().filter(|s| s.ready) else {
            return;
        };
        let inside = |name: &str| {
            now.containers
                .iter()
                .rfind(|c| c.sandbox == active.id && c.name == name)
                .cloned()
        };
        let first_regular = ["a", "b"]
            .iter()
            .filter_map(|name| inside(name))
            .map(|c| c.created_at)
            .min();
        if let (Some(regular), Some(last_init)) = (first_regular, inside("j"))
            && policy::place_of(&self.desired, "j").is_some()
        {
            assert!(
                last_init.created_at <= regular,
                "a regular container came before an init container"
            );
        }
    }

    /// Between the end of a container and its next start but one there are at least ten seconds.
    fn check_back_off(&self, now: &ObservedPod) {
        for name in NAMES {
            let of_name: Vec<_> = now.containers.iter().filter(|c| c.name == name).collect();
            for window in of_name.windows(3) {
                let [third, second, first] = window else { continue };
                let (Some(end), Some(start)) = (second.finished_at, third.started_at) else {
                    continue;
                };
                // Back-off counts ends; one that the runtime could not start has none.
                let ended = first.finished_at.is_some();
                // Killed by us and started at once: that is not a crash.
                let crashed = second.exit_code != 143 && second.exit_code != 137 && first.exit_code != 143;
                let same = first.hash == third.hash && first.sandbox == third.sandbox && first.exit_code != 137;
                let long = second.started_at.is_some_and(|s| end.duration_since(s).as_secs() > 600);
                let known = self
                    .restarted_at
                    .is_none_or(|at| second.started_at.is_some_and(|s| s > at));
                // One that ends by itself while it is being stopped is started at once, whatever its exit code.
                let stopping = |at: &Timestamp| (0..STOP_SECONDS).contains(&end.duration_since(*at).as_secs());
                let crashed = crashed && !self.stopping.iter().any(stopping);
                if crashed
                    && ended
                    && same
                    && known
                    && !long
                    && first.restart_count + 2 == third.restart_count
                    && first.restart_count > 0
                {
                    let waited = start.duration_since(end);
                    assert!(
                        waited.as_secs() + 1 >= Pace::default().first.as_secs() as i64,
                        "{name} waited only {waited}"
                    );
                }
            }
        }
    }

    async fn happen(&mut self, happening: &Happening) {
        if matches!(
            happening,
            Happening::Liveness(_) | Happening::ChangeImage | Happening::KillSandbox
        ) {
            self.stopping.push(self.world.clock.now());
        }
        let world = &self.world;
        let name = |index: u8| ["i", "s", "a", "b"][usize::from(index % 4)];
        match happening {
            Happening::Pass(seconds) => world.pass(f64::from(*seconds)).await,
            Happening::Exit(container, code) => {
                let seen = observed::look(&world.runtime, "uid", &ObservedPod::default())
                    .await
                    .unwrap();
                if seen.running().any(|c| c.name == name(*container)) {
                    world
                        .runtime
                        .exit(&format!("ns/p/{}", name(*container)), i32::from(*code));
                }
            }
            Happening::KillSandbox => {
                let seen = observed::look(&world.runtime, "uid", &ObservedPod::default())
                    .await
                    .unwrap();
                if let Some(sandbox) = seen.sandboxes.iter().find(|s| s.ready) {
                    world.runtime.kill_sandbox(&sandbox.id);
                }
            }
            Happening::FailNext(call) => {
                let calls = [
                    Call::RunPodSandbox,
                    Call::CreateContainer,
                    Call::StartContainer,
                    Call::StopContainer,
                    Call::StopPodSandbox,
                    Call::RemoveContainer,
                ];
                world
                    .runtime
                    .fail_next(calls[usize::from(*call)], Error::new(Code::Other, "boom"));
            }
            Happening::Liveness(container) => world.set_probe(name(*container), |p| p.liveness = Some(false)),
            Happening::Startup(container) => world.set_probe(name(*container), |p| p.startup = Some(true)),
            Happening::ChangeImage => {
                let mut pod = (*self.desired).clone();
                let image = &mut pod.spec.as_mut().unwrap().containers[0].image;
                *image = Some(format!("{}x", image.as_deref().unwrap_or_default()));
                self.desired = Arc::new(pod);
                world.workers.update(self.desired.clone());
            }
            Happening::Relist => world.shared_relist(),
            Happening::Evict => {
                self.ended = true;
                world.workers.evict(
                    "uid",
                    Eviction {
                        reason: "Evicted".into(),
                        message: "low".into(),
                        grace_seconds: Some(1),
                        condition: None,
                    },
                );
            }
            Happening::Delete(grace) => {
                self.ended = true;
                self.desired = deleted(&self.desired, i64::from(*grace));
                world.workers.update(self.desired.clone());
            }
            Happening::Restart => unreachable!("done by the caller, who owns the world"),
        }
    }
}

impl World {
    fn shared_relist(&self) {
        self.workers.shared.relist.notify_one();
    }
}

fn spec(choice: u8) -> &'static str {
    [
        "containers=a,b",
        "restartPolicy=Never containers=a,b",
        "restartPolicy=OnFailure init=i containers=a",
        "init=i,s*,j containers=a,b",
        "restartPolicy=Never init=s*,j containers=a",
        "init=s* containers=a a.preStop=3 s.preStop=1 a.startup",
        "restartPolicy=Never containers=a,b a.restartPolicy=OnFailure a.rule=In:2:RestartAllContainers",
    ][usize::from(choice)]
}

async fn live(choice: u8, happenings: Vec<Happening>) {
    let world = World::new();
    world.pass(0.1).await;
    let desired = annotated(pod(spec(choice)), &[("stop-delay", "1s")]);
    world.workers.update(desired.clone());
    let mut history = History {
        world,
        desired,
        ended: false,
        restarted_at: None,
        stopping: vec![],
    };
    for happening in &happenings {
        if matches!(happening, Happening::Restart) {
            let mut known = (*history.desired).clone();
            known.status = history.world.workers.status("uid");
            // An eviction that is under way is forgotten with the kubelet, as upstream; a deletion is not.
            let phase = known
                .status
                .as_ref()
                .and_then(|s| s.phase.as_deref())
                .unwrap_or_default();
            history.ended &= policy::is_terminal(phase) || known.metadata.deletion_timestamp.is_some();
            history.desired = Arc::new(known);
            history.world = history.world.restarted().await;
            history.restarted_at = Some(history.world.clock.now());
            history.world.workers.update(history.desired.clone());
            history.world.workers.sources_ready();
        } else {
            history.happen(happening).await;
        }
        history.world.pass(0.3).await;
        history.check().await;
    }
    finish(history).await;
}

/// In the end, when told to, everything has gone, and nothing is done any more.
async fn finish(mut history: History) {
    let before = history.world.status();
    if history.ended {
        history.world.pass(120.0).await;
        let phase = history.world.phase();
        assert!(
            policy::is_terminal(&phase),
            "{phase} though it was told to end, was {:?}",
            before.phase
        );
        history.world.calls();
        history.world.pass(60.0).await;
        let calls = history.world.calls();
        assert!(calls.is_empty(), "steps after the end: {calls:?}");
    }
    history.desired = deleted(&history.desired, 5);
    history.world.workers.update(history.desired.clone());
    history.world.pass(120.0).await;
    let left = observed::look(&history.world.runtime, "uid", &ObservedPod::default())
        .await
        .unwrap();
    assert!(left.is_empty(), "{left:?}");
    assert!(history.world.fakes.environment.0.lock().held.is_empty());
    assert!(policy::is_terminal(&history.world.phase()));
    history.world.workers.remove("uid");
    history.world.pass(1.0).await;
    assert!(history.world.workers.pods().is_empty());
    history.world.shutdown.trigger();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_pod_keeps_its_rules_and_ends(choice in 0u8..7, happenings in prop::collection::vec(happening(), 1..14)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(live(choice, happenings));
    }
}

/// Histories that went wrong once.
#[test]
fn histories_that_went_wrong() {
    use Happening::*;
    for (choice, happenings) in [
        (5, vec![Pass(1), ChangeImage, Restart, KillSandbox]),
        (0, vec![FailNext(2), FailNext(2), Pass(20), Exit(2, 0)]),
    ] {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(live(choice, happenings));
    }
}

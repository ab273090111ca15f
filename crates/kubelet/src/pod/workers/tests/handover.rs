//! A scheduler that fills room the moment it looks free, and pods that end in every way there is: nobody may be refused.

use proptest::prelude::*;

use super::*;
use crate::pod::observed;
use crate::pod::testing::pod;

const CPUS: u32 = 4;
const DEVICES: u32 = 2;
const TICK: Duration = Duration::from_millis(1);

/// A pod to be scheduled.
#[derive(Clone, Debug)]
struct Ask {
    cpu: u32,
    devices: u32,
    /// All that ask for one ask for the same.
    host_port: bool,
    /// Milliseconds after which it ends by itself.
    runs_for: Option<u16>,
    /// Milliseconds that it needs to end when asked to.
    stop_delay: u16,
}

fn ask() -> impl Strategy<Value = Ask> {
    let ends = prop::option::weighted(0.3, 0u16..40);
    (1..=CPUS, 0..=DEVICES, prop::bool::weighted(0.3), ends, 0u16..40).prop_map(
        |(cpu, devices, host_port, runs_for, stop_delay)| Ask {
            cpu,
            devices,
            host_port,
            runs_for,
            stop_delay,
        },
    )
}

/// What happens to the pod that the number chooses among those that are bound.
#[derive(Clone, Debug)]
enum Happening {
    /// Nothing, for so many milliseconds.
    Pass(u16),
    Delete(u8),
    /// Its object goes at once; the kubelet hears of it when it has gone.
    Remove(u8),
    Evict(u8),
    /// Somebody else says that it failed.
    Fail(u8),
    Exit(u8, u8),
    /// Another kubelet process takes over; meanwhile the object of this pod goes, and others are bound.
    Restart(u8),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        6 => (1u16..60).prop_map(Happening::Pass),
        4 => any::<u8>().prop_map(Happening::Delete),
        2 => any::<u8>().prop_map(Happening::Remove),
        2 => any::<u8>().prop_map(Happening::Evict),
        1 => any::<u8>().prop_map(Happening::Fail),
        2 => (any::<u8>(), 0u8..2).prop_map(|(whom, code)| Happening::Exit(whom, code)),
        1 => any::<u8>().prop_map(Happening::Restart),
    ]
}

fn pod_of(index: usize, ask: &Ask) -> Arc<Pod> {
    let mut text = format!("restartPolicy=Never containers=a grace=1 a.requests=cpu:{}", ask.cpu);
    if ask.devices > 0 {
        text += &format!(" a.limits=example.com/device:{}", ask.devices);
    }
    let mut pod = pod(&text);
    pod.metadata.name = Some(format!("p{index}"));
    pod.metadata.uid = Some(format!("u{index}"));
    if ask.host_port {
        let port = serde_json::json!([{"containerPort": 80, "hostPort": 8080}]);
        pod.spec.as_mut().unwrap().containers[0].ports = Some(orlop_api::types::from_value(port).unwrap());
    }
    let delay = format!("{}ms", ask.stop_delay);
    let run_for = ask.runs_for.map(|ms| format!("{ms}ms"));
    let mut notes = vec![("stop-delay", delay.as_str())];
    notes.extend(run_for.as_deref().map(|text| ("run-for", text)));
    annotated(pod, &notes)
}

/// A pod as the API server has it.
struct Stored {
    ask: Ask,
    pod: Arc<Pod>,
    bound: bool,
    /// Its object is there no more.
    gone: bool,
}

struct Cluster {
    world: World,
    pods: Vec<Stored>,
}

impl Cluster {
    async fn new(asks: Vec<Ask>, seed: u64) -> Cluster {
        let world = World::new();
        world.has_cpus(CPUS);
        {
            let mut environment = world.fakes.environment.0.lock();
            environment.clean_up_takes = 30;
            environment.random = Some(Random::seeded(seed));
            world.fakes.allocator.0.lock().devices = DEVICES;
        }
        world.pass(0.3).await;
        let stored = |(index, ask): (usize, Ask)| Stored {
            pod: pod_of(index, &ask),
            ask,
            bound: false,
            gone: false,
        };
        let pods = asks.into_iter().enumerate().map(stored).collect();
        Cluster { world, pods }
    }

    /// The status as the API server shows it: what the kubelet wrote last, unless somebody else said more.
    fn status(&self, stored: &Stored) -> PodStatus {
        let written = self.world.writer.status(policy::uid(&stored.pod));
        let own = stored.pod.status.clone().unwrap_or_default();
        match own.phase.as_deref().is_some_and(policy::is_terminal) {
            true => own,
            false => written.unwrap_or(own),
        }
    }

    fn is_terminal(&self, stored: &Stored) -> bool {
        self.status(stored).phase.as_deref().is_some_and(policy::is_terminal)
    }

    /// Binds whatever fits beside what the API server shows. Gives the pods.
    fn schedule(&mut self) -> Vec<Arc<Pod>> {
        let mut bound = Vec::new();
        for index in 0..self.pods.len() {
            if self.pods[index].bound || self.pods[index].gone {
                continue;
            }
            let counted = |stored: &&Stored| stored.bound && !stored.gone && !self.is_terminal(stored);
            let used = self
                .pods
                .iter()
                .filter(counted)
                .fold((0, 0, 0), |(cpu, devices, ports), s| {
                    (
                        cpu + s.ask.cpu,
                        devices + s.ask.devices,
                        ports + u32::from(s.ask.host_port),
                    )
                });
            let ask = &self.pods[index].ask;
            let port = used.2 + u32::from(ask.host_port);
            if used.0 + ask.cpu <= CPUS && used.1 + ask.devices <= DEVICES && port <= 1 {
                self.pods[index].bound = true;
                bound.push(self.pods[index].pod.clone());
            }
        }
        bound
    }

    /// A moment passes; what the kubelet wrote becomes visible, and the scheduler acts on it at once.
    async fn tick(&mut self) {
        self.world.runtime.advance(TICK);
        tokio::time::sleep(TICK).await;
        for stored in &mut self.pods {
            let uid = policy::uid(&stored.pod);
            if !stored.gone && self.world.writer.is_finished(uid) {
                stored.gone = true;
                self.world.workers.remove(uid);
            }
        }
        for pod in self.schedule() {
            self.world.workers.update(pod);
        }
        self.check();
    }

    fn check(&self) {
        for stored in &self.pods {
            let status = self.world.workers.status(policy::uid(&stored.pod)).unwrap_or_default();
            let message = status.message.unwrap_or_default();
            assert!(
                !message.starts_with("Pod was rejected"),
                "{}: {message}",
                policy::name(&stored.pod)
            );
        }
    }

    /// A pod that is bound and not over.
    fn pick(&self, choice: u8) -> Option<usize> {
        let active = |index: &usize| {
            let stored = &self.pods[*index];
            stored.bound && !stored.gone && !self.is_terminal(stored)
        };
        let all: Vec<usize> = (0..self.pods.len()).filter(active).collect();
        (!all.is_empty()).then(|| all[usize::from(choice) % all.len()])
    }

    async fn happen(&mut self, happening: &Happening) {
        use Happening::*;
        let (Delete(whom) | Remove(whom) | Evict(whom) | Fail(whom) | Exit(whom, _) | Restart(whom)) = happening else {
            let Pass(ticks) = happening else { return };
            for _ in 0..*ticks {
                self.tick().await;
            }
            return;
        };
        let Some(index) = self.pick(*whom) else { return };
        let workers = self.world.workers.clone();
        let stored = &mut self.pods[index];
        let uid = policy::uid(&stored.pod).to_string();
        match happening {
            Delete(_) => {
                stored.pod = deleted(&stored.pod, 1);
                workers.update(stored.pod.clone());
            }
            Remove(_) => {
                stored.gone = true;
                workers.remove(&uid);
            }
            Evict(_) => workers.evict(
                &uid,
                Eviction {
                    reason: "Evicted".into(),
                    message: "low".into(),
                    grace_seconds: Some(1),
                    condition: None,
                },
            ),
            Fail(_) => {
                let mut pod = (*stored.pod).clone();
                pod.status.get_or_insert_default().phase = Some("Failed".into());
                stored.pod = Arc::new(pod);
                workers.update(stored.pod.clone());
            }
            Exit(_, code) => {
                let seen = observed::look(&self.world.runtime, &uid, &ObservedPod::default()).await;
                if let Some(container) = seen.unwrap().running().next() {
                    self.world.runtime.exit(&container.id, i32::from(*code));
                }
            }
            Restart(_) => {
                stored.gone = true;
                self.restart().await;
            }
            Pass(_) => {}
        }
    }

    async fn restart(&mut self) {
        let kept: Vec<PodStatus> = self.pods.iter().map(|stored| self.status(stored)).collect();
        for (stored, status) in self.pods.iter_mut().zip(kept) {
            let mut pod = (*stored.pod).clone();
            pod.status = stored.bound.then_some(status);
            stored.pod = Arc::new(pod);
        }
        let (clock, runtime, fakes) = (&self.world.clock, &self.world.runtime, &self.world.fakes);
        self.world.shutdown.trigger();
        tokio::time::sleep(TICK).await;
        self.world = World::over(clock.clone(), runtime.clone(), fakes.clone());
        self.schedule();
        for stored in self.pods.iter().filter(|stored| stored.bound && !stored.gone) {
            self.world.workers.update(stored.pod.clone());
        }
        tokio::time::sleep(TICK).await;
        self.world.workers.sources_ready();
    }

    /// In the end each pod has had its turn.
    async fn finish(mut self) {
        for _ in 0..20_000 {
            if self.pods.iter().all(|stored| stored.bound) {
                break;
            }
            if let Some(index) = self.pick(0) {
                let stored = &mut self.pods[index];
                if stored.pod.metadata.deletion_timestamp.is_none() {
                    self.happen(&Happening::Delete(0)).await;
                }
            }
            self.tick().await;
        }
        let waiting = self.pods.iter().filter(|stored| !stored.bound).count();
        assert_eq!(waiting, 0, "pods that never had room");
        for _ in 0..300 {
            self.tick().await;
        }
        self.world.shutdown.trigger();
    }
}

fn block_on(work: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().start_paused(true).build().unwrap().block_on(work);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn room_that_looks_free_is_free(
        asks in prop::collection::vec(ask(), 2..10),
        happenings in prop::collection::vec(happening(), 1..20),
        seed in any::<u64>(),
    ) {
        block_on(async {
            let mut cluster = Cluster::new(asks, seed).await;
            for happening in &happenings {
                cluster.happen(happening).await;
                cluster.tick().await;
            }
            cluster.finish().await;
        });
    }
}

/// A label or a resource that the scheduler has seen and the kubelet not yet.
#[tokio::test(start_paused = true)]
async fn a_refusal_is_thought_over_with_the_node_as_it_is_now() {
    let world = World::new();
    world.has_cpus(4);
    world.pass(0.1).await;
    let node = |cpus: u32, label: &str| -> Node {
        let node = serde_json::json!({
            "metadata": {"labels": {"disk": label}},
            "status": {"allocatable": {"cpu": cpus.to_string(), "memory": "8Gi", "pods": "110"}},
        });
        orlop_api::types::from_value(node).unwrap()
    };
    let wanting = |name: &str, cpu: u32, label: &str| {
        let mut pod = pod(&format!("containers=a a.requests=cpu:{cpu}"));
        (pod.metadata.name, pod.metadata.uid) = (Some(name.into()), Some(name.into()));
        pod.spec.as_mut().unwrap().node_selector = Some([("disk".to_string(), label.to_string())].into());
        Arc::new(pod)
    };
    let phase = |uid: &str| world.workers.status(uid).unwrap_or_default().phase.unwrap_or_default();
    for (name, cpu, label, newer) in [
        ("labelled", 1, "ssd", Some(node(4, "ssd"))),
        ("large", 5, "ssd", Some(node(6, "ssd"))),
    ] {
        world.fakes.allocator.0.lock().newer_node = newer;
        world.workers.update(wanting(name, cpu, label));
        world.pass(0.5).await;
        assert_eq!(phase(name), "Running", "{name}");
    }
    world.workers.update(wanting("elsewhere", 0, "tape"));
    world.pass(0.5).await;
    assert_eq!(phase("elsewhere"), "Failed");
}

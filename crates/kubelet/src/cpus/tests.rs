use serde_json::{Value, json};

use super::topology::testing::machine;
use super::*;

fn config(fields: &[(&'static str, Value)]) -> Config {
    let mut all = vec![("cpuManagerPolicy", json!("static"))];
    all.extend(fields.iter().cloned());
    crate::config::parse(None, &all).unwrap()
}

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// A Guaranteed pod whose containers ask for so much; a star marks init containers.
fn pod(uid: &str, cpus: &[&str]) -> Pod {
    let container = |(place, cpu): (usize, &&str)| {
        let amounts = json!({"cpu": cpu.trim_end_matches('*'), "memory": "1Mi"});
        json!({"name": format!("c{place}"), "resources": {"requests": amounts, "limits": amounts}})
    };
    let (init, regular): (Vec<_>, Vec<_>) = cpus.iter().enumerate().partition(|(_, cpu)| cpu.ends_with('*'));
    let list = |all: Vec<(usize, &&str)>| all.into_iter().map(container).collect::<Vec<_>>();
    orlop_api::types::from_value(json!({
        "metadata": {"name": uid, "uid": uid},
        "spec": {"initContainers": list(init), "containers": list(regular)},
    }))
    .unwrap()
}

fn rules(topology: Topology, fields: &[(&'static str, Value)]) -> Rules {
    Rules::new(&config(fields), 1000, topology).unwrap()
}

/// `c0=1,5 c1=2 | 0,3-4`
fn shown(state: &CpuAssignments, uid: &str) -> String {
    let own = state.own.get(uid).into_iter().flatten();
    let own = own.map(|(name, cpus)| format!("{name}={cpus} "));
    format!("{}| {}", own.collect::<String>(), state.shared)
}

fn try_all(rules: &Rules, pods: &[Pod]) -> String {
    let mut state = rules.check(CpuAssignments::default()).unwrap();
    let mut told = String::new();
    for pod in pods {
        match rules.assign(&state, pod) {
            Ok(new) => {
                told = shown(&new, policy::uid(pod));
                state = new;
            }
            Err(rejection) => return format!("{}: {}", rejection.reason, rejection.message),
        }
    }
    told
}

#[test]
fn who_gets_cpus_of_its_own() {
    // Four cores of two threads; 0 is kept for the system.
    let rules = rules(machine(1, 1, 4, 2), &[]);
    assert_eq!(rules.reserved.to_string(), "0");
    for (cpus, want) in [
        (&["2"][..], "c0=1,5 | 0,2-4,6-7"),
        (&["1"], "c0=4 | 0-3,5-7"),
        (&["1500m"], "| 0-7"),
        (&["2", "500m", "1"], "c0=1,5 c2=4 | 0,2-3,6-7"),
        // What an init container had, the next one may have.
        (&["2*", "4*", "3"], "c0=1,5 c1=1-2,5-6 c2=1,4-5 | 0,3,7"),
        (
            &["8"],
            "UnexpectedAdmissionError: Allocate failed due to not enough cpus available to satisfy request: \
             requested=8, available=7, which is unexpected",
        ),
    ] {
        assert_eq!(try_all(&rules, &[pod("u", cpus)]), want, "{cpus:?}");
    }
    let mut burstable = pod("u", &["2"]);
    burstable.spec.as_mut().unwrap().containers[0]
        .resources
        .as_mut()
        .unwrap()
        .limits = None;
    assert_eq!(try_all(&rules, &[burstable]), "| 0-7");
    assert_eq!(
        try_all(&rules, &[pod("a", &["2"]), pod("b", &["4"])]),
        "c0=2-3,6-7 | 0,4"
    );
    let too_many = try_all(&rules, &[pod("a", &["4"]), pod("b", &["2", "2"])]);
    assert!(
        too_many.ends_with("requested=2, available=1, which is unexpected"),
        "{too_many}"
    );
}

#[test]
fn options_and_alignment() {
    let option = |name: &str| [("cpuManagerPolicyOptions", json!({name: "true"}))];
    let whole = rules(machine(1, 1, 4, 2), &option("full-pcpus-only"));
    assert_eq!(try_all(&whole, &[pod("u", &["2"])]), "c0=1,5 | 0,2-4,6-7");
    assert_eq!(
        try_all(&whole, &[pod("u", &["3"])]),
        "SMTAlignmentError: SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"
    );
    assert_eq!(
        try_all(&whole, &[pod("a", &["4"]), pod("b", &["4"])]),
        "SMTAlignmentError: SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 2, requested \
         CPUs = 4, CPUs per core = 2"
    );
    let strict = rules(machine(1, 1, 4, 2), &option("strict-cpu-reservation"));
    assert_eq!(try_all(&strict, &[pod("u", &["2"])]), "c0=1,5 | 2-4,6-7");
    let named = rules(machine(1, 1, 4, 2), &[("reservedSystemCPUs", json!("3,7"))]);
    assert_eq!(try_all(&named, &[pod("u", &["2"])]), "c0=0,4 | 1-3,5-7");

    // Two sockets of four CPUs: 0 is kept for the system, so the first has three.
    let near = |policy: &str, scope: &str| {
        let fields = [
            ("topologyManagerPolicy", json!(policy)),
            ("topologyManagerScope", json!(scope)),
        ];
        rules(machine(2, 1, 2, 2), &fields)
    };
    let far = "TopologyAffinityError: Resources cannot be allocated with Topology locality";
    for (policy, scope, cpus, want) in [
        ("none", "container", &["4"][..], "c0=2-3,6-7 | 0-1,4-5"),
        ("best-effort", "container", &["3", "3"], "c0=1,4-5 c1=2-3,6 | 0,7"),
        ("best-effort", "container", &["5"], "c0=2-4,6-7 | 0-1,5"),
        ("restricted", "container", &["5"], "c0=2-4,6-7 | 0-1,5"),
        ("restricted", "container", &["2", "3", "2"], far),
        ("single-numa-node", "container", &["4"], "c0=2-3,6-7 | 0-1,4-5"),
        ("single-numa-node", "container", &["5"], far),
        ("single-numa-node", "pod", &["2", "2"], "c0=2,6 c1=3,7 | 0-1,4-5"),
        ("single-numa-node", "pod", &["3", "2"], far),
    ] {
        let got = try_all(&near(policy, scope), &[pod("u", cpus)]);
        assert_eq!(got, want, "{policy} {scope} {cpus:?}");
    }
}

#[test]
fn what_can_not_be_done_is_said() {
    let refused = |fields: &[(&'static str, Value)], kept| {
        Rules::new(&config(fields), kept, machine(1, 1, 2, 2))
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refused(&[], 0),
        "cpuManagerPolicy: the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero"
    );
    assert_eq!(
        refused(&[("reservedSystemCPUs", json!("3-4"))], 0),
        "reservedSystemCPUs: CPUs 4 do not exist on this node"
    );
    assert!(refused(&[], 9000).starts_with("cpuManagerPolicy: unable to reserve the required amount of CPUs"));
    for (options, problem) in [
        (
            json!({"full-pcpus": "true"}),
            "unknown CPU Manager Policy option: \"full-pcpus\"",
        ),
        (
            json!({"align-by-socket": "true"}),
            "CPU Manager Policy Alpha-level Options not enabled, but option \"align-by-socket\" provided",
        ),
        (
            json!({"full-pcpus-only": "yes"}),
            "bad value for option \"full-pcpus-only\": \"yes\" is neither true nor false",
        ),
        (
            json!({"distribute-cpus-across-numa": "true", "prefer-align-cpus-by-uncorecache": "true"}),
            "static policy options prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa can not be used at \
             the same time",
        ),
    ] {
        let options: BTreeMap<String, String> = serde_json::from_value(options).unwrap();
        assert_eq!(Options::parse(&options).unwrap_err().to_string(), problem);
    }
}

#[test]
fn what_was_left_must_fit_the_machine() {
    let rules = rules(machine(1, 1, 2, 2), &[]);
    let left = |shared: &str, own: &str| {
        let mut state = CpuAssignments {
            shared: set(shared),
            ..CpuAssignments::default()
        };
        if !own.is_empty() {
            state.own.entry("u".into()).or_default().insert("c".into(), set(own));
        }
        let checked = rules.check(state).map(|state| state.shared.to_string());
        checked.map_err(|e| {
            e.to_string()
                .replace("invalid state, please drain node and remove policy state file: ", "")
        })
    };
    assert_eq!(left("", ""), Ok("0-3".into()));
    assert_eq!(left("0-1", "2-3"), Ok("0-1".into()));
    assert_eq!(left("", "1"), Err("default cpuset cannot be empty".into()));
    assert_eq!(
        left("1-3", "0"),
        Err("not all reserved cpus: \"0\" are present in defaultCpuSet: \"1-3\"".into())
    );
    assert_eq!(
        left("0-2", "2-3"),
        Err("pod: u, container: c cpuset: \"2-3\" overlaps with default cpuset \"0-2\"".into())
    );
    assert_eq!(
        left("0-1", "2"),
        Err("current set of available CPUs \"0-3\" doesn't match with CPUs in state \"0-2\"".into())
    );
}

fn system(cpus: u32) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("cpu")).unwrap();
    std::fs::write(dir.path().join("cpu/online"), format!("0-{}\n", cpus - 1)).unwrap();
    dir
}

#[test]
fn another_agent_takes_over() {
    let (root, system) = (tempfile::tempdir().unwrap(), system(4));
    let start = |policy: &str| {
        let config = crate::config::parse(None, &[("cpuManagerPolicy", json!(policy))]).unwrap();
        Cpus::start(&config, 1000, system.path(), root.path())
    };
    let cpus = start("static").unwrap().unwrap();
    cpus.admit(&pod("u", &["2"])).unwrap();
    assert_eq!((cpus.of("u", "c0"), cpus.of("x", "y")), (set("1-2"), set("0,3")));
    assert!(cpus.has_own("u", "c0") && !cpus.has_own("u", "c1") && cpus.pod_has_own(&pod("u", &[])));
    assert!(cpus.admit(&pod("v", &["1", "1"])).is_err());
    assert_eq!(cpus.of("x", "y"), set("0,3"), "all or nothing");
    let cpus = start("static").unwrap().unwrap();
    assert_eq!(cpus.of("u", "c0"), set("1-2"));
    // The same pod again changes nothing.
    cpus.admit(&pod("u", &["2"])).unwrap();
    assert_eq!(cpus.of("u", "c0"), set("1-2"));
    std::fs::remove_file(root.path().join(STATE_FILE)).unwrap();
    let strict = config(&[("cpuManagerPolicyOptions", json!({"strict-cpu-reservation": "true"}))]);
    let full = Cpus::start(&strict, 1000, system.path(), root.path()).unwrap().unwrap();
    full.admit(&pod("w", &["3"])).unwrap();
    assert_eq!(full.of("x", "y"), set("0"), "the system shares its own");
    assert!(Cpus::start(&strict, 1000, system.path(), root.path()).is_ok());
    cpus.release("u");
    cpus.release("u");
    assert_eq!(cpus.of("u", "c0"), set("0-3"));
    assert!(
        start("none")
            .unwrap_err()
            .to_string()
            .contains("differs from state checkpoint policy \"static\"")
    );
    std::fs::remove_file(root.path().join(STATE_FILE)).unwrap();
    assert!(start("none").unwrap().is_none());
    assert!(start("none").unwrap().is_none());
}

proptest::proptest! {
    /// However pods come and go: nobody shares a CPU, nothing is lost, and the system keeps its own.
    #[test]
    fn cpus_belong_to_one(
        steps in proptest::collection::vec((0u8..6, proptest::collection::vec(1u32..4, 1..4), 0u8..3), 1..30),
        strict in proptest::prelude::any::<bool>(),
    ) {
        let options = json!({"strict-cpu-reservation": strict.to_string()});
        let rules = rules(machine(2, 1, 3, 2), &[("cpuManagerPolicyOptions", options)]);
        let mut state = rules.check(CpuAssignments::default()).unwrap();
        for (uid, sizes, what) in steps {
            let uid = format!("u{uid}");
            if what == 0 {
                let freed = state.own.remove(&uid).unwrap_or_default();
                let freed = freed.values().flat_map(CpuSet::iter).collect();
                state.shared = &state.shared | &freed;
            } else if !state.own.contains_key(&uid) {
                let texts: Vec<String> = sizes.iter().map(|size| size.to_string()).collect();
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                if let Ok(new) = rules.assign(&state, &pod(&uid, &texts)) {
                    for (place, size) in sizes.iter().enumerate() {
                        let got = new.of(&uid, &format!("c{place}")).map_or(0, CpuSet::len);
                        proptest::prop_assert_eq!(got, *size as usize);
                    }
                    state = new;
                }
            }
            let all: Vec<u32> = state.own.values().flatten().flat_map(|(_, cpus)| cpus.iter()).collect();
            proptest::prop_assert_eq!(all.len(), state.taken().len(), "one owner each");
            proptest::prop_assert!(!state.taken().overlaps(&rules.reserved));
            proptest::prop_assert!(rules.check(state.clone()).is_ok());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn containers_follow_what_is_shared() {
    use orlop_base::{Clock, Shutdown};
    use orlop_runtime::simulated::{Kind, Simulated};
    use std::time::Duration;

    let (root, system) = (tempfile::tempdir().unwrap(), system(4));
    let cpus = Cpus::start(&config(&[]), 1000, system.path(), root.path())
        .unwrap()
        .unwrap();
    let runtime = Simulated::for_tests(&Clock::manual("2026-01-01T00:00:00Z".parse().unwrap()));
    // No such container: every turn tries again what did not work.
    let running = || vec![("x".to_string(), "c".to_string(), "id".to_string())];
    let known = Arc::new(Mutex::new(None));
    let (shutdown, shown) = (Shutdown::default(), known.clone());
    let task = tokio::spawn(follow(
        cpus.clone(),
        Arc::new(runtime.clone()),
        Duration::from_secs(10),
        running,
        move || shown.lock().clone(),
        shutdown.clone(),
    ));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(runtime.count(Kind::UpdateContainerResources), 1);
    cpus.admit(&pod("u", &["1"])).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(
        runtime.count(Kind::UpdateContainerResources),
        2,
        "a change is followed at once"
    );
    assert_eq!(cpus.pods(), ["u"], "nothing is known of pods yet");
    *known.lock() = Some(vec!["x".to_string()]);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(cpus.pods().is_empty() && cpus.of("x", "c") == set("0-3"));
    shutdown.trigger();
    task.await.unwrap();
}

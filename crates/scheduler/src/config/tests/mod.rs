//! Whole configurations: what is read, what is refused and in which words, and that writing and reading agree.

mod orders;
mod refused;
mod round_trip;
mod versions;

use std::time::Duration;

use super::*;

pub(super) const HEAD: &str = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";

/// Plugins as someone would add them.
pub(super) const CUSTOM: &[PluginRow] = &[
    PluginRow {
        name: "MyCustomPluginA",
        points: &[Point::Score],
        weight: 0,
    },
    PluginRow {
        name: "MyCustomPluginB",
        points: &[Point::Filter, Point::Score, Point::Permit],
        weight: 0,
    },
    PluginRow {
        name: "MySort",
        points: &[Point::QueueSort],
        weight: 0,
    },
    PluginRow {
        name: "MyBinder",
        points: &[Point::Bind],
        weight: 0,
    },
];

/// Reads a v1 configuration without its first two lines; no warnings are expected.
pub(super) fn good(rest: &str) -> Config {
    match parse(&format!("{HEAD}{rest}"), CUSTOM) {
        Ok((config, warnings)) => {
            assert_eq!(warnings, Vec::<String>::new(), "{rest}");
            config
        }
        Err(problems) => panic!("{rest}\n{problems:#?}"),
    }
}

/// The texts of the problems of a v1 configuration.
pub(super) fn bad(rest: &str) -> Vec<String> {
    texts(parse(&format!("{HEAD}{rest}"), CUSTOM).expect_err(rest))
}

pub(super) fn texts(problems: Vec<Problem>) -> Vec<String> {
    problems.iter().map(Problem::to_string).collect()
}

/// `name` or `name*weight` of each plugin.
pub(super) fn shown(plugins: &[Enabled]) -> String {
    let one = |plugin: &Enabled| match plugin.weight {
        0 => plugin.name.clone(),
        weight => format!("{}*{weight}", plugin.name),
    };
    plugins.iter().map(one).collect::<Vec<_>>().join(" ")
}

#[test]
fn nothing_given_is_the_default_profile() {
    let config = good("");
    assert_eq!(config, Config::default());
    assert_eq!(config, good("profiles: []\nextenders: null\n"));
    assert_eq!((config.parallelism, config.percentage_of_nodes_to_score), (16, None));
    assert_eq!(config.pod_initial_backoff, Duration::from_secs(1));
    assert_eq!(config.pod_max_backoff, Duration::from_secs(10));
    assert_eq!(
        config.leader_election,
        LeaderElection {
            leader_elect: true,
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            resource_lock: "leases".to_string(),
            resource_namespace: "kube-system".to_string(),
            resource_name: "kube-scheduler".to_string(),
        }
    );
    let client = &config.client_connection;
    assert_eq!((client.qps, client.burst), (50.0, 100));
    assert_eq!(client.content_type, "application/vnd.kubernetes.protobuf");
    assert!(config.enable_profiling && config.enable_contention_profiling && !config.delay_cache_until_active);
    assert_eq!(config.profiles.len(), 1);
    assert_eq!(config.profiles[0], Profile::default());
    assert_eq!(config.profiles[0].scheduler_name, "default-scheduler");
    assert_eq!(config.profiles[0].args, Args::default());
}

#[test]
fn everything_can_be_given() {
    let config = good(
        r#"
parallelism: 4
percentageOfNodesToScore: 30
podInitialBackoffSeconds: 2
podMaxBackoffSeconds: 20
enableProfiling: false
delayCacheUntilActive: true
leaderElection: {leaderElect: false, leaseDuration: 1m30s, renewDeadline: 500ms, resourceLock: endpoints, resourceName: a}
clientConnection: {kubeconfig: /etc/k, qps: 0.5, burst: 7, contentType: application/json, acceptContentTypes: a/b}
profiles:
- schedulerName: one
  percentageOfNodesToScore: 0
  pluginConfig:
  - name: DefaultPreemption
    args: {minCandidateNodesPercentage: 0, minCandidateNodesAbsolute: 7, kind: DefaultPreemptionArgs}
  - name: InterPodAffinity
    args: {hardPodAffinityWeight: 100, ignorePreferredTermsOfExistingPods: true}
  - name: NodeAffinity
    args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: NodeAffinityArgs
      addedAffinity:
        requiredDuringSchedulingIgnoredDuringExecution:
          nodeSelectorTerms:
          - matchExpressions: [{key: pool, operator: In, values: [a, b]}]
  - name: NodeResourcesFit
    args:
      ignoredResources: [example.com/foo]
      ignoredResourceGroups: [example.com]
      scoringStrategy:
        type: RequestedToCapacityRatio
        resources: [{name: cpu}, {name: example.com/gpu, weight: 5}]
        requestedToCapacityRatio: {shape: [{utilization: 0, score: 0}, {utilization: 100, score: 10}]}
  - name: NodeResourcesBalancedAllocation
    args: {resources: [{name: cpu}, {name: memory, weight: 1}, {name: example.com/gpu}]}
  - name: PodTopologySpread
    args:
      defaultingType: List
      defaultConstraints:
      - {maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}
      - {maxSkew: 2, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, minDomains: 3, nodeTaintsPolicy: Honor}
  - name: VolumeBinding
    args: {bindTimeoutSeconds: 30}
  - name: DynamicResources
    args: {filterTimeout: 0s, bindingTimeout: 1m}
  - name: MyCustomPluginA
    args: {any: [1, two]}
extenders:
- {urlPrefix: "http://b", ignorable: true}
- urlPrefix: https://a/x
  filterVerb: filter
  prioritizeVerb: prioritize
  preemptVerb: preempt
  bindVerb: bind
  weight: 5
  enableHTTPS: true
  httpTimeout: 1.5s
  nodeCacheCapable: true
  managedResources: [{name: example.com/foo, ignoredByScheduler: true}, {name: example.com/bar, ignoredByScheduler: true}]
  tlsConfig: {insecure: false, serverName: s, caFile: /ca, certData: aGVsbG8=}
"#,
    );
    assert_eq!((config.parallelism, config.percentage_of_nodes_to_score), (4, Some(30)));
    assert_eq!(config.pod_max_backoff, Duration::from_secs(20));
    assert!(!config.enable_profiling && !config.enable_contention_profiling && config.delay_cache_until_active);
    assert_eq!(config.leader_election.lease_duration, Duration::from_secs(90));
    assert_eq!(config.client_connection.qps, 0.5);
    let profile = &config.profiles[0];
    assert_eq!(profile.percentage_of_nodes_to_score, Some(0));
    let args = &profile.args;
    assert_eq!(args.default_preemption.min_candidate_nodes_absolute, 7);
    assert_eq!(args.inter_pod_affinity.hard_pod_affinity_weight, 100);
    assert!(args.node_affinity.added_affinity.is_some());
    let fit = &args.node_resources_fit;
    assert_eq!(fit.ignored_resources, ["example.com/foo", "example.com/bar"]);
    assert_eq!(fit.scoring_strategy.kind.name(), "RequestedToCapacityRatio");
    let weights: Vec<i64> = fit.scoring_strategy.resources.iter().map(|r| r.weight).collect();
    assert_eq!(weights, [1, 5]);
    assert_eq!(args.node_resources_balanced_allocation.resources.len(), 3);
    assert_eq!(args.pod_topology_spread.constraints()[1].min_domains, Some(3));
    assert_eq!(args.volume_binding.bind_timeout, Duration::from_secs(30));
    assert_eq!(args.dynamic_resources.filter_timeout, Some(Duration::ZERO));
    assert_eq!(args.custom["MyCustomPluginA"], json!({"any": [1, "two"]}));
    // Ignorable extenders are asked last.
    let [a, b] = &config.extenders[..] else { panic!() };
    assert_eq!(
        (a.url_prefix.as_str(), b.url_prefix.as_str()),
        ("https://a/x", "http://b")
    );
    assert_eq!(a.http_timeout, Duration::from_millis(1500));
    assert_eq!(b.http_timeout, Duration::from_secs(5));
    assert_eq!(a.tls.as_ref().map(|tls| tls.cert_data.as_slice()), Some(&b"hello"[..]));
}

#[test]
fn system_constraints_are_used_unless_listed() {
    let args = PodTopologySpreadArgs::default();
    let keys: Vec<String> = args.constraints().into_iter().map(|c| c.topology_key).collect();
    assert_eq!(keys, ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]);
}

#[test]
fn json_is_read_too() {
    let json =
        json!({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", "parallelism": 3});
    for text in [json.to_string(), format!("{json:#}").replace("  ", "\t")] {
        assert_eq!(parse(&text, &[]).unwrap().0.parallelism, 3, "{text}");
    }
}

#[test]
fn gates_decide_on_plugins_and_arguments() {
    let read = |gates: &str, rest: &str| {
        let (gates, _) = parse_feature_gates(gates).unwrap();
        parse_with_gates(&format!("{HEAD}{rest}"), &[], &gates)
    };
    let shape = "profiles: [{pluginConfig: [{name: VolumeBinding, args: {shape: [{utilization: 0, score: 5}]}}]}]";
    let (config, _) = read("StorageCapacityScoring=true", shape).unwrap();
    assert_eq!(config.profiles[0].args.volume_binding.shape[0].score, 5);
    let (config, _) = read("StorageCapacityScoring=true", "").unwrap();
    assert_eq!(config.profiles[0].args.volume_binding.shape.len(), 2);
    assert_eq!(
        texts(read("", shape).unwrap_err()),
        [
            "profiles[0].pluginConfig[0].args.shape: Invalid value: [{\"score\":5,\"utilization\":0}]: unexpected field \
          `shape`, remove it or turn on the feature gate StorageCapacityScoring"
        ]
    );
    let timeout = "profiles: [{pluginConfig: [{name: DynamicResources, args: {filterTimeout: 1s}}]}]";
    let off = "DRASchedulerFilterTimeout=false";
    assert_eq!(
        texts(read(off, timeout).unwrap_err()),
        [
            "profiles[0].pluginConfig[0].args.filterTimeout: Forbidden: DRASchedulingFilterTimeout feature gate is disabled"
        ]
    );
    let (config, _) = read(off, "").unwrap();
    assert_eq!(config.profiles[0].args.dynamic_resources.filter_timeout, None);
    let off = FeatureGates {
        node_declared_features: false,
        ..FeatureGates::default()
    };
    let filters = shown(&Config::with_gates(&off).profiles[0].points.filter);
    assert!(!filters.contains("NodeDeclaredFeatures"), "{filters}");
}

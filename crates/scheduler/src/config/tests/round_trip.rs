//! What is written reads back as the same configuration.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

fn back(config: &Config) -> Config {
    let text = render(config);
    match parse(&text, CUSTOM) {
        Ok((config, warnings)) => {
            assert_eq!(warnings, Vec::<String>::new());
            config
        }
        Err(problems) => panic!("{text}\n{problems:#?}"),
    }
}

#[test]
fn the_default_configuration_is_written_as_kubernetes_does() {
    assert_eq!(back(&Config::default()), Config::default());
    assert_eq!(render(&Config::default()), include_str!("default.yaml"));
}

#[test]
fn a_configuration_of_other_gates_reads_back() {
    let gates = FeatureGates {
        node_declared_features: false,
        ..FeatureGates::default()
    };
    let config = Config::with_gates(&gates);
    assert_eq!(back(&config), config);
}

/// Names that are easily mistaken for something else in YAML.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z][a-z0-9-]{0,8}",
        select(vec!["null", "true", "1e3", "0x1", "~", "*", "- a", "a: b", "'", "yes"]).prop_map(str::to_string)
    ]
}

/// The plugins of one point, in any order, with weights where they count.
fn at(point: Point) -> impl Strategy<Value = Vec<Enabled>> {
    let rows: Vec<&'static PluginRow> = DEFAULT_PLUGINS
        .iter()
        .chain(CUSTOM)
        .filter(|row| row.extends(point))
        .collect();
    let max = if point == Point::QueueSort { 1 } else { rows.len() };
    let min = usize::from(matches!(point, Point::QueueSort | Point::Bind));
    (
        subsequence(rows, min..=max).prop_shuffle(),
        vec(1..i64::from(i32::MAX), max),
    )
        .prop_map(move |(rows, weights)| {
            let weight = |w: i64| if point == Point::Score { w } else { 0 };
            let plugin = |(row, w): (&PluginRow, i64)| Enabled {
                name: row.name.to_string(),
                weight: weight(w),
            };
            rows.into_iter().zip(weights).map(plugin).collect()
        })
}

fn points() -> impl Strategy<Value = Points> {
    // Every second time a point is as by default.
    let strategies: Vec<_> = Point::ALL
        .into_iter()
        .map(|point| {
            let default = Profile::default().points.get(point).to_vec();
            prop_oneof![Just(default), at(point)]
        })
        .collect();
    strategies.prop_map(|lists| {
        let mut points = Points::default();
        for (point, list) in Point::ALL.into_iter().zip(lists) {
            *points.get_mut(point) = list;
        }
        points
    })
}

fn shape() -> impl Strategy<Value = Vec<ShapePoint>> {
    subsequence((0..=100).collect::<Vec<i64>>(), 1..5)
        .prop_flat_map(|at| (Just(at.clone()), vec(0..=10_i64, at.len())))
        .prop_map(|(at, scores)| {
            at.into_iter()
                .zip(scores)
                .map(|(utilization, score)| ShapePoint { utilization, score })
                .collect()
        })
}

fn args() -> impl Strategy<Value = Args> {
    let strategy = prop_oneof![
        Just(ScoringStrategyType::LeastAllocated),
        Just(ScoringStrategyType::MostAllocated),
        shape().prop_map(|shape| ScoringStrategyType::RequestedToCapacityRatio { shape }),
    ];
    let resources = vec(
        ("[a-z]{1,5}", 1..=100_i64).prop_map(|(name, weight)| ResourceSpec { name, weight }),
        1..4,
    );
    let constraint = (
        1..100_i64,
        any::<bool>(),
        proptest::option::of(1..9_i64),
        proptest::option::of(select(vec!["Honor", "Ignore"])),
    );
    (
        strategy,
        resources,
        vec(constraint, 0..4),
        0..=100_i64,
        1..1000_u32,
        0..u64::from(u32::MAX),
        any::<bool>(),
        vec("[a-z]{1,5}", 0..3),
    )
        .prop_map(
            |(kind, resources, constraints, weight, absolute, time, flag, ignored)| {
                let mut args = Args::default();
                args.node_resources_fit.scoring_strategy = ScoringStrategy { kind, resources };
                args.node_resources_fit.ignored_resources = ignored.clone();
                args.node_resources_fit.ignored_resource_groups = ignored;
                args.inter_pod_affinity.hard_pod_affinity_weight = weight;
                args.inter_pod_affinity.ignore_preferred_terms_of_existing_pods = flag;
                args.default_preemption.min_candidate_nodes_absolute = absolute;
                args.default_preemption.min_candidate_nodes_percentage = weight as u32;
                args.volume_binding.bind_timeout = Duration::from_secs(time);
                args.dynamic_resources.filter_timeout = Some(Duration::from_nanos(time));
                args.custom.insert(
                    "MyCustomPluginA".to_string(),
                    json!({"a": [time, "x: y", true], "b": {"c": "1"}}),
                );
                if flag {
                    args.pod_topology_spread.defaulting_type = DefaultingType::List;
                    let constraint = |(i, (max_skew, hard, min_domains, policy)): (
                        usize,
                        (i64, bool, Option<i64>, Option<&str>),
                    )| DefaultConstraint {
                        max_skew,
                        topology_key: format!("k{i}"),
                        when_unsatisfiable: if hard {
                            WhenUnsatisfiable::DoNotSchedule
                        } else {
                            WhenUnsatisfiable::ScheduleAnyway
                        },
                        min_domains,
                        node_affinity_policy: policy.map(str::to_string),
                        node_taints_policy: policy.map(str::to_string),
                        match_label_keys: if hard { vec!["app".to_string()] } else { vec![] },
                    };
                    args.pod_topology_spread.default_constraints =
                        constraints.into_iter().enumerate().map(constraint).collect();
                    args.node_affinity.added_affinity =
                        Some(json!({"preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}]}));
                }
                args
            },
        )
}

fn extender() -> impl Strategy<Value = Extender> {
    let tls = (any::<bool>(), name(), vec(any::<u8>(), 0..20)).prop_map(|(insecure, text, data)| Tls {
        insecure,
        server_name: text.clone(),
        cert_file: text.clone(),
        key_file: text.clone(),
        ca_file: text,
        cert_data: data.clone(),
        key_data: data.clone(),
        ca_data: data,
    });
    (
        name(),
        proptest::option::of(tls),
        1..i64::MAX,
        1..u64::from(u32::MAX),
        any::<[bool; 4]>(),
    )
        .prop_map(
            |(text, tls, weight, nanos, [https, cache, ignorable, verbs])| Extender {
                url_prefix: format!("http://{text}"),
                filter_verb: if verbs { text.clone() } else { String::new() },
                preempt_verb: if verbs { text.clone() } else { String::new() },
                prioritize_verb: text,
                weight,
                bind_verb: String::new(),
                enable_https: https,
                tls,
                http_timeout: Duration::from_nanos(nanos),
                node_cache_capable: cache,
                managed_resources: vec![],
                ignorable,
            },
        )
}

fn config() -> impl Strategy<Value = Config> {
    let profile = (points(), args(), proptest::option::of(0..=100_u32));
    let scalars = (
        1..1000_u32,
        0..=100_u32,
        1..1000_u64,
        -10.0..1e9_f32,
        name(),
        any::<[bool; 4]>(),
    );
    (vec(profile, 1..3), scalars, vec(extender(), 0..3)).prop_map(|(profiles, scalars, mut extenders)| {
        let (parallelism, percentage, seconds, qps, text, [a, b, c, d]) = scalars;
        extenders.sort_by_key(|extender| extender.ignorable);
        let queue_sort = profiles[0].0.queue_sort.clone();
        let profiles = profiles
            .into_iter()
            .enumerate()
            .map(|(i, (mut points, args, percentage))| {
                points.queue_sort = queue_sort.clone();
                Profile {
                    scheduler_name: format!("{text}{i}"),
                    percentage_of_nodes_to_score: percentage,
                    points,
                    args,
                }
            });
        Config {
            parallelism,
            percentage_of_nodes_to_score: Some(percentage).filter(|&n| n != 0),
            pod_initial_backoff: Duration::from_secs(seconds),
            pod_max_backoff: Duration::from_secs(seconds * 2),
            // A flag's: no text changes it.
            pod_max_in_unschedulable: Config::default().pod_max_in_unschedulable,
            leader_election: LeaderElection {
                leader_elect: a,
                lease_duration: Duration::from_millis(seconds * 40),
                renew_deadline: Duration::from_millis(seconds * 20),
                retry_period: Duration::from_millis(seconds * 10),
                resource_lock: "leases".to_string(),
                resource_namespace: text.clone(),
                resource_name: text.clone(),
            },
            client_connection: ClientConnection {
                kubeconfig: text.clone(),
                accept_content_types: String::new(),
                content_type: text.clone(),
                qps: if qps == 0.0 { 1.0 } else { qps },
                burst: parallelism,
            },
            enable_profiling: b,
            enable_contention_profiling: c,
            delay_cache_until_active: d,
            profiles: profiles.collect(),
            extenders,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_is_written_reads_back(config in config()) {
        prop_assert_eq!(back(&config), config);
    }
}

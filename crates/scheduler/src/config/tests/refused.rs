//! Configurations that are refused, and in which words.

use super::*;
use proptest::prelude::*;

#[test]
fn problems_of_the_whole_are_all_named() {
    let problems = bad(
        "parallelism: 0\npercentageOfNodesToScore: 101\npodInitialBackoffSeconds: 0\npodMaxBackoffSeconds: -1\n\
         clientConnection: {burst: -1}\n\
         leaderElection: {leaseDuration: 5s, renewDeadline: 5s, retryPeriod: 5s, resourceLock: endpoints}\n\
         profiles: [{schedulerName: a}, {schedulerName: a}, {}, {percentageOfNodesToScore: -1, schedulerName: b}]\n",
    );
    assert_eq!(
        problems,
        [
            "clientConnection.burst: Invalid value: -1: must be non-negative",
            "leaderElection.leaseDuration: Invalid value: \"5s\": must be greater than `RenewDeadline`",
            "leaderElection.renewDeadline: Invalid value: \"5s\": must be greater than `RetryPeriod`*1.2",
            "leaderElection.resourceLock: Invalid value: \"endpoints\": resourceLock value must be \"leases\"",
            "parallelism: Invalid value: 0: should be an integer value greater than zero",
            "profiles[1].schedulerName: Duplicate value: \"a\"",
            "profiles[2].schedulerName: Required value",
            "profiles[3].percentageOfNodesToScore: Invalid value: -1: not in valid range [0-100]",
            "percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]",
            "podInitialBackoffSeconds: Invalid value: 0: must be greater than 0",
            "podMaxBackoffSeconds: Invalid value: -1: must be greater than or equal to PodInitialBackoffSeconds",
        ]
    );
}

#[test]
fn decoding_is_strict() {
    for (rest, wanted) in [
        ("foo: 1", "strict decoding error: unknown field \"foo\""),
        ("Parallelism: 1", "strict decoding error: unknown field \"Parallelism\""),
        (
            "parallelism: 1\nparallelism: 2",
            "strict decoding error: duplicate field \"parallelism\"",
        ),
        (
            "profiles: [{schedulerName: a, schedulerName: b}]",
            "strict decoding error: duplicate field \"profiles[0].schedulerName\"",
        ),
        (
            "profiles: [{plugins: {score: {enable: []}}}]",
            "strict decoding error: unknown field \"profiles[0].plugins.score.enable\"",
        ),
        (
            "profiles: [{plugins: {normalizeScore: {}}}]",
            "strict decoding error: unknown field \"profiles[0].plugins.normalizeScore\"",
        ),
        (
            "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated, x: 1}}}]}]",
            "strict decoding error: unknown field \"profiles[0].pluginConfig[0].args.scoringStrategy.x\"",
        ),
        (
            "profiles: [{pluginConfig: [{name: NodeAffinity, args: {addedAffinity: {x: 1}}}]}]",
            "strict decoding error: unknown field \"profiles[0].pluginConfig[0].args.addedAffinity.x\"",
        ),
        (
            "extenders: [{tlsConfig: {x: 1}}]",
            "strict decoding error: unknown field \"extenders[0].tlsConfig.x\"",
        ),
        (
            "parallelism: many",
            "parallelism: Invalid value: \"many\": must be a 32-bit integer",
        ),
        (
            "parallelism: 1.5",
            "parallelism: Invalid value: 1.5: must be a 32-bit integer",
        ),
        (
            "parallelism: 3000000000",
            "parallelism: Invalid value: 3000000000: must be a 32-bit integer",
        ),
        ("profiles: {}", "profiles: Invalid value: {}: must be a list"),
        ("profiles: [1]", "profiles[0]: Invalid value: 1: must be an object"),
        (
            "enableProfiling: 1",
            "enableProfiling: Invalid value: 1: must be true or false",
        ),
        (
            "leaderElection: {leaseDuration: 15}",
            "leaderElection.leaseDuration: Invalid value: 15: must be a duration such as \"15s\" or \"1m30s\"",
        ),
        (
            "extenders: [{tlsConfig: {keyData: '!'}}]",
            "extenders[0].tlsConfig.keyData: Invalid value: \"<hidden>\": must be base64",
        ),
    ] {
        assert_eq!(bad(rest), [wanted], "{rest}");
    }
}

#[test]
fn other_documents_are_refused() {
    for (text, wanted) in [
        ("", "the file is empty: a KubeSchedulerConfiguration is needed"),
        ("kind: KubeSchedulerConfiguration", "apiVersion: Required value"),
        ("apiVersion: kubescheduler.config.k8s.io/v1", "kind: Required value"),
        (
            "apiVersion: kubescheduler.config.k8s.io/v1beta1\nkind: KubeSchedulerConfiguration",
            "apiVersion: Invalid value: \"kubescheduler.config.k8s.io/v1beta1\": no kind \"KubeSchedulerConfiguration\" is \
             registered for this version; only kubescheduler.config.k8s.io/v1 is",
        ),
        (
            "apiVersion: kubescheduler.config.k8s.io/v1\nkind: Pod",
            "kind: Invalid value: \"Pod\": couldn't decode as KubeSchedulerConfiguration",
        ),
    ] {
        assert_eq!(texts(parse(text, &[]).unwrap_err()), [wanted], "{text}");
    }
    for text in ["a: b: c", "[]", "42", "a: &a {x: *a}", "- a\n- b"] {
        assert!(parse(text, &[]).is_err(), "{text}");
    }
    assert!(parse(&"[".repeat(100_000), &[]).is_err());
}

#[test]
fn plugins_that_cannot_be_there_are_refused() {
    for (plugins, wanted) in [
        (
            "{score: {enabled: [{name: Nope}]}}",
            "plugins.score.enabled[0].name: Invalid value: \"Nope\": ScorePlugin \"Nope\" does not exist; a plugin of your own is compiled in or asked over HTTP \
             as an extender: see docs/how-to/add-a-scheduler-plugin.md",
        ),
        (
            "{multiPoint: {enabled: [{name: Nope}]}}",
            "plugins.multiPoint.enabled[0].name: Invalid value: \"Nope\": plugin \"Nope\" does not exist; a plugin of your own is compiled in or asked over HTTP \
             as an extender: see docs/how-to/add-a-scheduler-plugin.md",
        ),
        (
            "{score: {enabled: [{weight: 1}]}}",
            "plugins.score.enabled[0].name: Required value",
        ),
        (
            "{score: {enabled: [{name: SelectorSpread}]}}",
            "plugins.score.enabled[0].name: Invalid value: \"SelectorSpread\": ScorePlugin \"SelectorSpread\" does not \
             exist: it was removed; PodTopologySpread, which is on by default, spreads the pods of services and replica \
             sets",
        ),
        (
            "{score: {enabled: [{name: NodeName}]}}",
            "plugins.score.enabled[0].name: Invalid value: \"NodeName\": plugin \"NodeName\" does not extend ScorePlugin \
             plugin",
        ),
        (
            "{filter: {enabled: [{name: EBSLimits}]}}",
            "plugins.filter.enabled[0]: Invalid value: \"EBSLimits\": was invalid in version \"v1\" \
             (KubeSchedulerConfiguration is version \"kubescheduler.config.k8s.io/v1\")",
        ),
        (
            "{queueSort: {enabled: [{name: PrioritySort}, {name: MySort}]}}",
            "plugins.queueSort.enabled: Invalid value: 2: only one queue sort plugin can be enabled",
        ),
        (
            "{queueSort: {enabled: [{name: MySort}]}}",
            "plugins.queueSort: Invalid value: 2: only one queue sort plugin required for profile with scheduler name \
             \"default-scheduler\", but got 2",
        ),
        (
            "{queueSort: {disabled: [{name: '*'}]}}",
            "plugins.queueSort: Invalid value: 0: only one queue sort plugin required for profile with scheduler name \
             \"default-scheduler\", but got 0",
        ),
        (
            "{bind: {disabled: [{name: '*'}]}}",
            "plugins.bind: Required value: at least one bind plugin is needed for profile with scheduler name \
             \"default-scheduler\"",
        ),
        (
            "{placementScore: {enabled: [{name: PodGroupPodsCount}]}}",
            "plugins.placementScore.enabled: Forbidden: must be empty: Orlop does not have \
             TopologyAwareWorkloadScheduling (alpha)",
        ),
    ] {
        let wanted = format!("profiles[0].{wanted}");
        assert_eq!(
            bad(&format!("profiles:\n- plugins: {plugins}\n")),
            [wanted],
            "{plugins}"
        );
    }
}

#[test]
fn profiles_sort_the_queue_alike() {
    let other = "plugins: {queueSort: {enabled: [{name: MySort}], disabled: [{name: '*'}]}}";
    assert_eq!(
        bad(&format!(
            "profiles: [{{schedulerName: a}}, {{schedulerName: b, {other}}}]"
        )),
        [
            "profiles[1].plugins.queueSort: Invalid value: {\"disabled\":[{\"name\":\"*\"}],\"enabled\":[{\"name\":\"MySort\"}]}: \
          must be the same for all profiles"
        ]
    );
    let multi = "plugins: {multiPoint: {enabled: [{name: MySort}], disabled: [{name: PrioritySort}]}}";
    assert_eq!(
        bad(&format!(
            "profiles: [{{schedulerName: a}}, {{schedulerName: b, {multi}}}]"
        )),
        [
            "profiles[1].plugins.queueSort: Invalid value: {}: different queue sort plugins for profile \"b\": \"MySort\", \
          first: \"PrioritySort\""
        ]
    );
    let args = |n: u8| format!("pluginConfig: [{{name: MySort, args: {n}}}]");
    let profiles = |n| {
        format!(
            "profiles: [{{schedulerName: a, {other}, {}}}, {{schedulerName: b, {other}, {}}}]",
            args(1),
            args(n)
        )
    };
    assert_eq!(good(&profiles(1)).profiles.len(), 2);
    assert_eq!(
        bad(&profiles(2)),
        ["profiles[1].pluginConfig.args: Invalid value: 2: queueSort must be the same for all profiles"]
    );
}

#[test]
fn arguments_are_checked() {
    for (name, args, wanted) in [
        (
            "DefaultPreemption",
            "{minCandidateNodesPercentage: 101, minCandidateNodesAbsolute: -1}",
            &[
                "minCandidateNodesPercentage: Invalid value: 101: not in valid range [0, 100]",
                "minCandidateNodesAbsolute: Invalid value: -1: not in valid range [0, inf)",
            ][..],
        ),
        (
            "DefaultPreemption",
            "{minCandidateNodesPercentage: 0, minCandidateNodesAbsolute: 0}",
            &[
                "minCandidateNodesPercentage: Invalid value: 0: cannot be zero at the same time as \
                 minCandidateNodesAbsolute",
                "minCandidateNodesAbsolute: Invalid value: 0: cannot be zero at the same time as \
                 minCandidateNodesPercentage",
            ],
        ),
        (
            "InterPodAffinity",
            "{hardPodAffinityWeight: 101}",
            &["hardPodAffinityWeight: Invalid value: 101: not in valid range [0, 100]"],
        ),
        (
            "InterPodAffinity",
            "{kind: NodeAffinityArgs}",
            &[
                "kind: Invalid value: \"NodeAffinityArgs\": args for plugin InterPodAffinity were not of type \
               InterPodAffinityArgs.kubescheduler.config.k8s.io, got NodeAffinityArgs.kubescheduler.config.k8s.io",
            ],
        ),
        (
            "InterPodAffinity",
            "{apiVersion: v1}",
            &["apiVersion: Invalid value: \"v1\": no kind \"InterPodAffinityArgs\" is registered for this version"],
        ),
        (
            "NodeResourcesFit",
            "{ignoredResourceGroups: [a/b], scoringStrategy: {type: Best, resources: [{name: cpu, weight: 101}]}}",
            &[
                "ignoredResourceGroups[0]: Invalid value: \"a/b\": resource group name can't contain '/'",
                "scoringStrategy.type: Unsupported value: \"Best\": supported values: \"LeastAllocated\", \
                 \"MostAllocated\", \"RequestedToCapacityRatio\"",
                "scoringStrategy.resources[0].weight: Invalid value: 101: resource weight of cpu not in valid range (0, \
                 100]",
            ],
        ),
        (
            "NodeResourcesFit",
            "{scoringStrategy: {type: RequestedToCapacityRatio}}",
            &[
                "scoringStrategy.requestedToCapacityRatio: Required value: must be specified when type is \
               RequestedToCapacityRatio",
            ],
        ),
        (
            "NodeResourcesFit",
            "{scoringStrategy: {type: MostAllocated, requestedToCapacityRatio: {}}}",
            &[
                "scoringStrategy.requestedToCapacityRatio: Forbidden: must be nil when type is not \
               RequestedToCapacityRatio",
            ],
        ),
        (
            "NodeResourcesFit",
            "{scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [{utilization: 50, \
             score: 11}, {utilization: 50}, {utilization: 101}]}}}",
            &[
                "scoringStrategy.requestedToCapacityRatio.shape[1].utilization: Invalid value: 50: values must be sorted \
                 in increasing order",
                "scoringStrategy.requestedToCapacityRatio.shape[0].score: Invalid value: 11: not in valid range [0, 10]",
                "scoringStrategy.requestedToCapacityRatio.shape[2].utilization: Invalid value: 101: not in valid range \
                 [0, 100]",
            ],
        ),
        (
            "NodeResourcesBalancedAllocation",
            "{resources: [{name: cpu, weight: 2}, {name: cpu}]}",
            &[
                "resources[0].weight: Invalid value: 2: must be 1",
                "resources[1].name: Duplicate value: \"cpu\"",
            ],
        ),
        (
            "PodTopologySpread",
            "{defaultConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule}]}",
            &["defaultingType: Invalid value: \"System\": when .defaultConstraints are not empty"],
        ),
        (
            "PodTopologySpread",
            "{defaultingType: List, defaultConstraints: [{labelSelector: {}}, {maxSkew: 1, topologyKey: a, \
             whenUnsatisfiable: Never}, {maxSkew: 1, topologyKey: a, whenUnsatisfiable: ScheduleAnyway}]}",
            &[
                "defaultConstraints[0].maxSkew: Invalid value: 0: not in valid range (0, inf)",
                "defaultConstraints[0].topologyKey: Required value: can not be empty",
                "defaultConstraints[0].whenUnsatisfiable: Required value: can not be empty",
                "defaultConstraints[0].labelSelector: Forbidden: constraint must not define a selector, as they deduced \
                 for each pod",
                "defaultConstraints[1].whenUnsatisfiable: Unsupported value: \"Never\": supported values: \
                 \"DoNotSchedule\", \"ScheduleAnyway\"",
                "defaultConstraints[2]: Duplicate value: \"{a, ScheduleAnyway}\"",
            ],
        ),
        (
            "PodTopologySpread",
            "{defaultingType: Some}",
            &["defaultingType: Unsupported value: \"Some\": supported values: \"System\", \"List\""],
        ),
        (
            "VolumeBinding",
            "{bindTimeoutSeconds: -1}",
            &["bindTimeoutSeconds: Invalid value: -1: invalid BindTimeoutSeconds, should not be a negative value"],
        ),
        (
            "DynamicResources",
            "{filterTimeout: -1s, bindingTimeout: 10ms}",
            &[
                "filterTimeout: Invalid value: \"-1s\": must be zero or positive",
                "bindingTimeout: Invalid value: \"10ms\": must be at least 1 second",
            ],
        ),
    ] {
        let rest = format!("profiles:\n- pluginConfig: [{{name: {name}, args: {args}}}]\n");
        let wanted: Vec<String> = wanted
            .iter()
            .map(|w| format!("profiles[0].pluginConfig[0].args.{w}"))
            .collect();
        assert_eq!(bad(&rest), wanted, "{name} {args}");
    }
}

#[test]
fn added_affinity_is_checked() {
    let terms = "{matchExpressions: [{key: a, operator: In}, {key: a, operator: Exists, values: [x]}, {key: a, operator: \
                 Gt, values: [x]}, {key: a, operator: Lt, values: ['1', '2']}, {key: '-', operator: Exists}, {key: a, \
                 operator: Is}], matchFields: [{key: metadata.name, operator: Exists}, {key: metadata.name, operator: \
                 In, values: []}]}";
    let args = format!(
        "{{addedAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: [{{}}, {terms}]}}, \
         preferredDuringSchedulingIgnoredDuringExecution: [{{weight: 1, preference: {{matchExpressions: [{{key: a, \
         operator: NotIn, values: ['x y']}}]}}}}]}}}}"
    );
    let problems = bad(&format!(
        "profiles:\n- pluginConfig: [{{name: NodeAffinity, args: {args}}}]\n"
    ));
    let prefix = "profiles[0].pluginConfig[0].args.addedAffinity.";
    let term = "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[1].";
    let starts = [
        format!(
            "{term}matchExpressions[0].values: Invalid value: null: for 'in', 'notin' operators, values set can't be empty"
        ),
        format!(
            "{term}matchExpressions[1].values: Invalid value: [\"x\"]: values set must be empty for exists and does not exist"
        ),
        format!(
            "{term}matchExpressions[2].values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer"
        ),
        format!(
            "{term}matchExpressions[3].values: Invalid value: [\"1\",\"2\"]: for 'Gt', 'Lt' operators, exactly one value is required"
        ),
        format!("{term}matchExpressions[4].key: Invalid value: \"-\": name part must consist of"),
        format!(
            "{term}matchExpressions[5].operator: Unsupported value: \"Is\": supported values: \"DoesNotExist\", \"Exists\", \"Gt\", \"In\", \"Lt\", \"NotIn\""
        ),
        format!("{term}matchFields[0].operator: Unsupported value: \"Exists\": supported values: \"In\", \"NotIn\""),
        format!("{term}matchFields[1].values: Invalid value: "),
        "preferredDuringSchedulingIgnoredDuringExecution[0].matchExpressions[0].values[0][a]: Invalid value: \"x y\": "
            .to_string(),
    ];
    assert_eq!(problems.len(), starts.len(), "{problems:#?}");
    for (problem, start) in problems.iter().zip(starts) {
        assert!(problem.starts_with(&format!("{prefix}{start}")), "{problem}\n{start}");
    }
}

#[test]
fn plugin_config_and_extenders_are_checked() {
    assert_eq!(
        bad("profiles:\n- pluginConfig: [{name: MySort}, {name: MySort}, {name: GCEPDLimits}, {args: {}}]\n"),
        [
            "profiles[0].pluginConfig[1]: Duplicate value: \"MySort\"",
            "profiles[0].pluginConfig[2]: Invalid value: \"GCEPDLimits\": was invalid in version \"v1\" \
             (KubeSchedulerConfiguration is version \"kubescheduler.config.k8s.io/v1\")",
            "profiles[0].pluginConfig[3].name: Required value",
        ]
    );
    assert_eq!(
        bad(
            "extenders: [{prioritizeVerb: p, bindVerb: b}, {bindVerb: b, httpTimeout: -1s, managedResources: [{name: cpu}, \
             {name: a.b/c}, {name: a.b/c}]}]"
        ),
        [
            "extenders[0].weight: Invalid value: 0: must have a positive weight applied to it",
            "extenders[1].httpTimeout: Invalid value: \"-1s\": must be zero or positive",
            "extenders[1].managedResources[0].name: Invalid value: \"cpu\": is an invalid extended resource name",
            "extenders[1].managedResources[2].name: Invalid value: \"a.b/c\": duplicate extender managed resource name",
            "extenders: Invalid value: \"found 2 extenders implementing bind\": only one extender can implement bind",
        ]
    );
}

proptest! {
    /// Whatever stands in the file, it is read or refused with a reason.
    #[test]
    fn any_text_is_read_or_refused(rest in "(profiles|plugins|score|enabled|name|args|[-{}\\[\\]:,\n '\"*a0])*") {
        if let Err(problems) = parse(&format!("{HEAD}{rest}"), CUSTOM) {
            prop_assert!(!problems.is_empty());
        }
    }
}

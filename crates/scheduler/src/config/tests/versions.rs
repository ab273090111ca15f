//! The manifests of the notes, and older versions.

use super::*;

fn old(version: &str, rest: &str) -> Result<(Config, Vec<String>), Vec<String>> {
    let text = format!("apiVersion: kubescheduler.config.k8s.io/{version}\nkind: KubeSchedulerConfiguration\n{rest}");
    parse(&text, CUSTOM).map_err(texts)
}

const WARNING_V1BETA3: &str = "apiVersion: kubescheduler.config.k8s.io/v1beta3 no longer exists and is read as v1; write \
                               kubescheduler.config.k8s.io/v1";

#[test]
fn the_notes_v1beta3_manifest_is_read() {
    let (config, warnings) = old(
        "v1beta3",
        "profiles:
- schedulerName: custom-scheduler
  plugins:
    score:
      enabled:
      - name: NodeResourcesFit
        weight: 1
      - name: NodeAffinity
        weight: 5
  pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy:
        type: LeastAllocated
",
    )
    .unwrap();
    assert_eq!(warnings, [WARNING_V1BETA3]);
    let profile = &config.profiles[0];
    assert_eq!(profile.scheduler_name, "custom-scheduler");
    assert!(shown(&profile.points.score).starts_with("NodeResourcesFit*1 NodeAffinity*5 TaintToleration*3 "));
    assert_eq!(profile.args, Args::default());
}

#[test]
fn the_notes_v1_manifests_are_read() {
    let election = good(
        "profiles:
    - schedulerName: my-scheduler
leaderElection:
    leaderElect: true
    resourceNamespace: kube-system
    resourceName: lock-object-my-scheduler
",
    );
    assert_eq!(election.profiles[0].scheduler_name, "my-scheduler");
    assert_eq!(election.leader_election.resource_name, "lock-object-my-scheduler");

    let three = good(
        "profiles:\n    - schedulerName: my-scheduler-2\n    - schedulerName: my-scheduler-3\n    - schedulerName: my-scheduler-4\n",
    );
    assert_eq!(three.profiles.len(), 3);

    let plugins = good(
        "profiles:
    - schedulerName: my-scheduler-2
      plugins:
          score:
                disabled:
                    - name: TaintToleration
                enabled:
                    - name: MyCustomPluginA
                    - name: MyCustomPluginB

    - schedulerName: my-scheduler-3
      plugins:
          preScore:
                disabled:
                    - name: '*'
          score:
                disabled:
                    - name: '*'
",
    );
    let [two, three] = &plugins.profiles[..] else { panic!() };
    let scores = shown(&two.points.score);
    assert!(
        !scores.contains("TaintToleration") && scores.ends_with("ImageLocality*1 MyCustomPluginA*1 MyCustomPluginB*1")
    );
    assert!(shown(&two.points.filter).contains("TaintToleration"));
    assert!(three.points.score.is_empty() && three.points.pre_score.is_empty());
    assert_eq!(three.points.filter, Profile::default().points.filter);
}

#[test]
fn removed_plugins_are_left_out_of_old_files_with_a_reason() {
    let (config, warnings) = old(
        "v1beta3",
        "profiles:
- plugins:
    preScore: {enabled: [{name: SelectorSpread}]}
    score: {enabled: [{name: SelectorSpread, weight: 5}, {name: NodePreferAvoidPods, weight: 10000}], disabled: [{name: ServiceAffinity}]}
  pluginConfig: [{name: NodePreferAvoidPods, args: {}}]
",
    )
    .unwrap();
    assert_eq!(config, Config::default());
    let spread = "is left out: it was removed; PodTopologySpread, which is on by default, spreads the pods of services \
                  and replica sets";
    let avoid = "is left out: it was removed; taint the nodes instead (TaintToleration, which is on by default)";
    assert_eq!(
        warnings,
        [
            WARNING_V1BETA3.to_string(),
            format!("profiles[0].plugins.preScore.enabled[0]: plugin \"SelectorSpread\" {spread}"),
            format!("profiles[0].plugins.score.enabled[0]: plugin \"SelectorSpread\" {spread}"),
            format!("profiles[0].plugins.score.enabled[1]: plugin \"NodePreferAvoidPods\" {avoid}"),
            format!("profiles[0].pluginConfig[0]: plugin \"NodePreferAvoidPods\" {avoid}"),
        ]
    );
    assert_eq!(
        old(
            "v1beta3",
            "profiles: [{plugins: {filter: {enabled: [{name: NodeLabel}]}}}]"
        )
        .unwrap_err(),
        [
            "profiles[0].plugins.filter.enabled[0].name: Invalid value: \"NodeLabel\": FilterPlugin \"NodeLabel\" does not \
          exist: it was removed; use NodeAffinity with addedAffinity"
        ]
    );
    let args =
        "profiles: [{pluginConfig: [{name: VolumeBinding, args: {apiVersion: kubescheduler.config.k8s.io/v1beta3}}]}]";
    assert!(old("v1beta3", args).is_ok() && old("v1", args).is_err());
}

#[test]
fn v1beta2_keeps_its_weights() {
    let (config, warnings) = old("v1beta2", "healthzBindAddress: 0.0.0.0:0\nmetricsBindAddress: ''\n").unwrap();
    let score = shown(&config.profiles[0].points.score);
    assert!(
        score.starts_with("TaintToleration*1 NodeAffinity*1 NodeResourcesFit*1 "),
        "{score}"
    );
    assert!(score.contains("PodTopologySpread*2 InterPodAffinity*1 "), "{score}");
    assert_eq!(warnings.len(), 3);
    assert!(warnings[0].contains("keep its default weight of 1"), "{}", warnings[0]);
    assert_eq!(
        old(
            "v1beta2",
            "healthzBindAddress: 0.0.0.0:10251\nprofiles: [{plugins: {multiPoint: {disabled: [{name: '*'}]}}}]"
        )
        .unwrap_err()
        .len(),
        // No multiPoint, hence no queue sort and no binder either; and the address.
        4
    );
    assert!(old("v1beta3", "healthzBindAddress: ''").is_err());
}

#[test]
fn arguments_of_unknown_plugins_are_kept_with_a_warning() {
    let text = format!("{HEAD}profiles: [{{pluginConfig: [{{name: Foo, args: {{a: 1}}}}]}}]");
    let (config, warnings) = parse(&text, &[]).unwrap();
    assert_eq!(config.profiles[0].args.custom["Foo"], json!({"a": 1}));
    assert_eq!(
        warnings,
        ["profiles[0].pluginConfig[0]: no plugin is called \"Foo\"; its args have no effect"]
    );
}

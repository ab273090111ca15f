//! Which plugins run where, in which order and with which weight.

use super::*;

/// The plugins at a point of the only profile, with its `plugins` given.
fn at(point: Point, plugins: &str) -> String {
    let config = good(&format!("profiles:\n- plugins: {plugins}\n"));
    shown(config.profiles[0].points.get(point))
}

#[test]
fn the_default_profile_is_that_of_1_36() {
    let points = Profile::default().points;
    let filters = "NodeAffinity NodePorts NodeResourcesFit VolumeRestrictions NodeVolumeLimits VolumeBinding VolumeZone \
                   PodTopologySpread InterPodAffinity DynamicResources NodeDeclaredFeatures";
    for (point, wanted) in [
        (Point::PreEnqueue, "SchedulingGates DynamicResources DefaultPreemption"),
        (Point::QueueSort, "PrioritySort"),
        (Point::PreFilter, filters),
        (Point::PostFilter, "DynamicResources DefaultPreemption"),
        (
            Point::PreScore,
            "TaintToleration NodeAffinity NodeResourcesFit VolumeBinding PodTopologySpread InterPodAffinity \
             NodeResourcesBalancedAllocation",
        ),
        (
            Point::Score,
            "TaintToleration*3 NodeAffinity*2 NodeResourcesFit*1 VolumeBinding*1 PodTopologySpread*2 \
             InterPodAffinity*2 DynamicResources*2 NodeResourcesBalancedAllocation*1 ImageLocality*1",
        ),
        (Point::Reserve, "VolumeBinding DynamicResources"),
        (Point::Permit, ""),
        (Point::PreBind, "VolumeBinding DynamicResources"),
        (Point::Bind, "DefaultBinder"),
        (Point::PostBind, ""),
    ] {
        assert_eq!(shown(points.get(point)), wanted, "{point}");
    }
    let wanted = format!("NodeUnschedulable NodeName TaintToleration {filters}");
    assert_eq!(shown(&points.filter), wanted);
    let names = points.plugin_names();
    assert_eq!(names.len(), DEFAULT_PLUGINS.len());
}

#[test]
fn score_is_ordered_and_weighted_as_in_kubernetes() {
    let rest = "VolumeBinding*1 PodTopologySpread*2 InterPodAffinity*2 DynamicResources*2";
    let tail = "NodeResourcesBalancedAllocation*1 ImageLocality*1";
    for (plugins, wanted) in [
        // Named at the point and by multiPoint: first, in the order named, with the weight named there or 1.
        (
            "{score: {enabled: [{name: ImageLocality, weight: 7}, {name: NodeAffinity}]}}",
            format!(
                "ImageLocality*7 NodeAffinity*1 TaintToleration*3 NodeResourcesFit*1 {rest} NodeResourcesBalancedAllocation*1"
            ),
        ),
        // Not in multiPoint: last.
        (
            "{score: {enabled: [{name: MyCustomPluginA}, {name: NodeAffinity, weight: 5}]}}",
            format!("NodeAffinity*5 TaintToleration*3 NodeResourcesFit*1 {rest} {tail} MyCustomPluginA*1"),
        ),
        // Disabled alone, and disabled to be enabled elsewhere in the order.
        (
            "{score: {disabled: [{name: TaintToleration}, {name: NoSuchPlugin}]}}",
            format!("NodeAffinity*2 NodeResourcesFit*1 {rest} {tail}"),
        ),
        (
            "{score: {disabled: [{name: TaintToleration}], enabled: [{name: TaintToleration, weight: 9}]}}",
            format!("NodeAffinity*2 NodeResourcesFit*1 {rest} {tail} TaintToleration*9"),
        ),
        ("{score: {disabled: [{name: '*'}]}}", String::new()),
        (
            "{score: {disabled: [{name: '*'}], enabled: [{name: MyCustomPluginB, weight: 3}, {name: NodeAffinity}]}}",
            "MyCustomPluginB*3 NodeAffinity*1".to_string(),
        ),
        // multiPoint replaces in place, adds at the end, disables everywhere.
        (
            "{multiPoint: {enabled: [{name: MyCustomPluginB, weight: 4}, {name: NodeAffinity, weight: 6}]}}",
            format!("TaintToleration*3 NodeAffinity*6 NodeResourcesFit*1 {rest} {tail} MyCustomPluginB*4"),
        ),
        (
            "{multiPoint: {enabled: [{name: NodeAffinity}]}}",
            format!("TaintToleration*3 NodeAffinity*1 NodeResourcesFit*1 {rest} {tail}"),
        ),
        (
            "{multiPoint: {disabled: [{name: NodeAffinity}, {name: TaintToleration}]}}",
            format!("NodeResourcesFit*1 {rest} {tail}"),
        ),
        (
            "{multiPoint: {disabled: [{name: NodeAffinity}], enabled: [{name: NodeAffinity, weight: 8}]}}",
            format!("TaintToleration*3 NodeResourcesFit*1 {rest} {tail} NodeAffinity*8"),
        ),
        (
            "{multiPoint: {disabled: [{name: '*'}], enabled: [{name: PrioritySort}, {name: DefaultBinder}, {name: \
             ImageLocality}]}}",
            "ImageLocality*1".to_string(),
        ),
        // Both: what the point says wins; what multiPoint brings can be disabled at the point.
        (
            "{multiPoint: {enabled: [{name: MyCustomPluginB, weight: 4}]}, score: {enabled: [{name: MyCustomPluginB, \
             weight: 2}]}}",
            format!("MyCustomPluginB*2 TaintToleration*3 NodeAffinity*2 NodeResourcesFit*1 {rest} {tail}"),
        ),
        (
            "{multiPoint: {enabled: [{name: MyCustomPluginB, weight: 4}]}, score: {disabled: [{name: MyCustomPluginB}]}}",
            format!("TaintToleration*3 NodeAffinity*2 NodeResourcesFit*1 {rest} {tail}"),
        ),
    ] {
        assert_eq!(at(Point::Score, plugins), wanted, "{plugins}");
    }
}

#[test]
fn points_do_not_disturb_each_other() {
    let plugins = "{multiPoint: {enabled: [{name: MyCustomPluginB}]}, score: {disabled: [{name: '*'}]}, preScore: \
                   {disabled: [{name: '*'}]}}";
    assert_eq!(at(Point::Permit, plugins), "MyCustomPluginB");
    assert_eq!(at(Point::Score, plugins), "");
    assert_eq!(at(Point::PreScore, plugins), "");
    assert!(at(Point::Filter, plugins).ends_with("NodeDeclaredFeatures MyCustomPluginB"));
    let sort = "{queueSort: {enabled: [{name: MySort}], disabled: [{name: PrioritySort}]}}";
    assert_eq!(at(Point::QueueSort, sort), "MySort");
    let bind = "{bind: {enabled: [{name: MyBinder}]}}";
    assert_eq!(at(Point::Bind, bind), "DefaultBinder MyBinder");
    let empty = "{placementGenerate: {disabled: [{name: '*'}]}, placementScore: {enabled: []}}";
    assert_eq!(at(Point::Bind, empty), "DefaultBinder");
}

#[test]
fn a_plugin_that_comes_twice_is_refused() {
    for (plugins, wanted) in [
        (
            "{score: {enabled: [{name: NodeAffinity}, {name: NodeAffinity}]}}",
            "profiles[0].plugins.score.enabled[1].name: Invalid value: \"NodeAffinity\": plugin \"NodeAffinity\" already \
             registered as \"ScorePlugin\"",
        ),
        (
            "{multiPoint: {enabled: [{name: NodeName}, {name: NodeName}]}}",
            "profiles[0].plugins.multiPoint.enabled[0].name: Invalid value: \"NodeName\": plugin \"NodeName\" already \
             registered as \"FilterPlugin\"",
        ),
    ] {
        assert_eq!(bad(&format!("profiles:\n- plugins: {plugins}\n")), [wanted]);
    }
}

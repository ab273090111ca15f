//! Writing a configuration, as `--write-config-to` does: everything filled in, and read back it is the same.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::version::{API_VERSION, KIND};
use super::{
    Args, Config, DEFAULT_PLUGINS, DefaultConstraint, DefaultingType, Enabled, Extender, Point, Points, Profile,
    ResourceSpec, ScoringStrategyType, ShapePoint, Tls,
};

/// A `KubeSchedulerConfiguration` in YAML.
pub fn render(config: &Config) -> String {
    let default_points = Config::default().profiles.remove(0).points;
    let profiles: Vec<Value> = config.profiles.iter().map(|p| profile(p, &default_points)).collect();
    let election = &config.leader_election;
    let client = &config.client_connection;
    let mut document = json!({
        "apiVersion": API_VERSION,
        "kind": KIND,
        "parallelism": config.parallelism,
        "percentageOfNodesToScore": config.percentage_of_nodes_to_score.unwrap_or(0),
        "podInitialBackoffSeconds": config.pod_initial_backoff.as_secs(),
        "podMaxBackoffSeconds": config.pod_max_backoff.as_secs(),
        "leaderElection": {
            "leaderElect": election.leader_elect,
            "leaseDuration": time(election.lease_duration),
            "renewDeadline": time(election.renew_deadline),
            "retryPeriod": time(election.retry_period),
            "resourceLock": election.resource_lock,
            "resourceNamespace": election.resource_namespace,
            "resourceName": election.resource_name,
        },
        "clientConnection": {
            "kubeconfig": client.kubeconfig,
            "acceptContentTypes": client.accept_content_types,
            "contentType": client.content_type,
            "qps": number(client.qps),
            "burst": client.burst,
        },
        "enableProfiling": config.enable_profiling,
        "enableContentionProfiling": config.enable_contention_profiling,
        "delayCacheUntilActive": config.delay_cache_until_active,
        "profiles": profiles,
    });
    if !config.extenders.is_empty() {
        document["extenders"] = config.extenders.iter().map(extender).collect();
    }
    serde_saphyr::to_string(&document).expect("a plain value can be written as YAML")
}

/// As Go writes it.
pub(super) fn time(duration: Duration) -> String {
    orlop_api::duration::duration_text(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}

/// Whole numbers without a point, others with the digits of an f32.
fn number(n: f32) -> Value {
    if n.fract() == 0.0 && n.abs() < 1e15 {
        (n as i64).into()
    } else {
        // By its text: the f32 0.1 is 0.10000000149 as f64.
        n.to_string().parse::<f64>().map_or(Value::Null, Value::from)
    }
}

fn profile(profile: &Profile, defaults: &Points) -> Value {
    let mut out = json!({
        "schedulerName": profile.scheduler_name,
        "plugins": plugins(&profile.points, defaults),
        "pluginConfig": plugin_config(&profile.args),
    });
    if let Some(percentage) = profile.percentage_of_nodes_to_score {
        out["percentageOfNodesToScore"] = percentage.into();
    }
    out
}

/// The default plugins as multiPoint, and in full every point where they are not what runs.
fn plugins(points: &Points, defaults: &Points) -> Value {
    let rows = DEFAULT_PLUGINS.iter().map(|row| Enabled {
        name: row.name.to_string(),
        weight: row.weight,
    });
    let mut out = Map::new();
    out.insert("multiPoint".to_string(), json!({"enabled": enabled(rows)}));
    for point in Point::ALL {
        if points.get(point) == defaults.get(point) {
            continue;
        }
        let mut set = json!({"disabled": [{"name": "*"}]});
        if !points.get(point).is_empty() {
            set["enabled"] = enabled(points.get(point).iter().cloned());
        }
        out.insert(point.field().to_string(), set);
    }
    out.into()
}

fn enabled(plugins: impl Iterator<Item = Enabled>) -> Value {
    let plugin = |plugin: Enabled| match plugin.weight {
        0 => json!({"name": plugin.name}),
        weight => json!({"name": plugin.name, "weight": weight}),
    };
    plugins.map(plugin).collect()
}

fn plugin_config(args: &Args) -> Value {
    let typed = [
        (
            "DefaultPreemption",
            json!({
                "minCandidateNodesPercentage": args.default_preemption.min_candidate_nodes_percentage,
                "minCandidateNodesAbsolute": args.default_preemption.min_candidate_nodes_absolute,
            }),
        ),
        ("DynamicResources", dynamic_resources(args)),
        (
            "InterPodAffinity",
            json!({
                "hardPodAffinityWeight": args.inter_pod_affinity.hard_pod_affinity_weight,
                "ignorePreferredTermsOfExistingPods": args.inter_pod_affinity.ignore_preferred_terms_of_existing_pods,
            }),
        ),
        ("NodeAffinity", node_affinity(args)),
        (
            "NodeResourcesBalancedAllocation",
            json!({"resources": resources(&args.node_resources_balanced_allocation.resources)}),
        ),
        ("NodeResourcesFit", node_resources_fit(args)),
        ("PodTopologySpread", pod_topology_spread(args)),
        ("VolumeBinding", volume_binding(args)),
    ];
    let typed = typed.into_iter().map(|(name, mut args)| {
        args["apiVersion"] = API_VERSION.into();
        args["kind"] = format!("{name}Args").into();
        json!({"name": name, "args": args})
    });
    let custom = args
        .custom
        .iter()
        .map(|(name, args)| json!({"name": name, "args": args}));
    typed.chain(custom).collect()
}

fn dynamic_resources(args: &Args) -> Value {
    let mut out = json!({});
    if let Some(timeout) = args.dynamic_resources.filter_timeout {
        out["filterTimeout"] = time(timeout).into();
    }
    if let Some(timeout) = args.dynamic_resources.binding_timeout {
        out["bindingTimeout"] = time(timeout).into();
    }
    out
}

fn node_affinity(args: &Args) -> Value {
    match &args.node_affinity.added_affinity {
        Some(affinity) => json!({"addedAffinity": affinity}),
        None => json!({}),
    }
}

fn resources(resources: &[ResourceSpec]) -> Value {
    let spec = |r: &ResourceSpec| json!({"name": r.name, "weight": r.weight});
    resources.iter().map(spec).collect()
}

fn shape(points: &[ShapePoint]) -> Value {
    let point = |p: &ShapePoint| json!({"utilization": p.utilization, "score": p.score});
    points.iter().map(point).collect()
}

fn node_resources_fit(args: &Args) -> Value {
    let fit = &args.node_resources_fit;
    let mut strategy = json!({
        "type": fit.scoring_strategy.kind.name(),
        "resources": resources(&fit.scoring_strategy.resources),
    });
    if let ScoringStrategyType::RequestedToCapacityRatio { shape: points } = &fit.scoring_strategy.kind {
        strategy["requestedToCapacityRatio"] = json!({"shape": shape(points)});
    }
    let mut out = json!({"scoringStrategy": strategy});
    if !fit.ignored_resources.is_empty() {
        out["ignoredResources"] = fit.ignored_resources.clone().into();
    }
    if !fit.ignored_resource_groups.is_empty() {
        out["ignoredResourceGroups"] = fit.ignored_resource_groups.clone().into();
    }
    out
}

fn pod_topology_spread(args: &Args) -> Value {
    let spread = &args.pod_topology_spread;
    let mut out = json!({
        "defaultingType": match spread.defaulting_type {
            DefaultingType::System => "System",
            DefaultingType::List => "List",
        },
    });
    if !spread.default_constraints.is_empty() {
        out["defaultConstraints"] = spread.default_constraints.iter().map(constraint).collect();
    }
    out
}

fn constraint(c: &DefaultConstraint) -> Value {
    let mut out = json!({
        "maxSkew": c.max_skew,
        "topologyKey": c.topology_key,
        "whenUnsatisfiable": c.when_unsatisfiable.name(),
    });
    let optional = [
        ("minDomains", c.min_domains.map(Value::from)),
        ("nodeAffinityPolicy", c.node_affinity_policy.clone().map(Value::from)),
        ("nodeTaintsPolicy", c.node_taints_policy.clone().map(Value::from)),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            out[name] = value;
        }
    }
    if !c.match_label_keys.is_empty() {
        out["matchLabelKeys"] = c.match_label_keys.clone().into();
    }
    out
}

fn volume_binding(args: &Args) -> Value {
    let mut out = json!({"bindTimeoutSeconds": args.volume_binding.bind_timeout.as_secs()});
    if !args.volume_binding.shape.is_empty() {
        out["shape"] = shape(&args.volume_binding.shape);
    }
    out
}

fn extender(e: &Extender) -> Value {
    let mut out = json!({
        "urlPrefix": e.url_prefix,
        "httpTimeout": time(e.http_timeout),
        "enableHTTPS": e.enable_https,
        "nodeCacheCapable": e.node_cache_capable,
        "ignorable": e.ignorable,
    });
    let verbs = [
        ("filterVerb", &e.filter_verb),
        ("preemptVerb", &e.preempt_verb),
        ("prioritizeVerb", &e.prioritize_verb),
        ("bindVerb", &e.bind_verb),
    ];
    for (name, verb) in verbs.into_iter().filter(|(_, verb)| !verb.is_empty()) {
        out[name] = verb.as_str().into();
    }
    if e.weight != 0 {
        out["weight"] = e.weight.into();
    }
    if !e.managed_resources.is_empty() {
        let resource =
            |r: &super::ManagedResource| json!({"name": r.name, "ignoredByScheduler": r.ignored_by_scheduler});
        out["managedResources"] = e.managed_resources.iter().map(resource).collect();
    }
    if let Some(tls) = &e.tls {
        out["tlsConfig"] = tls_config(tls);
    }
    out
}

fn tls_config(tls: &Tls) -> Value {
    let mut out = json!({"insecure": tls.insecure});
    let texts = [
        ("serverName", tls.server_name.clone()),
        ("certFile", tls.cert_file.clone()),
        ("keyFile", tls.key_file.clone()),
        ("caFile", tls.ca_file.clone()),
        ("certData", STANDARD.encode(&tls.cert_data)),
        ("keyData", STANDARD.encode(&tls.key_data)),
        ("caData", STANDARD.encode(&tls.ca_data)),
    ];
    for (name, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
        out[name] = text.into();
    }
    out
}

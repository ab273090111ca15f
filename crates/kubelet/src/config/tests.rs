use std::time::Duration;

use serde_json::json;

use super::*;

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn read(fields: &str) -> Result<Config, Vec<String>> {
    parse(Some(&format!("{HEAD}{fields}")), &[])
}

#[test]
fn defaults_are_kubernetes_own() {
    let config = Config::default();
    assert_eq!((config.port, config.healthz_port, config.max_pods), (10250, 10248, 110));
    assert_eq!(config.node_status_update_frequency, Duration::from_secs(10));
    assert_eq!(config.node_status_report_frequency, Duration::from_secs(300));
    assert_eq!(config.authorization.mode, AuthorizationMode::Webhook);
    assert!(!config.authentication.anonymous.enabled && config.authentication.webhook.enabled);
    assert_eq!(config.eviction_hard["memory.available"], "100Mi");
    assert!(config.serialize_image_pulls);
    assert_eq!(
        config.document["authorization"]["webhook"]["cacheAuthorizedTTL"],
        "5m0s"
    );
    // Zero of what Go keeps without a pointer is as good as nothing; zero of the rest is zero.
    let zeros = read("port: 0\nsyncFrequency: 0s\nhealthzPort: 0\nmaxParallelImagePulls: 3\n").unwrap();
    assert_eq!((zeros.port, zeros.healthz_port), (10250, 0));
    assert_eq!(zeros.sync_frequency, Duration::from_secs(60));
    assert!(!zeros.serialize_image_pulls);
    let quick = read("nodeStatusUpdateFrequency: 4s").unwrap();
    assert_eq!(quick.node_status_report_frequency, Duration::from_secs(4));
}

#[test]
fn flags_win_over_the_file() {
    let flags = [
        ("port", json!(10255)),
        ("authentication.anonymous.enabled", json!(true)),
        ("evictionHard", json!({"memory.available": "5%"})),
    ];
    let text = format!("{HEAD}port: 1\nauthentication: {{webhook: {{enabled: false}}}}\n");
    let config = parse(Some(&text), &flags).unwrap();
    assert_eq!(config.port, 10255);
    assert!(config.authentication.anonymous.enabled && !config.authentication.webhook.enabled);
    assert_eq!(config.eviction_hard.len(), 1);
}

#[test]
fn every_problem_is_named_at_once() {
    let text = "port: 70000\nmaxPods: many\nnoSuch: 1\nauthentication: {anonymous: {enbled: true}}\n\
                syncFrequency: 5\nevictionHard: {disk.available: 10%, memory.available: -1}\n\
                kubeReserved: {cpu: x}\nclusterDNS: [10.0.0.10, ten]\naddress: localhost\n";
    let problems = read(text).err().unwrap();
    let expected = [
        "strict decoding error: unknown field \"noSuch\"",
        "strict decoding error: unknown field \"authentication.anonymous.enbled\"",
        "maxPods: Invalid value: \"many\": must be a 32-bit integer",
        "syncFrequency: Invalid value: 5: must be a duration",
        "kubeReserved[cpu]: Invalid value: \"x\"",
        "invalid configuration: port (--port) 70000 must be between 1 and 65535, inclusive",
        "invalid configuration: address \"localhost\" is not a valid IP address",
    ];
    for wanted in expected {
        assert!(
            problems.iter().any(|p| p.contains(wanted)),
            "{wanted}\nis not in\n{problems:#?}"
        );
    }
    // Whether the parts agree is judged once each can be read.
    let problems = read(
        "imageGCLowThresholdPercent: 90\nclusterDNS: [ten]\nevictionSoft: {pid.available: 10%}\n\
                         evictionHard: {disk.available: 10%, memory.available: 0}\n",
    )
    .err()
    .unwrap();
    let expected = [
        "imageGCLowThresholdPercent (--image-gc-low-threshold) 90 must be less than",
        "clusterDNS \"ten\" is not a valid IP address",
        "unsupported eviction signal disk.available",
        "grace period must be specified for the soft eviction threshold pid.available",
    ];
    for wanted in expected {
        assert!(
            problems.iter().any(|p| p.contains(wanted)),
            "{wanted}\nis not in\n{problems:#?}"
        );
    }
}

#[test]
fn what_is_not_done_here_is_refused() {
    for (text, wanted) in [
        (
            "memoryManagerPolicy: Static\n",
            "memoryManagerPolicy (--memory-manager-policy) Static is not supported here",
        ),
        (
            "topologyManagerPolicyOptions: {prefer-closest-numa-nodes: 'true'}\n",
            "topologyManagerPolicyOptions (--topology-manager-policy-options) option \"prefer-closest-numa-nodes\"",
        ),
        (
            "cpuManagerPolicy: static\ncpuManagerPolicyOptions: {align-by-socket: 'true'}\n",
            "cpuManagerPolicyOptions (--cpu-manager-policy-options) CPU Manager Policy Alpha-level Options not enabled",
        ),
        (
            "cpuManagerPolicyOptions: {full-pcpus-only: 'true'}\n",
            "received unsupported options for the policy \"none\"",
        ),
        (
            "reservedSystemCPUs: 3-1\n",
            "reservedSystemCPUs (--reserved-cpus) \"3-1\" is not a valid CPU range",
        ),
    ] {
        let problems = read(text).err().unwrap().join("\n");
        assert!(problems.contains(wanted), "{text}: {problems}");
    }
    let fine = read("cpuManagerPolicy: static\ncpuManagerPolicyOptions: {full-pcpus-only: 'true'}\n").unwrap();
    assert_eq!(fine.cpu_manager_policy, "static");
}

#[test]
fn what_has_no_effect_is_told() {
    assert_eq!(Config::default().without_effect(), [""; 0]);
    let config = read("rotateCertificates: true\nreadOnlyPort: 10255\ntlsMinVersion: VersionTLS13\n").unwrap();
    assert_eq!(
        config.without_effect(),
        ["readOnlyPort", "rotateCertificates", "tlsMinVersion"]
    );
}

#[test]
fn reservations_need_groups_and_restarts_a_period() {
    let problems = read("enforceNodeAllocatable: [pods, system-reserved, kube-reserved-compressible]\n");
    let problems = problems.err().unwrap().join("\n");
    for wanted in [
        "systemReservedCgroup (--system-reserved-cgroup)",
        "kubeReservedCgroup (--kube-reserved-cgroup)",
    ] {
        assert!(problems.contains(wanted), "{problems}");
    }
    let problems = read("crashLoopBackOff: {maxContainerRestartPeriod: 6m}\n")
        .err()
        .unwrap();
    assert!(
        problems[0].contains("crashLoopBackOff.maxContainerRestartPeriod"),
        "{problems:?}"
    );
    let config = read("crashLoopBackOff: {maxContainerRestartPeriod: 20s}\n").unwrap();
    let period = config.crash_loop_back_off.max_container_restart_period;
    assert_eq!(period, Some(Duration::from_secs(20)));
}

#[test]
fn documents_that_are_none() {
    let cases = [
        ("", "the file is empty"),
        (
            "kind: KubeletConfiguration",
            "apiVersion: must be \"kubelet.config.k8s.io/v1beta1\"",
        ),
        ("apiVersion: v1\nkind: Pod", "kind: unsupported value \"Pod\""),
        ("a: [", "error converting YAML to JSON"),
        ("a: 1\na: 2", "error converting YAML to JSON"),
    ];
    for (text, wanted) in cases {
        let problems = parse(Some(text), &[]).err().unwrap().join("\n");
        assert!(problems.contains(wanted), "{text:?}: {problems}");
    }
}

#[test]
fn thresholds() {
    use Threshold::*;
    let memory = |text| parse_threshold("memory.available", text);
    let reclaim = |text| parse_reclaim("memory.available", text);
    assert!(reclaim("0Mi").is_ok() && reclaim("-1Mi").is_err() && reclaim("0%").is_err());
    assert_eq!(reclaim("100%"), Ok(Threshold::Fraction(1.0)));
    assert_eq!(reclaim("5%"), Ok(Threshold::Fraction(0.05)));
    assert_eq!(
        memory("100Mi"),
        Ok(Some(Quantity(super::Quantity::parse("100Mi").unwrap())))
    );
    assert_eq!(memory("12.5%"), Ok(Some(Fraction(0.125))));
    assert_eq!((memory("0%"), memory("100%")), (Ok(None), Ok(None)));
    for wrong in ["", "-1", "0", "101%", "-1%", "x%", "NaN%"] {
        assert!(memory(wrong).is_err(), "{wrong}");
    }
}

proptest::proptest! {
    /// Whatever a file holds, it is read or refused.
    #[test]
    fn hostile_text_is_refused_not_fatal(text in ".{0,200}", field in "[a-zA-Z]{1,12}", n in proptest::num::i64::ANY, row in 0..super::table::FIELDS.len()) {
        let _ = parse(Some(&text), &[]);
        let _ = read(&text);
        let _ = read(&format!("{field}: {n}"));
        let _ = read(&format!("{}: {n}", super::table::FIELDS[row].name));
    }
}

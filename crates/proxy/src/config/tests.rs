use serde_json::json;

use super::*;

#[test]
fn an_empty_document_has_kubernetes_defaults() {
    let config = Config::default();
    assert_eq!(config.mode, None);
    assert_eq!(config.healthz, Some("0.0.0.0:10256".parse().unwrap()));
    assert_eq!(config.metrics, Some("127.0.0.1:10249".parse().unwrap()));
    assert_eq!(config.iptables.sync, Duration::from_secs(30));
    assert_eq!(config.iptables_marks.masquerade_bit, 14);
    assert_eq!((config.conntrack.max_per_core, config.conntrack.min), (32768, 131072));
    assert_eq!(config.conntrack.tcp_established_timeout, Duration::from_secs(86400));
    assert_eq!(config.conntrack.tcp_close_wait_timeout, Duration::from_secs(3600));
}

#[test]
fn a_kubeadm_document_is_read_whole() {
    let text = "
apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection: {acceptContentTypes: '', burst: 0, contentType: '', kubeconfig: /var/lib/kube-proxy/kubeconfig.conf, qps: 0}
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack: {maxPerCore: null, min: null, tcpBeLiberal: false, tcpCloseWaitTimeout: null, udpTimeout: 0s}
detectLocal: {bridgeInterface: '', interfaceNamePrefix: ''}
detectLocalMode: ''
enableProfiling: false
healthzBindAddress: ''
hostnameOverride: ''
iptables: {localhostNodePorts: null, masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
ipvs: {excludeCIDRs: null, minSyncPeriod: 0s, scheduler: '', strictARP: false, syncPeriod: 0s, tcpFinTimeout: 0s}
kind: KubeProxyConfiguration
logging: {flushFrequency: 0, options: {json: {infoBufferSize: '0'}}, verbosity: 0}
metricsBindAddress: ''
mode: ''
nftables: {masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
nodePortAddresses: null
oomScoreAdj: null
portRange: ''
showHiddenMetricsForVersion: ''
winkernel: {enableDSR: false}
";
    let (config, warnings) = parse(text, &[]).unwrap();
    assert_eq!(warnings, [""; 0]);
    assert_eq!(config.kubeconfig, "/var/lib/kube-proxy/kubeconfig.conf");
    let settings = config.settings(Mode::Iptables, &Node::default(), &[]);
    assert_eq!(
        settings.detect_local,
        DetectLocal::Ranges(vec!["10.244.0.0/16".parse().unwrap()])
    );
    assert_eq!(config.iptables.sync, Duration::from_secs(30));
}

#[test]
fn a_mode_alone_will_do() {
    let (config, warnings) = parse("mode: ipvs", &[]).unwrap();
    assert_eq!((config.mode, warnings.len()), (Some(Mode::Ipvs), 0));
    let (config, _) = parse(
        "mode: ipvs",
        &[("mode", json!("nftables")), ("ipvs.scheduler", json!("lc"))],
    )
    .unwrap();
    assert_eq!(
        (config.mode, &*config.ipvs_settings.scheduler),
        (Some(Mode::Nftables), "lc")
    );
}

#[test]
fn every_problem_is_named() {
    let text = "mode: magic\nbindAddress: here\nhealthzBindAddress: x:y\nclusterCIDR: 10.0.0.0/8,11.0.0.0/8\n\
                iptables: {masqueradeBit: 32, syncPeriod: 1s, minSyncPeriod: 2s}\nipvs: {scheduler: best, tcpTimeout: -1s}\n\
                nodePortAddresses: [primary, 10.0.0.0]\noomScoreAdj: 2000\ndetectLocalMode: BridgeInterface\n\
                conntrack: {maxPerCore: -1, udpTimeout: soon}\n";
    let problems = parse(text, &[]).unwrap_err();
    let fields: Vec<&str> = problems.iter().map(|p| p.split(':').next().unwrap()).collect();
    let want = [
        "mode",
        "bindAddress",
        "healthzBindAddress",
        "nodePortAddresses",
        "nodePortAddresses",
        "iptables.syncPeriod",
        "iptables.masqueradeBit",
        "ipvs.scheduler",
        "ipvs.tcpTimeout",
        "conntrack.maxPerCore",
        "conntrack.udpTimeout",
        "oomScoreAdj",
        "detectLocal.bridgeInterface",
        "clusterCIDR",
    ];
    assert_eq!(fields, want, "{problems:#?}");
}

#[test]
fn what_is_no_configuration_is_refused_and_what_is_odd_is_said() {
    for text in ["kind: Pod", "apiVersion: v1", "- a", "mode: [a]", "a: b: c", "mode: {"] {
        assert!(parse(text, &[]).is_err(), "{text}");
    }
    let (_, warnings) = parse("colour: red\nipvs: {shape: round}", &[]).unwrap();
    assert_eq!(warnings, ["unknown field colour", "unknown field ipvs.shape"]);
    let (config, _) = parse("metricsBindAddress: 0.0.0.0:0\nhealthzBindAddress: '::1'", &[]).unwrap();
    assert_eq!(config.metrics, None);
    assert_eq!(config.healthz, Some("[::1]:10256".parse().unwrap()));
}

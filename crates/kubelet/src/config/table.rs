//! The fields of a KubeletConfiguration: name, type, default. The decoder goes by this table alone.
// Upstream: staging/src/k8s.io/kubelet/config/v1beta1/types.go, pkg/kubelet/apis/config/v1beta1/defaults.go (v1.36)

/// What a field may hold.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Flag,
    Int,
    Long,
    Float,
    Text,
    /// One of these words.
    Word(&'static [&'static str]),
    Duration,
    Quantity,
    Texts,
    Ints,
    /// String to string.
    TextMap,
    /// Names of resources to quantities.
    Quantities,
    FlagMap,
    /// String to list of strings.
    TextsMap,
    Taints,
    Object(&'static [Row]),
    List(&'static [Row]),
    /// Any object: read for other components' sake, and used by none here.
    Opaque,
}

/// The value of a field that is not given.
#[derive(Clone, Copy)]
pub(super) enum Fill {
    Nothing,
    Flag(bool),
    Int(i64),
    Float(f64),
    Text(&'static str),
    Texts(&'static [&'static str]),
    TextMap(&'static [(&'static str, &'static str)]),
}

pub(super) struct Row {
    pub name: &'static str,
    pub kind: Kind,
    pub fill: Fill,
    /// Fields that Go keeps without a pointer: their zero counts as not given.
    pub zero_is_absent: bool,
}

/// Not given stays not given.
const fn plain(name: &'static str, kind: Kind) -> Row {
    with(name, kind, Fill::Nothing)
}

/// Zero is a value like any other.
const fn with(name: &'static str, kind: Kind, fill: Fill) -> Row {
    Row {
        name,
        kind,
        fill,
        zero_is_absent: false,
    }
}

/// Zero counts as not given.
const fn filled(name: &'static str, kind: Kind, fill: Fill) -> Row {
    Row {
        name,
        kind,
        fill,
        zero_is_absent: true,
    }
}

const fn time(name: &'static str, default: &'static str) -> Row {
    filled(name, Kind::Duration, Fill::Text(default))
}

const fn flag(name: &'static str, default: bool) -> Row {
    with(name, Kind::Flag, Fill::Flag(default))
}

const fn text(name: &'static str, default: &'static str) -> Row {
    filled(name, Kind::Text, Fill::Text(default))
}

const fn word(name: &'static str, words: &'static [&'static str], default: &'static str) -> Row {
    filled(name, Kind::Word(words), Fill::Text(default))
}

pub(super) const EVICTION_HARD: &[(&str, &str)] = &[
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

const AUTHENTICATION: &[Row] = &[
    with(
        "x509",
        Kind::Object(&[plain("clientCAFile", Kind::Text)]),
        Fill::Nothing,
    ),
    with(
        "webhook",
        Kind::Object(&[flag("enabled", true), time("cacheTTL", "2m0s")]),
        Fill::Nothing,
    ),
    with("anonymous", Kind::Object(&[flag("enabled", false)]), Fill::Nothing),
];

const AUTHORIZATION: &[Row] = &[
    word("mode", &["AlwaysAllow", "Webhook"], "Webhook"),
    with(
        "webhook",
        Kind::Object(&[time("cacheAuthorizedTTL", "5m0s"), time("cacheUnauthorizedTTL", "30s")]),
        Fill::Nothing,
    ),
];

/// In the order of Kubernetes' reference.
pub(super) const FIELDS: &[Row] = &[
    plain("apiVersion", Kind::Text),
    plain("kind", Kind::Text),
    flag("enableServer", true),
    plain("staticPodPath", Kind::Text),
    text("podLogsDir", "/var/log/pods"),
    time("syncFrequency", "1m0s"),
    time("fileCheckFrequency", "20s"),
    time("httpCheckFrequency", "20s"),
    plain("staticPodURL", Kind::Text),
    plain("staticPodURLHeader", Kind::TextsMap),
    text("address", "0.0.0.0"),
    filled("port", Kind::Int, Fill::Int(10250)),
    with("readOnlyPort", Kind::Int, Fill::Int(0)),
    plain("tlsCertFile", Kind::Text),
    plain("tlsPrivateKeyFile", Kind::Text),
    plain("tlsCipherSuites", Kind::Texts),
    plain("tlsCurvePreferences", Kind::Ints),
    plain("tlsMinVersion", Kind::Text),
    flag("rotateCertificates", false),
    flag("serverTLSBootstrap", false),
    with("authentication", Kind::Object(AUTHENTICATION), Fill::Nothing),
    with("authorization", Kind::Object(AUTHORIZATION), Fill::Nothing),
    with("registryPullQPS", Kind::Int, Fill::Int(5)),
    filled("registryBurst", Kind::Int, Fill::Int(10)),
    word(
        "imagePullCredentialsVerificationPolicy",
        &[
            "NeverVerify",
            "NeverVerifyPreloadedImages",
            "NeverVerifyAllowlistedImages",
            "AlwaysVerify",
        ],
        "NeverVerifyPreloadedImages",
    ),
    plain("preloadedImagesVerificationAllowlist", Kind::Texts),
    with("eventRecordQPS", Kind::Int, Fill::Int(50)),
    filled("eventBurst", Kind::Int, Fill::Int(100)),
    flag("enableDebuggingHandlers", true),
    flag("enableContentionProfiling", false),
    with("healthzPort", Kind::Int, Fill::Int(10248)),
    text("healthzBindAddress", "127.0.0.1"),
    with("oomScoreAdj", Kind::Int, Fill::Int(-999)),
    plain("clusterDomain", Kind::Text),
    plain("clusterDNS", Kind::Texts),
    time("streamingConnectionIdleTimeout", "4h0m0s"),
    time("nodeStatusUpdateFrequency", "10s"),
    time("nodeStatusReportFrequency", "5m0s"),
    filled("nodeLeaseDurationSeconds", Kind::Int, Fill::Int(40)),
    time("imageMinimumGCAge", "2m0s"),
    with("imageMaximumGCAge", Kind::Duration, Fill::Text("0s")),
    with("imageGCHighThresholdPercent", Kind::Int, Fill::Int(85)),
    with("imageGCLowThresholdPercent", Kind::Int, Fill::Int(80)),
    time("volumeStatsAggPeriod", "1m0s"),
    plain("kubeletCgroups", Kind::Text),
    plain("systemCgroups", Kind::Text),
    plain("cgroupRoot", Kind::Text),
    flag("cgroupsPerQOS", true),
    word("cgroupDriver", &["cgroupfs", "systemd"], "cgroupfs"),
    word("cpuManagerPolicy", &["none", "static"], "none"),
    plain("singleProcessOOMKill", Kind::Flag),
    plain("cpuManagerPolicyOptions", Kind::TextMap),
    time("cpuManagerReconcilePeriod", "10s"),
    word("memoryManagerPolicy", &["None", "Static"], "None"),
    word(
        "topologyManagerPolicy",
        &["none", "best-effort", "restricted", "single-numa-node"],
        "none",
    ),
    word("topologyManagerScope", &["container", "pod"], "container"),
    plain("topologyManagerPolicyOptions", Kind::TextMap),
    plain("qosReserved", Kind::TextMap),
    time("runtimeRequestTimeout", "2m0s"),
    word(
        "hairpinMode",
        &["hairpin-veth", "promiscuous-bridge", "none"],
        "promiscuous-bridge",
    ),
    filled("maxPods", Kind::Int, Fill::Int(110)),
    plain("podCIDR", Kind::Text),
    with("podPidsLimit", Kind::Long, Fill::Int(-1)),
    with("resolvConf", Kind::Text, Fill::Text("/etc/resolv.conf")),
    flag("runOnce", false),
    flag("cpuCFSQuota", true),
    with("cpuCFSQuotaPeriod", Kind::Duration, Fill::Text("100ms")),
    with("nodeStatusMaxImages", Kind::Int, Fill::Int(50)),
    filled("maxOpenFiles", Kind::Long, Fill::Int(1_000_000)),
    text("contentType", "application/vnd.kubernetes.protobuf"),
    with("kubeAPIQPS", Kind::Int, Fill::Int(50)),
    filled("kubeAPIBurst", Kind::Int, Fill::Int(100)),
    plain("serializeImagePulls", Kind::Flag),
    plain("maxParallelImagePulls", Kind::Int),
    with("evictionHard", Kind::TextMap, Fill::TextMap(EVICTION_HARD)),
    plain("evictionSoft", Kind::TextMap),
    plain("evictionSoftGracePeriod", Kind::TextMap),
    time("evictionPressureTransitionPeriod", "5m0s"),
    with("evictionMaxPodGracePeriod", Kind::Int, Fill::Int(0)),
    plain("evictionMinimumReclaim", Kind::TextMap),
    flag("mergeDefaultEvictionSettings", false),
    with("podsPerCore", Kind::Int, Fill::Int(0)),
    flag("enableControllerAttachDetach", true),
    flag("protectKernelDefaults", false),
    flag("makeIPTablesUtilChains", true),
    with("iptablesMasqueradeBit", Kind::Int, Fill::Int(14)),
    with("iptablesDropBit", Kind::Int, Fill::Int(15)),
    plain("featureGates", Kind::FlagMap),
    flag("failSwapOn", true),
    with(
        "memorySwap",
        Kind::Object(&[plain("swapBehavior", Kind::Word(&["", "NoSwap", "LimitedSwap"]))]),
        Fill::Nothing,
    ),
    filled("containerLogMaxSize", Kind::Quantity, Fill::Text("10Mi")),
    with("containerLogMaxFiles", Kind::Int, Fill::Int(5)),
    with("containerLogMaxWorkers", Kind::Int, Fill::Int(1)),
    with("containerLogMonitorInterval", Kind::Duration, Fill::Text("10s")),
    word(
        "configMapAndSecretChangeDetectionStrategy",
        &["Get", "Cache", "Watch"],
        "Watch",
    ),
    plain("systemReserved", Kind::Quantities),
    plain("kubeReserved", Kind::Quantities),
    plain("reservedSystemCPUs", Kind::Text),
    plain("showHiddenMetricsForVersion", Kind::Text),
    plain("systemReservedCgroup", Kind::Text),
    plain("kubeReservedCgroup", Kind::Text),
    with("enforceNodeAllocatable", Kind::Texts, Fill::Texts(&["pods"])),
    plain("allowedUnsafeSysctls", Kind::Texts),
    text(
        "volumePluginDir",
        "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/",
    ),
    plain("providerID", Kind::Text),
    flag("kernelMemcgNotification", false),
    plain("logging", Kind::Opaque),
    flag("enableSystemLogHandler", true),
    flag("enableSystemLogQuery", false),
    with("shutdownGracePeriod", Kind::Duration, Fill::Text("0s")),
    with("shutdownGracePeriodCriticalPods", Kind::Duration, Fill::Text("0s")),
    plain(
        "shutdownGracePeriodByPodPriority",
        Kind::List(&[
            with("priority", Kind::Int, Fill::Int(0)),
            with("shutdownGracePeriodSeconds", Kind::Long, Fill::Int(0)),
        ]),
    ),
    with(
        "crashLoopBackOff",
        Kind::Object(&[plain("maxContainerRestartPeriod", Kind::Duration)]),
        Fill::Nothing,
    ),
    plain(
        "reservedMemory",
        Kind::List(&[
            with("numaNode", Kind::Int, Fill::Int(0)),
            plain("limits", Kind::Quantities),
        ]),
    ),
    flag("enableProfilingHandler", true),
    flag("enableDebugFlagsHandler", true),
    flag("seccompDefault", false),
    with("memoryThrottlingFactor", Kind::Float, Fill::Float(0.9)),
    word("memoryReservationPolicy", &["None", "TieredReservation"], "None"),
    plain("registerWithTaints", Kind::Taints),
    flag("registerNode", true),
    plain("tracing", Kind::Opaque),
    flag("localStorageCapacityIsolation", true),
    text("containerRuntimeEndpoint", "unix:///run/containerd/containerd.sock"),
    plain("imageServiceEndpoint", Kind::Text),
    // Differs from upstream, which refuses to start on cgroup v1 by default.
    flag("failCgroupV1", false),
    plain("userNamespaces", Kind::Object(&[plain("idsPerPod", Kind::Long)])),
];

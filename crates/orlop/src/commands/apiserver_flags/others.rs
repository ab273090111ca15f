//! kube-apiserver's flags that `orlop apiserver` does not carry out. Upstream: v1.36, cmd/kube-apiserver/app/options.

use super::super::upstream_flags::Fate::{NoEffect, Refused};
use super::super::upstream_flags::{Fate, Flag, Table};

pub(super) struct ApiServerFlags;

impl Table for ApiServerFlags {
    const FLAGS: &'static [&'static [Flag]] = &[STORAGE, SERVING, NEIGHBOURS, FEATURES, SERVERS, LOGS];
}

const NOT_MEASURED: Fate = NoEffect("etcd serves metrics of its own");
const NO_CACHE: Fate = NoEffect("all reads and watches are served from memory");
const ONE_SERVER: Fate = NoEffect("there is one API server");
const ALWAYS: Fate = NoEffect("it always is so");
const NO_TRACES: Fate = NoEffect("no profiles are served");

const STORAGE: &[Flag] = &[
    Flag::value(
        "etcd-servers-overrides",
        Refused("all kinds are in one store; leave it out"),
    ),
    Flag::value(
        "etcd-count-metric-poll-period",
        NoEffect("objects are counted as they come and go"),
    ),
    Flag::value("etcd-db-metric-poll-interval", NOT_MEASURED),
    Flag::value(
        "lease-reuse-duration-seconds",
        NoEffect("leases are shared for a twentieth of their time, a minute at most"),
    ),
    Flag::value("storage-backend", Refused("the store is the only one; leave it out")).usual(&["", "etcd3"]),
    Flag::value(
        "storage-media-type",
        NoEffect("objects are stored as JSON, and served in any format"),
    ),
    Flag::value(
        "storage-initialization-timeout",
        NoEffect("the store is open before the server listens"),
    ),
    Flag::bool("watch-cache", NO_CACHE).usual(&["true"]),
    Flag::value("watch-cache-sizes", NO_CACHE),
    Flag::value("default-watch-cache-size", NO_CACHE),
    Flag::value(
        "delete-collection-workers",
        NoEffect("the objects of a collection go in one transaction after the other"),
    ),
    Flag::bool(
        "enable-garbage-collector",
        NoEffect("the garbage collector is a controller: see --controllers there"),
    )
    .usual(&["true"]),
];

const SERVING: &[Flag] = &[
    Flag::value("tls-curve-preferences", NoEffect("the client's preference counts")),
    Flag::bool("permit-port-sharing", Refused("a port is not shared; leave it out")),
    Flag::bool("permit-address-sharing", ALWAYS),
    Flag::value("http2-max-streams-per-connection", NoEffect("it is 1000")),
    Flag::bool(
        "disable-http2-serving",
        Refused("HTTP/2 can't be switched off; clients that don't want it use HTTP/1.1"),
    ),
    Flag::value(
        "cors-allowed-origins",
        Refused("no web page of another origin is let in; put a proxy before the server"),
    ),
    Flag::value(
        "strict-transport-security-directives",
        NoEffect("the server never speaks plain HTTP"),
    ),
    Flag::value("goaway-chance", NoEffect("there is one API server: nowhere else to go")).usual(&["0"]),
    Flag::value(
        "max-connection-bytes-per-sec",
        NoEffect("streams are slowed down by their readers alone"),
    )
    .usual(&["0"]),
    Flag::value("livez-grace-period", NoEffect("the server is live once it listens")).usual(&["0", "0s"]),
    Flag::bool(
        "shutdown-send-retry-after",
        NoEffect("requests are served until the server stops"),
    ),
    Flag::value(
        "shutdown-watch-termination-grace-period",
        NoEffect("watches end when the server stops"),
    )
    .usual(&["0", "0s"]),
    Flag::bool(
        "enable-priority-and-fairness",
        NoEffect("requests always have their shares"),
    )
    .usual(&["true"]),
    Flag::value(
        "external-hostname-port",
        Refused("say the whole address with --service-account-jwks-uri"),
    ),
    Flag::value(
        "insecure-port",
        Refused("the server never speaks plain HTTP; leave it out"),
    )
    .usual(&["0"]),
    Flag::value(
        "insecure-bind-address",
        Refused("the server never speaks plain HTTP; leave it out"),
    ),
];

const NEIGHBOURS: &[Flag] = &[
    Flag::value("apiserver-count", ONE_SERVER),
    Flag::value("endpoint-reconciler-type", ONE_SERVER),
    Flag::value("peer-ca-file", ONE_SERVER),
    Flag::value("peer-advertise-ip", ONE_SERVER),
    Flag::value("peer-advertise-port", ONE_SERVER),
    Flag::value(
        "kubernetes-service-node-port",
        Refused("the kubernetes service is of type ClusterIP; make another one of type NodePort"),
    )
    .usual(&["0"]),
    Flag::value(
        "kubelet-preferred-address-types",
        NoEffect("the first address that can be used is"),
    ),
    Flag::value(
        "kubelet-timeout",
        NoEffect("requests to kubelets take as long as --request-timeout"),
    ),
    Flag::value("kubelet-port", NoEffect("nodes say which port is theirs")),
    Flag::value("kubelet-read-only-port", NoEffect("nodes say which port is theirs")),
    Flag::bool(
        "enable-aggregator-routing",
        NoEffect("extension servers are reached where their services lead"),
    ),
    Flag::bool("aggregator-reject-forwarding-redirect", ALWAYS).usual(&["true"]),
    Flag::value(
        "egress-selector-config-file",
        Refused("connections go out directly; leave it out"),
    ),
];

const FEATURES: &[Flag] = &[
    Flag::value(
        "admission-control",
        Refused("it is gone upstream, too; use --enable-admission-plugins and --disable-admission-plugins"),
    ),
    Flag::bool(
        "enable-bootstrap-token-auth",
        NoEffect("bootstrap tokens are always taken"),
    )
    .usual(&["true"]),
    Flag::bool("service-account-lookup", ALWAYS).usual(&["true"]),
    Flag::bool("service-account-extend-token-expiration", ALWAYS).usual(&["true"]),
    Flag::value(
        "service-account-signing-endpoint",
        Refused("tokens are signed here; give a key with --service-account-signing-key-file"),
    ),
    Flag::value("emulated-version", Refused("the version is 1.36")).usual(&["", "1.36", "kube=1.36"]),
    Flag::value("min-compatibility-version", NoEffect("the version is 1.36")),
    Flag::bool("emulation-forward-compatible", NoEffect("the version is 1.36")),
    Flag::bool(
        "runtime-config-emulation-forward-compatible",
        NoEffect("the version is 1.36"),
    ),
    Flag::value(
        "coordinated-leadership-lease-duration",
        NoEffect("there is no coordinated leader election"),
    ),
    Flag::value(
        "coordinated-leadership-renew-deadline",
        NoEffect("there is no coordinated leader election"),
    ),
    Flag::value(
        "coordinated-leadership-retry-period",
        NoEffect("there is no coordinated leader election"),
    ),
];

const SERVERS: &[Flag] = &[
    Flag::bool("profiling", NO_TRACES).usual(&["true", "false"]),
    Flag::bool("contention-profiling", NO_TRACES),
    Flag::value("debug-socket-path", Refused("no profiles are served; leave it out")),
    Flag::value("tracing-config-file", Refused("no traces are sent; leave it out")),
    Flag::value("show-hidden-metrics-for-version", NoEffect("no metrics are hidden")),
    Flag::value(
        "disabled-metrics",
        Refused("metrics can't be switched off; drop them where they are scraped"),
    ),
    Flag::value("allow-metric-labels", NoEffect("labels are not cut")),
    Flag::value("allow-metric-labels-manifest", NoEffect("labels are not cut")),
];

const LOGS: &[Flag] = &[
    Flag::value("vmodule", NoEffect("-v sets what is logged everywhere")),
    Flag::value("log-flush-frequency", NoEffect("lines are written at once")),
    Flag::bool("log-text-split-stream", NoEffect("lines go to standard error")),
    Flag::value("log-text-info-buffer-size", NoEffect("lines are written at once")),
    Flag::bool("log-json-split-stream", NoEffect("lines go to standard error")),
    Flag::value("log-json-info-buffer-size", NoEffect("lines are written at once")),
    Flag::bool("enable-logs-handler", NoEffect("/logs is not served")),
];

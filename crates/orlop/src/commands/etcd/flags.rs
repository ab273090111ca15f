//! etcd's flags that `orlop etcd` does not carry out. Upstream: server/embed/config.go, server/etcdmain (3.6).

use super::super::upstream_flags::Fate::{NoEffect, Refused};
use super::super::upstream_flags::{Flag, Table};

pub(super) struct EtcdFlags;

impl Table for EtcdFlags {
    const FLAGS: &'static [&'static [Flag]] = &[ONE_MEMBER, OTHER_STORAGE, CLIENTS, LOGS, OLD];
}

const NO_PEERS: super::super::upstream_flags::Fate = NoEffect("there are no other members");
const NO_DISCOVERY: super::super::upstream_flags::Fate =
    Refused("a single member has nobody to discover; leave it out");
const OTHER_LOG: super::super::upstream_flags::Fate = NoEffect("the store has a log of its own, shortened by itself");
const NO_TRACES: super::super::upstream_flags::Fate = NoEffect("no traces are sent");

const ONE_MEMBER: &[Flag] = &[
    Flag::value("heartbeat-interval", NO_PEERS),
    Flag::value("election-timeout", NO_PEERS),
    Flag::bool("initial-election-tick-advance", NO_PEERS).usual(&["true", "false"]),
    Flag::bool("pre-vote", NO_PEERS).usual(&["true", "false"]),
    Flag::bool("strict-reconfig-check", NO_PEERS).usual(&["true", "false"]),
    Flag::bool("force-new-cluster", NoEffect("the cluster always is this member alone")),
    Flag::value("max-learners", NO_PEERS),
    Flag::value("raft-read-timeout", NO_PEERS),
    Flag::value("raft-write-timeout", NO_PEERS),
    Flag::value("peer-cert-file", NO_PEERS),
    Flag::value("peer-key-file", NO_PEERS),
    Flag::value("peer-client-cert-file", NO_PEERS),
    Flag::value("peer-client-key-file", NO_PEERS),
    Flag::bool("peer-client-cert-auth", NO_PEERS),
    Flag::value("peer-trusted-ca-file", NO_PEERS),
    Flag::value("peer-cert-allowed-cn", NO_PEERS),
    Flag::value("peer-cert-allowed-hostname", NO_PEERS),
    Flag::bool("peer-auto-tls", NO_PEERS),
    Flag::value("peer-crl-file", NO_PEERS),
    Flag::bool("peer-skip-client-san-verification", NO_PEERS),
    Flag::bool("experimental-peer-skip-client-san-verification", NO_PEERS),
    Flag::value("discovery", NO_DISCOVERY),
    Flag::value("discovery-endpoints", NO_DISCOVERY),
    Flag::value("discovery-token", NO_DISCOVERY),
    Flag::value("discovery-srv", NO_DISCOVERY),
    Flag::value("discovery-srv-name", NO_DISCOVERY),
    Flag::value("discovery-fallback", NO_PEERS),
    Flag::value("discovery-proxy", NO_PEERS),
    Flag::value("discovery-dial-timeout", NO_PEERS),
    Flag::value("discovery-request-timeout", NO_PEERS),
    Flag::value("discovery-keepalive-time", NO_PEERS),
    Flag::value("discovery-keepalive-timeout", NO_PEERS),
    Flag::bool("discovery-insecure-transport", NO_PEERS).usual(&["true", "false"]),
    Flag::bool("discovery-insecure-skip-tls-verify", NO_PEERS),
    Flag::value("discovery-cert", NO_PEERS),
    Flag::value("discovery-key", NO_PEERS),
    Flag::value("discovery-cacert", NO_PEERS),
    Flag::value("discovery-user", NO_PEERS),
    Flag::value("discovery-password", NO_PEERS),
];

const OTHER_STORAGE: &[Flag] = &[
    Flag::value(
        "wal-dir",
        Refused("the log is in the data directory; say with --data-dir where that is"),
    ),
    Flag::value("snapshot-count", OTHER_LOG),
    Flag::value("max-snapshots", OTHER_LOG),
    Flag::value("max-wals", OTHER_LOG),
    Flag::value("snapshot-catchup-entries", OTHER_LOG),
    Flag::value("experimental-snapshot-catchup-entries", OTHER_LOG),
    Flag::value("backend-bbolt-freelist-type", OTHER_LOG),
    Flag::value("backend-batch-interval", OTHER_LOG),
    Flag::value("backend-batch-limit", OTHER_LOG),
    Flag::value("bootstrap-defrag-threshold-megabytes", OTHER_LOG),
    Flag::value("experimental-bootstrap-defrag-threshold-megabytes", OTHER_LOG),
    Flag::bool("experimental-stop-grpc-service-on-defrag", OTHER_LOG),
    Flag::value("compaction-batch-limit", OTHER_LOG),
    Flag::value("experimental-compaction-batch-limit", OTHER_LOG),
    Flag::value("compaction-sleep-interval", OTHER_LOG),
    Flag::value("experimental-compaction-sleep-interval", OTHER_LOG),
    Flag::bool(
        "experimental-initial-corrupt-check",
        NoEffect("checksums are always checked"),
    ),
    Flag::value("corrupt-check-time", NO_PEERS),
    Flag::value("experimental-corrupt-check-time", NO_PEERS),
    Flag::value("compact-hash-check-time", NO_PEERS),
    Flag::bool("experimental-compact-hash-check-enabled", NO_PEERS),
    Flag::value("experimental-compact-hash-check-time", NO_PEERS),
    Flag::bool("experimental-enable-lease-checkpoint", NO_PEERS),
    Flag::bool("experimental-enable-lease-checkpoint-persist", NO_PEERS),
    Flag::bool("memory-mlock", NoEffect("memory is not locked")),
    Flag::bool("experimental-memory-mlock", NoEffect("memory is not locked")),
    Flag::bool("experimental-txn-mode-write-with-shared-buffer", OTHER_LOG).usual(&["true", "false"]),
    Flag::value("downgrade-check-time", NoEffect("there is no version to downgrade to")),
    Flag::value(
        "experimental-downgrade-check-time",
        NoEffect("there is no version to downgrade to"),
    ),
    Flag::value("feature-gates", NoEffect("nothing that they switch is here")),
];

const CLIENTS: &[Flag] = &[
    Flag::value(
        "config-file",
        Refused("a file of settings can't be read; give them as flags or as ETCD_… variables"),
    ),
    Flag::bool(
        "auto-tls",
        Refused("certificates are not made; give some with --cert-file and --key-file"),
    ),
    Flag::value("self-signed-cert-validity", NoEffect("certificates are not made")),
    Flag::value(
        "client-crl-file",
        Refused("lists of revoked certificates can't be checked; sign clients with another authority"),
    ),
    Flag::value(
        "client-cert-allowed-hostname",
        Refused("names of clients can't be checked; sign those that may come in with an authority of their own"),
    ),
    Flag::value("client-cert-file", NoEffect("the member makes no connection to itself")),
    Flag::value("client-key-file", NoEffect("the member makes no connection to itself")),
    Flag::value(
        "cipher-suites",
        NoEffect("TLS 1.2 and 1.3 with suites that are safe are on"),
    ),
    Flag::value(
        "tls-min-version",
        Refused("TLS 1.2 is the oldest, and 1.3 can't be demanded; leave it out"),
    )
    .usual(&["", "TLS1.2"]),
    Flag::value(
        "tls-max-version",
        Refused("TLS 1.3 can't be switched off; leave it out"),
    )
    .usual(&["", "TLS1.3"]),
    Flag::value("cors", NoEffect("there is no JSON gateway for browsers")),
    Flag::value("host-whitelist", NoEffect("there is no JSON gateway for browsers")),
    Flag::bool("enable-grpc-gateway", NoEffect("there is no JSON gateway: use gRPC")).usual(&["true", "false"]),
    Flag::value(
        "listen-client-http-urls",
        Refused("HTTP is served where gRPC is, on --listen-client-urls; leave it out"),
    ),
    Flag::value(
        "auth-token",
        NoEffect("there are no users; --client-cert-auth keeps strangers out"),
    ),
    Flag::value("auth-token-ttl", NoEffect("there are no users")),
    Flag::value("bcrypt-cost", NoEffect("there are no users")),
    Flag::value("max-concurrent-streams", NoEffect("it is 100000")),
    Flag::value(
        "grpc-keepalive-min-time",
        NoEffect("clients may ping as often as they like"),
    ),
    Flag::value("grpc-keepalive-interval", NoEffect("clients ping, the member does not")),
    Flag::value("grpc-keepalive-timeout", NoEffect("clients ping, the member does not")),
    Flag::bool("socket-reuse-port", NoEffect("ports are not shared")),
    Flag::bool("socket-reuse-address", NoEffect("addresses can be used again at once")),
];

const LOGS: &[Flag] = &[
    Flag::value("log-level", NoEffect("-v sets what is logged")),
    Flag::value("log-outputs", NoEffect("lines go to standard error")).usual(&["default", "stderr"]),
    Flag::value("logger", NoEffect("lines are text, or with --log-format=json JSON")).usual(&["zap"]),
    Flag::bool("enable-log-rotation", NoEffect("lines go to standard error")),
    Flag::value("log-rotation-config-json", NoEffect("lines go to standard error")),
    Flag::bool("enable-pprof", NoEffect("there are no profiles to serve")),
    Flag::value("metrics", NoEffect("there is one set of metrics")).usual(&["basic", "extensive"]),
    Flag::value("warning-apply-duration", NoEffect("slow requests are not logged")),
    Flag::value(
        "experimental-warning-apply-duration",
        NoEffect("slow requests are not logged"),
    ),
    Flag::value(
        "warning-unary-request-duration",
        NoEffect("slow requests are not logged"),
    ),
    Flag::value(
        "experimental-warning-unary-request-duration",
        NoEffect("slow requests are not logged"),
    ),
    Flag::bool("enable-distributed-tracing", NO_TRACES),
    Flag::value("distributed-tracing-address", NO_TRACES),
    Flag::value("distributed-tracing-service-name", NO_TRACES),
    Flag::value("distributed-tracing-instance-id", NO_TRACES),
    Flag::value("distributed-tracing-sampling-rate", NO_TRACES),
    Flag::bool("experimental-enable-distributed-tracing", NO_TRACES),
    Flag::value("experimental-distributed-tracing-address", NO_TRACES),
    Flag::value("experimental-distributed-tracing-service-name", NO_TRACES),
    Flag::value("experimental-distributed-tracing-instance-id", NO_TRACES),
    Flag::value("experimental-distributed-tracing-sampling-rate", NO_TRACES),
];

const OLD: &[Flag] = &[
    Flag::value("v2-deprecation", NoEffect("the v2 API is not there")),
    Flag::bool("enable-v2", Refused("the v2 API is not there; use v3")),
];

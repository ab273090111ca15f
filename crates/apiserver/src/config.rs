//! How an API server is set up. Plain values, valid once built; words (flags, files) become these at the edge.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use ipnet::IpNet;

/// An etcd that holds the state, maybe of several servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdConfig {
    /// URLs of members.
    pub servers: Vec<String>,
    /// What all keys begin with.
    pub prefix: String,
    /// Who vouches for members.
    pub authority: Option<PathBuf>,
    /// Who we are to them.
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// Zero: somebody else compacts its history.
    pub compaction_interval: std::time::Duration,
}

impl EtcdConfig {
    pub fn new(servers: Vec<String>) -> EtcdConfig {
        EtcdConfig {
            servers,
            prefix: "/registry".to_string(),
            authority: None,
            certificate: None,
            key: None,
            compaction_interval: std::time::Duration::from_secs(300),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Config {
    pub data_dir: PathBuf,
    /// None: the state is in the data directory.
    pub etcd: Option<EtcdConfig>,
    pub bind: IpAddr,
    pub port: u16,
    /// Where others reach the server; found out at the start if it is not said.
    pub advertise: Option<IpAddr>,
    /// Names and addresses under which clients may know the server, beside the usual ones.
    pub extra_names: Vec<String>,
    /// The ranges of service addresses, the primary family first. Never empty.
    pub service_cidrs: Vec<IpNet>,
    /// First and last node port.
    pub node_ports: (u16, u16),
    /// Where tokens say they come from.
    pub issuer: String,
    /// Whose tokens are taken too.
    pub other_issuers: Vec<String>,
    /// Where others find the keys of tokens, if not here.
    pub jwks_uri: Option<String>,
    /// Keys and certificates that the user brings.
    pub keys: crate::key_files::KeyFiles,
    pub tls: crate::pki::TlsOptions,
    /// How long service account tokens last at most.
    pub max_token_expiration: Option<std::time::Duration>,
    pub admission: crate::admission::Switches,
    /// Whom tokens are for unless asked otherwise.
    pub api_audiences: Vec<String>,
    /// How many connections, and for how long.
    pub connections: orlop_base::Limits,
    /// Those of the cluster's own components come on top of these.
    pub max_mutating_in_flight: usize,
    pub max_readonly_in_flight: usize,
    /// Requests other than watches and the like must be done after this long.
    pub request_timeout: std::time::Duration,
    pub max_body_bytes: usize,
    /// One JSON line a request, if set: `audit` then says nothing.
    pub audit_log: Option<PathBuf>,
    pub audit: crate::audit::AuditOptions,
    /// Who is let in beside those with certificates and tokens of the cluster's own.
    pub authentication: crate::authn::AuthenticationOptions,
    pub authorization: crate::authz::AuthorizationOptions,
    /// An EncryptionConfiguration: which resources are encrypted at rest.
    pub encryption_file: Option<PathBuf>,
    /// Events are forgotten after this long.
    pub event_ttl: std::time::Duration,
    /// How many past changes watchers and lists in pages can go back to.
    pub history_events: usize,
    /// How far back in time they can go.
    pub history_age: std::time::Duration,
    /// A write that waits longer for the store fails the `etcd` check, or the `etcd-readiness` check.
    pub store_healthcheck_timeout: std::time::Duration,
    pub store_readycheck_timeout: std::time::Duration,
    /// Watches that say nothing of how long they last do so for this long at least.
    pub min_request_timeout: std::time::Duration,
    /// How long the server that is to stop goes on serving with a failing `/readyz`, for load balancers to notice.
    pub shutdown_delay: std::time::Duration,
}

impl Config {
    pub fn new(data_dir: PathBuf) -> Config {
        let history = orlop_store::Options::default();
        let issuer = "https://kubernetes.default.svc.cluster.local".to_string();
        Config {
            data_dir,
            etcd: None,
            bind: IpAddr::from([127, 0, 0, 1]),
            port: 6443,
            advertise: None,
            extra_names: vec![],
            service_cidrs: vec!["10.96.0.0/12".parse().expect("a constant range")],
            node_ports: (30000, 32767),
            api_audiences: vec![issuer.clone()],
            issuer,
            other_issuers: vec![],
            jwks_uri: None,
            keys: Default::default(),
            tls: Default::default(),
            max_token_expiration: None,
            admission: Default::default(),
            connections: crate::serve::limits(),
            max_mutating_in_flight: 200,
            max_readonly_in_flight: 400,
            request_timeout: std::time::Duration::from_secs(60),
            max_body_bytes: 3 * 1024 * 1024,
            audit_log: None,
            audit: Default::default(),
            authentication: Default::default(),
            authorization: Default::default(),
            encryption_file: None,
            event_ttl: std::time::Duration::from_secs(3600),
            history_events: history.history_events,
            history_age: history.history_age,
            // Upstream: --etcd-healthcheck-timeout and --etcd-readycheck-timeout
            store_healthcheck_timeout: std::time::Duration::from_secs(2),
            store_readycheck_timeout: std::time::Duration::from_secs(2),
            // Upstream: --min-request-timeout
            min_request_timeout: std::time::Duration::from_secs(1800),
            shutdown_delay: std::time::Duration::ZERO,
        }
    }

    /// Where the server says it is, address and port: what it was told to say, or where it listens. One that listens on all
    /// addresses names one that others can reach.
    pub fn external_address(&self) -> String {
        let ip = match self.advertise {
            Some(ip) => ip,
            None if self.bind.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
            None => self.bind,
        };
        SocketAddr::new(ip, self.port).to_string()
    }

    /// The address of the `kubernetes` service: the first of the primary range.
    pub fn kubernetes_address(&self) -> IpAddr {
        self.service_address(1)
    }

    /// The n-th address of the primary service range.
    pub fn service_address(&self, n: u32) -> IpAddr {
        match self.service_cidrs[0].network() {
            IpAddr::V4(base) => std::net::Ipv4Addr::from(u32::from(base) + n).into(),
            IpAddr::V6(base) => std::net::Ipv6Addr::from(u128::from(base) + u128::from(n)).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_names_an_address_that_others_reach() {
        for (bind, advertise, wanted) in [
            ("0.0.0.0", Some("192.0.2.7"), "192.0.2.7:6443"),
            ("::", Some("2001:db8::7"), "[2001:db8::7]:6443"),
            ("0.0.0.0", None, "127.0.0.1:6443"),
            ("::", None, "127.0.0.1:6443"),
            ("192.0.2.8", None, "192.0.2.8:6443"),
            ("192.0.2.8", Some("192.0.2.7"), "192.0.2.7:6443"),
            ("127.0.0.1", None, "127.0.0.1:6443"),
            ("fd00::1", None, "[fd00::1]:6443"),
        ] {
            let config = Config {
                bind: bind.parse().unwrap(),
                advertise: advertise.map(|ip| ip.parse().unwrap()),
                ..Config::new("/nowhere".into())
            };
            assert_eq!(config.external_address(), wanted, "{bind} {advertise:?}");
        }
    }
}

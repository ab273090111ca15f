//! Bringing an API server up: store, keys, default objects, listener.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use orlop_api::Status;
use orlop_base::supervisor::Start;
use orlop_base::{BoxFuture, clock::rfc3339};
use orlop_base::{Clock, Connections, Shutdown, join_all};
use orlop_store::Store;
use orlop_x509::ClientAuthority;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::aggregator::{self, Aggregator};
use crate::audit::{AuditError, AuditLog};
use crate::authn::{AuthenticationError, Authenticator, RequestHeaderOptions, day};
use crate::authz::{AuthorizationError, Authorizer};
use crate::chain::Server;
use crate::config::Config;
use crate::connect::Nodes;
use crate::encryption::{Encryption, EncryptionError};
use crate::flowcontrol::{self, FlowControl};
use crate::health::FOLLOWERS;
use crate::internal::Internal;
use crate::key_files::{KeyFileError, token_issuer};
use crate::object::Object;
use crate::pki::{Pki, PkiError};
use crate::registry::{Registry, services};
use crate::storage::{self, EtcdTlsError, servers};
use crate::{bootstrap, housekeeping, kinds, serve};

/// How long a start waits for the server's own loops to have begun.
const FOLLOWED: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("failed to use the data directory {path}")]
    DataDir { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Store(#[from] orlop_store::OpenError),
    #[error("failed to set up the cluster\'s keys and certificates")]
    Pki(#[from] PkiError),
    #[error(transparent)]
    KeyFiles(#[from] KeyFileError),
    #[error("can't listen on {address}; is another server running there? Choose another with --port")]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
    #[error("failed to set up authentication")]
    Authentication(#[from] AuthenticationError),
    #[error("failed to set up authorization")]
    Authorization(#[from] AuthorizationError),
    #[error("failed to set up TLS with etcd")]
    EtcdTls(#[from] EtcdTlsError),
    #[error("failed to set up encryption at rest")]
    Encryption(#[from] EncryptionError),
    #[error("failed to set up auditing")]
    Audit(#[from] AuditError),
    #[error("failed to create a default object")]
    Bootstrap(#[source] Status),
}

/// A running API server.
pub struct Running {
    pub server: Arc<Server>,
    pub address: SocketAddr,
    pub pki: Arc<Pki>,
    tasks: Vec<JoinHandle<()>>,
}

impl Running {
    /// `/readyz` fails from now on, so that load balancers send nothing more. The server goes on for as long as it was
    /// configured to.
    // Upstream: --shutdown-delay-duration
    pub async fn announce_stop(&self) {
        self.server.health.stopping.store(true, Ordering::Release);
        servers::leave(&self.server).await;
        tokio::time::sleep(self.server.registry.config.shutdown_delay).await;
    }

    /// Stops taking requests, lets those under way finish, and closes the store.
    pub async fn stop(self) {
        if !self.server.health.stopping.swap(true, Ordering::AcqRel) {
            servers::leave(&self.server).await;
        }
        self.server.shutdown.trigger();
        for task in self.tasks {
            let _ = task.await;
        }
        if let Some(audit) = &self.server.audit {
            audit.close().await;
        }
        self.server.registry.store.close().await;
    }
}

/// Opens the store, and listens.
pub fn start(config: Config, clock: Clock) -> BoxFuture<'static, Result<Running, StartError>> {
    Box::pin(bring_up(config, clock))
}

async fn bring_up(mut config: Config, clock: Clock) -> Result<Running, StartError> {
    let data_dir = config.data_dir.clone();
    create_private_dir(&data_dir).map_err(|source| StartError::DataDir {
        path: data_dir.clone(),
        source,
    })?;
    let options = orlop_store::Options {
        clock: clock.clone(),
        history_events: config.history_events,
        history_age: config.history_age,
        ..Default::default()
    };
    let encryption = match &config.encryption_file {
        Some(path) => Some(Arc::new(Encryption::load(path, &clock).await?)),
        None => None,
    };
    let store = storage::open(&config, options, encryption.clone()).await?;

    let address = SocketAddr::new(config.bind, config.port);
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| StartError::Listen { address, source })?;
    let address = listener
        .local_addr()
        .map_err(|source| StartError::Listen { address, source })?;
    config.port = address.port();
    // Where it listens on one address alone, that is where it is, unless it was said otherwise.
    if config.bind.is_unspecified() {
        config.advertise = advertised(&config);
    }

    let mut pki = Pki::load_or_create(&data_dir.join("pki"), &server_names(&config), clock.now())?;
    config.keys.replace_in(&mut pki)?;
    let issuer = token_issuer(&config, &pki)?;
    let clients = pki.client_authority()?;
    let proxies = config.authentication.request_header.as_ref();
    let proxies = proxies.map_or(pki.front_proxy_ca.certificate.clone(), |own| {
        own.client_authority.clone()
    });
    // The handshake names the authorities of both, so that clients know which certificate to show.
    let shown = ClientAuthority::from_pem(&format!("{}\n{proxies}", pki.client_authorities)).map_err(PkiError::from)?;
    let tls = pki.server_tls_config(&config.tls, &shown)?;
    let authenticator = Authenticator::new(Arc::new(issuer))
        .with_client_authority(clients)
        .with_options(&config.authentication, &pki.front_proxy_ca.certificate)?;
    authenticator.prepare();
    let authorizer = Authorizer::new(&config.authorization)?;
    let audit = match &config.audit_log {
        None => AuditLog::open(&config.audit, &clock)?,
        Some(path) => Some(AuditLog::to_file(path, &clock)?),
    };
    let audit = audit.map(Arc::new);
    let connections = config.connections;
    let seats = config.max_mutating_in_flight + config.max_readonly_in_flight;
    let flow_control = FlowControl::new(seats, config.request_timeout);
    let registry = Arc::new(Registry::new(store, clock, config, authorizer, authenticator));
    if let Some(encryption) = &encryption {
        let registry = Arc::downgrade(&registry);
        encryption.set_key_source(Box::new(move || {
            registry.upgrade().map_or(vec![], |r| all_keys(&r.store))
        }));
    }
    crate::custom::load(&registry);
    let server = Arc::new(Server {
        registry,
        encryption,
        nodes: Nodes::new(&pki)?,
        aggregator: Aggregator::new(&pki.front_proxy_client)?,
        usage: Default::default(),
        health: Default::default(),
        metrics: Default::default(),
        audit,
        connections: Connections::new(connections),
        shares: Default::default(),
        flow_control,
        shutdown: Shutdown::default(),
    });
    // What the server itself needs to start must not depend on webhooks that may only run once it has.
    let dynamic = &server.registry.dynamic_admission;
    dynamic.pause();
    create_defaults(&server, &pki).await.map_err(StartError::Bootstrap)?;
    dynamic.resume();
    server.health.bootstrapped.store(true, Ordering::Release);
    // What was given to others before is not answered here, not even at first.
    server.aggregator.reload(&*server.registry);
    server.flow_control.reload(&*server.registry);
    let housekeeping = supervise(&server, "housekeeping", keep_house(&server, &pki));
    let following = tokio::spawn(follow_configuration(server.clone()));
    // Whoever finds the server up finds it ready, too.
    let followed = async {
        while server.health.following.load(Ordering::Acquire) < FOLLOWERS {
            tokio::task::yield_now().await;
        }
    };
    let _ = tokio::time::timeout(FOLLOWED, followed).await;
    let serving = supervise(&server, "serving", accept_connections(&server, listener, tls, address)?);
    tracing::info!(%address, version = crate::discovery::GIT_VERSION, "started API server");
    let tasks = vec![housekeeping, serving, following];
    Ok(Running {
        server,
        address,
        pki: Arc::new(pki),
        tasks,
    })
}

fn all_keys(store: &Store<Object>) -> Vec<Arc<str>> {
    let page = store.range(orlop_store::RangeQuery::default(), &mut |_| true);
    page.map_or(vec![], |page| page.items.into_iter().map(|item| item.key).collect())
}

/// A loop of the server's own: restarted if it panics, until the server stops.
fn supervise(server: &Arc<Server>, name: &'static str, start: Start) -> JoinHandle<()> {
    let components = &server.health.components;
    components.add(
        name,
        true,
        server.shutdown.clone(),
        server.registry.clock.clone(),
        start,
    )
}

fn keep_house(server: &Arc<Server>, pki: &Pki) -> Start {
    let (server, ca) = (server.clone(), pki.server_authorities.clone());
    Box::new(move |shutdown| {
        let run = housekeeping::run(server.clone(), ca.clone());
        let (aggregator, flow_control) = (aggregator::run(server.clone()), flowcontrol::run(server.clone()));
        let server = server.clone();
        let servers = async move {
            if server.registry.store.is_shared() {
                servers::run(server).await;
            }
        };
        let run = async move { tokio::join!(run, aggregator, flow_control, servers) };
        Box::pin(async move {
            tokio::select! {
                _ = run => {}
                _ = shutdown.wait() => {}
            }
            Ok(())
        })
    })
}

/// Reads configuration files again as they change, until the server stops.
async fn follow_configuration(server: Arc<Server>) {
    let (registry, shutdown) = (server.registry.clone(), server.shutdown.clone());
    let clock = registry.clock.clone();
    let authentication = Authenticator::follow(registry.clone(), clock.clone(), shutdown.clone());
    let authorization = Authorizer::follow(registry, clock.clone(), shutdown.clone());
    let encryption = async {
        if let Some(encryption) = server.encryption.clone() {
            encryption.follow(clock.clone(), shutdown.clone()).await;
        }
    };
    tokio::join!(authentication, authorization, encryption);
}

/// The socket is kept, so that clients wait while the loop is started anew and are not refused.
fn accept_connections(
    server: &Arc<Server>,
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    address: SocketAddr,
) -> Result<Start, StartError> {
    let failed = |source| StartError::Listen { address, source };
    let (server, listener) = (server.clone(), listener.into_std().map_err(failed)?);
    Ok(Box::new(move |shutdown| {
        let listener = listener.try_clone().and_then(TcpListener::from_std);
        let (server, tls) = (server.clone(), tls.clone());
        Box::pin(async move {
            let stopped_alone = async {
                shutdown.wait().await;
                // When the whole server stops, requests under way may finish.
                if server.shutdown.is_triggered() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                _ = serve::serve(server.clone(), listener.map_err(|e| e.to_string())?, tls) => {}
                _ = stopped_alone => {}
            }
            Ok(())
        })
    }))
}

fn create_private_dir(path: &std::path::Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Names and addresses the server's certificate must hold.
fn server_names(config: &Config) -> Vec<String> {
    let mut names: Vec<String> = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"]
        .iter()
        .chain(&["kubernetes.default.svc.cluster.local", "localhost", "127.0.0.1", "::1"])
        .map(|n| n.to_string())
        .collect();
    names.push(config.kubernetes_address().to_string());
    if !config.bind.is_unspecified() {
        names.push(config.bind.to_string());
    }
    names.extend(advertised(config).map(|ip| ip.to_string()));
    names.extend(
        nix::unistd::gethostname()
            .ok()
            .and_then(|n| n.into_string().ok())
            .filter(|n| !n.is_empty()),
    );
    names.extend(config.extra_names.iter().cloned());
    names.sort();
    names.dedup();
    names
}

/// The address under which others reach this server: the one it was told, the one it binds to, or this machine's outward
/// one.
pub(crate) fn advertised(config: &Config) -> Option<IpAddr> {
    let told = config.advertise.filter(|ip| !ip.is_unspecified());
    if told.is_some() {
        return told;
    }
    if !config.bind.is_unspecified() && !config.bind.is_loopback() {
        return Some(config.bind);
    }
    outward("0.0.0.0:0", "192.0.2.1:9").or_else(|| outward("[::]:0", "[2001:db8::1]:9"))
}

/// Choosing a route sends nothing: a datagram socket only looks up which address it would use.
fn outward(from: &str, to: &str) -> Option<IpAddr> {
    let socket = UdpSocket::bind(from).ok()?;
    socket.connect(to).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

/// Everything a fresh cluster has. What is there already stays, but for what only this process knows.
async fn create_defaults(server: &Arc<Server>, pki: &Pki) -> Result<(), Status> {
    let internal = Internal::new(server.registry.clone());
    let config = &server.registry.config;
    let core = |plural: &str| kinds::of_resource("", "v1", plural).expect("a core kind");
    // Namespaces first: everything in them needs them.
    let namespaces = ["default", "kube-system", "kube-public", "kube-node-lease"].map(|name| {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        internal.ensure(core("namespaces"), object)
    });
    for result in join_all(namespaces).await {
        result?;
    }
    // The rest in one go, so that one wait for the disk serves many.
    let objects = bootstrap::default_objects(server.registry.now())
        .into_iter()
        .map(|(resource, object)| {
            let kind = kinds::of_stored(resource).expect("default objects are of built-in kinds");
            internal.ensure(kind, object)
        });
    for result in join_all(objects).await {
        result?;
    }
    let of_cluster = RequestHeaderOptions::of_cluster(&pki.front_proxy_ca.certificate);
    let proxies = config.authentication.request_header.as_ref().unwrap_or(&of_cluster);
    let list = |names: &[String]| json!(names).to_string();
    let authentication = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"},
        "data": {
            "client-ca-file": pki.client_authorities,
            "requestheader-allowed-names": list(&proxies.allowed_names),
            "requestheader-client-ca-file": proxies.client_authority,
            "requestheader-extra-headers-prefix": list(&proxies.extra_prefixes),
            "requestheader-group-headers": list(&proxies.group_headers),
            "requestheader-uid-headers": list(&proxies.uid_headers),
            "requestheader-username-headers": list(&proxies.username_headers),
        },
    });
    internal
        .ensure_members(core("configmaps"), authentication, &["data"])
        .await?;
    // Since when the use of legacy tokens is recorded.
    let tracking = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "kube-apiserver-legacy-service-account-token-tracking", "namespace": "kube-system"},
        "data": {"since": day(server.registry.now())},
    });
    internal.ensure(core("configmaps"), tracking).await?;
    let ranges: Vec<String> = config.service_cidrs.iter().map(|r| r.to_string()).collect();
    let range = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": ranges},
        "status": {"conditions": [{
            "type": "Ready", "status": "True", "lastTransitionTime": rfc3339(server.registry.now()), "reason": "",
            "message": "Kubernetes default Service CIDR is ready",
        }]},
    });
    internal
        .ensure(
            kinds::of_stored("servicecidrs.networking.k8s.io").expect("a built-in kind"),
            range,
        )
        .await?;
    services::repair(&server.registry).await?;
    kubernetes_service(&server.registry, internal).await
}

/// The service under which pods find this server.
async fn kubernetes_service(registry: &Registry, internal: Internal) -> Result<(), Status> {
    let config = &registry.config;
    let core = |plural: &str| kinds::of_resource("", "v1", plural).expect("a core kind");
    let metadata = json!({
        "name": "kubernetes", "namespace": "default",
        "labels": {"component": "apiserver", "provider": "kubernetes"},
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata,
        "spec": {
            "clusterIP": config.kubernetes_address().to_string(), "type": "ClusterIP", "sessionAffinity": "None",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": config.port}],
        },
    });
    internal.ensure_members(core("services"), service, &["spec"]).await?;
    let Some(address) = advertised(config) else {
        tracing::warn!("found no address but loopback; the kubernetes service has no endpoints");
        return Ok(());
    };
    match registry.store.is_shared() {
        true => servers::join(registry, &internal, address).await,
        false => servers::write_endpoints(registry, &internal, &[address].into()).await,
    }
}

//! A driver for tests: remembers what it was asked, and mounts plain directories where it may.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use prost::Message;
use tokio::net::UnixListener;
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

use super::super::mount_table;
use super::messages::*;

#[derive(Clone)]
pub(super) struct FakeDriver {
    state: Arc<Mutex<State>>,
    /// What the volume holds.
    pub data: PathBuf,
}

#[derive(Default)]
struct State {
    calls: Vec<String>,
    published: Option<NodePublishVolume>,
    expanded: Option<NodeExpandVolume>,
    failing: Option<(String, Code)>,
    expands: bool,
    registered: Option<RegistrationStatus>,
}

impl FakeDriver {
    pub(super) fn new(data: &Path) -> FakeDriver {
        fs::create_dir_all(data).unwrap();
        FakeDriver {
            state: Arc::default(),
            data: data.to_path_buf(),
        }
    }

    /// Serves registration and the driver itself on one socket.
    pub(super) fn serve(&self, socket: &Path) -> tokio::task::JoinHandle<()> {
        fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let listener = UnixListener::bind(socket).unwrap();
        let driver = self.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let driver = driver.clone();
                tokio::spawn(async move {
                    let service = hyper::service::service_fn(move |request| {
                        let driver = driver.clone();
                        async move { Ok::<_, std::convert::Infallible>(driver.answer(request).await) }
                    });
                    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        })
    }

    /// Names of the calls so far, without questions; forgets them.
    pub(super) fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().calls)
    }

    pub(super) fn published(&self) -> NodePublishVolume {
        self.state.lock().published.clone().unwrap()
    }

    /// The last wish for more room.
    pub(super) fn expanded(&self) -> NodeExpandVolume {
        self.state.lock().expanded.clone().unwrap()
    }

    /// From now on it has a part in letting volumes grow.
    pub(super) fn set_expands(&self) {
        self.state.lock().expands = true;
    }

    pub(super) fn registered(&self) -> Option<RegistrationStatus> {
        self.state.lock().registered.clone()
    }

    /// From now on this call fails.
    pub(super) fn fail(&self, call: &str) {
        self.fail_with(call, Code::Internal);
    }

    pub(super) fn fail_with(&self, call: &str, code: Code) {
        self.state.lock().failing = Some((call.to_string(), code));
    }

    async fn answer(&self, request: http::Request<hyper::body::Incoming>) -> http::Response<tonic::body::Body> {
        let path = request.uri().path().to_string();
        match path.rsplit('/').next().unwrap() {
            "GetInfo" => self.with(request, |_, _: Empty| Ok(info())).await,
            "NotifyRegistrationStatus" => {
                let done = |driver: &FakeDriver, status: RegistrationStatus| {
                    driver.state.lock().registered = Some(status);
                    Ok(Empty {})
                };
                self.with(request, done).await
            }
            "NodeGetInfo" => self.with(request, |_, _: Empty| Ok(node_info())).await,
            "NodeGetCapabilities" => {
                self.with(request, |driver, _: Empty| {
                    Ok(capabilities(driver.state.lock().expands))
                })
                .await
            }
            "NodeStageVolume" => self.with(request, FakeDriver::stage).await,
            "NodeUnstageVolume" => self.with(request, FakeDriver::unstage).await,
            "NodePublishVolume" => self.with(request, FakeDriver::publish).await,
            "NodeExpandVolume" => self.with(request, FakeDriver::expand).await,
            "NodeUnpublishVolume" => self.with(request, FakeDriver::unpublish).await,
            other => panic!("no such call: {other}"),
        }
    }

    async fn with<Q, A>(
        &self,
        request: http::Request<hyper::body::Incoming>,
        done: impl Fn(&FakeDriver, Q) -> Result<A, Status> + Send + Sync + 'static,
    ) -> http::Response<tonic::body::Body>
    where
        Q: Message + Default + 'static,
        A: Message + Default + 'static,
    {
        let (driver, done) = (self.clone(), Arc::new(done));
        let service = tower::service_fn(move |request: Request<Q>| {
            let (driver, done) = (driver.clone(), done.clone());
            async move { done(&driver, request.into_inner()).map(Response::new) }
        });
        let codec = ProstCodec::<A, Q>::default();
        tonic::server::Grpc::new(codec).unary(service, request).await
    }

    fn note(&self, call: &str) -> Result<(), Status> {
        let mut state = self.state.lock();
        state.calls.push(call.to_string());
        match &state.failing {
            Some((failing, code)) if failing == call => Err(Status::new(*code, "out of tape")),
            _ => Ok(()),
        }
    }

    fn stage(&self, request: NodeStageVolume) -> Result<Empty, Status> {
        self.note("stage")?;
        assert!(Path::new(&request.staging_target_path).is_dir());
        self.mount(&request.staging_target_path);
        Ok(Empty {})
    }

    fn unstage(&self, request: NodeUnstageVolume) -> Result<Empty, Status> {
        self.note("unstage")?;
        mount_table::unmount(Path::new(&request.staging_target_path)).unwrap();
        Ok(Empty {})
    }

    fn publish(&self, request: NodePublishVolume) -> Result<Empty, Status> {
        self.note("publish")?;
        let target = Path::new(&request.target_path);
        if request.volume_capability.as_ref().is_some_and(|c| c.block.is_some()) {
            if !target.exists() {
                fs::write(target, "").unwrap();
                mount_table::bind(&self.data.join("device"), target, false).unwrap();
            }
        } else {
            fs::create_dir_all(target).unwrap();
            self.mount(&request.target_path);
        }
        self.state.lock().published = Some(request);
        Ok(Empty {})
    }

    fn expand(&self, request: NodeExpandVolume) -> Result<Empty, Status> {
        self.note("expand")?;
        assert!(Path::new(&request.volume_path).exists());
        self.state.lock().expanded = Some(request);
        Ok(Empty {})
    }

    fn unpublish(&self, request: NodeUnpublishVolume) -> Result<Empty, Status> {
        self.note("unpublish")?;
        let target = Path::new(&request.target_path);
        mount_table::unmount(target).unwrap();
        if target.is_file() {
            fs::remove_file(target).unwrap();
        }
        Ok(Empty {})
    }

    fn mount(&self, at: &str) {
        let at = Path::new(at);
        if nix::unistd::geteuid().is_root() && !mount_table::is_mount_point(at).unwrap() {
            mount_table::bind(&self.data, at, false).unwrap();
        }
    }
}

fn info() -> PluginInfo {
    PluginInfo {
        kind: "CSIPlugin".into(),
        name: "tape.example.com".into(),
        endpoint: String::new(),
        supported_versions: vec!["1.0.0".into()],
    }
}

fn node_info() -> NodeInfo {
    NodeInfo {
        node_id: "node-7".into(),
        max_volumes_per_node: 3,
        accessible_topology: None,
    }
}

fn capabilities(expands: bool) -> NodeCapabilities {
    let mut kinds = vec![NodeRpcKind::StageUnstageVolume];
    kinds.extend(expands.then_some(NodeRpcKind::ExpandVolume));
    let capability = |kind| NodeCapability {
        rpc: Some(NodeRpc { kind: kind as i32 }),
    };
    NodeCapabilities {
        capabilities: kinds.into_iter().map(capability).collect(),
    }
}

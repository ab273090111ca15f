//! A plugin for tests, over a real socket.

use std::pin::Pin;

use futures::Stream;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::net::UnixListener;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::*;
use crate::testing::until;

const RESOURCE: &str = "example.com/gpu";

#[derive(Clone)]
struct Plugin {
    devices: watch::Sender<DeviceList>,
    calls: Arc<Mutex<Vec<String>>>,
    failing: Arc<Mutex<bool>>,
}

type Lists = Pin<Box<dyn Stream<Item = Result<DeviceList, Status>> + Send>>;

impl Plugin {
    fn new(ids: &[&str]) -> Plugin {
        let plugin = Plugin {
            devices: watch::Sender::default(),
            calls: Arc::default(),
            failing: Arc::default(),
        };
        plugin.has(ids, &[]);
        plugin
    }

    fn has(&self, healthy: &[&str], ill: &[&str]) {
        let device = |health: &'static str| {
            move |id: &&str| Device {
                id: id.to_string(),
                health: health.into(),
            }
        };
        let all = healthy
            .iter()
            .map(device("Healthy"))
            .chain(ill.iter().map(device("Unhealthy")));
        self.devices.send_replace(DeviceList { devices: all.collect() });
    }

    fn serve(&self, socket: &Path) -> tokio::task::JoinHandle<()> {
        let _ = std::fs::remove_file(socket);
        let listener = UnixListener::bind(socket).unwrap();
        let plugin = self.clone();
        tokio::spawn(async move {
            // Ends with the task, so that a plugin can go.
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let plugin = plugin.clone();
                connections.spawn(async move {
                    let service = hyper::service::service_fn(move |request| {
                        let plugin = plugin.clone();
                        async move { Ok::<_, std::convert::Infallible>(plugin.answer(request).await) }
                    });
                    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        })
    }

    async fn answer(&self, request: http::Request<hyper::body::Incoming>) -> http::Response<tonic::body::Body> {
        match request.uri().path().rsplit('/').next().unwrap() {
            "ListAndWatch" => {
                let plugin = self.clone();
                let service = tower::service_fn(move |_: Request<Empty>| {
                    let plugin = plugin.clone();
                    async move { Ok::<_, Status>(Response::new(plugin.lists())) }
                });
                let codec = ProstCodec::<DeviceList, Empty>::default();
                tonic::server::Grpc::new(codec).server_streaming(service, request).await
            }
            "GetDevicePluginOptions" => self.with(request, Plugin::options).await,
            "GetPreferredAllocation" => self.with(request, Plugin::prefer).await,
            "Allocate" => self.with(request, Plugin::allocate).await,
            "PreStartContainer" => self.with(request, Plugin::pre_start).await,
            other => panic!("no such call: {other}"),
        }
    }

    fn lists(&self) -> Lists {
        let mut seen = self.devices.subscribe();
        seen.mark_changed();
        Box::pin(futures::stream::unfold(seen, |mut seen| async move {
            seen.changed().await.ok()?;
            let list = seen.borrow_and_update().clone();
            Some((Ok(list), seen))
        }))
    }

    async fn with<Q, A>(
        &self,
        request: http::Request<hyper::body::Incoming>,
        done: impl Fn(&Plugin, Q) -> Result<A, Status> + Send + Sync + 'static,
    ) -> http::Response<tonic::body::Body>
    where
        Q: prost::Message + Default + 'static,
        A: prost::Message + Default + 'static,
    {
        let (plugin, done) = (self.clone(), Arc::new(done));
        let service = tower::service_fn(move |request: Request<Q>| {
            let (plugin, done) = (plugin.clone(), done.clone());
            async move { done(&plugin, request.into_inner()).map(Response::new) }
        });
        let codec = ProstCodec::<A, Q>::default();
        tonic::server::Grpc::new(codec).unary(service, request).await
    }

    /// The last ones.
    fn options(&self, _: Empty) -> Result<PluginOptions, Status> {
        Ok(PluginOptions {
            pre_start_required: true,
            get_preferred_allocation_available: true,
        })
    }

    fn prefer(&self, request: PreferredRequest) -> Result<PreferredResponse, Status> {
        let wanted = &request.containers[0];
        self.calls
            .lock()
            .push(format!("prefer {} of {}", wanted.size, wanted.available.join(",")));
        let ids = wanted
            .available
            .iter()
            .rev()
            .take(wanted.size as usize)
            .cloned()
            .collect();
        Ok(PreferredResponse {
            containers: vec![DeviceIds { ids }],
        })
    }

    fn allocate(&self, request: AllocateRequest) -> Result<AllocateResponse, Status> {
        let ids = request.containers[0].ids.join(",");
        self.calls.lock().push(format!("allocate {ids}"));
        if *self.failing.lock() {
            return Err(Status::internal("on fire"));
        }
        let allocated = Allocated {
            envs: [("GPUS".to_string(), ids)].into(),
            mounts: vec![Mount {
                container_path: "/lib/gpu".into(),
                host_path: "/opt/gpu".into(),
                read_only: true,
            }],
            devices: vec![DeviceFile {
                container_path: "/dev/gpu".into(),
                host_path: "/dev/null".into(),
                permissions: "rw".into(),
            }],
            annotations: [("gpu".to_string(), "yes".to_string())].into(),
            cdi_devices: vec![CdiDevice {
                name: "example.com/gpu=0".into(),
            }],
        };
        Ok(AllocateResponse {
            containers: vec![allocated],
        })
    }

    fn pre_start(&self, ids: DeviceIds) -> Result<Empty, Status> {
        self.calls.lock().push(format!("start {}", ids.ids.join(",")));
        Ok(Empty {})
    }

    fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock())
    }
}

/// A pod whose containers ask for so many; a star marks init containers.
fn pod(uid: &str, counts: &[&str]) -> Pod {
    let container = |(place, count): (usize, &&str)| {
        let amounts = json!({RESOURCE: count.trim_end_matches('*')});
        json!({"name": format!("c{place}"), "resources": {"requests": amounts, "limits": amounts}})
    };
    let (init, regular): (Vec<_>, Vec<_>) = counts.iter().enumerate().partition(|(_, c)| c.ends_with('*'));
    let list = |all: Vec<(usize, &&str)>| all.into_iter().map(container).collect::<Vec<_>>();
    orlop_api::types::from_value(json!({
        "metadata": {"name": uid, "uid": uid},
        "spec": {"initContainers": list(init), "containers": list(regular)},
    }))
    .unwrap()
}

async fn register(devices: &Devices, version: &str, resource: &str, endpoint: &str) -> Result<(), CallError> {
    let request = Register {
        version: version.into(),
        endpoint: endpoint.into(),
        resource_name: resource.into(),
        options: None,
    };
    let socket = Socket::new(devices.socket());
    let path = "/v1beta1.Registration/Register";
    let answer: Result<Empty, CallError> = socket.call(path, request, QUESTION).await;
    answer.map(|_| ())
}

async fn until_counted(devices: &Devices, expected: (u64, u64)) {
    let amounts = devices.amounts();
    until("devices", || amounts.borrow().get(RESOURCE).copied(), Some(expected)).await;
}

#[tokio::test]
async fn a_plugin_comes_gives_devices_and_goes() {
    let dir = tempfile::tempdir().unwrap();
    let shutdown = Shutdown::default();
    let devices = Devices::start(dir.path(), shutdown.clone()).unwrap();
    let plugin = Plugin::new(&["a", "b", "c"]);
    let serving = plugin.serve(&dir.path().join("device-plugins/gpu.sock"));

    // Before it is there nobody counts its devices, and pods get none.
    assert_eq!(devices.claim(&pod("early", &["1"])).await, Ok(()));
    for (version, resource, endpoint, problem) in [
        (
            "v1",
            RESOURCE,
            "gpu.sock",
            "requested API version \"v1\" is not supported by kubelet. Supported version is",
        ),
        ("v1beta1", "cpu", "gpu.sock", "the ResourceName \"cpu\" is invalid"),
        (
            "v1beta1",
            RESOURCE,
            "../x.sock",
            "the Endpoint \"../x.sock\" is not the name of a socket in device-plugins",
        ),
    ] {
        let refused = register(&devices, version, resource, endpoint).await.unwrap_err();
        assert!(refused.message.contains(problem), "{refused}");
    }
    register(&devices, "v1beta1", RESOURCE, "gpu.sock").await.unwrap();
    until_counted(&devices, (3, 3)).await;

    devices.claim(&pod("one", &["2"])).await.unwrap();
    assert_eq!(plugin.calls(), ["prefer 2 of a,b,c", "allocate b,c"]);
    let mut config = cri::ContainerConfig::default();
    devices.add_to("one", "c0", &mut config).await.unwrap();
    assert_eq!(plugin.calls(), ["start b,c"]);
    assert_eq!(
        (config.envs[0].key.as_str(), config.envs[0].value.as_slice()),
        ("GPUS", &b"b,c"[..])
    );
    assert_eq!(
        (config.devices.len(), config.mounts.len(), config.cdi_devices.len()),
        (1, 1, 1)
    );
    assert_eq!(config.annotations["gpu"], "yes");

    // What an init container had is for the next; what is gone is gone.
    devices.claim(&pod("two", &["1*", "1"])).await.unwrap();
    assert_eq!(plugin.calls(), ["allocate a", "allocate a"]);
    let refused = devices.claim(&pod("three", &["1"])).await.unwrap_err();
    assert_eq!(refused.reason, "UnexpectedAdmissionError");
    assert_eq!(
        refused.message,
        "Allocate failed due to requested number of devices unavailable for example.com/gpu. Requested: 1, Available: \
         0, which is unexpected"
    );
    devices.release("two");
    *plugin.failing.lock() = true;
    let refused = devices.claim(&pod("three", &["1"])).await.unwrap_err();
    assert!(refused.message.contains("on fire"), "{refused:?}");
    *plugin.failing.lock() = false;

    // One falls ill, the plugin goes, another kubelet process comes: pods keep what they have.
    plugin.has(&["a", "b"], &["c"]);
    until_counted(&devices, (3, 2)).await;
    serving.abort();
    until_counted(&devices, (3, 0)).await;
    shutdown.trigger();
    let (again, devices) = (plugin.serve(&dir.path().join("device-plugins/gpu.sock")), {
        Devices::start(dir.path(), Shutdown::default()).unwrap()
    });
    assert_eq!(devices.amounts().borrow().get(RESOURCE), Some(&(0, 0)));
    register(&devices, "v1beta1", RESOURCE, "gpu.sock").await.unwrap();
    until_counted(&devices, (3, 2)).await;
    plugin.calls();
    devices.claim(&pod("one", &["2"])).await.unwrap();
    assert_eq!(plugin.calls(), [""; 0], "it has them already");
    devices.claim(&pod("four", &["1"])).await.unwrap();
    assert_eq!(plugin.calls(), ["allocate a"]);
    again.abort();
}

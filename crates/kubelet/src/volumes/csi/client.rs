//! Calls to a driver's socket.

use std::path::PathBuf;
use std::time::Duration;

use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::UnixStream;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use super::messages::*;

/// For calls that may mount or format something; as Kubernetes.
const WORK: Duration = Duration::from_secs(120);
const QUESTION: Duration = Duration::from_secs(10);

/// Connects with the first call, and again after the driver was restarted. Errors are worded as gRPC's in Go.
#[derive(Clone)]
pub struct Client {
    channel: Channel,
}

/// What a driver can do beyond publishing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Capabilities {
    pub stages: bool,
    pub single_node_multi_writer: bool,
    pub sets_group: bool,
}

impl Client {
    pub fn new(socket: impl Into<PathBuf>) -> Client {
        let path = socket.into();
        let connector = tower::service_fn(move |_: http::Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        // The address is never looked up.
        let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector);
        Client { channel }
    }

    pub async fn plugin_info(&self) -> Result<PluginInfo, String> {
        self.call("/pluginregistration.Registration/GetInfo", Empty {}, QUESTION)
            .await
    }

    pub async fn notify(&self, error: &str) -> Result<(), String> {
        let path = "/pluginregistration.Registration/NotifyRegistrationStatus";
        let status = RegistrationStatus {
            plugin_registered: error.is_empty(),
            error: error.to_string(),
        };
        let _: Empty = self.call(path, status, QUESTION).await?;
        Ok(())
    }

    pub async fn node_info(&self) -> Result<NodeInfo, String> {
        self.call("/csi.v1.Node/NodeGetInfo", Empty {}, WORK).await
    }

    pub async fn capabilities(&self) -> Result<Capabilities, String> {
        let path = "/csi.v1.Node/NodeGetCapabilities";
        let answer: NodeCapabilities = self.call(path, Empty {}, WORK).await?;
        let has = |kind: NodeRpcKind| {
            answer
                .capabilities
                .iter()
                .any(|c| c.rpc.as_ref().is_some_and(|rpc| rpc.kind() == kind))
        };
        Ok(Capabilities {
            stages: has(NodeRpcKind::StageUnstageVolume),
            single_node_multi_writer: has(NodeRpcKind::SingleNodeMultiWriter),
            sets_group: has(NodeRpcKind::VolumeMountGroup),
        })
    }

    pub async fn stage(&self, request: NodeStageVolume) -> Result<(), String> {
        let _: Empty = self.call("/csi.v1.Node/NodeStageVolume", request, WORK).await?;
        Ok(())
    }

    pub async fn unstage(&self, request: NodeUnstageVolume) -> Result<(), String> {
        let _: Empty = self.call("/csi.v1.Node/NodeUnstageVolume", request, WORK).await?;
        Ok(())
    }

    pub async fn publish(&self, request: NodePublishVolume) -> Result<(), String> {
        let _: Empty = self.call("/csi.v1.Node/NodePublishVolume", request, WORK).await?;
        Ok(())
    }

    pub async fn unpublish(&self, request: NodeUnpublishVolume) -> Result<(), String> {
        let _: Empty = self.call("/csi.v1.Node/NodeUnpublishVolume", request, WORK).await?;
        Ok(())
    }

    async fn call<Q, A>(&self, path: &'static str, request: Q, limit: Duration) -> Result<A, String>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone());
        let answered = async {
            grpc.ready().await.map_err(|e| Status::from_error(e.into()))?;
            let codec = ProstCodec::<Q, A>::default();
            grpc.unary(Request::new(request), PathAndQuery::from_static(path), codec)
                .await
        };
        let late = || Status::deadline_exceeded("context deadline exceeded");
        let answer = tokio::time::timeout(limit, answered)
            .await
            .unwrap_or_else(|_| Err(late()));
        answer.map(tonic::Response::into_inner).map_err(|status| said(&status))
    }
}

fn said(status: &Status) -> String {
    let mut text = status.message().to_string();
    // Made on this side: the innermost cause tells what happened.
    let mut cause = std::error::Error::source(status);
    while let Some(next) = cause {
        text = next.to_string();
        cause = next.source();
    }
    format!("rpc error: code = {:?} desc = {text}", status.code())
}

//! Calls to a driver's socket.

use std::path::PathBuf;
use std::time::Duration;

use super::messages::*;
use crate::grpc::{CallError, Socket};

/// For calls that may mount or format something; as Kubernetes.
const WORK: Duration = Duration::from_secs(120);
const QUESTION: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(super) struct Client {
    socket: Socket,
}

/// What a driver can do beyond publishing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Capabilities {
    pub stages: bool,
    pub single_node_multi_writer: bool,
    pub sets_group: bool,
    /// Has a part in letting volumes grow.
    pub expands: bool,
}

impl Client {
    pub(super) fn new(socket: impl Into<PathBuf>) -> Client {
        Client {
            socket: Socket::new(socket),
        }
    }

    pub(super) async fn plugin_info(&self) -> Result<PluginInfo, CallError> {
        let path = "/pluginregistration.Registration/GetInfo";
        self.socket.call(path, Empty {}, QUESTION).await
    }

    pub(super) async fn notify(&self, error: &str) -> Result<(), CallError> {
        let path = "/pluginregistration.Registration/NotifyRegistrationStatus";
        let status = RegistrationStatus {
            plugin_registered: error.is_empty(),
            error: error.to_string(),
        };
        let _: Empty = self.socket.call(path, status, QUESTION).await?;
        Ok(())
    }

    pub(super) async fn node_info(&self) -> Result<NodeInfo, CallError> {
        self.socket.call("/csi.v1.Node/NodeGetInfo", Empty {}, WORK).await
    }

    pub(super) async fn capabilities(&self) -> Result<Capabilities, CallError> {
        let path = "/csi.v1.Node/NodeGetCapabilities";
        let answer: NodeCapabilities = self.socket.call(path, Empty {}, WORK).await?;
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
            expands: has(NodeRpcKind::ExpandVolume),
        })
    }

    pub(super) async fn stage(&self, request: NodeStageVolume) -> Result<(), CallError> {
        let _: Empty = self.socket.call("/csi.v1.Node/NodeStageVolume", request, WORK).await?;
        Ok(())
    }

    pub(super) async fn unstage(&self, request: NodeUnstageVolume) -> Result<(), CallError> {
        let _: Empty = self
            .socket
            .call("/csi.v1.Node/NodeUnstageVolume", request, WORK)
            .await?;
        Ok(())
    }

    pub(super) async fn publish(&self, request: NodePublishVolume) -> Result<(), CallError> {
        let _: Empty = self
            .socket
            .call("/csi.v1.Node/NodePublishVolume", request, WORK)
            .await?;
        Ok(())
    }

    pub(super) async fn expand(&self, request: NodeExpandVolume) -> Result<(), CallError> {
        // How large it has become is not asked: what was required is what claims say.
        let _: Empty = self.socket.call("/csi.v1.Node/NodeExpandVolume", request, WORK).await?;
        Ok(())
    }

    pub(super) async fn unpublish(&self, request: NodeUnpublishVolume) -> Result<(), CallError> {
        let _: Empty = self
            .socket
            .call("/csi.v1.Node/NodeUnpublishVolume", request, WORK)
            .await?;
        Ok(())
    }
}

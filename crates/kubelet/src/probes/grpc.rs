//! gRPC probes: the health protocol `grpc.health.v1.Health/Check`.

use std::time::Duration;

use ::http::uri::PathAndQuery;
use orlop_api::duration::duration_text;
use orlop_api::types::core::GRPCAction;
use orlop_base::clock::Shift;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::run::{ProbeResult, join_host_port};

/// How long after a refused connection the next one is tried.
const REDIAL: Duration = Duration::from_millis(100);

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub status: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

impl ServingStatus {
    fn name(self) -> &'static str {
        match self {
            ServingStatus::Unknown => "UNKNOWN",
            ServingStatus::Serving => "SERVING",
            ServingStatus::NotServing => "NOT_SERVING",
            ServingStatus::ServiceUnknown => "SERVICE_UNKNOWN",
        }
    }
}

pub(super) async fn probe(ip: &str, action: &GRPCAction, timeout: Duration) -> ProbeResult {
    let Ok(port) = u16::try_from(action.port) else {
        return ProbeResult::Failure(format!("error: invalid port number: {}", action.port));
    };
    let address = join_host_port(ip, port);
    let service = action.service.clone().unwrap_or_default();
    let within = duration_text(i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX));
    let deadline = tokio::time::Instant::now().later(timeout);
    let channel = match tokio::time::timeout_at(deadline, connect(&address)).await {
        Ok(channel) => channel,
        Err(_) => {
            return ProbeResult::Failure(format!(
                "timeout: failed to connect service {address:?} within {within}: context deadline exceeded"
            ));
        }
    };
    match tokio::time::timeout_at(deadline, check(channel, service)).await {
        Ok(Ok(ServingStatus::Serving)) => ProbeResult::Success,
        Ok(Ok(status)) => ProbeResult::Failure(format!("service unhealthy (responded with {:?})", status.name())),
        Ok(Err(status)) if status.code() == Code::Unimplemented => ProbeResult::Failure(format!(
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
            status.message()
        )),
        Err(_) => ProbeResult::Failure(format!("timeout: health rpc did not complete within {within}")),
        Ok(Err(status)) if status.code() == Code::DeadlineExceeded => {
            ProbeResult::Failure(format!("timeout: health rpc did not complete within {within}"))
        }
        Ok(Err(status)) => ProbeResult::Failure(format!(
            "error: health rpc probe failed: rpc error: code = {} desc = {}",
            code_name(status.code()),
            status.message()
        )),
    }
}

/// Tries until somebody answers; the caller sets the limit. Upstream: a refused connection is no answer either.
async fn connect(address: &str) -> tonic::transport::Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .and_then(|endpoint| endpoint.user_agent(super::http::USER_AGENT));
    loop {
        if let Ok(endpoint) = &endpoint
            && let Ok(channel) = endpoint.connect().await
        {
            return channel;
        }
        tokio::time::sleep(REDIAL).await;
    }
}

async fn check(channel: tonic::transport::Channel, service: String) -> Result<ServingStatus, Status> {
    let mut client = tonic::client::Grpc::new(channel);
    client
        .ready()
        .await
        .map_err(|error| Status::unavailable(error.to_string()))?;
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec: ProstCodec<HealthCheckRequest, HealthCheckResponse> = ProstCodec::default();
    let answer = client
        .unary(Request::new(HealthCheckRequest { service }), path, codec)
        .await?;
    Ok(answer.into_inner().status())
}

/// Go's names differ from ours in one.
fn code_name(code: Code) -> String {
    match code {
        Code::Cancelled => "Canceled".to_string(),
        code => format!("{code:?}"),
    }
}

#[cfg(test)]
mod tests;

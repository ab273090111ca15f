//! Runs one probe of one container once.

use std::sync::Arc;
use std::time::Duration;

use orlop_api::types::core::{Container, TCPSocketAction};
use orlop_api::types::meta::IntOrString;
use orlop_runtime::Runtime;
use tokio::net::TcpStream;

use super::machine::{Kind, Settings};
use super::{exec, grpc, http, probe_of};

/// Upstream: a probe that itself fails to work is tried this often.
const TRIES: usize = 3;

/// What is asked, of which container of which pod.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub kind: Kind,
    pub container: Arc<Container>,
    /// `name_namespace(uid)`
    pub pod: String,
}

#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub question: Question,
    pub container_id: String,
    pub pod_ip: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    Success,
    /// Well enough, but people should know.
    Warning(String),
    Failure(String),
    /// The question could not be asked properly: says nothing about the container. `state` is upstream's word for it.
    Error {
        state: &'static str,
        text: String,
    },
}

impl ProbeResult {
    pub fn unknown(text: impl Into<String>) -> ProbeResult {
        ProbeResult::Error {
            state: "unknown",
            text: text.into(),
        }
    }

    pub fn success(&self) -> Option<bool> {
        match self {
            ProbeResult::Success | ProbeResult::Warning(_) => Some(true),
            ProbeResult::Failure(_) => Some(false),
            ProbeResult::Error { .. } => None,
        }
    }

    /// Reason and note of the event to record.
    pub fn event(&self, kind: Kind) -> Option<(&'static str, String)> {
        let kind = kind.name();
        match self {
            ProbeResult::Success => None,
            ProbeResult::Warning(text) => Some(("ProbeWarning", format!("{kind} probe warning: {text}"))),
            ProbeResult::Failure(text) => Some(("Unhealthy", format!("{kind} probe failed: {text}"))),
            ProbeResult::Error { state, text } => {
                let note = format!("{kind} probe errored and resulted in {state} state: {text}");
                Some(("Unhealthy", note))
            }
        }
    }
}

pub(super) async fn probe(attempt: &Attempt, runtime: &dyn Runtime) -> ProbeResult {
    let mut outcome = ask(attempt, runtime).await;
    for _ in 1..TRIES {
        if !matches!(outcome, ProbeResult::Error { .. }) {
            break;
        }
        outcome = ask(attempt, runtime).await;
    }
    outcome
}

async fn ask(attempt: &Attempt, runtime: &dyn Runtime) -> ProbeResult {
    let Question { kind, container, pod } = &attempt.question;
    let Some(probe) = probe_of(container, *kind) else {
        return ProbeResult::Success;
    };
    let timeout = Settings::of(probe).timeout;
    let ip = attempt.pod_ip.as_deref().unwrap_or_default();
    if let Some(action) = &probe.exec {
        let command = exec::expand_all(action.command.as_deref().unwrap_or_default(), container);
        exec::probe(runtime, &attempt.container_id, command, timeout).await
    } else if let Some(action) = &probe.http_get {
        http::probe(action, container, ip, timeout).await
    } else if let Some(action) = &probe.tcp_socket {
        tcp(action, container, ip, timeout).await
    } else if let Some(action) = &probe.grpc {
        grpc::probe(ip, action, timeout).await
    } else {
        ProbeResult::unknown(format!("missing probe handler for {pod}:{}", container.name))
    }
}

/// Why a probe's port is not one, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    #[error("strconv.Atoi: parsing {0:?}: invalid syntax")]
    Unknown(String),
    #[error("invalid port number: {0}")]
    OutOfRange(i64),
}

/// A number, or the name of one of the container's ports, or a number written as text.
pub(super) fn resolve_port(port: &IntOrString, container: &Container) -> Result<u16, PortError> {
    let number = match port {
        IntOrString::Int(number) => i64::from(*number),
        IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            match ports.find(|port| port.name.as_deref() == Some(name)) {
                Some(port) => i64::from(port.container_port),
                None => name.parse().map_err(|_| PortError::Unknown(name.clone()))?,
            }
        }
    };
    match u16::try_from(number) {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(PortError::OutOfRange(number)),
    }
}

/// `host:port`, with brackets around an IPv6 address.
pub(super) fn join_host_port(host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// Go's words for a connection that could not be made.
pub(super) fn dial_error(address: &str, error: &std::io::Error) -> String {
    use std::io::ErrorKind;
    let why = match error.kind() {
        ErrorKind::ConnectionRefused => "connect: connection refused".to_string(),
        ErrorKind::HostUnreachable => "connect: no route to host".to_string(),
        ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_string(),
        ErrorKind::ConnectionReset => "connect: connection reset by peer".to_string(),
        ErrorKind::TimedOut => "connect: connection timed out".to_string(),
        // Names that do not resolve have no number of the operating system.
        _ if error.raw_os_error().is_none() => {
            let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
            return format!("dial tcp: lookup {host}: no such host");
        }
        _ => format!("connect: {error}"),
    };
    format!("dial tcp {address}: {why}")
}

async fn tcp(action: &TCPSocketAction, container: &Container, ip: &str, timeout: Duration) -> ProbeResult {
    let port = match resolve_port(&action.port, container) {
        Ok(port) => port,
        Err(error) => return ProbeResult::unknown(error.to_string()),
    };
    let host = action.host.as_deref().filter(|host| !host.is_empty()).unwrap_or(ip);
    let address = join_host_port(host, port);
    match tokio::time::timeout(timeout, TcpStream::connect(&address)).await {
        Ok(Ok(_)) => ProbeResult::Success,
        Ok(Err(error)) => ProbeResult::Failure(dial_error(&address, &error)),
        Err(_) => ProbeResult::Failure(format!("dial tcp {address}: i/o timeout")),
    }
}

#[cfg(test)]
mod tests;

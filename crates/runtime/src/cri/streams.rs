//! Commands and ports of containers behind a CRI socket. The runtime answers a call with an address of its streaming
//! server, good for one connection and for a minute; the streams themselves go over that.

use std::net::IpAddr;

use http::Uri;
use orlop_streaming::{ConnectError, Pipe, Session, Streams, connect_port_forward, connect_session};

use super::messages::{AttachRequest, ExecRequest};
use crate::{Code, Error, Result};

impl From<&ExecRequest> for Streams {
    fn from(request: &ExecRequest) -> Streams {
        Streams {
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr,
            tty: request.tty,
        }
    }
}

impl From<&AttachRequest> for Streams {
    fn from(request: &AttachRequest) -> Streams {
        Streams {
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr,
            tty: request.tty,
        }
    }
}

pub(super) async fn session(url: &str, streams: Streams) -> Result<Session> {
    connect_session(&address(url)?, streams).await.map_err(failed)
}

pub(super) async fn port(url: &str, port: u16) -> Result<Box<dyn Pipe>> {
    let server = connect_port_forward(&address(url)?).await.map_err(failed)?;
    server
        .open(port)
        .await
        .map_err(|e| Error::new(Code::Other, e.to_string()))
}

fn failed(error: ConnectError) -> Error {
    let code = if matches!(error, ConnectError::Unreachable(..)) {
        Code::Unavailable
    } else {
        Code::Other
    };
    let cause = std::error::Error::source(&error)
        .map(|cause| format!(": {cause}"))
        .unwrap_or_default();
    Error::new(code, format!("{error}{cause}"))
}

/// The address to connect to. A server that listens on all addresses may name just that, which is none to connect to: it
/// is on this machine.
fn address(url: &str) -> Result<String> {
    let refused = |why: &str| Error::new(Code::Other, format!("the runtime's streaming address {url:?} {why}"));
    let uri: Uri = url.parse().map_err(|_| refused("is not an address"))?;
    let Some(authority) = uri.authority() else {
        return Err(refused(
            "names no host: set the address of its streaming server in its configuration",
        ));
    };
    if uri.scheme_str() != Some("http") {
        return Err(refused(
            "is not of http: turn off TLS for its streaming server, which is on this machine",
        ));
    }
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let local = match host.parse::<IpAddr>() {
        Ok(address) if address.is_unspecified() => {
            if address.is_ipv6() {
                "[::1]"
            } else {
                "127.0.0.1"
            }
        }
        _ => return Ok(url.to_string()),
    };
    let port = authority.port_u16().map(|port| format!(":{port}")).unwrap_or_default();
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    Ok(format!("http://{local}{port}{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (given, used) in [
            ("http://127.0.0.1:4/exec/x?a=b", "http://127.0.0.1:4/exec/x?a=b"),
            ("http://node-7:4/exec/x", "http://node-7:4/exec/x"),
            ("http://0.0.0.0:4/exec/x?a=b", "http://127.0.0.1:4/exec/x?a=b"),
            ("http://[::]:4/exec/x", "http://[::1]:4/exec/x"),
        ] {
            assert_eq!(address(given).unwrap(), used);
        }
        for (given, why) in [
            ("/exec/x", "names no host"),
            ("", "is not an address"),
            ("https://127.0.0.1:4/exec/x", "turn off TLS"),
        ] {
            let message = address(given).unwrap_err().message;
            assert!(message.contains(why), "{message}");
        }
    }
}

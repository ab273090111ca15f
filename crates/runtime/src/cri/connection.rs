//! gRPC calls over a unix socket, without generated code.

use std::error::Error as _;
use std::path::PathBuf;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{StreamExt, TryFutureExt};
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::UnixStream;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::{Code, Error, Result};

/// The largest message either way; as Kubernetes. A list of thousands of containers fits.
const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A stream that was not refused by then is open: servers send nothing before the first message.
const REFUSED_BY: Duration = Duration::from_millis(250);

#[derive(Clone)]
pub(super) struct Connection {
    endpoint: String,
    channel: Channel,
}

impl Connection {
    pub(super) fn new(endpoint: &str) -> Result<Connection> {
        let path = socket_path(endpoint)?;
        let connector = tower::service_fn(move |_: http::Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        // The address is never looked up; servers expect this name from local clients.
        let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector);
        Ok(Connection {
            endpoint: endpoint.to_string(),
            channel,
        })
    }

    fn grpc(&self) -> Grpc<Channel> {
        Grpc::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// One request, one answer. Dropping the future cancels the call at the server too.
    pub(super) async fn call<Q, A>(&self, path: &'static str, request: Q, limit: Option<Duration>) -> Result<A>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.grpc();
        let work = async {
            grpc.ready()
                .await
                .map_err(|e| self.explain(Status::from_error(e.into())))?;
            let codec = ProstCodec::<Q, A>::default();
            let answer = grpc
                .unary(Request::new(request), PathAndQuery::from_static(path), codec)
                .await;
            answer
                .map(tonic::Response::into_inner)
                .map_err(|status| self.explain(status))
        };
        match limit {
            None => work.await,
            Some(limit) => tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
                let call = path.rsplit('/').next().unwrap_or(path);
                let message = format!(
                    "{call}: no answer from the container runtime within {} s",
                    limit.as_secs()
                );
                Err(Error::new(Code::DeadlineExceeded, message))
            }),
        }
    }

    /// One request, many answers.
    pub(super) async fn stream<Q, A>(&self, path: &'static str, request: Q) -> Result<BoxStream<'static, Result<A>>>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let (this, mut grpc) = (self.clone(), self.grpc());
        let mut opening: BoxFuture<'static, Result<Streaming<A>, Status>> = Box::pin(async move {
            grpc.ready().await.map_err(|e| Status::from_error(e.into()))?;
            let codec = ProstCodec::<Q, A>::default();
            let answer = grpc
                .server_streaming(Request::new(request), PathAndQuery::from_static(path), codec)
                .await?;
            Ok(answer.into_inner())
        });
        let messages = match tokio::time::timeout(REFUSED_BY, &mut opening).await {
            Ok(opened) => opened.map_err(|status| self.explain(status))?.boxed(),
            Err(_) => opening.try_flatten_stream().boxed(),
        };
        Ok(messages
            .map(move |message| message.map_err(|status| this.explain(status)))
            .boxed())
    }

    fn explain(&self, status: Status) -> Error {
        // A status with a cause was made on this side: the runtime said nothing, the connection failed.
        if let Some(mut cause) = status.source() {
            while let Some(deeper) = cause.source() {
                cause = deeper;
            }
            let message = format!("can't reach the container runtime at {}: {cause}", self.endpoint);
            return Error::new(Code::Unavailable, message);
        }
        let code = match status.code() {
            tonic::Code::NotFound => Code::NotFound,
            tonic::Code::DeadlineExceeded => Code::DeadlineExceeded,
            tonic::Code::Unavailable => Code::Unavailable,
            tonic::Code::Unimplemented => Code::Unimplemented,
            // containerd, when it was just started.
            _ if status.message() == "server is not initialized yet" => Code::Unavailable,
            _ => Code::Other,
        };
        if code == Code::Unimplemented && status.message().contains("unknown service runtime.v1.") {
            let message = format!(
                "{} does not speak the container runtime interface v1 (for containerd: the plugin \"cri\" is disabled or too old): {}",
                self.endpoint,
                status.message()
            );
            return Error::new(code, message);
        }
        Error::new(code, status.message())
    }
}

/// Kubernetes also takes a bare path.
fn socket_path(endpoint: &str) -> Result<PathBuf> {
    let path = endpoint
        .strip_prefix("unix://")
        .or_else(|| endpoint.strip_prefix("unix:"))
        .unwrap_or(endpoint);
    if path.starts_with('/') {
        return Ok(PathBuf::from(path));
    }
    let message = format!(
        "{endpoint:?} is not a valid container runtime endpoint (example: unix:///run/containerd/containerd.sock)"
    );
    Err(Error::new(Code::Other, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::messages::{VersionRequest, VersionResponse};

    #[test]
    fn endpoints() {
        for right in ["unix:///run/c.sock", "unix:/run/c.sock", "/run/c.sock"] {
            assert_eq!(socket_path(right).unwrap(), PathBuf::from("/run/c.sock"), "{right}");
        }
        for wrong in [
            "",
            "tcp://localhost:1",
            "unix://",
            "unix://run/c.sock",
            "http:/x",
            "npipe:////./pipe/c",
        ] {
            let message = socket_path(wrong).unwrap_err().message;
            assert!(message.contains("unix:///run/containerd/containerd.sock"), "{message}");
        }
    }

    async fn version(endpoint: &str) -> Error {
        let connection = Connection::new(endpoint).unwrap();
        let request = VersionRequest {
            version: "0.1.0".to_string(),
        };
        let limit = Some(Duration::from_secs(30));
        let answer: Result<VersionResponse> = connection
            .call("/runtime.v1.RuntimeService/Version", request, limit)
            .await;
        answer.unwrap_err()
    }

    #[tokio::test]
    async fn nobody_there() {
        let directory = tempfile::tempdir().unwrap();
        let endpoint = format!("unix://{}", directory.path().join("none.sock").display());
        let error = version(&endpoint).await;
        assert_eq!(error.code, Code::Unavailable);
        assert!(error.message.contains(&endpoint), "{error}");
        assert!(error.message.contains("No such file or directory"), "{error}");
    }

    #[tokio::test]
    async fn somebody_who_hangs_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rude.sock");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        tokio::spawn(async move { while listener.accept().await.is_ok() {} });
        let error = version(path.to_str().unwrap()).await;
        assert_eq!(error.code, Code::Unavailable, "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn somebody_who_never_answers() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("silent.sock");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let accepting = tokio::spawn(async move {
            let mut open = vec![];
            while let Ok((stream, _)) = listener.accept().await {
                open.push(stream);
            }
        });
        let error = version(path.to_str().unwrap()).await;
        assert_eq!(error.code, Code::DeadlineExceeded);
        assert_eq!(
            error.message,
            "Version: no answer from the container runtime within 30 s"
        );
        accepting.abort();
    }

    #[tokio::test]
    async fn somebody_who_speaks_something_else() {
        use tokio::io::AsyncWriteExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("http1.sock");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                drop(
                    stream
                        .write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
                        .await,
                );
            }
        });
        let error = version(path.to_str().unwrap()).await;
        assert_eq!(error.code, Code::Unavailable, "{error}");
    }

    #[test]
    fn other_services_are_named() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _inside = runtime.enter();
        let connection = Connection::new("unix:///run/c.sock").unwrap();
        let error = connection.explain(Status::unimplemented("unknown service runtime.v1.RuntimeService"));
        assert_eq!(error.code, Code::Unimplemented);
        assert!(
            error.message.starts_with("unix:///run/c.sock does not speak"),
            "{error}"
        );
        let error = connection.explain(Status::unimplemented("unknown method RuntimeConfig"));
        assert_eq!(
            (error.code, error.message.as_str()),
            (Code::Unimplemented, "unknown method RuntimeConfig")
        );
        let error = connection.explain(Status::unknown("failed to create containerd task: x"));
        assert_eq!(
            (error.code, error.message.as_str()),
            (Code::Other, "failed to create containerd task: x")
        );
    }
}

//! Calls over a Unix socket to a plugin of this node.

use std::path::PathBuf;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::UnixStream;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

/// Connects with the first call, and again after the plugin was restarted.
#[derive(Clone, Debug)]
pub(crate) struct Socket {
    channel: Channel,
}

impl Socket {
    pub(crate) fn new(socket: impl Into<PathBuf>) -> Socket {
        let path = socket.into();
        let connector = tower::service_fn(move |_: http::Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        // The address is never looked up.
        let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector);
        Socket { channel }
    }

    pub(crate) async fn call<Q, A>(&self, path: &'static str, request: Q, limit: Duration) -> Result<A, CallError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let answer = self.call_encoded(path, request.encode_to_vec(), limit).await?;
        A::decode(answer).map_err(|e| Status::internal(e.to_string()).into())
    }

    /// Knows nothing of messages, so that the transport is compiled once and not for each of them.
    async fn call_encoded(&self, path: &'static str, request: Vec<u8>, limit: Duration) -> Result<Bytes, CallError> {
        in_time(limit, async {
            let mut grpc = self.ready().await?;
            grpc.unary(Request::new(request), PathAndQuery::from_static(path), Encoded)
                .await
        })
        .await
    }

    /// A call that is answered again and again; the limit is for its beginning.
    pub(crate) async fn follow<Q, A>(
        &self,
        path: &'static str,
        request: Q,
        limit: Duration,
    ) -> Result<Streaming<A>, CallError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        in_time(limit, async {
            let mut grpc = self.ready().await?;
            let codec = ProstCodec::<Q, A>::default();
            grpc.server_streaming(Request::new(request), PathAndQuery::from_static(path), codec)
                .await
        })
        .await
    }

    async fn ready(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(|e| Status::from_error(e.into()))?;
        Ok(grpc)
    }
}

/// Messages as their bytes.
struct Encoded;

impl Codec for Encoded {
    type Encode = Vec<u8>;
    type Decode = Bytes;
    type Encoder = Encoded;
    type Decoder = Encoded;

    fn encoder(&mut self) -> Encoded {
        Encoded
    }

    fn decoder(&mut self) -> Encoded {
        Encoded
    }
}

impl Encoder for Encoded {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, message: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&message);
        Ok(())
    }
}

impl Decoder for Encoded {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

async fn in_time<T>(
    limit: Duration,
    answer: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, CallError> {
    let late = || Status::deadline_exceeded("context deadline exceeded");
    let answer = tokio::time::timeout(limit, answer)
        .await
        .unwrap_or_else(|_| Err(late()));
    Ok(answer?.into_inner())
}

/// A failed call, worded as gRPC's errors in Go.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rpc error: code = {code:?} desc = {message}")]
pub struct CallError {
    pub code: tonic::Code,
    pub message: String,
}

impl From<Status> for CallError {
    fn from(status: Status) -> CallError {
        let mut message = status.message().to_string();
        // Created on this side: the innermost cause says what happened.
        let mut cause = std::error::Error::source(&status);
        while let Some(next) = cause {
            message = next.to_string();
            cause = next.source();
        }
        CallError {
            code: status.code(),
            message,
        }
    }
}

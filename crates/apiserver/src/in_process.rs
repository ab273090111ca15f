//! The way in for components of the same process: no socket and no TLS, but the same chain. Who they are is set here, as
//! a client certificate would set it; what they may do is decided by authorisation, as for anybody.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};

use crate::authn::{AUTHENTICATED, UserInfo};
use crate::chain::{Connection, Server};
use crate::respond::Body;

/// A server as a service for one user. Clones are cheap. Bodies of answers stream: a watch goes on until it is dropped,
/// or until the server stops.
#[derive(Clone)]
pub struct InProcess {
    server: Arc<Server>,
    connection: Arc<Connection>,
}

/// The service through which `user` reaches the server; like every user, a member of `system:authenticated`.
pub fn service(server: Arc<Server>, user: &str, groups: &[&str]) -> InProcess {
    let groups: Vec<&str> = groups.iter().copied().chain([AUTHENTICATED]).collect();
    let connection = Connection {
        trusted_user: Some(Arc::new(UserInfo::new(user, &groups))),
        ..Connection::default()
    };
    InProcess {
        server,
        connection: Arc::new(connection),
    }
}

impl<B> tower::Service<Request<B>> for InProcess
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    /// Callers bound how much they ask for at once (`orlop_client::Api` does): nothing is refused for being too much.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let answer = self.server.handle(request, &self.connection);
        Box::pin(async move { Ok(answer.await) })
    }
}

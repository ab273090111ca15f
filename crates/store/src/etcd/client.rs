//! Calls of etcd: one member is asked at a time; one that does not answer makes way for the next.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use http::Uri;
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::messages::{
    AlarmAction, AlarmMember, AlarmRequest, AlarmResponse, CompactionRequest, HeaderResponse, LeaseGrantRequest,
    LeaseGrantResponse, RangeRequest, RangeResponse, TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest,
    WatchRequestUnion, WatchResponse,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Upstream: keep-alive time and timeout of kube-apiserver's etcd client. etcd takes no pings more often than every 5 s.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one member may take for one call before another one is asked: a little at first, since what a member passed on
/// to a leader that died is lost without a word, then more, since etcd may just be slow.
const CALL_TIMEOUTS: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), CALL_TIMEOUT];
const CALL_TIMEOUT: Duration = Duration::from_secs(4);
/// Between two rounds over all members.
const PAUSE: Duration = Duration::from_millis(100);

/// Why a URL of a member can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{url:?}: {reason}")]
pub struct EndpointError {
    pub url: String,
    pub reason: &'static str,
}

/// What became of a call that gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// etcd said no, and would say so again.
    Refused,
    /// It was not carried out.
    NotDone,
    /// It may have been carried out, or still be.
    Unknown,
}

#[derive(Clone, Debug)]
pub(crate) struct CallError {
    pub outcome: Outcome,
    pub code: Code,
    pub message: String,
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl CallError {
    pub(crate) fn is_compacted(&self) -> bool {
        self.code == Code::OutOfRange && self.message.contains("compacted")
    }

    pub(crate) fn is_no_space(&self) -> bool {
        self.message.contains("database space exceeded")
    }

    pub(crate) fn is_lease_gone(&self) -> bool {
        self.message.contains("requested lease not found")
    }

    fn new(member: &str, status: &Status) -> CallError {
        let outcome = outcome(status);
        let message = match outcome {
            Outcome::Refused => status.message().to_string(),
            _ => format!("{member}: {}", reason(status)),
        };
        CallError {
            outcome,
            code: status.code(),
            message,
        }
    }

    fn timed_out(member: &str) -> CallError {
        CallError {
            outcome: Outcome::Unknown,
            code: Code::DeadlineExceeded,
            message: format!("{member}: no answer in time"),
        }
    }
}

/// The innermost of its causes says most.
fn reason(status: &Status) -> String {
    let mut source = status.source();
    let mut text = status.message().to_string();
    while let Some(cause) = source {
        text = cause.to_string();
        source = cause.source();
    }
    text
}

fn outcome(status: &Status) -> Outcome {
    let mut source = status.source();
    while let Some(cause) = source {
        if cause.is::<ConnectError>() {
            return Outcome::NotDone;
        }
        source = cause.source();
    }
    match status.code() {
        Code::ResourceExhausted if status.message().contains("too many requests") => Outcome::NotDone,
        Code::Unavailable if status.message().contains("no leader") => Outcome::NotDone,
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented => Outcome::Refused,
        _ => Outcome::Unknown,
    }
}

/// No connection came about, so nothing was sent.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("no connection in time")]
    Timeout,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

async fn connect(
    host: String,
    port: u16,
    tls: Option<Arc<ClientConfig>>,
) -> Result<TokioIo<Box<dyn Stream>>, ConnectError> {
    let connecting = async {
        let stream = TcpStream::connect((host.as_str(), port)).await?;
        stream.set_nodelay(true)?;
        let Some(tls) = tls else {
            return Ok(Box::new(stream) as Box<dyn Stream>);
        };
        let name = ServerName::try_from(host).map_err(std::io::Error::other)?;
        let stream = tokio_rustls::TlsConnector::from(tls).connect(name, stream).await?;
        Ok::<_, std::io::Error>(Box::new(stream) as Box<dyn Stream>)
    };
    match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(connected) => Ok(TokioIo::new(connected?)),
        Err(_) => Err(ConnectError::Timeout),
    }
}

/// Where a member is, out of its URL.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Address {
    host: String,
    port: u16,
    is_tls: bool,
}

impl Address {
    fn parse(url: &str) -> Result<Address, EndpointError> {
        let error = |reason| EndpointError {
            url: url.to_string(),
            reason,
        };
        let uri: Uri = url.parse().map_err(|_| error("not a URL"))?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") | None => false,
            Some(_) => return Err(error("neither http nor https")),
        };
        let host = uri.host().ok_or_else(|| error("no host in it"))?;
        Ok(Address {
            host: host.trim_matches(['[', ']']).to_string(),
            port: uri.port_u16().unwrap_or(2379),
            is_tls,
        })
    }
}

/// After so many calls that gave no answer.
fn patience(asked: usize) -> Duration {
    CALL_TIMEOUTS.get(asked).copied().unwrap_or(CALL_TIMEOUT)
}

struct Member {
    url: String,
    channel: Channel,
}

/// Shared by all that speak with etcd.
pub(crate) struct Client {
    members: Vec<Member>,
    /// Who is asked now.
    current: AtomicUsize,
}

impl Client {
    /// Connects to nobody yet. Must be called in a runtime: connections belong to it.
    pub(crate) fn new(urls: &[String], tls: Option<&ClientConfig>, first: usize) -> Result<Client, EndpointError> {
        let tls = tls.map(|config| {
            let mut config = config.clone();
            config.alpn_protocols = vec![b"h2".to_vec()];
            Arc::new(config)
        });
        let mut members = Vec::new();
        for url in urls {
            let error = |reason| EndpointError {
                url: url.clone(),
                reason,
            };
            let address = Address::parse(url)?;
            let tls = match (address.is_tls, &tls) {
                (true, None) => return Err(error("https without certificates")),
                (true, Some(tls)) => Some(tls.clone()),
                (false, _) => None,
            };
            let host = match address.host.contains(':') {
                true => format!("[{}]", address.host),
                false => address.host.clone(),
            };
            // TLS is the connector's part.
            let endpoint = Endpoint::from_shared(format!("http://{host}:{}", address.port))
                .map_err(|_| error("not a URL"))?
                .http2_keep_alive_interval(PING_EVERY)
                .keep_alive_timeout(PING_TIMEOUT)
                .initial_stream_window_size(4 << 20)
                .initial_connection_window_size(8 << 20)
                .tcp_nodelay(true);
            let connector = tower::service_fn(move |_: Uri| connect(address.host.clone(), address.port, tls.clone()));
            members.push(Member {
                url: url.clone(),
                channel: endpoint.connect_with_connector_lazy(connector),
            });
        }
        if members.is_empty() {
            return Err(EndpointError {
                url: String::new(),
                reason: "no member of etcd is named",
            });
        }
        let current = AtomicUsize::new(first % members.len());
        Ok(Client { members, current })
    }

    fn member(&self) -> (usize, &Member) {
        let at = self.current.load(Ordering::Relaxed) % self.members.len();
        (at, &self.members[at])
    }

    /// Others ask another member from now on, unless somebody saw to that already.
    fn leave(&self, at: usize) {
        let next = (at + 1) % self.members.len();
        let changed = self
            .current
            .compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
        if changed.is_ok() && next != at {
            tracing::info!(
                from = self.members[at].url,
                to = self.members[next].url,
                "changed to another member of etcd"
            );
        }
    }

    fn grpc(member: &Member) -> Grpc<Channel> {
        Grpc::new(member.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    /// One call of one member.
    async fn call<Q, A>(
        &self,
        path: &'static str,
        request: Q,
        patience: Duration,
        until: Instant,
    ) -> Result<A, CallError>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let (at, member) = self.member();
        let called = async {
            let mut grpc = Client::grpc(member);
            let ready = grpc.ready().await;
            ready.map_err(|error| Status::from_error(Box::new(error)))?;
            let codec = ProstCodec::<Q, A>::default();
            grpc.unary(Request::new(request), PathAndQuery::from_static(path), codec)
                .await
        };
        let limit = patience.min(until.saturating_duration_since(Instant::now()));
        let error = match tokio::time::timeout(limit, called).await {
            Ok(Ok(answer)) => return Ok(answer.into_inner()),
            Ok(Err(status)) => CallError::new(&member.url, &status),
            Err(_) => CallError::timed_out(&member.url),
        };
        if error.outcome != Outcome::Refused {
            self.leave(at);
        }
        Err(error)
    }

    /// Asks one member after the other until one answers or the time is over. For what may be asked twice.
    pub(super) async fn ask<Q, A>(&self, path: &'static str, request: Q, until: Instant) -> Result<A, CallError>
    where
        Q: prost::Message + Clone + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let (mut asked, mut reason) = (0, None);
        loop {
            let error = match self.call(path, request.clone(), patience(asked), until).await {
                Err(error) if error.outcome != Outcome::Refused => error,
                done => return done,
            };
            asked += 1;
            // That the time was over says less than why.
            if reason.is_none() || error.code != Code::DeadlineExceeded {
                reason = Some(error);
            }
            if Instant::now() >= until
                && let Some(reason) = reason
            {
                return Err(reason);
            }
            self.pause(asked).await;
        }
    }

    /// After so many tries: once all members were asked, a moment must pass.
    pub(crate) async fn pause(&self, tries: usize) {
        if tries.is_multiple_of(self.members.len()) {
            tokio::time::sleep(PAUSE).await;
        }
    }

    pub(crate) async fn range(&self, request: RangeRequest, until: Instant) -> Result<RangeResponse, CallError> {
        self.ask("/etcdserverpb.KV/Range", request, until).await
    }

    /// Once, after so many that gave no answer: whether it may be sent again is the caller's to know.
    pub(crate) async fn txn(
        &self,
        request: TxnRequest,
        tried: usize,
        until: Instant,
    ) -> Result<TxnResponse, CallError> {
        let patience = patience(tried);
        self.call("/etcdserverpb.KV/Txn", request, patience, until).await
    }

    pub(crate) async fn compact(&self, revision: i64, until: Instant) -> Result<HeaderResponse, CallError> {
        let request = CompactionRequest {
            revision,
            physical: false,
        };
        self.ask("/etcdserverpb.KV/Compact", request, until).await
    }

    pub(crate) async fn grant(&self, ttl: i64, until: Instant) -> Result<LeaseGrantResponse, CallError> {
        let request = LeaseGrantRequest { ttl, id: 0 };
        self.ask("/etcdserverpb.Lease/LeaseGrant", request, until).await
    }

    pub(crate) async fn alarms(&self, until: Instant) -> Result<Vec<AlarmMember>, CallError> {
        let request = AlarmRequest {
            action: AlarmAction::Get as i32,
            ..AlarmRequest::default()
        };
        let answer: AlarmResponse = self.ask("/etcdserverpb.Maintenance/Alarm", request, until).await?;
        Ok(answer.alarms)
    }

    /// Follows one member, which ends the stream if it has no leader. The stream ends when it is dropped.
    pub(crate) async fn watch(&self, create: WatchCreateRequest) -> Result<WatchStream, CallError> {
        let (at, member) = self.member();
        let first = WatchRequest {
            request_union: Some(WatchRequestUnion::Create(create)),
        };
        let requests = futures::stream::iter([first]).chain(futures::stream::pending());
        let opened = async {
            let mut grpc = Client::grpc(member);
            let ready = grpc.ready().await;
            ready.map_err(|error| Status::from_error(Box::new(error)))?;
            let mut request = Request::new(requests);
            let metadata = request.metadata_mut();
            metadata.insert("hasleader", tonic::metadata::MetadataValue::from_static("true"));
            let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
            let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
            grpc.streaming(request, path, codec).await
        };
        let error = match tokio::time::timeout(CALL_TIMEOUT, opened).await {
            Ok(Ok(answer)) => {
                return Ok(WatchStream {
                    url: member.url.clone(),
                    at,
                    stream: answer.into_inner(),
                });
            }
            Ok(Err(status)) => CallError::new(&member.url, &status),
            Err(_) => CallError::timed_out(&member.url),
        };
        self.leave(at);
        Err(error)
    }

    /// The member of a watch is of no use any more.
    pub(crate) fn leave_member_of(&self, watch: &WatchStream) {
        self.leave(watch.at);
    }
}

pub(crate) struct WatchStream {
    url: String,
    at: usize,
    stream: Streaming<WatchResponse>,
}

impl WatchStream {
    pub(crate) async fn next(&mut self) -> Result<WatchResponse, CallError> {
        match self.stream.message().await {
            Ok(Some(response)) => Ok(response),
            Ok(None) => Err(CallError::new(&self.url, &Status::unavailable("the watch ended"))),
            Err(status) => Err(CallError::new(&self.url, &status)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_members() {
        let address = |host: &str, port, is_tls| {
            Ok(Address {
                host: host.to_string(),
                port,
                is_tls,
            })
        };
        for (url, wanted) in [
            ("http://127.0.0.1:2379", address("127.0.0.1", 2379, false)),
            ("https://etcd-1.example", address("etcd-1.example", 2379, true)),
            ("https://[fd00::1]:1234", address("fd00::1", 1234, true)),
        ] {
            assert_eq!(Address::parse(url), wanted);
        }
        for (url, reason) in [("ftp://a", "neither http nor https"), ("a b", "not a URL")] {
            assert_eq!(Address::parse(url).map_err(|e| e.reason), Err(reason), "{url}");
        }
    }

    #[test]
    fn what_may_have_happened_is_told_from_what_did_not() {
        let status = |code, message: &str| outcome(&Status::new(code, message));
        for (code, message, wanted) in [
            (
                Code::ResourceExhausted,
                "etcdserver: mvcc: database space exceeded",
                Outcome::Refused,
            ),
            (
                Code::ResourceExhausted,
                "etcdserver: too many requests",
                Outcome::NotDone,
            ),
            (Code::Unavailable, "etcdserver: no leader", Outcome::NotDone),
            (Code::Unavailable, "etcdserver: request timed out", Outcome::Unknown),
            (Code::Unavailable, "etcdserver: leader changed", Outcome::Unknown),
            (
                Code::InvalidArgument,
                "etcdserver: request is too large",
                Outcome::Refused,
            ),
            (Code::Unknown, "transport error", Outcome::Unknown),
        ] {
            assert_eq!(status(code, message), wanted, "{message}");
        }
        let refused = ConnectError::Io(std::io::ErrorKind::ConnectionRefused.into());
        let mut status = Status::unavailable("tcp connect error");
        status.set_source(Arc::new(refused));
        assert_eq!(outcome(&status), Outcome::NotDone);
    }
}

//! Which call of which service is what. Without generated code: a table of paths.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use futures::StreamExt;
use futures::future::ready;
use futures::stream::BoxStream;
use http_body_util::BodyExt;
use prost::Message;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::errors::Error;
use crate::messages::*;
use crate::server::Server;
use crate::watch;

/// Beside the value that a request may carry at most. Upstream: grpcOverheadBytes.
const OVERHEAD: usize = 512 * 1024;

type Incoming = http::Request<hyper::body::Incoming>;
type Outgoing = http::Response<Body>;
type Answered<A> = Result<Response<A>, Status>;

/// How many bytes a message may have.
#[derive(Clone, Copy)]
struct Limit(usize);

async fn unary<Q, A, F>(limit: Limit, request: Incoming, call: impl FnOnce(Q) -> F + Send) -> Outgoing
where
    Q: Message + Default + Send + 'static,
    A: Message + Default + Send + 'static,
    F: Future<Output = Result<A, Error>> + Send,
{
    let mut call = Some(call);
    let service = tower::service_fn(|request: Request<Q>| {
        let answer = call.take().map(|call| call(request.into_inner()));
        async move {
            match answer {
                Some(answer) => Ok(Response::new(answer.await?)),
                None => Err(Status::internal("called twice")),
            }
        }
    });
    let mut grpc = Grpc::new(ProstCodec::<A, Q>::default()).max_decoding_message_size(limit.0);
    grpc.unary(service, request).await
}

/// One request, many answers.
async fn server_stream<Q, A, F>(limit: Limit, request: Incoming, call: impl FnOnce(Q) -> F + Send) -> Outgoing
where
    Q: Message + Default + Send + 'static,
    A: Message + Default + Send + 'static,
    F: Future<Output = Result<BoxStream<'static, Result<A, Status>>, Error>> + Send,
{
    let mut call = Some(call);
    let service = tower::service_fn(|request: Request<Q>| {
        let answer = call.take().map(|call| call(request.into_inner()));
        async move {
            match answer {
                Some(answer) => Ok(Response::new(answer.await?)),
                None => Err(Status::internal("called twice")),
            }
        }
    });
    let mut grpc = Grpc::new(ProstCodec::<A, Q>::default()).max_decoding_message_size(limit.0);
    grpc.server_streaming(service, request).await
}

/// Many requests, many answers.
async fn streams<Q, A>(
    limit: Limit,
    request: Incoming,
    call: impl Fn(Streaming<Q>) -> BoxStream<'static, Result<A, Status>> + Send + Sync,
) -> Outgoing
where
    Q: Message + Default + Send + 'static,
    A: Message + Default + Send + 'static,
{
    let service = tower::service_fn(|request: Request<Streaming<Q>>| {
        let answers: Answered<_> = Ok(Response::new(call(request.into_inner())));
        ready(answers)
    });
    let mut grpc = Grpc::new(ProstCodec::<A, Q>::default()).max_decoding_message_size(limit.0);
    grpc.streaming(service, request).await
}

async fn refused(limit: Limit, request: Incoming, error: Error) -> Outgoing {
    unary(limit, request, |_: Empty| ready(Err::<Empty, _>(error))).await
}

const ONE_MEMBER: Error = Error::Unsupported("this member is the only one there can be");
const NO_FILE: Error =
    Error::Unsupported("there is no database file to send; copy the data directory of a stopped member");
const NO_DOWNGRADE: Error = Error::Unsupported("there is no version to downgrade to");
const NO_AUTH: Error =
    Error::Unsupported("users and roles are not there; let clients in by their certificates (--client-cert-auth)");

/// Answers a call.
pub(crate) async fn call(server: Arc<Server>, request: Incoming) -> Result<Outgoing, Infallible> {
    let limit = Limit(server.settings.max_request_bytes + OVERHEAD);
    let path = request.uri().path().to_string();
    let Some((service, method)) = path.strip_prefix('/').and_then(|path| path.split_once('/')) else {
        return Ok(unknown(&path));
    };
    let s = server;
    let answer = match service {
        "etcdserverpb.KV" => kv(s, method, limit, request).await,
        "etcdserverpb.Watch" if method == "Watch" => {
            let answers = move |requests| ReceiverStream::new(watch::serve(s.clone(), requests)).boxed();
            Some(streams(limit, request, answers).await)
        }
        "etcdserverpb.Lease" => lease(s, method, limit, request).await,
        "etcdserverpb.Cluster" => cluster(s, method, limit, request).await,
        "etcdserverpb.Maintenance" => maintenance(s, method, limit, request).await,
        "etcdserverpb.Auth" => auth(s, method, limit, request).await,
        "grpc.health.v1.Health" => health(s, method, limit, request).await,
        _ => None,
    };
    Ok(answer.unwrap_or_else(|| unknown(&path)))
}

fn unknown(path: &str) -> Outgoing {
    let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or((path, ""));
    Status::unimplemented(format!("unknown service or method {method} of {service}")).into_http()
}

async fn kv(s: Arc<Server>, method: &str, limit: Limit, request: Incoming) -> Option<Outgoing> {
    Some(match method {
        "Range" => unary(limit, request, |q: RangeRequest| ready(s.range(&q))).await,
        "Put" => unary(limit, request, |q: PutRequest| async move { s.put(q).await }).await,
        "DeleteRange" => {
            unary(limit, request, |q: DeleteRangeRequest| async move {
                s.delete_range(q).await
            })
            .await
        }
        "Txn" => unary(limit, request, |q: TxnRequest| async move { s.txn(q).await }).await,
        "Compact" => {
            unary(
                limit,
                request,
                |q: CompactionRequest| async move { s.compact(&q).await },
            )
            .await
        }
        _ => return None,
    })
}

async fn lease(s: Arc<Server>, method: &str, limit: Limit, request: Incoming) -> Option<Outgoing> {
    Some(match method {
        "LeaseGrant" => {
            unary(
                limit,
                request,
                |q: LeaseGrantRequest| async move { s.lease_grant(&q).await },
            )
            .await
        }
        "LeaseRevoke" => {
            unary(
                limit,
                request,
                |q: LeaseIdRequest| async move { s.lease_revoke(q.id).await },
            )
            .await
        }
        "LeaseTimeToLive" => {
            unary(limit, request, |q: LeaseTimeToLiveRequest| async move {
                Ok(s.lease_time_to_live(&q).await)
            })
            .await
        }
        "LeaseLeases" => unary(limit, request, |_: Empty| ready(Ok(s.lease_leases()))).await,
        "LeaseKeepAlive" => {
            let answers = move |requests: Streaming<LeaseIdRequest>| {
                let s = s.clone();
                let stopping = s.stopping.clone();
                let answers = requests.map(move |request| Ok(s.lease_keep_alive(request?.id)));
                answers.take_until(async move { stopping.wait().await }).boxed()
            };
            streams(limit, request, answers).await
        }
        _ => return None,
    })
}

async fn cluster(s: Arc<Server>, method: &str, limit: Limit, request: Incoming) -> Option<Outgoing> {
    Some(match method {
        "MemberList" => unary(limit, request, |_: Empty| ready(Ok(s.member_list()))).await,
        "MemberAdd" | "MemberRemove" | "MemberUpdate" | "MemberPromote" => refused(limit, request, ONE_MEMBER).await,
        _ => return None,
    })
}

async fn maintenance(s: Arc<Server>, method: &str, limit: Limit, request: Incoming) -> Option<Outgoing> {
    Some(match method {
        "Status" => unary(limit, request, |_: Empty| ready(Ok(s.status()))).await,
        "Alarm" => unary(limit, request, |q: AlarmRequest| async move { s.alarm(&q).await }).await,
        // The log is shortened by itself: there is nothing to do.
        "Defragment" => unary(limit, request, |_: Empty| ready(Ok(s.empty()))).await,
        "Hash" => {
            unary(limit, request, |_: Empty| {
                ready(s.hash_kv(&HashKvRequest { revision: 0 }))
            })
            .await
        }
        "HashKV" => unary(limit, request, |q: HashKvRequest| ready(s.hash_kv(&q))).await,
        "MoveLeader" => {
            let call = |q: MoveLeaderRequest| {
                let moved = q.target_id == s.member_id();
                ready(moved.then(|| s.empty()).ok_or(Error::BadLeaderTransferee))
            };
            unary(limit, request, call).await
        }
        "Snapshot" => refused(limit, request, NO_FILE).await,
        "Downgrade" => refused(limit, request, NO_DOWNGRADE).await,
        _ => return None,
    })
}

async fn auth(s: Arc<Server>, method: &str, limit: Limit, request: Incoming) -> Option<Outgoing> {
    Some(match method {
        "AuthStatus" => {
            let status = AuthStatusResponse {
                header: s.empty().header,
                enabled: false,
                auth_revision: 1,
            };
            unary(limit, request, |_: Empty| ready(Ok(status))).await
        }
        "Authenticate" => refused(limit, request, Error::AuthNotEnabled).await,
        // It is off already.
        "AuthDisable" | "UserList" | "RoleList" => unary(limit, request, |_: Empty| ready(Ok(s.empty()))).await,
        "AuthEnable"
        | "UserAdd"
        | "UserGet"
        | "UserDelete"
        | "UserChangePassword"
        | "UserGrantRole"
        | "UserRevokeRole"
        | "RoleAdd"
        | "RoleGet"
        | "RoleDelete"
        | "RoleGrantPermission"
        | "RoleRevokePermission" => refused(limit, request, NO_AUTH).await,
        _ => return None,
    })
}

fn health_now(server: &Server) -> HealthCheckResponse {
    HealthCheckResponse {
        status: match server.trouble() {
            None => 1,
            Some(_) => 2,
        },
    }
}

async fn health(s: Arc<Server>, method: &str, limit: Limit, request: Incoming) -> Option<Outgoing> {
    Some(match method {
        "Check" => unary(limit, request, |_: HealthCheckRequest| ready(Ok(health_now(&s)))).await,
        "Watch" => {
            // What it is now; a stream that stays open says that nothing has changed.
            let call = |_: HealthCheckRequest| {
                let first = futures::stream::iter([Ok(health_now(&s))]);
                let stopping = s.stopping.clone();
                let rest = futures::stream::once(async move {
                    stopping.wait().await;
                    Ok(HealthCheckResponse { status: 2 })
                });
                ready(Ok(first.chain(rest).boxed()))
            };
            server_stream(limit, request, call).await
        }
        _ => return None,
    })
}

/// A body without trailers, for plain HTTP.
pub(crate) fn text(status: http::StatusCode, content_type: &'static str, body: String) -> Outgoing {
    let body = http_body_util::Full::new(bytes::Bytes::from(body)).map_err(|never| match never {});
    let mut response = http::Response::new(Body::new(body));
    *response.status_mut() = status;
    let content_type = http::HeaderValue::from_static(content_type);
    response.headers_mut().insert(http::header::CONTENT_TYPE, content_type);
    response
}

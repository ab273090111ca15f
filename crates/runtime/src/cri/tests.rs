//! Against a small server of our own, for what the containerd of the black-box tests does not do.

use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;

use futures::future::{BoxFuture, Ready, ready};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tokio::net::UnixListener;
use tonic::server::{Grpc, ServerStreamingService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::CriRuntime;
use super::messages::*;
use crate::{Code, Event, Runtime};

/// Which calls the server knows.
#[derive(Clone, Copy)]
struct Knows {
    cri_events: bool,
    /// It ends the stream of events at once, as CRI-O does where they are off.
    ends_events: bool,
    /// The size of the one image's name in its list.
    image_bytes: usize,
}

/// Whether there are any.
struct Events(bool);

impl ServerStreamingService<GetEventsRequest> for Events {
    type Response = ContainerEventResponse;
    type ResponseStream = BoxStream<'static, Result<ContainerEventResponse, Status>>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, _: Request<GetEventsRequest>) -> Self::Future {
        let any = self.0;
        let event = |id: &str| ContainerEventResponse {
            container_id: id.to_string(),
            pod_sandbox_status: Some(PodSandboxStatus {
                id: "s".to_string(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let events = [Ok(event("c")), Ok(event("s")), Err(Status::aborted("restart"))];
        let events = futures::stream::iter(events.into_iter().filter(move |_| any));
        ready(Ok(Response::new(events.boxed())))
    }
}

struct Images(usize);

impl UnaryService<ListImagesRequest> for Images {
    type Response = ListImagesResponse;
    type Future = Ready<Result<Response<ListImagesResponse>, Status>>;

    fn call(&mut self, _: Request<ListImagesRequest>) -> Self::Future {
        let image = Image {
            id: "x".repeat(self.0),
            ..Default::default()
        };
        ready(Ok(Response::new(ListImagesResponse { images: vec![image] })))
    }
}

fn serve(path: &Path, knows: Knows) -> CriRuntime {
    let listener = UnixListener::bind(path).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = tower::service_fn(move |request: http::Request<_>| -> BoxFuture<'static, _> {
                let answer = async move {
                    let call = request.uri().path().to_string();
                    let answer = match call.rsplit('/').next().unwrap() {
                        "GetContainerEvents" if knows.cri_events => {
                            let events = Events(!knows.ends_events);
                            Grpc::new(ProstCodec::default()).server_streaming(events, request).await
                        }
                        "ListImages" => {
                            let images = Images(knows.image_bytes);
                            Grpc::new(ProstCodec::default()).unary(images, request).await
                        }
                        other => Status::unimplemented(format!("unknown method {other}")).into_http(),
                    };
                    Ok::<_, Infallible>(answer)
                };
                answer.boxed()
            });
            tokio::spawn(async move {
                let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new()).http2_only();
                let served = server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
                drop(served.await);
            });
        }
    });
    CriRuntime::connect(path.to_str().unwrap()).unwrap()
}

const KNOWS: Knows = Knows {
    cri_events: true,
    ends_events: false,
    image_bytes: 1,
};

#[tokio::test]
async fn events_of_the_interface_itself() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = serve(&directory.path().join("c.sock"), KNOWS);
    let events: Vec<Event> = runtime.events().await.unwrap().collect().await;
    let event = |container: &str| Event {
        sandbox: Some("s".to_string()),
        container: container.to_string(),
    };
    assert_eq!(events, [event("c"), event("s")], "and then the stream ends");
}

#[tokio::test]
async fn a_runtime_without_events_is_silent() {
    let directory = tempfile::tempdir().unwrap();
    let knows = Knows {
        cri_events: false,
        ..KNOWS
    };
    let runtime = serve(&directory.path().join("c.sock"), knows);
    let mut events = runtime.events().await.unwrap();
    assert!(events.next().now_or_never().is_none(), "neither news nor an end");
    let unknown = runtime.cgroup_driver().await.unwrap_err();
    assert_eq!(
        (unknown.code, unknown.message.as_str()),
        (Code::Unimplemented, "unknown method Status")
    );
}

#[tokio::test]
async fn a_runtime_whose_events_are_off_is_silent() {
    let directory = tempfile::tempdir().unwrap();
    let knows = Knows {
        ends_events: true,
        ..KNOWS
    };
    let runtime = serve(&directory.path().join("c.sock"), knows);
    let mut events = runtime.events().await.unwrap();
    assert_eq!(events.next().await, None);
    // Asked again, it is taken for one that has none.
    let mut events = runtime.events().await.unwrap();
    assert!(events.next().now_or_never().is_none(), "neither news nor an end");
    tokio::time::pause();
    assert_eq!(events.next().await, None, "an end in time, to be asked again");
}

#[tokio::test]
async fn long_lists_fit_and_endless_ones_do_not() {
    for (megabytes, fits) in [(5, true), (15, true), (17, false)] {
        let directory = tempfile::tempdir().unwrap();
        let knows = Knows {
            image_bytes: megabytes << 20,
            ..KNOWS
        };
        let runtime = serve(&directory.path().join("c.sock"), knows);
        let answer = tokio::time::timeout(Duration::from_secs(60), runtime.list_images())
            .await
            .unwrap();
        assert_eq!(
            answer.as_ref().err().map(|e| e.code),
            (!fits).then_some(Code::Other),
            "{megabytes} MB"
        );
    }
}

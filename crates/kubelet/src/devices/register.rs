//! The socket at which plugins register.

use std::sync::Arc;

use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::Devices;
use super::messages::{Empty, Register};

/// Plugins that may talk to us at once; they say one sentence each.
const MOST: usize = 32;

/// A new socket, whatever was there: plugins take that as a sign that they have to register again.
pub(super) fn listen(devices: Devices) -> Result<(), String> {
    let socket = devices.socket();
    match std::fs::remove_file(&socket) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(format!("{} can't be removed: {error}", socket.display()));
        }
        _ => {}
    }
    let listener = UnixListener::bind(&socket).map_err(|e| format!("{} can't be made: {e}", socket.display()))?;
    let shutdown = devices.inner.shutdown.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = accept(listener, devices) => {}
            () = shutdown.wait() => {}
        }
    });
    Ok(())
}

async fn accept(listener: UnixListener, devices: Devices) {
    let places = Arc::new(Semaphore::new(MOST));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let devices = devices.clone();
                tokio::spawn(async move {
                    let _place = place;
                    let shutdown = devices.inner.shutdown.clone();
                    tokio::select! {
                        () = serve(stream, devices) => {}
                        () = shutdown.wait() => {}
                    }
                });
            }
            Err(error) => {
                tracing::warn!("plugins can't register: {error}");
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            }
        }
    }
}

async fn serve(stream: UnixStream, devices: Devices) {
    let service = hyper::service::service_fn(move |request| {
        let devices = devices.clone();
        async move { Ok::<_, std::convert::Infallible>(answer(devices, request).await) }
    });
    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!("a plugin's connection broke: {error}");
    }
}

async fn answer(devices: Devices, request: http::Request<hyper::body::Incoming>) -> http::Response<tonic::body::Body> {
    if request.uri().path() != "/v1beta1.Registration/Register" {
        return Status::unimplemented(format!("unknown method {}", request.uri().path())).into_http();
    }
    let service = tower::service_fn(move |request: Request<Register>| {
        let devices = devices.clone();
        async move {
            let added = devices.add_plugin(request.into_inner());
            added.map(|()| Response::new(Empty {})).map_err(|error| {
                tracing::warn!("a device plugin was refused: {error}");
                Status::unknown(error)
            })
        }
    });
    let codec = ProstCodec::<Empty, Register>::default();
    tonic::server::Grpc::new(codec).unary(service, request).await
}

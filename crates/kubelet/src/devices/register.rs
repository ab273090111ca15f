//! The registration server of device plugins.

use std::sync::Arc;

use prost::Message;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use super::messages::Register;
use super::{DeviceError, Devices, RegistrationError, wire};

/// Concurrent connections of plugins; each sends one request.
const MOST: usize = 32;

/// Recreates the socket: plugins take that as a sign to register again.
pub(super) fn listen(devices: Devices) -> Result<(), DeviceError> {
    let socket = devices.socket();
    match std::fs::remove_file(&socket) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(DeviceError::checkpoint("remove", &socket, error));
        }
        _ => {}
    }
    let listener = UnixListener::bind(&socket).map_err(|e| DeviceError::checkpoint("listen on", &socket, e))?;
    let shutdown = devices.inner.shutdown.clone();
    orlop_base::spawn(async move {
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
                tracing::warn!(err = %error, "failed to accept a device plugin's connection");
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            }
        }
    }
}

async fn serve(stream: UnixStream, devices: Devices) {
    let answer = |message: &[u8]| {
        let registered = Register::decode(message)
            .map_err(RegistrationError::from)
            .and_then(|request| devices.add_plugin(request));
        registered.inspect_err(|error| {
            tracing::warn!(err = %error, "rejected device plugin registration");
        })
    };
    if let Err(error) = wire::serve(stream, answer).await {
        tracing::debug!(err = %error, "lost a device plugin's connection");
    }
}

use http::Request;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio_tungstenite::tungstenite::Message;

use super::{exchange, noise, serve, websocket};
use crate::spdy::{Connection, Side};
use crate::websocket::Tunnel;
use crate::{IDLE_DEFAULT, Pipe, PortForward, port_forward_over, serve_port_forward};

/// A pod with three ports: 1 echoes and says goodbye after the end of input, 2 sends and closes without reading, and
/// nobody listens on the others.
async fn open(port: u16) -> Result<Box<dyn Pipe>, String> {
    if port > 2 {
        return Err(format!("error forwarding port {port} to pod: connection refused"));
    }
    let (near, mut far) = duplex(4 << 10);
    tokio::spawn(async move {
        if port == 1 {
            let (mut source, mut sink) = tokio::io::split(far);
            tokio::io::copy(&mut source, &mut sink).await.unwrap();
            sink.write_all(b"bye").await.unwrap();
            sink.shutdown().await.unwrap();
        } else {
            far.write_all(b"read this").await.unwrap();
        }
    });
    Ok(Box::new(near))
}

fn server() -> DuplexStream {
    serve(|request| serve_port_forward(request, IDLE_DEFAULT, open))
}

async fn check(ports: PortForward) {
    let payload = noise(1 << 20);
    let one = async |payload: &[u8]| {
        let (mut source, mut sink) = tokio::io::split(ports.open(1).await.unwrap());
        let writing = async {
            sink.write_all(payload).await.unwrap();
            sink.shutdown().await.unwrap();
        };
        let mut received = Vec::new();
        let (read, ()) = tokio::join!(source.read_to_end(&mut received), writing);
        read.unwrap();
        assert!(received == [payload, b"bye"].concat(), "{} bytes", received.len());
    };
    // At once, over one connection.
    tokio::join!(one(&payload), one(&payload[..777_777]), one(b""));

    let mut received = String::new();
    ports
        .open(2)
        .await
        .unwrap()
        .read_to_string(&mut received)
        .await
        .unwrap();
    assert_eq!(received, "read this");

    let error = ports
        .open(3)
        .await
        .unwrap()
        .read_to_string(&mut received)
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "error forwarding port 3 to pod: connection refused");
    one(b"still works").await;
}

#[tokio::test]
async fn over_spdy() {
    let request = Request::get("/portForward").body(()).unwrap();
    check(port_forward_over(server(), request).await.unwrap()).await;
}

#[tokio::test]
async fn over_spdy_inside_websocket() {
    let socket = websocket(server(), "/portForward", "SPDY/3.1+portforward.k8s.io").await;
    check(PortForward::new(Connection::start(Tunnel::new(socket), Side::Client).0)).await;
}

#[tokio::test]
async fn over_websocket_channels() {
    let socket = websocket(server(), "/portForward?port=2,3", "v4.channel.k8s.io").await;
    let received = exchange(socket, vec![]).await;
    let channel = |number: u8| {
        let data = received.iter().map(|message: &Message| message.clone().into_data());
        data.filter(|data| data[0] == number)
            .flat_map(|data| data[1..].to_vec())
            .collect::<Vec<u8>>()
    };
    assert_eq!(channel(0), b"\x02\x00read this");
    assert_eq!(channel(1), b"\x02\x00");
    assert_eq!(channel(2), b"\x03\x00");
    assert_eq!(
        channel(3),
        b"\x03\x00error forwarding port 3 to pod: connection refused"
    );
}

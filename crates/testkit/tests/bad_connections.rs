//! Bytes that are hardly HTTP, on connections that nobody closes properly: the server is there for the next one.

use std::time::Duration;

use orlop_testkit::{Http, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn connections_that_misbehave() {
    let server = Server::with_accounts();
    let identity = server.identity();
    let long = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(1 << 20));
    let many = format!(
        "GET /version HTTP/1.1\r\nhost: x\r\n{}\r\n",
        "x-header: y\r\n".repeat(10_000)
    );
    let talks: Vec<&[u8]> = vec![
        b"\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /version HTTP/1.1\r\n\r\n",
        b"GET /version HTTP/1.1\r\nhost: x\r\nhost: y\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        b"POST /api/v1/namespaces HTTP/1.1\r\nhost: x\r\ncontent-length: 18446744073709551616\r\n\r\n",
        b"POST /api/v1/namespaces HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST /api/v1/namespaces HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{\"short\":",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /api/v1/namespaces?watch=true HTTP/1.1\r\nhost: x\r\n\r\n",
        &[0x16, 0x03, 0x01, 0xff, 0xff, 0x00],
        long.as_bytes(),
        many.as_bytes(),
    ];
    for talk in talks {
        let mut connection = identity.raw().await.expect("the server still listens");
        // It may hang up in the middle of this: fine.
        let _ = connection.write_all(talk).await;
        let mut answer = vec![0; 64];
        let read = tokio::time::timeout(Duration::from_millis(200), connection.read(&mut answer)).await;
        if let Ok(Ok(n)) = read
            && n > 0
        {
            let start = String::from_utf8_lossy(&answer[..n]).into_owned();
            assert!(start.starts_with("HTTP/1.") && !start.contains(" 500 "), "{start}");
        }
    }
    // Half a handshake, and none at all.
    let address = identity.url.strip_prefix("https://").unwrap();
    let mut silent = vec![];
    for _ in 0..50 {
        let mut plain = tokio::net::TcpStream::connect(address).await.unwrap();
        let _ = plain.write_all(b"\x16\x03\x01\x02\x00\x01\x00").await;
        silent.push(plain);
    }
    let http = Http::connect(&identity).await.unwrap();
    http.get("/readyz").await;
    let log = server.log();
    assert!(!log.contains("panicked"), "{log}");
}

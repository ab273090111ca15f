//! Bytes that are hardly HTTP, on connections that nobody closes properly: the server is there for the next one.

use std::time::Duration;

use orlop_testkit::{Http, Identity, Launch, Server};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

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

/// As many open files as the machine allows; and when they are used up, by connections on which nobody ever said who they
/// are, those give way to whoever comes next.
#[tokio::test]
async fn silent_connections_take_nobodys_place() {
    let server = Server::with_accounts();
    let identity = server.identity();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<&str> = files.split_whitespace().filter(|w| w.parse::<u64>().is_ok()).collect();
    assert_eq!(numbers[0], numbers[1], "{files}");
    server.run(&format!("prlimit --pid {} --nofile=128:128", server.pid()));
    let stranger = identity.clone().anonymous();
    let mut silent = vec![];
    for _ in 0..200 {
        // Where the server has no file left for it, it waits to be accepted.
        if let Ok(Ok(connection)) = tokio::time::timeout(Duration::from_millis(300), stranger.raw()).await {
            silent.push(connection);
        }
    }
    let honest = async {
        let http = Http::connect(&identity).await.unwrap();
        http.get("/api/v1/namespaces/default").await.expect(200);
        http.get("/metrics").await.text()
    };
    let metrics = tokio::time::timeout(Duration::from_secs(10), honest)
        .await
        .expect("an answer");
    let value = |name: &str| {
        let line = metrics
            .lines()
            .find(|line| line.starts_with(name))
            .expect("the metric is there");
        line.rsplit(' ')
            .next()
            .and_then(|n| n.parse::<u64>().ok())
            .expect("a number")
    };
    assert!(value("apiserver_connections_shed_total ") > 0);
    assert!(value("apiserver_open_connections{authenticated=\"false\"}") > 0);
    assert!(value("apiserver_open_connections{authenticated=\"true\"}") > 0);
}

#[tokio::test]
async fn plain_http_is_told_to_use_tls() {
    let server = Launch::apiserver().start();
    let identity = server.identity();
    let address = identity.url.strip_prefix("https://").unwrap();
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain
        .write_all(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    plain.read_to_string(&mut answer).await.unwrap();
    assert_eq!(
        answer,
        "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
    );
}

fn token(server: &Server, account: &str) -> Identity {
    server.run(&format!("kubectl create serviceaccount {account}"));
    let token = server.run(&format!("kubectl create token {account}"));
    server.identity().with_token(token.trim())
}

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

#[tokio::test]
async fn bodies_that_never_end_hold_no_place() {
    let server = Launch::apiserver().arg("--max-mutating-requests-inflight=4").start();
    let (hostile, honest) = (token(&server, "hostile"), token(&server, "honest"));
    let mut halves = vec![];
    for _ in 0..16 {
        let mut connection = hostile.raw().await.unwrap();
        let head = format!(
            "POST {REVIEWS} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: 1000\r\n\r\n{{\"kind\":",
            hostile.token.as_deref().unwrap()
        );
        connection.write_all(head.as_bytes()).await.unwrap();
        connection.flush().await.unwrap();
        halves.push(connection);
    }
    // All of them have been looked at once a request on the last connection of all is answered.
    let http = Http::connect(&honest).await.unwrap();
    http.get("/version").await.expect(200);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}},
    });
    for _ in 0..8 {
        http.post(REVIEWS, &review).await.expect(201);
    }
    drop(halves);
}

/// Who sends much is told why it is not wanted, though it has not sent all of it when the answer is known.
#[test]
fn large_bodies_that_are_refused_are_answered() {
    let server = Launch::apiserver().start();
    let curl = server.curl();
    let nobody = {
        server.run("kubectl create serviceaccount nobody");
        server.run("kubectl create token nobody").trim().to_string()
    };
    std::fs::write(server.home().join("large"), vec![b' '; 12 << 20]).unwrap();
    let url = format!("{}/api/v1/namespaces/default/configmaps", server.url());
    for protocol in ["--http1.1", "--http2"] {
        // With and without a length, and with nothing that makes curl wait before it sends.
        for framing in ["", "-H 'Transfer-Encoding: chunked'"] {
            if protocol == "--http2" && !framing.is_empty() {
                continue;
            }
            let line = format!(
                "{curl} {protocol} {framing} -H Expect: -H 'Content-Type: application/json' \
                 -w '%{{http_code}}' -o answer --data-binary @large {url}"
            );
            assert_eq!(server.run(&line), "413", "{line}");
            let answer = std::fs::read_to_string(server.home().join("answer")).unwrap();
            assert!(answer.contains("limit is 3145728"), "{answer}");
        }
        let line = format!(
            "curl -sS --cacert ca.crt {protocol} -H Expect: -H 'Authorization: Bearer {nobody}' \
             -H 'Content-Type: application/json' -w '%{{http_code}}' -o answer --data-binary @large {url}"
        );
        assert_eq!(server.run(&line), "403", "{line}");
    }
}

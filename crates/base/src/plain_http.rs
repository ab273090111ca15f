//! Somebody who speaks HTTP to a port for HTTPS is told so, as Go's servers do.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The first bytes of requests. Upstream: what Go's crypto/tls takes for HTTP.
const BEGINNINGS: [&[u8; 5]; 5] = [b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO"];
const ANSWER: &[u8] = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
/// Between two looks at what has come of the first bytes.
const LOOK: Duration = Duration::from_millis(5);
/// What is read of a request that is not served, so that its client gets to see the answer.
const DRAINED: u64 = 256 * 1024;
const DRAIN: Duration = Duration::from_millis(500);

/// Whether the client begins with a plain request, which is then answered. Takes nothing from the stream otherwise.
/// Waits for the first bytes: the caller says how long.
pub async fn refused(stream: &mut TcpStream) -> io::Result<bool> {
    if !is_plain(stream).await? {
        return Ok(false);
    }
    stream.write_all(ANSWER).await?;
    stream.shutdown().await?;
    let mut rest = stream.take(DRAINED);
    let _ = tokio::time::timeout(DRAIN, tokio::io::copy(&mut rest, &mut tokio::io::sink())).await;
    Ok(true)
}

async fn is_plain(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0; 5];
    loop {
        let n = stream.peek(&mut first).await?;
        let begins = |word: &&[u8; 5]| word.starts_with(&first[..n]);
        if n == 0 || !BEGINNINGS.iter().any(begins) {
            return Ok(false);
        }
        if n == first.len() {
            return Ok(true);
        }
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn requests_are_answered_and_handshakes_left_alone() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        for (said, plain) in [
            (&b"GET /version HTTP/1.1\r\n\r\n"[..], true),
            (b"POST / HTTP/1.1\r\n\r\n", true),
            (b"\x16\x03\x01\x02\x00\x01", false),
            (b"PING 12345", false),
        ] {
            let mut client = TcpStream::connect(address).await.unwrap();
            let (mut stream, _) = listener.accept().await.unwrap();
            // In two parts, as it may come.
            client.write_all(&said[..2]).await.unwrap();
            let asked = tokio::spawn(async move {
                let is_plain = refused(&mut stream).await.unwrap();
                let mut next = [0];
                if !is_plain {
                    stream.read_exact(&mut next).await.unwrap();
                }
                (is_plain, next[0], stream)
            });
            tokio::task::yield_now().await;
            client.write_all(&said[2..]).await.unwrap();
            if plain {
                let mut answer = String::new();
                client.read_to_string(&mut answer).await.unwrap();
                assert!(answer.starts_with("HTTP/1.0 400 Bad Request\r\n\r\n"));
                assert!(answer.ends_with("Client sent an HTTP request to an HTTPS server.\n"));
            }
            let (is_plain, next, _stream) = asked.await.unwrap();
            assert_eq!(is_plain, plain);
            assert!(plain || next == said[0], "nothing is taken from a handshake");
        }
    }
}

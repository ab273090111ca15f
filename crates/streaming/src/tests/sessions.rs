use std::future::Future;
use std::pin::Pin;

use http::Request;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split};
use tokio::sync::{mpsc, oneshot};
use tokio_tungstenite::tungstenite::Message;

use super::{exchange, noise, serve, websocket};
use crate::{
    ConnectError, Exit, IDLE_DEFAULT, OpenError, Pipe, Session, Streams, TerminalSize, serve_session, session_over,
};

const ALL: Streams = Streams {
    stdin: true,
    stdout: true,
    stderr: true,
    tty: false,
};
const TERMINAL: Streams = Streams {
    stderr: false,
    tty: true,
    ..ALL
};

type Program =
    fn(DuplexStream, DuplexStream, mpsc::Receiver<TerminalSize>) -> Pin<Box<dyn Future<Output = Exit> + Send>>;

/// Runs a program with its end of stdin and stdout, its end of stderr, and the sizes of its terminal.
fn run(program: Program) -> Session {
    let (near, far) = duplex(4 << 10);
    let (near_error, far_error) = duplex(4 << 10);
    let (resize, sizes) = mpsc::channel(4);
    let (stdout, stdin) = split(near);
    let exit = tokio::spawn(program(far, far_error, sizes));
    Session {
        stdin: Some(Box::new(stdin)),
        stdout: Some(Box::new(stdout)),
        stderr: Some(Box::new(near_error)),
        resize: Some(resize),
        exit: Box::pin(async { exit.await.unwrap() }),
    }
}

fn server(streams: Streams, program: Program) -> DuplexStream {
    serve(move |request| serve_session(request, streams, IDLE_DEFAULT, move || async move { Ok(run(program)) }))
}

async fn connect(io: impl Pipe + 'static, streams: Streams) -> Result<Session, ConnectError> {
    session_over(io, Request::get("/exec").body(()).unwrap(), streams).await
}

/// Echoes, then says goodbye on both outputs: what comes after the end of input must arrive too.
fn cat(
    mut io: DuplexStream,
    mut error: DuplexStream,
    _: mpsc::Receiver<TerminalSize>,
) -> Pin<Box<dyn Future<Output = Exit> + Send>> {
    Box::pin(async move {
        let mut buffer = vec![0; 5000];
        loop {
            match io.read(&mut buffer).await.unwrap() {
                0 => break,
                count => io.write_all(&buffer[..count]).await.unwrap(),
            }
        }
        io.write_all(b"bye").await.unwrap();
        // Nobody may listen.
        let _ = error.write_all(b"sigh").await;
        Exit::Code(7)
    })
}

/// Ends after three sizes and prints them.
fn stty(
    mut io: DuplexStream,
    _: DuplexStream,
    mut sizes: mpsc::Receiver<TerminalSize>,
) -> Pin<Box<dyn Future<Output = Exit> + Send>> {
    Box::pin(async move {
        for _ in 0..3 {
            let size = sizes.recv().await.unwrap();
            io.write_all(format!("{}x{} ", size.width, size.height).as_bytes())
                .await
                .unwrap();
        }
        Exit::Code(0)
    })
}

async fn read_all(from: &mut Option<Box<dyn tokio::io::AsyncRead + Send + Unpin>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    from.as_mut().unwrap().read_to_end(&mut bytes).await.unwrap();
    bytes
}

#[tokio::test]
async fn spdy_carries_every_byte_and_half_closes() {
    let mut session = connect(server(ALL, cat), ALL).await.unwrap();
    let sent = noise(3 << 20);
    let (mut stdin, mut expected) = (session.stdin.take().unwrap(), sent.clone());
    let writing = tokio::spawn(async move {
        stdin.write_all(&sent).await.unwrap();
        stdin.shutdown().await.unwrap();
        stdin
    });
    let received = read_all(&mut session.stdout).await;
    expected.extend_from_slice(b"bye");
    assert!(received == expected, "{} of {} bytes", received.len(), expected.len());
    assert_eq!(read_all(&mut session.stderr).await, b"sigh");
    assert_eq!(session.exit.await, Exit::Code(7));
    drop(writing.await.unwrap());
}

#[tokio::test]
async fn spdy_resizes_terminals() {
    let mut session = connect(server(TERMINAL, stty), TERMINAL).await.unwrap();
    assert!(session.stderr.is_none());
    for (width, height) in [(80, 24), (132, 50), (1, 65535)] {
        session
            .resize
            .as_ref()
            .unwrap()
            .send(TerminalSize { width, height })
            .await
            .unwrap();
    }
    assert_eq!(read_all(&mut session.stdout).await, b"80x24 132x50 1x65535 ");
    assert_eq!(session.exit.await, Exit::Code(0));
}

#[tokio::test]
async fn client_and_container_may_disagree_about_a_terminal() {
    // The client thinks there is none: it opens stderr and no stream of sizes. And the other way round.
    for (client, server_side) in [(ALL, TERMINAL), (TERMINAL, Streams { stderr: false, ..ALL })] {
        let mut session = connect(server(server_side, cat), client).await.unwrap();
        if let Some(resize) = &session.resize {
            resize.send(TerminalSize { width: 1, height: 1 }).await.unwrap();
        }
        let mut stdin = session.stdin.take().unwrap();
        stdin.write_all(b"hello ").await.unwrap();
        stdin.shutdown().await.unwrap();
        assert_eq!(read_all(&mut session.stdout).await, b"hello bye");
        assert_eq!(session.exit.await, Exit::Code(7));
    }
}

#[tokio::test]
async fn what_cannot_be_opened_is_told() {
    let text = "Internal error occurred: error executing command in container: no such file";
    let io = serve(move |request| {
        serve_session(request, ALL, IDLE_DEFAULT, move || async move {
            Err::<Session, _>(OpenError::new(text))
        })
    });
    let session = connect(io, ALL).await.unwrap();
    assert_eq!(session.exit.await, Exit::Failed(text.to_owned()));
}

#[tokio::test]
async fn a_refusal_is_an_error_with_its_text() {
    let io = serve(|request| {
        request.headers_mut().remove("x-stream-protocol-version");
        serve_session(request, ALL, IDLE_DEFAULT, || async { Ok(run(cat)) })
    });
    match connect(io, ALL).await {
        Err(ConnectError::Refused(status, text)) => {
            assert_eq!(status, 400);
            assert!(
                text.starts_with("unable to upgrade: header X-Stream-Protocol-Version"),
                "{text}"
            );
        }
        _ => panic!("the server must refuse"),
    }
}

#[tokio::test]
async fn a_client_that_goes_lets_the_command_go() {
    let (gone, told) = oneshot::channel::<()>();
    let gone = std::sync::Mutex::new(Some(gone));
    let io = serve(move |request| {
        let gone = gone.lock().unwrap().take();
        serve_session(request, ALL, IDLE_DEFAULT, move || async move {
            let never = async move {
                let _held = gone;
                std::future::pending().await
            };
            Ok(Session {
                stdin: None,
                stdout: None,
                stderr: None,
                resize: None,
                exit: Box::pin(never),
            })
        })
    });
    let session = connect(io, ALL).await.unwrap();
    drop(session);
    assert!(told.await.is_err());
}

#[tokio::test]
async fn hostile_bytes_end_the_connection() {
    for bytes in [
        &b"\x80\x02\x00\x06\x00\x00\x00\x04\x00\x00\x00\x01"[..],
        b"\x80\x03\x00\x01\x00\x00\x00\x0b\x00\x00\x00\x01\0\0\0\0\0\0\x78",
        &[0; 64],
    ] {
        let (near, far) = duplex(1 << 10);
        let (connection, _incoming) = crate::spdy::Connection::start(far, crate::spdy::Side::Server);
        let (mut source, mut sink) = split(near);
        sink.write_all(bytes).await.unwrap();
        connection.closed().await;
        let mut answer = Vec::new();
        source.read_to_end(&mut answer).await.unwrap();
        // GOAWAY with the status "protocol error".
        assert_eq!(
            answer,
            b"\x80\x03\x00\x07\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x01"
        );
    }
}

/// The bytes of one channel in a row of messages.
fn channel(messages: &[Message], number: u8) -> Vec<u8> {
    let data = messages.iter().map(|message| message.clone().into_data());
    data.filter(|data| data[0] == number)
        .flat_map(|data| data[1..].to_vec())
        .collect()
}

#[tokio::test]
async fn websocket_version_5_half_closes() {
    let socket = websocket(server(ALL, cat), "/exec", "v5.channel.k8s.io").await;
    let mut expected = noise(1 << 20);
    let mut messages: Vec<Message> = expected
        .chunks(30_000)
        .map(|chunk| Message::binary([&[0], chunk].concat()))
        .collect();
    messages.push(Message::binary(b"\xff\0".as_slice()));
    let received = exchange(socket, messages).await;
    // The first message tells that the connection is made.
    assert_eq!(received[0], Message::binary(b"\x01".as_slice()));
    expected.extend_from_slice(b"bye");
    assert!(channel(&received, 1) == expected);
    assert_eq!(channel(&received, 2), b"sigh");
    let status = String::from_utf8(channel(&received, 3)).unwrap();
    assert!(status.contains(r#""reason":"ExitCode","message":"7""#), "{status}");
}

#[tokio::test]
async fn websocket_resizes_terminals() {
    let sizes = [
        r#"{"Width":80,"Height":24}"#,
        r#"{"Width":81,"Height":25}{"Width":82,"#,
        r#""Height":26}"#,
    ];
    let socket = websocket(server(TERMINAL, stty), "/exec", "v4.channel.k8s.io").await;
    let messages = sizes
        .iter()
        .map(|size| Message::binary([b"\x04", size.as_bytes()].concat()))
        .collect();
    let received = exchange(socket, messages).await;
    assert_eq!(channel(&received, 1), b"80x24 81x25 82x26 ");
    assert_eq!(channel(&received, 3), br#"{"metadata":{},"status":"Success"}"#);

    let socket = websocket(server(TERMINAL, stty), "/exec", "base64.channel.k8s.io").await;
    let size = "4eyJXaWR0aCI6ODAsIkhlaWdodCI6MjR9";
    let received = exchange(socket, vec![Message::text(size); 3]).await;
    let texts: String = received.iter().map(|message| message.to_text().unwrap()).collect();
    assert!(texts.starts_with('1') && !texts.contains('3'), "{texts}");
}

//! Commands, terminals, attached clients and ports.

use std::time::Duration;

use orlop_runtime::cri::messages::*;
use orlop_runtime::{Code, Runtime};
use orlop_streaming::{Exit, TerminalSize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::support::*;

fn exec_request(id: &str, command: &[&str]) -> ExecRequest {
    ExecRequest {
        container_id: id.to_string(),
        cmd: command.iter().map(|c| c.to_string()).collect(),
        stdin: true,
        stdout: true,
        stderr: true,
        tty: false,
    }
}

#[tokio::test]
async fn commands_give_their_output_and_exit_code() {
    let node = Node::start().await;
    let pod = node.run_pod("exec").await;
    let id = pod.start(container("c", "sleep 100")).await;
    let result = pod
        .exec(&id, &["sh", "-c", "echo out; echo err >&2; echo $FROM; exit 9"])
        .await;
    assert_eq!(result.exit_code, 9);
    assert_eq!(String::from_utf8_lossy(&result.stdout), "out\nimage\n");
    assert_eq!(String::from_utf8_lossy(&result.stderr), "err\n");
    assert_eq!(pod.exec(&id, &["sh", "-c", "kill -15 $$"]).await.exit_code, 143);
    // It sees the container's processes and is in its cgroup.
    let result = pod
        .exec(
            &id,
            &["sh", "-c", "cat /proc/1/cmdline | tr '\\0' ' '; cat /proc/self/cgroup"],
        )
        .await;
    let text = String::from_utf8_lossy(&result.stdout).into_owned();
    assert!(text.starts_with("sleep 100") && text.contains(&id), "{text}");
    let large = pod.exec(&id, &["head", "-c", "3000000", "/dev/zero"]).await;
    assert_eq!(large.stdout.len(), 3_000_000);

    let missing = node
        .runtime
        .exec_sync(&id, vec!["nothing".to_string()], Some(LONG))
        .await
        .unwrap_err();
    assert!(
        missing
            .message
            .contains("exec: \"nothing\": executable file not found in $PATH"),
        "{missing}"
    );
    node.runtime.stop_container(&id, Duration::ZERO).await.unwrap();
    let ended = node
        .runtime
        .exec_sync(&id, vec!["true".to_string()], Some(LONG))
        .await
        .unwrap_err();
    assert!(ended.message.contains("Exited"), "{ended}");
    node.clean_up().await;
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_killed() {
    let node = Node::start().await;
    let pod = node.run_pod("slow").await;
    let id = pod.start(container("c", "sleep 1000")).await;
    let command = ["sh", "-c", "echo $$ > /pid; exec sleep 999"]
        .map(str::to_string)
        .to_vec();
    let error = node
        .runtime
        .exec_sync(&id, command, Some(Duration::from_millis(300)))
        .await
        .unwrap_err();
    assert_eq!(error.code, Code::DeadlineExceeded, "{error}");
    let gone = pod
        .exec(
            &id,
            &["sh", "-c", "while kill -0 $(cat /pid) 2>/dev/null; do sleep 0.01; done"],
        )
        .await;
    assert_eq!(gone.exit_code, 0);
    node.clean_up().await;
}

#[tokio::test]
async fn streams_of_a_command() {
    let node = Node::start().await;
    let pod = node.run_pod("streams").await;
    let id = pod.start(container("c", "sleep 100")).await;
    let mut session = node
        .runtime
        .exec(exec_request(&id, &["sh", "-c", "cat; echo done >&2; exit 4"]))
        .await
        .unwrap();
    let mut stdin = session.stdin.take().unwrap();
    stdin.write_all(b"one\ntwo\n").await.unwrap();
    stdin.shutdown().await.unwrap();
    let (mut out, mut err) = (String::new(), String::new());
    session.stdout.unwrap().read_to_string(&mut out).await.unwrap();
    session.stderr.unwrap().read_to_string(&mut err).await.unwrap();
    assert_eq!((out.as_str(), err.as_str()), ("one\ntwo\n", "done\n"));
    assert_eq!(session.exit.await, Exit::Code(4));
    node.clean_up().await;
}

#[tokio::test]
async fn a_terminal_has_a_size() {
    let node = Node::start().await;
    let pod = node.run_pod("tty").await;
    let id = pod.start(container("c", "sleep 100")).await;
    let request = ExecRequest {
        tty: true,
        stderr: false,
        ..exec_request(&id, &["sh", "-c", "tty; read go; stty size; exit 6"])
    };
    let mut session = node.runtime.exec(request).await.unwrap();
    let mut lines = BufReader::new(session.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().unwrap().trim(), "/dev/pts/0");
    session
        .resize
        .as_ref()
        .unwrap()
        .send(TerminalSize { width: 91, height: 37 })
        .await
        .unwrap();
    // A second one is received only after the first was set.
    for _ in 0..8 {
        session
            .resize
            .as_ref()
            .unwrap()
            .send(TerminalSize { width: 91, height: 37 })
            .await
            .unwrap();
    }
    session.stdin.as_mut().unwrap().write_all(b"go\n").await.unwrap();
    let mut seen = vec![];
    while let Some(line) = lines.next_line().await.unwrap() {
        seen.push(line.trim().to_string());
    }
    assert_eq!(seen, ["go", "37 91"]);
    assert_eq!(session.exit.await, Exit::Code(6));
    node.clean_up().await;
}

#[tokio::test]
async fn clients_attach_to_a_container() {
    let node = Node::start().await;
    let pod = node.run_pod("attach").await;
    let config = ContainerConfig {
        stdin: true,
        stdin_once: true,
        ..container("c", "cat; echo end >&2; exit 2")
    };
    let id = pod.start(config).await;
    let request = AttachRequest {
        container_id: id.clone(),
        stdin: true,
        stdout: true,
        stderr: true,
        tty: false,
    };
    let mut session = node.runtime.attach(request).await.unwrap();
    let mut stdin = session.stdin.take().unwrap();
    stdin.write_all(b"hello\n").await.unwrap();
    // With stdin_once the container's input ends with the client's.
    stdin.shutdown().await.unwrap();
    let (mut out, mut err) = (String::new(), String::new());
    session.stdout.unwrap().read_to_string(&mut out).await.unwrap();
    session.stderr.unwrap().read_to_string(&mut err).await.unwrap();
    assert_eq!((out.as_str(), err.as_str()), ("hello\n", "end\n"));
    assert_eq!(session.exit.await, Exit::Code(0));
    assert_eq!(pod.wait(&id).await.exit_code, 2);
    assert_eq!(pod.stdout("c"), "hello");
    node.clean_up().await;
}

#[tokio::test]
async fn input_stays_open_for_the_next_client() {
    let node = Node::start().await;
    let pod = node.run_pod("stdin").await;
    let config = ContainerConfig {
        stdin: true,
        ..container("c", "read a; echo got $a; read b; echo got $b")
    };
    let id = pod.start(config).await;
    for text in ["one", "two"] {
        let request = AttachRequest {
            container_id: id.clone(),
            stdin: true,
            stdout: true,
            ..AttachRequest::default()
        };
        let mut session = node.runtime.attach(request).await.unwrap();
        let mut stdin = session.stdin.take().unwrap();
        stdin.write_all(format!("{text}\n").as_bytes()).await.unwrap();
        stdin.shutdown().await.unwrap();
        let mut lines = BufReader::new(session.stdout.take().unwrap()).lines();
        assert_eq!(lines.next_line().await.unwrap().unwrap(), format!("got {text}"));
    }
    assert_eq!(pod.wait(&id).await.exit_code, 0);
    node.clean_up().await;
}

#[tokio::test]
async fn a_container_with_a_terminal() {
    let node = Node::start().await;
    let pod = node.run_pod("console").await;
    let config = ContainerConfig {
        stdin: true,
        tty: true,
        ..container(
            "c",
            "tty; read x; stty size; echo $TERM; readlink /dev/ptmx; test -c /dev/console; exit $?",
        )
    };
    let id = pod.start(config).await;
    let request = AttachRequest {
        container_id: id.clone(),
        stdin: true,
        stdout: true,
        stderr: false,
        tty: true,
    };
    let mut session = node.runtime.attach(request).await.unwrap();
    let resize = session.resize.take().unwrap();
    for _ in 0..9 {
        resize.send(TerminalSize { width: 120, height: 50 }).await.unwrap();
    }
    session.stdin.as_mut().unwrap().write_all(b"x\n").await.unwrap();
    let mut out = String::new();
    session.stdout.unwrap().read_to_string(&mut out).await.unwrap();
    assert!(out.contains("50 120"), "{out}");
    assert_eq!(pod.wait(&id).await.exit_code, 0, "{out}");
    let log = pod.stdout("c");
    assert!(log.contains("50 120\nxterm\npts/ptmx"), "{log:?}");
    node.clean_up().await;
}

#[tokio::test]
async fn a_slow_client_gets_everything() {
    let node = Node::start().await;
    let pod = node.run_pod("backlog").await;
    let config = ContainerConfig {
        stdin: true,
        stdin_once: true,
        ..container("c", "read go; head -c 1000000 /dev/zero")
    };
    let id = pod.start(config).await;
    let request = AttachRequest {
        container_id: id.clone(),
        stdin: true,
        stdout: true,
        ..AttachRequest::default()
    };
    let mut session = node.runtime.attach(request).await.unwrap();
    session.stdin.as_mut().unwrap().write_all(b"go\n").await.unwrap();
    let mut out = vec![];
    session.stdout.unwrap().read_to_end(&mut out).await.unwrap();
    assert_eq!(out.len(), 1_000_000);
    assert_eq!(pod.wait(&id).await.exit_code, 0);
    node.clean_up().await;
}

#[tokio::test]
async fn ports_of_the_pods_own_network() {
    let node = Node::start().await;
    let pod = node.run_pod("port").await;
    let id = pod
        .start(container(
            "c",
            "nc -l -p 8099 -e cat & echo $! ; while :; do sleep 1; done",
        ))
        .await;
    // Listening is seen from inside.
    let listening = "while ! grep -q ':1FA3 .* 0A ' /proc/net/tcp /proc/net/tcp6; do sleep 0.01; done";
    pod.exec(&id, &["sh", "-c", listening]).await;
    let mut pipe = node.runtime.port_forward(&pod.id, 8099).await.unwrap();
    pipe.write_all(b"ping\n").await.unwrap();
    let mut back = [0; 5];
    pipe.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"ping\n");
    let Err(refused) = node.runtime.port_forward(&pod.id, 1).await else {
        panic!("nobody listens there")
    };
    assert!(refused.message.contains("refused"), "{refused}");
    node.clean_up().await;
}

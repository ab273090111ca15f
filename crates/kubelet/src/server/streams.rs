//! exec, attach, run and port-forward.
// Upstream: pkg/kubelet/server/server.go getExec, getAttach, getPortForward, getRun (v1.36)

use std::convert::Infallible;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty, Full};
use orlop_runtime::cri::messages::{AttachRequest, ExecRequest};
use orlop_streaming::{OpenError, Pipe, Refusal, Streams, Upgrade, serve_port_forward, serve_session};
use tokio::net::TcpStream;

use super::query::Query;
use super::{HttpResponse, Refused, Server, text};
use crate::pod::policy;

/// `/run` takes no longer than this.
const RUN_MAX: Duration = Duration::from_secs(600);

/// A port of a hosted pod: it is in the node's network, as components are.
async fn connect_here(port: u16) -> io::Result<Box<dyn Pipe>> {
    Ok(Box::new(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?))
}

/// `namespace/pod/container` or `namespace/pod/uid/container`.
fn container_path<'a>(rest: &[&'a str]) -> Result<(&'a str, &'a str, Option<&'a str>, &'a str), Refused> {
    match rest {
        [namespace, pod, container] => Ok((namespace, pod, None, container)),
        [namespace, pod, uid, container] => Ok((namespace, pod, Some(uid), container)),
        _ => Err(Refused::new(404, "404 page not found")),
    }
}

/// Kubelets say `input`, the API says `stdin`: both are understood.
fn streams(query: &Query) -> Result<Streams, Refused> {
    let either = |a: &str, b: &str| query.flag(a) || query.flag(b);
    let tty = query.flag("tty");
    let streams = Streams {
        stdin: either("input", "stdin"),
        stdout: either("output", "stdout"),
        // A terminal has one stream of output.
        stderr: either("error", "stderr") && !tty,
        tty,
    };
    match streams.stdin || streams.stdout || streams.stderr {
        true => Ok(streams),
        false => Err(Refused::new(
            400,
            "you must specify at least 1 of stdin, stdout, stderr",
        )),
    }
}

impl Server {
    pub(super) async fn exec<B: Send>(
        self: Arc<Self>,
        mut request: Request<B>,
        rest: &[&str],
        query: &Query,
    ) -> HttpResponse {
        let prepared = async {
            let (namespace, pod, uid, container) = container_path(rest)?;
            let streams = streams(query)?;
            let pod = self.find_pod(namespace, pod, uid)?;
            let container_id = self.running_container(&pod, container).await?;
            Ok::<_, Refused>((streams, container_id))
        };
        let (streams, container_id) = match prepared.await {
            Ok(prepared) => prepared,
            Err(refused) => return refused.into(),
        };
        let exec = ExecRequest {
            container_id,
            cmd: query.all("command"),
            tty: streams.tty,
            stdin: streams.stdin,
            stdout: streams.stdout,
            stderr: streams.stderr,
        };
        let runtime = self.runtime.clone();
        let open = move || async move { runtime.exec(exec).await.map_err(OpenError::new) };
        let idle = self.config.streaming_connection_idle_timeout;
        switch(serve_session(&mut request, streams, idle, open))
    }

    pub(super) async fn attach<B: Send>(
        self: Arc<Self>,
        mut request: Request<B>,
        rest: &[&str],
        query: &Query,
    ) -> HttpResponse {
        let prepared = async {
            let (namespace, pod, uid, name) = container_path(rest)?;
            let streams = streams(query)?;
            let pod = self.find_pod(namespace, pod, uid)?;
            let container_id = self.running_container(&pod, name).await?;
            let ephemeral = policy::ephemeral_containers(&pod);
            let container = policy::container_named(&pod, name).or(ephemeral.iter().find(|c| c.name == name));
            // Whether there is a terminal was decided when the container was created.
            let tty = container.and_then(|c| c.tty).unwrap_or(false);
            let streams = Streams {
                tty,
                stderr: streams.stderr && !tty,
                ..streams
            };
            Ok::<_, Refused>((streams, container_id))
        };
        let (streams, container_id) = match prepared.await {
            Ok(prepared) => prepared,
            Err(refused) => return refused.into(),
        };
        let attach = AttachRequest {
            container_id,
            stdin: streams.stdin,
            tty: streams.tty,
            stdout: streams.stdout,
            stderr: streams.stderr,
        };
        let runtime = self.runtime.clone();
        let open = move || async move { runtime.attach(attach).await.map_err(OpenError::new) };
        let idle = self.config.streaming_connection_idle_timeout;
        switch(serve_session(&mut request, streams, idle, open))
    }

    pub(super) async fn port_forward<B: Send>(self: Arc<Self>, mut request: Request<B>, rest: &[&str]) -> HttpResponse {
        let (namespace, pod, uid) = match rest {
            [namespace, pod] => (namespace, pod, None),
            [namespace, pod, uid] => (namespace, pod, Some(*uid)),
            _ => return text(404, "404 page not found"),
        };
        let idle = self.config.streaming_connection_idle_timeout;
        if self.is_hosted(namespace, pod) {
            return switch(serve_port_forward(&mut request, idle, connect_here));
        }
        let pod = match self.find_pod(namespace, pod, uid) {
            Ok(pod) => pod,
            Err(refused) => return refused.into(),
        };
        let sandbox = match self.ready_sandbox(&pod).await {
            Ok(sandbox) => sandbox,
            Err(refused) => return refused.into(),
        };
        let runtime = self.runtime.clone();
        let open = move |port: u16| {
            let (runtime, sandbox) = (runtime.clone(), sandbox.clone());
            async move { runtime.port_forward(&sandbox, port).await }
        };
        switch(serve_port_forward(&mut request, idle, open))
    }

    /// Runs a command to its end and shows what it wrote.
    pub(super) async fn run(&self, rest: &[&str], query: &Query) -> HttpResponse {
        let prepared = async {
            let (namespace, pod, uid, container) = container_path(rest)?;
            let pod = self.find_pod(namespace, pod, uid)?;
            self.running_container(&pod, container).await
        };
        let id = match prepared.await {
            Ok(id) => id,
            Err(refused) => return refused.into(),
        };
        let words = query.first("cmd").unwrap_or_default().split(' ').map(str::to_string);
        match self.runtime.exec_sync(&id, words.collect(), Some(RUN_MAX)).await {
            Ok(done) => {
                let mut output = done.stdout;
                output.extend(done.stderr);
                match done.exit_code {
                    0 => super::answer(200, super::PLAIN, output),
                    code => text(
                        500,
                        format!(
                            "command terminated with exit code {code}: {}",
                            String::from_utf8_lossy(&output)
                        ),
                    ),
                }
            }
            Err(error) => text(500, error.to_string()),
        }
    }
}

/// Switches protocols, or says why not.
fn switch(agreed: Result<Upgrade, Refusal>) -> HttpResponse {
    match agreed {
        Ok(upgrade) => {
            tokio::spawn(upgrade.run);
            let empty = Empty::new().map_err(|never: Infallible| match never {});
            upgrade.response.map(|()| empty.boxed_unsync())
        }
        Err(refusal) => refusal.response().map(|message| {
            let body = Full::new(Bytes::from(message));
            body.map_err(|never: Infallible| match never {}).boxed_unsync()
        }),
    }
}

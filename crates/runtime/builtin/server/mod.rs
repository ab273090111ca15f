//! `/echo`: a server that tells who answered, where, and what was asked. One loop, nothing that waits.
//!
//! ```text
//! /echo [--port=N …] [--tcp-port=N] [--udp-port=N]   HTTP on 80 and 8080, TCP and UDP on 9000
//!       [--sleep[=5s]] [--fail[=CODE]]               no server: wait (for ever), then end, with a code
//!       [--cpu=500m] [--memory=64Mi]                 use as much
//!       [--log-every=1s]                             a line again and again
//!       [--start-delay=5s] [--stop-delay=5s]         serve later; after SIGTERM go on for a while
//!       [--ignore-sigterm]
//!
//! GET /hostname /env /headers      one thing only; every other path gets all of it
//!     /healthz /readyz             200 until /healthz/fail or /readyz/fail, and again after …/ok
//!     /status?code=N  /delay?seconds=N  /exit?code=N
//! ```

mod http;
mod load;
mod settings;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::{ExitCode, eprintln, os, println, sys, text};
use http::{HttpRequest, MAX_BODY, MAX_HEAD, response};
use load::{burn, use_memory};
use settings::{Settings, read_settings};

const MAX_CONNECTIONS: usize = 1000;
const IDLE_MS: u64 = 60_000;

pub fn main(arguments: &[String]) -> ExitCode {
    let settings = match read_settings(arguments) {
        Ok(settings) => settings,
        Err(why) => {
            eprintln!("echo: {why}");
            return 2;
        }
    };
    // Before children are started: they leave signals to us.
    let Ok(signals) = os::Signals::take() else {
        return 1;
    };
    burn(settings.cpu);
    if let Err(why) = use_memory(settings.memory) {
        eprintln!("echo: --memory: {why}");
        return 1;
    }
    if settings.sleep.is_some() || settings.fail.is_some() {
        return wait_and_end(&settings, &signals);
    }
    if settings.start_delay > 0 {
        log("starting later", &format!("delay_ms={}", settings.start_delay));
        if signals.wait_for_end(Some(settings.start_delay)).is_some() {
            return 0;
        }
    }
    let mut server = Server::new(settings, signals);
    if !server.listen() {
        return 1;
    }
    server.run()
}

fn wait_and_end(settings: &Settings, signals: &os::Signals) -> ExitCode {
    let code = settings.fail.unwrap_or(0);
    let sleep = settings.sleep.unwrap_or(Some(0));
    let deadline = sleep.map(|ms| sys::monotonic_ms() + ms);
    let mut count = 0u64;
    loop {
        let left = deadline.map(|deadline| deadline.saturating_sub(sys::monotonic_ms()));
        if left == Some(0) {
            break;
        }
        let next = match (left, settings.log_every) {
            (Some(left), Some(every)) => Some(left.min(every)),
            (left, every) => left.or(every),
        };
        if signals.wait_for_end(next).is_some() && !settings.ignore_sigterm {
            log("received signal, ending", "");
            return 0;
        }
        if settings.log_every.is_some() && sys::monotonic_ms() < deadline.unwrap_or(u64::MAX) {
            count += 1;
            log("still here", &format!("count={count}"));
        }
    }
    log("ending", &format!("code={code}"));
    code
}

/// A line as logs have them: time, message, fields.
fn log(message: &str, fields: &str) {
    let time = text::timestamp(sys::wall_seconds());
    let space = if fields.is_empty() { "" } else { " " };
    println!("{time} {message}{space}{fields}");
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http,
    Tcp,
    Udp,
}

struct Listener {
    fd: i32,
    protocol: Protocol,
    /// Of both families: IPv4 addresses are mapped.
    mapped: bool,
}

struct Connection {
    fd: i32,
    protocol: Protocol,
    peer: SocketAddr,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    last_use: u64,
    /// A response that is sent later.
    delayed: Option<(u64, Vec<u8>)>,
    /// Ends when all is sent.
    closing: bool,
}

struct Server {
    settings: Settings,
    signals: os::Signals,
    listeners: Vec<Listener>,
    connections: Vec<Connection>,
    healthy: bool,
    ready: bool,
    requests: u64,
    next_line: Option<u64>,
    lines: u64,
    /// When to end, after a signal.
    ending: Option<u64>,
    exit_code: Option<i32>,
}

impl Server {
    fn new(settings: Settings, signals: os::Signals) -> Server {
        let next_line = settings.log_every.map(|every| sys::monotonic_ms() + every);
        Server {
            settings,
            signals,
            listeners: Vec::new(),
            connections: Vec::new(),
            healthy: true,
            ready: true,
            requests: 0,
            next_line,
            lines: 0,
            ending: None,
            exit_code: None,
        }
    }

    /// `false` if nobody can reach us.
    fn listen(&mut self) -> bool {
        let http: Vec<(u16, Protocol)> = self.settings.http.iter().map(|p| (*p, Protocol::Http)).collect();
        let others = [(self.settings.tcp, Protocol::Tcp), (self.settings.udp, Protocol::Udp)];
        let mut serving = false;
        for (port, protocol) in http.into_iter().chain(others) {
            if port == 0 {
                continue;
            }
            let name = match protocol {
                Protocol::Http => "http",
                Protocol::Tcp => "tcp",
                Protocol::Udp => "udp",
            };
            match open_listener(port, protocol) {
                Ok(listener) => {
                    log("listening", &format!("protocol={name} port={port}"));
                    serving |= protocol == Protocol::Http;
                    self.listeners.push(listener);
                }
                // As an ordinary user port 80 may be refused; the others are there.
                Err(why) => log(
                    "failed to listen",
                    &format!("protocol={name} port={port} err=\"{why}\""),
                ),
            }
        }
        serving
    }

    fn run(&mut self) -> ExitCode {
        loop {
            let now = sys::monotonic_ms();
            if let Some(code) = self.exit_code
                && self.connections.iter().all(|c| c.output.is_empty())
            {
                return code;
            }
            if self
                .ending
                .is_some_and(|at| now >= at && self.connections.iter().all(Connection::is_idle))
            {
                log("ending", "");
                return 0;
            }
            // Whoever never reads its answer does not keep us for ever.
            if self.ending.is_some_and(|at| now >= at + 10_000) {
                return 0;
            }
            self.write_line(now);
            let (mut fds, timeout) = self.interests(now);
            if sys::poll(&mut fds, timeout).is_err() {
                return 1;
            }
            self.handle(&fds);
        }
    }

    fn write_line(&mut self, now: u64) {
        if let (Some(at), Some(every)) = (self.next_line, self.settings.log_every)
            && now >= at
        {
            self.lines += 1;
            log("still here", &format!("count={}", self.lines));
            self.next_line = Some(now + every);
        }
    }

    /// What is waited for: signals first, then listeners, then connections.
    fn interests(&self, now: u64) -> (Vec<sys::PollFd>, Option<u64>) {
        let fd = |fd, events| sys::PollFd { fd, events, revents: 0 };
        let mut fds = alloc::vec![fd(self.signals.fd, sys::POLLIN)];
        fds.extend(self.listeners.iter().map(|l| fd(l.fd, sys::POLLIN)));
        let mut next = self.next_line.unwrap_or(u64::MAX).min(self.ending.unwrap_or(u64::MAX));
        for connection in &self.connections {
            let events = match (connection.output.is_empty(), &connection.delayed) {
                (false, _) => sys::POLLOUT,
                (true, Some(_)) => 0,
                (true, None) => sys::POLLIN,
            };
            let due = connection.delayed.as_ref().map(|(at, _)| *at);
            next = next.min(due.unwrap_or(connection.last_use + IDLE_MS));
            fds.push(fd(connection.fd, events));
        }
        (fds, (next != u64::MAX).then(|| next.saturating_sub(now)))
    }

    fn handle(&mut self, fds: &[sys::PollFd]) {
        while let Some(signal) = self.signals.next() {
            self.handle_signal(signal);
        }
        let now = sys::monotonic_ms();
        let first_connection = 1 + self.listeners.len();
        let mut connections = core::mem::take(&mut self.connections);
        let mut number = 0;
        connections.retain_mut(|connection| {
            let revents = fds.get(first_connection + number).map_or(0, |fd| fd.revents);
            number += 1;
            let keep = self.serve(connection, revents, now);
            if !keep {
                sys::close(connection.fd);
            }
            keep
        });
        self.connections = connections;
        for number in 0..self.listeners.len() {
            if fds.get(1 + number).is_some_and(|fd| fd.revents != 0) {
                match self.listeners[number].protocol {
                    Protocol::Udp => self.answer_datagrams(number),
                    protocol => self.accept(number, protocol, now),
                }
            }
        }
        if self.ending.is_some() {
            for listener in self.listeners.drain(..) {
                sys::close(listener.fd);
            }
        }
    }

    fn handle_signal(&mut self, signal: i32) {
        if signal == sys::SIGCHLD {
            return;
        }
        if self.settings.ignore_sigterm {
            log("ignoring signal", &format!("signal={signal}"));
            return;
        }
        if self.ending.is_none() {
            log("received signal, ending", &format!("signal={signal}"));
            self.ending = Some(sys::monotonic_ms() + self.settings.stop_delay);
        }
    }

    fn accept(&mut self, number: usize, protocol: Protocol, now: u64) {
        while let Ok((fd, peer)) = sys::accept(self.listeners[number].fd) {
            if self.connections.len() >= MAX_CONNECTIONS {
                sys::close(fd);
                continue;
            }
            self.connections.push(Connection {
                fd,
                protocol,
                peer,
                input: Vec::new(),
                output: Vec::new(),
                sent: 0,
                last_use: now,
                delayed: None,
                closing: false,
            });
        }
    }

    fn answer_datagrams(&mut self, number: usize) {
        let mut buffer = [0; 2048];
        let listener = &self.listeners[number];
        while let Ok((count, peer)) = sys::receive_from(listener.fd, &mut buffer) {
            self.requests += 1;
            log("datagram", &format!("from={peer} bytes={count}"));
            let mut answer = format!("{}: ", who(None)).into_bytes();
            answer.extend_from_slice(&buffer[..count]);
            let _ = sys::send_to(listener.fd, &answer, &peer, listener.mapped);
        }
    }

    /// `false` when the connection is done.
    fn serve(&mut self, connection: &mut Connection, revents: i16, now: u64) -> bool {
        if let Some((_, response)) = connection.delayed.take_if(|(at, _)| now >= *at) {
            connection.output = response;
        }
        if revents & sys::POLLIN != 0 && !connection.read(now) {
            return false;
        }
        // Hung up, or an error, with nothing to be read.
        if revents & !(sys::POLLIN | sys::POLLOUT) != 0 && revents & sys::POLLIN == 0 {
            return false;
        }
        loop {
            if !connection.flush() {
                return false;
            }
            if !connection.output.is_empty() || connection.delayed.is_some() {
                return true;
            }
            if connection.closing {
                return false;
            }
            let answered = match connection.protocol {
                Protocol::Http => self.answer_request(connection, now),
                _ => self.answer_lines(connection),
            };
            if !answered {
                return now < connection.last_use + IDLE_MS;
            }
        }
    }

    /// Lines on a plain connection come back with who answered.
    fn answer_lines(&mut self, connection: &mut Connection) -> bool {
        let Some(end) = connection.input.iter().position(|b| *b == b'\n') else {
            return false;
        };
        let line: Vec<u8> = connection.input.drain(..=end).collect();
        self.requests += 1;
        log("line", &format!("from={} bytes={}", connection.peer, line.len()));
        connection.output = format!("{}: ", who(sys::local_address(connection.fd).ok())).into_bytes();
        connection.output.extend_from_slice(&line);
        true
    }

    fn answer_request(&mut self, connection: &mut Connection, now: u64) -> bool {
        let request = match HttpRequest::take(&mut connection.input) {
            Ok(Some(request)) => request,
            Ok(None) => return false,
            Err(status) => {
                connection.output = response(status, "", b"", false, false);
                connection.closing = true;
                return true;
            }
        };
        self.requests += 1;
        let (status, body) = self.respond(&request, connection);
        log(
            "request",
            &format!(
                "from={} method={} path={:?} status={status}",
                connection.peer, request.method, request.target
            ),
        );
        let keep = request.keep_alive && self.ending.is_none() && self.exit_code.is_none();
        let bytes = response(
            status,
            "text/plain; charset=utf-8",
            &body,
            keep,
            request.method == "HEAD",
        );
        connection.closing = !keep;
        match request.parameter("seconds").filter(|_| request.path() == "/delay") {
            Some(seconds) => {
                let delay = text::duration_ms(&seconds).unwrap_or(0).min(3_600_000);
                connection.delayed = Some((now + delay, bytes));
            }
            None => connection.output = bytes,
        }
        true
    }

    fn respond(&mut self, request: &HttpRequest, connection: &Connection) -> (u16, Vec<u8>) {
        let check = |good: bool| match good {
            true => (200, b"ok\n".to_vec()),
            false => (503, b"failing\n".to_vec()),
        };
        match request.path() {
            "/healthz" | "/livez" => return check(self.healthy),
            "/readyz" => return check(self.ready && self.ending.is_none()),
            "/healthz/fail" => self.healthy = false,
            "/healthz/ok" => self.healthy = true,
            "/readyz/fail" => self.ready = false,
            "/readyz/ok" => self.ready = true,
            "/hostname" => return (200, format!("{}\n", os::host_name()).into_bytes()),
            "/env" => {
                let lines = os::environment()
                    .iter()
                    .map(|(name, value)| format!("{name}={value}\n"));
                return (200, lines.collect::<String>().into_bytes());
            }
            "/headers" => return (200, format!("{}\n", request.headers.join("\n")).into_bytes()),
            "/status" => {
                let code = request.parameter("code").and_then(|c| c.parse().ok());
                let code = code.filter(|c| (200..=599).contains(c)).unwrap_or(200);
                return (code, format!("{code}\n").into_bytes());
            }
            "/exit" => {
                let code = request.parameter("code").and_then(|c| c.parse().ok()).unwrap_or(0);
                log("exit was asked for", &format!("code={code}"));
                self.exit_code = Some(code);
                return (200, format!("exiting with {code}\n").into_bytes());
            }
            _ => return (200, self.describe(request, connection)),
        }
        (
            200,
            format!("healthy={} ready={}\n", self.healthy, self.ready).into_bytes(),
        )
    }

    /// All that there is to say about a request.
    fn describe(&self, request: &HttpRequest, connection: &Connection) -> Vec<u8> {
        let address = sys::local_address(connection.fd).ok();
        let mut text = format!("Hostname: {}\n", os::host_name());
        if let Some(address) = address {
            text.push_str(&format!("Address: {}\nPort: {}\n", address.ip(), address.port()));
        }
        for (label, variable) in [
            ("Node", "NODE_NAME"),
            ("Namespace", "POD_NAMESPACE"),
            ("Service account", "SERVICE_ACCOUNT"),
        ] {
            if let Some(value) = os::variable(variable) {
                text.push_str(&format!("{label}: {value}\n"));
            }
        }
        text.push_str(&format!("Client: {}\nRequests: {}\n\n", connection.peer, self.requests));
        text.push_str(&format!("{} {} {}\n", request.method, request.target, request.version));
        for header in &request.headers {
            text.push_str(&format!("{header}\n"));
        }
        let mut bytes = text.into_bytes();
        if !request.body.is_empty() {
            bytes.push(b'\n');
            bytes.extend_from_slice(&request.body);
            if !request.body.ends_with(b"\n") {
                bytes.push(b'\n');
            }
        }
        bytes
    }
}

/// `NAME (ADDRESS) on NODE`.
fn who(local: Option<SocketAddr>) -> String {
    let mut text = os::host_name();
    if let Some(address) = local.map(|a| a.ip()).or_else(os::own_address) {
        text.push_str(&format!(" ({address})"));
    }
    if let Some(node) = os::variable("NODE_NAME") {
        text.push_str(&format!(" on {node}"));
    }
    text
}

/// For both families where there are both.
fn open_listener(port: u16, protocol: Protocol) -> sys::Result<Listener> {
    let kind = match protocol {
        Protocol::Udp => sys::SOCK_DGRAM,
        _ => sys::SOCK_STREAM,
    };
    let open = |ip: IpAddr| {
        let address = SocketAddr::new(ip, port);
        let fd = sys::socket_for(&address, kind)?;
        let listening = sys::bind(fd, &address).and_then(|()| match protocol {
            Protocol::Udp => Ok(()),
            _ => sys::listen(fd),
        });
        match listening {
            Ok(()) => Ok(Listener {
                fd,
                protocol,
                mapped: ip.is_ipv6(),
            }),
            Err(why) => {
                sys::close(fd);
                Err(why)
            }
        }
    };
    open(IpAddr::V6(Ipv6Addr::UNSPECIFIED)).or_else(|_| open(IpAddr::V4(Ipv4Addr::UNSPECIFIED)))
}

impl Connection {
    fn is_idle(&self) -> bool {
        self.output.is_empty() && self.delayed.is_none() && self.input.is_empty()
    }

    /// `false` if the other end is gone.
    fn read(&mut self, now: u64) -> bool {
        let mut buffer = [0; 8192];
        self.last_use = now;
        loop {
            if self.input.len() > MAX_HEAD + MAX_BODY {
                return true;
            }
            match sys::read(self.fd, &mut buffer) {
                Ok(0) => {
                    self.closing = true;
                    // What was asked before the end is answered.
                    return !self.input.is_empty();
                }
                Ok(count) => self.input.extend_from_slice(&buffer[..count]),
                Err(sys::EAGAIN) => return true,
                Err(_) => return false,
            }
        }
    }

    fn flush(&mut self) -> bool {
        while self.sent < self.output.len() {
            match sys::send(self.fd, &self.output[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(sys::EAGAIN) => return true,
                Err(_) => return false,
            }
        }
        self.output.clear();
        self.sent = 0;
        true
    }
}

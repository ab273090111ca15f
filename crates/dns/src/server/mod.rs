//! The server: questions by UDP and TCP, answered from the zone, from the cache, or by forwarding.
//!
//! ```text
//!  packet ──► wire::read ──► Zone::answer ──► wire::write ──► packet         at once, no task, no wait
//!                               └─ elsewhere ──► cache ──► …
//!                                                  └─ unknown ──► Forward::resolve ──► …        in a task of its own
//! ```

mod tcp;
#[cfg(test)]
mod tests;
mod udp;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{DNSClass, Record, RecordType};
use ipnet::IpNet;
use orlop_base::{Random, Shutdown};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::forward::{CONCURRENT_MAX, Failure, Forward, Question};
use crate::health::Health;
use crate::metrics::{Metrics, Served, Source, Transport};
use crate::wire::{self, Rejection, Reply, Request};
use crate::zone::{self, Zone, ZoneAnswer};

/// Sockets of one address.
pub struct Listener {
    pub address: SocketAddr,
    udp: UdpSocket,
    tcp: TcpListener,
}

#[cfg(test)]
impl Listener {
    pub(crate) fn into_parts(self) -> (UdpSocket, TcpListener) {
        (self.udp, self.tcp)
    }
}

/// Why an address is not served.
#[derive(Debug, thiserror::Error)]
#[error("failed to listen on {address}/{protocol}: {error}")]
pub struct ListenError {
    pub address: SocketAddr,
    /// `udp` or `tcp`.
    pub protocol: &'static str,
    pub error: io::Error,
}

/// Binds UDP and TCP at an address. With port 0 both get the same free one.
pub async fn listen(address: SocketAddr) -> Result<Listener, ListenError> {
    const TRIES: usize = 20;
    let mut tries = 0;
    loop {
        let failed = |address, protocol, error| ListenError {
            address,
            protocol,
            error,
        };
        let tcp = TcpListener::bind(address).await;
        let tcp = tcp.map_err(|error| failed(address, "tcp", error))?;
        let bound = tcp.local_addr().map_err(|error| failed(address, "tcp", error))?;
        tries += 1;
        match udp::bind(bound).await {
            Ok(udp) => {
                return Ok(Listener {
                    address: bound,
                    udp,
                    tcp,
                });
            }
            Err(error) if address.port() != 0 || tries == TRIES => return Err(failed(bound, "udp", error)),
            // Somebody else has that port for UDP.
            Err(_) => {}
        }
    }
}

/// Serves until the shutdown. `health` knows the listeners for as long as they are served.
pub fn serve(handler: &Arc<Handler>, listener: Listener, health: &Arc<Health>, shutdown: &Shutdown) {
    let Listener { address, udp, tcp } = listener;
    let (udp_alive, tcp_alive) = (
        health.watch_listener(address, "udp"),
        health.watch_listener(address, "tcp"),
    );
    orlop_base::spawn(udp::serve(handler.clone(), Arc::new(udp), shutdown.clone(), udp_alive));
    orlop_base::spawn(tcp::serve(handler.clone(), tcp, shutdown.clone(), tcp_alive));
}

/// What answers, whatever the transport.
pub struct Handler {
    zone: Arc<Zone>,
    forward: Arc<Forward>,
    metrics: Arc<Metrics>,
    /// Clients that wait for other servers' answers.
    room: Arc<Semaphore>,
    /// Who is answered; empty: anyone.
    clients: Vec<IpNet>,
}

/// What becomes of a packet.
pub enum Step {
    Silence,
    /// The answer is written.
    Done,
    /// It takes the answer of another server: see `Handler::finish`.
    Wait(Box<Waiting>),
}

pub struct Waiting {
    request: Request,
    question: Question,
    /// What comes before the other server's answer.
    chain: Vec<Record>,
    call: Call,
    _permit: OwnedSemaphorePermit,
}

/// Where a packet came from, and when.
#[derive(Clone, Copy)]
struct Call {
    transport: Transport,
    v6: bool,
    bytes: usize,
    at: Instant,
}

impl Handler {
    pub fn new(zone: Arc<Zone>, forward: Arc<Forward>, metrics: Arc<Metrics>) -> Handler {
        Handler {
            zone,
            forward,
            metrics,
            room: Arc::new(Semaphore::new(CONCURRENT_MAX)),
            clients: vec![],
        }
    }

    /// Only these are answered, others hear nothing: a server that answers the whole world is a weapon against others.
    pub fn for_clients(self, clients: Vec<IpNet>) -> Handler {
        Handler { clients, ..self }
    }

    /// Answers into `out` what can be answered at once.
    pub fn begin(
        &self,
        packet: &[u8],
        transport: Transport,
        peer: SocketAddr,
        random: &mut Random,
        out: &mut Vec<u8>,
    ) -> Step {
        if !self.clients.is_empty() && !self.clients.iter().any(|range| range.contains(&peer.ip())) {
            return Step::Silence;
        }
        let call = Call {
            transport,
            v6: peer.is_ipv6(),
            bytes: packet.len(),
            at: orlop_base::clock::monotonic(),
        };
        let request = match wire::read(packet) {
            Ok(request) => request,
            Err(Rejection::Silence) => return Step::Silence,
            Err(Rejection::Refusal(code, header)) => {
                out.clear();
                out.extend_from_slice(&header);
                self.count(call, RecordType::ZERO, false, Source::Server, code, out.len());
                return Step::Done;
            }
        };
        if let Some(reply) = refusal(&request) {
            self.write(call, &request, reply, Source::Server, random, out);
            return Step::Done;
        }
        let (name, kind) = (request.query.name(), request.query.query_type());
        let (next, chain) = match self.zone.answer(name, kind) {
            ZoneAnswer::NotYet => {
                let reply = Reply::error(ResponseCode::ServFail);
                self.write(call, &request, reply, Source::Cluster, random, out);
                return Step::Done;
            }
            ZoneAnswer::Found(found) => match found.goes_on {
                None => {
                    let reply = Reply {
                        code: found.code,
                        authoritative: true,
                        authentic: false,
                        answers: found.answers,
                        authorities: found.authorities,
                        additionals: found.additionals,
                    };
                    self.write(call, &request, reply, Source::Cluster, random, out);
                    return Step::Done;
                }
                Some(next) => (next, found.answers),
            },
            // Others' names need not be asked for to say that not everything is told.
            ZoneAnswer::Elsewhere if kind == RecordType::ANY => {
                let reply = Reply {
                    answers: vec![zone::minimal(name)],
                    ..Reply::default()
                };
                self.write(call, &request, reply, Source::Server, random, out);
                return Step::Done;
            }
            ZoneAnswer::Elsewhere => (name.clone(), vec![]),
        };
        let question = Question {
            name: next.to_lowercase(),
            kind,
            dnssec_ok: request.dnssec_ok(),
            checking_disabled: request.checking_disabled,
        };
        if let Some(known) = self.forward.known(&question, call.at) {
            let reply = with_chain(chain, known.reply(call.at));
            self.write(call, &request, reply, Source::Cache, random, out);
            return Step::Done;
        }
        match self.room.clone().try_acquire_owned() {
            Ok(permit) => Step::Wait(Box::new(Waiting {
                request,
                question,
                chain,
                call,
                _permit: permit,
            })),
            Err(_) => {
                self.metrics.forward_rejects.fetch_add(1, Ordering::Relaxed);
                let reply = Reply::error(ResponseCode::Refused);
                self.write(call, &request, reply, Source::Server, random, out);
                Step::Done
            }
        }
    }

    /// Waits for another server's answer, and answers into `out`.
    pub async fn finish(&self, waiting: Waiting, random: &mut Random, out: &mut Vec<u8>) {
        let reply = match self.forward.resolve(&waiting.question).await {
            Ok(resolved) => with_chain(waiting.chain, resolved.reply(orlop_base::clock::monotonic())),
            Err(Failure::Busy) => Reply::error(ResponseCode::Refused),
            Err(Failure::NoAnswer) => Reply::error(ResponseCode::ServFail),
        };
        self.write(waiting.call, &waiting.request, reply, Source::Forward, random, out);
    }

    fn write(
        &self,
        call: Call,
        request: &Request,
        mut reply: Reply,
        source: Source,
        random: &mut Random,
        out: &mut Vec<u8>,
    ) {
        shuffle(&mut reply.answers, random);
        let limit = match call.transport {
            Transport::Udp => request.udp_limit(),
            Transport::Tcp => wire::TCP_MAX,
        };
        wire::write(request, &reply, limit, out);
        let kind = request.query.query_type();
        self.count(call, kind, request.dnssec_ok(), source, reply.code, out.len());
    }

    fn count(
        &self,
        call: Call,
        kind: RecordType,
        dnssec_ok: bool,
        source: Source,
        code: ResponseCode,
        response_bytes: usize,
    ) {
        self.metrics.served(&Served {
            transport: call.transport,
            v6: call.v6,
            kind,
            dnssec_ok,
            source,
            code,
            request_bytes: call.bytes,
            response_bytes,
            took: call.at.elapsed(),
        });
    }
}

/// What is refused whatever the name.
fn refusal(request: &Request) -> Option<Reply> {
    if request.edns.is_some_and(|edns| edns.version > 0) {
        return Some(wire::bad_version());
    }
    let transfer = matches!(request.query.query_type(), RecordType::AXFR | RecordType::IXFR);
    let foreign = request.query.query_class() != DNSClass::IN;
    (transfer || foreign).then(|| Reply::error(ResponseCode::Refused))
}

fn with_chain(mut chain: Vec<Record>, mut reply: Reply) -> Reply {
    if !chain.is_empty() {
        chain.append(&mut reply.answers);
        reply.answers = chain;
        reply.authoritative = true;
    }
    reply
}

/// Addresses in another order each time, after the names that lead to them. Upstream: CoreDNS, plugin/loadbalance.
fn shuffle(answers: &mut [Record], random: &mut Random) {
    let is_address = |r: &Record| matches!(r.record_type(), RecordType::A | RecordType::AAAA);
    let Some(start) = answers.iter().position(is_address) else {
        return;
    };
    let addresses = &mut answers[start..];
    if !addresses.iter().all(is_address) {
        return;
    }
    for last in (1..addresses.len()).rev() {
        addresses.swap(last, random.below(last as u64 + 1) as usize);
    }
}

//! A resolver for tests that does as it is told, and a client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, SOA};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

/// Longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    Well,
    Silent,
    /// After a while.
    Late,
    /// By UDP nothing but the bit that says so.
    Truncating,
    Unable,
    Denying,
    /// First an answer with another id, then another question's, then the right one.
    Confusing,
    /// Knows no OPT record.
    Old,
}

#[derive(Clone)]
pub(crate) struct Resolver {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Message>>>,
    manner: Arc<Mutex<Manner>>,
}

impl Resolver {
    pub(crate) async fn start(manner: Manner) -> Resolver {
        let listener = crate::server::listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let resolver = Resolver {
            address: listener.address,
            seen: Arc::default(),
            manner: Arc::new(Mutex::new(manner)),
        };
        let (udp, tcp) = listener.into_parts();
        tokio::spawn(resolver.clone().serve_udp(Arc::new(udp)));
        tokio::spawn(resolver.clone().serve_tcp(tcp));
        resolver
    }

    pub(crate) fn seen(&self) -> Vec<Message> {
        self.seen.lock().clone()
    }

    pub(crate) fn set(&self, manner: Manner) {
        *self.manner.lock() = manner;
    }

    async fn serve_udp(self, socket: Arc<UdpSocket>) {
        let mut buffer = [0; 4096];
        loop {
            let (len, peer) = socket.recv_from(&mut buffer).await.unwrap();
            let query = Message::from_vec(&buffer[..len]).unwrap();
            let (resolver, socket) = (self.clone(), socket.clone());
            tokio::spawn(async move {
                for answer in resolver.answers(query, false).await {
                    socket.send_to(&answer, peer).await.unwrap();
                }
            });
        }
    }

    async fn serve_tcp(self, listener: tokio::net::TcpListener) {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let len = stream.read_u16().await.unwrap();
            let mut bytes = vec![0; len.into()];
            stream.read_exact(&mut bytes).await.unwrap();
            let query = Message::from_vec(&bytes).unwrap();
            for answer in self.answers(query, true).await {
                stream.write_u16(answer.len() as u16).await.unwrap();
                stream.write_all(&answer).await.unwrap();
            }
        }
    }

    async fn answers(&self, query: Message, by_tcp: bool) -> Vec<Vec<u8>> {
        self.seen.lock().push(query.clone());
        let manner = *self.manner.lock();
        let mut answer = Message::response(query.metadata.id, OpCode::Query);
        answer.queries = query.queries.clone();
        let name = query.queries[0].name().clone();
        let address = RData::A(A::new(192, 0, 2, if by_tcp { 2 } else { 1 }));
        match manner {
            Manner::Silent => return vec![],
            Manner::Late => tokio::time::sleep(Duration::from_millis(300)).await,
            Manner::Truncating if !by_tcp => {
                answer.metadata.truncation = true;
                return vec![answer.to_vec().unwrap()];
            }
            Manner::Unable => {
                answer.metadata.response_code = ResponseCode::ServFail;
                return vec![answer.to_vec().unwrap()];
            }
            Manner::Denying => {
                answer.metadata.response_code = ResponseCode::NXDomain;
                let soa = SOA::new(Name::root(), Name::root(), 1, 1, 1, 1, 20);
                answer.add_authority(Record::from_rdata(Name::root(), 600, RData::SOA(soa)));
                return vec![answer.to_vec().unwrap()];
            }
            Manner::Old if query.edns.is_some() => {
                answer = Message::error_msg(query.metadata.id, OpCode::Query, ResponseCode::FormErr);
                return vec![answer.to_vec().unwrap()];
            }
            _ => {}
        }
        answer.add_answer(Record::from_rdata(name, 300, address));
        let right = answer.to_vec().unwrap();
        if manner != Manner::Confusing {
            return vec![right];
        }
        let mut wrong_id = answer.clone();
        wrong_id.metadata.id = wrong_id.metadata.id.wrapping_add(1);
        let mut wrong_name = answer.clone();
        wrong_name.queries[0].set_name(Name::from_ascii("other.").unwrap());
        let wrong = [wrong_id, wrong_name].map(|m| m.to_vec().unwrap());
        let [first, second] = wrong;
        vec![first, second, b"x".to_vec(), right]
    }
}

pub(crate) fn query(name: &str, kind: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message
}

pub(crate) async fn ask_udp(server: SocketAddr, message: &Message) -> Message {
    let bytes = exchange_udp(server, &message.to_vec().unwrap()).await;
    Message::from_vec(&bytes).unwrap()
}

pub(crate) async fn exchange_udp(server: SocketAddr, packet: &[u8]) -> Vec<u8> {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.send_to(packet, server).await.unwrap();
    let mut buffer = vec![0; 65535];
    let received = tokio::time::timeout(PATIENCE, socket.recv(&mut buffer)).await;
    buffer.truncate(received.expect("an answer").unwrap());
    buffer
}

pub(crate) async fn ask_tcp(stream: &mut TcpStream, message: &Message) -> Message {
    let bytes = message.to_vec().unwrap();
    stream.write_u16(bytes.len() as u16).await.unwrap();
    stream.write_all(&bytes).await.unwrap();
    let answered = async {
        let len = stream.read_u16().await.unwrap();
        let mut bytes = vec![0; len.into()];
        stream.read_exact(&mut bytes).await.unwrap();
        bytes
    };
    let bytes = tokio::time::timeout(PATIENCE, answered).await.expect("an answer");
    Message::from_vec(&bytes).unwrap()
}

/// The addresses of an answer.
pub(crate) fn addresses(message: &Message) -> Vec<String> {
    message.answers.iter().map(|r| r.data.to_string()).collect()
}

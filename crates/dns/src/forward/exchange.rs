//! One question to one server: by UDP, and by TCP if the answer does not fit.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, Query, ResponseCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::cache::Question;
use crate::wire::{Reply, UDP_MAX};

/// For each of UDP and TCP.
pub(super) const TRY: Duration = Duration::from_secs(2);

pub(super) async fn ask(server: SocketAddr, question: &Question) -> io::Result<Reply> {
    let message = by_udp(server, &query(question, true)?).await?;
    // Servers of old know no OPT record.
    let (message, edns) = match message.metadata.response_code {
        ResponseCode::FormErr => (by_udp(server, &query(question, false)?).await?, false),
        _ => (message, true),
    };
    let message = match message.metadata.truncation {
        true => by_tcp(server, &query(question, edns)?).await?,
        false => message,
    };
    Ok(Reply {
        code: message.metadata.response_code,
        authoritative: false,
        authentic: message.metadata.authentic_data,
        answers: message.answers,
        authorities: message.authorities,
        additionals: message.additionals,
    })
}

struct Asked {
    message: Message,
    bytes: Vec<u8>,
}

/// With an id at random; the kernel gives a port at random.
fn query(question: &Question, edns: bool) -> io::Result<Asked> {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.metadata.checking_disabled = question.checking_disabled;
    message.add_query(Query::query(question.name.clone(), question.kind));
    if edns {
        let mut opt = Edns::new();
        opt.set_max_payload(UDP_MAX).set_dnssec_ok(question.dnssec_ok);
        message.set_edns(opt);
    }
    let bytes = message.to_vec().map_err(io::Error::other)?;
    Ok(Asked { message, bytes })
}

impl Asked {
    /// The answer to this very question, if the bytes are that.
    fn answer(&self, bytes: &[u8]) -> Option<Message> {
        let message = Message::from_vec(bytes).ok()?;
        let metadata = &message.metadata;
        if metadata.message_type != MessageType::Response || metadata.id != self.message.metadata.id {
            return None;
        }
        let same = match message.queries.as_slice() {
            // Servers that can't read a question don't repeat it.
            [] => !matches!(metadata.response_code, ResponseCode::NoError | ResponseCode::NXDomain),
            queries => queries == self.message.queries.as_slice(),
        };
        same.then_some(message)
    }
}

async fn by_udp(server: SocketAddr, asked: &Asked) -> io::Result<Message> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let exchange = async {
        let socket = UdpSocket::bind(any).await?;
        // Only that server is heard.
        socket.connect(server).await?;
        socket.send(&asked.bytes).await?;
        let mut buffer = vec![0; 4096];
        loop {
            let len = socket.recv(&mut buffer).await?;
            // What is not the answer may be a late one to someone else's question, or a guess.
            if let Some(message) = asked.answer(&buffer[..len]) {
                return Ok(message);
            }
        }
    };
    timeout(TRY, exchange).await.map_err(|_| io::ErrorKind::TimedOut)?
}

async fn by_tcp(server: SocketAddr, asked: &Asked) -> io::Result<Message> {
    let exchange = async {
        let mut stream = TcpStream::connect(server).await?;
        let mut bytes = (asked.bytes.len() as u16).to_be_bytes().to_vec();
        bytes.extend_from_slice(&asked.bytes);
        stream.write_all(&bytes).await?;
        let len = stream.read_u16().await?;
        bytes.resize(len.into(), 0);
        stream.read_exact(&mut bytes).await?;
        let message = asked.answer(&bytes);
        message.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not an answer to the question"))
    };
    timeout(TRY, exchange).await.map_err(|_| io::ErrorKind::TimedOut)?
}

//! Messages on the wire: which questions are fit to be answered, and answers that fit into what the client takes.

use std::iter::once;

use hickory_proto::ProtoError;
use hickory_proto::op::{Header, Message, MessageType, Metadata, OpCode, Query, ResponseCode, emit_message_parts};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{Name, RData, Record};
use hickory_proto::serialize::binary::{BinEncodable, BinEncoder};
use smallvec::SmallVec;

/// What a UDP answer may take where the client says nothing, and at most. The latter passes every usual link whole.
/// Upstream: RFC 1035 and the DNS flag day of 2020.
pub(crate) const UDP_PLAIN: u16 = 512;
pub(crate) const UDP_MAX: u16 = 1232;
pub(crate) const TCP_MAX: u16 = u16::MAX;
const HEADER: usize = 12;
/// An OPT record without options.
const OPT: u16 = 11;
const BAD_VERSION: u16 = 16;

/// A question.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub id: u16,
    pub recursion_desired: bool,
    pub checking_disabled: bool,
    pub query: Query,
    pub edns: Option<Edns>,
}

/// What the client says of itself by an OPT record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edns {
    pub payload: u16,
    pub version: u8,
    pub dnssec_ok: bool,
}

impl Request {
    /// How large a UDP answer may be.
    pub(crate) fn udp_limit(&self) -> u16 {
        let asked = self.edns.map_or(UDP_PLAIN, |edns| edns.payload);
        asked.clamp(UDP_PLAIN, UDP_MAX)
    }

    pub(crate) fn dnssec_ok(&self) -> bool {
        self.edns.is_some_and(|edns| edns.dnssec_ok)
    }
}

/// What does not go on to be answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// No answer at all: too short for one, or itself an answer (whoever answers those can be made to go on for ever).
    Silence,
    /// A header that says what is wrong.
    Refusal(ResponseCode, [u8; HEADER]),
}

/// Reads a question. Upstream: what miekg/dns takes (`DefaultMsgAcceptFunc`).
pub(crate) fn read(packet: &[u8]) -> Result<Request, Rejection> {
    let Some(header) = packet.first_chunk::<HEADER>() else {
        return Err(Rejection::Silence);
    };
    if header[2] & 0x80 != 0 {
        return Err(Rejection::Silence);
    }
    let refusal = |code| Rejection::Refusal(code, refuse(header, code));
    if header[2] & 0x78 != 0 {
        return Err(refusal(ResponseCode::NotImp));
    }
    // Counted before anything is made room for.
    let count = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    if count(4) != 1 || count(6) > 1 || count(8) > 1 || count(10) > 2 {
        return Err(refusal(ResponseCode::FormErr));
    }
    let message = Message::from_vec(packet).map_err(|_| refusal(ResponseCode::FormErr))?;
    let metadata = message.metadata;
    let edns = message.edns.map(|edns| Edns {
        payload: edns.max_payload(),
        version: edns.version(),
        dnssec_ok: edns.flags().dnssec_ok,
    });
    let query = message.queries.into_iter().next();
    Ok(Request {
        id: metadata.id,
        recursion_desired: metadata.recursion_desired,
        checking_disabled: metadata.checking_disabled,
        query: query.expect("there is one question"),
        edns,
    })
}

/// The same id, operation and wish for recursion; no question, as it may be what can't be read.
fn refuse(header: &[u8; HEADER], code: ResponseCode) -> [u8; HEADER] {
    let mut out = [0; HEADER];
    out[..2].copy_from_slice(&header[..2]);
    out[2] = 0x80 | (header[2] & 0x79);
    out[3] = code.low();
    out
}

/// What to answer.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub code: ResponseCode,
    pub authoritative: bool,
    /// A resolver has checked the signatures.
    pub authentic: bool,
    pub answers: Vec<Record>,
    pub authorities: Vec<Record>,
    pub additionals: Vec<Record>,
}

impl Reply {
    pub fn error(code: ResponseCode) -> Reply {
        Reply {
            code,
            ..Reply::default()
        }
    }
}

/// Writes an answer of at most `limit` bytes in place of what is in `out`. If the answers do not fit, as many as do, and
/// the bit that says so; additional records that do not fit are left out without a word.
pub(crate) fn write(request: &Request, reply: &Reply, limit: u16, out: &mut Vec<u8>) {
    let room = match request.edns {
        Some(_) => limit - OPT,
        None => limit,
    };
    let whole = emit(request, reply, &reply.additionals, room, out);
    let written = match whole {
        Ok(header) if header.truncation && !reply.additionals.is_empty() => emit(request, reply, &[], room, out),
        whole => whole,
    };
    let code = match written {
        Ok(_) => u16::from(reply.code),
        Err(error) => {
            tracing::warn!(name = %request.query.name(), err = %error, "failed to encode response");
            let failed = emit(request, &Reply::error(ResponseCode::ServFail), &[], room, out);
            failed.expect("a question that was read can be written");
            u16::from(ResponseCode::ServFail)
        }
    };
    if let Some(edns) = request.edns {
        append_opt(out, edns, code);
    }
}

fn emit(
    request: &Request,
    reply: &Reply,
    additionals: &[Record],
    room: u16,
    out: &mut Vec<u8>,
) -> Result<Header, ProtoError> {
    let mut metadata = Metadata::new(request.id, MessageType::Response, OpCode::Query);
    metadata.authoritative = reply.authoritative;
    metadata.authentic_data = reply.authentic;
    metadata.recursion_desired = request.recursion_desired;
    metadata.recursion_available = true;
    metadata.checking_disabled = request.checking_disabled;
    metadata.response_code = ResponseCode::from_low(reply.code.low());
    let name = request.query.name();
    let answers = reply.answers.iter().map(|record| AnswerRecord { name, record });
    let answers: SmallVec<[AnswerRecord<'_>; 8]> = answers.collect();
    out.clear();
    let mut encoder = BinEncoder::new(out);
    encoder.set_max_size(room);
    let written = emit_message_parts(
        &metadata,
        &mut once(&request.query),
        &mut answers.iter(),
        &mut reply.authorities.iter(),
        &mut additionals.iter(),
        None,
        None,
        &mut encoder,
    );
    // The beginning of a record that did not fit is still there.
    encoder.trim();
    written
}

/// Addresses of the name asked for have that name by a pointer to the question: less work for what is asked most, and no
/// bound on how many records are written that way (`BinEncoder` stops to shorten names after some).
struct AnswerRecord<'a> {
    name: &'a Name,
    record: &'a Record,
}

const QUESTION: [u8; 2] = [0xc0, HEADER as u8];

impl BinEncodable for AnswerRecord<'_> {
    fn emit(&self, encoder: &mut BinEncoder<'_>) -> Result<(), ProtoError> {
        match short(self.record) {
            Some(bytes) if self.record.name.eq_case(self.name) => encoder.emit_vec(&bytes),
            _ => self.record.emit(encoder),
        }
    }
}

fn short(record: &Record) -> Option<SmallVec<[u8; 28]>> {
    let mut bytes = SmallVec::from_slice(&QUESTION);
    bytes.extend_from_slice(&u16::from(record.record_type()).to_be_bytes());
    bytes.extend_from_slice(&u16::from(record.dns_class).to_be_bytes());
    bytes.extend_from_slice(&record.ttl.to_be_bytes());
    match &record.data {
        RData::A(A(address)) => {
            bytes.extend_from_slice(&[0, 4]);
            bytes.extend_from_slice(&address.octets());
        }
        RData::AAAA(AAAA(address)) => {
            bytes.extend_from_slice(&[0, 16]);
            bytes.extend_from_slice(&address.octets());
        }
        _ => return None,
    }
    Some(bytes)
}

/// Whoever sends one gets one: our own limit, and the upper bits of the code.
fn append_opt(out: &mut Vec<u8>, edns: Edns, code: u16) {
    let [high, low] = UDP_MAX.to_be_bytes();
    let dnssec = if edns.dnssec_ok { 0x80 } else { 0 };
    out.extend_from_slice(&[0, 0, 41, high, low, (code >> 4) as u8, 0, dnssec, 0, 0, 0]);
    let additional = u16::from_be_bytes([out[10], out[11]]) + 1;
    out[10..12].copy_from_slice(&additional.to_be_bytes());
}

/// To those whose OPT record is of a version that we don't speak.
pub(crate) fn bad_version() -> Reply {
    Reply::error(ResponseCode::from((BAD_VERSION >> 4) as u8, 0))
}

#[cfg(test)]
mod tests {

    use hickory_proto::rr::RecordType;
    use proptest::prelude::*;

    use super::*;

    fn question(edns: Option<u16>) -> Vec<u8> {
        let mut message = Message::query();
        message.metadata.id = 7;
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(
            Name::from_ascii("Web.default.svc.cluster.local.").unwrap(),
            RecordType::A,
        ));
        if let Some(payload) = edns {
            let mut edns = hickory_proto::op::Edns::new();
            edns.set_max_payload(payload);
            message.set_edns(edns);
        }
        message.to_vec().unwrap()
    }

    fn reply(answers: u32, additionals: u32) -> Reply {
        let name = Name::from_ascii("Web.default.svc.cluster.local.").unwrap();
        let record = |n: u32| Record::from_rdata(name.clone(), 30, RData::A(A(n.into())));
        Reply {
            answers: (0..answers).map(record).collect(),
            additionals: (0..additionals).map(record).collect(),
            ..Reply::default()
        }
    }

    #[test]
    fn answers_are_cut_to_what_the_client_takes() {
        let cases = [
            // edns, answers, additionals → answers, additionals, truncated
            (None, 10, 0, 10, 0, false),
            (None, 100, 0, 29, 0, true),
            (None, 20, 20, 20, 0, false),
            (Some(100), 100, 0, 28, 0, true),
            (Some(1232), 60, 0, 60, 0, false),
            (Some(4096), 100, 0, 73, 0, true),
        ];
        for (edns, answers, additionals, expected, extra, truncated) in cases {
            let request = read(&question(edns)).unwrap();
            let mut out = vec![];
            write(&request, &reply(answers, additionals), request.udp_limit(), &mut out);
            assert!(out.len() <= usize::from(request.udp_limit()));
            let message = Message::from_vec(&out).unwrap();
            assert_eq!(message.answers.len(), expected, "{edns:?} {answers}");
            assert_eq!(message.additionals.len(), extra);
            assert_eq!(message.metadata.truncation, truncated);
            assert_eq!(message.edns.is_some(), edns.is_some());
            assert_eq!(message.metadata.id, 7);
            assert!(message.metadata.recursion_desired);
            // As asked for, letter by letter.
            assert_eq!(message.queries[0].name().to_string(), "Web.default.svc.cluster.local.");
        }
    }

    #[test]
    fn what_is_not_fit() {
        let mut packet = question(None);
        assert_eq!(read(&packet[..11]).unwrap_err(), Rejection::Silence);
        let code = |packet: &[u8]| match read(packet) {
            Err(Rejection::Refusal(code, header)) => {
                assert_eq!(header[..2], packet[..2]);
                assert_eq!(header[3], code.low());
                Some(code)
            }
            _ => None,
        };
        assert_eq!(code(&packet[..20]), Some(ResponseCode::FormErr));
        packet[2] |= 0x80;
        assert_eq!(read(&packet).unwrap_err(), Rejection::Silence);
        packet[2] = 5 << 3;
        assert_eq!(code(&packet), Some(ResponseCode::NotImp));
        packet[2] = 0;
        for count in [0, 2, 255] {
            packet[5] = count;
            assert_eq!(code(&packet), Some(ResponseCode::FormErr));
        }
    }

    #[test]
    fn a_newer_version_is_refused_with_ours() {
        let request = read(&question(Some(1232))).unwrap();
        let mut out = vec![];
        write(&request, &bad_version(), request.udp_limit(), &mut out);
        let message = Message::from_vec(&out).unwrap();
        assert_eq!(u16::from(message.metadata.response_code), BAD_VERSION);
        assert_eq!(message.edns.unwrap().version(), 0);
    }

    proptest! {
        #[test]
        fn nothing_makes_it_fall_over(packet in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = read(&packet);
        }

        #[test]
        fn nor_do_damaged_questions(at in 0usize..60, byte in any::<u8>(), edns in prop::option::of(any::<u16>())) {
            let mut packet = question(edns);
            let at = at % packet.len();
            packet[at] = byte;
            if let Ok(request) = read(&packet) {
                let mut out = vec![];
                write(&request, &reply(100, 100), request.udp_limit(), &mut out);
                prop_assert!(out.len() <= usize::from(request.udp_limit()));
                let read = Message::from_vec(&out);
                prop_assert!(read.is_ok(), "{:?} {:?}", request, read);
            }
        }
    }
}

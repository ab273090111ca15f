//! Connections under way, from the kernel's list of them.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::render::At;
use crate::backend::{Error, Result};
use crate::plan::Protocol;

/// Of this thread's network namespace.
const LIST: &str = "/proc/thread-self/net/ip_vs_conn";

/// Whether a connection to one of these is under way. Those that both ends have closed are not, although the kernel
/// remembers them for minutes; nor are datagrams.
pub(super) fn under_way(is_ours: impl Fn(At) -> bool) -> Result<bool> {
    let list = match File::open(LIST) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
        outcome => outcome.map_err(|e| Error(format!("failed to read {LIST}: {e}")))?,
    };
    for line in BufReader::new(list).lines() {
        let line = line.map_err(|e| Error(format!("failed to read {LIST}: {e}")))?;
        if parse(&line).is_some_and(|(at, is_open)| is_open && is_ours(at)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A line's virtual server, and whether the connection is under way.
///
/// ```text
/// Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
/// TCP CB00710A 9C44 0A600064 0050 0AF4010B 1F90 ESTABLISHED     899
/// ```
fn parse(line: &str) -> Option<(At, bool)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [protocol, _, _, to, port, _, _, state, ..] = fields[..] else {
        return None;
    };
    let ip: IpAddr = match to.contains(':') {
        true => to.parse::<Ipv6Addr>().ok()?.into(),
        false => Ipv4Addr::from(u32::from_str_radix(to, 16).ok()?).into(),
    };
    let address = SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?);
    let (protocol, over): (Protocol, &[&str]) = match protocol {
        "TCP" => (Protocol::Tcp, &["NONE", "TIME_WAIT", "CLOSE"]),
        "SCTP" => (Protocol::Sctp, &["NONE", "CLOSED"]),
        _ => return None,
    };
    Some((At { protocol, address }, !over.contains(&state)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_as_the_kernel_writes_them() {
        let of = |line: &str| parse(line).map(|(at, is_open)| (at.address.to_string(), is_open));
        assert_eq!(
            of("Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData"),
            None
        );
        assert_eq!(
            of("TCP CB00710A 9C44 0A600064 0050 0AF4010B 1F90 ESTABLISHED     899"),
            Some(("10.96.0.100:80".to_string(), true))
        );
        assert_eq!(
            of("TCP CB00710A 9C44 0A600064 0050 0AF4010B 1F90 TIME_WAIT        99"),
            Some(("10.96.0.100:80".to_string(), false))
        );
        assert_eq!(
            of(
                "TCP fd00:0244:0001:0000:0000:0000:0000:000a 9C44 fd00:0096:0000:0000:0000:0000:0000:000a 0050 fd00:0244:0001:0000:0000:0000:0000:000b 1F90 FIN_WAIT        99"
            ),
            Some(("[fd00:96::a]:80".to_string(), true))
        );
        assert_eq!(
            of("UDP CB00710A 9C44 0A60000A 0035 0AF4010B 0035 UDP             299"),
            None
        );
    }
}

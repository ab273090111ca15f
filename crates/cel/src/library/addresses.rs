//! IP addresses and networks.
//!
//! Upstream: apiserver/pkg/cel/library/{ip,cidr}.go, Go's net/netip.

use super::{Body, Outcome, no_overload};
use crate::program::EvalError;
use crate::value::{Text, Value};
use std::net::{IpAddr, Ipv6Addr};

pub(super) const FUNCTIONS: &[(&str, Body)] = &[
    ("ip", |args| match args {
        [Value::String(text)] => ip::parse(text).map(Value::Ip),
        [Value::Cidr(cidr)] => Ok(Value::Ip(cidr.address)),
        _ => no_overload(),
    }),
    ("isIP", |args| {
        text(args, |text| Ok(Value::Bool(ip::parse(text).is_ok())))
    }),
    ("ip.isCanonical", |args| {
        text(args, |text| {
            Ok(Value::Bool(ip::parse(text)?.to_string() == text.as_str()))
        })
    }),
    ("family", |args| {
        address(args, |ip| Value::Int(if ip.is_ipv4() { 4 } else { 6 }))
    }),
    ("isUnspecified", |args| {
        address(args, |ip| Value::Bool(ip.is_unspecified()))
    }),
    ("isLoopback", |args| address(args, |ip| Value::Bool(ip.is_loopback()))),
    ("isLinkLocalMulticast", |args| {
        address(args, |ip| Value::Bool(ip::is_link_local_multicast(ip)))
    }),
    ("isLinkLocalUnicast", |args| {
        address(args, |ip| Value::Bool(ip::is_link_local_unicast(ip)))
    }),
    ("isGlobalUnicast", |args| {
        address(args, |ip| Value::Bool(ip::is_global_unicast(ip)))
    }),
    ("cidr", |args| {
        text(args, |text| match cidr::parse(text) {
            Ok(cidr) => Ok(Value::Cidr(cidr)),
            Err(why) => Err(EvalError::new(format!(
                "network address parse error during conversion from string: {why}"
            ))),
        })
    }),
    ("isCIDR", |args| {
        text(args, |text| Ok(Value::Bool(cidr::parse(text).is_ok())))
    }),
    ("containsIP", |args| match args {
        [Value::Cidr(cidr), Value::Ip(ip)] => Ok(Value::Bool(cidr.contains(ip))),
        [Value::Cidr(cidr), Value::String(text)] => Ok(Value::Bool(cidr.contains(&ip::parse(text)?))),
        _ => no_overload(),
    }),
    ("containsCIDR", |args| match args {
        [Value::Cidr(cidr), Value::Cidr(other)] => Ok(Value::Bool(cidr.contains_network(other))),
        [Value::Cidr(cidr), Value::String(text)] => match cidr::parse(text) {
            Ok(other) => Ok(Value::Bool(cidr.contains_network(&other))),
            Err(why) => Err(EvalError::new(format!(
                "network address parse error during conversion from string: {why}"
            ))),
        },
        _ => no_overload(),
    }),
    ("prefixLength", |args| match args {
        [Value::Cidr(cidr)] => Ok(Value::Int(i64::from(cidr.length))),
        _ => no_overload(),
    }),
    ("masked", |args| match args {
        [Value::Cidr(cidr)] => Ok(Value::Cidr(cidr.masked())),
        _ => no_overload(),
    }),
];

fn text<'a>(args: &[Value<'a>], of: fn(&Text<'a>) -> Outcome<'a>) -> Outcome<'a> {
    match args {
        [Value::String(text)] => of(text),
        _ => no_overload(),
    }
}

fn address<'a>(args: &[Value<'a>], of: fn(&IpAddr) -> Value<'a>) -> Outcome<'a> {
    match args {
        [Value::Ip(ip)] => Ok(of(ip)),
        _ => no_overload(),
    }
}

pub(crate) mod ip {
    use super::*;

    /// An address without zone, not an IPv4 address in IPv6 form.
    pub(crate) fn parse(text: &str) -> Result<IpAddr, EvalError> {
        if text.contains('%') && text.contains(':') {
            return Err(EvalError::new(format!(
                "IP address {text:?} with zone value is not allowed"
            )));
        }
        match text.parse::<IpAddr>() {
            Ok(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_some() => Err(EvalError::new(format!(
                "IPv4-mapped IPv6 address {text:?} is not allowed"
            ))),
            Ok(ip) => Ok(ip),
            Err(_) => Err(EvalError::new(format!(
                "IP Address {text:?} parse error during conversion from string: ParseAddr({text:?}): {}",
                reason(text)
            ))),
        }
    }

    /// Why a text is no address, as far as Go's most usual reasons go.
    fn reason(text: &str) -> String {
        if text.contains(':') {
            return reason_v6(text);
        }
        let why = match text {
            _ if !text.contains('.') => "unable to parse IP",
            _ if text.split('.').count() < 4 => "IPv4 address too short",
            _ if text.split('.').count() > 4 => "IPv4 address too long",
            _ if text.split('.').any(str::is_empty) => "IPv4 field must have at least one digit",
            _ if text.split('.').any(|field| field.len() > 1 && field.starts_with('0')) => {
                "IPv4 field has octet with leading zero"
            }
            _ if text.split('.').all(|field| field.bytes().all(|b| b.is_ascii_digit())) => "IPv4 field has value >255",
            _ => "unexpected character",
        };
        why.to_string()
    }

    /// Why a text with colons is no address.
    fn reason_v6(text: &str) -> String {
        let wrong = |why: &str, at: &str| format!("{why} (at {at:?})");
        let mut rest = text.strip_prefix("::").unwrap_or(text);
        let mut fields = 0;
        while !rest.is_empty() {
            if fields == 8 {
                return wrong("trailing garbage after address", rest);
            }
            let digits = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
            match digits {
                0 => return wrong("each colon-separated field must have at least one digit", rest),
                1..=4 => {}
                _ => return wrong("each group must have 4 or less digits", rest),
            }
            fields += 1;
            rest = &rest[digits..];
            if rest.starts_with('.') {
                return wrong(
                    "embedded IPv4 address must replace the final 2 fields of the address",
                    rest,
                );
            }
            let Some(after) = rest.strip_prefix(':') else {
                if rest.is_empty() {
                    break;
                }
                return wrong("unexpected character, want colon", rest);
            };
            if after.is_empty() {
                return wrong("colon must be followed by more characters", rest);
            }
            rest = after.strip_prefix(':').unwrap_or(after);
        }
        "address string too short".to_string()
    }

    /// Bytes of an address.
    pub(crate) fn size(ip: &IpAddr) -> u64 {
        if ip.is_ipv4() { 4 } else { 16 }
    }

    pub(super) fn is_link_local_multicast(ip: &IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => ip.octets()[..3] == [224, 0, 0],
            IpAddr::V6(ip) => ip.segments()[0] & 0xff0f == 0xff02,
        }
    }

    pub(super) fn is_link_local_unicast(ip: &IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 == 0xfe80,
        }
    }

    pub(super) fn is_global_unicast(ip: &IpAddr) -> bool {
        let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
        !(broadcast || ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || is_link_local_unicast(ip))
    }
}

pub(crate) mod cidr {
    use super::*;
    use std::fmt;

    /// An address and the length of a network's prefix.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Cidr {
        pub(super) address: IpAddr,
        pub(super) length: u8,
    }

    impl Cidr {
        /// Bytes of the prefix.
        pub(crate) fn size(&self) -> u64 {
            u64::from(self.length).div_ceil(8)
        }

        pub(super) fn contains(&self, ip: &IpAddr) -> bool {
            self.address.is_ipv4() == ip.is_ipv4() && mask(&self.address, self.length) == mask(ip, self.length)
        }

        pub(super) fn contains_network(&self, other: &Cidr) -> bool {
            self.length <= other.length && self.contains(&other.address)
        }

        pub(super) fn masked(&self) -> Cidr {
            Cidr {
                address: mask(&self.address, self.length),
                length: self.length,
            }
        }
    }

    fn mask(ip: &IpAddr, length: u8) -> IpAddr {
        match ip {
            IpAddr::V4(ip) => {
                let bits = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
                IpAddr::V4((u32::from(*ip) & bits).into())
            }
            IpAddr::V6(ip) => {
                let bits = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from(u128::from(*ip) & bits))
            }
        }
    }

    impl fmt::Display for Cidr {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{}/{}", self.address, self.length)
        }
    }

    /// A network, or why it is none.
    pub(crate) fn parse(text: &str) -> Result<Cidr, EvalError> {
        let wrong = |why: &str| {
            EvalError::new(format!(
                "network address parse error during conversion from string: netip.ParsePrefix({text:?}): {why}"
            ))
        };
        let (address, length) = text.rsplit_once('/').ok_or_else(|| wrong("no '/'"))?;
        if address.contains('%') {
            return Err(wrong("IPv6 zones cannot be present in a prefix"));
        }
        let address: IpAddr = address
            .parse()
            .map_err(|_| wrong(&format!("ParseAddr({address:?}): unable to parse IP")))?;
        let digits = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
        if !digits || (length.len() > 1 && length.starts_with('0')) {
            return Err(wrong(&format!("bad bits after slash: {length:?}")));
        }
        let most = if address.is_ipv4() { 32 } else { 128 };
        let length = length.parse::<u8>().ok().filter(|length| *length <= most);
        let length = length.ok_or_else(|| wrong("prefix length out of range"))?;
        if matches!(address, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some()) {
            return Err(EvalError::new(format!(
                "IPv4-mapped IPv6 address {text:?} is not allowed"
            )));
        }
        Ok(Cidr { address, length })
    }
}

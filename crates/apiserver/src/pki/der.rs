//! DER, as much of it as certificates are made of, and PEM around it.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use jiff::tz::TimeZone;

const BOOLEAN_TRUE: [u8; 3] = [1, 1, 0xff];
const INTEGER: u8 = 2;
const BIT_STRING: u8 = 3;
const OCTET_STRING: u8 = 4;
const OBJECT_IDENTIFIER: u8 = 6;
const UTF8_STRING: u8 = 12;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// Up to this year a certificate has UTCTime, with two digits for it.
const UTC_TIME_YEAR_MAX: i16 = 2049;
/// Bytes of a line of PEM before they are encoded.
const PEM_LINE: usize = 48;

/// What a certificate can't say.
#[derive(Debug, thiserror::Error)]
pub enum EncodingError {
    #[error("{0:?} is not an object identifier")]
    ObjectIdentifier(String),
    #[error("{0:?} has characters that are not ASCII")]
    NotAscii(String),
    #[error("time {0} is out of range")]
    Time(i64),
}

/// Tag, length, value.
pub(super) fn tlv(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|p| p.len()).sum();
    let mut out = vec![tag];
    match length {
        0..0x80 => out.push(length as u8),
        _ => {
            let bytes = length.to_be_bytes();
            let bytes = &bytes[bytes.iter().take_while(|b| **b == 0).count()..];
            out.push(0x80 | bytes.len() as u8);
            out.extend_from_slice(bytes);
        }
    }
    parts.iter().for_each(|p| out.extend_from_slice(p));
    out
}

pub(super) fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    tlv(SEQUENCE, parts)
}

/// A set of one value; more would have to be in order.
pub(super) fn set_of_one(value: &[u8]) -> Vec<u8> {
    tlv(SET, &[value])
}

/// A positive number, the highest byte first and neither 0 nor above 0x7f.
pub(super) fn positive_integer(bytes: &[u8]) -> Vec<u8> {
    debug_assert!(bytes.first().is_some_and(|first| (1..0x80).contains(first)));
    tlv(INTEGER, &[bytes])
}

pub(super) fn octet_string(bytes: &[u8]) -> Vec<u8> {
    tlv(OCTET_STRING, &[bytes])
}

pub(super) fn bit_string(bytes: &[u8]) -> Vec<u8> {
    tlv(BIT_STRING, &[&[0], bytes])
}

/// A bit string whose bits have names: the first is the lowest of `flags`, and zeros at the end are left out.
pub(super) fn named_bits(flags: u16) -> Vec<u8> {
    let used = u16::BITS - flags.leading_zeros();
    let bytes = flags.reverse_bits().to_be_bytes();
    let length = used.div_ceil(8);
    let unused = length * 8 - used;
    tlv(BIT_STRING, &[&[unused as u8], &bytes[..length as usize]])
}

pub(super) fn utf8_string(text: &str) -> Vec<u8> {
    tlv(UTF8_STRING, &[text.as_bytes()])
}

/// An IA5String with this tag in place of its own.
pub(super) fn ia5_string(tag: u8, text: &str) -> Result<Vec<u8>, EncodingError> {
    match text.is_ascii() {
        true => Ok(tlv(tag, &[text.as_bytes()])),
        false => Err(EncodingError::NotAscii(text.to_string())),
    }
}

/// From its form with dots.
pub(super) fn object_identifier(text: &str) -> Result<Vec<u8>, EncodingError> {
    let wrong = || EncodingError::ObjectIdentifier(text.to_string());
    let arcs: Result<Vec<u32>, _> = text.split('.').map(str::parse).collect();
    let arcs = arcs.map_err(|_| wrong())?;
    let (first, second, rest) = match arcs[..] {
        [first @ 0..=1, second @ 0..40, ref rest @ ..] => (first, second, rest),
        [2, second, ref rest @ ..] => (2, second, rest),
        _ => return Err(wrong()),
    };
    let mut bytes = vec![];
    let arcs = [u64::from(first) * 40 + u64::from(second)];
    for arc in arcs.into_iter().chain(rest.iter().copied().map(u64::from)) {
        // Seven bits a byte, all but the last with the highest bit set.
        let groups = (u64::BITS - arc.leading_zeros()).div_ceil(7).max(1);
        for group in (0..groups).rev() {
            let bits = (arc >> (group * 7)) as u8 & 0x7f;
            bytes.push(if group == 0 { bits } else { bits | 0x80 });
        }
    }
    Ok(tlv(OBJECT_IDENTIFIER, &[&bytes]))
}

/// A moment as certificates have it, in whole seconds since the epoch.
pub(super) fn time(seconds: i64) -> Result<Vec<u8>, EncodingError> {
    let at = Timestamp::from_second(seconds).map_err(|_| EncodingError::Time(seconds))?;
    let at = at.to_zoned(TimeZone::UTC);
    let (tag, format) = match at.year() {
        1970..=UTC_TIME_YEAR_MAX => (UTC_TIME, "%y%m%d%H%M%SZ"),
        _ => (GENERALIZED_TIME, "%Y%m%d%H%M%SZ"),
    };
    Ok(tlv(tag, &[at.strftime(format).to_string().as_bytes()]))
}

/// An extension of a certificate; its value is DER.
pub(super) fn extension(oid: &str, critical: bool, value: &[u8]) -> Result<Vec<u8>, EncodingError> {
    let critical: &[u8] = if critical { &BOOLEAN_TRUE } else { &[] };
    Ok(sequence(&[&object_identifier(oid)?, critical, &octet_string(value)]))
}

/// BasicConstraints without a length of path.
pub(super) fn basic_constraints(is_authority: bool) -> Vec<u8> {
    sequence(&[if is_authority { &BOOLEAN_TRUE } else { &[] }])
}

pub(super) fn pem(label: &str, der: &[u8]) -> String {
    let mut text = format!("-----BEGIN {label}-----\n");
    for line in der.chunks(PEM_LINE) {
        BASE64_STANDARD.encode_string(line, &mut text);
        text.push('\n');
    }
    text + &format!("-----END {label}-----\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths() {
        assert_eq!(tlv(4, &[]), [4, 0]);
        assert_eq!(tlv(4, &[&[0; 127]])[..2], [4, 127]);
        assert_eq!(tlv(4, &[&[0; 100], &[0; 28]])[..3], [4, 0x81, 128]);
        assert_eq!(tlv(4, &[&[0; 256]])[..4], [4, 0x82, 1, 0]);
        assert_eq!(tlv(4, &[&[0; 65536]])[..5], [4, 0x83, 1, 0, 0]);
    }

    #[test]
    fn object_identifiers() {
        for (text, expected) in [
            ("2.5.4.3", &[0x55, 4, 3][..]),
            ("2.999", &[0x88, 0x37]),
            (
                "0.9.2342.19200300.100.1.25",
                &[9, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25],
            ),
            ("1.2.840.113549.1.1.11", &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 11]),
            ("1.3.6.1.4.1.57683.2", &[0x2b, 6, 1, 4, 1, 0x83, 0xc2, 0x53, 2]),
            ("1.0.128.127", &[0x28, 0x81, 0, 0x7f]),
        ] {
            assert_eq!(object_identifier(text).unwrap()[2..], *expected, "{text}");
        }
        for text in ["", "1", "3.1", "1.40", "1..2", "1.2.x", "1.2.99999999999", "-1.2"] {
            assert!(object_identifier(text).is_err(), "{text}");
        }
        assert_eq!(
            object_identifier("a").unwrap_err().to_string(),
            "\"a\" is not an object identifier"
        );
    }

    #[test]
    fn bits_with_names() {
        for (flags, expected) in [
            (1u16, &[3, 2, 7, 0x80][..]),
            (1 | 4, &[3, 2, 5, 0xa0]),
            (1 | 4 | 32, &[3, 2, 2, 0xa4]),
            (128, &[3, 2, 0, 1]),
            (256, &[3, 3, 7, 0, 0x80]),
            (511, &[3, 3, 7, 0xff, 0x80]),
            (0, &[3, 1, 0]),
        ] {
            assert_eq!(named_bits(flags), expected, "{flags}");
        }
    }

    #[test]
    fn times() {
        let at = |text: &str| time(text.parse::<Timestamp>().unwrap().as_second()).unwrap();
        assert_eq!(at("1970-01-01T00:00:00Z"), b"\x17\x0d700101000000Z");
        assert_eq!(at("2026-11-18T08:09:10Z"), b"\x17\x0d261118080910Z");
        assert_eq!(at("2049-12-31T23:59:59Z"), b"\x17\x0d491231235959Z");
        assert_eq!(at("2050-01-01T00:00:00Z"), b"\x18\x0f20500101000000Z");
        assert!(time(i64::MAX).is_err());
    }

    #[test]
    fn the_parts_of_extensions() {
        assert_eq!(basic_constraints(false), [0x30, 0]);
        assert_eq!(basic_constraints(true), [0x30, 3, 1, 1, 0xff]);
        let plain = extension("2.5.29.17", false, &[5, 0]).unwrap();
        assert_eq!(plain, [0x30, 9, 6, 3, 0x55, 29, 17, 4, 2, 5, 0]);
        let critical = extension("2.5.29.17", true, &[5, 0]).unwrap();
        assert_eq!(critical, [0x30, 12, 6, 3, 0x55, 29, 17, 1, 1, 0xff, 4, 2, 5, 0]);
        assert!(ia5_string(0x82, "é").is_err());
        assert_eq!(ia5_string(0x82, "a").unwrap(), [0x82, 1, b'a']);
    }

    #[test]
    fn pem_has_lines_of_64() {
        assert_eq!(pem("X", &[]), "-----BEGIN X-----\n-----END X-----\n");
        let text = pem("X", &[0; 49]);
        let lines: Vec<usize> = text.lines().map(str::len).collect();
        assert_eq!(lines, [17, 64, 4, 15]);
    }
}

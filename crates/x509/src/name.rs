//! Names in certificates and in requests for them. Whoever judges a name must see all of it: what can't be read is an
//! error, never left out, since the next one to look at the certificate may be able to read it.

use std::net::IpAddr;

use x509_parser::asn1_rs::Oid;
use x509_parser::extensions::{GeneralName, SubjectAlternativeName};
use x509_parser::x509::X509Name;

pub const COMMON_NAME: &str = "2.5.4.3";
pub const ORGANIZATION: &str = "2.5.4.10";
/// Kubernetes' own attribute for the UID of a user.
pub const USER_UID: &str = "1.3.6.1.4.1.57683.2";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("subject can't be read: it is malformed")]
    Malformed,
    #[error(
        "subject attribute {0} can't be read: its value is no UTF8String, PrintableString, IA5String or NumericString"
    )]
    StringType(String),
    #[error("subject attribute {0} can't be read: its value has characters that its type does not allow")]
    Characters(String),
    #[error("subject has more than one {0}")]
    Repeated(&'static str),
    #[error("subject attribute {0} is not supported")]
    Unsupported(String),
    #[error("a subjectAltName is of a type that is not supported")]
    AlternativeNameType,
    #[error("a subjectAltName can't be read")]
    AlternativeName,
}

/// One attribute of a distinguished name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// With dots.
    pub oid: String,
    pub value: String,
}

/// A distinguished name of which every attribute could be read. Which of them share a relative name makes no difference
/// here: some tools put all organizations into one, others each into its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DistinguishedName {
    attributes: Vec<Attribute>,
}

impl DistinguishedName {
    /// From its encoding: a parser that stops at the first thing it does not understand would hide what follows.
    pub fn read(name: &X509Name<'_>) -> Result<DistinguishedName, NameError> {
        let mut attributes = vec![];
        for relative in items(only(name.as_raw(), SEQUENCE)?) {
            for attribute in items(content(relative?, SET)?) {
                let mut parts = items(content(attribute?, SEQUENCE)?);
                let (Some(oid), Some(value), None) = (parts.next(), parts.next(), parts.next()) else {
                    return Err(NameError::Malformed);
                };
                let oid = Oid::new(content(oid?, OBJECT_IDENTIFIER)?.into()).to_id_string();
                let value = text(&oid, &value?)?;
                attributes.push(Attribute { oid, value });
            }
        }
        let name = DistinguishedName { attributes };
        // Which of several counts depends on who looks.
        for (oid, words) in [(COMMON_NAME, "common name"), (USER_UID, "user UID")] {
            if name.values(oid).nth(1).is_some() {
                return Err(NameError::Repeated(words));
            }
        }
        Ok(name)
    }

    /// As `read`, and without attributes of a type whose meaning to others is not known here.
    pub fn read_known(name: &X509Name<'_>) -> Result<DistinguishedName, NameError> {
        let name = DistinguishedName::read(name)?;
        match name.attributes.iter().find(|a| !KNOWN.contains(&a.oid.as_str())) {
            Some(unknown) => Err(NameError::Unsupported(unknown.oid.clone())),
            None => Ok(name),
        }
    }

    pub fn attributes(&self) -> &[Attribute] {
        &self.attributes
    }

    fn values<'a>(&'a self, oid: &'a str) -> impl Iterator<Item = &'a str> {
        let found = self.attributes.iter().filter(move |a| a.oid == oid);
        found.map(|a| a.value.as_str())
    }

    /// Empty if there is none.
    pub fn common_name(&self) -> &str {
        self.values(COMMON_NAME).next().unwrap_or_default()
    }

    pub fn organizations(&self) -> impl Iterator<Item = &str> {
        self.values(ORGANIZATION)
    }

    /// That of the user, if there is one.
    pub fn user_uid(&self) -> Option<&str> {
        self.values(USER_UID).next()
    }

    /// Whether there is nothing but common name and organizations.
    pub fn is_plain(&self) -> bool {
        self.attributes
            .iter()
            .all(|a| a.oid == COMMON_NAME || a.oid == ORGANIZATION)
    }
}

/// What subjects are made of: those that Go names, what X.520 has beside them for people, e-mail, domain components.
const KNOWN: &[&str] = &[
    COMMON_NAME,
    ORGANIZATION,
    USER_UID,
    "2.5.4.4",
    "2.5.4.5",
    "2.5.4.6",
    "2.5.4.7",
    "2.5.4.8",
    "2.5.4.9",
    "2.5.4.11",
    "2.5.4.12",
    "2.5.4.17",
    "2.5.4.42",
    "2.5.4.43",
    "1.2.840.113549.1.9.1",
    "0.9.2342.19200300.100.1.1",
    "0.9.2342.19200300.100.1.25",
];

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 6;

/// A value with its tag, in DER.
struct Tagged<'a> {
    tag: u8,
    content: &'a [u8],
}

/// The first value of some DER, and what follows it.
fn first(der: &[u8]) -> Result<(Tagged<'_>, &[u8]), NameError> {
    let (tag, length, rest) = match *der {
        // Tags of more than one byte are not in use here.
        [tag, ..] if tag & 0x1f == 0x1f => return Err(NameError::Malformed),
        [tag, length @ 0..=0x7f, ref rest @ ..] => (tag, usize::from(length), rest),
        [tag, 0x81, length @ 0x80..=0xff, ref rest @ ..] => (tag, usize::from(length), rest),
        [tag, 0x82, high @ 1..=0xff, low, ref rest @ ..] => (tag, usize::from(high) << 8 | usize::from(low), rest),
        _ => return Err(NameError::Malformed),
    };
    let (content, rest) = rest.split_at_checked(length).ok_or(NameError::Malformed)?;
    Ok((Tagged { tag, content }, rest))
}

/// All values of some DER, to its very end.
fn items(mut der: &[u8]) -> impl Iterator<Item = Result<Tagged<'_>, NameError>> {
    std::iter::from_fn(move || {
        (!der.is_empty()).then(|| {
            let (value, rest) = first(der).inspect_err(|_| der = &[])?;
            der = rest;
            Ok(value)
        })
    })
}

/// The content of the one value that is there.
fn only(der: &[u8], tag: u8) -> Result<&[u8], NameError> {
    match first(der)? {
        (value, []) => content(value, tag),
        _ => Err(NameError::Malformed),
    }
}

fn content(value: Tagged<'_>, tag: u8) -> Result<&[u8], NameError> {
    match value.tag == tag {
        true => Ok(value.content),
        false => Err(NameError::Malformed),
    }
}

fn text(oid: &str, value: &Tagged<'_>) -> Result<String, NameError> {
    let is_allowed: fn(char) -> bool = match value.tag {
        0x0c => |_| true,
        0x13 => is_printable,
        0x16 => |c| c.is_ascii(),
        0x12 => |c| c.is_ascii_digit() || c == ' ',
        _ => return Err(NameError::StringType(oid.to_string())),
    };
    std::str::from_utf8(value.content)
        .ok()
        .filter(|text| text.chars().all(|c| c != '\0' && is_allowed(c)))
        .map(str::to_string)
        .ok_or_else(|| NameError::Characters(oid.to_string()))
}

/// The asterisk and the ampersand are not in the standard's set, but in many certificates: Go takes them too.
fn is_printable(c: char) -> bool {
    c.is_ascii_alphanumeric() || " '()+,-./:=?*&".contains(c)
}

/// The names of a certificate beside its subject.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlternativeNames {
    pub dns_names: Vec<String>,
    pub emails: Vec<String>,
    pub addresses: Vec<IpAddr>,
    pub uris: Vec<String>,
}

impl AlternativeNames {
    pub fn read(names: &SubjectAlternativeName<'_>) -> Result<AlternativeNames, NameError> {
        let mut read = AlternativeNames::default();
        for name in &names.general_names {
            match name {
                GeneralName::DNSName(name) => read.dns_names.push(plain(name)?),
                GeneralName::RFC822Name(name) => read.emails.push(plain(name)?),
                GeneralName::URI(name) => read.uris.push(plain(name)?),
                GeneralName::IPAddress(bytes) => read.addresses.push(address(bytes)?),
                GeneralName::Invalid(..) => return Err(NameError::AlternativeName),
                _ => return Err(NameError::AlternativeNameType),
            }
        }
        Ok(read)
    }

    pub fn is_empty(&self) -> bool {
        self.dns_names.is_empty() && self.emails.is_empty() && self.addresses.is_empty() && self.uris.is_empty()
    }
}

fn plain(name: &str) -> Result<String, NameError> {
    match !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic() || b == b' ') {
        true => Ok(name.to_string()),
        false => Err(NameError::AlternativeName),
    }
}

fn address(bytes: &[u8]) -> Result<IpAddr, NameError> {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        return Ok(IpAddr::from(v4));
    }
    let v6 = <[u8; 16]>::try_from(bytes).map_err(|_| NameError::AlternativeName)?;
    Ok(IpAddr::from(v6))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use x509_parser::prelude::FromDer;

    use super::*;

    fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
        assert!(content.len() < 128);
        [&[tag, content.len() as u8], content].concat()
    }

    const CN: &[u8] = &[0x55, 4, 3];
    const O: &[u8] = &[0x55, 4, 10];
    const UID: &[u8] = &[0x2b, 6, 1, 4, 1, 0x83, 0xc2, 0x53, 2];
    /// X.520's role.
    const ROLE: &[u8] = &[0x55, 4, 72];
    const UTF8: u8 = 12;
    const PRINTABLE: u8 = 19;
    const T61: u8 = 20;
    const IA5: u8 = 22;
    const UNIVERSAL: u8 = 28;
    const BMP: u8 = 30;

    fn attribute(oid: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
        tlv(0x30, &[tlv(6, oid), tlv(tag, value)].concat())
    }

    fn name(relative: &[&[Vec<u8>]]) -> Vec<u8> {
        let sets: Vec<u8> = relative.iter().flat_map(|list| tlv(0x31, &list.concat())).collect();
        tlv(0x30, &sets)
    }

    fn read(der: &[u8]) -> Result<DistinguishedName, String> {
        let (_, name) = X509Name::from_der(der).map_err(|e| e.to_string())?;
        DistinguishedName::read(&name).map_err(|e| e.to_string())
    }

    #[test]
    fn names_are_read_whole_or_not_at_all() {
        let node = || attribute(CN, UTF8, b"system:node:a");
        let nodes = || attribute(O, UTF8, b"system:nodes");
        let good = read(&name(&[
            &[nodes()],
            &[attribute(O, PRINTABLE, b"b"), attribute(O, IA5, b"c")],
            &[node()],
        ]))
        .unwrap();
        assert_eq!(good.common_name(), "system:node:a");
        assert_eq!(good.organizations().collect::<Vec<_>>(), ["system:nodes", "b", "c"]);
        assert!(good.is_plain());

        let masters: Vec<u8> = "system:masters".encode_utf16().flat_map(u16::to_be_bytes).collect();
        let wide: Vec<u8> = "sys".chars().flat_map(|c| (c as u32).to_be_bytes()).collect();
        for (attribute, wanted) in [
            (attribute(O, BMP, &masters), "2.5.4.10 can't be read: its value is no"),
            (
                attribute(O, T61, b"system:masters"),
                "2.5.4.10 can't be read: its value is no",
            ),
            (
                attribute(O, UNIVERSAL, &wide),
                "2.5.4.10 can't be read: its value is no",
            ),
            (
                attribute(O, 4, b"system:masters"),
                "2.5.4.10 can't be read: its value is no",
            ),
            (attribute(O, 2, &[1]), "2.5.4.10 can't be read: its value is no"),
            // A string of the class of its context, one in parts.
            (attribute(O, 0x8c, b"x"), "2.5.4.10 can't be read: its value is no"),
            (
                attribute(O, 0x2c, &tlv(UTF8, b"x")),
                "2.5.4.10 can't be read: its value is no",
            ),
            (
                attribute(ROLE, BMP, &masters),
                "2.5.4.72 can't be read: its value is no",
            ),
            (attribute(O, UTF8, b"system:masters\0"), "that its type does not allow"),
            (attribute(O, PRINTABLE, b"a@b"), "that its type does not allow"),
            (attribute(O, 18, b"a"), "that its type does not allow"),
            (node(), "more than one common name"),
        ] {
            let with = read(&name(&[&[nodes()], std::slice::from_ref(&attribute), &[node()]])).unwrap_err();
            assert!(with.contains(wanted), "{with}");
            let beside = read(&name(&[&[nodes(), attribute], &[node()]])).unwrap_err();
            assert!(beside.contains(wanted), "{beside}");
        }
        // What follows something broken is not hidden by it.
        let masters = attribute(O, UTF8, b"system:masters");
        for broken in [
            vec![0x31, 0],
            vec![0x31, 2, 5, 0],
            tlv(0x31, &tlv(0x30, &tlv(6, O))),
            tlv(0x31, &[attribute(O, UTF8, b"a"), vec![5, 0], masters.clone()].concat()),
            tlv(0x31, &[attribute(O, UTF8, b"a"), vec![0x30, 0x7f]].concat()),
            tlv(
                0x31,
                &tlv(0x30, &[tlv(6, O), tlv(UTF8, b"a"), tlv(UTF8, b"b")].concat()),
            ),
            vec![0x1f, 0x81, 0],
        ] {
            let der = tlv(
                0x30,
                &[tlv(0x31, &node()), broken.clone(), tlv(0x31, &masters)].concat(),
            );
            let seen = read(&der).map(|name| name.organizations().map(str::to_string).collect::<Vec<_>>());
            assert!(
                seen.is_err() || seen == Ok(vec!["system:masters".to_string()]),
                "{broken:?} {seen:?}"
            );
        }
        for broken in [
            attribute(O, UTF8, &[0xff]),
            attribute(O, IA5, &[0xe9]),
            attribute(O, PRINTABLE, &[0xe9]),
        ] {
            assert!(read(&name(&[&[broken], &[node()]])).is_err());
        }
        let uid = attribute(UID, UTF8, b"u");
        assert_eq!(
            read(&name(&[std::slice::from_ref(&uid)])).unwrap().user_uid(),
            Some("u")
        );
        assert!(read(&name(&[std::slice::from_ref(&uid), std::slice::from_ref(&uid)])).is_err());
    }

    #[test]
    fn attributes_whose_meaning_is_unknown_are_told_apart() {
        let der = name(&[&[attribute(CN, UTF8, b"a")], &[attribute(ROLE, UTF8, b"r")]]);
        let (_, parsed) = X509Name::from_der(&der).unwrap();
        assert!(!DistinguishedName::read(&parsed).unwrap().is_plain());
        let refused = DistinguishedName::read_known(&parsed).unwrap_err();
        assert_eq!(refused.to_string(), "subject attribute 2.5.4.72 is not supported");
    }

    #[test]
    fn alternative_names_are_read_whole_or_not_at_all() {
        let read = |entries: &[Vec<u8>]| {
            let der = tlv(0x30, &entries.concat());
            let (_, names) = SubjectAlternativeName::from_der(&der).map_err(|e| e.to_string())?;
            AlternativeNames::read(&names).map_err(|e| e.to_string())
        };
        let good = read(&[
            tlv(0x82, b"a.b"),
            tlv(0x87, &[10, 0, 0, 1]),
            tlv(0x81, b"a@b"),
            tlv(0x86, b"x:y"),
        ])
        .unwrap();
        assert_eq!(
            (good.dns_names, good.addresses),
            (vec!["a.b".to_string()], vec!["10.0.0.1".parse().unwrap()])
        );
        assert_eq!(
            (good.emails, good.uris),
            (vec!["a@b".to_string()], vec!["x:y".to_string()])
        );
        for bad in [
            tlv(0x82, b"a\0b"),
            tlv(0x82, b""),
            tlv(0x82, "é".as_bytes()),
            tlv(0x82, &[0xff]),
            tlv(0x87, &[1, 2, 3]),
            tlv(0x88, &[0x2a]),
            tlv(0xa0, &[tlv(6, &[0x2a]), tlv(0xa0, &tlv(UTF8, b"x"))].concat()),
            tlv(0xa4, &name(&[&[attribute(CN, UTF8, b"a")]])),
        ] {
            assert!(read(&[tlv(0x82, b"a"), bad.clone()]).is_err(), "{bad:?}");
        }
    }

    proptest! {
        /// As many attributes come out as went in, with the same bytes, whatever their type and value.
        #[test]
        fn nothing_is_left_out(list in proptest::collection::vec((0usize..4, any::<u8>(), proptest::collection::vec(any::<u8>(), 0..12)), 0..5)) {
            let attributes: Vec<Vec<u8>> = list.iter().map(|(oid, tag, value)| {
                attribute([CN, O, UID, ROLE][*oid], *tag, value)
            }).collect();
            let relative: Vec<&[Vec<u8>]> = attributes.iter().map(std::slice::from_ref).collect();
            if let Ok(read) = read(&name(&relative)) {
                prop_assert_eq!(read.attributes().len(), list.len());
                for (attribute, (_, _, value)) in read.attributes().iter().zip(&list) {
                    prop_assert_eq!(attribute.value.as_bytes(), &value[..]);
                }
            }
        }
    }
}

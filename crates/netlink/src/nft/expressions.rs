//! Rules as the small machine's instructions that the kernel runs.
//!
//! Registers: 1 to 4 are of sixteen bytes; 8 to 23 are the same space in pieces of four. What is loaded, compared and
//! changed is in register 1.

use std::net::IpAddr;

use ipnet::IpNet;

use super::object::{Part, Verdict, put_value};
use super::wire::{self, bitwise, cmp, ct, dynset, expression, fib, immediate, lookup, masquerade, meta, nat, numgen};
use super::wire::{payload, reject};
use crate::Family;
use crate::{Message, family_number};

/// Where verdicts go.
const VERDICT_REGISTER: u32 = 0;
const REGISTER: u32 = 1;
const SECOND_REGISTER: u32 = 2;

/// Writes the expressions of a rule, one after the other.
pub struct Expressions<'a> {
    list: &'a mut Message,
    family: Family,
}

impl<'a> Expressions<'a> {
    /// Into a list that is begun (`rule::EXPRESSIONS`).
    pub fn new(list: &'a mut Message, family: Family) -> Expressions<'a> {
        Expressions { list, family }
    }

    fn add(&mut self, name: &str, fill: impl FnOnce(&mut Message)) {
        self.list.nested(wire::ITEM, |m| {
            m.text(expression::NAME, name);
            m.nested(expression::DATA, fill);
        });
    }

    fn load_meta(&mut self, key: u32, register: u32) {
        self.add("meta", |m| {
            m.be32(meta::KEY, key).be32(meta::TO, register);
        });
    }

    fn load_payload(&mut self, base: u32, offset: u32, length: u32, register: u32) {
        self.add("payload", |m| {
            m.be32(payload::TO, register)
                .be32(payload::BASE, base)
                .be32(payload::OFFSET, offset)
                .be32(payload::LENGTH, length);
        });
    }

    fn address_offset(&self, side: Part) -> u32 {
        match (self.family, side) {
            (Family::V4, Part::Source) => 12,
            (Family::V4, _) => 16,
            (Family::V6, Part::Source) => 8,
            (Family::V6, _) => 24,
        }
    }

    fn load_part(&mut self, part: Part, register: u32) {
        match part {
            Part::Source | Part::Destination => {
                let (offset, length) = (self.address_offset(part), part.length(self.family));
                self.load_payload(wire::NETWORK_HEADER, offset, length, register);
            }
            Part::Protocol => self.load_meta(wire::META_PROTOCOL, register),
            Part::Port => self.load_payload(wire::TRANSPORT_HEADER, 2, 2, register),
        }
    }

    /// Parts of the packet, one after the other, as the key of a set has them.
    pub fn load(&mut self, parts: &[Part]) {
        // Counted in pieces of four bytes.
        let mut at = 0;
        for part in parts {
            self.load_part(*part, if at % 4 == 0 { REGISTER + at / 4 } else { 8 + at });
            at += part.registers(self.family);
        }
    }

    /// Goes on if what is loaded is in the set (or, inverted, is not).
    pub fn lookup(&mut self, set: &str, inverted: bool) {
        self.add("lookup", |m| {
            m.be32(lookup::FROM, REGISTER);
            m.text(lookup::SET, set);
            if inverted {
                m.be32(lookup::FLAGS, lookup::INVERTED);
            }
        });
    }

    /// Replaces what is loaded by what the map has for it; goes on if it has something.
    pub fn map(&mut self, map: &str) {
        self.lookup_into(map, REGISTER);
    }

    /// Does with the packet what the map of verdicts has for what is loaded.
    pub fn dispatch(&mut self, map: &str) {
        self.lookup_into(map, VERDICT_REGISTER);
    }

    fn lookup_into(&mut self, map: &str, register: u32) {
        self.add("lookup", |m| {
            m.be32(lookup::FROM, REGISTER);
            m.be32(lookup::TO, register);
            m.text(lookup::SET, map);
        });
    }

    /// Goes on if what is loaded begins with these bytes (or, inverted, does not).
    pub fn compare(&mut self, inverted: bool, with: &[u8]) {
        let operator = if inverted { wire::NOT_EQUAL } else { wire::EQUAL };
        self.add("cmp", |m| {
            m.be32(cmp::FROM, REGISTER).be32(cmp::OPERATOR, operator);
            put_value(m, cmp::DATA, with);
        });
    }

    /// `loaded = loaded & mask ^ xor`
    pub fn change_bits(&mut self, mask: &[u8], xor: &[u8]) {
        self.add("bitwise", |m| {
            m.be32(bitwise::FROM, REGISTER)
                .be32(bitwise::TO, REGISTER)
                .be32(bitwise::LENGTH, mask.len() as u32);
            put_value(m, bitwise::MASK, mask);
            put_value(m, bitwise::XOR, xor);
        });
    }

    /// Goes on if any of these bits of the connection's state is set: `ct state new`.
    pub fn connection_state(&mut self, bits: u32) {
        const STATE: u32 = 0;
        self.connection(STATE, bits);
    }

    /// The same for its status: `ct status dnat`.
    pub fn connection_status(&mut self, bits: u32) {
        const STATUS: u32 = 2;
        self.connection(STATUS, bits);
    }

    fn connection(&mut self, key: u32, bits: u32) {
        self.add("ct", |m| {
            m.be32(ct::KEY, key).be32(ct::TO, REGISTER);
        });
        self.change_bits(&bits.to_ne_bytes(), &[0; 4]);
        self.compare(true, &[0; 4]);
    }

    /// Goes on if the address is one of this host.
    pub fn is_local(&mut self, is_source: bool) {
        const ADDRESS_TYPE: u32 = 3;
        const LOCAL: u32 = 2;
        self.add("fib", |m| {
            let flags = if is_source { 1 } else { 2 };
            m.be32(fib::FLAGS, flags)
                .be32(fib::RESULT, ADDRESS_TYPE)
                .be32(fib::TO, REGISTER);
        });
        self.compare(false, &LOCAL.to_ne_bytes());
    }

    /// Goes on if packets to the source address would not leave by the interface that this one came by.
    pub fn is_spoofed(&mut self) {
        const SOURCE_AND_INTERFACE: u32 = 1 | 8;
        const OUTPUT_INTERFACE: u32 = 1;
        self.add("fib", |m| {
            m.be32(fib::FLAGS, SOURCE_AND_INTERFACE)
                .be32(fib::RESULT, OUTPUT_INTERFACE)
                .be32(fib::TO, REGISTER);
        });
        self.compare(false, &[0; 4]);
    }

    /// Goes on if the packet is of this protocol.
    pub fn protocol(&mut self, number: u8) {
        self.load_meta(wire::META_PROTOCOL, REGISTER);
        self.compare(false, &[number]);
    }

    /// Goes on if an address is within a range (or, inverted, is not). Whole bytes are compared as such, as nft does.
    pub fn within(&mut self, side: Part, range: IpNet, inverted: bool) {
        let (offset, length) = (self.address_offset(side), side.length(self.family));
        let (network, mask) = match range {
            IpNet::V4(range) => (range.network().octets().to_vec(), range.netmask().octets().to_vec()),
            IpNet::V6(range) => (range.network().octets().to_vec(), range.netmask().octets().to_vec()),
        };
        let bits = u32::from(range.prefix_len());
        if bits > 0 && bits.is_multiple_of(8) {
            self.load_payload(wire::NETWORK_HEADER, offset, bits / 8, REGISTER);
            return self.compare(inverted, &network[..bits as usize / 8]);
        }
        self.load_payload(wire::NETWORK_HEADER, offset, length, REGISTER);
        self.change_bits(&mask, &vec![0; mask.len()]);
        self.compare(inverted, &network);
    }

    /// Goes on if the packet came in by an interface of this name, or whose name begins with it.
    pub fn input_interface(&mut self, name: &str, is_prefix: bool, inverted: bool) {
        self.load_meta(wire::META_INPUT_NAME, REGISTER);
        let length = name.len().min(15);
        let mut bytes = [0; 16];
        bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
        let compared = if is_prefix { length.max(1) } else { 16 };
        self.compare(inverted, &bytes[..compared]);
    }

    /// Puts what is loaded into a set, from which it goes after a time.
    pub fn update_set(&mut self, set: &str, seconds: u32) {
        const UPDATE: u32 = 1;
        self.add("dynset", |m| {
            m.be32(dynset::KEY_FROM, REGISTER).be32(dynset::OPERATION, UPDATE);
            m.be64(dynset::TIMEOUT, u64::from(seconds) * 1000);
            m.text(dynset::SET, set);
        });
    }

    /// The packet's mark.
    pub fn load_mark(&mut self) {
        self.load_meta(wire::META_MARK, REGISTER);
    }

    /// What is loaded becomes the packet's mark.
    pub fn set_mark(&mut self) {
        self.add("meta", |m| {
            m.be32(meta::KEY, wire::META_MARK).be32(meta::FROM, REGISTER);
        });
    }

    /// `mark = mark & mask ^ xor`
    pub fn change_mark(&mut self, mask: u32, xor: u32) {
        self.load_mark();
        self.change_bits(&mask.to_ne_bytes(), &xor.to_ne_bytes());
        self.set_mark();
    }

    /// Source addresses become this host's, ports any.
    pub fn masquerade(&mut self) {
        self.add("masq", |m| {
            m.be32(masquerade::FLAGS, masquerade::FULLY_RANDOM);
        });
    }

    /// Answers that the port is unreachable.
    pub fn reject(&mut self) {
        const ICMP: u32 = 0;
        let port_unreachable = if self.family == Family::V4 { 3 } else { 4 };
        self.add("reject", |m| {
            m.be32(reject::TYPE, ICMP)
                .attribute(reject::ICMP_CODE, &[port_unreachable]);
        });
    }

    /// A random number from `first` on, one of `count`.
    pub fn load_random(&mut self, first: u32, count: u32) {
        const RANDOM: u32 = 1;
        self.add("numgen", |m| {
            m.be32(numgen::TO, REGISTER)
                .be32(numgen::MODULUS, count)
                .be32(numgen::TYPE, RANDOM)
                .be32(numgen::OFFSET, first);
        });
    }

    /// The destination becomes the address that is loaded with the port behind it.
    pub fn dnat_to_loaded(&mut self) {
        let port = match self.family {
            Family::V4 => 9,
            Family::V6 => SECOND_REGISTER,
        };
        self.dnat(port, None);
    }

    /// The destination becomes this address.
    pub fn dnat_to(&mut self, ip: IpAddr, port: u16) {
        const PORT_SPECIFIED: u32 = 2;
        match ip {
            IpAddr::V4(ip) => self.load_bytes(REGISTER, &ip.octets()),
            IpAddr::V6(ip) => self.load_bytes(REGISTER, &ip.octets()),
        }
        self.load_bytes(SECOND_REGISTER, &port.to_be_bytes());
        self.dnat(SECOND_REGISTER, Some(PORT_SPECIFIED));
    }

    fn load_bytes(&mut self, register: u32, value: &[u8]) {
        self.add("immediate", |m| {
            m.be32(immediate::TO, register);
            put_value(m, immediate::DATA, value);
        });
    }

    fn dnat(&mut self, port_register: u32, flags: Option<u32>) {
        const DESTINATION: u32 = 1;
        let family = u32::from(family_number(self.family));
        self.add("nat", |m| {
            m.be32(nat::TYPE, DESTINATION)
                .be32(nat::FAMILY, family)
                .be32(nat::ADDRESS_FROM, REGISTER)
                .be32(nat::PORT_FROM, port_register);
            if let Some(flags) = flags {
                m.be32(nat::FLAGS, flags);
            }
        });
    }

    pub fn verdict(&mut self, verdict: Verdict) {
        self.add("immediate", |m| {
            m.be32(immediate::TO, VERDICT_REGISTER)
                .nested(immediate::DATA, |m| verdict.put(m));
        });
    }
}

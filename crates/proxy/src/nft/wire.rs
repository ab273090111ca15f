//! The kernel's numbers for nf_tables (linux/netfilter/nf_tables.h), and nft's for what it keeps beside them.

pub(crate) const SUBSYSTEM: u16 = 10 << 8;
pub(crate) const BATCH_BEGIN: u16 = 16;
pub(crate) const BATCH_END: u16 = 17;

pub(crate) const NEW_TABLE: u16 = 0;
pub(crate) const GET_TABLE: u16 = 1;
pub(crate) const DELETE_TABLE: u16 = 2;
pub(crate) const NEW_CHAIN: u16 = 3;
pub(crate) const GET_CHAIN: u16 = 4;
pub(crate) const DELETE_CHAIN: u16 = 5;
pub(crate) const NEW_RULE: u16 = 6;
pub(crate) const GET_RULE: u16 = 7;
pub(crate) const DELETE_RULE: u16 = 8;
pub(crate) const NEW_SET: u16 = 9;
pub(crate) const GET_SET: u16 = 10;
pub(crate) const DELETE_SET: u16 = 11;
pub(crate) const NEW_ELEMENTS: u16 = 12;
pub(crate) const GET_ELEMENTS: u16 = 13;
pub(crate) const DELETE_ELEMENTS: u16 = 14;

/// The header behind netlink's own.
pub(crate) const HEADER: usize = 4;

pub(crate) const DROP: u32 = 0;
pub(crate) const ACCEPT: u32 = 1;
pub(crate) const JUMP: u32 = -3i32 as u32;
pub(crate) const GOTO: u32 = -4i32 as u32;
pub(crate) const RETURN: u32 = -5i32 as u32;

pub(crate) const SET_ANONYMOUS: u32 = 0x1;
pub(crate) const SET_INTERVAL: u32 = 0x4;
pub(crate) const SET_MAP: u32 = 0x8;
pub(crate) const SET_TIMEOUT: u32 = 0x10;
pub(crate) const SET_EVAL: u32 = 0x20;
pub(crate) const SET_CONCATENATED: u32 = 0x80;

/// nft's numbers for types, which make `nft list` show keys and values as what they are.
pub(crate) const TYPE_INTEGER: u32 = 4;
pub(crate) const TYPE_IPV4_ADDRESS: u32 = 7;
pub(crate) const TYPE_IPV6_ADDRESS: u32 = 8;
pub(crate) const TYPE_INET_PROTOCOL: u32 = 12;
pub(crate) const TYPE_INET_SERVICE: u32 = 13;
pub(crate) const TYPE_MARK: u32 = 19;
pub(crate) const TYPE_VERDICT: u32 = 0xffff_ff00;

/// A comment beside a table, chain, rule or element; that of a set has another number.
pub(crate) const UDATA_COMMENT: u8 = 0;
pub(crate) const UDATA_SET_KEY_ORDER: u8 = 0;
pub(crate) const UDATA_SET_DATA_ORDER: u8 = 1;
pub(crate) const UDATA_SET_KEY_TYPEOF: u8 = 3;
pub(crate) const UDATA_SET_DATA_TYPEOF: u8 = 4;
pub(crate) const UDATA_SET_COMMENT: u8 = 7;
/// Byte orders of keys and values.
pub(crate) const HOST_ORDER: u32 = 1;
pub(crate) const NETWORK_ORDER: u32 = 2;

/// Network headers and transport headers, to read a packet from.
pub(crate) const NETWORK_HEADER: u32 = 1;
pub(crate) const TRANSPORT_HEADER: u32 = 2;

pub(crate) const EQUAL: u32 = 0;
pub(crate) const NOT_EQUAL: u32 = 1;

pub(crate) const META_MARK: u32 = 3;
pub(crate) const META_INPUT_NAME: u32 = 6;
pub(crate) const META_PROTOCOL: u32 = 16;

/// An entry of a list.
pub(crate) const ITEM: u16 = 1;

pub(crate) mod table {
    pub(crate) const NAME: u16 = 1;
    pub(crate) const FLAGS: u16 = 2;
    pub(crate) const USERDATA: u16 = 6;
}

pub(crate) mod chain {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const NAME: u16 = 3;
    pub(crate) const HOOK: u16 = 4;
    pub(crate) const HOOK_NUMBER: u16 = 1;
    pub(crate) const HOOK_PRIORITY: u16 = 2;
    pub(crate) const POLICY: u16 = 5;
    pub(crate) const TYPE: u16 = 7;
    pub(crate) const USERDATA: u16 = 12;
}

pub(crate) mod rule {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const CHAIN: u16 = 2;
    pub(crate) const EXPRESSIONS: u16 = 4;
    pub(crate) const USERDATA: u16 = 7;
}

pub(crate) mod expression {
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DATA: u16 = 2;
}

pub(crate) mod set {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const NAME: u16 = 2;
    pub(crate) const FLAGS: u16 = 3;
    pub(crate) const KEY_TYPE: u16 = 4;
    pub(crate) const KEY_LENGTH: u16 = 5;
    pub(crate) const DATA_TYPE: u16 = 6;
    pub(crate) const DATA_LENGTH: u16 = 7;
    pub(crate) const DESCRIPTION: u16 = 9;
    pub(crate) const DESCRIPTION_SIZE: u16 = 1;
    pub(crate) const DESCRIPTION_FIELDS: u16 = 2;
    pub(crate) const FIELD_LENGTH: u16 = 1;
    pub(crate) const ID: u16 = 10;
    pub(crate) const USERDATA: u16 = 13;
}

pub(crate) mod elements {
    pub(crate) const SET: u16 = 2;
    pub(crate) const LIST: u16 = 3;
}

pub(crate) mod element {
    pub(crate) const KEY: u16 = 1;
    pub(crate) const DATA: u16 = 2;
    pub(crate) const USERDATA: u16 = 6;
    pub(crate) const KEY_END: u16 = 10;
}

pub(crate) mod data {
    pub(crate) const VALUE: u16 = 1;
    pub(crate) const VERDICT: u16 = 2;
    pub(crate) const CODE: u16 = 1;
    pub(crate) const CHAIN: u16 = 2;
}

pub(crate) mod meta {
    pub(crate) const TO: u16 = 1;
    pub(crate) const KEY: u16 = 2;
    pub(crate) const FROM: u16 = 3;
}

pub(crate) mod ct {
    pub(crate) const TO: u16 = 1;
    pub(crate) const KEY: u16 = 2;
}

pub(crate) mod payload {
    pub(crate) const TO: u16 = 1;
    pub(crate) const BASE: u16 = 2;
    pub(crate) const OFFSET: u16 = 3;
    pub(crate) const LENGTH: u16 = 4;
}

pub(crate) mod bitwise {
    pub(crate) const FROM: u16 = 1;
    pub(crate) const TO: u16 = 2;
    pub(crate) const LENGTH: u16 = 3;
    pub(crate) const MASK: u16 = 4;
    pub(crate) const XOR: u16 = 5;
}

pub(crate) mod cmp {
    pub(crate) const FROM: u16 = 1;
    pub(crate) const OPERATOR: u16 = 2;
    pub(crate) const DATA: u16 = 3;
}

pub(crate) mod immediate {
    pub(crate) const TO: u16 = 1;
    pub(crate) const DATA: u16 = 2;
}

pub(crate) mod lookup {
    pub(crate) const SET: u16 = 1;
    pub(crate) const FROM: u16 = 2;
    pub(crate) const TO: u16 = 3;
    pub(crate) const FLAGS: u16 = 5;
    pub(crate) const INVERTED: u32 = 1;
}

pub(crate) mod fib {
    pub(crate) const TO: u16 = 1;
    pub(crate) const RESULT: u16 = 2;
    pub(crate) const FLAGS: u16 = 3;
}

pub(crate) mod dynset {
    pub(crate) const SET: u16 = 1;
    pub(crate) const OPERATION: u16 = 3;
    pub(crate) const KEY_FROM: u16 = 4;
    pub(crate) const TIMEOUT: u16 = 6;
}

pub(crate) mod numgen {
    pub(crate) const TO: u16 = 1;
    pub(crate) const MODULUS: u16 = 2;
    pub(crate) const TYPE: u16 = 3;
    pub(crate) const OFFSET: u16 = 4;
}

pub(crate) mod nat {
    pub(crate) const TYPE: u16 = 1;
    pub(crate) const FAMILY: u16 = 2;
    pub(crate) const ADDRESS_FROM: u16 = 3;
    pub(crate) const PORT_FROM: u16 = 5;
    pub(crate) const FLAGS: u16 = 7;
}

pub(crate) mod masquerade {
    pub(crate) const FLAGS: u16 = 1;
    pub(crate) const FULLY_RANDOM: u32 = 0x10;
}

pub(crate) mod reject {
    pub(crate) const TYPE: u16 = 1;
    pub(crate) const ICMP_CODE: u16 = 2;
}

/// Matches and targets of iptables.
pub(crate) mod xt {
    pub(crate) const NAME: u16 = 1;
    pub(crate) const REVISION: u16 = 2;
    pub(crate) const INFO: u16 = 3;
}

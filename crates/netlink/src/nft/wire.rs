//! The kernel's numbers for nf_tables (linux/netfilter/nf_tables.h), and nft's for what it keeps beside them.

pub const SUBSYSTEM: u16 = 10 << 8;
pub const BATCH_BEGIN: u16 = 16;
pub const BATCH_END: u16 = 17;

pub const NEW_TABLE: u16 = 0;
pub const GET_TABLE: u16 = 1;
pub const DELETE_TABLE: u16 = 2;
pub const NEW_CHAIN: u16 = 3;
pub const GET_CHAIN: u16 = 4;
pub const DELETE_CHAIN: u16 = 5;
pub const NEW_RULE: u16 = 6;
pub const GET_RULE: u16 = 7;
pub const DELETE_RULE: u16 = 8;
pub const NEW_SET: u16 = 9;
pub const GET_SET: u16 = 10;
pub const DELETE_SET: u16 = 11;
pub const NEW_ELEMENTS: u16 = 12;
pub const GET_ELEMENTS: u16 = 13;
pub const DELETE_ELEMENTS: u16 = 14;

/// The header behind netlink's own.
pub const HEADER: usize = 4;

pub const DROP: u32 = 0;
pub const ACCEPT: u32 = 1;
pub const JUMP: u32 = -3i32 as u32;
pub const GOTO: u32 = -4i32 as u32;
pub const RETURN: u32 = -5i32 as u32;

pub const SET_ANONYMOUS: u32 = 0x1;
pub const SET_INTERVAL: u32 = 0x4;
pub const SET_MAP: u32 = 0x8;
pub const SET_TIMEOUT: u32 = 0x10;
pub const SET_EVAL: u32 = 0x20;
pub const SET_CONCATENATED: u32 = 0x80;

/// nft's numbers for types, which make `nft list` show keys and values as what they are.
pub const TYPE_INTEGER: u32 = 4;
pub const TYPE_IPV4_ADDRESS: u32 = 7;
pub const TYPE_IPV6_ADDRESS: u32 = 8;
pub const TYPE_INET_PROTOCOL: u32 = 12;
pub const TYPE_INET_SERVICE: u32 = 13;
pub const TYPE_MARK: u32 = 19;
pub const TYPE_VERDICT: u32 = 0xffff_ff00;

/// A comment beside a table, chain, rule or element; that of a set has another number.
pub const UDATA_COMMENT: u8 = 0;
pub const UDATA_SET_KEY_ORDER: u8 = 0;
pub const UDATA_SET_DATA_ORDER: u8 = 1;
pub const UDATA_SET_KEY_TYPEOF: u8 = 3;
pub const UDATA_SET_DATA_TYPEOF: u8 = 4;
pub const UDATA_SET_COMMENT: u8 = 7;
/// Byte orders of keys and values.
pub const HOST_ORDER: u32 = 1;
pub const NETWORK_ORDER: u32 = 2;

/// Network headers and transport headers, to read a packet from.
pub const NETWORK_HEADER: u32 = 1;
pub const TRANSPORT_HEADER: u32 = 2;

pub const EQUAL: u32 = 0;
pub const NOT_EQUAL: u32 = 1;

pub const META_MARK: u32 = 3;
pub const META_INPUT_NAME: u32 = 6;
pub const META_PROTOCOL: u32 = 16;

/// An entry of a list.
pub const ITEM: u16 = 1;

pub mod table {
    pub const NAME: u16 = 1;
    pub const FLAGS: u16 = 2;
    pub const USERDATA: u16 = 6;
}

pub mod chain {
    pub const TABLE: u16 = 1;
    pub const NAME: u16 = 3;
    pub const HOOK: u16 = 4;
    pub const HOOK_NUMBER: u16 = 1;
    pub const HOOK_PRIORITY: u16 = 2;
    pub const POLICY: u16 = 5;
    pub const TYPE: u16 = 7;
    pub const USERDATA: u16 = 12;
}

pub mod rule {
    pub const TABLE: u16 = 1;
    pub const CHAIN: u16 = 2;
    pub const EXPRESSIONS: u16 = 4;
    pub const USERDATA: u16 = 7;
}

pub mod expression {
    pub const NAME: u16 = 1;
    pub const DATA: u16 = 2;
}

pub mod set {
    pub const TABLE: u16 = 1;
    pub const NAME: u16 = 2;
    pub const FLAGS: u16 = 3;
    pub const KEY_TYPE: u16 = 4;
    pub const KEY_LENGTH: u16 = 5;
    pub const DATA_TYPE: u16 = 6;
    pub const DATA_LENGTH: u16 = 7;
    pub const DESCRIPTION: u16 = 9;
    pub const DESCRIPTION_SIZE: u16 = 1;
    pub const DESCRIPTION_FIELDS: u16 = 2;
    pub const FIELD_LENGTH: u16 = 1;
    pub const ID: u16 = 10;
    pub const USERDATA: u16 = 13;
}

pub mod elements {
    pub const SET: u16 = 2;
    pub const LIST: u16 = 3;
}

pub mod element {
    pub const KEY: u16 = 1;
    pub const DATA: u16 = 2;
    pub const USERDATA: u16 = 6;
    pub const KEY_END: u16 = 10;
}

pub mod data {
    pub const VALUE: u16 = 1;
    pub const VERDICT: u16 = 2;
    pub const CODE: u16 = 1;
    pub const CHAIN: u16 = 2;
}

pub mod meta {
    pub const TO: u16 = 1;
    pub const KEY: u16 = 2;
    pub const FROM: u16 = 3;
}

pub mod ct {
    pub const TO: u16 = 1;
    pub const KEY: u16 = 2;
}

pub mod payload {
    pub const TO: u16 = 1;
    pub const BASE: u16 = 2;
    pub const OFFSET: u16 = 3;
    pub const LENGTH: u16 = 4;
}

pub mod bitwise {
    pub const FROM: u16 = 1;
    pub const TO: u16 = 2;
    pub const LENGTH: u16 = 3;
    pub const MASK: u16 = 4;
    pub const XOR: u16 = 5;
}

pub mod cmp {
    pub const FROM: u16 = 1;
    pub const OPERATOR: u16 = 2;
    pub const DATA: u16 = 3;
}

pub mod immediate {
    pub const TO: u16 = 1;
    pub const DATA: u16 = 2;
}

pub mod lookup {
    pub const SET: u16 = 1;
    pub const FROM: u16 = 2;
    pub const TO: u16 = 3;
    pub const FLAGS: u16 = 5;
    pub const INVERTED: u32 = 1;
}

pub mod fib {
    pub const TO: u16 = 1;
    pub const RESULT: u16 = 2;
    pub const FLAGS: u16 = 3;
}

pub mod dynset {
    pub const SET: u16 = 1;
    pub const OPERATION: u16 = 3;
    pub const KEY_FROM: u16 = 4;
    pub const TIMEOUT: u16 = 6;
}

pub mod numgen {
    pub const TO: u16 = 1;
    pub const MODULUS: u16 = 2;
    pub const TYPE: u16 = 3;
    pub const OFFSET: u16 = 4;
}

pub mod nat {
    pub const TYPE: u16 = 1;
    pub const FAMILY: u16 = 2;
    pub const ADDRESS_FROM: u16 = 3;
    pub const PORT_FROM: u16 = 5;
    pub const FLAGS: u16 = 7;
}

pub mod masquerade {
    pub const FLAGS: u16 = 1;
    pub const FULLY_RANDOM: u32 = 0x10;
}

pub mod reject {
    pub const TYPE: u16 = 1;
    pub const ICMP_CODE: u16 = 2;
}

/// Matches and targets of iptables.
pub mod xt {
    pub const NAME: u16 = 1;
    pub const REVISION: u16 = 2;
    pub const INFO: u16 = 3;
}

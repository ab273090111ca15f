//! The kernel's numbers for nftables (linux/netfilter/nf_tables.h).

use crate::plan::Family;

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
pub const SET_MAP: u32 = 0x8;
pub const SET_TIMEOUT: u32 = 0x10;
pub const SET_EVAL: u32 = 0x20;

/// What we keep beside a rule, past the types that nft knows: by what it is known again, and its range of slots.
pub const UDATA_TAG: u8 = 0xe0;
pub const UDATA_RANGE: u8 = 0xe1;

pub fn family(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

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
}

pub mod data {
    pub const VALUE: u16 = 1;
    pub const VERDICT: u16 = 2;
    pub const CODE: u16 = 1;
    pub const CHAIN: u16 = 2;
}

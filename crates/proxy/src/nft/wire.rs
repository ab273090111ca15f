//! The kernel's numbers for nftables (linux/netfilter/nf_tables.h).

use crate::plan::Family;

pub(super) const SUBSYSTEM: u16 = 10 << 8;
pub(super) const BATCH_BEGIN: u16 = 16;
pub(super) const BATCH_END: u16 = 17;

pub(super) const NEW_TABLE: u16 = 0;
pub(super) const GET_TABLE: u16 = 1;
pub(super) const DELETE_TABLE: u16 = 2;
pub(super) const NEW_CHAIN: u16 = 3;
pub(super) const GET_CHAIN: u16 = 4;
pub(super) const DELETE_CHAIN: u16 = 5;
pub(super) const NEW_RULE: u16 = 6;
pub(super) const GET_RULE: u16 = 7;
pub(super) const DELETE_RULE: u16 = 8;
pub(super) const NEW_SET: u16 = 9;
pub(super) const GET_SET: u16 = 10;
pub(super) const DELETE_SET: u16 = 11;
pub(super) const NEW_ELEMENTS: u16 = 12;
pub(super) const GET_ELEMENTS: u16 = 13;
pub(super) const DELETE_ELEMENTS: u16 = 14;

/// The header behind netlink's own.
pub(super) const HEADER: usize = 4;

pub(super) const DROP: u32 = 0;
pub(super) const ACCEPT: u32 = 1;
pub(super) const JUMP: u32 = -3i32 as u32;
pub(super) const GOTO: u32 = -4i32 as u32;
pub(super) const RETURN: u32 = -5i32 as u32;

pub(super) const SET_ANONYMOUS: u32 = 0x1;
pub(super) const SET_MAP: u32 = 0x8;
pub(super) const SET_TIMEOUT: u32 = 0x10;
pub(super) const SET_EVAL: u32 = 0x20;

/// What we keep beside a rule, past the types that nft knows: by what it is known again, and its range of slots.
pub(super) const UDATA_TAG: u8 = 0xe0;
pub(super) const UDATA_RANGE: u8 = 0xe1;

pub(super) fn family(family: Family) -> u8 {
    match family {
        Family::V4 => 2,
        Family::V6 => 10,
    }
}

pub(super) mod table {
    pub(crate) const NAME: u16 = 1;
    pub(crate) const FLAGS: u16 = 2;
    pub(crate) const USERDATA: u16 = 6;
}

pub(super) mod chain {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const NAME: u16 = 3;
    pub(crate) const HOOK: u16 = 4;
    pub(crate) const HOOK_NUMBER: u16 = 1;
    pub(crate) const HOOK_PRIORITY: u16 = 2;
    pub(crate) const POLICY: u16 = 5;
    pub(crate) const TYPE: u16 = 7;
    pub(crate) const USERDATA: u16 = 12;
}

pub(super) mod rule {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const CHAIN: u16 = 2;
    pub(crate) const EXPRESSIONS: u16 = 4;
    pub(crate) const USERDATA: u16 = 7;
}

pub(super) mod expression {
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DATA: u16 = 2;
}

pub(super) mod set {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const NAME: u16 = 2;
    pub(crate) const FLAGS: u16 = 3;
    pub(crate) const KEY_TYPE: u16 = 4;
    pub(crate) const KEY_LENGTH: u16 = 5;
    pub(crate) const DATA_TYPE: u16 = 6;
    pub(crate) const DATA_LENGTH: u16 = 7;
    pub(crate) const DESCRIPTION: u16 = 9;
    pub(crate) const DESCRIPTION_SIZE: u16 = 1;
    pub(crate) const ID: u16 = 10;
    pub(crate) const USERDATA: u16 = 13;
}

pub(super) mod elements {
    pub(crate) const SET: u16 = 2;
    pub(crate) const LIST: u16 = 3;
}

pub(super) mod element {
    pub(crate) const KEY: u16 = 1;
    pub(crate) const DATA: u16 = 2;
    pub(crate) const USERDATA: u16 = 6;
}

pub(super) mod data {
    pub(crate) const VALUE: u16 = 1;
    pub(crate) const VERDICT: u16 = 2;
    pub(crate) const CODE: u16 = 1;
    pub(crate) const CHAIN: u16 = 2;
}

//! Tables that do nothing, which iptables makes when it is first asked, and never takes away.

use std::io;

use super::{Batch, message, wire};
use crate::{Connection, Family, Response, be32, text};

/// Whether a table has nothing in it but base chains that let everything pass. `None`: there is no such table.
pub fn is_bare(connection: &mut Connection, family: Family, table: &str) -> io::Result<Option<bool>> {
    match connection.request(message(family, table, wire::GET_TABLE, 0), |_| {}) {
        Err(error) if error.raw_os_error() == Some(nix::libc::ENOENT) => return Ok(None),
        outcome => outcome?,
    }
    let mut bare = true;
    for (kind, named) in [
        (wire::GET_CHAIN, wire::chain::TABLE),
        (wire::GET_RULE, wire::rule::TABLE),
        (wire::GET_SET, wire::set::TABLE),
    ] {
        connection.dump(message(family, table, kind, 0), |response| {
            let is_of_table = value(response, named).is_some_and(|name| text(name) == table);
            bare &= !is_of_table || (kind == wire::GET_CHAIN && lets_everything_pass(response));
        })?;
    }
    Ok(Some(bare))
}

/// Removes a table with all that is in it.
pub fn delete_table(connection: &mut Connection, family: Family, table: &str) -> io::Result<()> {
    let mut batch = Batch::new();
    batch.push(message(family, table, wire::DELETE_TABLE, 0));
    batch.commit(connection).map_err(|failed| failed.error)
}

fn value<'a>(response: Response<'a>, attribute: u16) -> Option<&'a [u8]> {
    response.attributes(wire::HEADER).get(attribute)
}

fn lets_everything_pass(response: Response) -> bool {
    let has_hook = value(response, wire::chain::HOOK).is_some();
    has_hook && value(response, wire::chain::POLICY).and_then(be32) == Some(wire::ACCEPT)
}

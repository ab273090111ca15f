//! nf_tables over netlink: how tables, chains, sets, elements and rules are written and read. What is in the tables is
//! the users' to say: the proxy's nftables back end, the table that IPVS mode has beside its servers, the reader of
//! iptables' nf_tables variant, network policies, and the pod network. The last two describe a whole table and let
//! [`Table`] find what differs.

mod bare;
mod expressions;
mod object;
mod table;
pub mod wire;

use crate::Family;
use crate::{BatchError, Connection, Message, family_number};

pub use bare::{delete_table, is_bare};
pub use expressions::Expressions;
pub use object::{
    ElementData, ElementParts, Hook, Part, Shape, Verdict, add_chain, add_set, add_table, key_shape, put_element,
    read_elements, read_udata, udata, udata_number, udata_text,
};

pub use table::{Chain, Data, DataKind, Key, Name, Rule, SetKind, Table, TableError, Target};

/// A message about a table, or about something in it.
pub fn message(family: Family, table: &str, kind: u16, flags: u16) -> Message {
    let header = [family_number(family), 0, 0, 0];
    let mut message = Message::new(wire::SUBSYSTEM | kind, flags, &header);
    // The first attribute of tables, chains, rules and sets alike.
    message.text(wire::table::NAME, table);
    message
}

/// A message about something of this name in a table.
pub fn named(family: Family, table: &str, kind: u16, flags: u16, attribute: u16, name: &str) -> Message {
    let mut message = message(family, table, kind, flags);
    message.text(attribute, name);
    message
}

impl Default for Batch {
    fn default() -> Batch {
        Batch::new()
    }
}

/// A transaction: the kernel applies all of its messages, or none.
pub struct Batch {
    messages: Vec<Message>,
}

impl Batch {
    pub fn new() -> Batch {
        Batch {
            messages: vec![frame(wire::BATCH_BEGIN)],
        }
    }

    pub fn push(&mut self, message: Message) {
        self.messages.push(message);
    }

    pub fn is_empty(&self) -> bool {
        self.messages.len() == 1
    }

    /// Applies it. The error has the place of the refused message among those pushed.
    pub fn commit(mut self, connection: &mut Connection) -> Result<(), BatchError> {
        self.acknowledge_last();
        self.messages.push(frame(wire::BATCH_END));
        self.send(connection)
    }

    /// Has the kernel check it without applying it: without its end the kernel takes a transaction back.
    pub fn rehearse(mut self, connection: &mut Connection) -> Result<(), BatchError> {
        self.acknowledge_last();
        self.send(connection)
    }

    fn acknowledge_last(&mut self) {
        if let [_, .., last] = &mut self.messages[..] {
            last.acknowledge();
        }
    }

    fn send(mut self, connection: &mut Connection) -> Result<(), BatchError> {
        let sent = connection.batch(&mut self.messages);
        sent.map_err(|BatchError { at, error }| BatchError {
            at: at.and_then(|at| at.checked_sub(1)),
            error,
        })
    }
}

fn frame(kind: u16) -> Message {
    let [high, low] = (wire::SUBSYSTEM >> 8).to_be_bytes();
    Message::new(kind, 0, &[0, 0, high, low])
}

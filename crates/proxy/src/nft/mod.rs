//! nf_tables over netlink: how tables, chains, sets, elements and rules are written and read. Shared by the nftables
//! back end, the table that IPVS mode has beside its servers, and the reader of iptables' nf_tables variant. What is in
//! the tables is theirs to say.

mod expressions;
mod object;
pub(crate) mod wire;

use crate::netlink::{BatchError, Connection, Message, family_number};
use crate::plan::Family;

pub(crate) use expressions::Expressions;
pub(crate) use object::{
    ElementData, ElementParts, Hook, Part, Shape, Verdict, add_chain, add_set, add_table, key_shape, put_element,
    read_elements, read_udata, udata, udata_number, udata_text,
};

/// A message about a table, or about something in it.
pub(crate) fn message(family: Family, table: &str, kind: u16, flags: u16) -> Message {
    let header = [family_number(family), 0, 0, 0];
    let mut message = Message::new(wire::SUBSYSTEM | kind, flags, &header);
    // The first attribute of tables, chains, rules and sets alike.
    message.text(wire::table::NAME, table);
    message
}

/// A message about something of this name in a table.
pub(crate) fn named(family: Family, table: &str, kind: u16, flags: u16, attribute: u16, name: &str) -> Message {
    let mut message = message(family, table, kind, flags);
    message.text(attribute, name);
    message
}

/// A transaction: the kernel applies all of its messages, or none.
pub(crate) struct Batch {
    messages: Vec<Message>,
}

impl Batch {
    pub(crate) fn new() -> Batch {
        Batch {
            messages: vec![frame(wire::BATCH_BEGIN)],
        }
    }

    pub(crate) fn push(&mut self, message: Message) {
        self.messages.push(message);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.messages.len() == 1
    }

    /// Applies it. The error has the place of the refused message among those pushed.
    pub(crate) fn commit(mut self, connection: &mut Connection) -> Result<(), BatchError> {
        self.acknowledge_last();
        self.messages.push(frame(wire::BATCH_END));
        self.send(connection)
    }

    /// Has the kernel check it without applying it: without its end the kernel takes a transaction back.
    pub(crate) fn rehearse(mut self, connection: &mut Connection) -> Result<(), BatchError> {
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

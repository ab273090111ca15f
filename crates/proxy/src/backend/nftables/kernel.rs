//! What the kernel holds of our tables, and how it is changed.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use netlink_sys::protocols::NETLINK_NETFILTER;
use rustc_hash::FxHashMap;

use super::encode::{self, ELEMENTS_LENGTH, UDATA_RANGE, UDATA_TAG};
use super::names::TABLE;
use super::ruleset::{
    Container, Data, ElementKey, KeyBytes, Name, Op, Range, Script, Value, ValueKind, Verdict, family_name, set_name,
};
use super::text::In;
use crate::backend::{Error, Result};
use crate::plan::Family;
use orlop_netlink::nft::wire::{self, chain, elements, rule, set, table};
use orlop_netlink::nft::{self, Batch, ElementData, Hook, Shape};
use orlop_netlink::{BatchError, Connection, Message, Response, attributes, be32, ne32, text};

/// A table as it was found.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    /// There, and not put to sleep.
    pub awake: bool,
    pub chains: FxHashMap<Name, FoundChain>,
    pub sets: FxHashMap<Name, Shape>,
    /// Of the containers only.
    pub elements: FxHashMap<ElementKey, Value>,
}

impl Snapshot {
    /// Of the maps of endpoints by number.
    pub(super) fn shards(&self) -> impl Iterator<Item = u32> {
        let prefix = Container::ServiceEndpoints.name();
        let numbers = self.sets.keys().filter_map(move |name| name.strip_prefix(prefix));
        numbers.filter_map(|number| number.parse().ok())
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct FoundChain {
    pub hook: Option<FoundHook>,
    pub rules: Vec<FoundRule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundHook {
    kind: String,
    number: u32,
    priority: i32,
    policy: u32,
}

impl FoundHook {
    pub(super) fn equals(&self, hook: Hook) -> bool {
        self.kind == hook.kind
            && self.number == hook.number
            && self.priority == hook.priority
            && self.policy == wire::ACCEPT
    }
}

/// A rule that is not one of ours has neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FoundRule {
    pub tag: Option<u64>,
    pub range: Option<Range>,
}

/// Transactions are cut here at first: the kernel holds a lock while it works on one.
const TRANSACTION_LENGTH: usize = 16 << 20;
const TRANSACTION_LENGTH_LEAST: usize = 64 << 10;

/// How often a table is read again if others changed something meanwhile.
const READS: usize = 4;

pub(super) struct Kernel {
    connection: Connection,
    pub transaction_length: usize,
}

fn failed(what: impl std::fmt::Display) -> impl FnOnce(io::Error) -> Error {
    move |error| Error(format!("{what}: {error}"))
}

impl Kernel {
    /// Of the network namespace that the calling thread is in.
    pub(super) fn open() -> Result<Kernel> {
        let connection = Connection::open(NETLINK_NETFILTER).map_err(failed("failed to open a netfilter socket"))?;
        Ok(Kernel {
            connection,
            transaction_length: TRANSACTION_LENGTH,
        })
    }

    pub(super) fn read(&mut self, family: Family) -> Result<Snapshot> {
        // Whoever changes any table meanwhile may make us miss something of ours. If they never rest, so be it: a
        // script from a snapshot that lacks something fails or does too much, and the next one is right.
        for _ in 0..READS {
            let (found, whole) = self.read_once(family)?;
            if whole {
                return Ok(found);
            }
        }
        Ok(self.read_once(family)?.0)
    }

    fn read_once(&mut self, family: Family) -> Result<(Snapshot, bool)> {
        let mut found = Snapshot::default();
        let Some(flags) = self.table_flags(family)? else {
            return Ok((found, true));
        };
        found.awake = flags == 0;
        let ask = |kind| encode::message(family, kind, 0);
        let mut whole = self.dump(family, "chains", ask(wire::GET_CHAIN), |response| {
            read_chain(response, &mut found)
        })?;
        whole &= self.dump(family, "rules", ask(wire::GET_RULE), |response| {
            read_rule(response, &mut found)
        })?;
        whole &= self.dump(family, "sets", ask(wire::GET_SET), |response| {
            read_set(response, &mut found)
        })?;
        let shards: Vec<u32> = found.shards().collect();
        let shards = shards.into_iter().map(|shard| (Container::ServiceEndpoints, shard));
        for set in Container::FIXED
            .into_iter()
            .map(|container| (container, 0))
            .chain(shards)
        {
            let name = set_name(set);
            if found.sets.get(&*name) != Some(&encode::shape(family, set.0)) {
                continue;
            }
            let mut message = ask(wire::GET_ELEMENTS);
            message.text(elements::SET, &name);
            let see = |response: Response<'_>| read_elements(response, set.0, &mut found);
            whole &= self.dump(family, &name, message, see)?;
        }
        Ok((found, whole))
    }

    /// Whether all came as it was at one time.
    fn dump(&mut self, family: Family, what: &str, message: Message, each: impl FnMut(Response<'_>)) -> Result<bool> {
        let outcome = self.connection.dump(message, each);
        let name = family_name(family);
        outcome.map_err(|error| failed(format!("failed to list {what} of table {name} {TABLE}"))(error))?;
        Ok(!self.connection.was_interrupted())
    }

    pub(super) fn has_table(&mut self, family: Family) -> Result<bool> {
        Ok(self.table_flags(family)?.is_some())
    }

    fn table_flags(&mut self, family: Family) -> Result<Option<u32>> {
        let mut flags = None;
        let outcome = self
            .connection
            .request(encode::message(family, wire::GET_TABLE, 0), |response| {
                let found = response.attributes(wire::HEADER).get(table::FLAGS);
                flags = Some(found.and_then(be32).unwrap_or_default());
            });
        match outcome {
            Err(error) if error.raw_os_error() == Some(nix::libc::ENOENT) => Ok(None),
            Err(error) => Err(failed(format!("failed to get table {} {TABLE}", family_name(family)))(
                error,
            )),
            Ok(()) => Ok(flags),
        }
    }

    /// Takes the steps, but for the deletion of stale chains.
    pub(super) fn apply(&mut self, family: Family, script: &Script) -> Result<()> {
        self.apply_units(family, script)
            .map_err(|(_, refused)| refused.into_error(family, &script.ops))
    }

    /// In as many transactions as it takes. With an error comes the step up to which all is done.
    fn apply_units(&mut self, family: Family, script: &Script) -> Result<(), (usize, Refused)> {
        let mut from = 0;
        while from < script.ops.len() {
            let limit = if script.whole {
                usize::MAX
            } else {
                self.transaction_length
            };
            let transaction = Transaction::new(family, script, from, limit);
            let to = transaction.end;
            match transaction.commit(&mut self.connection) {
                Ok(()) => from = to,
                // The socket takes no piece as long as this, and we may not have it take longer ones.
                Err(Refused { error, .. })
                    if error.raw_os_error() == Some(nix::libc::EMSGSIZE)
                        && limit > TRANSACTION_LENGTH_LEAST
                        && !script.whole =>
                {
                    self.transaction_length = limit / 2;
                }
                Err(refused) => return Err((from, refused)),
            }
        }
        Ok(())
    }

    /// Deletes chains that nothing leads to. Those that the kernel still finds in use are left.
    pub(super) fn delete_chains(&mut self, family: Family, chains: &mut BTreeSet<Name>) -> Result<()> {
        let mut script = Script::default();
        for chain in std::mem::take(chains) {
            script.unit([Op::DeleteChain(chain)]);
        }
        match self.apply_units(family, &script) {
            Ok(()) => Ok(()),
            Err((done, Refused { error, .. })) if error.raw_os_error() == Some(nix::libc::EBUSY) => {
                chains.extend(script.ops.into_iter().skip(done).filter_map(|op| match op {
                    Op::DeleteChain(chain) => Some(chain),
                    _ => None,
                }));
                Ok(())
            }
            Err((_, refused)) => Err(refused.into_error(family, &script.ops)),
        }
    }

    pub(super) fn delete_table(&mut self, family: Family) -> Result<()> {
        if !self.has_table(family)? {
            return Ok(());
        }
        let mut script = Script::default();
        script.unit([Op::DeleteTable]);
        self.apply(family, &script)
    }

    /// Has the kernel look at the steps as if they were to be taken, and forget them.
    pub(super) fn rehearse(&mut self, family: Family, script: &Script) -> Result<()> {
        let transaction = Transaction::new(family, script, 0, usize::MAX);
        let outcome = transaction.rehearse(&mut self.connection);
        outcome.map_err(|refused| refused.into_error(family, &script.ops))
    }
}

struct Transaction {
    batch: Batch,
    /// Which steps each message is of, from which on.
    steps: Vec<usize>,
    /// Up to which step it goes.
    end: usize,
}

impl Transaction {
    /// Takes units from the step `from` on until there are `limit` bytes.
    fn new(family: Family, script: &Script, from: usize, limit: usize) -> Transaction {
        let mut transaction = Transaction {
            batch: Batch::new(),
            steps: vec![],
            end: from,
        };
        let mut bytes = 0;
        let first = script.units.partition_point(|end| *end <= from);
        // Where the steps of this transaction must end is only known from their lengths.
        let mut unit_ends = script.units[first..].iter().copied();
        let mut unit_end = unit_ends.next().unwrap_or(script.ops.len());
        let mut at = from;
        while at < script.ops.len() {
            let (message, next) = next_message(family, &script.ops, at);
            bytes += message.len();
            transaction.batch.push(message);
            transaction.steps.push(at);
            at = next;
            while unit_end < at {
                unit_end = unit_ends.next().unwrap_or(script.ops.len());
            }
            if at == unit_end && bytes >= limit {
                break;
            }
        }
        transaction.end = at;
        transaction
    }

    fn commit(self, connection: &mut Connection) -> Result<(), Refused> {
        let Transaction { batch, steps, end } = self;
        batch
            .commit(connection)
            .map_err(|error| Refused::new(error, &steps, end))
    }

    /// Has the kernel check it without applying it.
    fn rehearse(self, connection: &mut Connection) -> Result<(), Refused> {
        let Transaction { batch, steps, end } = self;
        batch
            .rehearse(connection)
            .map_err(|error| Refused::new(error, &steps, end))
    }
}

/// One message, and the step that comes after those in it: elements of a container share one.
fn next_message(family: Family, ops: &[Op], at: usize) -> (Message, usize) {
    let container = |op: &Op| match op {
        Op::AddElement((place, _)) => Some((true, place.set())),
        Op::DeleteElement(place) => Some((false, place.set())),
        _ => None,
    };
    let Some((add, of)) = container(&ops[at]) else {
        return (encode::step(family, &ops[at], at as u32 + 1), at + 1);
    };
    let mut message = encode::begin_elements(family, of, add);
    let mut next = at;
    message.nested(elements::LIST, |message| {
        while let Some(op) = ops.get(next)
            && container(op) == Some((add, of))
            && message.len() < ELEMENTS_LENGTH
        {
            match op {
                Op::AddElement((place, value)) => encode::put_element(message, place, Some(value)),
                Op::DeleteElement(place) => encode::put_element(message, place, None),
                _ => {}
            }
            next += 1;
        }
    });
    (message, next)
}

struct Refused {
    /// The step that the kernel refused, and how many were in one message with it.
    step: Option<(usize, usize)>,
    error: io::Error,
}

impl Refused {
    fn new(BatchError { at, error }: BatchError, steps: &[usize], end: usize) -> Refused {
        let step = at.and_then(|at| {
            let first = *steps.get(at)?;
            let next = steps.get(at + 1).copied().unwrap_or(end);
            Some((first, next - first))
        });
        Refused { step, error }
    }

    fn into_error(self, family: Family, ops: &[Op]) -> Error {
        let what = match self.step {
            Some((at, 1)) => format!("failed to apply: {}", In(family, &ops[at])),
            Some((at, count)) => format!(
                "failed to apply: {} and {} more elements",
                In(family, &ops[at]),
                count - 1
            ),
            None => format!("failed to commit to table {} {TABLE}", family_name(family)),
        };
        failed(what)(self.error)
    }
}

fn number(value: &[u8]) -> u32 {
    be32(value).unwrap_or_default()
}

fn read_chain(response: Response<'_>, found: &mut Snapshot) {
    let (mut ours, mut name) = (false, None);
    let (mut kind, mut policy, mut hook) = (String::new(), wire::ACCEPT, None);
    for (attribute, value) in response.attributes(wire::HEADER) {
        match attribute {
            chain::TABLE => ours = text(value) == TABLE,
            chain::NAME => name = Some(Name::from(text(value))),
            chain::TYPE => kind = text(value).to_string(),
            chain::POLICY => policy = number(value),
            chain::HOOK => {
                let of = |wanted| attributes(value).get(wanted).map_or(0, number);
                hook = Some((of(chain::HOOK_NUMBER), of(chain::HOOK_PRIORITY) as i32));
            }
            _ => {}
        }
    }
    if let (true, Some(name)) = (ours, name) {
        let hook = hook.map(|(number, priority)| FoundHook {
            kind,
            number,
            priority,
            policy,
        });
        found.chains.entry(name).or_default().hook = hook;
    }
}

fn read_rule(response: Response<'_>, found: &mut Snapshot) {
    let (mut ours, mut name) = (false, "");
    let mut seen = FoundRule::default();
    for (attribute, value) in response.attributes(wire::HEADER) {
        match attribute {
            rule::TABLE => ours = text(value) == TABLE,
            rule::CHAIN => name = text(value),
            rule::USERDATA => seen = read_userdata(value),
            _ => {}
        }
    }
    if !ours {
        return;
    }
    match found.chains.get_mut(name) {
        Some(chain) => chain.rules.push(seen),
        None => {
            let chain = FoundChain {
                hook: None,
                rules: vec![seen],
            };
            found.chains.insert(name.into(), chain);
        }
    }
}

fn read_userdata(bytes: &[u8]) -> FoundRule {
    let mut seen = FoundRule::default();
    for (kind, value) in nft::read_udata(bytes) {
        match kind {
            UDATA_TAG => seen.tag = value.try_into().ok().map(u64::from_ne_bytes),
            UDATA_RANGE => {
                let numbers = ne32(value, 0).zip(ne32(value, 4));
                seen.range = numbers.map(|(first, length)| Range { first, length });
            }
            _ => {}
        }
    }
    seen
}

fn read_set(response: Response<'_>, found: &mut Snapshot) {
    let (mut ours, mut name, mut shape) = (false, "", Shape::default());
    for (attribute, value) in response.attributes(wire::HEADER) {
        match attribute {
            set::TABLE => ours = text(value) == TABLE,
            set::NAME => name = text(value),
            set::FLAGS => shape.flags = number(value),
            set::KEY_TYPE => shape.key_type = number(value),
            set::KEY_LENGTH => shape.key_length = number(value),
            set::DATA_TYPE => shape.data_type = number(value),
            set::DATA_LENGTH => shape.data_length = number(value),
            _ => {}
        }
    }
    // The length of verdicts is the kernel's own affair.
    if shape.data_type == wire::TYPE_VERDICT {
        shape.data_length = 0;
    }
    // Anonymous sets come and go with their rules.
    if ours && shape.flags & wire::SET_ANONYMOUS == 0 {
        found.sets.insert(name.into(), shape);
    }
}

fn read_elements(response: Response<'_>, container: Container, found: &mut Snapshot) {
    for parts in nft::read_elements(response) {
        let value = Value {
            data: read_data(parts.data, container),
            comment: parts.comment.map(Arc::from),
        };
        let key = KeyBytes::from_slice(parts.key);
        found.elements.insert(ElementKey { container, key }, value);
    }
}

fn read_data(data: ElementData, container: Container) -> Data {
    match data {
        ElementData::Value(bytes) if container.value() == ValueKind::Endpoint => {
            Data::Endpoint(KeyBytes::from_slice(bytes))
        }
        ElementData::Verdict(verdict) => Verdict::from_nft(verdict).map_or(Data::None, Data::Verdict),
        ElementData::Value(_) | ElementData::None => Data::None,
    }
}

//! A transaction, carried out on what it sees: in the writer thread, between the one before and the one after it.
//!
//! Comparisons and checks see the state before the transaction; operations see, in order, what those before them wrote.
//!
//! Upstream: server/etcdserver/txn/txn.go.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use orlop_store::{Item, Revision, View, Write};

use crate::errors::Error;
use crate::keys::KeyRange;
use crate::messages::{
    Compare, CompareResult, CompareTarget, DeleteRangeRequest, DeleteRangeResponse, KeyValue, PutRequest, PutResponse,
    RangeRequest, RangeResponse, Request, RequestOp, Response, ResponseHeader, ResponseOp, TargetUnion, TxnRequest,
    TxnResponse,
};
use crate::pair::{Pair, key_value, signed};
use crate::query;

/// Which leases there are, and are not about to be revoked.
pub(crate) trait LiveLeases {
    fn is_live(&self, id: i64) -> bool;
}

/// What a transaction came to: the answer, and what is to be written.
pub(crate) struct Applied {
    pub response: TxnResponse,
    pub writes: Vec<Write<Pair>>,
}

/// The headers inside the answer have revisions only.
pub(crate) fn txn(request: &TxnRequest, view: &View<'_, Pair>, leases: &dyn LiveLeases) -> Result<Applied, Error> {
    let path = Path::choose(request, view);
    check(request, &path, view, leases)?;
    let mut applying = Applying {
        view,
        revision: view.revision() + 1,
        written: BTreeMap::new(),
    };
    let response = applying.txn(request, &path)?;
    let write = |(key, item): (Arc<str>, Option<Item<Pair>>)| Write {
        key,
        record: item.map(|item| item.record),
    };
    Ok(Applied {
        response,
        writes: applying.written.into_iter().map(write).collect(),
    })
}

/// Which way each transaction goes: decided before anything is written, those inside it too.
struct Path {
    succeeded: bool,
    inner: Vec<Path>,
}

impl Path {
    fn choose(request: &TxnRequest, view: &View<'_, Pair>) -> Path {
        let succeeded = request.compare.iter().all(|compare| holds(compare, view));
        let inner = transactions(branch(request, succeeded)).map(|request| Path::choose(request, view));
        Path {
            succeeded,
            inner: inner.collect(),
        }
    }
}

fn branch(request: &TxnRequest, succeeded: bool) -> &[RequestOp] {
    match succeeded {
        true => &request.success,
        false => &request.failure,
    }
}

fn transactions(ops: &[RequestOp]) -> impl Iterator<Item = &TxnRequest> {
    ops.iter().filter_map(|op| match &op.request {
        Some(Request::Txn(request)) => Some(request),
        _ => None,
    })
}

/// For all keys of the range; if there are none, for a key that was never there, which has no value at all.
fn holds(compare: &Compare, view: &View<'_, Pair>) -> bool {
    let range = KeyRange::new(&compare.key, &compare.range_end);
    let (mut any, mut all) = (false, true);
    view.range(&range.from, &range.before, &mut |item| {
        any = true;
        all = holds_for(compare, &key_value(&item));
        all
    });
    match any {
        true => all,
        false => compare.target() != CompareTarget::Value && holds_for(compare, &KeyValue::default()),
    }
}

fn holds_for(compare: &Compare, kv: &KeyValue) -> bool {
    let union = compare.target_union.as_ref();
    // Where the other kind of value was given, none was.
    let ordering = match compare.target() {
        CompareTarget::Value => match union {
            Some(TargetUnion::Value(value)) => kv.value.cmp(value),
            _ => kv.value.cmp(&Bytes::new()),
        },
        CompareTarget::Version => kv.version.cmp(&match union {
            Some(TargetUnion::Version(n)) => *n,
            _ => 0,
        }),
        CompareTarget::Create => kv.create_revision.cmp(&match union {
            Some(TargetUnion::CreateRevision(n)) => *n,
            _ => 0,
        }),
        CompareTarget::Mod => kv.mod_revision.cmp(&match union {
            Some(TargetUnion::ModRevision(n)) => *n,
            _ => 0,
        }),
        CompareTarget::Lease => kv.lease.cmp(&match union {
            Some(TargetUnion::Lease(n)) => *n,
            _ => 0,
        }),
    };
    match compare.result() {
        CompareResult::Equal => ordering == Ordering::Equal,
        CompareResult::NotEqual => ordering != Ordering::Equal,
        CompareResult::Greater => ordering == Ordering::Greater,
        CompareResult::Less => ordering == Ordering::Less,
    }
}

/// What would fail half-way is refused before anything is done.
fn check(request: &TxnRequest, path: &Path, view: &View<'_, Pair>, leases: &dyn LiveLeases) -> Result<(), Error> {
    let mut inner = path.inner.iter();
    for op in branch(request, path.succeeded) {
        match &op.request {
            Some(Request::Range(request)) => {
                if let Ok(revision) = Revision::try_from(request.revision)
                    && revision > 0
                {
                    view.range_at(revision, "", "", &mut |_| false)?;
                }
            }
            Some(Request::Put(request)) => {
                if request.lease != 0 && !leases.is_live(request.lease) {
                    return Err(Error::LeaseNotFound);
                }
                let range = KeyRange::new(&request.key, b"");
                if (request.ignore_value || request.ignore_lease) && view.get(&range.from).is_none() {
                    return Err(Error::KeyNotFound);
                }
            }
            Some(Request::Txn(request)) => {
                let path = inner.next().expect("a path has one entry for each inner transaction");
                check(request, path, view, leases)?;
            }
            Some(Request::DeleteRange(_)) | None => {}
        }
    }
    Ok(())
}

struct Applying<'a> {
    view: &'a View<'a, Pair>,
    /// That of the transaction, if it writes.
    revision: Revision,
    written: BTreeMap<Arc<str>, Option<Item<Pair>>>,
}

impl Applying<'_> {
    fn txn(&mut self, request: &TxnRequest, path: &Path) -> Result<TxnResponse, Error> {
        let mut inner = path.inner.iter();
        let mut responses = Vec::new();
        for op in branch(request, path.succeeded) {
            let response = match &op.request {
                Some(Request::Range(request)) => Some(Response::Range(self.range(request)?)),
                Some(Request::Put(request)) => Some(Response::Put(self.put(request))),
                Some(Request::DeleteRange(request)) => Some(Response::DeleteRange(self.delete_range(request))),
                Some(Request::Txn(request)) => {
                    let path = inner.next().expect("a path has one entry for each inner transaction");
                    Some(Response::Txn(self.txn(request, path)?))
                }
                None => None,
            };
            responses.push(ResponseOp { response });
        }
        Ok(TxnResponse {
            header: self.header(),
            succeeded: path.succeeded,
            responses,
        })
    }

    /// Of an answer inside another one. Upstream leaves all but the revision out.
    fn header(&self) -> Option<ResponseHeader> {
        let revision = match self.written.is_empty() {
            true => self.view.revision(),
            false => self.revision,
        };
        Some(ResponseHeader {
            revision: signed(revision),
            ..ResponseHeader::default()
        })
    }

    fn get(&self, key: &str) -> Option<Item<Pair>> {
        match self.written.get(key) {
            Some(written) => written.clone(),
            None => self.view.get(key),
        }
    }

    /// The keys of a range, with what this transaction wrote.
    fn items(&self, range: &KeyRange) -> Vec<Item<Pair>> {
        let mut items = Vec::new();
        self.view.range(&range.from, &range.before, &mut |item| {
            if !self.written.contains_key(&item.key) {
                items.push(item);
            }
            true
        });
        let own = self.written.iter().filter(|(key, _)| range.contains(key));
        let before = items.len();
        items.extend(own.filter_map(|(_, item)| item.clone()));
        if items.len() > before {
            items.sort_by(|a, b| a.key.cmp(&b.key));
        }
        items
    }

    fn range(&self, request: &RangeRequest) -> Result<RangeResponse, Error> {
        let range = KeyRange::new(&request.key, &request.range_end);
        let items = match Revision::try_from(request.revision) {
            Ok(revision) if revision > 0 => {
                let mut items = Vec::new();
                self.view.range_at(revision, &range.from, &range.before, &mut |item| {
                    items.push(item);
                    true
                })?;
                items
            }
            _ => self.items(&range),
        };
        let count = items.len() as u64;
        let collected = match request.count_only {
            true => 0,
            false => query::collects(request).unwrap_or(usize::MAX),
        };
        let kvs = items.iter().take(collected).map(key_value).collect();
        let mut response = match request.count_only {
            true => RangeResponse {
                count: signed(count),
                ..RangeResponse::default()
            },
            false => query::answer(request, kvs, count),
        };
        response.header = self.header();
        Ok(response)
    }

    fn put(&mut self, request: &PutRequest) -> PutResponse {
        let key = KeyRange::new(&request.key, b"").from;
        let previous = self.get(&key);
        let old = previous.as_ref().map(|item| &item.record);
        let lease = match request.ignore_lease {
            true => old.map_or(0, |old| old.lease),
            false => request.lease,
        };
        let value = match request.ignore_value {
            true => old.map(|old| old.value()).unwrap_or_default(),
            false => request.value.clone(),
        };
        let version = old.map_or(0, |old| old.version).saturating_add(1);
        let item = Item {
            key: key.clone(),
            record: Arc::new(Pair::new(&value, lease, version)),
            create_revision: previous.as_ref().map_or(self.revision, |item| item.create_revision),
            mod_revision: self.revision,
        };
        self.written.insert(key, Some(item));
        PutResponse {
            header: self.header(),
            prev_kv: previous.filter(|_| request.prev_kv).map(|item| key_value(&item)),
        }
    }

    fn delete_range(&mut self, request: &DeleteRangeRequest) -> DeleteRangeResponse {
        let items = self.items(&KeyRange::new(&request.key, &request.range_end));
        for item in &items {
            self.written.insert(item.key.clone(), None);
        }
        DeleteRangeResponse {
            header: self.header(),
            deleted: signed(items.len() as u64),
            prev_kvs: match request.prev_kv {
                true => items.iter().map(key_value).collect(),
                false => vec![],
            },
        }
    }
}

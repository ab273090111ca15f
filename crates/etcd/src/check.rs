//! What is refused before anything is looked up.
//!
//! Upstream: server/etcdserver/api/v3rpc/key.go.

use std::collections::HashSet;
use std::sync::Arc;

use crate::errors::Error;
use crate::keys::KeyRange;
use crate::messages::{
    DeleteRangeRequest, PutRequest, RangeRequest, Request, RequestOp, SortOrder, SortTarget, TxnRequest,
};

/// Transactions inside transactions; each level takes of the operations that are allowed.
const DEEPEST: usize = 32;

pub(crate) fn range(request: &RangeRequest) -> Result<(), Error> {
    if request.key.is_empty() {
        return Err(Error::EmptyKey);
    }
    let known = SortOrder::try_from(request.sort_order).is_ok() && SortTarget::try_from(request.sort_target).is_ok();
    known.then_some(()).ok_or(Error::InvalidSortOption)
}

pub(crate) fn put(request: &PutRequest) -> Result<(), Error> {
    if request.key.is_empty() {
        return Err(Error::EmptyKey);
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(Error::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(Error::LeaseProvided);
    }
    Ok(())
}

pub(crate) fn delete_range(request: &DeleteRangeRequest) -> Result<(), Error> {
    match request.key.is_empty() {
        true => Err(Error::EmptyKey),
        false => Ok(()),
    }
}

pub(crate) fn txn(request: &TxnRequest, most_ops: usize) -> Result<(), Error> {
    operations(request, most_ops, DEEPEST)?;
    intervals(&request.success)?;
    intervals(&request.failure)?;
    Ok(())
}

fn operations(request: &TxnRequest, most_ops: usize, deeper: usize) -> Result<(), Error> {
    let most = request
        .compare
        .len()
        .max(request.success.len())
        .max(request.failure.len());
    let left = most_ops.checked_sub(most).ok_or(Error::TooManyOps)?;
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(Error::EmptyKey);
    }
    for op in request.success.iter().chain(&request.failure) {
        match &op.request {
            Some(Request::Range(request)) => range(request)?,
            Some(Request::Put(request)) => put(request)?,
            Some(Request::DeleteRange(request)) => delete_range(request)?,
            Some(Request::Txn(request)) => {
                let deeper = deeper.checked_sub(1).ok_or(Error::TooManyOps)?;
                operations(request, left, deeper)?;
            }
            None => return Err(Error::KeyNotFound),
        }
    }
    Ok(())
}

/// What one branch puts and deletes.
#[derive(Default)]
struct Touched {
    puts: HashSet<Arc<str>>,
    deletes: Vec<KeyRange>,
}

impl Touched {
    fn put(&mut self, key: Arc<str>) -> Result<(), Error> {
        if self.puts.contains(&key) || self.deletes.iter().any(|range| range.contains(&key)) {
            return Err(Error::DuplicateKey);
        }
        self.puts.insert(key);
        Ok(())
    }
}

/// No key is put twice, nor put and deleted, however a transaction goes.
fn intervals(ops: &[RequestOp]) -> Result<Touched, Error> {
    let mut touched = Touched::default();
    for op in ops {
        if let Some(Request::DeleteRange(request)) = &op.request {
            touched.deletes.push(KeyRange::new(&request.key, &request.range_end));
        }
    }
    for op in ops {
        let Some(Request::Txn(request)) = &op.request else {
            continue;
        };
        let (then, other) = (intervals(&request.success)?, intervals(&request.failure)?);
        // The branches exclude each other, so both may put the same key.
        for key in then.puts.union(&other.puts) {
            touched.put(key.clone())?;
        }
        touched.deletes.extend(then.deletes);
        touched.deletes.extend(other.deletes);
    }
    for op in ops {
        if let Some(Request::Put(request)) = &op.request {
            touched.put(KeyRange::new(&request.key, b"").from)?;
        }
    }
    Ok(touched)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put_op(key: &'static str) -> RequestOp {
        let request = PutRequest {
            key: key.into(),
            ..PutRequest::default()
        };
        RequestOp {
            request: Some(Request::Put(request)),
        }
    }

    fn delete_op(key: &'static str, end: &'static str) -> RequestOp {
        let request = DeleteRangeRequest {
            key: key.into(),
            range_end: end.into(),
            prev_kv: false,
        };
        RequestOp {
            request: Some(Request::DeleteRange(request)),
        }
    }

    fn txn_op(success: Vec<RequestOp>, failure: Vec<RequestOp>) -> RequestOp {
        RequestOp {
            request: Some(Request::Txn(then(success, failure))),
        }
    }

    fn then(success: Vec<RequestOp>, failure: Vec<RequestOp>) -> TxnRequest {
        TxnRequest {
            compare: vec![],
            success,
            failure,
        }
    }

    #[test]
    fn keys_may_be_written_once() {
        let twice = Err(Error::DuplicateKey);
        for (ops, expected) in [
            (vec![put_op("a"), put_op("b")], Ok(())),
            (vec![put_op("a"), put_op("a")], twice.clone()),
            (vec![put_op("b"), delete_op("a", "c")], twice.clone()),
            (vec![put_op("c"), delete_op("a", "c")], Ok(())),
            (vec![delete_op("a", "c"), delete_op("b", "")], Ok(())),
            (vec![txn_op(vec![put_op("a")], vec![put_op("a")])], Ok(())),
            (vec![txn_op(vec![put_op("a")], vec![]), put_op("a")], twice.clone()),
            (
                vec![txn_op(vec![put_op("a")], vec![]), txn_op(vec![], vec![put_op("a")])],
                twice.clone(),
            ),
            (
                vec![txn_op(vec![delete_op("a", "")], vec![]), put_op("a")],
                twice.clone(),
            ),
            (
                vec![delete_op("a", "\0"), txn_op(vec![], vec![put_op("z")])],
                twice.clone(),
            ),
            (vec![RequestOp { request: None }], Err(Error::KeyNotFound)),
            (vec![put_op("")], Err(Error::EmptyKey)),
        ] {
            assert_eq!(txn(&then(ops.clone(), vec![]), 128), expected, "{ops:?}");
            assert_eq!(txn(&then(vec![], ops.clone()), 128), expected, "{ops:?}");
        }
    }

    #[test]
    fn operations_are_counted_over_all_levels() {
        let many = |n: usize| vec![delete_op("a", ""); n];
        assert_eq!(txn(&then(many(128), many(128)), 128), Ok(()));
        assert_eq!(txn(&then(many(129), vec![]), 128), Err(Error::TooManyOps));
        assert_eq!(txn(&then(vec![txn_op(many(127), vec![])], vec![]), 128), Ok(()));
        assert_eq!(
            txn(&then(vec![txn_op(many(128), vec![])], vec![]), 128),
            Err(Error::TooManyOps)
        );
        let mut deep = txn_op(vec![], vec![]);
        for _ in 0..40 {
            deep = txn_op(vec![deep], vec![]);
        }
        assert_eq!(txn(&then(vec![deep], vec![]), 128), Err(Error::TooManyOps));
    }

    #[test]
    fn requests_that_contradict_themselves() {
        let request = |value: &'static str, lease, ignore_value, ignore_lease| PutRequest {
            key: "k".into(),
            value: value.into(),
            lease,
            prev_kv: false,
            ignore_value,
            ignore_lease,
        };
        assert_eq!(put(&request("v", 0, true, false)), Err(Error::ValueProvided));
        assert_eq!(put(&request("v", 1, false, true)), Err(Error::LeaseProvided));
        assert_eq!(put(&request("", 0, true, true)), Ok(()));
        let sorted = |order, target| RangeRequest {
            key: "k".into(),
            sort_order: order,
            sort_target: target,
            ..RangeRequest::default()
        };
        assert_eq!(range(&sorted(2, 4)), Ok(()));
        assert_eq!(range(&sorted(3, 0)), Err(Error::InvalidSortOption));
        assert_eq!(range(&sorted(0, -1)), Err(Error::InvalidSortOption));
    }
}

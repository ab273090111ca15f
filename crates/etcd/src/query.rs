//! What a range asks for, beside its keys: filters, order, limit. Pure.
//!
//! Upstream: server/etcdserver/txn/range.go.

use bytes::Bytes;

use crate::messages::{KeyValue, RangeRequest, RangeResponse, SortOrder, SortTarget};

/// How many items are worth collecting: with a filter or another order all, since the limit comes after those.
pub(crate) fn collects(request: &RangeRequest) -> Option<usize> {
    let plain = is_in_key_order(request) && !has_filters(request);
    (plain && request.limit > 0).then(|| usize::try_from(request.limit).unwrap_or(usize::MAX))
}

fn is_in_key_order(request: &RangeRequest) -> bool {
    let (order, target) = (sort_order(request), sort_target(request));
    target == SortTarget::Key && order != SortOrder::Descend
}

fn has_filters(request: &RangeRequest) -> bool {
    request.min_mod_revision != 0
        || request.max_mod_revision != 0
        || request.min_create_revision != 0
        || request.max_create_revision != 0
}

fn sort_order(request: &RangeRequest) -> SortOrder {
    SortOrder::try_from(request.sort_order).unwrap_or(SortOrder::None)
}

fn sort_target(request: &RangeRequest) -> SortTarget {
    SortTarget::try_from(request.sort_target).unwrap_or(SortTarget::Key)
}

fn keeps(request: &RangeRequest, kv: &KeyValue) -> bool {
    let within = |min: i64, max: i64, revision: i64| (min == 0 || revision >= min) && (max == 0 || revision <= max);
    within(request.min_mod_revision, request.max_mod_revision, kv.mod_revision)
        && within(
            request.min_create_revision,
            request.max_create_revision,
            kv.create_revision,
        )
}

/// The answer, from items that ascend by key: as many as [`collects`] says, or all. `count` is how many keys there are,
/// filters and limit aside.
pub(crate) fn answer(request: &RangeRequest, mut kvs: Vec<KeyValue>, count: u64) -> RangeResponse {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let collected_all = collects(request).is_none();
    kvs.retain(|kv| keeps(request, kv));
    if !is_in_key_order(request) {
        match sort_target(request) {
            SortTarget::Key => {}
            SortTarget::Version => kvs.sort_by_key(|kv| kv.version),
            SortTarget::Create => kvs.sort_by_key(|kv| kv.create_revision),
            SortTarget::Mod => kvs.sort_by_key(|kv| kv.mod_revision),
            SortTarget::Value => kvs.sort_by(|a, b| a.value.cmp(&b.value)),
        }
        if sort_order(request) == SortOrder::Descend {
            kvs.reverse();
        }
    }
    let mut more = false;
    if let Ok(limit) = usize::try_from(request.limit)
        && limit > 0
    {
        more = match collected_all {
            true => kvs.len() > limit,
            false => usize::try_from(count).is_ok_and(|count| count > limit),
        };
        kvs.truncate(limit);
    }
    if request.keys_only {
        kvs.iter_mut().for_each(|kv| kv.value = Bytes::new());
    }
    RangeResponse {
        header: None,
        kvs,
        more,
        count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// key, create, mod, version, value
    fn kv(key: &'static str, create: i64, modified: i64, version: i64, value: &'static str) -> KeyValue {
        KeyValue {
            key: key.into(),
            create_revision: create,
            mod_revision: modified,
            version,
            value: value.into(),
            lease: 0,
        }
    }

    fn items() -> Vec<KeyValue> {
        vec![kv("a", 2, 9, 3, "y"), kv("b", 5, 5, 1, "z"), kv("c", 4, 7, 2, "x")]
    }

    fn keys(response: &RangeResponse) -> String {
        response
            .kvs
            .iter()
            .map(|kv| String::from_utf8_lossy(&kv.key).into_owned())
            .collect()
    }

    #[test]
    fn orders_filters_and_limits() {
        type Change = fn(&mut RangeRequest);
        let table: &[(Change, &str, bool)] = &[
            (|_| {}, "abc", false),
            (|r| r.sort_order = 2, "cba", false),
            (|r| r.sort_order = 1, "abc", false),
            (|r| r.sort_target = 1, "bca", false),
            (|r| (r.sort_target, r.sort_order) = (2, 2), "bca", false),
            (|r| (r.sort_target, r.sort_order) = (3, 1), "bca", false),
            (|r| (r.sort_target, r.sort_order) = (4, 1), "cab", false),
            (|r| (r.sort_target, r.sort_order, r.limit) = (4, 2, 2), "ba", true),
            (|r| r.min_mod_revision = 7, "ac", false),
            (|r| (r.min_mod_revision, r.limit) = (7, 1), "a", true),
            (|r| (r.max_mod_revision, r.limit) = (7, 2), "bc", false),
            (|r| r.min_create_revision = 4, "bc", false),
            (|r| r.max_create_revision = 4, "ac", false),
            (|r| r.limit = 3, "abc", false),
            (|r| r.limit = 2, "ab", true),
            (|r| r.limit = -1, "abc", false),
        ];
        for (change, expected, more) in table {
            let mut request = RangeRequest::default();
            change(&mut request);
            let collected = items()
                .into_iter()
                .take(collects(&request).unwrap_or(usize::MAX))
                .collect();
            let response = answer(&request, collected, 3);
            assert_eq!(
                (keys(&response).as_str(), response.more, response.count),
                (*expected, *more, 3),
                "{request:?}"
            );
        }
        let keys_only = RangeRequest {
            keys_only: true,
            ..RangeRequest::default()
        };
        assert!(answer(&keys_only, items(), 3).kvs.iter().all(|kv| kv.value.is_empty()));
    }
}

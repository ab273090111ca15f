//! Puts endpoints into slices with as few changes as possible: everybody who routes traffic hears of every changed slice.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::objects::EndpointSlice;
use crate::objects::endpoint_slice::{Endpoint, EndpointPort};

/// A slice as it is to be.
#[derive(Debug, Default)]
pub(super) struct Draft {
    /// The slice that is to become this one; none: a new one.
    pub from: Option<Arc<EndpointSlice>>,
    /// In order.
    pub ports: Vec<EndpointPort>,
    pub endpoints: Vec<Endpoint>,
    /// Its endpoints are not those that `from` has. (Hints don't count: they are taken along.)
    pub touched: bool,
}

/// What makes an endpoint the same one, whatever else about it changes.
type Identity = (Vec<String>, String, String, String);

fn identity(endpoint: &Endpoint) -> Identity {
    let mut addresses = endpoint.addresses.clone();
    addresses.sort();
    let hostname = endpoint.hostname.clone().unwrap_or_default();
    let (namespace, name) = match &endpoint.target_ref {
        None => (String::new(), String::new()),
        Some(target) => (target.namespace.clone(), target.name.clone()),
    };
    (addresses, hostname, namespace, name)
}

/// `existing` have these ports. Also returns those that are left empty.
pub(super) fn pack(
    ports: &[EndpointPort],
    wanted: Vec<Endpoint>,
    existing: Vec<Arc<EndpointSlice>>,
    max: usize,
) -> (Vec<Draft>, Vec<Arc<EndpointSlice>>) {
    let mut wanted: BTreeMap<Identity, Endpoint> = wanted.into_iter().map(|e| (identity(&e), e)).collect();
    let (mut drafts, mut emptied) = (vec![], vec![]);
    for slice in existing {
        let endpoints = still_wanted(&slice, &mut wanted, max);
        if endpoints.is_empty() {
            emptied.push(slice);
            continue;
        }
        drafts.push(Draft {
            touched: endpoints != slice.endpoints,
            from: Some(slice),
            ports: ports.to_vec(),
            endpoints,
        });
    }
    let mut left: Vec<Endpoint> = wanted.into_values().collect();
    fill_touched(&mut drafts, &mut left, max);
    while !left.is_empty() {
        // One more slice has to change: one that holds all that is left, with as little room over as possible.
        let fits = |draft: &&mut Draft| !draft.touched && draft.endpoints.len() + left.len() <= max;
        if let Some(draft) = drafts.iter_mut().filter(fits).max_by_key(|d| d.endpoints.len()) {
            draft.endpoints.append(&mut left);
            draft.touched = true;
            break;
        }
        let rest = left.split_off(left.len().min(max));
        drafts.push(Draft {
            from: None,
            ports: ports.to_vec(),
            endpoints: std::mem::replace(&mut left, rest),
            touched: true,
        });
    }
    (drafts, emptied)
}

/// Takes the slice's endpoints, as they are now, out of those wanted.
fn still_wanted(slice: &EndpointSlice, wanted: &mut BTreeMap<Identity, Endpoint>, max: usize) -> Vec<Endpoint> {
    let found = slice.endpoints.iter().filter_map(|old| {
        let mut new = wanted.remove(&identity(old))?;
        new.hints.clone_from(&old.hints);
        Some(new)
    });
    // Lazily: what has no room here stays wanted.
    found.take(max).collect()
}

/// What changes anyway is filled up first, the fullest first.
fn fill_touched(drafts: &mut [Draft], left: &mut Vec<Endpoint>, max: usize) {
    let mut touched: Vec<&mut Draft> = drafts.iter_mut().filter(|d| d.touched).collect();
    touched.sort_by_key(|draft| std::cmp::Reverse(draft.endpoints.len()));
    for draft in touched {
        let room = max.saturating_sub(draft.endpoints.len()).min(left.len());
        draft.endpoints.extend(left.drain(..room));
    }
}

//! How many seats a request takes. Pure.
//!
//! Upstream: util/flowcontrol/request (v1.36). Differs for lists: upstream estimates the bytes that are in memory at once and
//! stops at 1 MB, which is ten seats; here lists are made while they are sent and what they cost is to look at objects, so they
//! take a seat for each hundred of these, up to ten as well.

use std::time::Duration;

use super::queue_set::Work;
use crate::request::RequestInfo;

const OBJECTS_PER_SEAT: usize = 100;
const SEATS_MAX: u32 = 10;
const WATCHES_PER_SEAT: u32 = 10;
/// For which a tenth of a seat is busy with an event for one watcher.
const EVENT: Duration = Duration::from_millis(5);

/// What the estimate depends on.
pub(super) struct Facts<'f> {
    /// How many objects of the resource there are.
    pub objects: &'f dyn Fn() -> usize,
    /// How many watches see all changes of the resource.
    pub watches: &'f dyn Fn() -> u32,
}

/// `seats_max` is what the level allows.
pub(super) fn estimate(info: &RequestInfo, seats_max: u32, facts: &Facts<'_>) -> Work {
    let seats_max = seats_max.clamp(1, SEATS_MAX);
    match info.verb {
        "list" => list(info, seats_max, facts),
        "watch" if sends_state(info) => list(info, seats_max, facts),
        "create" | "update" | "patch" | "delete" if !is_unseen(info) => write(seats_max, facts),
        _ => Work::ONE,
    }
}

/// Whether a watch begins with what there is.
fn sends_state(info: &RequestInfo) -> bool {
    let revision = info.query.get("resourceVersion").unwrap_or("");
    info.query.flag("sendInitialEvents") || revision.is_empty() || revision == "0"
}

/// Tokens are requested of service accounts without changing them.
fn is_unseen(info: &RequestInfo) -> bool {
    info.resource == "serviceaccounts" && info.subresource == "token"
}

fn list(info: &RequestInfo, seats_max: u32, facts: &Facts<'_>) -> Work {
    let is_single = !info.name.is_empty()
        || info
            .query
            .get("fieldSelector")
            .is_some_and(|s| s.starts_with("metadata.name=") && !s.contains(','));
    if is_single {
        return Work::ONE;
    }
    let stored = (facts.objects)();
    let limit = info
        .query
        .number("limit")
        .ok()
        .flatten()
        .and_then(|n| usize::try_from(n).ok());
    let selects = |name: &str| info.query.get(name).is_some_and(|text| !text.is_empty());
    let looked_at = match limit.filter(|limit| *limit > 0) {
        // Whoever selects looks at more than what it finds.
        Some(limit) if !selects("labelSelector") && !selects("fieldSelector") => stored.min(limit),
        _ => stored,
    };
    let seats = u32::try_from(looked_at.div_ceil(OBJECTS_PER_SEAT)).unwrap_or(u32::MAX);
    Work::seats(seats.clamp(1, seats_max))
}

fn write(seats_max: u32, facts: &Facts<'_>) -> Work {
    let watches = (facts.watches)();
    if watches < WATCHES_PER_SEAT {
        return Work::ONE;
    }
    let seats = watches.div_ceil(WATCHES_PER_SEAT);
    let narrow = seats.min(seats_max);
    // The same work, on fewer seats for longer.
    let afterwards = EVENT.saturating_mul(seats).checked_div(narrow).unwrap_or_default();
    Work {
        seats: 1,
        final_seats: narrow,
        afterwards,
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    #[test]
    fn requests_are_as_wide_as_their_work() {
        let event = |seats: u32, millis: u64| Work {
            seats: 1,
            final_seats: seats,
            afterwards: Duration::from_millis(millis),
        };
        for (method, target, objects, watches, wanted) in [
            ("GET", "/api/v1/pods", 0, 0, Work::ONE),
            ("GET", "/api/v1/pods", 101, 0, Work::seats(2)),
            ("GET", "/api/v1/pods", 100_000, 0, Work::seats(10)),
            ("GET", "/api/v1/pods?limit=200", 100_000, 0, Work::seats(2)),
            ("GET", "/api/v1/pods?limit=200&labelSelector=a", 700, 0, Work::seats(7)),
            (
                "GET",
                "/api/v1/pods?fieldSelector=metadata.name%3Dx",
                100_000,
                0,
                Work::ONE,
            ),
            ("GET", "/api/v1/namespaces/d/pods/p", 100_000, 0, Work::ONE),
            ("GET", "/api/v1/pods?watch=1", 500, 0, Work::seats(5)),
            ("GET", "/api/v1/pods?watch=1&resourceVersion=7", 500, 0, Work::ONE),
            (
                "GET",
                "/api/v1/pods?watch=1&resourceVersion=7&sendInitialEvents=true",
                500,
                0,
                Work::seats(5),
            ),
            ("POST", "/api/v1/namespaces/d/pods", 500, 9, Work::ONE),
            ("POST", "/api/v1/namespaces/d/pods", 500, 25, event(3, 5)),
            ("PATCH", "/api/v1/namespaces/d/pods/p", 500, 400, event(10, 20)),
            ("DELETE", "/api/v1/namespaces/d/pods", 500, 400, Work::ONE),
            (
                "POST",
                "/api/v1/namespaces/d/serviceaccounts/a/token",
                500,
                400,
                Work::ONE,
            ),
        ] {
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let info = RequestInfo::parse(&method.parse::<Method>().unwrap(), path, query);
            let facts = Facts {
                objects: &|| objects,
                watches: &|| watches,
            };
            assert_eq!(estimate(&info, 37, &facts), wanted, "{method} {target}");
        }
        let info = RequestInfo::parse(&Method::GET, "/api/v1/pods", "");
        let facts = Facts {
            objects: &|| 5000,
            watches: &|| 0,
        };
        assert_eq!(estimate(&info, 4, &facts), Work::seats(4));
        assert_eq!(estimate(&info, 0, &facts), Work::ONE);
    }
}

//! A pod that requests less of a resource.

use orlop_scheduler::cluster::resources::Requests;
use orlop_scheduler::model::{PodSpec, ResourceList};

use crate::amount;

/// Makes the pod request no more than this of the resource: the largest requests of its containers give way first. False
/// if that can't be, as for what a runtime class adds.
pub(super) fn lower(spec: &mut PodSpec, resource: &str, to: i64) -> bool {
    if to < 0 {
        return false;
    }
    // The pod's own figure stands for its containers'.
    if spec.resources.requests.contains_key(resource) {
        let overhead = total(spec, resource) - of(&spec.resources.requests, resource);
        if to < overhead {
            return false;
        }
        set(&mut spec.resources.requests, resource, to - overhead);
        return total(spec, resource) <= to;
    }
    // Each round takes one container down as far as is needed, or to nothing.
    for _ in 0..=spec.containers.len() + spec.init_containers.len() {
        let excess = total(spec, resource) - to;
        if excess <= 0 {
            return true;
        }
        let containers = spec.containers.iter_mut().chain(&mut spec.init_containers);
        let Some(largest) = containers.max_by_key(|c| of(&c.resources.requests, resource)) else {
            return false;
        };
        let own = of(&largest.resources.requests, resource);
        if own == 0 {
            return false;
        }
        set(&mut largest.resources.requests, resource, (own - excess).max(0));
    }
    total(spec, resource) <= to
}

fn total(spec: &PodSpec, resource: &str) -> i64 {
    Requests::of_spec(spec).exact.amount(resource)
}

fn of(list: &ResourceList, resource: &str) -> i64 {
    let text = list.get(resource).map_or("0", String::as_str);
    let quantity = orlop_api::quantity::Quantity::parse(text).unwrap_or_default();
    if resource == "cpu" {
        quantity.milli_value()
    } else {
        quantity.value()
    }
}

fn set(list: &mut ResourceList, resource: &str, amount: i64) {
    list.insert(resource.to_string(), amount::exact(resource, amount));
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_largest_gives_way_first() {
        let cases: [(Value, i64, bool, i64); 7] = [
            (
                json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "2"}}}]}),
                1300,
                true,
                1300,
            ),
            (
                json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "2"}}},
                                      {"name": "b", "resources": {"requests": {"cpu": "500m"}}}]}),
                2000,
                true,
                2000,
            ),
            (
                json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "2"}}},
                                      {"name": "b", "resources": {"requests": {"cpu": "1500m"}}}]}),
                0,
                true,
                0,
            ),
            (
                json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}],
                       "initContainers": [{"name": "i", "resources": {"requests": {"cpu": "3"}}}]}),
                2000,
                true,
                2000,
            ),
            (
                json!({"overhead": {"cpu": "1"}, "containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}]}),
                500,
                false,
                0,
            ),
            (
                json!({"resources": {"requests": {"cpu": "4"}},
                       "containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}]}),
                1500,
                true,
                1500,
            ),
            (json!({"containers": [{"name": "a"}]}), -1, false, 0),
        ];
        for (spec, to, possible, left) in cases {
            let mut parsed: PodSpec = serde_json::from_value(spec.clone()).unwrap();
            assert_eq!(lower(&mut parsed, "cpu", to), possible, "{spec}");
            if possible {
                assert_eq!(total(&parsed, "cpu"), left, "{spec}");
            }
        }
    }
}

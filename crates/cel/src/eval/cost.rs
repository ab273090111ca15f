//! What calls cost when they are evaluated.
//!
//! Upstream: cel-go/interpreter/runtimecost.go (costCall), apiserver/pkg/cel/library/cost.go (CallCost),
//! cel-go/ext/{lists,sets}.go.

use crate::value::{List, Value};

pub(crate) const STRING: f64 = 0.1;
pub(crate) const REGEX: f64 = 0.25;
const LIST: u64 = 10;

/// How the cost of a call is computed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Rule {
    Fixed(u64),
    /// Going through the first argument this often.
    Traverse(u64),
    /// Going through the result this often.
    TraverseResult(u64),
    /// Comparing two strings.
    Shorter,
    /// Writing both strings.
    Concatenate,
    /// Comparing with each element of the second argument.
    InList,
    /// A pattern, in the second argument, on a text.
    Pattern,
    /// A text in a text.
    Contains,
    /// Each element of the first argument, strings by their length.
    Elements,
    /// A selector, in the second argument.
    Selector,
    /// A network with an address or network, which may be text.
    Network {
        network: bool,
        text: bool,
    },
    /// A named format on the second argument.
    Format,
    /// A list as long as the result.
    ListResult,
    /// A list made of the first argument's elements, down to the level in the second.
    Flatten,
    /// Each element of this argument with each other.
    EachOther(usize),
    /// Each element of one with each of the other, so often.
    Sets(u64),
}

impl Rule {
    /// The rule of a function; `overload` is empty if it is not known before.
    pub(crate) fn of(function: &str, overload: &str) -> Rule {
        match overload {
            "list_slice" | "lists_range" | "list_reverse" => return Rule::ListResult,
            "list_flatten" | "list_flatten_int" => return Rule::Flatten,
            "list_distinct" => return Rule::EachOther(0),
            "list_sets_contains_list" | "list_sets_intersects_list" => return Rule::Sets(1),
            "list_sets_equivalent_list" => return Rule::Sets(2),
            _ if overload.starts_with("list_") && overload.ends_with("_sort") => return Rule::EachOther(0),
            _ if overload.ends_with("_sortByAssociatedKeys") => return Rule::EachOther(1),
            _ => {}
        }
        match function {
            "check" => Rule::Fixed(350_000),
            "fieldSelector" | "labelSelector" => Rule::Selector,
            "isSorted" | "sum" | "@sum_of_durations" | "max" | "min" | "indexOf" | "lastIndexOf" => Rule::Elements,
            "url"
            | "lowerAscii"
            | "upperAscii"
            | "substring"
            | "trim"
            | "jsonpatch.escapeKey"
            | "cidr"
            | "isIP"
            | "isCIDR"
            | "quantity"
            | "isQuantity"
            | "semver"
            | "isSemver" => Rule::Traverse(1),
            "replace" | "split" | "ip.isCanonical" => Rule::Traverse(2),
            "join" => Rule::TraverseResult(2),
            "find" | "findAll" => Rule::Pattern,
            "ip" if overload != "cidr_ip" => Rule::Traverse(1),
            "containsIP" => Rule::Network {
                network: false,
                text: overload == "cidr_contains_ip_string",
            },
            "containsCIDR" => Rule::Network {
                network: true,
                text: overload == "cidr_contains_cidr_string",
            },
            "validate" => Rule::Format,
            _ => Rule::of_overload(overload),
        }
    }

    fn of_overload(overload: &str) -> Rule {
        match overload {
            "starts_with_string" | "ends_with_string" | "string_to_bytes" | "bytes_to_string" | "strings_quote"
            | "string_format" => Rule::Traverse(1),
            "in_list" => Rule::InList,
            "less_string"
            | "greater_string"
            | "less_equals_string"
            | "greater_equals_string"
            | "less_bytes"
            | "greater_bytes"
            | "less_equals_bytes"
            | "greater_equals_bytes" => Rule::Shorter,
            "add_string" | "add_bytes" => Rule::Concatenate,
            "matches_string" => Rule::Pattern,
            "contains_string" => Rule::Contains,
            _ => Rule::Fixed(1),
        }
    }

    /// What the call will cost at least, where that must be known before it is made.
    pub(crate) fn least(self, args: &[Value<'_>]) -> Option<u64> {
        match (self, args) {
            (Rule::ListResult, [Value::Int(length)]) => Some(u64::try_from(*length).unwrap_or(0)),
            (Rule::EachOther(at), _) => args.get(at).map(each_other),
            (Rule::Sets(times), [one, two]) => {
                Some(one.cost_size().saturating_mul(two.cost_size()).saturating_mul(times))
            }
            (Rule::Fixed(350_000), _) => Some(350_000),
            _ => None,
        }
    }

    /// What the call cost.
    pub(crate) fn actual(self, args: &[Value<'_>], result: &Value<'_>) -> u64 {
        let size = |at: usize| args.get(at).map_or(1, Value::cost_size);
        match self {
            Rule::Fixed(cost) => cost,
            Rule::Traverse(times) => traversal(size(0), times),
            Rule::TraverseResult(times) => traversal(result.cost_size(), times),
            Rule::Shorter => traversal(size(0).min(size(1)), 1),
            Rule::Concatenate => traversal(size(0).saturating_add(size(1)), 1),
            Rule::InList => size(1),
            Rule::Pattern => pattern(size(0), size(1)),
            Rule::Contains => traversal(size(0), 1).saturating_mul(traversal(size(1), 1)),
            Rule::Elements => args.first().map_or(0, elements),
            Rule::Selector => selector(size(1)),
            Rule::Network { network, text } => {
                let (of_network, of_other) = (size(0), size(1));
                let mut cost = traversal(of_network * 2, 1);
                if network {
                    cost += traversal(of_network, 1) + 1;
                }
                if text {
                    cost += traversal(of_other, 1);
                }
                cost
            }
            Rule::Format => match args.first() {
                Some(Value::Format(format)) => pattern(size(1), format.pattern_size),
                _ => 1,
            },
            Rule::ListResult => allocated(1.0, result.cost_size()),
            Rule::Flatten => {
                let depth = match args.get(1) {
                    Some(Value::Int(depth)) => *depth as f64,
                    _ => 1.0,
                };
                allocated(depth, size(0))
            }
            Rule::EachOther(at) => args.get(at).map_or(1, each_other),
            Rule::Sets(times) => size(0).saturating_mul(size(1)).saturating_mul(times).saturating_add(1),
        }
    }
}

/// Going so often through so many characters.
fn traversal(size: u64, times: u64) -> u64 {
    (size as f64 * (times as f64 * STRING)).ceil() as u64
}

/// A pattern of this length on a text of that.
fn pattern(text: u64, pattern: u64) -> u64 {
    let text = ((1.0 + text as f64) * STRING).ceil() as u64;
    let pattern = (pattern as f64 * REGEX).ceil() as u64;
    text.saturating_mul(pattern)
}

/// `==` and `!=`.
pub(crate) fn equality(left: &Value<'_>, right: &Value<'_>, is_equals: bool) -> u64 {
    let opaque = matches!(
        left,
        Value::Quantity(_)
            | Value::Ip(_)
            | Value::Cidr(_)
            | Value::Format(_)
            | Value::Url(_)
            | Value::Semver(_)
            | Value::Authorizer(_)
    );
    if opaque && is_equals {
        return 1;
    }
    traversal(left.cost_size().min(right.cost_size()), 1)
}

fn elements(value: &Value<'_>) -> u64 {
    match value {
        Value::String(text) => (text.len() as f64 * STRING) as u64,
        Value::Bytes(bytes) => (bytes.len() as f64 * STRING) as u64,
        Value::List(list) => list
            .iter()
            .flatten()
            .map(|item| elements(&item))
            .fold(0, u64::saturating_add),
        Value::Map(map) => {
            let pairs = map.pairs().unwrap_or_default();
            let costs = pairs
                .iter()
                .map(|(key, value)| elements(key).saturating_add(elements(value)));
            costs.fold(0, u64::saturating_add)
        }
        _ => 1,
    }
}

fn selector(length: u64) -> u64 {
    let parse = traversal(length, 1);
    let requirements = (length as f64 * 0.5).ceil();
    LIST + parse + (requirements * 50.0).ceil() as u64
}

fn allocated(factor: f64, size: u64) -> u64 {
    ((size as f64 * factor) as u64).saturating_add(1 + LIST)
}

fn each_other(list: &Value<'_>) -> u64 {
    let Value::List(list) = list else {
        return 1;
    };
    let factor = match List::get(list, 0) {
        Some(Ok(Value::String(_) | Value::Bytes(_))) => 2.0 + STRING,
        _ => 2.0,
    };
    let size = list.len() as u64;
    allocated(factor, size.saturating_mul(size))
}

//! Estimates of calls.
//!
//! Upstream: functionCost in cel-go/checker/cost.go, EstimateCallCost in apiserver/pkg/cel/library/cost.go,
//! cel-go/ext/{lists,sets}.go.

use super::{CallEstimate, CostEstimate, EntrySize, Estimator, Path, STRING, SizeEstimate, times};
use crate::ast::{Expr, Id, Kind, Literal};
use crate::library;
use crate::limits;
use crate::types::Type;

const REGEX: f64 = 0.25;

/// A call as one of its overloads.
pub(super) struct Call<'c> {
    pub(super) id: Id,
    pub(super) function: &'c str,
    pub(super) overload: &'c str,
    pub(super) target: Option<&'c Expr>,
    pub(super) args: &'c [Expr],
    pub(super) costs: &'c [CostEstimate],
}

fn whole(expr: &Expr, otherwise: u64) -> u64 {
    match expr.kind {
        Kind::Literal(Literal::Int(int)) => u64::try_from(int).unwrap_or(0),
        _ => otherwise,
    }
}

/// A list of this size that is made at this cost for each element.
fn allocated(factor: f64, size: SizeEstimate) -> CallEstimate {
    CallEstimate {
        cost: size.by_factor(factor).add(CostEstimate::fixed(1 + 10)),
        size: Some(size),
    }
}

fn sized(cost: CostEstimate, size: SizeEstimate) -> CallEstimate {
    CallEstimate { cost, size: Some(size) }
}

impl Estimator<'_> {
    /// The cost of a call with its arguments.
    pub(super) fn cost_of_overload(&mut self, call: &Call<'_>) -> CallEstimate {
        let args = call
            .costs
            .iter()
            .copied()
            .fold(CostEstimate::default(), CostEstimate::add);
        let own = self
            .cost_of_list_function(call)
            .or_else(|| self.cost_of_library_function(call));
        let own = own.or_else(|| self.cost_of_standard_function(call));
        if let Some(estimate) = own {
            return CallEstimate {
                cost: estimate.cost.add(args),
                size: estimate.size,
            };
        }
        match (call.overload, call.costs, call.args) {
            (_, [left, right], _) if Self::is_logical(call.function) => CostEstimate {
                min: left.min,
                max: left.add(*right).max,
            }
            .into(),
            ("conditional", [condition, if_true, if_false], [_, one, two]) => {
                let size = self.size_or_unknown(one).union(self.size_or_unknown(two));
                let entries = EntrySize::union(self.entry_size(one), self.entry_size(two));
                self.set_entry_size(call.id, entries);
                sized(condition.add(if_true.union(*if_false)), size)
            }
            _ => CostEstimate::fixed(1).add(args).into(),
        }
    }

    fn cost_of_list_function(&mut self, call: &Call<'_>) -> Option<CallEstimate> {
        let overload = call.overload;
        Some(match (overload, call.target, call.args) {
            ("list_slice", Some(target), [start, end]) => {
                let longest = self.size_or_unknown(target).max;
                let length = whole(end, longest).wrapping_sub(whole(start, 0));
                allocated(1.0, SizeEstimate::fixed(length))
            }
            ("lists_range", None, [end]) => allocated(1.0, SizeEstimate::fixed(whole(end, u64::MAX))),
            ("list_reverse", Some(target), []) => allocated(1.0, self.size_or_unknown(target)),
            ("list_flatten" | "list_flatten_int", Some(target), args) => {
                let depth = args.first().map_or(1, |depth| whole(depth, u64::MAX));
                allocated(depth as f64, self.size_or_unknown(target))
            }
            ("list_distinct", Some(target), []) => {
                let size = self.size_or_unknown(target);
                allocated(2.0, size.multiply(size))
            }
            (_, Some(target), []) if overload.starts_with("list_") && overload.ends_with("_sort") => {
                self.sorting(target, overload)
            }
            (_, Some(_), [keys]) if overload.ends_with("_sortByAssociatedKeys") => self.sorting(keys, overload),
            (_, None, [one, two]) if overload.starts_with("list_sets_") => {
                let often = if overload == "list_sets_equivalent_list" {
                    2.0
                } else {
                    1.0
                };
                let pairs = self.size_or_unknown(one).multiply(self.size_or_unknown(two));
                pairs.by_factor(often).add(CostEstimate::fixed(1)).into()
            }
            _ => return None,
        })
    }

    fn sorting(&mut self, list: &Expr, overload: &str) -> CallEstimate {
        let size = self.size_or_unknown(list);
        let of_text = overload.starts_with("list_string_") || overload.starts_with("list_bytes_");
        allocated(if of_text { 2.0 + STRING } else { 2.0 }, size.multiply(size))
    }

    /// The size and type of a list's elements, if the type has parameters.
    fn elements(&self, list: &Expr) -> Option<(Type, Option<SizeEstimate>)> {
        let ty = match self.ast.ty(list.id) {
            Type::List(item) | Type::Optional(item) | Type::Type(Some(item)) => (**item).clone(),
            Type::Map(entry) => entry.0.clone(),
            _ => return None,
        };
        let path = match self.path(list) {
            Path::None => Path::None,
            path => self.step(&path, "@items"),
        };
        let size = self.declared_size(&path, &ty);
        Some((ty, size))
    }

    fn cost_of_library_function(&mut self, call: &Call<'_>) -> Option<CallEstimate> {
        let one = CostEstimate::fixed(1);
        Some(match (call.function, call.target, call.args) {
            ("check", ..) => CostEstimate::fixed(350_000).into(),
            (
                "serviceAccount"
                | "path"
                | "group"
                | "resource"
                | "subresource"
                | "namespace"
                | "name"
                | "allowed"
                | "reason"
                | "error"
                | "errored"
                | "masked"
                | "prefixLength"
                | "family"
                | "isUnspecified"
                | "isLoopback"
                | "isLinkLocalMulticast"
                | "isLinkLocalUnicast"
                | "isGlobalUnicast"
                | "format.named"
                | "sign"
                | "asInteger"
                | "isInteger"
                | "asApproximateFloat"
                | "isGreaterThan"
                | "isLessThan"
                | "compareTo"
                | "add"
                | "sub"
                | "major"
                | "minor"
                | "patch"
                | "getScheme"
                | "getHostname"
                | "getHost"
                | "getPort"
                | "getEscapedPath"
                | "getQuery",
                ..,
            ) => one.into(),
            ("fieldSelector" | "labelSelector", _, [selector]) => {
                let size = self.size_or_unknown(selector);
                let requirements = size.by_factor(0.5).by_factor(50.0);
                CostEstimate::fixed(10)
                    .add(size.by_factor(STRING))
                    .add(requirements)
                    .into()
            }
            ("isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf", Some(target), _) => {
                self.each_element(target).into()
            }
            ("url" | "jsonpatch.escapeKey", _, [text]) => {
                let size = self.size_or_unknown(text);
                sized(size.by_factor(STRING), size)
            }
            ("lowerAscii" | "upperAscii" | "substring" | "trim", Some(target), _) => {
                let size = self.size_or_unknown(target);
                sized(size.by_factor(STRING), size)
            }
            ("replace", Some(target), [from, to, ..]) => {
                let size = self.size_or_unknown(target);
                let (from, to) = (self.size_or_unknown(from), self.size_or_unknown(to));
                sized(size.by_factor(2.0 * STRING), replaced(size, from, to))
            }
            ("split", Some(target), args) => {
                let size = self.size_or_unknown(target);
                let most = args.get(1).map_or(size.max, |most| match most.kind {
                    Kind::Literal(Literal::Int(most)) => most as u64,
                    _ => size.max,
                });
                sized(size.by_factor(2.0 * STRING), SizeEstimate { min: 0, max: most })
            }
            ("join", Some(target), args) => {
                let size = self.joined(target, args.first());
                sized(size.by_factor(STRING), size)
            }
            ("find" | "findAll", Some(target), [pattern, ..]) => {
                let size = self.size_or_unknown(target);
                let cost = self.matching(size, pattern);
                sized(cost, SizeEstimate { min: 0, max: size.max })
            }
            ("ip", ..) if call.overload == "cidr_ip" => one.into(),
            ("cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver" | "isSemver", _, [text, ..]) => {
                self.size_or_unknown(text).by_factor(STRING).into()
            }
            ("ip.isCanonical", _, [text, ..]) => self.size_or_unknown(text).by_factor(2.0 * STRING).into(),
            ("containsIP" | "containsCIDR", _, [other, ..]) => self.containing(call, other).into(),
            ("validate", _, [text, ..]) => {
                let size = self.size_or_unknown(text);
                size.by_factor(STRING)
                    .by_factor(limits::MAX_NAME_FORMAT_REGEX_SIZE as f64 * REGEX)
                    .into()
            }
            ("_==_", _, [left, right]) => return self.same(left, right).map(CallEstimate::from),
            _ => return None,
        })
    }

    fn each_element(&mut self, target: &Expr) -> CostEstimate {
        let size = self.size_or_unknown(target);
        let Some((ty, item)) = self.elements(target) else {
            return size.by_factor(STRING);
        };
        let mut cost = CostEstimate::fixed(1);
        if matches!(ty, Type::String | Type::Bytes) {
            cost = cost.add(item.unwrap_or(SizeEstimate::UNKNOWN).by_factor(STRING));
        }
        size.of(cost)
    }

    fn joined(&mut self, target: &Expr, separator: Option<&Expr>) -> SizeEstimate {
        let list = self.size_or_unknown(target);
        let items = self.elements(target);
        let mut size = items.map_or(SizeEstimate::default(), |(_, item)| {
            list.multiply(item.unwrap_or(SizeEstimate::UNKNOWN))
        });
        if let Some(separator) = separator {
            let between = SizeEstimate {
                min: list.min.saturating_sub(1),
                max: list.max.saturating_sub(1),
            };
            size = size.add(self.size_or_unknown(separator).multiply(between));
        }
        size
    }

    /// A pattern on a text.
    fn matching(&mut self, text: SizeEstimate, pattern: &Expr) -> CostEstimate {
        let text = text.add(SizeEstimate::fixed(1)).by_factor(STRING);
        text.multiply(self.size_or_unknown(pattern).by_factor(REGEX))
    }

    fn containing(&mut self, call: &Call<'_>, other: &Expr) -> CostEstimate {
        let bytes = SizeEstimate { min: 4, max: 16 };
        let mut cost = bytes.add(bytes).by_factor(STRING);
        if call.function == "containsCIDR" {
            cost = cost.add(bytes.by_factor(STRING)).add(CostEstimate::fixed(1));
        }
        if ["cidr_contains_ip_string", "cidr_contains_cidr_string"].contains(&call.overload) {
            cost = cost.add(self.size_or_unknown(other).by_factor(STRING));
        }
        cost
    }

    /// `==` of values of the libraries.
    fn same(&mut self, left: &Expr, right: &Expr) -> Option<CostEstimate> {
        let (ty, other) = (self.ast.ty(left.id).clone(), self.ast.ty(right.id));
        let Type::Opaque(name) = ty else {
            return None;
        };
        if !matches!(other, Type::Opaque(other) if *other == name) {
            return None;
        }
        let up_to = |max| CostEstimate { min: 1, max }.by_factor(STRING);
        Some(match name {
            library::FORMAT => up_to(limits::MAX_FORMAT_SIZE),
            library::URL => up_to(self.size(right).map_or(1, |size| size.max)),
            _ => CostEstimate::fixed(1),
        })
    }

    fn cost_of_standard_function(&mut self, call: &Call<'_>) -> Option<CallEstimate> {
        Some(match (call.overload, call.target, call.args) {
            ("string_format", Some(target), _) => self.size_or_unknown(target).by_factor(STRING).into(),
            ("string_to_bytes", _, [text]) => {
                let size = self.size_or_unknown(text);
                let bytes = SizeEstimate {
                    min: size.min,
                    max: size.max.wrapping_mul(4),
                };
                sized(size.by_factor(STRING), bytes)
            }
            ("bytes_to_string", _, [bytes]) => {
                let size = self.size_or_unknown(bytes);
                let text = SizeEstimate {
                    min: size.min / 4,
                    max: size.max,
                };
                sized(size.by_factor(STRING), text)
            }
            ("strings_quote", _, [text]) => {
                let size = self.size_or_unknown(text);
                let quoted = SizeEstimate {
                    min: size.min.wrapping_add(2),
                    max: size.max.wrapping_mul(2).wrapping_add(2),
                };
                sized(size.by_factor(STRING), quoted)
            }
            ("starts_with_string" | "ends_with_string", _, [part]) => {
                self.size_or_unknown(part).by_factor(STRING).into()
            }
            ("in_list", _, [_, list]) => self.size_or_unknown(list).by_factor(1.0).into(),
            ("matches_string", Some(target), [pattern]) => {
                let text = self.size_or_unknown(target);
                self.matching(text, pattern).into()
            }
            ("contains_string", Some(target), [part]) => {
                let text = self.size_or_unknown(target).by_factor(STRING);
                text.multiply(self.size_or_unknown(part).by_factor(STRING)).into()
            }
            ("add_string" | "add_bytes" | "add_list", _, [left, right]) => {
                let size = self.size_or_unknown(left).add(self.size_or_unknown(right));
                let entries = EntrySize::union(self.entry_size(left), self.entry_size(right));
                self.set_entry_size(call.id, entries);
                let is_list = call.overload == "add_list";
                sized(
                    if is_list {
                        CostEstimate::fixed(1)
                    } else {
                        size.by_factor(STRING)
                    },
                    size,
                )
            }
            (
                "less_string"
                | "greater_string"
                | "less_equals_string"
                | "greater_equals_string"
                | "less_bytes"
                | "greater_bytes"
                | "less_equals_bytes"
                | "greater_equals_bytes"
                | "equals"
                | "not_equals",
                _,
                [left, right],
            ) => {
                let max = self.size_or_unknown(left).max.min(self.size_or_unknown(right).max);
                let compared = CostEstimate {
                    min: u64::from(max > 0),
                    max,
                };
                compared.by_factor(STRING).into()
            }
            _ => return None,
        })
    }
}

/// The size of a text after replacements.
fn replaced(size: SizeEstimate, from: SizeEstimate, to: SizeEstimate) -> SizeEstimate {
    let (mut count, mut kept) = (SizeEstimate::default(), SizeEstimate::default());
    if from.min == 0 {
        // An empty text is between all characters, and around them.
        count.max = size.max.saturating_add(1);
        kept.max = size.max;
    } else if to.max <= from.min {
        kept.max = size.max;
    } else {
        count.max = times(size.max, 1.0 / from.min as f64);
    }
    if from.max == 0 {
        count.min = size.min.saturating_add(1);
        kept.min = size.min;
    } else if from.max <= to.min {
        kept.min = size.min;
    } else {
        count.min = times(size.min, 1.0 / from.max as f64);
    }
    count.multiply(to).add(kept)
}

//! The numbers that bound expressions, in upstream's names and sizes.
//!
//! Upstream: apiserver/pkg/apis/cel/config.go, apiserver/pkg/cel/limits.go, cel-go's parser (v1.36).

/// What one evaluation may cost.
pub const PER_CALL_LIMIT: u64 = 1_000_000;
/// What all rules of one custom resource, or all expressions of one policy binding, may cost together.
pub const RUNTIME_CEL_COST_BUDGET: u64 = 10_000_000;
/// What the match conditions of one webhook or binding may cost together.
pub const RUNTIME_CEL_COST_BUDGET_MATCH_CONDITIONS: u64 = 2_500_000;
/// How often loops look whether the evaluation was cancelled: after so many turns.
pub const CHECK_FREQUENCY: u32 = 100;
/// The longest message that a messageExpression may give.
pub const MAX_EVALUATED_MESSAGE_EXPRESSION_SIZE_BYTES: usize = 5 * 1024;
/// The largest request, which bounds what has no bound of its own.
pub const MAX_REQUEST_SIZE_BYTES: u64 = 3 * 1024 * 1024;

/// The highest estimated cost of one rule of a custom resource definition.
pub const STATIC_ESTIMATED_COST_LIMIT: u64 = 10_000_000;
/// The highest estimated cost of all rules of a custom resource definition.
pub const STATIC_ESTIMATED_CRD_COST_LIMIT: u64 = 100_000_000;

pub(crate) const MAX_DURATION_SIZE_JSON: u64 = 32;
pub(crate) const MAX_DATETIME_SIZE_JSON: u64 = 32;
pub(crate) const MIN_DURATION_SIZE_JSON: u64 = 3;
pub(crate) const JSON_DATE_SIZE: u64 = 12;
pub(crate) const MIN_DATETIME_SIZE_JSON: u64 = 21;
pub(crate) const MIN_STRING_SIZE: u64 = 2;
pub(crate) const MIN_BOOL_SIZE: u64 = 4;
pub(crate) const MIN_NUMBER_SIZE: u64 = 1;
pub(crate) const MAX_FORMAT_SIZE: u64 = 64;
pub(crate) const MAX_NAME_FORMAT_REGEX_SIZE: u64 = 128;

/// Code points in an expression.
pub(crate) const EXPRESSION_SIZE: usize = 100_000;
/// How deep a grammar rule may be nested in itself.
pub(crate) const RECURSION_DEPTH: usize = 250;
/// Problems that are reported of one expression.
pub(crate) const REPORTED_ERRORS: usize = 100;
/// Bytes of a compiled regular expression.
pub(crate) const REGEX_SIZE: usize = 1 << 20;

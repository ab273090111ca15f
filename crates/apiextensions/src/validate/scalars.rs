//! Types, bounds and formats of single values.
//!
//! Upstream: kube-openapi pkg/validation/validate: type.go, validator.go, values.go, formats.go (v1.36).

use orlop_api::structural::{Range, SchemaType, Structural, ValueValidation};
use serde_json::{Number, Value};

use super::formats;
use super::{Failure, Outcome, Validator, What};

/// The types that a schema allows.
fn allows(schema: &Structural, ty: SchemaType) -> bool {
    match schema.int_or_string {
        true => matches!(ty, SchemaType::Integer | SchemaType::String),
        false => schema.ty == ty && ty != SchemaType::Unspecified,
    }
}

fn types_text(schema: &Structural) -> &'static str {
    if schema.int_or_string {
        "integer,string"
    } else {
        schema.ty.name()
    }
}

/// The format, if it is one for this type: others are ignored.
pub(super) fn format_of<'s>(schema: &Structural, validation: Option<&'s ValueValidation>) -> Option<&'s str> {
    let format = validation?.format.as_deref()?;
    // Of a union of types Kubernetes takes it as that of a string.
    let ty = if schema.int_or_string {
        SchemaType::Unspecified
    } else {
        schema.ty
    };
    (!formats::is_unrecognized(ty, format)).then_some(format)
}

pub(super) fn check_null(validator: &Validator, schema: &Structural) -> Option<Failure> {
    let typed = schema.ty != SchemaType::Unspecified || schema.int_or_string;
    if !typed || schema.nullable {
        return None;
    }
    Some(type_failure(validator, types_text(schema), "null"))
}

/// `spec.replicas in body must be of type integer: "string"`
fn type_failure(validator: &Validator, expected: &str, found: &'static str) -> Failure {
    if validator.quiet {
        return super::UNREAD;
    }
    let message = format!("{} in body must be of type {expected}: {found:?}", validator.path);
    validator.failure(What::Type(found, message))
}

fn type_of(value: &Value) -> (SchemaType, &'static str) {
    match value {
        Value::Null => (SchemaType::Unspecified, ""),
        Value::Bool(_) => (SchemaType::Boolean, ""),
        Value::String(_) => (SchemaType::String, ""),
        Value::Array(_) => (SchemaType::Array, ""),
        Value::Object(_) => (SchemaType::Object, ""),
        Value::Number(n) if n.is_f64() => (SchemaType::Number, "float64"),
        Value::Number(_) => (SchemaType::Integer, "int64"),
    }
}

/// Whether a float is a whole number, as far as floats can tell.
fn is_whole(number: f64) -> bool {
    let near = number.round();
    number == near || (number - near).abs() < 1e-9 * (number.abs() + near.abs()).max(f64::MIN_POSITIVE)
}

pub(super) fn check_type(
    validator: &Validator,
    schema: &Structural,
    format: Option<&str>,
    value: &Value,
) -> Option<Failure> {
    let (ty, own_format) = type_of(value);
    let whole_float =
        ty == SchemaType::Number && allows(schema, SchemaType::Integer) && value.as_f64().is_some_and(is_whole);
    let integral = ty == SchemaType::Integer && allows(schema, SchemaType::Number);
    let fits = allows(schema, ty) || whole_float || integral;
    let text_like = matches!(value, Value::String(_) | Value::Array(_));
    if let Some(format) = format {
        if !text_like && !fits && format != own_format {
            return Some(type_failure(validator, format, own_format));
        }
        let numeric = allows(schema, SchemaType::Number) || allows(schema, SchemaType::Integer);
        // What has a format is not asked for its type.
        if !numeric && text_like {
            return None;
        }
    }
    if fits {
        return None;
    }
    Some(type_failure(validator, types_text(schema), ty.name()))
}

pub(super) fn check_string(validator: &Validator, v: &ValueValidation, text: &str) -> Option<Failure> {
    let lengths = v.lengths();
    if lengths != Range::default() {
        let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
        if let Some(max) = lengths.max.filter(|max| length > *max) {
            return Some(validator.failure(What::TooLong(max)));
        }
        if let Some(min) = lengths.min.filter(|min| length < *min) {
            let message = |path: &str| format!("{path} in body should be at least {min} chars long");
            return Some(validator.invalid(&text.into(), message));
        }
    }
    let pattern = v.pattern.as_ref()?;
    let refusal = match pattern.is_match(text) {
        Some(true) => return None,
        Some(false) => pattern.as_str().to_string(),
        None => format!("{}, but pattern is invalid", pattern.as_str()),
    };
    Some(validator.invalid(&text.into(), |path| format!("{path} in body should match '{refusal}'")))
}

pub(super) fn check_format(validator: &Validator, format: &str, text: &str) -> Option<Failure> {
    if formats::is_valid(format, text) != Some(false) {
        return None;
    }
    let message = format!("{} in body must be of type {format}: {text:?}", validator.path);
    Some(Failure {
        path: validator.path.clone(),
        what: What::Format(text.to_string(), message),
    })
}

/// As Go writes a number.
fn go_number(n: f64) -> String {
    if n == n.trunc() && n.abs() < 1e21 {
        return format!("{n:.0}");
    }
    let exponent = n.abs().log10().floor();
    if n != 0.0 && !(-4.0..21.0).contains(&exponent) {
        let text = format!("{n:e}");
        if let Some((mantissa, exponent)) = text.split_once('e') {
            let (sign, digits) = exponent.strip_prefix('-').map_or(("+", exponent), |d| ("-", d));
            return format!("{mantissa}e{sign}{digits:0>2}");
        }
    }
    n.to_string()
}

fn check_range(
    validator: &Validator,
    schema: &Structural,
    format: Option<&str>,
    what: &str,
    number: f64,
    exact: Option<i64>,
) -> Option<Failure> {
    let fits_integer = exact.is_some() || (number == number.trunc() && number.abs() < 9.3e18);
    let fits = match (schema.ty, format) {
        (SchemaType::Integer, Some("int32")) => fits_integer && (-2147483648.0..=2147483647.0).contains(&number),
        (SchemaType::Integer, _) if !schema.int_or_string => fits_integer,
        (SchemaType::Number, Some("float")) => number.abs() <= f64::from(f32::MAX),
        _ => true,
    };
    if fits {
        return None;
    }
    let ty = schema.ty.name();
    let format = match format {
        Some(format) => format!("with format {format}"),
        None => "(default format)".to_string(),
    };
    Some(validator.whole(|path| format!("{what} value must be of type {ty} {format} in {path}")))
}

pub(super) fn check_number(
    validator: &Validator,
    schema: &Structural,
    format: Option<&str>,
    validation: Option<&ValueValidation>,
    number: &Number,
) -> Outcome {
    let mut outcome = Outcome::default();
    let exact = number.as_i64();
    let float = number.as_f64().unwrap_or(f64::NAN);
    outcome
        .failures
        .extend(check_range(validator, schema, format, "Checked", float, exact));
    let Some(v) = validation.and_then(|v| v.numbers.as_deref()) else {
        return outcome;
    };
    let value = Value::Number(number.clone());
    let range = |what: &str, bound: f64| check_range(validator, schema, format, what, bound, None);
    if let Some(factor) = v.multiple_of {
        let out_of_range = range("MultipleOf", factor);
        let failure = multiple_of(
            validator,
            &value,
            exact.filter(|_| out_of_range.is_none()),
            float,
            factor,
        );
        out_of_range.into_iter().chain(failure).for_each(|f| outcome.add(f));
    }
    if let Some(bound) = v.minimum {
        let out_of_range = range("Minimum boundary", bound);
        let below = match exact.filter(|_| out_of_range.is_none()) {
            Some(n) => n < bound as i64 || (v.exclusive_minimum && n == bound as i64),
            None => float < bound || (v.exclusive_minimum && float == bound),
        };
        let words = if v.exclusive_minimum {
            "greater than"
        } else {
            "greater than or equal to"
        };
        let message = |path: &str| format!("{path} in body should be {words} {}", go_number(bound));
        let failure = below.then(|| validator.invalid(&value, message));
        out_of_range.into_iter().chain(failure).for_each(|f| outcome.add(f));
    }
    if let Some(bound) = v.maximum {
        let out_of_range = range("Maximum boundary", bound);
        let above = match exact.filter(|_| out_of_range.is_none()) {
            Some(n) => n > bound as i64 || (v.exclusive_maximum && n == bound as i64),
            None => float > bound || (v.exclusive_maximum && float == bound),
        };
        let words = if v.exclusive_maximum {
            "less than"
        } else {
            "less than or equal to"
        };
        let message = |path: &str| format!("{path} in body should be {words} {}", go_number(bound));
        let failure = above.then(|| validator.invalid(&value, message));
        out_of_range.into_iter().chain(failure).for_each(|f| outcome.add(f));
    }
    outcome
}

fn multiple_of(validator: &Validator, value: &Value, exact: Option<i64>, float: f64, factor: f64) -> Option<Failure> {
    let fits = match exact {
        Some(_) if (factor as i64) <= 0 => return Some(not_positive(validator, factor)),
        Some(n) => n % (factor as i64) == 0,
        None if factor <= 0.0 => return Some(not_positive(validator, factor)),
        None => is_whole(if factor < 1.0 {
            1.0 / factor * float
        } else {
            float / factor
        }),
    };
    let shown = match exact {
        Some(_) => (factor as i64).to_string(),
        None => go_number(factor),
    };
    (!fits).then(|| validator.invalid(value, |path| format!("{path} in body should be a multiple of {shown}")))
}

fn not_positive(validator: &Validator, factor: f64) -> Failure {
    let shown = go_number(factor);
    let message = format!(
        "factor MultipleOf declared for {} must be positive: {shown}",
        validator.path
    );
    validator.failure(What::Invalid(Some(shown), message))
}

//! Fields that hold a number or a percentage ("25%"): how many pods may be missing, surge or must be there.

use serde_json::Value;

use crate::field::{Cursor, Problems};
use crate::names;

/// A count, or a share of some total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntOrPercent {
    Int(i64),
    Percent(i64),
}

/// Which way a share that is no whole number goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    Up,
    Down,
}

/// Why a value is neither a count nor a percentage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IntOrPercentError {
    #[error("invalid value for IntOrString: neither int nor percentage")]
    Type,
    #[error("invalid value for IntOrString: invalid type: string is not a percentage")]
    NoPercentage,
    #[error("invalid value for IntOrString: invalid value {0:?}")]
    Number(String),
}

crate::errors_as_text!(IntOrPercentError);

impl IntOrPercent {
    pub fn parse(value: &Value) -> Result<IntOrPercent, IntOrPercentError> {
        let Some(text) = value.as_str() else {
            return value.as_i64().map(IntOrPercent::Int).ok_or(IntOrPercentError::Type);
        };
        let digits = text.strip_suffix('%').ok_or(IntOrPercentError::NoPercentage)?;
        let number = digits.parse();
        let number = number.map_err(|_| IntOrPercentError::Number(text.to_string()))?;
        Ok(IntOrPercent::Percent(number))
    }

    /// The count this comes to, of `total`.
    pub fn of(self, total: i64, round: Round) -> i64 {
        match self {
            IntOrPercent::Int(n) => n,
            IntOrPercent::Percent(percent) => {
                let hundredths = i128::from(percent) * i128::from(total);
                let whole = hundredths.div_euclid(100);
                let up = round == Round::Up && hundredths.rem_euclid(100) != 0;
                i64::try_from(whole + i128::from(up)).unwrap_or(i64::MAX)
            }
        }
    }
}

/// The count an optional field comes to, of `total`; an absent or unreadable one is 0.
pub fn scaled(value: Option<&Value>, total: i64, round: Round) -> i64 {
    value
        .and_then(|v| IntOrPercent::parse(v).ok())
        .map_or(0, |v| v.of(total, round))
}

/// As kubectl shows it: `3` or `25%`.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        other => other.to_string(),
    }
}

/// Not negative, and if it is a string, a percentage.
pub fn validate(c: &Cursor<'_>, p: &mut Problems) {
    match c.as_str() {
        Some(text) => p.invalid_each(c, names::percent(text)),
        None => p.non_negative(c),
    }
}

pub fn validate_at_most_100_percent(c: &Cursor<'_>, p: &mut Problems) {
    if percent(c).is_some_and(|n| n > 100) {
        p.invalid(c, "must not be greater than 100%");
    }
}

/// The bare number, be it a count or a percentage: to tell whether it is zero. What is neither is taken as 0.
pub fn number(c: &Cursor<'_>) -> i64 {
    match c.as_str() {
        Some(text) => percent(c).unwrap_or_else(|| text.parse().unwrap_or(0)),
        None => c.as_i64().unwrap_or(0),
    }
}

fn percent(c: &Cursor<'_>) -> Option<i64> {
    let text = c.as_str().filter(|s| names::percent(s).is_empty())?;
    let digits = text.trim_end_matches('%');
    Some(digits.parse().unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::found;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn counts_and_shares() {
        for (value, total, up, down) in [
            (json!(3), 10, 3, 3),
            (json!("25%"), 10, 3, 2),
            (json!("25%"), 4, 1, 1),
            (json!("0%"), 7, 0, 0),
            (json!("100%"), 7, 7, 7),
            (json!("1%"), 0, 0, 0),
        ] {
            let parsed = IntOrPercent::parse(&value).unwrap();
            assert_eq!(
                (parsed.of(total, Round::Up), parsed.of(total, Round::Down)),
                (up, down),
                "{value}"
            );
            assert_eq!(scaled(Some(&value), total, Round::Up), up);
        }
        for bad in [json!("25"), json!("x%"), json!("%"), json!(1.5), json!(null)] {
            assert!(IntOrPercent::parse(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_refused() {
        let shape = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
        for (value, wanted, number_there) in [
            (json!(0), vec![], 0),
            (
                json!("99999999999999999999%"),
                vec!["n: Invalid value: \"99999999999999999999%\": must not be greater than 100%".to_string()],
                i64::MAX,
            ),
            (
                json!(-1),
                vec!["n: Invalid value: -1: must be greater than or equal to 0".to_string()],
                -1,
            ),
            (json!("7"), vec![format!("n: Invalid value: \"7\": {shape}")], 7),
            (json!("x"), vec![format!("n: Invalid value: \"x\": {shape}")], 0),
            (
                json!("101%"),
                vec!["n: Invalid value: \"101%\": must not be greater than 100%".to_string()],
                101,
            ),
        ] {
            let object = json!({"n": value});
            let c = Cursor::root(&object).at("n");
            let seen = found(|p| {
                validate(&c, p);
                validate_at_most_100_percent(&c, p);
            });
            assert_eq!(seen, wanted);
            assert_eq!(number(&c), number_there);
        }
    }

    proptest! {
        #[test]
        fn a_share_is_rounded_to_a_neighbour(percent in 0i64..=100, total in 0i64..100_000) {
            let share = IntOrPercent::Percent(percent);
            let (up, down) = (share.of(total, Round::Up), share.of(total, Round::Down));
            prop_assert!(down * 100 <= percent * total && percent * total <= up * 100);
            prop_assert!(up - down <= 1 && up <= total);
        }
    }
}

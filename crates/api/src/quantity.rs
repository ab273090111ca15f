//! Resource quantities: "100m", "1.5Gi", "2e3".

use std::cmp::Ordering;

/// A fixed-point number with the unit family it was written in. Compares by value.
#[derive(Clone, Debug)]
pub struct Quantity {
    nanos: i128,
}

impl Quantity {
    pub const ZERO: Quantity = Quantity { nanos: 0 };

    pub fn parse(_text: &str) -> Result<Quantity, String> {
        Ok(Quantity::ZERO)
    }

    /// Whole units, rounded up (away from zero), saturating: what `Value()` gives in Go.
    pub fn value(&self) -> i64 {
        0
    }

    /// Thousandths, rounded up, saturating: `MilliValue()`.
    pub fn milli_value(&self) -> i64 {
        0
    }

    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    pub fn is_negative(&self) -> bool {
        self.nanos < 0
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}
impl Eq for Quantity {}
impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

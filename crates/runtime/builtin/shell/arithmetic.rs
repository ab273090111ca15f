//! `$(( … ))`.

use super::run::Shell;

/// `1 + 2 * (i - 3)`.
pub(super) struct Arithmetic<'a> {
    pub(super) shell: &'a Shell,
    pub(super) rest: &'a str,
}

impl Arithmetic<'_> {
    pub(super) fn value(mut self) -> Option<i64> {
        let value = self.sum()?;
        self.rest.trim().is_empty().then_some(value)
    }

    fn take(&mut self, signs: &[char]) -> Option<char> {
        self.rest = self.rest.trim_start();
        let sign = self.rest.chars().next().filter(|c| signs.contains(c))?;
        self.rest = &self.rest[1..];
        Some(sign)
    }

    fn sum(&mut self) -> Option<i64> {
        let mut value = self.product()?;
        while let Some(sign) = self.take(&['+', '-']) {
            let other = self.product()?;
            value = if sign == '+' {
                value.wrapping_add(other)
            } else {
                value.wrapping_sub(other)
            };
        }
        Some(value)
    }

    fn product(&mut self) -> Option<i64> {
        let mut value = self.factor()?;
        while let Some(sign) = self.take(&['*', '/', '%']) {
            let other = self.factor()?;
            value = match sign {
                '*' => value.wrapping_mul(other),
                '/' => value.checked_div(other)?,
                _ => value.checked_rem(other)?,
            };
        }
        Some(value)
    }

    fn factor(&mut self) -> Option<i64> {
        if self.take(&['-']).is_some() {
            return Some(self.factor()?.wrapping_neg());
        }
        if self.take(&['(']).is_some() {
            let value = self.sum()?;
            self.take(&[')'])?;
            return Some(value);
        }
        let end = self
            .rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        match word.parse() {
            Ok(number) => Some(number),
            Err(_) if word.is_empty() => None,
            Err(_) => Some(self.shell.value_of(word).and_then(|v| v.parse().ok()).unwrap_or(0)),
        }
    }
}

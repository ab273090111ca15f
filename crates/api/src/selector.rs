//! Label and field selectors: parsed once per request, matched against what the store keeps beside each object.

use serde_json::Value;

use crate::names;

/// A parsed label selector; the empty one matches everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LabelSelector {
    pub requirements: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Requirement {
    pub key: String,
    pub op: Op,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
    Gt(i64),
    Lt(i64),
}

impl Requirement {
    /// `value` is the label's value, if the object has the label.
    pub fn matches(&self, value: Option<&str>) -> bool {
        match (&self.op, value) {
            (Op::In(set), Some(v)) => set.iter().any(|s| s == v),
            (Op::NotIn(set), Some(v)) => !set.iter().any(|s| s == v),
            (Op::NotIn(_), None) => true,
            (Op::Exists, v) => v.is_some(),
            (Op::DoesNotExist, v) => v.is_none(),
            (Op::Gt(n), Some(v)) => v.parse::<i64>().is_ok_and(|x| x > *n),
            (Op::Lt(n), Some(v)) => v.parse::<i64>().is_ok_and(|x| x < *n),
            (Op::In(_) | Op::Gt(_) | Op::Lt(_), None) => false,
        }
    }
}

impl LabelSelector {
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements.iter().all(|r| r.matches(label(&r.key)))
    }

    /// Matches against `metadata.labels` as JSON.
    pub fn matches_map(&self, labels: Option<&Value>) -> bool {
        self.matches(|key| labels.and_then(|l| l.get(key)).and_then(Value::as_str))
    }

    /// The query-string form: `a=b,c in (x,y),!d`.
    pub fn parse(text: &str) -> Result<LabelSelector, String> {
        Parser { rest: text }
            .selector()
            .map_err(|e| format!("unable to parse requirement: {e}"))
    }

    /// The object form (`metav1.LabelSelector`). An absent one matches nothing in most places: callers decide that.
    pub fn from_object(selector: &Value) -> Result<LabelSelector, String> {
        let mut requirements = vec![];
        for (key, value) in selector
            .get("matchLabels")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            let value = value.as_str().unwrap_or("").to_string();
            requirements.push(Requirement {
                key: key.clone(),
                op: Op::In(vec![value]),
            });
        }
        for e in selector
            .get("matchExpressions")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            let key = e.get("key").and_then(Value::as_str).unwrap_or("").to_string();
            let values = || -> Vec<String> {
                let list = e.get("values").and_then(Value::as_array);
                list.into_iter()
                    .flatten()
                    .filter_map(|v| v.as_str().map(str::to_string))
                    .collect()
            };
            let op = match e.get("operator").and_then(Value::as_str).unwrap_or("") {
                "In" => Op::In(values()),
                "NotIn" => Op::NotIn(values()),
                "Exists" => Op::Exists,
                "DoesNotExist" => Op::DoesNotExist,
                other => return Err(format!("{other:?} is not a valid label selector operator")),
            };
            requirements.push(Requirement { key, op });
        }
        Ok(LabelSelector { requirements })
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn selector(mut self) -> Result<LabelSelector, String> {
        let mut requirements = vec![];
        self.skip_space();
        while !self.rest.is_empty() {
            requirements.push(self.requirement()?);
            self.skip_space();
            if self.rest.is_empty() {
                break;
            }
            self.expect(',')?;
            self.skip_space();
            if self.rest.is_empty() {
                return Err("found '', expected: identifier after ','".into());
            }
        }
        Ok(LabelSelector { requirements })
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let negated = self.take('!');
        self.skip_space();
        let key = self.word();
        checked(&key, "label key", names::qualified_name)?;
        self.skip_space();
        if negated {
            return Ok(Requirement {
                key,
                op: Op::DoesNotExist,
            });
        }
        let op = self.operator()?;
        Ok(Requirement { key, op })
    }

    fn operator(&mut self) -> Result<Op, String> {
        if self.rest.is_empty() || self.rest.starts_with(',') {
            return Ok(Op::Exists);
        }
        for (symbol, negative) in [("==", false), ("!=", true), ("=", false)] {
            if let Some(rest) = self.rest.strip_prefix(symbol) {
                self.rest = rest;
                self.skip_space();
                let value = self.word();
                checked(&value, "label value", names::label_value)?;
                return Ok(if negative {
                    Op::NotIn(vec![value])
                } else {
                    Op::In(vec![value])
                });
            }
        }
        for (symbol, greater) in [(">", true), ("<", false)] {
            if let Some(rest) = self.rest.strip_prefix(symbol) {
                self.rest = rest;
                self.skip_space();
                let word = self.word();
                let n = word.parse().map_err(|_| {
                    format!("values: Invalid value: {word:?}: for 'Gt', 'Lt' operators, the value must be an integer")
                })?;
                return Ok(if greater { Op::Gt(n) } else { Op::Lt(n) });
            }
        }
        let word = self.word();
        let list = |p: &mut Parser<'a>| p.values();
        match word.as_str() {
            "in" => Ok(Op::In(list(self)?)),
            "notin" => Ok(Op::NotIn(list(self)?)),
            other => {
                let found = if other.is_empty() { self.rest } else { other };
                Err(format!("found '{found}', expected: in, notin, =, ==, !=, gt, lt"))
            }
        }
    }

    fn values(&mut self) -> Result<Vec<String>, String> {
        self.skip_space();
        self.expect('(')?;
        let mut values = vec![];
        loop {
            self.skip_space();
            let value = self.word();
            checked(&value, "label value", names::label_value)?;
            values.push(value);
            self.skip_space();
            if self.take(')') {
                values.sort();
                values.dedup();
                return Ok(values);
            }
            self.expect(',')?;
        }
    }

    fn word(&mut self) -> String {
        let end = self
            .rest
            .find(|c: char| c.is_whitespace() || matches!(c, ',' | '=' | '!' | '(' | ')' | '<' | '>'))
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word.to_string()
    }

    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn take(&mut self, c: char) -> bool {
        match self.rest.strip_prefix(c) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, c: char) -> Result<(), String> {
        if self.take(c) {
            Ok(())
        } else {
            Err(format!("found '{}', expected: '{c}'", self.rest))
        }
    }
}

fn checked(text: &str, what: &str, rule: names::Rule) -> Result<(), String> {
    match rule(text).as_slice() {
        [] => Ok(()),
        problems => Err(format!("invalid {what} {text:?}: {}", problems.join("; "))),
    }
}

/// A parsed field selector: `a=b`, `a==b`, `a!=b`, joined by commas; `\` escapes a comma, an equals sign or itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldSelector {
    pub terms: Vec<FieldTerm>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct FieldTerm {
    pub field: String,
    pub equal: bool,
    pub value: String,
}

impl FieldSelector {
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    pub fn parse(text: &str) -> Result<FieldSelector, String> {
        let mut terms = vec![];
        for part in split_unescaped(text) {
            if part.is_empty() {
                continue;
            }
            let (field, equal, value) = ["!=", "==", "="]
                .iter()
                .filter_map(|op| part.find(op).map(|at| (at, *op)))
                .min_by_key(|(at, op)| (*at, std::cmp::Reverse(op.len())))
                .map(|(at, op)| (&part[..at], op != "!=", &part[at + op.len()..]))
                .ok_or_else(|| format!("invalid field selector: {text:?}; can't understand {part:?}"))?;
            terms.push(FieldTerm {
                field: field.to_string(),
                equal,
                value: unescape(value)?,
            });
        }
        Ok(FieldSelector { terms })
    }

    /// The value the selector demands of a field, if it demands one by equality.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.terms
            .iter()
            .find(|t| t.equal && t.field == field)
            .map(|t| t.value.as_str())
    }

    pub fn matches<'a>(&self, value: impl Fn(&str) -> &'a str) -> bool {
        self.terms.iter().all(|t| (value(&t.field) == t.value) == t.equal)
    }
}

fn split_unescaped(text: &str) -> Vec<&str> {
    let mut parts = vec![];
    let (mut start, mut escaped) = (0, false);
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                parts.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn unescape(value: &str) -> Result<String, String> {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(e @ ('\\' | ',' | '=')) => out.push(e),
                _ => return Err(format!("invalid field selector: bad escape in {value:?}")),
            },
            ',' | '=' => return Err(format!("invalid field selector: unescaped {c:?} in value {value:?}")),
            c => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn label_match(selector: &str, labels: Value) -> bool {
        LabelSelector::parse(selector).unwrap().matches_map(Some(&labels))
    }

    #[test]
    fn label_selectors() {
        let labels = json!({"env": "prod", "tier": "fe", "n": "5"});
        for yes in [
            "",
            "env=prod",
            "env==prod,tier=fe",
            "env in (dev, prod)",
            "env notin (dev)",
            "env",
            "!gone",
            "gone!=x",
            "n>4",
            "n<6",
            " env = prod , tier ",
        ] {
            assert!(label_match(yes, labels.clone()), "{yes}");
        }
        for no in [
            "env=dev",
            "env!=prod",
            "!env",
            "gone",
            "gone in (a)",
            "n>5",
            "env in ()",
        ] {
            assert!(!label_match(no, labels.clone()), "{no}");
        }
        for bad in [
            "=a", "a b", "a in b", "a in (b", "a=b,", "a/b/c=d", "a=-", "a>x", "(", "a=b=c",
        ] {
            assert!(LabelSelector::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn field_selectors() {
        let s = FieldSelector::parse(r"a.b=c,d!=e\,f,g==").unwrap();
        assert_eq!(s.terms.len(), 3);
        assert_eq!(
            s.terms[1],
            FieldTerm {
                field: "d".into(),
                equal: false,
                value: "e,f".into()
            }
        );
        assert_eq!(s.exact("a.b"), Some("c"));
        assert!(s.matches(|f| if f == "a.b" { "c" } else { "" }));
        assert!(FieldSelector::parse("a").is_err());
    }
}

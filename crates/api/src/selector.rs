//! Label and field selectors: parsed once per request, matched against what the store keeps beside each object.

use serde_json::Value;

use crate::names;

/// A parsed label selector; the empty one matches everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LabelSelector {
    pub requirements: Vec<Requirement>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requirement {
    pub key: String,
    pub op: Op,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
    Gt(i64),
    Lt(i64),
    /// One that the API does not know, or not where it stands: matches nothing.
    Unknown,
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
            (Op::In(_) | Op::Gt(_) | Op::Lt(_), None) | (Op::Unknown, _) => false,
        }
    }
}

/// A selector that can't be read, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(String);

crate::errors_as_text!(SelectorError);

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
    pub fn parse(text: &str) -> Result<LabelSelector, SelectorError> {
        Parser::new(text).selector().map_err(SelectorError)
    }

    /// The object form (`metav1.LabelSelector`). An absent one matches nothing in most places: callers decide that.
    pub fn from_object(selector: &Value) -> Result<LabelSelector, SelectorError> {
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
                other => {
                    let problem = format!("{other:?} is not a valid label selector operator");
                    return Err(SelectorError(problem));
                }
            };
            requirements.push(Requirement { key, op });
        }
        Ok(LabelSelector { requirements })
    }
}

/// What a selector is made of: words, symbols, and the end ("" in messages).
#[derive(Clone, Debug, PartialEq)]
enum Token<'a> {
    Word(&'a str),
    Symbol(&'a str),
    End,
}

impl<'a> Token<'a> {
    fn text(&self) -> &'a str {
        match self {
            Token::Word(text) | Token::Symbol(text) => text,
            Token::End => "",
        }
    }
}

const SYMBOLS: [char; 7] = ['=', '!', '(', ')', ',', '>', '<'];
const SPACES: [char; 4] = [' ', '\t', '\r', '\n'];

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Parser<'a> {
        Parser { rest: text }
    }

    fn next(&mut self) -> Token<'a> {
        self.rest = self.rest.trim_start_matches(SPACES);
        let special = |c: char| SYMBOLS.contains(&c) || SPACES.contains(&c);
        let (token, end): (fn(&'a str) -> Token<'a>, usize) = match self.rest.chars().next() {
            None => return Token::End,
            Some(c) if SYMBOLS.contains(&c) => {
                let long = self.rest.starts_with("==") || self.rest.starts_with("!=");
                (Token::Symbol, if long { 2 } else { 1 })
            }
            Some(_) => (Token::Word, self.rest.find(special).unwrap_or(self.rest.len())),
        };
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        token(text)
    }

    fn peek(&self) -> Token<'a> {
        Parser { rest: self.rest }.next()
    }

    fn selector(mut self) -> Result<LabelSelector, String> {
        let mut requirements = vec![];
        loop {
            match self.peek() {
                Token::End => break,
                Token::Word(_) | Token::Symbol("!") => {}
                other => {
                    let found = other.text();
                    return Err(format!("found '{found}', expected: !, identifier, or 'end of string'"));
                }
            }
            let requirement = self.requirement();
            requirements.push(requirement.map_err(|e| format!("unable to parse requirement: {e}"))?);
            match (self.next(), self.peek()) {
                (Token::End, _) => break,
                (Token::Symbol(","), Token::Word(_) | Token::Symbol("!")) => {}
                (Token::Symbol(","), other) => {
                    return Err(format!("found '{}', expected: identifier after ','", other.text()));
                }
                (other, _) => return Err(format!("found '{}', expected: ',' or 'end of string'", other.text())),
            }
        }
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(LabelSelector { requirements })
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let mut token = self.next();
        let negated = token == Token::Symbol("!");
        if negated {
            token = self.next();
        }
        let Token::Word(key) = token else {
            return Err(format!("found '{}', expected: identifier", token.text()));
        };
        checked(key, "<nil>", names::qualified_name)?;
        let alone = matches!(self.peek(), Token::End | Token::Symbol(","));
        let op = match (alone, negated) {
            (true, true) => Op::DoesNotExist,
            (true, false) => Op::Exists,
            // `!a = b`: the exclamation mark is forgotten, as in Kubernetes.
            (false, _) => self.operator(key)?,
        };
        Ok(Requirement {
            key: key.to_string(),
            op,
        })
    }

    fn operator(&mut self, key: &str) -> Result<Op, String> {
        let token = self.next();
        match token.text() {
            "in" => Ok(Op::In(self.values(key)?)),
            "notin" => Ok(Op::NotIn(self.values(key)?)),
            "=" | "==" => Ok(Op::In(vec![self.value(key)?])),
            "!=" => Ok(Op::NotIn(vec![self.value(key)?])),
            ">" => Ok(Op::Gt(self.number(key)?)),
            "<" => Ok(Op::Lt(self.number(key)?)),
            found => Err(format!("found '{found}', expected: in, notin, =, ==, !=, gt, lt")),
        }
    }

    /// The one value of an exact match; nothing is the empty value.
    fn word(&mut self) -> Result<&'a str, String> {
        match self.peek() {
            Token::End | Token::Symbol(",") => Ok(""),
            Token::Word(word) => {
                self.next();
                Ok(word)
            }
            Token::Symbol(found) => Err(format!("found '{found}', expected: identifier")),
        }
    }

    fn value(&mut self, key: &str) -> Result<String, String> {
        let word = self.word()?;
        checked(word, &format!("values[0][{key}]"), names::label_value)?;
        Ok(word.to_string())
    }

    fn number(&mut self, key: &str) -> Result<i64, String> {
        let word = self.word()?;
        let n = word.parse().map_err(|_| {
            format!("values[0]: Invalid value: {word:?}: for 'Gt', 'Lt' operators, the value must be an integer")
        })?;
        checked(word, &format!("values[0][{key}]"), names::label_value)?;
        Ok(n)
    }

    /// `(a, b)`; what is left out between commas is the empty value.
    fn values(&mut self, key: &str) -> Result<Vec<String>, String> {
        let token = self.next();
        if token != Token::Symbol("(") {
            return Err(format!("found '{}' expected: '('", token.text()));
        }
        if !matches!(self.peek(), Token::Word(_) | Token::Symbol("," | ")")) {
            return Err(format!(
                "found '{}', expected: ',', ')' or identifier",
                self.peek().text()
            ));
        }
        let mut values = vec![];
        loop {
            let value = match self.peek() {
                Token::Word(word) => {
                    self.next();
                    word
                }
                Token::Symbol("," | ")") => "",
                other => return Err(format!("found '{}', expected: ',', or identifier", other.text())),
            };
            values.push(value.to_string());
            match self.next() {
                Token::Symbol(")") => break,
                Token::Symbol(",") => {}
                other => return Err(format!("found '{}', expected: ',' or ')'", other.text())),
            }
        }
        values.sort();
        values.dedup();
        for (i, value) in values.iter().enumerate() {
            checked(value, &format!("values[{i}][{key}]"), names::label_value)?;
        }
        Ok(values)
    }
}

fn checked(text: &str, path: &str, rule: names::Rule) -> Result<(), String> {
    match rule(text).as_slice() {
        [] => Ok(()),
        problems => Err(format!("{path}: Invalid value: {text:?}: {}", problems.join("; "))),
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

    pub fn parse(text: &str) -> Result<FieldSelector, SelectorError> {
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
                .ok_or_else(|| SelectorError(format!("invalid selector: '{text}'; can't understand '{part}'")))?;
            terms.push(FieldTerm {
                field: field.to_string(),
                equal,
                value: unescape(value).map_err(SelectorError)?,
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
                other => {
                    let sequence: String = std::iter::once('\\').chain(other).collect();
                    return Err(format!("invalid field selector: invalid escape sequence: {sequence}"));
                }
            },
            ',' | '=' => {
                // The number of the character, as Kubernetes has it.
                let number = c as u32;
                return Err(format!(
                    "invalid field selector: unescaped character in value: {number}"
                ));
            }
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
        for (bad, why) in [
            ("=a", "found '=', expected: !, identifier, or 'end of string'"),
            (",", "found ',', expected: !, identifier, or 'end of string'"),
            (
                "a b",
                "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
            ),
            ("a in b", "unable to parse requirement: found 'b' expected: '('"),
            ("a in", "unable to parse requirement: found '' expected: '('"),
            ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
            ("a=b,", "found '', expected: identifier after ','"),
            ("a=b=c", "found '=', expected: ',' or 'end of string'"),
            ("a=b c", "found 'c', expected: ',' or 'end of string'"),
            ("a=(", "unable to parse requirement: found '(', expected: identifier"),
            ("!=", "found '!=', expected: !, identifier, or 'end of string'"),
            (
                "a>x",
                "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer",
            ),
        ] {
            assert_eq!(LabelSelector::parse(bad).unwrap_err().to_string(), why, "{bad}");
        }
        for (bad, start) in [
            (
                "a/b/c=d",
                "unable to parse requirement: <nil>: Invalid value: \"a/b/c\": a valid label key must",
            ),
            (
                "a=-",
                "unable to parse requirement: values[0][a]: Invalid value: \"-\": a valid label must",
            ),
        ] {
            let why = LabelSelector::parse(bad).unwrap_err().to_string();
            assert!(why.starts_with(start), "{bad}: {why}");
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
        for (bad, why) in [
            ("a", "invalid selector: 'a'; can't understand 'a'"),
            (r"a=\z", r"invalid field selector: invalid escape sequence: \z"),
            (r"a=b\", r"invalid field selector: invalid escape sequence: \"),
            ("a=b=c", "invalid field selector: unescaped character in value: 61"),
        ] {
            assert_eq!(FieldSelector::parse(bad).unwrap_err().to_string(), why);
        }
    }
}

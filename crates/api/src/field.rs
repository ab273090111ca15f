//! Reading an object with its field path at hand, and the problems found on the way.
//!
//! A `Cursor` is a place in an object that may or may not be there; `at("spec").at("replicas")` never fails. Whatever a
//! validator objects to is pushed to `Problems` with the cursor's path, so all problems of an object are reported at once.

use std::fmt;
use std::rc::Rc;

use serde_json::Value;

/// A field path such as `spec.containers[0].env[1].name`. Cheap to clone and to extend.
#[derive(Clone, Default)]
pub struct Path(Option<Rc<Node>>);

struct Node {
    parent: Path,
    segment: Segment,
}

enum Segment {
    Field(&'static str),
    /// A field of a type that is not known before the server runs.
    Member(Box<str>),
    Index(usize),
    Key(Box<str>),
}

impl Path {
    pub fn field(&self, name: &'static str) -> Path {
        self.push(Segment::Field(name))
    }

    /// A field that only a custom kind's schema names, or several at once: `spec.foo`.
    pub fn member(&self, name: &str) -> Path {
        self.push(Segment::Member(name.into()))
    }

    pub fn index(&self, i: usize) -> Path {
        self.push(Segment::Index(i))
    }

    /// A map entry: `metadata.labels[app]`.
    pub fn key(&self, key: &str) -> Path {
        self.push(Segment::Key(key.into()))
    }

    fn push(&self, segment: Segment) -> Path {
        Path(Some(Rc::new(Node {
            parent: self.clone(),
            segment,
        })))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(node) = &self.0 else { return Ok(()) };
        node.parent.fmt(f)?;
        match &node.segment {
            Segment::Field(name) if node.parent.0.is_none() => f.write_str(name),
            Segment::Field(name) => write!(f, ".{name}"),
            Segment::Member(name) if node.parent.0.is_none() => f.write_str(name),
            Segment::Member(name) => write!(f, ".{name}"),
            Segment::Index(i) => write!(f, "[{i}]"),
            Segment::Key(k) => write!(f, "[{k}]"),
        }
    }
}

/// A place in an object: a value that may be absent, and the path that leads to it.
#[derive(Clone)]
pub struct Cursor<'a> {
    value: Option<&'a Value>,
    path: Path,
}

impl<'a> Cursor<'a> {
    pub fn root(value: &'a Value) -> Cursor<'a> {
        Cursor {
            value: Some(value),
            path: Path::default(),
        }
    }

    pub fn new(value: Option<&'a Value>, path: Path) -> Cursor<'a> {
        Cursor { value, path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the i-th element of the list here, whether or not it is there.
    pub fn index_path(&self, i: usize) -> Path {
        self.path.index(i)
    }

    /// The value here; JSON null counts as absent.
    pub fn value(&self) -> Option<&'a Value> {
        self.value.filter(|v| !v.is_null())
    }

    pub fn at(&self, name: &'static str) -> Cursor<'a> {
        Cursor {
            value: self.value.and_then(|v| v.get(name)),
            path: self.path.field(name),
        }
    }

    /// The elements of a list, each with its index in the path; none if there is no list here.
    pub fn items(&self) -> impl Iterator<Item = Cursor<'a>> + use<'a> {
        let path = self.path.clone();
        let list: &'a [Value] = self.value.and_then(Value::as_array).map_or(&[], |v| v.as_slice());
        list.iter().enumerate().map(move |(i, v)| Cursor {
            value: Some(v),
            path: path.index(i),
        })
    }

    /// The entries of a map, each with its key in the path; none if there is no map here.
    pub fn entries(&self) -> impl Iterator<Item = (&'a str, Cursor<'a>)> + use<'a> {
        let path = self.path.clone();
        let map = self.value.and_then(Value::as_object);
        map.into_iter().flatten().map(move |(k, v)| {
            (
                k.as_str(),
                Cursor {
                    value: Some(v),
                    path: path.key(k),
                },
            )
        })
    }

    pub fn exists(&self) -> bool {
        self.value().is_some()
    }

    /// Absent, or a zero value: "", 0, false, [], {}.
    pub fn is_empty(&self) -> bool {
        match self.value() {
            None => true,
            Some(Value::String(s)) => s.is_empty(),
            Some(Value::Array(a)) => a.is_empty(),
            Some(Value::Object(o)) => o.is_empty(),
            Some(Value::Bool(b)) => !b,
            Some(Value::Number(n)) => n.as_f64() == Some(0.0),
            Some(Value::Null) => true,
        }
    }

    pub fn len(&self) -> usize {
        match self.value() {
            Some(Value::Array(a)) => a.len(),
            Some(Value::Object(o)) => o.len(),
            Some(Value::String(s)) => s.len(),
            _ => 0,
        }
    }

    pub fn as_str(&self) -> Option<&'a str> {
        self.value.and_then(Value::as_str)
    }

    /// The string here, or "" — as a Go string field reads.
    pub fn str(&self) -> &'a str {
        self.as_str().unwrap_or("")
    }

    pub fn as_i64(&self) -> Option<i64> {
        self.value.and_then(Value::as_i64)
    }

    pub fn as_bool(&self) -> Option<bool> {
        self.value.and_then(Value::as_bool)
    }

    /// True only if a `true` is here.
    pub fn is_true(&self) -> bool {
        self.as_bool() == Some(true)
    }

    pub fn has_key(&self, key: &str) -> bool {
        self.value.and_then(|v| v.get(key)).is_some_and(|v| !v.is_null())
    }
}

/// What is wrong with a field, as Kubernetes sorts it (`field.ErrorType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    NotFound,
    Required,
    Duplicate,
    Invalid,
    NotSupported,
    Forbidden,
    TooLong,
    TooMany,
    Internal,
    TypeInvalid,
}

impl ProblemKind {
    /// The `reason` of a `StatusCause`.
    pub fn reason(self) -> &'static str {
        match self {
            ProblemKind::NotFound => "FieldValueNotFound",
            ProblemKind::Required => "FieldValueRequired",
            ProblemKind::Duplicate => "FieldValueDuplicate",
            ProblemKind::Invalid => "FieldValueInvalid",
            ProblemKind::NotSupported => "FieldValueNotSupported",
            ProblemKind::Forbidden => "FieldValueForbidden",
            ProblemKind::TooLong => "FieldValueTooLong",
            ProblemKind::TooMany => "FieldValueTooMany",
            ProblemKind::Internal => "InternalError",
            ProblemKind::TypeInvalid => "FieldValueTypeInvalid",
        }
    }

    fn title(self) -> &'static str {
        match self {
            ProblemKind::NotFound => "Not found",
            ProblemKind::Required => "Required value",
            ProblemKind::Duplicate => "Duplicate value",
            ProblemKind::Invalid => "Invalid value",
            ProblemKind::NotSupported => "Unsupported value",
            ProblemKind::Forbidden => "Forbidden",
            ProblemKind::TooLong => "Too long",
            ProblemKind::TooMany => "Too many",
            ProblemKind::Internal => "Internal error",
            ProblemKind::TypeInvalid => "Invalid value",
        }
    }
}

/// One problem: `spec.replicas: Invalid value: -1: must be greater than or equal to 0`.
#[derive(Clone, Debug)]
pub struct Problem {
    pub kind: ProblemKind,
    pub field: String,
    /// The offending value as it is shown, quoted if it is a string.
    pub value: Option<String>,
    pub detail: String,
}

impl Problem {
    /// The message without the field, as it stands in a `StatusCause`.
    pub fn body(&self) -> String {
        let mut text = self.kind.title().to_string();
        if let Some(value) = &self.value {
            text.push_str(": ");
            text.push_str(value);
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}",
            if self.field.is_empty() { "<nil>" } else { &self.field },
            self.body()
        )
    }
}

/// The most problems of one object that are told; of the others only how many they are. A body of 3 MB can have some
/// hundred thousand, and each is told twice.
pub const MAX_PROBLEMS: usize = 100;
/// The most bytes of a value, a path or a detail in a problem.
pub(crate) const MAX_SHOWN: usize = 16 * 1024;

/// How a value is shown in a problem: strings quoted, everything else as JSON. Of a huge one only the start.
pub fn shown(value: Option<&Value>) -> String {
    let Some(value) = value else {
        return "null".to_string();
    };
    let mut start = Start(vec![]);
    // The only failure is that there is no more room.
    let _ = serde_json::to_writer(&mut start, value);
    cut(String::from_utf8_lossy(&start.0).into_owned())
}

/// Takes the first bytes of a text, and one more than are shown.
struct Start(Vec<u8>);

impl std::io::Write for Start {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let room = (MAX_SHOWN + 1).saturating_sub(self.0.len());
        let taken = &bytes[..bytes.len().min(room)];
        self.0.extend_from_slice(taken);
        Ok(taken.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A text, or the start of a huge one.
pub(crate) fn cut(mut text: String) -> String {
    if text.len() > MAX_SHOWN {
        text.truncate(text.floor_char_boundary(MAX_SHOWN));
        text.push_str("...");
    }
    text
}

/// The problems of one object, in the order found: the first [`MAX_PROBLEMS`], and how many more there are.
#[derive(Clone, Debug, Default)]
pub struct Problems(pub Vec<Problem>, usize);

impl Problems {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many were found, told or not.
    pub fn count(&self) -> usize {
        self.0.len() + self.1
    }

    /// How many were found beyond those that are told.
    pub fn untold(&self) -> usize {
        self.1
    }

    pub fn clear(&mut self) {
        *self = Problems::default();
    }

    pub fn push(&mut self, kind: ProblemKind, path: &Path, value: Option<String>, detail: impl Into<String>) {
        self.push_shown(kind, path, || value, detail);
    }

    /// `value` is asked only if the problem is told: to show a value takes time.
    fn push_shown(
        &mut self,
        kind: ProblemKind,
        path: &Path,
        value: impl FnOnce() -> Option<String>,
        detail: impl Into<String>,
    ) {
        if self.0.len() >= MAX_PROBLEMS {
            self.1 += 1;
            return;
        }
        self.0.push(Problem {
            kind,
            field: cut(path.to_string()),
            value: value().map(cut),
            detail: cut(detail.into()),
        });
    }

    /// `Required value`, with a detail that may be empty.
    pub fn required(&mut self, c: &Cursor<'_>, detail: impl Into<String>) {
        self.push(ProblemKind::Required, c.path(), None, detail);
    }

    /// `Invalid value: <the value here>: detail`.
    pub fn invalid(&mut self, c: &Cursor<'_>, detail: impl Into<String>) {
        self.push_shown(ProblemKind::Invalid, c.path(), || Some(shown(c.value())), detail);
    }

    /// `Invalid value` where the value shown is not the one at the cursor.
    pub fn invalid_value(&mut self, path: &Path, value: &Value, detail: impl Into<String>) {
        self.push_shown(ProblemKind::Invalid, path, || Some(shown(Some(value))), detail);
    }

    /// `Unsupported value: "x": supported values: "a", "b"`; the list is sorted as Kubernetes does.
    pub fn not_supported(&mut self, c: &Cursor<'_>, supported: &[&str]) {
        let mut list: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
        list.sort();
        let detail = format!("supported values: {}", list.join(", "));
        let value = || Some(shown(Some(c.value().unwrap_or(&EMPTY_STRING))));
        self.push_shown(ProblemKind::NotSupported, c.path(), value, detail);
    }

    /// The same where Kubernetes leaves the list in its own order.
    pub fn not_supported_as_listed(&mut self, c: &Cursor<'_>, supported: &[&str]) {
        let list: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
        let detail = format!("supported values: {}", list.join(", "));
        let value = || Some(shown(Some(c.value().unwrap_or(&EMPTY_STRING))));
        self.push_shown(ProblemKind::NotSupported, c.path(), value, detail);
    }

    pub fn duplicate(&mut self, c: &Cursor<'_>) {
        self.push_shown(ProblemKind::Duplicate, c.path(), || Some(shown(c.value())), "");
    }

    pub fn forbidden(&mut self, c: &Cursor<'_>, detail: impl Into<String>) {
        self.push(ProblemKind::Forbidden, c.path(), None, detail);
    }

    /// Too long: the value is left out, it may be huge.
    pub fn too_long(&mut self, c: &Cursor<'_>, max_bytes: usize) {
        self.push(
            ProblemKind::TooLong,
            c.path(),
            None,
            format!("may not be more than {max_bytes} bytes"),
        );
    }

    pub fn too_many(&mut self, c: &Cursor<'_>, actual: usize, max: usize) {
        let detail = format!("must have at most {max} items");
        self.push(ProblemKind::TooMany, c.path(), Some(actual.to_string()), detail);
    }

    pub fn not_found(&mut self, c: &Cursor<'_>) {
        self.push_shown(ProblemKind::NotFound, c.path(), || Some(shown(c.value())), "");
    }

    /// Each message of a name or value rule (see `names`) as `Invalid value`.
    pub fn invalid_each(&mut self, c: &Cursor<'_>, messages: Vec<String>) {
        for message in messages {
            self.invalid(c, message);
        }
    }

    /// `Invalid value … field is immutable` if the value here differs from the one there.
    pub fn immutable(&mut self, new: &Cursor<'_>, old: &Cursor<'_>) {
        if new.value() != old.value() {
            self.invalid(new, "field is immutable");
        }
    }

    /// One of the listed values, or (if `required`) a complaint that there is none. Absent and optional is fine.
    pub fn one_of(&mut self, c: &Cursor<'_>, required: bool, supported: &[&str]) {
        match c.str() {
            "" if required => self.required(c, ""),
            "" => {}
            s if supported.contains(&s) => {}
            _ => self.not_supported(c, supported),
        }
    }

    pub fn non_negative(&mut self, c: &Cursor<'_>) {
        if c.as_i64().is_some_and(|n| n < 0) {
            self.invalid(c, "must be greater than or equal to 0");
        }
    }
}

static EMPTY_STRING: Value = Value::String(String::new());

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn of_many_problems_the_first_are_told_and_the_others_counted() {
        let huge = json!("\u{e4}".repeat(1_000_000));
        let list = Value::from(vec![huge.clone(); 3]);
        let mut p = Problems::default();
        for c in Cursor::root(&list).items() {
            p.invalid(&c, "too large by far");
        }
        assert!(
            p.0.iter().all(|p| p.to_string().len() < 2 * MAX_SHOWN),
            "values are cut"
        );
        assert!(p.0[0].value.as_ref().unwrap().ends_with("..."));
        assert_eq!(shown(Some(&json!(["\u{e4}", 1]))), "[\"\u{e4}\",1]");
        let many = Value::from(vec![json!(-1); 250_000]);
        for c in Cursor::root(&many).items() {
            p.non_negative(&c);
        }
        assert_eq!((p.0.len(), p.untold(), p.count()), (100, 249_903, 250_003));
        let status = crate::Status::invalid("", "Pod", "a", &p);
        assert!(status.message.ends_with(", ... and 249903 more]"));
        assert_eq!(status.details.unwrap().causes.len(), 100);
        p.clear();
        assert_eq!((p.is_empty(), p.count()), (true, 0));
    }

    #[test]
    fn problems_read_as_kubernetes_writes_them() {
        let pod = json!({"spec": {"containers": [{"name": "a", "imagePullPolicy": "Sometimes"}], "n": -1}});
        let mut p = Problems::default();
        let spec = Cursor::root(&pod).at("spec");
        for c in spec.at("containers").items() {
            p.required(&c.at("image"), "");
            p.one_of(&c.at("imagePullPolicy"), true, &["Never", "Always"]);
        }
        p.non_negative(&spec.at("n"));
        let text: Vec<String> = p.0.iter().map(Problem::to_string).collect();
        assert_eq!(
            text,
            [
                "spec.containers[0].image: Required value",
                r#"spec.containers[0].imagePullPolicy: Unsupported value: "Sometimes": supported values: "Always", "Never""#,
                "spec.n: Invalid value: -1: must be greater than or equal to 0",
            ]
        );
    }
}

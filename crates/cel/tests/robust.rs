//! Whatever an expression is: nothing panics, nothing takes more than its limits allow.

use orlop_cel::{
    Activation, Budget, CompileError, DeclType, Env, EvalErrorKind, Type, Value, Variables, limits, self_type,
};
use proptest::prelude::*;
use serde_json::json;

const WORDS: [&str; 70] = [
    "self",
    "self.a",
    "self.l",
    "self.s",
    "x",
    "1",
    "-1",
    "2u",
    "1.5",
    "'a'",
    "\"é\"",
    "b'\\xff'",
    "true",
    "false",
    "null",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ".",
    ",",
    ":",
    "?",
    "!",
    "-",
    "+",
    "*",
    "/",
    "%",
    "<",
    "<=",
    "==",
    "!=",
    "in",
    "&&",
    "||",
    "size(",
    "has(self.a)",
    ".map(x, ",
    ".filter(x, ",
    ".all(x, ",
    ".exists(x, ",
    ".transformMap(k, v, ",
    ".?a",
    "[?0]",
    ".orValue(",
    "optional.of(",
    "type(",
    "string(",
    "int(",
    "dyn(",
    "duration('1h')",
    "timestamp('2020-01-01T00:00:00Z')",
    ".matches('a+')",
    ".format([",
    ".split(",
    ".join(",
    "lists.range(",
    ".flatten()",
    ".sort()",
    ".distinct()",
    "quantity(",
    "ip(",
    "cidr(",
    "url(",
    "semver(",
    "sets.contains(",
    ".optMap(x, ",
];

fn env() -> Env {
    let schema = json!({"type": "object", "properties": {
        "a": {"type": "integer"}, "s": {"type": "string"}, "l": {"type": "array", "items": {"type": "integer"}}}});
    let decl = self_type(&schema, "selfType", false).unwrap();
    Env::builder()
        .variable("self", decl)
        .variable("x", DeclType::dynamic())
        .build()
}

fn run(expression: &str) {
    let Ok(program) = env().compile(expression, &[]) else {
        return;
    };
    let _ = program.estimate();
    let object = json!({"a": 1, "s": "text", "l": [1, 2, 3]});
    let x = json!([{"k": "v"}, 1, "s", null]);
    let activation = Activation::new()
        .bind("self", Value::json(&object))
        .bind("x", Value::json(&x));
    let mut budget = Budget::per_call();
    if let Ok(value) = program.eval(&activation, &mut budget) {
        let _ = value.to_json();
        assert!(budget.last_cost() <= limits::PER_CALL_LIMIT);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_words(words in prop::collection::vec(prop::sample::select(&WORDS[..]), 0..25)) {
        run(&words.join(" "));
        run(&words.concat());
    }

    #[test]
    fn any_text(text in "\\PC{0,60}") {
        run(&text);
    }
}

fn fails_with(expression: &str, text: &str) {
    match env().compile(expression, &[]) {
        Err(error) => assert!(error.to_string().contains(text), "{error}"),
        Ok(_) => panic!("compiles: {expression:.40}…"),
    }
}

#[test]
fn nesting_is_bounded() {
    let many = 5000;
    let recursion = "expression recursion limit exceeded: 250";
    fails_with(&("(".repeat(many) + "1" + &")".repeat(many)), recursion);
    fails_with(&("[".repeat(many) + &"]".repeat(many)), recursion);
    fails_with(&vec!["1"; many].join("+"), "max recursion depth exceeded");
    fails_with(&("x".to_string() + &".a".repeat(many)), "max recursion depth exceeded");
    fails_with(
        &"x".repeat(100_001),
        "expression code point size exceeds limit: size: 100001, limit 100000",
    );
    // What is just inside of the limits runs.
    for deep in [
        "(".repeat(249) + "1" + &")".repeat(249),
        "[".repeat(240) + &"]".repeat(240),
        vec!["1"; 250].join("+"),
        "x".to_string() + &"[0]".repeat(240),
        vec!["true"; 5000].join(" && "),
        "!".repeat(many) + "true",
        "x.map(y, ".repeat(120) + "1" + &")".repeat(120),
        "true ? 1 : ".repeat(200) + "2",
    ] {
        let compiled = env().compile(&deep, &[]);
        assert!(
            compiled.is_ok(),
            "{:.60}: {:?}",
            deep,
            compiled.err().map(|error| error.to_string())
        );
        run(&deep);
    }
}

#[test]
fn growth_is_bounded() {
    // Macros that copy what they are applied to.
    fails_with(&("x.?a".to_string() + &".optMap(y, y)".repeat(60)), "too many nodes");
    // Values that double with each step.
    let double = |start: &str, times: usize| {
        let names: Vec<String> = (0..=times).map(|at| format!("v{at}")).collect();
        let binds: String = (0..times)
            .map(|at| format!("cel.bind({}, {n} + {n}, ", names[at + 1], n = names[at]))
            .collect();
        format!("cel.bind(v0, {start}, {binds}v{times}.size(){}", ")".repeat(times + 1))
    };
    for start in ["[1, 2, 3]", "'text'", "b'text'"] {
        let expression = double(start, 60);
        let program = env().compile(&expression, &[]).expect("it compiles");
        let error = program.eval(&Activation::new(), &mut Budget::per_call()).unwrap_err();
        assert_eq!(error.kind, EvalErrorKind::CostLimit);
    }
    for expression in [
        "lists.range(1000000000).size()",
        "lists.range(3000).map(a, lists.range(3000)).size()",
        "lists.range(2000).all(a, lists.range(2000).all(b, true))",
        "lists.range(3000).distinct().size()",
    ] {
        let program = env().compile(expression, &[]).expect("it compiles");
        let error = program.eval(&Activation::new(), &mut Budget::per_call()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "operation cancelled: actual cost limit exceeded",
            "{expression}"
        );
    }
    // Types that double with each step.
    let names: String = (0..60)
        .map(|at| format!("cel.bind(t{}, {{t{at}: t{at}}}, ", at + 1))
        .collect();
    let _ = env().compile(&format!("cel.bind(t0, {{1: 1}}, {names}1{}", ")".repeat(61)), &[]);
}

#[test]
fn budgets_are_charged() {
    let env = env();
    let program = env.compile("self.l.all(i, i > 0)", &[Type::Bool]).unwrap();
    let object = json!({"l": [1, 2, 3]});
    let activation = Activation::new().bind("self", Value::json(&object));
    let mut budget = Budget::new(40);
    assert_eq!(program.eval(&activation, &mut budget).unwrap().as_bool(), Some(true));
    // The list 2; each turn 2 for the condition, 1 for the accumulator, 2 for the comparison; the result 1.
    assert_eq!((budget.last_cost(), budget.remaining()), (18, 22));
    assert!(program.eval(&activation, &mut budget).is_ok());
    let error = program.eval(&activation, &mut budget).unwrap_err();
    assert_eq!(error.kind, EvalErrorKind::OutOfBudget);
    assert_eq!(
        error.to_string(),
        "validation failed due to running out of cost budget, no further validation rules will be run"
    );
    let error = program
        .eval(&activation, &mut Budget::per_call().with_per_call_limit(10))
        .unwrap_err();
    assert_eq!(error.kind, EvalErrorKind::CostLimit);
}

#[test]
fn loops_can_be_cancelled() {
    let program = env().compile("lists.range(1000).all(i, i >= 0)", &[]).unwrap();
    let mut budget = Budget::per_call().with_cancellation(&|| true);
    let error = program.eval(&Activation::new(), &mut budget).unwrap_err();
    assert_eq!(
        (error.kind, error.to_string().as_str()),
        (EvalErrorKind::Cancelled, "operation interrupted")
    );
}

#[test]
fn variables_are_evaluated_once_and_only_if_used() {
    let variables = DeclType::simple(Type::map(Type::String, Type::Dyn));
    let env = Env::builder()
        .variable("object", DeclType::dynamic())
        .variable("variables", variables)
        .build();
    let first = env.compile("object.a + 1", &[]).unwrap();
    let second = env.compile("variables.first * 2", &[]).unwrap();
    let broken = env.compile("object.missing", &[]).unwrap();
    let program = env
        .compile("variables.second + variables.second + variables.first", &[])
        .unwrap();
    let object = json!({"a": 1});
    let all = Variables::new([("first", &first), ("second", &second), ("broken", &broken)]);
    let activation = Activation::new()
        .bind("object", Value::json(&object))
        .bind_variables("variables", all);
    let mut budget = Budget::new(1000);
    let value = program.eval(&activation, &mut budget).unwrap();
    assert_eq!(value.to_json().unwrap(), json!(10));
    // Each variable once: 3 for the first, 3 for the second; 8 for the expression itself.
    assert_eq!((budget.last_cost(), budget.remaining()), (14, 986));
    let broken = env.compile("variables.broken == 1", &[]).unwrap();
    assert_eq!(
        broken.eval(&activation, &mut budget).unwrap_err().to_string(),
        "no such key: missing"
    );
    let unknown = env.compile("variables.nothing == 1", &[]).unwrap();
    assert_eq!(
        unknown.eval(&activation, &mut budget).unwrap_err().to_string(),
        "no such key: nothing"
    );
}

#[test]
fn outputs_and_uses_are_told() {
    let env = env();
    let error = env.compile("self.a", &[Type::Bool]).unwrap_err();
    assert!(matches!(error, CompileError::Output { .. }));
    assert_eq!(error.to_string(), "must evaluate to bool but got int");
    let error = env.compile("self.s + ", &[Type::Bool]).unwrap_err();
    assert!(matches!(error, CompileError::Issues(_)));
    let program = env.compile("self.a == 1", &[Type::Bool]).unwrap();
    assert!(program.uses("self") && !program.uses("x"));
}

#[test]
fn problems_are_shown_with_their_place() {
    let text = "ERROR: <input>:2:3: undeclared reference to 'y' (in container '')\n |   y\n | ..^";
    assert_eq!(env().compile("self.a ==\n  y", &[]).unwrap_err().to_string(), text);
    let text = "ERROR: <input>:1:8: undeclared reference to 'y' (in container '')\n | 'é' == y\n | .．.....^";
    assert_eq!(env().compile("'é' == y", &[]).unwrap_err().to_string(), text);
}

#[test]
fn wanted_types_are_named_as_declared() {
    let env = env();
    let error = env
        .compile(
            "{'a': timestamp('2020-01-01T00:00:00Z')}",
            &[Type::Bool, Type::list(Type::String)],
        )
        .unwrap_err();
    let text = "must evaluate to one of [bool list(string)] but got map(string, google.protobuf.Timestamp)";
    assert_eq!(error.to_string(), text);
    assert_eq!(
        env.compile("null", &[Type::String]).unwrap_err().to_string(),
        "must evaluate to string but got null_type"
    );
}

#[test]
fn work_stays_in_proportion() {
    let list: Vec<String> = (0..15_000).map(|at| at.to_string()).collect();
    let expression = format!("lists.range(50000).all(i, !(i * 7 + 20000 in [{}]))", list.join(","));
    let program = env().compile(&expression, &[]).expect("it compiles");
    assert_eq!(
        program
            .eval(&Activation::new(), &mut Budget::per_call())
            .unwrap()
            .as_bool(),
        Some(true)
    );
    fails_with(&"@".repeat(90_000), "89901 more errors were truncated");
    fails_with(&"@\n".repeat(40_000), "more errors were truncated");
    let braces = format!("'a'.matches('{}')", "{".repeat(90_000));
    let _ = env().compile(&braces, &[]);
    let program = env()
        .compile("[0.0 / 0.0, 1.0, 0.0 / 0.0, -1.0, 3.0].sort().size()", &[])
        .expect("it compiles");
    assert!(program.eval(&Activation::new(), &mut Budget::per_call()).is_ok());
}

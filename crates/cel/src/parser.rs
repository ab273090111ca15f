//! From tokens to a syntax tree, macros expanded. Recursive descent with bounds on nesting, nodes and errors.
//!
//! Upstream: cel-go/parser/parser.go, and the grammar beside it.

use crate::ast::{Ast, Element, Entry, Expr, FieldInit, Id, Kind, Literal, operators};
use crate::lexer::{self, Lexeme, Token};
use crate::limits;
use crate::macros;
use crate::source::{Issues, Source};
use crate::unescape;
use std::sync::Arc;

/// Identifiers that are none. (`in`, `true`, `false` and `null` are tokens of their own.)
const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// What an expression may start with, as messages list it.
const STARTS: &str = "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, \
                      BYTES, IDENTIFIER}";
/// What a list, a map and an object may go on with after their first bracket.
const LIST_STARTS: &str = "{'[', ']', '{', '(', '.', ',', '-', '!', '?', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, \
                           NUM_UINT, STRING, BYTES, IDENTIFIER}";
const MAP_STARTS: &str = "{'[', '{', '}', '(', '.', ',', '-', '!', '?', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, \
                          NUM_UINT, STRING, BYTES, IDENTIFIER}";
const FIELD_STARTS: &str = "{'}', ',', '?', IDENTIFIER, ESC_IDENTIFIER}";

/// Macros copy what they are applied to, so that a short text could make an endless tree.
const MAX_NODES: usize = limits::EXPRESSION_SIZE;

/// The syntax tree of an expression.
pub(crate) fn parse(source: &Source) -> Result<Ast, Issues> {
    let size = source.text().chars().count();
    let mut issues = Issues::default();
    if size > limits::EXPRESSION_SIZE {
        let limit = limits::EXPRESSION_SIZE;
        let message = format!("expression code point size exceeds limit: size: {size}, limit {limit}");
        issues.push(source, None, message);
        return Err(issues);
    }
    let (lexemes, unrecognized) = lexer::tokens(source.text());
    for found in unrecognized {
        let message = format!("Syntax error: token recognition error at: '{}'", found.text);
        issues.push(source, Some(found.offset), message);
    }
    let mut parser = Parser {
        source,
        lexemes,
        at: 0,
        depth: 0,
        nodes: Nodes { offsets: vec![0] },
        issues,
    };
    let parsed = parser.start();
    let Parser { nodes, mut issues, .. } = parser;
    match parsed {
        Ok((expr, _)) if issues.is_empty() => Ok(Ast {
            expr,
            offsets: nodes.offsets,
        }),
        _ => {
            issues.sort();
            Err(issues)
        }
    }
}

/// Numbers nodes and keeps their places.
pub(crate) struct Nodes {
    /// By id, code points.
    offsets: Vec<u32>,
}

impl Nodes {
    /// A new node's id.
    pub(crate) fn id(&mut self, offset: u32) -> Id {
        self.offsets.push(offset);
        Id::try_from(self.offsets.len() - 1).unwrap_or(Id::MAX)
    }

    pub(crate) fn offset(&self, id: Id) -> u32 {
        self.offsets.get(id as usize).copied().unwrap_or(0)
    }

    pub(crate) fn are_too_many(&self) -> bool {
        self.offsets.len() > MAX_NODES
    }
}

/// The problem is noted; parsing ends.
pub(crate) struct Failed;

/// An expression, and how deep selections, calls and operators are nested in it.
type Parsed = Result<(Expr, usize), Failed>;

struct Parser<'s> {
    source: &'s Source,
    lexemes: Vec<Lexeme<'s>>,
    at: usize,
    depth: usize,
    nodes: Nodes,
    issues: Issues,
}

impl<'s> Parser<'s> {
    fn peek(&self) -> Lexeme<'s> {
        self.lexemes[self.at.min(self.lexemes.len() - 1)]
    }

    fn next(&mut self) -> Lexeme<'s> {
        let lexeme = self.peek();
        self.at += 1;
        lexeme
    }

    fn is(&self, symbol: &str) -> bool {
        matches!(self.peek().token, Token::Symbol(found) if found == symbol)
    }

    /// Takes the next token if it is this one.
    fn take(&mut self, symbol: &str) -> Option<Lexeme<'s>> {
        self.is(symbol).then(|| self.next())
    }

    fn fail<T>(&mut self, offset: Option<u32>, message: impl Into<String>) -> Result<T, Failed> {
        self.issues.push(self.source, offset, message);
        Err(Failed)
    }

    fn syntax_error<T>(&mut self, message: &str) -> Result<T, Failed> {
        let offset = self.peek().offset;
        self.fail(Some(offset), format!("Syntax error: {message}"))
    }

    fn mismatched<T>(&mut self, expecting: &str) -> Result<T, Failed> {
        self.unexpected("mismatched", expecting)
    }

    fn unexpected<T>(&mut self, what: &str, expecting: &str) -> Result<T, Failed> {
        let found = self.peek().text.replace('\n', "\\n");
        self.syntax_error(&format!("{what} input '{found}' expecting {expecting}"))
    }

    /// Refuses what an expression cannot start with. With it left out there may be one.
    fn expect_start(&mut self, starts: impl Fn(Token) -> bool, expecting: &str) -> Result<(), Failed> {
        if starts(self.peek().token) {
            return Ok(());
        }
        let after = self.lexemes.get(self.at + 1).is_some_and(|next| starts(next.token));
        self.unexpected(if after { "extraneous" } else { "mismatched" }, expecting)
    }

    fn expect(&mut self, symbol: &'static str) -> Result<Lexeme<'s>, Failed> {
        if let Some(lexeme) = self.take(symbol) {
            return Ok(lexeme);
        }
        if self.peek().token == Token::End {
            return self.syntax_error(&format!("missing '{symbol}' at '<EOF>'"));
        }
        self.mismatched(&format!("'{symbol}'"))
    }

    fn start(&mut self) -> Parsed {
        let parsed = self.expr()?;
        if self.peek().token != Token::End {
            let is_last = self
                .lexemes
                .get(self.at + 1)
                .is_some_and(|next| next.token == Token::End);
            let what = if is_last { "extraneous" } else { "mismatched" };
            let found = self.peek().text.to_string();
            return self.syntax_error(&format!("{what} input '{found}' expecting <EOF>"));
        }
        Ok(parsed)
    }

    /// One level deeper, of selections, calls and operators.
    fn deeper(&mut self, depth: usize) -> Result<usize, Failed> {
        if depth >= limits::RECURSION_DEPTH {
            return self.fail(None, "max recursion depth exceeded");
        }
        if self.nodes.are_too_many() {
            return self.fail(
                None,
                format!("expression has too many nodes after macro expansion: limit {MAX_NODES}"),
            );
        }
        Ok(depth + 1)
    }

    fn expr(&mut self) -> Parsed {
        self.depth += 1;
        if self.depth > limits::RECURSION_DEPTH {
            let limit = limits::RECURSION_DEPTH;
            return self.fail(None, format!("expression recursion limit exceeded: {limit}"));
        }
        let parsed = self.conditional();
        self.depth -= 1;
        parsed
    }

    fn conditional(&mut self) -> Parsed {
        let (condition, depth) = self.logical(operators::OR)?;
        let Some(question) = self.take("?") else {
            return Ok((condition, depth));
        };
        let id = self.nodes.id(question.offset);
        let (if_true, true_depth) = self.logical(operators::OR)?;
        self.expect(":")?;
        let (if_false, false_depth) = self.expr()?;
        let depth = self.deeper(depth.max(true_depth).max(false_depth))?;
        Ok((
            call(id, operators::CONDITIONAL, vec![condition, if_true, if_false]),
            depth,
        ))
    }

    /// `||` of `&&` of relations. Chains become balanced trees.
    fn logical(&mut self, operator: &'static str) -> Parsed {
        let symbol = if operator == operators::OR { "||" } else { "&&" };
        let operand = |parser: &mut Parser<'s>| {
            if operator == operators::OR {
                parser.logical(operators::AND)
            } else {
                parser.relation()
            }
        };
        let (first, mut depth) = operand(self)?;
        let (mut terms, mut ids) = (vec![Some(first)], Vec::new());
        while let Some(lexeme) = self.take(symbol) {
            let (term, term_depth) = operand(self)?;
            depth = depth.max(term_depth);
            terms.push(Some(term));
            ids.push(self.nodes.id(lexeme.offset));
        }
        let expr = if ids.is_empty() {
            terms[0].take()
        } else {
            Some(balanced(operator, &mut terms, &ids, 0, ids.len() - 1))
        };
        Ok((expr.expect("there is at least one term"), depth))
    }

    /// Comparisons, all of one precedence, from the left.
    fn relation(&mut self) -> Parsed {
        self.binary(&RELATIONS, |parser| {
            parser.binary(&SUMS, |parser| parser.binary(&PRODUCTS, Parser::unary))
        })
    }

    fn binary(&mut self, table: &[(&str, &'static str)], operand: fn(&mut Parser<'s>) -> Parsed) -> Parsed {
        let (mut left, mut depth) = operand(self)?;
        while let Some((symbol, function)) = table.iter().find(|(symbol, _)| self.is(symbol)) {
            let lexeme = self.take(symbol).expect("it is the next token");
            let id = self.nodes.id(lexeme.offset);
            let (right, right_depth) = operand(self)?;
            depth = self.deeper(depth.max(right_depth))?;
            left = call(id, function, vec![left, right]);
        }
        Ok((left, depth))
    }

    fn unary(&mut self) -> Parsed {
        let (symbol, function) = match self.peek().token {
            Token::Symbol("!") => ("!", operators::NOT),
            Token::Symbol("-") => ("-", operators::NEGATE),
            _ => return self.member(),
        };
        let is_number =
            |lexeme: Option<&Lexeme<'_>>| lexeme.is_some_and(|l| matches!(l.token, Token::Int | Token::Float));
        if symbol == "-" && is_number(self.lexemes.get(self.at + 1)) {
            return self.member();
        }
        let first = self.peek();
        let mut count = 0;
        while self.take(symbol).is_some() {
            count += 1;
        }
        if symbol == "-" && self.peek().token == Token::End {
            return self.syntax_error("no viable alternative at input '-'");
        }
        if count % 2 == 0 {
            return self.member();
        }
        let id = self.nodes.id(first.offset);
        let (operand, depth) = self.member()?;
        Ok((call(id, function, vec![operand]), depth))
    }

    fn member(&mut self) -> Parsed {
        let (mut expr, mut depth) = self.primary()?;
        loop {
            if let Some(dot) = self.take(".") {
                depth = self.deeper(depth)?;
                let optional = self.take("?").is_some();
                let name = self.identifier()?;
                if !optional && name.token == Token::Identifier && self.is("(") {
                    let open = self.next();
                    let id = self.nodes.id(open.offset);
                    let (args, args_depth) = self.arguments()?;
                    depth = depth.max(self.deeper(args_depth)?);
                    expr = self.call_or_macro(id, name.text, Some(expr), args)?;
                } else if optional {
                    let id = self.nodes.id(dot.offset);
                    let field = self.literal_at(name.offset, Literal::String(Arc::from(name.text)));
                    expr = call(id, operators::OPT_SELECT, vec![expr, field]);
                } else {
                    expr = Expr {
                        id: self.nodes.id(dot.offset),
                        kind: Kind::Select {
                            operand: Box::new(expr),
                            field: name.text.to_string(),
                            test_only: false,
                        },
                    };
                }
            } else if let Some(open) = self.take("[") {
                let optional = self.take("?").is_some();
                let id = self.nodes.id(open.offset);
                let (index, index_depth) = self.expr()?;
                self.expect("]")?;
                depth = self.deeper(depth.max(index_depth))?;
                let function = if optional {
                    operators::OPT_INDEX
                } else {
                    operators::INDEX
                };
                expr = call(id, function, vec![expr, index]);
            } else {
                return Ok((expr, depth));
            }
        }
    }

    /// The name after a dot.
    fn identifier(&mut self) -> Result<Lexeme<'s>, Failed> {
        let lexeme = self.peek();
        match lexeme.token {
            Token::Identifier => Ok(self.next()),
            Token::EscapedIdentifier => self.fail(Some(lexeme.offset), "unsupported syntax: '`'"),
            Token::End => self.syntax_error("no viable alternative at input '.'"),
            Token::Symbol("true" | "false" | "null") => self.mismatched("IDENTIFIER"),
            _ => self.syntax_error(&format!("no viable alternative at input '.{}'", lexeme.text)),
        }
    }

    fn literal_at(&mut self, offset: u32, literal: Literal) -> Expr {
        Expr {
            id: self.nodes.id(offset),
            kind: Kind::Literal(literal),
        }
    }

    fn primary(&mut self) -> Parsed {
        let lexeme = self.peek();
        match lexeme.token {
            Token::Symbol("(") => {
                self.next();
                let parsed = self.expr()?;
                self.expect(")")?;
                Ok(parsed)
            }
            Token::Symbol("[") => self.list(),
            Token::Symbol("{") => self.map(),
            Token::Symbol(".") | Token::Identifier => self.name(),
            token => {
                if !starts_expression(token) {
                    self.expect_start(starts_expression, STARTS)?;
                }
                Ok((self.literal()?, 0))
            }
        }
    }

    /// A variable, a call, or the construction of an object.
    fn name(&mut self) -> Parsed {
        let start = self.peek();
        let dot = if self.take(".").is_some() { "." } else { "" };
        let first = self.identifier()?;
        if let Some((name, open)) = self.struct_name(first) {
            let id = self.nodes.id(open);
            let (fields, depth) = self.fields()?;
            let name = format!("{dot}{name}");
            return Ok((
                Expr {
                    id,
                    kind: Kind::Struct { name, fields },
                },
                depth,
            ));
        }
        if RESERVED.contains(&first.text) {
            return self.fail(Some(start.offset), format!("reserved identifier: {}", first.text));
        }
        let name = format!("{dot}{}", first.text);
        if let Some(open) = self.take("(") {
            let id = self.nodes.id(open.offset);
            let (args, depth) = self.arguments()?;
            let depth = self.deeper(depth)?;
            return Ok((self.call_or_macro(id, &name, None, args)?, depth));
        }
        let id = self.nodes.id(first.offset);
        Ok((
            Expr {
                id,
                kind: Kind::Ident(name),
            },
            0,
        ))
    }

    /// The name of an object type and the place of its brace, if `a.b.c {` follows; takes all of it.
    fn struct_name(&mut self, first: Lexeme<'s>) -> Option<(String, u32)> {
        let (mut at, mut name) = (self.at, first.text.to_string());
        let token = |at: usize| self.lexemes.get(at).map(|lexeme| lexeme.token);
        while token(at) == Some(Token::Symbol(".")) && token(at + 1) == Some(Token::Identifier) {
            name.push('.');
            name.push_str(self.lexemes[at + 1].text);
            at += 2;
        }
        if token(at) != Some(Token::Symbol("{")) {
            return None;
        }
        let open = self.lexemes[at].offset;
        self.at = at + 1;
        Some((name, open))
    }

    /// Field initializers up to the closing brace.
    fn fields(&mut self) -> Result<(Vec<FieldInit>, usize), Failed> {
        let (mut fields, mut depth) = (Vec::new(), 0);
        let starts = |token| {
            matches!(
                token,
                Token::Symbol("}" | "," | "?") | Token::Identifier | Token::EscapedIdentifier
            )
        };
        self.expect_start(starts, FIELD_STARTS)?;
        while !self.is("}") {
            if !fields.is_empty() {
                self.expect(",")?;
                if self.is("}") {
                    break;
                }
            }
            let optional = self.take("?").is_some();
            let name = self.identifier()?;
            let colon = self.expect(":")?;
            let id = self.nodes.id(colon.offset);
            let (value, value_depth) = self.expr()?;
            depth = depth.max(value_depth);
            fields.push(FieldInit {
                id,
                name: name.text.to_string(),
                value,
                optional,
            });
        }
        self.expect("}")?;
        Ok((fields, depth))
    }

    /// Arguments up to the closing parenthesis.
    fn arguments(&mut self) -> Result<(Vec<Expr>, usize), Failed> {
        let (mut args, mut depth) = (Vec::new(), 0);
        if self.take(")").is_some() {
            return Ok((args, depth));
        }
        loop {
            let (arg, arg_depth) = self.expr()?;
            depth = depth.max(arg_depth);
            args.push(arg);
            if self.take(",").is_none() {
                break;
            }
        }
        self.expect(")")?;
        Ok((args, depth))
    }

    fn list(&mut self) -> Parsed {
        let open = self.next();
        let id = self.nodes.id(open.offset);
        let (mut elements, mut depth) = (Vec::new(), 0);
        let starts = |token| starts_expression(token) || matches!(token, Token::Symbol("]" | "," | "?"));
        self.expect_start(starts, LIST_STARTS)?;
        while !self.is("]") {
            if !elements.is_empty() {
                self.expect(",")?;
                if self.is("]") {
                    break;
                }
            } else if self.take(",").is_some() {
                break;
            }
            let optional = self.take("?").is_some();
            let (value, value_depth) = self.expr()?;
            depth = depth.max(value_depth);
            elements.push(Element { value, optional });
        }
        self.expect("]")?;
        Ok((
            Expr {
                id,
                kind: Kind::List(elements),
            },
            depth,
        ))
    }

    fn map(&mut self) -> Parsed {
        let open = self.next();
        let id = self.nodes.id(open.offset);
        let (mut entries, mut depth) = (Vec::new(), 0);
        let starts = |token| starts_expression(token) || matches!(token, Token::Symbol("}" | "," | "?"));
        self.expect_start(starts, MAP_STARTS)?;
        while !self.is("}") {
            if !entries.is_empty() {
                self.expect(",")?;
                if self.is("}") {
                    break;
                }
            } else if self.take(",").is_some() {
                break;
            }
            let optional = self.take("?").is_some();
            let (key, key_depth) = self.expr()?;
            self.expect(":")?;
            let (value, value_depth) = self.expr()?;
            depth = depth.max(key_depth).max(value_depth);
            entries.push(Entry { key, value, optional });
        }
        self.expect("}")?;
        Ok((
            Expr {
                id,
                kind: Kind::Map(entries),
            },
            depth,
        ))
    }

    fn literal(&mut self) -> Result<Expr, Failed> {
        let start = self.peek();
        let minus = if self.take("-").is_some() { "-" } else { "" };
        let lexeme = self.peek();
        let value = match lexeme.token {
            Token::Int => integer(lexeme.text, minus)
                .map(Literal::Int)
                .ok_or("invalid int literal"),
            Token::Uint => {
                let digits = &lexeme.text[..lexeme.text.len() - 1];
                unsigned(digits).map(Literal::Uint).ok_or("invalid uint literal")
            }
            Token::Float => {
                let number = format!("{minus}{}", lexeme.text).parse::<f64>();
                let number = number.ok().filter(|number| number.is_finite());
                number.map(Literal::Double).ok_or("invalid double literal")
            }
            Token::String => unescape::string(lexeme.text).map(|text| Literal::String(text.into())),
            Token::Bytes => unescape::bytes(&lexeme.text[1..]).map(|bytes| Literal::Bytes(bytes.into())),
            Token::Symbol("true") => Ok(Literal::Bool(true)),
            Token::Symbol("false") => Ok(Literal::Bool(false)),
            Token::Symbol("null") => Ok(Literal::Null),
            _ => return self.mismatched(STARTS),
        };
        self.next();
        match value {
            Ok(literal) => Ok(self.literal_at(start.offset, literal)),
            Err(message) => self.fail(Some(start.offset), message),
        }
    }

    fn call_or_macro(&mut self, id: Id, function: &str, target: Option<Expr>, args: Vec<Expr>) -> Result<Expr, Failed> {
        match macros::expand(&mut self.nodes, id, function, target, args) {
            Ok(expr) => Ok(expr),
            Err((at, message)) => {
                let offset = self.nodes.offset(at);
                self.fail(Some(offset), message)
            }
        }
    }
}

fn starts_expression(token: Token) -> bool {
    match token {
        Token::Symbol(symbol) => ["[", "{", "(", ".", "-", "!", "true", "false", "null"].contains(&symbol),
        Token::End | Token::EscapedIdentifier => false,
        _ => true,
    }
}

const RELATIONS: [(&str, &str); 7] = [
    ("<", operators::LESS),
    ("<=", operators::LESS_EQUALS),
    (">=", operators::GREATER_EQUALS),
    (">", operators::GREATER),
    ("==", operators::EQUALS),
    ("!=", operators::NOT_EQUALS),
    ("in", operators::IN),
];
const SUMS: [(&str, &str); 2] = [("+", operators::ADD), ("-", operators::SUBTRACT)];
const PRODUCTS: [(&str, &str); 3] = [
    ("*", operators::MULTIPLY),
    ("/", operators::DIVIDE),
    ("%", operators::MODULO),
];

pub(crate) fn call(id: Id, function: &str, args: Vec<Expr>) -> Expr {
    Expr {
        id,
        kind: Kind::Call {
            function: function.to_string(),
            target: None,
            args,
        },
    }
}

/// The terms between these operators as a tree of equal depth everywhere.
fn balanced(function: &str, terms: &mut [Option<Expr>], ids: &[Id], low: usize, high: usize) -> Expr {
    let middle = (low + high).div_ceil(2);
    let left = if middle == low {
        terms[middle].take()
    } else {
        Some(balanced(function, terms, ids, low, middle - 1))
    };
    let right = if middle == high {
        terms[middle + 1].take()
    } else {
        Some(balanced(function, terms, ids, middle + 1, high))
    };
    let args = [left, right].map(|side| side.expect("each term is taken once"));
    call(ids[middle], function, args.into())
}

fn integer(digits: &str, minus: &str) -> Option<i64> {
    match digits.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(&format!("{minus}{hex}"), 16).ok(),
        None => format!("{minus}{digits}").parse().ok(),
    }
}

fn unsigned(digits: &str) -> Option<u64> {
    match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => digits.parse().ok(),
    }
}

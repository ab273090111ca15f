//! CEL, the Common Expression Language, as Kubernetes 1.36 speaks it: one engine for the rules of custom resource
//! definitions, admission policies, match conditions of webhooks, and the mappings of authentication and authorization
//! configurations.
//!
//! The way of an expression: [`Env::compile`] takes its text through the lexer, the parser (which expands macros), the
//! type checker and the planner to a [`Program`]; [`Program::eval`] runs it on the values of an [`Activation`] within
//! a [`Budget`]; [`Program::estimate`] says beforehand what it may cost at most. Objects stay the `serde_json::Value`s
//! that they are: values borrow from them, and a declared type ([`DeclType`]) says how a place in them is read.
//!
//! Costs, messages and limits are Kubernetes' and cel-go's, since users see them. Every recursion is bounded by the
//! parser's depth limit, every loop and every growing value by the cost limit. There is no I/O and no async here.
//!
//! Deliberately absent: protocol buffer messages, and the library versions of older releases.

pub mod limits;

mod ast;
mod lexer;
mod macros;
mod parser;
mod source;
mod unescape;

mod decl;
mod env;
mod escape;
mod functions;
mod types;

mod check;
mod estimate;
mod literals;

mod eval;
mod plan;
mod program;
mod stack;
mod value;

mod library;

mod admission;
mod authorizer;
mod mutation;
mod schema;

pub use admission::{namespace_type, request_type};
pub use authorizer::{Authorizer, Decision, Requirement, ResourceAttributes, Selector, Target, Verdict};
pub use decl::{DeclType, Field, ListType, ObjectType, Shape};
pub use env::{CompileError, Env, EnvBuilder};
pub use escape::{escape, unescape};
pub use estimate::{CostEstimate, SizeEstimate};
pub use program::{Activation, Budget, EvalError, EvalErrorKind, Program, Variables};
pub use schema::{Resolver, declare, declare_lazily, self_type};
pub use source::{Issue, Issues};
pub use types::Type;
pub use value::{JsonError, List, Map, Text, Value};

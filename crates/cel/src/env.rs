//! What expressions are compiled against: variables and their types.

use crate::ast::CheckedAst;
use crate::check;
use crate::decl::{DeclType, ObjectType};
use crate::literals;
use crate::mutation;
use crate::parser;
use crate::plan;
use crate::program::{EvalError, Program};
use crate::source::{Issues, Source};
use crate::stack;
use crate::types::Type;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Compiles expressions. All libraries of Kubernetes 1.36 are on.
#[derive(Clone, Debug)]
pub struct Env {
    variables: Arc<[(String, Arc<DeclType>)]>,
    container: String,
    /// Object types that expressions may construct, by name.
    types: Arc<BTreeMap<String, Arc<ObjectType>>>,
    mutation: bool,
    optimized: bool,
}

/// Declares the variables of an [`Env`].
#[derive(Default, Debug)]
pub struct EnvBuilder {
    variables: Vec<(String, Arc<DeclType>)>,
    container: String,
    types: BTreeMap<String, Arc<ObjectType>>,
    mutation: bool,
    unoptimized: bool,
}

/// Why an expression does not compile.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CompileError {
    /// Its syntax or its types are wrong. `Display` is cel-go's text.
    #[error("{0}")]
    Issues(Issues),
    /// A constant in it cannot be converted, or a pattern not compiled.
    #[error("program instantiation failed: {0}")]
    Program(EvalError),
    /// It gives something else than what is wanted.
    #[error("must evaluate to {} but got {}", one_of(expected), found.declared())]
    Output { expected: Vec<Type>, found: Type },
}

fn one_of(types: &[Type]) -> String {
    match types {
        [one] => one.declared(),
        many => {
            let names: Vec<_> = many.iter().map(Type::declared).collect();
            format!("one of [{}]", names.join(" "))
        }
    }
}

impl EnvBuilder {
    /// Declares a variable. A name may have dots (`authorizer.requestResource`).
    #[must_use]
    pub fn variable(mut self, name: impl Into<String>, decl: impl Into<Arc<DeclType>>) -> EnvBuilder {
        self.variables.push((name.into(), decl.into()));
        self
    }

    /// The namespace that names are looked up in first.
    #[must_use]
    pub fn container(mut self, name: impl Into<String>) -> EnvBuilder {
        self.container = name.into();
        self
    }

    /// What mutating policies construct: `Object{…}`, `Object.spec{…}`, `JSONPatch{…}`, `jsonpatch.escapeKey`.
    #[must_use]
    pub fn mutation_types(mut self) -> EnvBuilder {
        self.mutation = true;
        self
    }

    /// Computes nothing beforehand, so that constants have costs of their own: for comparisons with other engines.
    #[doc(hidden)]
    #[must_use]
    pub fn unoptimized(mut self) -> EnvBuilder {
        self.unoptimized = true;
        self
    }

    pub fn build(self) -> Env {
        Env {
            variables: self.variables.into(),
            container: self.container,
            types: Arc::new(self.types),
            mutation: self.mutation,
            optimized: !self.unoptimized,
        }
    }
}

impl Env {
    pub fn builder() -> EnvBuilder {
        EnvBuilder::default()
    }

    /// Compiles an expression, whose value must be of one of the expected types; of any, if there are none.
    ///
    /// # Errors
    /// The problems of its syntax, or those of its types, or that it gives another type.
    pub fn compile(&self, expression: &str, expected: &[Type]) -> Result<Program, CompileError> {
        let compiled = stack::with_room(stack::most_nesting(expression), || {
            self.compile_here(expression, expected)
        });
        compiled.unwrap_or_else(|why| {
            let why = EvalError::new(format!("the expression is nested too deeply: {why}"));
            Err(CompileError::Program(why))
        })
    }

    fn compile_here(&self, expression: &str, expected: &[Type]) -> Result<Program, CompileError> {
        let source = Source::new(expression);
        let ast = parser::parse(&source).map_err(CompileError::Issues)?;
        let ast: CheckedAst = check::check(ast, &source, self).map_err(CompileError::Issues)?;
        literals::validate(&ast, &source).map_err(CompileError::Issues)?;
        let found = ast.output_type();
        if !expected.is_empty()
            && !expected
                .iter()
                .any(|wanted| found.is_exactly(wanted) || wanted.is_dyn())
        {
            return Err(CompileError::Output {
                expected: expected.to_vec(),
                found: found.clone(),
            });
        }
        Ok(Program {
            plan: plan::plan(&ast, self.optimized).map_err(CompileError::Program)?,
            ast,
            variables: self.variables.clone(),
        })
    }

    pub(crate) fn container(&self) -> &str {
        &self.container
    }

    pub(crate) fn variable(&self, name: &str) -> Option<&Arc<DeclType>> {
        self.variables
            .iter()
            .find(|(declared, _)| declared == name)
            .map(|(_, decl)| decl)
    }

    pub(crate) fn has_mutation_functions(&self) -> bool {
        self.mutation
    }

    /// The object type of this name that expressions may construct.
    pub(crate) fn object_type(&self, name: &str) -> Option<Arc<ObjectType>> {
        if let Some(known) = self.types.get(name) {
            return Some(known.clone());
        }
        if self.mutation {
            mutation::object_type(name)
        } else {
            None
        }
    }
}

//! What CEL expressions of policies and match conditions are compiled against, and what they are evaluated with.
//!
//! Upstream: apiserver/pkg/admission/plugin/cel (v1.36).

use std::borrow::Cow;
use std::sync::Arc;

use orlop_api::admissionregistration::expressions::Role;
use orlop_api::selector::{FieldSelector, LabelSelector};
use orlop_api::{KindDef, Value as Json};
use orlop_cel::{
    Activation, Authorizer, Budget, CompileError, Decision, DeclType, Env, EvalErrorKind, Field, ObjectType, Program,
    Requirement, ResourceAttributes, Target, Type, Value, Variables, Verdict, namespace_type, request_type,
};

use super::Review;
use super::shown::Form;
use super::webhook::request_attributes;
use crate::authn::UserInfo;
use crate::authz::Attributes;

/// The variables that an expression may use beside those that all may.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scope {
    pub params: bool,
    pub authorizer: bool,
    pub mutation: bool,
}

impl Scope {
    /// What an expression of this role may use.
    pub(super) fn of(role: Role, params: bool) -> Scope {
        Scope {
            params,
            authorizer: role != Role::Message,
            mutation: matches!(role, Role::ApplyConfiguration | Role::JsonPatch),
        }
    }
}

/// An expression that is no program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct ExpressionError(String);

/// Compiles the expressions of one webhook or policy, whose variables see those before them.
#[derive(Default)]
pub(super) struct Compiler {
    /// Names and types of the policy's variables so far.
    variables: Vec<(String, Type)>,
    /// What objects and parameters are, where that is checked beforehand.
    object: Option<DeclType>,
    params: Option<DeclType>,
}

impl Compiler {
    /// One that knows what `object`, `oldObject` and `params` are.
    pub(super) fn checking(object: DeclType, params: Option<DeclType>) -> Compiler {
        Compiler {
            variables: vec![],
            object: Some(object),
            params,
        }
    }

    /// The program, or why there is none.
    pub(super) fn compile(&self, text: &str, role: Role, params: bool) -> Result<Program, ExpressionError> {
        let expected = match role {
            Role::MatchCondition | Role::Validation => vec![Type::Bool],
            Role::Variable => vec![],
            Role::Message => vec![Type::String],
            Role::AuditAnnotation => vec![Type::String, Type::Null],
            Role::ApplyConfiguration => vec![Type::Object(Arc::new(ObjectType::new("Object", [])))],
            Role::JsonPatch => vec![Type::list(Type::Object(Arc::new(ObjectType::new("JSONPatch", []))))],
        };
        let env = self.env(Scope::of(role, params), role != Role::MatchCondition);
        env.compile(text, &expected).map_err(|error| match &error {
            CompileError::Issues(issues) => ExpressionError(format!("compilation failed: {issues}")),
            CompileError::Output { .. } | CompileError::Program(_) => ExpressionError(error.to_string()),
        })
    }

    /// Declares a variable for the expressions to come.
    pub(super) fn declare(&mut self, name: &str, ty: Type) {
        self.variables.push((name.to_string(), ty));
    }

    fn env(&self, scope: Scope, with_variables: bool) -> Env {
        let declared = |decl: &Option<DeclType>| decl.clone().unwrap_or_else(DeclType::dynamic);
        let mut env = Env::builder()
            .variable("object", declared(&self.object))
            .variable("oldObject", declared(&self.object))
            .variable("namespaceObject", namespace_type())
            .variable("request", request_type());
        if scope.params {
            env = env.variable("params", declared(&self.params));
        }
        if scope.authorizer {
            env = env
                .variable("authorizer", DeclType::simple(Type::authorizer()))
                .variable("authorizer.requestResource", DeclType::simple(Type::resource_check()));
        }
        if scope.mutation {
            env = env.mutation_types();
        }
        if with_variables {
            let fields = self.variables.iter();
            let fields = fields.map(|(name, ty)| Field::new(name.as_str(), DeclType::simple(ty.clone())));
            let object = ObjectType::new("kubernetes.variables", fields);
            env = env.variable("variables", DeclType::object(Arc::new(object)));
        }
        env.build()
    }
}

/// An expression and what it compiled to.
#[derive(Debug)]
pub(super) struct Expression {
    pub text: String,
    pub program: Result<Program, ExpressionError>,
}

/// Why an expression has no value.
#[derive(Debug, PartialEq)]
pub(super) enum EvaluationError {
    /// This one has none.
    Expression(String),
    /// Nothing is evaluated any more.
    OutOfBudget(String),
}

impl EvaluationError {
    pub(super) fn text(&self) -> &str {
        let (EvaluationError::Expression(text) | EvaluationError::OutOfBudget(text)) = self;
        text
    }
}

impl Expression {
    pub(super) fn evaluate<'a>(
        &'a self,
        activation: &Activation<'a>,
        budget: &mut Budget<'_>,
    ) -> Result<Value<'a>, EvaluationError> {
        let program = self.program.as_ref();
        let program = program.map_err(|why| EvaluationError::Expression(format!("compilation error: {why}")))?;
        program.eval(activation, budget).map_err(|error| match error.kind {
            EvalErrorKind::OutOfBudget => EvaluationError::OutOfBudget(error.message),
            _ => {
                let why = format!("expression '{}' resulted in error: {}", self.text, error.message);
                EvaluationError::Expression(why)
            }
        })
    }
}

static NULL: Json = Json::Null;

/// The values of one request's variables, in the form that one webhook or policy wants to see.
pub(super) struct Inputs<'r> {
    object: Cow<'r, Json>,
    old: Cow<'r, Json>,
    request: Json,
    namespace: Json,
    authorizer: RequestAuthorizer<'r>,
    resource: Arc<ResourceAttributes>,
}

impl<'r> Inputs<'r> {
    /// Match conditions of webhooks do not see the namespace.
    pub(super) fn new(
        review: &'r Review<'r>,
        kind: &'static KindDef,
        form: Form<'r>,
        with_namespace: bool,
    ) -> Inputs<'r> {
        Inputs {
            object: form.object.unwrap_or(Cow::Borrowed(&NULL)),
            old: form.old.unwrap_or(Cow::Borrowed(&NULL)),
            request: request_attributes(review, kind),
            namespace: if with_namespace {
                namespace_object(review)
            } else {
                Json::Null
            },
            authorizer: RequestAuthorizer { review },
            resource: Arc::new(ResourceAttributes {
                group: review.kind.group.to_string(),
                resource: review.kind.plural.to_string(),
                subresource: review.subresource.to_string(),
                namespace: review.namespace_attribute().to_string(),
                name: review.name.clone(),
                ..Default::default()
            }),
        }
    }

    /// `params`: none if the expressions have none; null if they do but there are none.
    pub(super) fn activation<'a>(&'a self, params: Option<&'a Json>, authorizer: bool) -> Activation<'a> {
        let mut activation = Activation::new()
            .bind("object", Value::json(&self.object))
            .bind("oldObject", Value::json(&self.old))
            .bind("request", Value::json(&self.request))
            .bind("namespaceObject", Value::json(&self.namespace));
        if let Some(params) = params {
            activation = activation.bind("params", Value::json(params));
        }
        if authorizer {
            let resource = Value::request_resource(&self.authorizer, self.resource.clone());
            activation = activation
                .bind("authorizer", Value::authorizer(&self.authorizer))
                .bind("authorizer.requestResource", resource);
        }
        activation
    }
}

/// The activation with a policy's variables.
pub(super) fn with_variables<'a>(activation: Activation<'a>, variables: &'a [(String, Expression)]) -> Activation<'a> {
    let compiled = variables.iter().filter_map(|(name, expression)| {
        let program = expression.program.as_ref().ok()?;
        Some((name.as_str(), program))
    });
    activation.bind_variables("variables", Variables::new(compiled))
}

/// The namespace of the request; null for what has none, and for namespaces themselves.
fn namespace_object(review: &Review<'_>) -> Json {
    if review.namespace.is_empty() || review.is_namespace_object() {
        return Json::Null;
    }
    let Some(namespace) = review.lookup.get("namespaces", "", &review.namespace) else {
        return Json::Null;
    };
    let mut shown = (*namespace).clone();
    if let Some(object) = shown.as_object_mut() {
        object.retain(|name, _| matches!(name.as_str(), "metadata" | "spec" | "status"));
    }
    if let Some(metadata) = shown["metadata"].as_object_mut() {
        metadata.remove("managedFields");
        metadata.remove("ownerReferences");
    }
    shown
}

/// The server's own authorizer, asked for the user of the request.
struct RequestAuthorizer<'r> {
    review: &'r Review<'r>,
}

impl Authorizer for RequestAuthorizer<'_> {
    fn check(&self, requirement: &Requirement) -> Verdict {
        let account = requirement.service_account.as_ref();
        let account = account.map(|(namespace, name)| UserInfo::service_account(namespace, name, ""));
        let user = account.as_ref().unwrap_or(self.review.user);
        let (fields, labels);
        let attributes = match &requirement.target {
            Target::Path(path) => Attributes::path(user, &requirement.verb, path),
            Target::Resource(resource) => {
                let parsed = resource.field_selector.as_ref();
                fields = parsed.and_then(|s| FieldSelector::parse(&s.0).ok());
                let parsed = resource.label_selector.as_ref();
                labels = parsed.and_then(|s| LabelSelector::parse(&s.0).ok());
                Attributes {
                    field_selector: fields.as_ref(),
                    label_selector: labels.as_ref(),
                    ..Attributes::resource(user, &requirement.verb, &resource.group, &resource.resource)
                }
                .in_namespace(&resource.namespace)
                .named(&resource.name)
                .subresource(&resource.subresource)
            }
        };
        let decision = self.review.authorizer.authorize(&attributes, self.review.lookup);
        Verdict {
            decision: match (decision.allowed, decision.denied) {
                (true, _) => Decision::Allow,
                (false, true) => Decision::Deny,
                (false, false) => Decision::NoOpinion,
            },
            reason: decision.reason.to_string(),
            error: None,
        }
    }
}

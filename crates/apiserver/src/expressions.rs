//! CEL expressions of authentication and authorization configurations: over the claims of a token (`claims`), over the user
//! that they make (`user`), over what an authorization webhook would be asked (`request`).
// Upstream: staging/src/k8s.io/apiserver/pkg/{authentication,authorization}/cel (v1.36)

use std::sync::{Arc, LazyLock};

use orlop_cel::{Activation, Budget, DeclType, Env, Field, ListType, ObjectType, Program, Type};
use serde_json::Value;

/// Why an expression cannot be compiled or evaluated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExpressionError {
    #[error("compilation failed: {0}")]
    Compile(String),
    #[error("{0}")]
    Eval(String),
}

/// A variable that expressions are over.
struct Scope {
    name: &'static str,
    decl: Arc<DeclType>,
    env: Env,
}

impl Scope {
    fn new(name: &'static str, decl: DeclType) -> Scope {
        let decl = Arc::new(decl);
        Scope {
            name,
            env: Env::builder().variable(name, decl.clone()).build(),
            decl,
        }
    }
}

static CLAIMS: LazyLock<Scope> =
    LazyLock::new(|| Scope::new("claims", DeclType::simple(Type::map(Type::String, Type::Dyn))));

static USER: LazyLock<Scope> = LazyLock::new(|| {
    let mut fields = texts(&["username", "uid"]);
    fields.extend(groups_and_extra());
    Scope::new("user", object("kubernetes.UserInfo", fields))
});

static REQUEST: LazyLock<Scope> = LazyLock::new(|| {
    let mut requirement = texts(&["key", "operator"]);
    requirement.push(Field::new("values", DeclType::simple(Type::list(Type::String))));
    let requirement = Arc::new(object("kubernetes.SelectorRequirement", requirement));
    let selector = |name: &str| {
        let mut fields = texts(&["rawSelector"]);
        let requirements = DeclType::list(requirement.clone(), ListType::Atomic, None);
        fields.push(Field::new("requirements", requirements));
        object(name, fields)
    };
    let mut resource = texts(&[
        "namespace",
        "verb",
        "group",
        "version",
        "resource",
        "subresource",
        "name",
    ]);
    resource.push(Field::new(
        "fieldSelector",
        selector("kubernetes.FieldSelectorAttributes"),
    ));
    resource.push(Field::new(
        "labelSelector",
        selector("kubernetes.LabelSelectorAttributes"),
    ));
    let path = object("kubernetes.NonResourceAttributes", texts(&["path", "verb"]));
    let mut fields = texts(&["user", "uid"]);
    fields.extend(groups_and_extra());
    fields.push(Field::new(
        "resourceAttributes",
        object("kubernetes.ResourceAttributes", resource),
    ));
    fields.push(Field::new("nonResourceAttributes", path));
    Scope::new("request", object("kubernetes.SubjectAccessReviewSpec", fields))
});

fn object(name: &str, fields: Vec<(String, Field)>) -> DeclType {
    DeclType::object(Arc::new(ObjectType::new(name, fields)))
}

fn texts(names: &[&str]) -> Vec<(String, Field)> {
    let text = |name: &&str| Field::new(*name, DeclType::simple(Type::String));
    names.iter().map(text).collect()
}

fn groups_and_extra() -> [(String, Field); 2] {
    let list = || Type::list(Type::String);
    [
        Field::new("groups", DeclType::simple(list())),
        Field::new("extra", DeclType::simple(Type::map(Type::String, list()))),
    ]
}

/// A compiled expression over one variable.
pub(crate) struct Expression {
    scope: &'static Scope,
    program: Program,
}

impl Expression {
    /// Over the claims of a token, of any type.
    pub(crate) fn over_claims(text: &str) -> Result<Expression, ExpressionError> {
        Expression::compile(&CLAIMS, text, &[])
    }

    pub(crate) fn claims_condition(text: &str) -> Result<Expression, ExpressionError> {
        Expression::compile(&CLAIMS, text, &[Type::Bool])
    }

    pub(crate) fn user_condition(text: &str) -> Result<Expression, ExpressionError> {
        Expression::compile(&USER, text, &[Type::Bool])
    }

    /// Over the spec of a SubjectAccessReview.
    pub(crate) fn request_condition(text: &str) -> Result<Expression, ExpressionError> {
        Expression::compile(&REQUEST, text, &[Type::Bool])
    }

    fn compile(scope: &'static Scope, text: &str, wanted: &[Type]) -> Result<Expression, ExpressionError> {
        let program = scope.env.compile(text, wanted);
        Ok(Expression {
            scope,
            program: program.map_err(|e| ExpressionError::Compile(e.to_string()))?,
        })
    }

    /// The value for a value of its variable.
    pub(crate) fn eval(&self, variable: &Value) -> Result<Value, ExpressionError> {
        let failed = |e: &dyn ToString| ExpressionError::Eval(e.to_string());
        let value = orlop_cel::Value::declared(variable, &self.scope.decl).map_err(|e| failed(&e))?;
        let activation = Activation::new().bind(self.scope.name, value);
        let found = self.program.eval(&activation, &mut Budget::per_call());
        found.map_err(|e| failed(&e))?.to_json().map_err(|e| failed(&e))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn expressions_over_claims_users_and_requests() {
        let claims = json!({"sub": "ann", "roles": ["a", "b"], "nested": {"n": 1}, "verified": true});
        for (text, wanted) in [
            ("claims.sub", json!("ann")),
            ("'p:' + claims.sub", json!("p:ann")),
            ("claims.roles.map(r, 'g:' + r)", json!(["g:a", "g:b"])),
            ("claims.?missing.orValue('none')", json!("none")),
            ("has(claims.sub)", json!(true)),
            ("claims.nested.n == 1", json!(true)),
        ] {
            assert_eq!(
                Expression::over_claims(text).unwrap().eval(&claims).unwrap(),
                wanted,
                "{text}"
            );
        }
        assert!(Expression::claims_condition("claims.sub == 'ann'").is_ok());
        assert!(Expression::claims_condition("'text'").is_err());
        assert!(Expression::over_claims("user.username").is_err());
        assert!(
            Expression::over_claims("claims.missing")
                .unwrap()
                .eval(&claims)
                .is_err()
        );

        let user = json!({"username": "ann", "groups": ["g"]});
        let rule =
            Expression::user_condition("!user.username.startsWith('system:') && user.groups.exists(g, g == 'g')");
        assert_eq!(rule.unwrap().eval(&user).unwrap(), json!(true));
        assert!(Expression::user_condition("user.name == 'x'").is_err());

        let request =
            json!({"user": "ann", "groups": [], "resourceAttributes": {"namespace": "kube-system", "verb": "get"}});
        let rule = "has(request.resourceAttributes) && request.resourceAttributes.namespace == 'kube-system'";
        let rule = Expression::request_condition(rule).unwrap();
        assert_eq!(rule.eval(&request).unwrap(), json!(true));
        assert_eq!(
            rule.eval(&json!({"user": "ann", "nonResourceAttributes": {"path": "/"}}))
                .unwrap(),
            json!(false)
        );
    }
}

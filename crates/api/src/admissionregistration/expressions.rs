//! The CEL expressions in the kinds of this group, and what each may refer to.

use crate::field::{Cursor, Path};

/// What an expression is for; it decides the type it must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// bool.
    MatchCondition,
    /// Anything; later expressions of the policy see it as `variables.<name>`.
    Variable,
    /// bool.
    Validation,
    /// string; may not ask the authoriser.
    Message,
    /// string or null.
    AuditAnnotation,
    /// An apply configuration (`Object{…}`).
    ApplyConfiguration,
    /// A list of `JSONPatch{…}`.
    JsonPatch,
}

pub struct Expression<'a> {
    pub path: Path,
    pub text: &'a str,
    pub role: Role,
    /// The variable that it defines, where the role is `Variable`.
    pub name: &'a str,
    /// `params` may be used.
    pub has_params: bool,
}

/// All expressions of a webhook configuration or policy, in the order in which they see one another. Blank ones are left
/// out: that they are blank is reported by validation.
pub fn of<'a>(object: &Cursor<'a>) -> Vec<Expression<'a>> {
    let spec = object.at("spec");
    let has_params = spec.at("paramKind").exists();
    let mut found = vec![];
    let mut add = |at: &Cursor<'a>, field: &'static str, role, name: &'a str, has_params| {
        let c = at.at(field);
        if !c.str().trim().is_empty() {
            let (path, text) = (c.path().clone(), c.str());
            found.push(Expression {
                path,
                text,
                role,
                name,
                has_params,
            });
        }
    };
    for hook in object.at("webhooks").items() {
        for condition in hook.at("matchConditions").items() {
            add(&condition, "expression", Role::MatchCondition, "", false);
        }
    }
    for condition in spec.at("matchConditions").items() {
        add(&condition, "expression", Role::MatchCondition, "", has_params);
    }
    for variable in spec.at("variables").items() {
        add(
            &variable,
            "expression",
            Role::Variable,
            variable.at("name").str(),
            has_params,
        );
    }
    for validation in spec.at("validations").items() {
        add(&validation, "expression", Role::Validation, "", has_params);
        add(&validation, "messageExpression", Role::Message, "", has_params);
    }
    for annotation in spec.at("auditAnnotations").items() {
        add(&annotation, "valueExpression", Role::AuditAnnotation, "", has_params);
    }
    for mutation in spec.at("mutations").items() {
        let apply = mutation.at("applyConfiguration");
        add(&apply, "expression", Role::ApplyConfiguration, "", has_params);
        add(&mutation.at("jsonPatch"), "expression", Role::JsonPatch, "", has_params);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn expressions_are_found_where_they_stand() {
        let hooks = json!({"webhooks": [{"matchConditions": [{"expression": "a"}, {"expression": " "}]}]});
        let policy = json!({"spec": {"paramKind": {}, "matchConditions": [{"expression": "b"}],
            "variables": [{"name": "v", "expression": "c"}],
            "validations": [{"expression": "d", "messageExpression": "e"}],
            "auditAnnotations": [{"valueExpression": "f"}],
            "mutations": [{"applyConfiguration": {"expression": "g"}}, {"jsonPatch": {"expression": "h"}}]}});
        let shown = |v: &serde_json::Value| -> Vec<String> {
            let all = of(&Cursor::root(v));
            all.iter()
                .map(|e| format!("{}={} {:?} {} {}", e.path, e.text, e.role, e.name, e.has_params))
                .collect()
        };
        assert_eq!(
            shown(&hooks),
            ["webhooks[0].matchConditions[0].expression=a MatchCondition  false"]
        );
        assert_eq!(
            shown(&policy),
            [
                "spec.matchConditions[0].expression=b MatchCondition  true",
                "spec.variables[0].expression=c Variable v true",
                "spec.validations[0].expression=d Validation  true",
                "spec.validations[0].messageExpression=e Message  true",
                "spec.auditAnnotations[0].valueExpression=f AuditAnnotation  true",
                "spec.mutations[0].applyConfiguration.expression=g ApplyConfiguration  true",
                "spec.mutations[1].jsonPatch.expression=h JsonPatch  true",
            ]
        );
    }
}

//! Apply configurations of mutating policies: merged into an object like those of server-side apply, but nobody comes to
//! own what they set, and nothing goes because they leave it out.
//!
//! Upstream: apiserver/pkg/admission/plugin/policy/mutating/patch/smd.go (v1.36).

use serde_json::Value;

use super::shape::Shape;
use super::{ApplyError, ObjectType, check, merge};

/// The object with what the configuration says. What is atomic may not be set: whoever sets a part of it would remove the
/// rest unawares.
pub fn merge_configuration(object: &Value, config: &Value, ty: ObjectType<'_>) -> Result<Value, ApplyError> {
    if let Some(problems) = check::problems(config, ty) {
        let why = format!("failed to convert patch object to typed object: {problems}");
        return Err(ApplyError::Invalid(why));
    }
    let shape = Shape::of_object(ty);
    let mut atomics = vec![];
    find_atomics(config, shape, String::new(), &mut atomics);
    if !atomics.is_empty() {
        let list = atomics.join(", ");
        let why = format!("invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {list}");
        return Err(ApplyError::Invalid(why));
    }
    Ok(merge::merge(object, config, shape))
}

fn find_atomics(value: &Value, shape: Shape<'_>, path: String, found: &mut Vec<String>) {
    match (value, shape) {
        (Value::Array(_), Shape::Leaf | Shape::Deduced) | (Value::Object(_), Shape::Leaf) => found.push(path),
        (Value::Object(members), _) => {
            for (name, member) in members {
                find_atomics(member, shape.part(name).shape, format!("{path}.{name}"), found);
            }
        }
        (Value::Array(items), Shape::Keyed(..) | Shape::NodeKeyed(_)) => {
            for (index, item) in items.iter().enumerate() {
                find_atomics(item, shape.elements(), format!("{path}[{index}]"), found);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::schema;

    fn merged(object: Value, config: Value) -> Result<Value, String> {
        let ty = schema().get("core/v1.Pod");
        merge_configuration(&object, &config, ty.into()).map_err(|e| e.to_string())
    }

    #[test]
    fn configurations_are_merged_by_the_schema() {
        let pod = json!({"metadata": {"labels": {"a": "1"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let config = json!({"metadata": {"labels": {"b": "2"}},
            "spec": {"containers": [{"name": "c", "imagePullPolicy": "Always"}, {"name": "d"}]}});
        assert_eq!(
            merged(pod, config),
            Ok(json!({"metadata": {"labels": {"a": "1", "b": "2"}},
                "spec": {"containers": [{"name": "c", "image": "i", "imagePullPolicy": "Always"}, {"name": "d"}]}}))
        );
    }

    #[test]
    fn atomics_and_unknown_fields_are_refused() {
        let refused = merged(
            json!({}),
            json!({"spec": {"tolerations": [{"key": "a"}], "containers": [{"name": "c", "args": ["x"]}]}}),
        );
        assert_eq!(
            refused.unwrap_err(),
            "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.containers[0].args, .spec.tolerations"
        );
        let refused = merged(json!({}), json!({"spec": {"wrong": 1}})).unwrap_err();
        assert!(
            refused.starts_with("failed to convert patch object to typed object: "),
            "{refused}"
        );
    }
}

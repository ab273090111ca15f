//! YAML bodies: read with YAML 1.1's words for booleans and octal numbers, as Kubernetes does, then decoded like JSON.

use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;

use super::decode::{DecodeError, Decoded, MAX_DEPTH, decode_json, from_value};
use super::{TypeMeta, TypeRef};

pub fn decode_yaml(bytes: &[u8], ty: TypeRef) -> Result<Decoded, DecodeError> {
    // JSON is YAML, and much faster to read as JSON.
    if bytes.trim_ascii_start().first() == Some(&b'{')
        && let Ok(decoded) = decode_json(bytes, ty)
    {
        return Ok(decoded);
    }
    let (value, mut problems) = yaml_to_value(bytes)?;
    let decoded = from_value(value, ty)?;
    problems.extend(decoded.problems);
    Ok(Decoded {
        value: decoded.value,
        problems,
    })
}

/// Reads YAML without a type, and what strict reading would complain about (keys given twice; the last one counts).
pub fn yaml_to_value(bytes: &[u8]) -> Result<(Value, Vec<String>), DecodeError> {
    use serde_saphyr::Error::DuplicateMappingKey;
    let text = std::str::from_utf8(bytes).map_err(|e| DecodeError(format!("yaml: {e}")))?;
    match serde_saphyr::from_str_with_options::<Value>(text, options(DuplicateKeyPolicy::Error)) {
        Ok(value) => Ok((value, vec![])),
        Err(DuplicateMappingKey { key, location, .. }) => {
            let line = location.line();
            let key = key.unwrap_or_default();
            let problem = format!("line {line}: key {key:?} already set in map");
            serde_saphyr::from_str_with_options::<Value>(text, options(DuplicateKeyPolicy::LastWins))
                .map(|value| (value, vec![problem]))
                .map_err(|e| DecodeError(format!("yaml: {e}")))
        }
        Err(e) => Err(DecodeError(format!("yaml: {e}"))),
    }
}

fn options(duplicate_keys: DuplicateKeyPolicy) -> serde_saphyr::Options {
    serde_saphyr::options! {
        duplicate_keys: duplicate_keys,
        legacy_octal_numbers: true,
        with_snippet: false,
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH as usize + 2 },
    }
}

/// Reads apiVersion and kind of a body in YAML.
pub fn peek_yaml_type(bytes: &[u8]) -> Result<TypeMeta, DecodeError> {
    let (value, _) = yaml_to_value(bytes)?;
    let word = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_string();
    Ok(TypeMeta {
        api_version: word("apiVersion"),
        kind: word("kind"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::schema;
    use serde_json::json;

    #[test]
    fn yaml_decodes_like_json() {
        let ty = schema().get("core/v1.ConfigMap").unwrap();
        let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\nimmutable: yes\ndata:\n  k: |\n    x\n    y\n  n: \"1\"\nfoo: 1\n";
        let decoded = decode_yaml(text.as_bytes(), ty).unwrap();
        assert_eq!(
            decoded.value,
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "immutable": true,
                   "data": {"k": "x\ny\n", "n": "1"}})
        );
        assert_eq!(decoded.problems, ["unknown field \"foo\""]);
        assert_eq!(
            decode_yaml(br#"{"kind": "ConfigMap"}"#, ty).unwrap().value["kind"],
            "ConfigMap"
        );
        assert_eq!(peek_yaml_type(text.as_bytes()).unwrap().kind, "ConfigMap");
    }

    #[test]
    fn numbers_are_those_of_yaml_1_1() {
        let ty = schema().get("core/v1.Pod").unwrap();
        let text = "spec:\n  volumes:\n  - name: v\n    configMap: {name: c, defaultMode: 0644}\n";
        let pod = decode_yaml(text.as_bytes(), ty).unwrap().value;
        assert_eq!(pod["spec"]["volumes"][0]["configMap"]["defaultMode"], 420);
    }

    #[test]
    fn wrong_yaml_is_refused_and_double_keys_reported() {
        let ty = schema().get("core/v1.ConfigMap").unwrap();
        for text in ["data: {a: 1}", "[]", "a: b: c", "", "data: &a {x: *a}"] {
            assert!(decode_yaml(text.as_bytes(), ty).is_err(), "{text}");
        }
        let deep = "[".repeat(100_000);
        assert!(decode_yaml(deep.as_bytes(), ty).is_err());
        let twice = decode_yaml(b"data:\n  a: one\n  a: two\n", ty).unwrap();
        assert_eq!(twice.value["data"]["a"], "two");
        assert_eq!(twice.problems, ["line 3: key \"a\" already set in map"]);
    }
}

//! `$(VAR)` references in commands, arguments and variables.

use std::borrow::Cow;

use orlop_runtime::cri::messages::KeyValue;

/// Puts values in for `$(NAME)`. A name without a value stays as it is written, `$$` is one dollar sign.
pub fn expand<'a>(text: &str, value: impl Fn(&str) -> Option<Cow<'a, str>>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        rest = match after.bytes().next() {
            Some(b'$') => {
                out.push('$');
                &after[1..]
            }
            Some(b'(') => match after.find(')') {
                Some(end) => {
                    let name = &after[1..end];
                    match value(name) {
                        Some(value) => out.push_str(&value),
                        None => out.extend(["$(", name, ")"]),
                    }
                    &after[end + 1..]
                }
                None => {
                    out.push_str("$(");
                    &after[1..]
                }
            },
            _ => {
                out.push('$');
                after
            }
        };
    }
    out.push_str(rest);
    out
}

/// A command or its arguments, with the container's variables put in.
pub fn expand_all(words: Option<&[String]>, env: &[KeyValue]) -> Vec<String> {
    let value = |name: &str| {
        let last = env.iter().rev().find(|kv| kv.key == name)?;
        Some(String::from_utf8_lossy(&last.value))
    };
    words
        .unwrap_or_default()
        .iter()
        .map(|word| expand(word, value))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(name: &str) -> Option<Cow<'static, str>> {
        match name {
            "A" => Some("a".into()),
            "EMPTY" => Some("".into()),
            "REF" => Some("$(A)".into()),
            "B" => Some("b".into()),
            _ => None,
        }
    }

    #[test]
    fn references_are_replaced_once() {
        for (text, expected) in [
            ("plain", "plain"),
            ("$(A)", "a"),
            ("x-$(A)-$(B)-y", "x-a-b-y"),
            ("$(EMPTY)", ""),
            ("$(REF)", "$(A)"),
            ("$(MISSING)", "$(MISSING)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$a"),
            ("$$$$(A)", "$$(A)"),
            ("$A", "$A"),
            ("$", "$"),
            ("a$", "a$"),
            ("$$", "$"),
            ("$(", "$("),
            ("$(A", "$(A"),
            ("$(A $(B)", "$(A $(B)"),
            ("$()", "$()"),
            ("$é(A)", "$é(A)"),
            ("(A)", "(A)"),
            ("$(A)$(A)", "aa"),
            ("$-$(B)", "$-b"),
        ] {
            assert_eq!(expand(text, value), expected, "{text}");
        }
    }

    #[test]
    fn the_last_of_two_values_counts() {
        let kv = |key: &str, value: &str| KeyValue {
            key: key.into(),
            value: value.into(),
        };
        let env = [kv("A", "old"), kv("A", "new")];
        let words = ["echo".to_string(), "$(A)".to_string()];
        assert_eq!(expand_all(Some(&words), &env), ["echo", "new"]);
        assert!(expand_all(None, &env).is_empty());
    }

    proptest! {
        #[test]
        fn text_without_dollars_stays(text in "[^$]*") {
            prop_assert_eq!(expand(&text, value), text);
        }

        #[test]
        fn doubling_dollars_escapes_anything(text in ".*") {
            prop_assert_eq!(expand(&text.replace('$', "$$"), value), text);
        }
    }
}

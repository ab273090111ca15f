//! `$(NAME)` in texts. No I/O.

/// Replaces each `$(NAME)` by what `value` says; `$$` stands for one `$`, and what does not look like a name is left.
pub fn expand(text: &str, mut value: impl FnMut(&str) -> String) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        out.push_str(&rest[..dollar]);
        let after = &rest[dollar + 1..];
        let name = after.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        rest = match name {
            Some((name, after)) => {
                out.push_str(&value(name));
                after
            }
            None => {
                out.push('$');
                after.strip_prefix('$').unwrap_or(after)
            }
        };
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms() {
        let cases = [
            ("plain", "plain"),
            ("$(A)/$(B)", "<A>/<B>"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$<A>"),
            ("$A $", "$A $"),
            ("$(open", "$(open"),
            ("$()", "<>"),
            ("ü$(é)", "ü<é>"),
        ];
        for (text, expected) in cases {
            assert_eq!(expand(text, |name| format!("<{name}>")), expected);
        }
    }
}

//! Which controllers run: the list of `--controllers`.

use crate::runtime::Def;

/// A name in `--controllers` that no controller has.
#[derive(Debug, thiserror::Error)]
#[error("{name:?} is not in the list of known controllers: {known}")]
pub struct UnknownController {
    pub name: String,
    known: String,
}

/// `*` stands for all that run by default, `foo` adds one, `-foo` takes one away, wherever it stands.
/// The order is that of `all`.
pub fn select(all: &[&'static Def], wanted: &[String]) -> Result<Vec<&'static Def>, UnknownController> {
    let known = |name: &str| all.iter().any(|def| def.name == name);
    let unknown: Vec<&str> = wanted
        .iter()
        .map(|word| word.strip_prefix('-').unwrap_or(word))
        .filter(|name| *name != "*" && !known(name))
        .collect();
    if let Some(name) = unknown.first() {
        let names: Vec<&str> = all.iter().map(|def| def.name).collect();
        return Err(UnknownController {
            name: (*name).to_string(),
            known: names.join(", "),
        });
    }
    let has = |word: &str| wanted.iter().any(|w| w == word);
    let runs = |def: &&&'static Def| {
        let (on, off) = (has(def.name), has(&format!("-{}", def.name)));
        !off && (on || has("*") && def.on_by_default)
    };
    Ok(all.iter().filter(runs).copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn def(name: &'static str, on_by_default: bool) -> Def {
        let (account, start) = (name, |_: &crate::runtime::Setup| {});
        Def {
            name,
            account,
            on_by_default,
            start,
        }
    }

    #[test]
    fn words_choose_controllers() {
        const ALL: &[&Def] = &[&def("a", true), &def("b", true), &def("c", false)];
        let chosen = |words: &str| {
            let words: Vec<String> = words.split(',').map(str::to_string).collect();
            let found = select(ALL, &words).map_err(|e| e.to_string())?;
            Ok::<_, String>(found.iter().map(|def| def.name).collect::<Vec<_>>().join(","))
        };
        let cases = [
            ("*", "a,b"),
            ("*,c", "a,b,c"),
            ("*,-a", "b"),
            ("-a,*", "b"),
            ("c", "c"),
            ("b,c,-c", "b"),
        ];
        for (words, expected) in cases {
            assert_eq!(chosen(words).as_deref(), Ok(expected), "{words}");
        }
        let refused = chosen("*,-d").unwrap_err();
        assert_eq!(refused, "\"d\" is not in the list of known controllers: a, b, c");
    }
}

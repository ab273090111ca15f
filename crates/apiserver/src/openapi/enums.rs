//! The values that enumerated fields may have: a table (`enums.txt`, written by `tools/enums.py`), for documents only.
//! What is accepted is decided by validation.

use std::collections::HashMap;

/// By type and field: the values, with `|` between them.
pub(super) struct Enums(HashMap<(&'static str, &'static str), &'static str>);

impl Enums {
    pub(super) fn load() -> Enums {
        let row = |line: &'static str| {
            let (ty, rest) = line.split_once(' ')?;
            let (field, values) = rest.split_once(' ')?;
            Some(((ty, field), values))
        };
        Enums(include_str!("enums.txt").lines().filter_map(row).collect())
    }

    /// The possible values of a field (of the elements, if it is a list); none if it is not enumerated.
    pub(super) fn of_field(&self, ty: &str, field: &str) -> Vec<&'static str> {
        match self.0.get(&(ty, field)) {
            Some(values) => values.split('|').collect(),
            None => vec![],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_and_fields_exist() {
        let enums = Enums::load();
        assert_eq!(
            enums.of_field("core/v1.Container", "imagePullPolicy"),
            ["Always", "IfNotPresent", "Never"]
        );
        assert_eq!(enums.of_field("core/v1.HostPathVolumeSource", "type")[0], "");
        assert!(enums.of_field("core/v1.Container", "name").is_empty());
        let types = orlop_api::schema::schema();
        for line in include_str!("enums.txt").lines() {
            let words: Vec<&str> = line.splitn(3, ' ').collect();
            let ty = types.ty(types.get(words[0]).unwrap_or_else(|| panic!("{line}")));
            assert!(ty.field(words[1]).is_some(), "{line}");
        }
    }
}

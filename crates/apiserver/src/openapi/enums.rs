//! The values that enumerated fields may have: a table (`enums.txt`, written by `tools/enums.py`), for documents only.
//! What is accepted is decided by validation.

use std::collections::HashMap;
use std::sync::OnceLock;

/// The possible values of a field (of the elements, if it is a list); none if it is not enumerated.
pub fn of_field(ty: &str, field: &str) -> Vec<&'static str> {
    static TABLE: OnceLock<HashMap<(&str, &str), &str>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        include_str!("enums.txt")
            .lines()
            .filter_map(|line| {
                let (ty, rest) = line.split_once(' ')?;
                let (field, values) = rest.split_once(' ')?;
                Some(((ty, field), values))
            })
            .collect()
    });
    table
        .get(&(ty, field))
        .map_or_else(Vec::new, |values| values.split('|').collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_and_fields_exist() {
        assert_eq!(
            of_field("core/v1.Container", "imagePullPolicy"),
            ["Always", "IfNotPresent", "Never"]
        );
        assert_eq!(of_field("core/v1.HostPathVolumeSource", "type")[0], "");
        assert!(of_field("core/v1.Container", "name").is_empty());
        let types = orlop_api::schema::schema();
        for line in include_str!("enums.txt").lines() {
            let words: Vec<&str> = line.splitn(3, ' ').collect();
            let ty = types.ty(types.get(words[0]).unwrap_or_else(|| panic!("{line}")));
            assert!(ty.field(words[1]).is_some(), "{line}");
        }
    }
}

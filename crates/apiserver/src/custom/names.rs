//! Names of custom kinds.

use std::collections::HashSet;

use parking_lot::Mutex;

/// The text for as long as the process runs, kept once. For names of groups, versions and kinds alone: those come with
/// definitions, which administrators make, and come again and again.
pub(super) fn kept(text: &str) -> &'static str {
    static KEPT: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut kept = KEPT.lock();
    let kept = kept.get_or_insert_default();
    if let Some(found) = kept.get(text) {
        return found;
    }
    let new: &'static str = Box::leak(text.into());
    kept.insert(new);
    new
}

/// What OpenAPI documents call the kind: `com.example.stable.v1.CronTab`.
pub(super) fn definition(group: &str, version: &str, kind: &str) -> String {
    let mut words: Vec<&str> = group.split('.').collect();
    words.reverse();
    format!("{}.{version}.{kind}", words.join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_kept_once() {
        let first = kept("stable.example.com");
        assert!(std::ptr::eq(first, kept(&String::from("stable.example.com"))));
        assert_eq!(
            definition("stable.example.com", "v1", "CronTab"),
            "com.example.stable.v1.CronTab"
        );
    }
}

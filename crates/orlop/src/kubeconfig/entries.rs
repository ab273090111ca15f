//! What a cluster adds to a kubeconfig and takes out again: pure functions over the file's value.
//!
//! A cluster's three entries (cluster, user, context) have one name. They carry an extension that says whose they are (the
//! data directory) and what was there before, so that nothing else has to be remembered, and nothing is ever touched that
//! is not ours.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Names our extension of the entries.
const EXTENSION: &str = "orlop";
/// The name of the first cluster's context.
const NAME: &str = "orlop";
const CURRENT: &str = "current-context";
/// The lists of a kubeconfig, and what holds the entry beside its name.
const LISTS: [(&str, &str); 3] = [("clusters", "cluster"), ("contexts", "context"), ("users", "user")];

/// A kubeconfig that we had better not touch.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FormatError {
    #[error("it is not a kubeconfig: not a map")]
    NotAMap,
    #[error("{0} is not a list of named entries")]
    NotAList(&'static str),
}

/// How to reach a cluster, and as whom: the values of a cluster and of a user.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Access {
    pub cluster: Map<String, Value>,
    pub user: Map<String, Value>,
}

impl Access {
    /// Of the first cluster and the first user in a kubeconfig.
    pub(crate) fn of_kubeconfig(config: &Value) -> Option<Access> {
        let first = |list: &str, field: &str| config[list][0][field].as_object().cloned();
        Some(Access {
            cluster: first("clusters", "cluster")?,
            user: first("users", "user")?,
        })
    }
}

/// The extension's value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Mark {
    data_dir: String,
    /// The current context before ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    previous_context: Option<String>,
    /// Lists that were not there before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    added_lists: Vec<String>,
    /// There was no file before.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    created_file: bool,
}

/// What became of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Merged {
    pub context: String,
    /// The current context before, if it was another.
    pub previous_context: Option<String>,
}

/// Puts a cluster's entries into a kubeconfig and makes its context the current one, as kind and minikube do. Those that it
/// had before are replaced. `is_gone` says of a data directory that it is no more: entries of such a one are taken out.
pub(crate) fn merge(
    config: &mut Value,
    access: &Access,
    data_dir: &Path,
    is_gone: impl Fn(&Path) -> bool,
) -> Result<Merged, FormatError> {
    let created_file = config.is_null();
    if created_file {
        *config = json!({"apiVersion": "v1", "kind": "Config", "preferences": {}});
    }
    check(config)?;
    let owner = data_dir.to_string_lossy().into_owned();
    let before = mark_of(config, &owner);
    unmerge_where(config, |dir| dir != owner && is_gone(Path::new(dir)))?;
    let old_name = before.as_ref().map(|(name, _)| name.clone());
    remove_entries(config, &|dir| dir == owner);
    let name = choose_name(config, old_name.as_deref(), data_dir);
    let current = config[CURRENT].as_str().map(String::from);
    let old_mark = before.map(|(_, mark)| mark).unwrap_or_default();
    if let Some(old_name) = &old_name {
        pass_over(config, old_name, &old_mark);
    }
    let previous_context = match current {
        // Still ours: what was there before that counts.
        Some(current) if Some(&current) == old_name.as_ref() => old_mark.previous_context,
        current => current,
    };
    let mut mark = Mark {
        data_dir: owner,
        previous_context: previous_context.clone(),
        added_lists: old_mark.added_lists,
        created_file: old_mark.created_file || created_file,
    };
    for (list, _) in LISTS {
        if config.get(list).is_none() {
            mark.added_lists.push(list.to_string());
        }
    }
    mark.added_lists.sort();
    mark.added_lists.dedup();
    insert(config, &name, access, &mark);
    config[CURRENT] = json!(name);
    Ok(Merged {
        previous_context: previous_context.filter(|previous| !previous.is_empty() && *previous != name),
        context: name,
    })
}

/// What is left of a kubeconfig that a cluster was taken out of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unmerged {
    /// Nothing of it was there.
    Unchanged,
    Changed,
    /// The file was made for it, and there is nothing else in it.
    Empty,
}

/// Takes a cluster's entries out. The context that was the current one before is so again, if it is still there.
pub(crate) fn unmerge(config: &mut Value, data_dir: &Path) -> Result<Unmerged, FormatError> {
    if config.is_null() {
        return Ok(Unmerged::Unchanged);
    }
    check(config)?;
    let owner = data_dir.to_string_lossy().into_owned();
    unmerge_where(config, |dir| dir == owner)
}

fn unmerge_where(config: &mut Value, is_ours: impl Fn(&str) -> bool) -> Result<Unmerged, FormatError> {
    let ours: Vec<(String, Mark)> = marks(config)
        .into_iter()
        .filter(|(_, mark)| is_ours(&mark.data_dir))
        .collect();
    if !remove_entries(config, &is_ours) {
        return Ok(Unmerged::Unchanged);
    }
    let mut outcome = Unmerged::Changed;
    for (name, mark) in ours {
        hand_on(config, &name, &mark);
        if config[CURRENT].as_str() == Some(&name) {
            let previous = mark.previous_context.filter(|previous| has_context(config, previous));
            match previous {
                Some(previous) => config[CURRENT] = json!(previous),
                None => drop(config.as_object_mut().and_then(|config| config.remove(CURRENT))),
            }
        }
        if marks(config).is_empty() {
            drop_empty_lists(config, &mark.added_lists);
            if mark.created_file && is_empty(config) {
                outcome = Unmerged::Empty;
            }
        }
    }
    Ok(outcome)
}

/// What a cluster that goes has to undo is left to another that stays.
fn hand_on(config: &mut Value, gone: &str, mark: &Mark) {
    pass_over(config, gone, mark);
    let mut heirs = config["contexts"].as_array_mut().into_iter().flatten();
    if let Some((context, mut heir)) = heirs.find_map(|context| read_mark(&context["context"]).map(|m| (context, m))) {
        heir.added_lists.extend(mark.added_lists.iter().cloned());
        heir.created_file |= mark.created_file;
        write_mark(&mut context["context"], &heir);
    }
}

/// Clusters that would go back to this one's context go back to what was before it.
fn pass_over(config: &mut Value, name: &str, mark: &Mark) {
    for context in config["contexts"].as_array_mut().into_iter().flatten() {
        if let Some(mut other) = read_mark(&context["context"])
            && other.previous_context.as_deref() == Some(name)
        {
            other.previous_context = mark.previous_context.clone();
            write_mark(&mut context["context"], &other);
        }
    }
}

/// A file whose shape we do not know stays as it is.
fn check(config: &Value) -> Result<(), FormatError> {
    let config = config.as_object().ok_or(FormatError::NotAMap)?;
    for (list, field) in LISTS {
        let entries = match config.get(list) {
            None | Some(Value::Null) => continue,
            Some(entries) => entries.as_array().ok_or(FormatError::NotAList(list))?,
        };
        let is_entry = |entry: &Value| {
            entry["name"].is_string()
                && (entry
                    .get(field)
                    .is_none_or(|value| value.is_object() || value.is_null()))
        };
        if !entries.iter().all(is_entry) {
            return Err(FormatError::NotAList(list));
        }
    }
    Ok(())
}

fn read_mark(value: &Value) -> Option<Mark> {
    let extensions = value["extensions"].as_array()?;
    let ours = extensions.iter().find(|extension| extension["name"] == EXTENSION)?;
    let mark: Mark = serde_json::from_value(ours["extension"].clone()).ok()?;
    (!mark.data_dir.is_empty()).then_some(mark)
}

fn write_mark(value: &mut Value, mark: &Mark) {
    value["extensions"] = json!([{"name": EXTENSION, "extension": mark}]);
}

/// The contexts that are of clusters like this one.
fn marks(config: &Value) -> Vec<(String, Mark)> {
    let contexts = config["contexts"].as_array().into_iter().flatten();
    let marked = contexts.filter_map(|context| {
        let name = context["name"].as_str()?.to_string();
        Some((name, read_mark(&context["context"])?))
    });
    marked.collect()
}

fn mark_of(config: &Value, owner: &str) -> Option<(String, Mark)> {
    marks(config).into_iter().find(|(_, mark)| mark.data_dir == owner)
}

/// Whether there was any.
fn remove_entries(config: &mut Value, is_ours: &dyn Fn(&str) -> bool) -> bool {
    let mut removed = false;
    for (list, field) in LISTS {
        let Some(entries) = config.get_mut(list).and_then(Value::as_array_mut) else {
            continue;
        };
        let before = entries.len();
        entries.retain(|entry| !read_mark(&entry[field]).is_some_and(|mark| is_ours(&mark.data_dir)));
        removed |= entries.len() != before;
    }
    removed
}

/// The name that it had, or the first that nobody has.
fn choose_name(config: &Value, old: Option<&str>, data_dir: &Path) -> String {
    let is_taken = |name: &str| {
        LISTS.iter().any(|(list, _)| {
            let entries = config[*list].as_array().into_iter().flatten();
            entries.into_iter().any(|entry| entry["name"] == name)
        })
    };
    let directory = data_dir.file_name().map(|name| name.to_string_lossy().into_owned());
    let named = match directory.filter(|directory| directory != NAME) {
        Some(directory) => format!("{NAME}-{directory}"),
        None => NAME.to_string(),
    };
    let numbered = (2..).map(|number: u32| format!("{named}-{number}"));
    let candidates = old
        .map(String::from)
        .into_iter()
        .chain([NAME.to_string(), named.clone()]);
    let free = candidates.chain(numbered).find(|name| !is_taken(name));
    free.expect("there are more numbers than entries in a file")
}

fn insert(config: &mut Value, name: &str, access: &Access, mark: &Mark) {
    let owner = Mark {
        data_dir: mark.data_dir.clone(),
        ..Mark::default()
    };
    let context = json!({"cluster": name, "user": name});
    let values = [
        (Value::Object(access.cluster.clone()), &owner),
        (context, mark),
        (Value::Object(access.user.clone()), &owner),
    ];
    for ((list, field), (mut value, mark)) in LISTS.into_iter().zip(values) {
        write_mark(&mut value, mark);
        let entry = json!({"name": name, field: value});
        match config[list].as_array_mut() {
            Some(entries) => entries.push(entry),
            None => config[list] = json!([entry]),
        }
    }
}

fn has_context(config: &Value, name: &str) -> bool {
    let contexts = config["contexts"].as_array().into_iter().flatten();
    contexts.into_iter().any(|context| context["name"] == name)
}

fn drop_empty_lists(config: &mut Value, lists: &[String]) {
    let Some(config) = config.as_object_mut() else { return };
    for list in lists {
        if config.get(list).and_then(Value::as_array).is_some_and(Vec::is_empty) {
            config.remove(list);
        }
    }
}

/// Nothing of anybody is in it.
fn is_empty(config: &Value) -> bool {
    let is_nothing = |value: &Value| match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    };
    let fields = config.as_object().into_iter().flatten();
    fields
        .into_iter()
        .all(|(name, value)| matches!(name.as_str(), "apiVersion" | "kind") || is_nothing(value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn access() -> Access {
        let map = |value: Value| value.as_object().cloned().unwrap();
        Access {
            cluster: map(json!({"server": "https://127.0.0.1:6443", "certificate-authority-data": "Y2E="})),
            user: map(json!({"client-certificate-data": "Yw==", "client-key-data": "aw=="})),
        }
    }

    fn up(config: &mut Value, dir: &str) -> Merged {
        merge(config, &access(), Path::new(dir), |_| false).unwrap()
    }

    fn down(config: &mut Value, dir: &str) -> Unmerged {
        unmerge(config, Path::new(dir)).unwrap()
    }

    fn kind() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "kind-kind", "colours": {"theirs": true},
            "clusters": [{"name": "kind-kind", "cluster": {"server": "https://[::1]:1", "x": 1}}],
            "contexts": [{"name": "kind-kind", "context": {"cluster": "kind-kind", "user": "kind-kind", "namespace": "a"}}],
            "users": [{"name": "kind-kind", "user": {"token": "t"}}],
        })
    }

    #[test]
    fn a_cluster_joins_others_and_leaves_them_as_they_were() {
        let mut config = kind();
        let merged = up(&mut config, "/var/lib/orlop");
        assert_eq!(
            (merged.context.as_str(), merged.previous_context.as_deref()),
            ("orlop", Some("kind-kind"))
        );
        assert_eq!(config["current-context"], "orlop");
        let context = &config["contexts"][1];
        assert_eq!(
            *context,
            json!({"name": "orlop", "context": {"cluster": "orlop", "user": "orlop", "extensions": [{
                "name": "orlop", "extension": {"dataDir": "/var/lib/orlop", "previousContext": "kind-kind"}}]}})
        );
        assert_eq!(config["clusters"][1]["cluster"]["server"], "https://127.0.0.1:6443");
        // Started again, after a crash and on another port: the same entries, and what was before them is not forgotten.
        let mut again = access();
        again.cluster.insert("server".into(), json!("https://127.0.0.1:7777"));
        let merged = merge(&mut config, &again, Path::new("/var/lib/orlop"), |_| false).unwrap();
        assert_eq!(merged.previous_context.as_deref(), Some("kind-kind"));
        assert_eq!(config["clusters"].as_array().unwrap().len(), 2);
        assert_eq!(config["clusters"][1]["cluster"]["server"], "https://127.0.0.1:7777");
        assert_eq!(down(&mut config, "/var/lib/orlop"), Unmerged::Changed);
        assert_eq!(config, kind());
        assert_eq!(down(&mut config, "/var/lib/orlop"), Unmerged::Unchanged);
    }

    #[test]
    fn a_file_of_our_own_goes_with_its_last_cluster() {
        let mut config = Value::Null;
        assert_eq!(up(&mut config, "/a/orlop").context, "orlop");
        assert_eq!(up(&mut config, "/b/second").context, "orlop-second");
        assert_eq!(up(&mut config, "/c/second").context, "orlop-second-2");
        assert_eq!(up(&mut config, "/d/orlop").context, "orlop-2");
        assert_eq!(config["current-context"], "orlop-2");
        // A name stays with its directory.
        assert_eq!(up(&mut config, "/c/second").context, "orlop-second-2");
        assert_eq!(down(&mut config, "/a/orlop"), Unmerged::Changed);
        assert_eq!(down(&mut config, "/d/orlop"), Unmerged::Changed);
        assert_eq!(down(&mut config, "/c/second"), Unmerged::Changed);
        // Its own previous ones have gone meanwhile: one that is left is the current one.
        assert_eq!(config["current-context"], "orlop-second");
        assert_eq!(down(&mut config, "/b/second"), Unmerged::Empty);
    }

    #[test]
    fn a_choice_of_the_user_stays() {
        let mut config = kind();
        up(&mut config, "/var/lib/orlop");
        config["current-context"] = json!("kind-kind");
        down(&mut config, "/var/lib/orlop");
        assert_eq!(config, kind());
        // The context of before was deleted: better none than one that is not there.
        let mut config = kind();
        up(&mut config, "/var/lib/orlop");
        config["contexts"].as_array_mut().unwrap().remove(0);
        down(&mut config, "/var/lib/orlop");
        assert_eq!(config.get("current-context"), None);
    }

    #[test]
    fn somebody_elses_entry_of_our_name_is_not_touched() {
        let mut config = json!({"users": [{"name": "orlop", "user": {"token": "mine"}}]});
        let before = config.clone();
        assert_eq!(up(&mut config, "/var/lib/orlop").context, "orlop-2");
        down(&mut config, "/var/lib/orlop");
        assert_eq!(config, before);
    }

    #[test]
    fn clusters_that_are_gone_make_room() {
        let mut config = kind();
        up(&mut config, "/tmp/gone");
        let merged = merge(&mut config, &access(), Path::new("/tmp/new"), |dir| {
            dir.ends_with("gone")
        })
        .unwrap();
        assert_eq!(
            (merged.context.as_str(), merged.previous_context.as_deref()),
            ("orlop", Some("kind-kind"))
        );
        down(&mut config, "/tmp/new");
        assert_eq!(config, kind());
    }

    #[test]
    fn what_is_no_kubeconfig_stays_as_it_is() {
        for (text, error) in [
            (json!([]), FormatError::NotAMap),
            (json!("text"), FormatError::NotAMap),
            (json!({"users": {}}), FormatError::NotAList("users")),
            (
                json!({"clusters": [{"cluster": {}}]}),
                FormatError::NotAList("clusters"),
            ),
            (
                json!({"contexts": [{"name": "a", "context": 1}]}),
                FormatError::NotAList("contexts"),
            ),
        ] {
            let mut config = text.clone();
            let merged = merge(&mut config, &access(), Path::new("/d"), |_| false);
            assert_eq!((merged.unwrap_err(), &config), (error, &text));
        }
    }

    fn scalar() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[ -~äß\n\t]{0,12}".prop_map(Value::from),
            prop::sample::select(vec![
                "yes",
                "null",
                "~",
                "0x10",
                "1e3",
                "- a",
                "a: b",
                "#x",
                "",
                " ",
                "|",
                "'",
                "2024-01-01"
            ])
            .prop_map(Value::from),
        ]
    }

    fn fields() -> impl Strategy<Value = Map<String, Value>> {
        prop::collection::btree_map("[a-zA-Z./ -]{1,8}", scalar(), 0..4).prop_map(|map| map.into_iter().collect())
    }

    /// A kubeconfig with up to four contexts, one of them the current one, and fields that nobody knows.
    fn kubeconfig() -> impl Strategy<Value = Value> {
        let names = prop::collection::btree_set("[a-z@:/-]{1,10}|orlop|orlop-data", 0..4);
        let lists = prop::array::uniform3(any::<bool>());
        (
            names,
            lists,
            any::<prop::sample::Index>(),
            any::<bool>(),
            fields(),
            fields(),
        )
            .prop_map(|(names, lists, current, has_current, unknown, inner)| {
                let mut config = Value::Object(unknown);
                let names: Vec<&String> = names.iter().collect();
                for ((list, field), is_there) in LISTS.into_iter().zip(lists) {
                    let entry = |name: &&String| json!({"name": name, field: inner.clone(), "x-unknown": 1});
                    let entries: Vec<Value> = names.iter().map(entry).collect();
                    if is_there || !entries.is_empty() {
                        config[list] = entries.into();
                    }
                }
                if has_current && !names.is_empty() {
                    config[CURRENT] = json!(current.get(&names));
                }
                config
            })
    }

    proptest! {
        #[test]
        fn out_is_the_reverse_of_in(original in kubeconfig()) {
            let mut config = original.clone();
            let merged = up(&mut config, "/var/lib/data");
            prop_assert_eq!(config[CURRENT].as_str(), Some(merged.context.as_str()));
            up(&mut config, "/var/lib/data");
            down(&mut config, "/var/lib/data");
            prop_assert_eq!(config, original);
        }

        #[test]
        fn clusters_leave_in_any_order(original in kubeconfig(), first in 0..3usize, second in 0..2usize) {
            let mut config = original.clone();
            let mut dirs = vec!["/a", "/b", "/c"];
            for dir in &dirs {
                up(&mut config, dir);
            }
            let order = [dirs.remove(first), dirs.remove(second), dirs.remove(0)];
            for dir in order {
                down(&mut config, dir);
            }
            prop_assert_eq!(config, original);
        }

        #[test]
        fn yaml_keeps_every_value(original in kubeconfig()) {
            let mut config = original;
            up(&mut config, "/var/lib/data");
            let text = serde_saphyr::to_string(&config).unwrap();
            let read: Value = serde_saphyr::from_str(&text).unwrap();
            prop_assert_eq!(read, config, "{}", text);
        }
    }
}

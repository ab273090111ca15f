//! Parameters of operations. Query parameters are the fields of the options types (ListOptions, PodLogOptions …), so they
//! come from the table of types, too.

use orlop_api::schema::{Ty, schema};
use serde_json::{Value, json};

use super::definitions::Dialect;

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Parameter {
    pub name: &'static str,
    /// "path" or "query"
    pub place: &'static str,
    pub ty: &'static str,
}

impl Parameter {
    fn path(name: &'static str) -> Parameter {
        Parameter {
            name,
            place: "path",
            ty: "string",
        }
    }

    fn query(name: &'static str, ty: &'static str) -> Parameter {
        Parameter {
            name,
            place: "query",
            ty,
        }
    }

    pub(super) const fn pretty() -> Parameter {
        Parameter {
            name: "pretty",
            place: "query",
            ty: "string",
        }
    }

    pub(super) fn render(&self, dialect: Dialect) -> Value {
        let mut value = json!({"name": self.name, "in": self.place, "description": describe(self)});
        if self.place == "path" {
            value["required"] = true.into();
        }
        match dialect {
            Dialect::V2 => {
                value["type"] = self.ty.into();
                value["uniqueItems"] = true.into();
            }
            Dialect::V3 => value["schema"] = json!({"type": self.ty, "uniqueItems": true}),
        }
        value
    }
}

/// The parameters in a path template: "/api/v1/nodes/{name}" has `name`.
pub(super) fn of_path(template: &str) -> Vec<Parameter> {
    ["namespace", "name", "path"]
        .into_iter()
        .filter(|name| template.contains(&format!("{{{name}}}")))
        .map(Parameter::path)
        .collect()
}

/// The fields of an options type that a query can carry.
pub(super) fn of_options(type_name: &str) -> Vec<Parameter> {
    let types = schema();
    let Some(ty) = types.get(type_name) else {
        return vec![];
    };
    let fields = types.ty(ty).fields.iter();
    fields
        .filter(|f| !matches!(f.name, "kind" | "apiVersion"))
        .filter_map(|f| Some(Parameter::query(f.name, query_type(&f.ty)?)))
        .collect()
}

fn query_type(ty: &Ty) -> Option<&'static str> {
    match ty {
        Ty::String => Some("string"),
        Ty::Bool => Some("boolean"),
        Ty::Int32 | Ty::Int64 => Some("integer"),
        Ty::List(item) => query_type(item),
        _ => None,
    }
}

fn describe(parameter: &Parameter) -> &'static str {
    match (parameter.place, parameter.name) {
        ("path", "name") => "the object's name",
        ("path", "namespace") => "the namespace of the objects",
        ("path", "path") => "where the request is passed on to",
        (_, name) => describe_query(name),
    }
}

fn describe_query(name: &str) -> &'static str {
    match name {
        "allowWatchBookmarks" => {
            "With a watch: the server may send BOOKMARK events, which carry a new resourceVersion."
        }
        "command" => "The command to run and its arguments; not run in a shell.",
        "container" => "Which of the pod's containers is meant; may be left out if there is only one.",
        "continue" => "Asks for the next page of a list: the value that the last page gave in metadata.continue.",
        "dryRun" => "\"All\": do everything but store the result.",
        "fieldManager" => {
            "The name of whoever makes this change, up to 128 printable characters. Required for apply requests."
        }
        "fieldSelector" => "Only objects whose fields match; all by default.",
        "fieldValidation" => {
            "What to do about unknown and duplicate fields. Ignore: drop them; Warn (the default): drop them and send a \
             warning for each; Strict: refuse the request and name them."
        }
        "follow" => "Keep sending what the container writes.",
        "force" => "For apply requests: take over fields that other managers own. Must be unset for other patches.",
        "gracePeriodSeconds" => {
            "Seconds before the object is deleted; 0 deletes at once. The kind's own period if unset."
        }
        "ignoreStoreReadErrorWithClusterBreakingPotential" => {
            "Delete the object even if it cannot be read back from the store. Its finalizers are not honoured."
        }
        "insecureSkipTLSVerifyBackend" => "Do not check the certificate of the node that the log comes from.",
        "labelSelector" => "Only objects whose labels match; all by default.",
        "limit" => "At most so many objects in one answer; if there are more, metadata.continue leads to them.",
        "limitBytes" => "End the log after so many bytes.",
        "orphanDependents" => {
            "Deprecated, use propagationPolicy. Whether dependent objects are left behind when this one is deleted."
        }
        "path" => "The part of the URL that the request is passed on to.",
        "ports" => "The ports to forward; needed for WebSockets only.",
        "pretty" => "\"true\": indent the answer for human readers.",
        "previous" => "The log of the container's previous run.",
        "propagationPolicy" => {
            "What becomes of dependent objects. Orphan: they stay; Background: they are deleted afterwards; Foreground: \
             they are deleted first."
        }
        "resourceVersion" => "From which state of the cluster the answer may come; see resourceVersionMatch.",
        "resourceVersionMatch" => {
            "How resourceVersion is meant in a list. NotOlderThan: that state or a newer one; Exact: just that state."
        }
        "sendInitialEvents" => {
            "With a watch: first an ADDED event for every object there is, then a bookmark that marks their end, then \
             what changes. Needs resourceVersionMatch=NotOlderThan."
        }
        "shardSelector" => "Only objects of one shard, told by a hash of one of their fields; all by default.",
        "sinceSeconds" => "Only lines of the last so many seconds.",
        "stderr" => "Pass on what is written to standard error.",
        "stdin" => "Pass standard input to the container.",
        "stdout" => "Pass on what is written to standard output.",
        "stream" => "Which stream of the log: All (the default), Stdout or Stderr.",
        "tailLines" => "Only the last so many lines.",
        "timeoutSeconds" => "End the request after so many seconds, whether or not there is more to come.",
        "timestamps" => "Put an RFC 3339 time in front of each line.",
        "tty" => "Give the process a terminal.",
        "watch" => "Send what changes as a stream of events, instead of a list. Give a resourceVersion to start from.",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_parameters() {
        let names = |ty: &str| of_options(ty).iter().map(|p| p.name).collect::<Vec<_>>();
        assert_eq!(
            names("meta/v1.PatchOptions"),
            ["dryRun", "fieldManager", "fieldValidation", "force"]
        );
        // Structs and times do not fit in a query.
        assert!(!names("meta/v1.DeleteOptions").contains(&"preconditions"));
        assert!(!names("core/v1.PodLogOptions").contains(&"sinceTime"));
        assert_eq!(
            of_options("core/v1.PodPortForwardOptions"),
            [Parameter::query("ports", "integer")]
        );
        assert_eq!(of_path("/api/v1/nodes/{name}/proxy/{path}").len(), 2);
    }

    #[test]
    fn every_parameter_is_described() {
        let types = schema()
            .types()
            .filter(|t| t.name.ends_with("Options") && t.field("kind").is_some());
        for parameter in types.flat_map(|t| of_options(t.name)) {
            // Tables are asked for by the Accept header.
            assert!(
                parameter.name == "includeObject" || !describe(&parameter).is_empty(),
                "{}",
                parameter.name
            );
        }
    }
}

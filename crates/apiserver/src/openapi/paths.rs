//! The paths of a kind and of the server itself, with their operations.

use orlop_api::kind::Subresource;
use orlop_api::schema::schema;
use orlop_api::{KindDef, kinds};

use super::definitions::{Definition, PATCH, VERSION_INFO};
use super::names::{self, GroupVersion};
use super::operations::{
    ANY_MEDIA, Body, LIST_MEDIA, OBJECT_MEDIA, Operation, OperationResponse, PATCH_MEDIA, PathItem,
};
use super::parameters::{self, Parameter};
use crate::custom::{Snapshot, list_definition};
use crate::registry::delete::RETURN_DELETED;

/// Paths outside the kinds: each is a document of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Root {
    Api,
    Apis,
    Group(&'static str),
    Version,
    OpenIdConfiguration,
    OpenIdKeys,
}

impl Root {
    pub(super) fn all() -> Vec<Root> {
        let mut all = vec![
            Root::Api,
            Root::Apis,
            Root::Version,
            Root::OpenIdConfiguration,
            Root::OpenIdKeys,
        ];
        for kind in kinds::all().filter(|k| !k.group.is_empty()) {
            if !all.contains(&Root::Group(kind.group)) {
                all.push(Root::Group(kind.group));
            }
        }
        all
    }

    /// The document's name, which is the path without the slashes at its ends.
    pub(super) fn path(self) -> String {
        match self {
            Root::Api => "api".into(),
            Root::Apis => "apis".into(),
            Root::Group(group) => format!("apis/{group}"),
            Root::Version => "version".into(),
            Root::OpenIdConfiguration => ".well-known/openid-configuration".into(),
            Root::OpenIdKeys => "openid/v1/jwks".into(),
        }
    }

    pub(super) fn item(self) -> PathItem {
        let meta = |name: &str| Definition::named(&format!("meta/v1.{name}"));
        let (id, tag, description, definition) = match self {
            Root::Api => (
                "getCoreAPIVersions".into(),
                "core".into(),
                "get the versions of the core API",
                meta("APIVersions"),
            ),
            Root::Apis => (
                "getAPIVersions".into(),
                "apis".into(),
                "get the API groups and their versions",
                meta("APIGroupList"),
            ),
            Root::Group(group) => (
                format!("get{}APIGroup", names::group_title(group)),
                names::group_tag(group),
                "get what the group offers",
                meta("APIGroup"),
            ),
            Root::Version => (
                "getCodeVersion".into(),
                "version".into(),
                "get the version of this server",
                Some(Definition::Word(VERSION_INFO)),
            ),
            Root::OpenIdConfiguration => (
                "getServiceAccountIssuerOpenIDConfiguration".into(),
                "WellKnown".into(),
                "get the OpenID configuration of the issuer of service account tokens",
                None,
            ),
            Root::OpenIdKeys => (
                "getServiceAccountIssuerOpenIDKeyset".into(),
                "openid".into(),
                "get the public keys that service account tokens are checked with",
                None,
            ),
        };
        let media: &[&str] = match self {
            Root::Version | Root::OpenIdConfiguration => &["application/json"],
            Root::OpenIdKeys => &["application/jwk-set+json"],
            _ => OBJECT_MEDIA,
        };
        let answer = OperationResponse {
            codes: &[200],
            definition,
            media,
        };
        PathItem {
            path: format!("/{}/", self.path()),
            operations: vec![plain_get(id, tag, description, answer)],
        }
    }
}

fn plain_get(id: String, tag: String, description: &str, answer: OperationResponse) -> Operation {
    Operation {
        method: "get",
        id,
        description: description.into(),
        tag,
        action: "",
        gvk: None,
        query: vec![],
        body: None,
        answer,
    }
}

/// Every path of a group version, in order.
pub(super) fn of_group_version(gv: GroupVersion, custom: &Snapshot) -> Vec<PathItem> {
    let resources = OperationResponse {
        codes: &[200],
        definition: Definition::named("meta/v1.APIResourceList"),
        media: OBJECT_MEDIA,
    };
    let mut items = vec![PathItem {
        path: format!("/{}/", gv.path()),
        operations: vec![plain_get(
            format!("get{}APIResources", gv.title()),
            gv.tag(),
            "get the resources of this group version",
            resources,
        )],
    }];
    for kind in gv.kinds(custom) {
        items.extend(Paths::of(kind).into_iter().flat_map(|p| p.items()));
    }
    items.sort_by(|a, b| a.path.cmp(&b.path));
    items
}

/// What the paths of one kind have in common.
struct Paths {
    kind: &'static KindDef,
    gv: GroupVersion,
    /// "/apis/apps/v1"
    root: String,
    /// "/apis/apps/v1/namespaces/{namespace}/deployments"
    collection: String,
    /// "Namespaced" or ""
    scope: &'static str,
    definition: Definition,
}

/// What an operation is about: the kind itself or a subresource, and of which type it is.
struct Subject {
    /// "PodStatus": ends the operation id.
    title: String,
    /// "the status of a Pod"
    words: String,
    gv: GroupVersion,
    kind: &'static str,
    definition: Definition,
}

/// What makes a verb's operation differ from another's.
struct Shape {
    method: &'static str,
    /// The verb of the operation id.
    word: &'static str,
    /// The verb of the description.
    does: &'static str,
    options: &'static [&'static str],
    body: Option<Body>,
    answer: OperationResponse,
}

impl Paths {
    fn of(kind: &'static KindDef) -> Option<Paths> {
        let gv = GroupVersion::of(kind);
        let root = format!("/{}", gv.path());
        let in_namespace = if kind.namespaced { "/namespaces/{namespace}" } else { "" };
        Some(Paths {
            kind,
            gv,
            collection: format!("{root}{in_namespace}/{}", kind.plural),
            root,
            scope: if kind.namespaced { "Namespaced" } else { "" },
            definition: match kind.custom {
                Some(_) => Definition::Word(kind.schema),
                None => Definition::named(kind.schema)?,
            },
        })
    }

    fn items(&self) -> Vec<PathItem> {
        let mut items = vec![
            self.item(self.collection.clone(), &["deletecollection", "list", "create"]),
            self.item(
                format!("{}/{{name}}", self.collection),
                &["delete", "get", "patch", "update"],
            ),
        ];
        if self.kind.namespaced && self.serves("list") {
            items.push(PathItem {
                path: format!("{}/{}", self.root, self.kind.plural),
                operations: vec![self.list("", "ForAllNamespaces")],
            });
        }
        if self.serves("watch") {
            items.extend(self.old_watches());
        }
        for sub in self.kind.subresources {
            items.extend(self.subresource(sub));
        }
        items.retain(|item| !item.operations.is_empty());
        if self.kind.custom.is_some() {
            let operations = items.iter_mut().flat_map(|item| &mut item.operations);
            operations.for_each(Operation::restrict_to_custom);
        }
        items
    }

    fn serves(&self, verb: &str) -> bool {
        self.kind.verbs.names().contains(&verb)
    }

    fn item(&self, path: String, verbs: &[&'static str]) -> PathItem {
        let subject = Subject {
            title: self.kind.kind.into(),
            words: format!("a {}", self.kind.kind),
            gv: self.gv,
            kind: self.kind.kind,
            definition: self.definition,
        };
        let verbs = verbs.iter().filter(|v| self.serves(v));
        let operations = verbs.filter_map(|verb| match *verb {
            "list" => Some(self.list(self.scope, "")),
            verb => self.operation(verb, &subject),
        });
        PathItem {
            path,
            operations: operations.collect(),
        }
    }

    fn list(&self, scope: &str, suffix: &str) -> Operation {
        let list = format!("{}List", self.kind.schema);
        Operation {
            method: "get",
            id: format!("list{}{scope}{}{suffix}", self.gv.title(), self.kind.kind),
            description: format!("list or watch objects of kind {}", self.kind.kind),
            tag: self.gv.tag(),
            action: "list",
            gvk: Some(self.gv.gvk(self.kind.kind)),
            query: query(&["meta/v1.ListOptions"]),
            body: None,
            answer: OperationResponse {
                codes: &[200],
                definition: match self.kind.custom {
                    Some(_) => Some(Definition::Word(list_definition(self.kind))),
                    None => Definition::named(&list),
                },
                media: LIST_MEDIA,
            },
        }
    }

    /// A verb on the kind or on one of its subresources; `None` if OpenAPI has no form for it.
    fn operation(&self, verb: &'static str, subject: &Subject) -> Option<Operation> {
        let shape = self.shape(verb, subject)?;
        let mut query = query(shape.options);
        let mut collection = "";
        if verb == "deletecollection" {
            query.retain(|p| !matches!(p.name, "watch" | "allowWatchBookmarks"));
            collection = "Collection";
        }
        let (title, scope) = (self.gv.title(), self.scope);
        Some(Operation {
            method: shape.method,
            id: format!("{}{title}{collection}{scope}{}", shape.word, subject.title),
            description: format!("{} {}", shape.does, subject.words),
            tag: self.gv.tag(),
            action: match shape.method {
                "delete" | "get" => verb,
                other => other,
            },
            gvk: Some(subject.gv.gvk(subject.kind)),
            query,
            body: shape.body,
            answer: shape.answer,
        })
    }

    fn shape(&self, verb: &str, subject: &Subject) -> Option<Shape> {
        let this = subject.definition;
        let status = Definition::named("meta/v1.Status")?;
        let returns_object = RETURN_DELETED.contains(&(self.kind.group, self.kind.plural));
        let whole = |method, word, does, options, answer| Shape {
            method,
            word,
            does,
            options,
            body: Some(body(this, ANY_MEDIA)),
            answer,
        };
        Some(match verb {
            "create" => whole(
                "post",
                "create",
                "create",
                &["meta/v1.CreateOptions"],
                OperationResponse::object(&[200, 201, 202], this),
            ),
            "update" => whole(
                "put",
                "replace",
                "replace",
                &["meta/v1.UpdateOptions"],
                OperationResponse::object(&[200, 201], this),
            ),
            "get" => Shape {
                body: None,
                ..whole("get", "read", "read", &[], OperationResponse::object(&[200], this))
            },
            "patch" => Shape {
                body: Some(body(Definition::Word(PATCH), PATCH_MEDIA)),
                ..whole(
                    "patch",
                    "patch",
                    "change parts of",
                    &["meta/v1.PatchOptions"],
                    OperationResponse::object(&[200, 201], this),
                )
            },
            "delete" => Shape {
                body: delete_body(),
                ..whole(
                    "delete",
                    "delete",
                    "delete",
                    &["meta/v1.DeleteOptions"],
                    OperationResponse::object(&[200, 202], if returns_object { this } else { status }),
                )
            },
            "deletecollection" => Shape {
                body: delete_body(),
                ..whole(
                    "delete",
                    "delete",
                    "delete all that are selected, each",
                    &["meta/v1.DeleteOptions", "meta/v1.ListOptions"],
                    OperationResponse::object(&[200], status),
                )
            },
            _ => return None,
        })
    }

    /// /watch/… paths, which predate `?watch=true`.
    fn old_watches(&self) -> Vec<PathItem> {
        let below = self.collection.strip_prefix(&self.root).unwrap_or_default();
        let (root, kind, title) = (&self.root, self.kind.kind, self.gv.title());
        let watch = |path: String, id: String, action| PathItem {
            path,
            operations: vec![Operation {
                method: "get",
                id,
                description: format!("watch objects of kind {kind}. Deprecated: use the watch parameter of a list."),
                tag: self.gv.tag(),
                action,
                gvk: Some(self.gv.gvk(kind)),
                query: query(&["meta/v1.ListOptions"]),
                body: None,
                answer: OperationResponse {
                    codes: &[200],
                    definition: Definition::named("meta/v1.WatchEvent"),
                    media: LIST_MEDIA,
                },
            }],
        };
        let mut items = vec![
            watch(
                format!("{root}/watch{below}"),
                format!("watch{title}{}{kind}List", self.scope),
                "watchlist",
            ),
            watch(
                format!("{root}/watch{below}/{{name}}"),
                format!("watch{title}{}{kind}", self.scope),
                "watch",
            ),
        ];
        if self.kind.namespaced {
            items.push(watch(
                format!("{root}/watch/{}", self.kind.plural),
                format!("watch{title}{kind}ListForAllNamespaces"),
                "watchlist",
            ));
        }
        items
    }

    fn subresource(&self, sub: &'static Subresource) -> Vec<PathItem> {
        let path = format!("{}/{{name}}/{}", self.collection, sub.name);
        if sub.kind.ends_with("Options") {
            return self.connect(path, sub);
        }
        let Some(subject) = self.subject(sub) else {
            return vec![];
        };
        let verbs = sub.verbs.iter();
        let mut operations: Vec<Operation> = verbs.filter_map(|verb| self.operation(verb, &subject)).collect();
        if sub.name == "log" {
            for operation in &mut operations {
                operation.query = query(&["core/v1.PodLogOptions"]);
                operation.answer = OperationResponse {
                    codes: &[200],
                    definition: None,
                    media: &[
                        "text/plain",
                        "application/json",
                        "application/yaml",
                        "application/vnd.kubernetes.protobuf",
                    ],
                };
            }
        }
        vec![PathItem { path, operations }]
    }

    fn subject(&self, sub: &'static Subresource) -> Option<Subject> {
        let own = sub.kind.is_empty();
        let gv = match own || sub.version.is_empty() {
            true => self.gv,
            false => GroupVersion {
                group: sub.group,
                version: sub.version,
            },
        };
        let definition = match own {
            true => self.definition,
            false => {
                let api_version = match gv.group {
                    "" => gv.version.to_string(),
                    group => format!("{group}/{}", gv.version),
                };
                Definition::Type(schema().kind(&api_version, sub.kind)?)
            }
        };
        Some(Subject {
            title: format!("{}{}", self.kind.kind, names::title(sub.name)),
            words: format!("the {} of a {}", sub.name, self.kind.kind),
            gv,
            kind: if own { self.kind.kind } else { sub.kind },
            definition,
        })
    }

    /// Subresources that hand the connection on (exec, proxy): any method, with the options in the query.
    fn connect(&self, path: String, sub: &'static Subresource) -> Vec<PathItem> {
        let is_proxy = sub.name == "proxy";
        let methods: &[&'static str] = match is_proxy {
            true => &["delete", "get", "head", "options", "patch", "post", "put"],
            false => &["get", "post"],
        };
        let version = if sub.version.is_empty() {
            self.gv.version
        } else {
            sub.version
        };
        let title = format!("{}{}{}", self.scope, self.kind.kind, names::title(sub.name));
        let operation = |method: &'static str, suffix: &str| Operation {
            method,
            id: format!("connect{}{}{title}{suffix}", self.gv.title(), names::title(method)),
            description: format!(
                "pass a {} request on to the {} of a {}",
                method.to_uppercase(),
                sub.name,
                self.kind.kind
            ),
            tag: self.gv.tag(),
            action: "connect",
            gvk: Some(
                GroupVersion {
                    group: sub.group,
                    version,
                }
                .gvk(sub.kind),
            ),
            query: parameters::of_options(&format!("core/{version}.{}", sub.kind)),
            body: None,
            answer: OperationResponse {
                codes: &[200],
                definition: None,
                media: ANY_MEDIA,
            },
        };
        let item = |path: String, suffix: &str| PathItem {
            path,
            operations: methods.iter().map(|m| operation(m, suffix)).collect(),
        };
        let mut items = vec![];
        if is_proxy {
            items.push(item(format!("{path}/{{path}}"), "WithPath"));
        }
        items.push(item(path, ""));
        items
    }
}

/// The fields of these options, and `pretty`.
fn query(options: &[&str]) -> Vec<Parameter> {
    let mut all: Vec<Parameter> = options.iter().flat_map(|o| parameters::of_options(o)).collect();
    all.push(Parameter::pretty());
    all.sort();
    all.dedup();
    all
}

fn body(definition: Definition, media: &'static [&'static str]) -> Body {
    Body {
        definition,
        media,
        required: true,
    }
}

fn delete_body() -> Option<Body> {
    let definition = Definition::named("meta/v1.DeleteOptions")?;
    Some(Body {
        required: false,
        ..body(definition, ANY_MEDIA)
    })
}

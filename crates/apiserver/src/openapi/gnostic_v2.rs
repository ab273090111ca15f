//! The messages of Swagger 2.0 in gnostic's form. Upstream: gnostic-models, openapiv2/OpenAPIv2.proto; of it, what our
//! documents have.

use serde_json::Value;

use super::gnostic::{Kind, Shape, map, object};

use Kind::{Any, Bool, Message, Text};

/// Fields of the document that are written piece by piece.
pub(super) const PATHS: u32 = 8;
pub(super) const DEFINITIONS: u32 = 9;
/// Fields of the two messages that hold them.
pub(super) const PATH: u32 = 2;
pub(super) const DEFINITION: u32 = 1;

/// All but paths and definitions.
pub(super) static DOCUMENT: Shape = object(
    &[
        ("swagger", 1, Text),
        ("info", 2, Message(&INFO)),
        ("parameters", 10, Message(&PARAMETER_DEFINITIONS)),
        ("security", 12, Message(&SECURITY_REQUIREMENT)),
        ("securityDefinitions", 13, Message(&SECURITY_DEFINITIONS)),
    ],
    16,
);
static INFO: Shape = object(&[("title", 1, Text), ("version", 2, Text), ("description", 3, Text)], 7);
static PARAMETER_DEFINITIONS: Shape = map(Message(&PARAMETER));
static SECURITY_REQUIREMENT: Shape = map(Message(&STRINGS));
static STRINGS: Shape = Shape::Choice(|_| Some((1, Text)));
static SECURITY_DEFINITIONS: Shape = map(Message(&SECURITY_DEFINITION));
static SECURITY_DEFINITION: Shape = Shape::Choice(|_| Some((2, Message(&API_KEY))));
static API_KEY: Shape = object(
    &[
        ("type", 1, Text),
        ("name", 2, Text),
        ("in", 3, Text),
        ("description", 4, Text),
    ],
    5,
);

pub(super) static PATH_ITEM: Shape = object(
    &[
        ("get", 2, Message(&OPERATION)),
        ("put", 3, Message(&OPERATION)),
        ("post", 4, Message(&OPERATION)),
        ("delete", 5, Message(&OPERATION)),
        ("options", 6, Message(&OPERATION)),
        ("head", 7, Message(&OPERATION)),
        ("patch", 8, Message(&OPERATION)),
        ("parameters", 9, Message(&PARAMETERS_ITEM)),
    ],
    10,
);
static OPERATION: Shape = object(
    &[
        ("tags", 1, Text),
        ("description", 3, Text),
        ("operationId", 5, Text),
        ("produces", 6, Text),
        ("consumes", 7, Text),
        ("parameters", 8, Message(&PARAMETERS_ITEM)),
        ("responses", 9, Message(&RESPONSES)),
        ("schemes", 10, Text),
    ],
    13,
);
static PARAMETERS_ITEM: Shape = Shape::Choice(|value| match value.get("$ref") {
    Some(_) => Some((2, Message(&REFERENCE))),
    None => Some((1, Message(&PARAMETER))),
});
static REFERENCE: Shape = object(&[("$ref", 1, Text), ("description", 2, Text)], 0);
static PARAMETER: Shape = Shape::Choice(|value| match value["in"].as_str() {
    Some("body") => Some((1, Message(&BODY_PARAMETER))),
    _ => Some((2, Message(&NON_BODY_PARAMETER))),
});
static BODY_PARAMETER: Shape = object(
    &[
        ("description", 1, Text),
        ("name", 2, Text),
        ("in", 3, Text),
        ("required", 4, Bool),
        ("schema", 5, Message(&SCHEMA)),
    ],
    6,
);
static NON_BODY_PARAMETER: Shape = Shape::Choice(|value| match value["in"].as_str() {
    Some("path") => Some((4, Message(&PATH_PARAMETER))),
    _ => Some((3, Message(&QUERY_PARAMETER))),
});
static QUERY_PARAMETER: Shape = object(
    &[
        ("required", 1, Bool),
        ("in", 2, Text),
        ("description", 3, Text),
        ("name", 4, Text),
        ("type", 6, Text),
        ("uniqueItems", 20, Bool),
    ],
    23,
);
static PATH_PARAMETER: Shape = object(
    &[
        ("required", 1, Bool),
        ("in", 2, Text),
        ("description", 3, Text),
        ("name", 4, Text),
        ("type", 5, Text),
        ("uniqueItems", 19, Bool),
    ],
    22,
);
static RESPONSES: Shape = Shape::Object {
    fields: &[],
    extensions: 2,
    others: Some((1, Message(&RESPONSE_VALUE))),
};
static RESPONSE_VALUE: Shape = Shape::Choice(|_| Some((1, Message(&RESPONSE))));
static RESPONSE: Shape = object(&[("description", 1, Text), ("schema", 2, Message(&SCHEMA_ITEM))], 5);
static SCHEMA_ITEM: Shape = Shape::Choice(|_| Some((1, Message(&SCHEMA))));

pub(super) static SCHEMA: Shape = object(
    &[
        ("$ref", 1, Text),
        ("format", 2, Text),
        ("description", 4, Text),
        ("default", 5, Any),
        ("required", 19, Text),
        ("enum", 20, Any),
        ("additionalProperties", 21, Message(&ADDITIONAL_PROPERTIES)),
        ("type", 22, Message(&STRINGS)),
        ("items", 23, Message(&ITEMS)),
        ("properties", 25, Message(&PROPERTIES)),
    ],
    31,
);
static ADDITIONAL_PROPERTIES: Shape = Shape::Choice(|value| match value {
    Value::Bool(_) => Some((2, Bool)),
    _ => Some((1, Message(&SCHEMA))),
});
static ITEMS: Shape = Shape::Choice(|_| Some((1, Message(&SCHEMA))));
static PROPERTIES: Shape = map(Message(&SCHEMA));

//! The messages of OpenAPI 3.0 in gnostic's form. Upstream: gnostic-models, openapiv3/OpenAPIv3.proto; of it, what our
//! documents have.

use serde_json::Value;

use super::gnostic::{Kind, Shape, map, object};

use Kind::{Any, Bool, Message, Number, Text};

/// Fields of the document that are written piece by piece.
pub(super) const PATHS: u32 = 4;
pub(super) const COMPONENTS: u32 = 5;
/// Fields of the messages that hold them.
pub(super) const PATH: u32 = 1;
pub(super) const SCHEMAS: u32 = 1;

/// All but paths and schemas.
pub(super) static DOCUMENT: Shape = object(&[("openapi", 1, Text), ("info", 2, Message(&INFO))], 9);
static INFO: Shape = object(&[("title", 1, Text), ("description", 2, Text), ("version", 6, Text)], 7);
/// All but the schemas.
pub(super) static COMPONENTS_REST: Shape = object(&[("securitySchemes", 7, Message(&SECURITY_SCHEMES))], 10);
static SECURITY_SCHEMES: Shape = map(Message(&SECURITY_SCHEME_OR_REFERENCE));
static SECURITY_SCHEME_OR_REFERENCE: Shape = Shape::Choice(|_| Some((1, Message(&SECURITY_SCHEME))));
static SECURITY_SCHEME: Shape = object(
    &[
        ("type", 1, Text),
        ("description", 2, Text),
        ("name", 3, Text),
        ("in", 4, Text),
    ],
    9,
);

pub(super) static PATH_ITEM: Shape = object(
    &[
        ("get", 4, Message(&OPERATION)),
        ("put", 5, Message(&OPERATION)),
        ("post", 6, Message(&OPERATION)),
        ("delete", 7, Message(&OPERATION)),
        ("options", 8, Message(&OPERATION)),
        ("head", 9, Message(&OPERATION)),
        ("patch", 10, Message(&OPERATION)),
        ("parameters", 13, Message(&PARAMETER_OR_REFERENCE)),
    ],
    14,
);
static OPERATION: Shape = object(
    &[
        ("tags", 1, Text),
        ("description", 3, Text),
        ("operationId", 5, Text),
        ("parameters", 6, Message(&PARAMETER_OR_REFERENCE)),
        ("requestBody", 7, Message(&REQUEST_BODY_OR_REFERENCE)),
        ("responses", 8, Message(&RESPONSES)),
    ],
    13,
);
static PARAMETER_OR_REFERENCE: Shape = Shape::Choice(|_| Some((1, Message(&PARAMETER))));
static PARAMETER: Shape = object(
    &[
        ("name", 1, Text),
        ("in", 2, Text),
        ("description", 3, Text),
        ("required", 4, Bool),
        ("schema", 10, Message(&SCHEMA_OR_REFERENCE)),
    ],
    14,
);
static REQUEST_BODY_OR_REFERENCE: Shape = Shape::Choice(|_| Some((1, Message(&REQUEST_BODY))));
static REQUEST_BODY: Shape = object(
    &[
        ("description", 1, Text),
        ("content", 2, Message(&MEDIA_TYPES)),
        ("required", 3, Bool),
    ],
    4,
);
static MEDIA_TYPES: Shape = map(Message(&MEDIA_TYPE));
static MEDIA_TYPE: Shape = object(&[("schema", 1, Message(&SCHEMA_OR_REFERENCE))], 5);
static RESPONSES: Shape = Shape::Object {
    fields: &[],
    extensions: 3,
    others: Some((2, Message(&RESPONSE_OR_REFERENCE))),
};
static RESPONSE_OR_REFERENCE: Shape = Shape::Choice(|_| Some((1, Message(&RESPONSE))));
static RESPONSE: Shape = object(&[("description", 1, Text), ("content", 3, Message(&MEDIA_TYPES))], 5);

pub(super) static SCHEMA_OR_REFERENCE: Shape = Shape::Choice(|value| match value.get("$ref") {
    Some(_) => Some((2, Message(&REFERENCE))),
    None => Some((1, Message(&SCHEMA))),
});
static REFERENCE: Shape = object(&[("$ref", 1, Text)], 0);
static SCHEMA: Shape = object(
    &[
        ("uniqueItems", 20, Bool),
        ("required", 23, Text),
        ("enum", 24, Any),
        ("type", 25, Text),
        ("allOf", 26, Message(&SCHEMA_OR_REFERENCE)),
        ("oneOf", 27, Message(&SCHEMA_OR_REFERENCE)),
        ("items", 30, Message(&ITEMS)),
        ("properties", 31, Message(&PROPERTIES)),
        ("additionalProperties", 32, Message(&ADDITIONAL_PROPERTIES)),
        ("default", 33, Message(&DEFAULT)),
        ("description", 34, Text),
        ("format", 35, Text),
    ],
    36,
);
static ITEMS: Shape = Shape::Choice(|_| Some((1, Message(&SCHEMA_OR_REFERENCE))));
static PROPERTIES: Shape = map(Message(&SCHEMA_OR_REFERENCE));
static ADDITIONAL_PROPERTIES: Shape = Shape::Choice(|value| match value {
    Value::Bool(_) => Some((2, Bool)),
    _ => Some((1, Message(&SCHEMA_OR_REFERENCE))),
});
static DEFAULT: Shape = Shape::Choice(|value| match value {
    Value::Number(_) => Some((1, Number)),
    Value::Bool(_) => Some((2, Bool)),
    Value::String(_) => Some((3, Text)),
    // There is no field for others.
    _ => None,
});

//! The spec of a definition: group, names, versions, subresources, columns, selectable fields, conversion.

use orlop_api::admissionregistration::webhooks::validate_client;
use orlop_api::field::{Cursor, ProblemKind, Problems};
use orlop_api::names;
use orlop_api::structural::{SchemaType, Structural};
use serde_json::Value;

use super::field_path;
use super::ratchet::{MAX_SELECTABLE_FIELDS, Options, has_defaults, has_extensions, preserves, shared_cursor};
use super::{dns_1035, joined, schema};

const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] = [
    "byte",
    "date",
    "date-time",
    "double",
    "float",
    "int32",
    "int64",
    "password",
];
const MAX_WARNING_BYTES: usize = 256;

pub(super) fn validate(spec: &Cursor<'_>, options: &Options, p: &mut Problems) {
    let value = spec.value().unwrap_or(&Value::Null);
    group_and_scope(spec, p);
    let mut options = options.clone();
    options.require_structural |= !preserves(value);
    required_schemas(spec, &options, p);
    if has_defaults(value) {
        options.require_structural = true;
        if preserves(value) {
            let detail = "must be false in order to use defaults in the schema";
            p.invalid(&spec.at("preserveUnknownFields"), detail);
        }
    }
    options.require_structural |= has_extensions(value);
    versions(spec, &options, p);
    let names = spec.at("names");
    for name in ["plural", "singular", "kind", "listKind"] {
        if names.at(name).is_empty() {
            p.required(&names.at(name), "");
        }
    }
    validate_names(&names, p);
    shared_parts(spec, &options, p);
    conversion(spec, &options, p);
}

fn group_and_scope(spec: &Cursor<'_>, p: &mut Problems) {
    let group = spec.at("group");
    if group.is_empty() {
        p.required(&group, "");
    } else if !names::dns_subdomain(group.str()).is_empty() {
        joined(&group, &names::dns_subdomain(group.str()), "", p);
    } else if !group.str().contains('.') {
        p.invalid(&group, "should be a domain with at least one dot");
    }
    let scope = spec.at("scope");
    match scope.str() {
        "" => p.required(&scope, ""),
        "Cluster" | "Namespaced" => {}
        _ => p.not_supported_as_listed(&scope, &["Cluster", "Namespaced"]),
    }
}

/// Without a schema all fields would be pruned.
fn required_schemas(spec: &Cursor<'_>, options: &Options, p: &mut Problems) {
    let preserves = preserves(spec.value().unwrap_or(&Value::Null));
    for version in spec.at("versions").items() {
        let schema = version.at("schema").at("openAPIV3Schema");
        if schema.exists() {
            continue;
        }
        if options.require_schema {
            p.required(&schema, "");
        } else if !preserves && version.at("served").is_true() {
            p.required(&schema, "because otherwise all fields are pruned");
        }
    }
}

fn versions(spec: &Cursor<'_>, options: &Options, p: &mut Problems) {
    let all = spec.at("versions");
    let mut seen: Vec<&str> = vec![];
    let (mut unique, mut storage) = (true, 0);
    let is_shared = |name: &'static str| super::ratchet::shared(&all, name).is_some();
    let shared = (
        is_shared("schema"),
        is_shared("subresources"),
        is_shared("additionalPrinterColumns"),
        is_shared("selectableFields"),
    );
    for version in all.items() {
        let name = version.at("name");
        storage += usize::from(version.at("storage").is_true());
        unique &= !seen.contains(&name.str());
        seen.push(name.str());
        dns_1035(&name, p);
        deprecation_warning(&version, p);
        if !shared.0 {
            let status = version.at("subresources").at("status").exists();
            let unchanged = options.unchanged_schemas.iter().any(|v| v == name.str());
            schema::validate(&version.at("schema"), status, options, unchanged, p);
        }
        if !shared.1 {
            subresources(&version.at("subresources"), p);
        }
        if !shared.2 {
            version
                .at("additionalPrinterColumns")
                .items()
                .for_each(|c| column(&c, p));
        }
        if !shared.3 {
            selectable_fields(&version.at("selectableFields"), &version, name.str(), options, p);
        }
    }
    if !unique {
        p.invalid(&all, "must contain unique version names");
    }
    if storage != 1 {
        p.invalid(&all, "must have exactly one version marked as storage version");
    }
    // The internal form repeats the first version's name.
    if let Some(first) = all.items().next() {
        let repeated = Cursor::new(first.at("name").value(), spec.path().field("version"));
        dns_1035(&repeated, p);
    }
}

fn deprecation_warning(version: &Cursor<'_>, p: &mut Problems) {
    let warning = version.at("deprecationWarning");
    let Some(text) = warning.as_str() else { return };
    if !version.at("deprecated").is_true() {
        return p.invalid(&warning, "can only be set for deprecated versions");
    }
    if text.len() > MAX_WARNING_BYTES {
        p.invalid(&warning, "must be <= 256 characters long");
    }
    if text.is_empty() {
        p.invalid(&warning, "must not be an empty string");
    }
    // Of white space only the plain one is printable.
    let unprintable = text
        .char_indices()
        .find(|(_, c)| c.is_control() || (c.is_whitespace() && *c != ' '));
    if let Some((i, _)) = unprintable {
        let detail =
            format!("must only contain printable UTF-8 characters; non-printable character found at index {i}");
        p.invalid(&warning, detail);
    }
}

/// What all versions have alike is validated once, at the top.
fn shared_parts(spec: &Cursor<'_>, options: &Options, p: &mut Problems) {
    let all = spec.at("versions");
    if let Some(shared) = shared_cursor(spec, "schema", "validation") {
        let status = all.items().any(|v| v.at("subresources").at("status").exists());
        let first = all.items().next().map_or("", |v| v.at("name").str());
        let unchanged = options.unchanged_schemas.iter().any(|v| v == first);
        schema::validate(&shared, status, options, unchanged, p);
    }
    if let Some(shared) = shared_cursor(spec, "subresources", "subresources") {
        subresources(&shared, p);
    }
    if let Some(shared) = shared_cursor(spec, "additionalPrinterColumns", "additionalPrinterColumns") {
        shared.items().for_each(|c| column(&c, p));
    }
    if let Some(shared) = shared_cursor(spec, "selectableFields", "selectableFields")
        && let Some(first) = all.items().next()
    {
        let name = first.at("name").str();
        selectable_fields(&shared, &first, name, options, p);
    }
}

/// Names of the spec, or accepted ones of the status.
pub(super) fn validate_names(names: &Cursor<'_>, p: &mut Problems) {
    let mixed = "may have mixed case, but should otherwise match: ";
    for name in ["plural", "singular"] {
        if !names.at(name).is_empty() {
            dns_1035(&names.at(name), p);
        }
    }
    for name in ["kind", "listKind"] {
        let c = names.at(name);
        if !c.is_empty() {
            joined(&c, &names::dns_1035_label(&c.str().to_lowercase()), mixed, p);
        }
    }
    names.at("shortNames").items().for_each(|c| dns_1035(&c, p));
    let (kind, list_kind) = (names.at("kind"), names.at("listKind"));
    if !kind.is_empty() && kind.str() == list_kind.str() {
        p.invalid(&list_kind, "kind and listKind may not be the same");
    }
    names.at("categories").items().for_each(|c| dns_1035(&c, p));
}

fn simple_path(c: &Cursor<'_>, p: &mut Problems) -> bool {
    let fits = c.str().starts_with('.');
    if !fits {
        p.invalid(c, "must be a simple json path starting with .");
    }
    fits
}

fn column(column: &Cursor<'_>, p: &mut Problems) {
    if column.at("name").is_empty() {
        p.required(&column.at("name"), "");
    }
    let (ty, format) = (column.at("type"), column.at("format"));
    let types = format!("must be one of {}", COLUMN_TYPES.join(","));
    if ty.is_empty() {
        p.required(&ty, types);
    } else if !COLUMN_TYPES.contains(&ty.str()) {
        p.invalid(&ty, types);
    }
    if !format.is_empty() && !COLUMN_FORMATS.contains(&format.str()) {
        p.invalid(&format, format!("must be one of {}", COLUMN_FORMATS.join(",")));
    }
    let path = Cursor::new(column.at("jsonPath").value(), column.path().field("JSONPath"));
    if path.is_empty() {
        p.required(&path, "");
    } else {
        simple_path(&path, p);
    }
}

fn subresources(subresources: &Cursor<'_>, p: &mut Problems) {
    let scale = subresources.at("scale");
    if !scale.exists() {
        return;
    }
    let at = |name: &'static str| {
        let path = subresources.path().member(&format!("scale.{name}"));
        Cursor::new(scale.at(name).value(), path)
    };
    for (name, prefix, words) in [
        ("specReplicasPath", ".spec.", "should be a json path under .spec"),
        ("statusReplicasPath", ".status.", "should be a json path under .status"),
    ] {
        let path = at(name);
        if path.is_empty() {
            p.required(&path, "");
        } else if simple_path(&path, p) && !path.str().starts_with(prefix) {
            p.invalid(&path, words);
        }
    }
    let selector = at("labelSelectorPath");
    if !selector.is_empty()
        && simple_path(&selector, p)
        && ![".spec.", ".status."]
            .iter()
            .any(|prefix| selector.str().starts_with(prefix))
    {
        p.invalid(&selector, "should be a json path under either .spec or .status");
    }
}

fn selectable_fields(fields: &Cursor<'_>, version: &Cursor<'_>, name: &str, options: &Options, p: &mut Problems) {
    if fields.is_empty() {
        return;
    }
    let schema = version.at("schema").at("openAPIV3Schema");
    let Some(value) = schema.value() else {
        let detail = "may only be set when `version.schema.openAPIV3Schema` is not included";
        return p.invalid_value(fields.path(), &"".into(), detail);
    };
    // A schema that cannot be read is complained about elsewhere.
    let Ok(schema) = Structural::parse(value) else { return };
    let mut seen: Vec<String> = vec![];
    for field in fields.items() {
        let path = field.at("jsonPath");
        if path.is_empty() {
            p.required(&path, "");
            continue;
        }
        let found = match field_path::follow(path.str(), &schema, false) {
            Ok(found) => found,
            Err(e) => {
                p.invalid(&path, format!("is an invalid path: {e}"));
                continue;
            }
        };
        if found.root == "metadata" {
            p.invalid(&path, "must not point to fields in metadata");
        }
        let ty = found.schema.map_or(SchemaType::Unspecified, |s| s.ty);
        if !matches!(ty, SchemaType::String | SchemaType::Boolean | SchemaType::Integer) {
            let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            p.invalid(&path, detail);
        }
        let text = found.path.to_string();
        if seen.contains(&text) {
            p.duplicate(&path);
        } else {
            seen.push(text);
        }
    }
    if seen.len() > MAX_SELECTABLE_FIELDS && !options.too_many_fields.iter().any(|v| v == name) {
        p.too_many(fields, seen.len(), MAX_SELECTABLE_FIELDS);
    }
}

fn conversion(spec: &Cursor<'_>, options: &Options, p: &mut Problems) {
    let conversion = spec.at("conversion");
    if !conversion.exists() {
        return;
    }
    let strategy = conversion.at("strategy");
    if strategy.str() != "None" && preserves(spec.value().unwrap_or(&Value::Null)) {
        p.invalid(&strategy, "must be None if spec.preserveUnknownFields is true");
    }
    match strategy.str() {
        "" => p.required(&strategy, ""),
        "None" | "Webhook" => {}
        _ => p.not_supported_as_listed(&strategy, &["None", "Webhook"]),
    }
    let webhook = conversion.at("webhook");
    let client = Cursor::new(
        webhook.at("clientConfig").value(),
        conversion.path().field("webhookClientConfig"),
    );
    let reviews = webhook.at("conversionReviewVersions");
    let reviews = Cursor::new(reviews.value(), conversion.path().field("conversionReviewVersions"));
    if strategy.str() != "Webhook" {
        let detail = "should not be set when strategy is not set to Webhook";
        if client.exists() {
            p.forbidden(&client, detail);
        }
        if !reviews.is_empty() {
            p.forbidden(&reviews, detail);
        }
        return;
    }
    if client.exists() {
        validate_client(&client, p);
        let bundle = client.at("caBundle");
        if !options.allow_invalid_ca_bundle
            && let Some(why) = super::ca_bundle_error(bundle.str())
        {
            p.invalid(&bundle, why);
        }
    } else {
        p.required(&client, "required when strategy is set to Webhook");
    }
    review_versions(&reviews, options, p);
}

fn review_versions(versions: &Cursor<'_>, options: &Options, p: &mut Problems) {
    if versions.is_empty() {
        return p.push(ProblemKind::Required, versions.path(), None, "");
    }
    let mut seen: Vec<&str> = vec![];
    for version in versions.items() {
        if seen.contains(&version.str()) {
            p.invalid(&version, "duplicate version");
            continue;
        }
        seen.push(version.str());
        p.invalid_each(&version, names::dns_1035_label(version.str()));
    }
    if options.require_review_version && !seen.iter().any(|v| matches!(*v, "v1" | "v1beta1")) {
        p.invalid(versions, "must include at least one of v1, v1beta1");
    }
}

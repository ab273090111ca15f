//! namespaces/finalize: takes finalizers off a namespace's spec; the last one lets it go.

use orlop_api::core::namespace;

use crate::registry::update::Endpoint;

pub(super) const FINALIZE: Endpoint = Endpoint {
    subresource: "finalize",
    prepare: |_, new, old| namespace::prepare_finalize(new, old),
    validate: |_, new, _, p| namespace::validate_finalize(new, p),
    generation: false,
    owns: true,
};

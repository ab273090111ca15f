//! pods/resize and pods/ephemeralcontainers. What leads to a pod's node is in `connect`.

use orlop_api::core::pod;

use crate::registry::update::Endpoint;

pub(super) const RESIZE: Endpoint = Endpoint {
    subresource: "resize",
    prepare: |_, new, old| pod::prepare_resize(new, old),
    validate: |_, new, old, p| pod::validate_resize(new, old, p),
    generation: true,
    owns: true,
};

pub(super) const EPHEMERAL_CONTAINERS: Endpoint = Endpoint {
    subresource: "ephemeralcontainers",
    prepare: |_, new, old| pod::prepare_ephemeral(new, old),
    validate: |_, new, old, p| pod::validate_ephemeral_containers_update(new, old, p),
    generation: true,
    owns: true,
};

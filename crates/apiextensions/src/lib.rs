//! Custom resources: what is decided about a CustomResourceDefinition, and about objects of the kinds that one defines.
//!
//! `definition` defaults and validates definitions, `names` plans their status. `CustomVersion` is one version of a kind,
//! compiled once: it decodes, defaults, validates and prints its objects. `conversion` has what is pure about converting
//! between versions, `openapi` what is published of a version's schema. There is no I/O and no async here: serving the
//! kinds, calling webhooks and writing status is the API server's.
//!
//! Descriptions are not kept by `CustomVersion`, so what is published is made of the definition itself
//! (`openapi::v3(&definition, "v1")`), when somebody asks for it.
//!
//! Upstream: staging/src/k8s.io/apiextensions-apiserver (v1.36).

pub mod conversion;
pub mod definition;
pub mod names;
pub mod openapi;

mod columns;
mod jsonpath;
mod rules;
mod scale;
mod validate;
mod version;

pub use columns::CustomColumn;
pub use scale::{ScaleError, ScalePaths};
pub use version::{CompileError, CustomVersion, SelectablePath};

//! Changing an object by a patch: JSON patch (`json`), JSON merge patch (`merge`), strategic merge patch (`strategic`)
//! and server-side apply (`apply`), which also keeps the record of who set which field (`metadata.managedFields`).
//!
//! Patches come in as bytes or as a parsed `Value` and work on the object's JSON form. The result is what the patch says,
//! nothing more: the caller decodes it against the schema again, defaults and validates it, as it would a new object.

pub mod apply;
pub mod json;
pub mod merge;
pub mod strategic;

mod go_format;

#[cfg(test)]
mod golden;

use crate::field::{Path, Problems};
use crate::schema::MAX_DEPTH;
use crate::status::{Details, Status};

/// A value as Go prints it in messages: `map[a:1 b:[x y]]`.
pub fn go_text(value: &serde_json::Value) -> String {
    go_format::GoFormatted(value).to_string()
}

/// Why a patch was refused. `Display` says what is wrong with it; `status` is the answer Kubernetes gives.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// Not a patch of this kind at all: 400.
    #[error("{0}")]
    Malformed(String),
    /// Does not fit this object: 422. Kubernetes keeps the reason to itself; it is here for logs.
    #[error("{0}")]
    Unprocessable(String),
    /// What it makes nests deeper than any object may: 422, with the reason.
    #[error("exceeded max depth of {MAX_DEPTH}")]
    TooDeep,
    /// 413.
    #[error("{0}")]
    TooLarge(String),
    /// What Kubernetes reports as an error without a reason: 500.
    #[error("{0}")]
    Failed(String),
}

impl PatchError {
    pub fn status(&self) -> Status {
        match self {
            PatchError::Malformed(why) => Status::bad_request(why),
            PatchError::Unprocessable(_) => {
                let mut status = Status::new(
                    422,
                    "Invalid",
                    "the server rejected our request due to an error in our request",
                );
                status.details = Some(Box::<Details>::default());
                status
            }
            PatchError::TooDeep => {
                let mut problems = Problems::default();
                problems.invalid_value(&Path::default().field("patch"), &"".into(), self.to_string());
                Status::invalid("", "", "", &problems)
            }
            PatchError::TooLarge(why) => Status::too_large(why),
            PatchError::Failed(why) => Status::new(500, "", why),
        }
    }
}

impl From<PatchError> for Status {
    fn from(error: PatchError) -> Status {
        error.status()
    }
}

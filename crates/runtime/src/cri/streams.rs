//! Commands and ports of containers behind a CRI socket.

use orlop_streaming::{Pipe, Session};

use super::messages::{AttachRequest, ExecRequest};
use crate::{Code, Error, Result};

/// Which streams were asked for.
pub struct Wants;

impl Wants {
    pub fn of_exec(_: &ExecRequest) -> Wants {
        Wants
    }

    pub fn of_attach(_: &AttachRequest) -> Wants {
        Wants
    }
}

fn not_carried(url: &str) -> Error {
    Error::new(Code::Unimplemented, format!("streams of {url} can't be carried"))
}

pub async fn session(url: &str, _: Wants, _: &str) -> Result<Session> {
    Err(not_carried(url))
}

pub async fn port(url: &str, _: u16) -> Result<Box<dyn Pipe>> {
    Err(not_carried(url))
}

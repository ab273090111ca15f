//! A connection of the runtime's to this shim: nonblocking, both directions bounded.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use serde::Serialize;

use crate::embedded::protocol::{self, Request};
use crate::embedded::sys::sockets;

/// Answers that wait for a client that does not read; events are small.
const OUT_BYTES_MAX: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    input: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    output: Vec<u8>,
    /// Wants to know when containers end.
    pub watches: bool,
    /// Close once everything is sent.
    pub finished: bool,
}

impl Connection {
    pub(super) fn new(socket: OwnedFd) -> io::Result<Connection> {
        sockets::set_nonblocking(socket.as_fd())?;
        Ok(Connection {
            socket,
            input: vec![],
            descriptors: vec![],
            output: vec![],
            watches: false,
            finished: false,
        })
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn wants_to_write(&self) -> bool {
        !self.output.is_empty()
    }

    /// Reads what has come. `Ok(false)`: the other side has gone.
    pub(super) fn read(&mut self) -> io::Result<bool> {
        let mut chunk = [0; 8192];
        loop {
            match sockets::receive(self.socket.as_fd(), &mut chunk, &mut self.descriptors) {
                Ok(0) => return Ok(false),
                Ok(count) => self.input.extend_from_slice(&chunk[..count]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
            if self.input.len() > protocol::MESSAGE_BYTES_MAX + 8192 {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "message is too large"));
            }
        }
    }

    /// The next whole request, with the descriptors that came so far.
    pub(super) fn next_request(&mut self) -> io::Result<Option<(Request, Vec<OwnedFd>)>> {
        let request = protocol::decode(&mut self.input)?;
        Ok(request.map(|request| (request, std::mem::take(&mut self.descriptors))))
    }

    /// Sends a message, or as much of it as goes now. Descriptors go with its first byte or the connection fails.
    pub(super) fn send(&mut self, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = protocol::encode(message)?;
        if self.output.is_empty() {
            let sent = match sockets::send(self.socket.as_fd(), &bytes, descriptors) {
                Ok(sent) => sent,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && descriptors.is_empty() => 0,
                Err(e) => return Err(e),
            };
            self.output.extend_from_slice(&bytes[sent..]);
            return Ok(());
        }
        if !descriptors.is_empty() || self.output.len() + bytes.len() > OUT_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::WouldBlock, "client does not read"));
        }
        self.output.extend_from_slice(&bytes);
        Ok(())
    }

    /// Goes on sending.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match sockets::send(self.socket.as_fd(), &self.output, &[]) {
                Ok(sent) => drop(self.output.drain(..sent)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        self.output = Vec::new();
        Ok(())
    }
}

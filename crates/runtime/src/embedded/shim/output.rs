//! A container's output: read once, written to its log and to every client that is attached.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;

use super::log::{LineSplitter, LogFile, render_time};

/// As much as a pipe holds, so that one read empties it.
pub(super) const CHUNK_BYTES: usize = 64 << 10;

/// Standard output or error.
#[derive(Debug)]
pub(super) struct Stream {
    pub name: &'static str,
    /// `None` after its end.
    pub source: Option<OwnedFd>,
    lines: LineSplitter,
}

impl Stream {
    pub(super) fn new(name: &'static str, source: OwnedFd) -> Stream {
        Stream {
            name,
            source: Some(source),
            lines: LineSplitter::default(),
        }
    }
}

/// One client's copy of a stream. What it has not read yet is kept, and the stream is not read on meanwhile.
#[derive(Debug)]
pub(super) struct Sink {
    pub descriptor: OwnedFd,
    pub pending: Vec<u8>,
}

impl Sink {
    pub(super) fn new(descriptor: OwnedFd) -> Sink {
        Sink {
            descriptor,
            pending: vec![],
        }
    }

    /// `false`: the client has gone.
    pub(super) fn flush(&mut self) -> bool {
        while !self.pending.is_empty() {
            match nix::unistd::write(self.descriptor.as_fd(), &self.pending) {
                Ok(count) => drop(self.pending.drain(..count)),
                Err(Errno::EAGAIN) => return true,
                Err(Errno::EINTR) => {}
                Err(_) => return false,
            }
        }
        self.pending = Vec::new();
        true
    }
}

/// A client, with the streams that it wants.
#[derive(Debug)]
pub(super) struct Attached {
    /// Ends when the streams have.
    pub connection: u64,
    pub stdout: Option<Sink>,
    pub stderr: Option<Sink>,
}

impl Attached {
    pub(super) fn sink_mut(&mut self, stream: &str) -> Option<&mut Sink> {
        match stream {
            "stderr" => self.stderr.as_mut(),
            _ => self.stdout.as_mut(),
        }
    }

    pub(super) fn is_behind(&self, stream: &str) -> bool {
        let sink = match stream {
            "stderr" => &self.stderr,
            _ => &self.stdout,
        };
        sink.as_ref().is_some_and(|sink| !sink.pending.is_empty())
    }
}

/// Everything that a container writes.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    pub streams: Vec<Stream>,
    pub log: Option<LogFile>,
    pub attached: Vec<Attached>,
}

impl Outputs {
    /// Clients keep up, so a stream may be read on.
    pub(super) fn may_read(&self, stream: &str) -> bool {
        !self.attached.iter().any(|client| client.is_behind(stream))
    }

    /// Reads a stream once. `false`: nothing more for now, or at all.
    pub(super) fn read(&mut self, at: usize, buffer: &mut [u8]) -> bool {
        let Some(source) = self.streams[at].source.as_ref() else {
            return false;
        };
        match nix::unistd::read(source.as_fd(), buffer) {
            Ok(0) => self.end(at),
            Ok(count) => {
                self.pass_on(at, &buffer[..count]);
                true
            }
            Err(Errno::EAGAIN | Errno::EINTR) => false,
            // A terminal whose other side is closed.
            Err(_) => self.end(at),
        }
    }

    fn pass_on(&mut self, at: usize, bytes: &[u8]) {
        let stream = &mut self.streams[at];
        if let Some(log) = &mut self.log {
            let mut lines = vec![];
            stream.lines.feed(stream.name, bytes, &now(), &mut lines);
            log.append(&lines);
        }
        let name = stream.name;
        self.attached.retain_mut(|client| match client.sink_mut(name) {
            Some(sink) => {
                sink.pending.extend_from_slice(bytes);
                sink.flush()
            }
            None => true,
        });
    }

    fn end(&mut self, at: usize) -> bool {
        let stream = &mut self.streams[at];
        stream.source = None;
        if let Some(log) = &mut self.log {
            let mut lines = vec![];
            stream.lines.finish(stream.name, &now(), &mut lines);
            log.append(&lines);
        }
        false
    }

    /// The container has ended: takes what is still in its pipes. Who holds them open beyond that is not listened to.
    pub(super) fn drain(&mut self, buffer: &mut [u8]) {
        for at in 0..self.streams.len() {
            while self.read(at, buffer) {}
            if self.streams[at].source.is_some() {
                self.end(at);
            }
        }
    }

    pub(super) fn reopen_log(&mut self) -> io::Result<()> {
        match &mut self.log {
            Some(log) => log.reopen(),
            None => Ok(()),
        }
    }
}

fn now() -> String {
    render_time(orlop_base::clock::wall())
}

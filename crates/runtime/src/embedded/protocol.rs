//! What the runtime and a shim say to each other: JSON with its length before it, over a Unix socket.
//!
//! One request a connection. Its answers come back on it, the last one of a command or a watch being its end; where
//! descriptors belong to a message, they come with its first byte.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::spec::ProcessSpec;
use super::sys;

/// A container's environment may hold whole ConfigMaps; kernels refuse more than this in any case.
pub(crate) const MESSAGE_BYTES_MAX: usize = 4 << 20;

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Which containers run or are being started: [`Answer::Watching`]. From then on every one that starts or ends:
    /// [`Answer::Running`], [`Answer::Exited`].
    Watch,
    /// Starts the container whose `spec.json` is in its directory: [`Answer::Started`].
    Start { id: String },
    /// Sends a signal to a container's first process, or kills all of them: [`Answer::Done`].
    Signal { id: String, signal: i32, all: bool },
    /// Runs a command in a container: [`Answer::Started`] (with the terminal, if one was asked for), then
    /// [`Answer::Exited`]. Without a terminal the request carries what it has for input, output and error.
    Exec { id: String, process: Box<ProcessSpec> },
    /// Sends a signal to a command that this connection started, on which it is sent.
    SignalExec { signal: i32 },
    /// Copies a container's output to descriptors that come along, output first: [`Answer::Attached`], with its input
    /// or terminal if that was asked for; the connection ends when the container's output has.
    Attach {
        id: String,
        stdin: bool,
        stdout: bool,
        stderr: bool,
    },
    /// The log file was moved away: [`Answer::Done`].
    ReopenLog { id: String },
    /// Two sockets, IPv4 and IPv6, of the pod's network: [`Answer::Done`].
    Sockets,
    /// Kills what still runs and ends: [`Answer::Done`].
    Shutdown,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// The sandbox is made; with its network namespace if it has its own.
    Ready {
        pid: i32,
    },
    Watching {
        pid: i32,
        containers: Vec<String>,
    },
    Started {
        pid: i32,
        started_at: i64,
    },
    /// A container has begun to run: for those who watch.
    Running {
        id: String,
        pid: i32,
        started_at: i64,
    },
    Attached,
    Exited(Exited),
    Done,
    Failed {
        message: String,
        missing: bool,
    },
}

/// How a container or a command ended. A container's is in its state file before anybody hears of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Exited {
    pub id: String,
    pub code: i32,
    /// `OOMKilled`, `StartError`; empty where the code says it all.
    pub reason: String,
    pub message: String,
    /// Nanoseconds since the epoch; 0: it never began.
    pub started_at: i64,
    pub finished_at: i64,
}

/// Reasons and codes as containerd gives them.
pub(crate) const OOM_KILLED: &str = "OOMKilled";
pub(crate) const START_ERROR: &str = "StartError";
pub(crate) const START_ERROR_CODE: i32 = 128;

/// A container's `state.json`: written by the shim, read by whoever wants to know what became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ContainerStateFile {
    pub pid: i32,
    /// Nanoseconds since the epoch.
    pub started_at: i64,
    pub exited: Option<Exited>,
}

/// A message with its length before it.
pub(crate) fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message)?;
    let length = bytes.len() - 4;
    if length > MESSAGE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "message is too large"));
    }
    bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(bytes)
}

/// The first message in a buffer, which is then taken out of it; `None` while it is incomplete.
pub(crate) fn decode<T: DeserializeOwned>(buffer: &mut Vec<u8>) -> io::Result<Option<T>> {
    let Some(length) = buffer.first_chunk::<4>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*length) as usize;
    if length > MESSAGE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "message is too large"));
    }
    let Some(bytes) = buffer.get(4..4 + length) else {
        return Ok(None);
    };
    let message = serde_json::from_slice(bytes)?;
    buffer.drain(..4 + length);
    // A large message is no reason to keep that much memory.
    buffer.shrink_to(4 << 10);
    Ok(Some(message))
}

/// Sends a whole message on a blocking socket.
pub(crate) fn send_message(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = encode(message)?;
    let mut sent = sys::sockets::send(socket, &bytes, descriptors)?;
    while sent < bytes.len() {
        sent += sys::sockets::send(socket, &bytes[sent..], &[])?;
    }
    Ok(())
}

/// Receives a whole message from a blocking socket; `None` at its end.
pub(crate) fn receive_message<T: DeserializeOwned>(
    socket: BorrowedFd<'_>,
    buffer: &mut Vec<u8>,
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<Option<T>> {
    loop {
        if let Some(message) = decode(buffer)? {
            return Ok(Some(message));
        }
        let mut chunk = [0; 4096];
        match sys::sockets::receive(socket, &mut chunk, descriptors) {
            Ok(0) => return Ok(None),
            Ok(count) => buffer.extend_from_slice(&chunk[..count]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_apart_again() {
        let first = Request::Start { id: "a".to_string() };
        let mut bytes = encode(&first).unwrap();
        bytes.extend(encode(&Request::Shutdown).unwrap());
        let mut buffer = vec![];
        let mut seen = vec![];
        for byte in bytes {
            buffer.push(byte);
            while let Some(request) = decode::<Request>(&mut buffer).unwrap() {
                seen.push(request);
            }
        }
        assert_eq!(seen, [first, Request::Shutdown]);
        assert!(buffer.is_empty());
    }

    #[test]
    fn garbage_is_refused() {
        assert!(decode::<Request>(&mut vec![255; 8]).is_err());
        assert!(decode::<Request>(&mut vec![1, 0, 0, 0, b'x']).is_err());
        assert_eq!(decode::<Request>(&mut vec![9, 0]).unwrap(), None);
    }
}

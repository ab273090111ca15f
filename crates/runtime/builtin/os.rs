//! Arguments, environment, standard streams, files as bytes.

use alloc::string::String;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::fmt::{self, Write};
use core::net::{IpAddr, SocketAddr};

use crate::sys;

/// The stack as the kernel left it, and the environment as it is now.
struct Start {
    stack: *const usize,
    environment: Option<Vec<(String, String)>>,
}

struct Shared(UnsafeCell<Start>);

// SAFETY: the program has one thread.
unsafe impl Sync for Shared {}

static START: Shared = Shared(UnsafeCell::new(Start {
    stack: core::ptr::null(),
    environment: None,
}));

/// # Safety
/// `stack` is the stack pointer at the program's entry. Called once, before anything else here.
pub unsafe fn take_stack(stack: *const usize) {
    // SAFETY: nobody else uses it yet.
    unsafe { (*START.0.get()).stack = stack };
}

fn start() -> &'static mut Start {
    // SAFETY: one thread, and no caller keeps it across a call that asks for it again.
    unsafe { &mut *START.0.get() }
}

/// The texts from an index of the stack on, up to the zero that ends them.
fn texts_on_stack(from: usize) -> Vec<String> {
    let stack = start().stack;
    let mut texts = Vec::new();
    for at in from.. {
        // SAFETY: the kernel ended both lists of texts on the stack with a zero, and each text too.
        let text = unsafe {
            let address = stack.add(at).read();
            if address == 0 {
                break;
            }
            core::ffi::CStr::from_ptr(address as *const core::ffi::c_char)
        };
        texts.push(String::from_utf8_lossy(text.to_bytes()).into_owned());
    }
    texts
}

pub fn arguments() -> Vec<String> {
    texts_on_stack(1)
}

pub fn environment() -> &'static mut Vec<(String, String)> {
    if start().environment.is_none() {
        // SAFETY: the first word on the stack is the number of arguments.
        let count = unsafe { start().stack.read() };
        let texts = texts_on_stack(count + 2).into_iter();
        let pairs = texts.filter_map(|text| text.split_once('=').map(|(k, v)| (k.into(), v.into())));
        start().environment = Some(pairs.collect());
    }
    start().environment.get_or_insert_default()
}

pub fn variable(name: &str) -> Option<&'static str> {
    let found = environment().iter().find(|(key, _)| key == name);
    found.map(|(_, value)| value.as_str())
}

pub fn set_variable(name: &str, value: &str) {
    let environment = environment();
    environment.retain(|(key, _)| key != name);
    environment.push((name.into(), value.into()));
}

pub fn exit(code: i32) -> ! {
    sys::exit(code)
}

/// Writes all of it; what cannot be written is lost, as with a closed standard output.
pub fn write_all(fd: i32, mut bytes: &[u8]) -> sys::Result<()> {
    while !bytes.is_empty() {
        match sys::write(fd, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(sys::EAGAIN) => {
                let mut waiting = [sys::PollFd {
                    fd,
                    events: sys::POLLOUT,
                    revents: 0,
                }];
                sys::poll(&mut waiting, None)?;
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// A stream for `write!`: each call is written at once, so lines of several processes stay whole.
pub struct Stream(pub i32);

impl Stream {
    pub fn print(&self, arguments: fmt::Arguments<'_>, end: &str) {
        let mut text = String::new();
        let _ = text.write_fmt(arguments);
        text.push_str(end);
        let _ = write_all(self.0, text.as_bytes());
    }
}

#[macro_export]
macro_rules! print {
    ($($argument:tt)*) => { $crate::os::Stream(1).print(format_args!($($argument)*), "") };
}

#[macro_export]
macro_rules! println {
    ($($argument:tt)*) => { $crate::os::Stream(1).print(format_args!($($argument)*), "\n") };
}

#[macro_export]
macro_rules! eprintln {
    ($($argument:tt)*) => { $crate::os::Stream(2).print(format_args!($($argument)*), "\n") };
}

/// All of a descriptor, up to a limit.
pub fn read_all(fd: i32, limit: usize) -> sys::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    while bytes.len() < limit {
        match sys::read(fd, &mut buffer)? {
            0 => break,
            count => bytes.extend_from_slice(&buffer[..count]),
        }
    }
    Ok(bytes)
}

/// A whole file of bounded size.
pub fn read_file(path: &str) -> sys::Result<Vec<u8>> {
    let fd = sys::open(path.as_bytes(), sys::O_RDONLY, 0)?;
    let bytes = read_all(fd, 1 << 20);
    sys::close(fd);
    bytes
}

pub fn read_text(path: &str) -> sys::Result<String> {
    read_file(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

pub fn host_name() -> String {
    let mut buffer = [0; 65 * 6];
    let _ = sys::uname(&mut buffer);
    let name = buffer[65..130].split(|b| *b == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

/// The address that packets leave from. Nothing is sent: the kernel only looks up the route.
pub fn own_address() -> Option<IpAddr> {
    if let Some(given) = variable("POD_IP").and_then(|text| text.parse().ok()) {
        return Some(given);
    }
    // Addresses that are reserved for documentation.
    ["192.0.2.1:9", "[2001:db8::1]:9"].iter().find_map(|target| {
        let target: SocketAddr = target.parse().ok()?;
        let fd = sys::socket_for(&target, sys::SOCK_DGRAM).ok()?;
        let address = sys::connect(fd, &target).and_then(|()| sys::local_address(fd));
        sys::close(fd);
        address.ok().map(|a| a.ip())
    })
}

/// Signals as they come, for programs that are process 1.
pub struct Signals {
    pub fd: i32,
}

impl Signals {
    pub fn take() -> sys::Result<Signals> {
        let signals = [sys::SIGHUP, sys::SIGINT, sys::SIGTERM, sys::SIGCHLD];
        sys::signal_fd(&signals).map(|fd| Signals { fd })
    }

    /// The next one that has come; children that ended are waited for on the way.
    pub fn next(&self) -> Option<i32> {
        let mut info = [0u8; 128];
        let count = sys::read(self.fd, &mut info).ok()?;
        let signal = i32::from_ne_bytes(info[..4].try_into().ok()?);
        if count < 128 {
            return None;
        }
        if signal == sys::SIGCHLD {
            while let Ok((pid, _)) = sys::wait(-1, false)
                && pid > 0
            {}
        }
        Some(signal)
    }

    /// Waits for a signal that ends programs, at most so long.
    pub fn wait_for_end(&self, timeout_ms: Option<u64>) -> Option<i32> {
        let deadline = timeout_ms.map(|ms| sys::monotonic_ms() + ms);
        loop {
            while let Some(signal) = self.next() {
                if signal != sys::SIGCHLD {
                    return Some(signal);
                }
            }
            let left = deadline.map(|deadline| deadline.saturating_sub(sys::monotonic_ms()));
            if left == Some(0) {
                return None;
            }
            let mut waiting = [sys::PollFd {
                fd: self.fd,
                events: sys::POLLIN,
                revents: 0,
            }];
            let _ = sys::poll(&mut waiting, left);
        }
    }
}

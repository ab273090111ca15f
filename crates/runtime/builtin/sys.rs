//! System calls. Everything that is not safe is in this file, in `os::take_stack` and in `memory`.

use core::arch::{asm, global_asm};

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {begin}",
    "ud2",
    begin = sym super::begin,
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".globl _start",
    "_start:",
    "mov x29, #0",
    "mov x0, sp",
    "and sp, x0, #-16",
    "bl {begin}",
    "brk #1",
    begin = sym super::begin,
);

/// # Safety
/// The arguments must be what the call wants: addresses must be valid for what the kernel does with them.
#[cfg(target_arch = "x86_64")]
unsafe fn syscall(number: usize, a: [usize; 6]) -> isize {
    let result;
    // SAFETY: the kernel's calling convention; it keeps all registers but these.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// # Safety
/// As above.
#[cfg(target_arch = "aarch64")]
unsafe fn syscall(number: usize, a: [usize; 6]) -> isize {
    let result;
    // SAFETY: the kernel's calling convention; it keeps all registers but the first.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a[0] as isize => result,
            in("x1") a[1], in("x2") a[2], in("x3") a[3], in("x4") a[4], in("x5") a[5],
            options(nostack),
        );
    }
    result
}

macro_rules! numbers {
    ($($name:ident $x86_64:literal $aarch64:literal)*) => {
        $(#[cfg(target_arch = "x86_64")] const $name: usize = $x86_64;
          #[cfg(target_arch = "aarch64")] const $name: usize = $aarch64;)*
    };
}

numbers! {
    READ 0 63 WRITE 1 64 CLOSE 3 57 MMAP 9 222 MUNMAP 11 215 SIGPROCMASK 14 135 IOCTL 16 29 NANOSLEEP 35 101 GETPID 39 172
    SOCKET 41 198 CONNECT 42 203 SENDTO 44 206 RECVFROM 45 207 BIND 49 200 LISTEN 50 201 GETSOCKNAME 51 204
    SETSOCKOPT 54 208 GETSOCKOPT 55 209 CLONE 56 220 EXECVE 59 221 WAIT4 61 260 KILL 62 129 UNAME 63 160
    GETCWD 79 17 CHDIR 80 49 GETUID 102 174 GETGID 104 176 GETGROUPS 115 158 PRCTL 157 167 GETDENTS64 217 61 CLOCK_GETTIME 228 113
    EXIT_GROUP 231 94 OPENAT 257 56 MKDIRAT 258 34 NEWFSTATAT 262 79 UNLINKAT 263 35 LINKAT 265 37
    SYMLINKAT 266 36 READLINKAT 267 78 FCHMODAT 268 53 PPOLL 271 73 UTIMENSAT 280 88 ACCEPT4 288 242 SIGNALFD4 289 74
    DUP3 292 24 PIPE2 293 59 GETRANDOM 318 278
}

/// Why a system call failed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

pub type Result<T> = core::result::Result<T, Errno>;

pub const ENOENT: Errno = Errno(2);
pub const EINTR: Errno = Errno(4);
pub const EAGAIN: Errno = Errno(11);
pub const EEXIST: Errno = Errno(17);
pub const ENOTDIR: Errno = Errno(20);
pub const EISDIR: Errno = Errno(21);
pub const EINVAL: Errno = Errno(22);
pub const EINPROGRESS: Errno = Errno(115);
pub const ETIMEDOUT: Errno = Errno(110);

impl core::fmt::Display for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self.0 {
            1 => "Operation not permitted",
            2 => "No such file or directory",
            7 => "Argument list too long",
            8 => "Exec format error",
            12 => "Cannot allocate memory",
            13 => "Permission denied",
            17 => "File exists",
            20 => "Not a directory",
            21 => "Is a directory",
            22 => "Invalid argument",
            28 => "No space left on device",
            30 => "Read-only file system",
            32 => "Broken pipe",
            39 => "Directory not empty",
            98 => "Address in use",
            101 => "Network is unreachable",
            104 => "Connection reset by peer",
            110 => "Connection timed out",
            111 => "Connection refused",
            113 => "No route to host",
            _ => return write!(f, "error {}", self.0),
        })
    }
}

fn checked(result: isize) -> Result<usize> {
    match result < 0 {
        true => Err(Errno(-result as i32)),
        false => Ok(result as usize),
    }
}

/// A text with the zero that the kernel wants at its end.
pub struct CText(alloc::vec::Vec<u8>);

impl CText {
    pub fn new(text: &[u8]) -> CText {
        let mut bytes = alloc::vec::Vec::with_capacity(text.len() + 1);
        bytes.extend(text.iter().copied().filter(|b| *b != 0));
        bytes.push(0);
        CText(bytes)
    }

    fn address(&self) -> usize {
        self.0.as_ptr() as usize
    }
}

const AT_FDCWD: usize = -100isize as usize;

macro_rules! call {
    // SAFETY: every use below passes numbers, or addresses of values that live until the call returns and are as large
    // as the call is told.
    ($number:ident $(, $argument:expr)*) => {{
        let given = [$($argument as usize),*];
        let mut all = [0usize; 6];
        all[..given.len()].copy_from_slice(&given);
        checked(unsafe { syscall($number, all) })
    }};
}

pub fn exit(code: i32) -> ! {
    let _: Result<usize> = call!(EXIT_GROUP, code);
    loop {}
}

pub fn read(fd: i32, buffer: &mut [u8]) -> Result<usize> {
    loop {
        match call!(READ, fd, buffer.as_mut_ptr(), buffer.len()) {
            Err(EINTR) => {}
            other => return other,
        }
    }
}

pub fn write(fd: i32, bytes: &[u8]) -> Result<usize> {
    loop {
        match call!(WRITE, fd, bytes.as_ptr(), bytes.len()) {
            Err(EINTR) => {}
            other => return other,
        }
    }
}

/// Whether somebody types at the other end.
pub fn is_terminal(fd: i32) -> bool {
    const TCGETS: usize = 0x5401;
    let mut settings = [0u8; 64];
    call!(IOCTL, fd, TCGETS, settings.as_mut_ptr()).is_ok()
}

pub fn close(fd: i32) {
    let _: Result<usize> = call!(CLOSE, fd);
}

pub const O_RDONLY: u32 = 0;
pub const O_WRONLY: u32 = 1;
pub const O_CREAT: u32 = 0o100;
pub const O_TRUNC: u32 = 0o1000;
pub const O_APPEND: u32 = 0o2000;
pub const O_CLOEXEC: u32 = 0o2000000;
#[cfg(target_arch = "x86_64")]
pub const O_NOFOLLOW: u32 = 0o400000;
#[cfg(target_arch = "aarch64")]
pub const O_NOFOLLOW: u32 = 0o100000;

pub fn open(path: &[u8], flags: u32, mode: u32) -> Result<i32> {
    let path = CText::new(path);
    call!(OPENAT, AT_FDCWD, path.address(), flags | O_CLOEXEC, mode).map(|fd| fd as i32)
}

/// What is known about a file.
#[derive(Clone, Copy, Default)]
pub struct Stat {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub modified: i64,
}

/// Without following the last link, or with.
pub fn stat(path: &[u8], follow: bool) -> Result<Stat> {
    const NOFOLLOW: usize = 0x100;
    let path = CText::new(path);
    let mut raw = [0u64; 18];
    let flags = if follow { 0 } else { NOFOLLOW };
    call!(NEWFSTATAT, AT_FDCWD, path.address(), raw.as_mut_ptr(), flags)?;
    // struct stat of each architecture, in words of 64 bits.
    #[cfg(target_arch = "x86_64")]
    let stat = Stat {
        mode: raw[3] as u32,
        uid: (raw[3] >> 32) as u32,
        gid: raw[4] as u32,
        size: raw[6],
        modified: raw[11] as i64,
    };
    #[cfg(target_arch = "aarch64")]
    let stat = Stat {
        mode: raw[2] as u32,
        uid: raw[3] as u32,
        gid: (raw[3] >> 32) as u32,
        size: raw[6],
        modified: raw[11] as i64,
    };
    Ok(stat)
}

pub fn mkdir(path: &[u8], mode: u32) -> Result<()> {
    let path = CText::new(path);
    call!(MKDIRAT, AT_FDCWD, path.address(), mode).map(drop)
}

pub fn unlink(path: &[u8], directory: bool) -> Result<()> {
    let path = CText::new(path);
    call!(UNLINKAT, AT_FDCWD, path.address(), if directory { 0x200 } else { 0 }).map(drop)
}

pub fn symlink(target: &[u8], path: &[u8]) -> Result<()> {
    let (target, path) = (CText::new(target), CText::new(path));
    call!(SYMLINKAT, target.address(), AT_FDCWD, path.address()).map(drop)
}

pub fn link(target: &[u8], path: &[u8]) -> Result<()> {
    let (target, path) = (CText::new(target), CText::new(path));
    call!(LINKAT, AT_FDCWD, target.address(), AT_FDCWD, path.address(), 0).map(drop)
}

pub fn readlink(path: &[u8], buffer: &mut [u8]) -> Result<usize> {
    let path = CText::new(path);
    call!(READLINKAT, AT_FDCWD, path.address(), buffer.as_mut_ptr(), buffer.len())
}

pub fn chmod(path: &[u8], mode: u32) -> Result<()> {
    let path = CText::new(path);
    call!(FCHMODAT, AT_FDCWD, path.address(), mode).map(drop)
}

/// Sets both times; `None` is now.
pub fn set_times(path: &[u8], seconds: Option<i64>) -> Result<()> {
    const NOW: i64 = (1 << 30) - 1;
    let path = CText::new(path);
    let time = match seconds {
        Some(seconds) => [seconds, 0],
        None => [0, NOW],
    };
    let times = [time, time];
    call!(UTIMENSAT, AT_FDCWD, path.address(), times.as_ptr(), 0x100).map(drop)
}

pub fn getdents(fd: i32, buffer: &mut [u8]) -> Result<usize> {
    call!(GETDENTS64, fd, buffer.as_mut_ptr(), buffer.len())
}

pub fn getcwd(buffer: &mut [u8]) -> Result<usize> {
    call!(GETCWD, buffer.as_mut_ptr(), buffer.len())
}

pub fn chdir(path: &[u8]) -> Result<()> {
    let path = CText::new(path);
    call!(CHDIR, path.address()).map(drop)
}

pub fn getpid() -> i32 {
    call!(GETPID).unwrap_or(0) as i32
}

pub fn getuid() -> u32 {
    call!(GETUID).unwrap_or(0) as u32
}

pub fn getgid() -> u32 {
    call!(GETGID).unwrap_or(0) as u32
}

pub fn getgroups(groups: &mut [u32]) -> Result<usize> {
    call!(GETGROUPS, groups.len(), groups.as_mut_ptr())
}

pub fn uname(buffer: &mut [u8; 65 * 6]) -> Result<()> {
    call!(UNAME, buffer.as_mut_ptr()).map(drop)
}

/// Seconds and nanoseconds of a clock.
fn clock(id: usize) -> (i64, i64) {
    let mut time = [0i64; 2];
    let _: Result<usize> = call!(CLOCK_GETTIME, id, time.as_mut_ptr());
    (time[0], time[1])
}

pub fn wall_seconds() -> i64 {
    clock(0).0
}

/// Milliseconds since the machine was started.
pub fn monotonic_ms() -> u64 {
    let (seconds, nanos) = clock(1);
    seconds as u64 * 1000 + nanos as u64 / 1_000_000
}

/// Nanoseconds of processor time that this process took.
pub fn process_nanos() -> u64 {
    let (seconds, nanos) = clock(2);
    seconds as u64 * 1_000_000_000 + nanos as u64
}

pub fn nanosleep(nanos: u64) -> Result<()> {
    let time = [(nanos / 1_000_000_000) as i64, (nanos % 1_000_000_000) as i64];
    call!(NANOSLEEP, time.as_ptr(), 0).map(drop)
}

/// Fresh memory for the allocator, and for `--memory`.
pub fn map_memory(size: usize) -> Result<*mut u8> {
    const READ_WRITE: usize = 3;
    const PRIVATE_ANONYMOUS: usize = 0x22;
    call!(MMAP, 0, size, READ_WRITE, PRIVATE_ANONYMOUS, -1isize, 0).map(|address| address as *mut u8)
}

/// # Safety
/// The memory came from `map_memory` with this size, and nothing uses it any more.
pub unsafe fn unmap_memory(address: *mut u8, size: usize) {
    let _: Result<usize> = call!(MUNMAP, address, size);
}

pub fn random() -> u64 {
    let mut number = 0u64;
    let _: Result<usize> = call!(GETRANDOM, &mut number as *mut u64, 8, 0);
    number
}

// Processes and signals.

pub const SIGHUP: i32 = 1;
pub const SIGINT: i32 = 2;
pub const SIGTERM: i32 = 15;
pub const SIGCHLD: i32 = 17;

/// A child that goes on from here with a copy of everything: 0 in the child.
pub fn fork() -> Result<i32> {
    call!(CLONE, SIGCHLD, 0, 0, 0, 0).map(|pid| pid as i32)
}

pub fn execve(path: &[u8], arguments: &[CText], environment: &[CText]) -> Errno {
    let path = CText::new(path);
    let addresses =
        |texts: &[CText]| -> alloc::vec::Vec<usize> { texts.iter().map(CText::address).chain([0]).collect() };
    let (arguments, environment) = (addresses(arguments), addresses(environment));
    match call!(EXECVE, path.address(), arguments.as_ptr(), environment.as_ptr()) {
        Err(errno) => errno,
        Ok(_) => EINVAL,
    }
}

/// Waits for a child (-1: any): its process id, 0 if none has ended, and its status.
pub fn wait(pid: i32, block: bool) -> Result<(i32, i32)> {
    let mut status = 0i32;
    loop {
        match call!(
            WAIT4,
            pid as isize,
            &mut status as *mut i32,
            if block { 0 } else { 1 },
            0
        ) {
            Err(EINTR) => {}
            other => return other.map(|pid| (pid as i32, status)),
        }
    }
}

pub fn kill(pid: i32, signal: i32) -> Result<()> {
    call!(KILL, pid as isize, signal).map(drop)
}

/// Ends this process with the one that started it.
pub fn end_with_parent() {
    const SET_PDEATHSIG: usize = 1;
    const SIGKILL: usize = 9;
    let _: Result<usize> = call!(PRCTL, SET_PDEATHSIG, SIGKILL, 0, 0, 0);
}

fn signal_set(signals: &[i32]) -> u64 {
    signals.iter().fold(0, |set, signal| set | 1 << (signal - 1))
}

/// A descriptor that signals are read from, which no longer do anything else.
pub fn signal_fd(signals: &[i32]) -> Result<i32> {
    const NONBLOCK: usize = 0o4000;
    block_signals(signals);
    let set = signal_set(signals);
    call!(SIGNALFD4, -1isize, &set as *const u64, 8, NONBLOCK | O_CLOEXEC as usize).map(|fd| fd as i32)
}

pub fn block_signals(signals: &[i32]) {
    let set = signal_set(signals);
    let _: Result<usize> = call!(SIGPROCMASK, 0, &set as *const u64, 0, 8);
}

/// Signals do again what they do by default: what is blocked stays so in programs that are started.
pub fn unblock_signals() {
    let set = u64::MAX;
    let _: Result<usize> = call!(SIGPROCMASK, 1, &set as *const u64, 0, 8);
}

pub fn dup(from: i32, to: i32) -> Result<()> {
    match from == to {
        true => Ok(()),
        false => call!(DUP3, from, to, 0).map(drop),
    }
}

pub fn pipe() -> Result<(i32, i32)> {
    let mut ends = [0i32; 2];
    call!(PIPE2, ends.as_mut_ptr(), O_CLOEXEC)?;
    Ok((ends[0], ends[1]))
}

/// A descriptor that is waited for.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct PollFd {
    pub fd: i32,
    pub events: i16,
    pub revents: i16,
}

pub const POLLIN: i16 = 1;
pub const POLLOUT: i16 = 4;

pub fn poll(fds: &mut [PollFd], timeout_ms: Option<u64>) -> Result<usize> {
    let time = timeout_ms.map(|ms| [(ms / 1000) as i64, (ms % 1000) as i64 * 1_000_000]);
    let time = time.as_ref().map_or(0, |time| time.as_ptr() as usize);
    match call!(PPOLL, fds.as_mut_ptr(), fds.len(), time, 0, 8) {
        Err(EINTR) => Ok(0),
        other => other,
    }
}

// Sockets.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub const AF_INET: usize = 2;
pub const AF_INET6: usize = 10;
pub const SOCK_STREAM: usize = 1;
pub const SOCK_DGRAM: usize = 2;
const SOCK_NONBLOCK: usize = 0o4000;

/// `struct sockaddr_in` or `sockaddr_in6`, and its length.
fn encode(address: &SocketAddr) -> ([u8; 28], usize) {
    let mut raw = [0; 28];
    raw[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address.ip() {
        IpAddr::V4(ip) => {
            raw[0] = AF_INET as u8;
            raw[4..8].copy_from_slice(&ip.octets());
            (raw, 16)
        }
        IpAddr::V6(ip) => {
            raw[0] = AF_INET6 as u8;
            raw[8..24].copy_from_slice(&ip.octets());
            (raw, 28)
        }
    }
}

fn decode(raw: &[u8; 28]) -> SocketAddr {
    let port = u16::from_be_bytes([raw[2], raw[3]]);
    let ip = match usize::from(raw[0]) {
        AF_INET6 => {
            let mut octets = [0; 16];
            octets.copy_from_slice(&raw[8..24]);
            IpAddr::V6(Ipv6Addr::from(octets)).to_canonical()
        }
        _ => IpAddr::V4(Ipv4Addr::new(raw[4], raw[5], raw[6], raw[7])),
    };
    SocketAddr::new(ip, port)
}

fn domain(address: &SocketAddr) -> usize {
    if address.is_ipv4() { AF_INET } else { AF_INET6 }
}

/// A socket that never waits.
pub fn socket_for(address: &SocketAddr, kind: usize) -> Result<i32> {
    call!(SOCKET, domain(address), kind | SOCK_NONBLOCK | O_CLOEXEC as usize, 0).map(|fd| fd as i32)
}

pub fn bind(fd: i32, address: &SocketAddr) -> Result<()> {
    const SOL_SOCKET: usize = 1;
    const REUSEADDR: usize = 2;
    let one = 1i32;
    let _: Result<usize> = call!(SETSOCKOPT, fd, SOL_SOCKET, REUSEADDR, &one as *const i32, 4);
    let (raw, length) = encode(address);
    call!(BIND, fd, raw.as_ptr(), length).map(drop)
}

pub fn listen(fd: i32) -> Result<()> {
    call!(LISTEN, fd, 1024).map(drop)
}

pub fn accept(fd: i32) -> Result<(i32, SocketAddr)> {
    let mut raw = [0; 28];
    let mut length = 28u32;
    let flags = SOCK_NONBLOCK | O_CLOEXEC as usize;
    let accepted = call!(ACCEPT4, fd, raw.as_mut_ptr(), &mut length as *mut u32, flags)?;
    Ok((accepted as i32, decode(&raw)))
}

pub fn connect(fd: i32, address: &SocketAddr) -> Result<()> {
    let (raw, length) = encode(address);
    call!(CONNECT, fd, raw.as_ptr(), length).map(drop)
}

/// What became of a connection that was begun.
pub fn socket_error(fd: i32) -> Result<()> {
    const SOL_SOCKET: usize = 1;
    const ERROR: usize = 4;
    let (mut error, mut length) = (0i32, 4u32);
    call!(
        GETSOCKOPT,
        fd,
        SOL_SOCKET,
        ERROR,
        &mut error as *mut i32,
        &mut length as *mut u32
    )?;
    if error == 0 { Ok(()) } else { Err(Errno(error)) }
}

pub fn local_address(fd: i32) -> Result<SocketAddr> {
    let mut raw = [0; 28];
    let mut length = 28u32;
    call!(GETSOCKNAME, fd, raw.as_mut_ptr(), &mut length as *mut u32)?;
    Ok(decode(&raw))
}

pub fn receive_from(fd: i32, buffer: &mut [u8]) -> Result<(usize, SocketAddr)> {
    let mut raw = [0; 28];
    let mut length = 28u32;
    let address = raw.as_mut_ptr();
    let count = call!(
        RECVFROM,
        fd,
        buffer.as_mut_ptr(),
        buffer.len(),
        0,
        address,
        &mut length as *mut u32
    )?;
    Ok((count, decode(&raw)))
}

/// To an address as it was received: a socket for both families wants IPv4 addresses mapped.
pub fn send_to(fd: i32, bytes: &[u8], address: &SocketAddr, mapped: bool) -> Result<usize> {
    let address = match (mapped, address.ip()) {
        (true, IpAddr::V4(ip)) => SocketAddr::new(IpAddr::V6(ip.to_ipv6_mapped()), address.port()),
        _ => *address,
    };
    let (raw, length) = encode(&address);
    call!(SENDTO, fd, bytes.as_ptr(), bytes.len(), 0, raw.as_ptr(), length)
}

/// On a stream whose other end may be gone: an error instead of a signal.
pub fn send(fd: i32, bytes: &[u8]) -> Result<usize> {
    const NOSIGNAL: usize = 0x4000;
    call!(SENDTO, fd, bytes.as_ptr(), bytes.len(), NOSIGNAL, 0, 0)
}

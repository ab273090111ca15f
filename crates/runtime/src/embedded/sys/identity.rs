//! Users, capabilities, limits and system call filters.

use std::io;

use nix::libc;

use super::checked;

/// Capabilities as the kernel numbers them, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ThreadCapabilities {
    pub effective: u64,
    pub permitted: u64,
    pub inheritable: u64,
}

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: libc::c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct CapabilityData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

pub(crate) fn set_capabilities(sets: ThreadCapabilities) -> io::Result<()> {
    let header = CapabilityHeader {
        version: CAPABILITY_VERSION_3,
        pid: 0,
    };
    let word = |shift: u32| CapabilityData {
        effective: (sets.effective >> shift) as u32,
        permitted: (sets.permitted >> shift) as u32,
        inheritable: (sets.inheritable >> shift) as u32,
    };
    let data = [word(0), word(32)];
    // SAFETY: version 3 takes a header and two words of data, all with the kernel's layout.
    checked(unsafe { libc::syscall(libc::SYS_capset, std::ptr::from_ref(&header), data.as_ptr()) }).map(drop)
}

/// Whether this process could ever get a capability again; `None`: the kernel does not know it.
pub(crate) fn bounding_has(capability: u8) -> Option<bool> {
    // SAFETY: takes numbers only.
    match unsafe { libc::prctl(libc::PR_CAPBSET_READ, libc::c_ulong::from(capability), 0, 0, 0) } {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

pub(crate) fn drop_from_bounding(capability: u8) -> io::Result<()> {
    // SAFETY: takes numbers only.
    checked(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(capability), 0, 0, 0) }.into()).map(drop)
}

pub(crate) fn raise_ambient(capability: u8) -> io::Result<()> {
    let (raise, capability) = (
        libc::PR_CAP_AMBIENT_RAISE as libc::c_ulong,
        libc::c_ulong::from(capability),
    );
    // SAFETY: takes numbers only.
    checked(unsafe { libc::prctl(libc::PR_CAP_AMBIENT, raise, capability, 0, 0) }.into()).map(drop)
}

/// Sets groups, group and user of this process, real, effective and saved.
pub(crate) fn become_user(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    // SAFETY: the list and its length belong together; the rest are numbers. The process has one thread, so the calls
    // (which affect a thread each) affect all of it.
    unsafe {
        checked(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()))?;
        checked(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        checked(libc::syscall(libc::SYS_setresuid, uid, uid, uid))?;
    }
    Ok(())
}

pub(crate) fn set_limit(resource: u32, soft: u64, hard: u64) -> io::Result<()> {
    let limit = libc::rlimit64 {
        rlim_cur: soft,
        rlim_max: hard,
    };
    // SAFETY: the limit is a valid structure; no old one is asked for.
    checked(unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, std::ptr::from_ref(&limit), 0) }).map(drop)
}

/// The hard limit of open files.
pub(crate) fn open_files_hard_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure is written by the kernel.
    checked(unsafe {
        libc::syscall(
            libc::SYS_prlimit64,
            0,
            libc::RLIMIT_NOFILE,
            0,
            std::ptr::from_mut(&mut limit),
        )
    })?;
    Ok(limit.rlim_max)
}

/// Installs a system call filter: classic BPF instructions, each as one number (code, jt, jf, k from the low bits up).
/// It does not turn off speculation, which older kernels did unless told otherwise.
pub(crate) fn set_filter(instructions: &[u64]) -> io::Result<()> {
    let program: Vec<libc::sock_filter> = instructions
        .iter()
        .map(|i| libc::sock_filter {
            code: *i as u16,
            jt: (*i >> 16) as u8,
            jf: (*i >> 24) as u8,
            k: (*i >> 32) as u32,
        })
        .collect();
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the program points to `len` instructions, which outlive the call; the kernel only reads them.
    checked(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW,
            std::ptr::from_ref(&program),
        )
    })
    .map(drop)
}

//! The last steps of a new process: it becomes its user and then its program.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::errno::Errno;
use nix::libc;
use nix::unistd::{Uid, chdir, fchown};

use crate::embedded::spec::{Capabilities, ProcessSpec};
use crate::embedded::sys::identity::{self, ThreadCapabilities};
use crate::embedded::sys::{processes, terminals};

use super::error::{Result, Step, StepError};

/// Open files: what servers need without being asked for it, and not so many that programs which look at each take long.
const OPEN_FILES_SOFT: u64 = 65_536;
const OPEN_FILES_HARD: u64 = 1_048_576;

/// Where input comes from and output goes to.
#[derive(Debug)]
pub(super) struct Standard {
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

/// A new terminal of the container whose root this process has: its controlling end, and the other one.
pub(super) fn open_terminal() -> Result<(OwnedFd, OwnedFd)> {
    let controlling = fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/pts/ptmx")
        .step("open a terminal")?;
    let other = terminals::open_other_side(controlling.as_fd()).step("open a terminal's other side")?;
    Ok((controlling.into(), other))
}

/// The terminal becomes that of this session and all three streams.
pub(super) fn use_terminal(terminal: BorrowedFd<'_>, uid: u32) -> Result<()> {
    fchown(terminal, Some(Uid::from_raw(uid)), None).step("own the terminal")?;
    for stream in 0..3 {
        processes::replace_standard(stream, terminal).step("use the terminal")?;
    }
    terminals::make_controlling(terminal).step("control the terminal")
}

/// Pipes belong to the process's user, so that it can open `/dev/stdout` again.
pub(super) fn use_streams(streams: &Standard, uid: u32) -> Result<()> {
    for (number, stream) in [(0, &streams.stdin), (1, &streams.stdout), (2, &streams.stderr)] {
        // What is not the container's own, such as /dev/null, may refuse.
        let _ = fchown(stream.as_fd(), Some(Uid::from_raw(uid)), None);
        processes::replace_standard(number, stream.as_fd()).step("use a stream")?;
    }
    Ok(())
}

/// Becomes the program. Returns only if that fails.
pub(super) fn run(process: &ProcessSpec, status: BorrowedFd<'_>) -> StepError {
    match prepare(process, status).and_then(|()| start(process)) {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

fn prepare(process: &ProcessSpec, status: BorrowedFd<'_>) -> Result<()> {
    // Some lead to the node, and the image's author chose the working directory: it could be one of them.
    processes::close_all_but_streams_and(status).step("close descriptors")?;
    processes::allow_huge_pages(true);
    let hard = identity::open_files_hard_limit()
        .step("read limits")?
        .min(OPEN_FILES_HARD);
    identity::set_limit(libc::RLIMIT_NOFILE, OPEN_FILES_SOFT.min(hard), hard).step("set limits")?;
    if let Some(profile) = &process.apparmor {
        set_apparmor(profile).step_with(|| format!("apply AppArmor profile {profile}"))?;
    }
    // Without no_new_privs only a privileged process may install a filter.
    if !process.no_new_privileges {
        set_filter(process)?;
    }
    // As root, unless only the user may enter it.
    let entered = chdir(process.cwd.as_str());
    drop_bounding(process.capabilities).step("drop capabilities")?;
    processes::keep_capabilities(true).step("keep capabilities")?;
    identity::become_user(process.uid, process.gid, &process.groups)
        .step_with(|| format!("become user {}", process.uid))?;
    processes::keep_capabilities(false).step("keep capabilities")?;
    set_capabilities(process.capabilities).step("set capabilities")?;
    if entered.is_err() {
        chdir(process.cwd.as_str()).step_with(|| format!("enter the working directory {}", process.cwd))?;
    }
    check_inside()?;
    // Changing the user has reset it.
    processes::set_parent_death_signal(libc::SIGKILL).step("follow the shim")?;
    if process.no_new_privileges {
        processes::set_no_new_privileges().step("set no_new_privs")?;
        set_filter(process)?;
    }
    Ok(())
}

/// The working directory is in the container's root.
fn check_inside() -> Result<()> {
    let cwd = std::env::current_dir();
    match cwd.is_ok_and(|path| path.is_absolute()) {
        true => Ok(()),
        false => Err(io::Error::from(io::ErrorKind::PermissionDenied))
            .step("enter the working directory: it is outside of the container"),
    }
}

fn set_filter(process: &ProcessSpec) -> Result<()> {
    match process.filter.is_empty() {
        true => Ok(()),
        false => identity::set_filter(&process.filter).step("install the seccomp filter"),
    }
}

/// Takes effect with the next exec.
fn set_apparmor(profile: &str) -> io::Result<()> {
    let text = format!("exec {profile}");
    let path = Path::new("/proc/self/attr/apparmor/exec");
    match fs::write(path, &text) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => fs::write("/proc/self/attr/exec", &text),
        other => other,
    }
}

fn drop_bounding(capabilities: Capabilities) -> io::Result<()> {
    for capability in 0..64u8 {
        match identity::bounding_has(capability) {
            None => break,
            Some(true) if capabilities.allowed & (1 << capability) == 0 => identity::drop_from_bounding(capability)?,
            Some(_) => {}
        }
    }
    Ok(())
}

fn set_capabilities(capabilities: Capabilities) -> io::Result<()> {
    // What this process does not have, it can't give.
    let known = (0..64u8)
        .filter(|c| identity::bounding_has(*c) == Some(true))
        .fold(0, |set, c| set | 1u64 << c);
    identity::set_capabilities(ThreadCapabilities {
        effective: capabilities.allowed & known,
        permitted: capabilities.allowed & known,
        inheritable: capabilities.ambient & known,
    })?;
    for capability in (0..64u8).filter(|c| capabilities.ambient & known & (1 << c) != 0) {
        identity::raise_ambient(capability)?;
    }
    Ok(())
}

fn start(process: &ProcessSpec) -> Result<std::convert::Infallible> {
    let name = process.args.first().map_or("", String::as_str);
    let path = find_program(name, &process.env).step_with(|| format!("exec: {name:?}"))?;
    let text = |text: &str| CString::new(text).map_err(io::Error::from);
    let texts = |list: &[String]| list.iter().map(|t| text(t)).collect::<io::Result<Vec<_>>>();
    let prepared = texts(&process.args).and_then(|args| Ok((args, texts(&process.env)?, text(&path)?)));
    let (args, env, path) = prepared.step("exec")?;
    Err(processes::execute(&path, &args, &env)).step_with(|| format!("exec: {name:?}"))
}

/// As a shell finds it, in the directories of `PATH`.
fn find_program(name: &str, env: &[String]) -> io::Result<String> {
    if name.contains('/') {
        return match fs::metadata(name) {
            Ok(_) => Ok(name.to_string()),
            Err(e) => Err(io::Error::new(e.kind(), format!("stat {name}: {}", describe(&e)))),
        };
    }
    let path = env
        .iter()
        .rev()
        .find_map(|e| e.strip_prefix("PATH="))
        .unwrap_or_default();
    for dir in path.split(':') {
        let candidate = match dir {
            "" => format!("./{name}"),
            dir => format!("{dir}/{name}"),
        };
        if fs::metadata(&candidate).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0) {
            return Ok(candidate);
        }
    }
    Err(io::Error::new(
        io::ErrorKind::NotFound,
        "executable file not found in $PATH",
    ))
}

/// As C programs say it.
fn describe(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => Errno::from_raw(number).desc().to_lowercase(),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_path() {
        let dir = tempfile::tempdir().unwrap();
        let env = vec![format!("PATH=/nowhere:{}", dir.path().display())];
        let file = dir.path().join("tool");
        fs::write(&file, "").unwrap();
        assert_eq!(
            find_program("tool", &env).unwrap_err().to_string(),
            "executable file not found in $PATH"
        );
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find_program("tool", &env).unwrap(), file.to_string_lossy());
        let missing = find_program("/no/such", &env).unwrap_err().to_string();
        assert_eq!(missing, "stat /no/such: no such file or directory");
    }
}

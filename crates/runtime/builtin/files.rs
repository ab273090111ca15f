//! Tools for files.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::{ExitCode, eprintln, os, println, sys, text};

/// Options, and what is not one.
pub fn split_options(arguments: &[String]) -> (String, Vec<&str>) {
    let is_option = |a: &&String| a.len() > 1 && a.starts_with('-');
    let options = arguments
        .iter()
        .filter(is_option)
        .flat_map(|a| a[1..].chars())
        .collect();
    let rest = arguments.iter().filter(|a| !is_option(a)).map(String::as_str).collect();
    (options, rest)
}

/// Does something to each path, and says what went wrong with which.
fn each(tool: &str, paths: &[&str], work: impl Fn(&str) -> sys::Result<()>) -> ExitCode {
    let mut code = 0;
    for path in paths {
        if let Err(why) = work(path) {
            eprintln!("{tool}: {path}: {why}");
            code = 1;
        }
    }
    code
}

pub fn cat(arguments: &[String]) -> ExitCode {
    let (_, paths) = split_options(arguments);
    let paths = if paths.is_empty() { alloc::vec!["-"] } else { paths };
    each("cat", &paths, |path| {
        let fd = match path {
            "-" => 0,
            path => sys::open(path.as_bytes(), sys::O_RDONLY, 0)?,
        };
        let copied = copy(fd, 1);
        if fd != 0 {
            sys::close(fd);
        }
        copied
    })
}

pub fn copy(from: i32, to: i32) -> sys::Result<()> {
    let mut buffer = [0; 8192];
    loop {
        match sys::read(from, &mut buffer)? {
            0 => return Ok(()),
            count => os::write_all(to, &buffer[..count])?,
        }
    }
}

pub fn touch(arguments: &[String]) -> ExitCode {
    each("touch", &split_options(arguments).1, |path| {
        let fd = sys::open(path.as_bytes(), sys::O_WRONLY | sys::O_CREAT, 0o644)?;
        sys::close(fd);
        sys::set_times(path.as_bytes(), None)
    })
}

pub fn mkdir(arguments: &[String]) -> ExitCode {
    let (options, paths) = split_options(arguments);
    each("mkdir", &paths, |path| match options.contains('p') {
        true => make_directories(path),
        false => sys::mkdir(path.as_bytes(), 0o777),
    })
}

/// With all that are missing on the way.
pub fn make_directories(path: &str) -> sys::Result<()> {
    for (at, _) in path.match_indices('/').chain([(path.len(), "")]) {
        if at == 0 {
            continue;
        }
        match sys::mkdir(path[..at].as_bytes(), 0o777) {
            Ok(()) | Err(sys::EEXIST) => {}
            Err(why) => return Err(why),
        }
    }
    Ok(())
}

pub fn rm(arguments: &[String]) -> ExitCode {
    let (options, paths) = split_options(arguments);
    let recursive = options.contains(['r', 'R']);
    each("rm", &paths, |path| match remove(path, recursive) {
        Err(sys::ENOENT) if options.contains('f') => Ok(()),
        other => other,
    })
}

pub fn remove(path: &str, recursive: bool) -> sys::Result<()> {
    if !is_directory(path) {
        return sys::unlink(path.as_bytes(), false);
    }
    if !recursive {
        return Err(sys::EISDIR);
    }
    for name in names_in(path)? {
        remove(&format!("{path}/{name}"), true)?;
    }
    sys::unlink(path.as_bytes(), true)
}

pub fn is_directory(path: &str) -> bool {
    sys::stat(path.as_bytes(), false).is_ok_and(|s| s.mode & 0o170000 == 0o040000)
}

/// What is in a directory, sorted.
pub fn names_in(path: &str) -> sys::Result<Vec<String>> {
    let fd = sys::open(path.as_bytes(), sys::O_RDONLY, 0)?;
    let mut names = Vec::new();
    let mut buffer = [0; 4096];
    let end = loop {
        let count = match sys::getdents(fd, &mut buffer) {
            Ok(0) => break Ok(()),
            Ok(count) => count,
            Err(why) => break Err(why),
        };
        let mut rest = &buffer[..count];
        // Inode, offset, length, kind, name and its zero.
        while rest.len() > 19 {
            let length = usize::from(u16::from_ne_bytes([rest[16], rest[17]])).clamp(20, rest.len());
            let name = rest[19..length].split(|b| *b == 0).next().unwrap_or_default();
            if name != b"." && name != b".." {
                names.push(String::from_utf8_lossy(name).into_owned());
            }
            rest = &rest[length..];
        }
    };
    sys::close(fd);
    end?;
    names.sort();
    Ok(names)
}

pub fn ls(arguments: &[String]) -> ExitCode {
    let (options, paths) = split_options(arguments);
    let paths = if paths.is_empty() { alloc::vec!["."] } else { paths };
    let (long, all) = (options.contains('l'), options.contains(['a', 'A']));
    each("ls", &paths, |path| {
        let stat = sys::stat(path.as_bytes(), true)?;
        if stat.mode & 0o170000 != 0o040000 || options.contains('d') {
            list(path, path, long);
            return Ok(());
        }
        if paths.len() > 1 {
            println!("{path}:");
        }
        for name in names_in(path)? {
            if all || !name.starts_with('.') {
                list(&format!("{path}/{name}"), &name, long);
            }
        }
        Ok(())
    })
}

fn list(path: &str, name: &str, long: bool) {
    let stat = sys::stat(path.as_bytes(), false).unwrap_or_default();
    if !long {
        println!("{name}");
        return;
    }
    let kind = match stat.mode & 0o170000 {
        0o040000 => 'd',
        0o120000 => 'l',
        0o020000 => 'c',
        0o060000 => 'b',
        0o010000 => 'p',
        0o140000 => 's',
        _ => '-',
    };
    let mut mode = String::from(kind);
    for (bit, letter) in "rwxrwxrwx".chars().enumerate() {
        mode.push(if stat.mode & (0o400 >> bit) != 0 { letter } else { '-' });
    }
    let arrow = match kind {
        'l' => format!(" -> {}", read_link(path).unwrap_or_default()),
        _ => String::new(),
    };
    let time = text::timestamp(stat.modified);
    println!(
        "{mode} {:>5} {:>5} {:>9} {time} {name}{arrow}",
        stat.uid, stat.gid, stat.size
    );
}

pub fn read_link(path: &str) -> sys::Result<String> {
    let mut buffer = [0; 4096];
    let length = sys::readlink(path.as_bytes(), &mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

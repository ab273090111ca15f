//! As much of `tar` as `kubectl cp` needs: `tar cf - PATH…`, `tar xmf - -C DIR`.
//!
//! What is unpacked stays inside the directory it is unpacked in: names with `..` are refused, and so is what would go
//! through a link that the archive made.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::{ExitCode, eprintln, files, os, sys};

const BLOCK: usize = 512;

pub fn main(arguments: &[String]) -> ExitCode {
    let mut mode = ' ';
    let mut file = "-";
    let mut dir = None;
    let mut paths = Vec::new();
    let mut rest = arguments.iter().enumerate();
    while let Some((number, argument)) = rest.next() {
        if argument.starts_with("--") {
            continue;
        }
        let letters = match argument.strip_prefix('-') {
            Some(letters) if !letters.is_empty() => letters,
            None if number == 0 => argument,
            _ => {
                paths.push(argument.as_str());
                continue;
            }
        };
        for letter in letters.chars() {
            match letter {
                'c' | 'x' | 't' => mode = letter,
                'f' => file = rest.next().map_or("-", |(_, value)| value),
                'C' => dir = rest.next().map(|(_, value)| value.as_str()),
                'm' | 'v' | 'o' | 'p' | 'h' => {}
                other => {
                    eprintln!("tar: unsupported option {other:?}");
                    return 2;
                }
            }
        }
    }
    let run = || -> Result<(), String> {
        let changed = dir.map_or(Ok(()), |dir| sys::chdir(dir.as_bytes()));
        changed.map_err(|why| format!("{}: {why}", dir.unwrap_or_default()))?;
        match mode {
            'c' => create(open(file, sys::O_WRONLY | sys::O_CREAT | sys::O_TRUNC, 1)?, &paths),
            'x' => extract(open(file, sys::O_RDONLY, 0)?, true),
            't' => extract(open(file, sys::O_RDONLY, 0)?, false),
            _ => Err("one of c, x and t is needed".to_string()),
        }
    };
    match run() {
        Ok(()) => 0,
        Err(why) => {
            eprintln!("tar: {why}");
            1
        }
    }
}

fn open(file: &str, flags: u32, standard: i32) -> Result<i32, String> {
    match file {
        "-" => Ok(standard),
        path => sys::open(path.as_bytes(), flags, 0o644).map_err(|why| format!("{path}: {why}")),
    }
}

fn create(to: i32, paths: &[&str]) -> Result<(), String> {
    for path in paths {
        append(to, path)?;
    }
    write(to, &[0; 2 * BLOCK])
}

fn write(to: i32, bytes: &[u8]) -> Result<(), String> {
    os::write_all(to, bytes).map_err(|why| format!("failed to write: {why}"))
}

fn append(to: i32, path: &str) -> Result<(), String> {
    let failed = |why: sys::Errno| format!("{path}: {why}");
    let stat = sys::stat(path.as_bytes(), false).map_err(failed)?;
    let name = path.trim_start_matches('/').trim_end_matches('/');
    let name = if name.is_empty() { "." } else { name };
    match stat.mode & 0o170000 {
        0o040000 => {
            write_header(to, &format!("{name}/"), b'5', &stat, "", 0)?;
            for entry in files::names_in(path).map_err(failed)? {
                append(to, &format!("{}/{entry}", path.trim_end_matches('/')))?;
            }
            Ok(())
        }
        0o120000 => {
            let target = files::read_link(path).map_err(failed)?;
            write_header(to, name, b'2', &stat, &target, 0)
        }
        0o100000 => append_file(to, path, name, &stat),
        // Devices, pipes and sockets are not copied.
        _ => Ok(()),
    }
}

fn append_file(to: i32, path: &str, name: &str, stat: &sys::Stat) -> Result<(), String> {
    let failed = |why: sys::Errno| format!("{path}: {why}");
    let fd = sys::open(path.as_bytes(), sys::O_RDONLY, 0).map_err(failed)?;
    write_header(to, name, b'0', stat, "", stat.size)?;
    let mut left = stat.size;
    let mut buffer = [0; 8192];
    while left > 0 {
        let most = buffer.len().min(left as usize);
        match sys::read(fd, &mut buffer[..most]).map_err(failed)? {
            // It became shorter: what was promised is filled up.
            0 => {
                let zeros = [0; BLOCK];
                while left > 0 {
                    let count = zeros.len().min(left as usize);
                    write(to, &zeros[..count])?;
                    left -= count as u64;
                }
            }
            count => {
                write(to, &buffer[..count])?;
                left -= count as u64;
            }
        }
    }
    sys::close(fd);
    write(to, &[0; BLOCK][..padding(stat.size)])
}

fn padding(size: u64) -> usize {
    (size.next_multiple_of(BLOCK as u64) - size) as usize
}

fn write_header(to: i32, name: &str, kind: u8, stat: &sys::Stat, link: &str, size: u64) -> Result<(), String> {
    for (letter, text) in [(b'L', name), (b'K', link)] {
        if text.len() > 100 {
            let long = text.len() as u64 + 1;
            write(to, &header("././@LongLink", letter, &sys::Stat::default(), "", long))?;
            write(to, text.as_bytes())?;
            write(to, &[0; BLOCK + 1][..padding(long) + 1])?;
        }
    }
    write(to, &header(name, kind, stat, link, size))
}

fn header(name: &str, kind: u8, stat: &sys::Stat, link: &str, size: u64) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, text: &[u8]| block[at..at + text.len()].copy_from_slice(text);
    put(0, &name.as_bytes()[..name.len().min(100)]);
    put(100, format!("{:07o}\0", stat.mode & 0o7777).as_bytes());
    put(108, format!("{:07o}\0", stat.uid & 0o7777777).as_bytes());
    put(116, format!("{:07o}\0", stat.gid & 0o7777777).as_bytes());
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, format!("{:011o}\0", stat.modified.max(0)).as_bytes());
    put(148, b"        ");
    put(156, &[kind]);
    put(157, &link.as_bytes()[..link.len().min(100)]);
    put(257, b"ustar  \0");
    let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

/// Reads a whole block; `false` at the end.
fn read_block(from: i32, block: &mut [u8; BLOCK]) -> Result<bool, String> {
    let mut filled = 0;
    while filled < BLOCK {
        match sys::read(from, &mut block[filled..]).map_err(|why| format!("failed to read: {why}"))? {
            0 if filled == 0 => return Ok(false),
            0 => return Err("unexpected end of archive".to_string()),
            count => filled += count,
        }
    }
    Ok(true)
}

fn extract(from: i32, write_files: bool) -> Result<(), String> {
    let mut block = [0; BLOCK];
    let (mut long_name, mut long_link) = (None, None);
    while read_block(from, &mut block)? {
        if block.iter().all(|b| *b == 0) {
            break;
        }
        let size = octal(&block[124..136])?;
        let kind = block[156];
        match kind {
            b'L' | b'K' | b'x' | b'g' => {
                let data = read_data(from, size)?;
                match kind {
                    b'L' => long_name = Some(until_zero(&data)),
                    b'K' => long_link = Some(until_zero(&data)),
                    b'x' => read_pax(&data, &mut long_name, &mut long_link),
                    _ => {}
                }
                continue;
            }
            _ => {}
        }
        let name = long_name.take().unwrap_or_else(|| header_name(&block));
        let link = long_link.take().unwrap_or_else(|| until_zero(&block[157..257]));
        if !write_files {
            crate::println!("{name}");
            skip(from, size)?;
            continue;
        }
        extract_entry(from, &block, kind, &name, &link, size)?;
    }
    // Who writes into the pipe is not stopped before its end.
    let mut buffer = [0; 4096];
    while sys::read(from, &mut buffer).is_ok_and(|count| count > 0) {}
    Ok(())
}

fn extract_entry(from: i32, block: &[u8; BLOCK], kind: u8, name: &str, link: &str, size: u64) -> Result<(), String> {
    let path = safe_path(name)?;
    let failed = |why: sys::Errno| format!("{name}: {why}");
    if path.is_empty() {
        return skip(from, size);
    }
    if let Some((parent, _)) = path.rsplit_once('/') {
        make_parents(parent)?;
    }
    let mode = octal(&block[100..108])? as u32 & 0o777;
    match kind {
        b'5' => match sys::mkdir(path.as_bytes(), mode | 0o700) {
            Ok(()) => {}
            Err(sys::EEXIST) if files::is_directory(&path) => {}
            Err(why) => return Err(failed(why)),
        },
        b'2' => {
            let _ = sys::unlink(path.as_bytes(), false);
            sys::symlink(link.as_bytes(), path.as_bytes()).map_err(failed)?;
        }
        b'1' => {
            let _ = sys::unlink(path.as_bytes(), false);
            sys::link(safe_path(link)?.as_bytes(), path.as_bytes()).map_err(failed)?;
        }
        b'0' | 0 => return extract_file(from, &path, mode, size),
        _ => eprintln!("tar: {name}: left out: neither file nor directory nor link"),
    }
    skip(from, size)
}

fn extract_file(from: i32, path: &str, mode: u32, size: u64) -> Result<(), String> {
    let failed = |why: sys::Errno| format!("{path}: {why}");
    let flags = sys::O_WRONLY | sys::O_CREAT | sys::O_TRUNC | sys::O_NOFOLLOW;
    let fd = sys::open(path.as_bytes(), flags, 0o600).map_err(failed)?;
    let mut left = size;
    let mut block = [0; BLOCK];
    while left > 0 {
        if !read_block(from, &mut block)? {
            return Err("unexpected end of archive".to_string());
        }
        let count = BLOCK.min(left as usize);
        os::write_all(fd, &block[..count]).map_err(failed)?;
        left -= count as u64;
    }
    sys::close(fd);
    sys::chmod(path.as_bytes(), mode).map_err(failed)
}

/// Directories on the way, none of them through a link.
fn make_parents(parent: &str) -> Result<(), String> {
    for (at, _) in parent.match_indices('/').chain([(parent.len(), "")]) {
        let path = &parent[..at];
        match sys::mkdir(path.as_bytes(), 0o777) {
            Ok(()) => {}
            Err(sys::EEXIST) if files::is_directory(path) => {}
            Err(why) => return Err(format!("{path}: {why}")),
        }
    }
    Ok(())
}

/// A name relative to the working directory.
fn safe_path(name: &str) -> Result<String, String> {
    let mut parts = Vec::new();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => return Err(format!("{name}: refused, it leads out of the directory")),
            part => parts.push(part),
        }
    }
    Ok(parts.join("/"))
}

fn header_name(block: &[u8; BLOCK]) -> String {
    let name = until_zero(&block[..100]);
    let prefix = until_zero(&block[345..500]);
    match &block[257..263] == b"ustar\0" && !prefix.is_empty() {
        true => format!("{prefix}/{name}"),
        false => name,
    }
}

fn until_zero(field: &[u8]) -> String {
    let text = field.split(|b| *b == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

fn octal(field: &[u8]) -> Result<u64, String> {
    if field[0] & 0x80 != 0 {
        return Ok(field[1..]
            .iter()
            .fold(0u64, |value, byte| value << 8 | u64::from(*byte)));
    }
    let text = until_zero(field);
    match text.trim() {
        "" => Ok(0),
        digits => u64::from_str_radix(digits, 8).map_err(|_| "invalid header".to_string()),
    }
}

fn read_data(from: i32, size: u64) -> Result<Vec<u8>, String> {
    if size > 1 << 20 {
        return Err("extended header is too large".to_string());
    }
    let mut data = Vec::new();
    let mut block = [0; BLOCK];
    while (data.len() as u64) < size {
        if !read_block(from, &mut block)? {
            return Err("unexpected end of archive".to_string());
        }
        data.extend_from_slice(&block);
    }
    data.truncate(size as usize);
    Ok(data)
}

fn skip(from: i32, size: u64) -> Result<(), String> {
    let mut block = [0; BLOCK];
    for _ in 0..size.div_ceil(BLOCK as u64) {
        if !read_block(from, &mut block)? {
            return Err("unexpected end of archive".to_string());
        }
    }
    Ok(())
}

fn read_pax(data: &[u8], name: &mut Option<String>, link: &mut Option<String>) {
    let text = String::from_utf8_lossy(data);
    for record in text.split('\n') {
        let Some((key, value)) = record.split_once(' ').and_then(|(_, r)| r.split_once('=')) else {
            continue;
        };
        match key {
            "path" => *name = Some(value.to_string()),
            "linkpath" => *link = Some(value.to_string()),
            _ => {}
        }
    }
}

//! The tools that are a few lines each.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::{ExitCode, eprintln, files, os, print, println, sys, text};

pub fn succeed(_: &[String]) -> ExitCode {
    0
}

pub fn fail(_: &[String]) -> ExitCode {
    1
}

pub fn echo(arguments: &[String]) -> ExitCode {
    let (newline, escapes, words) = match arguments.first().map(String::as_str) {
        Some("-n") => (false, false, &arguments[1..]),
        Some("-e") => (true, true, &arguments[1..]),
        _ => (true, false, arguments),
    };
    let mut line = words.join(" ");
    if escapes {
        line = line.replace("\\n", "\n").replace("\\t", "\t").replace("\\\\", "\\");
    }
    if newline {
        line.push('\n');
    }
    print!("{line}");
    0
}

pub fn env(arguments: &[String]) -> ExitCode {
    match arguments.first() {
        None => {
            for (name, value) in os::environment().iter() {
                println!("{name}={value}");
            }
            0
        }
        Some(name) => match os::variable(name) {
            Some(value) => {
                println!("{value}");
                0
            }
            None => 1,
        },
    }
}

pub fn hostname(arguments: &[String]) -> ExitCode {
    match arguments.first().map(String::as_str) {
        Some("-i" | "-I") => match os::own_address() {
            Some(address) => println!("{address}"),
            None => return 1,
        },
        _ => println!("{}", os::host_name()),
    }
    0
}

pub fn pwd(_: &[String]) -> ExitCode {
    println!("{}", working_directory());
    0
}

pub fn working_directory() -> String {
    let mut buffer = [0; 4096];
    let length = sys::getcwd(&mut buffer).unwrap_or(1);
    String::from_utf8_lossy(&buffer[..length.saturating_sub(1)]).into_owned()
}

/// `date`, `date +%s`, `date -u`, `date -Iseconds`.
pub fn date(arguments: &[String]) -> ExitCode {
    let now = sys::wall_seconds();
    let (year, month, day, hour, minute, second, weekday) = text::civil(now);
    match arguments.iter().map(String::as_str).find(|a| *a != "-u") {
        None => println!(
            "{} {} {day:2} {hour:02}:{minute:02}:{second:02} UTC {year}",
            text::WEEKDAYS[weekday],
            text::MONTHS[month as usize - 1]
        ),
        Some("-Iseconds") => println!("{}", text::timestamp(now)),
        Some(format) if format.starts_with('+') => {
            let filled = format[1..]
                .replace("%s", &now.to_string())
                .replace("%F", "%Y-%m-%d")
                .replace("%T", "%H:%M:%S")
                .replace("%Y", &format!("{year:04}"))
                .replace("%m", &format!("{month:02}"))
                .replace("%d", &format!("{day:02}"))
                .replace("%H", &format!("{hour:02}"))
                .replace("%M", &format!("{minute:02}"))
                .replace("%S", &format!("{second:02}"));
            println!("{filled}");
        }
        Some(other) => {
            eprintln!("date: unsupported argument {other:?}");
            return 1;
        }
    }
    0
}

/// `sleep 5`, `sleep 0.5`, `sleep 1m`, `sleep infinity`. Ends at once when asked to, also as process 1.
pub fn sleep(arguments: &[String]) -> ExitCode {
    let mut total = Some(0u64);
    for argument in arguments {
        total = match argument.as_str() {
            "infinity" | "inf" => None,
            other => match text::duration_ms(other) {
                Some(more) => total.map(|ms| ms.saturating_add(more)),
                None => {
                    eprintln!("sleep: invalid time interval {other:?}");
                    return 1;
                }
            },
        };
    }
    if arguments.is_empty() {
        eprintln!("sleep: missing operand");
        return 1;
    }
    match os::Signals::take() {
        Ok(signals) => signals.wait_for_end(total).map_or(0, |signal| 128 + signal),
        Err(_) => 1,
    }
}

/// Waits until it is told to end, and for children that others left behind: process 1 of a pod.
pub fn pause(_: &[String]) -> ExitCode {
    match os::Signals::take() {
        Ok(signals) => {
            signals.wait_for_end(None);
            0
        }
        Err(_) => 1,
    }
}

pub fn kill(arguments: &[String]) -> ExitCode {
    let mut signal = sys::SIGTERM;
    let mut pids = Vec::new();
    for argument in arguments {
        match argument.strip_prefix('-') {
            Some(name) if pids.is_empty() => match signal_number(name) {
                Some(number) => signal = number,
                None => {
                    eprintln!("kill: unknown signal {name:?}");
                    return 1;
                }
            },
            _ => pids.push(argument),
        }
    }
    let mut code = 0;
    for pid in pids {
        let killed = pid
            .parse()
            .map_err(|_| sys::EINVAL)
            .and_then(|pid| sys::kill(pid, signal));
        if let Err(why) = killed {
            eprintln!("kill: {pid}: {why}");
            code = 1;
        }
    }
    code
}

fn signal_number(name: &str) -> Option<i32> {
    let bare = name.strip_prefix("SIG").unwrap_or(name);
    let known = [
        ("HUP", 1),
        ("INT", 2),
        ("QUIT", 3),
        ("KILL", 9),
        ("USR1", 10),
        ("USR2", 12),
        ("TERM", 15),
        ("STOP", 19),
        ("CONT", 18),
    ];
    let by_name = known
        .iter()
        .find(|(known, _)| *known == bare)
        .map(|(_, number)| *number);
    by_name.or_else(|| name.parse().ok().filter(|n| (0..=64).contains(n)))
}

pub fn id(arguments: &[String]) -> ExitCode {
    let mut groups = [0; 64];
    let count = sys::getgroups(&mut groups).unwrap_or(0).min(groups.len());
    let (uid, gid) = (sys::getuid(), sys::getgid());
    match arguments.first().map(String::as_str) {
        Some("-u") => println!("{uid}"),
        Some("-g") => println!("{gid}"),
        _ => {
            let mut all = alloc::vec![gid];
            all.extend(groups[..count].iter().filter(|g| **g != gid));
            let all: Vec<String> = all.iter().map(|g| g.to_string()).collect();
            println!("uid={uid} gid={gid} groups={}", all.join(","));
        }
    }
    0
}

/// Processes that can be seen, as `/proc` shows them.
pub fn ps(_: &[String]) -> ExitCode {
    println!("  PID USER     COMMAND");
    let mut pids: Vec<u32> = match files::names_in("/proc") {
        Ok(names) => names.iter().filter_map(|name| name.parse().ok()).collect(),
        Err(_) => return 1,
    };
    pids.sort_unstable();
    for pid in pids {
        let Ok(stat) = sys::stat(format!("/proc/{pid}").as_bytes(), true) else {
            continue;
        };
        let line = os::read_text(&format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = match line.trim_end_matches('\0').replace('\0', " ") {
            empty if empty.is_empty() => {
                let name = os::read_text(&format!("/proc/{pid}/comm")).unwrap_or_default();
                format!("[{}]", name.trim_end())
            }
            line => line,
        };
        println!("{pid:5} {:<8} {line}", stat.uid);
    }
    0
}

pub fn bracket(arguments: &[String]) -> ExitCode {
    match arguments.split_last() {
        Some((last, rest)) if last == "]" => test(rest),
        _ => {
            eprintln!("[: missing ]");
            2
        }
    }
}

/// `test -d PATH`, `test A = B`, `test N -gt M`, with `!` before.
pub fn test(arguments: &[String]) -> ExitCode {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match evaluate(&words) {
        Some(true) => 0,
        Some(false) => 1,
        None => {
            eprintln!("test: unsupported expression: {}", words.join(" "));
            2
        }
    }
}

fn evaluate(words: &[&str]) -> Option<bool> {
    let mode = |path: &str, follow| sys::stat(path.as_bytes(), follow).map(|s| s.mode & 0o170000);
    let number = |text: &str| text.parse::<i64>().ok();
    Some(match words {
        [] => false,
        ["!", rest @ ..] => !evaluate(rest)?,
        [text] => !text.is_empty(),
        ["-n", text] => !text.is_empty(),
        ["-z", text] => text.is_empty(),
        ["-e", path] => mode(path, true).is_ok(),
        ["-f", path] => mode(path, true) == Ok(0o100000),
        ["-d", path] => mode(path, true) == Ok(0o040000),
        ["-L" | "-h", path] => mode(path, false) == Ok(0o120000),
        ["-s", path] => sys::stat(path.as_bytes(), true).is_ok_and(|s| s.size > 0),
        ["-r" | "-w" | "-x", path] => mode(path, true).is_ok(),
        [a, "=" | "==", b] => a == b,
        [a, "!=", b] => a != b,
        [a, operator, b] => {
            let (a, b) = (number(a)?, number(b)?);
            match *operator {
                "-eq" => a == b,
                "-ne" => a != b,
                "-lt" => a < b,
                "-le" => a <= b,
                "-gt" => a > b,
                "-ge" => a >= b,
                _ => return None,
            }
        }
        _ => return None,
    })
}

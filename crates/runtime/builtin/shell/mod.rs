//! A very small shell: `sh -c 'while true; do date; sleep 1; done'`, scripts, and lines typed by hand.
//!
//! It has simple commands, `;` `&&` `||` `!` `|` `&`, `if`, `while`, `until`, `for`, `{ }`, `( )`, redirections, quotes,
//! `$NAME`, `${NAME}`, `${NAME:-word}`, `$?`, `$$`, `$#`, `$1`, `$(command)`, `$((1 + 2))`, and of its own `cd`, `exit`,
//! `export`, `set`, `shift`, `trap` (ignored), `wait`, `exec`, `:`, `read`. It has no functions, no `case`, no patterns
//! for file names, no aliases and no jobs. What it does not understand it says, and does not run.

mod arithmetic;
mod lexer;
mod parser;
mod run;

use alloc::string::{String, ToString};

use crate::{ExitCode, eprintln, os};
use run::Shell;

pub fn main(arguments: &[String]) -> ExitCode {
    let mut shell = Shell::new();
    let mut rest = arguments;
    let mut command = None;
    while let Some((first, more)) = rest.split_first() {
        if !first.starts_with(['-', '+']) || first.len() < 2 {
            break;
        }
        rest = more;
        for letter in first[1..].chars() {
            match letter {
                'c' => command = Some(()),
                'e' => shell.stop_on_error = true,
                'x' => shell.trace = true,
                _ => {}
            }
        }
    }
    if command.is_some() {
        let Some((text, more)) = rest.split_first() else {
            eprintln!("sh: -c needs a command");
            return 2;
        };
        shell.name = more.first().cloned().unwrap_or_else(|| "sh".to_string());
        shell.parameters = more.iter().skip(1).cloned().collect();
        return shell.run_text(text);
    }
    match rest.split_first() {
        Some((path, more)) => match os::read_text(path) {
            Ok(text) => {
                shell.name = path.clone();
                shell.parameters = more.to_vec();
                shell.run_text(&text)
            }
            Err(why) => {
                eprintln!("sh: {path}: {why}");
                127
            }
        },
        None => shell.run_lines(),
    }
}

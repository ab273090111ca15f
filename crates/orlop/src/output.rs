//! What commands print. Whoever reads it may stop at any time (`orlop … | head`): then nobody needs the rest, and the
//! process ends without a word. `println!` of std panics there, so that `main.rs` puts macros of ours in its place.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

pub(crate) fn line(text: Arguments<'_>) {
    match writeln!(std::io::stdout().lock(), "{text}") {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            error_line(format_args!("error: can't write to standard output: {error}"));
            std::process::exit(1);
        }
    }
}

/// `1 pod`, `2 pods`.
pub(crate) fn counted(number: usize, noun: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{s}")
}

/// To standard error; if nobody reads that, there is nobody to tell.
pub(crate) fn error_line(text: Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

//! The program inside the images that Orlop brings along: `orlop.local/echo` and `orlop.local/pause`.
//!
//! One static program without a C library, so that it can be built wherever Orlop can (`libc.a` is not part of every
//! distribution's compiler), is small, and takes as little memory as a pause container should. It is compiled by
//! `build.rs` of the crate above and is no part of the workspace.
//!
//! What it does depends on the name it is called by, as with BusyBox: `/echo` is a server that tells what reached it,
//! `/pause` waits for signals, and the names in `/bin` are the few tools that exercises use inside a container: see
//! `APPLETS`. `/echo NAME …` calls a tool too.

#![no_std]
#![no_main]

extern crate alloc;

mod dns;
mod files;
mod http_client;
mod memory;
mod os;
mod server;
mod shell;
mod sys;
mod tar;
mod text;
mod tools;

use alloc::string::String;
use alloc::vec::Vec;

/// What a tool returns to its caller.
pub type ExitCode = i32;

/// A tool: its arguments without its name.
pub type Applet = fn(&[String]) -> ExitCode;

pub const APPLETS: &[(&str, Applet)] = &[
    ("[", tools::bracket),
    ("cat", files::cat),
    ("curl", http_client::curl),
    ("date", tools::date),
    ("echo", tools::echo),
    ("env", tools::env),
    ("false", tools::fail),
    ("get", http_client::get),
    ("hostname", tools::hostname),
    ("id", tools::id),
    ("kill", tools::kill),
    ("ls", files::ls),
    ("mkdir", files::mkdir),
    ("nslookup", dns::nslookup),
    ("pause", tools::pause),
    ("printenv", tools::env),
    ("ps", tools::ps),
    ("pwd", tools::pwd),
    ("rm", files::rm),
    ("sh", shell::main),
    ("sleep", tools::sleep),
    ("tar", tar::main),
    ("test", tools::test),
    ("touch", files::touch),
    ("true", tools::succeed),
    ("wget", http_client::wget),
];

pub fn find_applet(name: &str) -> Option<Applet> {
    APPLETS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, applet)| *applet)
}

/// The program's beginning, with what the kernel put on the stack.
#[unsafe(no_mangle)]
extern "C" fn begin(stack: *const usize) -> ! {
    // SAFETY: `stack` is the stack pointer at the program's entry, where the kernel put the number of arguments, the
    // arguments and the environment.
    unsafe { os::take_stack(stack) };
    let code = dispatch(&os::arguments());
    os::exit(code)
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

fn dispatch(arguments: &[String]) -> ExitCode {
    let (called, rest) = match arguments.split_first() {
        Some((called, rest)) => (called.as_str(), rest),
        None => ("/echo", &[][..]),
    };
    let name = file_name(called);
    // The server is called by its path. `echo` found on the path is the tool of that name.
    if called != "/echo"
        && let Some(applet) = find_applet(name)
    {
        return applet(rest);
    }
    match rest.split_first() {
        // `kubectl run … -- /bin/sleep 600` hands its words to the server: they mean the tool.
        Some((first, others)) if !first.starts_with('-') => match find_applet(file_name(first)) {
            Some(applet) => applet(others),
            None => {
                let names: Vec<&str> = APPLETS.iter().map(|(name, _)| *name).collect();
                eprintln!("echo: unknown command {first:?}; known are: {}", names.join(" "));
                2
            }
        },
        _ => server::main(rest),
    }
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    eprintln!("{info}");
    os::exit(101)
}

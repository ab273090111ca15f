//! Room for recursion. Expressions may be nested some hundred levels deep, which takes more stack than the threads of a
//! server have; those few get a thread of their own for as long as they are worked on.

use std::io;
use std::panic::resume_unwind;
use std::thread;

/// Only what is used of it takes memory.
const STACK: usize = 64 << 20;

/// Nesting that every thread has room for.
const SHALLOW: usize = 48;

/// Does the work, whose nesting is at most this, on a stack that is large enough.
pub(crate) fn with_room<R: Send>(nesting: usize, work: impl FnOnce() -> R + Send) -> io::Result<R> {
    if nesting <= SHALLOW {
        return Ok(work());
    }
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("cel".to_string()).stack_size(STACK);
        let running = thread.spawn_scoped(scope, work)?;
        Ok(running.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// The most levels that a text can be nested: each takes a bracket or an operator.
pub(crate) fn most_nesting(expression: &str) -> usize {
    expression.bytes().filter(|b| b"([{.?!+-*/%<>=".contains(b)).count()
}

//! The allocator, and the functions on memory that the compiler expects to be there.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr;

use crate::sys;

/// What is asked of the kernel at once.
const CHUNK: usize = 64 << 10;
/// From here on, memory of its own that is given back.
const LARGE: usize = 32 << 10;
/// Sizes 16, 32, … 32768.
const CLASSES: usize = 12;

/// Sizes are rounded up to powers of two, and what is freed is kept for the next one of that size. There is one thread.
struct Allocator {
    state: UnsafeCell<State>,
}

struct State {
    /// Freed pieces of each size, each with the address of the next.
    free: [*mut u8; CLASSES],
    rest: *mut u8,
    left: usize,
}

// SAFETY: the program has one thread; children are processes of their own.
unsafe impl Sync for Allocator {}

#[global_allocator]
static ALLOCATOR: Allocator = Allocator {
    state: UnsafeCell::new(State {
        free: [ptr::null_mut(); CLASSES],
        rest: ptr::null_mut(),
        left: 0,
    }),
};

fn class_of(layout: &Layout) -> (usize, usize) {
    let size = layout.size().max(layout.align()).max(16).next_power_of_two();
    (size.trailing_zeros() as usize - 4, size)
}

// SAFETY: pieces do not overlap: each is cut from fresh memory once, or was freed before. They are aligned to their
// size, since chunks are aligned to pages and `rest` is rounded up.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (class, size) = class_of(&layout);
        if size >= LARGE {
            return sys::map_memory(size.next_multiple_of(4096)).unwrap_or(ptr::null_mut());
        }
        // SAFETY: nobody else looks at the state: there is one thread, and nothing here allocates.
        let state = unsafe { &mut *self.state.get() };
        let freed = state.free[class];
        if !freed.is_null() {
            // SAFETY: a freed piece has at least 16 bytes and holds the address of the next one.
            state.free[class] = unsafe { freed.cast::<*mut u8>().read() };
            return freed;
        }
        let skip = (state.rest as usize).next_multiple_of(size) - state.rest as usize;
        if state.left < skip + size {
            let Ok(chunk) = sys::map_memory(CHUNK) else {
                return ptr::null_mut();
            };
            (state.rest, state.left) = (chunk, CHUNK);
            let piece = state.rest;
            state.rest = piece.wrapping_add(size);
            state.left -= size;
            return piece;
        }
        let piece = state.rest.wrapping_add(skip);
        state.rest = piece.wrapping_add(size);
        state.left -= skip + size;
        piece
    }

    // SAFETY: a piece goes back to the class that it was taken from; what is done with it is the caller's promise.
    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        let (class, size) = class_of(&layout);
        if size >= LARGE {
            // SAFETY: it was mapped with this size, and the caller is done with it.
            return unsafe { sys::unmap_memory(piece, size.next_multiple_of(4096)) };
        }
        // SAFETY: as above; the piece is the caller's no more.
        unsafe {
            let state = &mut *self.state.get();
            piece.cast::<*mut u8>().write(state.free[class]);
            state.free[class] = piece;
        }
    }
}

// The compiler calls these by name. Volatile or assembly, so that it does not make calls to themselves of them.

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller says that both are `count` bytes long.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") count => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    for at in 0..count {
        // SAFETY: the caller says that both are `count` bytes long.
        unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
    }
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= count {
        // SAFETY: going forward reads nothing that was written.
        return unsafe { memcpy(to, from, count) };
    }
    for at in (0..count).rev() {
        // SAFETY: the caller says that both are `count` bytes long.
        unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
    }
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, count: usize) -> *mut u8 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller says that it is `count` bytes long.
    unsafe {
        core::arch::asm!(
            "rep stosb",
            inout("rcx") count => _, inout("rdi") to => _, in("al") byte as u8,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    for at in 0..count {
        // SAFETY: the caller says that it is `count` bytes long.
        unsafe { to.add(at).write_volatile(byte as u8) };
    }
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, count: usize) -> i32 {
    for at in 0..count {
        // SAFETY: the caller says that both are `count` bytes long.
        let (x, y) = unsafe { (a.add(at).read_volatile(), b.add(at).read_volatile()) };
        if x != y {
            return i32::from(x) - i32::from(y);
        }
    }
    0
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, count: usize) -> i32 {
    // SAFETY: the same function.
    unsafe { memcmp(a, b, count) }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut length = 0;
    // SAFETY: the caller says that there is a zero.
    while unsafe { text.add(length).read_volatile() } != 0 {
        length += 1;
    }
    length
}

/// Named by code that is compiled for unwinding; nothing here unwinds.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    sys::exit(101)
}

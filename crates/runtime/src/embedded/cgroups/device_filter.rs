//! Device rules with version 2, where a BPF program decides: compiled here, loaded and attached with two calls.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::libc;

use super::devices::{DeviceKind, DeviceRule};

/// One eBPF instruction, as the kernel lays it out.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    code: u8,
    /// Destination in the low half, source in the high one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const BLOCK: i32 = 1;
const CHARACTER: i32 = 2;
const MAKE: i32 = 1;
const READ: i32 = 2;
const WRITE: i32 = 4;

const fn instruction(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction {
        code,
        registers: to | (from << 4),
        offset,
        immediate,
    }
}

/// `to = *(u32 *)(context + offset)`
const fn load(to: u8, offset: i16) -> Instruction {
    instruction(0x61, to, 1, offset, 0)
}

/// The 32 bits of a register are not this number: skip `offset` instructions.
const fn skip_if_not(register: u8, number: i32, offset: i16) -> Instruction {
    instruction(0x56, register, 0, offset, number)
}

const fn return_value(value: i32) -> [Instruction; 2] {
    [instruction(0xb7, 0, 0, 0, value), instruction(0x95, 0, 0, 0, 0)]
}

/// The program: registers 2 to 5 hold kind, access, major and minor of what is asked for; the first rule that allows it
/// all lets it pass.
pub(super) fn compile(rules: &[DeviceRule]) -> Vec<Instruction> {
    let mut program = vec![
        // access_type: the kind in the low 16 bits, the access in the high ones.
        load(2, 0),
        instruction(0xbc, 3, 2, 0, 0),
        instruction(0x54, 2, 0, 0, 0xffff),
        instruction(0x74, 3, 0, 0, 16),
        load(4, 4),
        load(5, 8),
    ];
    for rule in rules {
        program.extend(compile_rule(rule));
    }
    program.extend(return_value(0));
    program
}

fn compile_rule(rule: &DeviceRule) -> Vec<Instruction> {
    let mut checks = vec![];
    match rule.kind {
        DeviceKind::All => {}
        DeviceKind::Character => checks.push((2, CHARACTER)),
        DeviceKind::Block => checks.push((2, BLOCK)),
    }
    checks.extend(rule.major.map(|major| (4, major as i32)));
    checks.extend(rule.minor.map(|minor| (5, minor as i32)));
    let allowed = [(rule.make, MAKE), (rule.read, READ), (rule.write, WRITE)];
    let refused = allowed
        .iter()
        .filter(|(allowed, _)| !allowed)
        .map(|(_, bit)| bit)
        .sum::<i32>();

    let accept = return_value(1);
    let mut block: Vec<Instruction> = vec![];
    // How many instructions come after the one about to be added, up to the next rule.
    let mut left = checks.len() + if refused == 0 { 0 } else { 3 } + accept.len();
    for (register, number) in checks {
        left -= 1;
        block.push(skip_if_not(register, number, left as i16));
    }
    if refused != 0 {
        block.push(instruction(0xbc, 0, 3, 0, 0));
        block.push(instruction(0x54, 0, 0, 0, refused));
        block.push(skip_if_not(0, 0, accept.len() as i16));
    }
    block.extend(accept);
    block
}

/// What `bpf(BPF_PROG_LOAD)` takes, up to the name.
#[repr(C)]
#[derive(Default)]
struct LoadAttributes {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

/// What `bpf(BPF_PROG_ATTACH)` takes.
#[repr(C)]
struct AttachAttributes {
    target: u32,
    program: u32,
    kind: u32,
    flags: u32,
}

const PROG_LOAD: libc::c_int = 5;
const PROG_ATTACH: libc::c_int = 8;
const PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_CGROUP_DEVICE: u32 = 6;
const ALLOW_MULTI: u32 = 2;

/// Lets the processes of a cgroup use only the devices of these rules.
pub(super) fn attach(cgroup: BorrowedFd<'_>, rules: &[DeviceRule]) -> io::Result<()> {
    let program = compile(rules);
    let load = LoadAttributes {
        kind: PROG_TYPE_CGROUP_DEVICE,
        instruction_count: program.len() as u32,
        instructions: program.as_ptr() as u64,
        license: c"Apache".as_ptr() as u64,
        ..LoadAttributes::default()
    };
    let program = call(PROG_LOAD, &load)?;
    // SAFETY: the call succeeded, so this is an open descriptor that nobody else knows of.
    let program = unsafe { OwnedFd::from_raw_fd(program) };
    call(
        PROG_ATTACH,
        &AttachAttributes {
            target: cgroup.as_raw_fd() as u32,
            program: program.as_raw_fd() as u32,
            kind: ATTACH_CGROUP_DEVICE,
            flags: ALLOW_MULTI,
        },
    )
    .map(drop)
}

fn call<T>(command: libc::c_int, attributes: &T) -> io::Result<i32> {
    // SAFETY: the attributes have the kernel's layout with their size given, and what they point to outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attributes),
            size_of::<T>() as libc::c_uint,
        )
    };
    match result {
        -1 => Err(io::Error::last_os_error()),
        fd => Ok(fd as i32),
    }
}

#[cfg(test)]
mod tests {
    use super::super::devices::default_rules;
    use super::*;

    /// Runs a program as the kernel would, for the few instructions that are used.
    fn run(program: &[Instruction], kind: i32, access: i32, major: i32, minor: i32) -> i32 {
        let context = [(access << 16) | kind, major, minor];
        let mut registers = [0i32; 11];
        let mut at = 0;
        loop {
            let Instruction {
                code,
                registers: r,
                offset,
                immediate,
            } = program[at];
            let (to, from) = ((r & 15) as usize, (r >> 4) as usize);
            at += 1;
            match code {
                0x61 => registers[to] = context[offset as usize / 4],
                0xbc => registers[to] = registers[from],
                0xb7 => registers[to] = immediate,
                0x54 => registers[to] &= immediate,
                0x74 => registers[to] = (registers[to] as u32 >> immediate) as i32,
                0x56 if registers[to] != immediate => at += offset as usize,
                0x56 => {}
                0x95 => return registers[0],
                other => panic!("unknown instruction {other:#x}"),
            }
        }
    }

    #[test]
    fn only_what_a_rule_allows_passes() {
        let program = compile(&default_rules());
        for (kind, access, major, minor, allowed) in [
            (CHARACTER, READ | WRITE, 1, 3, 1),
            (CHARACTER, READ, 1, 1, 0),
            (CHARACTER, MAKE, 1, 1, 1),
            (BLOCK, MAKE, 8, 0, 1),
            (BLOCK, MAKE | READ, 8, 0, 0),
            (BLOCK, READ, 8, 0, 0),
            (CHARACTER, WRITE, 136, 77, 1),
            (BLOCK, READ, 1, 3, 0),
        ] {
            assert_eq!(
                run(&program, kind, access, major, minor),
                allowed,
                "{kind} {access} {major}:{minor}"
            );
        }
        assert_eq!(run(&compile(&[DeviceRule::all()]), BLOCK, READ | WRITE | MAKE, 8, 0), 1);
        assert_eq!(run(&compile(&[]), CHARACTER, READ, 1, 3), 0);
    }
}

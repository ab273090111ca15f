//! Classic BPF, as far as filters need it.

use super::{Action, Comparison, Condition};

/// Where the kernel puts what a filter looks at.
pub(super) const NUMBER: u32 = 0;
pub(super) const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER: u16 = 0x25;
const JUMP_GREATER_OR_EQUAL: u16 = 0x35;
const RETURN: u16 = 0x06;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    pub code: u16,
    pub if_true: u8,
    pub if_false: u8,
    pub value: u32,
}

impl Instruction {
    pub(super) fn load(offset: u32) -> Instruction {
        Instruction {
            code: LOAD,
            if_true: 0,
            if_false: 0,
            value: offset,
        }
    }

    pub(super) fn give(action: Action) -> Instruction {
        let value = match action {
            Action::Allow => 0x7fff_0000,
            Action::Errno(number) => 0x0005_0000 | u32::from(number),
            Action::KillThread => 0,
            Action::KillProcess => 0x8000_0000,
            Action::Trap => 0x0003_0000,
            Action::Trace(number) => 0x7ff0_0000 | u32::from(number),
            Action::Log => 0x7ffc_0000,
        };
        Instruction {
            code: RETURN,
            if_true: 0,
            if_false: 0,
            value,
        }
    }

    /// One number: code, jumps and value from the low bits up.
    pub(super) fn pack(self) -> u64 {
        u64::from(self.code)
            | u64::from(self.if_true) << 16
            | u64::from(self.if_false) << 24
            | u64::from(self.value) << 32
    }
}

/// `left` if the loaded number is less than `at`, else `right`.
pub(super) fn branch(at: u32, left: Vec<Instruction>, right: Vec<Instruction>) -> Vec<Instruction> {
    let compare = |if_true, if_false| Instruction {
        code: JUMP_GREATER_OR_EQUAL,
        if_true,
        if_false,
        value: at,
    };
    either(compare, left, right)
}

/// `then` if the loaded number is `value`, else `otherwise`.
pub(super) fn branch_equal(value: u32, then: Vec<Instruction>, otherwise: Vec<Instruction>) -> Vec<Instruction> {
    let compare = |if_true, if_false| Instruction {
        code: JUMP_EQUAL,
        if_true,
        if_false,
        value,
    };
    either(compare, otherwise, then)
}

/// Conditional jumps reach 255 instructions; others reach everywhere.
fn either(
    compare: impl Fn(u8, u8) -> Instruction,
    if_false: Vec<Instruction>,
    if_true: Vec<Instruction>,
) -> Vec<Instruction> {
    let mut code = match u8::try_from(if_false.len()) {
        Ok(length) => vec![compare(length, 0)],
        Err(_) => vec![
            compare(0, 1),
            Instruction {
                code: JUMP,
                if_true: 0,
                if_false: 0,
                value: if_false.len() as u32,
            },
        ],
    };
    code.extend(if_false);
    code.extend(if_true);
    code
}

/// Where a comparison goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Goal {
    Next,
    /// The condition holds.
    Holds,
    /// It does not, so the rule does not apply.
    Fails,
}

/// `action` if all conditions hold; goes on behind it if not.
pub(super) fn rule(conditions: &[Condition], action: Action) -> Vec<Instruction> {
    // Instruction, goals, and the index of the first instruction of the next condition.
    let mut code: Vec<(Instruction, Goal, Goal, usize)> = vec![];
    for condition in conditions {
        let part = compare(condition);
        let end = code.len() + part.len();
        code.extend(
            part.into_iter()
                .map(|(i, if_true, if_false)| (i, if_true, if_false, end)),
        );
    }
    // Behind the action.
    let fails = code.len() + 1;
    let resolve = |at: usize, goal: Goal, end: usize| match goal {
        Goal::Next => 0,
        Goal::Holds => (end - at - 1) as u8,
        Goal::Fails => (fails - at - 1) as u8,
    };
    let mut resolved: Vec<Instruction> = code
        .iter()
        .enumerate()
        .map(|(at, (instruction, if_true, if_false, end))| Instruction {
            if_true: resolve(at, *if_true, *end),
            if_false: resolve(at, *if_false, *end),
            ..*instruction
        })
        .collect();
    resolved.push(Instruction::give(action));
    resolved
}

/// Arguments have 64 bits and registers 32: the high half decides unless it is equal.
fn compare(condition: &Condition) -> Vec<(Instruction, Goal, Goal)> {
    use Goal::{Fails, Holds, Next};
    let low = ARGUMENTS + 8 * u32::from(condition.argument);
    let (value_low, value_high) = (condition.value as u32, (condition.value >> 32) as u32);
    let load = |offset| (Instruction::load(offset), Next, Next);
    let jump = |code, value, if_true, if_false| {
        let instruction = Instruction {
            code,
            if_true: 0,
            if_false: 0,
            value,
        };
        (instruction, if_true, if_false)
    };
    let greater = |code, yes, no| {
        vec![
            load(low + 4),
            jump(JUMP_GREATER, value_high, yes, Next),
            jump(JUMP_EQUAL, value_high, Next, no),
            load(low),
            jump(code, value_low, yes, no),
        ]
    };
    match condition.comparison {
        Comparison::Equal => vec![
            load(low + 4),
            jump(JUMP_EQUAL, value_high, Next, Fails),
            load(low),
            jump(JUMP_EQUAL, value_low, Holds, Fails),
        ],
        Comparison::NotEqual => vec![
            load(low + 4),
            jump(JUMP_EQUAL, value_high, Next, Holds),
            load(low),
            jump(JUMP_EQUAL, value_low, Fails, Holds),
        ],
        Comparison::Masked(mask) => vec![
            load(low + 4),
            jump(AND, (mask >> 32) as u32, Next, Next),
            jump(JUMP_EQUAL, value_high, Next, Fails),
            load(low),
            jump(AND, mask as u32, Next, Next),
            jump(JUMP_EQUAL, value_low, Holds, Fails),
        ],
        Comparison::Greater => greater(JUMP_GREATER, Holds, Fails),
        Comparison::GreaterOrEqual => greater(JUMP_GREATER_OR_EQUAL, Holds, Fails),
        Comparison::Less => greater(JUMP_GREATER_OR_EQUAL, Fails, Holds),
        Comparison::LessOrEqual => greater(JUMP_GREATER, Fails, Holds),
    }
}

/// Runs a filter as the kernel does.
#[cfg(test)]
pub(super) fn interpret(program: &[u64], architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
    let (mut accumulator, mut at) = (0u32, 0usize);
    loop {
        let packed = program[at];
        let (code, value) = (packed as u16, (packed >> 32) as u32);
        let (if_true, if_false) = (usize::from((packed >> 16) as u8), usize::from((packed >> 24) as u8));
        at += 1;
        let mut jump = |taken: bool| at += if taken { if_true } else { if_false };
        match code {
            LOAD => {
                accumulator = match value {
                    NUMBER => number,
                    ARCHITECTURE => architecture,
                    offset => {
                        let argument = arguments[(offset - ARGUMENTS) as usize / 8];
                        if (offset - ARGUMENTS).is_multiple_of(8) {
                            argument as u32
                        } else {
                            (argument >> 32) as u32
                        }
                    }
                }
            }
            AND => accumulator &= value,
            JUMP => at += value as usize,
            JUMP_EQUAL => jump(accumulator == value),
            JUMP_GREATER => jump(accumulator > value),
            JUMP_GREATER_OR_EQUAL => jump(accumulator >= value),
            RETURN => return value,
            other => panic!("unknown instruction {other:#x}"),
        }
    }
}

//! From a profile to a filter: per architecture a binary search over the numbers, so that few instructions decide.

use std::collections::BTreeMap;

use nix::errno::Errno;

use super::assembler::{ARCHITECTURE, Instruction, NUMBER, branch, branch_equal, rule};
use super::{Action, Architecture, Condition, Profile, Rule, SeccompError};

/// What the kernel takes.
const INSTRUCTIONS_MAX: usize = 4096;

/// The filter, one number an instruction.
pub(crate) fn compile(profile: &Profile) -> Result<Vec<u64>, SeccompError> {
    let mut program = vec![Instruction::give(Action::KillProcess)];
    for architecture in profile.architectures.iter().rev() {
        let mut section = vec![Instruction::load(NUMBER)];
        section.extend(search(&segments(profile, *architecture)));
        program = branch_equal(architecture.audit(), section, program);
    }
    program.insert(0, Instruction::load(ARCHITECTURE));
    match program.len() > INSTRUCTIONS_MAX {
        true => Err(SeccompError::TooLarge(program.len())),
        false => Ok(program.into_iter().map(Instruction::pack).collect()),
    }
}

/// What happens to a range of numbers, from its start to that of the next one.
struct Segment {
    start: u32,
    /// Rules with conditions, tried in order; then the action.
    rules: Vec<(Vec<Condition>, Action)>,
    action: Action,
}

impl Segment {
    fn is_like(&self, other: &Segment) -> bool {
        self.rules.is_empty() && other.rules.is_empty() && self.action == other.action
    }
}

fn segments(profile: &Profile, architecture: Architecture) -> Vec<Segment> {
    let numbers: BTreeMap<&str, u32> = architecture.calls().collect();
    let mut calls: BTreeMap<u32, Segment> = BTreeMap::new();
    for rule in &profile.rules {
        for name in &rule.names {
            // A name that this architecture does not have, or that came after us.
            let Some(number) = numbers.get(name.as_str()) else {
                continue;
            };
            let segment = calls.entry(*number).or_insert(Segment {
                start: *number,
                rules: vec![],
                action: profile.default_action,
            });
            match rule.conditions.is_empty() {
                true => segment.action = rule.action,
                false => segment.rules.extend(alternatives(rule)),
            }
        }
    }
    let beyond = calls.last_key_value().map_or(0, |(number, _)| number + 1);
    let mut segments: Vec<Segment> = vec![];
    let mut push = |segment: Segment| match segments.last() {
        Some(last) if last.is_like(&segment) => {}
        _ => segments.push(segment),
    };
    let plain = |start, action| Segment {
        start,
        rules: vec![],
        action,
    };
    let mut next = 0;
    for (number, segment) in calls {
        if number > next {
            push(plain(next, profile.default_action));
        }
        push(segment);
        next = number + 1;
    }
    // Programs try newer calls and fall back only if the kernel does not know them.
    let newer = match profile.default_action {
        Action::Errno(_) => Action::Errno(Errno::ENOSYS as u16),
        other => other,
    };
    push(plain(beyond, newer));
    segments
}

/// Several conditions on one argument are alternatives, as with runc.
fn alternatives(rule: &Rule) -> Vec<(Vec<Condition>, Action)> {
    let mut seen = 0u8;
    let repeated = rule.conditions.iter().any(|condition| {
        let bit = 1 << condition.argument;
        let again = seen & bit != 0;
        seen |= bit;
        again
    });
    match repeated {
        true => rule.conditions.iter().map(|c| (vec![*c], rule.action)).collect(),
        false => vec![(rule.conditions.clone(), rule.action)],
    }
}

fn search(segments: &[Segment]) -> Vec<Instruction> {
    match segments {
        [] => vec![],
        [segment] => {
            let mut code: Vec<Instruction> = vec![];
            for (conditions, action) in &segment.rules {
                code.extend(rule(conditions, *action));
            }
            code.push(Instruction::give(segment.action));
            code
        }
        many => {
            let (left, right) = many.split_at(many.len() / 2);
            branch(right[0].start, search(left), search(right))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::assembler::interpret;
    use super::super::{Comparison, default_profile};
    use super::*;

    const ALLOW: u32 = 0x7fff_0000;
    const EPERM: u32 = 0x0005_0001;
    const ENOSYS: u32 = 0x0005_0026;

    fn number(architecture: Architecture, name: &str) -> u32 {
        architecture.calls().find(|(n, _)| *n == name).unwrap().1
    }

    #[test]
    fn the_default_profile_decides_every_call() {
        for capabilities in [0, u64::MAX] {
            let mut profile = default_profile(capabilities);
            profile.architectures = vec![Architecture::X86_64, Architecture::X86];
            let program = compile(&profile).unwrap();
            assert!(program.len() < 1000, "{} instructions", program.len());
            for architecture in profile.architectures.clone() {
                for (name, nr) in architecture.calls() {
                    let plain: Vec<&Rule> = profile
                        .rules
                        .iter()
                        .filter(|r| r.names.iter().any(|n| n == name))
                        .collect();
                    if plain.iter().any(|r| !r.conditions.is_empty()) {
                        continue;
                    }
                    let got = interpret(&program, architecture.audit(), nr, [0; 6]);
                    let allowed = plain.iter().any(|r| r.action == Action::Allow);
                    assert_eq!(got == ALLOW, allowed, "{architecture:?} {name}: {got:#x}");
                }
            }
        }
    }

    #[test]
    fn arguments_decide() {
        let program = compile(&default_profile(0)).unwrap();
        let [native, ..] = Architecture::native()[..] else {
            panic!()
        };
        let run =
            |name: &str, first: u64| interpret(&program, native.audit(), number(native, name), [first, 0, 0, 0, 0, 0]);
        let families = [2u64, 38, 39, 40, 41, 1 << 40].map(|family| run("socket", family));
        assert_eq!(families, [ALLOW, EPERM, ALLOW, EPERM, ALLOW, ALLOW]);
        assert_eq!(
            [0, 8, 0xffff_ffff, 1].map(|p| run("personality", p)),
            [ALLOW, ALLOW, ALLOW, EPERM]
        );
        // SIGCHLD alone; a user namespace.
        assert_eq!([17, 0x1000_0011].map(|flags| run("clone", flags)), [ALLOW, EPERM]);
        assert_eq!(run("clone3", 0), ENOSYS);
        assert_eq!(run("mount", 0), EPERM);
        assert_eq!(interpret(&program, native.audit(), 5000, [0; 6]), ENOSYS);
        assert_eq!(interpret(&program, 0x1234, 0, [0; 6]), 0x8000_0000);
    }

    #[test]
    fn comparisons_have_64_bits() {
        let [native, ..] = Architecture::native()[..] else {
            panic!()
        };
        let value = 0x1_0000_0005u64;
        for (comparison, holds) in [
            (Comparison::Equal, [false, false, true, false, false]),
            (Comparison::NotEqual, [true, true, false, true, true]),
            (Comparison::Less, [true, true, false, false, false]),
            (Comparison::LessOrEqual, [true, true, true, false, false]),
            (Comparison::Greater, [false, false, false, true, true]),
            (Comparison::GreaterOrEqual, [false, false, true, true, true]),
            (
                Comparison::Masked(0xffff_ffff_0000_000f),
                [false, false, true, false, false],
            ),
        ] {
            let profile = Profile {
                default_action: Action::KillThread,
                architectures: vec![native],
                rules: vec![Rule {
                    names: vec!["read".to_string()],
                    action: Action::Log,
                    conditions: vec![Condition {
                        argument: 2,
                        comparison,
                        value,
                    }],
                }],
            };
            let program = compile(&profile).unwrap();
            for (argument, holds) in [5, value - 1, value, value + 1, 0x2_0000_0000].into_iter().zip(holds) {
                let got = interpret(
                    &program,
                    native.audit(),
                    number(native, "read"),
                    [0, 0, argument, 0, 0, 0],
                );
                assert_eq!(got, if holds { 0x7ffc_0000 } else { 0 }, "{comparison:?} {argument:#x}");
            }
        }
    }
}

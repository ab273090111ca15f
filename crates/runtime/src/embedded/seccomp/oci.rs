//! Profiles from files, in the format of the OCI runtime specification.

use serde::Deserialize;

use super::{Action, Architecture, Comparison, Condition, Profile, Rule, SeccompError};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    default_action: String,
    #[serde(default)]
    default_errno_ret: Option<u16>,
    #[serde(default)]
    architectures: Vec<String>,
    #[serde(default)]
    syscalls: Vec<Syscall>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Syscall {
    names: Vec<String>,
    action: String,
    #[serde(default)]
    errno_ret: Option<u16>,
    #[serde(default)]
    args: Option<Vec<Argument>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Argument {
    index: u8,
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: String,
}

/// Reads a profile.
pub(crate) fn parse(json: &[u8]) -> Result<Profile, SeccompError> {
    let file: File = serde_json::from_slice(json).map_err(|e| SeccompError::Invalid(e.to_string()))?;
    // Architectures of other machines do not matter here; without any, it is this machine's.
    let native = Architecture::native();
    let mut architectures: Vec<Architecture> = file
        .architectures
        .iter()
        .filter_map(|a| Architecture::parse(a))
        .collect();
    architectures.retain(|a| native.contains(a));
    if !architectures.contains(&native[0]) {
        architectures.insert(0, native[0]);
    }
    Ok(Profile {
        default_action: action(&file.default_action, file.default_errno_ret)?,
        architectures,
        rules: file.syscalls.into_iter().map(rule).collect::<Result<_, _>>()?,
    })
}

fn action(name: &str, number: Option<u16>) -> Result<Action, SeccompError> {
    match name {
        "SCMP_ACT_ALLOW" => Ok(Action::Allow),
        "SCMP_ACT_ERRNO" => Ok(Action::Errno(number.unwrap_or(nix::errno::Errno::EPERM as u16))),
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => Ok(Action::KillThread),
        "SCMP_ACT_KILL_PROCESS" => Ok(Action::KillProcess),
        "SCMP_ACT_TRAP" => Ok(Action::Trap),
        "SCMP_ACT_TRACE" => Ok(Action::Trace(number.unwrap_or(nix::errno::Errno::EPERM as u16))),
        "SCMP_ACT_LOG" => Ok(Action::Log),
        other => Err(SeccompError::Invalid(format!("action {other:?} is not supported"))),
    }
}

fn rule(call: Syscall) -> Result<Rule, SeccompError> {
    let conditions = call.args.unwrap_or_default().into_iter().map(condition);
    Ok(Rule {
        names: call.names,
        action: action(&call.action, call.errno_ret)?,
        conditions: conditions.collect::<Result<_, _>>()?,
    })
}

fn condition(argument: Argument) -> Result<Condition, SeccompError> {
    if argument.index > 5 {
        return Err(SeccompError::Invalid(format!(
            "argument index {} is out of range",
            argument.index
        )));
    }
    let (comparison, value) = match argument.op.as_str() {
        "SCMP_CMP_NE" => (Comparison::NotEqual, argument.value),
        "SCMP_CMP_LT" => (Comparison::Less, argument.value),
        "SCMP_CMP_LE" => (Comparison::LessOrEqual, argument.value),
        "SCMP_CMP_EQ" => (Comparison::Equal, argument.value),
        "SCMP_CMP_GE" => (Comparison::GreaterOrEqual, argument.value),
        "SCMP_CMP_GT" => (Comparison::Greater, argument.value),
        "SCMP_CMP_MASKED_EQ" => (Comparison::Masked(argument.value), argument.value_two),
        other => return Err(SeccompError::Invalid(format!("operator {other:?} is not supported"))),
    };
    Ok(Condition {
        argument: argument.index,
        comparison,
        value,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_of_the_specification() {
        let profile = parse(
            br#"{"defaultAction":"SCMP_ACT_ALLOW","architectures":["SCMP_ARCH_X86_64","SCMP_ARCH_S390X"],
                 "syscalls":[{"names":["mkdir"],"action":"SCMP_ACT_ERRNO","errnoRet":38,"args":null},
                             {"names":["clone"],"action":"SCMP_ACT_KILL",
                              "args":[{"index":0,"value":7,"valueTwo":1,"op":"SCMP_CMP_MASKED_EQ"}]}]}"#,
        )
        .unwrap();
        assert_eq!(profile.default_action, Action::Allow);
        assert_eq!(profile.rules[0].action, Action::Errno(38));
        assert_eq!(profile.rules[1].conditions[0].comparison, Comparison::Masked(7));
        assert_eq!(profile.rules[1].conditions[0].value, 1);
        assert_eq!(profile.architectures[0], Architecture::native()[0]);
    }

    #[test]
    fn what_is_not_supported_is_refused() {
        for bad in [
            r#"{}"#,
            r#"{"defaultAction":"SCMP_ACT_NOTIFY"}"#,
            r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["a"],"action":"SCMP_ACT_LOG","args":[{"index":6,"value":0,"op":"SCMP_CMP_EQ"}]}]}"#,
            r#"not json"#,
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}

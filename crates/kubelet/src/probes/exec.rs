//! Exec probes: success is exit code 0.

use std::time::Duration;

use orlop_api::duration::duration_text;
use orlop_api::types::core::Container;
use orlop_runtime::{Code, Runtime};

use super::run::ProbeResult;

/// How much of the command's output is reported.
const MOST_OUTPUT: usize = 10 << 10;

pub(super) async fn probe(
    runtime: &dyn Runtime,
    container_id: &str,
    command: Vec<String>,
    timeout: Duration,
) -> ProbeResult {
    let line = command.join(" ");
    match runtime.exec_sync(container_id, command, Some(timeout)).await {
        Ok(answer) if answer.exit_code == 0 => ProbeResult::Success,
        Ok(answer) => {
            let mut output = answer.stdout.to_vec();
            output.extend_from_slice(&answer.stderr);
            output.truncate(MOST_OUTPUT);
            ProbeResult::Failure(String::from_utf8_lossy(&output).into_owned())
        }
        Err(error) if error.code == Code::DeadlineExceeded => {
            let timeout = duration_text(i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX));
            ProbeResult::Failure(format!("command timed out: {line:?} timed out after {timeout}"))
        }
        Err(error) => ProbeResult::unknown(error.message),
    }
}

/// The command with `$(NAME)` replaced from the container's literal variables: what comes from elsewhere is not known
/// to probes.
pub(super) fn expand_all(command: &[String], container: &Container) -> Vec<String> {
    let value = |name: &str| {
        let mut env = container.env.iter().flatten().rev();
        env.find(|var| var.name == name)
            .map(|var| var.value.clone().unwrap_or_default())
    };
    command.iter().map(|word| expand(word, value)).collect()
}

/// `$(NAME)` becomes the value if there is one and else stays; `$$` becomes `$`.
fn expand(text: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        out.push_str(&rest[..dollar]);
        rest = &rest[dollar + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            match value(name) {
                Some(value) => out.push_str(&value),
                None => out.push_str(&format!("$({name})")),
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced_where_their_value_is_known() {
        let container: Container = serde_json::from_str(
            r#"{"name": "c", "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}, {"name": "B"}]}"#,
        )
        .unwrap();
        let words = ["x$(A)y", "$$(A)", "$(NONE)", "$", "$(A", "a$b", "$(B)|", "$$$(A)"].map(str::to_string);
        let want = ["x2y", "$(A)", "$(NONE)", "$", "$(A", "a$b", "|", "$2"];
        assert_eq!(expand_all(&words, &container), want);
    }
}

//! `orlop config print`: the configuration file of `orlop up` with every field, its meaning and its default.

use std::fmt::Write;

use clap::{Arg, ArgAction};

use super::config_file::is_field;

/// Columns of the text in comments.
const WIDTH: usize = 98;

#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Print a file for `orlop up --config` with every field and its default, all commented out
    Print,
}

pub(super) fn run(args: &Args, command: &clap::Command) {
    match args.verb {
        Verb::Print => println!("{}", file(command).trim_end()),
    }
}

fn file(up: &clap::Command) -> String {
    let mut text = String::from(
        "# Configuration of `orlop up --config FILE`: its flags by name, in comments with their defaults.\n\
         # Words in capitals stand for values without a default.\n",
    );
    let mut fields: Vec<&Arg> = up
        .get_arguments()
        .filter(|arg| is_field(arg) && !arg.is_hide_set())
        .collect();
    // Those without a heading first, wherever they are defined.
    fields.sort_by_key(|arg| arg.get_help_heading().is_some());
    let mut heading = None;
    for arg in fields {
        if arg.get_help_heading() != heading {
            heading = arg.get_help_heading();
            let _ = writeln!(text, "\n## {}", heading.unwrap_or_default());
        }
        text.push('\n');
        let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string);
        for line in help.unwrap_or_default().lines().flat_map(|line| wrap(line, WIDTH)) {
            let _ = writeln!(text, "# {line}");
        }
        let _ = writeln!(text, "#{}: {}", arg.get_long().unwrap_or_default(), default(arg));
    }
    text
}

/// The default, or what stands for the value.
fn default(arg: &Arg) -> String {
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return "false".to_string();
    }
    let defaults = arg.get_default_values().iter().map(|value| value.to_string_lossy());
    let mut values: Vec<String> = defaults.map(|value| quoted(&value)).collect();
    if values.is_empty() {
        let names = arg.get_value_names().unwrap_or_default();
        values.extend(names.first().map(ToString::to_string));
    }
    let is_list = arg.get_value_delimiter().is_some() || matches!(arg.get_action(), ArgAction::Append);
    match is_list {
        true => format!("[{}]", values.join(", ")),
        false => values.join(" "),
    }
}

/// As YAML has it where a plain text would mean something else.
fn quoted(value: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    match !value.is_empty() && value.chars().all(is_plain) {
        true => value.to_string(),
        false => format!("{value:?}"),
    }
}

fn wrap(line: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in line.split_whitespace() {
        let last = lines.last_mut().expect("there is one");
        if !last.is_empty() && last.chars().count() + 1 + word.chars().count() > width {
            lines.push(word.to_string());
            continue;
        }
        if !last.is_empty() {
            last.push(' ');
        }
        last.push_str(word);
    }
    lines
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::{Cli, parse};
    use super::*;

    #[test]
    fn every_flag_is_a_field_and_defaults_can_be_said() {
        let mut cli = Cli::command();
        cli.build();
        let text = file(cli.find_subcommand("up").unwrap());
        for field in [
            "port: 6443",
            "service-cidr: [10.96.0.0/12]",
            "no-dns: false",
            "log-format: text",
            "v: 0",
        ] {
            assert!(text.contains(&format!("\n#{field}\n")), "{field}: {text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH + 2), "{text}");
        // Those with a value name instead of a default cannot be taken as they are.
        let has_default = |line: &&str| {
            !line
                .rsplit_once(": ")
                .is_some_and(|(_, value)| value.chars().any(|c| c.is_ascii_uppercase()))
        };
        let fields = text.lines().filter_map(|line| line.strip_prefix('#'));
        let fields = fields
            .filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()))
            .filter(has_default);
        let fields: Vec<&str> = fields.filter(|line| !line.ends_with("[]")).collect();
        assert!(fields.len() > 15, "{fields:?}");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.yaml");
        std::fs::write(&path, fields.join("\n")).unwrap();
        let line = ["orlop".into(), "up".into(), "--config".into(), path.into()];
        parse(&line).map_err(|e| e.to_string()).map(drop).unwrap();
    }
}

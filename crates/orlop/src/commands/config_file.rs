//! `orlop up --config FILE`: the command's flags by name, in YAML. What stands on the command line or in the environment wins.
//!
//! A field becomes a flag of the line that is parsed in the end, so that values, defaults and refusals are the flags' own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches};
use serde_json::{Map, Value};

/// The flag that names the file.
pub(super) const FLAG: &str = "config";
/// What cannot be said in a file that a service manager starts with.
const ONLY_ON_THE_LINE: [&str; 5] = [FLAG, "detach", "wait", "help", "version"];

/// The line with what the file says added, or `None` if it names no file.
pub(super) fn extended(
    line: &[OsString],
    command: &clap::Command,
    matches: &ArgMatches,
) -> Result<Option<Vec<OsString>>, clap::Error> {
    let Some(file) = matches.get_one::<PathBuf>(FLAG) else {
        return Ok(None);
    };
    let refused = |why: String| {
        let text = format!("invalid configuration {}: {why}\n", file.display());
        clap::Error::raw(ErrorKind::ValueValidation, text)
    };
    let fields = read(file).map_err(refused)?;
    let mut added = flags(&fields, command, matches).map_err(refused)?;
    let mut line = line.to_vec();
    line.append(&mut added);
    Ok(Some(line))
}

/// Whether a file may say it.
pub(super) fn is_field(arg: &Arg) -> bool {
    arg.get_long().is_some_and(|name| !ONLY_ON_THE_LINE.contains(&name))
}

fn read(file: &Path) -> Result<Map<String, Value>, String> {
    let text = std::fs::read_to_string(file).map_err(|e| e.to_string())?;
    // One with nothing but comments.
    let is_comment = |line: &str| line.trim_start().is_empty() || line.trim_start().starts_with('#') || line == "---";
    if text.lines().all(is_comment) {
        return Ok(Map::new());
    }
    serde_saphyr::from_str(&text).map_err(|e| e.to_string())
}

/// What the fields are as flags, without those that were given already.
fn flags(fields: &Map<String, Value>, command: &clap::Command, matches: &ArgMatches) -> Result<Vec<OsString>, String> {
    let mut flags = Vec::new();
    for (name, value) in fields {
        let arg = find(command, name)?;
        let source = matches.value_source(arg.get_id().as_str());
        if matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable)) {
            continue;
        }
        flags.extend(flag(name, arg, value).map_err(|why| format!("{name}: {why}"))?);
    }
    Ok(flags)
}

fn find<'a>(command: &'a clap::Command, name: &str) -> Result<&'a Arg, String> {
    if ONLY_ON_THE_LINE.contains(&name) {
        return Err(format!("{name}: can be given on the command line only"));
    }
    let is_it = |arg: &&Arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long() == Some(name) || aliases.contains(&name)
    };
    command.get_arguments().find(is_it).ok_or_else(|| {
        let fields = command.get_arguments().filter(|arg| is_field(arg));
        let names = fields.filter_map(Arg::get_long);
        let close = names.max_by_key(|other| common_prefix(other, name));
        let hint = close.filter(|other| common_prefix(other, name) > 2);
        let hint = hint.map_or(String::new(), |other| format!(" (is it {other}?)"));
        format!(
            "{name}: unknown field{hint}; fields are the flags of `orlop up --help`, without the dashes before them"
        )
    })
}

fn common_prefix(a: &str, b: &str) -> usize {
    a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count()
}

fn flag(name: &str, arg: &Arg, value: &Value) -> Result<Vec<OsString>, String> {
    let with = |text: String| OsString::from(format!("--{name}={text}"));
    match (arg.get_action(), value) {
        (ArgAction::SetTrue, Value::Bool(true)) => Ok(vec![format!("--{name}").into()]),
        (ArgAction::SetTrue, Value::Bool(false)) => Ok(vec![]),
        (ArgAction::SetTrue, _) => Err("must be true or false".to_string()),
        (ArgAction::Append, Value::Array(values)) => values.iter().map(|v| Ok(with(scalar(v)?))).collect(),
        (_, Value::Array(values)) => match arg.get_value_delimiter() {
            Some(delimiter) => {
                let texts: Vec<String> = values.iter().map(scalar).collect::<Result<_, _>>()?;
                Ok(vec![with(texts.join(&delimiter.to_string()))])
            }
            None => Err("must be one value, not a list".to_string()),
        },
        (_, value) => Ok(vec![with(scalar(value)?)]),
    }
}

fn scalar(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(value) => Ok(value.to_string()),
        Value::Null => Err("has no value".to_string()),
        Value::Array(_) | Value::Object(_) => Err("must be a text, a number, true or false".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Debug, Parser, PartialEq)]
    struct Flags {
        #[arg(long)]
        config: Option<PathBuf>,
        #[arg(long)]
        detach: bool,
        #[arg(long)]
        no_dns: bool,
        #[arg(long, alias = "listen", default_value_t = 6443)]
        port: u16,
        #[arg(long, value_delimiter = ',')]
        service_cidr: Vec<String>,
        #[arg(long)]
        simulate_shape: Vec<String>,
    }

    fn parsed(text: &str, line: &str) -> Result<Flags, String> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.yaml");
        std::fs::write(&file, text).unwrap();
        let line = format!("orlop --config={} {line}", file.display());
        let line: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let command = Flags::command();
        let matches = command.clone().try_get_matches_from(&line).map_err(|e| e.to_string())?;
        let line =
            extended(&line, &command, &matches).map_err(|e| e.to_string().replace(file.to_str().unwrap(), "FILE"))?;
        let mut flags = Flags::try_parse_from(line.unwrap()).map_err(|e| e.to_string())?;
        flags.config = None;
        Ok(flags)
    }

    #[test]
    fn fields_are_flags_and_the_line_wins() {
        let file = "# All of it.\nport: 7443\nno-dns: true\nservice-cidr: [10.0.0.0/16, 'fd00::/112']\nsimulate-shape:\n- big=4:cpu=16\n- small=2";
        let want = Flags {
            config: None,
            detach: false,
            no_dns: true,
            port: 7443,
            service_cidr: vec!["10.0.0.0/16".into(), "fd00::/112".into()],
            simulate_shape: vec!["big=4:cpu=16".into(), "small=2".into()],
        };
        assert_eq!(parsed(file, ""), Ok(want));
        let flags = parsed(file, "--port=1 --service-cidr=10.1.0.0/16").unwrap();
        assert_eq!((flags.port, flags.service_cidr), (1, vec!["10.1.0.0/16".to_string()]));
        assert_eq!(parsed("listen: 5\nno-dns: false", "").unwrap().port, 5);
        for nothing in ["", "# port: 1\n\n", "---\n"] {
            assert_eq!(parsed(nothing, "").unwrap().port, 6443, "{nothing:?}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, want) in [
            ("prot: 1", "FILE: prot: unknown field; fields are"),
            (
                "servicecidr: a",
                "FILE: servicecidr: unknown field (is it service-cidr?)",
            ),
            ("detach: true", "FILE: detach: can be given on the command line only"),
            ("no-dns: 5", "FILE: no-dns: must be true or false"),
            ("port: [1, 2]", "FILE: port: must be one value, not a list"),
            ("port:", "FILE: port: has no value"),
            ("service-cidr: {a: b}", "FILE: service-cidr: must be a text"),
            ("port: seven", "invalid value 'seven' for '--port <PORT>'"),
            ("- port", "FILE: "),
            ("port: 1\nport: 2", "FILE: "),
        ] {
            let error = parsed(text, "").unwrap_err();
            assert!(error.contains(want), "{text}: {error}");
        }
    }
}

//! Flags of the program that a command stands for which the command does not carry out: some would change nothing here,
//! and are taken with a warning; some ask for what can't be done, and are refused by name, with what to do instead.
//!
//! They are a table for each command ([`Flag`]), which clap gets at run time: hidden from help, since they do nothing.

use std::marker::PhantomData;

use anyhow::bail;
use clap::{Arg, ArgAction, ArgMatches, Command};

/// What becomes of a flag that is not carried out. Both say why, in words that fit behind "--flag: ".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    NoEffect(&'static str),
    Refused(&'static str),
}

/// What may follow a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    /// Nothing, or `=true` or `=false`.
    Bool,
    Value,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Flag {
    pub(crate) name: &'static str,
    pub(crate) takes: Takes,
    pub(crate) fate: Fate,
    /// Values that ask for what is the case anyway: neither refused nor worth a warning.
    pub(crate) usual: &'static [&'static str],
}

impl Flag {
    pub(crate) const fn value(name: &'static str, fate: Fate) -> Flag {
        Flag {
            name,
            takes: Takes::Value,
            fate,
            usual: &[""],
        }
    }

    pub(crate) const fn bool(name: &'static str, fate: Fate) -> Flag {
        Flag {
            name,
            takes: Takes::Bool,
            fate,
            usual: &["false"],
        }
    }

    pub(crate) const fn usual(self, usual: &'static [&'static str]) -> Flag {
        Flag { usual, ..self }
    }
}

/// A command's table.
pub(crate) trait Table {
    const FLAGS: &'static [&'static [Flag]];
}

pub(crate) fn flags<T: Table>() -> impl Iterator<Item = &'static Flag> {
    T::FLAGS.iter().copied().flatten()
}

/// The flags of a table that were given, each with its values.
pub(crate) struct OtherFlags<T> {
    given: Vec<(&'static Flag, Vec<String>)>,
    table: PhantomData<T>,
}

impl<T: Table> OtherFlags<T> {
    /// Warns of what has no effect; fails at what can't be done.
    pub(crate) fn settle(&self) -> anyhow::Result<()> {
        for (flag, values) in &self.given {
            if values.iter().all(|value| flag.usual.contains(&value.as_str())) {
                continue;
            }
            match flag.fate {
                Fate::NoEffect(why) => tracing::warn!(flag = flag.name, why, "ignoring a flag that has no effect here"),
                Fate::Refused(advice) => bail!("--{}: {advice}", flag.name),
            }
        }
        Ok(())
    }
}

impl<T: Table> clap::Args for OtherFlags<T> {
    fn augment_args(command: Command) -> Command {
        flags::<T>().fold(command, |command, flag| {
            let arg = Arg::new(flag.name).long(flag.name).hide(true).action(ArgAction::Append);
            command.arg(match flag.takes {
                Takes::Value => arg.num_args(1).allow_hyphen_values(true),
                Takes::Bool => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<T: Table> clap::FromArgMatches for OtherFlags<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = flags::<T>().filter_map(|flag| {
            let values = matches.get_many::<String>(flag.name)?;
            Some((flag, values.cloned().collect()))
        });
        Ok(OtherFlags {
            given: given.collect(),
            table: PhantomData,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    struct Some3;

    impl Table for Some3 {
        const FLAGS: &'static [&'static [Flag]] = &[
            &[Flag::value("shape", Fate::NoEffect("nothing has one")).usual(&["round"])],
            &[
                Flag::bool("fly", Fate::Refused("it can't; walk")),
                Flag::value("speed", Fate::Refused("it has one speed")),
            ],
        ];
    }

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        others: OtherFlags<Some3>,
    }

    #[test]
    fn flags_are_taken_or_refused_by_name() {
        for (line, expected) in [
            ("x", None),
            ("x --shape square", None),
            ("x --shape=-1 --shape=square", None),
            ("x --fly=false", None),
            ("x --speed=", None),
            ("x --fly", Some("--fly: it can't; walk")),
            ("x --fly=true", Some("--fly: it can't; walk")),
            ("x --fly=false --speed 3", Some("--speed: it has one speed")),
        ] {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap_or_else(|e| panic!("{line}: {e}"));
            let refused = cli.others.settle().err().map(|error| error.to_string());
            assert_eq!(refused.as_deref(), expected, "{line}");
        }
        assert!(Cli::try_parse_from(["x", "--swim"]).is_err());
        let help = Cli::try_parse_from(["x", "--help"]).err().expect("help").to_string();
        assert!(!help.contains("--fly"), "{help}");
    }
}

//! Stop signals: the CRI's choices, images' texts, the kernel's numbers.

use std::str::FromStr;

use crate::cri::messages::Signal;

const RTMIN: i32 = 34;
const RTMAX: i32 = 64;

/// The number of `SIGTERM`, `term`, `15`, `SIGRTMIN+3`.
pub(crate) fn parse(text: &str) -> Option<i32> {
    let text = text.trim().to_uppercase();
    if let Ok(number) = text.parse() {
        return Some(number).filter(|number| (1..=RTMAX).contains(number));
    }
    let name = text.strip_prefix("SIG").unwrap_or(&text);
    let offset = |rest: &str, words: [&str; 2]| match rest {
        "" => Some(0),
        rest => words
            .iter()
            .find_map(|word| rest.strip_prefix(word))?
            .parse::<i32>()
            .ok(),
    };
    let number = match (name.strip_prefix("RTMIN"), name.strip_prefix("RTMAX"), name) {
        (Some(rest), _, _) => RTMIN + offset(rest, ["+", "PLUS"])?,
        (_, Some(rest), _) => RTMAX - offset(rest, ["-", "MINUS"])?,
        (_, _, "CLD") => libc_number("CHLD")?,
        (_, _, "IOT") => libc_number("ABRT")?,
        (_, _, "POLL") => libc_number("IO")?,
        (_, _, name) => libc_number(name)?,
    };
    (1..=RTMAX).contains(&number).then_some(number)
}

fn libc_number(name: &str) -> Option<i32> {
    nix::sys::signal::Signal::from_str(&format!("SIG{name}"))
        .ok()
        .map(|signal| signal as i32)
}

/// The number of one of the CRI's signals; `None`: the runtime's choice.
pub(crate) fn number(signal: Signal) -> Option<i32> {
    match signal {
        Signal::RuntimeDefault => None,
        signal => parse(&format!("{signal:?}")),
    }
}

/// The CRI's name of a number.
pub(crate) fn from_number(wanted: i32) -> Signal {
    let all = (1..=65).filter_map(|value| Signal::try_from(value).ok());
    all.into_iter()
        .find(|signal| number(*signal) == Some(wanted))
        .unwrap_or(Signal::RuntimeDefault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_has_a_number() {
        for value in 1..=65 {
            let signal = Signal::try_from(value).unwrap();
            let number = number(signal).unwrap_or_else(|| panic!("{signal:?}"));
            assert_eq!(super::number(from_number(number)), Some(number));
        }
        assert_eq!(number(Signal::RuntimeDefault), None);
    }

    #[test]
    fn texts_of_images() {
        for (text, expected) in [
            ("SIGTERM", Some(15)),
            ("quit", Some(3)),
            ("9", Some(9)),
            ("SIGRTMIN+3", Some(37)),
            ("RTMAX-1", Some(63)),
            ("SIGNOTHING", None),
            ("", None),
            ("0", None),
            ("65", None),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
        assert_eq!(from_number(15), Signal::Sigterm);
    }
}

//! The server's flags.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::{os, text};

pub(super) struct Settings {
    pub(super) http: Vec<u16>,
    pub(super) tcp: u16,
    pub(super) udp: u16,
    pub(super) sleep: Option<Option<u64>>,
    pub(super) fail: Option<i32>,
    pub(super) cpu: u64,
    pub(super) memory: u64,
    pub(super) log_every: Option<u64>,
    pub(super) start_delay: u64,
    pub(super) stop_delay: u64,
    pub(super) ignore_sigterm: bool,
}

pub(super) fn read_settings(arguments: &[String]) -> Result<Settings, String> {
    let mut settings = Settings {
        http: Vec::new(),
        tcp: 9000,
        udp: 9000,
        sleep: None,
        fail: None,
        cpu: 0,
        memory: 0,
        log_every: None,
        start_delay: 0,
        stop_delay: 0,
        ignore_sigterm: false,
    };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let (name, given) = match argument.split_once('=') {
            Some((name, value)) => (name, Some(value.to_string())),
            None => (argument.as_str(), None),
        };
        let invalid = |value: &str| format!("invalid value {value:?} for {name}");
        // What needs a value takes the next argument too.
        let mut value = || given.clone().or_else(|| rest.next().cloned()).unwrap_or_default();
        let number = |text: String| text.parse().map_err(|_| invalid(&text));
        let duration = |text: String| text::duration_ms(&text).ok_or_else(|| invalid(&text));
        match name {
            "--port" | "--http-port" => settings.http.push(number(value())?),
            "--tcp-port" => settings.tcp = number(value())?,
            "--udp-port" => settings.udp = number(value())?,
            "--sleep" => settings.sleep = Some(given.map(duration).transpose()?),
            "--fail" => {
                let code = given.map(|text| text.parse().map_err(|_| invalid(&text)));
                settings.fail = Some(code.transpose()?.unwrap_or(1));
            }
            "--cpu" => {
                let text = value();
                settings.cpu = text::milli_cpu(&text).ok_or_else(|| invalid(&text))?;
            }
            "--memory" => {
                let text = value();
                settings.memory = text::bytes(&text).ok_or_else(|| invalid(&text))?;
            }
            "--log-every" => settings.log_every = Some(duration(value())?.max(1)),
            "--start-delay" => settings.start_delay = duration(value())?,
            "--stop-delay" => settings.stop_delay = duration(value())?,
            "--ignore-sigterm" => settings.ignore_sigterm = true,
            other => return Err(format!("unknown flag {other}")),
        }
    }
    if settings.http.is_empty() {
        let given = os::variable("PORT").and_then(|port| port.parse().ok());
        settings.http = given.map_or_else(|| alloc::vec![80, 8080], |port| alloc::vec![port]);
    }
    Ok(settings)
}

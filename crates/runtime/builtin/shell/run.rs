//! What is done.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::arithmetic::Arithmetic;
use super::lexer::{Part, RedirectionKind, Word};
use super::parser::{Command, Parser, Redirection};
use crate::{ExitCode, eprintln, os, print, sys, tools};

pub(super) struct Shell {
    pub(super) name: String,
    pub(super) parameters: Vec<String>,
    /// Variables that programs are not told of.
    variables: Vec<(String, String)>,
    status: i32,
    pub(super) stop_on_error: bool,
    pub(super) trace: bool,
    /// `break` and `continue`, and how many loops they concern.
    leaving: Option<(bool, usize)>,
    ended: Option<i32>,
}

impl Shell {
    pub(super) fn new() -> Shell {
        Shell {
            name: "sh".to_string(),
            parameters: Vec::new(),
            variables: Vec::new(),
            status: 0,
            stop_on_error: false,
            trace: false,
            leaving: None,
            ended: None,
        }
    }

    pub(super) fn run_text(&mut self, text: &str) -> ExitCode {
        match Parser::parse(text) {
            Ok(command) => {
                self.run(&command, true);
                self.ended.unwrap_or(self.status)
            }
            Err(why) => {
                eprintln!("sh: syntax error: {why}");
                2
            }
        }
    }

    /// Lines from the standard input: typed by somebody, or a script in a pipe.
    pub(super) fn run_lines(&mut self) -> ExitCode {
        let prompts = sys::is_terminal(0);
        let mut pending = String::new();
        loop {
            if prompts {
                let prompt = if pending.is_empty() {
                    format!("{} # ", tools::working_directory())
                } else {
                    "> ".to_string()
                };
                print!("{prompt}");
            }
            let Some(line) = read_line() else {
                break;
            };
            pending.push_str(&line);
            pending.push('\n');
            match Parser::parse(&pending) {
                // More lines may complete it.
                Err(why) if why.starts_with("unterminated") || why.starts_with("expected") => continue,
                Err(why) => {
                    eprintln!("sh: syntax error: {why}");
                    self.status = 2;
                }
                Ok(command) => self.run(&command, false),
            }
            pending.clear();
            if let Some(code) = self.ended {
                return code;
            }
        }
        if !pending.is_empty() {
            eprintln!("sh: syntax error: unexpected end");
            return 2;
        }
        self.status
    }

    fn run(&mut self, command: &Command, last: bool) {
        if self.ended.is_some() || self.leaving.is_some() {
            return;
        }
        match command {
            Command::Sequence(commands) => {
                for (number, command) in commands.iter().enumerate() {
                    self.run(command, last && number + 1 == commands.len());
                    let failed = self.status != 0
                        && matches!(
                            command,
                            Command::Simple { .. } | Command::Pipe(..) | Command::Subshell(..)
                        );
                    if failed && self.stop_on_error {
                        self.ended.get_or_insert(self.status);
                    }
                }
            }
            Command::And(left, right) => {
                self.run(left, false);
                if self.status == 0 {
                    self.run(right, last);
                }
            }
            Command::Or(left, right) => {
                self.run(left, false);
                if self.status != 0 {
                    self.run(right, last);
                }
            }
            Command::Not(inner) => {
                self.run(inner, false);
                self.status = i32::from(self.status == 0);
            }
            Command::If(condition, then, otherwise) => {
                self.run(condition, false);
                match (self.status == 0, otherwise) {
                    (true, _) => self.run(then, last),
                    (false, Some(otherwise)) => self.run(otherwise, last),
                    (false, None) => self.status = 0,
                }
            }
            Command::Loop(wanted, condition, body) => loop {
                self.run(condition, false);
                if (self.status == 0) != *wanted || self.ended.is_some() {
                    self.status = 0;
                    break;
                }
                self.run(body, false);
                if self.leaves_loop() {
                    break;
                }
            },
            Command::For(name, words, body) => {
                let values: Vec<String> = words.iter().flat_map(|word| self.expand(word)).collect();
                for value in values {
                    self.assign(name, &value);
                    self.run(body, false);
                    if self.leaves_loop() {
                        break;
                    }
                }
            }
            Command::Group(inner, redirections) => match redirections.is_empty() {
                true => self.run(inner, last),
                false => self.run_child(|shell| shell.redirected(redirections, |shell| shell.run(inner, true))),
            },
            Command::Subshell(inner, redirections) => {
                self.run_child(|shell| shell.redirected(redirections, |shell| shell.run(inner, true)));
            }
            Command::Background(inner) => {
                if sys::fork() == Ok(0) {
                    self.run(inner, true);
                    os::exit(self.ended.unwrap_or(self.status));
                }
                self.status = 0;
            }
            Command::Pipe(left, right) => self.pipe(left, right),
            Command::Simple {
                assignments,
                words,
                redirections,
            } => self.simple(assignments, words, redirections, last),
        }
    }

    /// Whether `break`, `continue` or `exit` ends the loop.
    fn leaves_loop(&mut self) -> bool {
        match self.leaving {
            None => self.ended.is_some(),
            Some((is_break, 1)) => {
                self.leaving = None;
                is_break
            }
            Some((is_break, count)) => {
                self.leaving = Some((is_break, count - 1));
                true
            }
        }
    }

    /// In a process of its own, waited for.
    fn run_child(&mut self, work: impl FnOnce(&mut Shell)) {
        match sys::fork() {
            Ok(0) => {
                work(self);
                os::exit(self.ended.unwrap_or(self.status));
            }
            Ok(pid) => self.status = wait_for(pid),
            Err(why) => {
                eprintln!("sh: {why}");
                self.status = 1;
            }
        }
    }

    fn pipe(&mut self, left: &Command, right: &Command) {
        let Ok((read_end, write_end)) = sys::pipe() else {
            self.status = 1;
            return;
        };
        let child = |shell: &mut Shell, command: &Command, from: i32, to: i32| match sys::fork() {
            Ok(0) => {
                let _ = sys::dup(from, to);
                sys::close(read_end);
                sys::close(write_end);
                shell.run(command, true);
                os::exit(shell.ended.unwrap_or(shell.status));
            }
            other => other.unwrap_or(-1),
        };
        let first = child(self, left, write_end, 1);
        let second = child(self, right, read_end, 0);
        sys::close(read_end);
        sys::close(write_end);
        let _ = wait_for(first);
        self.status = wait_for(second);
    }

    /// Redirects the process's own descriptors: for children.
    fn redirected(&mut self, redirections: &[Redirection], work: impl FnOnce(&mut Shell)) {
        match self.redirect(redirections) {
            Ok(()) => work(self),
            Err(why) => {
                eprintln!("sh: {why}");
                self.status = 1;
            }
        }
    }

    fn redirect(&mut self, redirections: &[Redirection]) -> Result<(), String> {
        for redirection in redirections {
            let target = self.expand_one(&redirection.target);
            let failed = |why: sys::Errno| format!("{target}: {why}");
            let flags = match redirection.kind {
                RedirectionKind::Copy => {
                    let from = target.parse().map_err(|_| format!(">&{target} is not supported"))?;
                    sys::dup(from, redirection.fd).map_err(failed)?;
                    continue;
                }
                RedirectionKind::Read => sys::O_RDONLY,
                RedirectionKind::Write => sys::O_WRONLY | sys::O_CREAT | sys::O_TRUNC,
                RedirectionKind::Append => sys::O_WRONLY | sys::O_CREAT | sys::O_APPEND,
            };
            let fd = sys::open(target.as_bytes(), flags, 0o644).map_err(failed)?;
            sys::dup(fd, redirection.fd).map_err(failed)?;
            if fd != redirection.fd {
                sys::close(fd);
            }
        }
        Ok(())
    }

    fn simple(&mut self, assignments: &[(String, Word)], words: &[Word], redirections: &[Redirection], last: bool) {
        let words: Vec<String> = words.iter().flat_map(|word| self.expand(word)).collect();
        let values: Vec<(String, String)> = assignments
            .iter()
            .map(|(name, word)| (name.clone(), self.expand_one(word)))
            .collect();
        if self.trace && !words.is_empty() {
            eprintln!("+ {}", words.join(" "));
        }
        let Some((name, arguments)) = words.split_first() else {
            self.status = 0;
            for (name, value) in &values {
                self.assign(name, value);
            }
            // A redirection alone makes or empties a file.
            if !redirections.is_empty() {
                self.run_child(|shell| shell.redirected(redirections, |_| {}));
            }
            return;
        };
        if redirections.is_empty() && values.is_empty() && self.own_command(name, arguments) {
            return;
        }
        let launch = |shell: &mut Shell| {
            shell.redirected(redirections, |shell| {
                for (name, value) in &values {
                    os::set_variable(name, value);
                }
                match shell.own_command(name, arguments) {
                    true => {}
                    false => shell.execute(name, arguments),
                }
            });
        };
        // The last command of a script takes the shell's place: signals then reach the program itself.
        match last {
            true => {
                launch(self);
                self.ended.get_or_insert(self.status);
            }
            false => self.run_child(launch),
        }
    }

    /// Commands that concern the shell itself; `false` if it is none of them.
    fn own_command(&mut self, name: &str, arguments: &[String]) -> bool {
        let first = arguments.first().map(String::as_str);
        let number = |default: i64| first.and_then(|text| text.parse::<i64>().ok()).unwrap_or(default);
        self.status = match name {
            ":" | "true" | "trap" => 0,
            "false" => 1,
            "echo" => tools::echo(arguments),
            "test" => tools::test(arguments),
            "[" => tools::bracket(arguments),
            "pwd" => tools::pwd(arguments),
            "exit" | "return" => {
                self.ended = Some(number(i64::from(self.status)) as i32 & 0xff);
                return true;
            }
            "break" | "continue" => {
                self.leaving = Some((name == "break", number(1).max(1) as usize));
                0
            }
            "cd" => {
                let home = os::variable("HOME").unwrap_or("/");
                match sys::chdir(first.unwrap_or(home).as_bytes()) {
                    Ok(()) => 0,
                    Err(why) => {
                        eprintln!("sh: cd: {}: {why}", first.unwrap_or(home));
                        1
                    }
                }
            }
            "export" => {
                for argument in arguments {
                    let (name, value) = match argument.split_once('=') {
                        Some((name, value)) => (name, value.to_string()),
                        None => (argument.as_str(), self.value_of(argument).unwrap_or_default()),
                    };
                    self.variables.retain(|(known, _)| known != name);
                    os::set_variable(name, &value);
                }
                0
            }
            "unset" => {
                for argument in arguments {
                    self.variables.retain(|(known, _)| known != argument);
                    os::environment().retain(|(known, _)| known != argument);
                }
                0
            }
            "set" => {
                for argument in arguments {
                    match argument.as_str() {
                        "-e" => self.stop_on_error = true,
                        "+e" => self.stop_on_error = false,
                        "-x" => self.trace = true,
                        _ => {}
                    }
                }
                0
            }
            "shift" => {
                let count = (number(1).max(0) as usize).min(self.parameters.len());
                self.parameters.drain(..count);
                0
            }
            "read" => match read_line() {
                Some(line) => {
                    let name = arguments.iter().find(|a| !a.starts_with('-')).cloned();
                    self.assign(&name.unwrap_or_else(|| "REPLY".to_string()), line.trim());
                    0
                }
                None => 1,
            },
            "wait" => {
                while sys::wait(-1, true).is_ok() {}
                0
            }
            "exec" => match arguments.split_first() {
                Some((name, rest)) => {
                    self.execute(name, rest);
                    self.ended = Some(self.status);
                    return true;
                }
                None => 0,
            },
            "eval" => self.evaluate(&arguments.join(" ")),
            _ => return false,
        };
        true
    }

    fn evaluate(&mut self, text: &str) -> i32 {
        match Parser::parse(text) {
            Ok(command) => {
                self.run(&command, false);
                self.status
            }
            Err(why) => {
                eprintln!("sh: syntax error: {why}");
                2
            }
        }
    }

    /// Becomes another program. Only what went wrong comes back, as a status.
    fn execute(&mut self, name: &str, arguments: &[String]) {
        let texts = core::iter::once(name).chain(arguments.iter().map(String::as_str));
        let arguments: Vec<sys::CText> = texts.map(|text| sys::CText::new(text.as_bytes())).collect();
        let environment: Vec<sys::CText> = os::environment()
            .iter()
            .map(|(name, value)| sys::CText::new(format!("{name}={value}").as_bytes()))
            .collect();
        sys::unblock_signals();
        let mut why = sys::ENOENT;
        let path = os::variable("PATH").unwrap_or("/bin:/usr/bin:/sbin:/usr/sbin");
        let places: Vec<String> = match name.contains('/') {
            true => alloc::vec![name.to_string()],
            false => path.split(':').map(|dir| format!("{dir}/{name}")).collect(),
        };
        for place in places {
            match sys::execve(place.as_bytes(), &arguments, &environment) {
                sys::ENOENT | sys::ENOTDIR => {}
                other => why = other,
            }
        }
        self.status = match why {
            sys::ENOENT => {
                eprintln!("sh: {name}: not found");
                127
            }
            other => {
                eprintln!("sh: {name}: {other}");
                126
            }
        };
    }

    fn assign(&mut self, name: &str, value: &str) {
        if os::variable(name).is_some() {
            os::set_variable(name, value);
            return;
        }
        self.variables.retain(|(known, _)| known != name);
        self.variables.push((name.to_string(), value.to_string()));
    }

    pub(super) fn value_of(&self, name: &str) -> Option<String> {
        match name {
            "?" => return Some(self.status.to_string()),
            "$" => return Some(sys::getpid().to_string()),
            "#" => return Some(self.parameters.len().to_string()),
            "@" | "*" => return Some(self.parameters.join(" ")),
            "0" => return Some(self.name.clone()),
            _ => {}
        }
        if let Ok(number) = name.parse::<usize>() {
            return self.parameters.get(number - 1).cloned();
        }
        let own = self
            .variables
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.clone());
        own.or_else(|| os::variable(name).map(str::to_string))
    }

    /// The words that a word becomes: what is not quoted is split at blanks.
    fn expand(&mut self, word: &Word) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        let mut current: Option<String> = None;
        for part in word {
            let (text, split) = self.expand_part(part);
            if !split {
                current.get_or_insert_default().push_str(&text);
                continue;
            }
            if text.starts_with(char::is_whitespace) {
                words.extend(current.take());
            }
            let mut pieces = text.split_whitespace().peekable();
            while let Some(piece) = pieces.next() {
                current.get_or_insert_default().push_str(piece);
                if pieces.peek().is_some() || text.ends_with(char::is_whitespace) {
                    words.extend(current.take());
                }
            }
        }
        words.extend(current);
        words
    }

    fn expand_one(&mut self, word: &Word) -> String {
        word.iter().map(|part| self.expand_part(part).0).collect()
    }

    /// A part's text, and whether it is split at blanks.
    fn expand_part(&mut self, part: &Part) -> (String, bool) {
        match part {
            Part::Text(text) => (text.clone(), false),
            Part::Parameter { name, default, quoted } => {
                let value = self.value_of(name).filter(|value| !value.is_empty());
                let text = match (value, default) {
                    (Some(value), _) => value,
                    (None, Some(default)) => self.expand_one(default),
                    (None, None) => String::new(),
                };
                (text, !quoted)
            }
            Part::Output { text, quoted } => (self.output_of(text), !quoted),
            Part::Arithmetic(word) => {
                let text = self.expand_one(word);
                let value = Arithmetic {
                    shell: self,
                    rest: &text,
                }
                .value();
                match value {
                    Some(value) => (value.to_string(), false),
                    None => {
                        eprintln!("sh: arithmetic syntax error: {text}");
                        self.status = 2;
                        (String::new(), false)
                    }
                }
            }
        }
    }

    fn output_of(&mut self, text: &str) -> String {
        let Ok((read_end, write_end)) = sys::pipe() else {
            return String::new();
        };
        match sys::fork() {
            Ok(0) => {
                let _ = sys::dup(write_end, 1);
                let code = self.run_text(text);
                os::exit(code);
            }
            Ok(pid) => {
                sys::close(write_end);
                let bytes = os::read_all(read_end, 1 << 20).unwrap_or_default();
                sys::close(read_end);
                self.status = wait_for(pid);
                String::from_utf8_lossy(&bytes).trim_end_matches('\n').to_string()
            }
            Err(_) => String::new(),
        }
    }
}

fn wait_for(pid: i32) -> i32 {
    if pid <= 0 {
        return 1;
    }
    match sys::wait(pid, true) {
        Ok((_, status)) if status & 0x7f == 0 => status >> 8 & 0xff,
        Ok((_, status)) => 128 + (status & 0x7f),
        Err(_) => 1,
    }
}

/// Byte by byte: what follows belongs to the programs that are started.
fn read_line() -> Option<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        match sys::read(0, &mut byte) {
            Ok(1) if byte[0] == b'\n' => break,
            Ok(1) => line.push(byte[0]),
            _ if line.is_empty() => return None,
            _ => break,
        }
    }
    Some(String::from_utf8_lossy(&line).into_owned())
}

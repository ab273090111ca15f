//! What it means: tokens to commands.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::lexer::{Lexer, Part, RedirectionKind, Token, Word};

/// One command, as it is executed.
pub(super) enum Command {
    Simple {
        assignments: Vec<(String, Word)>,
        words: Vec<Word>,
        redirections: Vec<Redirection>,
    },
    Pipe(Box<Command>, Box<Command>),
    And(Box<Command>, Box<Command>),
    Or(Box<Command>, Box<Command>),
    Not(Box<Command>),
    Background(Box<Command>),
    Sequence(Vec<Command>),
    Subshell(Box<Command>, Vec<Redirection>),
    Group(Box<Command>, Vec<Redirection>),
    If(Box<Command>, Box<Command>, Option<Box<Command>>),
    /// While the condition gives this.
    Loop(bool, Box<Command>, Box<Command>),
    For(String, Vec<Word>, Box<Command>),
}

pub(super) struct Redirection {
    pub(super) fd: i32,
    pub(super) kind: RedirectionKind,
    pub(super) target: Word,
}

pub(super) struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

/// Words that end a list of commands.
const CLOSING: &[&str] = &["then", "else", "elif", "fi", "do", "done", "}"];

impl Parser {
    pub(super) fn parse(text: &str) -> Result<Command, String> {
        let mut parser = Parser {
            tokens: Lexer::tokens(text)?,
            at: 0,
        };
        let command = parser.list()?;
        match parser.tokens.get(parser.at) {
            None => Ok(command),
            Some(token) => Err(format!("unexpected {}", describe(token))),
        }
    }

    fn is_operator(&self, wanted: &str) -> bool {
        matches!(self.tokens.get(self.at), Some(Token::Operator(found)) if *found == wanted)
    }

    fn keyword(&self) -> Option<&str> {
        match self.tokens.get(self.at) {
            Some(Token::Plain(word)) => Some(word),
            _ => None,
        }
    }

    fn take_operator(&mut self, wanted: &str) -> bool {
        let found = self.is_operator(wanted);
        self.at += usize::from(found);
        found
    }

    fn expect_keyword(&mut self, wanted: &str) -> Result<(), String> {
        match self.keyword() == Some(wanted) {
            true => {
                self.at += 1;
                Ok(())
            }
            false => Err(format!("expected {wanted:?}")),
        }
    }

    fn skip_newlines(&mut self) {
        while self.take_operator("\n") {}
    }

    fn list(&mut self) -> Result<Command, String> {
        let mut commands = Vec::new();
        loop {
            while self.take_operator("\n") || self.take_operator(";") {}
            let ends = self.at >= self.tokens.len()
                || self.is_operator(")")
                || self.keyword().is_some_and(|word| CLOSING.contains(&word));
            if ends {
                return Ok(Command::Sequence(commands));
            }
            let command = self.and_or()?;
            commands.push(match self.take_operator("&") {
                true => Command::Background(Box::new(command)),
                false => command,
            });
        }
    }

    fn and_or(&mut self) -> Result<Command, String> {
        let mut left = self.pipeline()?;
        loop {
            let and = self.take_operator("&&");
            if !and && !self.take_operator("||") {
                return Ok(left);
            }
            self.skip_newlines();
            let right = Box::new(self.pipeline()?);
            left = match and {
                true => Command::And(Box::new(left), right),
                false => Command::Or(Box::new(left), right),
            };
        }
    }

    fn pipeline(&mut self) -> Result<Command, String> {
        if self.keyword() == Some("!") {
            self.at += 1;
            return Ok(Command::Not(Box::new(self.pipeline()?)));
        }
        let mut left = self.command()?;
        while self.take_operator("|") {
            self.skip_newlines();
            left = Command::Pipe(Box::new(left), Box::new(self.command()?));
        }
        Ok(left)
    }

    fn command(&mut self) -> Result<Command, String> {
        if self.take_operator("(") {
            let inner = self.list()?;
            if !self.take_operator(")") {
                return Err("expected )".to_string());
            }
            return Ok(Command::Subshell(Box::new(inner), self.redirections()?));
        }
        match self.keyword() {
            Some("if") => {
                self.at += 1;
                self.branches()
            }
            Some(word @ ("while" | "until")) => {
                let wanted = word == "while";
                self.at += 1;
                let condition = Box::new(self.list()?);
                Ok(Command::Loop(wanted, condition, Box::new(self.body()?)))
            }
            Some("for") => {
                self.at += 1;
                self.for_loop()
            }
            Some("{") => {
                self.at += 1;
                let inner = Box::new(self.list()?);
                self.expect_keyword("}")?;
                Ok(Command::Group(inner, self.redirections()?))
            }
            Some(word @ ("case" | "function" | "select")) => Err(format!("{word} is not supported")),
            _ => self.simple(),
        }
    }

    fn body(&mut self) -> Result<Command, String> {
        self.expect_keyword("do")?;
        let body = self.list()?;
        self.expect_keyword("done")?;
        Ok(body)
    }

    fn branches(&mut self) -> Result<Command, String> {
        let condition = Box::new(self.list()?);
        self.expect_keyword("then")?;
        let then = Box::new(self.list()?);
        let otherwise = match self.keyword() {
            Some("elif") => {
                self.at += 1;
                return Ok(Command::If(condition, then, Some(Box::new(self.branches()?))));
            }
            Some("else") => {
                self.at += 1;
                Some(Box::new(self.list()?))
            }
            _ => None,
        };
        self.expect_keyword("fi")?;
        Ok(Command::If(condition, then, otherwise))
    }

    fn for_loop(&mut self) -> Result<Command, String> {
        let name = self.keyword().ok_or("for needs a name")?.to_string();
        self.at += 1;
        let mut words = Vec::new();
        if self.keyword() == Some("in") {
            self.at += 1;
            while let Some(word) = self.take_word() {
                words.push(word);
            }
        } else {
            let all = Part::Parameter {
                name: "@".to_string(),
                default: None,
                quoted: false,
            };
            words.push(alloc::vec![all]);
        }
        while self.take_operator(";") || self.take_operator("\n") {}
        Ok(Command::For(name, words, Box::new(self.body()?)))
    }

    fn take_word(&mut self) -> Option<Word> {
        let word = match self.tokens.get(self.at)? {
            Token::Plain(text) => alloc::vec![Part::Text(text.clone())],
            Token::Word(word) => word.clone(),
            _ => return None,
        };
        self.at += 1;
        Some(word)
    }

    fn redirections(&mut self) -> Result<Vec<Redirection>, String> {
        let mut redirections = Vec::new();
        while let Some(Token::Redirect(fd, kind)) = self.tokens.get(self.at) {
            let (fd, kind) = (*fd, *kind);
            self.at += 1;
            let target = self.take_word().ok_or("expected a file after a redirection")?;
            redirections.push(Redirection { fd, kind, target });
        }
        Ok(redirections)
    }

    fn simple(&mut self) -> Result<Command, String> {
        let (mut assignments, mut words, mut redirections) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            let more = self.redirections()?;
            let redirected = !more.is_empty();
            redirections.extend(more);
            match self.take_word() {
                Some(word) if words.is_empty() => match split_assignment(&word) {
                    Some(assignment) => assignments.push(assignment),
                    None => words.push(word),
                },
                Some(word) => words.push(word),
                None if redirected => {}
                None => break,
            }
        }
        if self.is_operator("(") {
            return Err("functions are not supported".to_string());
        }
        if assignments.is_empty() && words.is_empty() && redirections.is_empty() {
            return Err(self
                .tokens
                .get(self.at)
                .map_or("unexpected end".to_string(), |t| format!("unexpected {}", describe(t))));
        }
        Ok(Command::Simple {
            assignments,
            words,
            redirections,
        })
    }
}

fn describe(token: &Token) -> String {
    match token {
        Token::Operator("\n") => "end of line".to_string(),
        Token::Operator(operator) => format!("{operator:?}"),
        Token::Plain(word) => format!("{word:?}"),
        Token::Word(_) => "word".to_string(),
        Token::Redirect(..) => "redirection".to_string(),
    }
}

/// `NAME=value`.
fn split_assignment(word: &Word) -> Option<(String, Word)> {
    let Some(Part::Text(first)) = word.first() else {
        return None;
    };
    let (name, value) = first.split_once('=')?;
    let named = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if !named {
        return None;
    }
    let mut rest = alloc::vec![Part::Text(value.to_string())];
    rest.extend(word[1..].iter().cloned());
    Some((name.to_string(), rest))
}

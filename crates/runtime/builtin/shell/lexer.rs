//! What is written: characters to tokens.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// A word before it is expanded.
pub(super) type Word = Vec<Part>;

#[derive(Clone)]
pub(super) enum Part {
    /// As it stands; quoted or not.
    Text(String),
    /// A parameter with its default; in double quotes it stays one word.
    Parameter {
        name: String,
        default: Option<Word>,
        quoted: bool,
    },
    Output {
        text: String,
        quoted: bool,
    },
    Arithmetic(Word),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RedirectionKind {
    Read,
    Write,
    Append,
    Copy,
}

pub(super) enum Token {
    Word(Word),
    /// A word that was not quoted and has no parts: perhaps `while`.
    Plain(String),
    Operator(&'static str),
    Redirect(i32, RedirectionKind),
}

// What is written: characters to tokens.

pub(super) struct Lexer<'a> {
    rest: core::iter::Peekable<core::str::Chars<'a>>,
}

const SPECIAL: &str = ";&|()<>\n";

impl Lexer<'_> {
    pub(super) fn tokens(text: &str) -> Result<Vec<Token>, String> {
        let mut lexer = Lexer {
            rest: text.chars().peekable(),
        };
        let mut tokens = Vec::new();
        while let Some(next) = lexer.rest.peek().copied() {
            match next {
                ' ' | '\t' | '\r' => drop(lexer.rest.next()),
                '#' => while lexer.rest.next_if(|c| *c != '\n').is_some() {},
                _ if SPECIAL.contains(next) => tokens.push(lexer.operator(1, false)?),
                _ => lexer.word(&mut tokens)?,
            }
        }
        Ok(tokens)
    }

    fn next_is(&mut self, wanted: char) -> bool {
        self.rest.next_if_eq(&wanted).is_some()
    }

    /// An operator; the number before a redirection was read already.
    fn operator(&mut self, fd: i32, given: bool) -> Result<Token, String> {
        let first = self.rest.next().unwrap_or('\n');
        Ok(match first {
            '<' => {
                if self.next_is('<') {
                    return Err("here-documents are not supported".to_string());
                }
                Token::Redirect(if given { fd } else { 0 }, RedirectionKind::Read)
            }
            '>' if self.next_is('>') => Token::Redirect(fd, RedirectionKind::Append),
            '>' if self.next_is('&') => Token::Redirect(fd, RedirectionKind::Copy),
            '>' => Token::Redirect(fd, RedirectionKind::Write),
            '&' if self.next_is('&') => Token::Operator("&&"),
            '|' if self.next_is('|') => Token::Operator("||"),
            ';' if self.next_is(';') => return Err("case is not supported".to_string()),
            '&' => Token::Operator("&"),
            '|' => Token::Operator("|"),
            ';' => Token::Operator(";"),
            '(' => Token::Operator("("),
            ')' => Token::Operator(")"),
            _ => Token::Operator("\n"),
        })
    }

    fn word(&mut self, tokens: &mut Vec<Token>) -> Result<(), String> {
        let mut word = Word::new();
        let mut text = String::new();
        let mut plain = true;
        while let Some(next) = self.rest.peek().copied() {
            match next {
                ' ' | '\t' | '\r' => break,
                '<' | '>' if plain && text.len() == 1 && text.as_bytes()[0].is_ascii_digit() => {
                    let fd = text.parse().unwrap_or(1);
                    tokens.push(self.operator(fd, true)?);
                    return Ok(());
                }
                _ if SPECIAL.contains(next) => break,
                _ => {}
            }
            self.rest.next();
            match next {
                '\'' => {
                    plain = false;
                    loop {
                        match self.rest.next().ok_or("unterminated quote")? {
                            '\'' => break,
                            c => text.push(c),
                        }
                    }
                    word.push(Part::Text(core::mem::take(&mut text)));
                }
                '"' => {
                    plain = false;
                    flush(&mut text, &mut word);
                    self.double_quoted(&mut word)?;
                }
                '\\' => {
                    plain = false;
                    match self.rest.next() {
                        Some('\n') | None => {}
                        Some(c) => text.push(c),
                    }
                }
                '$' => {
                    plain = false;
                    flush(&mut text, &mut word);
                    word.push(self.dollar(false)?);
                }
                '`' => return Err("backquotes are not supported: use $( )".to_string()),
                c => text.push(c),
            }
        }
        tokens.push(match plain {
            true => Token::Plain(text),
            false => {
                flush(&mut text, &mut word);
                Token::Word(word)
            }
        });
        Ok(())
    }

    fn double_quoted(&mut self, word: &mut Word) -> Result<(), String> {
        let mut text = String::new();
        // Even if it is empty, it is a word.
        word.push(Part::Text(String::new()));
        loop {
            match self.rest.next().ok_or("unterminated quote")? {
                '"' => break,
                '\\' => match self.rest.next().ok_or("unterminated quote")? {
                    c @ ('"' | '\\' | '$' | '`') => text.push(c),
                    '\n' => {}
                    c => text.extend(['\\', c]),
                },
                '$' => {
                    flush(&mut text, word);
                    word.push(self.dollar(true)?);
                }
                '`' => return Err("backquotes are not supported: use $( )".to_string()),
                c => text.push(c),
            }
        }
        flush(&mut text, word);
        Ok(())
    }

    /// What follows a `$`.
    fn dollar(&mut self, quoted: bool) -> Result<Part, String> {
        let parameter = |name: String, default| Part::Parameter { name, default, quoted };
        match self.rest.peek().copied() {
            Some('(') => {
                self.rest.next();
                if self.next_is('(') {
                    let text = self.until_closed(2)?;
                    return Ok(Part::Arithmetic(parse_text(&text)?));
                }
                let text = self.until_closed(1)?;
                Ok(Part::Output { text, quoted })
            }
            Some('{') => {
                self.rest.next();
                let mut inner = String::new();
                loop {
                    match self.rest.next().ok_or("unterminated ${")? {
                        '}' => break,
                        c => inner.push(c),
                    }
                }
                let end = inner.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '?' && c != '#');
                let (name, rest) = inner.split_at(end.unwrap_or(inner.len()));
                match rest.strip_prefix(":-").or_else(|| rest.strip_prefix('-')) {
                    Some(default) => Ok(parameter(name.to_string(), Some(parse_text(default)?))),
                    None if rest.is_empty() => Ok(parameter(name.to_string(), None)),
                    None => Err(format!("${{{inner}}} is not supported")),
                }
            }
            Some(c @ ('?' | '$' | '#' | '@' | '*' | '!' | '0'..='9')) => {
                self.rest.next();
                Ok(parameter(c.to_string(), None))
            }
            Some(c) if c.is_ascii_alphabetic() || c == '_' => {
                let mut name = String::new();
                while let Some(c) = self.rest.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
                    name.push(c);
                }
                Ok(parameter(name, None))
            }
            _ => Ok(Part::Text("$".to_string())),
        }
    }

    /// Up to the parentheses that close what was opened.
    fn until_closed(&mut self, opened: usize) -> Result<String, String> {
        let mut text = String::new();
        let mut depth = opened;
        let mut quote = None;
        loop {
            let next = self.rest.next().ok_or("unterminated $(")?;
            match (next, quote) {
                ('(', None) => depth += 1,
                (')', None) => depth -= 1,
                ('\'' | '"', None) => quote = Some(next),
                (c, Some(q)) if c == q => quote = None,
                _ => {}
            }
            if depth == 0 {
                // Of two, the first was taken into the text.
                if opened == 2 {
                    text.pop();
                }
                return Ok(text);
            }
            text.push(next);
        }
    }
}

fn flush(text: &mut String, word: &mut Word) {
    if !text.is_empty() {
        word.push(Part::Text(core::mem::take(text)));
    }
}

/// Text in which only `$` means something.
fn parse_text(text: &str) -> Result<Word, String> {
    let mut word = Word::new();
    let mut lexer = Lexer {
        rest: text.chars().peekable(),
    };
    let mut plain = String::new();
    while let Some(next) = lexer.rest.next() {
        match next {
            '$' => {
                flush(&mut plain, &mut word);
                word.push(lexer.dollar(true)?);
            }
            c => plain.push(c),
        }
    }
    flush(&mut plain, &mut word);
    Ok(word)
}

//! Tokens from a file, one per line: `token,user,uid,"group1,group2"`.

use std::collections::HashMap;
use std::sync::Arc;

use super::{AUTHENTICATED, UserInfo};

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenFileError {
    #[error("line {line}: a token needs at least 3 columns (token, user name, user uid), found {columns}")]
    TooFewColumns { line: usize, columns: usize },
    #[error("line {line}: a quote is not closed")]
    OpenQuote { line: usize },
}

/// Reads a token file; lines without a token are skipped, of tokens given twice the last counts.
pub fn parse_token_file(content: &str) -> Result<HashMap<String, Arc<UserInfo>>, TokenFileError> {
    let mut tokens = HashMap::new();
    for (number, line) in content.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let line_number = number + 1;
        let columns = columns(line).ok_or(TokenFileError::OpenQuote { line: line_number })?;
        let [token, name, uid, rest @ ..] = columns.as_slice() else {
            return Err(TokenFileError::TooFewColumns {
                line: line_number,
                columns: columns.len(),
            });
        };
        if token.is_empty() {
            continue;
        }
        let groups = rest.first().into_iter().flat_map(|list| list.split(','));
        let mut user = UserInfo {
            name: name.clone(),
            uid: uid.clone(),
            groups: groups.map(str::to_string).collect(),
            ..Default::default()
        };
        user.ensure_group(AUTHENTICATED);
        tokens.insert(token.clone(), Arc::new(user));
    }
    Ok(tokens)
}

/// The columns of one line of CSV; none if a quote is left open.
fn columns(line: &str) -> Option<Vec<String>> {
    let mut columns = vec![String::new()];
    let mut quoted = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        let column = columns.last_mut().expect("there is always a last column");
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                column.push('"');
            }
            '"' if quoted || column.is_empty() => quoted = !quoted,
            ',' if !quoted => columns.push(String::new()),
            c => column.push(c),
        }
    }
    (!quoted).then_some(columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_files() {
        let tokens =
            parse_token_file("t1,alice,1,\"dev,ops\"\n\nt2,bob,2\r\n,nobody,3\nt3,\"a \"\"b\"\"\",4,x\n").unwrap();
        let mut found: Vec<String> = tokens
            .iter()
            .map(|(t, u)| format!("{t} {} {} {}", u.name, u.uid, u.groups.join("+")))
            .collect();
        found.sort();
        let expected = [
            "t1 alice 1 dev+ops+system:authenticated",
            "t2 bob 2 system:authenticated",
            "t3 a \"b\" 4 x+system:authenticated",
        ];
        assert_eq!(found, expected);
        assert_eq!(
            parse_token_file("a,b").unwrap_err(),
            TokenFileError::TooFewColumns { line: 1, columns: 2 }
        );
        assert_eq!(
            parse_token_file("\"a,b,c").unwrap_err(),
            TokenFileError::OpenQuote { line: 1 }
        );
    }
}

//! Tables, colours, lines of a readable length.

#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// Only for terminals.
    pub colour: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    Red,
    Green,
    Yellow,
}

impl Style {
    pub fn paint(self, text: &str, colour: Colour) -> String {
        let code = match colour {
            Colour::Red => "31",
            Colour::Green => "32",
            Colour::Yellow => "33",
        };
        self.escaped(text, code)
    }

    pub fn bold(self, text: &str) -> String {
        self.escaped(text, "1")
    }

    pub fn dim(self, text: &str) -> String {
        self.escaped(text, "2")
    }

    fn escaped(self, text: &str, code: &str) -> String {
        match self.colour {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_string(),
        }
    }
}

/// Columns as kubectl prints them.
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(head: &[&str]) -> Table {
        Table {
            head: head.iter().map(|cell| cell.to_string()).collect(),
            rows: vec![],
        }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        let harmless = |cell: String| cell.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        self.rows.push(cells.into_iter().map(harmless).collect());
    }

    pub fn render(&self, style: Style) -> String {
        let width = |column: usize| {
            let cells = std::iter::once(&self.head).chain(&self.rows);
            cells
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            cells.collect::<Vec<_>>().join("   ").trim_end().to_string()
        };
        let mut out = style.dim(&line(&self.head)) + "\n";
        for row in &self.rows {
            out += &(line(row) + "\n");
        }
        out
    }
}

/// Broken at blanks; lines after the first start with `indent`. Ends with a newline. What a terminal would obey is shown.
pub fn wrapped(text: &str, width: usize, indent: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut out = String::new();
    let mut length = 0;
    let lead: String = text.chars().take_while(|c| *c == ' ').collect();
    for word in text.split_whitespace() {
        let long = word.chars().count();
        if out.is_empty() {
            out += &lead;
            out += word;
            length = lead.len() + long;
        } else if length + 1 + long > width {
            out += "\n";
            out += indent;
            out += word;
            length = indent.len() + long;
        } else {
            out += " ";
            out += word;
            length += 1 + long;
        }
    }
    out + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_wrapped_and_harmless() {
        assert_eq!(wrapped("a bb ccc", 4, "  "), "a bb\n  ccc\n");
        assert_eq!(wrapped("", 4, ""), "\n");
        assert_eq!(wrapped("a\x1b[31mb", 40, ""), "a [31mb\n");
    }

    #[test]
    fn tables_have_columns() {
        let mut table = Table::new(&["A", "NAME"]);
        table.row(vec!["1000".into(), "x".into()]);
        assert_eq!(table.render(Style::default()), "A      NAME\n1000   x\n");
    }
}

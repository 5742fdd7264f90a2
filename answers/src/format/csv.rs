//! Comma-separated values as in RFC 4180, for spreadsheets as well as for scripts.
//!
//! Guarantees: one record per line (control characters in names are escaped). Text that a spreadsheet would evaluate
//! (`=`, `+`, `-`, `@` first) gets a leading apostrophe. Numbers are unchanged. JSON has text exactly as it was
//! recorded.

use std::fmt::Display;
use std::io::{self, Write};

use super::text::safe;

/// One cell.
pub enum Cell {
    /// Text from elsewhere.
    Text(String),
    /// A number, a time, a word of memctl's own.
    Plain(String),
    /// Not known.
    Empty,
}

impl Cell {
    /// A cell of external text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// A cell with a number, a time or a fixed word.
    pub fn plain(value: impl Display) -> Self {
        Self::Plain(value.to_string())
    }

    /// A plain cell, or an empty one.
    pub fn maybe(value: Option<impl Display>) -> Self {
        value.map_or(Self::Empty, Self::plain)
    }

    /// A cell of external text, or an empty one.
    pub fn maybe_text(value: Option<&str>) -> Self {
        value.map_or(Self::Empty, Self::text)
    }
}

/// Writes the header.
///
/// # Errors
/// The writer's.
pub fn header(out: &mut dyn Write, names: &[&str]) -> io::Result<()> {
    writeln!(out, "{}", names.join(","))
}

/// Writes one record.
///
/// # Errors
/// The writer's.
pub fn record(out: &mut dyn Write, cells: &[Cell]) -> io::Result<()> {
    for (index, cell) in cells.iter().enumerate() {
        if index > 0 {
            out.write_all(b",")?;
        }
        match cell {
            Cell::Text(text) => out.write_all(quoted(&disarmed(text)).as_bytes())?,
            Cell::Plain(text) => out.write_all(quoted(text).as_bytes())?,
            Cell::Empty => {}
        }
    }
    out.write_all(b"\n")
}

fn disarmed(text: &str) -> String {
    let shown = safe(text);
    if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{shown}") } else { shown.into_owned() }
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) || text.starts_with(' ') || text.ends_with(' ') {
        return format!("\"{}\"", text.replace('"', "\"\""));
    }
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_and_formulas() {
        let mut out = Vec::new();
        header(&mut out, &["a", "b"]).unwrap();
        let cells = [
            Cell::text("plain"),
            Cell::text("a,\"b\""),
            Cell::text("=HYPERLINK(\"x\")"),
            Cell::text("-2+3"),
            Cell::text("@team/job"),
            Cell::text("line\nbreak\u{1b}[31m"),
            Cell::text(" padded "),
            Cell::plain(-5),
            Cell::maybe(Some(7)),
            Cell::maybe(None::<u64>),
            Cell::maybe_text(None),
        ];
        record(&mut out, &cells).unwrap();
        let expected = "a,b\nplain,\"a,\"\"b\"\"\",\"'=HYPERLINK(\"\"x\"\")\",'-2+3,'@team/job,line\\nbreak\\u{1b}[31m,\" padded \",-5,7,,\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}

//! Tables without frames: a header, columns two spaces apart, numbers to the right.
//!
//! Guarantees: no row is wider than the screen. If room is short, the least important columns are left out whole (and
//! named); only then is text cut. Cells are escaped here.

use super::screen::{Screen, Tone};
use super::text::{cut, safe, width};

/// Spaces between columns.
const GAP: usize = 2;

/// The alignment of a column's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// One column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its heading.
    pub name: &'static str,
    /// The alignment of its cells.
    pub align: Align,
    /// A column of rank 0 always stays; the highest rank is left out first.
    pub rank: u8,
}

/// A text column.
#[must_use]
pub const fn left(name: &'static str, rank: u8) -> Column {
    Column { name, align: Align::Left, rank }
}

/// A number column.
#[must_use]
pub const fn right(name: &'static str, rank: u8) -> Column {
    Column { name, align: Align::Right, rank }
}

/// A table under construction.
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<(String, Option<Tone>)>>,
}

impl Table {
    /// An empty table.
    #[must_use]
    pub fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.toned(cells.into_iter().map(|cell| (cell, None)).collect());
    }

    /// Adds a row with tones.
    pub fn toned(&mut self, cells: Vec<(String, Option<Tone>)>) {
        debug_assert_eq!(cells.len(), self.columns.len(), "one cell a column");
        self.rows.push(cells.into_iter().map(|(cell, tone)| (safe(&cell).into_owned(), tone)).collect());
    }

    /// The table as text; columns without any value are not shown.
    #[must_use]
    pub fn show(&self, screen: &Screen) -> String {
        let mut widths: Vec<usize> = self
            .columns
            .iter()
            .enumerate()
            .map(|(at, column)| {
                self.rows.iter().map(|row| width(&row[at].0)).max().unwrap_or(0).max(width(column.name))
            })
            .collect();
        let known = |at: usize| self.rows.iter().any(|row| !row[at].0.is_empty() && row[at].0 != "-");
        let mut shown: Vec<usize> =
            (0..self.columns.len()).filter(|&at| self.columns[at].rank == 0 || known(at)).collect();
        let left_out = self.drop_columns(&mut shown, &widths, screen);
        shrink_widest(&shown, &mut widths, screen);
        let mut out = String::new();
        let heads = self.columns.iter().map(|column| (column.name.to_owned(), Some(Tone::Faint))).collect::<Vec<_>>();
        for row in std::iter::once(&heads).chain(&self.rows) {
            self.line(&mut out, row, &shown, &widths, screen);
        }
        if !left_out.is_empty() {
            let note = format!("(no room for: {})", left_out.join(", "));
            out.push_str(&screen.paint(Tone::Faint, &screen.fit(&note, 0)));
            out.push('\n');
        }
        out
    }

    fn drop_columns(&self, shown: &mut Vec<usize>, widths: &[usize], screen: &Screen) -> Vec<&'static str> {
        let mut left_out = Vec::new();
        while let Some(columns) = screen.columns {
            let worst =
                shown.iter().copied().filter(|&at| self.columns[at].rank > 0).max_by_key(|&at| self.columns[at].rank);
            match worst {
                Some(worst) if total(shown, widths) > columns => {
                    shown.retain(|&at| at != worst);
                    left_out.push(self.columns[worst].name);
                }
                _ => break,
            }
        }
        left_out
    }

    fn line(
        &self,
        out: &mut String,
        row: &[(String, Option<Tone>)],
        shown: &[usize],
        widths: &[usize],
        screen: &Screen,
    ) {
        let mut line = String::new();
        // Padding is written only before the next cell, so that no line ends in spaces.
        let mut held = 0;
        for (place, &at) in shown.iter().enumerate() {
            let (text, tone) = &row[at];
            let text = cut(text, widths[at], screen.unicode);
            let room = widths[at] - width(&text);
            held += if place > 0 { GAP } else { 0 };
            if self.columns[at].align == Align::Right {
                held += room;
            }
            if !text.is_empty() {
                line.push_str(&" ".repeat(held));
                line.push_str(&tone.map_or(text.clone(), |tone| screen.paint(tone, &text)));
                held = 0;
            }
            if self.columns[at].align == Align::Left {
                held += room;
            }
        }
        out.push_str(&line);
        out.push('\n');
    }
}

fn total(shown: &[usize], widths: &[usize]) -> usize {
    shown.iter().map(|&at| widths[at]).sum::<usize>() + GAP * shown.len().saturating_sub(1)
}

/// Reduces the widest columns until the table fits.
fn shrink_widest(shown: &[usize], widths: &mut [usize], screen: &Screen) {
    let over = screen.columns.map_or(0, |columns| total(shown, widths).saturating_sub(columns));
    if let Some(&widest) = shown.iter().max_by_key(|&&at| widths[at]) {
        widths[widest] = widths[widest].saturating_sub(over).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table =
            Table::new(&[left("JOB", 0), right("RANK", 0), left("HOST", 2), right("BYTES", 1), left("NOTE", 3)]);
        table.row(["resnet", "0", "node-1", "1.00 GiB", ""].map(str::to_owned).to_vec());
        table.row(["resnet", "12", "evil\u{1b}[31m", "512 B", ""].map(str::to_owned).to_vec());
        table
    }

    #[test]
    fn wide() {
        let screen = Screen { columns: None, unicode: true, colour: false };
        insta::assert_snapshot!(table().show(&screen), @r"
        JOB     RANK  HOST               BYTES
        resnet     0  node-1          1.00 GiB
        resnet    12  evil\u{1b}[31m     512 B
        ");
    }

    #[test]
    fn narrow_leaves_out_whole_columns() {
        let screen = Screen { columns: Some(30), unicode: true, colour: false };
        insta::assert_snapshot!(table().show(&screen), @r"
        JOB     RANK     BYTES
        resnet     0  1.00 GiB
        resnet    12     512 B
        (no room for: HOST)
        ");
    }

    #[test]
    fn no_line_is_wider_than_the_screen() {
        let mut table = Table::new(&[left("NAME", 0), right("RANK", 0)]);
        table.row(vec!["x".repeat(200), "1".to_owned()]);
        let screen = Screen { columns: Some(40), unicode: false, colour: false };
        for line in table.show(&screen).lines() {
            assert!(width(line) <= 40, "{line}");
        }
    }
}

//! A plot in characters: memory upwards, time to the right.
//!
//! Solid: bytes that stayed allocated throughout a column (the floor, which a leak raises). Shaded: bytes that were
//! allocated at some moment in it. Line: reserved bytes. Eighth-of-a-row blocks if the screen has them, else ASCII.
//! Guarantees: exactly the requested rows and columns, for any values.

use memctl_model::HumanBytes;

use super::screen::{Screen, Tone};
use super::text::width;

/// Columns to the left of the plot: a label of 8 (`1.00 GiB`), a space, the axis.
pub const MARGIN: usize = 10;

/// What happened within one column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Column {
    /// Lowest allocated bytes.
    pub floor: u64,
    /// Highest allocated bytes.
    pub peak: u64,
    /// Highest reserved bytes.
    pub reserved: u64,
}

/// A label below the axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tick {
    /// Its column.
    pub column: usize,
    /// Its text.
    pub label: String,
}

/// The shades of a screen.
struct Ink {
    solid: [&'static str; 9],
    shade: &'static str,
    line: &'static str,
    axis: &'static str,
    corner: &'static str,
    floor: &'static str,
    tick: &'static str,
}

const BLOCKS: Ink = Ink {
    solid: [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"],
    shade: "░",
    line: "─",
    axis: "│",
    corner: "└",
    floor: "─",
    tick: "┬",
};
const ASCII: Ink = Ink {
    solid: [" ", "_", "_", "_", "#", "#", "#", "#", "#"],
    shade: ":",
    line: "-",
    axis: "|",
    corner: "+",
    floor: "-",
    tick: "+",
};

/// Draws columns (`None` = no data) up to `top` bytes in `rows` rows.
#[must_use]
pub fn plot(columns: &[Option<Column>], top: u64, rows: usize, ticks: &[Tick], screen: &Screen) -> String {
    let ink = screen.pick(&BLOCKS, &ASCII);
    let unit = (top.max(1) as f64) / rows.max(1) as f64;
    let mut out = String::new();
    for row in (0..rows).rev() {
        let label = if row + 1 == rows {
            HumanBytes::of(top).to_string()
        } else if rows >= 6 && row + 1 == rows / 2 {
            HumanBytes::of(((row + 1) as f64 * unit) as u64).to_string()
        } else {
            String::new()
        };
        let cells: String = columns.iter().map(|column| column.map_or(" ", |c| cell(c, row, unit, ink))).collect();
        out.push_str(&format!("{label:>8} {}{}\n", ink.axis, paint(cells.trim_end(), ink, screen)));
    }
    let floor: String = (0..columns.len())
        .map(|at| if ticks.iter().any(|tick| tick.column == at) { ink.tick } else { ink.floor })
        .collect();
    out.push_str(&format!("{:>8} {}{floor}\n", "0 B", ink.corner));
    let labels = tick_line(ticks);
    if !labels.is_empty() {
        out.push_str(&format!("{:MARGIN$}{labels}\n", ""));
    }
    out
}

/// The meaning of the shades.
#[must_use]
pub fn legend(screen: &Screen) -> String {
    let ink = screen.pick(&BLOCKS, &ASCII);
    format!("{} allocated all the time   {} at its peaks   {} reserved", ink.solid[8], ink.shade, ink.line)
}

/// How much of a row (0..1) a value fills.
fn fill(value: u64, row: usize, unit: f64) -> f64 {
    (value as f64 / unit - row as f64).clamp(0.0, 1.0)
}

fn cell(column: Column, row: usize, unit: f64, ink: &Ink) -> &'static str {
    let (floor, peak) = (fill(column.floor, row, unit), fill(column.peak.max(column.floor), row, unit));
    let mut eighths = (floor * 8.0).round() as usize;
    if row == 0 && column.floor > 0 {
        // A small value must not look like zero.
        eighths = eighths.max(1);
    }
    if eighths > 0 {
        // Draw the floor below a peak as well, because its rise shows a leak.
        return ink.solid[eighths.min(8)];
    }
    if peak >= 0.25 {
        return ink.shade;
    }
    let reserved = fill(column.reserved, row, unit);
    let ends_here = reserved > 0.0 && fill(column.reserved, row + 1, unit) == 0.0;
    if ends_here { ink.line } else { " " }
}

/// Shades and lines are fainter than solid blocks.
fn paint(cells: &str, ink: &Ink, screen: &Screen) -> String {
    if !screen.colour {
        return cells.to_owned();
    }
    let faint = |c: char| {
        let mut text = [0; 4];
        let text: &str = c.encode_utf8(&mut text);
        text == ink.shade || text == ink.line
    };
    let mut out = String::new();
    let mut rest = cells;
    while let Some(first) = rest.chars().next() {
        let is_faint = faint(first);
        let end = rest.find(|c| faint(c) != is_faint).unwrap_or(rest.len());
        let (run, tail) = rest.split_at(end);
        out.push_str(&if is_faint { screen.paint(Tone::Faint, run) } else { run.to_owned() });
        rest = tail;
    }
    out
}

/// The labels that fit, each below its tick.
fn tick_line(ticks: &[Tick]) -> String {
    let mut line = String::new();
    for tick in ticks {
        let used = width(&line);
        if used == 0 || tick.column > used {
            line.push_str(&" ".repeat(tick.column.saturating_sub(used)));
            line.push_str(&tick.label);
        }
    }
    line
}

/// A row of bars, one per value, scaled from 0 to the highest value; empty if the screen has only ASCII.
#[must_use]
pub fn sparkline(values: &[u64], screen: &Screen) -> String {
    let top = values.iter().copied().max().unwrap_or(0);
    if !screen.unicode || top == 0 {
        return String::new();
    }
    let bar = |value: &u64| BLOCKS.solid[((*value as f64 / top as f64 * 8.0).round() as usize).clamp(1, 8)];
    values.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leak() -> Vec<Option<Column>> {
        (0..24)
            .map(|at| {
                let floor = (10 + at * 2) << 20;
                Some(Column {
                    floor,
                    peak: floor + ((at % 4) << 23),
                    reserved: if at < 12 { 64 << 20 } else { 96 << 20 },
                })
            })
            .collect()
    }

    fn ticks() -> Vec<Tick> {
        [(0, "0"), (8, "1"), (9, "crowded"), (16, "2")]
            .into_iter()
            .map(|(column, label)| Tick { column, label: label.to_owned() })
            .collect()
    }

    #[test]
    fn blocks() {
        let screen = Screen { columns: Some(80), unicode: true, colour: false };
        insta::assert_snapshot!(plot(&leak(), 96 << 20, 6, &ticks(), &screen));
    }

    #[test]
    fn ascii() {
        let screen = Screen { columns: Some(80), unicode: false, colour: false };
        insta::assert_snapshot!(plot(&leak(), 96 << 20, 6, &ticks(), &screen));
    }

    #[test]
    fn extremes_do_not_break_it() {
        let screen = Screen { columns: Some(80), unicode: true, colour: true };
        let wild = Column { floor: u64::MAX, peak: 0, reserved: u64::MAX };
        for top in [0, 1, u64::MAX] {
            let text = plot(&[None, Some(wild), Some(Column::default())], top, 4, &[], &screen);
            assert_eq!(text.lines().count(), 5, "{text}");
        }
        assert_eq!(plot(&[], 5, 0, &[], &screen).lines().count(), 1);
    }

    #[test]
    fn sparklines() {
        let screen = Screen { columns: None, unicode: true, colour: false };
        assert_eq!(sparkline(&[0, 1, 2, 3, 4, 8], &screen), "▁▁▂▃▄█");
        assert_eq!(sparkline(&[0, 0], &screen), "");
        assert_eq!(sparkline(&[1], &Screen { unicode: false, ..screen }), "");
    }
}

//! Running text on a screen. It is wrapped at spaces and escaped. It is cut only if the caller limits the number of
//! lines.
//!
//! Guarantees: no line is wider than requested. A word that is wider is broken. Line breaks in the text become spaces.

use crate::render::screen::Screen;
pub use crate::render::text::wrap;
use crate::render::text::{cut, width};

/// Number of columns of running text if the screen has no limit, as in a mail or a file.
const COLUMNS: usize = 100;

/// Number of columns that running text may use.
#[must_use]
pub fn columns(screen: &Screen) -> usize {
    screen.columns.unwrap_or(COLUMNS)
}

/// The text after a head, with further lines indented below the text. It has at most `lines_max` lines; if it is cut,
/// the last line ends in `…`.
#[must_use]
pub fn hanging(head: &str, text: &str, lines_max: usize, screen: &Screen) -> String {
    let room = columns(screen).saturating_sub(width(head));
    let mut lines = wrap(text, room);
    if lines.is_empty() {
        return format!("{}\n", head.trim_end());
    }
    if lines.len() > lines_max {
        lines.truncate(lines_max);
        if let Some(last) = lines.last_mut() {
            let more = format!("{last} {}", screen.pick("…", "..."));
            *last = if width(&more) <= room { more } else { cut(&format!("{last}xx"), room, screen.unicode) };
        }
    }
    let mut out = String::new();
    for (at, line) in lines.iter().enumerate() {
        let lead = if at == 0 { head.to_owned() } else { " ".repeat(width(head)) };
        out.push_str(&format!("{lead}{line}\n"));
    }
    out
}

/// The first sentence.
#[must_use]
pub fn first_sentence(text: &str) -> &str {
    let text = text.trim();
    text.find(". ").map_or(text, |end| &text[..=end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_and_harmless() {
        assert_eq!(wrap("one two  three\nfour\u{1b}[2J", 13), ["one two three", r"four\u{1b}[2J"]);
        assert_eq!(wrap("abcdefghijkl xy", 8), ["abcdefg", "hijkl xy"]);
        assert_eq!(wrap("漢漢漢漢漢漢", 8), ["漢漢漢", "漢漢漢"]);
        assert_eq!(wrap("   ", 8), Vec::<String>::new());
    }

    #[test]
    fn what_hangs_is_indented_and_ends() {
        let screen = Screen { columns: Some(16), unicode: true, colour: false };
        assert_eq!(
            hanging("why  ", "it grows and it grows on", 9, &screen),
            "why  it grows\n     and it\n     grows on\n"
        );
        assert_eq!(hanging("why  ", "it grows and it grows on", 2, &screen), "why  it grows\n     and it …\n");
        assert_eq!(first_sentence("Do this. Then that."), "Do this.");
        assert_eq!(first_sentence("use v1.2 of it"), "use v1.2 of it");
    }
}

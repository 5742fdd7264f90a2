//! Text in the columns of a terminal; how text from elsewhere is made safe is the answers' ([`safe`]).
//!
//! Guarantees: widths are terminal columns, not bytes.

pub use memctl_answers::format::text::{capital, count, plural, rank_list, safe};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Columns that the text takes on a terminal.
#[must_use]
pub fn width(text: &str) -> usize {
    text.width()
}

/// The text cut at its end to so many columns, with `…` (or `~`) where something is missing.
#[must_use]
pub fn cut(text: &str, columns: usize, unicode: bool) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut left = columns.saturating_sub(1);
    let mut out = String::new();
    for c in text.chars() {
        let columns = c.width().unwrap_or(0);
        if columns > left {
            break;
        }
        left -= columns;
        out.push(c);
    }
    if columns > 0 {
        out.push(if unicode { '…' } else { '~' });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cutting_counts_columns() {
        assert_eq!(cut("abcdef", 6, true), "abcdef");
        assert_eq!(cut("abcdefg", 6, true), "abcde…");
        assert_eq!(cut("漢漢漢漢", 6, true), "漢漢…");
        assert_eq!(cut("abc", 2, false), "a~");
        assert_eq!(cut("abc", 0, false), "");
    }
}

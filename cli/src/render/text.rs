//! Text in the columns of a terminal; [`safe`] makes text from elsewhere safe to show.
//!
//! Guarantees: widths are terminal columns, not bytes.

pub use memctl_answers::format::text::{capital, count, plural, rank_list, safe};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Columns that the text takes on a terminal.
#[must_use]
pub fn width(text: &str) -> usize {
    text.width()
}

/// The text cut at its end to so many columns; a cut text ends in `…` (or `~`).
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

/// The text wrapped to lines of so many columns.
#[must_use]
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(8);
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        let mut word = safe(word).into_owned();
        if !line.is_empty() && width(&line) + 1 + width(&word) > columns {
            lines.push(std::mem::take(&mut line));
        }
        while width(&word) > columns {
            // `cut` adds a mark, which is removed here.
            let mut head = cut(&word, columns, true);
            head.pop();
            word = word[head.len()..].to_owned();
            lines.push(head);
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(&word);
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
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

//! Makes external text safe to show: names of functions, files, hosts and jobs come from clients.
//!
//! Guarantees: the result of [`safe`] cannot move a terminal's cursor, change its colours, start a new line or reorder
//! text.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a character could control a terminal: control characters (C0, DEL, C1), marks that reorder or hide text,
/// line and paragraph separators.
#[must_use]
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{61c}')
}

/// The text with every such character escaped.
#[must_use]
pub fn safe(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if is_unsafe(c) => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// The last part of a path, for lines that have no room for the whole path.
#[must_use]
pub fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().filter(|name| !name.is_empty()).unwrap_or(path)
}

/// `0-3,7`.
#[must_use]
pub fn rank_list(ranks: &[u32]) -> String {
    let mut sorted = ranks.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let runs = sorted.chunk_by(|a, b| a.checked_add(1) == Some(*b));
    let shown = runs.map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run.first().map(u32::to_string).unwrap_or_default(),
    });
    shown.collect::<Vec<_>>().join(",")
}

/// `12,345,678`.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 rank`, `4 ranks`.
#[must_use]
pub fn plural(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { "s" })
}

/// The text with its first letter as a capital.
#[must_use]
pub fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_spelled_out() {
        assert_eq!(safe("plain ünï 漢"), "plain ünï 漢");
        assert_eq!(safe("\u{1b}[2J\u{9b}31m\r\n\t\u{7f}"), r"\u{1b}[2J\u{9b}31m\u{d}\n\t\u{7f}");
        assert_eq!(safe("a\u{202e}b\u{2066}c\u{feff}"), r"a\u{202e}b\u{2066}c\u{feff}");
    }

    #[test]
    fn lists_and_numbers() {
        assert_eq!(rank_list(&[7, 0, 1, 2, 3]), "0-3,7");
        assert_eq!(rank_list(&[u32::MAX, u32::MAX - 1]), "4294967294-4294967295");
        assert_eq!(rank_list(&[]), "");
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(plural(1, "rank"), "1 rank");
        assert_eq!(file_name("/a/b.py"), "b.py");
        assert_eq!(file_name("a\\b.py"), "b.py");
        assert_eq!(file_name("/a/"), "/a/");
    }
}

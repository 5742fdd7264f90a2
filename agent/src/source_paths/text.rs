//! Treats paths in texts: exceptions, names of regions, notes.
//!
//! Guarantees: a path in quotes or between blanks is treated like a frame's path. Text directly after it (`:31`, a full
//! stop) is kept. In strict mode, every word that has a slash or names a source file is a path.
//! Refuses: to look for names that are not paths.

use std::borrow::Cow;

/// Characters that end a word, apart from blanks.
const ENDS: &str = "'\"`()[]{}<>,;|=";
/// The address of pages that PyTorch's own errors refer to.
const PUBLIC: &str = "https://pytorch.org/";

/// The text with every path in it treated.
pub(super) fn treated<'a>(text: &'a str, strictly: bool, file: &dyn Fn(&str) -> String) -> Cow<'a, str> {
    if !text.contains(['/', '\\', '.']) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let quoted = matches!(first, '\'' | '"' | '`').then(|| rest[1..].find(first)).flatten();
        // An apostrophe is not a quote. A path begins directly after a quote.
        if let Some(end) = quoted.filter(|&end| is_whole_path(&rest[1..=end], strictly)) {
            out.push(first);
            out.push_str(&word(&rest[1..=end], strictly, file));
            out.push(first);
            rest = &rest[end + 2..];
        } else if first.is_whitespace() || ENDS.contains(first) {
            out.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            let end = rest.find(|c: char| c.is_whitespace() || ENDS.contains(c)).unwrap_or(rest.len());
            out.push_str(&word(&rest[..end], strictly, file));
            rest = &rest[end..];
        }
    }
    Cow::Owned(out)
}

/// Whether everything between two quotes is one path. A path may contain blanks.
fn is_whole_path(quoted: &str, strictly: bool) -> bool {
    let begins = quoted.starts_with(['/', '~']) || quoted.starts_with("./") || quoted.starts_with("../");
    begins || is_path(quoted, strictly) && !quoted.contains(char::is_whitespace) || is_drive(quoted)
}

fn is_drive(word: &str) -> bool {
    let mut bytes = word.bytes();
    bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic())
        && bytes.next() == Some(b':')
        && bytes.next() == Some(b'\\')
}

fn is_path(word: &str, strictly: bool) -> bool {
    let absolute = word.len() > 1 && (word.starts_with('/') || word.starts_with("~/")) || is_drive(word);
    let relative = || {
        let letters = word.chars().any(char::is_alphabetic);
        letters && (word.contains(['/', '\\']) || word.ends_with(".py") || word.ends_with(".so"))
    };
    absolute || strictly && relative()
}

fn word(word: &str, strictly: bool, file: &dyn Fn(&str) -> String) -> String {
    let mut path = word.trim_end_matches(['.', ':', '!', '?']);
    // A line number and a column may follow the path.
    for _ in 0..2 {
        match path.rsplit_once(':') {
            Some((front, number)) if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => {
                path = front
            }
            _ => break,
        }
    }
    let behind = &word[path.len()..];
    if path.starts_with(PUBLIC) {
        return word.to_owned();
    }
    // The scheme is public. The rest is not.
    if let Some((scheme, place)) = path.split_once("://") {
        return match strictly && !place.is_empty() || scheme == "file" {
            true => format!("{scheme}://{}{behind}", file(&format!("/{}", place.trim_start_matches('/')))),
            false => word.to_owned(),
        };
    }
    // Variables and mounts are written as `key:/path`.
    if let Some((front, path)) =
        path.split_once(':').filter(|(front, path)| !front.contains('/') && path.starts_with('/'))
    {
        return format!("{front}:{}{behind}", file(path));
    }
    match is_path(path, strictly) {
        true => format!("{}{behind}", file(path)),
        false => word.to_owned(),
    }
}

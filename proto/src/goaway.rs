//! The message with which a daemon closes a connection that it refuses: how it is marked, and how a client finds it.
//!
//! HTTP/2 closes a connection with a number and free text. Libraries keep the text in the causes of an error.
//! Guarantees: only a text with the mark of a memctl daemon is used, and at most 300 characters of it.

use std::error::Error;

/// Prefix of a daemon's message.
pub const MARK: &str = "memctl: ";
/// Maximum number of characters that are shown.
const SHOWN_MAX: usize = 300;
/// Maximum number of causes that are searched.
const CAUSES_MAX: usize = 16;

/// The message, if an error or one of its causes contains one.
#[must_use]
pub fn words(error: &(dyn Error + 'static)) -> Option<String> {
    let mut cause = Some(error);
    for _ in 0..CAUSES_MAX {
        if let Some(words) = of_text(&cause?.to_string()) {
            return Some(words);
        }
        cause = cause?.source();
    }
    None
}

/// Extracts the message from `connection error received: detected excessive load generating behavior (b"memctl: …")`.
fn of_text(text: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("(b\"{MARK}"))?;
    let (words, _) = rest.rsplit_once("\")")?;
    Some(words.replace("\\\"", "\"").chars().filter(|character| !character.is_control()).take(SHOWN_MAX).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemons_words_are_found_and_no_others() {
        let text = "connection error received: x (b\"memctl: one peer may have \\\"2\\\"; close some\")";
        assert_eq!(of_text(text).as_deref(), Some("one peer may have \"2\"; close some"));
        for other in ["", "x (b\"too_many_pings\")", "(b\"memctl: no end", "memctl: plain"] {
            assert_eq!(of_text(other), None, "{other}");
        }
        assert_eq!(of_text(&format!("(b\"memctl: {}\")", "x".repeat(999))).unwrap().len(), SHOWN_MAX);
        let deep = std::io::Error::other(std::io::Error::other(text));
        assert!(words(&deep).is_some());
    }
}

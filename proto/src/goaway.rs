//! The words with which a daemon closes a connection that it does not take: how they are marked, and how they are found again.
//!
//! HTTP/2 says goodbye with a number and free text; libraries keep the text in the causes of an error.
//! Guarantees: only what a memctl daemon wrote is taken for its words, and no more than a sentence of it.

use std::error::Error;

/// What a daemon's words begin with.
pub const MARK: &str = "memctl: ";
/// Characters that are shown.
const SHOWN_MAX: usize = 300;
/// Causes that are looked at.
const CAUSES_MAX: usize = 16;

/// The words, if an error or one of its causes holds some.
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

/// Out of `connection error received: detected excessive load generating behavior (b"memctl: …")`.
fn of_text(text: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("(b\"{MARK}"))?;
    let (words, _) = rest.rsplit_once("\")")?;
    Some(words.replace("\\\"", "\"").chars().filter(|character| !character.is_control()).take(SHOWN_MAX).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemons_words_are_found_and_nobody_elses() {
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

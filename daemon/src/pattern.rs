//! Patterns of names, in which `*` matches any text.
//!
//! Guarantees: matching takes at most time proportional to the length of the text times the number of `*`.

/// Whether a text matches a pattern.
pub fn fits(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(first) else { return false };
    let parts: Vec<&str> = rest.split('*').collect();
    let Some((last, middle)) = parts.split_last() else { return true };
    for part in middle {
        match text.find(part) {
            Some(at) => text = &text[at + part.len()..],
            None => return false,
        }
    }
    text.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("vit", "vit", true),
            ("vit", "vit2", false),
            ("vit*", "vit-17", true),
            ("*", "", true),
            ("*vit*7", "a-vit-17", true),
            ("a*b*c", "abc", true),
            ("a*bc*c", "abc", false),
            ("ab*ba", "aba", false),
            ("**x", "yx", true),
        ] {
            assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
        }
    }
}

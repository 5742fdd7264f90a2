//! Escapes text for Markdown, in a paragraph and in a cell of a table.
//!
//! Guarantees: [`escape`] returns text that is shown literally: no markup, no tags, no mentions, and no links to issues
//! or addresses, which code hosts generate from plain text.

use super::text::safe;

/// Invisible text that separates words, so that mentions and addresses are not detected.
const NOTHING: &str = "<!-- -->";

/// The text, escaped for a line of Markdown.
#[must_use]
pub fn escape(text: &str) -> String {
    let text = safe(text);
    let mut out = String::with_capacity(text.len() + 8);
    let mut letters = text.chars().peekable();
    let mut before = ' ';
    while let Some(letter) = letters.next() {
        match letter {
            // Within a word, an underscore is not markup. Names have many of them.
            '_' if before.is_alphanumeric() && letters.peek().is_some_and(|next| next.is_alphanumeric()) => {
                out.push('_')
            }
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\\' | '`' | '*' | '_' | '{' | '}' | '[' | ']' | '|' | '~' | '!' | '$' | '^' => {
                out.push('\\');
                out.push(letter);
            }
            letter => out.push(letter),
        }
        before = letter;
        // The beginnings of a mention, of an issue's number, and of an address.
        if matches!(letter, '@' | '#') || letter == ':' && letters.peek() == Some(&'/') {
            out.push_str(NOTHING);
        }
    }
    // An address that becomes a link without a scheme.
    out.replace("www.", &format!("www{NOTHING}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_markup_and_no_user_is_mentioned() {
        assert_eq!(escape("a_b|c*d`e` _f_"), r"a_b\|c\*d\`e\` \_f\_");
        assert_eq!(escape("<img src=x>"), "&lt;img src=x&gt;");
        assert_eq!(escape("[x](y)"), r"\[x\](y)");
        assert_eq!(escape("@all #12"), "@<!-- -->all #<!-- -->12");
        assert_eq!(escape("http://a.b"), "http:<!-- -->//a.b");
        assert_eq!(escape("www.a.b"), "www<!-- -->.a.b");
        assert_eq!(escape("f (train.py:9): x"), "f (train.py:9): x");
        assert_eq!(escape("a\nb"), r"a\\nb");
    }
}

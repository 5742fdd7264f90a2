//! Escapes text for HTML: names come from clients, and other users open a report.
//!
//! Guarantees: the result of [`escape`] is text in an element and in a quoted attribute: it opens no tag and ends no
//! attribute, and control characters are escaped.

use super::text::safe;

/// The text, escaped for an element and for a quoted attribute.
#[must_use]
pub fn escape(text: &str) -> String {
    let text = safe(text);
    let mut out = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_becomes_a_tag_or_ends_an_attribute() {
        assert_eq!(escape("<script>alert('x')</script>"), "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;");
        assert_eq!(escape("\" onload=\"x"), "&quot; onload=&quot;x");
        assert_eq!(escape("a && b ü漢"), "a &amp;&amp; b ü漢");
        assert_eq!(escape("a\u{202e}b\u{0}c\n"), r"a\u{202e}b\u{0}c\n");
        assert_eq!(escape("-->]]>"), "--&gt;]]&gt;");
    }
}

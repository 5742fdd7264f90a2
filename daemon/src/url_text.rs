//! Decodes percent-encoded text of URLs and of OpenTelemetry's variables.
//!
//! Refuses: malformed encoding, and text that is not UTF-8. (The library would leave malformed encoding unchanged.)

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// Decodes percent-encoding; `None` if it is malformed.
pub(crate) fn decoded(text: &str) -> Option<String> {
    let begins_with_digits =
        |after: &str| after.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
    if !text.split('%').skip(1).all(begins_with_digits) {
        return None;
    }
    percent_decode_str(text).decode_utf8().ok().map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_text_is_refused() {
        assert_eq!(decoded("a%20b+%C3%bc").as_deref(), Some("a b+ü"));
        for wrong in ["%", "a%f", "%zz", "%%41", "%ff", "%é"] {
            assert_eq!(decoded(wrong), None, "{wrong}");
        }
    }
}

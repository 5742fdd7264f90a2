//! The content security policy of a report. It allows only the page's own style and script, by their hashes.
//!
//! Guarantees: a browser that enforces the policy loads nothing from any server. It runs no script that comes from the
//! name of a job or a function.

use sha2::{Digest as _, Sha256};

use crate::hosting::page_files;

/// The content security policy.
#[must_use]
pub fn policy() -> String {
    let (script, style) = page_files();
    let (style, script) = (hash(style), hash(script));
    format!(
        "default-src 'none'; style-src '{style}'; script-src '{script}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
}

fn hash(text: &str) -> String {
    format!("sha256-{}", base64(&Sha256::digest(text.as_bytes())))
}

/// The standard encoding of RFC 4648, with padding.
#[must_use]
pub fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let all = (0..3).fold(0_usize, |all, at| all * 256 + usize::from(three.get(at).copied().unwrap_or(0)));
        for at in 0..4 {
            let letter = LETTERS[(all >> (18 - 6 * at)) & 63];
            out.push(if at > three.len() { '=' } else { char::from(letter) });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_written_as_browsers_read_them() {
        for (plain, coded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
        assert_eq!(hash(""), "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
    }

    #[test]
    fn style_and_script_cannot_end_their_element_nor_load_anything() {
        let (script, style) = page_files();
        assert!(script.len() > 1000 && style.len() > 1000, "the page is there");
        for text in [script, style] {
            assert!(!text.contains("</s") && !text.contains("<!--") && !text.contains("@import"));
            assert!(!text.contains("url(\"") && !text.contains("import("));
        }
    }
}

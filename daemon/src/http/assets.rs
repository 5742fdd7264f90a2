//! The page's files, which are built from `web/` and contained in the binary.
//!
//! Guarantees: nothing is read from a disk. A browser revalidates files by their tag, and an unchanged file is not sent
//! again.
//! Refuses: every other name.

use axum::extract::Path;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderMap, IF_NONE_MATCH};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use sha2::{Digest as _, Sha256};

use super::plain;

/// The page. All its addresses return the same file, and its script reads the address.
const PAGE: &[u8] = include_bytes!("../../../web/dist/index.html");

/// The page's script. It references no other file and may be used in a file of its own.
pub const SCRIPT: &[u8] = include_bytes!("../../../web/dist/assets/page.js");
/// The page's style.
pub const STYLE: &[u8] = include_bytes!("../../../web/dist/assets/page.css");

/// The files that the page loads, by name, with their types.
const FILES: [(&str, &str, &[u8]); 3] = [
    ("page.js", "text/javascript; charset=utf-8", SCRIPT),
    ("page.css", "text/css; charset=utf-8", STYLE),
    ("icon.svg", "image/svg+xml", include_bytes!("../../../web/dist/assets/icon.svg")),
];

/// Any view of the page.
pub async fn page(headers: HeaderMap) -> Response {
    file(&headers, "text/html; charset=utf-8", PAGE)
}

/// A file that the page loads.
pub async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response {
    match FILES.iter().find(|(known, ..)| *known == name) {
        Some((_, kind, bytes)) => file(&headers, kind, bytes),
        None => plain(StatusCode::NOT_FOUND, "There is no such file; the page is at /\n".to_owned()),
    }
}

fn file(headers: &HeaderMap, kind: &'static str, bytes: &'static [u8]) -> Response {
    let tag = tag(bytes);
    let same = is_known(headers, &tag);
    let head: [(HeaderName, String); 3] =
        [(CONTENT_TYPE, kind.to_owned()), (CACHE_CONTROL, "no-cache".to_owned()), (ETAG, tag)];
    if same { (StatusCode::NOT_MODIFIED, head).into_response() } else { (head, bytes).into_response() }
}

/// The tag of these bytes for revalidation.
pub(super) fn tag(bytes: &[u8]) -> String {
    let digest: String = Sha256::digest(bytes).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("\"{digest}\"")
}

/// Whether the browser already has the bytes with this tag.
pub(super) fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let known = headers.get(IF_NONE_MATCH).and_then(|tags| tags.to_str().ok());
    known.is_some_and(|tags| tags.split(',').any(|known| known.trim().trim_start_matches("W/") == tag))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_built_file_is_served_and_the_page_names_no_other() {
        let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../web/dist");
        let names = |folder: &Path| -> BTreeSet<String> {
            let entries = std::fs::read_dir(folder).unwrap().flatten();
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
        };
        assert_eq!(names(&built), BTreeSet::from(["assets", "index.html"].map(str::to_owned)));
        assert_eq!(names(&built.join("assets")), FILES.iter().map(|(name, ..)| (*name).to_owned()).collect());
        let page = std::str::from_utf8(PAGE).unwrap();
        for (at, _) in page.match_indices("=\"/") {
            let name = page[at + 2..].split('"').next().unwrap();
            let known = FILES.iter().any(|(file, ..)| name == format!("/assets/{file}"));
            assert!(known, "{name}");
        }
        assert!(
            page.matches("/assets/").count() >= FILES.len() && !page.contains("http://") && !page.contains("https://")
        );
    }
}

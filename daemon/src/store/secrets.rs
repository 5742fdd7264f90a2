//! What a URL may show.
//!
//! Guarantees: no password, however odd.

/// A URL without password and without parameters (a password may be among them); anything else as it is.
pub(super) fn without_secrets(url: &str) -> String {
    let (scheme, rest) = match (url.split_once("://"), url.split_once(':')) {
        (Some(parts), _) => parts,
        (None, Some(parts)) if url.contains('@') => parts,
        _ => return url.into(),
    };
    let user = |text: &str| text.split([':', '?', '@']).next().unwrap_or_default().to_owned();
    // A password may hold any character: the user part ends at the last @ before the parameters, and where there is
    // none before them, what looks like parameters may be a part of the password.
    let before_parameters = rest.split('?').next().unwrap_or_default();
    match before_parameters.rsplit_once('@') {
        Some((secret, host)) => format!("{scheme}://{}@{host}", user(secret)),
        None if rest.contains('@') => format!("{scheme}://{}@…", user(rest)),
        None => format!("{scheme}://{before_parameters}"),
    }
}

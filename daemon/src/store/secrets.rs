//! Removes secrets from URLs before they are shown.
//!
//! Guarantees: a password is never shown, whatever characters it has.

/// A URL without its password and parameters (which may hold a password); any other text unchanged.
pub(super) fn without_secrets(url: &str) -> String {
    let (scheme, rest) = match (url.split_once("://"), url.split_once(':')) {
        (Some(parts), _) => parts,
        (None, Some(parts)) if url.contains('@') => parts,
        _ => return url.into(),
    };
    let user = |text: &str| text.split([':', '?', '@']).next().unwrap_or_default().to_owned();
    // A password may hold any character. The user part ends at the last @ before the parameters. Without such an @, the
    // apparent parameters may be part of the password.
    let before_parameters = rest.split('?').next().unwrap_or_default();
    match before_parameters.rsplit_once('@') {
        Some((secret, host)) => format!("{scheme}://{}@{host}", user(secret)),
        None if rest.contains('@') => format!("{scheme}://{}@…", user(rest)),
        None => format!("{scheme}://{before_parameters}"),
    }
}
